"""The Debian package in a bare Debian 12, installed by the last stage of the Containerfile: it trains, its operators for
every level of CPU compute the same losses, and it trains on an emulated CPU of 2008. `make package` makes the package."""

import re
import shutil
import signal
import subprocess

from _root import ROOT, make_root, run_in_root
from _jobs import SOURCE, Checks, skip

packages = sorted((SOURCE / "build/portable").glob("moewright_*.deb"))
if len(packages) != 1:
    skip(f"{len(packages)} packages in build/portable; make package makes one")

checks = Checks()
TRAIN = ("train /usr/share/moewright/examples/text.toml data.path=/usr/share/doc/moewright/docs model.width=64 model.layers=2 "
         "model.expert_width=64 train.seq_len=32 train.global_batch=4 train.steps=20 train.val_batches=1 log.every=1 "
         "log.jsonl= checkpoint.dir=")
LOADER = "/lib64/ld-linux-x86-64.so.2"


def losses_of(output):
    return [float(loss) for loss in re.findall(r"^step .*?\| loss ([\d.]+)", output, re.M)]


def same(found, expected):
    return len(found) == len(expected) == 20 and all(abs(a - b) < 1e-3 * b for a, b in zip(found, expected))


def emulated(*variables):
    """What a run prints on a Nehalem, which has SSE4.2 and no AVX. The program would start itself again, without the
    emulator."""
    settings = [word for variable in ("MOEWRIGHT_RESTARTED=1", *variables) for word in ("-E", variable)]
    command = ["qemu-x86_64", "-L", ROOT, "-cpu", "Nehalem", *settings, ROOT / "usr/bin/moewright", *TRAIN.split()]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


make_root()
shutil.copy(packages[0], ROOT / "tmp")
stage = (SOURCE / "Containerfile").read_text().rpartition("\nFROM ")[2]
steps = re.findall(r"^RUN (.*)$", stage, re.M)
code, text = run_in_root("set -e\n" + "\n".join(steps), "install.log")
checks.expect(steps and code == 0, f"the steps of the Containerfile: exit {code}", text)

code, text = run_in_root(f"moewright {TRAIN}", "train.log")
losses = losses_of(text)
checks.expect(code == 0 and len(losses) == 20 and losses[-1] < losses[0] - 0.2, f"training: exit {code}, {losses}", text)
code, text = run_in_root("mpirun --allow-run-as-root --oversubscribe -np 2 moewright " + TRAIN + " mesh.ep=2", "ranks.log")
checks.expect(code == 0 and same(losses_of(text), losses), f"two ranks: exit {code}, {losses_of(text)}", text)

help_text = subprocess.run(["chroot", ROOT, LOADER, "--help"], capture_output=True, text=True, check=True).stdout
levels = re.findall(r"(x86-64-v[34]) \(supported, searched\)", help_text)
for level in [*levels, "none"]:
    start = f"{LOADER} --glibc-hwcaps-mask {level}"
    code, text = run_in_root(f"{start} --list /usr/bin/moewright; {start} /usr/bin/moewright {TRAIN}", f"{level}.log")
    folder = "" if level == "none" else f"glibc-hwcaps/{level}/"
    checks.expect(f"/lib/moewright/{folder}libmoewright_cpu.so" in text, f"{level}: another library", text)
    checks.expect(code == 0 and same(losses_of(text), losses), f"{level}: exit {code}, {losses_of(text)}", text)

data = ROOT / "usr/share"  # the emulator looks for paths in the root first
checks.expect((data / "man/man1/moewright.1").exists() and (data / "doc/moewright/copyright").exists(), "no manual page")
if shutil.which("qemu-x86_64") is None:
    checks.expect(False, "no qemu-x86_64: tools/setup.sh --ci installs it")
else:
    run = emulated()
    checks.expect(run.returncode == 0 and same(losses_of(run.stdout), losses), f"emulated: exit {run.returncode}",
                  run.stdout + run.stderr)
    wrong = emulated("LD_LIBRARY_PATH=/usr/lib/moewright/glibc-hwcaps/x86-64-v3")
    checks.expect(wrong.returncode == -signal.SIGILL, f"operators for AVX2 on a CPU without: exit {wrong.returncode}",
                  wrong.stdout + wrong.stderr)
checks.finish()
