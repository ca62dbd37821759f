"""Subscriptions on shared queues that one node serves each: the calls of the data plane.

Properties: each message of a queue is in one committed set, or ready, or held, also when the node ends in between; a reader that was
replaced changes nothing; messages that go back have their place and are flagged; an engine that hangs, a row that is none, or a tenant
without the permission costs nobody else anything.
"""

from __future__ import annotations

import asyncio
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.dataplane.wire import Refused
from flintmq.engines.engine import Commit
from flintmq.engines.memory import MemoryEngine
from flintmq.shared.batch_rows import part_row_key, sign_key, subscription_key
from tests.cluster.own_engine import FAST, OwnEngine
from tests.support.broker import wait_until
from tests.twins.faulty_engine import Fate, RandomPlan

from .rig import Rig

FAST = {**FAST, "shared_set_look_ms": 0, "shared_sets_look_ms": 20}
WAIT_S = 60


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnEngine]:
    made = OwnEngine(monkeypatch)
    yield made
    made.go_on()


@pytest.fixture
def begin(tmp_path: Path, engine: OwnEngine) -> Iterator[Callable[..., Rig]]:
    """Makes a node with the shared queues of these names, served."""
    rigs: list[Rig] = []

    def made(*queues: str, limits: dict[str, Any] | None = None, **arguments: Any) -> Rig:
        rig = Rig(tmp_path / "node", limits={**FAST, **(limits or {})})
        rigs.append(rig)
        for name in queues or ("q",):
            rig.declare(name, x_queue_type="shared", **arguments)
            wait_until(partial(is_served, rig, name), WAIT_S)
        return rig

    yield made
    engine.go_on()
    engine.plan.script.clear()
    for thread in [rig.stop() for rig in rigs if not rig.channel.closed]:
        thread.join()


@pytest.fixture
def node(begin: Callable[..., Rig]) -> Rig:
    return begin()


def shared_of(rig: Rig) -> Any:
    return rig.broker.shared


def is_served(rig: Rig, name: str = "q") -> bool:
    queue = rig.broker.vhosts["/"].queues[name]
    return shared_of(rig)._entries[queue.queue_id].served is not None


def mirror_of(rig: Rig, name: str = "q") -> Any:
    return shared_of(rig)._entries[rig.broker.vhosts["/"].queues[name].queue_id].served.mirror


def fill(rig: Rig, *bodies: str, name: str = "q") -> None:
    """The engine has them when this returns."""
    positions = rig.put(name, *bodies)
    assert all(positions)
    mirror = mirror_of(rig, name)
    wait_until(lambda: all(map(mirror.is_settled, positions)), WAIT_S)


def ready(rig: Rig, name: str = "q") -> list[tuple[str, bool]]:
    """(body, whether it is flagged) of what is ready, in order; it stays."""
    core, position, messages = rig.core(name), 0, []
    while position := core.next_available(position + 1):
        messages.append((core.message_at(position)[3].decode(), core.is_redelivered(position)))
    return messages


def acquire(rig: Rig, reader: dict[str, Any], seq: int, **arguments: Any) -> int:
    return int(rig.call("sub.acquire", **reader, seq=seq, **arguments)["count"])


def names(*numbers: int) -> list[str]:
    return [f"m{number:03}" for number in numbers]


def identity_of(reader: dict[str, Any]) -> bytes:
    return uuid.UUID(reader["sub_id"]).hex.encode()


def part_rows(engine: OwnEngine, reader: dict[str, Any]) -> list[bytes]:
    return [key for key in engine.store.rows if key.endswith(part_row_key(b"", identity_of(reader))[2:])]


def put_row(engine: OwnEngine, key: bytes, value: bytes) -> None:
    asyncio.run(MemoryEngine(engine.store, Limits()).commit(Commit((), {key: value})))


