"""`chat` answers a line at a time and remembers the lines before; the end of the input and Ctrl-C end it."""

import json
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
checks.expect(chat(1, b"hi\r\n\r\nwho?\r\n")[0] == ANSWERS, "lines that end as on Windows")
pathlib.Path("prompts").write_bytes(b"\xef\xbb\xbfUser: hi\r\n\r\n")
result = subprocess.run([BIN, "sample", "run", "--prompts", "prompts", "sample.tokens=2"], capture_output=True, timeout=300)
checks.expect([json.loads(line)["prompt"] for line in result.stdout.splitlines()] == ["User: hi", ""],
              "prompts that begin and end as on Windows", f"{result.stdout} {result.stderr}")
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

# By a template, from training data to the talk: an answer ends with its token, and later turns follow as in the data.
characters = [*range(33, 127), *range(161, 173), *range(174, 256)]
rest = [byte for byte in range(256) if byte not in characters]
vocab = {chr(c): c for c in characters} | {chr(256 + i): byte for i, byte in enumerate(rest)}  # GPT-2's names of bytes
special = [{"id": 256 + i, "content": token, "special": True, "normalized": False}
           for i, token in enumerate(("<|im_start|>", "<|im_end|>"))]
pathlib.Path("tokenizer.json").write_text(json.dumps({
    "added_tokens": special, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
    "model": {"type": "BPE", "vocab": vocab, "merges": []}}))
turns = [("user", "hi"), ("assistant", "hello you"), ("user", "who?"), ("assistant", "a model")]
talk = json.dumps({"messages": [{"role": role, "content": content} for role, content in turns]})
pathlib.Path("talk.jsonl").write_text(f"{talk}\n" * 100)
result = run(1, "tokenize", "talk.jsonl", "-t", "tokenizer.json", "-o", "tokens", "--chat", "chatml")
checks.expect(result.code == 0, "tokenize", result.output)
result = run(1, "train", "run.toml", "model.vocab=258", "data.kind=megatron", "data.path=tokens", "data.val_fraction=0",
             "train.steps=120", "train.lr=1e-2", "train.seq_len=128", "checkpoint.dir=tuned", "sample.temperature=0",
             "sample.tokenizer=tokenizer.json")
checks.expect(result.code == 0, "train on conversations", result.output)
result = subprocess.run(command(1, ["chat", "tuned", "--chat", "chatml"]), input=b"hi\nwho?\n", capture_output=True, timeout=300)
checks.expect(result.stdout == b"hello you\na model\n", "by chatml", f"{result.stdout} {result.stderr}")
# A template that writes earlier answers unlike the last one: each turn encodes the conversation again.
special += [{"id": 258 + i, "content": token, "special": True, "normalized": False} for i, token in enumerate(("<think>", "</think>"))]
tokens = json.loads(pathlib.Path("tokenizer.json").read_text())
pathlib.Path("thoughts.json").write_text(json.dumps({**tokens, "added_tokens": special}))
talks = [json.dumps({"messages": [{"role": role, "content": content} for role, content in turns[:n]]}) for n in (2, 4)]
pathlib.Path("talks.jsonl").write_text("\n".join(talks * 100) + "\n")
result = run(1, "tokenize", "talks.jsonl", "-t", "thoughts.json", "-o", "thoughts", "--chat", "qwen3")
checks.expect(result.code == 0, "tokenize by qwen3", result.output)
result = run(1, "train", "run.toml", "model.vocab=260", "data.kind=megatron", "data.path=thoughts", "data.val_fraction=0",
             "train.steps=120", "train.lr=1e-2", "train.seq_len=192", "checkpoint.dir=thinks", "sample.temperature=0",
             "sample.tokenizer=thoughts.json", "data.whole_documents=true", "data.document_mask=true")
checks.expect(result.code == 0, "train on conversations by qwen3", result.output)
for ranks, arguments in ((1, []), (2, ["mesh.ep=2"])):
    result = subprocess.run(command(ranks, ["chat", "thinks", "--chat", "qwen3", *arguments]), input=b"hi\nwho?\n", capture_output=True, timeout=300)
    checks.expect(result.stdout == b"hello you\na model\n", f"by qwen3 {arguments}", f"{result.stdout} {result.stderr}")

pathlib.Path("questions").write_text("hi\nhi\n")
for ranks, arguments in ((1, []), (2, ["mesh.ep=2"])):
    result = subprocess.run(command(ranks, ["sample", "tuned", "--chat", "chatml", "--prompts", "questions", *arguments]),
                            capture_output=True, timeout=300)
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    checks.expect(answers == [{"prompt": "hi", "text": "hello you", "tokens": 9, "ended": True}] * 2,
                  f"sample --chat {arguments}", f"{result.stdout} {result.stderr}")
result = subprocess.run([BIN, "sample", "tuned", "--chat", "chatml", "sample.prompt=hi"], capture_output=True, timeout=300)
checks.expect(result.stdout == b"hello you\n", "sample --chat of one prompt", f"{result.stdout} {result.stderr}")
result = run(1, "sample", "tuned", "--chat", "llama")
checks.expect(result.code == 2 and 'no template "llama"' in result.output, "sample --chat llama", result.output)
# Without a template it says that the data had one, as far as that is known.
for arguments, text, hinted in ((["chat", "tuned", "sample.tokens=2"], "pass --chat TEMPLATE to talk", True),
                                (["sample", "tuned", "sample.tokens=2", "sample.prompt=hi"], "pass --chat TEMPLATE to put", True),
                                (["sample", "tuned", "sample.tokens=2", "sample.prompt=<|im_start|>user"], "hint:", False),
                                (["chat", "tuned", "--chat", "chatml", "sample.tokens=2"], "hint:", False),
                                (["sample", "tuned", "--chat", "chatml", "sample.tokens=2", "sample.prompt=hi"], "hint:", False),
                                (["sample", "run", "sample.tokens=2", "sample.prompt=hi"], "hint:", False)):
    result = subprocess.run([BIN, *arguments], input=b"hi\n", capture_output=True, timeout=300)
    told = result.stderr.decode()
    checks.expect(result.returncode == 0 and (text in told) == hinted and ("(tokens.mask)" in told) == hinted,
                  f"{arguments}: exit {result.returncode}", told)
for ranks, name, message in ((1, "llama", 'no template "llama"'), (2, "plain", "no token that ends an answer"),
                             (1, "phi", "has no token <|end|>")):
    result = subprocess.run(command(ranks, ["chat", "tuned", "--chat", name]), input=b"", capture_output=True, timeout=300)
    told = result.stderr.decode()
    checks.expect(result.returncode == 2 and message in told, f"--chat {name}: exit {result.returncode}", told)
    checks.expect(name == "phi" or "choose one of chatml, qwen3, mixtral," in told, f"--chat {name}: only what chat takes", told)
checks.finish()
