"""Property: whatever a peer sends, it gets a clean AMQP error or a closed socket; others, memory and the process are unaffected."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.broker import Broker, unique, wait_until
from tests.support.rawamqp import (
    BODY,
    HEADER,
    METHOD,
    ConnectionLost,
    RawChannel,
    RawConnection,
    Typed,
    encode_value,
    frame,
    header_frame,
    longstr,
    method_frame,
    method_payload,
    publish_bytes,
    shortstr,
)

Connect = Callable[..., RawConnection]
MIB = 1 << 20
HANDSHAKE_DEADLINE_S = 10


@pytest.fixture(autouse=True)
def witness(connect: Connect, broker: Broker) -> Iterator[None]:
    """A connection that was there before the attack works before, and after; so does a new one; the broker is alive."""
    ch = connect().channel(1)
    queue = ch.queue(unique("witness"), exclusive=True)
    ch.publish(b"before", routing_key=queue)
    yield
    assert ch.call("basic.get", queue=queue, no_ack=True).body == b"before"
    with RawConnection(broker.host, broker.port).open(broker.user, broker.password) as fresh:
        fresh.channel(1).queue(exclusive=True)
    assert broker.alive()


def ends(peer: RawConnection) -> str:
    """How the peer ends the conversation: the reply code of its connection.close, or `drop`. Fails when it does not end it."""
    with contextlib.suppress(ConnectionLost):
        while True:
            method = peer.recv_any()
            if method.name == "connection.close":
                with contextlib.suppress(OSError):
                    peer.send(method_frame(0, "connection.close-ok"))
                with contextlib.suppress(ConnectionLost):
                    peer.recv_until_closed()
                return str(method.reply_code)
    return "drop"


def hostile(peer: RawConnection, data: bytes) -> str:
    """Sends what the peer may refuse half-way, and returns how it ended."""
    with contextlib.suppress(OSError):
        peer.send(data)
    return ends(peer)


def bind_with(arguments: bytes, channel: int = 1) -> bytes:
    """queue.bind with a hand-made arguments table (its length included)."""
    return frame(METHOD, channel, method_payload("queue.bind", queue="q", exchange="amq.headers", arguments=arguments))


def test_garbage_before_the_header(connect: Connect) -> None:
    """Random bytes instead of the protocol header: our header, or nothing, and the end."""
    chance = random.Random(1)
    for _ in range(50):
        peer = connect(handshake=False)
        with contextlib.suppress(OSError):
            peer.send(chance.randbytes(chance.randrange(8, 3000)))
        rest = b""
        with contextlib.suppress(ConnectionLost):
            rest = peer.recv_until_closed()
        assert rest in (b"", b"AMQP\x00\x00\x09\x01")


@pytest.mark.flintmq_only("RabbitMQ waits three seconds or ten before it drops such a peer")
def test_garbage_after_the_header(connect: Connect) -> None:
    """Random bytes instead of start-ok."""
    chance = random.Random(2)
    for _ in range(50):
        peer = connect(handshake=False)
        peer.start()
        data = chance.randbytes(chance.randrange(8, 3000))
        if data[0] in (1, 2, 3, 8):
            data = b"\x07" + data[1:]  # a frame type that does not exist: nothing may wait for more
        assert hostile(peer, data) in ("drop", "501", "502", "503", "504", "505")


@pytest.mark.flintmq_only("RabbitMQ waits before it drops such a peer")
def test_garbage_after_open(connect: Connect) -> None:
    """Random bytes on an open connection."""
    chance = random.Random(3)
    for _ in range(50):
        peer = connect()
        peer.channel(1)
        assert hostile(peer, b"\x07" + chance.randbytes(chance.randrange(8, 3000))) in ("drop", "501", "505")


def test_random_method_payloads(connect: Connect) -> None:
    """Well-framed nonsense: every class and method id with random arguments is answered or ends the connection, quickly."""
    chance = random.Random(4)
    for class_id in (10, 20, 30, 40, 50, 60, 70, 85, 90, 120):
        peer = connect()
        peer.channel(1)
        for method_id in (0, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51, 60, 70, 71, 80, 90, 100, 110, 120):
            payload = struct.pack(">HH", class_id, method_id) + chance.randbytes(chance.randrange(40))
            with contextlib.suppress(OSError):
                peer.send(frame(METHOD, 1, payload))
        peer.drop()


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_truncated_then_dropped(connect: Connect, cut: int) -> None:
    """A publish cut anywhere and then a dropped connection leave nothing behind."""
    peer = connect()
    peer.channel(1)
    peer.send(publish_bytes(1, b"body", routing_key="nowhere", headers={"a": 1})[:cut])
    peer.drop()


@pytest.mark.flintmq_only("RabbitMQ crashes the connection process and drops the socket")
@pytest.mark.parametrize("kind", [b"Z", b"\x00", b"\xff", b"N", b"z"])
def test_bad_table_type(connect: Connect, kind: bytes) -> None:
    """A table value of an unknown type is a syntax error."""
    peer = connect()
    peer.channel(1)
    assert hostile(peer, bind_with(longstr(shortstr("k") + kind + b"\0" * 8))) in ("501", "502")


@pytest.mark.parametrize(
    "inside",
    [
        shortstr("k") + b"S" + struct.pack(">I", 0xFFFFFFFF) + b"x",
        shortstr("k") + b"F" + struct.pack(">I", 0x7FFFFFFF),
        shortstr("k") + b"A" + struct.pack(">I", 1000) + b"I",
        shortstr("k") + b"I\x00",
        shortstr("k") + b"l\x00\x00",
        b"\xff" + b"k" * 10,
        shortstr("k"),
    ],
)
def test_table_lengths_that_lie(connect: Connect, inside: bytes) -> None:
    """A length that points outside its table never reads past it."""
    peer = connect()
    peer.channel(1)
    assert hostile(peer, bind_with(longstr(inside))) in ("drop", "501", "502", "541")


def test_table_longer_than_the_method(connect: Connect) -> None:
    """A table whose own length exceeds the frame."""
    peer = connect()
    peer.channel(1)
    assert hostile(peer, bind_with(struct.pack(">I", 0xFFFFFFF0))) in ("drop", "501", "502", "541")


def nested(depth: int, kind: str = "F") -> bytes:
    """A table or array value nested `depth` deep."""
    value = encode_value(Typed("I", 1))
    for _ in range(depth):
        inner = shortstr("a") + value if kind == "F" else value
        value = kind.encode() + longstr(inner)
    return longstr(shortstr("k") + value)


@pytest.mark.flintmq_only("RabbitMQ 3.10 has no limit")
@pytest.mark.parametrize("kind", ["F", "A"])
def test_deep_nesting(connect: Connect, kind: str) -> None:
    """Nesting deeper than 32 is a syntax error in a method; 5,000 levels do not exhaust any stack."""
    for depth in (40, 5_000):
        peer = connect()
        peer.channel(1)
        assert hostile(peer, bind_with(nested(depth, kind))) == "502"


@pytest.mark.flintmq_only("RabbitMQ 3.10 has no limit")
@pytest.mark.parametrize("kind", ["F", "A"])
def test_deep_nesting_in_message_headers(connect: Connect, kind: str, name: str) -> None:
    """The same in the headers of a message that a headers exchange has to read."""
    peer = connect()
    ch = peer.channel(1)
    ch.queue(name, exclusive=True)
    ch.call("queue.bind", queue=name, exchange="amq.headers", arguments={"k": 1})
    data = method_frame(1, "basic.publish", exchange="amq.headers") + header_frame(1, 0, headers=nested(5_000, kind))
    assert hostile(peer, data) in ("501", "502")


@pytest.mark.flintmq_only("its own texts")
@pytest.mark.parametrize(
    ("headers", "why"),
    [
        (nested(40), "tables nested deeper than 32"),
        (longstr(shortstr("k") + b"?"), "unknown table field type 0x3f"),
    ],
)
def test_what_is_wrong_with_headers_is_told(connect: Connect, headers: bytes, why: str) -> None:
    """The refusal of a message's properties names the cause; publishes before it, whose routes were looked up, leave nothing behind."""
    peer = connect()
    peer.channel(1)
    for key in ("one", "two"):
        peer.send(method_frame(1, "basic.publish", routing_key=key) + header_frame(1, 0))
    peer.send(method_frame(1, "basic.publish", routing_key="two") + header_frame(1, 0, headers=headers))
    close = peer.recv_any()
    assert (close.name, close.reply_code) == ("connection.close", 502)
    assert close.reply_text == "SYNTAX_ERROR - content header properties are malformed: " + why


