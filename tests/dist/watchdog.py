"""The watchdog names the ranks that are stopped or stuck, in time and with their last step, in every kind of layout and
command, and ends the whole job with an exit code of its own, stopped processes included; runs that end in order, by an
error or by kill -9 end as without it."""

import functools
import os
import re
import resource
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, Job, at_once, run, write_corpus, write_run_file  # noqa: E402

STALLED, SECONDS, RANKS = 10, 3, 4
SLACK = 8  # for a launcher to end the others, on a busy machine
checks = Checks()
write_corpus("text")
RUN = write_run_file()
ARGUMENTS = ["train", RUN, "mesh.ep=2", f"watchdog.seconds={SECONDS}"]


def started(name, *overrides):
    """A long run that has made some steps, and the processes of its ranks by rank."""
    return at_work(name, "\nstep 5/", *ARGUMENTS, "train.steps=100000", *overrides)


def at_work(name, sign, *arguments):
    """A job that has said `sign`, and the processes of its ranks by rank."""
    job = Job(RANKS, *arguments)
    checks.expect(job.wait_until(lambda: sign in job.output()), f"{name}: did not start", job.output())
    pids = sorted(job.rank_pids(), key=rank_of)
    checks.expect([rank_of(pid) for pid in pids] == list(range(RANKS)), f"{name}: ranks {pids}", job.output())
    return job, pids


def rank_of(pid):
    with open(f"/proc/{pid}/environ") as environment:
        entries = dict(e.split("=", 1) for e in environment.read().split("\0") if "=" in e)
    return int(entries.get("OMPI_COMM_WORLD_RANK", entries.get("PMI_RANK", -1)))


def last_step(output):
    return max((int(s) for s in re.findall(r"^step (\d+)/", output, re.M)), default=0)


def alive(pids):
    """Those that run or are stopped; the dead whom nobody has asked about yet do not count."""
    left = []
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                state = stat.read().rsplit(")", 1)[1].split()[0]
            left += [] if state in "ZX" else [pid]
        except OSError:
            pass
    return left


def ended(name, job, pids, since, code, parts, limit=SECONDS):
    got = job.wait(limit + 40)
    seconds = time.monotonic() - since
    output = job.output()
    told = re.findall("watchdog:.*", output)
    print(f"{name}: code {got} after {seconds:.1f} s; {told[:1]}", flush=True)
    # MPICH's mpirun mixes in the signal by which it ends the other ranks.
    codes = (code, 9) if "messages by MPICH" in output else (code,)
    checks.expect(got in codes, f"{name}: exit {got}, expected {code}", output)
    checks.expect(seconds < limit + SLACK, f"{name}: it took {seconds:.1f} s", output)
    for part in parts:
        checks.expect(re.search(part, output), f"{name}: no \"{part}\"", output)
    end = time.monotonic() + 5
    while alive(pids) and time.monotonic() < end:
        time.sleep(0.05)
    checks.expect(not alive(pids), f"{name}: processes {alive(pids)} are left", output)
    for pid in alive(pids):
        os.kill(pid, signal.SIGKILL)
    return output


def stop_rank(number, parts, *overrides):
    name = f"stopped-{number} {' '.join(overrides)}"
    job, pids = started(name, *overrides)
    before = last_step(job.output())
    time.sleep(SECONDS / 2)  # some beats go by
    os.kill(pids[number], signal.SIGSTOP)
    output = ended(name, job, pids, time.monotonic(), STALLED, parts)
    named = re.search(rf"rank {number} on \S+: silent for [\d.]+ s, last .*\bstep (\d+)", output)
    if checks.expect(named, f"{name}: no last step of rank {number}", output):
        checks.expect(before <= int(named[1]) <= last_step(output) + 1,
                      f"{name}: step {named[1]}, expected {before} to {last_step(output)}", output)
    return output


def stop_one(number):
    parts = [rf"nothing is heard from rank {number} "]
    if number == 2:
        parts.append(r"ranks? [\d, -]+: in collective \d+ \(\w+\), step \d+")
    output = stop_rank(number, parts)
    checks.expect(output.count("watchdog:") == 1, f"stopped-{number}: one rank tells", output)


def stop_two():
    job, pids = started("stopped-1-2")
    time.sleep(SECONDS / 2)
    for number in (1, 2):
        os.kill(pids[number], signal.SIGSTOP)
    ended("stopped-1-2", job, pids, time.monotonic(), STALLED,
          ["nothing is heard from ranks 1-2 ",
           *(rf"rank {r} on \S+: silent for [\d.]+ s, last .*\bstep \d" for r in (1, 2))])


