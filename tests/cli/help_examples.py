"""`--help` of every command ends with examples, whose command and options exist; that of `init` names all presets."""

import os
import re
import shlex
import subprocess
import sys

BIN = os.environ["MOEWRIGHT_BIN"]
failures = 0


def help_of(*command):
    return subprocess.run([BIN, *command, "--help"], capture_output=True, text=True, check=True).stdout


def expect(condition, message):
    global failures
    if not condition:
        failures += 1
        print(f"FAIL: {message}")


commands = re.findall(r"^  ([a-z]+) +\S", help_of().split("ubcommands:")[1], re.M)
expect(len(commands) >= 15, f"commands {commands}")
for command in commands:
    text = help_of(command)
    examples = [line.strip() for line in text.partition("Examples:\n")[2].splitlines() if line.strip()]
    expect(examples, f"{command}: no examples")
    for example in examples:
        expect(len(example) <= 118 and f"moewright {command} " in example, f"{command}: {example}")
        for option in (word for word in shlex.split(example.split(f"moewright {command} ")[-1].split(";")[0]) if word.startswith("-")):
            expect(re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text.partition("Examples:")[0]), f"{command}: no option {option}")
for preset in ("mixtral-8x7b", "qwen3-30b-a3b", "qwen3-235b-a22b", "olmoe-1b-7b", "deepseek-v2-lite", "deepseek-v3", "kimi-k2", "x-moe-super"):
    expect(preset in help_of("init"), f"init --help does not name {preset}")
sys.exit(1 if failures else 0)
