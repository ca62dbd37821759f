"""With real Spark: a new checkpoint loses no message, and a committed batch does not wait for the next trigger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flintmq.flight.client import DataPlane
from tests.pipeline.patience import patient, run_until
from tests.pipeline.plane import bodies_left, channel_of, flight_port, publish, ready, source_options
from tests.support.broker import Broker, unique, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class Query:
    """A query of one queue into files."""

    def __init__(self, spark: SparkSession, broker: Broker) -> None:
        self.spark, self.broker, self.queue = spark, broker, unique("spark")

    def publish(self, first: int, end: int) -> None:
        publish(self.broker, self.queue, [b"m%02d" % i for i in range(first, end)])

    @patient
    def run(self, path: Path, checkpoint: Path, **options: Any) -> None:
        """All that the queue holds, in batches of ten."""
        given = source_options(self.broker, **{"queue": self.queue, "maxMessagesPerTrigger": 10, **options})
        writer = self.spark.readStream.format("flintmq").options(**given).load().writeStream.format("parquet").option("path", str(path))
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    def written(self, *paths: Path) -> list[int]:
        rows = self.spark.read.parquet(*map(str, paths)).select("body").collect()
        return sorted(int(bytes(row["body"])[1:]) for row in rows)


@pytest.mark.parametrize("options", [{"subscription": "another"}, {"onNewCheckpoint": "continue"}])
def test_a_new_checkpoint_with_an_old_path_loses_nothing(
    spark: SparkSession, plane_broker: Broker, tmp_path: Path, options: dict[str, str]
) -> None:
    """Spark's file sink leaves out the batches whose numbers its path has, and commits them: their messages were taken and in no file."""
    query = Query(spark, plane_broker)
    options = {key: unique(value) if key == "subscription" else value for key, value in options.items()}
    old, new = tmp_path / "old", tmp_path / "new"
    query.publish(0, 40)
    query.run(old, tmp_path / "checkpoint1")
    query.publish(40, 90)
    for _ in range(2):
        with pytest.raises(Exception, match="FLINTMQ_BATCH_UNREAD") as error:
            query.run(old, tmp_path / "checkpoint2", **options)
    assert "a new path" in str(error.value)
    assert query.written(old) == list(range(40))
    assert ready(plane_broker, query.queue) == 40, "ten are prepared, and wait"
    query.run(new, tmp_path / "checkpoint3", **options)
    assert query.written(old, new) == list(range(90))
    assert bodies_left(plane_broker, query.queue) == []


def test_after_a_batch_that_was_left_out_the_checkpoint_of_the_path_goes_on(
    spark: SparkSession, plane_broker: Broker, tmp_path: Path
) -> None:
    query = Query(spark, plane_broker)
    query.publish(0, 20)
    query.run(tmp_path / "out", tmp_path / "checkpoint")
    query.publish(20, 50)
    with pytest.raises(Exception, match="FLINTMQ_BATCH_UNREAD"):
        query.run(tmp_path / "out", tmp_path / "other", onNewCheckpoint="continue")
    query.run(tmp_path / "out", tmp_path / "checkpoint")
    assert query.written(tmp_path / "out") == list(range(50))
    assert bodies_left(plane_broker, query.queue) == []


def test_a_first_batch_that_foreachbatch_leaves_out_is_committed_when_that_is_said(
    spark: SparkSession, plane_broker: Broker, tmp_path: Path
) -> None:
    query = Query(spark, plane_broker)
    query.publish(0, 10)

    @patient
    def run(**more: Any) -> None:
        frame = spark.readStream.format("flintmq").options(**source_options(plane_broker, queue=query.queue, **more)).load()
        writer = frame.writeStream.foreachBatch(lambda rows, number: None).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="onUnreadBatch=commit"):
        run()
    run(onUnreadBatch="commit")
    assert bodies_left(plane_broker, query.queue) == []


# Queries that the reader has one batch each to find the checkpoint of: it samples what Spark has open for milliseconds, and misses one on a
# machine that gives it no processor. Seconds that the commit has behind Spark's own.
FINDS, COMMIT_S = 4, 10.0


def test_a_batch_is_committed_without_the_next_trigger_and_without_an_option(
    spark: SparkSession, plane_broker: Broker, tmp_path: Path
) -> None:
    """The reader finds the checkpoint by itself. The next trigger is an hour away; a second query of the session has another checkpoint."""
    running: list[Any] = []

    def found(plane: DataPlane, number: int) -> bool:
        query, checkpoint = Query(spark, plane_broker), tmp_path / f"checkpoint {number}"
        query.publish(0, 10)
        frame = spark.readStream.format("flintmq").options(**source_options(plane_broker, queue=query.queue)).load()
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / f"out{number}"))
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="1 hour")
        running.append(run_until(writer.start, lambda _: (checkpoint / "commits" / "0").exists(), "Spark's commit"))

        def committed() -> bool:
            return [(one["committed"], one["prepared"]) for one in plane.sub_list() if one["name"] == f"spark:{query.queue}"] == [(1, None)]

        try:
            return bool(wait_until(committed, timeout=COMMIT_S, step=0.05))
        except AssertionError:
            return False

    try:
        with DataPlane(plane_broker.host, flight_port(plane_broker), timeout_s=60) as plane:
            numbers = iter(range(2 * FINDS))
            for _ in range(2):
                assert any(found(plane, next(numbers)) for _ in range(FINDS))
        assert all(query.isActive for query in running)
    finally:
        for query in running:
            query.stop()


def test_a_new_checkpoint_of_a_stream_does_not_pass_over_messages(spark: SparkSession, plane_broker: Broker, tmp_path: Path) -> None:
    """They stay in the stream, and the file sink would leave them out all the same."""
    query = Query(spark, plane_broker)
    with channel_of(plane_broker) as channel:
        channel.queue_declare(query.queue, durable=True, arguments={"x-queue-type": "stream"})
        for number in range(40):
            channel.basic_publish("", query.queue, b"m%02d" % number)
    old, new = tmp_path / "old", tmp_path / "new"
    query.run(old, tmp_path / "checkpoint1", startingOffsets='{"offset": 20}')
    with pytest.raises(Exception, match="FLINTMQ_BATCH_UNREAD"):
        query.run(old, tmp_path / "checkpoint2")
    query.run(new, tmp_path / "checkpoint3")
    assert query.written(old) == list(range(20, 40))
    assert query.written(new) == list(range(40))
