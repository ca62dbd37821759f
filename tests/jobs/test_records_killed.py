"""`archive --source records`, killed anywhere: no half file is seen, and another run makes the archive, each record once."""

from __future__ import annotations

import errno
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyarrow import parquet

from flintmq.errors import OperatorError
from flintmq.pipeline.jobs.archive import MARK
from flintmq.pipeline.jobs.log_records import NULL, SUCCESS, TEMPORARY
from pyspark_flintmq.log_options import LogOptions
from pyspark_flintmq.log_source import LogReader, read_partition
from tests.jobs.killed_archive import POINTS, parameters, run
from tests.jobs.stores import shared_busy_store
from tools.crash.spark.processes import end_session

Row = tuple[str, str]


@pytest.fixture(scope="module")
def records() -> list[Row]:
    """(directory, row) of each record of the store, sorted."""
    options = LogOptions.parse({"storeDir": str(shared_busy_store()), "stream": "records"})
    found = []
    for part in LogReader(options).partitions():
        for batch in read_partition(options, part):
            for row in batch.to_pylist():
                queue = row.pop("queue_id")
                found.append((f"date={row['time']:%Y-%m-%d}/queue_id={NULL if queue is None else queue}", repr(sorted(row.items()))))
    assert len(found) > 1_000 and len({directory for directory, _ in found}) > 5
    return sorted(found)


def seen(out: Path) -> list[Row]:
    """The same of what a reader sees: everything but names that begin with _ or a dot. A file that is not whole fails."""
    found = []
    for path in out.rglob("*"):
        below = path.relative_to(out).parts
        if path.is_file() and not any(name[0] in "_." for name in below):
            found += [("/".join(below[:-1]), repr(sorted(row.items()))) for row in parquet.ParquetFile(path).read().to_pylist()]
    return sorted(found)


def kill(out: Path, point: str, *more: str) -> None:
    """The job, dead at that point, with all that it started."""
    command = [sys.executable, "-m", "tests.jobs.killed_archive", str(shared_busy_store()), str(out), point, *more]
    process = subprocess.Popen(command, cwd=Path(__file__).resolve().parents[2], start_new_session=True)
    try:
        assert process.wait(120) == -signal.SIGKILL, f"it did not come to {point}"
    finally:
        end_session(process.pid)


def whole(out: Path, records: list[Row]) -> None:
    assert seen(out) == records
    assert {one.name for one in out.iterdir() if not one.name.startswith("date=")} == {MARK, SUCCESS}


@pytest.mark.parametrize("point", POINTS)
def test_killed_once(point: str, tmp_path: Path, records: list[Row]) -> None:
    """What is seen then are whole files of the archive, each record once at most; it is said to be whole when it is."""
    out = tmp_path / "out"
    kill(out, point)
    partly = seen(out)
    assert len(partly) == len(set(partly)) and set(partly) <= set(records)
    share = {"moved": (1, len(records) - 1), "all-moved": (len(records),) * 2, "success": (len(records),) * 2}.get(point, (0, 0))
    assert share[0] <= len(partly) <= share[1] and (out / SUCCESS).exists() == (point == "success")
    params = parameters(str(shared_busy_store()), str(out))
    if point == "success":
        with pytest.raises(OperatorError, match="holds an archive of the log already"):
            run(params)
    else:
        assert run(params) == len(records)
    whole(out, records)


def test_killed_again_and_again(tmp_path: Path, records: list[Row]) -> None:
    """Runs that find what others left behind, and die themselves."""
    out = tmp_path / "out"
    for point in ("mark", "all-moved", "written", "moved", "tasks"):
        kill(out, point)
        assert not (out / SUCCESS).exists()
    assert run(parameters(str(shared_busy_store()), str(out))) == len(records)
    whole(out, records)


def test_a_task_of_a_killed_driver_that_writes_on(tmp_path: Path, records: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory is there again whenever it was removed: nobody takes what it writes, and nobody stumbles over it."""
    out, real = tmp_path / "out", shutil.rmtree
    kill(out, "written")
    left: list[Path] = []

    def rmtree(path: Any, ignore_errors: bool = False) -> None:
        real(path, ignore_errors)
        if Path(path).name == TEMPORARY:
            file = Path(path) / "another run" / "date=2026-01-01" / "queue_id=1" / "part-00000.parquet"
            file.parent.mkdir(parents=True)
            file.write_bytes(b"PAR1 half a file")
            left.append(file)
            if not ignore_errors:
                raise OSError(errno.ENOTEMPTY, "Directory not empty")

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert run(parameters(str(shared_busy_store()), str(out))) == len(records)
    assert len(left) == 2 and seen(out) == records and (out / SUCCESS).exists()
