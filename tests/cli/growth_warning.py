"""The warning that rows took more memory than foreseen says which rows, and which rule had foreseen them."""

import os
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, run, write_corpus, write_run_file  # noqa: E402

checks = Checks()
write_corpus("text", files=2)
result = run(1, "train", write_run_file(), "train.steps=1", "moe.transport=padded", "moe.row_headroom=1")
checks.expect(result.code == 0, f"exit {result.code}", result.output)
checks.expect("padded to those of the fullest expert, exceeded moe.row_headroom = 1" in result.output,
              "the warning does not name padding", result.output)
checks.finish()
