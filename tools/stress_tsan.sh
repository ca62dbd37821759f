#!/bin/sh
# Builds the core, queue, stream and scheduler modules with ThreadSanitizer and yield points into a copy of the sources, and runs the thread
# stresses there. Fails on any data race that involves our modules, and on any broken property. Usage: tools/stress_tsan.sh [messages]
set -eu
cd "$(dirname "$0")/.."
python=$(readlink -f "${PYTHON:-.venv/bin/python}" >/dev/null && cd "$(dirname "${PYTHON:-.venv/bin/python}")" && pwd)/$(basename "${PYTHON:-python}")
copy=build/tsan
messages=${1:-3000}
modules=flintmq.core.content,flintmq.queue.list_kinds,flintmq.queue.spans,flintmq.queue.due,flintmq.queue.entry_list,flintmq.queue.list_upkeep,flintmq.queue.list_restore,flintmq.queue.consumer_manager,flintmq.queue.pull,flintmq.queue.upkeep,flintmq.queue.residency,flintmq.queue.restoring,flintmq.queue.queue_core,flintmq.queue.log_port,flintmq.testing.queue_ports,flintmq.testing.queue_driver,flintmq.testing.memory_log,flintmq.testing.queue_threads,flintmq.scheduler.due_clock,flintmq.scheduler.figures,flintmq.scheduler.mailbox,flintmq.scheduler.run_queue,flintmq.scheduler.timers,flintmq.scheduler.table,flintmq.scheduler.actor,flintmq.scheduler.worker,flintmq.scheduler.upkeep,flintmq.scheduler.system,flintmq.testing.actor_driver,flintmq.queue.handle,flintmq.core.hash64,flintmq.store.failpoints,flintmq.store.content_codec,flintmq.store.log.file_port,flintmq.store.log.log,flintmq.store.log.writer,flintmq.store.stream.stream_batch,flintmq.store.stream.stream_content,flintmq.store.stream.stream_log,flintmq.streams.source,flintmq.streams.open_list,flintmq.streams.cursor,flintmq.streams.group,flintmq.streams.group_state,flintmq.streams.lost_header,flintmq.streams.wakes,flintmq.streams.stream_queue,flintmq.streams.handle,flintmq.testing.memory_stream,flintmq.testing.stream_driver,flintmq.testing.stream_threads

tsan=$(${CC:-gcc} -print-file-name=libtsan.so)
[ -e "$tsan" ] || { echo "ThreadSanitizer's runtime is missing: install the one of your compiler (Debian: libtsan2)" >&2; exit 69; }

mkdir -p "$copy/src/flintmq" "$copy/tests/streams"
cp setup.py "$copy/"
printf '[build-system]\nrequires = ["setuptools"]\n[project]\nname = "flintmq-tsan"\nversion = "0"\n' > "$copy/pyproject.toml"
for part in core queue scheduler testing streams store store/log store/stream; do
    mkdir -p "$copy/src/flintmq/$part"
    for file in src/flintmq/"$part"/*.py src/flintmq/"$part"/*.pxd; do
        # Unchanged files keep their time stamps, so that a second run compiles nothing.
        cmp -s "$file" "$copy/$file" || cp "$file" "$copy/$file"
    done
done
for file in src/flintmq/__init__.py src/flintmq/__init__.pxd src/flintmq/config.py; do
    cmp -s "$file" "$copy/$file" || cp "$file" "$copy/$file"
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
status=0
run() {
    ${setarch:+"$setarch" "$(uname -m)" -R} env LD_PRELOAD="$tsan" PYTHONPATH=src:. PYTHONDONTWRITEBYTECODE=1 \
        TSAN_OPTIONS="log_path=report exitcode=0 report_thread_leaks=0 history_size=4 second_deadlock_stack=1" \
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
