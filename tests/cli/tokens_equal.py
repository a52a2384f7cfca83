"""Token ids, and the text of token ids, equal those of the Hugging Face `tokenizers` and of the `sentencepiece` packages,
on a megabyte of mixed text and for tokenizers of every kind that is built, trained here; what is not built is refused by
name."""

import array
import io
import json
import os
import pathlib
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
sys.dont_write_bytecode = True
from _packages import require  # noqa: E402

require("tokenizers", "sentencepiece")
import sentencepiece  # noqa: E402
import tokenizers  # noqa: E402
from _jobs import BIN, Checks, run  # noqa: E402
from _mixed_text import documents  # noqa: E402
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers  # noqa: E402

checks = Checks()
DATA, UNSUPPORTED = 4, 9
TEXTS = documents()

ISOLATED, BYTES = "isolated", pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
             r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern, behavior=ISOLATED, invert=False):
    return pre_tokenizers.Split(pattern if isinstance(pattern, str) else Regex(pattern[0]), behavior, invert)


def sequence(*steps):
    return pre_tokenizers.Sequence([*steps])


KINDS = {  # pre-tokenizer, normalizer, ignore_merges
    "gpt2": (pre_tokenizers.ByteLevel(add_prefix_space=False), None, False),
    "prefix": (pre_tokenizers.ByteLevel(add_prefix_space=True), None, False),
    "llama3": (sequence(split([LLAMA3]), BYTES), None, True),
    "qwen": (sequence(split([QWEN]), BYTES), normalizers.NFC(), False),
    "deepseek3": (sequence(split([r"\p{N}{1,3}"]), split(["[一-龥぀-ゟ゠-ヿ]+"]), split([DEEPSEEK3]), BYTES), None, False),
    "deepseek2": (sequence(split([r"[\r\n]"]), split([r"\s?[A-Za-zµÀ-ÖØ-öø-ƺ]+"]), split([r"\s?[!-/:-~！-／：-～‘-‟　-。]+"]),
                           split([r"\s+$"]), split(["[一-龥ࠀ-一가-퟿]+"]), pre_tokenizers.Digits(True), BYTES),
                  None, False),
    "behaviors": (sequence(split(" ", "merged_with_next"), split("\n", "merged_with_previous"), split(["[0-9]"], "contiguous"),
                           split(["[a-z]+"], "removed", True), BYTES), normalizers.NFKD(), False),
    "digits": (sequence(pre_tokenizers.Digits(False), split([r"\S+"], "isolated", True), BYTES),
               normalizers.Sequence([normalizers.NFD(), normalizers.NFKC()]), False),
}


def train_bpe(name):
    pre_tokenizer, normalizer, ignore_merges = KINDS[name]
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=["<|endoftext|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken("<|end|>", rstrip=True, special=True), "<pad>"])
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True, rstrip=True), AddedToken("café", normalized=True), "ﬁne"])
    folder = pathlib.Path(name)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|endoftext|>"}}))
    return tokenizer


def train_sentencepiece(kind):
    model = io.BytesIO()
    lines = [line for text in TEXTS for line in text.replace("\0", "").splitlines() if line][:8000]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, vocab_size=1200,
                                             model_type=kind, byte_fallback=kind == "bpe", character_coverage=0.98,
                                             split_digits=kind == "bpe", minloglevel=2, num_threads=1)
    path = pathlib.Path(kind + ".model")
    path.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def read_dataset(prefix):
    """Documents of a Megatron dataset as lists of ids."""
    index = pathlib.Path(prefix + ".idx").read_bytes()
    magic, version, code, sequences, entries = struct.unpack_from("<9sQBQQ", index)
    assert magic == b"MMIDIDX\0\0" and version == 1 and entries == sequences + 1 and code in (4, 8)
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    tokens = array.array("H" if code == 8 else "i", pathlib.Path(prefix + ".bin").read_bytes())
    found, at = [], 0
    for length in lengths:
        found.append(tokens[at:at + length].tolist())
        at += length
    assert at == len(tokens)
    return found


def decode_bpe(oracle, ids):
    """Added tokens apart: the package's decoder takes their letters for bytes."""
    added, text, run_of_ids = {i: token.content for i, token in oracle.get_added_tokens_decoder().items()}, [], []
    for i in [*ids, None]:
        if i is not None and i not in added:
            run_of_ids.append(i)
            continue
        text += [oracle.decode(run_of_ids), added.get(i, "")]
        run_of_ids = []
    return "".join(text)


