"""Every error tells how to fix it: each call of fail() has a message and a hint, in words that a user knows."""

import os
import pathlib
import re
import sys

SOURCE = pathlib.Path(os.environ["MOEWRIGHT_SOURCE"])
sys.path.insert(0, str(SOURCE / "tests" / "support"))
from _jobs import Checks  # noqa: E402

# A caller adds the hint, or the reason that a library or the system gives is all that is known.
WITHOUT_HINT = {"src/train/checkpoint/checkpoint_reader.cpp", "src/train/checkpoint/checkpoint_save.cpp", "src/comm/bootstrap/socket.cpp",
                "src/comm/bootstrap/tcp_links.cpp", "src/ops/cpu/matmul_onednn.cpp"}
# Hints that name no key, field or command, and words that need a second reading.
BANNED = re.compile(r"is this the right file|check the model's configuration|check the configuration|"
                    r"\b(for ever|whose|thereof|of which)\b|\bis no (list|text|number|count|token)\b|\bcannot be$")


def calls(text):
    """Offset and top-level arguments of each call of fail()."""
    for match in re.finditer(r"(?<![\w.:])fail\(", text):
        if re.search(r"(void|//[^\n]*) $", text[max(0, match.start() - 200):match.start()]):
            continue
        arguments, depth, quoted, start, at = [], 0, False, match.end(), match.end()
        while depth >= 0:
            c = text[at]
            if quoted:
                if c == "\\":
                    at += 1
                quoted = c != '"'
            elif c == '"':
                quoted = True
            elif c in "([{":
                depth += 1
            elif c in ")]}":
                depth -= 1
            if not quoted and (depth < 0 or (depth == 0 and c == ",")):
                arguments.append(" ".join(text[start:at].split()))
                start = at + 1
            at += 1
        yield match.start(), arguments


def problems(text):
    """Line and what is wrong there."""
    for offset, arguments in calls(text):
        line = text.count("\n", 0, offset) + 1
        if arguments[0] != "Exit::internal" and (len(arguments) != 3 or arguments[2] in ('""', "{}")):
            yield line, "no hint"
        for literal in re.findall(r'"((?:[^"\\]|\\.)*)"', re.sub(r'" "', "", " ".join(arguments[1:]))):
            if found := BANNED.search(literal):
                yield line, f"\"{found.group()}\""


checks = Checks()
bad = ('fail(Exit::data, fmt::format("{}: bad ({})", path, a), "");', 'fail(Exit::data, "bad");',
       'fail(Exit::config, "bad",\n     "is this the right file?");', 'fail(Exit::data, "a folder whose " "name is bad", "mend it");')
for text in bad:
    checks.expect(len(list(problems(text))) == 1, f"not seen: {text}")
checks.expect(not list(problems('fail(Exit::data, "1, 2)", "rename \\"it\\"");')), "a good call is reported")
found = 0
for path in sorted((SOURCE / "src").rglob("*")):
    if path.suffix not in (".cpp", ".h", ".cu"):
        continue
    name, text = str(path.relative_to(SOURCE)), path.read_text()
    found += len(list(calls(text)))
    for line, problem in problems(text):
        checks.expect(problem == "no hint" and name in WITHOUT_HINT, f"{name}:{line}: fail() with {problem}")
checks.expect(found > 300, f"only {found} calls of fail() were read")
checks.finish()
