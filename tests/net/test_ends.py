"""How a connection ends: its last words arrive whatever it still sends, its close-ok is read whatever held it back, and a late loop cuts
nobody off."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from flintmq.config import Config
from flintmq.core.memory_account import bytes_held
from flintmq.session import handshake
from flintmq.session.handlers import ConnectionHandler
from tests.support.broker import wait_until
from tests.support.rawamqp import CAPABILITIES, ConnectionLost, method_frame, publish_bytes

HOUR_MS = 3_600_000
MIB = 1 << 20


def sockets(broker: Any) -> int:
    return sum(len(loop.entries()) for loop in broker.node.loops)


def test_a_client_that_writes_on_after_its_close_is_not_reset(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """Other channels of the client are still busy: before, the socket was closed under them and the client saw ECONNRESET."""
    broker = start({"close_ms_max": HOUR_MS})
    connection = connect(broker)
    connection.channel()
    body = publish_bytes(1, b"x" * 60_000, routing_key="nowhere")
    connection.send(method_frame(0, "connection.close", reply_code=200) + body)
    assert connection.recv_any().name == "connection.close-ok"
    for _ in range(50):
        connection.send(body)
    connection.sock.shutdown(socket.SHUT_WR)
    # It is the client that ends the stream; then the broker does, without a reset.
    assert connection.sock.recv(1) == b""
    wait_until(lambda: sockets(broker) == 1, what="the listener is left")


@pytest.mark.parametrize("held", [0, 2000])
def test_after_close_ok_the_client_ends_the_stream(start: Callable[..., Any], connect: Callable[..., Any], held: int) -> None:
    """amqp091-go takes an end of the stream that comes from the broker for the error 501, unless it has closed its socket before.

    held: deliveries that come back, in slices, before the answer."""
    broker = start({"close_ms_max": HOUR_MS, "close_look_ms": 1})
    connection = connect(broker)
    if held:
        channel = connection.channel()
        channel.queue("q")
        connection.send(publish_bytes(1, b"x", routing_key="q") * held)
        channel.send("basic.consume", queue="q", consumer_tag="c")
        for _ in range(held + 1):
            connection.recv(1)
    connection.send(method_frame(0, "connection.close", reply_code=200))
    while connection.recv_any().name != "connection.close-ok":
        pass
    # The look of the loop at what lingers comes after a look at its timers: a listener and this one are there still.
    looked = broker.node.loops[0].entries
    wait_until(lambda: any(entry.lingering for entry in looked()), what="its output is finished")
    connection.sock.settimeout(0.05)
    with pytest.raises(TimeoutError):
        connection.sock.recv(1)
    connection.drop()
    wait_until(lambda: sockets(broker) == 1, what="the listener is left")


def test_a_stopping_broker_lets_the_client_end_its_stream(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start({"close_ms_max": HOUR_MS})
    connection, other = connect(broker), connect(broker)
    connection.send(method_frame(0, "connection.close", reply_code=200))
    assert connection.recv_any().name == "connection.close-ok"
    stopper = threading.Thread(target=broker.node.stop)
    stopper.start()
    other.expect_close(320)
    connection.sock.settimeout(0.05)
    with pytest.raises(TimeoutError):
        connection.sock.recv(1)
    assert stopper.is_alive()
    connection.drop()
    other.drop()
    stopper.join(30)
    assert not stopper.is_alive(), "both have ended their streams"


def test_a_closed_peer_is_read_so_far_and_no_farther(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start({"close_ms_max": HOUR_MS, "close_bytes_max": MIB})
    connection = connect(broker)
    connection.send(method_frame(0, "connection.close", reply_code=200))
    assert connection.recv_any().name == "connection.close-ok"
    with pytest.raises((ConnectionLost, OSError)):
        while True:
            connection.send(bytes(64 * 1024))
    wait_until(lambda: sockets(broker) == 1, what="the listener is left")


def test_a_closed_peer_that_stays_is_cut_off_in_time(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start({"close_ms_max": 100})
    connection = connect(broker)
    connection.send(method_frame(0, "connection.close", reply_code=200))
    assert connection.recv_any().name == "connection.close-ok"
    wait_until(lambda: sockets(broker) == 1, what="the listener is left")


def test_close_ok_of_a_blocked_publisher_is_read(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start({"close_ms_max": HOUR_MS}, memory_limit=bytes_held() + 32 * MIB)
    connect(broker).channel().queue("big")
    publisher = connect(broker, capabilities={**CAPABILITIES, "connection.blocked": True})
    publisher.channel()
    flood = threading.Thread(target=lambda: _flood(publisher), daemon=True)
    flood.start()
    assert publisher.recv_any().name == "connection.blocked"
    handler = next(one for one in broker.node.broker.connections.values() if one.is_blocked)
    handler.loop.call(lambda: (handler.close(320, "CONNECTION_FORCED - enough"), handler.loop.touch(handler.socket)))
    while publisher.recv_any().name != "connection.close":
        pass
    flood.join(60)
    assert not flood.is_alive(), "what it still sends is taken"
    publisher.send(method_frame(0, "connection.close-ok"))
    assert publisher.recv_until_closed() == b"", "the answer was read, and the stream ends"


def _flood(publisher: Any) -> None:
    with contextlib.suppress(OSError):
        for _ in range(800):  # 50 MiB: more than memory and socket buffers take
            publisher.sock.sendall(publish_bytes(1, b"x" * 65_536, routing_key="big"))


# --- a late loop ------------------------------------------------------------------------------------------------------------


class FakeLoop:
    """As much of a loop as `tick` asks for."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.awake_ms = 0
        self.removed: list[Any] = []

    def touch(self, socket: Any) -> None:
        pass

    def remove(self, socket: Any) -> None:
        self.removed.append(socket)

    def unschedule(self, socket: Any) -> None:
        pass


