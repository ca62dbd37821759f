"""One side of a pair beside Kafka in a JVM of its own: large and small batches into Parquet, cold and warm, and small queries.

`python -m bench.kafka_jvm SOURCE COLUMNS MESSAGES BATCH`; SOURCE: flintmq or kafka; COLUMNS: 7 or 25 (Kafka's connector has 7). out: a line
of JSON for each run of PLAN, and one for `starts`.

J1  Both sides read bodies of the same make: 1 KiB, a period of 251 bytes, so that what Parquet compresses is alike.
J2  Cold is the first query of the JVM; warm runs come behind it, in the same JVM.
J3  A run is of messages that came behind the run before it; broker and its files are the same for all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import kafka
from bench.brokers import disk_directory
from bench.pipeline_rows import ROOT, Bench, Sizes, check_parquet, run_now
from bench.spark_cpu import Parts, count_rows, told
from flintmq.pipeline.session import spark_session

SIZE, QUERIES, SMALL = 1024, 6, 50
# Of the same kinds as Kafka's: key, value, topic, partition, offset, timestamp, timestampType.
SEVEN = "message_id,body,queue,routing_key,position,enqueued_time,delivery_mode"
# row, whether all messages are one batch
PLAN = (("cold", True), ("batches", False), ("large", True))
# seconds after which a worker has given back what it does not need
IDLE_S = 2.0


@contextlib.contextmanager
def _flintmq(bench: Bench, columns: int) -> Iterator[tuple[dict[str, int], Callable[..., Any]]]:
    with bench.broker():
        number = 0

        def stream(count: int, batch: int) -> Any:
            nonlocal number
            number += 1
            queue = bench.fill(count, f"q{number}", SIZE)
            options = {"maxMessagesPerTrigger": batch, "maxBytesPerTrigger": 2**40, "minPartitions": 2}
            return bench.stream(queue, **options, **({"columns": SEVEN} if columns == 7 else {}))

        yield bench.pids, stream


@contextlib.contextmanager
def _kafka(bench: Bench, where: Path) -> Iterator[tuple[dict[str, int], Callable[..., Any]]]:
    scratch = bench.folder("kafka")
    with kafka.kafka(where, scratch) as server:
        number = 0

        def stream(count: int, batch: int) -> Any:
            nonlocal number
            number += 1
            server.fill(f"t{number}", count, SIZE, kafka.bodies(scratch, SIZE))
            return server.stream(bench.spark, f"t{number}", batch)

        yield {"kafka": server.pid}, stream
    shutil.rmtree(scratch)


def sitting(bench: Bench, source: str, columns: int, messages: int, batch: int) -> Iterator[dict[str, Any]]:
    """The runs of one JVM."""
    where = kafka.home()
    assert where is not None or source == "flintmq"
    with _flintmq(bench, columns) if source == "flintmq" else _kafka(bench, where) as (pids, stream):  # type: ignore[arg-type]
        options = argparse.Namespace(messages=messages)
        for row, whole in PLAN:
            frame, target, checkpoint = stream(messages, messages if whole else batch), bench.folder("out"), bench.folder("cp")
            with Parts(pids, bench.jvm) as parts:
                _, batches = run_now(frame, target, checkpoint)
            count_rows(target, messages)
            shutil.rmtree(target)
            time.sleep(IDLE_S)
            yield {"row": row, "columns": columns, "load": os.getloadavg()[0]} | told(source, options, parts, batches, bench.jvm)
        beyond = []
        for _ in range(QUERIES):
            frame, target, checkpoint = stream(SMALL, batch), bench.folder("out"), bench.folder("cp")
            began = time.perf_counter()
            query, _ = run_now(frame, target, checkpoint)
            triggers = sum(each.durationMs["triggerExecution"] for each in query.recentProgress) / 1e3
            beyond.append(round(time.perf_counter() - began - triggers, 3))
            if source == "flintmq":
                check_parquet(target, SMALL)
        yield {"row": "starts", "columns": columns, "source": source, "beyond_s": statistics.median(beyond), "all_beyond_s": beyond}


def main() -> int:
    source, columns, messages, batch = sys.argv[1], *map(int, sys.argv[2:])
    scratch = Path(tempfile.mkdtemp(prefix="kafka-jvm-", dir=disk_directory()))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    spark = spark_session("bench", scratch, settings={"spark.jars": kafka.connector()} if source == "kafka" else None)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 1_000)
    try:
        for run in sitting(Bench(spark, scratch, Sizes()), source, columns, messages, batch):
            print(json.dumps(run), flush=True)
    finally:
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
