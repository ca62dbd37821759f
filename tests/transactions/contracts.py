"""Contracts of the two ports of transactions: subclass, say how to make one, and pytest runs it all."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pytest

from flintmq.ports import DequeueReason, StoredContent
from flintmq.transactions import (
    CommitRow,
    HeuristicOutcome,
    MessageRef,
    PendingEnqueue,
    QueueEffects,
    RecoveredEnqueue,
    TransactionStore,
    Xid,
)

CONTENT = StoredContent(b"", b"q", b"", b"body")
LONGEST = Xid(0xFFFFFFFE, b"g" * 64, b"b" * 64, "v" * 255).encode()


class TransactionStoreContract(ABC):
    """What a store offers beyond tests/ports/store_contract.py. `hold` stops durability, `release` ends that, `crash` restarts."""

    @abstractmethod
    def make(self) -> TransactionStore: ...
    @abstractmethod
    def hold(self, store: TransactionStore) -> None: ...
    @abstractmethod
    def release(self, store: TransactionStore) -> None: ...
    @abstractmethod
    def crash(self, store: TransactionStore) -> TransactionStore: ...

    @pytest.fixture
    def store(self) -> TransactionStore:
        return self.make()

    def positions(self, store: TransactionStore, queue_id: int = 1) -> list[int]:
        return [entry.position for entry in store.entries(queue_id)]

    def prepared(self, store: TransactionStore, xid: bytes = b"xid") -> int:
        """A prepared transaction: two messages for queue 1, one of them for queue 2 too; takes position 5 of queue 3."""
        store.enqueue(3, 5, store.append_content(CONTENT))
        tx = store.begin(xid)
        first, second = store.append_content(CONTENT), store.append_content(CONTENT)
        store.enqueue(1, 0, first, tx=tx)
        store.dequeue(3, 5, DequeueReason.ACK, tx=tx)
        store.enqueue(2, 0, first, tx=tx, expires_at_ms=123)
        store.enqueue(1, 0, second, tx=tx)
        store.prepare(tx)
        return tx

    def test_it_has_the_shape_of_the_port(self, store: TransactionStore) -> None:
        assert isinstance(store, TransactionStore)

    def test_the_longest_name_fits_and_comes_back(self, store: TransactionStore) -> None:
        tx = store.begin(LONGEST)
        assert store.transaction_of(LONGEST) == tx
        store.prepare(tx)
        again = self.crash(store)
        assert list(again.in_doubt()) == [LONGEST]
        assert again.transaction_of(LONGEST) == tx
        with pytest.raises(KeyError):
            again.transaction_of(b"other")

    @pytest.mark.parametrize("crashes", [0, 1, 3])
    def test_what_a_prepared_transaction_holds_is_found_in_the_order_of_the_calls(self, store: TransactionStore, crashes: int) -> None:
        tx = self.prepared(store)
        for _ in range(crashes):
            store = self.crash(store)
        enqueues, dequeues, _ = store.in_doubt_entries(store.transaction_of(b"xid"))
        items = [RecoveredEnqueue(*item) for item in enqueues]
        assert [(item.queue_id, item.expires_at_ms) for item in items] == [(1, 0), (2, 123), (1, 0)]
        assert enqueues[0][1] == enqueues[1][1] != enqueues[2][1]
        assert [tuple(item) for item in dequeues] == [(3, 5)]
        assert store.transaction_of(b"xid") == tx
        with pytest.raises(KeyError):
            store.in_doubt_entries(tx + 1_000_000)

    def test_priorities_and_lengths_of_messages_are_found(self, store: TransactionStore) -> None:
        tx = store.begin(b"xid")
        for priority in (None, 0, 9):
            store.enqueue(1, 0, store.append_content(CONTENT, priority=priority), tx=tx)
        store.prepare(tx)
        for _ in range(2):
            enqueues = [RecoveredEnqueue(*item) for item in store.in_doubt_entries(tx)[0]]
            assert [(item.priority, item.body_len) for item in enqueues] == [(None, 4), (0, 4), (9, 4)]
            store = self.crash(store)

    def test_a_name_is_free_again_once_its_transaction_has_ended(self, store: TransactionStore) -> None:
        tx = self.prepared(store)
        with pytest.raises(ValueError):
            store.begin(b"xid")
        store.commit(tx, {1: 1, 2: 1})
        again = store.begin(b"xid")
        store.enqueue(3, 0, store.append_content(CONTENT), tx=again)
        store.prepare(again)
        store = self.crash(store)
        assert list(store.in_doubt()) == [b"xid"]
        assert store.transaction_of(b"xid") == again != tx

    def test_what_a_transaction_gives_back_can_be_dropped_at_once(self, store: TransactionStore) -> None:
        tx = self.prepared(store)
        self.hold(store)
        rolled_back = store.rollback(tx)
        assert store.dequeue(3, 5, DequeueReason.DROP) > rolled_back
        self.release(store)
        assert self.positions(store, 3) == self.positions(self.crash(store), 3) == []

    @pytest.mark.parametrize("crashes", [True, False])
    def test_rows_give_positions_in_the_order_of_the_enqueues(self, store: TransactionStore, crashes: bool) -> None:
        messages = [store.append_content(CONTENT) for _ in range(4)]
        tx = store.begin(b"xid")
        for message in messages:
            store.enqueue(1, 0, message, tx=tx)
        store.enqueue(2, 0, messages[0], tx=tx)
        store.prepare(tx)
        level = 1 << 56
        store.commit_rows(tx, [CommitRow(1, level | 7, 1), CommitRow(2, 3, 1), CommitRow(1, 4, 2), CommitRow(1, level | 9, 1)])
        store = self.crash(store) if crashes else store
        found = {entry.position: entry.message_id for entry in store.entries(1)}
        assert found == {level | 7: messages[0], 4: messages[1], 5: messages[2], level | 9: messages[3]}
        assert list(found) == sorted(found)
        assert self.positions(store, 2) == [3]

    @pytest.mark.parametrize("rows", [[], [CommitRow(1, 1, 1)], [CommitRow(1, 1, 3), CommitRow(2, 1, 1)], [CommitRow(1, 1, 2)]])
    def test_rows_that_do_not_fit_are_refused(self, store: TransactionStore, rows: list[CommitRow]) -> None:
        tx = self.prepared(store)
        with pytest.raises(ValueError):
            store.commit_rows(tx, rows)
        assert (self.positions(store, 1), self.positions(store, 3)) == ([], [5])
        store.commit_rows(tx, [CommitRow(1, 1, 2), CommitRow(2, 1, 1)])
        assert (self.positions(store, 1), self.positions(store, 3)) == ([1, 2], [])

    @pytest.mark.parametrize("committed", [True, False])
    def test_a_heuristic_outcome_is_kept_until_forgotten(self, store: TransactionStore, committed: bool) -> None:
        tx = self.prepared(store)
        store.note_heuristic(tx, committed)
        if committed:
            store.commit(tx, {1: 1, 2: 1})
        else:
            store.rollback(tx)
        for _ in range(2):
            store = self.crash(store)
            assert [HeuristicOutcome(*item) for item in store.heuristics()] == [(tx, b"xid", committed)]
            assert list(store.in_doubt()) == []
            assert self.positions(store, 1) == ([1, 2] if committed else [])
        store.forget_heuristic(tx)
        with pytest.raises(KeyError):
            store.forget_heuristic(tx)
        assert list(store.heuristics()) == list(self.crash(store).heuristics()) == []

    def test_a_note_without_its_decision_leaves_the_transaction_in_doubt(self, store: TransactionStore) -> None:
        tx = self.prepared(store)
        store.note_heuristic(tx, True)
        store = self.crash(store)
        assert list(store.in_doubt()) == [b"xid"]
        assert [item.tx for item in store.heuristics()] == [tx]
        store.commit(tx, {1: 1, 2: 1})
        assert self.positions(self.crash(store), 1) == [1, 2]

    def test_notes_are_durable_in_their_turn(self, store: TransactionStore) -> None:
        tx = self.prepared(store)
        self.hold(store)
        lsns = [store.note_heuristic(tx, False), store.rollback(tx), store.forget_heuristic(tx)]
        assert lsns == sorted(set(lsns))
        assert list(self.crash(store).in_doubt()) == [b"xid"]
        self.release(store)
        assert list(self.crash(store).in_doubt()) == []


class QueueEffectsContract(ABC):
    """What queues do for transactions. Queue 1 exists, without priorities; queue 99 does not."""

    @abstractmethod
    def make(self) -> QueueEffects: ...
    @abstractmethod
    def add(self, effects: QueueEffects, *, durable: bool) -> int:
        """Puts a message (CONTENT) into queue 1. Returns its position."""

    @abstractmethod
    def acquire(self, effects: QueueEffects, position: int, session: str) -> bool:
        """A consumer of the session takes the entry of queue 1, if it is available."""

    @abstractmethod
    def available(self, effects: QueueEffects) -> list[int]:
        """Positions of what a new consumer of queue 1 would get, in order."""

    @pytest.fixture
    def effects(self) -> QueueEffects:
        return self.make()

    def test_it_has_the_shape_of_the_port(self, effects: QueueEffects) -> None:
        assert isinstance(effects, QueueEffects)

    @pytest.mark.parametrize("durable", [True, False])
    def test_a_held_entry_is_nobody_elses(self, effects: QueueEffects, durable: bool) -> None:
        position = self.add(effects, durable=durable)
        held = effects.hold(1, position, "me")
        assert held is not None
        assert held.logged is durable
        assert self.available(effects) == []
        assert not self.acquire(effects, position, "me")
        assert effects.hold(1, position, "me") is effects.hold(1, position, "you") is effects.hold(1, position, None) is None

    def test_an_acquired_entry_is_held_by_its_own_session_only(self, effects: QueueEffects) -> None:
        position = self.add(effects, durable=True)
        assert self.acquire(effects, position, "me")
        assert effects.hold(1, position, "you") is None
        assert effects.hold(1, position, "me") is not None

    def test_what_is_not_there_is_not_held(self, effects: QueueEffects) -> None:
        assert effects.hold(1, 12345, "me") is effects.hold(99, 1, "me") is None

    def test_release_puts_entries_back_in_their_places(self, effects: QueueEffects) -> None:
        positions = [self.add(effects, durable=True) for _ in range(4)]
        for position in positions[1:3]:
            effects.hold(1, position, "me")
        effects.release(1, [positions[2], positions[1]])
        assert self.available(effects) == positions
        again = effects.hold(1, positions[1], "me")
        assert again is not None

    def test_settle_removes(self, effects: QueueEffects) -> None:
        positions = [self.add(effects, durable=True) for _ in range(3)]
        effects.hold(1, positions[1], "me")
        effects.settle(1, [positions[1]])
        assert self.available(effects) == [positions[0], positions[2]]
        assert effects.hold(1, positions[1], "me") is None

    def test_the_content_of_a_held_transient_entry_can_be_read(self, effects: QueueEffects) -> None:
        position = self.add(effects, durable=False)
        effects.hold(1, position, "me")
        assert effects.content(1, position) == CONTENT

    def test_positions_are_reserved_once_in_order_above_all_used(self, effects: QueueEffects) -> None:
        before = self.add(effects, durable=True)
        reserved = effects.reserve(1, [None, 0, None])
        unused = effects.reserve(1, [None])
        after = self.add(effects, durable=True)
        assert reserved is not None and unused is not None
        assert [before, *reserved, *unused, after] == sorted({before, *reserved, *unused, after})
        assert self.available(effects) == [before, after]

    def test_published_entries_stand_at_their_places_also_behind_later_ones(self, effects: QueueEffects) -> None:
        reserved = effects.reserve(1, [None, None])
        assert reserved is not None
        after = self.add(effects, durable=True)
        entries = [PendingEnqueue(1, MessageRef(CONTENT), None, 0, False) for _ in reserved]
        effects.publish(1, list(zip(reserved, entries)))
        assert self.available(effects) == [*reserved, after]
        assert effects.hold(1, reserved[0], "me") is not None

    def test_a_queue_that_is_gone_takes_everything_in_silence(self, effects: QueueEffects) -> None:
        assert effects.reserve(99, [None]) is None
        effects.release(99, [1])
        effects.settle(99, [1])
        effects.publish(99, [(1, PendingEnqueue(99, MessageRef(CONTENT), None, 0, False))])
        assert self.available(effects) == []
