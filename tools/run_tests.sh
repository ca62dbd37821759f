#!/bin/sh
# All tests, in three processes at a time: those that need Spark (one SparkSession) and, behind them, the campaigns of faults; many of those
# that start brokers and clients and mostly wait for them; and all others. The longest one sets the time: each takes about as long, which is
# why some stand where they do. tests/crash forks, and must not do that in a process with the threads of Spark's client and of Arrow.
#   run_tests.sh [pytest options]     a path among the options: one process, just that
# The results are in build/junit-{spark,brokers,others}.xml. What the others say is seen as it comes, the rest in the end.
set -u
cd "$(dirname "$0")/.."
python=.venv/bin/python
# Hundreds of processes are started below: each would compile what it imports, a fifth of a second for a broker.
unset PYTHONDONTWRITEBYTECODE
spark="tests/pipeline tests/jobs tests/crash_spark tests/flight tests/cli/test_pipeline_spark.py tests/engines tests/faults tests/links tests/recipes tests/store_sql"
brokers="tests/admin tests/cli tests/dataplane tests/interop tests/net tests/perf tests/shared_wire tests/tools"
for option in "$@"; do
    if [ -e "${option%%::*}" ]; then
        exec $python -m pytest "$@"
    fi
done
mkdir -p build
rm -f build/spark-failures/hs_err_*.log build/junit-*.xml
without() { printf -- '--ignore=%s ' "$@"; }
# shellcheck disable=SC2046,SC2086
{
    $python -m pytest --durations=6 --durations-min=5 "$@" --junitxml=build/junit-spark.xml $spark >build/test-spark.log 2>&1 &
    spark_pid=$!
    $python -m pytest --durations=6 --durations-min=5 "$@" --junitxml=build/junit-brokers.xml $(without $spark) $brokers >build/test-brokers.log 2>&1 &
    brokers_pid=$!
    trap 'kill "$spark_pid" "$brokers_pid" 2>/dev/null' INT TERM
    $python -m pytest --durations=6 --durations-min=5 "$@" --junitxml=build/junit-others.xml $(without $spark $brokers) tests
}
status=$?
wait "$brokers_pid" || status=$?
wait "$spark_pid" || status=$?
cat build/test-brokers.log build/test-spark.log
# What a JVM said that crashed (tests/pipeline/conftest.py): its clone may be gone when somebody asks.
for crash in build/spark-failures/hs_err_*.log; do
    [ -e "$crash" ] && head -n 80 "$crash"
done
# The first of what failed once more: the end of a long output is what is read.
$python - build/junit-others.xml build/junit-brokers.xml build/junit-spark.xml <<'END'
import sys
from pathlib import Path
from xml.etree import ElementTree

failed = []
for file in sys.argv[1:]:
    if not Path(file).exists():
        print(f"\nNO RESULTS in {file}: its process ended before its tests did")
        continue
    for case in ElementTree.parse(file).iter("testcase"):
        for fault in (*case.iter("failure"), *case.iter("error")):
            failed.append(f"\nFAILED {case.get('classname')}::{case.get('name')}\n{(fault.text or '')[-4000:]}")
print("\n".join(failed[:10]))
if len(failed) > 10:
    print(f"\nand {len(failed) - 10} more")
END
exit "$status"
