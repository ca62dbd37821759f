"""Speed of the log source and of the audit: `python -m bench.log_source [--records N] [--audit-records N] [--store DIR]`.

in: options. out: one JSON line per measurement. Makes a log first (not measured; about 5 us a record): messages with 100-byte bodies on ten
queues, nine of ten acknowledged by one of four consumers, in 4 MiB containers. With --store DIR the log stays there and is used again.
`first`: the JVM has not run this before and compiles it meanwhile; `again`: it has. --set KEY=VALUE: another setting of Spark.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import struct
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from bench.log_scan import SECTOR, block_header, container_header, crc32c, record
from flintmq.pipeline.jobs.audit import Audit, AuditParameters
from flintmq.pipeline.jobs.job import built
from flintmq.pipeline.jobs.log_records import write_records
from flintmq.pipeline.session import spark_session

SIZE, BLOCK, QUEUES, CONSUMERS, BODY = 4 << 20, 64 << 10, 10, 4, 100
START_US, PER_S = 1_790_000_000_000_000, 20_000
WAIT = 1000  # messages between a publish and its acknowledgement


def timed(head: bytes, time_us: int) -> bytes:
    """The block header with a time base."""
    head = head[:40] + struct.pack("<Q", time_us) + head[48:60]
    return head + struct.pack("<I", crc32c(head))


def make(store: Path, records: int) -> int:
    """Writes about `records` records; returns how many."""
    directory = store / "messages"
    directory.mkdir(parents=True)
    header = struct.pack(">HHQH", 60, 0, BODY, 0x1000) + b"\2"  # persistent
    routes = [b"\0\7queue%02d" % i for i in range(QUEUES)]
    contents = [
        struct.pack("<IIHBBI", BODY, len(header), len(r), 1, 0, len(r) + len(header) + BODY) + r + header + b"b" * BODY for r in routes
    ]
    most = len(contents[0]) + 24 + 8 + 40 + 56
    sequence, previous, number, made = 1, 0, 0, 0
    positions = [0] * QUEUES
    due: deque[tuple[int, int, int, int]] = deque()
    base = SIZE + SECTOR
    while made < records:
        data = bytearray(container_header(sequence, SIZE))
        while made < records and SIZE - len(data) > 64 + most:
            start = len(data)
            lsn = sequence * SIZE + start
            parts, used, count = [], 64, 0
            now = START_US + number * 1_000_000 // PER_S
            while made < records and used < BLOCK and SIZE - start - used > most:
                message, queue = lsn + used, number % QUEUES
                positions[queue] += 1
                parts.append(record(message, 1, 0, contents[queue]))
                used += len(parts[-1])
                parts.append(record(lsn + used, 4, message, struct.pack("<QQ", queue + 1, positions[queue])))
                used += len(parts[-1])
                count += 2
                number += 1
                if number % 10:
                    due.append((message, queue + 1, positions[queue], now))
                if len(due) > WAIT:
                    gone, place, position, then = due.popleft()
                    fields = struct.pack("<QQQIHBB", place, position, then + 1000, 1 + number % CONSUMERS, 0, 1, 0)
                    parts.append(record(lsn + used, 5, gone, fields))
                    used += len(parts[-1])
                    count += 1
            data += timed(block_header(used, lsn, count, base, previous), now) + b"".join(parts)
            data += bytes(-len(data) % SECTOR)
            previous = lsn
            made += count
        (directory / f"{sequence:020d}.flog").write_bytes(data.ljust(SIZE, b"\0"))
        sequence += 1
    return made


class Memory:
    """The most memory that this process and its children had together, bytes; looked at ten times a second."""

    def __init__(self) -> None:
        self.most = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            self.most = max(self.most, sum(_resident(pid) for pid in _family(os.getpid())))


def _family(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                found.extend(int(child) for child in task.read_text().split())
            except OSError:
                continue
    return found


def _resident(pid: int) -> int:
    """Memory that is the process's own (shared pages in proportion)."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def told(what: str, began: float, rows: int, **more: Any) -> None:
    seconds = time.perf_counter() - began
    print(json.dumps({"what": what, "rows": rows, "seconds": round(seconds, 2), "rows_per_s": round(rows / seconds), **more}), flush=True)


def store_of(where: Path, records: int) -> Path:
    store = where / f"records-{records}"
    if not store.is_dir():
        began = time.perf_counter()
        made = make(where / "making", records)
        (where / "making").rename(store)
        told("making the log", began, made)
    return store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--audit-records", type=int, default=10_000_000)
    parser.add_argument("--store", type=Path, help="keep the logs here")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark, over the session's")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flintmq-bench-") as scratch:
        where = options.store or Path(scratch)
        where.mkdir(parents=True, exist_ok=True)
        settings = dict(one.partition("=")[::2] for one in options.set)
        spark = spark_session("bench", Path(scratch), f"local[{options.cores}]", settings=settings)
        try:
            if options.records:
                source(spark, store_of(where, options.records), Path(scratch))
            if options.audit_records:
                store = store_of(where, options.audit_records)
                with Memory() as memory, built(Audit(), spark, AuditParameters(store_dir=str(store))) as result:
                    began = time.perf_counter()
                    summary = Audit().summarise(result)
                figures = summary.figures
                told("audit", began, options.audit_records, violations=figures["violations"], peak_bytes=memory.most)
        finally:
            spark.stop()
    print(json.dumps({"what": "this process", "cpu_s": round(resource.getrusage(resource.RUSAGE_SELF).ru_utime, 1)}))


def source(spark: Any, store: Path, scratch: Path) -> None:
    """Rates of the source, after one pass that warms everything."""

    def read(**more: str) -> Any:
        return spark.read.format("flintmq").options(storeDir=str(store), **more).load()

    from pyspark.sql import functions as f

    rows = read(stream="records", columns="lsn").count()
    messages = read(stream="records", columns="kind").where("kind = 'Message-Start'").count()
    tables: tuple[tuple[str, dict[str, str], int], ...] = (
        ("records -> noop, all columns", {"stream": "records"}, rows),
        (
            "records -> noop, columns of the audit",
            {"stream": "records", "columns": "lsn,kind,msg_lsn,tx_lsn,queue_id,position,waiting"},
            rows,
        ),
        ("messages -> noop, with bodies", {"stream": "messages"}, messages),
    )
    frame = read(stream="records").where("queue_id is not null").withColumn("date", f.to_date("time"))
    for which in ("first", "again"):
        for what, more, count in tables:
            began = time.perf_counter()
            read(**more).write.format("noop").mode("overwrite").save()
            told(f"{what}, {which}", began, count)
        target = scratch / f"by-spark-{which}"
        began = time.perf_counter()
        frame.write.partitionBy("date", "queue_id").parquet(str(target))
        told(f"records of queues -> Parquet by date and queue, by Spark's writer, {which}", began, rows - messages, bytes=_size(target))
        target = scratch / f"by-job-{which}"
        began = time.perf_counter()
        written = write_records(spark, {"storeDir": str(store)}, target)
        told(f"records -> Parquet by date and queue, by `archive --source records`, {which}", began, written.rows, bytes=_size(target))


def _size(directory: Path) -> int:
    return sum(one.stat().st_size for one in directory.rglob("*.parquet"))


if __name__ == "__main__":
    main()
