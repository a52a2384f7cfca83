#!/usr/bin/env python3
"""How many steps Muon needs for the loss that AdamW reaches, both tuned, over several seeds.

    bench/muon_steps.py build/cuda/moewright --json bench/results/muon_steps.json [--data DIR] [key=value ...]

AdamW trains examples/bench/byte_30m.toml for 1,000 steps and Muon for 700, each with a cosine schedule of its own length.
First each gets its learning rate on a seed of its own: a grid with steps of two, longer at an end where the best rate lies.
Then both train with the best rates on the other seeds. Compared is the validation loss after the last step. The file has
every run, and is written after each; runs that it has are not repeated.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TUNING_SEED, SEEDS = 1, (2, 3, 4)
OPTIMIZERS = {  # steps, and the first rates of the grid
    "adamw": (1000, [5e-4, 1e-3, 2e-3]),
    "muon": (700, [1e-3, 2e-3, 4e-3]),
}


class Runs:
    def __init__(self, options):
        self.options = options
        self.path = pathlib.Path(options.json)
        self.found = json.loads(self.path.read_text())["runs"] if self.path.exists() else []

    def loss(self, optimizer, rate, seed):
        """The validation loss after the last step."""
        steps = OPTIMIZERS[optimizer][0]
        key = {"optimizer": optimizer, "lr": rate, "seed": seed, "steps": steps}
        for run in self.found:
            if all(run[k] == v for k, v in key.items()):
                return run["val_loss"]
        with tempfile.TemporaryDirectory() as folder:
            metrics = pathlib.Path(folder) / "metrics.jsonl"
            command = [self.options.binary, "train", ROOT / "examples/bench/byte_30m.toml",
                       f"train.optimizer={optimizer}", f"train.lr={rate}", f"train.seed={seed}", f"train.steps={steps}",
                       f"log.jsonl={metrics}", *self.options.overrides]
            if self.options.data:
                command.append(f"data.path={self.options.data}")
            done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
            if done.returncode != 0:
                raise SystemExit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
            lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        times = sorted(line["step_ms"] for line in lines if "step_ms" in line)
        self.found.append({**key, "val_loss": lines[-1]["final_val_loss"], "median_step_ms": times[len(times) // 2]})
        self.path.write_text(json.dumps({"overrides": self.options.overrides, "runs": self.found}, indent=1) + "\n")
        print(f"{optimizer:5} lr {rate:g} seed {seed}: validation loss {self.found[-1]['val_loss']:.4f} after {steps} "
              f"steps of {self.found[-1]['median_step_ms']:.1f} ms", flush=True)
        return self.found[-1]["val_loss"]

    def best_rate(self, optimizer):
        rates = list(OPTIMIZERS[optimizer][1])
        while True:
            best = min(rates, key=lambda rate: self.loss(optimizer, rate, TUNING_SEED))
            if best == min(rates):
                rates.append(best / 2)
            elif best == max(rates):
                rates.append(best * 2)
            else:
                return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--json", required=True, help="file of the results")
    parser.add_argument("--data", default="", help="text to train on, in place of /usr/include")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of every run")
    runs = Runs(parser.parse_intermixed_args())
    rates = {optimizer: runs.best_rate(optimizer) for optimizer in OPTIMIZERS}
    reached = 0
    for seed in SEEDS:
        losses = {optimizer: runs.loss(optimizer, rate, seed) for optimizer, rate in rates.items()}
        reached += losses["muon"] <= losses["adamw"]
        print(f"seed {seed}: " + ", ".join(f"{optimizer} (lr {rates[optimizer]:g}) {loss:.4f} after "
                                           f"{OPTIMIZERS[optimizer][0]} steps" for optimizer, loss in losses.items()))
    print(f"Muon reached AdamW's loss in 70 % of the steps with {reached} of {len(SEEDS)} seeds")
    return 0 if reached == len(SEEDS) else 1


if __name__ == "__main__":
    raise SystemExit(main())
