"""A layout over the uneven exchange, both placements. CI runs the mpich_* scripts with a build for MPICH."""

import os
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, SOURCE, run  # noqa: E402

checks = Checks()
for ranks, overrides in [(2, "mesh.ep=2"), (4, "mesh.ep=2 mesh.placement=dp_first moe.row_chunks=3"),
                         (4, "mesh.ep=4 model.experts=10 moe.forced_load=one_expert")]:
    result = run(ranks, "verify", SOURCE / "examples" / "verify.toml", "verify.steps=1", *overrides.split())
    print(f"{result.seconds:5.1f} s  -np {ranks} {overrides}", flush=True)
    checks.expect(result.code == 0 and "verify: passed" in result.output,
                  f"-np {ranks} {overrides}: exit {result.code}", result.output)
checks.finish()
