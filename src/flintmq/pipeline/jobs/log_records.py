"""Records of the log into Parquet by date and queue: Spark's tasks decode and write, no row passes the JVM.

in: a session, options of `format("flintmq")` with stream=records, a directory that driver and executors see. out: files
OUT/date=YYYY-MM-DD/queue_id=N/part-*.parquet (the null partition, as Spark names it, for records of no queue), and their number of rows.
W1  The files hold what `spark.read.format("flintmq").option("stream", "records")` shows with the same options: each row once, all columns,
    the same values. `date` is the UTC day of `time`.
W2  A task writes under OUT/_temporary; the driver moves the files of the attempts that won when all tasks are done. `_SUCCESS` comes last:
    without it OUT is no result.
W3  A task holds at most `ROWS_HELD` rows or `BYTES_HELD` bytes and one record batch.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from pyspark_flintmq.log_options import LogOptions

TEMPORARY, SUCCESS = "_temporary", "_SUCCESS"
KEYS = ("date", "queue_id")
NEEDED = ("time", "queue_id")
NULL = "__HIVE_DEFAULT_PARTITION__"
ROWS_HELD, BYTES_HELD = 1_000_000, 128 * 1024 * 1024
# Numbers that grow from row to row: their differences are small. Other columns repeat their values.
_GROWING = ("lsn", "msg_lsn", "tx_lsn", "position", "waiting", "time", "delivered_time", "expires_time", "published_time")
# No dictionary is tried either: bodies and ids of messages are each their own.
_PLAIN = ("body", "message_id")


@dataclass(frozen=True)
class Written:
    """The written part. rows, files: how many."""

    rows: int
    files: int


def write_records(spark: SparkSession, raw: Mapping[str, str], out: Path) -> Written:
    """Writes the table. Args: raw: options as for `format("flintmq")` (the stream is `records`); out: without `_SUCCESS`.

    The view of a running broker's log is kept while the tasks run. Raises: SourceError; OSError; Spark's errors.
    """
    from pyspark_flintmq.errors import SourceError
    from pyspark_flintmq.log_options import LogOptions
    from pyspark_flintmq.log_source import LogReader
    from pyspark_flintmq.log_view import open_view

    raw = {**raw, "stream": "records"}
    if missing := [name for name in NEEDED if name not in LogOptions.parse(raw).names]:
        raise SourceError("OPTION_VALUE", f"option 'columns': {', '.join(missing)} is needed, files are by date and queue")
    staging = out / TEMPORARY / uuid.uuid4().hex
    with open_view(raw) as view:
        options = LogOptions.parse({**raw, "snapshot": view.text()})
        parts = LogReader(options).partitions()
        staging.mkdir(parents=True)
        try:
            won: list[tuple[str, int]] = []
            if parts:
                tasks = spark.sparkContext.parallelize(list(enumerate(parts)), len(parts))
                place = str(staging)
                won = tasks.flatMap(lambda task: write_part(options, task[1], task[0], place)).collect()
            for name, _ in won:
                target = out / Path(name).relative_to(staging)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(name, target)
        finally:
            shutil.rmtree(out / TEMPORARY, ignore_errors=True)
    (out / SUCCESS).touch()
    return Written(sum(rows for _, rows in won), len(won))


# --- on executors -----------------------------------------------------------------------------------------------------------


def write_part(options: LogOptions, part: Any, number: int, place: str) -> list[tuple[str, int]]:
    """Writes one partition under the directory `place`. Returns: (path, rows) of each file; another attempt's have other names."""
    from pyspark_flintmq.log_source import read_partition

    attempt = uuid.uuid4().hex
    files: list[tuple[str, int]] = []
    for piece, batches in enumerate(_pieces(read_partition(options, part))):
        for key, table in _by_key(batches):
            directory = os.path.join(place, key)
            os.makedirs(directory, exist_ok=True)
            path = os.path.join(directory, f"part-{number:05d}-{attempt}-{piece:03d}.parquet")
            _write(table, path)
            files.append((path, table.num_rows))
    return files


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROWS_HELD or size >= BYTES_HELD:
            yield held
            held, rows, size = [], 0, 0
    if held:
        yield held


def _by_key(batches: list[pa.RecordBatch]) -> Iterator[tuple[str, pa.Table]]:
    """(directory, rows of it in the order of the log), without the columns that the directory names."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.Table.from_batches(batches)
    keys = pa.table({"date": table.column("time").cast(pa.date32()), "queue_id": table.column("queue_id")})
    by = [(name, "ascending") for name in KEYS]
    # Stable, and nulls last in both. Groups come in no order of their own.
    indices = pc.sort_indices(keys, sort_keys=by)
    groups = keys.group_by(list(KEYS), use_threads=False).aggregate([([], "count_all")])
    groups = groups.take(pc.sort_indices(groups, sort_keys=by))
    rows = table.drop_columns(["queue_id"]).combine_chunks().take(indices)
    start = 0
    for date, queue, count in zip(*(groups.column(name).to_pylist() for name in (*KEYS, "count_all")), strict=True):
        yield f"date={date}/queue_id={NULL if queue is None else queue}", rows.slice(start, count)
        start += count


def _write(table: pa.Table, path: str) -> None:
    from pyarrow import parquet

    names = table.column_names
    parquet.write_table(
        table,
        path,
        compression="snappy",
        use_dictionary=[name for name in names if name not in _GROWING and name not in _PLAIN],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in names if name in _GROWING},
        store_schema=False,
    )
