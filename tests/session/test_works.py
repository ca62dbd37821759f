"""Closes, hang-ups and settlements of many, in slices: what each slice does, what waits for them, and what does not. Counted, not timed."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flintmq.channel.connection")
from flintmq.broker.queue_limits import QueueLimits
from flintmq.channel.connection import Connection
from flintmq.config import Config
from flintmq.net.loop import Loop
from flintmq.protocol.v0_9_1.spec import BasicAck, BasicNack
from flintmq.queue.control import QueueHandle
from tests.support.broker import wait_until
from tests.support.connections import close_all
from tests.support.rawamqp import RawChannel, RawConnection, publish_bytes

Start = Callable[..., Any]
Connect = Callable[..., Any]
HEADER = struct.pack(">HHQH", 60, 0, 1, 0)
# deliveries and consumers of the slices here, and what a request does of them at once
STEP = 8
AT_ONCE = 4 * STEP
# what channel_settle settles in the compiled half
SETTLE_AT_ONCE = 256


# --- what one slice does ----------------------------------------------------------------------------------------------------


def holding(channels: int, consumers: int, unacked: int) -> tuple[Connection, QueueHandle]:
    """A connection whose channels have so many consumers each, and unacked deliveries by basic.get."""
    connection = Connection("peer", Config().limits)
    connection.opened()
    queue = QueueHandle(1)
    for number in range(1, channels + 1):
        connection.open_channel(number)
        for at in range(unacked):
            queue.publish(b"", b"q", HEADER, b"%d" % at, 0, 0)
            assert connection.get(number, queue, False)
        for at in range(consumers):
            assert connection.consume(number, queue, b"c%d" % at, False, False, 0, waiting=True)
    return connection, queue


def test_a_slice_of_an_end_gives_back_as_much_as_it_is_told() -> None:
    connection, queue = holding(3, 50, 100)
    connection.leave()
    held, slices, over = 3 * 150, 0, False
    while not over:
        over = connection.end_some(10)
        slices += 1
        left = queue.consumer_count() + queue.unacked_count()
        assert held - left <= 10
        held = left
        assert queue.consumer_count() == 0 or queue.ready_count() == 0, "consumers go first"
    assert held == 0 and queue.ready_count() == 300
    # Each thing that is held costs one, each channel one more.
    assert slices <= (3 * 150 + 3) // 10 + 2
    assert connection.channel_numbers() == []


def test_the_end_of_a_channel_leaves_the_others_alone() -> None:
    connection, queue = holding(2, 5, 20)
    connection.leave_channel(1, False)
    connection.open_channel(1)  # its number is free at once
    while not connection.end_some(4):
        pass
    assert (queue.consumer_count(), queue.unacked_count(), queue.ready_count()) == (5, 20, 20)
    assert connection.channel_numbers() == [1, 2]
    close_all(connection)
    assert (queue.consumer_count(), queue.unacked_count(), queue.ready_count()) == (0, 0, 40)


def test_consumers_that_want_work_are_off_the_work_lists_at_once() -> None:
    """All were told of a message when their channel ends. The loop's turn that comes then finds nobody."""
    loop = Loop(Config(), 1 << 30)
    ours, theirs = socket.socketpair()
    connection = Connection("peer", Config().limits)
    connection.handler = SimpleNamespace(closed=lambda reason: None)
    connection.opened()
    connection.open_channel(1)
    connection.open_channel(2)
    entry = loop.add(ours.detach(), connection, None)
    queue = QueueHandle(1)
    for at in range(100):
        assert connection.consume(1 + at % 2, queue, b"c%d" % at, True, False, 0)
        queue.publish(b"", b"q", HEADER, b"x", 0, 0)
    connection.leave_channel(1, False)
    assert not connection.end_some(25)

    def stop() -> None:
        loop.stopping = True

    loop.on_timer = lambda now_ms: None
    for _ in range(100):  # one pass on a quiet machine; a pass delivers for a limited time
        loop.stopping = False
        loop.call(stop)
        loop.run()
        if not queue.ready_count():
            break
    assert queue.ready_count() == 0, "the other channel's consumers take what was left for those that go"
    assert queue.consumer_count() == 75
    while not connection.end_some(7):
        pass
    assert queue.consumer_count() == 50
    close_all(connection)
    loop.remove(entry)
    theirs.close()


