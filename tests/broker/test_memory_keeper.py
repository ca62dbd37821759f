"""A shortage of memory ends by itself, and who causes it is the first to wait (broker/memory_keeper.py, queue/sweep.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.core.content import bytes_mapped, give_back_chunks
from flintmq.core.memory_account import bytes_held
from flintmq.ports import PermissionRecord
from flintmq.queue.control import QueueHandle
from flintmq.queue.sweep import Sweeper
from tests.broker.test_memory_alarm import Flood, alarmed
from tests.support.broker import wait_until
from tests.support.rawamqp import ConnectionLost, header_frame
from tests.support.rawcodec import BODY, frame

KIB = 1024
MIB = 1024 * KIB
QUICK = {"memory_sweep_ms": 20, "memory_sweep_least": 1}


def core_of(broker: Any, name: str) -> QueueHandle:
    return next(queue.core for queue in broker.node.broker.queues.values() if queue.name == name)


# --- sweeps, without threads ------------------------------------------------------------------------------------------------


def test_small_messages_leave_chunks_that_are_kept_for_them_alone() -> None:
    queue, other = QueueHandle(7), QueueHandle(8)
    before = bytes_mapped()
    for number in range(40):
        queue.publish(b"", b"key", bytes(14), b"%03d" % number, 0, 0)
        for _ in range(6):
            other.publish(b"", b"key", bytes(14), bytes(50 * KIB), 0, 0)
        other.purge()
    assert bytes_mapped() - before >= 40 * 256 * KIB
    sweeper = Sweeper()
    sweeper.queue(queue, False)
    assert sweeper.copied == 0, "memory is not short"
    sweeper.queue(queue, True)
    sweeper.end()
    assert sweeper.copied >= 39
    assert bytes_mapped() - before <= 4 * 256 * KIB
    sweeper.queue(queue, True)
    assert sweeper.copied <= 40, "what was moved stays where it is"
    assert [queue.peek(position)[-1] for position in range(1, 41)] == [b"%03d" % number for number in range(40)]


def test_empty_chunks_that_wait_for_reuse_go_back_when_they_are_told_to() -> None:
    queue = QueueHandle(7)
    give_back_chunks()
    for _ in range(40):
        queue.publish(b"", b"key", bytes(14), bytes(60 * KIB), 0, 0)
    queue.purge()
    assert give_back_chunks() >= 8, "four of these bodies are in a chunk"
    assert give_back_chunks() == 0


# --- on a broker --------------------------------------------------------------------------------------------------------------


def test_delivered_and_returned_bodies_leave_memory(start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path) -> None:
    """32 MiB in a consumer's hands at a limit of 16 MiB: no publisher is held for good, and what comes back is what was sent."""
    broker = start({**QUICK, "queue_hot_bytes": 256 * KIB}, data_dir=str(tmp_path), memory_limit=bytes_held() + 16 * MIB)
    channel = connect(broker).channel()
    channel.call("queue.declare", queue="work", durable=True)
    consumer = connect(broker)
    hands = consumer.channel()
    hands.consume("work", no_ack=False)
    count = 2000
    for number in range(count):
        channel.publish(number.to_bytes(4, "big") * (4 * KIB), routing_key="work", delivery_mode=2)
        if number % 100 == 99:
            hands.deliveries(100)
    core = core_of(broker, "work")
    assert core.unacked_count() == count
    wait_until(lambda: core.resident_bytes < 4 * MIB and not alarmed(broker), what="what is delivered leaves memory")
    consumer.drop()
    wait_until(lambda: core.ready_count() == count, what="everything came back")
    wait_until(lambda: core.resident_bytes < 4 * MIB, what="what came back is not kept in memory")
    again = connect(broker).channel()
    again.consume("work", no_ack=True)
    for number in range(count):
        message = again.expect("basic.deliver")
        assert message.redelivered and message.body == number.to_bytes(4, "big") * (4 * KIB)
    assert not alarmed(broker)
    assert broker.node.memory.figures()["evicted"] >= count // 2


