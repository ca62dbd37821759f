"""Who may take places of the data plane, and how many: no user takes those of all, and nobody sees what others have there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.dataplane.quotas import Quota
from flintmq.dataplane.wire import Refused
from flintmq.ports import VhostRecord

from .rig import Rig, block

MEMORY = 1 << 30
LIMITS = {
    "scopes_user_max": 2,
    "stage_bytes": 255 << 20,  # of MEMORY: two for each user
    "staged_vhost_share": 1.0,
    "subscriptions_user_max": 2,
    "snapshots_user_max": 2,
    "stream_pins_user_max": 2,
}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A node with queue `q`, and users eve and ann who may do everything in it."""
    with Rig(tmp_path / "store", limits=LIMITS, memory_limit=MEMORY) as made:
        made.declare("q")
        made.put("q", "a")
        for user in ("eve", "ann"):
            made.user_with(user, read=".*", write=".*")
        yield made


def taken(rig: Rig, take: Callable[[int], Any]) -> int:
    """How many the present user can take before it is refused with LIMIT."""
    for number in range(20):
        try:
            take(number)
        except Refused as refused:
            assert refused.code == "LIMIT" and f"user '{rig.user}'" in refused.text, refused
            return number
    raise AssertionError("there is no limit")


def test_what_one_user_takes_others_keep(rig: Rig) -> None:
    """Scopes, stages, subscriptions, browses: at the user's limit that user is refused, and another one is not."""
    kinds: list[Callable[[int], Any]] = [
        lambda n: rig.call("scope.open", scope=f"{rig.user}-{n}"),
        lambda n: rig.call("stage.begin", scope=f"{rig.user}-0", epoch=rig.call("scope.open")["epoch"], batch=n),
        lambda n: rig.call("sub.open", name=f"{rig.user}-{n}", queues=["q"]),
        lambda n: rig.call("browse.open", queues=["q"]),
    ]
    for take in kinds:
        for user in ("eve", "ann"):
            rig.user = user
            assert taken(rig, take) == 2


def test_places_come_back(rig: Rig) -> None:
    """What is released, aborted, forgotten or deleted makes room; also after a restart what is there is counted."""
    rig.user = "eve"
    epoch = rig.call("scope.open", scope="x")["epoch"]
    for _ in range(3):
        for batch in range(2):
            rig.call("stage.begin", scope="x", epoch=epoch, batch=batch)
        assert rig.code("stage.begin", scope="x", epoch=epoch, batch=9) == "LIMIT"
        for batch in range(2):
            rig.call("stage.abort", scope="x", batch=batch)
        rig.call("scope.open", scope="y")
        assert rig.code("scope.open", scope="z") == "LIMIT"
        rig.call("scope.forget", scope="y")
        browses = [rig.call("browse.open", queues=["q"])["id"] for _ in range(2)]
        assert rig.code("browse.open", queues=["q"]) == "LIMIT"
        for identity in browses:
            rig.call("browse.close", id=identity)
        for name in ("s", "t"):
            rig.call("sub.open", name=name, queues=["q"])
        assert rig.code("sub.open", name="u", queues=["q"]) == "LIMIT"
        rig.call("sub.reset", name="t", action="delete")
        rig.call("sub.reset", name="s", action="delete")
    rig.call("sub.open", name="s", queues=["q"])
    rig.stage("x", epoch, 5, "m")
    with rig.kill() as again:
        again.user = "eve"
        again.call("sub.open", name="t", queues=["q"])
        assert again.code("sub.open", name="u", queues=["q"]) == "LIMIT"
        epoch = again.call("scope.open", scope="x")["epoch"]
        again.call("stage.begin", scope="x", epoch=epoch, batch=6)
        assert again.code("stage.begin", scope="x", epoch=epoch, batch=6) == "LIMIT"


def test_pins_of_streams_are_taken_from_their_own_user(rig: Rig) -> None:
    """One user's pins never push out another's."""
    rig.declare("st", x_queue_type="stream")
    pins: dict[str, list[str]] = {}
    for user in ("ann", "eve"):
        rig.user = user
        pins[user] = [rig.call("stream", queue="st", sequence=0)["pin"] for _ in range(2 if user == "ann" else 50)]
    assert set(pins["ann"]) < set(rig.service.streams._pins)
    assert rig.service.streams.counts() == {"stream_pins": 4}


def test_who_may_do_nothing_gets_nothing(rig: Rig) -> None:
    """Every call is refused to a user whose permissions in the vhost are empty."""
    rig.user_with("nobody")
    rig.user = "nobody"
    calls = [*rig.service._calls, "block", "rows"]
    assert {rig.code(name) for name in calls} == {"FORBIDDEN"}
    assert not rig.service.stages._scopes


def test_who_may_not_write_gets_no_stage_and_no_scope(rig: Rig) -> None:
    """Write permission is asked for before a place is taken."""
    epoch = rig.call("scope.open")["epoch"]
    rig.user_with("reader", read=".*")
    rig.user = "reader"
    assert rig.code("scope.open", scope="x") == rig.code("scope.open") == "FORBIDDEN"
    assert rig.code("stage.begin", scope="x", epoch=epoch, batch=0) == "FORBIDDEN"
    assert rig.code("stage.commit", scope="x", epoch=epoch, batch=0, stage_ids=[]) == "FORBIDDEN"
    assert not rig.service.stages._scopes
    assert rig.code("sub.open", name="s", queues=["q"]) == rig.code("browse.open", queues=["q"]) == ""


