#!/usr/bin/env python3
"""Steps of two ranks of unequal speed with shares that the run measured, against equal shares and other ones: on CPUs
(Linux with CPU quotas of cgroup v1 or v2, root) or on two GPUs of NVIDIA:

    bench/unequal_ranks.py build/release/moewright [--quotas 0.3,0.2 0.3,0.1045] [--cases gather_weights gather_tokens]
        [--rounds 3] [--splits 9] [--json FILE]
    bench/unequal_ranks.py build/release/moewright --quotas 1,1 --slow 0.348 [--cases ...]
    bench/unequal_ranks.py build/cuda/moewright --device cuda [--processors 88,48] [--cases ...] [--rounds 2] [--splits 5]

On CPUs each rank is one thread in a cgroup with a quota of so many cores, which it takes before other processes; where one
got clearly less in a run of all steps, the script stops. On GPUs each rank computes on so many processors (SMs) of its GPU
(debug.processors), and NCCL on any. For each pair of quotas or processors and each case a run first chooses its
shares: with gather_weights those of the samples, with gather_tokens also of the width of experts, with flat also of the
experts, and with stages the layers of two pipeline stages. The speed ratio is that of its seconds of compute, not that of
the quotas or processors. Then runs take turns: equal shares and the chosen ones `rounds` times, and once others around
those, `splits` in all with the chosen one. Times are medians of the steps of a split in all its runs, without the first one
of each. `ideal` is what the reduction would be if a step were compute that can be shared in any proportion: 1 - 2 / (1 +
ratio); `ideal_of_units` the same in whole samples, experts, widths or layers; `shared_of_equal` how much of the step with
equal shares is the slowest rank's compute that is shared. `parts` are what a step takes: compute of the rank that computes
longest, the update, and the rest, which is waiting; on GPUs, of one step of each run.

With --slow the second rank sleeps after what it computes (debug.slow), and `plan` predicts the steps and the shares from what
`probe` measures. Under quotas that comparison means little: a rank that has not used up its quota computes at full speed for
some milliseconds, which are all that most products of `probe` take.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import tempfile

from cpu_quotas import Quotas, prepare_mpirun
from train_step import write_random_tokens

RATE_TABLES = ["dense_products", "expert_products", "expert_weight_products", "attention_forward", "attention_backward"]
WIDTH_UNIT = {"cpu": 64, "cuda": 128}  # for these sizes
QUOTAS, PROCESSORS = ["0.3,0.2", "0.3,0.1045"], ["88,48"]
# For each device the steps of a run, the samples of a step, what all cases have, and the cases: what each is for, such as
# many tokens for few weights, or wide experts; and what is shared, in units.
SETUPS = {
    "cpu": {
        "steps": 9, "samples": 20,
        "keys": {"model.vocab": 256, "model.width": 256, "model.layers": 1, "model.heads": 4, "model.kv_heads": 4,
                 "model.head_dim": 64, "model.experts": 4, "model.top_k": 2, "train.dtype": "fp32", "train.threads": 1},
        "cases": {
            "gather_weights": ({"moe.transport": "gather_weights", "model.expert_width": 512, "train.seq_len": 512},
                               {"mesh.shares": 20}),
            "gather_tokens": ({"moe.transport": "gather_tokens", "model.expert_width": 1024, "train.seq_len": 128},
                              {"mesh.shares": 20, "mesh.width_shares": 1024 // WIDTH_UNIT["cpu"]}),
            "flat": ({"moe.transport": "flat", "moe.forced_load": "balanced", "model.expert_width": 256,
                      "model.experts": 16, "train.seq_len": 512},
                     {"mesh.shares": 20, "mesh.expert_shares": 16}),
            "stages": ({"mesh.pp": 2, "mesh.ep": 1, "model.layers": 12, "model.expert_width": 256, "train.seq_len": 16,
                        "train.micro_batches": 5}, {"mesh.stage_layers": 12})}},
    "cuda": {
        "steps": 11, "samples": 40,
        "keys": {"model.vocab": 256, "model.width": 2048, "model.layers": 2, "model.heads": 16, "model.kv_heads": 16,
                 "model.head_dim": 128, "model.experts": 8, "model.top_k": 2, "model.expert_width": 4096,
                 "train.seq_len": 2048, "train.dtype": "bf16", "train.device": "cuda"},
        "cases": {
            "gather_weights": ({"moe.transport": "gather_weights"}, {"mesh.shares": 40}),
            "gather_tokens": ({"moe.transport": "gather_tokens"},
                              {"mesh.shares": 40, "mesh.width_shares": 4096 // WIDTH_UNIT["cuda"]}),
            "flat": ({"moe.transport": "flat", "moe.forced_load": "balanced", "model.expert_width": 2048,
                      "model.experts": 32, "model.top_k": 4},
                     {"mesh.shares": 40, "mesh.expert_shares": 32}),
            "stages": ({"mesh.pp": 2, "mesh.ep": 1, "model.layers": 20, "model.expert_width": 1024,
                        "train.micro_batches": 20}, {"mesh.stage_layers": 20})}},
}
KEYS = {"train.micro_batches": 1, "train.val_batches": 0, "mesh.ep": 2, "log.every": 1, "log.format": "long"}


class Processors:
    """Ranks whose GPUs compute on so many processors; to be used like Quotas."""

    def __init__(self, numbers):
        self.numbers = numbers
        prepare_mpirun()

    def command(self, words):
        return ["mpirun", "-np", str(len(self.numbers)), *map(str, words),
                "debug.processors=" + ",".join(map(str, self.numbers))]

    def restart(self):
        """Nothing is counted."""

    def used_cores(self):
        """Nothing was counted."""

    def remove(self):
        """Nothing remains."""


def output_of(command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def overrides(arguments, case, shares):
    setup = SETUPS[arguments.device]
    keys = {**KEYS, "train.global_batch": setup["samples"], **setup["keys"], **setup["cases"][case][0], **shares}
    return [f"{key}={value}" for key, value in keys.items()] + [f"debug.slow=1:{arguments.slow}"] * (arguments.slow < 1)


def train(arguments, limits, folder, case, shares, steps=None):
    """The metrics of the steps but the first, and what was printed. Stops the program where in a run of all steps ranks
    lacked their quotas."""
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    limits.restart()
    printed = output_of(limits.command([arguments.program, "train", folder / "run.toml", *overrides(arguments, case, shares),
                                        f"train.steps={steps or SETUPS[arguments.device]['steps']}",
                                        f"log.jsonl={metrics}"]))
    if arguments.slow == 1 and steps is None:  # else a rank sleeps, or the start takes much of the time
        limits.used_cores()
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [line for line in lines if line.get("step", 0) > 1], re.sub(r"\s+", " ", printed)


def plan(arguments, folder, case, shares):
    """What `plan` predicts by the profile of the machine."""
    return json.loads(output_of([arguments.program, "plan", folder / "run.toml", *overrides(arguments, case, shares),
                                 "--ranks", 2, "--platform", folder / "profile.json", "--why", "", "--json"]))


def probe(arguments, cores, folder):
    """The profile of a machine whose second rank is as slow as debug.slow makes it, which `probe` does not know."""
    quotas, path, slow = Quotas(cores), folder / "profile.json", arguments.slow
    try:
        output_of(quotas.command([arguments.program, "probe", "-o", path, "--budget", "30s", "--threads", 1,
                                  "--device", "cpu"]))
    finally:
        quotas.remove()
    profile = json.loads(path.read_text())
    print(f"probe: {profile.get('rank_kinds', 'ranks that are alike')}")
    profile["rank_kinds"] = [{"ranks": 1, "speed": 1 / slow}, {"ranks": 1, "speed": 1}]
    for rates in (profile, profile["fp32"]):
        for table in [rates[name] for name in RATE_TABLES] + [count[name] for count in rates.get("expert_counts", [])
                                                              for name in ("products", "weight_products")]:
            for point in table:
                point[1] *= slow
    for name in ("elementwise_bytes_per_s", "pack_bytes_per_s"):
        profile[name] *= slow
    for name in ("operator_latency_s", "routing_latency_s", "micro_batch_latency_s"):
        profile[name] /= slow
    path.write_text(json.dumps(profile))


def choose(arguments, limits, folder, case):
    """The shares that a run measures, the ratios of the ranks' seconds for each unit, and the seconds that the slowest rank
    computes in a step for what is shared: equally, and as chosen."""
    keys = list(SETUPS[arguments.device]["cases"][case][1])
    printed = train(arguments, limits, folder, case, dict.fromkeys(keys, "measured"), steps=1)[1]
    found = {key: re.search(rf'{re.escape(key)} = "measured": ([\d,]+), by ([\d.e,-]+) s of compute for each; '
                            r"at most ([\d.e-]+) s in a step, ([\d.e-]+) s with equal", printed) for key in keys}
    if None in found.values():
        raise SystemExit(printed)
    shares = {key: tuple(map(int, match[1].split(","))) for key, match in found.items()}
    seconds = [list(map(float, match[2].split(","))) for match in found.values()]
    shared = [sum(float(match[group]) for match in found.values()) for group in (4, 3)]
    return shares, [round(slow / fast, 3) for fast, slow in seconds], shared


def splits_around(chosen, count):
    """The nearest of nine, with the chosen one: of one key, or three of the first for each of three of the second. Without
    those that leave a rank nothing."""
    first, *second = chosen
    steps = [{first: by} for by in range(-4, 5)]
    if second:
        steps = [{first: 2 * by, second[0]: 2 * other} for by in (-1, 0, 1) for other in (-1, 0, 1)]
    steps.sort(key=lambda step: sum(map(abs, step.values())))
    splits = [{key: (chosen[key][0] + by, chosen[key][1] - by) for key, by in step.items()} for step in steps]
    return [split for split in splits if min(map(min, split.values())) > 0][:count]


def compare(arguments, numbers, case, folder):
    limits = (Processors if arguments.device == "cuda" else Quotas)(numbers)
    units_of = SETUPS[arguments.device]["cases"][case][1]
    planned = {}
    try:
        if arguments.slow < 1:
            equally = plan(arguments, folder, case, {})
            measured = plan(arguments, folder, case, dict.fromkeys(units_of, "measured"))
            planned = {"planned_shares": measured["shares"], "planned_equal_ms": round(1e3 * equally["step_s"], 1),
                       "planned_chosen_ms": round(1e3 * measured["step_s"], 1)}
        chosen, ratios, shared = choose(arguments, limits, folder, case)
        even = {key: (units // 2,) * 2 for key, units in units_of.items()}
        splits = splits_around(chosen, arguments.splits)
        if even not in splits:
            splits.append(even)
        steps = [[] for _ in splits]
        for turn in range(arguments.rounds):
            for split, all_steps in zip(splits, steps):
                if turn > 0 and split not in (even, chosen):
                    continue
                shares = {key: ",".join(map(str, parts)) for key, parts in split.items()}
                all_steps += train(arguments, limits, folder, case, shares)[0]
    finally:
        limits.remove()
    medians = [statistics.median(line["step_ms"] for line in all_steps) for all_steps in steps]
    equal, own = medians[splits.index(even)], medians[splits.index(chosen)]

    def parts(split):
        timed = [line["measured_ms"] for line in steps[splits.index(split)] if "measured_ms" in line]  # on GPUs few are
        return {part: round(statistics.median(times[part] for times in timed), 1)
                for part in ("compute", "waiting", "optimizer")}

    ratio = statistics.mean(ratios)
    result = {"processors" if arguments.device == "cuda" else "quotas": numbers, "slow": arguments.slow, "case": case,
              "ratios": ratios,
              "chosen": {key: list(parts) for key, parts in chosen.items()}, "equal_ms": round(equal, 1),
              "chosen_ms": round(own, 1), "reduction": round(1 - own / equal, 3),
              "ideal": round(1 - 2 / (1 + ratio), 3), "ideal_of_units": round(1 - shared[1] / shared[0], 3),
              "shared_of_equal": round(1e3 * shared[0] / equal, 3), "equal_parts_ms": parts(even),
              "chosen_parts_ms": parts(chosen), "over_best": round(own / min(medians) - 1, 3),
              **planned, "steps": len(steps[splits.index(chosen)]),
              "splits": [{**{key: list(parts) for key, parts in split.items()}, "ms": round(median, 1)}
                         for split, median in zip(splits, medians)]}
    print(json.dumps(result), flush=True)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--device", choices=list(SETUPS), default="cpu")
    parser.add_argument("--quotas", nargs="*", help=f"of CPU ranks, in cores; default: {' '.join(QUOTAS)}")
    parser.add_argument("--processors", nargs="*", help=f"of the ranks' GPUs; default: {' '.join(PROCESSORS)}")
    parser.add_argument("--cases", nargs="*", default=list(SETUPS["cpu"]["cases"]))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--splits", type=int, default=9, help="with two keys, 5 have all neighbours of the chosen one")
    parser.add_argument("--slow", type=float, default=1, help="speed of the second rank, by debug.slow beside its quota")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    on_gpus = arguments.device == "cuda"
    if on_gpus and (arguments.quotas is not None or arguments.slow != 1):
        parser.error("--quotas and --slow are for CPUs; GPUs have --processors")
    if not on_gpus and arguments.processors is not None:
        parser.error("--processors needs --device cuda; CPUs have --quotas and --slow")
    limits_of_ranks = (arguments.processors or PROCESSORS) if on_gpus else (arguments.quotas or QUOTAS)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_random_tokens(folder / "tokens.bin", SETUPS[arguments.device]["keys"]["model.vocab"], 0)
        (folder / "run.toml").write_text(f'[data]\nkind = "shards"\npath = "{folder}/tokens.bin"\n')
        results = []
        for pair in limits_of_ranks:
            numbers = list(map(int if on_gpus else float, pair.split(",")))
            if arguments.slow < 1:
                probe(arguments, numbers, folder)
            results += [compare(arguments, numbers, case, folder) for case in arguments.cases]
    if arguments.json:
        record = {**SETUPS[arguments.device], "runs": results}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
