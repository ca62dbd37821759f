"""Transactions of clients of two brokers on etcd: queues of both nodes at once, through either one, over the end of an owner.

Properties: all queues have a transaction when its client is answered, wherever they are served; its messages stand in its client's order;
what its client acknowledges at the owner ends with it; the end of an owner keeps nothing of it back.
"""

from __future__ import annotations

from typing import Any

from tests.cluster.test_two_nodes import Begin, begin, declared, etcd, get, queue
from tests.support.broker import wait_until
from tests.support.inprocess import connect, heap_of_others, start

__all__ = ["begin", "connect", "etcd", "heap_of_others", "queue", "start"]


def two(begin: Begin, connect: Any, queue: str) -> tuple[Any, Any]:
    """Brokers `a` and `b`: a queue of either one, named `queue`-a and `queue`-b."""
    first, second = begin("a"), begin("b")
    declared(connect, first, f"{queue}-a")
    declared(connect, second, f"{queue}-b")
    declared(connect, second, f"{queue}-a")
    declared(connect, first, f"{queue}-b")
    return first, second


def transactional(connect: Any, broker: Any) -> Any:
    channel = connect(broker).channel()
    channel.call("tx.select")
    return channel


def drained(channel: Any, queue: str) -> list[bytes]:
    bodies = []
    while (one := get(channel, queue)).name == "basic.get-ok":
        bodies.append(one.body)
    return bodies


def test_a_transaction_through_either_node_is_on_queues_of_both_when_it_is_answered(begin: Begin, connect: Any, queue: str) -> None:
    nodes = two(begin, connect, queue)
    channels = [transactional(connect, node) for node in nodes]
    for number in range(10):
        channel = channels[number % 2]
        for name in ("a", "b"):
            channel.publish(b"%d" % number, routing_key=f"{queue}-{name}")
        channel.call("tx.commit")
    for node, name in zip(nodes, ("b", "a"), strict=True):
        assert drained(connect(node).channel(), f"{queue}-{name}") == [b"%d" % number for number in range(10)]
    store = nodes[0].node.broker.shared.transactions
    wait_until(lambda: not store._own and not store._applied)


def test_what_a_client_of_the_owner_acknowledges_ends_with_what_it_publishes_elsewhere(begin: Begin, connect: Any, queue: str) -> None:
    first, second = two(begin, connect, queue)
    publisher = transactional(connect, second)
    publisher.publish(b"in", routing_key=f"{queue}-a")
    publisher.call("tx.commit")
    channel = transactional(connect, first)
    got = get(channel, f"{queue}-a", no_ack=False)
    channel.send("basic.ack", delivery_tag=got.delivery_tag)
    channel.publish(b"out", routing_key=f"{queue}-b")
    channel.call("tx.commit")
    channel.connection.close()
    assert drained(connect(second).channel(), f"{queue}-b") == [b"out"]
    assert drained(connect(second).channel(), f"{queue}-a") == []


def test_acknowledgements_by_a_node_that_does_not_serve_the_queue_are_refused_before_a_delivery(
    begin: Begin, connect: Any, queue: str
) -> None:
    _, second = two(begin, connect, queue)
    channel = transactional(connect, second)
    channel.send("basic.get", queue=f"{queue}-a", no_ack=False)
    closed = channel.connection.expect(0, "connection.close")
    assert closed.reply_code == 540 and "node that serves" in closed.reply_text


def test_a_transaction_waits_for_the_next_owner_of_a_queue_whose_node_has_stopped(begin: Begin, connect: Any, queue: str) -> None:
    first, second = two(begin, connect, queue)
    channel = transactional(connect, second)
    first.node.stop()
    for number in range(3):
        for name in ("a", "b"):
            channel.publish(b"%d" % number, routing_key=f"{queue}-{name}")
        channel.call("tx.commit")
    other = connect(second).channel()
    assert drained(other, f"{queue}-a") == drained(other, f"{queue}-b") == [b"0", b"1", b"2"]
