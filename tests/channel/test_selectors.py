"""Selective and browse-only consumers over the wire."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.testing.broker import Broker
from tests.support.inprocess import connect, heap_of_others, start
from tests.support.rawamqp import RawChannel

__all__ = ["connect", "heap_of_others", "start"]

SELECTOR = "x-filter-jms-selector"


@pytest.fixture
def ch(start: Callable[..., Any], connect: Callable[..., Any]) -> RawChannel:
    channel: RawChannel = connect(start()).channel()
    channel.queue("q")
    return channel


def put(channel: RawChannel, *values: Any, **properties: Any) -> None:
    for value in values:
        channel.publish(str(value).encode(), routing_key="q", headers={"k": value}, **properties)


def bodies(channel: RawChannel, count: int) -> list[bytes]:
    return [message.body for message in channel.deliveries(count)]


@pytest.mark.parametrize("name", [SELECTOR, "apache.org:selector-filter:string", "jms-selector"])
def test_a_consumer_gets_what_it_selects_and_the_rest_stays(ch: RawChannel, name: str) -> None:
    put(ch, 1, 2, 3, 4, 5)
    ch.consume("q", "even", arguments={name: "k % 2 = 0"})
    assert bodies(ch, 2) == [b"2", b"4"]
    put(ch, 6, 7)
    assert bodies(ch, 1) == [b"6"]
    assert ch.ready("q") == 4
    ch.consume("q", "rest", no_ack=True)
    assert bodies(ch, 4) == [b"1", b"3", b"5", b"7"]


def test_what_one_gives_back_another_gets_that_selects_it(ch: RawChannel) -> None:
    ch.call("basic.qos", prefetch_count=1)
    ch.consume("q", "a", arguments={SELECTOR: "k < 10"})
    ch.consume("q", "b", arguments={SELECTOR: "k < 10 OR k = 20"})
    put(ch, 1, 20, 2)
    got = ch.deliveries(2)
    assert sorted(message.body for message in got) in ([b"1", b"20"], [b"1", b"2"])
    ch.send("basic.cancel", consumer_tag="a", no_wait=True)
    for message in got:
        ch.send("basic.nack", delivery_tag=message.delivery_tag, requeue=True)
    seen = []
    for _ in range(3):
        message = ch.deliveries(1)[0]
        assert message.fields["consumer_tag"] in ("b", b"b")
        seen.append(message.body)
        ch.send("basic.ack", delivery_tag=message.delivery_tag)
    assert sorted(seen) == [b"1", b"2", b"20"]


def test_a_long_backlog_of_others_is_passed_once_also_from_disk(
    start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path
) -> None:
    broker: Broker = start(data_dir=str(tmp_path), limits={"queue_hot_bytes": 65_536})
    channel = connect(broker).channel()
    channel.queue("q", durable=True)
    channel.call("confirm.select")
    for i in range(3_000):
        channel.publish(b"x" * 200, routing_key="q", headers={"k": i}, delivery_mode=2)
    channel.wait_ready("q", 3_000)
    channel = connect(broker).channel()
    channel.consume("q", "c", arguments={SELECTOR: "k IN (0, 1500, 2999)"})
    assert [message.properties["headers"]["k"] for message in channel.deliveries(3)] == [0, 1500, 2999]
    assert channel.ready("q") == 2_997


@pytest.mark.parametrize("name", ["x-browse", "x-filter-no-consume"])
def test_a_browser_sees_each_message_once_and_takes_none(ch: RawChannel, name: str) -> None:
    put(ch, 1, 2)
    ch.consume("q", "b", no_ack=True, arguments={name: True})
    assert bodies(ch, 2) == [b"1", b"2"]
    assert ch.ready("q") == 2
    taken = ch.call("basic.get", queue="q")
    ch.send("basic.nack", delivery_tag=taken.delivery_tag, requeue=True)  # a browser does not see it again
    put(ch, 3)
    assert bodies(ch, 1) == [b"3"]
    assert ch.ready("q") == 3 and ch.call("queue.purge", queue="q").message_count == 3


def test_a_browser_with_a_selector(ch: RawChannel) -> None:
    put(ch, 1, 2, 3)
    ch.consume("q", "b", no_ack=True, arguments={"x-browse": True, SELECTOR: "k >= 2"})
    assert bodies(ch, 2) == [b"2", b"3"]
    put(ch, 1, 9)
    assert bodies(ch, 1) == [b"9"]


def test_basic_get_and_plain_consumers_see_everything(ch: RawChannel) -> None:
    ch.consume("q", "none", arguments={SELECTOR: "FALSE"})
    put(ch, 1, 2)
    assert ch.call("basic.get", queue="q", no_ack=True).body == b"1"
    ch.consume("q", "all", no_ack=True)
    assert bodies(ch, 1) == [b"2"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({SELECTOR: "k ="}, "invalid arg 'x-filter-jms-selector' for queue 'q' in vhost '/': \"a name, a value or '(' expected"),
        ({SELECTOR: 5}, "unacceptable_type"),
        ({SELECTOR: "a = 1", "jms-selector": "b = 1"}, "a consumer has one selector"),
        ({"x-browse": "yes"}, "unacceptable_type"),
        ({"x-browse": True}, "nothing to acknowledge"),
    ],
)
def test_refused(ch: RawChannel, arguments: dict[str, Any], text: str) -> None:
    ch.refuse(406, text, "basic.consume", queue="q", consumer_tag="t", arguments=arguments)


def test_streams_and_reply_queues_have_none(start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path) -> None:
    ch: RawChannel = connect(start(data_dir=str(tmp_path))).channel()
    ch.queue("s", arguments={"x-queue-type": "stream"}, durable=True)
    ch.call("basic.qos", prefetch_count=1)
    ch.refuse(406, "x-stream-filter", "basic.consume", queue="s", arguments={SELECTOR: "a = 1"})


def test_an_empty_selector_is_none_and_browse_false_takes(ch: RawChannel) -> None:
    put(ch, 1)
    ch.consume("q", "c", arguments={SELECTOR: " ", "x-browse": False})
    assert bodies(ch, 1) == [b"1"]
    assert ch.ready("q") == 0
