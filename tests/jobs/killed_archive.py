"""`archive --source records` in a process of its own that dies (SIGKILL) at a named point of it.

`python -m tests.jobs.killed_archive STORE OUT POINT [spark]`. in: a stopped store, a directory. out: what a death at one of POINTS leaves
there. Without `spark` the tasks run in this process, one after the other.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flintmq.pipeline.jobs import archive, log_records
from flintmq.pipeline.jobs.archive import ARCHIVE, ArchiveParameters, ArchivePlan

# mark: the directory's mark is there and empty. written: half of the second task's first file is. tasks: all files are written.
# moved: half of them stand in their places. all-moved: all. success: the archive is whole.
POINTS = ("mark", "written", "tasks", "moved", "all-moved", "success")


class OneByOne:
    """What `write_records` uses of a SparkSession: tasks of a list, run when their results are collected."""

    @property
    def sparkContext(self) -> OneByOne:
        return self

    def parallelize(self, items: list[Any], slices: int) -> OneByOne:
        self._items = items
        return self

    def flatMap(self, function: Any) -> OneByOne:
        self._function = function
        return self

    def collect(self) -> list[Any]:
        return [one for item in self._items for one in self._function(item)]


def parameters(store: str, out: str) -> ArchiveParameters:
    return ArchiveParameters(store_dir=store, out=out, source="records")


def run(params: ArchiveParameters) -> int:
    """The whole job without Spark. Returns: rows."""
    params.checked()
    archive._check_place(params)
    plan = ArchivePlan(params, OneByOne(), None, False, ExitStack())  # type: ignore[arg-type]
    return int(ARCHIVE.summarise(plan).figures["rows"])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str) -> None:
    """Has this process die there."""
    real_write, real_rename, real_touch, real_text = log_records._write, os.rename, Path.touch, Path.write_text
    written: set[str] = set()
    moved: list[Any] = []

    def write(table: Any, path: str) -> None:
        real_write(table, path)
        written.add(Path(path).name.split("-")[1])
        if point == "written" and len(written) == 2:
            with open(path, "r+b") as file:
                file.truncate(os.path.getsize(path) // 2)
            die()

    def rename(source: Any, target: Any) -> None:
        if log_records.TEMPORARY not in Path(source).parts:
            real_rename(source, target)  # somebody else's
            return
        if not moved and point == "tasks":
            die()
        real_rename(source, target)
        moved.append(target)
        left = sum(len(names) for _, _, names in os.walk(Path(source).parents[2]))
        if (point == "moved" and len(moved) >= left) or (point == "all-moved" and not left):
            die()

    def touch(path: Path, *arguments: Any, **options: Any) -> None:
        real_touch(path, *arguments, **options)
        if point == "success" and path.name == log_records.SUCCESS:
            die()

    def write_text(path: Path, data: str, *arguments: Any, **options: Any) -> int:
        if point == "mark" and path.name == archive.MARK:
            path.open("w").close()
            die()
        return real_text(path, data, *arguments, **options)

    for where, name, function in (
        (log_records, "_write", write),
        (log_records.os, "rename", rename),
        (Path, "touch", touch),
        (Path, "write_text", write_text),
    ):
        setattr(where, name, function)


def main(store: str, out: str, point: str, with_spark: bool) -> None:
    arm(point)
    params = parameters(store, out)
    if not with_spark:
        run(params)
        return
    from flintmq.pipeline.jobs.job import built
    from flintmq.pipeline.session import spark_session

    # Beside the archive: nobody removes it when this process dies.
    with (
        tempfile.TemporaryDirectory(dir=Path(out).parent) as scratch,
        built(ARCHIVE, spark_session("killed archive", Path(scratch)), params) as plan,
    ):
        print(json.dumps(ARCHIVE.summarise(plan).figures))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], "spark" in sys.argv[4:])
