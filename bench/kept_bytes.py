#!/usr/bin/env python3
"""What a MoE layer keeps for its backward pass on the shapes of Hexa-MoE (Swin-MoE Small and Base, 8 experts on 4 ranks),
top-1 to top-8: GShard's buffers padded to a capacity factor of 1.25 (moe.transport = "padded") next to gathered weights
and gathered tokens, as the planner's table of bytes has them.

    bench/kept_bytes.py build/release/moewright [--json FILE]

A layer's bytes are what a model of two MoE layers keeps more than one with a narrow dense feed-forward in the place of
one of them, so that attention's part is left out. A model's are those of its MoE layers, every second block of stages 3
and 4. GShard: what PyTorch's autograd keeps, by formula. The growth of the paper's models is that of all their memory
(table 7).
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

IMAGES = 40  # of a rank, as in the paper's breakdown of memory
# Width, tokens of an image at 192 pixels, and MoE layers.
STAGES = {"Swin-MoE-Small": [(384, 144, 9), (768, 36, 1)], "Swin-MoE-Base": [(512, 144, 9), (1024, 36, 1)]}
PAPER_GB = {"Swin-MoE-Small": {"Tutel": (9.0, 16.0), "data-centric": (8.1, 9.2), "model-centric": (7.7, 8.5)},
            "Swin-MoE-Base": {"Tutel": (12.7, 21.8), "data-centric": (10.9, 12.4), "model-centric": (10.0, 11.4)}}
ARMS = {"padded": "moe.transport=padded moe.capacity_factor=1.25", "gather_weights": "moe.transport=gather_weights",
        "gather_tokens": "moe.transport=gather_tokens",
        "gather_weights, selective": "moe.transport=gather_weights memory.recompute=selective",
        "gather_tokens, selective": "moe.transport=gather_tokens memory.recompute=selective"}
EXPERTS, RANKS = 8, 4


class Planner:
    def __init__(self, program, folder):
        self.program, self.run_file = program, pathlib.Path(folder) / "run.toml"
        self.run_file.write_text(f"""[model]
vocab = 256
heads = 16
experts = {EXPERTS}
activation = "gelu"
[data]
kind = "text"
path = "."
[train]
micro_batches = 1
[mesh]
ep = {RANKS}
""")

    def kept(self, keys):
        """Bytes that a rank keeps of its layers for one micro-batch."""
        done = subprocess.run([self.program, "plan", self.run_file, "--platform", "profiles/h200x8.json", "--ranks",
                               str(RANKS), "--why", "", "--json", *keys], check=True, capture_output=True, text=True)
        stage = json.loads(done.stdout)["stages"][0]
        return stage["activations"] + stage["routed rows"]

    def kept_by_layer(self, width, tokens, top_k, arm):
        keys = [f"model.width={width}", f"model.head_dim={width // 16}", f"model.expert_width={4 * width}",
                f"model.top_k={top_k}", f"train.seq_len={tokens}", f"train.global_batch={IMAGES * RANKS}",
                "model.layers=2", *ARMS[arm].split()]
        return self.kept(keys) - self.kept([*keys, "model.dense_layers=1", "model.dense_width=8"])


def gshard(width, tokens, top_k):
    """Dispatched rows, hidden states before and after the activation, and outputs of experts, in bf16."""
    return round(2 * 1.25 * IMAGES * tokens * top_k * 2 * (width + 4 * width))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        planner = Planner(args.program, folder)
        for model, stages in STAGES.items():
            for top_k in range(1, 9):
                kept = {"GShard": sum(n * gshard(width, tokens, top_k) for width, tokens, n in stages)}
                for arm in ARMS:
                    kept[arm] = sum(n * planner.kept_by_layer(width, tokens, top_k, arm) for width, tokens, n in stages)
                rows.append({"model": model, "top_k": top_k, "kept_bytes": kept})
                print(model, f"top-{top_k}", *(f"{arm} {size / 1e6:.0f} MB ({size / kept['GShard'] - 1:+.0%})"
                                               for arm, size in kept.items()), sep="  ", flush=True)
    growth = {model: {arm: (of[-1][arm] - of[0][arm]) / 1e9 for arm in of[0]} for model in STAGES
              for of in [[row["kept_bytes"] for row in rows if row["model"] == model]]}
    report = {"what": "bytes that all MoE layers of a rank keep for their backward pass, of one micro-batch",
              "images_per_rank": IMAGES, "experts": EXPERTS, "ranks": RANKS, "rows": rows, "growth_gb": growth,
              "paper_growth_gb": {model: {arm: round(high - low, 1) for arm, (low, high) in arms.items()}
                                  for model, arms in PAPER_GB.items()}}
    print(json.dumps({key: report[key] for key in ("growth_gb", "paper_growth_gb")}, indent=1))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


main()
