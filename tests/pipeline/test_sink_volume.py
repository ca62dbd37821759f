"""Stages at volume: tens of thousands of them through many containers of a small log, and one write of thousands of partitions.

Minutes, so it is collected with FLINTMQ_LONG=1 only: `make test-spark`. FLINTMQ_STAGES and FLINTMQ_PARTITIONS: more or fewer.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pika
import pyarrow as pa
import pytest

from flintmq.flight.client import DataPlane
from tests.support.broker import Broker, unique

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

STAGES = int(os.environ.get("FLINTMQ_STAGES", "20000"))
PARTITIONS = int(os.environ.get("FLINTMQ_PARTITIONS", "3000"))
WRITERS = 8
# stages a second of a quiet query, and for how long
PACE, QUIET_S = 5, 60
# the smallest container: a few hundred stages fill one of the transaction log
CONTAINER = "524288"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker("--flight-port", "0", "--container-size", CONTAINER) as running:
        yield running


@pytest.fixture
def queue(broker: Broker) -> str:
    name = unique("volume")
    with channel_of(broker) as channel:
        channel.queue_declare(name, durable=True)
    return name


@contextlib.contextmanager
def channel_of(broker: Broker) -> Iterator[Any]:
    """For a moment: nothing answers heartbeats while a test waits for Spark."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    try:
        yield connection.channel()
    finally:
        connection.close()


def plane_of(broker: Broker) -> DataPlane:
    return DataPlane(f"grpc://127.0.0.1:{broker.ready['flight_port']}", timeout_s=60)


def publish(plane: DataPlane, queue: str, scope: str, batch: int, kind: str) -> None:
    """One batch of one message."""
    epoch = plane.scope_open()
    begun = plane.stage_begin(scope, epoch, batch, kind=kind)
    assert begun.stage_id is not None
    plane.put(begun.stage_id, [pa.record_batch({"body": [b"x"], "routing_key": [queue]})], exchange="")
    plane.stage_prepare(begun.stage_id)
    assert plane.stage_commit(scope, epoch, batch, [begun.stage_id]).committed == batch


def count(broker: Broker, queue: str) -> int:
    with channel_of(broker) as channel:
        return int(channel.queue_declare(queue, passive=True).method.message_count)


@pytest.mark.parametrize("kind", ["query", "write"])
def test_stages_at_full_speed(broker: Broker, queue: str, kind: str) -> None:
    """Writers side by side, each a query with its batches or named writes one after the other: none is refused."""

    def work(number: int) -> None:
        with plane_of(broker) as plane:
            for batch in range(STAGES // 2 // WRITERS):
                scope, at = (f"{queue}-{number}", batch) if kind == "query" else (f"txn:{queue}-{number}-{batch}", 0)
                publish(plane, queue, scope, at, kind)

    side_by_side(work)
    assert count(broker, queue) == STAGES // 2 // WRITERS * WRITERS


def test_a_quiet_query_beside_a_log_in_a_hurry(broker: Broker, queue: str) -> None:
    """Transient work of others fills containers as fast as they come back; the query's stages come at five a second."""
    done = threading.Event()

    def hurry() -> None:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        other = connection.channel()
        other.queue_declare(busy := unique("busy"), durable=True, arguments={"x-max-length": 10})
        other.confirm_delivery()
        while not done.is_set():
            other.basic_publish("", busy, b"x" * 50_000, pika.BasicProperties(delivery_mode=2))
        connection.close()

    def query(number: int) -> None:
        begun = time.monotonic()
        with plane_of(broker) as plane:
            for batch in range(PACE * QUIET_S):
                publish(plane, queue, queue, batch, "query")
                time.sleep(max(0.0, begun + (batch + 1) / PACE - time.monotonic()))

    thread = threading.Thread(target=hurry)
    thread.start()
    try:
        query(0)
    finally:
        done.set()
        thread.join()
    assert count(broker, queue) == PACE * QUIET_S


def test_a_write_of_thousands_of_partitions(spark: SparkSession, broker: Broker, queue: str) -> None:
    """There is no number of partitions that is too large: the write is whole, in the order of the partitions, and nothing is left."""
    rows = spark.range(PARTITIONS, numPartitions=PARTITIONS).selectExpr("cast(cast(id as string) as binary) as body")
    options = {"flightPort": str(broker.ready["flight_port"]), "exchange": "", "routingKey": queue, "timeout": "120"}
    rows.write.format("flintmq").mode("append").options(**options).save()
    assert count(broker, queue) == PARTITIONS
    with plane_of(broker) as plane:
        status = plane.status()
    assert status["prepared_stages"] == status["open_stages"] == 0
    with channel_of(broker) as channel:
        assert [int(channel.basic_get(queue, auto_ack=True)[2]) for _ in range(PARTITIONS)] == list(range(PARTITIONS))


def side_by_side(work: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(WRITERS) as pool:
        for one in [pool.submit(work, number) for number in range(WRITERS)]:
            one.result()
