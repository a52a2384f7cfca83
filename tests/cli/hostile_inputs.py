"""Hostile files of every kind through the commands that read them: cut at every 64th byte of the header, and each field
set to what no file should hold. Whatever comes, the exit code is a documented one (0 where the change is legal), and a
refusal brings a hint. One commit tries a third of them, or all with MOEWRIGHT_TEST_ALL=1. CI runs this once more under
the sanitizers."""

import array
import concurrent.futures
import ctypes
import ctypes.util
import itertools
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import (  # noqa: E402
    BIN, Checks, Job, SMALL, SOURCE, TIMEOUT, in_turn, read_metrics, run, write_corpus, write_run_file)

DOCUMENTED = range(10)  # base/error.h, less 70: that one is a bug of ours
INTEGERS = [-1, 0, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64, 10**30]
VALUES = [*INTEGERS, float("nan"), float("inf"), 1e400, 0.5, "", "text", "\0", True, None, [], [1], {}, {"a": 1}]

checks = Checks()
pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2)
waiting = []
numbers, commands = itertools.count(), itertools.count()  # of files, of runs


def try_command(label, arguments, codes=DOCUMENTED, parts=()):
    """Queues one run, if it is this commit's turn; finish_group() judges it."""
    if next(commands) % 3 not in in_turn([0, 1, 2], 3):
        return
    def call():
        try:
            done = subprocess.run([BIN, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True,
                                  timeout=TIMEOUT)
            return done.returncode, done.stderr.decode(errors="replace")
        except subprocess.TimeoutExpired:
            return -999, "timeout"
    waiting.append((label, codes, parts, pool.submit(call)))


def finish_group(name):
    refused, start = 0, time.monotonic()
    for label, codes, parts, future in waiting:
        code, error = future.result()
        refused += code != 0
        checks.expect(code in codes, f"{name}: {label}: exit {code}", error)
        checks.expect(code == 0 or "hint:" in error, f"{name}: {label}: exit {code} without a hint", error)
        for part in parts:
            checks.expect(part in error, f"{name}: {label}: no \"{part}\"", error)
    print(f"{name}: {len(waiting)} runs, {refused} refused, {time.monotonic() - start:.0f} s", flush=True)
    waiting.clear()


def variant(folder, name, data):
    """A file of its own for one run."""
    path = pathlib.Path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def paths_of(value, path=()):
    """Every place in a JSON value: objects, lists and leaves."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths_of(item, (*path, key))


def replaced(value, path, new):
    """A copy with the value at `path` replaced; a dict key or list index each."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def check_run_file():
    """The file is parsed before the overrides: an unknown key there ends what would go on. `finished` reads run files as
    `train` does, and starts no message library before."""
    last = "no.such_key=1"
    text = subprocess.run([BIN, "init"], capture_output=True, check=True).stdout
    for end in range(0, len(text) + 64, 64):
        try_command(f"cut to {end} bytes", ["finished", variant(f"run/cut-{end}", "run.toml", text[:end]), last], [3])
    section, keys = "", []
    for line in text.decode().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif "=" in line and not line.startswith("#"):
            keys.append((section, line.split("=")[0].strip()))
    values = ["-1", "2147483648", "9223372036854775808", "nan", "\"text\"", "[[1]]", "1979-05-27", "{ a = 1 }"]
    for section, key in keys:
        for i, value in enumerate(values):
            body = f"[{section}]\n{key} = {value}\n"
            path = variant(f"run/{section}.{key}-{i}", "run.toml", body)
            try_command(f"{section}.{key} = {value}", ["finished", path, last], [3])
        path = variant(f"run/{section}.{key}-twice", "run.toml", body + body)
        try_command(f"{section}.{key} twice", ["finished", path, last], [3])
    for i, body in enumerate(["\xff\xfe", "\0", "[model", "model = 3", "[" * 5000, "a." * 5000 + "b = 1", "=",
                              "[model]\n= 1", "model = \"hf:\"", "x = '''" + "y" * 100, "[[model]]\nvocab = 1"]):
        try_command(f"text {i}", ["finished", variant(f"run/text-{i}", "run.toml", body.encode("latin-1")), last], [3])
    try_command("no file", ["train", "run/absent.toml"], [3])
    try_command("a folder", ["train", "run"], [3])
    finish_group("run file")

    # In range and absurd: found before anything is allocated; the data is not there in case anything goes on.
    write_run_file("small.toml", SMALL)
    for overrides in ["model.vocab=16777216 model.width=16777216", "model.layers=10000 model.width=65536",
                      "model.experts=65536 model.top_k=65536", "model.experts=65536 model.expert_width=16777216",
                      "model.heads=65536 model.head_dim=16384", "model.kv_heads=3", "model.dense_width=16777216",
                      "train.seq_len=4194304 train.global_batch=16777216", "train.micro_batches=16777216",
                      "train.global_batch=7", "mesh.ep=1048576", "mesh.pp=2", "mesh.tp=2",
                      "mesh.pp=65536 mesh.tp=65536", "mesh.zero=1",
                      "moe.row_headroom=1000000", "moe.row_chunks=1024", "train.device=cuda", "mesh.width_shares=3,1",
                      "memory.recompute=all"]:
        try_command(overrides, ["train", "small.toml", "data.path=absent", *overrides.split()], range(1, 10))
    finish_group("absurd sizes")


def safetensors(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def check_safetensors():
    source = SOURCE / "tests/golden/models/mixtral_top1"
    file = (source / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", file[:8])[0]
    header, data = json.loads(file[8:8 + length]), file[8 + length:]

    def commands(label, content, codes=(4,)):
        number = next(numbers)
        path = variant(f"safetensors/{number}", "model.safetensors", content)
        shutil.copy(source / "config.json", path.parent)
        try_command(f"{label}, import", ["import", path.parent, path.parent / "out"], codes)
        if number % 5 == 0:
            try_command(f"{label}, inspect", ["inspect", path], [0, *codes])
            try_command(f"{label}, parity", ["parity", source, path], range(1, 10))

    for end in [*range(0, 8 + length, 64), 8 + length, len(file) - 1]:
        commands(f"cut to {end} bytes", file[:end])
    for size in (0, 1, length - 1, length + 1, len(file), 2**31, 2**63, 2**64 - 1):
        commands(f"header size {size}", struct.pack("<Q", size) + file[8:])
    names = [name for name in header if name != "__metadata__"]
    for name in (names[0], names[len(names) // 2]):
        entry = header[name]
        for path in paths_of(entry):
            for value in VALUES if path else ["", None, [], {}]:
                changed = replaced(header, (name, *path), value)
                commands(f"{name} {path} = {value!r}", safetensors(changed, data), [0] if changed == header else [4])
        other = header[names[1]]
        overlap = {**header, name: {**entry, "data_offsets": other["data_offsets"]}}
        commands(f"{name} overlaps", safetensors(overlap, data))
        doubled = json.dumps(header).replace("{", "{" + json.dumps(name) + ": " + json.dumps(entry) + ", ", 1)
        commands(f"{name} twice", safetensors(doubled.encode(), data))
        commands(f"{name} missing", safetensors({k: v for k, v in header.items() if k != name}, data))
    commands("longer", file + b"\0")
    finish_group("safetensors")

    # A name is shown, not sent to the terminal.
    escape = {"\x1b[2J": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    path = variant("safetensors/escape", "model.safetensors", safetensors(escape, bytes(4)))
    shown = subprocess.run([BIN, "inspect", path], capture_output=True).stdout
    checks.expect(b"\\x1b[2J" in shown and b"\x1b" not in shown, "inspect sends a name's control bytes", repr(shown))


def check_config():
    source = SOURCE / "tests/golden/models/mixtral_top1"
    text = (source / "config.json").read_text()
    config = json.loads(text)

    def command(label, content, codes=DOCUMENTED):
        path = variant(f"config/{next(numbers)}", "config.json", content)
        os.symlink(source / "model.safetensors", path.parent / "model.safetensors")
        try_command(label, ["import", path.parent, path.parent / "out"], codes)

    for end in range(0, len(text) - 1, 64):
        command(f"cut to {end} bytes", text[:end], [3])
    for path in paths_of(config):
        for value in [-1, 2**31, 2**63, 2**64, float("nan"), 1e400, "text", "", None, [], {}, [[1]]]:
            command(f"{path} = {value!r}", json.dumps(replaced(config, path, value)), [3] if not path else DOCUMENTED)
    for key, value in config.items():
        command(f"{key} twice", text.replace("{", "{" + json.dumps(key) + ": " + json.dumps(value) + ",", 1), [3])
    for key in ("vocab_size", "hidden_size", "intermediate_size", "num_local_experts"):
        command(f"{key} = 65536", json.dumps({**config, key: 2**16}), range(1, 10))
    command("terabytes", json.dumps({**config, "vocab_size": 2**24, "hidden_size": 2**20}), range(1, 10))
    command("many layers", json.dumps({**config, "num_hidden_layers": 10000, "hidden_size": 2**20}), range(1, 10))
    command("deep nesting", "[" * 100000, [3])
    command("a zero byte", text.replace("{", "{\0", 1), [3])
    finish_group("config.json")


def check_token_files():
    lengths, offsets, documents = [3, 0, 1, 5] * 20, [], list(range(0, 81))
    at = 0
    for n in lengths:
        offsets.append(at)
        at += 2 * n
    index = (b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(documents)) + struct.pack("<80i", *lengths)
             + struct.pack("<80q", *offsets) + struct.pack("<81q", *documents))

    def megatron(label, content, codes=(4,), tokens=bytes(at)):
        path = variant(f"megatron/{next(numbers)}", "d.idx", content)
        variant(path.parent, "d.bin", tokens)
        try_command(label, ["inspect", path], codes)

    megatron("whole", index, [0])
    for end in range(0, len(index), 64):
        megatron(f"cut to {end} bytes", index[:end])
    for name, place, form in [("version", 9, "<Q"), ("dtype", 17, "<B"), ("sequences", 18, "<Q"),
                              ("documents", 26, "<Q"), ("length 0", 34, "<I"), ("length 79", 34 + 4 * 79, "<I"),
                              ("offset 1", 354 + 8, "<Q"), ("offset 79", 354 + 8 * 79, "<Q"),
                              ("document 0", 994, "<Q"), ("document 80", 994 + 640, "<Q")]:
        width = struct.calcsize(form)
        for value in (2**64 - 1, 2**31, 2**63, 2**62, 2**32 - 1, 77, 0x7ff8 << 48):
            raw = struct.pack("<Q", value)[:width]
            changed = index[:place] + raw + index[place + width:]
            megatron(f"{name} = {value}", changed, [4] if changed != index and name != "length 0" else [0, 4])
    megatron("overlap", index[:354 + 8 * 4] + struct.pack("<q", 4) + index[354 + 8 * 5:])
    megatron("modes", index + bytes(80), [0])
    megatron("short .bin", index, tokens=bytes(at - 1))
    finish_group("token index")

    shard = struct.pack("<256i", 20240520, 1, 100, *[0] * 253) + bytes(200)

    def llm_c(label, content, codes=(4,)):
        try_command(label, ["inspect", variant(f"shard/{next(numbers)}", "d.bin", content)], codes)

    llm_c("whole", shard, [0])
    for end in range(0, len(shard), 64):
        llm_c(f"cut to {end} bytes", shard[:end])
    for place, name in enumerate(["magic", "version", "count"]):
        for value in (-1, 0, 7, 2**31 - 1, -2**31, 101, 99, 20240801):
            llm_c(f"{name} = {value}", shard[:4 * place] + struct.pack("<i", value) + shard[4 * place + 4:])
    finish_group("token shard")


def check_checkpoint_index():
    """With a DONE that fits, so that the parser sees what was changed."""
    library = ctypes.util.find_library("xxhash") or "libxxhash.so.0"
    try:
        xxh3 = ctypes.CDLL(library).XXH3_64bits
    except OSError:
        print(f"checkpoint index: {library} not found, nothing tried")
        return
    xxh3.restype, xxh3.argtypes = ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_size_t]
    write_corpus("text", files=2)
    result = run(1, "train", "small.toml", "train.steps=1", "model.layers=2", "checkpoint.dir=index/whole")
    checks.expect(result.code == 0, f"checkpoint index: training: exit {result.code}", result.output)
    source = pathlib.Path("index/whole/step-00000001")
    text = (source / "index.json").read_text()
    index = json.loads(text)

    def command(label, content, codes=(5,)):
        content = content.encode()
        number = next(numbers)
        folder = variant(f"index/{number}/step-00000001", "index.json", content).parent
        variant(folder, "DONE", f"{xxh3(content, len(content)):016x}\n")
        os.symlink(source.resolve() / "rank-00000.safetensors", folder / "rank-00000.safetensors")
        try_command(f"{label}, inspect", ["inspect", folder], codes)
        if number % 20 == 0:
            try_command(f"{label}, train", ["train", "small.toml", "model.layers=2", "train.steps=1", "train.threads=1",
                                            f"checkpoint.resume={folder}"], codes)

    command("whole", text, [0])
    for end in [*range(0, min(len(text) - 2, 4096), 64), len(text) // 2, len(text) - 3]:
        command(f"cut to {end} bytes", text[:end])
    places = [path for path in paths_of(index) if path[:1] not in (("slices",), ("tensors",))]
    places += [("tensors",), ("slices",), ("slices", 0)] + [("slices", 3, key) for key in index["slices"][3]]
    first = next(iter(index["tensors"]))
    places += [("tensors", first), ("tensors", first, 0)]
    harmless = {("run",), ("step",), ("samples",), ("loss",), ("data_tokens",), ("data_tokens", 0), ("slices", 3, "key"),
                ("slices", 3, "xxh3"), ("slices", 3, "file")}
    for path in places:
        for value in VALUES:
            changed = replaced(index, path, value)
            legal = path in harmless or changed == index
            command(f"{path} = {value!r}", json.dumps(changed), [0, 5] if legal else [5])
    for value in ("../rank-00000.safetensors", "/etc/passwd", ".", "a\0b"):
        command(f"file {value!r}", json.dumps(replaced(index, ("slices", 3, "file"), value)))
    one = index["slices"][3]
    command("a slice twice", json.dumps({**index, "slices": [*index["slices"], one]}))
    command("a slice missing", json.dumps({**index, "slices": index["slices"][:3] + index["slices"][4:]}))
    command("an unlisted tensor", json.dumps({**index, "slices": [*index["slices"], {**one, "tensor": "param.x"}]}))
    for key in ("step", "slices", "tensors", "format"):
        command(f"{key} twice", text.replace("{", "{" + json.dumps(key) + ": " + json.dumps(index[key]) + ",", 1))
    finish_group("checkpoint index")


def check_shrinking_file():
    """Of a file that becomes shorter while it is read, the process says so before it dies."""
    tokens = array.array("i", [20240801, 7, 1 << 20] + [0] * 253 + [1] * (1 << 20))
    path = variant("shrinking", "tokens.bin", tokens.tobytes())
    job = Job(1, "train", write_run_file(), "data.kind=shards", f"data.path={path}", "train.steps=1000000",
              "log.jsonl=shrinking/metrics.jsonl")
    checks.expect(job.wait_until(lambda: len(read_metrics("shrinking")) > 1), "shrinking: no step", job.output())
    os.truncate(path, 4096)
    checks.expect(job.wait() == -signal.SIGBUS, "shrinking: another end", job.output())
    checks.expect("became shorter" in job.output() and "hint:" in job.output(), "shrinking: no reason", job.output())


for check in (check_run_file, check_safetensors, check_config, check_token_files, check_checkpoint_index, check_shrinking_file):
    check()
checks.finish()
