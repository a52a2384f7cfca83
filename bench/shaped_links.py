#!/usr/bin/env python3
"""Exchanges between nodes that are network namespaces of this machine, joined by links of a chosen rate (Linux, root):

    bench/shaped_links.py build/release exchange --nodes 4 --ranks-per-node 8 --rate 100mbit [--zipf 1] [--json FILE]
    bench/shaped_links.py build/release train --nodes 2 --ranks-per-node 8 --rate 100mbit [--json FILE]
    bench/shaped_links.py build/release predict --nodes 2 --ranks-per-node 4 --rate 100mbit [--json FILE]
    bench/shaped_links.py build/release choose --nodes 4 --ranks-per-node 1 --rate 200mbit \\
        --transports flat gather_weights gather_tokens [--json FILE]
    bench/shaped_links.py build/release crossover --nodes 2 --ranks-per-node 1 --rate 100mbit --experts 16 --top-k 4 \\
        --width 512 --expert-width 64 [--json FILE]

`exchange` runs bench_exchange, which measures the transports in turn, and for each transport reads the counters of the
links: bytes that a run of 2 N repeats sends more than one of N, forward alone and both ways. `train` compares steps of
`moewright train`, one transport after the other, several rounds. `predict` probes the nodes and compares the times of
SHAPES with those that the planner predicts from the profile, and its choice with the fastest transport. `choose`
compares the transport that moe.transport = "auto" has chosen after step 16 with the others, by steps of STEPS, with loads
of moe.forced_load and a profile of `moewright probe RUN` for each run. A transport's time is the mean over its runs, because
two runs of the same steps may differ by 20 %; those that clearly take longer than the chosen one are not run again.
`crossover` finds the tokens from which on gathering weights takes less time than exchanging rows, and than gathering tokens.
Ranks of a node share its link; latency is the kernel's own.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from train_step import write_random_tokens

SHAPES = [  # experts, top-k, width, tokens of each rank, exponent of the experts' popularity
    (64, 1, 1024, 256, 0), (64, 2, 1024, 256, 0), (64, 4, 512, 512, 0), (64, 8, 512, 256, 0), (256, 8, 512, 256, 0),
    (256, 8, 2048, 64, 0), (64, 6, 256, 1024, 0), (64, 8, 512, 256, 0.5), (64, 8, 512, 256, 1), (64, 2, 1024, 256, 1)]
WORTHWHILE = 0.95  # of the time of flat: what is predicted to take more is not chosen
# A model's experts, top-k, width and expert width, and the tokens of each rank and micro-batch.
STEPS = [((16, 4, 256, 64), 256), ((16, 4, 256, 64), 2048), ((8, 2, 256, 384), 512), ((8, 2, 256, 384), 2048),
         ((32, 8, 256, 128), 256), ((32, 8, 256, 128), 1024)]
CLOSE = 1.3  # of the chosen transport's time: the limit of those whose steps are measured again
RECHOSEN = 17  # steps after which `auto` has chosen again
PHASES = ["dispatch", "combine", "gradient_dispatch", "gradient_combine"]
CONGESTION_CONTROL = "reno"  # which every node may use; with bbr, the default of some machines, links idle at times
BRIDGE, NETWORK = "mwlinks", "10.78.0"
AGENT = f"""#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
node=${{1##*.}}; shift
exec ip netns exec mwnode$node unshare --uts /bin/sh -c "hostname mwnode$node; $*"
"""


def sh(*words, check=True):
    return subprocess.run(words, check=check, capture_output=True, text=True).stdout


def keep_order(link, cpu, *inside):
    """One CPU receives all packets of a link. With more, they overtake each other, and TCP takes that for losses."""
    mask = f"{1 << cpu % 32:x}" + ",00000000" * (cpu // 32)
    sh(*inside, "sh", "-c", f"echo {mask} > /sys/class/net/{link}/queues/rx-0/rps_cpus")


def remove_nodes():
    for link in set(re.findall(r"mwlink\d+", sh("ip", "-o", "link"))):
        sh("ip", "link", "del", link, check=False)
    for name in re.findall(r"^mwnode\d+", sh("ip", "netns", "list"), re.M):
        sh("ip", "netns", "del", name, check=False)
    sh("ip", "link", "del", BRIDGE, check=False)


@contextlib.contextmanager
def nodes_of(count, rate):
    """Nodes mwnode1.. at 10.78.0.1.., each behind a link of `rate` both ways. Deep queues: short ones drop bursts."""
    remove_nodes()
    shape = ["root", "tbf", "rate", rate, "burst", "32kb", "limit", "256mb"]
    try:
        sh("ip", "link", "add", BRIDGE, "type", "bridge")
        sh("ip", "addr", "add", f"{NETWORK}.254/24", "dev", BRIDGE)
        sh("ip", "link", "set", BRIDGE, "up")
        cpus = sorted(os.sched_getaffinity(0))
        for i in range(1, count + 1):
            node, link, cpu = f"mwnode{i}", f"mwlink{i}", cpus[i % len(cpus)]
            sh("ip", "netns", "add", node)
            sh("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", node)
            sh("ip", "link", "set", link, "master", BRIDGE, "up")
            inside = ["ip", "netns", "exec", node]
            sh(*inside, "ip", "addr", "add", f"{NETWORK}.{i}/24", "dev", "eth0")
            sh(*inside, "ip", "link", "set", "eth0", "up")
            sh(*inside, "ip", "link", "set", "lo", "up")
            sh(*inside, "sh", "-c", f"echo {CONGESTION_CONTROL} > /proc/sys/net/ipv4/tcp_congestion_control")
            sh(*inside, "tc", "qdisc", "add", "dev", "eth0", *shape)
            sh("tc", "qdisc", "add", "dev", link, *shape)
            keep_order("eth0", cpu, *inside)
            keep_order(link, cpu)
        yield
    finally:
        remove_nodes()


def link_bytes(nodes):
    """That all nodes have sent, packet headers included."""
    counters = (pathlib.Path(f"/sys/class/net/mwlink{i}/statistics/rx_bytes") for i in range(1, nodes + 1))
    return sum(int(path.read_text()) for path in counters)


class Launcher:
    def __init__(self, args, folder):
        self.args, self.agent = args, pathlib.Path(folder) / "agent.sh"
        self.agent.write_text(AGENT)
        self.agent.chmod(0o755)

    def run(self, *command):
        """Bytes over the links and what was printed."""
        hosts = ",".join(f"{NETWORK}.{i}:{self.args.ranks_per_node}" for i in range(1, self.args.nodes + 1))
        options = {"plm": "rsh", "plm_rsh_agent": self.agent, "plm_rsh_no_tree_spawn": 1, "btl": "self,vader,tcp",
                   "btl_tcp_if_include": f"{NETWORK}.0/24", "oob_tcp_if_include": f"{NETWORK}.0/24",
                   "mpi_yield_when_idle": 1, "hwloc_base_binding_policy": "none"}
        words = [word for name, value in options.items() for word in ("--mca", name, str(value))]
        ranks = self.args.nodes * self.args.ranks_per_node
        before = link_bytes(self.args.nodes)
        job = ["mpirun", "--allow-run-as-root", *words, "--host", hosts, "--oversubscribe", "-np", str(ranks)]
        done = subprocess.run([*job, *map(str, command)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"mpirun: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return link_bytes(self.args.nodes) - before, done.stdout


def exchange_program(args, experts, top_k, width, tokens, zipf):
    return [args.build / "bench_exchange", "--ranks-per-node", args.ranks_per_node, "--experts", experts, "--top-k",
            top_k, "--width", width, "--tokens", tokens, "--zipf", zipf, "--seed", args.seed]


def measure_exchange(args, launcher):
    program = exchange_program(args, args.experts, args.top_k, args.width, args.tokens, args.zipf)

    def run(repeats, transports, phases):
        return launcher.run(*program, "--repeats", repeats, "--phases", phases, "--transport", *transports)

    report = json.loads(run(args.repeats, args.transports, 4)[1])
    for transport in report["transports"] if args.counters else ():
        for key, phases in (("forward", 2), ("both_ways", 4)):
            few, many = (run(n, [transport["transport"]], phases)[0] for n in (args.counters, 2 * args.counters))
            transport["link_bytes_" + key] = (many - few) / args.counters
    return report


def measure_predictions(args, launcher, folder):
    """One entry for each shape: milliseconds of the four exchanges together, and of the transport that `auto` takes."""
    profile = probe(args, launcher, folder)
    cases = []
    for shape in SHAPES:
        program = exchange_program(args, *shape)
        report = json.loads(launcher.run(*program, "--repeats", args.repeats, "--platform", profile, "--transport",
                                         *args.transports)[1])
        case = dict(zip(("experts", "top_k", "width", "tokens", "zipf"), shape))
        for key in ("median_ms", "predicted_ms"):
            case[key] = {one["transport"]: sum(one[phase][key] for phase in PHASES) for one in report["transports"]
                         if key in one[PHASES[0]]}
        predicted = case["predicted_ms"]
        chosen = min(predicted, key=predicted.get)
        if predicted[chosen] > WORTHWHILE * predicted["flat"]:
            chosen = "flat"
        case["chosen"] = chosen
        case["chosen_over_best"] = case["median_ms"][chosen] / min(case["median_ms"][name] for name in predicted)
        cases.append(case)
        print(json.dumps(case), flush=True)
    off = [abs(ms / case["median_ms"][name] - 1) for case in cases for name, ms in case["predicted_ms"].items()]
    return {"ranks": args.nodes * args.ranks_per_node, "profile": json.loads(profile.read_text())["levels"],
            "mean_error": statistics.mean(off),
            "within_5_percent_of_best": statistics.mean(case["chosen_over_best"] <= 1.05 for case in cases),
            "cases": cases}


def crossover_by_bytes(values, weight_bytes, copies):
    """Tokens whose rows of `copies` copies are as many bytes as `values` times the width of a row of weights."""
    row_bytes, passes = 2, 4
    return values * (2 * weight_bytes + 4) / (passes * row_bytes * copies)


def measure_crossovers(args, launcher):
    """Tokens of a rank from which on `gather_weights` exchanges a layer's weights and gradients in less time than other
    transports their rows: measured, and by bytes. In bf16 these are (c + 1) E F / K for flat and (c + 1) E F / G for
    gather_tokens, as rows travel four times, weights twice, and their gradients once in fp32. CPUs without bf16
    instructions have weights of 4 bytes."""
    ranks, crossovers = args.nodes * args.ranks_per_node, []
    values = 3 * args.experts * args.expert_width

    def run(tokens, repeats, *transports):
        program = exchange_program(args, args.experts, args.top_k, args.width, tokens, args.zipf)
        return json.loads(launcher.run(*program, "--expert-width", args.expert_width, "--repeats", repeats,
                                       "--transport", *transports)[1])

    gathered_bytes = run(args.top_k, 1, "gather_weights")["transports"][0]["dispatch"]["bytes"]
    weight_bytes = gathered_bytes / (values * args.width * (ranks - 1))
    for transport, copies in (("flat", args.top_k), ("gather_tokens", ranks)):
        expected, points = crossover_by_bytes(values, weight_bytes, copies), []
        for share in (0.7, 0.85, 1, 1.15, 1.3):
            tokens = round(share * expected)
            report = run(tokens, args.repeats, transport, "gather_weights")
            times = {one["transport"]: sum(one[phase]["median_ms"] for phase in PHASES) for one in report["transports"]}
            points.append({"tokens": tokens, **{f"{name}_ms": value for name, value in times.items()}})
            print(json.dumps(points[-1]), flush=True)
        gathered = statistics.median(point["gather_weights_ms"] for point in points)  # whatever the tokens
        slope, constant = statistics.linear_regression([point["tokens"] for point in points],
                                                       [point[f"{transport}_ms"] for point in points])
        crossover = (gathered - constant) / slope
        crossovers.append({"transport": transport, "points": points, "crossover_tokens": crossover,
                           "weight_bytes": weight_bytes, "expected_tokens": expected, "off_by": crossover / expected - 1})
    return {"ranks": ranks, "experts": args.experts, "top_k": args.top_k, "width": args.width,
            "expert_width": args.expert_width, "repeats": args.repeats, "crossovers": crossovers}


def probe(args, launcher, folder, *run):
    profile = folder / "profile.json"
    launcher.run(args.build / "moewright", "probe", *run, "-o", profile, "--budget", args.budget, "--threads", 1)
    return profile


class Training:
    """A model of `layers` layers, and runs of it: milliseconds of their steps but the first two, and their losses."""
    def __init__(self, args, launcher, folder, shape, tokens):
        self.launcher, self.args, self.folder = launcher, args, folder
        ranks = args.nodes * args.ranks_per_node
        experts, top_k, width, expert_width = shape
        text = folder / "tokens.bin"
        write_random_tokens(text, args.vocab, 0)
        self.run_file = folder / "run.toml"
        self.run_file.write_text(f"""[model]
vocab = {args.vocab}
width = {width}
layers = {args.layers}
heads = 4
head_dim = 16
experts = {experts}
top_k = {top_k}
expert_width = {expert_width}
[train]
dtype = "fp32"
seq_len = {tokens}
global_batch = {ranks}
micro_batches = 1
threads = 1
steps = {args.steps}
[mesh]
ep = {ranks}
ranks_per_node = {args.ranks_per_node}
[data]
path = "{text}"
""")

    def run(self, *keys):
        metrics = self.folder / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        _, printed = self.launcher.run(self.args.build / "moewright", "train", self.run_file, f"log.jsonl={metrics}",
                                       *keys)
        lines = map(json.loads, metrics.read_text().splitlines())
        steps = [line for line in lines if "step" in line and "loss" in line]
        return [line["step_ms"] for line in steps[2:]], [line["loss"] for line in steps], printed


def measure_steps(args, launcher, folder):
    training = Training(args, launcher, folder, (args.experts, args.top_k, args.width, args.expert_width), args.tokens)
    seconds, losses = {}, {}
    for _ in range(args.rounds):
        for transport in args.transports:
            step_ms, losses[transport], _ = training.run(f"moe.transport={transport}")
            seconds.setdefault(transport, []).extend(ms / 1e3 for ms in step_ms)
    first, last = losses[args.transports[0]][0], losses[args.transports[0]][-1]
    return {"ranks": args.nodes * args.ranks_per_node, "layers": args.layers, "width": args.width,
            "experts": args.experts, "top_k": args.top_k, "expert_width": args.expert_width,
            "tokens_per_rank": args.tokens, "steps": args.steps,
            "transports": [{"transport": name, "median_step_s": statistics.median(values), "steps": len(values),
                            "first_loss": losses[name][0], "last_loss": losses[name][-1],
                            "first_loss_off_by": abs(losses[name][0] - first) / first,
                            "last_loss_off_by": abs(losses[name][-1] - last) / last}
                           for name, values in seconds.items()]}


def measure_choices(args, launcher, folder):
    points = []
    for shape, tokens in [STEPS[i] for i in args.shapes]:
        training = Training(args, launcher, folder, shape, tokens)
        for load in args.loads:
            profile = probe(args, launcher, folder, training.run_file, f"moe.forced_load={load}")
            keys = f"moe.forced_load={load}", f"plan.platform={profile}"
            printed = training.run(f"train.steps={RECHOSEN}", "moe.transport=auto", *keys)[2]
            chosen = re.findall(r'moe.transport = "auto": ([\w*,]+?)(?:, by| in place)', printed)
            name = chosen[-1] if chosen else "flat"
            runs = {each: [] for each in [*args.transports, name]}
            close = list(runs)
            for _ in range(args.rounds):
                for each in close:
                    runs[each].append(statistics.median(training.run(f"moe.transport={each}", *keys)[0]))
                step_ms = {each: statistics.mean(medians) for each, medians in runs.items()}
                close = [each for each in runs if step_ms[each] <= CLOSE * step_ms[name]]
            point = {**dict(zip(("experts", "top_k", "width", "expert_width"), shape)), "tokens": tokens, "load": load,
                     "step_ms": step_ms, "runs_ms": runs, "chosen_first": chosen[0] if chosen else name, "chosen": name,
                     "over_best": step_ms[name] / min(step_ms.values()), "over_flat": step_ms[name] / step_ms["flat"]}
            points.append(point)
            print(json.dumps(point), flush=True)
    over_best = [point["over_best"] for point in points]
    return {"ranks": args.nodes * args.ranks_per_node, "layers": args.layers, "steps": args.steps,
            "rounds": args.rounds, "mean_regret": statistics.mean(over_best) - 1, "worst_regret": max(over_best) - 1,
            "points": points}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("what", choices=["exchange", "train", "predict", "choose", "crossover"])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks-per-node", type=int, default=8)
    parser.add_argument("--rate", default="100mbit", help="of a node's link, as tc writes it")
    parser.add_argument("--transports", nargs="+", default=["flat", "halo", "bypass"])
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256, help="of each rank")
    parser.add_argument("--zipf", type=float, default=0)
    parser.add_argument("--seed", type=int, default=1, help="of the order of experts by popularity")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--budget", default="20s", help="of the probe before predictions")
    parser.add_argument("--counters", type=int, default=0, help="N of the runs that read the links; 0: none")
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--expert-width", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--loads", nargs="+", default=["none", "hot_experts"], help="of moe.forced_load, for choose")
    parser.add_argument("--shapes", type=int, nargs="+", default=range(len(STEPS)), help="of STEPS, from 0, for choose")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, nodes_of(args.nodes, args.rate):
        launcher = Launcher(args, folder)
        measure = {"exchange": lambda: measure_exchange(args, launcher),
                   "crossover": lambda: measure_crossovers(args, launcher),
                   "train": lambda: measure_steps(args, launcher, pathlib.Path(folder)),
                   "choose": lambda: measure_choices(args, launcher, pathlib.Path(folder)),
                   "predict": lambda: measure_predictions(args, launcher, pathlib.Path(folder))}
        report = measure[args.what]()
    report = {"what": args.what, "nodes": args.nodes, "ranks_per_node": args.ranks_per_node, "rate": args.rate,
              "cores": os.cpu_count(), **report}
    print(json.dumps(report, indent=1))
    if args.json:
        runs = json.loads(args.json.read_text()) if args.json.exists() else []
        args.json.write_text(json.dumps([*runs, report], indent=1) + "\n")


main()