@pytest.mark.parametrize("count", [1_000, 1_025, 9_000])
def test_many_fields(ch: RawChannel, name: str, count: int) -> None:
    """As many header fields as a frame holds are fine."""
    ch.queue(name, exclusive=True)
    headers = {f"k{i}": i for i in range(count)}
    ch.publish(b"", routing_key=name, headers=headers)
    assert ch.call("basic.get", queue=name, no_ack=True).properties["headers"] == headers


def test_huge_announced_body_takes_no_memory(broker: Broker, connect: Connect) -> None:
    """A header that announces 100 MiB reserves nothing: a hundred of them cost no memory."""
    before = broker.rss_bytes()
    peers = []
    for _ in range(10):
        peer = connect()
        for number in range(1, 11):
            peer.channel(number)
            peer.send(method_frame(number, "basic.publish") + header_frame(number, 100 * MIB) + frame(BODY, number, b"x"))
        peers.append(peer)
    for peer in peers:
        peer.send(method_frame(11, "channel.open"))
        peer.expect(11, "channel.open-ok")  # the server has read all that
    assert broker.rss_bytes() - before < 32 * MIB


def test_huge_frame_length(broker: Broker, connect: Connect) -> None:
    """A frame that claims 4 GiB is refused by its length alone."""
    before = broker.rss_bytes()
    peer = connect()
    peer.channel(1)
    assert hostile(peer, struct.pack(">BHI", BODY, 1, 0xFFFFFFFF) + b"x" * 1000) in ("drop", "501")
    assert broker.rss_bytes() - before < 16 * MIB


