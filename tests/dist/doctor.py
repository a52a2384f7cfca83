"""`moewright doctor` on 1 to 5 ranks: a table, a verdict, nothing left behind; a folder that cannot be written to is told."""

import os
import pathlib
import re
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
sys.dont_write_bytecode = True
from _jobs import Checks, run  # noqa: E402

checks = Checks()
pathlib.Path("folder").mkdir()
for ranks in (1, 2, 3, 5):
    result = run(ranks, "doctor", "--dir", "folder", "--threads", "1")
    rows = re.findall(r"^(\d+) +\S+ +[\d.]+ GFLOP/s +(\S+ ?\S*/s|-) +\S+ \S+/s +", result.output, re.M)
    checks.expect(len(rows) == ranks, f"{ranks} ranks: {len(rows)} rows", result.output)
    links = sum(link != "-" for _, link in rows)
    checks.expect(links == (0 if ranks == 1 else 1 if ranks == 2 else ranks), f"{ranks} ranks: {links} links", result.output)
    # On a busy machine a rank may stand out; the verdict and the exit code must agree all the same.
    fine = "no problem found" in result.output
    checks.expect(result.code == (0 if fine else 1) and fine != ("problem: " in result.output),
                  f"{ranks} ranks: exit {result.code}", result.output)
    checks.expect("wrong" not in result.output and "not shared" not in result.output, f"{ranks} ranks", result.output)
checks.expect(not list(pathlib.Path("folder").iterdir()), "files are left behind")
result = run(2, "doctor", "--dir", "absent")
checks.expect(result.code == 1 and result.output.count("problem: rank") >= 2 and "absent/moewright-doctor-1" in result.output,
              f"a missing folder: exit {result.code}", result.output)
result = run(1, "doctor", "--threads", "-1")
checks.expect(result.code == 2, f"--threads -1: exit {result.code}", result.output)
checks.finish()