def test_views_are_their_owners(rig: Rig) -> None:
    """Names of scopes, stages and browses are chosen by clients: another user neither lists, sees, ends nor reads them."""
    rig.user = "eve"
    epoch = rig.call("scope.open", scope="secret")["epoch"]
    stage_id = rig.call("stage.begin", scope="secret", epoch=epoch, batch=0)["stage_id"]
    browse = rig.call("browse.open", queues=["q"])
    rig.user = "ann"
    assert rig.call("scope.list")["scopes"] == []
    for call in ("scope.status", "scope.open", "scope.forget"):
        assert rig.code(call, scope="secret") == "FORBIDDEN"
    assert rig.code("stage.abort", scope="secret", batch=0) == "FORBIDDEN"
    assert rig.code("stage.prepare", stage_id=stage_id) == "FORBIDDEN"
    assert rig.code("block", block("a"), stage_id=stage_id, routes=[["", "q"]]) == "FORBIDDEN"
    assert rig.code("rows", **browse["tickets"][0]) == "NOT_FOUND"
    assert rig.call("browse.close", id=browse["id"])["released"] is False
    rig.user = "guest"  # an administrator
    assert [one["scope"] for one in rig.call("scope.list")["scopes"]] == ["secret"]
    assert rig.call("scope.status", scope="secret")["open"] == 1


def test_a_browse_is_read_in_its_own_vhost(rig: Rig) -> None:
    """Names of queues mean those of the vhost that the browse was opened in: permission for the same name elsewhere opens nothing."""
    rig.broker.definitions.save_vhost(VhostRecord("v"))
    rig.broker.add_vhost("v").restore()
    rig.user_with("eve", read=".*", vhost="v")
    rig.user = "eve"
    (ticket,) = rig.call("browse.open", queues=["q"])["tickets"]
    rig.vhost = "v"
    assert rig.code("rows", **ticket) == "NOT_FOUND"
    rig.vhost = "/"
    assert rig.rows(ticket) == ["a"]


def test_what_is_staged_counts_by_its_messages(tmp_path: Path) -> None:
    """Not by the number of stages: one with many messages takes what a user may have, and gives it back, over a restart too."""
    limits = {"stage_bytes": 1, "staged_message_bytes": 1 << 20, "staged_user_share": 10 / 1024}
    with Rig(tmp_path / "store", limits=limits, memory_limit=MEMORY) as rig:
        rig.declare("q", "r")
        rig.broker.vhosts["/"].run(rig.broker.vhosts["/"].bind_queue("q", "amq.fanout", b"", {}))
        rig.broker.vhosts["/"].run(rig.broker.vhosts["/"].bind_queue("r", "amq.fanout", b"", {}))
        epoch = rig.call("scope.open")["epoch"]
        empty = [rig.stage("x", epoch, 0) for _ in range(50)]
        stage_id = rig.stage("x", epoch, 0, *"12345", queue="q")
        other = rig.stage("x", epoch, 0, prepare=False)
        rig.call("block", block("6", "7"), stage_id=other, routes=[["amq.fanout", ""]])  # two places for each
        with pytest.raises(Refused, match="LIMIT: user 'guest' has 9437236 bytes of memory in stages already"):
            rig.call("block", block("8"), stage_id=other, routes=[["", "q"]])
        assert rig.code("block", block("8"), stage_id=other, routes=[["", "q"]]) == "STAGE_FAILED"
        rig.call("stage.abort", scope="x", batch=0, stage_id=other)
        with rig.kill() as again:
            third = again.call("stage.begin", scope="x", epoch=epoch, batch=0)["stage_id"]
            assert again.code("block", block(*"123456"), stage_id=third, routes=[["", "q"]]) == "LIMIT"
            again.call("stage.commit", scope="x", epoch=epoch, batch=0, stage_ids=[*empty, stage_id])
            assert again.bodies("q") == list("12345")
            again.stage("x", epoch, 1, *"123456789")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.sampled_from("abc"), st.sampled_from("xy"), st.integers(1, 2)), max_size=40))
def test_counts_are_those_of_what_is_there(steps: list[tuple[bool, int, str, str, int]]) -> None:
    """Entering, growing and leaving in any order, twice too: what is full is what a sum over all would say."""
    quota, held = Quota("things", "", node=8, vhost=6, user=4), {}
    for enters, key, user, vhost, amount in steps:
        if enters and key in held:
            quota.grow(key, amount)
            held[key] = (*held[key][:2], held[key][2] + amount)
        elif enters:
            quota.enter(key, user, vhost, amount)
            held[key] = (user, vhost, amount)
        else:
            quota.leave(key)
            held.pop(key, None)
        of_user, of_vhost, everybody = (
            sum(one[2] for one in held.values() if place is None or one[place] == name)
            for place, name in ((0, user), (1, vhost), (None, ""))
        )
        for more in (1, 2):
            wanted = "user" if of_user + more > 4 else "vhost" if of_vhost + more > 6 else "node" if everybody + more > 8 else ""
            assert quota.full(user, vhost, more) == wanted
