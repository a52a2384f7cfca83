"""A model whose tokens are not bytes is sampled through a tokenizer: sample.tokenizer, or that of its Hugging Face folder.
Without one, or with the wrong one, the run says so before it trains; so does data with tokens beyond the vocabulary."""

import array
import json
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
sys.dont_write_bytecode = True
from _packages import require  # noqa: E402

require("tokenizers", "sentencepiece")
import io  # noqa: E402

import sentencepiece  # noqa: E402
import tokenizers  # noqa: E402
from _jobs import BIN, SMALL, Checks, run, unwrapped, write_run_file  # noqa: E402

CONFIG, DATA = 3, 4
checks = Checks()
LINES = ["the experts of a layer share the tokens", "a router sends each token to the best experts",
         "the batch is the sum of the tokens of all ranks"] * 150
TEXT = "the experts share tokens 学习 of a batch 😀!"  # what the models learn by heart


def expect(code, says, *arguments, never=()):
    result = run(1, *arguments)
    result.output = unwrapped(result.output)
    says = [says] if isinstance(says, str) else says
    checks.expect(result.code == code and all(s in result.output for s in says) and
                  not any(s in result.output for s in never), f"{arguments}: exit {result.code}, expected {code} and {says}",
                  result.output)
    return result.output


def write_tokenizers():
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    bpe.train_from_iterator(LINES, tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    os.makedirs("bpe")
    bpe.save("bpe/tokenizer.json")
    pathlib.Path("bpe/tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(LINES), model_writer=model, vocab_size=300,
                                             model_type="bpe", byte_fallback=True, minloglevel=2, num_threads=1)
    pathlib.Path("sp.model").write_bytes(model.getvalue())


def sampled(*arguments):
    result = subprocess.run([BIN, "sample", *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
    checks.expect(result.returncode == 0, f"sample {arguments}: exit {result.returncode}", result.stderr.decode())
    return result.stdout.decode()  # whole characters, or this fails


write_tokenizers()
pathlib.Path("lines.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in [TEXT] * 400))
RUN = write_run_file(text=SMALL.replace("vocab = 256", "vocab = 320").replace("shared_experts = 1\n", "") + """
[checkpoint]
every = 60
""")
for name, tokenizer in (("bpe", "bpe"), ("sp", "sp.model")):
    expect(0, "wrote", "tokenize", "lines.jsonl", "-t", tokenizer, "-o", f"{name}-tokens")
    shown = run(1, "inspect", f"{name}-tokens.idx", "--text", tokenizer).output
    checks.expect(shown.count(TEXT) == 400, f"{name}: inspect --text", shown[:500])
    data = ["data.kind=megatron", f"data.path={name}-tokens", f"checkpoint.dir={name}-run", "sample.tokens=30",
            "sample.prompt=the experts", "train.steps=60", "train.lr=1e-2"]
    expect(0, ["---- sample, ", "after the prompt ----\nthe experts"], "train", RUN, *data, f"sample.tokenizer={tokenizer}",
           never=["warning: no sample"])
    # The stored run file names the tokenizer. The end of the document ends the text.
    text = sampled(f"{name}-run", "sample.temperature=0", "sample.tokens=90")
    checks.expect(text == TEXT + "\n", f"{name}: {text!r}")
    # Several prompts together: the text of each is the same as alone.
    pathlib.Path("prompts.txt").write_text("the experts\nthe\n\n")
    lines = [json.loads(line) for line in sampled(f"{name}-run", "sample.temperature=0", "sample.tokens=90", "--prompts",
                                                  "prompts.txt").splitlines()]
    checks.expect([line["prompt"] for line in lines] == ["the experts", "the", ""] and
                  all(line["prompt"] + line["text"] == TEXT and line["ended"] for line in lines[:2]), f"{name}: {lines}")
    wild = sampled(f"{name}-run", "sample.temperature=50", "sample.top_k=0", "sample.prompt=", "sample.tokens=60")
    checks.expect(len(wild) > 10, f"{name}: {wild!r}")

# Nothing to decode with: said before the first step, with the key; and refused by `sample`.
data = ["data.kind=megatron", "data.path=bpe-tokens", "sample.tokens=5", "train.steps=1"]
output = expect(0, ["warning: no sample at the end", "set sample.tokenizer"], "train", RUN, *data)
checks.expect(output.index("set sample.tokenizer") < output.index("step 1/1"), "said after the training", output)
expect(CONFIG, ["the model's 320 tokens", "set sample.tokenizer"], "sample", "bpe-run", "sample.tokenizer=")
expect(CONFIG, ["has 300 tokens, the model's vocabulary 290"], "train", RUN, *data, "model.vocab=290", "sample.tokenizer=bpe",
       never=["step 1/1"])
expect(DATA, "absent", "train", RUN, *data, "sample.tokenizer=absent", never=["step 1/1"])

pathlib.Path("empty.txt").write_text("")
expect(DATA, "holds no prompts", "sample", "bpe-run", "--prompts", "empty.txt")
expect(DATA, "absent.txt", "sample", "bpe-run", "--prompts", "absent.txt")

# A model folder brings its tokenizer, and tells no cure that it forbids.
expect(0, "wrote", "export", "bpe-run", "folder")
for name in ("tokenizer.json", "tokenizer_config.json"):
    shutil.copy(f"bpe/{name}", "folder")
text = sampled("folder", "sample.prompt=the experts", "sample.temperature=0", "sample.tokens=90")
checks.expect(text == TEXT + "\n", f"a folder with a tokenizer: {text!r}")
expect(0, "byte-level BPE", "inspect", "folder")
pathlib.Path("lines.txt").write_text("no questions\n")
# Bytes are no tokens of such a model, and tokens of a model without a tokenizer are no bytes.
HF = write_run_file("hf.toml", 'model = "hf:folder"\n[data]' + SMALL.split("[data]")[1])
for command in (["train", HF, "data.path=lines.jsonl"], ["evaluate", "folder", "data.val_path=lines.jsonl"]):
    expect(CONFIG, ["reads bytes, but the model's tokens are those of folder/tokenizer.json", "moewright tokenize"], *command,
           'data.suffixes=[".jsonl"]', never=["step 1/1", "bits per byte"])
shutil.copytree("folder", "mute", ignore=lambda _, names: [name for name in names if name.startswith("tokenizer")])
for command in (["sample", "mute"], ["evaluate", "mute", "--questions", "questions.jsonl", "train.val_batches=0"]):
    pathlib.Path("questions.jsonl").write_text('{"context": "a", "choices": ["b", "c"], "answer": 0}\n')
    expect(CONFIG, ["nothing says what text the model's 320 tokens are", "sample.tokenizer"], *command)
expect(DATA, ["line 1", "each line is an object such as"], "evaluate", "folder", "--questions", "lines.txt", "train.val_batches=0")
# Marks are no text: a document of the data has as many bytes as it has without its end.
shown = json.loads(subprocess.run([BIN, "evaluate", "folder", "data.kind=megatron", "data.val_path=bpe-tokens", "--all", "--json",
                                   "train.seq_len=64"], capture_output=True, check=True).stdout)
bits = shown["loss"] * shown["labels"] / 0.6931471805599453
length = len(TEXT.encode())  # of a document, whose tokens are `share` of those that were counted
share = shown["labels"] / len(array.array("H", pathlib.Path("bpe-tokens.bin").read_bytes()))
checks.expect(abs(bits / shown["bits_per_byte"] / (400 * length * share) - 1) < 0.01, f"bytes of marks count: {shown}")
tokens = array.array("H", pathlib.Path("bpe-tokens.bin").read_bytes())
tokens[len(tokens) // 2] = 400
shutil.copy("bpe-tokens.idx", "large.idx")
pathlib.Path("large.bin").write_bytes(tokens.tobytes())
expect(DATA, ["[0, 320), got 400", "in its hf: folder"], "train", HF, "data.kind=megatron", "data.path=large",
       "train.steps=1", "data.val_fraction=0", never=["step 1/1"])
checks.finish()
