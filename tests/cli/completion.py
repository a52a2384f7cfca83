"""Completion scripts and the manual page: shells take them, a bash completes with them, groff has no warning, and they name
every command and option."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import BIN, Checks, run  # noqa: E402

checks = Checks()


def printed(*arguments):
    return subprocess.run([BIN, *arguments], capture_output=True, text=True, check=True).stdout


COMMANDS = re.findall(r"^  ([a-z]+) +\S", printed("--help").split("ubcommands:")[1], re.M)
OPTIONS = {command: set(re.findall(r"(?<![\w-])--[a-z-]+", printed(command, "--help").partition("Examples:")[0])) for command in COMMANDS}

scripts = {shell: printed("completion", shell) for shell in ("bash", "zsh", "fish")}
for shell, script in scripts.items():
    pathlib.Path(shell).write_text(script)
    if shutil.which(shell):
        result = subprocess.run([shell, "-n", shell], capture_output=True, text=True)
        checks.expect(result.returncode == 0 and not result.stderr, f"{shell} reads its script", result.stderr)
    for command in COMMANDS:
        checks.expect(re.search(rf"\b{command}\b", script), f"{shell}: no command {command}")


def completed(*words):
    """What a bash with the script offers for the last word."""
    code = f"source ./bash; COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}; " \
           "compopt() { echo \"compopt $*\"; }; _moewright; printf '%s\\n' \"${COMPREPLY[@]}\""
    result = subprocess.run(["bash", "-c", code], capture_output=True, text=True)
    checks.expect(result.returncode == 0 and not result.stderr, f"completion of {words}", result.stderr)
    return set(result.stdout.split())


def completes(words, expected):
    got = completed(*words)
    checks.expect(got == expected, f"completion of {words}: {sorted(got)}, expected {sorted(expected)}")


completes(["moewright", ""], {*COMMANDS, "help", "--help", "--version"})
completes(["moewright", "tra"], {"train"})
completes(["moewright", "help", "pl"], {"plan"})
completes(["moewright", "train", "run.toml", "--dry"], {"--dry-run"})
completes(["moewright", "export", "a", "b", "--dtype", "b"], {"bf16"})
completes(["moewright", "completion", ""], {"bash", "zsh", "fish", "--help"})
completes(["moewright", "train", "run.toml", "train.warm"], {"train.warmup=", "compopt", "-o", "nospace"})
completes(["moewright", "train", "run.toml", "train.dtype", "="], {"bf16", "fp32"})
completes(["moewright", "train", "run.toml", "train.dtype", "=", "fp"], {"fp32"})
completes(["moewright", "train", "run.toml", "train.lr", "=", ""], set())
completes(["moewright", "plan", "--emit", ""], set())  # bash then offers file names
for command in COMMANDS:
    completes(["moewright", command, "--"], OPTIONS[command])

manual = printed("manual")
for command in COMMANDS:
    section = manual.partition(f".SS {command}\n")[2].partition(".SS ")[0].replace("\\-", "-")
    missing = [option for option in OPTIONS[command] - {"--help"} if f"\\fB{option}\\fR" not in section]
    checks.expect(section and not missing, f"manual of {command} lacks {missing}")
if shutil.which("groff"):
    result = subprocess.run(["groff", "-man", "-ww", "-z", "-Tutf8"], input=manual, capture_output=True, text=True)
    checks.expect(result.returncode == 0 and not result.stderr, "groff has no warning", result.stderr)

refused = run(1, "completion", "tcsh")
checks.expect(refused.code == 2 and "fish" in refused.output, "an unknown shell is refused", refused.output)

installed = subprocess.run(["cmake", "--install", pathlib.Path(BIN).parent, "--prefix", "prefix", "--component", "program"],
                           capture_output=True, text=True)
checks.expect(installed.returncode == 0, "cmake --install", installed.stderr)
for path, text in {"bash-completion/completions/moewright": scripts["bash"], "zsh/site-functions/_moewright": scripts["zsh"],
                   "fish/vendor_completions.d/moewright.fish": scripts["fish"], "man/man1/moewright.1": manual}.items():
    file = pathlib.Path("prefix/share") / path
    checks.expect(file.is_file() and file.read_text() == text, f"share/{path} is installed")
checks.finish()
