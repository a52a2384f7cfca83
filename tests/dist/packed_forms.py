"""Ranks that pack bf16 weights in different ways refuse to gather them from each other, and only then."""

import os
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import BIN, Checks, SOURCE, run, skip  # noqa: E402

# The first rank computes as a CPU without AVX does.
OF_ONE_RANK = 'if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 0 ]; then export ONEDNN_MAX_CPU_ISA=SSE41; fi; exec "$0" "$@"'
REFUSAL = "the ranks of an EP group pack bf16 weights in different ways"

VERIFY = str(SOURCE / "examples" / "verify.toml")
if "oneDNN" not in run(1, "train", VERIFY, "model.vocab=256", f"data.path={SOURCE / 'README.md'}", "--dry-run").output:
    skip("no library that packs weights in ways of its own")
if " avx512f " not in open("/proc/cpuinfo", encoding="utf-8").read():
    skip("oneDNN packs weights with and without AVX in the same way here: it needs AVX-512 to do otherwise")
checks = Checks()
for overrides, refused in [("train.dtype=bf16 moe.transport=gather_weights", True),
                           ("train.dtype=fp32 moe.transport=gather_weights", False),
                           ("train.dtype=bf16 moe.transport=flat", False)]:
    result = run(2, "-c", OF_ONE_RANK, BIN, "verify", VERIFY, "mesh.ep=2", "verify.steps=1", "model.vocab=256",
                 *overrides.split(), program="sh")
    if refused:
        checks.expect(result.code == 3 and REFUSAL in result.output and "hint:" in result.output,
                      f"{overrides}: exit {result.code}", result.output)
    else:
        checks.expect(REFUSAL not in result.output and "step 1" in result.output, f"{overrides}: exit {result.code}",
                      result.output)
checks.finish()
