#!/usr/bin/env python3
"""Exchanges between nodes that are network namespaces of this machine, joined by links of a chosen rate (Linux, root):

    bench/shaped_links.py build/release exchange --nodes 4 --ranks-per-node 8 --rate 100mbit [--zipf 1] [--json FILE]
    bench/shaped_links.py build/release train --nodes 2 --ranks-per-node 8 --rate 100mbit [--json FILE]
    bench/shaped_links.py build/release predict --nodes 2 --ranks-per-node 4 --rate 100mbit [--json FILE]
    bench/shaped_links.py build/release crossover --nodes 2 --ranks-per-node 1 --rate 100mbit --experts 16 --top-k 4 \
        --width 1024 --expert-width 64 [--json FILE]

`exchange` runs bench_exchange, which measures the transports in turn, and for each transport reads the counters of the
links: bytes that a run of 2 N repeats sends more than one of N, forward alone and both ways. `train` compares steps of
`moewright train`, one transport after the other, several rounds. `predict` probes the nodes and compares the times of
SHAPES with those that the planner predicts from the profile, and its choice with the fastest transport. `crossover`
finds the tokens from which on gathering weights takes less time than exchanging rows. Ranks of a node share its link; latency is the
kernel's own.
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
PHASES = ["dispatch", "combine", "gradient_dispatch", "gradient_combine"]
BRIDGE, NETWORK = "mwlinks", "10.78.0"
AGENT = f"""#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
node=${{1##*.}}; shift
exec ip netns exec mwnode$node unshare --uts /bin/sh -c "hostname mwnode$node; $*"
"""


def sh(*words, check=True):
    return subprocess.run(words, check=check, capture_output=True, text=True).stdout


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
        for i in range(1, count + 1):
            node, link = f"mwnode{i}", f"mwlink{i}"
            sh("ip", "netns", "add", node)
            sh("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", node)
            sh("ip", "link", "set", link, "master", BRIDGE, "up")
            inside = ["ip", "netns", "exec", node]
            sh(*inside, "ip", "addr", "add", f"{NETWORK}.{i}/24", "dev", "eth0")
            sh(*inside, "ip", "link", "set", "eth0", "up")
            sh(*inside, "ip", "link", "set", "lo", "up")
            sh(*inside, "tc", "qdisc", "add", "dev", "eth0", *shape)
            sh("tc", "qdisc", "add", "dev", link, *shape)
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
        done = subprocess.run(["mpirun", "--allow-run-as-root", *words, "--host", hosts, "--oversubscribe", "-np",
                               str(ranks), *map(str, command)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"mpirun: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return link_bytes(self.args.nodes) - before, done.stdout


def exchange_program(args, experts, top_k, width, tokens, zipf):
    return [args.build / "bench_exchange", "--ranks-per-node", args.ranks_per_node, "--experts", experts, "--top-k",
            top_k, "--width", width, "--tokens", tokens, "--zipf", zipf]


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
    profile = folder / "profile.json"
    launcher.run(args.build / "moewright", "probe", "-o", profile, "--budget", args.budget, "--threads", 1)
    cases = []
    for shape in SHAPES:
        program = exchange_program(args, *shape)
        report = json.loads(launcher.run(*program, "--repeats", args.repeats, "--platform", profile, "--transport",
                                         *args.transports)[1])
        case = dict(zip(("experts", "top_k", "width", "tokens", "zipf"), shape))
        for key in ("median_ms", "predicted_ms"):
            case[key] = {one["transport"]: sum(one[phase][key] for phase in PHASES) for one in report["transports"]}
        chosen = min(case["predicted_ms"], key=case["predicted_ms"].get)
        case["chosen"] = chosen
        case["chosen_over_best"] = case["median_ms"][chosen] / min(case["median_ms"].values())
        cases.append(case)
        print(json.dumps(case), flush=True)
    off = [abs(case["predicted_ms"][name] / case["median_ms"][name] - 1) for case in cases for name in args.transports]
    return {"ranks": args.nodes * args.ranks_per_node, "profile": json.loads(profile.read_text())["levels"],
            "mean_error": statistics.mean(off),
            "within_5_percent_of_best": statistics.mean(case["chosen_over_best"] <= 1.05 for case in cases),
            "cases": cases}


def measure_crossover(args, launcher):
    """Tokens of a rank from which on `gather_weights` exchanges a layer's weights and gradients in less time than `flat`
    its rows: measured, and by bytes (c + 1) E F / K."""
    expected = 3 * args.experts * args.expert_width / args.top_k
    points = []
    for share in (0.7, 0.85, 1, 1.15, 1.3):
        tokens = round(share * expected)
        program = exchange_program(args, args.experts, args.top_k, args.width, tokens, args.zipf)
        report = json.loads(launcher.run(*program, "--expert-width", args.expert_width, "--repeats", args.repeats,
                                         "--transport", "flat", "gather_weights")[1])
        times = {one["transport"]: sum(one[phase]["median_ms"] for phase in PHASES) for one in report["transports"]}
        points.append({"tokens": tokens, **{f"{name}_ms": value for name, value in times.items()}})
        print(json.dumps(points[-1]), flush=True)
    gathered = statistics.median(point["gather_weights_ms"] for point in points)  # whatever the tokens
    slope, constant = statistics.linear_regression([point["tokens"] for point in points],
                                                   [point["flat_ms"] for point in points])
    crossover = (gathered - constant) / slope
    return {"ranks": args.nodes * args.ranks_per_node, "experts": args.experts, "top_k": args.top_k,
            "width": args.width, "expert_width": args.expert_width, "repeats": args.repeats, "points": points,
            "crossover_tokens": crossover, "expected_tokens": expected, "off_by": crossover / expected - 1}


def measure_steps(args, launcher, folder):
    ranks = args.nodes * args.ranks_per_node
    run_file, tokens = folder / "run.toml", folder / "tokens.bin"
    write_random_tokens(tokens, args.vocab, 0)
    run_file.write_text(f"""[model]
vocab = {args.vocab}
width = {args.width}
layers = {args.layers}
heads = 4
head_dim = 16
experts = {args.experts}
top_k = {args.top_k}
expert_width = {args.expert_width}
[train]
dtype = "fp32"
seq_len = {args.tokens}
global_batch = {ranks}
micro_batches = 1
threads = 1
steps = {args.steps}
[mesh]
ep = {ranks}
[data]
path = "{tokens}"
""")
    seconds, losses = {}, {}
    for _ in range(args.rounds):
        for transport in args.transports:
            metrics = folder / f"{transport}.jsonl"
            metrics.unlink(missing_ok=True)
            launcher.run(args.build / "moewright", "train", run_file, f"mesh.ranks_per_node={args.ranks_per_node}",
                         f"moe.transport={transport}", f"log.jsonl={metrics}")
            steps = [line for line in map(json.loads, metrics.read_text().splitlines()) if "step" in line and "loss" in line]
            seconds.setdefault(transport, []).extend(line["step_ms"] / 1e3 for line in steps[1:])
            losses[transport] = [line["loss"] for line in steps]
    first, last = losses[args.transports[0]][0], losses[args.transports[0]][-1]
    return {"ranks": ranks, "layers": args.layers, "width": args.width, "experts": args.experts, "top_k": args.top_k,
            "expert_width": args.expert_width, "tokens_per_rank": args.tokens, "steps": args.steps,
            "transports": [{"transport": name, "median_step_s": statistics.median(values), "steps": len(values),
                            "first_loss": losses[name][0], "last_loss": losses[name][-1],
                            "first_loss_off_by": abs(losses[name][0] - first) / first,
                            "last_loss_off_by": abs(losses[name][-1] - last) / last} for name, values in seconds.items()]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("what", choices=["exchange", "train", "predict", "crossover"])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks-per-node", type=int, default=8)
    parser.add_argument("--rate", default="100mbit", help="of a node's link, as tc writes it")
    parser.add_argument("--transports", nargs="+", default=["flat", "halo", "bypass"])
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256, help="of each rank")
    parser.add_argument("--zipf", type=float, default=0)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--budget", default="20s", help="of the probe before predictions")
    parser.add_argument("--counters", type=int, default=0, help="N of the runs that read the links; 0: none")
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--expert-width", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, nodes_of(args.nodes, args.rate):
        launcher = Launcher(args, folder)
        measure = {"exchange": lambda: measure_exchange(args, launcher),
                   "crossover": lambda: measure_crossover(args, launcher),
                   "train": lambda: measure_steps(args, launcher, pathlib.Path(folder)),
                   "predict": lambda: measure_predictions(args, launcher, pathlib.Path(folder))}
        report = measure[args.what]()
    report = {"what": args.what, "nodes": args.nodes, "ranks_per_node": args.ranks_per_node, "rate": args.rate,
              "cores": os.cpu_count(), **report}
    print(json.dumps(report, indent=1))
    if args.json:
        runs = json.loads(args.json.read_text()) if args.json.exists() else []
        args.json.write_text(json.dumps([*runs, report], indent=1) + "\n")


main()
