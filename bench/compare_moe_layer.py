#!/usr/bin/env python3
"""One MoE layer on one GPU beside PyTorch, SonicMoE and Liger Kernel (those that are installed), in one run:
bench_moe_layer and bench/moe_layer_torch.py take turns shape by shape, so that all meet the same clocks. Each in a process
of its own: one that fails leaves its error and no more.

    bench/compare_moe_layer.py build/cuda/bench_moe_layer --quick --json bench/results/moe_layer_h200.json

The other side lets the host run ahead of the device; ours makes 4 calls a region to do the same. Ours runs twice, with
weight gradients in fp32 and in bf16, as the others have them. `ceiling` is a layer of the fastest known kernels: each
product by the fastest of ours (bench_hopper_products) and those of bench/moe_layer_products.py, the router's products in
bf16, and the sums over a token's rows at the copy rate. Options that are not known here go to bench_moe_layer, for example
--peak 900.
"""
import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

from power_log import PowerLog

SHAPES = ["qwen3-30b", "xmoe-small", "xmoe-medium", "mixtral", "xmoe-large"]
CALLS = 4
GRADIENTS = ["fp32", "bf16"]
PRODUCT_SECONDS = 0.3  # to warm up, and then to measure
HERE = pathlib.Path(__file__).resolve().parent
COLUMNS = "{:<12}{:>7} {:<8}{:<14}{:>17}{:>14}{:>14}{:>10}{:>7}{:>7}"
HEADER = ["shape", "tokens", "routing", "layer", "TFLOP/s", "as a graph", "of the floor", "kept, MiB", "MHz", "W"]


def output_of(command):
    """What a command prints, or "" where it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=HERE, check=False).stdout.strip()
    except OSError:
        return ""


def run_json(command, timeout):
    """The list of results that `command --json FILE` writes, and one with an error if it ends early."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "results.json"
        error = []
        try:
            done = subprocess.run([*command, "--json", str(file)], capture_output=True, text=True, timeout=timeout,
                                  check=False)
            if done.returncode != 0:
                last_lines = (done.stderr or done.stdout).strip().splitlines()[-2:]
                error = [{"error": f"exit code {done.returncode}: {' '.join(map(str.strip, last_lines))}"}]
        except (OSError, subprocess.TimeoutExpired) as problem:
            error = [{"error": str(problem)}]
        return (json.loads(file.read_text()) if file.exists() else []) + error


def run_ours(command, timeout):
    with PowerLog() as log:
        results = run_json(command, timeout)
    return [{**result, **log.medians} for result in results]


def layers_of(ours, peers):
    """The results to print, by name: ours with each dtype of weight gradients, the best of PyTorch, each other peer."""
    torch = [peer for peer in peers if peer.get("path", "").endswith(("eager", "compile"))]
    good = [result for result in torch if "forward_backward_tflops" in result]
    layers = {f"ours {gradients}": result for gradients, result in zip(GRADIENTS, ours)}
    if torch:
        layers["PyTorch"] = max(good, key=lambda r: r["forward_backward_tflops"]) if good else torch[0]
    return layers | {peer.get("path", "peer"): peer for peer in peers if peer not in torch}


def own_products(binary, shape, tokens, timeout):
    """Times of our products, named as in bench/moe_layer_products.py; empty without bench_hopper_products."""
    command = [str(pathlib.Path(binary).with_name("bench_hopper_products")), "--rates", "--seconds", str(PRODUCT_SECONDS),
               "--shape", shape, "--tokens", str(tokens)]
    rows = run_json(command, timeout)[0].get("products", [])
    return {" ".join([row["product"], row.get("gradients", "")]).strip(): row["ms"] for row in rows if not row.get("adds")}


