"""Schedules on several ranks. With stages of fixed cost: actions run in the planned order, live micro-batches are those
of the proof, and the bubble is that of theory. In training: actions, layers and live micro-batches are the plan's."""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, PROGRAMS, SOURCE, run  # noqa: E402

os.environ["OMPI_MCA_mpi_yield_when_idle"] = "1"  # a rank that waits leaves its core to those that wake up
SCHEDULE_RUN, STEP_RECORD = f"{PROGRAMS}/dist_schedule_run", f"{PROGRAMS}/dist_step_record"
UNIT_MS = 40  # of a forward, and of either half of a backward
ALL_KINDS, CHUNKS = ["gpipe", "1f1b", "interleaved", "zb_h1", "zb_v"], {"interleaved": 2, "zb_v": 2}
checks = Checks()

# The closed forms of the zero-bubble kinds want two micro-batches a rank and more.
for ranks, micro_batches, kinds in [(2, 4, ALL_KINDS), (4, 8, ALL_KINDS), (8, 8, ["1f1b", "interleaved"])]:
    for kind in kinds:
        result = run(ranks, UNIT_MS, micro_batches, kind, CHUNKS.get(kind, 1), program=SCHEDULE_RUN)
        checks.expect(result.code == 0 and "measured within" in result.output,
                      f"{kind}, {ranks} ranks: exit {result.code}", result.output)
        print(f"{result.seconds:5.1f} s  {result.output.strip().splitlines()[-1:]}", flush=True)

# Messages of 1 to 16 MiB, which no library sends before they are received.
for kind in ("1f1b", "interleaved", "zb_v"):
    result = run(4, 1, 10, kind, CHUNKS.get(kind, 1), "large", program=SCHEDULE_RUN)
    checks.expect(result.code == 0 and "large messages, as planned" in result.output,
                  f"{kind}, large: exit {result.code}", result.output)
    print(f"{result.seconds:5.1f} s  {result.output.strip().splitlines()[-1:]}", flush=True)

# Two actions that change places do show.
result = run(2, 1, 4, "1f1b", 1, "permuted", program=SCHEDULE_RUN)
checks.expect(result.code != 0 and re.search(r"rank 0, action \d+: planned reduce_statistics of micro-batch 0 in stage "
                                             r"0, ran send_activation", result.output),
              f"permuted: exit {result.code}", result.output)

# An error in one stage ends all, whatever messages are under way.
for kind in ALL_KINDS:
    result = run(4, 5, 8, kind, CHUNKS.get(kind, 1), "failing", program=SCHEDULE_RUN, timeout=30)
    told = re.findall(r"^error: .*", result.output, re.M)
    checks.expect(result.code not in (0, -999) and told == ["error: a stage that fails on purpose"],
                  f"{kind}, failing: exit {result.code}, told {told}", result.output)

for ranks, overrides in [
    (1, "train.micro_batches=8"),
    (1, "mesh.schedule=gpipe"),
    (1, "mesh.schedule=interleaved mesh.chunks=3"),
    (2, "mesh.pp=2 mesh.schedule=gpipe train.micro_batches=8"),
    (2, "mesh.pp=2 mesh.stage_layers=3,5 moe.aux_scope=model"),
    (2, "mesh.pp=2 mesh.schedule=interleaved mesh.chunks=4"),
    (4, "mesh.pp=4 train.micro_batches=8"),
    (4, "mesh.pp=4 mesh.schedule=gpipe train.micro_batches=2"),
    (4, "mesh.pp=4 mesh.schedule=interleaved train.micro_batches=8"),
    (8, "mesh.pp=4 mesh.ep=2 mesh.zero=1 mesh.schedule=interleaved"),
    (1, "mesh.schedule=zb_v"),
    (2, "mesh.pp=2 mesh.schedule=zb_h1 train.micro_batches=8"),
    (4, "mesh.pp=4 mesh.schedule=zb_h1 moe.aux_scope=model"),
    (4, "mesh.pp=4 mesh.schedule=zb_v train.micro_batches=2"),
    (8, "mesh.pp=4 mesh.ep=2 mesh.schedule=zb_v train.micro_batches=8 memory.recompute=moe"),
]:
    result = run(ranks, SOURCE / "examples" / "verify.toml", "train.device=cpu", *overrides.split(),
                 program=STEP_RECORD)
    checks.expect(result.code == 0 and "as planned" in result.output, f"-np {ranks} {overrides}: exit {result.code}",
                  result.output)
    print(f"{result.seconds:5.1f} s  -np {ranks} {overrides}", flush=True)
checks.finish()
