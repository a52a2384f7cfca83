"""`moewright report`: a page that loads nothing from elsewhere, with well-formed SVGs and images that decode."""

import base64
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree
import zlib

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
sys.dont_write_bytecode = True
from _jobs import BIN, Checks, outputs, run, write_corpus, write_run_file  # noqa: E402

checks = Checks()


def pixels(png):
    """Size and rows of palette indices of an image."""
    checks.expect(png[:8] == b"\x89PNG\r\n\x1a\n", "no PNG")
    at, parts = 8, {}
    while at < len(png):
        size, kind = struct.unpack_from(">I4s", png, at)
        data = png[at + 8:at + 8 + size]
        checks.expect(struct.unpack_from(">I", png, at + 8 + size)[0] == zlib.crc32(kind + data), f"{kind}: checksum")
        parts[kind] = data
        at += 12 + size
    width, height = struct.unpack_from(">II", parts[b"IHDR"])
    data = zlib.decompress(parts[b"IDAT"])
    checks.expect(len(data) == height * (width + 1), f"{width} x {height} pixels of {len(data)} bytes")
    return width, height, [data[y * (width + 1) + 1:(y + 1) * (width + 1)] for y in range(height)]


def check_page(path, curves, layers, steps):
    html = pathlib.Path(path).read_text()
    for word in ("<script", "http://", "https://", "url(", "@import"):
        checks.expect(word not in html, f"{path} holds {word}")
    svgs = re.findall(r"<svg.*?</svg>", html, re.S)
    checks.expect(len(svgs) == curves + 1 + layers + 2, f"{path}: {len(svgs)} SVGs, expected {curves} + 1 + {layers} + 2")
    for svg in svgs:
        xml.etree.ElementTree.fromstring(svg)
    for title in ("Loss", "Gradient norm", "Learning rate", "Speed", "Memory of the largest rank",
                  "Where the time of rank 0 goes", "Imbalance", "validation"):
        checks.expect(f">{title}<" in html, f"{path}: no {title!r}")
    images = [pixels(base64.b64decode(text)) for text in re.findall(r"data:image/png;base64,([^\"]*)", html)]
    sizes = [image[:2] for image in images]
    checks.expect(sizes[0] == (steps, layers) and sizes[2:2 + layers] == [(steps, 8)] * layers, f"{path}: images {sizes}")
    return images


write_corpus("text")
write_run_file()
result = run(1, "train", "run.toml", *outputs("run"), "train.val_batches=1", "train.val_every=4")
checks.expect(result.code == 0, "train", result.output)
result = run(1, "report", "run")
checks.expect(result.code == 0 and "wrote run/report.html" in result.output, f"report: exit {result.code}", result.output)
images = check_page("run/report.html", curves=8, layers=2, steps=12)

# The busiest expert of the first layer's first step is the reddest pixel of its column, as in the metrics.
load = json.loads(pathlib.Path("run/metrics.jsonl").read_text().splitlines()[0])["expert_load"][0]
column = [row[0] for row in images[2][2]]
checks.expect(column[load.index(max(load))] == max(column), f"load {load} drawn as {column}")

# With several ranks and a platform, predictions stand beside what was measured; even loads are met roughly.
result = run(2, "train", "run.toml", *outputs("two"), "mesh.ep=2", "moe.aux_loss_coef=0.1", "train.threads=1",
             f"plan.platform={os.environ['MOEWRIGHT_SOURCE']}/profiles/xeon_amx_2_cores.json")
for line in (r"predicted by .*xeon_amx_2_cores.json: [\d.]+ ms a step \(compute", r"time of a step: [\d.]+ ms in the median, ",
             r"sent for routed experts to other ranks: .* predicted for even loads"):
    checks.expect(result.code == 0 and re.search(line, result.output), f"no line {line}", result.output)
