"""Packages of PyPI that some tests compare with, in a Python environment of the build's own."""

import fcntl
import os
import pathlib
import subprocess
import sys

from _jobs import PROGRAMS, skip

# sentencepiece is of the release that Debian 12 has: among pieces of equal score others choose otherwise.
VERSIONS = {"tokenizers": "0.23.3", "sentencepiece": "0.1.97", "tensorboard": "2.21.0"}


def require(*names):
    """Goes on in an interpreter that has these packages. The test is skipped where they cannot be installed."""
    home = pathlib.Path(PROGRAMS, "python-" + "-".join(names)).resolve()
    if pathlib.Path(sys.prefix) == home:
        return
    with open(f"{home}.lock", "w") as lock:  # tests run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "complete").exists():
            install(home, [f"{name}=={VERSIONS[name]}" for name in names])
            (home / "complete").touch()
    python = str(home / "bin" / "python")
    os.execv(python, [python, *sys.argv])


def install(home, packages):
    for command in ([sys.executable, "-m", "venv", "--clear", home],
                    [home / "bin" / "python", "-m", "pip", "install", "--quiet", *packages]):
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            skip(f"cannot install {' '.join(packages)}: {(result.stderr or result.stdout).strip()[-300:]}")