def test_a_set_is_read_as_often_as_one_likes_and_committed_once(node: Rig, engine: OwnEngine) -> None:
    fill(node, *names(*range(10)))
    reader = node.open()
    assert acquire(node, reader, 1, max_messages=7) == acquire(node, reader, 1, max_messages=3) == 7
    assert node.read(reader, 1, slices=3) == node.read(reader, 1, slices=3) == node.read(reader, 1) == names(*range(7))
    assert [body for body, _ in ready(node)] == names(7, 8, 9)
    assert node.twice("sub.commit", **reader, upto=1) == {"committed": 1}
    assert node.code("sub.plan", **reader, seq=1) == "CHECKPOINT_BEHIND"
    assert acquire(node, reader, 2) == 3
    assert node.read(reader, 2) == names(7, 8, 9)
    node.call("sub.commit", **reader, upto=2)
    assert acquire(node, reader, 3) == 0
    assert part_rows(engine, reader) == []
    assert (node.core("q").ready_count(), node.core("q").unacked_count()) == (0, 0)


def test_positions_rise_from_set_to_set_and_properties_are_there(node: Rig) -> None:
    fill(node, *names(*range(6)))
    reader, seen = node.open(), []
    for seq in (1, 2):
        acquire(node, reader, seq, max_messages=3)
        (ticket,) = node.call("sub.plan", **reader, seq=seq)["tickets"]
        seen += node.contents(*node.ask("rows", **ticket, first=0, count=100))
        node.call("sub.commit", **reader, upto=seq)
    positions = [position for _, position, _, _ in seen]
    assert positions == sorted(set(positions)) and len(positions) == 6
    assert [(name, body.decode()) for name, _, _, body in seen] == [("q", one) for one in names(*range(6))]


def test_a_set_outlives_its_node_and_the_next_life_reads_and_commits_it(begin: Any, engine: OwnEngine) -> None:
    rig = begin()
    fill(rig, *names(*range(9)))
    reader = rig.open()
    assert acquire(rig, reader, 1, max_messages=6) == 6
    tickets = rig.call("sub.plan", **reader, seq=1, slices=2)["tickets"]
    rig.stop().join()
    rig = begin()
    assert [body for body, _ in ready(rig)] == names(6, 7, 8), "nobody else gets what the set has"
    assert [body for ticket in tickets for body in rig.rows(ticket)] == names(*range(6))
    assert rig.call("sub.plan", **reader, seq=1, slices=2)["tickets"] == tickets
    assert rig.call("sub.commit", **reader, upto=1) == {"committed": 1}
    assert acquire(rig, reader, 2) == 3
    rig.stop().join()
    rig = begin()
    assert rig.read(reader, 2) == names(6, 7, 8)
    rig.call("sub.commit", **reader, upto=2)
    assert ready(rig) == []


def test_a_set_that_was_decided_when_nobody_served_its_queue_ends_with_the_next_life(begin: Any, engine: OwnEngine) -> None:
    rig = begin()
    fill(rig, *names(*range(4)))
    reader = rig.open()
    acquire(rig, reader, 1, max_messages=2)
    shared_of(rig).sets._sets.clear()  # whoever serves the queue can't be asked
    assert rig.call("sub.commit", **reader, upto=1) == {"committed": 1}
    assert len(part_rows(engine, reader)) == 1
    rig.stop().join()
    rig = begin()
    wait_until(lambda: not part_rows(engine, reader), WAIT_S)
    assert [body for body, _ in ready(rig)] == names(2, 3)


def test_an_older_epoch_changes_nothing(node: Rig) -> None:
    fill(node, *names(*range(4)))
    old = node.open()
    acquire(node, old, 1)
    node.call("sub.plan", **old, seq=1)
    new = node.open()
    for call, more in (("acquire", {"seq": 1}), ("plan", {"seq": 1}), ("commit", {"upto": 1}), ("alive", {}), ("tail", {})):
        assert node.code(f"sub.{call}", **old, **more) == "FENCED"
        ahead = {"sub_id": new["sub_id"], "epoch": new["epoch"] + 1}
        assert node.code(f"sub.{call}", **ahead, **more) == "BAD_ARGUMENT"
    ticket = {"kind": "set", "slice": 0, "slices": 1, "rows": 4, "seq": 1}
    assert node.code("rows", **old, **ticket) == "FENCED"
    assert acquire(node, new, 1) == 4, "it was planned, and nobody has read it"
    assert node.rows({**new, **ticket}) == names(*range(4))
    newest = node.open()
    assert node.code("sub.acquire", **newest, seq=1) == "CHECKPOINT_LOST"
    assert node.code("sub.commit", **newest, upto=2) == "CHECKPOINT_AHEAD"
    node.call("sub.commit", **newest, upto=1)
    assert ready(node) == []


