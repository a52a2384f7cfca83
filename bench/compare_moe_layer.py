#!/usr/bin/env python3
"""One MoE layer on one GPU beside PyTorch, in one run: bench_moe_layer and bench/moe_layer_torch.py take turns shape by
shape, so that both meet the same clocks. Each in a process of its own: one that fails leaves its error and no more.

    bench/compare_moe_layer.py build/cuda/bench_moe_layer --quick --json bench/results/moe_layer_h200.json

PyTorch's side lets the host run ahead of the device; ours makes 4 calls a region to do the same. Options that are not
known here go to bench_moe_layer, for example --peak 900.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

SHAPES = ["qwen3-30b", "xmoe-small", "xmoe-medium", "mixtral", "xmoe-large"]
CALLS = 4
HERE = pathlib.Path(__file__).resolve().parent
COLUMNS = "{:<12}{:>7} {:<8}{:>16}{:>16}{:>15}{:>18}{:>15}  {}"


def output_of(command):
    """What a command prints, or "" where it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=HERE, check=False).stdout.strip()
    except OSError:
        return ""


def run_json(command, timeout):
    """The list of results that `command --json FILE` writes; one with an error where there is none."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "results.json"
        try:
            done = subprocess.run([*command, "--json", str(file)], capture_output=True, text=True, timeout=timeout,
                                  check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return [{"error": str(error)}]
        if not file.exists():
            last_lines = (done.stderr or done.stdout).strip().splitlines()[-2:]
            return [{"error": f"exit code {done.returncode}: {' '.join(map(str.strip, last_lines))}"}]
        return json.loads(file.read_text())


def best(results, key):
    """The result with the highest rate, or one that holds only an error."""
    good = [result for result in results if key in result]
    return max(good, key=lambda result: result[key]) if good else {"error": results[0].get("error", "")}


def summarise(ours, peers):
    """Rates of both sides, ratio and share of the floor; None where a side failed."""
    summary = {}
    for what, share in (("forward", "share_of_padded_floor_forward"), ("forward_backward", "share_of_padded_floor")):
        key = f"{what}_tflops"
        peer, plain = best(peers, key), best([p for p in peers if "index_add" in p.get("path", "")] or peers, key)
        rate, peer_rate, plain_rate = ours.get(key), peer.get(key), plain.get(key)
        summary[what] = {"tflops": rate, "torch_tflops": peer_rate, "torch_path": peer.get("path"),
                         "ratio": rate / peer_rate if rate and peer_rate else None, "index_add_tflops": plain_rate,
                         "ratio_to_index_add": rate / plain_rate if rate and plain_rate else None,
                         "share_of_padded_floor": ours.get(share),
                         "saved_bytes": ours.get("saved_bytes"), "torch_saved_bytes": peer.get("saved_bytes")}
    return summary


def cell(value, text):
    return "-" if value is None else text.format(value)


def table_line(shape, tokens, routing, summary):
    forward, both = summary["forward"], summary["forward_backward"]

    def pair(key, text, scale=1.0):
        return " / ".join(cell(side[key] and side[key] * scale, text) for side in (forward, both))

    saved = [cell(both[key] and both[key] / 2**20, "{:.0f}") for key in ("saved_bytes", "torch_saved_bytes")]
    return COLUMNS.format(shape, tokens, routing, pair("tflops", "{:.1f}"), pair("torch_tflops", "{:.1f}"),
                          pair("ratio", "{:.2f}"), pair("share_of_padded_floor", "{:.1f} %", 100), " / ".join(saved),
                          both["torch_path"] or "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.add_argument("binary", help="bench_moe_layer of a GPU build")
    parser.add_argument("--shape", nargs="+", default=SHAPES)
    parser.add_argument("--tokens", nargs="+", type=int, default=[16384, 32768])
    parser.add_argument("--routing", nargs="+", choices=["random", "skewed"], default=["random"])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="16384 tokens, 10 repeats, all shapes but the largest")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one side of one shape")
    parser.add_argument("--json")
    args, binary_options = parser.parse_known_args()
    if args.quick:
        args.shape, args.tokens, args.repeats = SHAPES[:4], [16384], 10
    report = {
        "benchmark": "moe_layer_comparison", "command": " ".join(["bench/compare_moe_layer.py", *sys.argv[1:]]),
        "machine": output_of(["nvidia-smi", "--query-gpu=name,driver_version,power.limit", "--format=csv,noheader"]),
        "commit": output_of(["git", "rev-parse", "--short", "HEAD"]), "summary": [], "results": [],
    }
    lines = ["Model TFLOP/s of forward / forward+backward, ours over the best of PyTorch, share of the padded floor, "
             "and what ours / PyTorch keeps for backward",
             COLUMNS.format("shape", "tokens", "routing", "ours", "PyTorch", "ratio", "of the floor", "kept, MiB",
                            "best path")]
    for routing in args.routing:
        for tokens in args.tokens:
            for shape in args.shape:
                common = ["--shape", shape, "--tokens", str(tokens), "--routing", routing, "--repeats",
                          str(args.repeats)]
                ours = run_json([args.binary, "--device", "gpu", "--calls", str(CALLS), *common, *binary_options],
                                args.timeout)
                peers = run_json([sys.executable, str(HERE / "moe_layer_torch.py"), *common], args.timeout)
                for result in [*ours, *peers]:
                    if "error" in result:
                        print(f"{shape} {tokens} {routing} {result.get('path', '')}: {result['error']}", flush=True)
                summary = summarise(ours[0], peers)
                lines.append(table_line(shape, tokens, routing, summary))
                print(lines[-1], flush=True)
                report["summary"].append({"shape": shape, "tokens": tokens, "routing": routing, **summary})
                report["results"] += [*ours, *peers]
                if args.json:  # after every shape: what was measured is kept, whatever happens next
                    pathlib.Path(args.json).write_text(json.dumps(report, indent=2) + "\n")
    print("\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
