"""Logins by tokens and directories on the data plane: a handle is one login's, ends with it, and no name takes the places of others."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.access.outside_user import OutsideUser
from flintmq.clock import ManualClock
from flintmq.config import Limits
from flintmq.dataplane.logins import Logins
from flintmq.ports import UserRecord
from tests.broker.test_tokens import Clock
from tests.support.issuer import ALL, AUDIENCE, Issuer

from .rig import Rig

ISSUER = Issuer()


class Visitor(OutsideUser):
    over: bool

    def __new__(cls, name: str) -> Visitor:
        made = super().__new__(cls, name)
        made.tags, made.born, made.over = (), cls.birth(), False
        return made

    def record(self) -> UserRecord | None:
        return None if self.over else super().record()


def test_a_handle_is_one_logins() -> None:
    logins = Logins(Limits(), ManualClock())
    ann, other = Visitor("ann"), Visitor("ann")
    handle = logins.enter(ann)
    assert logins.enter(ann) == handle != logins.enter(other)
    assert logins.find(handle) is ann
    for wrong in ("", handle[:-1], handle + "0", None, 7, ["x"], "ann"):
        assert logins.find(wrong) is None


def test_a_handle_ends_with_its_user_and_when_nobody_uses_it() -> None:
    clock = ManualClock()
    logins = Logins(Limits(flight_token_s=10), clock)
    over, used, idle = (Visitor("ann") for _ in range(3))
    handles = [logins.enter(one) for one in (over, used, idle)]
    over.over = True
    assert logins.find(handles[0]) is None
    for _ in range(3):
        clock.advance(ms=6_000)
        logins.tick()
        assert logins.find(handles[1]) is used
    assert len(logins) == 1, "what nobody used was ended by the tick"
    assert logins.find(handles[2]) is None
    clock.advance(ms=10_000)
    assert logins.find(handles[1]) is None
    assert len(logins) == len(logins._names) == len(logins._handles) == 0


def test_a_name_ends_its_own_logins_and_nobody_elses() -> None:
    logins = Logins(Limits(flight_outside_max=5, flight_outside_user_max=3), ManualClock())
    bob = logins.enter(Visitor("bob"))
    flood = [logins.enter(Visitor("eve")) for _ in range(10)]
    assert [logins.find(one) is not None for one in flood] == [False] * 7 + [True] * 3
    assert logins.find(bob) == "bob"
    others = [logins.enter(Visitor(name)) for name in ("cat", "dan")]
    assert all(logins.find(one) is not None for one in (bob, *others)), "who has the most makes room"
    assert sum(logins.find(one) is not None for one in flood) == 2


@pytest.fixture
def visited(tmp_path: Path) -> Iterator[Rig]:
    keys = ISSUER.write(tmp_path / "jwks.json")
    with Rig(tmp_path / "store", clock=Clock(), oauth_resource_server_id=AUDIENCE, oauth_jwks=keys) as rig:
        rig.node.broker.vhosts["/"].run(rig.node.broker.vhosts["/"].declare_queue("q", durable=True))
        yield rig


def log_in(rig: Rig, token: str, user: str = "") -> dict[str, Any]:
    answer: dict[str, Any] = rig.call("auth", user=user, password=token)
    return {name: answer[name] for name in ("user", "outside")}


def test_a_token_logs_in_and_says_what_its_user_may(visited: Rig) -> None:
    """The name beside it counts nothing; its scopes are asked at each call; the handle with another name, and the name without the handle,
    are nobody."""
    answer = visited.call("auth", user="whatever", password=ISSUER.token(*ALL, "tag:monitoring"))
    assert (answer["user"], answer["tags"], answer["loopback_only"]) == ("ann", ["monitoring"], False)
    him = {name: answer[name] for name in ("user", "outside")}
    assert visited.call("queue.match", pattern="*", **him)["queues"] == ["q"]
    assert visited.code("queue.match", pattern="*", user="ann") == "FORBIDDEN"
    assert visited.code("status", user="guest", outside=him["outside"]) == "UNAUTHENTICATED"
    assert visited.code("status", user="ann", outside="0" * 32) == "UNAUTHENTICATED"
    assert visited.code("status", user="ann", outside=7) == "UNAUTHENTICATED"
    weak = log_in(visited, ISSUER.token("write:*/*"))
    assert visited.call("queue.match", pattern="*", **weak)["queues"] == []
    assert visited.code("sub.open", name="s", queues=["q"], **weak) == "FORBIDDEN"
    assert visited.code("log.snapshot", **him) == "FORBIDDEN", "that needs a tag"


def test_a_token_that_ends_during_a_call_is_a_login_that_is_over(visited: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a user who may nothing: the client fetches a new token and goes on."""
    him = log_in(visited, ISSUER.token(*ALL, seconds=60))
    plane = visited.service.plane
    check_grants = plane.check_grants

    def late(*arguments: Any) -> None:
        visited.clock.advance(ms=61_000)
        check_grants(*arguments)

    monkeypatch.setattr(plane, "check_grants", late)
    assert visited.code("status", **him) == "UNAUTHENTICATED"


