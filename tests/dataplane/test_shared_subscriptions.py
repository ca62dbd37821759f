"""Subscriptions on shared queues, by nodes that have one engine.

Properties: each message of a queue is in one committed batch, or ready, or held, whatever the engine does and whichever node is asked; a
set outlives the node that took it; what goes back has its place and is flagged; an older epoch changes nothing; an engine that hangs, a row
that is none, or a tenant without the permission costs nobody else anything.
"""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker import shared_service
from flintmq.config import Limits
from flintmq.dataplane.wire import Refused
from flintmq.kv.engine import EngineLimits, Unavailable
from flintmq.kv.sqlite_engine import SqliteEngine
from flintmq.protocol.v0_9_1.codec import encode_properties
from flintmq.shared import sets
from flintmq.shared.active import claim
from flintmq.shared.codec import pack_message, unpack_message
from flintmq.shared.keys import ROOT, after, subscription_row
from flintmq.shared.owners import Owners
from flintmq.shared.queue import Message, SharedQueue, declare_queue, delete_queue, opened
from tests.support.broker import wait_until
from tests.twins.memory_engine import Fault, MemoryEngine, MemoryTransaction

from .rig import Rig

FAST = {"shared_poll_ms": 20, "shared_lease_ms": 600_000, "shared_pause_ms": 5, "shared_pause_ms_max": 20, "shared_patience_ms": 2_000}
FAST |= {"shared_set_look_ms": 0}
# parts of a few messages, so that a batch has several
SMALL = EngineLimits(2048, 1 << 20, 8 << 20, 16, 5_000, False)
WAIT_S = 60


class Engine(MemoryEngine):
    """`answers` unset: who asks waits; `away`: who asks is told so."""

    def __init__(self, limits: EngineLimits | None = None) -> None:
        super().__init__(limits=limits or SMALL)
        self.answers = threading.Event()
        self.answers.set()
        self.away = False

    def begin(self) -> MemoryTransaction:
        self.answers.wait(WAIT_S)
        if self.away:
            raise Unavailable("away")
        return super().begin()

    def close(self) -> None:
        """It outlives nodes."""


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.faults = lambda: Fault.NONE
    made.answers.set()


@pytest.fixture
def node(tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Rig]]:
    """Makes nodes that have the engine and the shared queues of these names."""
    monkeypatch.setattr(shared_service, "open_engine", lambda url, limits, watched: engine)
    rigs: list[Rig] = []

    def made(*queues: str, limits: dict[str, Any] | None = None, **arguments: Any) -> Rig:
        rig = Rig(tmp_path / f"node{len(rigs)}", limits={**FAST, **(limits or {})}, shared_engine="etcd://127.0.0.1:1")
        rigs.append(rig)
        for name in queues or ("q",):
            share(engine, rig, name, **arguments)
        return rig

    yield made
    engine.faults = lambda: Fault.NONE
    engine.away = False
    engine.answers.set()
    for thread in [rig.stop() for rig in rigs if not rig.channel.closed]:
        thread.join()


def share(engine: Any, rig: Rig, name: str, **arguments: Any) -> None:
    told = {"x-queue-type": "shared", **{key.replace("_", "-"): value for key, value in arguments.items()}}
    declare_queue(engine, "/", name, arguments=json.dumps(told).encode())
    rig.declare(name, x_queue_type="shared", **arguments)


def user_of(engine: Any, name: str = "q", levels: int = 1) -> SharedQueue:
    """A queue as another node uses it, which gives no sign of life."""
    owners = Owners(engine, Limits())
    keys = declare_queue(engine, "/", name)
    owner = owners.register()
    owners.uses(keys.life)
    return SharedQueue(engine, keys, owner, Limits(), levels=levels)


def owners_of(rig: Rig) -> Owners:
    assert rig.broker.shared is not None
    return rig.broker.shared.node()[1]


def message(body: str, key: str = "q", expires_at_ms: int = 0, level: int = 0) -> Message:
    raw = body.encode()
    return Message(pack_message(b"", key.encode(), encode_properties(len(raw), {"delivery_mode": 2}), raw, 1, level), expires_at_ms, level)