def test_a_slice_of_a_settlement_goes_on_where_the_last_one_ended() -> None:
    connection, queue = holding(1, 0, 1_000)
    at, slices = 1, 0
    while at:
        before = queue.unacked_count()
        at, most, dead = connection.settle_some(1, BasicAck.ID, False, at, 900, 64)
        assert before - queue.unacked_count() == 64 - most and not dead
        slices += 1
    assert queue.unacked_count() == 100 and slices == 900 // 64 + 1
    assert connection.first_unacked(1) == 901


def test_what_is_dead_lettered_stops_a_slice() -> None:
    connection, queue = holding(1, 0, 5)
    queue.dead_letters = True
    queue.publish(b"", b"q", HEADER, b"x", 0, 0)
    assert connection.get(1, queue, False)
    assert connection.settle_some(1, BasicNack.ID, False, 1, 6, 64) == (6, 58, True)
    assert queue.unacked_count() == 1
    assert connection.settle_some(1, BasicNack.ID, True, 1, 6, 64)[0] == 0  # requeued, it is not
    assert queue.ready_count() == 1


# --- what waits for the slices, and what does not ---------------------------------------------------------------------------


class Gate:
    """Stands before the loop of one connection and keeps its jobs until they are let go."""

    def __init__(self, broker: Any) -> None:
        self.handler = next(iter(broker.node.broker.connections.values()))
        self.loop = self.handler.loop
        self.jobs: list[tuple[Any, Any]] = []
        self.handler.loop = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loop, name)

    def job(self, step: Any, ended: Any) -> None:
        self.jobs.append((step, ended))

    def caught(self) -> None:
        wait_until(lambda: self.jobs)

    def open(self) -> None:
        self.handler.loop = self.loop
        for step, ended in self.jobs:
            self.loop.job(step, ended)


def fill(channel: RawChannel, count: int, queue: str = "q") -> None:
    channel.queue(queue)
    channel.connection.send(b"".join(publish_bytes(channel.number, b"%d" % number, routing_key=queue) for number in range(count)))
    channel.wait_ready(queue, count)


@pytest.fixture
def held(start: Start, connect: Connect) -> tuple[Any, RawConnection, RawChannel, Gate]:
    """(broker, a client whose channel 1 has 600 unacked deliveries, another client's channel, the gate of the first)."""
    broker = start(limits={"work_step": STEP})
    client = connect(broker)
    gate = Gate(broker)
    other = connect(broker).channel()
    fill(other, 600)
    channel = client.channel()
    channel.consume("q", tag="c")
    channel.deliveries(600)
    return broker, client, other, gate


def numbers(channel: RawChannel, count: int) -> list[int]:
    channel.consume("q", tag="again", no_ack=True)
    return [int(message.body) for message in channel.deliveries(count)]


def test_frames_behind_an_ack_of_many_wait_and_others_do_not(held: Any) -> None:
    _, client, other, gate = held
    second = client.channel(2)
    second.queue("mine")
    second.consume("mine", tag="m", no_ack=True)
    client.waiting.clear()
    RawChannel(client, 1).send("basic.ack", delivery_tag=590, multiple=True)
    second.send("queue.declare", queue="q", passive=True)
    gate.caught()
    other.publish(b"go on", routing_key="mine")
    assert second.expect("basic.deliver").body == b"go on"  # deliveries of the connection's other channels go on
    assert other.call("queue.declare", queue="q", passive=True).message_count == 0
    second.nothing()
    gate.open()
    assert second.expect("queue.declare-ok").message_count == 0
    RawChannel(client, 1).call("channel.close", reply_code=200, reply_text="")
    assert numbers(other, 10) == list(range(590, 600))
    # 256 in the compiled half, then slices of STEP.
    assert gate.handler.works.slices >= (590 - SETTLE_AT_ONCE) // STEP


