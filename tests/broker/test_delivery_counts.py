"""Notes of delivery counts end with their messages: neither memory nor the log grows with what was."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from flintmq.broker.delivery_counts import _KEY, ENDS_AT_ONCE, PRUNE_MOST, DeliveryCounts
from flintmq.errors import StoreError
from flintmq.ports import NOTE_DELIVERIES, NOTE_LETTERS
from tests.store.rig import Rig


class Entries:
    """A queue: which positions stand, and their counts."""

    def __init__(self) -> None:
        self.standing: dict[int, int] = {}
        self.core = self
        self.looks = 0

    def entry_facts(self, position: int) -> tuple[bool, int, int] | None:
        self.looks += 1
        return (True, self.standing[position], 0) if position in self.standing else None

    def set_count(self, position: int, count: int) -> bool:
        if position not in self.standing:
            return False
        self.standing[position] = count
        return True


class Notes:
    """The store's side, in memory. broken: it refuses."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.broken = False

    def notes(self, kind: int) -> dict[bytes, bytes]:
        assert kind == NOTE_DELIVERIES
        return dict(self.kept)

    def note_entry(self, kind: int, key: bytes, value: bytes) -> bool:
        first = key not in self.kept
        self.kept[key] = value
        return first

    def end_notes(self, kind: int, keys: list[bytes]) -> None:
        if self.broken:
            raise StoreError("full")
        for key in keys:
            del self.kept[key]


def at_once(step: Any, ended: Any) -> None:
    while not step():
        pass
    ended(True)


@pytest.fixture
def queue() -> Entries:
    return Entries()


@pytest.fixture
def store() -> Notes:
    return Notes()


@pytest.fixture
def counts(store: Notes, queue: Entries) -> DeliveryCounts:
    made = DeliveryCounts(store)
    made.restore({1: SimpleNamespace(core=queue)})
    return made


def test_what_comes_back_once_and_is_acked_leaves_nothing(counts: DeliveryCounts, queue: Entries, store: Notes) -> None:
    for position in range(1, 20_001):
        queue.standing[position] = 1
        counts.note(1, position, 1)
        if position > 100:  # as many are under way
            del queue.standing[position - 100]
        assert len(store.kept) <= 2 * 100 + ENDS_AT_ONCE + 2
    queue.standing.clear()
    counts.tick(at_once)
    assert not store.kept and not len(counts)


def test_what_stays_is_kept_and_what_ended_is_no_more_than_that(counts: DeliveryCounts, queue: Entries, store: Notes) -> None:
    rng = random.Random(1)
    for position in range(1, 20_001):
        queue.standing[position] = 1
        counts.note(1, position, 1)
        if rng.random() < 0.9:
            del queue.standing[position]
        assert len(store.kept) <= 2 * len(queue.standing) + ENDS_AT_ONCE + 100
    assert {_KEY.unpack(key)[1] for key in store.kept} >= set(queue.standing)
    assert queue.looks <= 2 * 20_000


def test_a_pass_looks_at_few_that_stay_and_goes_on_while_most_have_ended(counts: DeliveryCounts, queue: Entries, store: Notes) -> None:
    for position in range(1, 10_001):
        queue.standing[position] = 1
        counts.note(1, position, 1)
    queue.looks = 0
    counts.tick(at_once)
    assert queue.looks == PRUNE_MOST
    queue.standing.clear()
    counts.tick(at_once)
    assert not store.kept


def test_a_higher_count_is_the_same_note(counts: DeliveryCounts, queue: Entries, store: Notes) -> None:
    queue.standing[7] = 1
    for count in range(1, 5):
        counts.note(1, 7, count)
    assert len(counts) == 1 and list(store.kept.values()) == [b"\0\4"]


def test_a_deleted_queue_takes_its_notes_with_it(counts: DeliveryCounts, queue: Entries, store: Notes) -> None:
    store.kept[_KEY.pack(9, 1)] = b"\0\1"
    other = DeliveryCounts(store)
    assert other.restore({1: SimpleNamespace(core=queue)}) == 0
    other.tick(at_once)
    assert not store.kept


def test_a_log_that_refuses_is_asked_again(counts: DeliveryCounts, queue: Entries, store: Notes) -> None:
    queue.standing[7] = 1
    counts.note(1, 7, 1)
    queue.standing.clear()
    store.broken = True
    counts.tick(at_once)
    assert store.kept
    store.broken = False
    counts.tick(at_once)
    assert not store.kept


@pytest.mark.parametrize("kind", [NOTE_DELIVERIES, NOTE_LETTERS])
def test_their_containers_are_free_without_a_record_for_each(kind: int) -> None:
    rig = Rig(size=4096)
    held = rig.publish(1)
    rig.store.note_entry(kind, _KEY.pack(1, 1), b"\1")
    for _ in range(40):
        keys = []
        for _ in range(50):
            rig.publish(1)
            position = rig.next[1] - 1
            assert rig.store.note_entry(kind, _KEY.pack(1, position), b"\1")
            keys.append(_KEY.pack(1, position))
        for key in keys:
            rig.ack(1, _KEY.unpack(key)[1])
        before = rig.store.transaction_records.tail
        rig.store.end_notes(kind, keys)
        assert rig.store.transaction_records.tail - before < 300
        rig.settle()
    log = rig.store.transaction_records
    assert log.used_bytes <= 2 * log.live_bytes + 4 * log.container_size + 4096
    for clean in (False, True):
        rig.reopen(clean)
        assert rig.store.notes(kind) == {_KEY.pack(1, 1): b"\1"}
        assert rig.recovered()[1] == {1: held}


@pytest.mark.parametrize("kind", [NOTE_DELIVERIES, NOTE_LETTERS])
def test_a_restart_leaves_out_what_has_ended(kind: int) -> None:
    """Nobody had the time to say so: the note is in the log still, its entry is not."""
    rig = Rig()
    for position in (1, 2, 3):
        rig.publish(1)
        rig.store.note_entry(kind, _KEY.pack(1, position), b"\1")
    rig.store.note_entry(kind, _KEY.pack(99, 1), b"\1")  # of a queue that is gone
    rig.ack(1, 2)
    rig.flush()
    rig.reopen(clean=False)
    assert set(rig.store.notes(kind)) == {_KEY.pack(1, 1), _KEY.pack(1, 3)}
