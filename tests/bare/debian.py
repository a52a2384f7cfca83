"""Every command of README.md and docs/quickstart.md, typed literally into a bare Debian 12, in the order of the documents.

Left out are code blocks that a comment marks: <!-- needs: gpu -->, <!-- needs: slurm -->, <!-- needs: download -->. It takes
20 minutes and more. The compiler cache of this machine is lent to the new root, if there is one.
"""

import pathlib
import re
import subprocess

from _root import ROOT, bound, make_root, run_in_root
from _jobs import SOURCE, Checks

checks = Checks()
CLONE = "/opt/moewright"
MARK = re.compile(r"<!-- needs: (gpu|slurm|download) -->")
BLOCK = re.compile(r"(?:^(?P<mark><!--[^\n]*-->)\n)?^```sh\n(?P<code>.*?)^```", re.M | re.S)


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
    code, text = run_in_root(script_of(document), document.replace("/", "-") + ".log")
    commands = [line for line in text.splitlines() if line.startswith("+ ")]
    print(f"{document}: {len(commands)} commands", flush=True)
    checks.expect(code == 0 and commands, f"{document}: exit {code} after `{commands[-1] if commands else ''}`", text)
    return text


make_root()
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
