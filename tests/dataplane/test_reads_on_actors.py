"""Reads of rows run on the actors of the node, each slice with its share; everything that decides does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.scheduler.outcomes import Space
from flintmq.scheduler.system import ActorSystem
from tests.dataplane.rig import Rig
from tests.support.broker import wait_until


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path / "store") as made:
        made.service.actors = made.node.actors
        made.node.actors.start()
        yield made


def planned(rig: Rig, name: str, slices: int, messages: int = 12) -> list[dict[str, Any]]:
    rig.declare(name)
    rig.put(name, *[f"{name}{number}" for number in range(messages)])
    sub = rig.call("sub.open", name=f"sub-{name}", queues=[name], mode="create")
    rig.call("sub.acquire", sub_id=sub["sub_id"], epoch=sub["epoch"], seq=1, max_messages=100, max_bytes=1 << 20)
    tickets: list[dict[str, Any]] = rig.call("sub.plan", sub_id=sub["sub_id"], epoch=sub["epoch"], seq=1, slices=slices)["tickets"]
    return tickets


def actors(rig: Rig) -> dict[tuple[int, int], dict[str, Any]]:
    return {(one["a"], one["b"]): one for one in rig.node.actors.groups() if one["space"] == Space.FLIGHT}


def test_each_slice_is_an_actor_and_a_subscription_has_one_weight(rig: Rig) -> None:
    """Four slices of one subscription weigh what the one slice of another does, and only `rows` is counted."""
    many, one = planned(rig, "many", 4), planned(rig, "one", 1)
    assert actors(rig) == {}, "what decides runs on the channel's own thread"
    rows = 0
    for ticket in [*many, *one]:
        answer, _ = rig.ask("rows", **ticket, first=0, count=100)
        rows += sum(entry[1] for entry in answer["queues"])
    assert rows == 24
    found = actors(rig)
    by_subject: dict[int, list[int]] = {}
    for (subject, _), group in found.items():
        by_subject.setdefault(subject, []).append(group["weight"])
    assert sorted(by_subject.values()) == [[25, 25, 25, 25], [100]]
    # An actor counts a call when its answer is on its way already.
    wait_until(lambda: {group["served"] for group in actors(rig).values()} == {1}, what="each served one call")


def test_a_refusal_on_an_actor_is_the_same_refusal(rig: Rig) -> None:
    """Codes and texts do not change, an actor that refused goes on, and heads that are no tickets harm nobody."""
    (ticket,) = planned(rig, "q", 1)
    rig.service.actors = None
    before = [rig.code("rows", **{**ticket, "seq": 7}), rig.code("rows", **{**ticket, "epoch": 99})]
    rig.service.actors = rig.node.actors
    assert [rig.code("rows", **{**ticket, "seq": 7}), rig.code("rows", **{**ticket, "epoch": 99})] == before
    for wrong in ({"sub_id": 5}, {"slice": "x"}, {"slices": -1}, {"slice": 2**70}, {"slices": True, "slice": None}, {"id": []}):
        assert rig.code("rows", **{**ticket, **wrong}) in ("BAD_ARGUMENT", "")
    assert rig.ask("rows", **ticket, first=0, count=100)[0]["more"] is False


def test_reads_of_a_channel_keep_their_order_and_a_stopped_system_says_so(rig: Rig) -> None:
    """The next request of a channel is looked at when the answer of the one before is there; after the end it is UNAVAILABLE."""
    (ticket,) = planned(rig, "q", 1)
    seen: list[str] = []
    inner = rig.service.rows

    def slow(caller: Any, arguments: Any) -> Any:
        seen.append(threading.current_thread().name)
        return inner(caller, arguments)

    rig.service.rows = slow  # type: ignore[method-assign]
    for first in range(5):
        answer, data = rig.ask("rows", **ticket, first=first, count=1)
        assert answer["queues"][0][1] == 1 and int.from_bytes(data[:8], "little") == first + 1
    assert len(seen) == 5 and all(name.startswith("flintmq-actor-") for name in seen)
    rig.node.actors.stop()
    assert rig.code("rows", **ticket, first=0, count=1) == "UNAVAILABLE"


def test_too_many_reads_are_busy(rig: Rig) -> None:
    """No room for another actor: BUSY, which clients retry."""
    (ticket,) = planned(rig, "q", 1)
    full = ActorSystem(Limits(actors_max=1), workers=1)
    full.start()
    try:
        assert full.dispatch(Space.TEST, 1, 1, lambda: None)
        rig.service.actors = full
        assert rig.code("rows", **ticket, first=0, count=1) == "BUSY"
    finally:
        full.stop()
