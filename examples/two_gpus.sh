#!/usr/bin/env bash
# Two GPUs of one host: the first all-reduce waits once for an emulated switch of 50 ms, the others find the
# circuit up. Both ranks are on one host, so groups are forced onto the rail; do not do that on a real cluster.
# Without GPUs the same runs on CPUs.
#
#   examples/two_gpus.sh [DELAY_MS]
set -euo pipefail

delay_ms=${1:-50}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
state=$(mktemp -d)
controller_pid=

cleanup() {
    if [[ -n $controller_pid ]]; then
        kill "$controller_pid" 2>/dev/null || true
        wait "$controller_pid" 2>/dev/null || true
    fi
    rm -rf "$state"
}
trap cleanup EXIT
trap 'exit 143' TERM INT

opus fabric generate --hosts 1 --gpus-per-host 2 --rails 1 --delay-ms "$delay_ms" -o "$state/fabric.yaml"
opus serve --fabric "$state/fabric.yaml" --database "sqlite:///$state/opus.db" --port 0 --no-witness \
    --runs-dir "$state/runs" --ready-file "$state/ready.json" >"$state/controller.log" 2>&1 &
controller_pid=$!
for _ in {1..600}; do
    if [[ -e $state/ready.json ]] || ! kill -0 "$controller_pid" 2>/dev/null; then
        break
    fi
    sleep 0.1
done
if [[ ! -e $state/ready.json ]]; then
    echo "the controller did not start; its last words:" >&2
    tail -n 20 "$state/controller.log" >&2
    exit 1
fi

OPUS_CONTROLLER=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["url"])' "$state/ready.json")
export OPUS_CONTROLLER OPUS_JOB=two-gpus OPUS_HOST=host0 OPUS_DIMENSIONS=dp=2
export OPUS_FORCE_DOMAIN=scale-out OPUS_INITIAL_TOPOLOGY=0
torchrun --standalone --nproc-per-node 2 "$here/two_gpus.py"
grep -h "topology.changed" "$state"/runs/two-gpus/events.jsonl
