#!/bin/sh
# Sets up .venv, one step at a time; the Makefile calls it with the step's name and looks at the stamps it leaves.
#   base     virtual environment, the broker's own dependencies, the build and lint tools
#   spark    PySpark and what the pipeline needs
#   test     client libraries that the tests run against the broker
#   celery4  Celery's previous major line, for make interop, in build/celery4
#   docs     what builds the documentation site, in build/docs-tool
#   flower   Flower, for make interop, in build/flower
#   compile  the extension modules, in place, and the `flintmq` command
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
pip() { flock .venv/.lock .venv/bin/python -m pip --disable-pip-version-check "$@"; }  # one at a time

case "$1" in
base)
    if ! command -v "$python" >/dev/null 2>&1; then
        echo "FlintMQ needs Python 3.11 or newer; '$python' was not found. Install it, or run 'make PYTHON=/path/to/python3.11 ...'." >&2
        exit 69
    fi
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "FlintMQ needs Python 3.11 or newer; '$python' is $("$python" -V 2>&1). Run 'make PYTHON=/path/to/python3.11 ...'." >&2
        exit 69
    fi
    if [ ! -x .venv/bin/python ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        rm -rf .venv
        if ! "$python" -m venv .venv; then
            echo "Python's venv module is incomplete. On Debian or Ubuntu: apt-get install python3-venv." >&2
            exit 69
        fi
    fi
    echo "setting up .venv ..." >&2
    pip install --quiet --require-hashes -r requirements-dev.lock
    pip install --quiet --no-deps --no-build-isolation --editable .
    ;;
spark)
    echo "installing PySpark (about 500 MB, once) ..." >&2
    pip install --quiet --require-hashes -r requirements-spark.lock
    ;;
test)
    echo "installing the client libraries of the tests ..." >&2
    pip install --quiet --require-hashes -r requirements-test.lock
    ;;
docs)
    tool=build/docs-tool
    "$python" -m venv "$tool"
    "$tool/bin/python" -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements-docs.lock
    touch "$tool/.done"
    exit 0
    ;;
celery4)
    tool=build/celery4
    if [ "$("$python" -c 'import sys; print(sys.version_info[:2] == (3, 11))')" != True ]; then
        echo "Celery 4.4 runs on Python 3.11 only: its part of 'make interop' is left out." >&2
        exit 0
    fi
    "$python" -m venv "$tool"
    grep -e '^#' -e '^pip==' tools/celery4/requirements.lock >"$tool/pip.lock"
    "$tool/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes -r "$tool/pip.lock"
    "$tool/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes -r tools/celery4/requirements.lock
    cp tools/celery4/sitecustomize.py "$("$tool/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/"
    touch "$tool/.done"
    exit 0
    ;;
flower)
    tool=build/flower
    [ -e "$tool/.done" ] && [ "$tool/.done" -nt tools/flower/requirements.lock ] && exit 0
    "$python" -m venv "$tool"
    "$tool/bin/python" -m pip --disable-pip-version-check install --quiet --require-hashes -r tools/flower/requirements.lock
    touch "$tool/.done"
    exit 0
    ;;
compile)
    if ! command -v cc >/dev/null 2>&1 && ! command -v gcc >/dev/null 2>&1 && ! command -v clang >/dev/null 2>&1; then
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
            echo "installing a C compiler (apt-get install gcc libc6-dev) ..." >&2
            apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev >/dev/null
        fi
    fi
    echo "compiling the hot path ..." >&2
    mkdir -p build
    if ! flock build/.lock .venv/bin/python setup.py -q build_ext --inplace >build/compile.log 2>&1; then
        grep -v -e Warning -e '^ ' -e '^$' build/compile.log | tail -n 40 >&2
        echo "compiling failed; the whole log is build/compile.log" >&2
        exit 70
    fi
    .venv/bin/python -m compileall -q src  # a first start would do it, and take twice its time
    touch .venv/.compiled
    exit 0
    ;;
*)
    echo "usage: tools/setup.sh base|spark|test|docs|compile" >&2
    exit 64
    ;;
esac
touch ".venv/.$1"
