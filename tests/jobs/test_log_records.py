"""The log's records in Parquet are those of the log source: each once, every column, the same values, by date and queue."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

import pyarrow as pa
from pyarrow import parquet

from flintmq.arrow.schema import RECORDS, arrow_schema
from flintmq.errors import OperatorError
from flintmq.pipeline.jobs import dry_run, log_records, replay
from flintmq.pipeline.jobs.archive import ARCHIVE, ArchiveParameters
from flintmq.pipeline.jobs.job import Summary, built
from flintmq.pipeline.jobs.log_records import NULL, SUCCESS, TEMPORARY, write_part, write_records
from flintmq.pipeline.jobs.replay import ReplayParameters
from flintmq.pipeline.session import java_options
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.log_options import LogOptions
from pyspark_flintmq.log_source import LogReader
from tests.jobs.stores import shared_busy_store
from tests.pipeline.plane import flight_port, publish
from tests.support.broker import Broker, unique

NAMES = [name for name, _, _ in RECORDS]


def in_order(frame: Any) -> list[tuple[Any, ...]]:
    """All rows with the day of `time`; a copy has several with one LSN."""
    from pyspark.sql import functions as f

    rows = frame.select(*NAMES, f.to_date("time").alias("day")).collect()
    return sorted((tuple(row) for row in rows), key=repr)


def archived(spark: Any, out: Path) -> list[tuple[Any, ...]]:
    """The same of what was written; the directory's day must be that of `time`."""
    options = LogOptions.parse({"stream": "records"})
    frame = spark.read.schema(options.spark().add("date", "date")).parquet(str(out))
    assert frame.where("date is null or date <> to_date(time)").count() == 0
    return in_order(frame)


def done(spark: Any, params: ArchiveParameters) -> Summary:
    with built(ARCHIVE, spark, params) as plan:
        return ARCHIVE.summarise(plan)


@pytest.mark.spark
@pytest.mark.parametrize("body", ["none", "full"])
def test_each_record_once_with_every_column_and_value(spark: Any, tmp_path: Path, body: str) -> None:
    raw = {"storeDir": str(shared_busy_store()), "stream": "records", "body": body, "minPartitions": "3"}
    source = spark.read.format("flintmq").options(**raw).load()
    want = in_order(source)
    written = write_records(spark, raw, tmp_path / "out")
    assert archived(spark, tmp_path / "out") == want
    files = sorted((tmp_path / "out").glob("date=*/queue_id=*/*.parquet"))
    assert (written.rows, written.files) == (len(want), len(files)) and (tmp_path / "out" / SUCCESS).exists()
    assert not (tmp_path / "out" / TEMPORARY).exists()
    assert any(one.parent.name == f"queue_id={NULL}" for one in files), "records of no queue are there too"
    # What is null everywhere in this log proves nothing about its column.
    assert {name for i, name in enumerate(NAMES) if all(row[i] is None for row in want)} <= {"expires_time", "body"}
    # Spark's own writer, with this session's settings, gives the same.
    from pyspark.sql import functions as f

    source.withColumn("date", f.to_date("time")).write.partitionBy("date", "queue_id").parquet(str(tmp_path / "by-spark"))
    assert archived(spark, tmp_path / "by-spark") == want


@pytest.mark.spark
def test_the_job_takes_a_range_of_a_running_brokers_log(spark: Any, plane_broker: Broker, tmp_path: Path) -> None:
    """Only the named queue and time; the same directory again is refused."""
    queue = unique("records")
    publish(plane_broker, queue, [b"%d" % n for n in range(20)])
    params = ArchiveParameters(
        host=plane_broker.host, flight_port=flight_port(plane_broker), out=str(tmp_path / "out"), timeout=60, source="records", queue=queue
    )
    summary = done(spark, params)
    rows = archived(spark, tmp_path / "out")
    assert summary.figures["rows"] == len(rows) and f"{len(rows)} records" in summary.lines[0] and summary.figures["source"] == "records"
    kinds = [row[NAMES.index("kind")] for row in rows]
    assert kinds.count("Message-Enqueue") == 20 and set(kinds) <= {"Message-Enqueue", "Queue-Delivered"}
    with pytest.raises(OperatorError, match="holds an archive of the log already"):
        done(spark, params)
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    none = done(spark, ArchiveParameters(**{**vars(params), "out": str(tmp_path / "none"), "since": later}))
    assert none.figures["rows"] == 0 and none.lines[-1] == "the log has no records in this range"


