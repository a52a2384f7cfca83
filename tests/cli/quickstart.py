"""Part 2 of docs/quickstart.md works as it stands: its commands, with a small model, a short text and two ranks in place
of the large ones, from a model folder and text to a model folder. tests/bare types part 1."""

import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
sys.dont_write_bytecode = True
from _packages import require  # noqa: E402

require("tokenizers", "sentencepiece")
import tokenizers  # noqa: E402
from _jobs import BIN, MPIRUN, SOURCE, Checks, run, skip  # noqa: E402

checks = Checks()
MODEL = "Qwen3-30B-A3B"
SMALLER = [  # what the document says, what stands for it here
    ("--budget 5m", "--budget 2s --threads 1"),
    ("-np 8", "-np 2"),
    ("--ranks 8", "--ranks 2 train.threads=1 train.val_batches=1"),
    ("train.seq_len=4096", "train.seq_len=64"),
    ("train.global_batch=64", "train.global_batch=8"),
    ("train.global_batch=16", "train.global_batch=8"),
    ("train.steps=2000", "train.steps=20"),
    ("train.steps=200 ", "train.steps=4 "),
    ("checkpoint.every=200", "checkpoint.every=10"),
    ("mesh.pp=2 mesh.ep=4", "mesh.pp=2 train.threads=1"),
]
ELSEWHERE = ("sbatch ",)  # tests/slurm has tests of it
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
TABLE = """
[model]
vocab = 384
width = 48
layers = 4
heads = 4
kv_heads = 2
head_dim = 16
qk_norm = "per_head"
experts = 8
top_k = 2
expert_width = 32
[data]
path = "text"
[train]
steps = 1
seq_len = 32
val_batches = 0
[checkpoint]
dir = "seed"
[sample]
tokens = 0
"""


def write_corpus():
    draw = random.Random(1)
    words = ["expert", "router", "token", "rank", "node", "Gewicht", "学习", "the", "of", "a", "\n", "42"]
    os.makedirs("corpus")
    lines = [json.dumps({"text": " ".join(draw.choices(words, k=draw.randint(20, 200)))}) for _ in range(400)]
    pathlib.Path("corpus/a.jsonl").write_text("\n".join(lines) + "\n")
    subprocess.run(["zstd", "-q", "--rm", "corpus/a.jsonl"], check=True)
    pathlib.Path("text").write_text("any bytes at all\n" * 400)
    return [json.loads(line)["text"] for line in lines]


def write_conversations(document):
    """The conversation of the document, and others like it."""
    example = re.search(r"^```json\n(.*?)^```", document, re.M | re.S).group(1)
    talks = [example.replace("7", str(sum_)).replace("plus 4", f"plus {sum_ - 3}") for sum_ in range(4, 204)]
    pathlib.Path("talks.jsonl").write_text("".join(talks))
    pathlib.Path("questions.txt").write_text("What is 3 plus 5?\nAnd 3 plus 6?\n")


def write_model(texts):
    """A model folder of the family, with a tokenizer of its own."""
    pathlib.Path("seed.toml").write_text(TABLE)
    for arguments in (["train", "seed.toml"], ["export", "seed/step-00000001", MODEL]):
        result = run(1, *arguments)
        checks.expect(result.code == 0, arguments[0], result.output)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=380, special_tokens=SPECIAL, show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(f"{MODEL}/tokenizer.json")
    pathlib.Path(MODEL, "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))


def commands_of(document):
    for block in re.findall(r"^```sh\n(.*?)^```", document, re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            yield re.sub(r"\s+#.*", "", line).strip()


if shutil.which("zstd") is None:
    skip("no zstd")
PART = (SOURCE / "docs/quickstart.md").read_text().partition("## Part 2")[2]
write_model(write_corpus())
write_conversations(PART)
os.symlink(SOURCE / "examples", "examples")
os.makedirs("bin")
os.symlink(BIN, "bin/moewright")
os.symlink(shutil.which(MPIRUN), "bin/mpirun")
environment = {**os.environ, "PATH": f"{pathlib.Path('bin').resolve()}:{os.environ['PATH']}"}
ran, used = [], set()
for command in commands_of(PART):
    if command.startswith("sbatch "):
        checks.expect(re.search(r"slurm\.sbatch run\.toml$", command), f"{command}: names no run file")
    if command.startswith(ELSEWHERE) or not command:
        continue
    for large, small in SMALLER:
        used |= {large} if large in command else set()
        command = command.replace(large, small)
    result = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=300)
    checks.expect(result.returncode == 0, f"{command}: exit {result.returncode}", result.stdout + result.stderr)
    ran.append(command.split("moewright ")[-1].split()[0])
checks.expect(used == {large for large, _ in SMALLER}, f"of what this test shrinks the document has only {used}")
missing = {"tokenize", "inspect", "probe", "init", "plan", "verify", "train", "report", "export", "sample",
           "chat"} - set(ran)
checks.expect(not missing, f"the document does not call {missing}")
checks.expect(pathlib.Path("runs/qwen/report.html").exists(), "no report")
checks.expect(pathlib.Path("Qwen3-30B-mine/tokenizer.json").exists(), "no tokenizer in the exported folder")
checks.finish()
