"""Every command of README.md and docs/quickstart.md, typed literally into a bare Debian 12, in the order of the documents.

Left out are code blocks that a comment marks: <!-- needs: gpu -->, <!-- needs: slurm -->, <!-- needs: download -->. It takes
20 minutes and more, root rights, debootstrap and Debian's mirrors, so it runs only with MOEWRIGHT_BARE_ROOT=1. The
compiler cache of this machine is lent to the new root, if there is one.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import SOURCE, Checks, skip  # noqa: E402

if os.environ.get("MOEWRIGHT_BARE_ROOT") != "1":
    skip("MOEWRIGHT_BARE_ROOT=1 runs it")
if os.geteuid() != 0:
    skip("needs root")
if shutil.which("debootstrap") is None:
    skip("no debootstrap")

if os.environ.get("MOEWRIGHT_OWN_MOUNTS") != "1":  # what is mounted below ends with this process, however it ends
    os.environ["MOEWRIGHT_OWN_MOUNTS"] = "1"
    os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, __file__])

checks = Checks()
ROOT = pathlib.Path("root").resolve()
CLONE = "/opt/moewright"
MARK = re.compile(r"<!-- needs: (gpu|slurm|download) -->")
BLOCK = re.compile(r"(?:^(?P<mark><!--[^\n]*-->)\n)?^```sh\n(?P<code>.*?)^```", re.M | re.S)


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


def blocks(document):
    """Code blocks that are not marked; an unknown mark is an error of the document."""
    for found in BLOCK.finditer((SOURCE / document).read_text()):
        mark = found.group("mark") or ""
        if not MARK.fullmatch(mark):
            checks.expect("needs:" not in mark, f"{document}: unknown mark {mark}")
            yield found.group("code")


def script_of(document):
    """All blocks of a document in one shell, as a reader has it; ends at the first command that fails."""
    lines = ["set -e", f"cd {CLONE}"]
    for code in blocks(document):
        # One echo per command, which may stand on several lines.
        for command in re.split(r"(?<!\\)\n", code.strip()):
            shown = re.sub(r"\s+", " ", command.replace("\\\n", " ")).replace("'", "'\\''")
            lines += [f"echo '+ {shown}'", command]
    return "\n".join(lines) + "\n"


def run_document(document):
    log = pathlib.Path(document.replace("/", "-") + ".log")
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TERM": "dumb"}
    with open(log, "wb") as out:
        code = subprocess.run(["chroot", ROOT, "/bin/bash", "-c", script_of(document)], env=environment, stdout=out,
                              stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False).returncode
    text = log.read_text(errors="replace")
    commands = [line for line in text.splitlines() if line.startswith("+ ")]
    print(f"{document}: {len(commands)} commands", flush=True)
    checks.expect(code == 0 and commands, f"{document}: exit {code} after `{commands[-1] if commands else ''}`", text)
    return text


subprocess.run(["debootstrap", "--variant=minbase", "bookworm", ROOT, mirror()], check=True, stdout=subprocess.DEVNULL)
shutil.copy("/etc/resolv.conf", ROOT / "etc/resolv.conf")
subprocess.run(["mount", "-t", "proc", "proc", ROOT / "proc"], check=True)
bound("/dev", "dev")
cache = subprocess.run(["ccache", "-k", "cache_dir"], capture_output=True, text=True, check=False).stdout.strip()
if cache and pathlib.Path(cache).is_dir():
    bound(cache, "root/.cache/ccache")
files = subprocess.run(["git", "ls-files", "-z"], cwd=SOURCE, capture_output=True, check=True).stdout
copied = subprocess.run(["tar", "--null", "-T", "-", "-cf", "-"], cwd=SOURCE, input=files, capture_output=True, check=True)
(ROOT / CLONE[1:]).mkdir(parents=True)
subprocess.run(["tar", "-xf", "-", "-C", ROOT / CLONE[1:]], input=copied.stdout, check=True)

readme = run_document("README.md")
for word in ("installed /usr/local/bin/moewright", "bits per byte", "order-2 byte counts"):
    checks.expect(word in readme, f"README.md: no \"{word}\" in what its commands print")
demo = readme.partition("+ make demo")[2].partition("\n+ ")[0]
# Another process on this machine is no fault of the demo.
demo = re.sub(r"^warning: other processes use .*\n(?:    .*\n)*", "", demo, flags=re.M)
checks.expect("warning" not in demo, "the demo prints a warning", demo)
run_document("docs/quickstart.md")
for path in ("runs/text/report.html", "runs/mine/report.html", "runs/mine/step-00000100/DONE", "my-model/model.safetensors",
             "best.svg", "zb_v.svg"):
    checks.expect((ROOT / CLONE[1:] / path).exists(), f"no {path}")
checks.finish()