def fill(engine: Any, *bodies: str, name: str = "q") -> None:
    queue, left = user_of(engine, name), [message(body, name) for body in bodies]
    while left:
        count = queue.cut(left)
        queue.enqueue(left[:count])
        del left[:count]


def ready(engine: Any, name: str = "q") -> list[tuple[str, bool]]:
    """(body, whether it is flagged) of what is ready, in order; it stays."""
    keys = declare_queue(engine, "/", name)
    transaction = engine.begin()
    rows = transaction.range(keys.ready, after(keys.ready), 100_000, snapshot=True)
    transaction.close()
    opened_rows = (opened(value) for _, value in rows)
    return [(unpack_message(content)[3].decode(), meta.redelivered) for meta, content in opened_rows]


def rows_under(engine: Any, prefix: bytes) -> list[bytes]:
    transaction = engine.begin()
    try:
        return [key for key, _ in transaction.range(prefix, after(prefix), 100_000, snapshot=True)]
    finally:
        transaction.close()


def acquire(rig: Rig, reader: dict[str, Any], seq: int, **arguments: Any) -> int:
    return int(rig.call("sub.acquire", **reader, seq=seq, **arguments)["count"])


def names(*numbers: int) -> list[str]:
    return [f"m{number:03}" for number in numbers]


def test_a_batch_is_read_as_often_as_one_likes_and_committed_once(node: Any, engine: Engine) -> None:
    rig = node()
    fill(engine, *names(*range(10)))
    reader = rig.open()
    assert acquire(rig, reader, 1, max_messages=7) == acquire(rig, reader, 1, max_messages=3) == 7
    assert rig.read(reader, 1, slices=3) == rig.read(reader, 1, slices=3) == rig.read(reader, 1) == names(*range(7))
    assert [body for body, _ in ready(engine)] == names(7, 8, 9)
    assert rig.twice("sub.commit", **reader, upto=1) == {"committed": 1}
    assert rig.code("sub.plan", **reader, seq=1) == "CHECKPOINT_BEHIND"
    assert acquire(rig, reader, 2) == 3
    assert rig.read(reader, 2) == names(7, 8, 9)
    rig.call("sub.commit", **reader, upto=2)
    assert acquire(rig, reader, 3) == 0
    keys = declare_queue(engine, "/", "q")
    assert rows_under(engine, keys.prefix + b"z") == rows_under(engine, keys.ready) == []
    counts = user_of(engine).read_counts()
    assert (counts.enqueued, counts.settled, counts.leased) == (10, 10, 0)
    assert len(rows_under(engine, ROOT + b"t")) == 2, "the subscription, and its reader's sign of life"


def test_positions_rise_and_properties_are_there(node: Any, engine: Engine) -> None:
    rig = node()
    fill(engine, *names(*range(6)))
    reader, seen = rig.open(), []
    for seq in (1, 2):
        acquire(rig, reader, seq, max_messages=3)
        (ticket,) = rig.call("sub.plan", **reader, seq=seq)["tickets"]
        seen += rig.contents(*rig.ask("rows", **ticket, first=0, count=100))
        rig.call("sub.commit", **reader, upto=seq)
    positions = [position for _, position, _, _ in seen]
    assert positions == sorted(set(positions)) and len(positions) == 6
    assert [(name, body.decode()) for name, _, _, body in seen] == [("q", one) for one in names(*range(6))]


def test_a_set_outlives_its_node_and_another_one_reads_and_commits_it(node: Any, engine: Engine) -> None:
    first, second = node(), node()
    fill(engine, *names(*range(9)))
    reader = first.open()
    assert acquire(first, reader, 1, max_messages=6) == 6
    tickets = first.call("sub.plan", **reader, seq=1, slices=2)["tickets"]
    life, owners = owners_of(first).owner, owners_of(second)
    wait_until(lambda: owners.fence(life, owners.nodes()[life][1]), WAIT_S)
    first.stop().join()
    owners.look()
    assert life not in owners.nodes(), "the node is gone, and what it had went back"
    assert [body for body, _ in ready(engine)] == names(6, 7, 8)
    assert [body for ticket in tickets for body in second.rows(ticket)] == names(*range(6))
    assert second.call("sub.plan", **reader, seq=1, slices=2)["tickets"] == tickets
    assert second.call("sub.commit", **reader, upto=1) == {"committed": 1}
    assert acquire(second, reader, 2) == 3


