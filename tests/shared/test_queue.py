"""Shared queues on the embedded engine: what survives, what is too large, who conflicts with whom."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.kv.engine import EngineLimits, UnknownOutcome
from flintmq.kv.sqlite_engine import SqliteEngine
from flintmq.shared.keys import META_BYTES, after, definition, text
from flintmq.shared.owners import Owners
from flintmq.shared.queue import RELAXED, Fenced, Message, QueueGone, SharedQueue, declare_queue, delete_queue
from flintmq.shared.staged import StagedQueue
from tests.twins.memory_engine import Fault, MemoryEngine

LIMITS = Limits()
WAIT_S = 60


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqliteEngine]:
    made = SqliteEngine(tmp_path / "shared.db", LIMITS)
    yield made
    made.close()


def queue_on(engine: SqliteEngine, order: str = "strict") -> SharedQueue:
    keys = declare_queue(engine, "/", "q", order)
    owners = Owners(engine, LIMITS)
    owner = owners.register()
    owners.uses(keys.life)
    return SharedQueue(engine, keys, owner, LIMITS, order)


def test_names_never_meet() -> None:
    names = ["", "a", "ab", "a\0", "a\0b", "\0", "\xff"]
    keys = [definition(vhost, name) for vhost in names for name in names]
    assert len(set(keys)) == len(keys)
    assert not any(text(one) != text(two) and text(two).startswith(text(one)) for one in names for two in names)
    assert after(b"a\xff\xff") == b"b"


def test_messages_survive_the_engine(tmp_path: Path) -> None:
    first = SqliteEngine(tmp_path / "shared.db", LIMITS)
    bodies = [b"small", bytes(3_000), bytes(2_500_000), b"last"]
    queue = queue_on(first)
    for body in bodies:
        queue.enqueue([Message(body)])
    taken, _ = queue.take(1, 1 << 30)
    assert [queue.load(one) for one in taken] == [b"small"]
    first.close()
    again = SqliteEngine(tmp_path / "shared.db", LIMITS)
    owners = Owners(again, LIMITS)
    owner = owners.register()
    assert owners.look(others_are_gone=True) == 1
    second = SharedQueue(again, declare_queue(again, "/", "q"), owner, LIMITS)
    assert second.read_counts().ready == 4
    taken, _ = second.take(10, 1 << 30)
    assert [second.load(one) for one in taken] == bodies
    assert [one.meta.redelivered for one in taken] == [True, False, False, False]
    second.settle(taken)
    transaction = again.begin()
    assert transaction.range(second.keys.chunks, after(second.keys.chunks), 10) == []
    again.close()


def test_two_who_enqueue_never_conflict(engine: SqliteEngine) -> None:
    for order in ("strict", RELAXED):
        delete_queue(engine, "/", "q")
        queues = [queue_on(engine, order) for _ in range(4)]
        threads = [threading.Thread(target=lambda queue=one: [queue.enqueue([Message(b"x")]) for _ in range(25)]) for one in queues]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [queue.conflicts for queue in queues] == [0, 0, 0, 0]
        assert queues[0].read_counts().ready == 100


def test_who_waits_is_told_of_a_message_of_another_node(engine: SqliteEngine) -> None:
    one, other = queue_on(engine), queue_on(engine)
    told = threading.Event()
    taken, watch = one.take(1, 1 << 20, told.set)
    assert taken == []
    assert watch is not None
    other.enqueue([Message(b"x")])
    assert told.wait(WAIT_S)
    assert [taken.content for taken in one.take(1, 1 << 20)[0]] == [b"x"]


def test_a_deleted_queue_is_gone_for_everybody(engine: SqliteEngine) -> None:
    queue = queue_on(engine)
    queue.enqueue([Message(b"x")])
    assert delete_queue(engine, "/", "q")
    assert not delete_queue(engine, "/", "q")
    with pytest.raises(QueueGone):
        queue.enqueue([Message(b"y")])
    fresh = queue_on(engine)
    assert fresh.take(1, 1 << 20)[0] == []


@pytest.mark.parametrize("order", ["strict", RELAXED])
def test_a_message_that_comes_back_stands_before_what_was_enqueued_meanwhile(engine: SqliteEngine, order: str) -> None:
    """Also when nothing else was ready, and when the node that enqueued it is gone."""
    one, other = queue_on(engine, order), queue_on(engine, order)
    for content in (b"gone", b"gone", b"first"):
        one.enqueue([Message(content)])
    taken, _ = other.take(3, 1 << 20)
    other.settle(taken[:2])
    owners = Owners(engine, LIMITS)
    owners.register()
    owners.fence(one.owner, owners.nodes()[one.owner][1])
    owners.sweep(one.owner)
    other.enqueue([Message(b"second")])
    other.give_back([(taken[2], True)])
    assert [found.content for found in other.take(2, 1 << 20)[0]] == [b"first", b"second"]


def test_who_was_swept_before_he_asked_what_became_of_a_commit_is_not_told_that_nothing_happened() -> None:
    """The row with the number of the commit went with the node: a retry under a new life would enqueue the message twice."""
    faults: list[Fault] = []
    engine = MemoryEngine(lambda: faults.pop() if faults else Fault.NONE)
    keys = declare_queue(engine, "/", "q")
    owners, others = Owners(engine, LIMITS), Owners(engine, LIMITS)
    owner, _ = owners.register(), others.register()
    owners.uses(keys.life)
    queue = SharedQueue(engine, keys, owner, LIMITS)
    queue.enqueue([Message(b"before")])
    begin, sweeps = engine.begin, [owner]

    def begin_after_the_sweep() -> Any:
        if sweeps and not faults:  # the commit is through, and its node asks for it
            others.fence(sweeps.pop(), others.nodes()[owner][1])
            others.sweep(owner)
        return begin()

    faults.append(Fault.UNKNOWN_AFTER)
    engine.begin = begin_after_the_sweep  # type: ignore[method-assign]
    with pytest.raises(UnknownOutcome):
        queue.enqueue([Message(b"it happened")])
    with pytest.raises(Fenced):
        queue.enqueue([Message(b"nothing happened")])
    contents = [value[META_BYTES:] for key, (value, _) in sorted(engine.state.items()) if key.startswith(keys.ready)]
    assert contents == [b"before", b"it happened"]


def test_a_waiter_is_not_told_empty_because_others_had_what_was_read() -> None:
    """Requests that want more than a fulfilment reads: the last one gets its share of the next."""
    engine = MemoryEngine(limits=EngineLimits(2048, 1 << 20, 8 << 20, 24, 5_000, False))  # 4 requests and 4 messages at once
    keys = declare_queue(engine, "/", "q", RELAXED)
    queues = []
    for _ in range(3):
        owners = Owners(engine, LIMITS)
        owner = owners.register()
        owners.uses(keys.life)
        queues.append(StagedQueue(engine, keys, owner, LIMITS))
    for number in range(12):
        queues[0].enqueue([Message(b"%d" % number)])
    requests = [bytes([number]) * 16 for number in range(3)]
    for queue, request in zip(queues, requests, strict=True):
        queue._leave(request, 4)
    while not queues[0]._fulfil():
        pass
    assert [len(queue._answer(request) or []) for queue, request in zip(queues, requests, strict=True)] == [4, 4, 4]


def test_another_order_is_refused(engine: SqliteEngine) -> None:
    queue_on(engine)
    with pytest.raises(ValueError, match="order"):
        declare_queue(engine, "/", "q", RELAXED)