def test_bad_utf8_and_long_names(connect: Connect) -> None:
    """Names that are no UTF-8 are refused or taken, never fatal for the server."""
    peer = connect()
    peer.channel(1)
    with contextlib.suppress(OSError):
        peer.send(frame(METHOD, 1, method_payload("queue.declare", queue=b"\xff\xfe\x80", exclusive=True)))
    assert peer.recv_any().name in ("queue.declare-ok", "channel.close", "connection.close")


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("queue.declare", {"queue": b"\xff\xfe\x80", "exclusive": True}),
        ("queue.bind", {"queue": b"q", "exchange": b"amq.topic", "routing_key": b"a\xc0"}),
        ("exchange.declare", {"exchange": b"\xed\xa0\x80", "type": b"fanout"}),
        ("basic.consume", {"queue": b"q", "consumer_tag": b"\xf5"}),
        ("basic.cancel", {"consumer_tag": b"\x80"}),
        ("basic.publish", {"exchange": b"\xff", "routing_key": b"k"}),
        ("basic.publish", {"exchange": b"", "routing_key": b"\xff"}),
    ],
)
def test_names_and_tags_that_are_not_utf8(connect: Connect, method: str, arguments: dict[str, Any]) -> None:
    """501, and the connection ends, as on RabbitMQ; also where the exchange is known to the channel already."""
    peer = connect()
    ch = peer.channel(1)
    ch.publish(b"x", routing_key="ü")
    peer.send(method_frame(1, method, **arguments))
    close = peer.recv_any()
    assert (close.name, close.reply_code) == ("connection.close", 501)
    assert close.reply_text == "FRAME_ERROR - Malformed UTF-8 in shortstr"


