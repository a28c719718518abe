# shellcheck shell=bash
# What the launchers of this folder share. Sourced by the batch script on the job's first node.
#
#   OPUS_ROOT            a folder on all nodes with examples/slurm (default: where sbatch was called)
#   NUM_RANKS_PER_NODE   ranks, which is GPUs, of each node (default: 4)
#   RECONFIG_DELAY_MS    what the emulated switches take for a change (default: 50)
#   OPUS_PORT            port of the controller on the first node's loopback (default: 8700)
#   OPUS_DIMENSIONS      the parallelism dimensions, outermost first, as pp=2,dp=2,tp=4

OPUS_ROOT=${OPUS_ROOT:-${SLURM_SUBMIT_DIR:-$PWD}}
NUM_RANKS_PER_NODE=${NUM_RANKS_PER_NODE:-4}
RECONFIG_DELAY_MS=${RECONFIG_DELAY_MS:-50}
OPUS_PORT=${OPUS_PORT:-8700}
RUN_DIR=${RUN_DIR:-$OPUS_ROOT/runs/$SLURM_JOB_ID}
export OPUS_ROOT NUM_RANKS_PER_NODE OPUS_PORT RUN_DIR

controller_pid=

# A controller with emulated switches, one for each rail, until the batch script ends.
start_controller() {
    mkdir -p "$RUN_DIR"
    opus fabric generate --hosts "$SLURM_JOB_NUM_NODES" --gpus-per-host "$NUM_RANKS_PER_NODE" \
        --delay-ms "$RECONFIG_DELAY_MS" --force -o "$RUN_DIR/fabric.yaml"
    local state
    state=$(mktemp -d) # the database wants a local disk, and belongs to this run alone
    opus serve --fabric "$RUN_DIR/fabric.yaml" --database "sqlite:///$state/opus.db" --port "$OPUS_PORT" \
        --runs-dir "$RUN_DIR/opus" --ready-file "$state/ready.json" --no-witness >"$RUN_DIR/controller.log" 2>&1 &
    controller_pid=$!
    trap stop_controller EXIT
    trap 'exit 143' TERM INT
    for _ in {1..600}; do
        if [[ -e $state/ready.json ]]; then
            return 0
        fi
        if ! kill -0 "$controller_pid" 2>/dev/null; then
            break
        fi
        sleep 0.1
    done
    echo "the controller did not start; its last words:" >&2
    tail -n 20 "$RUN_DIR/controller.log" >&2
    return 1
}

stop_controller() {
    if [[ -n $controller_pid ]]; then
        kill "$controller_pid" 2>/dev/null || true
        wait "$controller_pid" 2>/dev/null || true
    fi
}

# train MODE SCRIPT [ARGUMENT...]: torchrun on every node, all of it one job of the controller.
train() {
    local mode=$1
    shift
    if (($# == 0)); then
        echo "no training script; say it behind the launcher: sbatch $0 train.py --steps 10" >&2
        return 2
    fi
    local first
    # sed reads to the end: a reader that leaves early would break the pipe, and with it the script
    first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
    OPUS_MODE=$mode OPUS_JOB=slurm-$SLURM_JOB_ID OPUS_CONTROLLER=http://127.0.0.1:$OPUS_PORT \
        MASTER_NODE=$first srun --ntasks-per-node=1 --nodes="$SLURM_JOB_NUM_NODES" \
        bash "$OPUS_ROOT/examples/slurm/node.sh" "$@"
}
