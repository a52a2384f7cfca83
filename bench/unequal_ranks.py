#!/usr/bin/env python3
"""Steps of two CPU ranks of unequal speed with shares that the run measured, against equal shares and other ones (Linux
with CPU quotas of cgroup v1 or v2, root):

    bench/unequal_ranks.py build/release/moewright [--quotas 0.3,0.2 0.3,0.1045] [--cases gather_weights gather_tokens]
        [--rounds 3] [--json FILE]

Each rank is one thread in a cgroup with a quota of so many cores, which it takes before other processes. For each pair of
quotas and each case a run first chooses its shares: with gather_weights those of the samples, with gather_tokens also of the
width of experts, with flat also of the experts, and with stages the layers of two pipeline stages. The speed ratio is that of its seconds of compute, not that of the quotas. Then runs of STEPS steps take turns:
equal shares and the chosen ones `rounds` times, and once others around those, nine splits in all. Times are medians of the
steps of a split in all its runs, without the first one of each. `ideal` is what the reduction would be if a step were
compute that can be shared in any proportion: 1 - 2 / (1 + ratio).
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile

from train_step import write_random_tokens

STEPS = 9
SAMPLES, WIDTH_UNIT = 20, 64
# Each case with what it is for, such as many tokens for few weights, or wide experts; and what is shared, in units.
CASES = {
    "gather_weights": ({"moe.transport": "gather_weights", "model.expert_width": 512, "train.seq_len": 512},
                       {"mesh.shares": SAMPLES}),
    "gather_tokens": ({"moe.transport": "gather_tokens", "model.expert_width": 1024, "train.seq_len": 128},
                      {"mesh.shares": SAMPLES, "mesh.width_shares": 1024 // WIDTH_UNIT}),
    "flat": ({"moe.transport": "flat", "moe.forced_load": "balanced", "model.expert_width": 256, "model.experts": 16,
              "train.seq_len": 128},
             {"mesh.shares": SAMPLES, "mesh.expert_shares": 16}),
    "stages": ({"mesh.pp": 2, "mesh.ep": 1, "model.layers": 12, "model.expert_width": 256, "train.seq_len": 16,
                "train.micro_batches": 5}, {"mesh.stage_layers": 12}),
}
MODEL = {"vocab": 256, "width": 256, "layers": 1, "heads": 4, "kv_heads": 4, "head_dim": 64, "experts": 4, "top_k": 2}
KEYS = {"train.global_batch": SAMPLES, "train.micro_batches": 1, "train.dtype": "fp32",
        "train.threads": 1, "train.val_batches": 0, "mesh.ep": 2, "log.every": 1, "log.format": "long"}
PERIOD_US = 10_000


class Quotas:
    """A cgroup with a CPU quota for each rank."""

    def __init__(self, cores):
        v2 = pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists()
        self.paths = [pathlib.Path("/sys/fs/cgroup" if v2 else "/sys/fs/cgroup/cpu") / f"moewright-rank-{rank}"
                      for rank in range(len(cores))]
        for path, share in zip(self.paths, cores):
            path.mkdir(exist_ok=True)
            quota = int(share * PERIOD_US)
            if v2:
                (path / "cpu.max").write_text(f"{quota} {PERIOD_US}")
            else:
                (path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (path / "cpu.cfs_quota_us").write_text(str(quota))

    def command(self, program, arguments):
        """Each rank enters its group before it starts."""
        group = "$(echo $MOEWRIGHT_GROUPS | cut -d: -f$((OMPI_COMM_WORLD_RANK + 1)))"
        enter = f'echo $$ > {group}/cgroup.procs && exec nice -n -20 "$@"'
        os.environ["MOEWRIGHT_GROUPS"] = ":".join(map(str, self.paths))
        return ["mpirun", "-np", str(len(self.paths)), "sh", "-c", enter, "sh", str(program), *arguments]

    def remove(self):
        for path in self.paths:
            with contextlib.suppress(OSError):
                path.rmdir()


def train(arguments, quotas, folder, case, shares, steps=STEPS):
    """The milliseconds of the steps but the first, and what was printed."""
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    keys = {**{f"model.{key}": value for key, value in MODEL.items()}, **KEYS, **CASES[case][0], **shares,
            "train.steps": steps, "log.jsonl": metrics}
    done = subprocess.run(quotas.command(arguments.program, ["train", str(folder / "run.toml"),
                                                             *(f"{key}={value}" for key, value in keys.items())]),
                          capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [line["step_ms"] for line in lines if line.get("step", 0) > 1], re.sub(r"\s+", " ", done.stdout)


def choose(arguments, quotas, folder, case):
    """The shares that a run measures, and the ratios of the ranks' seconds for each unit."""
    keys = list(CASES[case][1])
    printed = train(arguments, quotas, folder, case, dict.fromkeys(keys, "measured"), steps=1)[1]
    found = {key: re.search(rf'{re.escape(key)} = "measured": ([\d,]+), by ([\d.e,-]+) s of compute', printed)
             for key in keys}
    if None in found.values():
        raise SystemExit(printed)
    shares = {key: tuple(map(int, match[1].split(","))) for key, match in found.items()}
    seconds = [list(map(float, match[2].split(","))) for match in found.values()]
    return shares, [round(slow / fast, 3) for fast, slow in seconds]