@pytest.mark.parametrize("properties", [{}, {"priority": 1, "headers": {"a": 1}}])
@pytest.mark.parametrize("mode", [0, 3, 255])
def test_a_delivery_mode_that_there_is_not(ch: RawChannel, name: str, mode: int, properties: dict[str, Any]) -> None:
    """406 with RabbitMQ's text, with other properties and without."""
    ch.queue(name)
    ch.publish(b"x", routing_key=name, delivery_mode=mode, **properties)
    ch.expect_close(406, f"PRECONDITION_FAILED - invalid message: {{delivery_mode_unknown,{mode}}}")


def test_header_with_a_continuation_flag(connect: Connect) -> None:
    """Property flags that announce a second flag word (bit 0) are refused or ignored, never misread."""
    peer = connect()
    peer.channel(1)
    payload = struct.pack(">HHQH", 60, 0, 0, 0x0001)
    with contextlib.suppress(OSError):
        peer.send(method_frame(1, "basic.publish") + frame(2, 1, payload) + method_frame(1, "basic.qos"))
    with contextlib.suppress(ConnectionLost):
        assert peer.recv_any().name in ("basic.qos-ok", "connection.close")


def test_header_cut_short(connect: Connect) -> None:
    """A content header that ends inside its properties is an error of the connection."""
    peer = connect()
    peer.channel(1)
    payload = struct.pack(">HHQH", 60, 0, 0, 0x8000) + b"\xffabc"
    assert hostile(peer, method_frame(1, "basic.publish") + frame(2, 1, payload)) in ("drop", "501", "502", "541")


def test_flood_of_channel_errors(connect: Connect) -> None:
    """Hundreds of channel errors in a row are answered one by one."""
    ch = connect().channel(1)
    for _ in range(300):
        ch.refuse(404, "NOT_FOUND", "queue.declare", queue="no-such-queue", passive=True)


def test_peer_that_never_reads(broker: Broker, connect: Connect) -> None:
    """A peer that sends requests and never reads the answers stops being read, or is cut off: memory stays bounded."""
    before = broker.rss_bytes()
    peer = connect()
    queue = peer.channel(1).queue("q" * 250, exclusive=True)
    data = method_frame(1, "queue.declare", queue=queue, passive=True) * 400  # answers as long as the questions
    peer.sock.settimeout(1.0)
    sent = 0
    with contextlib.suppress(OSError):
        while sent < 256 * MIB:
            peer.sock.sendall(data)
            sent += len(data)
    assert broker.rss_bytes() - before < 128 * MIB
    peer.drop()


@pytest.mark.flintmq_only("the limit of unauthenticated connections is FlintMQ's")
def test_half_open_handshakes(broker: Broker) -> None:
    """Thousands of peers that connect and say nothing, or half a word: bounded memory, and all gone after the handshake deadline. It holds
    for the whole handshake: a peer that sends a byte now and then is cut off as well."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 10_000 if soft >= 16_384 else 2_000 if soft >= 4_096 else soft // 2
    before_rss, before_sockets = broker.rss_bytes(), broker.open_sockets()
    peers: list[socket.socket] = []
    try:
        for i in range(count):
            peer = socket.create_connection((broker.host, broker.port), timeout=60)
            peers.append(peer)
            with contextlib.suppress(OSError):
                peer.send((b"", b"AMQP", HEADER, HEADER + b"\x01\x00\x00\x00\x00\x10\x00\x00\x0a\x00\x0b")[i % 4])
        assert broker.rss_bytes() - before_rss < 192 * MIB
        beating = socket.create_connection((broker.host, broker.port), timeout=60)
        peers.append(beating)
        beating.send(HEADER)
        beats = iter(frame(METHOD, 0, method_payload("connection.start-ok", mechanism="PLAIN", response=b"\0" * 200)))

        def all_gone() -> bool:
            with contextlib.suppress(OSError):
                beating.send(bytes([next(beats)]))
            return broker.open_sockets() <= before_sockets + 2

        # The one that beats has bytes for 45 seconds: it would outlast this if they counted.
        wait_until(all_gone, HANDSHAKE_DEADLINE_S + 25, 0.2, "half-open connections cut off")
    finally:
        for peer in peers:
            peer.close()
