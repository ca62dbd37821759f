"""Visibility times and delays of groups end at their time: the stream's clock is told of the first of them, and brings back what is due."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.queue.control import QueueHandle
from flintmq.scheduler.due_clock import DueClock
from flintmq.streams.control import StreamQueue
from flintmq.testing.broker import Broker
from tests.streams.kit import GROUP, filled, member
from tests.twins.memory_stream import MemoryStream

MS = 1_000_000
WAIT_S = 30
HOUR_MS = 3_600_000


def clocked(count: int, **rules: Any) -> tuple[StreamQueue, DueClock]:
    """A stream at 1,000 ms whose clock is moved by hand."""
    _, stream = filled(count, **rules)
    clock = DueClock(stream.give_back, 10)
    stream.use_clock(clock)
    stream.set_clock(1_000)
    return stream, clock


def test_the_first_end_is_armed() -> None:
    """A delivery arms its visibility time, a nack its delay; later ones move nothing; a look ends what is due and says what is next."""
    stream, clock = clocked(3, visibility_ms=1_000, delay_ms=500)
    consumer, other = member(stream), member(stream, group=b"other")
    assert clock.armed_ns == 0 and stream.give_back() == 0
    assert consumer.deliver() == (0, b"m0", False, 0)
    assert clock.armed_ns == 2_000 * MS
    stream.set_clock(1_100)
    assert other.deliver() == (0, b"m0", False, 0) and consumer.deliver() == (1, b"m1", False, 0)
    assert clock.armed_ns == 2_000 * MS
    assert consumer.nack(1)
    assert clock.armed_ns == 1_600 * MS
    stream.set_clock(1_599)
    assert not clock.take_due(1_599 * MS) and stream.give_back() == 1_600 * MS
    assert consumer.deliver() == (2, b"m2", False, 0) and consumer.deliver() is None
    consumer.told()
    stream.set_clock(1_600)
    assert clock.take_due(1_600 * MS) and clock.armed_ns == 0
    assert stream.give_back() == 2_000 * MS
    assert consumer.told() == 1 and consumer.deliver() == (1, b"m1", True, 1)
    stream.set_clock(2_000)
    assert stream.give_back() == 2_100 * MS
    assert {name: figures["expired"] for name, figures in stream.groups().items()} == {GROUP: 1, b"other": 0}


def test_without_times_nothing_is_armed() -> None:
    """No rule, no delay: deliveries, acks, nacks and rejects never wake the clock. A holder that keeps its own time neither."""
    stream, clock = clocked(4)
    consumer, leases = member(stream), member(stream, visibility_ms=0)
    assert [one.deliver()[0] for one in (consumer, consumer, consumer, leases)] == [0, 1, 2, 3]  # type: ignore[index]
    assert consumer.ack(0) and consumer.nack(1) and consumer.reject(2) and leases.nack(3)
    consumer.detach()
    assert clock.armed_ns == 0 and stream.give_back() == 0


def test_a_holders_own_times_are_armed() -> None:
    """Delays that a holder asks for: the clock stands at the one that ends first."""
    stream, clock = clocked(2)
    leases = member(stream, visibility_ms=0)
    assert leases.deliver() is not None and leases.nack(0, delay_ms=50)
    assert clock.armed_ns == 1_050 * MS
    assert leases.deliver() == (1, b"m1", False, 0) and leases.nack(1, delay_ms=20)
    assert clock.armed_ns == 1_020 * MS
    stream.set_clock(1_020)
    assert clock.take_due(1_020 * MS) and stream.give_back() == 1_050 * MS


def test_a_stream_has_one_clock() -> None:
    """Another one is refused: who armed the first would not be looked at."""
    stream, _ = clocked(0)
    with pytest.raises(ValueError, match="a clock already"):
        stream.use_clock(DueClock(stream.give_back, 10))


STEPS = st.tuples(st.sampled_from(["take", "ack", "nack", "delay", "time"]), st.integers(0, 2), st.integers(1, 40))


@given(st.lists(STEPS, max_size=60), st.sampled_from([0, 25]), st.sampled_from([0, 10]))
def test_whatever_happens_nothing_is_over_and_held(steps: list[tuple[str, int, int]], visibility_ms: int, delay_ms: int) -> None:
    """With a look whenever one is due, and no tick: the clock never stands behind what ends first, and what ended is back."""
    stream, clock = clocked(200, visibility_ms=visibility_ms, delay_ms=delay_ms)
    members = [member(stream), member(stream), member(stream, visibility_ms=0)]
    now, held, delayed = 1_000, dict[int, tuple[int, int]](), dict[int, int]()  # offset -> (holder, due), offset -> due; 0: never

    for verb, number, ms in steps:
        mine = sorted(offset for offset, (holder, _) in held.items() if holder == number)
        if verb == "take":
            got = members[number].deliver()
            assert got is not None
            delayed.pop(got[0], None)
            held[got[0]] = number, now + visibility_ms if visibility_ms and number < 2 else 0
        elif verb == "time":
            now += ms
            stream.set_clock(now)
            if clock.take_due(now * MS):
                clock.arm(stream.give_back())
            held = {offset: one for offset, one in held.items() if one[1] == 0 or one[1] > now}
            delayed = {offset: due for offset, due in delayed.items() if due > now}
        elif mine:
            offset = mine[0]
            if verb == "ack":
                assert members[number].ack(offset)
                del held[offset]
            else:
                pause = ms if verb == "delay" else delay_ms
                assert members[number].nack(offset, delay_ms=pause)
                del held[offset]
                if pause:
                    delayed[offset] = now + pause
        ends = [due for _, due in held.values() if due] + list(delayed.values())
        assert not ends or 0 < clock.armed_ns <= min(ends) * MS
        figures = stream.groups()[GROUP]
        assert (figures["in_flight"], figures["delayed"]) == (len(held), len(delayed))


def test_what_ends_comes_back_without_a_tick() -> None:
    """Real time, and the clock's thread alone: what one member never settles reaches the other; again and again."""
    log = MemoryStream()
    stream = StreamQueue(QueueHandle(1), log, visibility_ms=5, delay_ms=3)
    clock = DueClock(stream.give_back, 1)
    stream.use_clock(clock)
    for number in range(20):
        log.append(b"m%d" % number)
    consumers, counts, nap = [member(stream), member(stream)], [0] * 20, threading.Event()
    clock.start()
    try:
        for _ in range(int(WAIT_S / 0.001)):
            for consumer in consumers:
                while (got := consumer.deliver()) is not None:
                    counts[got[0]] += 1
                    if counts[got[0]] % 3 == 0:
                        consumer.nack(got[0])
            if min(counts) >= 5:
                break
            nap.wait(0.001)
    finally:
        clock.stop()
    assert min(counts) >= 5


