#!/usr/bin/env bash
# The same line on every node: one torchrun, which starts a rank per GPU, or one rank without GPUs.
#
#     05_multinode/launch/torchrun.sh ENDPOINT_NODE NUMBER_OF_NODES [flags of train.py]
#
# ENDPOINT_NODE is any one of the nodes, by a name or address that all of them know. With --dry-run
# in front the command is printed, not run. From the environment, all of it optional:
#
#     PORT          of the endpoint (29500); jobs that may share a node need ports of their own
#     RUN_ID        the same on all nodes of a run (stage5)
#     RANKS         on this node (its GPUs; 1 without)
#     MAX_RESTARTS  how often all ranks are started again after one has failed (3)
#     LOCAL_ADDR    this node's address, where the others cannot resolve its name
#     SCRIPT        in the place of train.py. SCRIPT=../doctor MAX_RESTARTS=0, with preflight as the
#                   flag, checks whether the nodes are ready
set -euo pipefail

fail() {
    echo "torchrun.sh: error: $1" >&2
    exit 2
}

check() { # name, value, low, high
    if ! [[ $2 =~ ^[0-9]{1,6}$ ]] || ((10#$2 < $3 || 10#$2 > $4)); then
        fail "$1: a number from $3 to $4 is needed, not '$2'"
    fi
}

count_gpus() {
    if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then # somebody has chosen among the GPUs, or none
        tr ',' '\n' <<< "$CUDA_VISIBLE_DEVICES" | grep -c '^ *[^- ]' || true # -1: none
    else
        { nvidia-smi --list-gpus 2> /dev/null || true; } | grep -c '^GPU ' || true
    fi
}

dry_run=
if [ "${1-}" = --dry-run ]; then
    dry_run=yes
    shift
fi
[ $# -ge 2 ] || fail "torchrun.sh [--dry-run] ENDPOINT_NODE NUMBER_OF_NODES [flags of train.py]"
endpoint=$1 nodes=$2
shift 2
if ! [[ $endpoint =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]]; then
    fail "ENDPOINT_NODE: a name or address is needed, without a port, not '$endpoint'"
fi
check NUMBER_OF_NODES "$nodes" 1 99999
check PORT "${PORT=29500}" 1 65535
check MAX_RESTARTS "${MAX_RESTARTS=3}" 0 99999
gpus=$(count_gpus)
check RANKS "${RANKS=$((gpus > 0 ? gpus : 1))}" 1 99999

here=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=${SCRIPT:-train.py}
[ -e "${here%/launch}/$script" ] || fail "SCRIPT: there is no $script in ${here%/launch}"
# Restarted ranks meet again, at an address that the torchrun of rank 0's node publishes. Without
# this variable they may read the one of the attempt before, and find nobody there.
command=(env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 PYTHONUNBUFFERED=1)
command+=(torchrun --nnodes "$nodes" --nproc-per-node "$RANKS" --max-restarts "$MAX_RESTARTS")
command+=(--rdzv-backend c10d --rdzv-endpoint "$endpoint:$PORT" --rdzv-id "${RUN_ID:-stage5}")
command+=(${LOCAL_ADDR:+--local-addr "$LOCAL_ADDR"})
command+=("${here%/launch}/$script" "$@")
if [ "$dry_run" ]; then
    printf '%q ' "${command[@]}"
    echo
else
    command -v torchrun > /dev/null || fail "there is no torchrun here: is the environment active?"
    exec "${command[@]}"
fi
