"""A raw connection that logs in as another node."""

from __future__ import annotations

from flintmq.cluster.node_door import MECHANISM, Caller
from tests.support.rawamqp import RawConnection, frame, method_frame
from tests.support.two_nodes import OTHER, OWNER, SECRET


def challenge(raw: RawConnection, caller: Caller) -> bytes:
    """The first half of the login: what the broker asks."""
    raw.start()
    raw.start_ok(mechanism=MECHANISM, response=caller.first)
    asked = raw.expect(0, "connection.secure").challenge
    assert isinstance(asked, bytes)
    return asked


def prove(raw: RawConnection, answer: bytes) -> None:
    raw.send(method_frame(0, "connection.secure-ok", response=answer))


def log_in(raw: RawConnection, secret: bytes = SECRET) -> RawConnection:
    """The whole login and the handshake behind it."""
    caller = Caller(OTHER, OWNER, secret)
    prove(raw, caller.answer(challenge(raw, caller)))
    tune = raw.expect(0, "connection.tune")
    raw.tune = tune
    raw.send(method_frame(0, "connection.tune-ok", channel_max=tune.channel_max, frame_max=tune.frame_max, heartbeat=0))
    raw.send(method_frame(0, "connection.open", virtual_host="/"))
    raw.expect(0, "connection.open-ok")
    return raw


def open_aimed(raw: RawConnection, number: int, aim: bytes) -> None:
    """channel.open with its reserved argument; the answer is the caller's to expect."""
    reserved = b"q:" + aim
    raw.send(frame(1, number, b"\x00\x14\x00\x0a" + bytes([len(reserved)]) + reserved))
