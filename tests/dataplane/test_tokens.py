"""Tokens of the Flight service: the broker alone makes them and says whose they are."""

from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st

from flintmq.access.users import hash_password
from flintmq.clock import ManualClock
from flintmq.config import Limits
from flintmq.dataplane.tokens import Tokens
from flintmq.ports import UserRecord

from .rig import Rig


@given(st.text(max_size=40).filter(lambda user: user.isprintable()), st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_token_is_no_token(user: str, at: int, change: int) -> None:
    """A token says what it was made for; with any byte changed, or by another broker, it says nothing."""
    clock = ManualClock()
    tokens = Tokens(Limits(), clock, {user: "h"}.get)
    token = tokens.create(user)
    assert tokens.whose(token) == user
    raw = bytearray(base64.urlsafe_b64decode(token))
    raw[at % len(raw)] ^= change
    assert tokens.whose(base64.urlsafe_b64encode(raw).decode()) is None
    assert Tokens(Limits(), clock, {user: "h"}.get).whose(token) is None


def test_a_token_ends(rig: Rig) -> None:
    """With its time, with its user, with the broker; a login gives another."""
    rig.node.users.put(UserRecord("ann", hash_password("right"), ()))
    token = rig.call("auth", user="ann", password="right")["token"]
    assert rig.call("token", token=token) == {"user": "ann", "loopback_only": False}
    assert rig.call("token", token=rig.call("auth", user="guest", password="guest")["token"])["loopback_only"]
    for wrong in ("", "x", token + "A", token[:-4], "\ud800", 7, ["x"], "A" * 100_000):
        assert rig.code("token", token=wrong) == "UNAUTHENTICATED"
    rig.node.users.delete("ann")
    assert rig.code("token", token=token) == "UNAUTHENTICATED"
    rig.node.users.put(UserRecord("ann", hash_password("right"), ()))
    assert rig.code("token", token=token) == "UNAUTHENTICATED"
    token = rig.call("auth", user="ann", password="right")["token"]
    assert rig.code("token", token=token) == ""
    rig.clock.advance(ms=601_000)
    assert rig.code("token", token=token) == "UNAUTHENTICATED"
