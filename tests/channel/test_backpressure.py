"""A consumer that does not read costs others nothing and itself no message; a peer that only asks and never reads is cut off."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.broker import wait_until
from tests.support.rawamqp import ConnectionLost, method_frame

BODY = 1000


def handler_of(broker: Any, user_port: int) -> Any:
    """The broker's side of the connection that came from `user_port`."""
    return next(one for one in broker.node.broker.connections.values() if one.peer_port == user_port)


def outputs(broker: Any) -> list[int]:
    return [one.connection.output_size for one in list(broker.node.broker.connections.values())]


@pytest.mark.parametrize("threads", [1, 2])
def test_queue_goes_on_with_another_consumer_and_nothing_is_lost(
    start: Callable[..., Any], connect: Callable[..., Any], threads: int
) -> None:
    high = 64 * 1024
    broker = start({"output_bytes_high": high, "output_bytes_low": 16 * 1024}, io_threads=threads)
    stuck = connect(broker)
    lazy = stuck.channel()
    lazy.queue("work")
    lazy.consume("work", "lazy", no_ack=True)
    publisher = connect(broker).channel()
    count = 12_000
    for start_at in range(0, count, 500):
        for number in range(start_at, start_at + 500):
            publisher.publish(number.to_bytes(4, "big") * (BODY // 4), routing_key="work")
    publisher.queue("sync")  # everything before it was accepted
    handler = handler_of(broker, stuck.sock.getsockname()[1])
    wait_until(lambda: handler.connection.output_size > 0, what="output waits for the reader")
    publisher.ready("work")
    assert handler.connection.output_size < high + 64 * 1024, "the output grows past its high mark"
    assert publisher.ready("work") > 0, "everything went into the output of a peer that does not read"
    # The stuck consumer is not interested: a new one gets what is left, in order. How much that is nobody knows before: the stuck one's
    # loop may still be filling its socket.
    quick = connect(broker).channel()
    quick.consume("work", "quick", no_ack=True)
    wait_until(lambda: quick.call("basic.qos") and publisher.ready("work") == 0, what="the new consumer gets all that is left")
    quick.call("basic.cancel", consumer_tag="quick")  # and has read all that came before
    mine = [int.from_bytes(message.body[:4], "big") for message in quick.deliveries(len(quick.connection.waiting[1]))]
    assert mine and mine == sorted(mine)
    # Once it reads again it is served again.
    lazily = [int.from_bytes(message.body[:4], "big") for message in lazy.deliveries(count - len(mine))]
    assert lazily == sorted(lazily)
    assert sorted(mine + lazily) == list(range(count))
    publisher.publish(b"last", routing_key="work")
    assert lazy.expect("basic.deliver").body == b"last"


def test_reader_that_comes_back_gets_everything_in_order(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start({"output_bytes_high": 32 * 1024, "output_bytes_low": 8 * 1024})
    consumer = connect(broker).channel()
    consumer.queue("work")
    publisher = connect(broker).channel()
    for number in range(10_000):
        publisher.publish(number.to_bytes(4, "big") * 250, routing_key="work")
    consumer.consume("work", no_ack=False)
    publisher.ready("work")
    got = [(message.delivery_tag, int.from_bytes(message.body[:4], "big")) for message in consumer.deliveries(10_000)]
    assert got == [(number + 1, number) for number in range(10_000)]


@pytest.mark.parametrize("how", ["get", "consume"])
def test_a_message_larger_than_the_limit_of_output_is_delivered(how: str, start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """What was accepted can be had: the limit is for who does not read, not for one large message."""
    broker = start({"output_bytes_max": 256 * 1024})
    body = bytes(range(256)) * (16 << 12)
    channel = connect(broker).channel()
    channel.queue("large")
    channel.publish(body, routing_key="large")
    channel.ready("large")
    if how == "consume":
        channel.consume("large", no_ack=True)
        assert channel.expect("basic.deliver").body == body
    else:
        for _ in range(2):
            channel.send("basic.get", queue="large", no_ack=False)
            got = channel.expect("basic.get-ok")
            assert got.body == body
            channel.send("basic.reject", delivery_tag=got.delivery_tag, requeue=True)
    assert channel.ready("large") == (0 if how == "consume" else 1)


def test_peer_that_asks_for_large_messages_and_never_reads_is_cut(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start({"output_bytes_max": 256 * 1024})
    other = connect(broker).channel()
    other.queue("large")
    for _ in range(4):
        other.publish(bytes(16 << 20), routing_key="large")
    other.ready("large")
    greedy = connect(broker)
    greedy.channel()
    with contextlib.suppress(OSError):
        greedy.send(method_frame(1, "basic.get", queue="large", no_ack=False) * 4)
    wait_until(lambda: len(broker.node.broker.connections) == 1, what="the greedy connection is cut off")
    assert wait_until(lambda: other.ready("large") == 4, what="the messages are back in their queue")


def test_peer_that_asks_and_never_reads_is_cut(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start({"output_bytes_max": 256 * 1024})
    other = connect(broker).channel()
    other.queue("big")
    other.publish(b"x" * 100_000, routing_key="big")
    greedy = connect(broker)
    greedy.channel().consume("big", no_ack=False)
    request = method_frame(1, "basic.recover", requeue=True) * 200
    gets = method_frame(1, "queue.declare", queue="big", passive=True) * 500
    with contextlib.suppress(OSError):
        for _ in range(2_000):
            greedy.send(request + gets)
            if len(broker.node.broker.connections) == 1:
                break
    wait_until(lambda: len(broker.node.broker.connections) == 1, what="the greedy connection is cut off")
    with pytest.raises((ConnectionLost, AssertionError)):
        while True:
            greedy.recv_any()
    # Its message is back, and the others did not notice.
    assert wait_until(lambda: other.ready("big") == 1, what="the message is back in its queue")


def test_channel_flow_stops_and_resumes_one_channel(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start()
    connection = connect(broker)
    stopped, running = connection.channel(1), connection.channel(2)
    stopped.queue("work")
    stopped.consume("work", "a", no_ack=True)
    assert not stopped.call("channel.flow", active=False).active
    running.consume("work", "b", no_ack=True)
    for number in range(6):
        running.publish(b"%d" % number, routing_key="work")
    assert [message.body for message in running.deliveries(6)] == [b"%d" % number for number in range(6)]
    stopped.nothing()
    running.call("basic.cancel", consumer_tag="b")
    running.publish(b"late", routing_key="work")
    stopped.nothing()
    assert stopped.call("channel.flow", active=True).active
    assert stopped.expect("basic.deliver").body == b"late"
