#!/usr/bin/env python3
"""A training step in torchtitan, compiled, with expert parallelism on the GPUs of one host: the peer of bench/train_step.py
on the shape of examples/bench/qwen3_30b_8_layers.toml.

    torchrun --standalone --nproc-per-node 2 bench/train_step_torchtitan.py --sequences 8 --json FILE

torchtitan's own trainer, model (Qwen3), FSDP, optimizer and gradient clipping; only the data is ours: random tokens. As its
defaults are, master weights, gradients and states of AdamW are in fp32, and products in bf16. Nothing is recomputed. The
first three steps are left out; the median of the rest is reported.

Needs torchtitan 0.2.2, torchdata and tyro. The packages datasets and tensorboard are not used, and may be missing.
"""
import argparse
import dataclasses
import importlib
import json
import os
import pathlib
import statistics
import sys
import time
from unittest import mock

import torch

UNUSED = ["datasets", "datasets.distributed", "torch.utils.tensorboard"]  # that torchtitan imports anyway
LEFT_OUT = 3
LAYERS = 8


def stand_in_for_unused():
    for name in UNUSED:
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = mock.MagicMock()


class RandomTokens:
    """Batches as torchtitan's loaders return them."""

    def __init__(self, vocab, sequences, seq_len, rank):
        self.shape, self.vocab = (sequences, seq_len + 1), vocab
        self.draw = torch.Generator().manual_seed(rank)

    def __iter__(self):
        while True:
            tokens = torch.randint(self.vocab, self.shape, generator=self.draw)
            yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()


def job(args, ranks):
    from torchtitan.config import JobConfig
    config = JobConfig()
    config.model.name, config.model.flavor = "qwen3_cut", args.flavor
    config.training.local_batch_size, config.training.seq_len = args.sequences, args.seq_len
    config.training.steps = LEFT_OUT + args.steps
    config.parallelism.expert_parallel_degree = ranks
    config.activation_checkpoint.mode = "none"
    config.compile.enable = not args.eager
    config.optimizer.lr, config.lr_scheduler.warmup_steps = 1e-4, 0
    config.metrics.log_freq = config.training.steps + 1  # its log forgets the peak of memory
    config.comm.init_timeout_seconds = config.comm.train_timeout_seconds = 600
    return config


def register(args):
    from torchtitan.models import qwen3
    from torchtitan.protocols import train_spec
    spec = qwen3.get_train_spec()
    shape = dataclasses.replace(spec.model_args[args.flavor], n_layers=LAYERS, max_seq_len=args.seq_len)

    def load(dp_world_size, dp_rank, tokenizer, job_config):
        return RandomTokens(shape.vocab_size, args.sequences, args.seq_len, dp_rank)
    train_spec.register_train_spec("qwen3_cut", dataclasses.replace(
        spec, model_args={args.flavor: shape}, build_dataloader_fn=load, build_tokenizer_fn=None))
    return shape


def flops_per_token(shape, seq_len):
    """Training is 3 x forward_flops_per_token of src/config/model_spec.h: active weights and causal attention."""
    d, q, kv = shape.dim, shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    attention = 2 * d * (2 * q + 2 * kv) + 2 * (seq_len + 1) * q
    experts = shape.moe_args.top_k * 2 * 3 * d * shape.moe_inter_dim + 2 * d * shape.moe_args.num_experts
    return 3 * (2 * d * shape.vocab_size + shape.n_layers * (attention + experts))


def measure(args, ranks):
    from torchtitan.train import Trainer
    shape = register(args)
    trainer = Trainer(job(args, ranks))
    batches = trainer.batch_generator(trainer.dataloader)
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    seconds = []
    for step in range(LEFT_OUT + args.steps):
        trainer.step += 1
        trainer.gc_handler.run(trainer.step)
        wait()
        begin = time.perf_counter()
        trainer.train_step(batches)
        wait()
        seconds.append(time.perf_counter() - begin)
    step = statistics.median(seconds[LEFT_OUT:])
    flops, rate = flops_per_token(shape, args.seq_len), args.sequences * args.seq_len / step
    result = {"step_ms": step * 1e3, "flops_per_token": flops, "tokens_per_s": rate * ranks,
              "tflops_per_rank": rate * flops * 1e-12, "first_step_s": seconds[0]}
    if torch.cuda.is_available():
        result["mem_peak_bytes"] = torch.cuda.max_memory_allocated()
    trainer.close()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=8, help="of each rank")
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--flavor", default="30B-A3B", help="one of torchtitan's Qwen3 models with experts")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--json")
    args = parser.parse_args()
    stand_in_for_unused()
    ranks = int(os.environ["WORLD_SIZE"])
    import torchtitan
    result = {"benchmark": "train_step_torchtitan", "mode": "eager" if args.eager else "compile", "flavor": args.flavor,
              "layers": LAYERS, "ep": ranks, "sequences": args.sequences, "seq_len": args.seq_len,
              "torch": torch.__version__, "torchtitan": getattr(torchtitan, "__version__", None)}
    result.update(measure(args, ranks))
    if int(os.environ["RANK"]) == 0:
        text = json.dumps(result, indent=2)
        print(text, flush=True)
        if args.json:
            pathlib.Path(args.json).write_text(text + "\n")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