def test_an_ack_that_came_before_the_hang_up_is_whole(held: Any) -> None:
    broker, client, other, gate = held
    RawChannel(client, 1).send("basic.ack", delivery_tag=0, multiple=True)
    gate.caught()
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset is seen although nothing is read
    client.drop()
    wait_until(lambda: gate.handler.ended)
    gate.open()
    wait_until(lambda: gate.handler.connection_id not in broker.node.broker.connections)
    assert other.call("queue.delete", queue="q").message_count == 0


def test_recover_of_many_answers_when_all_is_back(held: Any) -> None:
    _, client, other, gate = held
    channel = RawChannel(client, 1)
    channel.call("basic.cancel", consumer_tag="c")
    channel.send("basic.recover", requeue=True)
    gate.caught()
    channel.nothing()
    assert other.ready("q") == AT_ONCE
    gate.open()
    channel.expect("basic.recover-ok")
    assert numbers(other, 600) == list(range(600))


def test_rejects_of_many_are_dead_lettered_in_slices(start: Start, connect: Connect) -> None:
    broker = start(limits={"work_step": STEP})
    client = connect(broker)
    gate = Gate(broker)
    other = connect(broker).channel()
    other.queue("dead")
    other.queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    other.connection.send(b"".join(publish_bytes(1, b"%d" % number, routing_key="q") for number in range(100)))
    other.wait_ready("q", 100)
    channel = client.channel()
    channel.consume("q")
    channel.deliveries(100)
    channel.send("basic.nack", delivery_tag=0, multiple=True, requeue=False)
    gate.caught()
    assert other.ready("dead") <= AT_ONCE
    gate.open()
    other.wait_ready("dead", 100)
    other.consume("dead", no_ack=True)
    assert [int(message.body) for message in other.deliveries(100)] == list(range(100))


@pytest.mark.parametrize("tag", [0, 601])
def test_unknown_tags_of_nacks_are_refused_as_ever(held: Any, tag: int) -> None:
    _, client, _, _ = held
    channel = RawChannel(client, 1)
    if not tag:
        channel.send("basic.ack", delivery_tag=1, multiple=False)
        channel.send("basic.ack", delivery_tag=1, multiple=False)
        channel.expect_close(406, "unknown delivery tag 1")
    else:
        channel.send("basic.nack", delivery_tag=tag, multiple=True, requeue=False)
        channel.expect_close(406, f"unknown delivery tag {tag}")


def test_close_ok_of_a_channel_comes_when_all_is_back(held: Any) -> None:
    _, client, other, gate = held
    channel = RawChannel(client, 1)
    for number in range(2 * AT_ONCE):
        channel.consume("q", tag=f"more-{number}")
    channel.send("channel.close", reply_code=200, reply_text="")
    gate.caught()
    other.publish(b"600", routing_key="q")
    channel.nothing()  # no close-ok, and nothing is delivered any more although there are consumers
    gate.open()
    channel.expect("channel.close-ok")
    assert other.call("queue.declare", queue="q", passive=True).message_count == 601
    assert other.call("queue.declare", queue="q", passive=True).consumer_count == 0
    assert numbers(other, 601) == list(range(601))


def test_close_ok_of_a_connection_comes_when_all_is_back(held: Any) -> None:
    broker, client, other, gate = held
    auto = RawChannel(client, 2)
    auto.call("channel.open")
    auto.queue("auto", auto_delete=True)
    for number in range(2 * AT_ONCE):
        auto.consume("auto", tag=f"more-{number}")
    auto.queue("own", exclusive=True)
    RawChannel(client, 0).send("connection.close", reply_code=200, reply_text="")
    gate.caught()
    RawChannel(client, 0).nothing()
    gate.open()
    client.expect(0, "connection.close-ok")
    assert other.ready("q") == 600
    assert not {"auto", "own"} & set(broker.node.broker.vhosts["/"].queues)
    assert numbers(other, 600) == list(range(600))


