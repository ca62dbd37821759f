"""Property: the connection class (spec 1.4) negotiates, refuses and closes as RabbitMQ does: same codes, same texts."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import pytest

from tests.support.broker import Broker
from tests.support.rawamqp import (
    CAPABILITIES,
    HEADER,
    HEARTBEAT,
    ConnectionLost,
    RawConnection,
    encode_value,
    frame,
    method_frame,
    method_payload,
    shortstr,
)

Connect = Callable[..., RawConnection]
SILENT = "RabbitMQ drops the socket three seconds later without connection.close"
NINE = {
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
}


def test_start(connect: Connect) -> None:
    """connection.start: version 0-9, PLAIN and AMQPLAIN, locale en_US, and all nine capabilities."""
    start = connect(handshake=False).start()
    assert (start.version_major, start.version_minor) == (0, 9)
    assert {"PLAIN", "AMQPLAIN"} <= set(start.mechanisms.decode().split(" "))
    assert start.locales == b"en_US"
    properties = start.server_properties
    assert {"product", "version", "platform", "information", "copyright", "cluster_name"} <= set(properties)
    assert {k for k, v in properties["capabilities"].items() if v} >= NINE


def test_amqplain(connect: Connect, broker: Broker) -> None:
    """AMQPLAIN: a field table without its length as response."""
    peer = connect(handshake=False)
    peer.start()
    fields = {"LOGIN": broker.user, "PASSWORD": broker.password}
    response = b"".join(shortstr(k) + encode_value(v) for k, v in fields.items())
    peer.start_ok(mechanism="AMQPLAIN", response=response)
    peer.expect(0, "connection.tune")


def test_bad_password_with_failure_close(connect: Connect) -> None:
    """A client that understands authentication_failure_close is told 403."""
    peer = connect(handshake=False)
    peer.start()
    peer.start_ok("guest", "wrong")
    peer.expect_close(403, "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN")


def test_refused_login_is_not_hung_up_on_before_its_close_ok(connect: Connect) -> None:
    """After connection.close 403 the stream stays open until close-ok came: rabbitpy looks for the end of the stream first."""
    peer = connect(handshake=False)
    peer.start()
    peer.start_ok("guest", "wrong")
    assert peer.expect(0, "connection.close").reply_code == 403
    with pytest.raises(TimeoutError):
        peer.recv_frame(0.3)
    peer.send(method_frame(0, "connection.close-ok"))
    assert peer.recv_until_closed() == b""


def test_unknown_user_is_refused_with_the_same_words(connect: Connect) -> None:
    """An unknown user can't be told from a wrong password."""
    peer = connect(handshake=False)
    peer.start()
    peer.start_ok("nobody", "wrong")
    peer.expect_close(403, "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN")


def test_bad_password_without_failure_close(connect: Connect) -> None:
    """A client without the capability sees the socket close and nothing else (spec 1.4.2.2)."""
    peer = connect(handshake=False)
    peer.start()
    peer.start_ok("guest", "wrong", capabilities={})
    assert peer.recv_until_closed() == b""


@pytest.mark.flintmq_only(SILENT)
def test_unknown_mechanism(connect: Connect) -> None:
    """A mechanism that was not offered."""
    peer = connect(handshake=False)
    peer.start()
    peer.start_ok(mechanism="KERBEROS_V5")
    method = peer.recv_any()
    assert method.name == "connection.close"
    assert method.reply_code == 503


@pytest.mark.flintmq_only(SILENT)
def test_malformed_plain_response(connect: Connect) -> None:
    """A PLAIN response without its two separators is refused, not guessed."""
    peer = connect(handshake=False)
    peer.start()
    peer.start_ok(response=b"guest")
    method = peer.recv_any()
    assert method.name == "connection.close"
    assert method.reply_code in (403, 501, 502)


def test_unknown_vhost(connect: Connect) -> None:
    """530 with RabbitMQ's text."""
    peer = connect(handshake=False)
    peer.start()
    peer.start_ok()
    peer.expect(0, "connection.tune")
    peer.send(method_frame(0, "connection.tune-ok", channel_max=10, frame_max=131072))
    peer.send(method_frame(0, "connection.open", virtual_host="no-such"))
    peer.expect_close(530, "NOT_ALLOWED - vhost no-such not found")


def test_tune_offer(conn: RawConnection) -> None:
    """The server offers 2047 channels, 128 KiB frames and 60 s heartbeat, as RabbitMQ does."""
    tune = conn.tune
    assert tune is not None
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131072, 60)


def test_channel_max_is_held(connect: Connect) -> None:
    """One channel more than the negotiated number closes the connection."""
    peer = connect(channel_max=3)
    for number in (1, 2, 3):
        peer.channel(number)
    peer.send(method_frame(4, "channel.open"))
    method = peer.recv_any()
    assert method.name == "connection.close"
    assert method.reply_code in (504, 530), method.fields


def test_channel_max_counts_channels(connect: Connect) -> None:
    """channel_max is how many channels may be open at once; any number may be theirs (aiormq counts up to 65,535 before it starts anew)."""
    peer = connect(channel_max=3)
    first = peer.channel(65_535)
    peer.channel(3)
    peer.channel(2_048).call("channel.close", reply_code=200)
    peer.channel(40_000)
    first.queue("", exclusive=True)
    peer.send(method_frame(1, "channel.open"))
    peer.expect_close(530, "NOT_ALLOWED - number of channels opened (3) has reached the negotiated channel_max (3)")


@pytest.mark.flintmq_only(SILENT)
def test_frame_max_below_the_minimum(connect: Connect) -> None:
    """Less than 4096 is refused with 530."""
    peer = connect(handshake=False)
    peer.start()
    peer.start_ok()
    peer.expect(0, "connection.tune")
    peer.send(method_frame(0, "connection.tune-ok", channel_max=10, frame_max=4095))
    peer.expect_close(530, "frame_max = 4095")