@pytest.mark.spark
def test_a_task_that_fails_leaves_no_result(spark: Any, tmp_path: Path) -> None:
    """Damage in a container: the source's error, no file of any task, no mark of success."""
    store = tmp_path / "store"
    shutil.copytree(shared_busy_store(), store)
    first, *_ = sorted((store / "messages").glob("*.flog"))
    data = bytearray(first.read_bytes())
    data[1200] ^= 0xFF
    first.write_bytes(data)
    with pytest.raises(OperatorError, match="FLINTMQ_LOG_DAMAGED"):
        done(spark, ArchiveParameters(store_dir=str(store), out=str(tmp_path / "out"), source="records"))
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["_flintmq_archive.json"]


def test_an_attempt_more_is_only_files_of_other_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that runs twice writes the same rows under other names; in pieces of any size they are the same rows."""
    options = LogOptions.parse({"storeDir": str(shared_busy_store()), "stream": "records"})
    part = LogReader(options).partitions()[0]
    first = write_part(options, part, 0, str(tmp_path / "a"))
    monkeypatch.setattr(log_records, "BYTES_HELD", 1)
    second = write_part(options, part, 0, str(tmp_path / "a"))
    assert not {path for path, _ in first} & {path for path, _ in second} and len(second) > len(first)

    def rows(files: list[tuple[str, int]]) -> list[Any]:
        found: list[Any] = []
        for path, count in files:
            rows = parquet.ParquetFile(path).read().to_pylist()
            assert len(rows) == count
            found += [(Path(path).parent.name, row) for row in rows]
        return sorted(found, key=repr)

    assert rows(first) == rows(second)


def test_columns_that_files_are_named_by_are_needed(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"FLINTMQ_OPTION_VALUE.*queue_id is needed"):
        write_records(None, {"storeDir": str(shared_busy_store()), "columns": "lsn,time"}, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(OperatorError, match="leave out --format"):
        ArchiveParameters(source="records", format="delta", out="x").checked()


def test_a_collector_chosen_by_the_environment_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM that is told two collectors does not start."""
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    assert "-XX:+UseParallelGC" in java_options(tmp_path / "log4j")
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        monkeypatch.setenv(name, "-XX:+UseG1GC")
        assert "UseParallelGC" not in java_options(tmp_path / "log4j")
        monkeypatch.delenv(name)


def test_records_are_not_replayed_as_messages(tmp_path: Path) -> None:
    """An archive of records is no empty archive of messages."""
    (tmp_path / f"date=2026-11-21/queue_id={NULL}").mkdir(parents=True)
    (tmp_path / SUCCESS).touch()
    params = ReplayParameters(archive=str(tmp_path), to_queue="q")
    for look in (lambda: replay.archived(None, tmp_path), lambda: dry_run._archived(params)):  # type: ignore[arg-type]
        with pytest.raises(OperatorError, match="holds records of the log") as error:
            look()
        assert error.value.exit_code == 65


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(1, 4)), max_size=40), st.integers(1, 7))
def test_rows_are_cut_by_day_and_queue_and_keep_their_order(rows: list[tuple[int, int | None]], step: int) -> None:
    schema = arrow_schema("records", ["lsn", "time", "queue_id"])
    start = datetime(2026, 11, 20, 23, 59, 59, tzinfo=UTC)
    table = pa.Table.from_pylist(
        [{"lsn": i, "time": start + timedelta(days=day, seconds=i), "queue_id": queue} for i, (day, queue) in enumerate(rows)],
        schema=schema,
    )
    batches = table.to_batches(max_chunksize=step) if rows else [pa.RecordBatch.from_pylist([], schema=schema)]
    seen: set[str] = set()
    found: list[int] = []
    for key, part in log_records._by_key(batches):
        assert key not in seen and part.num_rows
        seen.add(key)
        lsns = part.column("lsn").to_pylist()
        assert lsns == sorted(lsns)
        for lsn, time in zip(lsns, part.column("time").to_pylist(), strict=True):
            queue = rows[lsn][1]
            assert key == f"date={time:%Y-%m-%d}/queue_id={NULL if queue is None else queue}"
        found += lsns
    assert sorted(found) == list(range(len(rows)))
