"""Contract of the store of transactions, single messages included: subclass, say how to make one, and pytest runs it all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pytest

from flintmq.ports import DequeueReason
from flintmq.store.transaction_log import Row
from flintmq.transactions import HeuristicOutcome, TransactionStore, Xid
from tests.support.stored import StoredContent

CONTENT = StoredContent(b"", b"q", b"", b"body")
LONGEST = Xid(0xFFFFFFFE, b"g" * 64, b"b" * 64, "v" * 255).encode()


class TransactionStoreContract(ABC):
    """What a store offers beyond tests/ports/store_contract.py. `hold` stops durability, `release` ends that, `crash` restarts."""

    @abstractmethod
    def make(self) -> Any: ...
    @abstractmethod
    def hold(self, store: Any) -> None: ...
    @abstractmethod
    def release(self, store: Any) -> None: ...
    @abstractmethod
    def crash(self, store: Any) -> Any: ...

    @pytest.fixture
    def store(self) -> Any:
        return self.make()

    def positions(self, store: Any, queue_id: int = 1) -> list[int]:
        return [entry.position for entry in store.entries(queue_id)]

    def prepared(self, store: Any, xid: bytes = b"xid") -> int:
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

    def test_it_has_the_shape_of_the_port(self, store: Any) -> None:
        assert isinstance(store, TransactionStore)

    def test_the_longest_name_fits_and_comes_back(self, store: Any) -> None:
        tx = store.begin(LONGEST)
        assert store.transaction_of(LONGEST) == tx
        store.prepare(tx)
        again = self.crash(store)
        assert list(again.in_doubt()) == [LONGEST]
        assert again.transaction_of(LONGEST) == tx
        with pytest.raises(KeyError):
            again.transaction_of(b"other")

    @pytest.mark.parametrize("crashes", [0, 1, 3])
    def test_what_a_prepared_transaction_holds_is_found_in_the_order_of_the_calls(self, store: Any, crashes: int) -> None:
        tx = self.prepared(store)
        for _ in range(crashes):
            store = self.crash(store)
        dequeues, _ = store.in_doubt_entries(store.transaction_of(b"xid"))
        enqueues = store.enqueues_in_doubt(tx)
        assert [(queue_id, expires_at_ms) for queue_id, _, expires_at_ms, _, _ in enqueues] == [(1, 0), (2, 123), (1, 0)]
        assert enqueues[0][1] == enqueues[1][1] != enqueues[2][1]
        assert [tuple(item) for item in dequeues] == [(3, 5)]
        assert store.transaction_of(b"xid") == tx
        with pytest.raises(KeyError):
            store.in_doubt_entries(tx + 1_000_000)

    def test_priorities_and_lengths_of_messages_are_found(self, store: Any) -> None:
        tx = store.begin(b"xid")
        for priority in (None, 0, 9):
            store.enqueue(1, 0, store.append_content(CONTENT, priority=priority), tx=tx)
        store.prepare(tx)
        for _ in range(2):
            assert [item[3:] for item in store.enqueues_in_doubt(tx)] == [(None, 4), (0, 4), (9, 4)]
            store = self.crash(store)

    def test_a_name_is_free_again_once_its_transaction_has_ended(self, store: Any) -> None:
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

    def test_what_a_transaction_gives_back_can_be_dropped_at_once(self, store: Any) -> None:
        tx = self.prepared(store)
        self.hold(store)
        rolled_back = store.rollback(tx)
        assert store.dequeue(3, 5, DequeueReason.DROP) > rolled_back
        self.release(store)
        assert self.positions(store, 3) == self.positions(self.crash(store), 3) == []

    @pytest.mark.parametrize("crashes", [True, False])
    def test_rows_give_positions_in_the_order_of_the_enqueues(self, store: Any, crashes: bool) -> None:
        messages = [store.append_content(CONTENT) for _ in range(4)]
        tx = store.begin(b"xid")
        for message in messages:
            store.enqueue(1, 0, message, tx=tx)
        store.enqueue(2, 0, messages[0], tx=tx)
        store.prepare(tx)
        level = 1 << 56
        store.commit(tx, [Row(1, level | 7, 1), Row(2, 3, 1), Row(1, 4, 2), Row(1, level | 9, 1)])
        store = self.crash(store) if crashes else store
        found = {entry.position: entry.message_id for entry in store.entries(1)}
        assert found == {level | 7: messages[0], 4: messages[1], 5: messages[2], level | 9: messages[3]}
        assert list(found) == sorted(found)
        assert self.positions(store, 2) == [3]

    @pytest.mark.parametrize("rows", [[], [Row(1, 1, 1)], [Row(1, 1, 3), Row(2, 1, 1)], [Row(1, 1, 2)]])
    def test_rows_that_do_not_fit_are_refused(self, store: Any, rows: list[Row]) -> None:
        tx = self.prepared(store)
        with pytest.raises(ValueError):
            store.commit(tx, rows)
        assert (self.positions(store, 1), self.positions(store, 3)) == ([], [5])
        store.commit(tx, [Row(1, 1, 2), Row(2, 1, 1)])
        assert (self.positions(store, 1), self.positions(store, 3)) == ([1, 2], [])

    @pytest.mark.parametrize("committed", [True, False])
    def test_a_heuristic_outcome_is_kept_until_forgotten(self, store: Any, committed: bool) -> None:
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

    def test_a_note_without_its_decision_leaves_the_transaction_in_doubt(self, store: Any) -> None:
        tx = self.prepared(store)
        store.note_heuristic(tx, True)
        store = self.crash(store)
        assert list(store.in_doubt()) == [b"xid"]
        assert [item.tx for item in store.heuristics()] == [tx]
        store.commit(tx, {1: 1, 2: 1})
        assert self.positions(self.crash(store), 1) == [1, 2]

    def test_notes_are_durable_in_their_turn(self, store: Any) -> None:
        tx = self.prepared(store)
        self.hold(store)
        lsns = [store.note_heuristic(tx, False), store.rollback(tx), store.forget_heuristic(tx)]
        assert lsns == sorted(set(lsns))
        assert list(self.crash(store).in_doubt()) == [b"xid"]
        self.release(store)
        assert list(self.crash(store).in_doubt()) == []
