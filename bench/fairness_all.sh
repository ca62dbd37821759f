#!/bin/sh
# Every figure of docs/FAIRNESS.md, SCHEDULER.md, STREAMS.md and HTTP.md, one after the other, on a quiet machine (a quarter of an hour, 20 GiB of
# disk under build/bench). Writes no document. All of them run; then exit 1 when something could not be measured or missed one of its goals: it is
# named at the end, the goal where the bench says it. Goals: actors, fairness, fairness_crowd, http_polls (of the pull layer), streams and
# streams_socket (live), stream_log (opening) and cold_groups (FlintMQ's p99). Their other figures, and RabbitMQ's, have none.
set -u
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
missed=
run() {
    echo "== $*"
    "$python" -m "$@" || missed="$missed $1"
}
mkdir -p build/bench/stream
run bench.actors
run bench.fairness --real --no-write
run bench.fairness_crowd --no-write
run bench.http_polls
run bench.streams --dir build/bench/stream
run bench.streams_socket
run bench.stream_log --messages 100000000 --dir build/bench/stream
rm -rf build/bench/stream
run bench.cold_groups --count 10000000 --peer-count 450000 --rounds 40
[ -z "$missed" ] || { echo "missed:$missed"; exit 1; }
