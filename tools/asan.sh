#!/bin/sh
# Builds the whole compiled half with AddressSanitizer and UndefinedBehaviorSanitizer into a copy of the sources (chunks of contents and
# segments of queues come from malloc there), and runs tests and fuzzers on it. Fails on a report of either, or on a test that fails.
# Usage: tools/asan.sh [seconds of each fuzzer] [pytest paths]   FLINTMQ_ASAN_SEED: first seed of the fuzzers, 0 by default
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-300}
[ $# -eq 0 ] || shift
python=$PWD/.venv/bin/python
copy=build/asan
asan=$(gcc -print-file-name=libasan.so)
[ -e "$asan" ] || { echo "AddressSanitizer's runtime is missing: install the one of your compiler (Debian: libasan8, libubsan1)" >&2; exit 69; }
# Its interceptor of C++ exceptions (pyarrow throws) wants the library that they come from at the start.
preload="$asan $(gcc -print-file-name=libstdc++.so.6)"

mkdir -p "$copy"
cmp -s setup.py "$copy/setup.py" || cp setup.py "$copy/"
printf '[build-system]\nrequires = ["setuptools"]\n[project]\nname = "flintmq-asan"\nversion = "0"\n' > "$copy/pyproject.toml"
# Unchanged files keep their time stamps, so that a second run compiles nothing.
find src tests/__init__.py tests/twins tests/drivers -name '*.py' -o -name '*.pxd' -o -name '*.typed' -o -name '*.sql' | while read -r file; do
    cmp -s "$file" "$copy/$file" || { mkdir -p "$copy/$(dirname "$file")"; cp "$file" "$copy/$file"; }
done
find "$copy/src" "$copy/tests" -name '*.py' | while read -r file; do
    [ -e "${file#"$copy/"}" ] || rm -f "$file" "${file%.py}.pxd" "${file%.py}".*.so
done
(
    cd "$copy"
    FLINTMQ_CFLAGS="-fsanitize=address,undefined -fno-omit-frame-pointer -g1 -O1" FLINTMQ_LDFLAGS="-fsanitize=address,undefined" \
        "$python" setup.py -q build_ext --inplace >build.log 2>&1 || { tail -n 40 build.log; exit 70; }
)
rm -f "$copy"/report.* "$copy"/said.*
runs=0
run() {
    # Python's own allocator would hide its objects; what the interpreter does not free when it ends is no leak of ours.
    # UBSan's runtime goes on after a report, and writes it to the standard error whatever its log_path says.
    runs=$((runs + 1))
    env LD_PRELOAD="$preload" PYTHONMALLOC=malloc PYTHONPATH="$PWD/$copy/src:$PWD" FLINTMQ_TESTS_BUILT="$PWD/$copy/tests" PYTHONDONTWRITEBYTECODE=1 \
        ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=64:log_path=$PWD/$copy/report" \
        UBSAN_OPTIONS="print_stacktrace=1" "$python" "$@" 2>"$copy/said.$runs" || status=$?
    cat "$copy/said.$runs" >&2
}
status=0
if [ $# -eq 0 ]; then
    set -- tests/protocol tests/channel tests/broker tests/session tests/arrow tests/queue tests/store tests/conformance tests/flight/test_put_hostile.py
fi
# Captured by Python only, so that the reports above come through.
# Not those of chunks that are kept for little: here each content has a chunk of its own.
chunks=tests/broker/test_memory_keeper.py
run -m pytest -q -p no:cacheprovider --capture=sys "$@" --deselect "$chunks::test_small_messages_leave_chunks_that_are_kept_for_them_alone" \
    --deselect "$chunks::test_a_message_of_many_queues_is_copied_once" --deselect tests/broker/test_thin_chunks.py \
    --deselect "$chunks::test_empty_chunks_that_wait_for_reuse_go_back_when_they_are_told_to"
[ "$seconds" = 0 ] || run -m tools.fuzz_sessions --seconds "$seconds" --seed "${FLINTMQ_ASAN_SEED:-0}"
[ "$seconds" = 0 ] || run -m tools.fuzz_arrow --seconds "$seconds" --seed "${FLINTMQ_ASAN_SEED:-0}"
if ls "$copy"/report.* >/dev/null 2>&1; then
    head -n 60 "$copy"/report.* >&2
    echo "the sanitizers reported: $(ls "$copy"/report.* | wc -l) files $copy/report.*" >&2
    exit 1
fi
if grep -h -A 25 'runtime error: ' "$copy"/said.* >"$copy/report.undefined"; then
    echo "UBSan reported: $(grep -c 'runtime error: ' "$copy/report.undefined") places, $copy/report.undefined" >&2
    exit 1
fi
rm -f "$copy/report.undefined"
[ $status -eq 0 ] || echo "tests or fuzzers failed under the sanitizers (exit $status)" >&2
exit $status
