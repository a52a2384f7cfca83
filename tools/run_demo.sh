#!/usr/bin/env bash
# Trains examples/demo.toml on two MPI ranks; arguments go to `moewright train` (for example train.steps=100).
# MOEWRIGHT_MPIRUN names another launcher than the one of the default build.
set -euo pipefail
cd "$(dirname "$0")/.."

# By its own name: `mpirun` may mean MPICH where both are installed, and the default build is against Open MPI.
mpirun=${MOEWRIGHT_MPIRUN:-}
for name in mpirun.openmpi mpirun; do
  [[ -n $mpirun ]] || ! command -v "$name" >/dev/null || mpirun=$name
done
if [[ -z $mpirun ]]; then
  echo "demo: no mpirun found" >&2
  echo "hint: install Open MPI (tools/setup.sh does on Debian), or run: build/release/moewright train examples/demo.toml mesh.ep=1" >&2
  exit 1
fi

flags=()
version=$("$mpirun" --version 2>&1 || true)
if [[ $version == *"Open MPI"* || $version == *OpenRTE* ]]; then
  # Two ranks also on one core, and threads that may use every core; MPICH does both by default.
  flags+=(--oversubscribe --bind-to none)
  [[ $(id -u) == 0 ]] && flags+=(--allow-run-as-root)
fi
rm -rf build/demo  # the demo starts anew each time
"$mpirun" "${flags[@]}" -np 2 build/release/moewright train examples/demo.toml "$@"
if compgen -G "build/demo/step-*/DONE" >/dev/null; then
  echo
  echo "The model is in build/demo. Look at it further:"
  echo "  build/release/moewright inspect build/demo"
  echo "  build/release/moewright report build/demo                       # writes build/demo/report.html"
  echo "  build/release/moewright sample build/demo sample.prompt='#include <'"
  echo "  build/release/moewright export build/demo build/demo-hf          # for Hugging Face transformers"
fi
