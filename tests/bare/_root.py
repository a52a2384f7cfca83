"""A bare Debian 12 in the folder root/, for scripts that need one. It takes root rights, debootstrap and Debian's mirrors,
so they run only with MOEWRIGHT_BARE_ROOT=1."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import skip  # noqa: E402

ROOT = pathlib.Path("root").resolve()


def mirror():
    """The mirror that this machine itself uses."""
    for path in [pathlib.Path("/etc/apt/sources.list"), *sorted(pathlib.Path("/etc/apt/sources.list.d").glob("*"))]:
        text = path.read_text() if path.is_file() else ""
        found = re.search(r"^URIs: *(\S+/debian)/?$", text, re.M) or re.search(r"^deb (?:\[.*\] )?(\S+/debian)/? ", text, re.M)
        if found:
            return found.group(1)
    skip("no Debian mirror in /etc/apt")


def bound(source, place):
    """Mounts a folder of this machine into the new root."""
    target = ROOT / place
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--bind", source, target], check=True)


def make_root():
    """Skips the script where there can be none. What is mounted ends with this process, however it ends."""
    if os.environ.get("MOEWRIGHT_BARE_ROOT") != "1":
        skip("MOEWRIGHT_BARE_ROOT=1 runs it")
    if os.geteuid() != 0:
        skip("needs root")
    if shutil.which("debootstrap") is None:
        skip("no debootstrap")
    if os.environ.get("MOEWRIGHT_OWN_MOUNTS") != "1":
        os.environ["MOEWRIGHT_OWN_MOUNTS"] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, sys.argv[0]])
    subprocess.run(["debootstrap", "--variant=minbase", "bookworm", ROOT, mirror()], check=True, stdout=subprocess.DEVNULL)
    shutil.copy("/etc/resolv.conf", ROOT / "etc/resolv.conf")
    subprocess.run(["mount", "-t", "proc", "proc", ROOT / "proc"], check=True)
    bound("/dev", "dev")


def run_in_root(script, log):
    """Runs a bash script in the root, stdout and stderr together into the file `log`. Returns (exit code, text)."""
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TERM": "dumb"}
    with open(log, "wb") as out:
        code = subprocess.run(["chroot", ROOT, "/bin/bash", "-c", script], env=environment, stdout=out,
                              stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False).returncode
    return code, pathlib.Path(log).read_text(errors="replace")