def test_messages_that_go_back_have_their_place_and_are_flagged(node: Rig) -> None:
    fill(node, *names(*range(8)))
    reader = node.open()
    acquire(node, reader, 1, max_messages=5)
    node.rows(node.call("sub.plan", **reader, seq=1)["tickets"][0])
    fill(node, "later")
    assert node.code("sub.reset", name="s", action="redeliver", may_duplicate=False) == "MAY_DUPLICATE"
    assert node.call("sub.reset", name="s", action="redeliver")["prepared"] is None
    assert ready(node) == [(body, number < 5) for number, body in enumerate([*names(*range(8)), "later"])]
    assert node.code("sub.commit", **reader, upto=1) == "FENCED"
    reader = node.open()
    assert acquire(node, reader, 1) == 9
    assert node.read(reader, 1)[0] == "m000"


def test_a_reader_that_asks_for_it_gets_a_lost_set_again(node: Rig) -> None:
    fill(node, *names(*range(3)))
    reader = node.open()
    acquire(node, reader, 1, max_messages=2)
    node.read(reader, 1)
    reader = node.open()
    assert node.code("sub.acquire", **reader, seq=1) == "CHECKPOINT_LOST"
    assert acquire(node, reader, 1, onlost="redeliver") == 3
    assert node.read(reader, 1) == names(0, 1, 2)


def test_a_deleted_subscription_gives_its_set_back_and_leaves_no_row(node: Rig, engine: OwnEngine) -> None:
    fill(node, *names(*range(20)))
    reader = node.open()
    acquire(node, reader, 1)
    answer = node.call("sub.reset", name="s", action="delete")
    assert (answer["deleted"], answer["prepared_messages"]) == (True, 20)
    wait_until(lambda: [body for body, _ in ready(node)] == names(*range(20)), WAIT_S)
    assert not [key for key in engine.store.rows if identity_of(reader) in key]
    assert node.code("sub.acquire", **reader, seq=1) == "NOT_FOUND"
    assert node.open()["sub_id"] != reader["sub_id"]
    assert node.call("sub.reset", name="s", action="delete")["deleted"]
    assert node.call("sub.list") == {"subscriptions": []}


@pytest.mark.parametrize("seed", range(4))
def test_each_message_is_in_one_committed_set_whatever_the_engine_does(begin: Any, engine: OwnEngine, seed: int) -> None:
    """Faults at a fifth of all calls to the engine; the node ends between calls; sets go back."""
    chance = random.Random(seed)
    rig = begin("q", "p")
    bodies = names(*range(40))
    fill(rig, *bodies[:30])
    fill(rig, *bodies[30:], name="p")

    def surely(call: str, **arguments: Any) -> Any:
        for _ in range(200):
            try:
                return rig.call(call, **arguments)
            except Refused as refused:
                assert refused.code in ("UNAVAILABLE", "BUSY"), refused
        raise AssertionError(call)

    opened = surely("sub.open", name="s", queues=["q", "p"])
    reader = {"sub_id": opened["sub_id"], "epoch": opened["epoch"]}
    engine.plan.__class__ = RandomPlan
    engine.plan.__dict__.update(RandomPlan(seed, 0.2, 2).__dict__)
    read: list[str] = []
    seq = 1
    while len(read) < 40:
        if chance.random() < 0.2:
            rig.stop().join()
            rig = begin("q", "p")
        if not surely("sub.acquire", **reader, seq=seq, max_messages=chance.randint(1, 12))["count"]:
            continue
        tickets = surely("sub.plan", **reader, seq=seq, slices=chance.randint(1, 3))["tickets"]
        batch: list[str] = []
        for ticket in tickets:
            while True:
                try:
                    batch += rig.rows(ticket)
                    break
                except Refused as refused:
                    assert refused.code in ("UNAVAILABLE", "BUSY"), refused
        if chance.random() < 0.3:
            surely("sub.reset", name="s", action="redeliver", seq=seq)
            reader["epoch"] = surely("sub.open", name="s", queues=["q", "p"])["epoch"]
            continue
        assert surely("sub.commit", **reader, upto=seq) == {"committed": seq}
        if chance.random() < 0.5:
            assert surely("sub.commit", **reader, upto=seq) == {"committed": seq}
        read += batch
        seq += 1
    assert sorted(read) == bodies
    engine.plan.share = 0.0  # type: ignore[attr-defined]
    wait_until(lambda: not part_rows(engine, reader), WAIT_S)
    assert acquire(rig, reader, seq) == 0
    assert [(rig.core(name).ready_count(), rig.core(name).unacked_count()) for name in ("q", "p")] == [(0, 0), (0, 0)]