def stop_rank_0_after_another():
    """Only rank 0 hears all, and what it had told before is passed on."""
    job, pids = started("stopped-2-0", f"watchdog.seconds={2 * SECONDS}")
    time.sleep(SECONDS / 2)
    os.kill(pids[2], signal.SIGSTOP)
    time.sleep(1.5 * SECONDS)
    os.kill(pids[0], signal.SIGSTOP)
    ended("stopped-2-0", job, pids, time.monotonic(), STALLED,
          [r"nothing is heard from rank 0 ", r"rank 2: rank 0's last word was that it had been silent for [\d.]+ s",
           "more of them may be silent"], 2 * SECONDS)


def stop_rank_0_and_another():
    job, pids = started("stopped-0-2")
    for number in (0, 2):
        os.kill(pids[number], signal.SIGSTOP)
    ended("stopped-0-2", job, pids, time.monotonic(), STALLED,
          [r"nothing is heard from rank 0 ", "more of them may be silent"])


def stop_command(name, limit, sign, *arguments):
    job, pids = at_work(name, sign, *arguments)
    time.sleep(SECONDS / 2)
    os.kill(pids[2], signal.SIGSTOP)
    ended(name, job, pids, time.monotonic(), STALLED, ["nothing is heard from rank 2 ", "rank 2 on .*: silent for"],
          limit)


def hang():
    job = Job(RANKS, *ARGUMENTS, "debug.fault=hang")
    job.wait_until(lambda: len(job.rank_pids()) == RANKS and "\nstep 2/" in job.output())
    ended("stuck", job, job.rank_pids(), time.monotonic(), STALLED,
          [r"no rank has moved for 3 s .*; rank 3 is behind", r"rank 3 on \S+: alive, outside of collectives .*, step 3",
           r"ranks 0-2: in collective"])


def suspend_all():
    job, pids = started("suspended")
    for what in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            os.kill(pid, what)
        time.sleep(2 * SECONDS)
    checks.expect(job.running() and "watchdog" not in job.output(), "suspended: it did not go on", job.output())
    job.end()


def kill_one():
    job, pids = started("killed")
    os.kill(pids[1], signal.SIGKILL)
    output = ended("killed", job, pids, time.monotonic(), job.wait(60), [r"signal 9|Killed|KILLED"])
    checks.expect("watchdog" not in output, "killed: the watchdog speaks", output)


result = run(2, *ARGUMENTS, "checkpoint.dir=tiny")
checks.expect(result.code == 0, f"tiny: exit {result.code}", result.output)
ENDLESS = ["sample.tokens=1000000", "sample.temperature=0", "sample.prompt=abc"]
LAYOUTS = [(3, "mesh.pp=2"), (1, "mesh.tp=2"), (3, "mesh.zero=1"), (2, "mesh.pp=2 mesh.tp=2 mesh.zero=1")]
at_once([
    suspend_all, stop_rank_0_after_another, lambda: stop_one(2), lambda: stop_one(0), stop_two, stop_rank_0_and_another,
    *(functools.partial(stop_rank, number, [rf"nothing is heard from rank {number} "], *layout.split())
      for number, layout in LAYOUTS),
    lambda: stop_command("sample", SECONDS, "abc", "sample", RUN, "checkpoint.dir=tiny", f"watchdog.seconds={SECONDS}",
                         *ENDLESS),
    lambda: stop_command("probe", 2 * SECONDS, "budget", "probe", "--budget", "1h", "--threads", "1", "--watchdog",
                         2 * SECONDS),
    hang, kill_one])

result = run(RANKS, *ARGUMENTS, "train.val_batches=4", "checkpoint.dir=ordinary", "checkpoint.every=4")
print(f"ordinary: code {result.code}, {result.seconds:.1f} s", flush=True)
checks.expect(result.code == 0 and not re.search("watchdog|warning: the", result.output),
              f"ordinary: exit {result.code}", result.output)
result = run(RANKS, "verify", RUN, "mesh.ep=2", f"watchdog.seconds={SECONDS}")
checks.expect(result.code == 0 and "watchdog" not in result.output, f"verify: exit {result.code}", result.output)
result = run(RANKS, *ARGUMENTS, "debug.fault=nan_gradient")
checks.expect(result.code == 7 and "watchdog" not in result.output, f"an error: exit {result.code}", result.output)
result = run(2, *ARGUMENTS, "watchdog.seconds=0")
checks.expect(result.code == 0, f"off: exit {result.code}", result.output)

# Rank 0 cannot open a connection for each rank: the run goes on, with a word.
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
result = run(2, *ARGUMENTS)
checks.expect(result.code == 0 and result.output.count("warning: the watchdog is off: 2 ranks need") == 1,
              f"few files: exit {result.code}", result.output)
checks.finish()
