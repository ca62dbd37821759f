#!/bin/sh
# Builds compiled modules in place, one build at a time: tools/build.sh [flintmq.queue.queue_core ...] (default: all).
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
[ $# -eq 0 ] || { FLINTMQ_ONLY=$(echo "$*" | tr ' ' ','); export FLINTMQ_ONLY; }
mkdir -p build
exec flock build/.lock "$python" setup.py -q build_ext --inplace