def test_a_set_keeps_its_bounds(node: Rig) -> None:
    fill(node, "a" * 500, "b" * 500, "c" * 5_000, "d")
    reader = node.open()
    seen = []
    for seq in range(1, 4):
        acquire(node, reader, seq, max_bytes=1_200)
        seen.append([body[0] for body in node.read(reader, seq)])
        node.call("sub.commit", **reader, upto=seq)
    assert seen == [["a", "b"], ["c"], ["d"]], "one larger message comes alone"


def test_rows_come_in_pieces_that_fit(begin: Any) -> None:
    rig = begin("q", "p", limits={"dataplane_inline_max": 2_000, "dataplane_rows_max": 30})
    fill(rig, *(f"{number:03}" + "x" * 300 for number in range(20)))
    fill(rig, *(f"{number:03}" for number in range(20, 80)), name="p")
    reader = rig.open("s", "q", "p")
    assert acquire(rig, reader, 1) == 80
    (ticket,) = rig.call("sub.plan", **reader, seq=1)["tickets"]
    answer, data = rig.ask("rows", **ticket, first=0, count=80)
    assert answer["more"] and len(data) < 4_000
    assert sorted(body[:3] for body in rig.rows(ticket, count=50)) == [f"{number:03}" for number in range(80)]


def test_the_queues_of_a_subscription_have_turns(begin: Any) -> None:
    rig = begin("q", "p")
    fill(rig, *names(*range(20)))
    fill(rig, *names(*range(50, 70)), name="p")
    reader = rig.open("s", "q", "p")
    taken = []
    for seq in (1, 2):
        (part,) = rig.call("sub.acquire", **reader, seq=seq, max_messages=16)["queues"]
        taken.append((part["queue"], part["count"]))
        rig.call("sub.commit", **reader, upto=seq)
    assert sorted(taken) == [("p", 16), ("q", 16)]
    assert sum(one["count"] for one in rig.call("sub.acquire", **reader, seq=3, max_messages=16)["queues"]) == 8


def test_a_drain_ends_with_the_messages_that_were_there(node: Rig) -> None:
    fill(node, *names(*range(10)))
    reader = node.open()
    tail = node.call("sub.tail", **reader, drain=True)
    assert (tail["behind_messages"], tail["behind_bytes"], tail["queues"][0]["ready"]) == (10, 40, 10)
    fill(node, "later")
    taken = []
    for seq in range(1, 4):
        if acquire(node, reader, seq, max_messages=6):
            taken += node.read(reader, seq)
            node.call("sub.commit", **reader, upto=seq)
    assert taken == names(*range(10))
    assert acquire(node, node.open(), 3) == 1


