"""`verify` on one rank says that it compares the process with itself, and how to start more; and which tolerances it does
not use."""

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
for dtype, idle in (("bf16", True), ("fp32", False)):
    result = run(2, "verify", RUN, "mesh.ep=2", f"train.dtype={dtype}", "verify.tolerance=1e-4")
    said = result.output.count("warning: verify.tolerance = 0.0001 has no effect: it needs train.dtype = \"fp32\"")
    checks.expect(result.code == 0 and said == int(idle), f"{dtype}: exit {result.code}, told {said} times", result.output)
checks.finish()
