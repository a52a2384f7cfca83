#include "cli/examples.h"

#include <string_view>

namespace mw {
namespace {

struct Example {
  std::string_view command, line;
};

constexpr Example kExamples[] = {
    {"train", "moewright train run.toml train.lr=1e-3 checkpoint.dir=runs/a"},
    {"train", "mpirun -np 8 moewright train run.toml mesh.ep=8 --dry-run"},
    {"train", "moewright train run.toml checkpoint.dir=runs/a checkpoint.resume=auto"},
    {"finished",
     "until moewright finished run.toml; do mpirun -np 8 moewright train run.toml checkpoint.resume=auto || break; "
     "done"},
    {"verify", "mpirun -np 4 moewright verify examples/verify.toml mesh.ep=4"},
    {"verify", "mpirun -np 4 moewright verify examples/verify.toml mesh.pp=2 mesh.ep=2 train.dtype=bf16"},
    {"parity", "moewright parity tests/golden/models/mixtral tests/golden/models/mixtral/golden.safetensors"},
    {"sample", "moewright sample runs/a sample.tokens=200 'sample.prompt=int main('"},
    {"sample", "moewright sample runs/a --prompts prompts.txt sample.top_k=0 sample.top_p=0.9"},
    {"sample", "moewright sample run.toml --checkpoint runs/a/step-00000100 sample.temperature=0"},
    {"sample", "moewright sample runs/talks --chat chatml --prompts questions.txt > answers.jsonl"},
    {"chat", "moewright chat runs/a sample.temperature=0.5"},
    {"chat", "moewright chat runs/a sample.tokens=100 < questions.txt > answers.txt"},
    {"evaluate", "moewright evaluate runs/a data.val_path=held-out.txt --all"},
    {"evaluate", "mpirun -np 8 moewright evaluate runs/a --questions questions.jsonl"},
    {"import", "moewright import Qwen3-30B-A3B runs/qwen"},
    {"export", "moewright export runs/a exported --dtype bf16"},
    {"tokenize", "moewright tokenize web.jsonl.zst books -t tokenizer.json -o data/corpus"},
    {"tokenize", "moewright tokenize talks.jsonl -t Qwen3-30B-A3B --chat qwen3 -o data/talks"},
    {"inspect", "moewright inspect runs/a"},
    {"inspect", "moewright inspect data/corpus.idx"},
    {"report", "moewright report runs/a"},
    {"report", "moewright report runs/a/metrics.jsonl -o a.html"},
    {"report", "moewright report runs/a runs/b -o compared.html"},
    {"init", "moewright init run.toml model.width=512 model.layers=8 data.path=text"},
    {"init", "moewright init run.toml model.preset=qwen3-30b-a3b --platform profiles/h200x8.json --ranks 8"},
    {"init", "moewright init run.toml --model Qwen3-30B-A3B data.kind=megatron data.path=data/corpus"},
    {"schedule", "moewright schedule 1f1b --ranks 4 --micro-batches 8"},
    {"schedule", "moewright schedule zb_v --ranks 4 --micro-batches 8 --costs 1,1,1 --svg schedule.svg"},
    {"plan", "moewright plan examples/plan-qwen3-30b.toml"},
    {"plan", "moewright plan run.toml --platform profiles/h200x8.json --ranks 8 --emit best.toml"},
    {"plan", "moewright plan run.toml --why \"ep=8 micro_batches=8\""},
    {"doctor", "mpirun -np 8 moewright doctor --dir runs"},
    {"probe", "mpirun -np 8 moewright probe --budget 5m -o machine.json"},
    {"completion", "moewright completion bash > ~/.local/share/bash-completion/completions/moewright"},
    {"manual", "moewright manual > moewright.1"},
};

}  // namespace

std::string examples_of(const std::string& command) {
  std::string text;
  for (const Example& example : kExamples)
    if (example.command == command) text += "\n  " + std::string(example.line);
  return text.empty() ? text : "Examples:" + text;
}

}  // namespace mw
