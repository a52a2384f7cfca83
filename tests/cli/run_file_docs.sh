#!/usr/bin/env bash
# docs/run_file.md says what the binary does, key by key.
set -euo pipefail
"$MOEWRIGHT_SOURCE/tools/make_run_file_docs.sh" > run_file.md
if ! diff -u "$MOEWRIGHT_SOURCE/docs/run_file.md" run_file.md; then
  echo "hint: tools/make_run_file_docs.sh > docs/run_file.md"
  exit 1
fi
grep -q '^| `global_batch` |' run_file.md  # not two equal empty files
