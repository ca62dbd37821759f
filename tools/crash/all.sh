#!/bin/sh
# The long crash and fault campaigns (hours): one JSON line each on stdout, their other words on stderr. Exit 1 when one of them found
# something; 69 of a campaign (can't be tried on this machine) is no finding, its line says why.
#   tools/crash/all.sh [SEED]        seeds and failing cases are in the lines: docs/RELIABILITY.md says how to replay them
set -u
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
seed=${1:-1}
found=0
run() {
    "$python" -m "$@" || { code=$?; [ "$code" -eq 69 ] || found=1; }
}
small="--container-size 524288"  # growth, recycling and copying forward happen within seconds

# the tests that try less of the same in `make test`, as often as they once did
FLINTMQ_LONG=1 "$python" -m pytest -q tests/crash tests/protocol tests/queue tests/scheduler tests/store tests/store_stream tests/tools/test_linearizability.py tests/tools/test_replication_sim.py tests/transactions >&2 || found=1
run tools.crash.enumerate --images 1000000 --seed "$seed"
run tools.crash.features --images 1000000 --seed "$seed"
run tools.crash.corrupt --images 200000 --seed "$seed"
run tools.crash.fail_calls --scripts 20 --seed "$seed"
run tools.faults.syscalls --operations 200
run tools.faults.kill_loop --json --cycles 500 --failpoints 0.6 --seed "$seed" -- $small
run tools.faults.kill_loop --json --power-loss --cycles 100 --seed "$seed" -- $small
run tools.faults.churn --cycles 100 --seed "$seed" -- $small
run tools.faults.churn --power-loss --cycles 100 --seed "$seed" -- $small
run tools.faults.features --cycles 100 --seed "$seed" -- $small
run tools.faults.features --power-loss --cycles 100 --seed "$seed" -- $small
run tools.faults.kill_loop --json --cycles 100 --failpoints 0.6 --seed "$((seed + 1))" -- --io-threads 2 $small
run tools.faults.stream_kill_loop --json --cycles 500 --failpoints 0.6 --seed "$seed"
run tools.faults.stream_kill_loop --json --power-loss --cycles 100 --seed "$seed"
run tools.faults.io_errors --seed "$seed" -- $small
run tools.faults.disk_full --cycles 50 --seed "$seed" -- $small
run tools.faults.slow_disk --seed "$seed"
exit "$found"