class FakeConnection:
    """A connection that holds nothing."""

    waiting = False
    output_size = 0

    def __init__(self) -> None:
        self.written = b""

    def take_drops(self) -> dict[str, int]:
        return {}

    def take_letters(self) -> dict[str, int]:
        return {}

    def write(self, data: bytes) -> None:
        self.written += data

    def leave(self) -> None:
        pass

    def end_some(self, most: int) -> bool:
        return True

    def take_refused(self, most: int) -> list[Any]:
        return []


@pytest.fixture
def peer() -> tuple[ConnectionHandler, FakeLoop, Any]:
    loop: Any = FakeLoop()
    broker: Any = SimpleNamespace(
        limits=Config().limits,
        clock=SimpleNamespace(wall_ms=lambda: 0),
        listen_name="here",
        counters=SimpleNamespace(add_drops=lambda drops: None, add_letters=lambda letters: None),
        connection_ended=lambda handler, reason: None,
        lines=SimpleNamespace(say=lambda log_line, cause, text, *values: None),
    )
    connection: Any = FakeConnection()
    handler = ConnectionHandler(connection, broker, loop, 1, "127.0.0.1", 5, False)
    socket: Any = SimpleNamespace(asks_held=False, paused=False, received_ms=0, sent_ms=0, tls=None)
    handler.socket = socket
    return handler, loop, socket


def test_silence_is_judged_after_two_intervals(peer: tuple[ConnectionHandler, FakeLoop, Any]) -> None:
    handler, loop, socket = peer
    handler.state, handler.heartbeat_s = handshake.RUNNING, 10
    handler.tick(20_000)
    assert not loop.removed
    handler.tick(20_001)
    assert loop.removed == [socket]


def test_a_late_loop_blames_nobody(peer: tuple[ConnectionHandler, FakeLoop, Any]) -> None:
    """It did not look for 100 s: what was sent in that time is not read yet, so nobody is silent before two intervals from now."""
    handler, loop, socket = peer
    handler.state, handler.heartbeat_s = handshake.RUNNING, 10
    loop.awake_ms = 100_000
    handler.tick(100_000)
    handler.tick(120_000)
    assert not loop.removed
    handler.tick(120_001)
    assert loop.removed == [socket]


def test_a_late_loop_extends_handshakes_and_closes(peer: tuple[ConnectionHandler, FakeLoop, Any]) -> None:
    handler, loop, socket = peer
    loop.awake_ms = 100_000
    handler.tick(109_999)
    handler.state, handler.close_deadline_ms = handshake.CLOSING, 50_000
    handler.tick(104_999)
    assert not loop.removed
    handler.tick(105_000)
    assert loop.removed == [socket]
