#!/usr/bin/env python3
"""How many steps Muon needs for the loss that AdamW reaches, both tuned, over several seeds.

    bench/muon_steps.py build/cuda/moewright --json bench/results/muon_steps.json [--data DIR] [--gpus 0,1] [key=value ...]

AdamW trains examples/bench/byte_30m.toml for 1,000 steps and Muon for 700, each with a cosine schedule of its own length.
First each gets its learning rate on a seed of its own: a grid with steps of two, longer at an end where the best rate lies.
Then both train with the best rates on the other seeds. Compared is the validation loss after the last step. The file has
every run, and is written after each; runs that it has are not repeated. Runs that do not depend on each other share the GPUs
of --gpus: one run at a time for each number, which may be there more than once.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import queue
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
        self.gpus = queue.Queue()
        for gpu in options.gpus.split(","):
            self.gpus.put(gpu)

    def losses(self, wanted):
        """The validation losses after the last step, of (optimizer, rate, seed)."""
        keys = [{"optimizer": optimizer, "lr": rate, "seed": seed, "steps": OPTIMIZERS[optimizer][0]}
                for optimizer, rate, seed in wanted]
        missing = [key for key in keys if self.find(key) is None]
        with concurrent.futures.ThreadPoolExecutor(self.gpus.qsize()) as pool:
            try:
                for done in concurrent.futures.as_completed([pool.submit(self.train, key) for key in missing]):
                    self.add(done.result())
            except SystemExit:
                pool.shutdown(cancel_futures=True)
                raise
        return [self.find(key)["val_loss"] for key in keys]

    def find(self, key):
        return next((run for run in self.found if all(run[k] == v for k, v in key.items())), None)

    def train(self, key):
        gpu = self.gpus.get()
        try:
            with tempfile.TemporaryDirectory() as folder:
                metrics = pathlib.Path(folder) / "metrics.jsonl"
                command = [self.options.binary, "train", ROOT / "examples/bench/byte_30m.toml",
                           f"train.optimizer={key['optimizer']}", f"train.lr={key['lr']}", f"train.seed={key['seed']}",
                           f"train.steps={key['steps']}", f"log.jsonl={metrics}", *self.options.overrides]
                if self.options.data:
                    command.append(f"data.path={self.options.data}")
                done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                                      env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu})
                if done.returncode != 0:
                    raise SystemExit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
                lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        finally:
            self.gpus.put(gpu)
        times = sorted(line["step_ms"] for line in lines if "step_ms" in line)
        return {**key, "val_loss": lines[-1]["final_val_loss"], "median_step_ms": times[len(times) // 2]}

    def add(self, run):
        self.found.append(run)
        self.path.write_text(json.dumps({"overrides": self.options.overrides, "runs": self.found}, indent=1) + "\n")
        print(f"{run['optimizer']:5} lr {run['lr']:g} seed {run['seed']}: validation loss {run['val_loss']:.4f} after "
              f"{run['steps']} steps of {run['median_step_ms']:.1f} ms", flush=True)

    def best_rates(self):
        """The rate of the least loss for each optimizer, between two others that were tried."""
        grids = {optimizer: list(rates) for optimizer, (_, rates) in OPTIMIZERS.items()}
        while True:
            tried = [(optimizer, rate) for optimizer, rates in grids.items() for rate in rates]
            losses = dict(zip(tried, self.losses([(*one, TUNING_SEED) for one in tried])))
            best = {optimizer: min(rates, key=lambda rate: losses[optimizer, rate]) for optimizer, rates in grids.items()}
            longer = [(rates, best[name] * factor) for name, rates in grids.items()
                      for end, factor in ((min(rates), 0.5), (max(rates), 2)) if best[name] == end]
            if not longer:
                return best
            for rates, rate in longer:
                rates.append(rate)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--json", required=True, help="file of the results")
    parser.add_argument("--data", default="", help="text to train on, in place of /usr/include")
    parser.add_argument("--gpus", default=os.environ.get("CUDA_VISIBLE_DEVICES", "0"), metavar="N,N",
                        help="GPUs to run on, one run at a time on each")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of every run")
    runs = Runs(parser.parse_intermixed_args())
    rates = runs.best_rates()
    runs.losses([(optimizer, rate, seed) for seed in SEEDS for optimizer, rate in rates.items()])
    reached = 0
    for seed in SEEDS:
        losses = dict(zip(rates, runs.losses([(optimizer, rate, seed) for optimizer, rate in rates.items()])))
        reached += losses["muon"] <= losses["adamw"]
        print(f"seed {seed}: " + ", ".join(f"{optimizer} (lr {rates[optimizer]:g}) {loss:.4f} after "
                                           f"{OPTIMIZERS[optimizer][0]} steps" for optimizer, loss in losses.items()))
    print(f"Muon reached AdamW's loss in 70 % of the steps with {reached} of {len(SEEDS)} seeds")
    return 0 if reached == len(SEEDS) else 1


if __name__ == "__main__":
    raise SystemExit(main())
