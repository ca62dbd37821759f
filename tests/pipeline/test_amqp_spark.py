"""Through a real SparkSession, messages arrive once, in order, with all their columns, over restarts, and wrong use says why."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pika
import pytest

from tests.pipeline.patience import patient
from tests.support.broker import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def stream(spark: SparkSession, amqp_url: str, queue: str, spool: Path, **options: Any) -> DataFrame:
    parts = urlsplit(amqp_url)
    base = {"transport": "amqp", "host": parts.hostname, "port": parts.port, "queue": queue, "spoolDir": spool, "timeout": 60}
    return spark.readStream.format("flintmq").options(**{**base, **options}).load()


def run(frame: DataFrame, out: Path) -> list[dict[str, Any]]:
    """Runs to the end of what the queue holds; returns Spark's progress reports, over all tries."""
    writer = frame.writeStream.format("parquet").option("path", str(out / "data")).option("checkpointLocation", str(out / "checkpoint"))
    found: dict[int, dict[str, Any]] = {}

    @patient
    def tried() -> None:
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:  # a try that failed may have ended some batches: the next one goes on behind them
            found.update({report["batchId"]: report for report in query.recentProgress if report["numInputRows"]})

    tried()
    return [found[number] for number in sorted(found)]


def publish(channel: Any, queue: str, bodies: list[bytes], **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(**properties))


def left(channel: Any, queue: str) -> int:
    # The reader process is killed at the end of a query, and the broker needs a moment to see it.
    wait_until(lambda: channel.queue_declare(queue, passive=True).method.consumer_count == 0, timeout=120, what="end of the reader")
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def test_messages_arrive_once_and_whole_and_a_second_run_goes_on(
    spark: SparkSession, amqp_url: str, channel: Any, queue: str, tmp_path: Path
) -> None:
    bodies = [struct.pack(">I", i) + b"\xff\x00" for i in range(250)]
    sent = {"headers": {"k": "v", "n": 5}, "content_type": "application/x", "message_id": "m", "priority": 3, "timestamp": 1_700_000_000}
    publish(channel, queue, bodies, delivery_mode=2, **sent)
    frame = stream(spark, amqp_url, queue, tmp_path / "spool", maxMessagesPerTrigger=100)
    reports = run(frame, tmp_path)
    assert [report["numInputRows"] for report in reports] == [100, 100, 50]
    assert left(channel, queue) == 0

    found = spark.read.parquet(str(tmp_path / "data"))
    rows = found.orderBy("body").collect()
    assert [bytes(row["body"]) for row in rows] == bodies
    row = rows[0].asDict()
    assert (row["queue"], row["exchange"], row["routing_key"], row["redelivered"]) == (queue, "", queue, False)
    assert (row["headers"]["k"], row["headers"]["n"]) == ("v", "5")
    assert bytes(row["headers_raw"])[4:].startswith(b"\x01kS\x00\x00\x00\x01v")
    assert (row["content_type"], row["message_id"], row["priority"], row["delivery_mode"]) == ("application/x", "m", 3, 2)
    assert row["timestamp"].timestamp() == 1_700_000_000
    assert (row["position"], row["lsn"], row["enqueued_time"], row["reply_to"]) == (None, None, None, None)

    publish(channel, queue, [b"later"])
    assert [report["numInputRows"] for report in run(frame, tmp_path)] == [1]
    assert spark.read.parquet(str(tmp_path / "data")).count() == 251
    assert left(channel, queue) == 0
    assert list((tmp_path / "spool").glob("batch-*")) == []


def test_a_batch_that_failed_is_replayed(spark: SparkSession, amqp_url: str, channel: Any, queue: str, tmp_path: Path) -> None:
    bodies = [b"m%d" % i for i in range(30)]
    publish(channel, queue, bodies)
    got: dict[int, list[bytes]] = {}
    failing = {1}

    def sink(batch: DataFrame, number: int) -> None:
        rows = [bytes(row["body"]) for row in batch.collect()]
        if number in failing:
            failing.discard(number)
            raise RuntimeError("the sink is away")
        got[number] = rows

    frame = stream(spark, amqp_url, queue, tmp_path / "spool", maxMessagesPerTrigger=10, minPartitions=1)
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    with pytest.raises(Exception, match="the sink is away"):
        patient(lambda: writer.start().awaitTermination())()
    assert list(got) == [0]
    patient(lambda: writer.start().awaitTermination())()
    assert [body for number in sorted(got) for body in got[number]] == bodies
    assert left(channel, queue) == 0


def test_wrong_use_is_answered_with_one_code(spark: SparkSession, amqp_url: str, queue: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"FLINTMQ_OPTION_UNKNOWN: .* did you mean 'maxMessagesPerTrigger'\?"):
        run(stream(spark, amqp_url, queue, tmp_path / "spool", maxMessagePerTrigger=5), tmp_path)
    with pytest.raises(Exception, match="FLINTMQ_NO_BATCH_READ"):
        spark.read.format("flintmq").options(queue=queue, transport="amqp").load().count()
    with pytest.raises(Exception, match="FLINTMQ_QUEUE_MISSING"):
        run(stream(spark, amqp_url, "absent", tmp_path / "spool"), tmp_path)
