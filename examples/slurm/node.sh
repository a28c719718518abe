#!/usr/bin/env bash
# What runs on each node: torchrun with this node's ranks. `train` of common.sh calls it through srun.
#
# The controller answers on the loopback of the first node only. The other nodes reach it through ssh, as any
# user's own processes may: a forwarded port, closed when this script ends.
set -euo pipefail

: "${OPUS_PORT:?common.sh sets it}" "${OPUS_MODE:?common.sh sets it}" "${MASTER_NODE:?common.sh sets it}"
export OPUS_HOST=host$SLURM_NODEID # as `opus fabric generate` names them
tunnel=

close_tunnel() {
    if [[ -n $tunnel ]]; then
        kill "$tunnel" 2>/dev/null || true
    fi
}
trap close_tunnel EXIT

if ((SLURM_NODEID > 0)) && [[ $OPUS_MODE != off ]]; then
    ssh -N -o BatchMode=yes -o ExitOnForwardFailure=yes \
        -L "127.0.0.1:$OPUS_PORT:127.0.0.1:$OPUS_PORT" "$MASTER_NODE" &
    tunnel=$!
fi

mkdir -p "$RUN_DIR"
torchrun --nnodes "$SLURM_JOB_NUM_NODES" --node-rank "$SLURM_NODEID" --nproc-per-node "$NUM_RANKS_PER_NODE" \
    --rdzv-backend c10d --rdzv-endpoint "$MASTER_NODE:${MASTER_PORT:-29500}" --rdzv-id "$SLURM_JOB_ID" \
    "$@" 2>&1 | tee "$RUN_DIR/torchrun_$SLURM_NODEID.log"
