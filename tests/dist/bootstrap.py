"""Processes that are started one by one with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT form one world, which
computes what one process does. Who does not come, or comes twice, is named by all that came."""

import os
import re
import signal
import socket
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
import _join  # noqa: E402
from _join import connections_at, free_port, start  # noqa: E402
from _jobs import (Checks, SOURCE, checkpoints, largest_difference, last_step, outputs, read_metrics, run,  # noqa: E402
                   write_corpus, write_run_file)

VERIFY = ["verify", SOURCE / "examples" / "verify.toml", "verify.steps=1", "train.threads=1"]
checks = Checks()
write_corpus("text")
RUN = write_run_file()


def expect(*arguments):
    _join.expect(checks, *arguments)


for ranks, overrides in [(2, ["mesh.ep=2"]), (4, ["mesh.ep=2", "mesh.zero=1"]), (4, ["mesh.tp=2", "mesh.ep=4"]),
                         (4, ["mesh.pp=2", "mesh.ep=2", "mesh.schedule=zb_v"]), (3, ["moe.transport=padded"])]:
    batch = ["train.global_batch=12", "train.micro_batches=2"] if ranks == 3 else []
    jobs = start(range(ranks), ranks, *VERIFY, *overrides, *batch)
    for i, job in enumerate(jobs):
        code = job.wait(120)
        checks.expect(code == 0, f"verify {ranks} {overrides}, rank {i}: exit {code}", job.output())
    print(f"{ranks} ranks, {' '.join(overrides)}: {jobs[0].output().splitlines()[-1]}", flush=True)

# Who is missing.
expect("missing", start([0, 2], 4, *VERIFY, MOEWRIGHT_JOIN_SECONDS=2), 8, "2 of 4 ranks did not come to localhost:")
expect("missing", start([0, 2], 4, *VERIFY, MOEWRIGHT_JOIN_SECONDS=2), 8, "within 2 s: 1, 3")
# Before that, the first rank of each node says what it waits for.
expect("missing, said before", start([0], 3, *VERIFY, MOEWRIGHT_JOIN_SECONDS=4), 8,
       "rank 0 waits for 2 of 3 ranks: 1, 2 (MASTER_ADDR=localhost, MASTER_PORT=")
expect("no rank 0, said before", start([1], 2, *VERIFY, local=False, MOEWRIGHT_JOIN_SECONDS=4), 8,
       "rank 1 waits for rank 0: nobody answers there (MASTER_ADDR=localhost, MASTER_PORT=")
expect("no rank 0", start([1], 2, *VERIFY, MOEWRIGHT_JOIN_SECONDS=1), 8, "rank 1 did not reach rank 0 at MASTER_ADDR=localhost")
expect("no such host", start([1], 2, *VERIFY, MOEWRIGHT_JOIN_SECONDS=1, MASTER_ADDR="host.invalid"), 8,
       "its name is not known")

# Contradictions.
expect("twice", start([0, 1, 1], 3, *VERIFY, local=False), 8, "two processes have RANK=1: on ")
expect("sizes", start([0, 1, 2], 4, *VERIFY, WORLD_SIZE=lambda rank: 3 if rank == 2 else 4), 8,
       "was started with WORLD_SIZE=3, rank 0 with 4")
expect("two rank 0", start([0], 2, *VERIFY, port=(busy := socket.create_server(("", 0))).getsockname()[1]), 8,
       "Address already in use")
busy.close()
expect("local rank", start([0, 1], 2, *VERIFY, LOCAL_RANK=lambda rank: 1 - rank), 8, "number the ranks node by node")
for name, value, words in [("RANK", None, "but RANK is not set"), ("MASTER_PORT", "x", "MASTER_PORT=x: expected"),
                           ("RANK", 2, "RANK=2: expected a whole number from 0 to 1"), ("MASTER_ADDR", None, "MASTER_ADDR")]:
    expect(f"{name}={value}", start([1], 2, *VERIFY, **{name: value}), 8, words)
expect("one rank", start([0], 1, *VERIFY), 0, "verify: passed")

# Ranks of different runs. What only concerns a rank's own log may differ.
for keys, code, words in ((["train.lr=1e-2", "log.every=7"], 3, "ranks were started for different runs: rank 1 has train.lr = 0.01 ("),
                          (["--dry-run"], 3, "train --dry-run (moewright"), (["log.every=7"], 0, "")):
    port = free_port()
    expect(f"rank 1 has {keys}", [*start([0], 2, "train", RUN, "mesh.ep=2", "train.steps=2", port=port),
                                  *start([1], 2, "train", RUN, "mesh.ep=2", "train.steps=2", *keys, port=port)], code, words)



