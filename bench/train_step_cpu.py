#!/usr/bin/env python3
"""A training step on a CPU: Moewright beside transformers, in one run on the same cores.

    bench/train_step_cpu.py build/release/moewright --threads 1 2 --dtype fp32 bf16 [--cores 0 2] [--json FILE]

Each round runs every arm in turn for a few steps: Moewright, and transformers with each of its expert implementations
(bench/train_step_transformers.py keeps one process per arm). The first two steps of a process are left out; medians of
all other steps are reported. Where bench_matmul_rate lies beside the binary, every product of the step is timed alone
too, in every round: the share of the step that these products would take is `product_share`.

--isa limits both sides: the oneDNN of both, and MKL and ATen for PyTorch. Code that the compiler made for Moewright
keeps to what the build asked for.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from train_step import write_random_tokens

HERE = pathlib.Path(__file__).parent
LEFT_OUT = 2
# 43.0 million parameters, of which 19.4 act on a token.
MODEL = dict(vocab=8192, width=512, layers=4, heads=8, kv_heads=4, head_dim=64, experts=16, top_k=4, expert_width=320)
ISAS = {
    "native": {},
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
}


def product_shapes(model, tokens):
    """(rows, n, k, experts, how often) of the products of a step, as `bench_matmul_rate --shapes` takes them."""
    d, f, layers = model["width"], model["expert_width"], model["layers"]
    q, kv = model["heads"] * model["head_dim"], model["kv_heads"] * model["head_dim"]
    rows = tokens * model["top_k"] // model["experts"]
    return [(tokens, q, d, 1, layers), (tokens, kv, d, 1, 2 * layers), (tokens, d, q, 1, layers),
            (tokens, model["experts"], d, 1, layers), (rows, 2 * f, d, model["experts"], layers),
            (rows, d, f, model["experts"], layers), (tokens, model["vocab"], d, 1, 1)]


class Moewright:
    name = "moewright"

    def __init__(self, args, threads, dtype, folder, environment):
        self.args, self.threads, self.dtype, self.environment = args, threads, dtype, environment
        self.folder = pathlib.Path(folder)
        self.run_file = self.folder / "run.toml"
        model = "\n".join(f"{key} = {value}" for key, value in MODEL.items())
        self.run_file.write_text(f'[model]\n{model}\nqk_norm = "per_head"\nrope_theta = 1e6\n')
        self.tokens = self.folder / "tokens.bin"
        if not self.tokens.exists():
            write_random_tokens(self.tokens, MODEL["vocab"], 0)

    def steps(self, count):
        metrics = self.folder / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        command = [self.args.binary, "train", str(self.run_file), f"train.steps={count + LEFT_OUT}",
                   "train.val_batches=0", "train.byte_baseline=false", "sample.tokens=0", "checkpoint.dir=",
                   f"log.jsonl={metrics}", "train.device=cpu", f"train.threads={self.threads}",
                   f"train.dtype={self.dtype}", f"train.seq_len={self.args.seq_len}",
                   f"train.global_batch={self.args.sequences}", "train.lr=1e-4", "data.kind=shards",
                   f"data.path={self.tokens}", "--profile"]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment)
        if done.returncode != 0:
            raise SystemExit(f"{done.stdout}{done.stderr}exit {done.returncode}: {' '.join(command)}")
        self.split = {line.split()[0]: float(line.split()[-2]) for line in done.stdout.splitlines()
                      if line.startswith("  ") and line.endswith(" %")}
        return [json.loads(line)["step_ms"] * 1e-3 for line in open(metrics)][LEFT_OUT:]

    def close(self):
        pass


class Transformers:
    def __init__(self, args, threads, dtype, experts, environment):
        self.name = f"transformers {experts}"
        command = [sys.executable, str(HERE / "train_step_transformers.py"), "--serve", "--device", "cpu", "--threads",
                   str(threads), "--dtype", dtype, "--experts", experts, "--sequences", str(args.sequences),
                   "--seq-len", str(args.seq_len), "--model", json.dumps(MODEL)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=environment)
        self.versions = json.loads(self.answer())
        self.steps(LEFT_OUT)

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with exit {self.process.wait()}")
        return line

    def steps(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return json.loads(self.answer())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def product_seconds(args, threads, dtype, environment):
    """Seconds of all products of one step, each timed alone; None without bench_matmul_rate."""
    program = pathlib.Path(args.binary).parent / "bench_matmul_rate"
    if not program.exists():
        return None
    shapes = product_shapes(MODEL, args.sequences * args.seq_len)
    done = subprocess.run([str(program), str(threads), "--dtype", dtype, "--shapes"] +
                          [":".join(map(str, shape[:4])) for shape in shapes],
                          capture_output=True, text=True, env=environment, check=True)
    return sum(shape[4] * json.loads(line)["seconds"] for shape, line in zip(shapes, done.stdout.splitlines()))


def compare(args, threads, dtype, folder):
    environment = {**os.environ, **ISAS[args.isa], "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    arms = [Moewright(args, threads, dtype, folder, environment)]
    arms += [Transformers(args, threads, dtype, experts, environment) for experts in args.experts]
    seconds, products = {arm.name: [] for arm in arms}, []
    try:
        for number in range(args.rounds):
            for arm in arms if number % 2 == 0 else arms[::-1]:
                seconds[arm.name] += arm.steps(args.steps)
            products.append(product_seconds(args, threads, dtype, environment))
    finally:
        for arm in arms:
            arm.close()
    tokens = args.sequences * args.seq_len
    rates = {name: tokens / statistics.median(of) for name, of in seconds.items()}
    best = max(rates[arm.name] for arm in arms[1:])
    result = {"benchmark": "train_step_cpu", "threads": threads, "dtype": dtype, "isa": args.isa, "model": MODEL,
              "sequences": args.sequences, "seq_len": args.seq_len, "rounds": args.rounds,
              "tokens_per_s": rates, "ratio_to_best": rates["moewright"] / best,
              "time_percent": arms[0].split, "versions": arms[1].versions}
    if None not in products:
        result["product_seconds"] = statistics.median(products)
        result["product_share"] = result["product_seconds"] / statistics.median(seconds["moewright"])
    return result


def machine():
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    flags = next(line for line in open("/proc/cpuinfo") if line.startswith("flags")).split()
    kinds = [kind for kind in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if kind in flags]
    return f"{names[0]}, {len(names)} CPUs, {' '.join(kinds)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtype", nargs="+", choices=["fp32", "bf16"], default=["fp32"])
    parser.add_argument("--experts", nargs="+", default=["eager", "grouped_mm"], help="implementations of transformers")
    parser.add_argument("--isa", choices=list(ISAS), default="native")
    parser.add_argument("--cores", type=int, nargs="+", help="cores for the threads: the first as many as there are")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5, help="measured in a round, by each arm")
    parser.add_argument("--json")
    args = parser.parse_args()
    results = []
    for dtype in args.dtype:
        for threads in args.threads:
            if args.cores:
                os.sched_setaffinity(0, args.cores[:threads])
            with tempfile.TemporaryDirectory() as folder:
                results.append({**compare(args, threads, dtype, folder), "machine": machine()})
            print(json.dumps(results[-1], indent=2), flush=True)
            if args.json:
                pathlib.Path(args.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
