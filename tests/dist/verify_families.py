"""`verify` passes for models of the Hugging Face families whose attention or router has more than a [model] table can say:
biases, a rotated part of each head, norm after rotary embedding, sliding windows, a gate of shared experts, another
number of experts or of choices in each layer, sinks, biases of experts. One commit runs a third of the layouts, or all
with MOEWRIGHT_TEST_ALL=1."""

import os
import pathlib
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import SOURCE, Checks, in_turn, run  # noqa: E402

CASES = [  # model, overrides; 4 ranks
    ("glm4_groups", "mesh.tp=4 mesh.ep=2"),  # two ranks share a key/value head
    ("dots1_bias", "mesh.tp=2 mesh.ep=4 mesh.zero=1 data.document_mask=true"),
    ("glm4_lite_types", "mesh.tp=2 mesh.ep=2 moe.tp_mode=ted data.document_mask=true"),
    ("glm4_lite", "mesh.pp=2 mesh.ep=2 mesh.zero=1 memory.recompute=moe"),
    ("solar_open", "mesh.tp=4 moe.tp_mode=ted memory.recompute=selective"),
    ("hy_v3_types", "mesh.pp=2 mesh.ep=2 moe.transport=gather_weights"),
    ("minimax_m2_v4", "mesh.tp=2 mesh.ep=2 memory.recompute=full moe.aux_scope=model"),
    ("qwen2_window", "mesh.tp=2 mesh.ep=2 moe.tp_mode=ted memory.recompute=selective data.document_mask=true"),
    ("qwen2_window", "mesh.pp=2 mesh.ep=2 mesh.schedule=zb_v memory.recompute=selective moe.aux_scope=model"),
    ("hunyuan_list", "mesh.pp=2 mesh.tp=2 mesh.ep=2 mesh.schedule=zb_h1"),
    ("hunyuan_list", "mesh.ep=4 moe.transport=bypass mesh.ranks_per_node=2 moe.row_chunks=2 memory.recompute=moe"),
    ("hunyuan_list", "mesh.tp=2 mesh.ep=4 moe.transport=halo mesh.ranks_per_node=2 memory.recompute=full "
                     "moe.replica_slots=1 debug.migrate=true"),
    ("ernie_range", "mesh.ep=4 mesh.zero=1 moe.aux_scope=model"),
    ("dots1_window", "mesh.tp=2 mesh.ep=2 train.dtype=bf16"),
    ("gpt_oss", "mesh.tp=4 mesh.ep=4 mesh.zero=1 data.document_mask=true"),
    ("gpt_oss", "mesh.tp=2 mesh.ep=2 moe.tp_mode=ted memory.recompute=selective"),
    ("gpt_oss", "mesh.pp=2 mesh.ep=2 mesh.schedule=zb_h1 moe.transport=gather_weights memory.recompute=selective"),
    ("gpt_oss", "mesh.ep=4 moe.transport=bypass mesh.ranks_per_node=2 moe.replica_slots=1 moe.aux_scope=model "
                "debug.migrate=true verify.steps=3"),  # migrations fill the slots; the third step needs new replicas
    ("gpt_oss_tied", "mesh.ep=2 mesh.zero=1 train.dtype=bf16 memory.expert_gradients=bf16"),
]

checks = Checks()
settings = (SOURCE / "examples/verify.toml").read_text().partition("[train]")
for name, overrides in in_turn(CASES, 3):
    toml = pathlib.Path(f"{name}.toml")
    toml.write_text(f'model = "hf:{SOURCE / "tests/golden/models" / name}"\n[train]{settings[2]}')
    result = run(4, "verify", toml, *overrides.split(), "train.threads=1")
    print(f"{name} {overrides}: {result.output.strip().splitlines()[-1]}", flush=True)
    checks.expect(result.code == 0 and "verify: passed" in result.output, f"{name} {overrides}: exit {result.code}",
                  result.output)
checks.finish()
