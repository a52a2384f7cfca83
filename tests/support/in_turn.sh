#!/bin/bash
# in_turn.sh K N COMMAND...: runs the command on the commits whose number is K modulo N, and with MOEWRIGHT_TEST_ALL=1 or
# without git on all. Exit 77 (skipped) on others.
turn=$1 of=$2
shift 2
count=$(git -C "$(dirname "$0")" rev-list --count HEAD 2>/dev/null) || exec "$@"
[[ ${MOEWRIGHT_TEST_ALL:-0} == 1 || $((count % of)) == "$turn" ]] || exit 77
exec "$@"
