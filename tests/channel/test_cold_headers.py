"""Headers of messages that are not in memory are read in batches, without a place in the hot window."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.testing.broker import Broker
from tests.support.inprocess import connect, heap_of_others, start
from tests.support.rawamqp import RawChannel

__all__ = ["connect", "heap_of_others", "start"]

COUNT = 2_000
BODY = b"." * 50
WINDOW = {"queue_hot_bytes": 20 * len(BODY)}
SHARED = {"qpid.group_header_key": "g", "qpid.shared_msg_group": 1}
SORTED = {"qpid.queue_sort_key": "g"}
# runs of the cold reader: one entry each without batches, which is some of COUNT
RUNS_MAX = COUNT // 20


def put(channel: RawChannel, count: int, group: Callable[[int], Any]) -> None:
    channel.call("confirm.select")
    for number in range(count):
        channel.publish(b"%05d" % number + BODY, routing_key="q", delivery_mode=2, headers={"g": group(number)})
    confirmed = 0
    while confirmed < count:
        confirmed = channel.connection.recv(channel.number).delivery_tag


def filled(connect: Callable[..., Any], path: Path, arguments: dict[str, Any], group: Callable[[int], Any]) -> None:
    """A queue on disk, whose broker has ended."""
    with Broker(store_dir=str(path)) as broker:
        channel = connect(broker).channel()
        channel.queue("q", durable=True, arguments=arguments)
        put(channel, COUNT, group)


def numbers(channel: RawChannel, count: int) -> list[int]:
    return [int(message.body[:5]) for message in channel.deliveries(count)]


def figures(broker: Any) -> tuple[int, int]:
    """(runs of the cold reader, bytes of bodies in memory)"""
    return int(broker.node.store.logs.loader.figures["runs"]), int(broker.node.broker.vhosts["/"].queues["q"].core.resident_bytes)


def test_a_group_deep_in_the_queue_is_found_after_a_restart(start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path) -> None:
    """One consumer holds the group of nearly all messages; what another one may have is at the end."""
    filled(connect, tmp_path, SHARED, lambda number: "many" if number < COUNT - 3 else "few")
    broker = start(WINDOW, store_dir=str(tmp_path))
    connection = connect(broker)
    one = connection.channel(2)
    one.call("basic.qos", prefetch_count=1)
    one.consume("q", "one")
    assert numbers(one, 1) == [0]
    before = figures(broker)[0]
    two = connection.channel(3)
    two.call("basic.qos", prefetch_count=3)
    two.consume("q", "two")
    assert numbers(two, 3) == [COUNT - 3, COUNT - 2, COUNT - 1]
    runs, resident = figures(broker)
    assert runs - before < RUNS_MAX and resident < COUNT * len(BODY) // 10
    # What was learned is not lost: the rest comes in its order.
    one.send("basic.cancel", consumer_tag="one", no_wait=True)
    one.send("basic.nack", delivery_tag=1, requeue=True)
    three = connection.channel(4)
    three.consume("q", "three", no_ack=True)
    assert numbers(three, COUNT - 3) == list(range(COUNT - 3))


def test_a_sorted_queue_learns_its_order_after_a_restart(start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path) -> None:
    filled(connect, tmp_path, SORTED, lambda number: -number)
    broker = start(WINDOW, store_dir=str(tmp_path))
    channel = connect(broker).channel()
    channel.call("basic.qos", prefetch_count=1)
    channel.consume("q", "c")
    assert numbers(channel, 1) == [COUNT - 1]
    assert figures(broker)[0] < RUNS_MAX


@pytest.mark.parametrize("selectors", [1, 3])
def test_a_selector_passes_a_backlog_on_disk(
    start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path, selectors: int
) -> None:
    """Few of many are selected, by several consumers; what nobody selects takes no place in memory, and comes to whoever takes it."""
    wanted = {COUNT // 2: "a", COUNT - 2: "b", COUNT - 1: "a"}
    filled(connect, tmp_path, {}, lambda number: wanted.get(number, "other"))
    broker = start(WINDOW, store_dir=str(tmp_path))
    connection = connect(broker)
    channels = []
    for index in range(selectors):
        channel = connection.channel(2 + index)
        value = "ab"[index] if index < 2 else "nothing"
        channel.consume("q", f"c{index}", arguments={"x-filter-jms-selector": f"g = '{value}'"})
        channels.append(channel)
    assert numbers(channels[0], 2) == [COUNT // 2, COUNT - 1]
    if selectors > 1:
        assert numbers(channels[1], 1) == [COUNT - 2]
    runs, resident = figures(broker)
    assert runs < selectors * RUNS_MAX and resident < COUNT * len(BODY) // 10
    late = connection.channel(9)
    late.publish(b"%05d" % COUNT + BODY, routing_key="q", headers={"g": "a"})
    assert numbers(channels[0], 1) == [COUNT]
    rest = connection.channel(10)
    rest.consume("q", "rest", no_ack=True)
    taken = {number for number, value in wanted.items() if value in "ab"[:selectors]}
    assert numbers(rest, COUNT - len(taken)) == [number for number in range(COUNT) if number not in taken]
