"""Packages of PyPI that some tests compare with, in Python environments of their own."""

import fcntl
import os
import pathlib
import subprocess
import sys

from _jobs import PROGRAMS, skip

# sentencepiece is of the release that Debian 12 has: among pieces of equal score others choose otherwise.
VERSIONS = {"tokenizers": "0.23.3", "sentencepiece": "0.1.97", "tensorboard": "2.21.0", "safetensors": "0.8.0",
            "torch": "2.15.0", "transformers": "5.17.0"}
# PyPI has PyTorch for x86 with CUDA only: 3 GB to fetch, 6 GB on disk.
LARGE = {"torch"}


def require(*names):
    """Goes on in an interpreter that has these packages. The test is skipped where they cannot be installed, and where
    large ones are not wanted."""
    home = home_of(names)
    if pathlib.Path(sys.prefix) == home:
        return
    if LARGE & set(names) and not (home / "complete").exists() and not wants_large():
        skip(f"MOEWRIGHT_LARGE_TESTS=1 installs what it needs: {', '.join(names)}, several GB in {home}")
    once(home, lambda: create(home, names))
    python = str(home / "bin" / "python")
    os.execv(python, [python, *sys.argv])


def folder_with(*requirements):
    """A folder with packages of exactly these versions and without what they depend on, for PYTHONPATH."""
    home = pathlib.Path(sys.prefix, "beside-" + "-".join(requirements).replace("==", "-"))
    once(home, lambda: pip(sys.executable, "--target", home, "--no-deps", *requirements))
    return home


def wants_large():
    return os.environ.get("MOEWRIGHT_LARGE_TESTS") == "1"


def home_of(names):
    """Within the build; large environments outlive it."""
    name = "python-" + "-".join(names)
    if not LARGE & set(names):
        return pathlib.Path(PROGRAMS, name).resolve()
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "moewright")
    cache.mkdir(parents=True, exist_ok=True)
    return (cache / "-".join([name, *(VERSIONS[n] for n in names)])).resolve()


def once(home, install):
    """Tests run side by side: one installs, the others wait."""
    with open(f"{home}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "complete").exists():
            install()
            (home / "complete").touch()


def create(home, names):
    run(sys.executable, "-m", "venv", "--clear", home)
    pip(home / "bin" / "python", *(f"{name}=={VERSIONS[name]}" for name in names))


def pip(python, *arguments):
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", *arguments)


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        skip(f"{' '.join(map(str, command))}: {(result.stderr or result.stdout).strip()[-300:]}")