@pytest.mark.flintmq_only(SILENT)
def test_frame_max_above_the_offer(connect: Connect) -> None:
    """More than was offered is refused with 530."""
    peer = connect(handshake=False)
    peer.start()
    peer.start_ok()
    tune = peer.expect(0, "connection.tune")
    peer.send(method_frame(0, "connection.tune-ok", channel_max=10, frame_max=tune.frame_max + 1))
    peer.expect_close(530, f"frame_max = {tune.frame_max + 1}")


@pytest.mark.flintmq_only(SILENT)
def test_channel_max_above_the_offer(connect: Connect) -> None:
    """More channels than were offered are refused with 530."""
    peer = connect(handshake=False)
    peer.start()
    peer.start_ok()
    tune = peer.expect(0, "connection.tune")
    peer.send(method_frame(0, "connection.tune-ok", channel_max=tune.channel_max + 1, frame_max=tune.frame_max))
    peer.expect_close(530, "channel_max")


def test_heartbeats_are_sent(connect: Connect) -> None:
    """With heartbeat 1 an idle server sends heartbeat frames on its own."""
    peer = connect(heartbeat=1)
    give_up = time.monotonic() + 30
    while peer.heartbeats < 3:
        assert time.monotonic() < give_up, f"{peer.heartbeats} heartbeats in 30 s"
        peer.send(frame(HEARTBEAT, 0, b""))
        with pytest.raises(TimeoutError):
            peer.recv_any(timeout=0.4)


def test_silent_client_is_cut_off(connect: Connect) -> None:
    """A client that negotiated heartbeat 1 and stays silent loses its connection."""
    peer = connect(heartbeat=1)
    peer.recv_until_closed()


def test_client_close(conn: RawConnection) -> None:
    """connection.close is answered with close-ok."""
    conn.channel(1)
    conn.close()


def test_frames_after_close_are_ignored(conn: RawConnection) -> None:
    """After its own close the client's other frames are discarded (spec 1.4.2.8)."""
    conn.send(method_frame(0, "connection.close", reply_code=200) + method_frame(1, "queue.declare", queue="x"))
    assert conn.recv_any().name == "connection.close-ok"
    with pytest.raises((TimeoutError, ConnectionLost)):
        conn.recv_any(timeout=0.3)


def test_close_during_the_handshake(connect: Connect) -> None:
    """A client that closes right after tune is answered (RabbitMQ: with a close of its own)."""
    peer = connect(handshake=False)
    peer.start()
    peer.start_ok()
    peer.expect(0, "connection.tune")
    peer.send(method_frame(0, "connection.tune-ok", channel_max=10, frame_max=131072))
    peer.send(method_frame(0, "connection.close", reply_code=200))
    assert peer.recv_any().name in ("connection.close-ok", "connection.close")


def test_wrong_order_in_the_handshake(connect: Connect) -> None:
    """connection.open before start-ok, and a channel before connection.open, are refused."""
    for early in (method_frame(0, "connection.open", virtual_host="/"), method_frame(1, "channel.open")):
        peer = connect(handshake=False)
        peer.start()
        peer.send(early)
        rest = peer.recv_until_closed()
        assert rest == b"" or struct.unpack(">HH", rest[7:11]) == (10, 50), rest


def test_frame_larger_than_8_kib_before_open(connect: Connect) -> None:
    """An unauthenticated peer can't make the server buffer more than 8 KiB."""
    peer = connect(handshake=False)
    peer.start()
    peer.send(frame(1, 0, method_payload("connection.start-ok", response=b"\0" * 9000, mechanism="PLAIN")))
    rest = peer.recv_until_closed()
    assert rest == b"" or struct.unpack(">HHH", rest[7:13]) == (10, 50, 501), rest


def test_server_close_then_frames(conn: RawConnection) -> None:
    """After the server's close everything but close-ok is ignored, and close-ok ends the stream."""
    conn.send(method_frame(9, "basic.qos"))
    assert conn.recv_any().name == "connection.close"
    conn.send(method_frame(1, "channel.open") + method_frame(0, "connection.close-ok"))
    assert conn.recv_until_closed() == b""


def test_update_secret(conn: RawConnection, broker: Broker) -> None:
    """connection.update-secret is answered, and the connection works on."""
    conn.send(method_frame(0, "connection.update-secret", new_secret=broker.password.encode(), reason="rotation"))
    conn.expect(0, "connection.update-secret-ok")
    conn.channel(1).queue(exclusive=True)


def test_second_open(conn: RawConnection) -> None:
    """connection.open twice is an error of the connection."""
    conn.send(method_frame(0, "connection.open", virtual_host="/"))
    method = conn.recv_any()
    assert method.name == "connection.close"
    assert method.reply_code in (503, 504, 530, 540, 541)


def test_pipelined_handshake(connect: Connect, broker: Broker) -> None:
    """A client that sends everything at once without waiting is served all the same."""
    peer = connect(handshake=False)
    secret = f"\0{broker.user}\0{broker.password}".encode()
    peer.send(
        HEADER
        + method_frame(
            0,
            "connection.start-ok",
            client_properties={"capabilities": CAPABILITIES},
            mechanism="PLAIN",
            response=secret,
            locale="en_US",
        )
        + method_frame(0, "connection.tune-ok", channel_max=10, frame_max=131072)
        + method_frame(0, "connection.open", virtual_host="/")
        + method_frame(1, "channel.open")
    )
    for expected in ("connection.start", "connection.tune", "connection.open-ok", "channel.open-ok"):
        assert peer.recv_any().name == expected