def test_a_reader_without_a_checkpoint_leaves_one_that_works_alone(node: Rig) -> None:
    reader = node.open(fresh="refuse")
    assert node.code("sub.open", name="s", queues=["q"], fresh="refuse") == "READER_ACTIVE"
    node.clock.advance(ms=4_000)
    node.call("sub.alive", **reader)
    node.clock.advance(ms=4_500)
    assert node.code("sub.open", name="s", queues=["q"], fresh="refuse") == "READER_ACTIVE"
    assert node.call("sub.status", name="s")["heard_ms"] == 4_500
    node.clock.advance(ms=500)
    again = node.open(fresh="refuse")
    assert node.code("sub.alive", **reader) == "FENCED"
    node.call("sub.alive", **again, leave=True)
    third = node.open(fresh="refuse")
    fill(node, "a")
    acquire(node, third, 1)
    node.rows(node.call("sub.plan", **third, seq=1)["tickets"][0])
    node.call("sub.alive", **third, leave=True)
    assert node.code("sub.open", name="s", queues=["q"], fresh="refuse") == "CHECKPOINT_LOST"
    node.call("sub.commit", **third, upto=1)
    node.call("sub.alive", **third, leave=True)
    assert node.code("sub.open", name="s", queues=["q"], fresh="refuse") == "CHECKPOINT_NEW"
    assert node.code("sub.open", name="s", queues=["q"], fresh="continue") == ""


def delete(rig: Rig, name: str) -> None:
    done: list[Any] = []
    shared_of(rig).delete_in_engine("/", name, False, lambda result, error: done.append(error))
    wait_until(lambda: done == [None], WAIT_S)


def test_a_deleted_queue_takes_its_messages_out_of_a_set(begin: Any) -> None:
    rig = begin("q", "p")
    fill(rig, *names(1, 2))
    fill(rig, "other", name="p")
    reader = rig.open("s", "q", "p")
    assert acquire(rig, reader, 1) == 3
    (ticket,) = rig.call("sub.plan", **reader, seq=1)["tickets"]
    delete(rig, "p")
    assert rig.code("rows", **ticket, first=0, count=10) == "SET_CHANGED"
    assert rig.call("sub.plan", **reader, seq=1)["count"] == 2
    assert rig.code("rows", **ticket, first=0, count=10) == "SET_CHANGED"
    assert rig.read(reader, 1) == names(1, 2)
    rig.call("sub.commit", **reader, upto=1)
    assert acquire(rig, reader, 2) == 0


def test_a_queue_that_is_deleted_and_declared_anew_is_read_again(node: Rig) -> None:
    fill(node, "before")
    reader = node.open()
    delete(node, "q")
    vhost = node.broker.vhosts["/"]
    vhost.run(vhost.delete_queue("q"))
    node.declare("q", x_queue_type="shared")
    wait_until(lambda: is_served(node), WAIT_S)
    fill(node, "after")
    assert acquire(node, reader, 1) == 1
    assert node.read(reader, 1) == ["after"]
    assert node.call("sub.status", name="s")["queues"] == ["q"]


def test_a_call_that_can_not_be_done_is_refused_in_words(begin: Any) -> None:
    rig = begin("q", limits={"shared_set_queues_max": 2})
    rig.declare("plain")
    assert rig.code("sub.open", name="s", queues=["q", "p", "r"]) == "BAD_ARGUMENT"
    for arguments in ({"queues": ["q", "plain"]}, {"queues": ["q"], "start": "latest"}, {"queues": ["q"], "start": {"lsn": 5}}):
        assert rig.code("sub.open", name="s", **arguments) == "BAD_ARGUMENT"
    assert rig.code("sub.open", name="s", queues=["q", "gone"]) == "NOT_FOUND"
    assert rig.code("browse.open", queues=["q"]) == "BAD_ARGUMENT"
    assert rig.code("sub.open", name="s", pattern="q*") == "NOT_FOUND", "a pattern reads no shared queue"
    with pytest.raises(Refused, match="'q' in vhost '/' is a shared one"):
        rig.stage("scope", rig.call("scope.open", scope="scope")["epoch"], 1, "a")
    reader = rig.open()
    assert rig.code("sub.open", name="s", queues=["plain"]) == ""  # of this node, beside it
    rig.call("sub.reset", name="s", action="delete")
    assert rig.code("sub.plan", **reader, seq=1) == "NOT_PREPARED"
    assert rig.code("sub.acquire", **reader, seq=2) == "CHECKPOINT_AHEAD"


