"""Property: a channel opens, refuses, closes and is used again as spec 1.5 says; an error of one channel leaves the others alone."""

from __future__ import annotations

from tests.support.rawamqp import RawChannel, RawConnection, method_frame, publish_bytes


def test_open_twice(conn: RawConnection) -> None:
    """channel.open on an open channel is a connection error."""
    conn.channel(1)
    conn.send(method_frame(1, "channel.open"))
    method = conn.recv_any()
    assert method.name == "connection.close"
    assert method.reply_code in (503, 504)


def test_close_and_open_again(conn: RawConnection, name: str) -> None:
    """A number is free as soon as close-ok was sent; the new channel starts from delivery tag 1."""
    for _ in range(3):
        ch = conn.channel(5)
        ch.queue(name)
        ch.publish(b"x", routing_key=name)
        assert ch.call("basic.get", queue=name).delivery_tag == 1
        ch.call("channel.close", reply_code=200)
    conn.channel(5).call("queue.delete", queue=name)


def test_error_closes_one_channel_only(conn: RawConnection, name: str) -> None:
    """A 404 on channel 1 leaves channel 2 working, and channel 1 can be opened again."""
    one, two = conn.channel(1), conn.channel(2)
    one.refuse(404, f"NOT_FOUND - no queue '{name}' in vhost '/'", "queue.declare", queue=name, passive=True)
    two.queue(name, exclusive=True)
    assert one.ready(name) == 0


def test_close_names_the_method_that_failed(ch: RawChannel, name: str) -> None:
    """channel.close carries class and method of the cause."""
    method = ch.refuse(404, "", "basic.consume", queue=name)
    assert (method.class_id, method.method_id) == (60, 20)


def test_methods_on_a_closing_channel_are_ignored(conn: RawConnection, name: str) -> None:
    """Between the server's channel.close and the client's close-ok everything else is dropped without a new error."""
    ch = conn.channel(1)
    ch.send("queue.declare", queue=name, passive=True)
    assert ch.expect("channel.close").reply_code == 404
    conn.send(publish_bytes(1, b"lost", routing_key="whatever"))
    ch.send("queue.declare", queue=name)
    ch.send("channel.close-ok")
    conn.send(method_frame(1, "channel.open"))
    ch.expect("channel.open-ok")
    ch.refuse(404, "", "queue.declare", queue=name, passive=True)


def test_both_sides_close_at_once(conn: RawConnection, name: str) -> None:
    """A client that closes while the server closes gets close-ok for its own close."""
    ch = conn.channel(1)
    conn.send(method_frame(1, "queue.declare", queue=name, passive=True) + method_frame(1, "channel.close", reply_code=200))
    assert ch.expect("channel.close").reply_code == 404
    ch.expect("channel.close-ok")
    ch.send("channel.close-ok")
    conn.channel(2)


def test_flow_active(ch: RawChannel) -> None:
    """channel.flow with active=1 is answered with flow-ok active=1."""
    assert ch.call("channel.flow", active=True).active is True


def test_channel_errors_release_what_it_held(conn: RawConnection, name: str) -> None:
    """Unacknowledged messages of a channel that an error closed return to their queue."""
    one, two = conn.channel(1), conn.channel(2)
    two.queue(name, exclusive=True)
    two.publish(b"a", routing_key=name)
    two.wait_ready(name, 1)
    assert one.call("basic.get", queue=name).body == b"a"
    one.refuse(406, "PRECONDITION_FAILED - unknown delivery tag 99", "basic.ack", delivery_tag=99)
    got = two.call("basic.get", queue=name, no_ack=True)
    assert (got.body, got.redelivered) == (b"a", True)


def test_highest_channel_number(conn: RawConnection) -> None:
    """The last negotiated channel can be used."""
    conn.channel(2047).queue(exclusive=True)