def ceilings(ours, products, own):
    """What a layer of the fastest kernels would reach, for each dtype of weight gradients."""
    results = []
    for gradients, layer in zip(GRADIENTS, ours):
        ways = {key: {**of, "ours": own.get(key)} for key, of in products["ms"].items() if key.split()[1:] in ([], [gradients])}
        least = {key: min((ms, way) for way, ms in of.items() if ms) for key, of in ways.items()}
        total = sum(ms for ms, _ in least.values()) + products["router_ms"] + products["sums_ms"]
        speed_up = layer["forward_backward_ms"] / total
        results.append({
            "path": f"ceiling {gradients}", "shape": layer["shape"], "tokens": layer["tokens"], "products_ms": ways,
            "fastest": {key: way for key, (_, way) in least.items()}, "forward_backward_ms": total,
            "forward_backward_tflops": layer["forward_backward_tflops"] * speed_up,
            "share_of_padded_floor": layer["share_of_padded_floor"] * speed_up})
    return results


def pair(result, key):
    """A rate of forward and of forward+backward."""
    rates = [result.get(key.format(what)) for what in ("forward", "forward_backward")]
    return " / ".join(f"{rate:.0f}" if rate else "-" for rate in rates)


def table_line(case, name, result):
    floor = [result.get("share_of_padded_floor_forward"), result.get("share_of_padded_floor")]
    saved = result.get("saved_bytes")
    return COLUMNS.format(
        *case, name, pair(result, "{}_tflops"), pair(result, "graph_{}_tflops"),
        " / ".join(f"{100 * share:.0f} %" if share else "-" for share in floor), f"{saved / 2**20:.0f}" if saved else "-",
        *(f"{result[key]:.0f}" if key in result else "-" for key in ("clock_mhz", "watt")))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.add_argument("binary", help="bench_moe_layer of a GPU build")
    parser.add_argument("--shape", nargs="+", default=SHAPES)
    parser.add_argument("--tokens", nargs="+", type=int, default=[16384, 32768])
    parser.add_argument("--routing", nargs="+", choices=["random", "skewed"], default=["random"])
    parser.add_argument("--paths", nargs="+", help="as in bench/moe_layer_torch.py (default: all)")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="16384 tokens, 10 repeats, all shapes but the largest")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one side of one shape")
    parser.add_argument("--json")
    args, binary_options = parser.parse_known_args()
    if args.quick:
        args.shape, args.tokens, args.repeats = SHAPES[:4], [16384], 10
    report = {
        "benchmark": "moe_layer_comparison", "command": " ".join(["bench/compare_moe_layer.py", *sys.argv[1:]]),
        "machine": output_of(["nvidia-smi", "--query-gpu=name,driver_version,power.limit", "--format=csv,noheader"]),
        "commit": output_of(["git", "rev-parse", "--short", "HEAD"]), "results": [],
    }
    print("Model TFLOP/s of forward / forward+backward. PyTorch stands for the best of its paths.\n"
          + COLUMNS.format(*HEADER), flush=True)
    for routing, tokens, shape in itertools.product(args.routing, args.tokens, args.shape):
        common = ["--shape", shape, "--tokens", str(tokens), "--routing", routing, "--repeats", str(args.repeats)]
        ours = [result for gradients in GRADIENTS for result in run_ours(
            [args.binary, "--device", "gpu", "--calls", str(CALLS), "--gradients", gradients, *common, *binary_options],
            args.timeout)]
        paths = ["--paths", *args.paths] if args.paths else []
        peers = run_json([sys.executable, str(HERE / "moe_layer_torch.py"), *common, *paths], args.timeout)
        products = next((peer for peer in peers if "ms" in peer), None)
        if products and all("forward_backward_ms" in layer for layer in ours):
            peers += ceilings(ours, products, own_products(args.binary, shape, tokens, args.timeout))
            peers.remove(products)
        for name, result in layers_of(ours, peers).items():
            print(table_line((shape, tokens, routing), name, result), flush=True)
        for result in [*ours, *peers]:
            if "error" in result:
                print(f"{shape} {tokens} {routing} {result.get('path', '')}: {result['error']}", flush=True)
        report["results"] += [*ours, *peers]
        if args.json:  # after every shape: what was measured is kept, whatever happens next
            pathlib.Path(args.json).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