def test_other_queues_are_read_when_the_reader_says_so(begin: Any) -> None:
    rig = begin("q", "p")
    fill(rig, "of q")
    fill(rig, "of p", name="p")
    reader = rig.open("s", "q")
    assert rig.code("sub.open", name="s", queues=["p"]) == "QUEUES_DIFFER"
    assert rig.code("sub.open", name="s", queues=["p"], fresh="continue") == "READER_ACTIVE"
    rig.call("sub.alive", **reader, leave=True)
    reader = rig.open("s", "p", fresh="continue")
    assert acquire(rig, reader, 1) == 1
    assert rig.read(reader, 1) == ["of p"]
    attached = rig.call("sub.open", mode="attach", sub_id=reader["sub_id"])
    assert (attached["queues"], attached["prepared"], attached["planned"]) == (["p"], 1, True)


@pytest.mark.parametrize("asked", ["flintmq.cluster.set_calls", "flintmq.dataplane.choice"])
def test_a_queue_of_one_consumer_is_left_to_it(node: Rig, asked: str) -> None:
    """Its owner is asked in any case; the node of the reader knows some of it sooner."""
    fill(node, "a")
    reader = node.open()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{asked}.exclusive_use", lambda queue: "an exclusive consumer")
        assert node.code("sub.acquire", **reader, seq=1) == "QUEUE_BUSY"
    assert acquire(node, reader, 1) == 1


def test_a_user_who_may_not_read_a_queue_sees_and_changes_nothing(begin: Any) -> None:
    rig = begin("q", "p")
    fill(rig, "secret")
    reader = rig.open("s", "q", "p")
    acquire(rig, reader, 1)
    (ticket,) = rig.call("sub.plan", **reader, seq=1)["tickets"]
    rig.user_with("eve", read="p")
    rig.user = "eve"
    calls: list[tuple[str, dict[str, Any]]] = [
        ("sub.open", {"name": "s", "queues": ["p"], "fresh": "continue"}),
        ("sub.open", {"mode": "attach", "sub_id": reader["sub_id"], "queues": ["p"]}),
        ("sub.acquire", {**reader, "seq": 1}),
        ("sub.plan", {**reader, "seq": 1}),
        ("rows", {**ticket, "first": 0, "count": 1}),
        ("sub.commit", {**reader, "upto": 1}),
        ("sub.alive", {**reader, "leave": True}),
        ("sub.tail", dict(reader)),
        ("sub.status", {"name": "s"}),
        ("sub.reset", {"name": "s", "action": "delete"}),
        ("sub.open", {"name": "mine", "queues": ["q"]}),
    ]
    assert {(call, rig.code(call, **arguments)) for call, arguments in calls} == {(call, "FORBIDDEN") for call, _ in calls}
    assert rig.call("sub.list") == {"subscriptions": []}
    rig.user = "guest"
    assert [one["name"] for one in rig.call("sub.list")["subscriptions"]] == ["s"]
    assert rig.call("sub.status", name="s")["epoch"] == reader["epoch"]


def test_subscriptions_have_places(begin: Any) -> None:
    rig = begin(limits={"subscriptions_user_max": 2, "shared_subscriptions_max": 3})
    for name in ("a", "b"):
        rig.open(name)
    assert rig.code("sub.open", name="c", queues=["q"]) == "LIMIT"
    rig.user_with("other", read=".*")
    rig.user = "other"
    rig.open("c")
    assert rig.code("sub.open", name="d", queues=["q"]) == "LIMIT"
    rig.call("sub.reset", name="a", action="delete")
    rig.open("d")


