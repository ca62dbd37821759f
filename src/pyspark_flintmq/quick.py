"""A start script for Spark's Python processes, with which they import PySpark as pip installed it.

In: a directory; the PySpark that this interpreter imports. Out: a script to name as `PYSPARK_PYTHON` (or `spark.pyspark.python`).
Why: Spark puts `pyspark.zip` and `py4j-VERSION-src.zip` of its installation in front of PYTHONPATH. A zip keeps no compiled modules, so
each Python process compiles PySpark anew: 0.4 s of processor time and 16 MiB for each, and one of them starts with every streaming query.
A garbage collection of a forked worker writes to all pages that it shares with its daemon, and so copies them.
Invariants: only the archives of the very installation that is imported in their place are left out; where there is none, the plain
interpreter is the answer.

    export PYSPARK_PYTHON="$(python -m pyspark_flintmq.quick ~/.cache)"
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from pathlib import Path

NAME = "flintmq-spark-python"
# Of glibc and of pyarrow, where the environment says nothing else. Bytes: blocks above the first go back when they are freed, the one heap
# keeps as much as the second at its end (a batch that is given back comes again as pages to fill: 16 MiB cost a tenth more processor time).
# Kept memory goes back when a worker has nothing to do (heap.py).
MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TRIM_THRESHOLD_": "67108864",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
_SCRIPT = """\
#!/bin/sh
# Made by pyspark_flintmq.quick: PySpark comes from {home}, where it is compiled, not from the archives beside it.
set -f
path=
IFS=:
for entry in $PYTHONPATH; do
    case $entry in
        {archives}) ;;
        *) path=$path${{path:+:}}$entry ;;
    esac
done
unset IFS
PYTHONPATH=$path
export PYTHONPATH
# One heap, which gives back what is free at its end: half of a worker's memory were record batches that nobody had any more.
export {memory}
# A daemon forks workers, which look for garbage after each task: what was imported before is out of their sight, and stays shared.
if [ "$1 $2" = "-m pyspark.daemon" ]; then
    shift 2
    set -- -c 'import gc; from pyspark import daemon; gc.collect(); gc.freeze(); daemon.manager()' "$@"
fi
exec {python} "$@"
"""


def quick_python(directory: str | Path) -> str:
    """Writes the script into `directory`, which must exist and stay as long as Spark starts processes.

    Returns: the script's path; that of the plain interpreter where PySpark is in the archives only (a Spark without pip), or where
    nothing in `directory` may be executed. Raises: OSError: the directory can't be written to.
    """
    homes = _homes()
    if not homes or "\n" in "".join(homes) + sys.executable:
        return sys.executable
    archives = [
        one
        for home in homes
        for one in (
            shlex.quote(f"{home}/python/lib/pyspark.zip"),
            shlex.quote(f"{home}/python/lib/") + "py4j-*-src.zip",
            shlex.quote(f"{home}/jars/") + "spark-core_*.jar",
        )
    ]
    path = Path(directory).absolute() / NAME
    memory = " ".join(f'{name}="${{{name}:-{value}}}"' for name, value in MEMORY.items())
    text = _SCRIPT.format(home=shlex.quote(homes[0]), archives=" | ".join(archives), memory=memory, python=shlex.quote(sys.executable))
    # A process of another session may be starting with the same script: it is replaced, not written over.
    fresh = path.with_name(f"{NAME}.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.replace(path)
    return str(path) if os.access(path, os.X_OK) else sys.executable


def _homes() -> list[str]:
    """The names of the directory that PySpark is imported from; none when it or py4j comes from an archive."""
    homes = []
    for name in ("pyspark", "py4j"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or not Path(spec.origin).is_file():
            return []
        homes.append(Path(spec.origin).parent)
    return list(dict.fromkeys((str(homes[0]), str(homes[0].resolve()))))


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: python -m pyspark_flintmq.quick DIRECTORY", file=sys.stderr)
        return 2
    try:
        print(quick_python(Path(sys.argv[1]).expanduser()))
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
