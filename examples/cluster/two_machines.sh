#!/bin/bash
# Two machines rehearsed on one: two agents (torchrun), as each machine would run its own, named by GLOADER_MACHINE.
#   two_machines.sh --dataset builtin:digits --fanout 10,10 --epochs 2 --out runs/rehearsal
#   two_machines.sh --dataset data/MACHINE ...      MACHINE stands for a and b: the folder of each
set -euo pipefail

RANKS_PER_MACHINE=${RANKS_PER_MACHINE:-1}
PORT=${PORT:-29511}
# Between two machines this is the interface that connects them; here it is the host's own.
export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo}

agent() {
	local machine=$1
	shift
	GLOADER_MACHINE=$machine python -m torch.distributed.run \
		--nnodes 2 --nproc-per-node "$RANKS_PER_MACHINE" \
		--rdzv-id rehearsal --rdzv-backend c10d --rdzv-endpoint "127.0.0.1:$PORT" --local-addr 127.0.0.1 \
		-m gloader train "${@//MACHINE/$machine}"
}

agent b "$@" &
OTHER=$!
# Whatever ends this one ends the other, which would wait for it.
trap 'kill "$OTHER" 2>/dev/null || true' EXIT
agent a "$@"
wait "$OTHER"
trap - EXIT
