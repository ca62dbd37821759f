"""Property: a transaction (spec 1.9) shows nothing before commit, everything after it, nothing after rollback or a lost channel."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.rawamqp import RawChannel, RawConnection

Connect = Callable[..., RawConnection]


def test_publish_is_seen_after_commit(conn: RawConnection, name: str) -> None:
    """Publishes are invisible until commit, then in order."""
    ch, other = conn.channel(1), conn.channel(2)
    other.queue(name, exclusive=True)
    ch.call("tx.select")
    for i in range(5):
        ch.publish(b"%d" % i, routing_key=name)
    ch.call("basic.qos")
    assert other.ready(name) == 0
    ch.call("tx.commit")
    other.wait_ready(name, 5)
    assert [other.call("basic.get", queue=name, no_ack=True).body for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_rollback_of_publishes(conn: RawConnection, name: str) -> None:
    """Rolled back publishes never appear; the channel stays transactional."""
    ch = conn.channel(1)
    ch.queue(name, exclusive=True)
    ch.call("tx.select")
    ch.publish(b"lost", routing_key=name)
    ch.call("tx.rollback")
    ch.publish(b"kept", routing_key=name)
    ch.call("tx.commit")
    assert ch.call("basic.get", queue=name, no_ack=True).body == b"kept"
    assert ch.call("basic.get", queue=name).name == "basic.get-empty"


def test_acks_are_rolled_back(conn: RawConnection, name: str) -> None:
    """After rollback an acknowledged message is unacknowledged again: it can be settled, and returns when the channel closes."""
    ch, other = conn.channel(1), conn.channel(2)
    other.queue(name, exclusive=True)
    for i in range(3):
        other.publish(b"%d" % i, routing_key=name)
    other.wait_ready(name, 3)
    ch.call("tx.select")
    for _ in range(3):
        ch.call("basic.get", queue=name)
    ch.send("basic.ack", delivery_tag=2, multiple=True)
    ch.call("tx.rollback")
    ch.send("basic.ack", delivery_tag=1)
    ch.call("tx.commit")
    ch.call("channel.close", reply_code=200)
    other.wait_ready(name, 2)
    got = [other.call("basic.get", queue=name, no_ack=True) for _ in range(2)]
    assert [(m.body, m.redelivered) for m in got] == [(b"1", True), (b"2", True)]


def test_uncommitted_acks_are_lost_with_the_channel(conn: RawConnection, name: str) -> None:
    """An ack without commit does not settle anything."""
    ch, other = conn.channel(1), conn.channel(2)
    other.queue(name, exclusive=True)
    other.publish(b"0", routing_key=name)
    other.wait_ready(name, 1)
    ch.call("tx.select")
    ch.call("basic.get", queue=name)
    ch.send("basic.ack", delivery_tag=1)
    ch.call("channel.close", reply_code=200)
    other.wait_ready(name, 1)
    assert other.call("basic.get", queue=name, no_ack=True).redelivered


def test_nacks_take_part(conn: RawConnection, name: str) -> None:
    """A requeueing nack takes effect at commit, in place."""
    ch, other = conn.channel(1), conn.channel(2)
    other.queue(name, exclusive=True)
    for i in range(3):
        other.publish(b"%d" % i, routing_key=name)
    other.wait_ready(name, 3)
    ch.call("tx.select")
    for _ in range(2):
        ch.call("basic.get", queue=name)
    ch.send("basic.nack", delivery_tag=2, multiple=True, requeue=True)
    ch.call("basic.qos")
    assert other.ready(name) == 1
    ch.call("tx.commit")
    other.wait_ready(name, 3)
    assert [other.call("basic.get", queue=name, no_ack=True).body for _ in range(3)] == [b"0", b"1", b"2"]


def test_publish_and_ack_together(conn: RawConnection, name: str) -> None:
    """The classical move from one queue to another is visible as a whole."""
    ch, other = conn.channel(1), conn.channel(2)
    for q in "ab":
        other.queue(name + q, exclusive=True)
    other.publish(b"m", routing_key=name + "a")
    other.wait_ready(name + "a", 1)
    ch.call("tx.select")
    got = ch.call("basic.get", queue=name + "a")
    ch.publish(got.body, routing_key=name + "b")
    ch.send("basic.ack", delivery_tag=1)
    ch.call("tx.commit")
    other.wait_ready(name + "b", 1)
    assert other.call("basic.get", queue=name + "b", no_ack=True).body == b"m"
    ch.call("channel.close", reply_code=200)
    assert other.ready(name + "a") == 0


def test_dropped_connection_rolls_back(connect: Connect, name: str) -> None:
    """A connection that drops leaves nothing of its open transaction."""
    owner, peer = connect().channel(1), connect()
    owner.queue(name)
    ch = peer.channel(1)
    ch.call("tx.select")
    ch.publish(b"x", routing_key=name)
    ch.call("basic.qos")
    peer.drop()
    owner.nothing()
    assert owner.call("queue.delete", queue=name).message_count == 0


def test_returns_come_at_commit(ch: RawChannel, name: str) -> None:
    """An unroutable mandatory message of a transaction comes back before commit-ok."""
    ch.call("tx.select")
    ch.publish(b"x", routing_key=name, mandatory=True)
    ch.send("tx.commit")
    assert {ch.connection.recv(1).name, ch.connection.recv(1).name} == {"basic.return", "tx.commit-ok"}


def test_commit_without_select(ch: RawChannel) -> None:
    """commit and rollback on a channel without tx are 406."""
    ch.refuse(406, "PRECONDITION_FAILED - channel is not transactional", "tx.commit")
    ch.refuse(406, "PRECONDITION_FAILED - channel is not transactional", "tx.rollback")


def test_select_twice_and_empty_commit(ch: RawChannel) -> None:
    """tx.select again and empty commits are harmless."""
    for _ in range(2):
        ch.call("tx.select")
        ch.call("tx.commit")
        ch.call("tx.rollback")


def test_large_transaction(ch: RawChannel, name: str) -> None:
    """A thousand messages in one transaction arrive complete and in order."""
    ch.queue(name, exclusive=True)
    ch.call("tx.select")
    for i in range(1000):
        ch.publish(b"%d" % i, routing_key=name)
    ch.call("tx.commit")
    ch.consume(name, no_ack=True)
    assert [int(m.body) for m in ch.deliveries(1000)] == list(range(1000))


def test_pipelined_transactions_answer_in_order(ch: RawChannel, name: str) -> None:
    """Commits, rollbacks and publishes without waiting for answers: each commit covers what came since the last one."""
    ch.queue(name, exclusive=True, durable=True)
    ch.call("tx.select")
    for i in range(20):
        ch.publish(b"%d" % i, routing_key=name, delivery_mode=2)
        ch.send("tx.rollback" if i % 4 == 3 else "tx.commit")
    names = [ch.connection.recv(1).name for _ in range(20)]
    assert names == ["tx.rollback-ok" if i % 4 == 3 else "tx.commit-ok" for i in range(20)]
    got = [ch.call("basic.get", queue=name, no_ack=True).body for _ in range(15)]
    assert got == [b"%d" % i for i in range(20) if i % 4 != 3]


def test_multiple_ack_means_what_was_delivered(conn: RawConnection, name: str) -> None:
    """ack(0, multiple) inside a transaction covers the deliveries before it, not those that come until the commit."""
    ch, other = conn.channel(1), conn.channel(2)
    other.queue(name, exclusive=True)
    ch.call("tx.select")
    other.publish(b"1", routing_key=name)
    other.wait_ready(name, 1)
    ch.call("basic.get", queue=name)
    ch.send("basic.ack", delivery_tag=0, multiple=True)
    ch.call("basic.qos")
    other.publish(b"2", routing_key=name)
    other.wait_ready(name, 1)
    ch.call("basic.get", queue=name)
    ch.call("tx.commit")
    ch.call("channel.close", reply_code=200)
    other.wait_ready(name, 1)
    assert other.call("basic.get", queue=name, no_ack=True).body == b"2"