def compare(label, tokenizer, encode, end, decode):
    result = run(1, "tokenize", "texts.jsonl", "-t", tokenizer, "-o", label + "-tokens")
    if not checks.expect(result.code == 0, f"{label}: exit {result.code}", result.output):
        return
    expected = [encode(text) + [end] for text in TEXTS if text]
    got = read_dataset(label + "-tokens")
    if checks.expect(len(got) == len(expected), f"{label}: {len(got)} documents, expected {len(expected)}"):
        wrong = [i for i in range(len(got)) if got[i] != expected[i]]
        detail = ""
        if wrong:
            text = [text for text in TEXTS if text][wrong[0]]
            at = next(k for k, pair in enumerate(zip(got[wrong[0]] + [-1], expected[wrong[0]] + [-1])) if pair[0] != pair[1])
            detail = f"{text[:200]!r}\ntoken {at}: {got[wrong[0]][at:at + 8]}, expected {expected[wrong[0]][at:at + 8]}"
        checks.expect(not wrong, f"{label}: {len(wrong)} of {len(got)} documents differ, first {wrong[:1]}", detail)
        shown = subprocess.run([BIN, "inspect", f"{label}-tokens.idx", "--text", tokenizer], capture_output=True)
        text = decode([i for document in got for i in document])
        checks.expect(shown.returncode == 0 and shown.stdout.decode() == text, f"{label}: decoded text differs",
                      f"{shown.stderr!r}, {len(shown.stdout.decode(errors='replace'))} of {len(text)} characters")
        print(f"{label}: {sum(map(len, got))} tokens in {len(got)} documents, {result.seconds:.1f} s", flush=True)


def refuse(label, code, text, change):
    """gpt2's tokenizer.json with one thing changed."""
    document = json.loads(pathlib.Path("gpt2/tokenizer.json").read_text())
    content = change(document)
    path = pathlib.Path("refused.json")
    path.write_text(json.dumps(document) if content is None else content)
    result = run(1, "tokenize", "texts.jsonl", "-t", path, "-o", "refused", "--eod", "none")
    checks.expect(result.code == code and text in result.output and "hint:" in result.output,
                  f"{label}: exit {result.code}, expected {code} and {text!r}", result.output)


with open("texts.jsonl", "w") as lines:
    for t in TEXTS:
        print(json.dumps({"id": 1, "meta": {"text": "no"}, "text": t}, ensure_ascii=len(t) % 2 == 0), file=lines)

for kind in KINDS:
    oracle = train_bpe(kind)
    compare(kind, kind, lambda text: oracle.encode(text, add_special_tokens=False).ids, oracle.token_to_id("<|endoftext|>"),
            lambda ids: decode_bpe(oracle, ids))
for kind in ("unigram", "bpe"):
    oracle = train_sentencepiece(kind)
    compare("sp-" + kind, kind + ".model", oracle.encode, oracle.eos_id(), oracle.decode)

refuse("WordPiece", UNSUPPORTED, "WordPiece", lambda d: d["model"].update(type="WordPiece"))
refuse("Metaspace", UNSUPPORTED, "Metaspace", lambda d: d.update(pre_tokenizer={"type": "Metaspace", "replacement": "_"}))
refuse("no pre-tokenizer", UNSUPPORTED, "does not end with ByteLevel", lambda d: d.update(pre_tokenizer=None))
refuse("Lowercase", UNSUPPORTED, "Lowercase", lambda d: d.update(normalizer={"type": "Lowercase"}))
refuse("dropout", UNSUPPORTED, "dropout", lambda d: d["model"].update(dropout=0.1))
refuse("byte_fallback", UNSUPPORTED, "byte_fallback", lambda d: d["model"].update(byte_fallback=True))
refuse("truncation", UNSUPPORTED, "truncation", lambda d: d.update(truncation={"max_length": 3}))
refuse("a new field", UNSUPPORTED, "novelty", lambda d: d["model"].update(novelty=1))
refuse("single_word", UNSUPPORTED, "single_word", lambda d: d["added_tokens"][0].update(single_word=True))
refuse("nested sets", UNSUPPORTED, "a nested set", lambda d: d.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "[a[bc]]"}, "behavior": "Isolated", "invert": False},
    {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}))
refuse("a bad pattern", DATA, "pattern", lambda d: d.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated", "invert": False},
    {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}))
refuse("a merge of unknowns", DATA, "is not in the vocabulary", lambda d: d["model"]["merges"].append(["zzzz", "qqqq"]))
refuse("an id twice", DATA, "has id", lambda d: d["added_tokens"][0].update(id=5))
refuse("a huge id", DATA, "expected an id", lambda d: d["model"]["vocab"].update(zq=1 << 40))
refuse("no vocabulary", DATA, "vocab", lambda d: d["model"].update(vocab=None))
refuse("cut", DATA, "not valid JSON", lambda d: json.dumps(d)[:-9])
for content in (b"", b"\x0a\xff\xff\xff", pathlib.Path("unigram.model").read_bytes()[:5000]):
    pathlib.Path("damaged.model").write_bytes(content)
    refused = run(1, "tokenize", "texts.jsonl", "-t", "damaged.model", "-o", "refused")
    checks.expect(refused.code == DATA and "hint:" in refused.output, f"damaged.model: exit {refused.code}", refused.output)
checks.finish()
