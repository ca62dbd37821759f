"""Streams in a real SparkSession: every query sees every message once from where it began, by its checkpoint alone; nothing is taken."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest

from flintmq.flight.client import DataPlane
from tests.pipeline.patience import patient, run_until
from tests.pipeline.plane import RestartingBroker, channel_of, flight_port
from tests.pipeline.test_spark_queue import batch, failure, run, stream
from tests.support.broker import Broker, unique, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# two containers at most, of the least size that there is
BOUNDS = {"x-max-length-bytes": 1_000_000, "x-stream-max-segment-size-bytes": 524_288}

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def append(broker: Broker, name: str, bodies: list[bytes], arguments: dict[str, Any] | None = None, **properties: Any) -> None:
    """Declares the stream and publishes, confirmed."""
    with channel_of(broker) as channel:
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream", **(arguments or {})})
        for body in bodies:
            channel.basic_publish("", name, body, pika.BasicProperties(**properties))


def numbered(first: int, upto: int) -> list[bytes]:
    return [b"m%04d" % number for number in range(first, upto)]


def found(spark: SparkSession, out: Path) -> list[tuple[int, bytes]]:
    rows = spark.read.parquet(str(out / "data")).orderBy("position").collect()
    return [(row["position"], bytes(row["body"])) for row in rows]


def first_kept(broker: Broker, name: str) -> int:
    return int(kept(broker, name)["first"])


def kept(broker: Broker, name: str) -> dict[str, Any]:
    with DataPlane(broker.host, flight_port(broker), timeout_s=60) as plane:
        answer: dict[str, Any] = plane.calls.stream_open(queue=name)
        return answer


def test_two_queries_see_all_in_order_and_go_on_and_the_stream_keeps_it(spark: SparkSession, plane_broker: Broker, tmp_path: Path) -> None:
    name = unique("stream")
    big = b"\x00\xff" * 40_000
    append(plane_broker, name, [*numbered(0, 249), big], headers={"k": "v"}, message_id="id", priority=3)
    frame = stream(spark, plane_broker, name, maxMessagesPerTrigger=100, minPartitions=3)
    reports = run(frame, tmp_path / "a")
    assert [report["numInputRows"] for report in reports] == [100, 100, 50]
    figures = reports[0]["sources"][0]["latestOffset"]
    assert (figures["messages_behind"], figures["bytes_behind"] > 0, figures["oldest_age_ms"] >= 0) == (150, True, True)
    files = spark.read.parquet(str(tmp_path / "a" / "data")).inputFiles()
    assert len(files) == 9, "three partitions a batch of one stream"
    everything = list(enumerate([*numbered(0, 249), big]))
    assert found(spark, tmp_path / "a") == everything
    row = spark.read.parquet(str(tmp_path / "a" / "data")).where("position = 7").collect()[0].asDict()
    assert (row["queue"], row["routing_key"], row["redelivered"], row["delivery_count"], row["message_id"]) == (name, name, False, 0, "id")
    assert dict(row["headers"]) == {"k": "v"}, "without x-stream-offset: that is the position"
    assert row["published_time"] == row["enqueued_time"]

    append(plane_broker, name, numbered(250, 260))
    assert [report["numInputRows"] for report in run(frame, tmp_path / "a")] == [10]
    everything += list(enumerate(numbered(250, 260), 250))
    assert found(spark, tmp_path / "a") == everything
    run(stream(spark, plane_broker, name), tmp_path / "b")
    assert found(spark, tmp_path / "b") == everything
    with channel_of(plane_broker) as channel:
        channel.basic_qos(prefetch_count=10)
        seen = channel.consume(name, inactivity_timeout=60, arguments={"x-stream-offset": "first"})
        _, properties, body = next(seen)
        assert body == b"m0000" and properties.headers["x-stream-offset"] == 0
        channel.cancel()


def test_a_failed_batch_and_a_killed_broker_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    broker = RestartingBroker(tmp_path / "store")
    try:
        append(broker.broker, "s", numbered(0, 30))
        got: dict[int, list[bytes]] = {}
        failing = {1}
        checkpoint = tmp_path / "checkpoint"

        def sink(frame: DataFrame, number: int) -> None:
            before = [bytes(row["body"]) for row in frame.collect()]
            if number in failing:
                raise RuntimeError("the sink is away")
            if number == 2:
                broker.kill()
                broker.restart()
                append(broker.broker, "s", numbered(30, 35))
            assert [bytes(row["body"]) for row in frame.collect()] == before
            got[number] = before

        @patient
        def start() -> None:
            frame = stream(spark, broker.broker, "s", maxMessagesPerTrigger=8, minPartitions=1)
            writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
            writer.start().awaitTermination()

        with pytest.raises(Exception, match="the sink is away"):
            start()
        failing.clear()
        start()
        assert [len(got[number]) for number in sorted(got)] == [8, 8, 8, 6], "AvailableNow ends where the stream ended when it began"
        start()
        assert [body for number in sorted(got) for body in got[number]] == numbered(0, 35)
    finally:
        broker.stop()


def test_where_a_query_begins_and_how_much_it_takes(spark: SparkSession, plane_broker: Broker, tmp_path: Path) -> None:
    name = unique("starts")
    append(plane_broker, name, numbered(0, 10))
    time.sleep(0.05)  # so that a moment lies between both halves
    between = round(time.time() * 1000)
    time.sleep(0.05)
    append(plane_broker, name, [b"%04d" % number * 25_000 for number in range(10, 20)])

    def positions(out: str, **options: Any) -> list[int]:
        frame = stream(spark, plane_broker, name, columns="position", **options)
        run(frame, tmp_path / out)
        return [row["position"] for row in spark.read.parquet(str(tmp_path / out / "data")).orderBy("position").collect()]

    assert positions("number", startingOffsets="17") == [17, 18, 19]
    assert positions("offset", startingOffsets='{"offset": 18}') == [18, 19]
    assert positions("time", startingTimestamp=between) == list(range(10, 20))
    reports = run(stream(spark, plane_broker, name, startingOffsets=10, maxBytesPerTrigger=350_000), tmp_path / "bytes")
    assert [report["numInputRows"] for report in reports] == [3, 3, 3, 1]

    # `latest`: what is planned again is what was planned first, though the stream has grown meanwhile
    got: list[list[int]] = []

    def sink(frame: DataFrame, number: int) -> None:
        rows = sorted(row["position"] for row in frame.collect())
        if not rows:
            return  # Spark's first batch, which only notes where the query begins
        got.append(rows)
        if len(got) == 1:
            append(plane_broker, name, numbered(0, 5))
            raise RuntimeError("the sink is away")

    writer = stream(spark, plane_broker, name, startingOffsets="latest").writeStream.foreachBatch(sink)
    writer = writer.option("checkpointLocation", str(tmp_path / "latest"))
    queries = [run_until(writer.start, lambda query: query.lastProgress, "the first look")]
    append(plane_broker, name, numbered(0, 3))
    with pytest.raises(Exception, match="the sink is away"):
        patient(lambda: (queries.pop() if queries else writer.start()).awaitTermination(300))()
    rest = writer.trigger(availableNow=True)
    patient(lambda: rest.start().awaitTermination())()
    assert got[1] == got[0] and sorted(one for batch in got[1:] for one in batch) == list(range(got[0][0], 28))


def test_retention_that_overtook_the_checkpoint_is_told_or_counted(spark: SparkSession, plane_broker: Broker, tmp_path: Path) -> None:
    name = unique("retained")
    append(plane_broker, name, [b"%06d" % number * 700 for number in range(50)], BOUNDS)
    run(stream(spark, plane_broker, name, columns="position", maxMessagesPerTrigger=20), tmp_path)
    append(plane_broker, name, [b"%06d" % number * 700 for number in range(50, 800)], BOUNDS)
    wait_until(lambda: kept(plane_broker, name)["bytes"] <= BOUNDS["x-max-length-bytes"], timeout=180, what="retention")
    frame = stream(spark, plane_broker, name, columns="position")
    line = failure(lambda: run(frame, tmp_path))
    assert line.startswith("FLINTMQ_DATA_LOSS: ") and "retention took the messages from offset 50 to " in line and "failOnDataLoss" in line
    first = first_kept(plane_broker, name)
    run(stream(spark, plane_broker, name, columns="position", failOnDataLoss="false"), tmp_path)
    left = [row["position"] for row in spark.read.parquet(str(tmp_path / "data")).orderBy("position").collect()]
    assert left == [*range(50), *range(first, 800)]


def test_what_a_batch_reads_stays_until_it_was_read(spark: SparkSession, plane_broker: Broker, tmp_path: Path) -> None:
    name = unique("pinned")
    append(plane_broker, name, [b"%06d" % number * 700 for number in range(100)], BOUNDS)
    frame = batch(spark, plane_broker, queue=name, columns="position", endingOffsets="60", startingOffsets=first_kept(plane_broker, name))
    begin = first_kept(plane_broker, name)
    assert frame.rdd.getNumPartitions() == 2  # it is planned
    append(plane_broker, name, [b"%06d" % number * 700 for number in range(100, 900)], BOUNDS)
    time.sleep(3)  # several passes of the maintenance
    assert first_kept(plane_broker, name) == begin
    assert sorted(row["position"] for row in frame.collect()) == list(range(begin, 60))


def test_batch_reads(spark: SparkSession, plane_broker: Broker) -> None:
    name = unique("batch")
    append(plane_broker, name, numbered(0, 100))

    def positions(**options: Any) -> list[int]:
        frame = batch(spark, plane_broker, queue=name, columns="position,body", **options)
        rows = frame.collect()
        assert all(bytes(row["body"]) == b"m%04d" % row["position"] for row in rows)
        return sorted(row["position"] for row in rows)

    assert positions() == list(range(100))
    assert positions(minPartitions=7, startingOffsets="10", endingOffsets='{"offset": 20}') == list(range(10, 20))
    assert positions(startingOffsets='{"position": 95}') == list(range(95, 100))
    assert positions(maxMessages=5) == list(range(5))
    assert positions(startingTimestamp="2100-01-01T00:00:00") == []


def test_wrong_use_is_one_clear_line(spark: SparkSession, plane_broker: Broker, tmp_path: Path) -> None:
    name, plain = unique("wrong"), unique("plain")
    append(plane_broker, name, numbered(0, 3))
    with channel_of(plane_broker) as channel:
        channel.queue_declare(plain, durable=True)
    tries = [
        ({"subscription": "mine"}, "FLINTMQ_OPTION_VALUE: option 'subscription': queue"),
        ({"onLostCheckpoint": "redeliver"}, "FLINTMQ_OPTION_VALUE: option 'onLostCheckpoint': queue"),
        ({"startingOffsets": '{"lsn": 5}'}, "FLINTMQ_OPTION_VALUE: option 'startingOffsets': queue"),
    ]
    for number, (options, line) in enumerate(tries):
        assert failure(lambda o=options, n=number: run(stream(spark, plane_broker, name, **o), tmp_path / str(n))).startswith(line)
    line = failure(lambda: run(stream(spark, plane_broker, plain, startingOffsets="5"), tmp_path / "plain"))
    assert line.startswith("FLINTMQ_OPTION_VALUE: option 'startingOffsets': queue") and "no offsets" in line
    mixed = spark.readStream.format("flintmq").options(
        host=plane_broker.host, flightPort=str(plane_broker.ready["flight_port"]), queues=f"{name},{plain}"
    )
    assert "is a stream" in failure(lambda: run(mixed.load(), tmp_path / "mixed"))

    run(stream(spark, plane_broker, name), tmp_path / "kept")
    with channel_of(plane_broker) as channel:
        channel.queue_delete(name)
    append(plane_broker, name, numbered(0, 9))
    line = failure(lambda: run(stream(spark, plane_broker, name), tmp_path / "kept"))
    assert line.startswith("FLINTMQ_CHECKPOINT_FOREIGN: "), "declared again is another stream"
    offsets = json.loads((tmp_path / "kept" / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1])
    assert set(offsets["streams"][name]) == {"stream", "from", "offset"}


def users(first: int, upto: int) -> list[tuple[str, int]]:
    return [(f"u{number * number % 11}", number) for number in range(first, upto)]


def append_users(broker: Broker, name: str, first: int, upto: int) -> None:
    with channel_of(broker) as channel:
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
        for user, number in users(first, upto):
            channel.basic_publish("", name, b"m%04d" % number, pika.BasicProperties(headers={"user": user}))


def test_each_key_has_one_partition_and_its_order_whatever_restarts(spark: SparkSession, plane_broker: Broker, tmp_path: Path) -> None:
    """What a topic's partitions are for: order by key beside each other. The number may change; the checkpoint knows offsets alone."""
    name, told = unique("stream"), tmp_path / "told"
    told.mkdir()
    append_users(plane_broker, name, 0, 200)
    fails = {"after": 1}

    def note(frame: DataFrame, number: int) -> None:
        rows = frame.selectExpr("spark_partition_id() part", "headers['user'] user", "position").collect()
        if fails["after"] == number:
            fails["after"] = -1
            raise RuntimeError("on purpose: a batch that was read and not committed")
        (told / f"{number}.json").write_text(json.dumps([(row["part"], row["user"], row["position"]) for row in rows]))

    def query(partitions: int) -> None:
        frame = stream(spark, plane_broker, name, keyColumn="headers.user", partitions=partitions, maxMessagesPerTrigger=80)
        writer = frame.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="on purpose"):
        patient(lambda: query(4))()
    patient(lambda: query(3))()  # batch 1 again, in other parts
    append_users(plane_broker, name, 200, 260)
    patient(lambda: query(3))()
    batches = [json.loads(path.read_text()) for path in sorted(told.iterdir(), key=lambda path: int(path.stem))]
    assert sorted(position for rows in batches for _, _, position in rows) == list(range(260))
    expected = {number: user for user, number in users(0, 260)}
    for rows, partitions in zip(batches, [4, 3, 3, 3], strict=True):
        places = {}
        for part, user, position in rows:
            assert part < partitions
            assert expected[position] == user
            places.setdefault(user, []).append((part, position))
        for seen in places.values():
            assert len({part for part, _ in seen}) == 1
            assert seen == sorted(seen)
        assert len({part for part, _, _ in rows}) > 1
    rows = batch(spark, plane_broker, queue=name, keyColumn="headers.user", partitions=5).selectExpr(
        "spark_partition_id() part", "headers['user'] user"
    )
    assert rows.distinct().groupBy("user").count().where("count > 1").count() == 0
    assert rows.count() == 260


def test_keys_are_for_streams(spark: SparkSession, plane_broker: Broker, tmp_path: Path) -> None:
    name = unique("plain")
    with channel_of(plane_broker) as channel:
        channel.queue_declare(name, durable=True)
    line = failure(lambda: run(stream(spark, plane_broker, name, partitions=2), tmp_path))
    assert line.startswith("FLINTMQ_OPTION_VALUE: option 'partitions'")
    assert "repartition" in line