def test_a_login_ends_with_its_token(visited: Rig) -> None:
    him = log_in(visited, ISSUER.token(*ALL, seconds=60))
    opened = visited.call("sub.open", name="s", queues=["q"], **him)
    visited.clock.advance(ms=61_000)
    given = {"sub_id": opened["sub_id"], "epoch": opened["epoch"], "seq": 1}
    assert visited.code("sub.acquire", **given, **him) == "UNAUTHENTICATED"
    again = log_in(visited, ISSUER.token(*ALL, seconds=600))
    assert visited.call("sub.acquire", **given, **again)["count"] == 0, "what the name had is its with the next token"


def test_the_token_of_a_handshake_stands_for_the_login(visited: Rig) -> None:
    """Until its time is over, or the login."""
    token = visited.call("auth", user="", password=ISSUER.token(*ALL, seconds=60))["token"]
    known = visited.call("token", token=token)
    assert known["user"] == "ann" and visited.call("queue.match", pattern="*", user="ann", outside=known["outside"])["queues"] == ["q"]
    visited.clock.advance(ms=61_000)
    assert visited.code("token", token=token) == "UNAUTHENTICATED"


def test_tokens_that_let_nobody_in(visited: Rig, caplog: Any) -> None:
    """Each is refused alike, and the audit says why; no token is in the log."""
    tokens = {
        "the token is for another audience": ISSUER.token(*ALL, aud="other"),
        "the token is expired": ISSUER.token(*ALL, seconds=-1),
        "the signature of the token is wrong": ISSUER.token(*ALL)[:-8] + "AAAAAAAA",
        "a user of the broker is called 'guest', too": ISSUER.token(*ALL, sub="guest"),
    }
    for reason, token in tokens.items():
        caplog.clear()
        with caplog.at_level(logging.WARNING, "flintmq.audit"):
            assert visited.code("auth", user="guest", password=token) == "UNAUTHENTICATED"
        assert f"login over Flight: {reason}" in caplog.text and token not in caplog.text
    assert visited.code("auth", user="", password="not.a.token") == "BAD_ARGUMENT"
    assert len(visited.service.logins) == 0


def test_what_a_token_leaves_behind_has_no_rights(visited: Rig) -> None:
    """Names that outlive a call are plain text: no list, note or owner keeps the token's scopes."""
    him = log_in(visited, ISSUER.token(*ALL))
    visited.call("sub.open", name="s", queues=["q"], **him)
    scope = visited.call("scope.open", scope="c", **him)
    visited.call("stage.begin", scope="c", epoch=scope["epoch"], batch=0, **him)
    service = visited.service
    owners = [one.user for one in service.subscriptions._by_id.values()]
    owners += [one.user for one in service.stages._stages.values()] + [one.user for one in service.stages._scopes.all()]
    assert len(owners) == 3 and {type(one) for one in owners} == {str}
    assert json.loads(json.dumps(visited.call("sub.list", **him)))["subscriptions"][0]["name"] == "s"
