"""`chat` answers a line at a time and remembers the lines before; the end of the input and Ctrl-C end it."""

import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
sys.dont_write_bytecode = True
from _jobs import BIN, SMALL, Checks, command, run, write_run_file  # noqa: E402

checks = Checks()
TALK = "User: hi\nAssistant: hello you\nUser: who?\nAssistant: a model\n"  # what the model learns by heart
pathlib.Path("talk").write_text(TALK * 100)
result = run(1, "train", write_run_file(text=SMALL), "model.vocab=128", "data.path=talk", "data.val_fraction=0", "train.steps=80", "train.lr=1e-2",
             "train.seq_len=64", "checkpoint.dir=run", "sample.temperature=0")
checks.expect(result.code == 0, "train", result.output)


def chat(ranks, text, *arguments):
    result = subprocess.run(command(ranks, ["chat", "run", *arguments]), input=text, capture_output=True, timeout=300)
    checks.expect(result.returncode == 0, f"chat {arguments} < {text}: exit {result.returncode}", result.stderr.decode())
    return result.stdout.decode(), result.stderr.decode()


ANSWERS = " hello you\n a model\n"
for ranks, arguments in ((1, []), (2, ["mesh.ep=2"])):
    text, _ = chat(ranks, b"hi\n\nwho?\n", *arguments)  # an empty line is no turn
    checks.expect(text == ANSWERS, f"{arguments}: {text!r}")
checks.expect(chat(1, b"hi\nwho?")[0] == ANSWERS, "a last line without an end")
checks.expect(chat(1, b"")[0] == "", "no input")
checks.expect(chat(1, b"hi\n" * 9, "sample.tokens=3")[0].count("\n") == 9, "longer than the context")
text, told = chat(1, b"\xff\nhi\n")
checks.expect(text == " hello you\n" and "not understood: the prompt holds token 255 outside the vocabulary of 128" in told,
              "a line that cannot be encoded", text + told)

with subprocess.Popen([BIN, "chat", "run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
    process.stdin.write(b"hi\n")
    process.stdin.flush()
    checks.expect(process.stdout.readline() == b" hello you\n", "the answer comes at once")
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    code = process.wait(60)
    checks.expect(code == 0 and time.monotonic() - begin < 20, f"Ctrl-C: exit {code}", process.stderr.read().decode())
checks.finish()
