"""Connections of other nodes: the queues that are owned here, by their ids, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.mirror.mirror import Mirror, MirrorPort
from flintmq.routing.route_cache import DEST_MIRRORED
from flintmq.testing.broker import Broker
from tests.support.node_login import log_in, open_aimed
from tests.support.rawamqp import RawChannel, RawConnection
from tests.support.two_nodes import NAME, QUEUE, Owner

ID = QUEUE.decode()
# messages to a queue of four: a quarter above its limit, and three more, are taken
OVERFLOW = 20
Connect = Callable[..., RawConnection]


@pytest.fixture
def node(owner: Owner, connect: Connect) -> RawConnection:
    """Another node, while the owner has the queue."""
    connect(owner.broker).channel().queue(NAME)
    owner.queues[QUEUE] = NAME
    return log_in(connect(owner.broker, handshake=False))


def aimed(node: RawConnection, number: int = 1) -> Any:
    open_aimed(node, number, QUEUE)
    node.expect(number, "channel.open-ok")
    return number


def publish(node: RawConnection, number: int, body: bytes, exchange: str = "", routing_key: str = "k", **properties: Any) -> None:
    RawChannel(node, number).publish(body, exchange=exchange, routing_key=routing_key, **properties)


def test_whatever_a_message_names_it_goes_to_the_queue_that_the_channel_is_aimed_at(owner: Owner, node: RawConnection) -> None:
    number = aimed(node)
    names = [
        ("", "nowhere"),
        ("no such exchange", "k"),
        ("amq.rabbitmq.trace", "k"),
        *((f"x{count}", f"k{count % 3}") for count in range(90)),
    ]
    for exchange, key in names:
        publish(node, number, b"m", exchange, key)
    core = owner.core()
    node.channel(2).call("queue.declare", queue=ID, passive=True)
    position, found = core.next_available(), []
    while position:
        exchange, key, _, _ = core.message_at(position)
        found.append((exchange.decode(), key.decode()))
        position = core.next_available(position + 1)
    assert found == names


def test_a_message_with_a_schedule_or_further_keys_goes_there_now(owner: Owner, node: RawConnection) -> None:
    number = aimed(node)
    publish(node, number, b"1", headers={"x-delay": 3_600_000})
    publish(node, number, b"2", headers={"CC": ["q2"], "BCC": ["q3"]}, user_id="somebody")
    publish(node, number, b"3", reply_to="amq.rabbitmq.reply-to", delivery_mode=7)
    answer = node.channel(2).call("queue.declare", queue=ID, passive=True)
    assert answer.message_count == 3


def test_a_channel_that_is_not_aimed_publishes_nothing(node: RawConnection) -> None:
    channel = node.channel(1)
    channel.publish(b"1", routing_key=NAME)
    closed = node.expect(1, "channel.close")
    assert closed.reply_code == 403 and "aimed" in closed.reply_text


def test_a_queue_that_is_not_here_is_said_to_be_owned_elsewhere(node: RawConnection) -> None:
    open_aimed(node, 1, b"f" * 16)
    node.expect(1, "channel.open-ok")
    closed = node.expect(1, "channel.close")
    assert closed.reply_code == 404 and closed.reply_text.startswith("NOT_FOUND - not owned here")


@pytest.mark.parametrize("method", ["basic.consume", "basic.get", "queue.purge", "queue.delete"])
def test_methods_find_queues_by_their_ids_alone(node: RawConnection, method: str) -> None:
    channel = node.channel(1)
    channel.send(method, queue=NAME)
    closed = node.expect(1, "channel.close")
    assert closed.reply_code == 404 and "not owned here" in closed.reply_text


def test_nothing_is_declared_or_bound_by_another_node(node: RawConnection) -> None:
    asked = [
        ("queue.declare", {"queue": ID}),
        ("exchange.declare", {"exchange": "x", "type": "direct"}),
        ("queue.bind", {"queue": ID, "exchange": "amq.direct", "routing_key": ""}),
        ("exchange.delete", {"exchange": "amq.direct"}),
    ]
    for number, (method, fields) in enumerate(asked, 1):
        node.channel(number).send(method, **fields)
        closed = node.expect(number, "channel.close")
        assert closed.reply_code in (403, 404), method


def test_a_lost_queue_closes_the_channels_aimed_at_it_and_no_others(owner: Owner, node: RawConnection) -> None:
    number, untouched = aimed(node), node.channel(2)
    publish(node, number, b"1")
    untouched.call("queue.declare", queue=ID, passive=True)
    owner.lose()
    closed = node.expect(number, "channel.close")
    assert closed.reply_code == 404 and "not owned here" in closed.reply_text
    untouched.call("basic.qos", prefetch_count=1)


def test_a_publish_that_meets_a_deleted_queue_is_refused_and_not_taken_for_unroutable(
    owner: Owner, node: RawConnection, connect: Connect
) -> None:
    number = aimed(node)
    channel = RawChannel(node, number)
    channel.call("confirm.select")
    publish(node, number, b"1")
    assert node.recv(number).name == "basic.ack"
    connect(owner.broker).channel().call("queue.delete", queue=NAME)
    publish(node, number, b"2")
    frame = node.recv(number)
    assert (frame.name, frame.delivery_tag) == ("basic.nack", 2)


def test_a_hard_error_of_one_channel_ends_that_channel_alone(node: RawConnection) -> None:
    channel, other = node.channel(1), node.channel(2)
    channel.send("basic.qos", prefetch_size=1)
    assert node.expect(1, "channel.close").reply_code == 540
    other.call("queue.declare", queue=ID, passive=True)


def test_routes_are_made_anew_when_the_policy_of_a_queue_changes(owner: Owner, node: RawConnection) -> None:
    number = aimed(node)
    publish(node, number, b"1")
    node.channel(2).call("queue.declare", queue=ID, passive=True)
    owner.core().ttl_ms = 1
    owner.vhost.routes_changed(ID)
    publish(node, number, b"2")
    deadline = time.monotonic() + 20
    while owner.core().ready_count() != 1:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_full_queue_that_blocks_publishers_refuses_a_nodes_messages_and_stops_no_others(
    start: Callable[..., Broker], connect: Connect
) -> None:
    owner = Owner(start(limits={"over_limit_messages": 3}))
    connect(owner.broker).channel().queue(NAME)
    owner.queues[QUEUE] = NAME
    node = log_in(connect(owner.broker, handshake=False))
    other_id = b"f" * 16
    connect(owner.broker).channel().queue("full", arguments={"x-max-length": 4, "x-overflow": "block"})
    owner.queues[other_id] = "full"
    open_aimed(node, 3, other_id)
    node.expect(3, "channel.open-ok")
    RawChannel(node, 3).call("confirm.select")
    for _ in range(OVERFLOW):
        publish(node, 3, b"m")
    answers: dict[int, str] = {}
    while OVERFLOW not in answers:
        frame = node.recv(3)
        answers.update(dict.fromkeys(range(len(answers) + 1, frame.delivery_tag + 1), frame.name))
    assert (answers[1], answers[OVERFLOW]) == ("basic.ack", "basic.nack")
    assert owner.core("full").ready_count() == 8
    number = aimed(node)
    publish(node, number, b"1")
    assert node.channel(2).call("queue.declare", queue=ID, passive=True).message_count == 1


def test_a_confirm_of_a_mirrored_queue_waits_for_the_engine(start: Callable[..., Broker], connect: Connect, tmp_path: Path) -> None:
    owner = Owner(start(store_dir=str(tmp_path / "owner")))
    connect(owner.broker).channel().queue(NAME, durable=True)
    owner.queues[QUEUE] = NAME
    core = owner.core()
    port = MirrorPort(2**64 - 1, 10_000, 100_000, owner.inner.log)
    mirror = Mirror(core, port, "/")
    core.destination_flags |= DEST_MIRRORED
    node = log_in(connect(owner.broker, handshake=False))
    channel = RawChannel(node, aimed(node))
    channel.call("confirm.select")
    publish(node, 1, b"1")
    node.channel(2).call("queue.declare", queue=ID, passive=True)
    assert not node.waiting[1]
    mirror.settle([position for position, _ in mirror.take(1, 1, 400, 1 << 18, 100)])
    port.wake()
    assert node.recv(1).name == "basic.ack"
    publish(node, 1, b"2")
    node.channel(3).call("queue.declare", queue=ID, passive=True)
    mirror.lose()
    frame = node.recv(1)
    assert (frame.name, frame.delivery_tag) == ("basic.nack", 2)
