#!/bin/sh
# All tests, in two processes at a time: those that need Spark (one SparkSession) and those that do not. The longer one sets the time.
#   run_tests.sh [pytest options]     a path among the options: one process, just that
# The results are in build/junit-broker.xml and build/junit-spark.xml.
set -u
cd "$(dirname "$0")/.."
python=.venv/bin/python
spark="tests/pipeline tests/jobs tests/crash_spark tests/flight tests/cli/test_pipeline_spark.py"
for option in "$@"; do
    if [ -e "${option%%::*}" ]; then
        exec $python -m pytest "$@"
    fi
done
mkdir -p build
# shellcheck disable=SC2086
$python -m pytest "$@" --junitxml=build/junit-spark.xml $spark >build/test-spark.log 2>&1 &
spark_pid=$!
trap 'kill "$spark_pid" 2>/dev/null' INT TERM
ignored=$(for path in $spark; do printf -- '--ignore=%s ' "$path"; done)
# shellcheck disable=SC2086
$python -m pytest "$@" --junitxml=build/junit-broker.xml $ignored tests
broker=$?
wait "$spark_pid"
spark_status=$?
cat build/test-spark.log
[ "$broker" = 0 ] && exit "$spark_status"
exit "$broker"