def test_a_row_that_is_none_stops_nothing_else(node: Rig, engine: OwnEngine) -> None:
    fill(node, "one", "two")
    reader, other = node.open("a"), node.open("b")
    assert acquire(node, reader, 1) == 2
    for garbage in (b"", b"[]", b"\xff", b'{"format": 1}', b"[" * 100_000):
        put_row(engine, subscription_key(identity_of(other)), garbage)
        assert node.code("sub.acquire", **other, seq=1) == "DAMAGED"
        assert [one["name"] for one in node.call("sub.list")["subscriptions"]] == ["a"]
    node.call("sub.commit", **reader, upto=1)
    assert ready(node) == []


def test_an_engine_that_hangs_delays_nothing_but_its_sets(begin: Any, engine: OwnEngine) -> None:
    rig = begin(limits={"shared_set_wait_ms": 150})
    rig.declare("plain")
    rig.put("plain", "a")
    shared, local = rig.open(), rig.open("local", "plain")
    fill(rig, "b")
    engine.hold()
    codes: list[str] = []
    head = {"user": "guest", "vhost": "/", "call": "sub.acquire", **shared, "seq": 1}
    thread = threading.Thread(target=lambda: codes.append(rig.service.dispatch(head)[0].get("error", "")))
    thread.start()
    assert engine.waiting.wait(WAIT_S)
    assert acquire(rig, local, 1) == 1
    assert rig.read(local, 1) == ["a"]
    assert rig.call("sub.commit", **local, upto=1) == {"committed": 1}
    thread.join()
    assert codes == ["UNAVAILABLE"]
    assert rig.code("sub.open", name="new", queues=["q"]) == "UNAVAILABLE"
    assert rig.code("sub.status", name="other") == "NOT_FOUND", "whoever makes one on local queues asks this first"
    assert [one["name"] for one in rig.call("sub.list")["subscriptions"]] == ["local"]
    engine.go_on()
    wait_until(lambda: rig.code("sub.acquire", **shared, seq=1) == "", WAIT_S)
    wait_until(lambda: len(rig.call("sub.list")["subscriptions"]) == 2, WAIT_S)


def test_one_user_takes_not_all_places_for_the_engine(begin: Any, engine: OwnEngine) -> None:
    rig = begin(limits={"shared_set_calls": 2, "shared_set_wait_ms": 60_000})
    shared = rig.open()
    for name in ("other", "third"):
        rig.user_with(name, read=".*")
    engine.hold()
    head = {"user": "guest", "vhost": "/", "call": "sub.acquire", **shared, "seq": 1}
    threads = [threading.Thread(target=rig.service.dispatch, args=({**head, "user": user},)) for user in ("guest", "other")]
    threads[0].start()
    asks = rig.service.shared_sets()._asks  # type: ignore[union-attr]
    wait_until(lambda: asks._running["guest"] == 1, WAIT_S)
    assert rig.code("sub.acquire", **shared, seq=1) == "BUSY"
    threads[1].start()
    wait_until(lambda: asks._running["other"] == 1, WAIT_S)
    assert rig.service.dispatch({**head, "user": "third"})[0]["error"] == "BUSY"
    engine.go_on()
    for thread in threads:
        thread.join()
    assert not asks._running


def test_a_set_that_nobody_has_read_is_not_committed_as_read(node: Rig) -> None:
    fill(node, *names(*range(4)))
    reader = node.open()
    acquire(node, reader, 1)
    tickets = node.call("sub.plan", **reader, seq=1, slices=2)["tickets"]
    assert node.code("sub.commit", **reader, upto=1, read=True) == "NOT_READ"
    assert node.rows(tickets[1]) == names(2, 3)
    assert node.call("sub.commit", **reader, upto=1, read=True) == {"committed": 1}


def test_a_sign_of_life_whose_outcome_is_not_known_is_asked_for_again(node: Rig, engine: OwnEngine) -> None:
    reader = node.open()
    node.clock.advance(ms=3_000)
    before = engine.store.rows[sign_key(identity_of(reader))]
    engine.plan.script.extend([Fate.DONE, Fate.NEVER])  # the row is read, the sign is written
    assert node.code("sub.alive", **reader) == "UNAVAILABLE"
    assert node.code("sub.alive", **reader) == ""
    assert engine.store.rows[sign_key(identity_of(reader))] != before