def splits_around(chosen):
    """Nine, with the chosen one: of one key, or three of the first for each of three of the second."""
    first, *second = chosen
    steps = [{first: by} for by in range(-4, 5)]
    if second:
        steps = [{first: 2 * by, second[0]: 2 * other} for by in (-1, 0, 1) for other in (-1, 0, 1)]
    return [{key: (chosen[key][0] + by, chosen[key][1] - by) for key, by in step.items()} for step in steps]


def compare(arguments, cores, case, folder):
    quotas = Quotas(cores)
    try:
        chosen, ratios = choose(arguments, quotas, folder, case)
        even = {key: (units // 2,) * 2 for key, units in CASES[case][1].items()}
        splits = [split for split in splits_around(chosen) if min(min(parts) for parts in split.values()) > 0]
        if even not in splits:
            splits.append(even)
        times = [[] for _ in splits]
        for turn in range(arguments.rounds):
            for split, all_times in zip(splits, times):
                if turn > 0 and split not in (even, chosen):
                    continue
                shares = {key: ",".join(map(str, parts)) for key, parts in split.items()}
                all_times += train(arguments, quotas, folder, case, shares)[0]
    finally:
        quotas.remove()
    medians = [statistics.median(all_times) for all_times in times]
    equal, own = medians[splits.index(even)], medians[splits.index(chosen)]
    ratio = statistics.mean(ratios)
    result = {"quotas": cores, "case": case, "ratios": ratios,
              "chosen": {key: list(parts) for key, parts in chosen.items()}, "equal_ms": round(equal, 1),
              "chosen_ms": round(own, 1), "reduction": round(1 - own / equal, 3),
              "ideal": round(1 - 2 / (1 + ratio), 3), "over_best": round(own / min(medians) - 1, 3),
              "steps": len(times[splits.index(chosen)]),
              "splits": [{**{key: list(parts) for key, parts in split.items()}, "ms": round(median, 1)}
                         for split, median in zip(splits, medians)]}
    print(json.dumps(result), flush=True)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--quotas", nargs="*", default=["0.3,0.2", "0.3,0.1045"])
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    # Waiting ranks would use up their quota.
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_mpi_yield_when_idle="1",
                      OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_hwloc_base_binding_policy="none")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_random_tokens(folder / "tokens.bin", MODEL["vocab"], 0)
        (folder / "run.toml").write_text(f'[data]\nkind = "shards"\npath = "{folder}/tokens.bin"\n')
        results = [compare(arguments, list(map(float, cores.split(","))), case, folder)
                   for cores in arguments.quotas for case in arguments.cases]
    if arguments.json:
        record = {"samples": SAMPLES, "model": MODEL, "cases": CASES, "runs": results}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
