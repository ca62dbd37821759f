"""A query on a shared queue: each message once and in order, also when the broker that it reads from is killed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.patience import patient
from tests.pipeline.plane import RestartingBroker, channel_of, flight_port, source_options
from tests.shared_wire.test_shared_queues import SHARED, on
from tests.shared_wire.test_shared_queues import publish as publish_on
from tests.support.broker import Broker, unique, wait_until
from tests.support.etcd import EtcdCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
WAIT_S = 60


def has(broker: Broker, queue: str) -> bool:
    with channel_of(broker) as channel:
        try:
            channel.queue_declare(queue, passive=True)
        except Exception:  # not yet
            return False
        return True


@contextlib.contextmanager
def nodes(cluster: EtcdCluster) -> Iterator[list[Broker]]:
    """Three nodes of one cluster."""
    _, url = on(cluster)
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Broker("--cluster", url, "--node-name", unique(name), "--flight-port", "0")) for name in "abc"]


def test_a_query_goes_on_at_another_node_when_its_own_is_killed(spark: SparkSession, cluster: EtcdCluster, tmp_path: Path) -> None:
    queue, bodies = unique("shared"), [b"m%03d" % number for number in range(60)]
    with nodes(cluster) as (one, other, third):
        with channel_of(one) as channel:
            channel.queue_declare(queue, durable=True, arguments=SHARED)
            publish_on(channel, queue, *bodies)
        wait_until(lambda: has(other, queue), WAIT_S)
        url = ",".join(f"grpc://{broker.host}:{flight_port(broker)}" for broker in (one, other, third))
        options: dict[str, Any] = {"url": url, "cluster": "true", "queue": queue, "maxMessagesPerTrigger": 20, "timeout": 60}
        got: dict[int, list[bytes]] = {}
        killed: list[int] = []

        def sink(frame: DataFrame, number: int) -> None:
            if number == 1 and not killed:
                one.kill()
                killed.append(number)
            got[number] = [bytes(row["body"]) for row in sorted(frame.collect(), key=lambda row: row["position"])]

        @patient
        def run() -> None:
            frame = spark.readStream.format("flintmq").options(**{key: str(value) for key, value in options.items()}).load()
            writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
            writer.trigger(availableNow=True).start().awaitTermination()

        run()
        run()  # commits the last batch: Spark's commit log has it
        assert killed == [1]
        assert [body for number in sorted(got) for body in got[number]] == bodies
        with channel_of(other) as channel:
            # A node learns the others' counts with its next look at the engine.
            wait_until(lambda: channel.queue_declare(queue, passive=True).method.message_count == 0, WAIT_S)
            assert channel.basic_get(queue) == (None, None, None)


def test_a_query_on_a_queue_with_an_owner_goes_on_when_that_was_killed_and_started(spark: SparkSession, tmp_path: Path) -> None:
    queue, bodies = unique("shared"), [b"m%03d" % number for number in range(60)]
    node = RestartingBroker(tmp_path / "store")
    try:
        with channel_of(node.broker) as channel:
            channel.queue_declare(queue, durable=True, arguments=SHARED)
            publish_on(channel, queue, *bodies)
        options: dict[str, Any] = {**source_options(node.broker), "queue": queue, "maxMessagesPerTrigger": 20}
        got: dict[int, list[bytes]] = {}
        killed: list[int] = []

        def sink(frame: DataFrame, number: int) -> None:
            if number == 1 and not killed:
                killed.append(number)
                node.kill()
                node.restart()
            got[number] = [bytes(row["body"]) for row in sorted(frame.collect(), key=lambda row: row["position"])]

        @patient
        def run() -> None:
            frame = spark.readStream.format("flintmq").options(**options).load()
            writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
            writer.trigger(availableNow=True).start().awaitTermination()

        run()
        run()  # commits the last batch: Spark's commit log has it
        assert killed == [1]
        assert [body for number in sorted(got) for body in got[number]] == bodies
        with channel_of(node.broker) as channel:
            assert channel.basic_get(queue) == (None, None, None)
    finally:
        node.stop()


def test_a_write_is_on_a_shared_queue_once_also_when_it_is_repeated_at_another_node(spark: SparkSession, cluster: EtcdCluster) -> None:
    queue, other_queue = unique("shared"), unique("shared")
    with nodes(cluster) as (one, other, third):
        for broker, name in ((one, queue), (other, other_queue)):
            with channel_of(broker) as channel:
                channel.queue_declare(name, durable=True, arguments=SHARED)
        for broker, name in ((one, other_queue), (other, queue)):
            wait_until(lambda broker=broker, name=name: has(broker, name), WAIT_S)
        url = ",".join(f"grpc://{broker.host}:{flight_port(broker)}" for broker in (one, other, third))
        options = {"url": url, "cluster": "true", "timeout": "60", "txnId": queue}

        def write(version: int, first: int) -> None:
            frame = spark.range(first, first + 40, numPartitions=2)
            rows = frame.selectExpr(
                "cast(cast(id as string) as binary) as body",
                "'' as exchange",
                f"if(id % 2 = 0, '{queue}', '{other_queue}') as routing_key",
            )
            rows.write.format("flintmq").options(**options, txnVersion=str(version)).mode("append").save()

        write(1, 0)
        one.kill()
        write(1, 0)
        write(2, 40)
        with channel_of(other) as channel:
            for name, rest in ((queue, 0), (other_queue, 1)):
                wait_until(lambda name=name: has(other, name), WAIT_S)
                got = []
                while len(got) < 40 and (body := channel.basic_get(name, auto_ack=True)[2]) is not None:
                    got.append(int(body))
                assert sorted(got) == list(range(rest, 80, 2))
                assert channel.basic_get(name) == (None, None, None)
