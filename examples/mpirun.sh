#!/usr/bin/env bash
# Trains with N ranks on this machine, or on the hosts of a host file, with Open MPI:
#   examples/mpirun.sh 4 examples/text.toml mesh.ep=4 data.path=FILE_OR_FOLDER
# Run it again to resume from the newest complete checkpoint.
# Ctrl-C (or SIGTERM to this script): the first makes all ranks save a checkpoint and stop, the second ends them at once.
# A bare mpirun cannot do that: it kills its ranks two seconds after a Ctrl-C.
set -euo pipefail
if [[ $# -lt 2 ]]; then
  echo "usage: $0 RANKS RUN.toml [key=value ...]" >&2
  exit 2
fi
ranks=$1
shift
bin=${MOEWRIGHT_BIN:-build/release/moewright}
[[ -x $bin ]] || bin=$(command -v moewright) || { echo "$0: no build/release/moewright here; run make, or set MOEWRIGHT_BIN" >&2; exit 2; }

flags=(
  --bind-to none  # threads may use every core; Moewright gives each rank cores / ranks of the node
)
[[ -z ${HOSTFILE:-} ]] || flags+=(--hostfile "$HOSTFILE")
[[ $(id -u) != 0 ]] || flags+=(--allow-run-as-root)  # containers; Open MPI refuses root otherwise
# More ranks than cores is legal, for trying layouts out: add --oversubscribe.

stops=0
stop() {
  stops=$((stops + 1))
  if [[ $stops == 1 ]]; then
    echo "$0: the ranks stop after this step, with a checkpoint; press Ctrl-C again to end them at once" >&2
    kill -USR1 "$job" 2>/dev/null || true
  else
    kill -TERM "$job" 2>/dev/null || true
  fi
}
trap stop INT TERM
trap 'kill -TERM "$job" 2>/dev/null || true' HUP

# A session of its own keeps the terminal's Ctrl-C away from mpirun.
setsid mpirun "${flags[@]}" -np "$ranks" "$bin" train "$@" checkpoint.resume=auto &
job=$!
code=0
while kill -0 "$job" 2>/dev/null; do  # a signal interrupts wait
  code=0
  wait "$job" || code=$?
done
exit "$code"
