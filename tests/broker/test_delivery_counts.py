"""Notes of delivery counts end with their messages: neither memory nor the log grows with what was."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from flintmq.broker.delivery_counts import _KEY, PRUNE_MOST, DeliveryCounts
from flintmq.ports import NOTE_DELIVERIES, NOTE_LETTERS
from flintmq.queue.control import QueueHandle, free_owner, new_owner
from tests.store.rig import Rig

PERSISTENT = 1
ENDS_AT_ONCE = 256


class Queue:
    """A queue that counts, on a store of its own."""

    def __init__(self, size: int = 1 << 16) -> None:
        self.rig = Rig(size=size)
        self.owner = new_owner()
        self.begin()

    def begin(self) -> None:
        self.core: Any = QueueHandle(1)
        self.core.set_durable(True)
        self.core.set_returns(True, -1, False)
        self.core.attach_log(self.rig.store)
        self.rig.store.attach(self.core)
        self.rig.store.restore(self.core)
        self.rig.store.restored()
        self.counts = DeliveryCounts(self.rig.store)
        self.restored = self.counts.restore({1: SimpleNamespace(core=self.core)})

    def restart(self, clean: bool = False) -> None:
        self.rig.reopen(clean)
        self.begin()

    def publish(self) -> int:
        return int(self.core.publish(b"", b"q", bytes(14), b"x", PERSISTENT, 0))

    def come_back(self, position: int) -> None:
        assert self.core.take_at(position, self.owner)
        assert self.core.release_held(position, True, self.owner)

    def end(self, position: int) -> None:
        assert self.core.hold(position)
        self.core.settle_held(position, 1, False)


def at_once(step: Any, ended: Any) -> None:
    while not step():
        pass
    ended(True)


@pytest.fixture
def queue() -> Any:
    made = Queue()
    yield made
    made.rig.store.close()
    free_owner(made.owner)


def test_what_comes_back_once_and_is_acked_leaves_nothing(queue: Queue) -> None:
    places = []
    for _ in range(5_000):
        places.append(queue.publish())
        queue.come_back(places[-1])
        if len(places) > 100:  # as many are under way
            queue.end(places.pop(0))
        assert len(queue.counts) <= 2 * 100 + ENDS_AT_ONCE + 2
    for position in places:
        queue.end(position)
    queue.counts.tick(at_once)
    assert not len(queue.counts)


def test_what_stays_is_kept_and_what_ended_is_no_more_than_that(queue: Queue) -> None:
    rng = random.Random(1)
    standing = []
    for _ in range(5_000):
        position = queue.publish()
        queue.come_back(position)
        if rng.random() < 0.9:
            queue.end(position)
        else:
            standing.append(position)
        assert len(queue.counts) <= 2 * len(standing) + ENDS_AT_ONCE + 100
    queue.rig.settle()
    queue.restart()
    assert queue.restored == len(standing)
    assert all(queue.core.entry_facts(position)[1] == 1 for position in standing)


def test_a_higher_count_is_the_same_note(queue: Queue) -> None:
    position = queue.publish()
    for _ in range(4):
        queue.come_back(position)
    assert len(queue.counts) == 1
    queue.rig.settle()
    queue.restart()
    assert queue.restored == 1 and queue.core.entry_facts(position)[1] == 4
    queue.come_back(position)
    queue.rig.settle()
    queue.restart(clean=True)
    assert queue.core.entry_facts(position)[1] == 5


class Looked:
    """The store's counts, and at how many notes was looked."""

    def __init__(self, counts: Any) -> None:
        self.counts, self.looks = counts, 0

    def __len__(self) -> int:
        return len(self.counts)

    def look(self, most: int) -> int:
        self.looks += most
        return int(self.counts.look(most))

    def end(self) -> None:
        self.counts.end()


def test_a_pass_looks_at_few_that_stay_and_goes_on_while_most_have_ended(queue: Queue) -> None:
    places = [queue.publish() for _ in range(3 * PRUNE_MOST)]
    for position in places:
        queue.come_back(position)
    looked = Looked(queue.rig.store.counts)
    counts = DeliveryCounts(SimpleNamespace(counts=looked))
    counts.tick(at_once)
    assert looked.looks == PRUNE_MOST and len(counts) == 3 * PRUNE_MOST
    for position in places:
        queue.end(position)
    counts.tick(at_once)
    assert not len(counts)


def test_a_deleted_queue_takes_its_notes_with_it(queue: Queue) -> None:
    for _ in range(3 * PRUNE_MOST):
        queue.come_back(queue.publish())
    queue.core.mark_deleted()
    queue.counts.tick(at_once)
    assert not len(queue.counts)


def test_notes_of_a_queue_that_is_gone_go_at_a_start(queue: Queue) -> None:
    for _ in range(300):
        queue.come_back(queue.publish())
    queue.rig.settle()
    queue.rig.reopen(clean=False)
    counts = DeliveryCounts(queue.rig.store)
    assert counts.restore({}) == 0 and not len(counts)


def test_the_base_passes_notes_that_stay(queue: Queue) -> None:
    """What is below the base is written anew: the log holds no more than twice what lives, and the notes stand after a crash."""
    kept = [queue.publish() for _ in range(20)]
    for position in kept:
        queue.come_back(position)
    log = queue.rig.store.transaction_records
    for _ in range(60):
        for _ in range(60):
            position = queue.publish()
            queue.come_back(position)
            queue.end(position)
        queue.counts.tick(at_once)
        queue.rig.settle()
    assert log.used_bytes <= 2 * log.live_bytes + 4 * log.container_size + 4096
    queue.restart()
    assert queue.restored == 20 and all(queue.core.entry_facts(position)[1] == 1 for position in kept)


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