def test_a_broker_whose_ticks_are_an_hour_apart(tmp_path: Path) -> None:
    """x-retry-delay and x-consumer-timeout end all the same, over AMQP."""
    limits = {"stream_cursor_ms": HOUR_MS, "housekeeping_ms": HOUR_MS}
    with Broker(data_dir=str(tmp_path / "store"), limits=limits) as running:
        connection = pika.BlockingConnection(pika.URLParameters(running.url))
        try:
            channel = connection.channel()
            arguments = {"x-queue-type": "stream", "x-retry-delay": 20, "x-consumer-timeout": 300}
            channel.queue_declare("s", durable=True, arguments=arguments)
            channel.confirm_delivery()
            channel.basic_publish("", "s", b"again")
            channel.basic_qos(prefetch_count=10)
            got: list[Any] = []
            channel.basic_consume(
                "s", lambda _c, method, _p, body: got.append((method, body)), arguments={"x-group": "g", "x-stream-offset": "first"}
            )

            def next_one(redelivered: bool) -> int:
                while not got:
                    connection.process_data_events(WAIT_S)
                method, body = got.pop(0)
                assert body == b"again" and method.redelivered == redelivered
                return int(method.delivery_tag)

            def figures() -> dict[str, Any]:
                queue_id = running.node.broker.vhosts["/"].queues["s"].queue_id  # type: ignore[union-attr, index]
                (group,) = running.node.broker.streams.figures(queue_id)["groups"].values()  # type: ignore[union-attr]
                return dict(group)

            tag = next_one(False)
            for _ in range(50):  # on a busy machine a nack may come when the time is over: then it is without effect
                channel.basic_nack(tag, requeue=True)
                tag = next_one(True)  # after the delay; or after its time, if the nack was late
                if figures()["nacked"]:
                    break
            tag = next_one(True)  # not settled: after its time
            channel.basic_ack(tag)
            assert figures()["nacked"] == 1 and figures()["expired"] >= 1
        finally:
            connection.close()
