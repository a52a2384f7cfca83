#!/usr/bin/env bash
# Prints docs/run_file.md from the keys that the binary knows:
#   tools/make_run_file_docs.sh > docs/run_file.md
# MOEWRIGHT_BIN names another binary than build/release/moewright. tests/cli/run_file_docs.sh holds the two together.
set -euo pipefail
bin=${MOEWRIGHT_BIN:-$(dirname "$0")/../build/release/moewright}

cat <<'HEAD'
# Run file

<!-- Written by tools/make_run_file_docs.sh from `moewright init`; change the table of keys in src/config/run_keys.cpp. -->

A run file is TOML; every key is optional. `moewright init run.toml` writes one with every key, its default and its
meaning. Unknown keys, wrong types and values out of range are errors before anything is allocated.

- `key=value` after the run file overrides a key, by its dotted name: `train.lr=1e-3 mesh.ep=4`. The last one counts.
  A list needs shell quotes: `'data.suffixes=[".md", ".txt"]'`.
- Instead of the `[model]` table, `model = "hf:DIR"` takes a Hugging Face model folder (`config.json` and safetensors)
  of a [supported family](formats.md#model-families). It stands at the top of the file, before the first table.
- Paths are relative to the directory that the command runs in.
- The data-parallel size follows from the number of ranks: ranks / (`mesh.pp` x `mesh.tp`). `train.global_batch` must
  be a multiple of `train.micro_batches` x data-parallel size.
- Some values are accepted but not supported yet; they end the run with exit code 9. [limits.md](limits.md) lists them.
HEAD

"$bin" init | awk '
  function code(text) { return "`" text "`" }
  /^#/ || /^$/ { next }
  /^\[/ {
    printf "\n## %s\n\n| key | default | meaning |\n|---|---|---|\n", $0
    next
  }
  {
    at = index($0, " # ")
    setting = substr($0, 1, at - 1); meaning = substr($0, at + 3)
    sub(/ +$/, "", setting)
    equals = index(setting, " = ")
    key = substr(setting, 1, equals - 1); value = substr(setting, equals + 3)
    open = match(meaning, /\([^()]* \| [^()]*\)$/)
    if (open) {  # the choices
      count = split(substr(meaning, open + 1, length(meaning) - open - 1), choices, / *\| */)
      meaning = substr(meaning, 1, open - 2) "; one of "
      for (i = 1; i <= count; ++i) meaning = meaning (i == 1 ? "" : ", ") code(choices[i] == "" ? "\"\"" : choices[i])
    }
    gsub(/\|/, "\\|", meaning)
    printf "| `%s` | %s | %s |\n", key, code(value), meaning
  }'
