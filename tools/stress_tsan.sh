#!/bin/sh
# Builds the core, queue, stream and scheduler modules with ThreadSanitizer and yield points into a copy of the sources, and runs the thread
# stresses there. Fails on any data race that involves our modules, and on any broken property. Usage: tools/stress_tsan.sh [messages]
set -eu
cd "$(dirname "$0")/.."
python=$(readlink -f "${PYTHON:-.venv/bin/python}" >/dev/null && cd "$(dirname "${PYTHON:-.venv/bin/python}")" && pwd)/$(basename "${PYTHON:-python}")
copy=build/tsan
messages=${1:-3000}
# What the stresses need, and no more: a module that is not compiled with yield points would not be tried, one that is missing not be found.
scenes="tests/queue/stress.py tests/scheduler/stress.py tests/streams/kit.py tests/streams/stress.py tests/streams/test_threads.py"
# shellcheck disable=SC2086
modules=$("$python" -m tools.needs $scenes)

tsan=$(${CC:-gcc} -print-file-name=libtsan.so)
[ -e "$tsan" ] || { echo "ThreadSanitizer's runtime is missing: install the one of your compiler (Debian: libtsan2)" >&2; exit 69; }

mkdir -p "$copy/tests/streams"
cp setup.py "$copy/"
printf '[build-system]\nrequires = ["setuptools"]\n[project]\nname = "flintmq-tsan"\nversion = "0"\n' > "$copy/pyproject.toml"
# Unchanged files keep their time stamps, so that a second run compiles nothing.
find src tests/twins tests/drivers -name '*.py' -o -name '*.pxd' | while read -r file; do
    cmp -s "$file" "$copy/$file" || { mkdir -p "$copy/$(dirname "$file")"; cp "$file" "$copy/$file"; }
done
cp tests/queue/stress.py "$copy/tests/stress.py"
cp tests/scheduler/stress.py "$copy/tests/stress_actors.py"
cp tests/streams/__init__.py tests/streams/kit.py tests/streams/stress.py tests/streams/test_threads.py "$copy/tests/streams/"
cp tests/__init__.py "$copy/tests/"

cd "$copy"
FLINTMQ_ONLY=$modules FLINTMQ_CFLAGS="-fsanitize=thread -g -O1 -DFLINTMQ_YIELD" FLINTMQ_LDFLAGS="-fsanitize=thread" \
    "$python" setup.py -q build_ext --inplace
rm -f report.*
# Address randomisation off: the sanitizer's shadow memory needs a fixed layout on newer kernels.
setarch=$(command -v setarch || true)
# A thread's own variables are freed when its stack leaves glibc's cache, by whichever thread ends then. glibc is not built with the
# sanitizer, which so does not see that the one was over before the other.
echo 'race:_dl_deallocate_tls' >suppressions
status=0
run() {
    ${setarch:+"$setarch" "$(uname -m)" -R} env LD_PRELOAD="$tsan" PYTHONPATH=src:. PYTHONDONTWRITEBYTECODE=1 \
        TSAN_OPTIONS="log_path=report exitcode=0 report_thread_leaks=0 history_size=4 second_deadlock_stack=1 suppressions=suppressions" \
        "$python" "$@" || status=$?
}
run tests/stress.py "$messages"
run tests/stress_actors.py "$messages"
run -m tests.streams.stress 10
if [ $status -ne 0 ]; then
    echo "stress failed under ThreadSanitizer (exit $status)" >&2
fi
if cat report.* 2>/dev/null | grep -q "flintmq"; then
    cat report.* >&2
    echo "ThreadSanitizer reported races in our modules" >&2
    exit 1
fi
exit $status
