"""QK-clip: layouts clip as one process does, a rank that knows only its own logits is found out, and a run that clips can
be resumed. Unit tests compare with the closed form."""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, SOURCE, outputs, read_metrics, run, same_bits, write_corpus, write_run_file  # noqa: E402

checks = Checks()
LIMIT = 0.05
CLIP = ["model.layers=4", "model.qk_norm=none", f"train.qk_clip={LIMIT}"]
LATENT = "model.attention=latent model.kv_heads=0 model.head_dim=0 model.q_rank=24"


def verify(ranks, text, *overrides):
    result = run(ranks, "verify", SOURCE / "examples" / "verify.toml", "verify.steps=2", *CLIP, *text.split(), *overrides)
    print(f"{result.seconds:5.1f} s  verify -np {ranks} {text}", flush=True)
    return result


for ranks, text in [
    (4, "mesh.tp=2 mesh.ep=2 mesh.zero=1"),
    (4, "mesh.tp=4 mesh.ep=2 model.heads=8 model.kv_heads=2 train.optimizer=muon"),  # ranks share key heads
    (4, "mesh.pp=2 mesh.ep=2 train.optimizer=muon mesh.zero=1 memory.recompute=full"),
    (2, "mesh.zero=1 train.dtype=bf16"),
    (4, f"mesh.tp=2 mesh.ep=4 mesh.zero=1 {LATENT}"),
    (2, f"mesh.pp=2 mesh.schedule=zb_v {LATENT} model.q_rank=0"),
]:
    result = verify(ranks, text)
    logits = [float(value) for value in re.findall(r"largest logits +([\d.]+) ", result.output)]
    checks.expect(result.code == 0, f"{text}: exit {result.code}", result.output)
    checks.expect(len(logits) == 2 and min(logits) > LIMIT, f"{text}: largest logits {logits}", result.output)

for text in ("mesh.ep=2", "mesh.tp=2", "mesh.pp=2"):
    result = verify(2, text, "debug.fault=local_largest_logits")
    checks.expect(result.code == 1 and re.search(r"largest logits .*FAIL: tolerance", result.output),
                  f"local_largest_logits with {text}: exit {result.code}", result.output)

write_corpus("text")
RUN = write_run_file()


def train(name, *overrides):
    result = run(2, "train", RUN, *outputs(name), "mesh.ep=2", "train.schedule=constant", "train.optimizer=muon",
                 "model.qk_norm=none", *overrides)
    checks.expect(result.code == 0, f"{name} {overrides}: exit {result.code}", result.output)
    return {step: float(line["largest_logit"]) for step, line in read_metrics(name).items() if "largest_logit" in line}


free = train("free", "train.qk_clip=1e9")
limit = f"train.qk_clip={0.5 * free[1]}"
whole = train("whole", limit)
checks.expect(whole[1] == free[1] and whole[12] < 0.8 * free[12], f"clipped {whole}, free {free}")
train("parts", limit, "train.steps=6")
train("parts", limit, "checkpoint.resume=auto")
same_bits(checks, "resumed", read_metrics("whole"), read_metrics("parts"))
checks.expect(not train("off"), "the largest logit without train.qk_clip")
checks.finish()
