"""Real threads on one stream: nothing lost, nothing in two hands at once, nobody waits for a wake that never comes."""

from __future__ import annotations

import pytest

from flintmq.queue.control import QueueHandle
from flintmq.streams.control import StreamQueue
from tests.drivers.stream_driver import StreamConsumer
from tests.drivers.stream_threads import StreamThreads
from tests.streams.kit import run_all
from tests.twins.memory_stream import MemoryStream


def group(number: int) -> bytes:
    return b"g%d" % number


@pytest.mark.parametrize(("hot", "window"), [(1_000_000, 0), (64, 200), (0, 3)])
def test_groups(hot: int, window: int, total: int = 4_000) -> None:
    """Ten groups of two members each get every message once, from memory and from the disk, with returns; each member's come in order."""
    groups = 10
    log = MemoryStream(hot=hot)
    stream = StreamQueue(QueueHandle(1), log, batch_messages=32)
    threads = StreamThreads(stream, total, groups, True, log)
    lanes = list(range(groups))
    sides = [[StreamConsumer(stream, stream.open_seat("first", group=group(lane)), 20) for lane in lanes] for _ in range(2)]
    run_all(
        lambda: threads.consume(sides[0], lanes, return_every=17, hold=5),
        lambda: threads.consume(sides[1], lanes, hold=3),
        lambda: threads.produce(total // 2, ahead=window, publish_every=16),
        lambda: threads.produce(total // 2, ahead=window, publish_every=1),
        stop=threads.stop,
    )
    for lane in lanes:
        result = threads.results(lane)
        assert result["wrong"] == 0 and result["done"] == total, "every offset is done once"
        assert result["twice"] == 0 and result["disorder"] == 0
        figures = stream.groups()[group(lane)]
        assert figures["base"] == figures["next"] == total and figures["unfinished"] == 0


@pytest.mark.parametrize("hot", [0, 1_000_000])
def test_members_come_and_go(hot: int, total: int = 3_000) -> None:
    """Members that leave with messages in hand lose none of them: others get them, flagged."""
    log = MemoryStream(hot=hot)
    stream = StreamQueue(QueueHandle(1), log, batch_messages=16)
    threads = StreamThreads(stream, total, 1, True, log)

    def visitor() -> None:
        while threads.results(0)["done"] < total:
            consumer = StreamConsumer(stream, stream.open_seat("first", group=b"g"), 8)
            threads.consume([consumer], [0], leave_after=37, hold=8)
            consumer.detach()

    run_all(visitor, visitor, lambda: threads.produce(total, ahead=100, publish_every=4), stop=threads.stop)
    result = threads.results(0)
    assert result["wrong"] == 0 and result["done"] == total and result["twice"] == 0
    assert result["redelivered"] > 0


def test_lone_consumers(total: int = 5_000) -> None:
    """Consumers without a group each get everything in order, whatever the others do."""
    readers = 6
    log = MemoryStream(hot=100)
    stream = StreamQueue(QueueHandle(1), log)
    threads = StreamThreads(stream, total, readers, True, log)
    consumers = [StreamConsumer(stream, stream.open_seat("first"), 10) for _ in range(readers)]
    run_all(
        lambda: threads.consume(consumers[:3], [0, 1, 2]),
        lambda: threads.consume(consumers[3:], [3, 4, 5], hold=9),
        lambda: threads.produce(total, ahead=300, publish_every=8),
        stop=threads.stop,
    )
    for lane in range(readers):
        result = threads.results(lane)
        assert result["wrong"] == 0 and result["disorder"] == 0 and result["redelivered"] == 0
    assert stream.lone_acked == total * readers


def test_ping_pong(total: int = 5_000) -> None:
    """With one message on its way at a time every single one needs a wake: none may be lost."""
    log = MemoryStream()
    stream = StreamQueue(QueueHandle(1), log)
    threads = StreamThreads(stream, total, 3, True, log)
    consumers = [StreamConsumer(stream, stream.open_seat("first", group=group(lane)), 1) for lane in (0, 1, 2, 0, 1, 2)]
    run_all(
        lambda: threads.consume(consumers[:3], [0, 1, 2]),
        lambda: threads.consume(consumers[3:], [0, 1, 2]),
        lambda: threads.produce(total, ahead=1, publish_every=1),
        stop=threads.stop,
    )
    assert all(threads.results(lane)["wrong"] == 0 for lane in range(3))
