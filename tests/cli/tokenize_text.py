"""`moewright tokenize`: killed and gone on with, with any number of threads and compressed, it writes the same bytes;
`inspect` shows them and `train` reads them; wrong use is an error with a hint."""

import gzip
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
sys.dont_write_bytecode = True
from _jobs import BIN, SMALL, Checks, Job, read_metrics, run  # noqa: E402

checks = Checks()
USAGE, DATA = 2, 4


def byte_alphabet():
    printable = [*range(ord("!"), ord("~") + 1), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(others)}


def write_tokenizer(folder, eos):
    """All bytes, some merges of letters, <end> as number 300."""
    alphabet = byte_alphabet()
    vocab = {alphabet[b]: b for b in range(256)}
    merges = [["e", "t"], ["a", "o"], ["Ġ", "et"], ["i", "n"]]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    path = pathlib.Path(folder)
    path.mkdir()
    (path / "tokenizer.json").write_text(json.dumps({
        "added_tokens": [{"id": 300, "content": "<end>", "special": True, "normalized": False}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges}}))
    if eos:
        (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))


def expect(code, texts, *arguments):
    result = run(1, "tokenize", *arguments)
    for text in texts:
        checks.expect(result.code == code and text in result.output,
                      f"tokenize {' '.join(map(str, arguments))}: exit {result.code}, expected {code} and {text!r}",
                      result.output)


def digest(prefix):
    return [hashlib.sha256(pathlib.Path(prefix + suffix).read_bytes()).hexdigest() for suffix in (".bin", ".idx")]


def leftovers(prefix):
    return sorted(p.name for p in pathlib.Path(".").glob(prefix + "*")
                  if p.name not in (prefix + ".bin", prefix + ".idx"))


def write_inputs():
    draw = random.Random(3)
    pathlib.Path("in").mkdir()
    for name in ("a", "b"):
        with open(f"in/{name}.jsonl", "w") as lines:
            for _ in range(4000):
                words = ["".join(draw.choices("etaoin é漢", k=draw.randint(1, 9))) for _ in range(draw.randint(1, 300))]
                print(json.dumps({"content": " ".join(words)}), file=lines)
    pathlib.Path("in/c.txt").write_text("a plain file\n" * 1000)
    shutil.copytree("in", "packed")
    with gzip.open("packed/b.jsonl.gz", "wb") as packed:
        packed.write(pathlib.Path("packed/b.jsonl").read_bytes())
    pathlib.Path("packed/b.jsonl").unlink()
    for name in ("a.jsonl", "c.txt"):
        if shutil.which("zstd") is None:
            return False
        subprocess.run(["zstd", "-q", "--rm", f"packed/{name}"], check=True)
    return True


write_tokenizer("tok", eos=True)
write_tokenizer("noeos", eos=False)
compressed = write_inputs()
common = ["-t", "tok", "--key", "content"]

expect(0, ["8001 documents", "u16 tokens"], "in", *common, "-o", "whole", "--threads", "3")
expect(0, ["8001 documents"], "in", *common, "-o", "one", "--threads", "1")
checks.expect(digest("whole") == digest("one"), "3 threads and 1 thread differ")
if compressed:
    expect(0, ["8001 documents"], "packed", *common, "-o", "unpacked")
    checks.expect(digest("whole") == digest("unpacked"), "compressed input differs")

# Conversations: what the template and the messages say counts in the loss.
pathlib.Path("talk.jsonl").write_text("".join(
    json.dumps({"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"},
                             {"role": "user", "content": "ef", "loss": i == 1}]}) + "\n" for i in range(3)))
expect(0, ["3 documents", "9 of 21 tokens count in the loss, by talk.mask"], "talk.jsonl", "-t", "tok", "--chat", "plain", "-o",
       "talk")
checks.expect(pathlib.Path("talk.mask").read_bytes() == bytes([0, 0, 1, 1, 0, 0, 0] + [0, 0, 1, 1, 1, 1, 1] + [0, 0, 1, 1, 0, 0, 0]),
              "another mask")
