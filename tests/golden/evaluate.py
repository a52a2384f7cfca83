"""`evaluate` gives the loss that transformers' logits give, for every golden model; by source, in several layouts, and for the
answers to multiple-choice questions."""

import json
import math
import os
import pathlib
import struct
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
from _jobs import Checks, run, unwrapped  # noqa: E402
from _safetensors import Tensors  # noqa: E402

CONFIG, DATA = 3, 4
MODELS = pathlib.Path(os.environ["MOEWRIGHT_SOURCE"]) / "tests/golden/models"
checks = Checks()


def write_shard(path, tokens):
    header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
    pathlib.Path(path).write_bytes(header + struct.pack(f"<{len(tokens)}H", *tokens))


def token_loss(logits, token):
    largest = max(logits)
    return math.log(sum(math.exp(x - largest) for x in logits)) + largest - logits[token]


def evaluated(ranks, *arguments):
    result = run(ranks, "evaluate", *arguments, "--json")
    checks.expect(result.code == 0, f"evaluate {arguments}: exit {result.code}", result.output)
    return json.loads(result.output.splitlines()[-1]) if result.code == 0 else {}


def expect(code, says, *arguments):
    result = run(1, "evaluate", *arguments)
    output = unwrapped(result.output)
    checks.expect(result.code == code and says in output, f"{arguments}: exit {result.code}, expected {code} and {says}", output)


def close(a, b, tolerance=1e-5):
    return a is not None and abs(a - b) <= tolerance * max(1, abs(b))


def settings(golden):
    """Writes the sequences of a golden file, each as a source of its own, and tells the command of them."""
    sequences, length = golden.shape("input_ids")
    ids = golden.values("input_ids")
    for b in range(sequences):
        write_shard(f"{b}.bin", ids[b * length:(b + 1) * length])
    blend = json.dumps([f"1 {b}.bin" for b in range(sequences)])
    return [f"train.seq_len={length - 1}", "train.dtype=fp32", "data.kind=shards", f"data.blend={blend}", "data.val_fraction=0",
            "--all", "--batch", "2"]


for path in sorted(MODELS.iterdir()):
    golden = Tensors(path / "golden.safetensors")
    sequences, length = golden.shape("input_ids")
    ids, logits, vocab = golden.values("input_ids"), golden.values("logits"), golden.shape("logits")[2]
    expected = []
    for b in range(sequences):
        rows = range(b * length, (b + 1) * length - 1)
        expected.append(sum(token_loss(logits[t * vocab:(t + 1) * vocab], ids[t + 1]) for t in rows) / (length - 1))
    got = evaluated(1, path, *settings(golden))
    by_source = [source["loss"] for source in got.get("sources", [got])]
    checks.expect(close(got.get("loss"), sum(expected) / sequences) and got["labels"] == sequences * (length - 1) and
                  len(by_source) == sequences and all(map(close, by_source, expected)),
                  f"{path.name}: {got}, expected {expected}")

# Layouts, more ranks than sequences among them.
golden = Tensors(MODELS / "qwen3_moe" / "golden.safetensors")
alone = evaluated(1, MODELS / "qwen3_moe", *settings(golden))
for ranks, layout in ((2, "mesh.ep=2"), (2, "mesh.tp=2"), (2, "mesh.pp=2"), (4, "")):
    got = evaluated(ranks, MODELS / "qwen3_moe", *settings(golden), *layout.split())
    checks.expect(close(got.get("loss"), alone["loss"], 1e-6) and got["labels"] == alone["labels"], f"{layout}: {got}")

# Of one source with fewer windows than train.val_batches asks for, each counts once.
sequences, length = golden.shape("input_ids")
write_shard("one.bin", golden.values("input_ids"))
one = [f"train.seq_len={(sequences * length - 1) // 3}", "train.dtype=fp32", "data.kind=shards", "data.path=one.bin",
       "data.val_fraction=0", "--batch", "2"]
every = evaluated(1, MODELS / "qwen3_moe", *one, "--all")
for batches in (2, 100):
    got = evaluated(1, MODELS / "qwen3_moe", *one, f"train.val_batches={batches}")
    checks.expect(close(got.get("loss"), every["loss"], 1e-6) and got["labels"] == every["labels"],
                  f"val_batches {batches}: {got}, all once: {every}")

# Text in bytes per label, and questions: what the losses of two texts say of them is what the command answers.
pathlib.Path("text").write_text("the cat sat on the mat. " * 400)
pathlib.Path("run.toml").write_text("""[model]
vocab = 256
width = 32
layers = 2
heads = 2
experts = 4
top_k = 2
expert_width = 32
[data]
path = "text"
val_path = "text"
[train]
steps = 40
seq_len = 32
lr = 1e-2
val_every = 20
val_questions = "questions.jsonl"
[checkpoint]
dir = "run"
[log]
jsonl = "metrics.jsonl"
""")
questions = [{"context": "the cat sat on the", "choices": [" dog. ", " mat. ", " axe"], "answer": 1},
             {"context": "", "choices": ["xqzw", "the "], "answer": 1},
             {"context": "the cat sat on the mat. " * 9 + "the cat", "choices": [" sat", " mat"], "answer": 0}]
pathlib.Path("questions.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
result = run(2, "train", "run.toml")
output = unwrapped(result.output)
checks.expect(result.code == 0 and "questions after step 20: accuracy" in output, "train", output)
last = json.loads(pathlib.Path("metrics.jsonl").read_text().splitlines()[-1])
checks.expect(last.get("final_val_accuracy") == 1, str(last))
got = evaluated(1, "run", "--questions", "questions.jsonl")
checks.expect(got["accuracy"] == 1 and got["questions"] == 3 and close(got["loss"], last["final_val_loss"], 2e-3) and
              close(got["bits_per_byte"], got["loss"] / math.log(2)) and
              close(got["perplexity"], math.exp(got["loss"])), str(got))
checks.expect("loss" not in evaluated(1, "run", "train.val_batches=0", "--questions", "questions.jsonl"), "only questions")
checks.expect("loss" in evaluated(1, "run", "train.val_batches=0", "--all"), "all windows")
expect(CONFIG, "train.val_batches = 0", "run", "train.val_batches=0")
wrong = [dict(q, answer=(q["answer"] + 1) % 2) for q in questions]
pathlib.Path("wrong.jsonl").write_text("".join(json.dumps(q) + "\n" for q in wrong))
checks.expect(evaluated(2, "run", "--questions", "wrong.jsonl")["accuracy"] == 0, "wrong answers")

for line, says in (("{", "line 2"), ("[]", '"context" is missing'), ('{"context": 1}', '"context" must be a text, got 1'),
                   ('{"context": "", "choices": ["a"], "answer": 0}', "two or more"),
                   ('{"context": "", "choices": ["a", ""], "answer": 0}', "not empty"),
                   ('{"context": "", "choices": ["a", "b"], "answer": 2}', "index of a choice"),
                   (json.dumps({"context": "", "choices": ["a", "b" * 40], "answer": 0}), "train.seq_len = 32")):
    pathlib.Path("bad.jsonl").write_text(json.dumps(questions[0]) + "\n" + line + "\n")
    expect(DATA, says, "run", "--questions", "bad.jsonl")
expect(DATA, "absent", "run", "--questions", "absent")
pathlib.Path("empty.jsonl").write_text("\n")
expect(DATA, "holds no questions", "run", "--questions", "empty.jsonl")
expect(CONFIG, "nothing says what to evaluate", MODELS / "qwen3_moe")
checks.finish()
