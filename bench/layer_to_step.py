#!/usr/bin/env python3
"""From the rate of one MoE layer to that of a whole training step, on one GPU in one run: bench_moe_layer measures the
layer alone, the trace of a step tells how long each part of it took.

    bench/layer_to_step.py build/cuda/bench_moe_layer build/cuda/moewright --shape qwen3-30b --json FILE \\
        examples/bench/qwen3_30b_8_layers.toml

The run's data are random tokens. Rates are model FLOPs over time: of MoE layers those of the experts, of the head those
of the logits, of attention blocks the rest. The traced step is the last one, and takes 1 to 3 percent longer.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import tomllib

from train_step import write_random_tokens

# Parts of a step, which together are the time of its device but for gaps: names of the trace's events.
PARTS = {"MoE layers": ["moe", "moe_backward"],
         "attention blocks": ["attention_block", "attention_block_backward"],
         "head and loss": ["head_and_loss"],
         "embedding": ["embedding", "embedding_backward"],
         "update": ["update", "grad_norm", "zero_gradients"]}


def measure_layer(bench, shape, tokens, path):
    subprocess.run([bench, "--device", "gpu", "--shape", shape, "--tokens", str(tokens), "--calls", "4", "--json", path],
                   check=True, stdout=subprocess.DEVNULL)
    return json.loads(pathlib.Path(path).read_text())[0]["forward_backward_tflops"]


def run_step(binary, run, vocab, folder, overrides):
    """Milliseconds of the median step, TFLOP of one, and milliseconds of the last one's parts on the device."""
    metrics, trace, tokens = (os.path.join(folder, name) for name in ("metrics.jsonl", "trace.json", "tokens.bin"))
    write_random_tokens(tokens, vocab, 0)
    subprocess.run([binary, "train", run, "train.steps=15", "train.val_batches=0", "train.byte_baseline=false",
                    "sample.tokens=0", "checkpoint.dir=", "train.device=cuda", "data.kind=shards", f"data.path={tokens}",
                    f"log.jsonl={metrics}", f"log.trace={trace}", *overrides], check=True, stdout=subprocess.DEVNULL)
    steps = [json.loads(line) for line in pathlib.Path(metrics).read_text().splitlines()]
    steps = [step for step in steps if "step_ms" in step]
    milliseconds = statistics.median(step["step_ms"] for step in steps[3:-1])
    teraflops = steps[-1]["tflops_per_rank"] * steps[-1]["step_ms"] * 1e-3
    events = json.loads(pathlib.Path(trace).read_text())["traceEvents"]
    lane = next(e["tid"] for e in events if e["ph"] == "M" and e["args"]["name"] == "compute")
    on_device = [e for e in events if e["ph"] == "X" and e["tid"] == lane]
    parts = {part: sum(e["dur"] for e in on_device if e["name"] in names) * 1e-3 for part, names in PARTS.items()}
    return milliseconds, steps[-1]["step_ms"], teraflops, parts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", help="bench_moe_layer")
    parser.add_argument("binary", help="moewright")
    parser.add_argument("run", help="a run file of one GPU and one micro-batch a step")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--shape", required=True, help="of its MoE layers, as bench_moe_layer names it")
    parser.add_argument("--json")
    args = parser.parse_intermixed_args()
    spec = tomllib.loads(pathlib.Path(args.run).read_text())
    model, tokens = spec["model"], spec["train"]["seq_len"] * spec["train"]["global_batch"]
    with tempfile.TemporaryDirectory() as folder:
        layer = measure_layer(args.bench, args.shape, tokens, os.path.join(folder, "layer.json"))
        median, traced, whole, parts = run_step(args.binary, args.run, model["vocab"], folder, args.overrides)
    flops = dict.fromkeys(PARTS, 0.0)
    flops["MoE layers"] = 18e-12 * model["layers"] * tokens * model["top_k"] * model["width"] * model["expert_width"]
    flops["head and loss"] = 6e-12 * tokens * model["width"] * model["vocab"]
    flops["attention blocks"] = whole - sum(flops.values())
    parts["gaps and the rest"] = traced - sum(parts.values())
    rows = [{"part": part, "ms": ms, "tflop": flops.get(part, 0.0),
             "tflops": flops.get(part, 0.0) / ms * 1e3 if flops.get(part) else None} for part, ms in parts.items()]
    result = {"benchmark": "layer_to_step", "run": args.run, "overrides": args.overrides, "tokens": tokens,
              "layer_alone_tflops": layer, "step_ms": median, "step_tflops": whole / median * 1e3,
              "traced_step_ms": traced, "parts": rows}
    print(f"one MoE layer alone: {layer:.0f} TFLOP/s, forward and backward")
    for row in rows:
        rate = f"{row['tflop']:7.2f} TFLOP {row['tflops']:6.0f} TFLOP/s" if row["tflops"] else ""
        print(f"{row['part']:<20}{row['ms']:8.1f} ms {100 * row['ms'] / traced:5.1f} %  {rate}")
    print(f"{'traced step':<20}{traced:8.1f} ms")
    print(f"{'median step':<20}{median:8.1f} ms          {whole:7.2f} TFLOP {whole / median * 1e3:6.0f} TFLOP/s")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
