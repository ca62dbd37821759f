"""Consumers and groups on a stream's log on a disk, cold reads on the actor system."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.queue.control import QueueHandle
from flintmq.scheduler.system import ActorSystem
from flintmq.streams import cold_reads
from flintmq.streams.control import StreamQueue
from tests.drivers.stream_driver import StreamConsumer
from tests.drivers.stream_threads import StreamThreads
from tests.store_stream.rig import QUEUE, Rig, filtered, header
from tests.streams.kit import GROUP, drain, member, run_all


def stream_on(rig: Rig, **rules: Any) -> StreamQueue:
    handle = QueueHandle(QUEUE)
    handle.set_durable(True)
    return StreamQueue(handle, rig.stream, manual_clock=True, **rules)


@pytest.mark.parametrize("hot", [1 << 20, 1])
def test_everything_comes(hot: int) -> None:
    """What is durable comes in order, with its offset in the headers; what is not is seen by nobody."""
    rig = Rig(hot=hot)
    stream = stream_on(rig)
    lone, shared = member(stream, group=None), member(stream)
    for number in range(300):
        rig.append(b"body %d" % number)
    assert drain(lone) == []
    rig.pump()
    assert drain(lone) == list(range(300))
    full = shared.deliver_full() or shared.deliver_full()
    assert full is not None and full[0] == 0 and full[1] == b"body 0"
    assert b"\x0fx-stream-offsetl" + struct.pack(">q", 0) in full[5]
    assert stream.first_offset == 0 and stream.next_offset == 300
    if hot == 1:
        assert stream.groups()[GROUP]["cold_reads"] > 0


@pytest.mark.parametrize("hot", [1 << 20, 1])
def test_filter(hot: int) -> None:
    """The filter is exact, hot and cold."""
    rig = Rig(hot=hot)
    stream = stream_on(rig)
    for number in range(120):
        body = b"%d" % number
        rig.append(body, [header(body), filtered(body, b"eu"), filtered(body, b"us")][number % 3])
    rig.pump()
    assert drain(member(stream, filters=[b"eu"])) == list(range(1, 120, 3))
    both = member(stream, group=b"both", filters=[b"us"], match_unfiltered=True)
    assert drain(both) == [number for number in range(120) if number % 3 != 1]
    assert stream.groups()[b"both"]["lag"] == 0


def test_restart() -> None:
    """A group goes on after a crash where its state says, on the same messages."""
    rig = Rig(hot=1)
    stream = stream_on(rig)
    for number in range(100):
        rig.append(b"%d" % number)
    rig.pump()
    consumer = member(stream)
    assert len(drain(consumer)) == 100
    for offset in range(0, 100, 2):
        assert consumer.ack(offset)
    state = stream.state_of(GROUP)
    del consumer, stream
    rig.stream.close()
    rig.open()
    stream = stream_on(rig)
    stream.restore(GROUP, state)
    again = member(stream)
    got = []
    while True:
        delivery = again.deliver()
        if delivery is None and not again.told():
            break
        if delivery is not None:
            assert delivery[1] == b"%d" % delivery[0] and delivery[2]
            got.append(delivery[0])
    assert got == list(range(1, 100, 2))


def test_lost_to_retention() -> None:
    """A group that retention overtakes goes on at the first kept offset and says how many it lost."""
    rig = Rig(hot=1)
    stream = stream_on(rig)
    consumer = member(stream)
    for number in range(2_000):
        rig.append(b"x" * 100 + b"%d" % number)
        if number % 100 == 99:
            rig.pump()
    rig.settle()
    rig.stream.retain(20_000, 0)
    first = stream.first_offset
    assert 0 < first < 2_000
    assert drain(consumer) == list(range(first, 2_000))
    assert stream.take_lost() == [(GROUP, first, first)]


def test_time() -> None:
    """A start by time is looked up in the log."""
    rig = Rig()
    stream = stream_on(rig)
    for number in range(5):
        rig.append(b"%d" % number)
    rig.pump()
    assert stream.start_offset("time", 0) == 0
    assert stream.start_offset("time", 1 << 50) == 5


def test_actors() -> None:
    """Many groups draining a backlog from the disk through the actor system, with real threads: everything once, in order."""
    rig = Rig(hot=1, size=65_536)
    stream = stream_on(rig, batch_messages=50)
    total, groups = 3_000, 6
    for number in range(total):
        rig.append(b"%d" % number)
    rig.pump()
    actors = ActorSystem(Limits(), workers=2)
    cold_reads.use(stream, actors)
    actors.start()
    try:
        threads = StreamThreads(stream, total, groups, True)
        lanes = list(range(groups))
        consumers = [StreamConsumer(stream, stream.open_seat("first", group=b"g%d" % lane), 30) for lane in lanes]
        run_all(
            lambda: threads.consume(consumers[:3], lanes[:3], hold=4),
            lambda: threads.consume(consumers[3:], lanes[3:], hold=4, return_every=50),
            stop=threads.stop,
        )
        for lane in lanes:
            result = threads.results(lane)
            assert result["wrong"] == 0 and result["twice"] == 0 and result["disorder"] == 0
        reads = sum(figures["cold_reads"] for figures in stream.groups().values())
        assert reads >= groups * total // 50
    finally:
        actors.stop()


def test_stopped_actors() -> None:
    """A read that nobody takes any more is answered: nothing hangs, the consumer tries again later."""
    rig = Rig(hot=1)
    stream = stream_on(rig)
    for number in range(100):
        rig.append(b"%d" % number)
    rig.pump()
    actors = ActorSystem(Limits(), workers=1)
    cold_reads.use(stream, actors)
    actors.start()
    actors.stop()
    consumer = member(stream)
    assert drain(consumer) == []
    assert stream.groups()[GROUP]["failed_reads"] == 1
