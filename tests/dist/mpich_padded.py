"""The padded exchange, and a fault that `verify` must report with exit code 1 through this mpirun."""

import os
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, SOURCE, run  # noqa: E402

checks = Checks()
for overrides, code in [("mesh.ep=4", 0), ("mesh.ep=2 moe.capacity_factor=1.0", 0),
                        ("mesh.ep=2 debug.fault=drop_row", 1)]:
    result = run(4, "verify", SOURCE / "examples" / "verify.toml", "verify.steps=1", "moe.transport=padded",
                 *overrides.split())
    print(f"{result.seconds:5.1f} s  {overrides}", flush=True)
    checks.expect(result.code == code, f"{overrides}: exit {result.code}, expected {code}", result.output)
    verdict = f"verify: {'FAILED' if code else 'passed'}"
    checks.expect(verdict in result.output, f"{overrides}: no \"{verdict}\"", result.output)
checks.finish()