def test_an_older_epoch_changes_nothing_on_any_node(node: Any, engine: Engine) -> None:
    first, second = node(), node()
    fill(engine, *names(*range(4)))
    old = first.open()
    acquire(first, old, 1)
    first.call("sub.plan", **old, seq=1)
    new = second.open()
    assert new["epoch"] > old["epoch"]
    for rig in (first, second):
        for call, more in (("acquire", {"seq": 1}), ("plan", {"seq": 1}), ("commit", {"upto": 1}), ("alive", {})):
            assert rig.code(f"sub.{call}", **old, **more) == "FENCED"
    ticket = {"kind": "set", "slice": 0, "slices": 1, "rows": 4, "seq": 1}
    assert second.code("rows", **old, **ticket) == "FENCED"
    assert second.call("sub.acquire", **new, seq=1)["count"] == 4, "it was planned, and nobody has read it"
    assert second.rows({**new, **ticket}) == names(*range(4))
    new = first.open()
    assert first.code("sub.acquire", **new, seq=1) == "CHECKPOINT_LOST"
    assert second.code("sub.commit", **new, upto=2) == "CHECKPOINT_AHEAD"
    second.call("sub.commit", **new, upto=1)
    assert ready(engine) == []


def test_what_goes_back_has_its_place_and_is_flagged(node: Any, engine: Engine) -> None:
    rig = node()
    fill(engine, *names(*range(8)))
    reader = rig.open()
    acquire(rig, reader, 1, max_messages=5)
    rig.rows(rig.call("sub.plan", **reader, seq=1)["tickets"][0])
    fill(engine, "later")
    assert rig.code("sub.reset", name="s", action="redeliver", may_duplicate=False) == "MAY_DUPLICATE"
    assert rig.call("sub.reset", name="s", action="redeliver")["prepared"] is None
    assert ready(engine) == [(body, number < 5) for number, body in enumerate([*names(*range(8)), "later"])]
    assert rig.code("sub.commit", **reader, upto=1) == "FENCED"
    counts = user_of(engine).read_counts()
    assert (counts.ready, counts.leased) == (9, 0)
    reader = rig.open()
    assert acquire(rig, reader, 1) == 9
    assert rig.read(reader, 1)[0] == "m000"


def test_a_deleted_subscription_gives_its_set_back_also_when_its_node_dies_meanwhile(node: Any, engine: Engine) -> None:
    rig = node()
    fill(engine, *names(*range(20)))
    reader = rig.open()
    acquire(rig, reader, 1)
    identity = uuid.UUID(reader["sub_id"]).bytes
    transaction = engine.begin()
    record = sets.load(transaction, identity)
    assert record is not None
    sets.delete(transaction, record)
    transaction.commit()  # and the node that did it is gone: the others look
    wait_until(lambda: len(ready(engine)) == 20, WAIT_S)
    assert ready(engine) == [(body, True) for body in names(*range(20))]
    wait_until(lambda: not rows_under(engine, ROOT + b"t") and not rows_under(engine, ROOT + b"j"), WAIT_S)
    assert rig.code("sub.acquire", **reader, seq=1) == "NOT_FOUND"
    assert rig.open()["sub_id"] != reader["sub_id"]
    assert rig.call("sub.reset", name="s", action="delete")["deleted"]
    assert rig.call("sub.list") == {"subscriptions": []}


