"""Arguments of shared queues that an owner serves with the ordinary core: another owner has all of their state that is to last.

Properties: order, groups, limits and counts are the same after the owner was killed; what is unused ends in the engine; a redeclaration
is refused as of every queue.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.definitions.change_line import BROKER
from flintmq.testing.broker import Broker
from tests.cluster.own_engine import SHARED, OwnEngine, engine, get, log_of, queue_of
from tests.cluster.several_nodes import Answer
from tests.support.broker import wait_until
from tests.support.inprocess import connect, heap_of_others, start

__all__ = ["connect", "engine", "heap_of_others", "start"]


class World:
    """A node whose next life restores its shared queues from the engine, as another owner does."""

    def __init__(self, begin: Callable[..., Broker], connect: Callable[..., Any]) -> None:
        self._begin, self._connect = begin, connect
        self.broker = begin()

    def channel(self) -> Any:
        channel = self._connect(self.broker).channel()
        channel.call("confirm.select")
        return channel

    def declared(self, **arguments: Any) -> Any:
        channel = self.channel()
        channel.queue("s", durable=True, arguments={**SHARED, **arguments})
        return channel

    def kill(self, **limits: int) -> Any:
        """A channel of the next owner. What the last one did is in the engine."""
        wait_until(lambda: log_of(self.broker)._mirror.ended_rows == 0 and log_of(self.broker)._line is None)
        self.broker.node.broker.shared._leave = _nothing
        self.broker.node.stop()
        self.broker = self._begin(**limits)
        wait_until(lambda: log_of(self.broker) is not None)
        return self.channel()


async def _nothing() -> None:
    pass


@pytest.fixture
def world(start: Callable[..., Broker], tmp_path: Path, engine: OwnEngine, connect: Any) -> World:
    return World(lambda **limits: engine.broker(start, tmp_path, **limits), connect)


def put(channel: Any, *bodies: bytes, **properties: Any) -> None:
    for body in bodies:
        channel.publish(body, routing_key="s", **properties)
        channel.expect("basic.ack")


def drain(channel: Any) -> list[bytes]:
    bodies = []
    while (message := get(channel)).name == "basic.get-ok":
        bodies.append(message.body)
    return bodies


def test_levels_of_qpid_keep_their_order(world: World) -> None:
    channel = world.declared(**{"x-qpid-priorities": 4})
    for priority in (0, 9, 4, 9):
        put(channel, b"%d" % priority, priority=priority)
    put(channel, b"none")
    assert drain(world.kill()) == [b"9", b"9", b"4", b"none", b"0"]


@pytest.mark.parametrize("hot_bytes", [0, 1_000_000])
@pytest.mark.parametrize("sharing", [0, 1])
def test_a_group_is_one_consumers_in_its_order(world: World, sharing: int, hot_bytes: int) -> None:
    channel = world.declared(**{"qpid.group_header_key": "g", "qpid.shared_msg_group": sharing})
    for body in (b"a1", b"b1", b"a2", b"b2"):
        put(channel, body, headers={"g": body[:1].decode()})
    channel = world.kill(shared_hot_bytes=hot_bytes)
    one, two = world.channel(), world.channel()
    got = []
    for consumer in (one, two):
        consumer.call("basic.qos", prefetch_count=1)
        consumer.consume("s", "c")
        got.append(consumer.expect("basic.deliver"))
    assert [message.body for message in got] == [b"a1", b"b1"]
    two.send("basic.ack", delivery_tag=got[1].delivery_tag)
    assert two.expect("basic.deliver").body == b"b2"
    put(channel, b"a3", headers={"g": "a"})
    two.nothing()
    one.send("basic.ack", delivery_tag=got[0].delivery_tag)
    assert one.expect("basic.deliver").body == b"a2"


@pytest.mark.parametrize("hot_bytes", [0, 1_000_000])
def test_a_sorted_queue_keeps_its_order(world: World, hot_bytes: int) -> None:
    channel = world.declared(**{"qpid.queue_sort_key": "k"})
    for key in (30, 10, 20):
        put(channel, b"%d" % key, headers={"k": key})
    channel = world.kill(shared_hot_bytes=hot_bytes)
    put(channel, b"15", headers={"k": 15})
    assert drain(channel) == [b"10", b"15", b"20", b"30"]


def test_a_ring_drops_the_oldest_of_the_lowest_priority_before_and_after(world: World) -> None:
    channel = world.declared(**{"x-overflow": "ring", "x-max-length": 2, "x-max-priority": 1})
    put(channel, b"low", b"lower")
    put(channel, b"high", priority=1)
    channel = world.kill()
    put(channel, b"higher", priority=1)
    assert drain(channel) == [b"high", b"higher"]


def test_a_wait_before_a_repeat_ends_with_the_owner_and_its_count_stays(world: World) -> None:
    channel = world.declared(**{"x-delayed-retry-min": 60_000, "x-delayed-retry-type": "all", "x-delivery-limit": 1})
    put(channel, b"1", b"2")
    got = get(channel, no_ack=False)
    channel.send("basic.nack", delivery_tag=got.delivery_tag, requeue=True)
    assert drain(channel) == [b"2"]
    channel = world.kill()
    got = get(channel, no_ack=False)
    assert (got.body, got.redelivered, got.properties["headers"]["x-delivery-count"]) == (b"1", True, 1)
    channel.send("basic.nack", delivery_tag=got.delivery_tag, requeue=True)
    wait_until(lambda: queue_of(world.broker).core.ready_count() == queue_of(world.broker).core.unacked_count() == 0)


def test_a_duplicate_is_confirmed_with_the_message_that_is_there(world: World) -> None:
    channel = world.declared(**{"x-message-deduplication": True})
    put(channel, b"1", b"again", headers={"x-deduplication-header": "a"})
    assert drain(world.kill()) == [b"1"]


def test_the_longest_and_shortest_lives_are_kept(world: World) -> None:
    channel = world.declared(**{"x-qpid-minimum-message-ttl": 600_000, "x-qpid-maximum-message-ttl": 700_000})
    put(channel, b"raised", expiration="1")
    put(channel, b"lowered", expiration="99999999")
    channel = world.kill()
    assert queue_of(world.broker).core.ttl_ms == 700_000
    assert drain(channel) == [b"raised", b"lowered"]


def test_a_queue_that_nobody_uses_ends_for_all_nodes(world: World, engine: OwnEngine) -> None:
    channel = world.declared(**{"x-expires": 60_000})
    put(channel, b"1")
    world.kill()
    vhost = world.broker.node.broker.vhosts["/"]
    now = queue_of(world.broker).used_ns
    assert vhost.expire_queues(now + 59_000_000_000) == 0
    assert "s" in vhost.queues
    vhost.expire_queues(now + 61_000_000_000)
    wait_until(lambda: not any(key.startswith((b"d/q/", b"q/")) for key in engine.store.rows))
    assert "s" not in vhost.queues


def test_a_queue_that_is_owned_elsewhere_is_in_use(world: World) -> None:
    world.declared(**{"x-expires": 60_000})
    queue, vhost = queue_of(world.broker), world.broker.node.broker.vhosts["/"]
    queue.owned_elsewhere = True
    assert vhost.expire_queues(queue.used_ns + 61_000_000_000) == 0
    assert vhost.expire_queues(queue.used_ns + 59_000_000_000) == 0


def test_a_consumer_that_takes_too_long_loses_the_message(world: World) -> None:
    world.declared(**{"x-consumer-timeout": 100})
    channel = world.kill(housekeeping_ms=20)
    put(channel, b"1")
    assert get(channel, no_ack=False).body == b"1"
    wait_until(lambda: queue_of(world.broker).core.ready_count() == 1)
    assert get(channel).redelivered


def test_browsers_of_a_queue_for_browsers_take_nothing(world: World) -> None:
    channel = world.declared(**{"x-qpid-ensure-nondestructive-consumers": True})
    put(channel, b"1")
    channel = world.kill()
    for number in range(2):
        channel.consume("s", f"c{number}", no_ack=True)
        assert channel.expect("basic.deliver").body == b"1"
    world.channel().refuse(406, "for browsers", "basic.get", queue="s")


@pytest.mark.parametrize(
    ("definition", "kept"),
    [
        ({"max-length": 2, "overflow": "reject-publish"}, [b"1", b"2"]),
        ({"max-length": 2, "overflow": "ring"}, [b"2", b"3"]),
        ({"max-length": 2, "overflow": "block"}, [b"2", b"3"]),
    ],
)
def test_policies_count_as_for_other_queues_but_nobody_is_blocked(world: World, definition: dict[str, Any], kept: list[bytes]) -> None:
    world.declared()
    answer = Answer()
    world.broker.node.definitions.put_policy(BROKER, "/", "p", {"pattern": "^s$", "definition": definition}, answer.done)
    wait_until(lambda: answer.is_good)
    channel = world.kill()
    for body in (b"1", b"2", b"3"):
        channel.publish(body, routing_key="s")
        channel.connection.recv(channel.number)
    assert drain(channel) == kept


@pytest.mark.parametrize("name", ["x-queue-mode", "x-queue-master-locator", "x-shared-order"])
def test_what_means_nothing_here_is_taken(world: World, name: str) -> None:
    channel = world.declared(**{name: {"x-queue-mode": "lazy", "x-shared-order": "relaxed"}.get(name, "min-masters")})
    put(channel, b"1")
    assert drain(world.kill()) == [b"1"]


def test_a_redeclaration_with_other_arguments_is_refused_as_of_every_queue(world: World) -> None:
    world.declared(**{"x-expires": 60_000, "qpid.group_header_key": "g"})
    channel = world.kill()
    channel.queue("s", durable=True, arguments={**SHARED, "x-expires": 60_000, "qpid.group_header_key": "g"})
    told = "inequivalent arg 'x-expires' for queue 's' in vhost '/': received '5' but current is '60000'"
    channel.refuse(406, told, "queue.declare", queue="s", durable=True, arguments={**SHARED, "x-expires": 5, "qpid.group_header_key": "g"})
