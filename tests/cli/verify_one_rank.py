"""`verify` on one rank says that it compares the process with itself, and how to start more."""

import os
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import SOURCE, Checks, run  # noqa: E402

checks = Checks()
RUN = SOURCE / "examples/verify.toml"
SAYS = f"warning: one rank alone is compared with itself, but for settings of one process such as memory.recompute; " \
       f"start more ranks, for example: mpirun -np 2 moewright verify {RUN} mesh.ep=2"
for ranks in (1, 2):
    result = run(ranks, "verify", RUN, f"mesh.ep={ranks}")
    checks.expect(result.code == 0 and "verify: passed" in result.output, f"{ranks} ranks: exit {result.code}", result.output)
    checks.expect((SAYS in result.output) == (ranks == 1), f"{ranks} ranks: the warning", result.output)
checks.finish()