@pytest.mark.parametrize("how", ["hang-up", "error", "stop"])
def test_an_end_that_nobody_waits_for_is_whole(held: Any, how: str) -> None:
    broker, client, other, gate = held
    handler = gate.handler
    if how == "hang-up":
        client.drop()
    elif how == "error":
        RawChannel(client, 1).send("basic.cancel-ok", consumer_tag="x")
        RawChannel(client, 0).send("connection.open", virtual_host="/")
        client.expect(0, "connection.close")
    else:
        gate.loop.call(lambda: handler.close(320, "CONNECTION_FORCED - test"))
    gate.caught()
    if how == "stop":
        # The loop ends before the slices have had their turns.
        for step, ended in gate.jobs:
            del step
            gate.loop.call(lambda ended=ended: ended(False))
    else:
        gate.open()
    wait_until(lambda: handler.connection_id not in broker.node.broker.connections)
    assert numbers(other, 600) == list(range(600))


def test_consumers_of_a_deleted_queue_are_cancelled_in_slices(start: Start, connect: Connect) -> None:
    broker = start()
    channel = connect(broker).channel()
    channel.queue("q")
    for number in range(100):
        channel.consume("q", tag=f"c{number}")
    channel.send("queue.delete", queue="q")
    channel.expect("queue.delete-ok")
    assert len({channel.expect("basic.cancel").consumer_tag for _ in range(100)}) == 100


# --- limits -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dead_letters", [True, False])
def test_a_queue_far_over_its_limit_is_brought_back_in_slices(
    start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch, dead_letters: bool
) -> None:
    """600 unacked messages of a queue of 10 come back at once: each slice ends a few of them, and the oldest go first."""
    inner = QueueLimits._enforce
    ended: list[int] = []

    def enforce(limits: QueueLimits, queue: Any, until_ns: int) -> bool:
        before = queue.core.ready_count()
        done = inner(limits, queue, until_ns)
        ended.append(before - queue.core.ready_count())
        return done

    monkeypatch.setattr(QueueLimits, "_enforce", enforce)
    broker = start()
    other = connect(broker).channel()
    other.queue("dead")
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"} if dead_letters else {}
    other.queue("q", arguments={"x-max-length": 10, **to_dead})
    channel = connect(broker).channel()
    channel.consume("q")
    for number in range(600):
        channel.publish(b"%d" % number, routing_key="q")
        channel.deliveries(1)
    ended.clear()
    channel.call("channel.close", reply_code=200, reply_text="")
    other.wait_ready("q", 10)
    assert sum(ended) == 590
    assert max(ended) <= 256
    assert numbers(other, 10) == list(range(590, 600))
    if dead_letters:
        other.consume("dead", no_ack=True)
        assert sorted(int(message.body) for message in other.deliveries(590)) == list(range(590))


def test_one_job_brings_all_queues_back_under_their_limits(start: Start, connect: Connect) -> None:
    """However many publishes find a queue far over its limit: each ends a few, and one job the rest."""
    broker = start(limits={"housekeeping_ms": 600_000})  # it has jobs of its own, and brings queues back, too
    inner = broker.node.broker
    jobs: list[tuple[Any, Any]] = []
    limits, in_slices = inner.queue_limits, inner.loops.in_slices
    channel = connect(broker).channel()
    channel.queue("dead")
    for name in ("a", "b"):
        channel.queue(name, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 1})
    queues = inner.vhosts["/"].queues
    for name in ("a", "b"):
        for _ in range(100):  # as a transaction or a return puts them there
            queues[name].core.publish(b"", name.encode(), HEADER, b"", 0, 0)
    inner.loops.in_slices = lambda step, ended: jobs.append((step, ended))
    for _ in range(3):
        for name in ("a", "b"):
            channel.publish(b"", routing_key=name)
    channel.call("basic.qos")
    assert len(jobs) == 1 and list(limits._over) == [queues["a"], queues["b"]]
    inner.loops.in_slices = in_slices
    in_slices(*jobs[0])
    for name in ("a", "b"):
        channel.wait_ready(name, 1)
    wait_until(lambda: not limits._running)
    assert channel.ready("dead") == 2 * (100 + 3 - 1)
