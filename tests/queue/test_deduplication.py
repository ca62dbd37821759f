"""Over the wire: a queue with x-message-deduplication takes no message while one with the same value is in it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest

from flintmq.core.memory_account import bytes_by_kind
from flintmq.testing.broker import Broker
from tests.support.broker import wait_until
from tests.support.inprocess import connect, heap_of_others, start
from tests.support.rawamqp import RawChannel

__all__ = ["connect", "heap_of_others", "start"]

ONCE = {"x-message-deduplication": True}


def opened(broker: Any, connect: Callable[..., Any], **arguments: Any) -> RawChannel:
    ch: RawChannel = connect(broker).channel()
    ch.queue("q", durable=True, arguments={**ONCE, **arguments})
    ch.call("confirm.select")
    return ch


def send(ch: RawChannel, body: str, value: Any, **properties: Any) -> None:
    """Each is confirmed, whether it came in or not."""
    headers = {} if value is None else {"x-deduplication-header": value}
    ch.publish(body.encode(), routing_key="q", headers=headers, **properties)
    ch.expect("basic.ack")


def drained(ch: RawChannel) -> list[str]:
    got = []
    while (message := ch.call("basic.get", queue="q", no_ack=True)).name == "basic.get-ok":
        got.append(message.body.decode())
    return got


@pytest.mark.parametrize("value", ["text", 42, -1, 4.5, True])
def test_a_value_is_in_the_queue_once(start: Callable[..., Any], connect: Callable[..., Any], value: Any) -> None:
    ch = opened(start(), connect)
    for body in ("1", "2", "3"):
        send(ch, body, value)
    for body in ("x", "y"):
        send(ch, body, None)
    send(ch, "other", "another")
    assert drained(ch) == ["1", "x", "y", "other"]
    send(ch, "4", value)
    assert drained(ch) == ["4"]


def test_a_value_is_free_when_its_message_is_settled_dropped_expired_or_purged(
    start: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    broker = start()
    ch = opened(broker, connect, **{"x-max-length": 2})
    send(ch, "a1", "a")
    held = ch.call("basic.get", queue="q")
    send(ch, "a2", "a")  # in somebody's hands is in the queue
    ch.send("basic.nack", delivery_tag=held.delivery_tag, requeue=True)
    send(ch, "a3", "a")
    held = ch.call("basic.get", queue="q")
    assert held.body == b"a1"
    ch.send("basic.reject", delivery_tag=held.delivery_tag, requeue=False)
    send(ch, "a4", "a")
    assert drained(ch) == ["a4"]
    for body in ("a5", "b1", "c1", "a6"):  # a5 is dropped for c1, b1 for a6
        send(ch, body, body[0])
    assert drained(ch) == ["c1", "a6"]
    send(ch, "d1", "d")
    ch.call("queue.purge", queue="q")
    send(ch, "d2", "d", expiration="1")
    ch.wait_ready("q", 0)
    send(ch, "d3", "d")
    assert drained(ch) == ["d3"]
    assert broker.node.broker.vhosts["/"].queues["q"].core.once_figures()[1] == 2


def test_of_two_publishers_at_once_one_has_the_value(start: Callable[..., Any]) -> None:
    """With pika: each value comes once, whoever was first."""
    broker = start(io_threads=2)

    def publish(name: str) -> None:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        channel = connection.channel()
        channel.queue_declare("q", durable=True, arguments=ONCE)
        channel.confirm_delivery()
        for i in range(100):
            properties = pika.BasicProperties(delivery_mode=2, headers={"x-deduplication-header": f"v{i}"})
            channel.basic_publish("", "q", name.encode(), properties)
        connection.close()

    threads = [threading.Thread(target=publish, args=(name,)) for name in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    channel = connection.channel()
    values = []
    while (got := channel.basic_get("q", auto_ack=True))[0] is not None:
        values.append(got[1].headers["x-deduplication-header"])
    connection.close()
    assert values == [f"v{i}" for i in range(100)]


def test_values_that_are_gone_take_no_memory_and_there_is_a_limit(connect: Callable[..., Any], heap_of_others: None) -> None:
    before = bytes_by_kind()["entries"]
    with Broker(limits={"dedup_queue_max": 50}) as broker:
        ch = opened(broker, connect)
        core = broker.node.broker.vhosts["/"].queues["q"].core
        for i in range(200):
            send(ch, "x", f"v{i}")
            assert drained(ch) == ["x"]
        assert core.once_figures()[0] < 50
        for _ in range(2):
            for i in range(60):
                send(ch, "y", f"w{i}")
        assert core.once_figures()[0] <= 50
        assert 60 < len(drained(ch)) < 120  # beyond the limit values are not compared
        assert bytes_by_kind()["entries"] > before
    del core, broker  # a broker that has stopped keeps its queues
    wait_until(lambda: gc.collect() >= 0 and bytes_by_kind()["entries"] <= before, timeout=60)


def test_with_priorities_and_groups_and_after_a_restart(connect: Callable[..., Any], tmp_path: Path) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        ch = opened(broker, connect, **{"x-max-priority": 3, "qpid.group_header_key": "x-deduplication-header"})
        for priority in (0, 2, 1):
            send(ch, f"a{priority}", "a", priority=priority, delivery_mode=2)
            send(ch, f"b{priority}", "b", priority=2, delivery_mode=2)
        assert ch.call("queue.declare", queue="q", passive=True).message_count == 2
    with Broker(data_dir=str(tmp_path)) as broker:
        ch = connect(broker).channel()
        ch.call("confirm.select")
        send(ch, "again", "a")  # values are not remembered over a restart
        assert sorted(drained(ch)) == ["a0", "again", "b0"]


def test_a_wrong_value_is_refused_and_another_one_is_not_equivalent(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start()
    ch = opened(broker, connect)
    for name, value in (("p", "yes"), ("q", False)):
        other = connect(broker).channel()
        other.send("queue.declare", queue=name, durable=True, arguments={"x-message-deduplication": value})
        closed = other.expect("channel.close")
        assert closed.reply_code == 406 and "x-message-deduplication" in closed.reply_text
    send(ch, "1", "a")
