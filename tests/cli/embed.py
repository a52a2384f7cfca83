"""The installed library: examples/embed is built against a new prefix, learns, and saves a checkpoint that the program
reads. The program's own component brings no library."""

import json
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import BIN, SOURCE, Checks, run  # noqa: E402

checks = Checks()
BUILD = pathlib.Path(BIN).parent


def step(*command):
    """Runs a command of the build; its failure ends the test."""
    result = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    output = result.stdout + result.stderr
    if not checks.expect(result.returncode == 0, f"{' '.join(map(str, command))}: exit {result.returncode}", output):
        checks.finish()
    return output


if not checks.expect((BUILD / "libmoewright.a").exists(), "the library is built: cmake --build --target moewright_library"):
    checks.finish()

step("cmake", "--install", BUILD, "--prefix", "program", "--component", "program")
installed = {str(path.relative_to("program")) for path in pathlib.Path("program").rglob("*") if path.is_file()}
checks.expect("bin/moewright" in installed and not [path for path in installed if path.endswith((".a", ".h", ".cmake"))],
              "the component `program` is the program without the library", "\n".join(sorted(installed)))

step("cmake", "--install", BUILD, "--prefix", "prefix", "--component", "library")
include = pathlib.Path("prefix/include")
checks.expect([path.name for path in include.iterdir()] == ["moewright"], "include has the folder moewright alone")
unprefixed = [f"{path}: {line}" for path in include.rglob("*.h") for line in path.read_text().splitlines()
              if line.startswith('#include "') and not line.startswith('#include "moewright/')]
checks.expect(not unprefixed, "headers include headers of moewright/", "\n".join(unprefixed))
pathlib.Path("prefix").rename("moved")  # a package can be moved
step("cmake", "-S", SOURCE / "examples/embed", "-B", "build", f"-DCMAKE_PREFIX_PATH={pathlib.Path('moved').resolve()}",
     "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror")
step("cmake", "--build", "build")

pathlib.Path("text").mkdir()
pathlib.Path("text/a.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 400)
result = run(1, "text", "train.steps=8", "train.threads=1", program="build/embed")
losses = [float(loss) for loss in re.findall(r"loss (\S+)", result.output)]
checks.expect(result.code == 0 and len(losses) == 8 and losses[-1] < losses[0] - 0.5, "the example learns", result.output)
pathlib.Path("run.toml").write_text((SOURCE / "examples/embed/main.cpp").read_text().split('R"(')[1].split(')"')[0])
trained = run(1, "train", "run.toml", "data.path=text", "train.steps=8", "train.threads=1", "checkpoint.dir=",
              "log.jsonl=metrics.jsonl")
lines = [json.loads(line) for line in pathlib.Path("metrics.jsonl").read_text().splitlines()]
expected = [f"{line['loss']:.4f}" for line in lines if "loss" in line]
checks.expect(trained.code == 0 and expected == [f"{loss:.4f}" for loss in losses], "losses are those of `train`", str(expected))

inspected = run(1, "inspect", "embed-run")
checks.expect(inspected.code == 0 and "step-00000008" in inspected.output, "moewright reads its checkpoint", inspected.output)
refused = run(1, "text", "train.stepz=8", program="build/embed")
checks.expect(refused.code == 3 and "train.steps" in refused.output, "a wrong key is refused", refused.output)
checks.finish()
