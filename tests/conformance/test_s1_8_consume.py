"""Property: consumers (spec 1.8) get every message in order, within their credit, and what they leave behind goes back to its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.broker import Broker, wait_until
from tests.support.rawamqp import Method, RawChannel, RawConnection

Connect = Callable[..., RawConnection]


def fill(ch: RawChannel, queue: str, count: int, start: int = 0) -> None:
    """Publishes the numbers start..start+count-1 and waits until they are in."""
    ch.call("confirm.select")
    for i in range(start, start + count):
        ch.publish(b"%d" % i, routing_key=queue)
    done = 0
    while done < count:
        done = ch.expect("basic.ack").delivery_tag


def numbers(messages: list[Method]) -> list[int]:
    """Bodies as numbers."""
    return [int(m.body) for m in messages]


def test_delivery_fields(ch: RawChannel, name: str) -> None:
    """Tag, exchange, key and redelivered; delivery tags count from 1 on the channel."""
    ch.queue(name, exclusive=True)
    tag = ch.consume(name)
    assert tag.startswith("amq.ctag-")
    ch.publish(b"a", routing_key=name)
    ch.publish(b"b", routing_key=name)
    one, two = ch.deliveries(2)
    assert (one.consumer_tag, one.delivery_tag, one.redelivered, one.exchange, one.routing_key) == (tag, 1, False, "", name)
    assert two.delivery_tag == 2


def test_consume_ok_comes_before_the_first_delivery(ch: RawChannel, name: str) -> None:
    """A queue with a backlog still answers consume-ok first."""
    ch.queue(name, exclusive=True)
    fill(ch, name, 5)
    ch.send("basic.consume", queue=name, consumer_tag="c")
    ch.expect("basic.consume-ok")
    assert numbers(ch.deliveries(5)) == [0, 1, 2, 3, 4]


def test_same_tag_twice(ch: RawChannel, name: str) -> None:
    """A consumer tag in use on the channel is a connection error 530."""
    ch.queue(name, exclusive=True)
    ch.consume(name, "tag")
    ch.send("basic.consume", queue=name, consumer_tag="tag")
    ch.connection.expect_close(530, "NOT_ALLOWED - attempt to reuse consumer tag 'tag'")


def test_cancel(ch: RawChannel, name: str) -> None:
    """After cancel-ok no delivery comes; unacknowledged ones stay with the channel and can still be acknowledged."""
    ch.queue(name, exclusive=True)
    ch.consume(name, "tag")
    ch.publish(b"0", routing_key=name)
    tag = ch.expect("basic.deliver").delivery_tag
    assert ch.call("basic.cancel", consumer_tag="tag").consumer_tag == "tag"
    ch.publish(b"1", routing_key=name)
    ch.wait_ready(name, 1)
    ch.nothing()
    ch.send("basic.ack", delivery_tag=tag)
    assert ch.call("basic.cancel", consumer_tag="never-was").consumer_tag == "never-was"


def test_prefetch_is_per_consumer(ch: RawChannel, name: str) -> None:
    """basic.qos global=false limits each consumer that starts later."""
    ch.queue(name, exclusive=True)
    fill(ch, name, 20)
    ch.call("basic.qos", prefetch_count=3)
    ch.consume(name, "a")
    assert numbers(ch.deliveries(3)) == [0, 1, 2]
    ch.nothing()
    ch.call("basic.qos", prefetch_count=2)
    ch.consume(name, "b")
    got = ch.deliveries(2)
    assert (numbers(got), {m.consumer_tag for m in got}) == ([3, 4], {"b"})
    ch.nothing()
    ch.send("basic.ack", delivery_tag=2, multiple=True)
    got = ch.deliveries(2)
    assert (numbers(got), {m.consumer_tag for m in got}) == ([5, 6], {"a"})
    ch.nothing()


def test_prefetch_of_the_channel(ch: RawChannel, name: str) -> None:
    """basic.qos global=true is one limit for all consumers of the channel, and can be raised."""
    ch.queue(name, exclusive=True)
    fill(ch, name, 20)
    ch.call("basic.qos", prefetch_count=3, global_=True)
    ch.consume(name, "a")
    ch.consume(name, "b")
    assert sorted(numbers(ch.deliveries(3))) == [0, 1, 2]
    ch.nothing()
    ch.call("basic.qos", prefetch_count=5, global_=True)
    assert sorted(numbers(ch.deliveries(2))) == [3, 4]
    ch.nothing()
    ch.send("basic.ack", delivery_tag=1)
    assert numbers(ch.deliveries(1)) == [5]
    ch.nothing()


def test_qos_of_rabbitmq_leaves_running_consumers_alone(ch: RawChannel, name: str) -> None:
    """global=false after consume changes nothing for the running consumer of an ordinary client."""
    ch.queue(name, exclusive=True)
    fill(ch, name, 10)
    ch.call("basic.qos", prefetch_count=2)
    ch.consume(name)
    ch.deliveries(2)
    ch.call("basic.qos", prefetch_count=6)
    ch.nothing()


@pytest.mark.flintmq_only("Celery: py-amqp gets live prefetch from a product that is not RabbitMQ")
def test_qos_of_py_amqp_changes_running_consumers(connect: Connect, name: str) -> None:
    """A client that names itself py-amqp changes its running consumers with global=false (kombu's rule for other products)."""
    ch = connect(product="py-amqp").channel(1)
    ch.queue(name, exclusive=True)
    fill(ch, name, 10)
    ch.call("basic.qos", prefetch_count=2)
    ch.consume(name)
    assert numbers(ch.deliveries(2)) == [0, 1]
    ch.nothing()
    ch.call("basic.qos", prefetch_count=4)
    assert numbers(ch.deliveries(2)) == [2, 3]
    ch.nothing()
    ch.call("basic.qos", prefetch_count=1)
    ch.send("basic.ack", delivery_tag=3, multiple=True)
    ch.nothing()
    ch.send("basic.ack", delivery_tag=4)
    assert numbers(ch.deliveries(1)) == [4]
    ch.nothing()


def test_prefetch_size_is_refused(conn: RawConnection) -> None:
    """A limit in bytes is 540, as on RabbitMQ."""
    conn.channel(1).send("basic.qos", prefetch_size=1000)
    conn.expect_close(540, "NOT_IMPLEMENTED - prefetch_size!=0 (1000)")


def test_no_ack_ignores_prefetch(ch: RawChannel, name: str) -> None:
    """Consumers without acknowledgement are not limited."""
    ch.queue(name, exclusive=True)
    fill(ch, name, 50)
    ch.call("basic.qos", prefetch_count=1)
    ch.consume(name, no_ack=True)
    assert numbers(ch.deliveries(50)) == list(range(50))


def test_round_robin(conn: RawConnection, name: str) -> None:
    """Two equal consumers without prefetch share ten messages five and five, in alternation."""
    a, b, publisher = conn.channel(1), conn.channel(2), conn.channel(3)
    publisher.queue(name, exclusive=True)
    a.consume(name, no_ack=True)
    b.consume(name, no_ack=True)
    fill(publisher, name, 10)
    got_a, got_b = numbers(a.deliveries(5)), numbers(b.deliveries(5))
    assert sorted(got_a + got_b) == list(range(10))
    assert {tuple(got_a), tuple(got_b)} == {(0, 2, 4, 6, 8), (1, 3, 5, 7, 9)}


def test_consumer_priority(conn: RawConnection, name: str) -> None:
    """The higher x-priority gets everything while it has credit; then the lower one does."""
    low, high, publisher = conn.channel(1), conn.channel(2), conn.channel(3)
    publisher.queue(name, exclusive=True)
    low.consume(name)
    high.call("basic.qos", prefetch_count=3)
    high.consume(name, arguments={"x-priority": 10})
    fill(publisher, name, 5)
    assert numbers(high.deliveries(3)) == [0, 1, 2]
    assert numbers(low.deliveries(2)) == [3, 4]
    high.send("basic.ack", delivery_tag=3, multiple=True)
    high.call("basic.qos", prefetch_count=3)
    publisher.publish(b"5", routing_key=name)
    assert numbers(high.deliveries(1)) == [5]


def test_exclusive_consumer(conn: RawConnection, name: str) -> None:
    """An exclusive consumer shuts others out (403) and is refused when there are others."""
    one, two = conn.channel(1), conn.channel(2)
    one.queue(name, exclusive=True)
    text = f"ACCESS_REFUSED - queue '{name}' in vhost '/' in exclusive use"
    tag = one.consume(name, exclusive=True)
    two.refuse(403, text, "basic.consume", queue=name)
    one.call("basic.cancel", consumer_tag=tag)
    two.consume(name)
    one.refuse(403, text, "basic.consume", queue=name, exclusive=True)


def test_ack_multiple(ch: RawChannel, name: str) -> None:
    """ack multiple settles all up to the tag; tag 0 with multiple settles everything."""
    ch.queue(name, exclusive=True)
    fill(ch, name, 6)
    ch.consume(name)
    ch.deliveries(6)
    ch.send("basic.ack", delivery_tag=4, multiple=True)
    ch.send("basic.ack", delivery_tag=0, multiple=True)
    ch.refuse(406, "PRECONDITION_FAILED - unknown delivery tag 6", "basic.ack", delivery_tag=6)
    assert ch.ready(name) == 0


@pytest.mark.parametrize("verb", ["basic.ack", "basic.nack", "basic.reject"])
def test_unknown_delivery_tag(ch: RawChannel, verb: str) -> None:
    """Settling what was never delivered is 406 with the tag."""
    ch.refuse(406, "PRECONDITION_FAILED - unknown delivery tag 3", verb, delivery_tag=3)


def test_settling_twice(ch: RawChannel, name: str) -> None:
    """A second ack of one tag is 406."""
    ch.queue(name, exclusive=True)
    fill(ch, name, 1)
    ch.call("basic.get", queue=name)
    ch.send("basic.ack", delivery_tag=1)
    ch.refuse(406, "PRECONDITION_FAILED - unknown delivery tag 1", "basic.ack", delivery_tag=1)


def test_nack_puts_back_in_place(conn: RawConnection, name: str) -> None:
    """Promise 1: released entries return to their places, in whatever order they are released."""
    ch, other = conn.channel(1), conn.channel(2)
    ch.queue(name, exclusive=True)
    fill(ch, name, 8)
    tags = [other.call("basic.get", queue=name).delivery_tag for _ in range(6)]
    for i in (3, 0, 5, 1):
        other.send("basic.nack", delivery_tag=tags[i], requeue=True)
    other.call("basic.qos")
    ch.wait_ready(name, 6)
    ch.consume(name, no_ack=True)
    got = ch.deliveries(6)
    assert [(int(m.body), m.redelivered) for m in got] == [(0, True), (1, True), (3, True), (5, True), (6, False), (7, False)]


def test_nack_multiple(ch: RawChannel, name: str) -> None:
    """nack multiple requeues all up to the tag, in order; without requeue they are gone."""
    ch.queue(name, exclusive=True)
    fill(ch, name, 6)
    for _ in range(5):
        ch.call("basic.get", queue=name)
    ch.send("basic.nack", delivery_tag=2, multiple=True, requeue=False)
    ch.send("basic.nack", delivery_tag=0, multiple=True, requeue=True)
    got = [ch.call("basic.get", queue=name, no_ack=True) for _ in range(4)]
    assert [(int(m.body), m.redelivered) for m in got] == [(2, True), (3, True), (4, True), (5, False)]
    assert ch.call("basic.get", queue=name).name == "basic.get-empty"


def test_reject(ch: RawChannel, name: str) -> None:
    """reject with requeue comes back redelivered, without it is gone."""
    ch.queue(name, exclusive=True)
    fill(ch, name, 2)
    ch.consume(name)
    one, two = ch.deliveries(2)
    ch.send("basic.reject", delivery_tag=one.delivery_tag, requeue=True)
    again = ch.expect("basic.deliver")
    assert (again.body, again.redelivered, again.delivery_tag) == (b"0", True, 3)
    ch.send("basic.reject", delivery_tag=two.delivery_tag, requeue=False)
    ch.send("basic.reject", delivery_tag=3, requeue=False)
    ch.nothing()
    assert ch.ready(name) == 0


def test_recover(ch: RawChannel, name: str) -> None:
    """recover requeue=true redelivers all that is unacknowledged, in order and flagged."""
    ch.queue(name, exclusive=True)
    fill(ch, name, 3)
    ch.consume(name)
    ch.deliveries(3)
    ch.send("basic.ack", delivery_tag=2)
    ch.call("basic.recover", requeue=True)
    got = ch.deliveries(2)
    assert [(int(m.body), m.redelivered, m.delivery_tag) for m in got] == [(0, True, 4), (2, True, 5)]


def test_recover_async(ch: RawChannel, name: str) -> None:
    """recover-async does the same without an answer."""
    ch.queue(name, exclusive=True)
    fill(ch, name, 1)
    ch.call("basic.get", queue=name)
    ch.send("basic.recover-async", requeue=True)
    assert ch.call("basic.get", queue=name).redelivered is True


def test_recover_without_requeue_is_refused(conn: RawConnection) -> None:
    """recover requeue=false is 540, as on RabbitMQ."""
    conn.channel(1).send("basic.recover", requeue=False)
    conn.expect_close(540, "NOT_IMPLEMENTED")


def test_channel_close_returns_messages_in_order(conn: RawConnection, name: str) -> None:
    """Closing a channel returns its messages to the front, in order."""
    ch, holder = conn.channel(1), conn.channel(2)
    ch.queue(name, exclusive=True)
    fill(ch, name, 6)
    holder.call("basic.qos", prefetch_count=4)
    holder.consume(name)
    holder.deliveries(4)
    holder.send("basic.ack", delivery_tag=2)
    assert numbers(holder.deliveries(1)) == [4]
    holder.call("channel.close", reply_code=200)
    ch.wait_ready(name, 5)
    got = [ch.call("basic.get", queue=name, no_ack=True) for _ in range(5)]
    assert [(int(m.body), m.redelivered) for m in got] == [(0, True), (2, True), (3, True), (4, True), (5, False)]


def test_dropped_connections_interleaved(connect: Connect, name: str) -> None:
    """Two consumers hold alternate messages; when both connections drop, the queue is whole again and in order."""
    owner = connect().channel(1)
    owner.queue(name)
    peers = [connect(), connect()]
    for peer in peers:
        ch = peer.channel(1)
        ch.consume(name)
    fill(owner, name, 10)
    for peer in peers:
        for _ in range(5):
            peer.expect(1, "basic.deliver")
    for peer in peers:
        peer.drop()
    owner.wait_ready(name, 10)
    got = [owner.call("basic.get", queue=name, no_ack=True) for _ in range(10)]
    assert [(int(m.body), m.redelivered) for m in got] == [(i, True) for i in range(10)]
    owner.call("queue.delete", queue=name)


CLIENT = """
import sys, pika
url, queue = sys.argv[1:]
channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
channel.basic_qos(prefetch_count=50)
seen = 0
for method, _, body in channel.consume(queue):
    seen += 1
    if seen % 3 == 0:
        channel.basic_ack(method.delivery_tag)
    print(body.decode(), flush=True)
"""


def test_killed_client_returns_its_messages(broker: Broker, connect: Connect, name: str) -> None:
    """kill -9 of a consuming process: what it had not acknowledged is back in its places, in order, flagged redelivered."""
    ch = connect().channel(1)
    ch.queue(name)
    fill(ch, name, 100)
    process = subprocess.Popen([sys.executable, "-c", CLIENT, broker.url, name], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        for i in range(50):
            assert int(process.stdout.readline()) == i
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()

    def returned() -> bool:
        answer = ch.call("queue.declare", queue=name, passive=True)
        return bool(answer.consumer_count == 0 and answer.message_count >= 50)

    wait_until(returned, what="messages of the killed client returned")
    left = ch.ready(name)  # nobody publishes or consumes any more
    ch.consume(name, no_ack=True)
    got = ch.deliveries(left)
    ch.nothing()
    bodies = numbers(got)
    assert bodies == sorted(set(bodies)), "order or uniqueness lost"
    missing = set(range(100)) - set(bodies)
    assert missing <= set(range(2, 150, 3)), "an unacknowledged message is lost"
    assert len(missing) >= 15
    assert all(m.redelivered for m in got if int(m.body) < 50)
    assert not got[-1].redelivered
    ch.call("queue.delete", queue=name)


def test_no_local_is_ignored(ch: RawChannel, name: str) -> None:
    """no-local has no effect, as on RabbitMQ."""
    ch.queue(name, exclusive=True)
    ch.consume(name, no_local=True)
    ch.publish(b"1", routing_key=name)
    assert ch.expect("basic.deliver").body == b"1"


def test_slow_reader_does_not_hold_others(connect: Connect, name: str) -> None:
    """A consumer that does not read its socket neither blocks the queue nor another consumer for ever."""
    lazy, busy, owner = connect().channel(1), connect().channel(1), connect().channel(1)
    owner.queue(name)
    lazy.consume(name, no_ack=True)
    busy.consume(name, no_ack=True)
    body = bytes(60_000)
    for _ in range(400):  # 24 MB, of which the lazy one reads nothing
        owner.publish(body, routing_key=name)
    for _ in range(100):
        assert len(busy.expect("basic.deliver").body) == 60_000
    owner.call("queue.delete", queue=name)


def test_priority_queue(ch: RawChannel, name: str) -> None:
    """x-max-priority: higher first, order kept within a level; above the maximum counts as the maximum, none as 0."""
    ch.queue(name, exclusive=True, arguments={"x-max-priority": 5})
    for i, priority in enumerate([0, 5, 3, 9, 3, None]):
        ch.publish(b"%d" % i, routing_key=name, **({} if priority is None else {"priority": priority}))
    ch.wait_ready(name, 6)
    assert [int(ch.call("basic.get", queue=name, no_ack=True).body) for _ in range(6)] == [1, 3, 2, 4, 0, 5]
