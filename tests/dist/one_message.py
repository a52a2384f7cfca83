"""A mistake that hits every rank is told once: the first rank speaks, and ends the others before they do."""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, run, write_corpus, write_run_file  # noqa: E402

checks = Checks()
write_corpus("text", files=2)
RUN = write_run_file()
for label, code, overrides in [
    ("a key that is not known", 3, ["mesh.ppp=2"]),
    ("a value out of range", 3, ["mesh.zero=3"]),
    ("before training", 4, ["data.path=absent"]),
    ("while it catches signals", 7, ["debug.fault=nan_gradient"]),
]:
    result = run(4, "train", RUN, "mesh.ep=2", *overrides)
    told = re.findall(r"error: .*", result.output)
    checks.expect(result.code == code and len(told) == 1, f"{label}: exit {result.code}, told {len(told)} times",
                  result.output)
checks.finish()