def start_and_lose_one(size, *arguments, **environment):
    """Rank 0 waits, and rank 1 has come to it and was killed. Returns rank 0's job and the port."""
    port = free_port()
    first = start([0], size, *arguments, port=port, **environment)
    lost = start([1], size, *arguments, port=port, **environment)[0]
    checks.expect(lost.wait_until(lambda: connections_at(port) > 0), "lost: rank 1 does not come", lost.output())
    time.sleep(0.3)  # its name is said
    lost.end()
    return first, port


# A rank that dies while it waits leaves its place to the one that is started again, and is missed without.
first, port = start_and_lose_one(3, *VERIFY, "train.global_batch=12", "train.micro_batches=2")
expect("started again", first + start([1, 2], 3, *VERIFY, "train.global_batch=12", "train.micro_batches=2", port=port), 0, "")
checks.expect("verify: passed" in first[0].output(), "started again: no verdict", first[0].output())
first, port = start_and_lose_one(3, *VERIFY, MOEWRIGHT_JOIN_SECONDS=2)
expect("lost", first, 8, "within 2 s: 1 (was lost on ")
first, port = start_and_lose_one(3, *VERIFY, MOEWRIGHT_JOIN_SECONDS=5)
expect("lost", first + start([2], 3, *VERIFY, port=port, MOEWRIGHT_JOIN_SECONDS=5), 8, "within 5 s: 1 (was lost on ")

# Whoever else connects to the port does no harm.
port = free_port()
first = start([0], 2, *VERIFY, "mesh.ep=2", port=port)
for noise in (b"", b"GET / HTTP/1.0\r\n\r\n" + b"x" * 200):
    for _ in range(1000):
        try:
            with socket.create_connection(("127.0.0.1", port)) as s:
                s.sendall(noise)
            break
        except OSError:
            time.sleep(0.02)
    else:
        checks.expect(False, "noise never reached rank 0")
expect("noise", first + start([1], 2, *VERIFY, "mesh.ep=2", port=port), 0, "")

# A mistake keeps its exit code on all; rank 0 speaks first.
jobs = start([0, 1], 2, *VERIFY, "mesh.ep=3")
expect("bad mesh", jobs[:1], 3, "mesh.ep")
expect("bad mesh", jobs[1:], 3, "")

# A rank that is killed, here a gateway between two nodes, is named by who notices first; the others may hear of the end
# from that one.
name = "killed"
jobs = start(range(4), 4, "train", RUN, *outputs(name), "train.steps=100000", "mesh.ep=4", "mesh.ranks_per_node=2",
             "moe.transport=halo")
checks.expect(jobs[0].wait_until(lambda: last_step(name) >= 3), "killed: no step", jobs[0].output())
jobs[1].process.kill()
others = [job for job in jobs if job is not jobs[1]]
expect(name, others, 8, "")
said = "".join(job.output() for job in others)
checks.expect("rank 1 is lost" in said, "killed: nobody names rank 1", said)

# A signal to one rank stops all; the run goes on under mpirun and is what one process computes.
name, steps = "stopped", ["train.steps=60"]
alone = run(1, "train", RUN, *outputs("alone"), *steps)
jobs = start([0, 1], 2, "train", RUN, *outputs(name), *steps, "mesh.ep=2")
checks.expect(jobs[0].wait_until(lambda: last_step(name) >= 3), "stopped: no step", jobs[0].output())
os.kill(jobs[1].rank_pids()[0], signal.SIGUSR1)
expect(name, jobs[:1], 0, "stopped on request after step")
expect(name, jobs[1:], 0, "")
found = re.search(r"(\d+) threads? per rank", jobs[0].output())
checks.expect(found and found.group(1) == "1", "threads are not those of the run file", jobs[0].output())
resumed = run(2, "train", RUN, *outputs(name), *steps, "mesh.ep=2", "checkpoint.resume=auto")
checks.expect(alone.code == resumed.code == 0 and checkpoints(name)[-1] == 60, f"resumed: {resumed.code}", resumed.output)
difference = largest_difference(read_metrics("alone"), read_metrics(name))
checks.expect(difference < 1e-3, f"stopped and resumed: metrics differ by {difference:.1e}")

# Cores are shared by the ranks of a node.
jobs = start([0, 1], 2, "train", RUN, *outputs("cores"), "train.steps=1", "train.threads=0")
shared = max(1, len(os.sched_getaffinity(0)) // 2) if len(os.sched_getaffinity(0)) == os.cpu_count() else None
expect("cores", jobs, 0, "")
checks.expect(shared is None or f"{shared} thread{'s' if shared > 1 else ''} per rank" in jobs[0].output(),
              f"cores: {shared} threads per rank expected", jobs[0].output())

# Where MPI's launcher is at work, its ranks count.
os.environ.update(WORLD_SIZE="7", RANK="0", MASTER_ADDR="localhost", MASTER_PORT="1")
result = run(2, *VERIFY, "mesh.ep=2")
checks.expect(result.code == 0 and "layout: 2 ranks" in result.output, f"mpirun: {result.code}", result.output)
checks.finish()
