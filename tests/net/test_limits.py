"""Who may connect, how long a handshake may take, who looks dead: every limit ends with a clear answer and frees what it held."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.broker import wait_until
from tests.support.rawamqp import CAPABILITIES, HEADER, HEARTBEAT, ConnectionLost, RawConnection, frame, longstr, method_frame, shortstr

# A machine that is too busy for the first steps within the first limit gets a longer one.
HANDSHAKE_MS = (150, 1_500, 6_000)


def take_step(connection: RawConnection, step: str) -> None:
    """As far into the handshake as `step` says; `open` is all of it."""
    if step == "open":
        connection.open()
    elif step == "header":
        connection.start()
    elif step == "start-ok":
        connection.start()
        connection.start_ok()
        connection.expect(0, "connection.tune")
    elif step == "bytes":
        connection.send(HEADER[:5])


def at_step(start: Callable[..., Any], connect: Callable[..., Any], step: str) -> tuple[Any, RawConnection, int]:
    """A broker with a short handshake limit, a connection that got as far as `step` within it, and the limit in ms."""
    for limit_ms in HANDSHAKE_MS:
        broker = start({"handshake_ms_max": limit_ms})
        connection = connect(broker, handshake=False)
        with contextlib.suppress(ConnectionLost, OSError):
            take_step(connection, step)
            return broker, connection, limit_ms
    raise AssertionError(f"no connection came as far as {step} within {HANDSHAKE_MS[-1]} ms")


@pytest.mark.parametrize("step", ["nothing", "header", "start-ok", "bytes"])
def test_whole_handshake_has_one_deadline(start: Callable[..., Any], connect: Callable[..., Any], step: str) -> None:
    broker, connection, limit_ms = at_step(start, connect, step)
    connection.recv_until_closed(limit_ms / 1000 + 10)
    wait_until(lambda: not broker.node.broker.pending, what="the connection is forgotten")


def test_open_connection_outlives_the_handshake_deadline(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    _, connection, limit_ms = at_step(start, connect, "open")
    channel = connection.channel()
    channel.nothing(2 * limit_ms / 1000)
    channel.queue("q")


def test_silent_peer_is_cut_after_two_heartbeat_intervals(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start()
    began = time.monotonic()  # before the last byte it sends: a slow start of this thread makes the wait longer, never shorter
    connection = connect(broker, heartbeat=1)
    with pytest.raises(ConnectionLost):
        while True:
            connection.recv_any(30)
    assert time.monotonic() - began > 1.5, "two intervals, not less"
    assert connection.heartbeats >= 1, "it was beaten to until then"
    wait_until(lambda: not broker.node.broker.connections, what="the connection is forgotten")


def test_peer_that_beats_lives_and_is_beaten_to(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    connection = connect(start(), heartbeat=1)
    until, give_up = time.monotonic() + 3.2, time.monotonic() + 30
    while time.monotonic() < until or connection.heartbeats < 4:
        assert time.monotonic() < give_up, f"{connection.heartbeats} heartbeats in 30 s"
        connection.send(frame(HEARTBEAT, 0, b""))
        with pytest.raises(TimeoutError):
            connection.recv_any(0.4)
    connection.channel()


def test_heartbeat_zero_is_none(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    connection = connect(start(), heartbeat=0)
    with pytest.raises(TimeoutError):
        connection.recv_any(1.2)
    assert connection.heartbeats == 0


def test_connections_max(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start({"connections_max": 3})
    kept = [connect(broker) for _ in range(3)]
    extra = connect(broker, handshake=False)
    assert extra.recv_until_closed() == b""
    assert broker.node.refused == 1
    kept[0].close()
    wait_until(lambda: len(broker.node.broker.connections) == 2)
    connect(broker).channel()


def test_unauthenticated_connections_max(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start({"unauthenticated_connections_max": 4})
    served = connect(broker).channel()
    silent = [connect(broker, handshake=False) for _ in range(4)]
    wait_until(lambda: len(broker.node.broker.pending) == 4)
    fifth = connect(broker, handshake=False)
    assert silent[0].recv_until_closed() == b"", "the oldest makes room"
    served.queue("q")  # those inside are not concerned
    fifth.open().channel()


def test_channel_max(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start({"channels_max": 7})
    connection = connect(broker, channel_max=3)
    for number in (1, 2, 3):
        connection.channel(number)
    connection.send(method_frame(4, "channel.open"))
    connection.expect_close(530, "NOT_ALLOWED")
    more = connect(broker, handshake=False)
    more.start()
    more.start_ok()
    assert more.expect(0, "connection.tune").channel_max == 7
    more.send(method_frame(0, "connection.tune-ok", channel_max=8, frame_max=131072, heartbeat=0))
    more.expect_close(530, "channel_max")


def test_consumers_of_a_channel_are_limited(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    connection = connect(start({"channel_consumers_max": 5}))
    channel = connection.channel()
    channel.queue("q")
    for number in range(5):
        channel.consume("q", f"c{number}")
    channel.call("basic.cancel", consumer_tag="c0")
    channel.consume("q", "again")
    channel.send("basic.consume", queue="q", consumer_tag="too many")
    connection.expect_close(530, "consumer limit of 5")


@pytest.mark.parametrize("told", [True, False])
def test_wrong_password(start: Callable[..., Any], connect: Callable[..., Any], told: bool) -> None:
    connection = connect(start(), handshake=False)
    connection.start()
    connection.start_ok(password="wrong", capabilities={**CAPABILITIES, "authentication_failure_close": told})
    if told:
        connection.expect_close(403, "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN")
    else:
        assert connection.recv_until_closed() == b""


def test_unknown_mechanism(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    connection = connect(start(), handshake=False)
    connection.start()
    connection.start_ok(mechanism="SCRAM")
    method = connection.recv_any()
    assert method.name == "connection.close"


def test_amqplain(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start()
    for password, good in (("guest", True), ("no", False)):
        connection = connect(broker, handshake=False)
        assert "AMQPLAIN" in connection.start().mechanisms.decode().split()
        response = shortstr("LOGIN") + b"S" + longstr("guest") + shortstr("PASSWORD") + b"S" + longstr(password)
        connection.start_ok(mechanism="AMQPLAIN", response=response)
        if good:
            connection.expect(0, "connection.tune")
        else:
            connection.expect_close(403, "AMQPLAIN")


def test_update_secret(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """A password does not expire: any new secret is answered, and none of them tells whether it is the password."""
    connection: RawConnection = connect(start())
    for secret in (b"guest", b"another", b""):
        connection.send(method_frame(0, "connection.update-secret", new_secret=secret, reason="renewed"))
        connection.expect(0, "connection.update-secret-ok")
    connection.channel(1).queue("q")


def test_unknown_vhost(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    connection = connect(start(), handshake=False)
    connection.start()
    connection.start_ok()
    connection.expect(0, "connection.tune")
    connection.send(method_frame(0, "connection.tune-ok", channel_max=10, frame_max=131072, heartbeat=0))
    connection.send(method_frame(0, "connection.open", virtual_host="nope"))
    connection.expect_close(530, "NOT_ALLOWED - vhost nope not found")


def test_peer_that_never_answers_a_close_is_dropped(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start({"close_ms_max": 100})
    connection = connect(broker)
    channel = connection.channel()
    channel.queue("mine", exclusive=True)
    connection.send(method_frame(1, "channel.open"))  # a second open is a hard error
    assert connection.expect(0, "connection.close").reply_code == 504
    connection.recv_until_closed()
    wait_until(lambda: not broker.node.broker.connections, what="the connection is forgotten")
    assert "mine" not in broker.node.broker.vhosts["/"].queues
