"""Dispatch: whoever asks for what there is not, or may not, gets a code; nobody gets a trace; administrators alone see the logs."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flintmq.access.users import hash_password
from flintmq.dataplane.arguments import Arguments
from flintmq.dataplane.wire import Channel, ChannelClosed, Refused
from flintmq.ports import UserRecord

from .rig import Rig


def test_login_gives_the_tags_and_tells_no_more_when_it_is_wrong(rig: Rig) -> None:
    rig.node.users.put(UserRecord("ann", hash_password("right"), ("monitoring",)))
    known = {"user": "guest", "tags": ["administrator"], "loopback_only": True}
    assert known.items() <= rig.call("auth", user="guest", password="guest").items()
    known = {"user": "ann", "tags": ["monitoring"], "loopback_only": False}
    assert known.items() <= rig.twice("auth", user="ann", password="right").items()
    texts = set()
    for user, password in (("ann", "wrong"), ("nobody", "right"), ("ann", "")):
        with pytest.raises(Refused) as caught:
            rig.call("auth", user=user, password=password)
        texts.add(str(caught.value))
    assert texts == {"UNAUTHENTICATED: wrong user or password"}
    assert rig.code("auth", user="guest", password="guest", peer="192.0.2.7") == "UNAUTHENTICATED"
    for user, password in ((7, "x"), ("ann", 7), ("", "x"), ("ann", "x" * 5000)):
        assert rig.code("auth", user=user, password=password) == "BAD_ARGUMENT"


def test_guesses_from_one_address_slow_nobody_elsewhere(tmp_path: Path) -> None:
    """Who guesses over Flight is slowed by its own address: another one logs in, and each refusal has its line in the audit."""
    with Rig(tmp_path, limits={"login_source_failures": 3}) as rig:
        rig.node.users.put(UserRecord("ann", hash_password("right"), ()))
        before = rig.broker.audit.refused_total
        codes = [rig.code("auth", user=f"u{number}", password="wrong", source="192.0.2.7") for number in range(4)]
        assert codes == ["UNAUTHENTICATED"] * 3 + ["BUSY"]
        assert rig.broker.audit.refused_total == before + 3
        assert rig.code("auth", user="ann", password="right", source="192.0.2.7") == "BUSY"
        assert rig.call("auth", user="ann", password="right", source="192.0.2.8")["user"] == "ann"


def test_every_call_needs_the_vhost_and_a_user(rig: Rig) -> None:
    calls = [*rig.service._calls, "block", "rows"]
    rig.user = "stranger"
    assert {rig.code(name) for name in calls} == {"FORBIDDEN"}
    rig.user = "guest"
    rig.vhost = "other"
    assert {rig.code(name) for name in calls} == {"FORBIDDEN"}
    assert rig.code("status", user=None) == "BAD_ARGUMENT"
    assert rig.code("status", vhost=7) == "BAD_ARGUMENT"


def test_calls_that_there_are_not_and_payloads_that_nobody_takes_are_refused(rig: Rig) -> None:
    assert rig.code("sub.close") == "UNKNOWN_CALL"
    assert rig.code("status", b"payload") == "BAD_ARGUMENT"
    assert rig.service.dispatch({"user": "guest"})[0]["error"] == "BAD_ARGUMENT"
    assert rig.service.dispatch({"call": ["status"]})[0]["error"] == "BAD_ARGUMENT"


def test_logs_are_for_administrators(rig: Rig) -> None:
    rig.user_with("eve", read=".*", write=".*")
    rig.user = "eve"
    assert {rig.code(name) for name in ("log.snapshot", "log.extend", "log.release")} == {"FORBIDDEN"}


def test_our_own_mistake_is_told_without_its_trace(rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(rig.service._calls, "status", lambda caller, arguments: 1 / 0)
    with pytest.raises(Refused, match="INTERNAL: the broker failed in 'status'; its log says more"):
        rig.call("status")
    assert "ZeroDivisionError" in caplog.text
    assert rig.call("sub.list") == {"subscriptions": []}


def test_an_answer_that_is_too_large_for_a_frame_is_a_refusal(tmp_path: Path) -> None:
    with Rig(tmp_path / "store", limits={"dataplane_head_max": 400}) as rig:
        rig.declare("q")
        rig.put("q", *map(str, range(20)))
        reader = rig.open("s")
        rig.call("sub.acquire", **reader, seq=1)
        assert rig.code("sub.plan", **reader, seq=1, slices=20) == "LIMIT"
        assert len(rig.call("sub.plan", **reader, seq=1, slices=1)["tickets"]) == 1


def test_what_is_no_frame_ends_that_channel_only(rig: Rig) -> None:
    ours, theirs = socket.socketpair()
    server = threading.Thread(target=rig.service.serve, args=(Channel(theirs),))
    server.start()
    ours.sendall(b"GET / HTTP/1.1\r\n\r\n")
    server.join(60)
    assert not server.is_alive()
    with pytest.raises(ChannelClosed):
        Channel(ours).receive()
    assert rig.call("status")["version"]


# --- arguments --------------------------------------------------------------------------------------------------------------

LATER = {
    "name": "s",
    "queues": ["q"],
    "sub_id": "5" * 32,
    "epoch": 1,
    "seq": 1,
    "upto": 1,
    "scope": "x",
    "batch": 0,
    "stage_id": "5" * 32,
    "id": "x",
}
values = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=3)
    | st.dictionaries(st.text(max_size=2), st.integers(), max_size=2)
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_no_arguments_make_a_trace(rig: Rig, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted([*rig.service._calls, "block", "rows", "auth"])))
    arguments: dict[str, Any] = {**data.draw(st.fixed_dictionaries({}, optional={key: st.just(value) for key, value in LATER.items()}))}
    arguments.update(
        data.draw(
            st.dictionaries(
                st.sampled_from([*LATER, "slices", "kind", "first", "start", "routes", "password", "stage_ids"]), values, max_size=3
            )
        )
    )
    answer, _ = rig.service.dispatch({"user": "guest", "vhost": "/", **arguments, "call": name})
    assert answer.get("error") != "INTERNAL", (name, arguments, answer)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_message": 5}, "x: there is no argument 'max_message'; did you mean max_messages?"),
        ({"max_messages": True}, "x: max_messages must be a whole number from 1 to 9, not True"),
        ({"max_messages": 10}, "x: max_messages must be a whole number from 1 to 9, not 10"),
        ({}, "x: max_messages is missing"),
        ({"max_messages": None}, "x: max_messages is missing"),
        ({"max_messages": "y" * 500}, "x: max_messages must be a whole number from 1 to 9, not '" + "y" * 79 + "..."),
    ],
)
def test_errors_name_the_argument_and_what_was_expected(arguments: dict[str, Any], text: str) -> None:
    given_ = Arguments("x", {"call": "x", "user": "u", **arguments})
    with pytest.raises(Refused) as caught:
        if "max_message" in arguments:
            given_.integer("max_messages", 1, 9, 1)
            given_.done()
        else:
            given_.integer("max_messages", 1, 9)
    assert (caught.value.code, caught.value.text) == ("BAD_ARGUMENT", text)
