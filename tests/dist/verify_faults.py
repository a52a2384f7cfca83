"""Every test-only fault makes `verify` exit 1 and name what is wrong."""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, SOURCE, run  # noqa: E402

FAULTS = {  # fault: lines of which at least one must be judged FAIL
    "double_expert_gradient": r"grad layers\.\d+\.moe\.w_up\[\d+\] ",
    "skip_router_sum": r"grad layers\.\d+\.moe\.router ",
    "drop_row": r"grad layers\.\d+\.\S+ ",
    "local_aux_counts": r"(aux_loss|grad layers\.\d+\.moe\.router) ",
    "wrong_denominator": r"grad \S+ ",
    "nan_gradient": r"grad \S+ ",
}

checks = Checks()
for fault, line in FAULTS.items():
    layouts = ["", "mesh.zero=1", "mesh.tp=2", "mesh.tp=2 moe.tp_mode=ted", "mesh.pp=2"]
    if fault == "drop_row":
        layouts = ["", "mesh.placement=dp_first moe.transport=padded moe.row_chunks=3", "memory.recompute=full", "mesh.pp=2"]
    for extra in map(str.split, layouts):
        result = run(4, "verify", SOURCE / "examples" / "verify.toml", "mesh.ep=2", "verify.steps=1",
                     f"debug.fault={fault}", *extra)
        named = [text for text in result.output.splitlines() if "FAIL: tolerance" in text]
        print(f"{result.seconds:5.1f} s  {fault}: {named[0].strip() if named else 'nothing named'}", flush=True)
        checks.expect(result.code == 1, f"{fault} {extra}: exit {result.code}, expected 1", result.output)
        checks.expect(any(re.search(line, text) for text in named), f"{fault} {extra}: no failed line matches {line}",
                      result.output)
        checks.expect("verify: FAILED" in result.output, f"{fault} {extra}: no verdict", result.output)
checks.finish()
