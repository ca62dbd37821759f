"""Shared queues on the embedded engine: what survives, what is too large, who conflicts with whom."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.config import Limits
from flintmq.kv.sqlite_engine import SqliteEngine
from flintmq.shared.keys import after, definition, text
from flintmq.shared.measure import WAYS, measure
from flintmq.shared.owners import Owners
from flintmq.shared.queue import RELAXED, Message, QueueGone, SharedQueue, delete_queue, open_queue

LIMITS = Limits()
WAIT_S = 60


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqliteEngine]:
    made = SqliteEngine(tmp_path / "shared.db", LIMITS)
    yield made
    made.close()


def queue_on(engine: SqliteEngine, order: str = "strict") -> SharedQueue:
    keys = open_queue(engine, "/", "q", order)
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
    second = SharedQueue(again, open_queue(again, "/", "q"), owner, LIMITS)
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


def test_another_order_is_refused(engine: SqliteEngine) -> None:
    queue_on(engine)
    with pytest.raises(ValueError, match="order"):
        open_queue(engine, "/", "q", RELAXED)


@pytest.mark.parametrize("way", WAYS)
def test_each_way_takes_each_message_once(engine: SqliteEngine, way: str) -> None:
    assert measure(engine, LIMITS, way, 60, 4, 16)["exactly_once"]
