"""Property: every way to break the framing rules (spec 4.2.2-4.2.7) gets the reply code RabbitMQ gives, and legal extremes are accepted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.rawamqp import (
    BODY,
    CONTENT_HEADER,
    HEARTBEAT,
    METHOD,
    RawChannel,
    RawConnection,
    frame,
    header_frame,
    method_frame,
    method_payload,
    publish_bytes,
)

Connect = Callable[..., RawConnection]


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x00\x00\x09\x02",
        b"AMQP\x01\x01\x00\x0a",
        b"AMQP\x00\x00\x08\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 8,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_wrong_protocol_header_gets_ours_and_the_end(connect: Connect, header: bytes) -> None:
    """Spec 4.2.2: an unknown header is answered with the one we speak, then the socket closes."""
    peer = connect(handshake=False)
    peer.send(header)
    assert peer.recv_until_closed() == b"AMQP\x00\x00\x09\x01"


def test_header_in_single_bytes(connect: Connect) -> None:
    """The header may come in any pieces."""
    peer = connect(handshake=False)
    for i in range(8):
        peer.send(b"AMQP\x00\x00\x09\x01"[i : i + 1])
    assert peer.expect(0, "connection.start").version_minor == 9


def test_frames_in_single_bytes(ch: RawChannel, name: str) -> None:
    """Whole input and byte-at-a-time input give the same."""
    ch.queue(name, exclusive=True)
    data = publish_bytes(1, b"abc", routing_key=name) + method_frame(1, "basic.get", queue=name, no_ack=True)
    for i in range(len(data)):
        ch.connection.send(data[i : i + 1])
    assert ch.expect("basic.get-ok").body == b"abc"


def test_wrong_frame_end(conn: RawConnection) -> None:
    """Spec 4.2.3: a frame-end octet that is not 0xCE is fatal."""
    conn.send(frame(METHOD, 1, method_payload("channel.open"), end=0xCD))
    conn.expect_close(501, "FRAME_ERROR")


@pytest.mark.flintmq_only("specification 4.2.3 to the letter; RabbitMQ answers 501")
@pytest.mark.parametrize("kind", [0, 4, 5, 7, 9, 255])
def test_unknown_frame_type(conn: RawConnection, kind: int) -> None:
    """A frame type that does not exist is fatal, and nothing more is sent."""
    conn.send(frame(kind, 1, b"abc"))
    assert conn.recv_until_closed() == b""


def test_frame_above_the_negotiated_size(connect: Connect) -> None:
    """A frame larger than frame_max is refused as soon as its length is read."""
    peer = connect(frame_max=4096)
    peer.channel(1)
    peer.send(frame(BODY, 1, b"", size=4097)[:7])
    peer.expect_close(501, "FRAME_ERROR")


def test_frame_of_exactly_frame_max(connect: Connect, name: str) -> None:
    """frame_max counts the 8 bytes around the payload; exactly that size is legal, both ways."""
    peer = connect(frame_max=4096)
    ch = peer.channel(1)
    ch.queue(name, exclusive=True)
    body = bytes(range(256)) * 64
    ch.publish(body, routing_key=name)
    got = ch.call("basic.get", queue=name, no_ack=True)
    assert got.body == body
    assert got.body_frames == [4088] * 4 + [16384 - 4 * 4088]


def of_small_frames(connect: Connect) -> tuple[RawConnection, RawChannel]:
    """A connection that asked for frames of 4,096 bytes, and is ready for the content headers that are larger all the same."""
    peer = connect(frame_max=4096)
    peer.frame_max = 131_072
    return peer, peer.channel(1)


@pytest.mark.parametrize("size", [4_000, 4_096, 20_000, 130_000])
@pytest.mark.parametrize("body", [0, 1, 4_088, 10_000])
def test_a_content_header_above_the_receivers_frame_max(connect: Connect, name: str, size: int, body: int) -> None:
    """A content header can't be cut: as with RabbitMQ it comes whole. Body frames keep to frame_max, and the connection goes on."""
    large = {"h": "x" * size}
    _, ch = of_small_frames(connect)
    ch.queue(name)
    sender = connect().channel(1)
    content = bytes(i % 251 for i in range(body))
    frames = [4_088] * (body // 4_088) + [body % 4_088] * (body % 4_088 > 0)
    for _ in range(2):
        sender.publish(content, routing_key=name, headers=large)
    sender.publish(b"small", routing_key=name)
    sender.wait_ready(name, 3)
    got = ch.call("basic.get", queue=name)
    assert (got.body, got.body_frames, got.properties["headers"]) == (content, frames, large)
    tag = ch.consume(name)
    got, small = ch.deliveries(2)
    assert (got.body, got.body_frames, got.properties["headers"]) == (content, frames, large)
    assert small.body == b"small"
    ch.send("basic.ack", delivery_tag=0, multiple=True)
    ch.call("basic.cancel", consumer_tag=tag)
    assert ch.call("queue.delete", queue=name).message_count == 0


def test_a_receiver_that_refuses_a_content_header_loses_nothing(connect: Connect, name: str) -> None:
    """A client that takes a header above its frame_max for an error closes, or goes: the message is back, and others get it."""
    sender = connect().channel(1)
    sender.queue(name)
    sender.publish(b"m", routing_key=name, headers={"h": b"x" * 20_000})
    for orderly in (True, False):
        peer, ch = of_small_frames(connect)
        ch.consume(name)
        assert ch.deliveries(1)[0].redelivered is not orderly
        if orderly:
            peer.send(method_frame(0, "connection.close", reply_code=501, reply_text="frame too large"))
            peer.expect(0, "connection.close-ok")
        else:
            peer.drop()
        sender.wait_ready(name, 1)
    got = sender.call("basic.get", queue=name, no_ack=True)
    assert (got.body, got.redelivered, len(got.properties["headers"]["h"])) == (b"m", True, 20_000)
    sender.call("queue.delete", queue=name)


def test_a_content_header_that_comes_back_to_its_publisher(connect: Connect) -> None:
    """basic.return has the same header, whole: what a client could send it can read."""
    ch = connect(frame_max=4096).channel(1)
    ch.connection.frame_max = 131_072
    ch.connection.send(publish_bytes(1, b"x" * 5_000, routing_key="nowhere", mandatory=True, chunk=4_088, headers={"h": b"x" * 4_000}))
    got = ch.expect("basic.return")
    assert (got.body_frames, len(got.properties["headers"]["h"])) == ([4_088, 912], 4_000)


def test_payload_of_exactly_frame_max(connect: Connect, name: str) -> None:
    """amqpstorm fills frame_max with payload alone; like RabbitMQ, such a frame (8 bytes more) is taken."""
    ch = connect(frame_max=4096).channel(1)
    ch.queue(name, exclusive=True)
    ch.connection.send(method_frame(1, "basic.publish", routing_key=name) + header_frame(1, 4096) + frame(BODY, 1, b"x" * 4096))
    assert ch.call("basic.get", queue=name, no_ack=True).body == b"x" * 4096


def test_method_on_a_channel_that_is_not_open(conn: RawConnection) -> None:
    """Anything but channel.open on a closed channel is 504."""
    conn.send(method_frame(7, "queue.declare", queue="x"))
    conn.expect_close(504, "CHANNEL_ERROR")


def test_content_header_without_a_publish(ch: RawChannel) -> None:
    """Content without its method is 505."""
    ch.connection.send(header_frame(1, 5))
    ch.connection.expect_close(505, "UNEXPECTED_FRAME")


def test_body_without_a_publish(ch: RawChannel) -> None:
    """A body frame out of nowhere is 505."""
    ch.connection.send(frame(BODY, 1, b"abc"))
    ch.connection.expect_close(505, "UNEXPECTED_FRAME")


def test_method_between_publish_and_header(ch: RawChannel) -> None:
    """The content header must come next after basic.publish."""
    ch.connection.send(method_frame(1, "basic.publish") + method_frame(1, "basic.qos"))
    ch.connection.expect_close(505, "UNEXPECTED_FRAME")


def test_method_between_header_and_body(ch: RawChannel) -> None:
    """A body that was announced must come before anything else on its channel."""
    ch.connection.send(method_frame(1, "basic.publish") + header_frame(1, 5) + method_frame(1, "basic.qos"))
    ch.connection.expect_close(505, "UNEXPECTED_FRAME")


def test_second_header(ch: RawChannel) -> None:
    """One publish has one header."""
    ch.connection.send(method_frame(1, "basic.publish") + header_frame(1, 5) + header_frame(1, 5))
    ch.connection.expect_close(505, "UNEXPECTED_FRAME")


def test_header_of_another_class(ch: RawChannel) -> None:
    """The header's class must be that of the method."""
    ch.connection.send(method_frame(1, "basic.publish") + header_frame(1, 5, class_id=50))
    method = ch.connection.recv_any()
    assert method.name == "connection.close"
    assert method.reply_code in (501, 505)


@pytest.mark.flintmq_only("RabbitMQ takes a body longer than its header announces and delivers it")
def test_body_larger_than_the_header_says(ch: RawChannel) -> None:
    """The bodies may not exceed the size in the header."""
    ch.connection.send(method_frame(1, "basic.publish") + header_frame(1, 2) + frame(BODY, 1, b"abc"))
    method = ch.connection.recv_any()
    assert method.name == "connection.close"
    assert method.reply_code in (501, 505)


def test_empty_body_frames_are_allowed(ch: RawChannel, name: str) -> None:
    """Spec 4.2.6.2: a body may come in any number of frames, empty ones included."""
    ch.queue(name, exclusive=True)
    data = method_frame(1, "basic.publish", routing_key=name) + header_frame(1, 3)
    for part in (b"", b"a", b"", b"b", b"", b"c"):
        data += frame(BODY, 1, part)
    ch.connection.send(data)
    assert ch.call("basic.get", queue=name, no_ack=True).body == b"abc"


def test_zero_length_body(ch: RawChannel, name: str) -> None:
    """A message without body is complete with its header, in both directions."""
    ch.queue(name, exclusive=True)
    ch.publish(b"", routing_key=name, content_type="x/y")
    got = ch.call("basic.get", queue=name, no_ack=True)
    assert (got.body, got.body_frames, got.properties["content_type"]) == (b"", [], "x/y")


def test_body_of_many_frames(ch: RawChannel, name: str) -> None:
    """A body of 1 MiB in frames of an odd size comes back whole, in frames that fill frame_max."""
    ch.queue(name, exclusive=True)
    body = bytes(i * 7 % 251 for i in range(1 << 20))
    ch.connection.send(publish_bytes(1, body, routing_key=name, chunk=9_973))
    got = ch.call("basic.get", queue=name, no_ack=True)
    assert got.body == body
    assert max(got.body_frames) == ch.connection.frame_max - 8


def test_content_of_several_channels_interleaved(conn: RawConnection, name: str) -> None:
    """Spec 4.2.6: content of different channels may be mixed frame by frame."""
    channels = [conn.channel(n) for n in (1, 2, 3)]
    channels[0].queue(name)
    steps = []
    for ch in channels:
        body = [bytes([64 + ch.number]) * 10 for _ in range(4)]
        steps.append(
            [
                method_frame(ch.number, "basic.publish", routing_key=name),
                header_frame(ch.number, 40, message_id=str(ch.number)),
                *[frame(BODY, ch.number, part) for part in body],
            ]
        )
    conn.send(b"".join(part for group in zip(*steps, strict=True) for part in group))
    for ch in channels:
        ch.call("basic.qos")  # each channel has done its publish when it answers
    got = {}
    for _ in channels:
        message = channels[0].call("basic.get", queue=name, no_ack=True)
        got[message.properties["message_id"]] = message.body
    assert got == {"1": b"A" * 40, "2": b"B" * 40, "3": b"C" * 40}
    channels[0].call("queue.delete", queue=name)


@pytest.mark.flintmq_only("RabbitMQ resets the connection")
def test_unknown_class_and_method(connect: Connect) -> None:
    """A method that does not exist closes the connection with an error."""
    for ids in (b"\x00\x3c\x00\xfa", b"\x03\xe7\x00\x0a"):
        peer = connect()
        peer.channel(1)
        peer.send(frame(METHOD, 1, ids))
        method = peer.recv_any()
        assert method.name == "connection.close"
        assert method.reply_code in (501, 502, 503, 540, 541), method.fields


def test_truncated_method_payload(conn: RawConnection) -> None:
    """A method whose arguments end too early is an error of the connection, never a guess."""
    conn.channel(1)
    conn.send(frame(METHOD, 1, method_payload("queue.declare", queue="some-name")[:9]))
    method = conn.recv_any()
    assert method.name == "connection.close"
    assert method.reply_code in (501, 502, 541)


def test_method_frame_shorter_than_its_ids(conn: RawConnection) -> None:
    """A method frame of less than four bytes has no method."""
    conn.channel(1)
    conn.send(frame(METHOD, 1, b"\x00\x32"))
    method = conn.recv_any()
    assert method.name == "connection.close"
    assert method.reply_code in (501, 502, 505, 541)


def test_heartbeat_frames_are_accepted_at_any_time(ch: RawChannel, name: str) -> None:
    """A heartbeat may stand anywhere, even inside the content of a channel."""
    ch.queue(name, exclusive=True)
    beat = frame(HEARTBEAT, 0, b"")
    data = method_frame(1, "basic.publish", routing_key=name) + beat + header_frame(1, 2) + beat + frame(BODY, 1, b"ok") + beat
    ch.connection.send(data)
    assert ch.call("basic.get", queue=name, no_ack=True).body == b"ok"


def test_content_on_channel_zero(conn: RawConnection) -> None:
    """Channel 0 belongs to the connection class alone."""
    conn.send(frame(CONTENT_HEADER, 0, b"\x00" * 14))
    method = conn.recv_any()
    assert method.name == "connection.close"
    assert method.reply_code in (501, 503, 504, 505)


def test_connection_class_on_another_channel(conn: RawConnection) -> None:
    """A method of the connection class on channel 1 is refused."""
    conn.channel(1)
    conn.send(method_frame(1, "connection.open", virtual_host="/"))
    method = conn.recv_any()
    assert method.name == "connection.close"
    assert method.reply_code in (503, 504, 530, 540)


def test_messages_keep_every_property(ch: RawChannel, name: str) -> None:
    """All fourteen properties come back as they were sent."""
    ch.queue(name, exclusive=True)
    properties = {
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "headers": {"a": 1},
        "delivery_mode": 2,
        "priority": 9,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "message_id": "m",
        "timestamp": 2**40,
        "type": "t",
        "user_id": "guest",
        "app_id": "a",
        "cluster_id": "x",
    }
    ch.publish(b"1", routing_key=name, **properties)
    assert ch.call("basic.get", queue=name, no_ack=True).properties == properties
