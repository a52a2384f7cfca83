#!/usr/bin/env bash
# Trains with N ranks on this machine, or on the hosts of a host file, with Open MPI:
#   examples/mpirun.sh 4 examples/text.toml mesh.ep=4 data.path=FILE_OR_FOLDER
# Run it again to go on from the newest complete checkpoint. For a clean stop: kill -USR1 <pid of mpirun>.
set -euo pipefail
if [[ $# -lt 2 ]]; then
  echo "usage: $0 RANKS RUN.toml [key=value ...]" >&2
  exit 2
fi
ranks=$1
shift
bin=${MOEWRIGHT_BIN:-build/release/moewright}

flags=(
  --bind-to none  # threads may use every core; Moewright gives each rank cores / ranks of the node
)
[[ -z ${HOSTFILE:-} ]] || flags+=(--hostfile "$HOSTFILE")
[[ $(id -u) != 0 ]] || flags+=(--allow-run-as-root)  # containers; Open MPI refuses root otherwise
# More ranks than cores is legal, for trying layouts out: add --oversubscribe.

exec mpirun "${flags[@]}" -np "$ranks" "$bin" train "$@" checkpoint.resume=auto
