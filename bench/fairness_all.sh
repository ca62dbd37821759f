#!/bin/sh
# Every figure of docs/FAIRNESS.md, SCHEDULER.md, STREAMS.md and HTTP.md, one after the other, on a quiet machine (ten minutes, 20 GiB of
# disk under run/bench). Writes no document. Exit 1: something could not be measured, or actors, fairness or fairness_crowd missed a goal; it
# is named at the end. The others only print their figures: their goals are in the documents, that of cold_groups beside its figure.
set -u
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
missed=
run() {
    echo "== $*"
    "$python" -m "$@" || missed="$missed $1"
}
mkdir -p run/bench/stream
run bench.actors
run bench.fairness --real --no-write
run bench.fairness_crowd --no-write
run bench.http_polls
run bench.streams --dir run/bench/stream
run bench.streams_socket
run bench.stream_log --messages 100000000 --dir run/bench/stream
rm -rf run/bench/stream
run bench.cold_groups --count 10000000 --peer-count 450000 --rounds 20
[ -z "$missed" ] || { echo "missed:$missed"; exit 1; }