@pytest.mark.parametrize("seed", range(6))
def test_each_message_is_in_one_committed_batch_whatever_the_engine_does(
    node: Any, engine: Engine, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faults at a third of all commits; calls change between nodes; nodes die between the parts of a batch's end; batches go back."""
    chance = random.Random(seed)
    rigs = [node("q", "p"), node("q", "p")]
    bodies = names(*range(40))
    fill(engine, *bodies[:30])
    fill(engine, *bodies[30:], name="p")
    faults = [Fault.CONFLICT, Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER]
    ended, end_part = [-1], sets.end_part  # parts that are ended before the node dies; below 0: it does not

    def dies(transaction: Any, record: Any) -> bool:
        if ended[0] == 0:
            raise Refused("UNAVAILABLE", "the node dies here")
        ended[0] -= 1
        return end_part(transaction, record)

    def surely(call: str, **arguments: Any) -> Any:
        for _ in range(200):
            try:
                return chance.choice(rigs).call(call, **arguments)
            except Refused as refused:
                assert refused.code in ("UNAVAILABLE", "BUSY"), refused
        raise AssertionError(call)

    monkeypatch.setattr(sets, "end_part", dies)
    opened = surely("sub.open", name="s", queues=["q", "p"])
    reader = {"sub_id": opened["sub_id"], "epoch": opened["epoch"]}
    engine.faults = lambda: chance.choice(faults) if chance.random() < 0.35 else Fault.NONE
    read: list[str] = []
    seq = 1
    while len(read) < 40:
        count = surely("sub.acquire", **reader, seq=seq, max_messages=chance.randint(1, 12))["count"]
        if not count:
            continue
        tickets = surely("sub.plan", **reader, seq=seq, slices=chance.randint(1, 3))["tickets"]
        rig = chance.choice(rigs)
        batch = [body for ticket in tickets for body in rig.rows(ticket)]
        if chance.random() < 0.3:
            surely("sub.reset", name="s", action="redeliver", seq=seq)
            reader["epoch"] = surely("sub.open", name="s", queues=["q", "p"])["epoch"]
            continue
        ended[0] = chance.randint(-1, 2)
        assert surely("sub.commit", **reader, upto=seq) == {"committed": seq}
        ended[0] = -1
        if chance.random() < 0.5:
            assert surely("sub.commit", **reader, upto=seq) == {"committed": seq}
        read += batch
        seq += 1
    assert sorted(read) == bodies
    engine.faults = lambda: Fault.NONE
    assert acquire(rigs[0], reader, seq) == 0
    for name, count in (("q", 30), ("p", 10)):
        counts = user_of(engine, name).read_counts()
        assert (counts.enqueued, counts.settled, counts.leased) == (count, count, 0)


def is_open(rig: Rig) -> bool:
    shared = rig.broker.shared
    assert shared is not None
    return all(entry.life is not None for entry in shared.entries().values())


class Embedded(SqliteEngine):
    """It ends when the test says so."""

    def close(self) -> None:
        pass

    def end(self) -> None:
        super().close()


def test_on_the_embedded_engine_messages_of_any_size_survive_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[Embedded] = []
    monkeypatch.setattr(shared_service, "open_engine", lambda url, limits, watched: engines[-1])
    bodies = ["small", "x" * 3_000, "y" * 2_000_000, "last"]
    reader: dict[str, Any] = {}
    for life in range(2):
        engines.append(Embedded(tmp_path / "shared.db", Limits()))
        rig = Rig(tmp_path / "store", limits=FAST)
        if life == 0:
            rig.declare("q", x_queue_type="shared")
        wait_until(partial(is_open, rig), WAIT_S)
        if life == 0:
            fill(engines[-1], *bodies)
            reader = rig.open()
            assert acquire(rig, reader, 1) == 4
            assert rig.call("sub.plan", **reader, seq=1)["count"] == 4
        assert rig.read(reader, 1, slices=2) == bodies
        if life == 1:
            assert rig.call("sub.commit", **reader, upto=1) == {"committed": 1}
            keys = declare_queue(engines[-1], "/", "q")
            assert rows_under(engines[-1], keys.chunks) == rows_under(engines[-1], keys.ready) == []
        rig.stop().join()
        engines[-1].end()


def test_who_takes_at_the_same_moment_gets_other_messages(node: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = node()
    fill(engine, *names(*range(8)))
    reader, other, head, raced = rig.open(), user_of(engine), sets._head, []

    def slow(*arguments: Any) -> Any:
        found = head(*arguments)
        if not raced:
            raced.extend(other.take(2, 1 << 20)[0])
        return found

    monkeypatch.setattr(sets, "_head", slow)
    assert acquire(rig, reader, 1) == 6
    assert rig.read(reader, 1) == names(*range(2, 8))
    assert [unpack_message(other.load(one))[3].decode() for one in raced] == names(0, 1)


def test_a_reader_that_is_fenced_in_the_middle_of_a_call_takes_nothing(node: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = node(), node()
    fill(engine, *names(*range(8)))
    old, take_part, new = first.open(), sets.take_part, []

    def slow(*arguments: Any) -> Any:
        if not new:
            new.append(second.open())
        return take_part(*arguments)

    monkeypatch.setattr(sets, "take_part", slow)
    assert first.code("sub.acquire", **old, seq=1) == "FENCED"
    assert len(ready(engine)) == 8
    assert acquire(second, new[0], 1) == 8


def test_a_change_whose_outcome_was_not_known_is_made_once(node: Any, engine: Engine) -> None:
    rig = node(limits={"shared_poll_ms": 600_000})  # nothing else commits
    fill(engine, *names(*range(8)))
    faults: list[Fault] = []
    engine.faults = lambda: faults.pop() if faults else Fault.NONE
    epoch = rig.open()["epoch"]
    faults.append(Fault.UNKNOWN_AFTER)
    reader = rig.open()
    assert (reader["epoch"], faults) == (epoch + 1, [])
    faults.append(Fault.UNKNOWN_BEFORE)
    assert rig.open()["epoch"] == epoch + 2


def test_a_batch_keeps_its_bounds(node: Any, engine: Engine) -> None:
    rig = node()
    fill(engine, "a" * 500, "b" * 500, "c" * 5_000, "d")
    reader = rig.open()
    seen = []
    for seq in range(1, 4):
        acquire(rig, reader, seq, max_bytes=1_200)
        seen.append([body[0] for body in rig.read(reader, seq)])
        rig.call("sub.commit", **reader, upto=seq)
    assert seen == [["a", "b"], ["c"], ["d"]], "one larger message comes alone"


def test_the_queues_of_a_subscription_have_equal_turns(node: Any, engine: Engine) -> None:
    rig = node("q", "p")
    fill(engine, *names(*range(20)))
    fill(engine, *names(*range(50, 70)), name="p")
    reader = rig.open("s", "q", "p")
    facts = rig.call("sub.acquire", **reader, seq=1, max_messages=16)
    assert {one["queue"]: one["count"] for one in facts["queues"]} == {"q": 8, "p": 8}
    assert sorted(rig.read(reader, 1, slices=2)) == names(*range(8), *range(50, 58))


def test_what_has_expired_is_no_part_of_a_batch_and_holds_up_nothing(node: Any, engine: Engine) -> None:
    rig = node(limits={"shared_poll_ms": 600_000})
    now = rig.service.plane.now_ms()
    times = (("old", now - 1), ("good", max(now, int(time.time() * 1000)) + 10**9), ("old", 1))
    user_of(engine).enqueue([message(body, expires_at_ms=expires_at_ms) for body, expires_at_ms in times])
    reader = rig.open()
    assert acquire(rig, reader, 1) == 1
    assert rig.read(reader, 1) == ["good"]


def test_a_drain_ends_with_what_was_there(node: Any, engine: Engine) -> None:
    rig = node()
    fill(engine, *names(*range(10)))
    reader = rig.open()
    tail = rig.call("sub.tail", **reader, drain=True)
    assert (tail["behind_messages"], tail["queues"][0]["ready"]) == (10, 10)
    fill(engine, "later")
    taken = []
    for seq in range(1, 4):
        if acquire(rig, reader, seq, max_messages=6):
            taken += rig.read(reader, seq)
            rig.call("sub.commit", **reader, upto=seq)
    assert taken == names(*range(10))
    assert acquire(rig, rig.open(), 3) == 1


def test_a_reader_without_a_checkpoint_leaves_one_that_works_alone_on_any_node(node: Any, engine: Engine) -> None:
    first, second = node(), node()
    reader = first.open(fresh="refuse")
    assert second.code("sub.open", name="s", queues=["q"], fresh="refuse") == "READER_ACTIVE"
    second.clock.advance(ms=4_000)
    first.clock.advance(ms=4_000)
    first.call("sub.alive", **reader)
    assert second.code("sub.open", name="s", queues=["q"], fresh="refuse") == "READER_ACTIVE"
    second.clock.advance(ms=5_000)
    assert second.call("sub.status", name="s")["heard_ms"] == 5_000
    again = second.open(fresh="refuse")
    assert first.code("sub.alive", **reader) == "FENCED"
    second.call("sub.alive", **again, leave=True)
    third = first.open(fresh="refuse")
    fill(engine, "a")
    acquire(first, third, 1)
    first.rows(first.call("sub.plan", **third, seq=1)["tickets"][0])
    first.call("sub.alive", **third, leave=True)
    assert second.code("sub.open", name="s", queues=["q"], fresh="refuse") == "CHECKPOINT_LOST"
    first.call("sub.commit", **third, upto=1)
    first.call("sub.alive", **third, leave=True)
    assert second.code("sub.open", name="s", queues=["q"], fresh="refuse") == "CHECKPOINT_NEW"
    assert second.code("sub.open", name="s", queues=["q"], fresh="continue") == ""


def test_a_deleted_queue_takes_its_messages_out_of_a_set(node: Any, engine: Engine) -> None:
    rig = node("q", "p")
    fill(engine, *names(1, 2))
    fill(engine, "other", name="p")
    reader = rig.open("s", "q", "p")
    assert acquire(rig, reader, 1) == 3
    (ticket,) = rig.call("sub.plan", **reader, seq=1)["tickets"]
    delete_queue(engine, "/", "p")
    assert rig.call("sub.plan", **reader, seq=1)["count"] == 2
    assert rig.code("rows", **ticket, first=0, count=10) == "SET_CHANGED"
    assert rig.read(reader, 1) == names(1, 2)
    rig.call("sub.commit", **reader, upto=1)
    assert acquire(rig, reader, 2) == 0


def test_what_is_not_there_is_refused_in_words(node: Any, engine: Engine) -> None:
    rig = node(limits={"shared_set_queues_max": 2})
    rig.declare("plain")
    assert rig.code("sub.open", name="s", queues=["q", "p", "r"]) == "BAD_ARGUMENT"
    for arguments in ({"queues": ["q", "plain"]}, {"queues": ["q"], "start": "latest"}, {"queues": ["q"], "start": {"lsn": 5}}):
        assert rig.code("sub.open", name="s", **arguments) == "BAD_ARGUMENT"
    assert rig.code("browse.open", queues=["q"]) == "BAD_ARGUMENT"
    assert rig.code("sub.open", name="s", pattern="q*") == "NOT_FOUND", "a pattern reads no shared queue"
    assert rig.code("sub.open", name="s", queues=["q", "gone"]) == "NOT_FOUND"
    rig.open()
    assert rig.code("sub.open", name="s", queues=["plain"]) == ""  # of this node, beside it
    assert rig.code("sub.open", name="s", queues=["q"]) == "QUEUES_DIFFER"


def test_a_queue_of_one_consumer_is_left_to_it(node: Any, engine: Engine) -> None:
    rig = node(x_single_active_consumer=True)
    fill(engine, "a")
    other = user_of(engine)
    reader = rig.open()
    claim(other, lambda: None)
    assert rig.code("sub.acquire", **reader, seq=1) == "QUEUE_BUSY"
    assert owners_of(rig).fence(other.owner, b"\0")
    assert acquire(rig, reader, 1) == 1


def test_who_may_not_read_a_queue_sees_and_changes_nothing(node: Any, engine: Engine) -> None:
    rig = node("q", "p")
    fill(engine, "secret")
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


def test_subscriptions_have_places(node: Any, engine: Engine) -> None:
    rig = node(limits={"subscriptions_user_max": 2, "shared_subscriptions_max": 3})
    for name in ("a", "b"):
        rig.open(name)
    assert rig.code("sub.open", name="c", queues=["q"]) == "LIMIT"
    rig.user_with("other", read=".*")
    rig.user = "other"
    rig.open("c")
    assert rig.code("sub.open", name="d", queues=["q"]) == "LIMIT"
    rig.call("sub.reset", name="a", action="delete")
    rig.open("d")


def test_rows_that_are_none_stop_nothing_else(node: Any, engine: Engine) -> None:
    rig = node()
    user_of(engine).enqueue([message("one"), Message(b"\xff no message of this version"), message("two")])
    reader, other = rig.open("a"), rig.open("b")
    assert acquire(rig, reader, 1) == 3
    assert rig.read(reader, 1) == ["one", "", "two"]
    identity = uuid.UUID(other["sub_id"]).bytes
    for garbage in (b"", b"[]", b"\xff", b'{"format": 1}', b"[" * 100_000):
        transaction = engine.begin()
        transaction.set(subscription_row(identity, b"s"), garbage)
        transaction.set(ROOT + b"j" + b"x" * 16, garbage)
        transaction.commit()
        assert rig.code("sub.acquire", **other, seq=1) == "DAMAGED"
        assert [one["name"] for one in rig.call("sub.list")["subscriptions"]] == ["a"]
    rig.call("sub.commit", **reader, upto=1)
    assert ready(engine) == []


def test_an_engine_that_hangs_delays_nothing_but_its_batches(node: Any, engine: Engine) -> None:
    rig = node(limits={"shared_set_wait_ms": 300})
    rig.declare("plain")
    rig.put("plain", "a")
    shared = rig.open()
    local = rig.open("local", "plain")
    engine.answers.clear()
    done = threading.Event()
    codes: list[str] = []

    def asks() -> None:
        head = {"user": "guest", "vhost": "/", "call": "sub.acquire", **shared, "seq": 1}
        codes.append(rig.service.dispatch(head)[0].get("error", ""))
        done.set()

    thread = threading.Thread(target=asks)
    thread.start()
    assert acquire(rig, local, 1) == 1
    assert rig.read(local, 1) == ["a"]
    assert rig.call("sub.commit", **local, upto=1) == {"committed": 1}
    assert done.wait(WAIT_S) and codes == ["UNAVAILABLE"]
    thread.join()
    engine.answers.set()
    fill(engine, "b")
    wait_until(lambda: rig.code("sub.acquire", **shared, seq=1) == "", WAIT_S)


def test_an_engine_that_is_away_hides_no_subscription_of_the_node(node: Any, engine: Engine) -> None:
    rig = node(limits={"shared_set_wait_ms": 300})
    rig.declare("plain")
    rig.open("shared")
    rig.open("local", "plain")
    assert [one["name"] for one in rig.call("sub.list")["subscriptions"]] == ["local", "shared"]
    engine.away = True
    shared = rig.broker.shared
    assert shared is not None
    wait_until(lambda: shared.is_away, WAIT_S)
    assert rig.code("sub.status", name="new") == "NOT_FOUND", "whoever makes one on local queues asks this first"
    assert rig.code("sub.open", name="new", queues=["q"]) == "UNAVAILABLE"
    assert [one["name"] for one in rig.call("sub.list")["subscriptions"]] == ["local"]
    engine.away = False
    wait_until(lambda: len(rig.call("sub.list")["subscriptions"]) == 2, WAIT_S)
    # a call waits 300 ms for the engine, which a busy machine may take
    wait_until(lambda: rig.code("sub.open", name="new", queues=["q"]) == "", WAIT_S)


def test_one_user_takes_not_all_places_for_the_engine(node: Any, engine: Engine) -> None:
    rig = node(limits={"shared_set_calls": 2, "shared_set_wait_ms": 60_000})
    shared = rig.open()
    for name in ("other", "third"):
        rig.user_with(name, read=".*")
    engine.answers.clear()
    head = {"user": "guest", "vhost": "/", "call": "sub.acquire", **shared, "seq": 1}
    threads = [threading.Thread(target=rig.service.dispatch, args=({**head, "user": user},)) for user in ("guest", "other")]
    threads[0].start()
    calls = rig.service.shared_subscriptions()._calls
    wait_until(lambda: calls._running["guest"] == 1, WAIT_S)
    assert rig.code("sub.acquire", **shared, seq=1) == "BUSY"
    threads[1].start()
    wait_until(lambda: calls._running["other"] == 1, WAIT_S)
    assert rig.service.dispatch({**head, "user": "third"})[0]["error"] == "BUSY"
    engine.answers.set()
    for thread in threads:
        thread.join()
    assert not calls._running


def test_a_set_that_nobody_has_read_on_any_node_is_not_committed_as_read(node: Any, engine: Engine) -> None:
    first, second = node(), node()
    fill(engine, *names(*range(4)))
    reader = first.open()
    acquire(first, reader, 1)
    tickets = first.call("sub.plan", **reader, seq=1, slices=2)["tickets"]
    assert first.code("sub.commit", **reader, upto=1, read=True) == "NOT_READ"
    assert second.rows(tickets[1]) == names(2, 3)
    assert first.call("sub.commit", **reader, upto=1, read=True) == {"committed": 1}
