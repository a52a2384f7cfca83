"""`moewright schedule`: the picture, its numbers, a well-formed SVG, and errors that say what would work."""

import os
import pathlib
import sys
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, run  # noqa: E402

checks = Checks()


def expect(code, texts, *arguments):
    result = run(1, "schedule", *arguments)
    for text in texts:
        checks.expect(result.code == code and text in result.output,
                      f"schedule {' '.join(arguments)}: exit {result.code}, expected {code} and {text!r}",
                      result.output)
    return result.output


expect(0, ["rank 3  | .  .  .  F0 B0 -- F1", "0     0       4          24        27.3 %"], "1f1b")
expect(0, ["zb_v, 2 ranks x 2 stages, 4 micro-batches", "wrote v.svg"],
       "zb_v", "--ranks", "2", "--micro-batches", "4", "--svg", "v.svg")
expect(0, ["forward 2, backward 3 + 1.5, message 0.25"], "zb_h1", "--costs", "2,3,1.5", "--latency", "0.25")
expect(0, ["interleaved, 3 ranks x 4 stages"], "interleaved", "--ranks", "3", "--chunks", "4")
root = xml.etree.ElementTree.parse("v.svg").getroot()
checks.expect(root.tag.endswith("svg") and len(root) > 50, f"v.svg: {root.tag} with {len(root)} elements", "")

expect(3, ["did you mean \"zb_v\"?", "hint:"], "zbv")
expect(3, ["mesh.schedule = \"gpipe\" has 1 stage per rank, got 2", "hint:"], "gpipe", "--chunks", "2")
expect(3, ["got 0, 1 and", "hint:"], "gpipe", "--ranks", "0")
expect(2, ["--costs"], "gpipe", "--costs", "1,1")
expect(2, ["expected a forward cost above 0", "hint:"], "gpipe", "--costs", "0,1,1")
expect(2, ["expected 0 to 1e9, got nan", "hint:"], "gpipe", "--costs", "1,nan,1")
expect(2, ["exceed the 100000 cells that a picture can show", "hint:"], "gpipe", "--micro-batches", "1000000")
told = expect(4, ["cannot create the folder /dev/null for /dev/null/x.svg: ", "hint:"], "gpipe", "--svg", "/dev/null/x.svg")
checks.expect("rank 0" not in told, "an SVG that cannot be written was refused after the drawing", told)
expect(0, ["wrote v.svg"], "gpipe", "--svg", "v.svg")
pathlib.Path("run.toml").write_text("[train]\n")
expect(2, ["run.toml exists and is no picture", "--svg FILE.svg"], "gpipe", "--svg", "run.toml")
checks.expect(pathlib.Path("run.toml").read_text() == "[train]\n", "--svg changed a run file", "")
checks.expect(not pathlib.Path("absent").exists(), "a folder was made", "")
checks.finish()