last = json.loads([l for l in pathlib.Path("two/metrics.jsonl").read_text().splitlines() if "step_ms" in l][-1])
checks.expect(0.7 < last["exchanged_bytes"] / last["exchanged_predicted_bytes"] < 1.3, f"exchanged: {last}")
checks.expect(abs(sum(last["predicted_ms"].values()) / last["predicted_step_ms"] - 1) < 1e-9, f"parts: {last}")
result = run(1, "report", "two")
html = pathlib.Path("two/report.html").read_text()
checks.expect("Predicted and measured" in html and "its parts" in html and "sent for routed experts" in html, "no table", html[:2000])

# Gone on with in another layout and without a platform, nothing of the first stands for how the run is now.
result = run(1, "train", "run.toml", *outputs("two"), "train.steps=14", "checkpoint.resume=auto", "train.val_batches=1",
             "train.val_every=13")
checks.expect(result.code == 0, "resumed", result.output)
run(1, "report", "two")
html = pathlib.Path("two/report.html").read_text()
for words, there in (("1 to 14", True), ("quarter of the steps from 13 on", True), ("its parts", False),
                     ("sent for routed experts", False)):
    checks.expect((words in html) == there, f"resumed: \"{words}\" {'is missing' if there else 'stands there'}", html[:9000])
result = run(1, "train", "run.toml", *outputs("none"), "plan.platform=absent.json", "train.steps=1")
checks.expect(result.code == 0 and "no time is predicted: cannot open absent.json" in result.output, "absent profile", result.output)

# Under a launcher one rank writes it.
result = run(2, "report", "run", "-o", "once.html")
checks.expect(result.code == 0 and result.output.count("wrote once.html") == 1, f"two ranks: exit {result.code}", result.output)
done = subprocess.run([BIN, "report", "run", "-o", "other.html"], env={**os.environ, "RANK": "1", "WORLD_SIZE": "2"},
                      capture_output=True, text=True)
checks.expect(done.returncode == 0 and not done.stdout and not pathlib.Path("other.html").exists(), "RANK=1",
              done.stdout + done.stderr)

# A run that was killed leaves a cut line; other names and outputs work.
metrics = pathlib.Path("run/metrics.jsonl").read_text()
pathlib.Path("other.jsonl").write_text(metrics + '{"step": 13, "loss": 2.')
result = run(1, "report", "other.jsonl", "-o", "page.html")
checks.expect(result.code == 0 and "1 lines of the metrics" in pathlib.Path("page.html").read_text(), "a cut line", result.output)

# Several runs in one page.
result = run(1, "report", "run", "two", "other.jsonl", "-o", "compared.html")
html = pathlib.Path("compared.html").read_text()
checks.expect(result.code == 0 and "<td>mesh.ep</td>" not in html and "<td>plan.platform</td>" not in html and
              "<td>log.jsonl</td>" in html, f"comparison: exit {result.code}", result.output)
for svg in re.findall(r"<svg.*?</svg>", html, re.S):
    xml.etree.ElementTree.fromstring(svg)
for word in ("<script", "http://", "https://", "url(", "@import"):
    checks.expect(word not in html, f"compared.html holds {word}")

# What is no report stays.
metrics = pathlib.Path("other.jsonl").read_bytes()
for arguments, code, text in ((["run", "-o", "other.jsonl"], 2, "other.jsonl exists and is no report"), (["run", "-o", "page.html"], 0, "wrote page.html"),
                              (["absent"], 4, "absent does not exist"), (["text"], 4, "unless log.jsonl names another"), (["run.toml"], 4, "contains no training step"),
                              ([], 2, "RUN_DIR"), (["run", "two"], 2, "needs a name"),
                              (["run"] * 11 + ["-o", "page.html"], 2, "at most 10"), (["run", "-o", "/dev/null/x.html"], 4, "/dev/null/x.html")):
    result = run(1, "report", *arguments)
    checks.expect(result.code == code and text in result.output, f"report {arguments}: exit {result.code}", result.output)
checks.expect(pathlib.Path("other.jsonl").read_bytes() == metrics, "the metrics changed")
checks.finish()
