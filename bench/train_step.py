#!/usr/bin/env python3
"""Train-step benchmark: tokens/s, TFLOP/s per rank and memory of a whole training step, by running `moewright train`.

    bench/train_step.py build/release/moewright [--ranks 2] [--json FILE] [RUN.toml] [key=value ...]
    bench/train_step.py build/cuda/moewright --device cuda --ranks 1 --random-tokens 151936 \\
        examples/bench/qwen3_30b_8_layers.toml

The first three steps are left out; the median of the rest is reported. --split adds where the time went, which costs a
GPU a percent or two of it.
"""
import argparse
import array
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import tempfile

RANDOM_TOKENS = 1 << 20
END_OF_TEXT = 128000  # of Llama 3, before each document


def write_random_tokens(path, vocab, document):
    """An llm.c shard of evenly distributed tokens: a header of 256 words, then the tokens in 32 bits; with documents of
    `document` tokens on average, half to one and a half of that, where it is not 0."""
    header = array.array("i", [20240801, 7, RANDOM_TOKENS] + [0] * 253)
    draw = random.Random(1)
    tokens = array.array("i", draw.choices(range(vocab), k=RANDOM_TOKENS))
    at = 0
    while document and at < RANDOM_TOKENS:
        tokens[at] = END_OF_TEXT
        at += draw.randint(document // 2, document * 3 // 2)
    pathlib.Path(path).write_bytes(header.tobytes() + tokens.tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("run", nargs="?", default=str(pathlib.Path(__file__).parent.parent / "examples" / "demo.toml"))
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or hip")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--random-tokens", type=int, metavar="VOCAB", help="train on random tokens, not the run's data")
    parser.add_argument("--document-tokens", type=int, default=0, help="of random tokens: mean length of a document")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--split", action="store_true", help="report where the time went, too")
    parser.add_argument("--json")
    args = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, "metrics.jsonl")
        command = ["mpirun", "--bind-to", "none", "--oversubscribe", "-np", str(args.ranks)] if args.ranks > 1 else []
        if command and os.geteuid() == 0:
            command.append("--allow-run-as-root")
        command += [args.binary, "train", args.run, f"train.steps={args.steps}", "train.val_batches=0",
                    "train.byte_baseline=false", "sample.tokens=0", "checkpoint.dir=", f"log.jsonl={metrics}",
                    f"train.device={args.device}"] + ["--profile"] * args.split
        if args.random_tokens:
            tokens = os.path.join(folder, "tokens.bin")
            write_random_tokens(tokens, args.random_tokens, args.document_tokens)
            command += ["data.kind=shards", f"data.path={tokens}"]
        done = subprocess.run(command + args.overrides, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{done.stdout}{done.stderr}exit {done.returncode}: {' '.join(command + args.overrides)}")
        output = done.stdout
        lines = [json.loads(line) for line in open(metrics)][3:]
    split = re.findall(r"^  (\w+) +[\d.]+ s +([\d.]+) %$", output, re.M)
    result = {
        "benchmark": "train_step", "run": os.path.basename(args.run), "overrides": args.overrides,
        "device": args.device, "ranks": args.ranks, "document_tokens": args.document_tokens,
        "step_ms": statistics.median(line["step_ms"] for line in lines),
        "tokens_per_s": statistics.median(line["tokens_per_s"] for line in lines),
        "flops_per_token": lines[-1]["flops_per_token"],
        "tflops_per_rank": statistics.median(line["tflops_per_rank"] for line in lines),
        "mem_peak_bytes": lines[-1]["mem_peak_bytes"], "mem_predicted_bytes": lines[-1]["mem_predicted_bytes"],
        "mem_library_bytes": lines[-1].get("mem_library_bytes"),
    }
    if args.split:
        result["time_percent"] = {name: float(value) for name, value in split}
    text = json.dumps(result, indent=2)
    print(text)
    if args.json:
        pathlib.Path(args.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
