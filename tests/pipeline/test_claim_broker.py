"""With a real broker: each message is in exactly one batch, wherever the driver or the broker is killed; a zombie changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from pyspark_flintmq.claim import Claim
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.queue_batch import batch_reader
from pyspark_flintmq.queue_options import QueueOptions
from tests.pipeline.fake_broker import Crash, Plan
from tests.pipeline.fake_plane import FakeSpark
from tests.pipeline.plane import RealPlane, RestartingBroker, bodies_left, channel_of, publish, ready, source_options
from tests.support.broker import Broker, unique

MESSAGES = [b"m%d" % i for i in range(10)]


@pytest.fixture
def queue(plane_broker: Broker) -> str:
    name = unique("claim")
    publish(plane_broker, name, MESSAGES)
    return name


def options(broker: Broker, queue: str, **raw: Any) -> QueueOptions:
    return QueueOptions.stream(source_options(broker, **{"queue": queue, "maxMessagesPerTrigger": 4, **raw}))


def driver_of(broker: Broker, queue: str, plan: Plan | None = None, **raw: Any) -> FakeSpark:
    return FakeSpark(RealPlane(broker, plan), options(broker, queue, **raw))  # type: ignore[arg-type]


def test_all_arrive_in_order_in_batches_of_the_limit(plane_broker: Broker, queue: str) -> None:
    driver = driver_of(plane_broker, queue, minPartitions=3)
    driver.run()
    assert [len(rows) for rows in driver.sink.values()] == [4, 4, 2]
    assert driver.bodies() == MESSAGES
    assert ready(plane_broker, queue) == 0


def test_one_kill_of_the_driver_at_each_point(plane_broker: Broker) -> None:
    probe_queue = unique("claim")
    publish(plane_broker, probe_queue, MESSAGES[:5])
    probe = driver_of(plane_broker, probe_queue)
    probe.run()
    points = probe.plane.plan.passed
    assert "after sub.acquire" in points
    for i, name in enumerate(points):
        queue = unique("claim")
        publish(plane_broker, queue, MESSAGES[:5])
        driver = driver_of(plane_broker, queue, Plan([i]))
        with pytest.raises(Crash):
            driver.run()
        driver.run()
        assert driver.bodies() == MESSAGES[:5], f"killed at point {i}, {name}"
        assert ready(plane_broker, queue) == 0


def test_a_zombie_reader_is_fenced_and_changes_nothing(plane_broker: Broker, queue: str) -> None:
    planes = RealPlane(plane_broker), RealPlane(plane_broker)
    old, new = (Claim(options(plane_broker, queue), lambda plane=plane: plane) for plane in planes)  # type: ignore[misc]
    start = old.initial()
    end = old.latest(start, 4, 10**6)
    tickets = old.tickets(start, end)
    assert len(tickets) == 2
    assert new.tickets(start, end) != tickets, "tickets carry the epoch"
    for call in (lambda: old.latest(end, 4, 10**6), lambda: old.commit(end), lambda: old.tickets(start, end), lambda: old.lag()):
        with pytest.raises(SourceError) as error:
            call()
        assert error.value.code == "FENCED"
    old.close()
    assert new.lag()["messages_behind"] == 6
    assert [body for ticket in new.tickets(start, end) for body in planes[1].read(ticket.encode())] == MESSAGES[:4]
    new.commit(end)
    new.close()
    assert ready(plane_broker, queue) == 6


def test_several_queues_in_one_batch(plane_broker: Broker) -> None:
    a, b = unique("two"), unique("two")
    publish(plane_broker, a, [b"a%d" % i for i in range(5)])
    publish(plane_broker, b, [b"b%d" % i for i in range(5)])
    driver = FakeSpark(
        RealPlane(plane_broker),  # type: ignore[arg-type]
        QueueOptions.stream(source_options(plane_broker, queuePattern=f"{a[:3]}-*", maxMessagesPerTrigger=6)),
    )
    driver.run()
    found = driver.bodies()
    for name in (b"a", b"b"):
        assert [body for body in found if body.startswith(name)] == [name + b"%d" % i for i in range(5)]
    assert len(found) == 10


def test_a_pattern_leaves_out_what_no_pipeline_may_read(plane_broker: Broker) -> None:
    """A stream, and a queue of a connection that waits for replies, must not keep others from being read by a pattern."""
    name = unique("few")
    publish(plane_broker, f"{name}-plain", [b"x"])
    with channel_of(plane_broker) as channel:
        channel.queue_declare(f"{name}-stream", durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_declare(f"{name}-own", exclusive=True)
        options = source_options(plane_broker, queuePattern=f"{name}*")
        made = QueueOptions.batch(options)
        reader = batch_reader(made, made.table.spark(), pushdown=False)
        assert [bytes(body.as_py()) for part in reader.partitions() for found in reader.read(part) for body in found["body"]] == [b"x"]
        driver = FakeSpark(RealPlane(plane_broker), QueueOptions.stream(options))  # type: ignore[arg-type]
        driver.run()
        assert driver.bodies() == [b"x"]


@pytest.mark.parametrize("single", [False, True])
def test_a_queue_in_exclusive_use_is_not_read(plane_broker: Broker, single: bool) -> None:
    """An exclusive consumer, or the active one of x-single-active-consumer, has it for itself; a pattern leaves it out meanwhile."""
    name = unique("own")
    arguments = {"x-single-active-consumer": True} if single else {}
    with channel_of(plane_broker) as channel:
        channel.queue_declare(f"{name}.a", durable=True, arguments=arguments)
    publish(plane_broker, f"{name}.b", [b"b"])
    claim, by_pattern = (
        Claim(QueueOptions.stream(source_options(plane_broker, **raw)), RealPlane(plane_broker).client)
        for raw in ({"queue": f"{name}.a"}, {"queuePattern": f"{name}.*"})
    )
    with channel_of(plane_broker) as channel:
        channel.basic_consume(f"{name}.a", lambda *_: None, exclusive=not single)
        with pytest.raises(
            SourceError, match=f"queue '{name}.a' in vhost '/' has .*consumer.* for that one alone. Stop the consumer"
        ) as error:
            claim.initial()
        assert error.value.code == "QUEUE_BUSY"
        first = by_pattern.latest(by_pattern.initial(), 10, 10**6)
        assert first["seq"] == 1 and by_pattern.lag()["messages_behind"] == 0
    with channel_of(plane_broker) as channel:
        channel.basic_publish("", f"{name}.a", b"a", pika.BasicProperties(delivery_mode=2))
        start = claim.initial()
        channel.basic_consume(f"{name}.a", lambda *_: None, exclusive=not single, auto_ack=False)
        with pytest.raises(SourceError) as error:
            claim.latest(start, 10, 10**6)
        assert error.value.code == "QUEUE_BUSY"
    assert claim.latest(start, 10, 10**6)["seq"] == 1, "it is free again"
    claim.close()
    by_pattern.close()


def test_latest_leaves_out_what_was_there(plane_broker: Broker, queue: str) -> None:
    driver = driver_of(plane_broker, queue, startingOffsets="latest", discardBacklog="true")
    driver.run()
    assert driver.bodies() == []
    publish(plane_broker, queue, [b"new"])
    driver.run()
    assert driver.bodies() == [b"new"]


def test_a_deleted_subscription_is_not_made_anew_by_an_old_checkpoint(plane_broker: Broker, queue: str) -> None:
    driver = driver_of(plane_broker, queue)
    driver.run()
    RealPlane(plane_broker).calls.sub_reset(name=f"spark:{queue}", action="delete")
    with pytest.raises(SourceError, match="does not have") as error:
        driver.run()
    assert error.value.code == "CHECKPOINT_FOREIGN"


def test_redeliver_gives_the_messages_of_a_lost_checkpoint_again(plane_broker: Broker, queue: str) -> None:
    driver = driver_of(plane_broker, queue)
    driver.plane.plan.at = "before the sink"
    with pytest.raises(Crash):
        driver.run()
    with pytest.raises(SourceError) as error:
        driver_of(plane_broker, queue).run()
    assert error.value.code == "CHECKPOINT_LOST"
    again = driver_of(plane_broker, queue, onLostCheckpoint="redeliver")
    again.run()
    assert again.bodies() == MESSAGES


@pytest.fixture
def restarting(tmp_path: Path) -> Iterator[RestartingBroker]:
    pytest.importorskip("pyarrow")
    broker = RestartingBroker(tmp_path / "store")
    yield broker
    broker.stop()


def test_the_broker_is_killed_in_the_middle_of_a_batch(restarting: RestartingBroker) -> None:
    publish(restarting.broker, "q", MESSAGES)
    driver = driver_of(restarting.broker, "q")
    turns = iter(range(100))

    def meanwhile() -> None:
        # Before planning of the first batch, and before the second one is asked for (which commits the first one).
        if next(turns) in (1, 2):
            restarting.kill()
            restarting.restart()

    driver.meanwhile = meanwhile
    driver.run()
    assert driver.bodies() == MESSAGES
    assert bodies_left(restarting.broker, "q") == []


def test_a_broker_that_is_away_is_waited_for_no_longer_than_the_timeout(restarting: RestartingBroker) -> None:
    publish(restarting.broker, "q", MESSAGES)
    given = options(restarting.broker, "q", timeout=5)
    claim = Claim(given, given.connection.open)
    start = claim.initial()
    restarting.kill()
    with pytest.raises(SourceError, match="does not answer") as error:
        claim.latest(start, 4, 10**6)
    assert error.value.code == "UNREACHABLE"
    restarting.restart()
    assert claim.latest(start, 4, 10**6)["seq"] == 1
    claim.close()