# A conversation without text is no document: its end would count as that of the one before it.
pathlib.Path("hollow.jsonl").write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in (
    [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}], [{"role": "user", "content": ""}])))
expect(0, ["3 of 5 tokens count in the loss"], "hollow.jsonl", "-t", "tok", "--chat", "plain", "-o", "hollow")
checks.expect(pathlib.Path("hollow.mask").read_bytes() == bytes([0, 0, 1, 1, 1]), "the mask of an empty conversation")
pathlib.Path("asked.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "ab"}]}) + "\n")
expect(0, ["0 of 3 tokens count in the loss", "no message of the role assistant counts"], "asked.jsonl", "-t", "tok", "--chat",
       "plain", "-o", "asked")
pathlib.Path("hollow-talk.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": ""}]}) + "\n")
for suffix in (".bin", ".idx"):
    pathlib.Path("talk" + suffix).unlink()
expect(DATA, ["talk.mask already exists"], "in/c.txt", "-t", "tok", "-o", "talk")
for folder in ("", "elsewhere/", ".", "elsewhere/.."):
    expect(USAGE, ["names a folder", "corpus"], "in/c.txt", "-t", "tok", "-o", folder)
expect(USAGE, ["no template \"x\"", "chatml"], "talk.jsonl", "-t", "tok", "--chat", "x", "-o", "talk2")
expect(USAGE, ["no token <|im_end|> of the chat template chatml"], "talk.jsonl", "-t", "tok", "--chat", "chatml", "-o", "talk2")
expect(DATA, ["c.txt: expected a file of JSON lines"], "in/c.txt", "-t", "tok", "--chat", "plain", "-o", "talk2")
expect(DATA, ["a.jsonl:1: expected an object with a list of messages"], "in/a.jsonl", "-t", "tok", "--chat", "plain", "-o",
       "talk2")

kills = 0
for _ in range(200):
    job = Job(1, "tokenize", "in", *common, "-o", "cut", "--threads", "2", "--save-every", "0")
    state = pathlib.Path("cut.tokenize.json")
    before = state.read_text() if state.exists() else ""
    job.wait_until(lambda: state.exists() and state.read_text() != before)
    if job.running() and kills < 6:
        job.end()
        kills += 1
        continue
    job.wait()
    break
checks.expect(kills >= 3, f"only {kills} kills hit the run")
checks.expect("resumed after" in job.output(), "the run did not resume", job.output())
checks.expect(digest("whole") == digest("cut"), f"after {kills} kills the files differ")
checks.expect(not leftovers("cut"), f"left over: {leftovers('cut')}")

# What is read ahead is bounded by bytes: large documents are in memory one after the other.
pathlib.Path("large").mkdir()
for name in "abcdef":
    pathlib.Path(f"large/{name}.txt").write_text(f"{name} tale of a hint in the tea house, and of eight more\n" * 220_000)