def test_small_parked_messages_block_nobody_for_good(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start(QUICK, memory_limit=bytes_held() + 16 * MIB)
    channel = connect(broker).channel()
    channel.queue("parked")
    channel.queue("traffic")
    for number in range(120):  # 30 MiB of chunks, 12 kB of messages
        channel.publish(b"%03d" % number * 33, routing_key="parked")
        for _ in range(5):
            channel.publish(bytes(52 * KIB), routing_key="traffic")
        channel.call("queue.purge", queue="traffic")
    wait_until(lambda: not alarmed(broker), what="the alarm ends by itself")
    channel.consume("parked", no_ack=True)
    assert [message.body[:3] for message in channel.deliveries(120)] == [b"%03d" % number for number in range(120)]


def test_a_message_of_many_queues_is_copied_once(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    before = bytes_mapped()
    broker = start(QUICK, memory_limit=bytes_held() + 16 * MIB)
    channel = connect(broker).channel()
    channel.queue("traffic")
    for number in range(10):
        channel.queue(f"q{number}")
        channel.call("queue.bind", queue=f"q{number}", exchange="amq.fanout", routing_key="")
    for _ in range(120):  # 30 MiB of chunks: more than memory that earlier tests of this process give back meanwhile
        channel.publish(bytes(8 * KIB), exchange="amq.fanout")
        for _ in range(5):
            channel.publish(bytes(52 * KIB), routing_key="traffic")
        channel.call("queue.purge", queue="traffic")
    # A megabyte once, ten if each queue got its own.
    wait_until(lambda: broker.node.memory.figures()["copied"] >= 400, what="contents were moved")
    core = [core_of(broker, f"q{number}") for number in range(10)]

    def is_moved() -> bool:
        """Asked again while a round of the keeper is under way: it holds what it moved until its end."""
        sweeper = Sweeper()
        for one in core:
            sweeper.queue(one, True)
        sweeper.end()
        return bytes_mapped() - before < 4 * MIB

    wait_until(is_moved, what="a megabyte in chunks of its own")
    assert sum(one.ready_count() for one in core) == 1200


def test_another_virtual_host_goes_on_while_one_fills_memory(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start(QUICK, memory_limit=bytes_held() + 24 * MIB)
    inner = broker.node.broker
    inner.add_vhost("quiet")
    broker.node.permissions.set_permissions(PermissionRecord("guest", "quiet", ".*", ".*", ".*"))
    quiet = connect(broker, vhost="quiet").channel()
    quiet.queue("q")
    hog = connect(broker)
    channel = hog.channel()
    channel.queue("big")
    flood = Flood(hog, 900)
    wait_until(lambda: any(one.is_blocked for one in inner.connections.values() if one.vhost.name == "/"), what="the hog waits")
    quiet_ones = [one for one in inner.connections.values() if one.vhost.name == "quiet"]
    wait_until(lambda: all(one.socket.spared for one in quiet_ones), what="the other is spared")
    for number in range(50):
        quiet.publish(b"%d" % number, routing_key="q")
    assert quiet.ready("q") == 50
    assert not any(one.is_blocked for one in quiet_ones)
    assert flood.is_alive()


def test_unfinished_small_messages_keep_no_chunks(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start(QUICK, memory_limit=bytes_held() + 16 * MIB)
    channel = connect(broker).channel()
    channel.queue("traffic")
    channel.queue("q")
    hoarder = connect(broker)
    for number in range(1, 101):
        half = hoarder.channel(number)
        if number % 2:
            half.call("tx.select")
            half.publish(b"%050d" % number * 2, routing_key="q")
        else:
            half.send("basic.publish", exchange="", routing_key="q")
            hoarder.send(header_frame(number, 100) + frame(BODY, number, b"%050d" % number))
        hoarder.channel(1000 + number)  # the broker has it
        for _ in range(5):
            channel.publish(bytes(52 * KIB), routing_key="traffic")
        channel.call("queue.purge", queue="traffic")
    wait_until(lambda: not alarmed(broker), what="the alarm ends by itself")
    for number in range(2, 101, 2):
        hoarder.send(frame(BODY, number, b"%050d" % number))
    hoarder.channel(2000)
    channel.consume("q", no_ack=True)
    assert [message.body for message in channel.deliveries(50)] == [b"%050d" % number * 2 for number in range(2, 101, 2)]


def test_unfinished_messages_raise_no_alarm_for_ever(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """What connections hold themselves can't be evicted: the largest of them goes when memory is used up."""
    broker = start(QUICK, memory_limit=bytes_held() + 16 * MIB)
    other = connect(broker).channel()
    other.queue("q")
    hoarders = [connect(broker) for _ in range(3)]
    for hoarder in hoarders:
        for number in range(1, 9):
            channel = hoarder.channel(number)
            channel.send("basic.publish", exchange="", routing_key="q")
            hoarder.send(header_frame(number, 100 * MIB))
            for _ in range(10):
                hoarder.send(frame(BODY, number, bytes(100_000)))
    wait_until(lambda: broker.node.memory.closed > 0 and not alarmed(broker), what="the alarm ends by itself")
    other.publish(b"note", routing_key="q")
    assert other.ready("q") == 1
    codes = []
    for hoarder in hoarders:
        try:
            codes.append(hoarder.recv_any(1).reply_code)
        except (TimeoutError, ConnectionLost, OSError):
            codes.append(0)
    assert 506 in codes


# --- windows of queues in motion ------------------------------------------------------------------------------------------------


def bodies_of(number: int) -> bytes:
    return number.to_bytes(4, "big") * KIB


@pytest.mark.parametrize("durable", [False, True])
def test_a_queue_in_motion_keeps_all_and_goes_back_to_its_window_when_it_rests(
    durable: bool, start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path
) -> None:
    """A transient message goes to the page log only then. The test looks in the place of the keeper."""
    limits = {"memory_sweep_ms": 3_600_000, "queue_hot_bytes": 256 * KIB}
    broker = start(limits, data_dir=str(tmp_path), content_memory=bytes_mapped() + 64 * MIB)
    channel = connect(broker).channel()
    channel.call("queue.declare", queue="work", durable=durable)
    count = 2000
    for number in range(count):
        channel.publish(bodies_of(number), routing_key="work", delivery_mode=2 if durable else 1)
    core = core_of(broker, "work")
    wait_until(lambda: core.ready_count() == count, what="all arrived")
    assert core.resident_bytes == count * 4 * KIB
    keeper = broker.node.memory
    for _ in range(10):
        keeper.narrow()
    assert core.resident_bytes == count * 4 * KIB, "it moved before the first look, and did not rest for long"

    def looked() -> bool:
        keeper.narrow()
        return bool(core.resident_bytes <= 256 * KIB)

    wait_until(looked, what="what is behind the window left memory")
    assert core.resident_bytes > 128 * KIB
    reader = connect(broker).channel()
    reader.consume("work", no_ack=True)
    for number in range(count):
        message = reader.expect("basic.deliver")
        assert message.body == bodies_of(number) and not message.redelivered


def test_above_the_budget_the_largest_queue_goes_back_first(start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path) -> None:
    limits = {"memory_sweep_ms": 3_600_000, "queue_hot_bytes": 256 * KIB}
    broker = start(limits, data_dir=str(tmp_path), content_memory=bytes_mapped() + 7 * MIB)
    channel = connect(broker).channel()
    for name, count in (("small", 500), ("large", 1000), ("last", 500)):
        channel.call("queue.declare", queue=name)
        for number in range(count):
            channel.publish(bodies_of(number), routing_key=name)
        wait_until(lambda name=name, count=count: core_of(broker, name).ready_count() == count, what="all arrived")
    small, large, last = (core_of(broker, name) for name in ("small", "large", "last"))
    assert small.resident_bytes == 500 * 4 * KIB
    assert large.resident_bytes == 1000 * 4 * KIB
    assert last.resident_bytes < 500 * 4 * KIB, "the budget is used up"
    broker.node.memory.narrow()
    assert large.resident_bytes <= 256 * KIB
    assert small.resident_bytes == 500 * 4 * KIB


def test_a_queue_that_rested_within_its_share_rests_anew_once_it_has_more(
    start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path
) -> None:
    """What comes after a rest is in motion, and does not go over the disk."""
    limits = {"memory_sweep_ms": 3_600_000, "queue_hot_bytes": 256 * KIB}
    broker = start(limits, data_dir=str(tmp_path), content_memory=bytes_mapped() + 64 * MIB)
    channel = connect(broker).channel()
    channel.queue("work", durable=True)
    core = core_of(broker, "work")
    keeper = broker.node.memory
    for count in (32, 2_000):
        for number in range(count):
            channel.publish(bodies_of(number), routing_key="work", delivery_mode=2)
        ready = count if count == 32 else 2_032
        wait_until(lambda ready=ready: core.ready_count() == ready, what="all arrived")
        for _ in range(30 if count == 32 else 8):
            keeper.narrow()
    assert core.resident_bytes == 2_032 * 4 * KIB


def test_queues_that_rest_share_what_they_keep_and_consumers_read_ahead_by_the_whole_window(
    start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path
) -> None:
    """Twelve queues with a MiB each, of which resting ones may keep 1 MiB together: 64 KiB each, since half windows of 256 KiB are tried.
    One that is left alone keeps its window again."""
    limits = {"memory_sweep_ms": 3_600_000, "queue_hot_bytes": 256 * KIB, "queues_rest_bytes_max": MIB, "queue_rest_bytes_least": 16 * KIB}
    broker = start(limits, data_dir=str(tmp_path), content_memory=bytes_mapped() + 64 * MIB)
    channel = connect(broker).channel()
    names = [f"q{number}" for number in range(12)]
    for name in names:
        channel.call("queue.declare", queue=name, durable=True)
        for number in range(256):
            channel.publish(bodies_of(number), routing_key=name, delivery_mode=2)
    cores = [core_of(broker, name) for name in names]
    wait_until(lambda: all(core.ready_count() == 256 for core in cores), what="all arrived")
    keeper = broker.node.memory

    def rests(bytes_: int) -> Callable[[], bool]:
        def looked() -> bool:
            keeper.narrow()
            return all(core.resident_bytes <= bytes_ for core in cores)

        return looked

    wait_until(rests(64 * KIB), what="what is behind each one's share left memory")
    assert all(core.resident_bytes > 60 * KIB for core in cores)
    reader = connect(broker).channel()
    reader.call("basic.qos", prefetch_count=30)
    reader.consume("q0")
    for number in range(30):
        assert reader.expect("basic.deliver").body == bodies_of(number)
    wait_until(lambda: cores[0].resident_bytes > 192 * KIB, what="a queue that is read has its whole window")
    for name in names[1:]:
        channel.call("queue.delete", queue=name)
    keeper.narrow()
    channel.call("queue.declare", queue="alone", durable=True)
    for number in range(256):
        channel.publish(bodies_of(number), routing_key="alone", delivery_mode=2)
    cores = [core_of(broker, "alone")]
    wait_until(lambda: cores[0].ready_count() == 256, what="all arrived")
    wait_until(rests(256 * KIB), what="it rests")
    assert cores[0].resident_bytes > 192 * KIB
