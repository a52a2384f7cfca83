"""Uneven exchanges over MPI: several at once, between more ranks than a rank sends to at a time; and one whose counts
disagree, which ends with an error that names the sender, not in a hang."""

import os
import pathlib
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, PROGRAMS, run  # noqa: E402

PROGRAM = str(pathlib.Path(PROGRAMS) / "dist_exchange_run")
checks = Checks()
for ranks in (1, 2, 5, 20):
    result = run(ranks, program=PROGRAM)
    checks.expect(result.code == 0 and f"{ranks} ranks: right" in result.output, f"{ranks} ranks: exit {result.code}", result.output)
result = run(3, "wrong", program=PROGRAM, timeout=60)
# MPICH may then abort ranks whose messages are lost, each with a code of its own.
checks.expect(result.code != 0 and "member 1 of the group sent more rows than" in result.output, f"a row too many: exit {result.code}", result.output)
checks.finish()