def peak_bytes(prefix, *more):
    process = subprocess.Popen([BIN, "tokenize", "large", "-t", "tok", "-o", prefix, "--threads", "6", *more],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    checks.expect(process.returncode == 0, f"tokenize {prefix}: exit {process.returncode}")
    return usage.ru_maxrss * 1024


apart, together = peak_bytes("apart", "--read-ahead", "0"), peak_bytes("together")
print(f"6 documents of 12 MiB: {apart >> 20} MiB one by one, {together >> 20} MiB together")
checks.expect(apart < 0.65 * together, f"--read-ahead 0 takes {apart} bytes, all at once {together}")
checks.expect(digest("apart") == digest("together"), "--read-ahead changes the dataset")

# While a run is at work, another one with its output is refused, and harms nothing.
job = Job(1, "tokenize", "in", *common, "-o", "taken", "--threads", "1", "--save-every", "0")
checks.expect(job.wait_until(lambda: pathlib.Path("taken.tokenize.json").exists()), "taken: no mark", job.output())
job.process.send_signal(signal.SIGSTOP)
checks.expect(job.running() and not pathlib.Path("taken.idx").exists(), "the first run ended too early", job.output())
for more in ([], ["--restart"], ["--eod", "none"]):
    expect(DATA, ["taken.tokenize.lock is locked", f"process {job.process.pid} on ", "hint: wait"],
           "in", *common, "-o", "taken", *more)
job.process.send_signal(signal.SIGCONT)
checks.expect(job.wait() == 0 and digest("taken") == digest("whole"), "the first run was disturbed", job.output())
checks.expect(not leftovers("taken"), f"left over: {leftovers('taken')}")

# On a file system without locks it is said, and nothing is left.
pathlib.Path("no_locks.c").write_text("#include <errno.h>\nint flock(int f, int o) { (void)f, (void)o; errno = ENOSYS; return -1; }\n")
subprocess.run(["cc", "-shared", "-fPIC", "-o", "no_locks.so", "no_locks.c"], check=True)
done = subprocess.run([BIN, "tokenize", "in", *common, "-o", "unlocked"], capture_output=True, text=True,
                      env={**os.environ, "LD_PRELOAD": os.path.abspath("no_locks.so")})
checks.expect(done.returncode == 0 and "does not support locks" in done.stderr and digest("unlocked") == digest("whole"),
              "without locks", done.stdout + done.stderr)
checks.expect(not leftovers("unlocked"), f"left over: {leftovers('unlocked')}")

# JSON is no text, whatever its name.
for name in ("list.json", "LINES.JSONL", "list.json.gz"):
    pathlib.Path(name).write_text('{"text": "ab"}\n')
    expect(DATA, [f"{name}: the name says JSON, not JSON lines", "*.jsonl"], name, "-t", "tok", "-o", "none")
pathlib.Path("code").mkdir()
shutil.copy("list.json", "code")
expect(0, ["1 documents"], "code", "-t", "tok", "-o", "code-tokens")

# A run that is killed while it renames its files is taken up again.
talks = [{"messages": [{"role": "user", "content": f"ab {i} " * 20}, {"role": "assistant", "content": "cd"}]}
         for i in range(40_000)]
pathlib.Path("talks.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in talks))
chat = ["talks.jsonl", "-t", "tok", "--chat", "plain", "--threads", "1", "-o"]
expect(0, ["40000 documents"], *chat, "talks")
job = Job(1, "tokenize", *chat, "renamed", "--save-every", "0")
checks.expect(job.wait_until(lambda: pathlib.Path("renamed.tokenize.json").exists()), "renamed: no mark", job.output())
job.end()
pathlib.Path("renamed.idx").write_bytes(b"an index")
pathlib.Path("renamed.mask.tmp").rename("renamed.mask")
mask = pathlib.Path("talks.mask").read_bytes()
expect(0, ["resumed after", "40000 documents", f"{mask.count(1)} of {len(mask)} tokens count in the loss"], *chat, "renamed")
checks.expect(digest("renamed") == digest("talks"), "renamed: the files differ")
checks.expect(pathlib.Path("renamed.mask").read_bytes() == mask, "renamed: another mask")
checks.expect(leftovers("renamed") == ["renamed.mask"], f"left over: {leftovers('renamed')}")

# An interrupted run is gone on with only as it was.
job = Job(1, "tokenize", "in", *common, "-o", "half", "--save-every", "0")
job.wait_until(lambda: pathlib.Path("half.tokenize.json").exists())
job.end()
expect(DATA, ["\"key\" differs from that of the interrupted run", "--restart"], "in", "-t", "tok", "--key", "other", "-o", "half")
expect(DATA, ["\"inputs\" differs"], "in/a.jsonl", *common, "-o", "half")
expect(DATA, ["\"end_of_document\" differs"], "in", *common, "-o", "half", "--eod", "none")
saved = pathlib.Path("half.tokenize.json").read_text()
for damage in ("", "{}", "[]", saved[:-20], saved.replace('"offset": ', '"offset": -'), saved.replace('"documents": ', '"documents": 9')):
    pathlib.Path("half.tokenize.json").write_text(damage)
    expect(DATA, ["hint:"], "in", *common, "-o", "half")
pathlib.Path("half.tokenize.json").write_text(saved)
with open("half.bin.tmp", "r+b") as file:
    file.write(b"x")
expect(DATA, ["has changed since the interrupted run wrote it"], "in", *common, "-o", "half")
expect(0, ["8001 documents"], "in", *common, "-o", "half", "--restart")
checks.expect(digest("whole") == digest("half"), "after --restart the files differ")

# Inputs without a document are no dataset.
pathlib.Path("void").mkdir()
pathlib.Path("void/a.jsonl").write_text('{"text": ""}\n\n{"text": ""}\n \n\n')
pathlib.Path("void/b.txt.gz").write_bytes(gzip.compress(b""))
expect(DATA, ["the inputs hold no document", "void/a.jsonl: 2 lines without text and 3 blank lines passed over",
              "void/b.txt.gz: no text", 'text in "text"'], "void", "-t", "tok", "-o", "void-tokens")
expect(DATA, ["the inputs hold no document", "hollow-talk.jsonl: 1 line without text and 0 blank lines passed over"],
       "hollow-talk.jsonl", "-t", "tok", "--chat", "plain", "-o", "void-tokens")
checks.expect(not list(pathlib.Path(".").glob("void-tokens*")), f"left over: {list(pathlib.Path('.').glob('void-tokens*'))}")

expect(DATA, ["whole.bin already exists"], "in", *common, "-o", "whole")
expect(DATA, ["in/a.jsonl:1: expected a string in \"text\", got no such field"], "in", "-t", "tok", "-o", "x")
expect(USAGE, ["--eod"], "in", "-t", "noeos", "--key", "content", "-o", "x")
expect(USAGE, ["is not a token of"], "in", *common, "-o", "x", "--eod", "<absent>")
expect(DATA, ["is not there"], "in", "-t", "absent", "-o", "x")
expect(DATA, ["absent"], "absent", *common, "-o", "x")
expect(USAGE, ["--tokenizer"], "in", "-o", "x")
pathlib.Path("bad.txt").write_bytes(b"a\xffb")
expect(0, ["1 bytes were not valid UTF-8", "6 u16 tokens in 1 documents"], "bad.txt", "-t", "noeos", "--eod", "<end>", "-o", "bad")

# An interrupted run does not forget what it replaced.
pathlib.Path("worn").mkdir()
shutil.copy("bad.txt", "worn/a.txt")
pathlib.Path("worn/b.jsonl").write_bytes(b"".join(pathlib.Path(f"in/{name}.jsonl").read_bytes() for name in "abab"))
state = pathlib.Path("worn-tokens.tokenize.json")
job = Job(1, "tokenize", "worn", *common, "-o", "worn-tokens", "--threads", "1", "--save-every", "0")
checks.expect(job.wait_until(lambda: state.exists() and json.loads(state.read_text())["input"] == 1), "worn: no mark",
              job.output())
job.end()
expect(0, ["resumed after", "1 bytes were not valid UTF-8", "16001 documents"], "worn", *common, "-o", "worn-tokens")

for path in ("whole.idx", "whole"):
    result = run(1, "inspect", path)
    checks.expect(result.code == 0 and "8001 documents" in result.output and "to 300" in result.output, f"inspect {path}",
                  result.output)

pathlib.Path("run.toml").write_text(SMALL.replace('path = "text"', 'kind = "megatron"\npath = "whole"'))
result = run(1, "train", "run.toml", "train.steps=3", "model.vocab=301", "log.jsonl=t/metrics.jsonl")
checks.expect(result.code == 0 and len(read_metrics("t")) == 3, f"train: exit {result.code}", result.output)
result = run(1, "train", "run.toml", "train.steps=2", "model.vocab=301", "log.trace=trace.json")
result = run(1, "inspect", "trace.json")
checks.expect(result.code == 0 and "expert_up" in result.output, "inspect of a trace", result.output)
result = run(1, "inspect", "tok/tokenizer.json")
checks.expect(result.code == DATA and "traceEvents" in result.output, "inspect of no trace", result.output)
result = run(1, "train", "run.toml", "train.steps=3", "model.vocab=256")
checks.expect(result.code == DATA and "model.vocab" in result.output, f"train beyond the vocabulary: {result.code}", result.output)
checks.finish()
