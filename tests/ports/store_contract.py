"""Contract of the Store port: subclass StoreContract, say how to make, hold, release and crash a store, and pytest runs it all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flintmq.ports import DequeueReason
from tests.support.stored import Store, StoredContent

CONTENT = StoredContent(b"x", b"k", b"header", b"body")
ACK = DequeueReason.ACK


class StoreContract(ABC):
    """What every Store does. `hold` stops durability, `release` lets everything become durable, `crash` restarts."""

    @abstractmethod
    def make(self) -> Store: ...
    @abstractmethod
    def hold(self, store: Store) -> None: ...
    @abstractmethod
    def release(self, store: Store) -> None: ...
    @abstractmethod
    def crash(self, store: Store) -> Store: ...
    @abstractmethod
    def decide(self, store: Store, xid: bytes) -> int:
        """Id of the in-doubt transaction `xid`."""

    @pytest.fixture
    def store(self) -> Store:
        return self.make()

    def positions(self, store: Store, queue_id: int = 1) -> list[int]:
        return [entry.position for entry in store.entries(queue_id)]

    def test_it_has_the_shape_of_the_port(self, store: Store) -> None:
        assert isinstance(store, Store)

    def test_entries_come_back_by_position(self, store: Store) -> None:
        message = store.append_content(CONTENT)
        for position in (3, 1, 1 << 56 | 1, 2):
            store.enqueue(1, position, message)
        assert self.positions(store) == [1, 2, 3, 1 << 56 | 1]
        assert [entry.message_id for entry in store.entries(1)] == [message] * 4

    def test_lsns_grow_and_ids_differ(self, store: Store) -> None:
        messages = [store.append_content(CONTENT) for _ in range(3)]
        lsns = [store.enqueue(1, position, message) for position, message in enumerate(messages, 1)]
        assert len(set(messages)) == 3
        assert lsns == sorted(set(lsns))

    def test_wrong_calls_are_refused(self, store: Store) -> None:
        message = store.append_content(CONTENT)
        store.enqueue(1, 1, message)
        tx = store.begin()
        with pytest.raises(KeyError):
            store.enqueue(1, 2, message + 1000)
        with pytest.raises(ValueError):
            store.enqueue(1, 1, message)
        with pytest.raises(ValueError):
            store.enqueue(1, 0, message)
        with pytest.raises(ValueError):
            store.enqueue(1, 5, message, tx=tx)
        with pytest.raises(KeyError):
            store.dequeue(1, 9, ACK)
        with pytest.raises(KeyError):
            store.commit(tx + 1000)
        with pytest.raises(ValueError):
            store.prepare(tx)
        store.enqueue(1, 0, message, tx=tx)
        with pytest.raises(ValueError):
            store.commit(tx)
        store.rollback(tx)
        with pytest.raises(ValueError):
            store.rollback(tx)
        assert self.positions(store) == [1]

    def test_a_message_goes_with_its_last_entry(self, store: Store) -> None:
        message = store.append_content(CONTENT)
        store.enqueue(1, 1, message)
        store.enqueue(2, 1, message)
        store.dequeue(1, 1, ACK)
        store.enqueue(3, 1, message)
        store.dequeue(2, 1, ACK)
        store.dequeue(3, 1, ACK)
        with pytest.raises(KeyError):
            store.enqueue(4, 1, message)

    def test_a_pending_transacted_enqueue_keeps_the_message(self, store: Store) -> None:
        message = store.append_content(CONTENT)
        store.enqueue(1, 1, message)
        tx = store.begin()
        store.enqueue(2, 0, message, tx=tx)
        store.dequeue(1, 1, ACK)
        store.commit(tx, {2: 7})
        assert self.positions(store, 2) == [7]

    def test_callbacks_wait_for_durability_and_run_in_lsn_order(self, store: Store) -> None:
        ran: list[str] = []
        message = store.append_content(CONTENT)
        early = store.enqueue(1, 1, message)
        store.on_durable(early, lambda: ran.append("early"))
        assert ran == ["early"]
        self.hold(store)
        first, second = store.enqueue(1, 2, message), store.enqueue(1, 3, message)
        store.on_durable(second, lambda: ran.append("second"))
        store.on_durable(first, lambda: ran.append("first"))
        store.on_durable(first, lambda: ran.append("first again"))
        store.on_durable(0, lambda: ran.append("nothing to wait for"))
        assert ran == ["early", "nothing to wait for"]
        assert store.durable_lsn < first
        self.release(store)
        assert ran == ["early", "nothing to wait for", "first", "first again", "second"]
        assert store.durable_lsn >= second

    def test_a_crash_loses_what_was_not_durable_and_nothing_else(self, store: Store) -> None:
        message = store.append_content(CONTENT)
        store.enqueue(1, 1, message)
        store.enqueue(1, 2, message)
        self.hold(store)
        store.enqueue(1, 3, message)
        store.dequeue(1, 1, ACK)
        assert self.positions(store) == [2, 3]
        assert self.positions(self.crash(store)) == [1, 2]

    def test_a_transaction_shows_only_when_committed(self, store: Store) -> None:
        message = store.append_content(CONTENT)
        store.enqueue(1, 1, message)
        tx = store.begin()
        assert store.enqueue(1, 0, message, tx=tx) == 0
        assert store.enqueue(2, 0, message, tx=tx) == 0
        assert store.enqueue(1, 0, message, tx=tx) == 0
        assert store.dequeue(1, 1, ACK, tx=tx) == 0
        with pytest.raises(KeyError):
            store.dequeue(1, 1, ACK)
        assert self.positions(store) == [1]
        assert self.positions(store, 2) == []
        assert store.commit(tx, {1: 5, 2: 1}) > 0
        assert self.positions(store) == [5, 6]
        assert self.positions(store, 2) == [1]

    def test_rollback_undoes_all_of_it(self, store: Store) -> None:
        message = store.append_content(CONTENT)
        store.enqueue(1, 1, message)
        tx = store.begin()
        store.enqueue(2, 0, message, tx=tx)
        store.dequeue(1, 1, ACK, tx=tx)
        store.rollback(tx)
        assert self.positions(store) == [1]
        assert self.positions(store, 2) == []
        store.dequeue(1, 1, ACK)

    def test_an_open_or_undurable_transaction_does_not_survive(self, store: Store) -> None:
        message = store.append_content(CONTENT)
        store.enqueue(1, 1, message)
        open_tx, committed = store.begin(), store.begin()
        store.enqueue(2, 0, message, tx=open_tx)
        store.dequeue(1, 1, ACK, tx=open_tx)
        store.enqueue(3, 0, message, tx=committed)
        self.hold(store)
        store.commit(committed, {3: 1})
        again = self.crash(store)
        assert self.positions(again) == [1]
        assert self.positions(again, 2) == self.positions(again, 3) == []
        again.dequeue(1, 1, ACK)

    @pytest.mark.parametrize("commits", [True, False])
    def test_a_prepared_transaction_comes_back_in_doubt(self, store: Store, commits: bool) -> None:
        message = store.append_content(CONTENT)
        store.enqueue(1, 1, message)
        tx = store.begin(b"xid")
        with pytest.raises(ValueError):
            store.begin(b"xid")
        store.enqueue(2, 0, message, tx=tx)
        store.dequeue(1, 1, ACK, tx=tx)
        store.prepare(tx)
        with pytest.raises(ValueError):
            store.enqueue(2, 0, message, tx=tx)
        self.hold(store)
        again = self.crash(store)
        assert list(again.in_doubt()) == [b"xid"]
        (entry,) = again.entries(1)
        assert entry.in_doubt_tx != 0
        with pytest.raises(KeyError):
            again.dequeue(1, 1, ACK)
        decided = self.decide(again, b"xid")
        if commits:
            again.commit(decided, {2: 1})
        else:
            again.rollback(decided)
        assert list(again.in_doubt()) == []
        assert (self.positions(again), self.positions(again, 2)) == (([], [1]) if commits else ([1], []))

    def test_dropping_a_queue_ends_its_entries_in_transactions_too(self, store: Store) -> None:
        message = store.append_content(CONTENT)
        store.enqueue(1, 1, message)
        store.enqueue(2, 1, message)
        tx = store.begin()
        store.enqueue(1, 0, message, tx=tx)
        store.dequeue(1, 1, ACK, tx=tx)
        store.enqueue(2, 0, message, tx=tx)
        store.drop_queue(1)
        store.drop_queue(1)
        assert self.positions(store) == []
        store.commit(tx, {2: 2})
        assert self.positions(store) == []
        assert self.positions(store, 2) == [1, 2]

    @settings(max_examples=60, suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow], deadline=None)
    @given(st.data())
    def test_any_crash_leaves_whole_transactions(self, data: st.DataObject) -> None:
        store = self.make()
        expected: Counter[int] = Counter()  # entries per queue that must be there after the crash
        held = False
        for step in range(1, data.draw(st.integers(1, 12)) + 1):
            if not held and data.draw(st.booleans()):
                self.hold(store)
                held = True
            message = store.append_content(CONTENT)
            tx = store.begin()
            queues = data.draw(st.lists(st.integers(1, 3), max_size=4))
            for queue_id in queues:
                store.enqueue(queue_id, 0, message, tx=tx)
            end = data.draw(st.sampled_from(("commit", "rollback", "left open")))
            if end == "commit":
                store.commit(tx, dict.fromkeys(queues, step * 10))
                expected.update(queues if not held else [])
            elif end == "rollback":
                store.rollback(tx)
        again = self.crash(store)
        for queue_id in (1, 2, 3):
            assert len(self.positions(again, queue_id)) == expected[queue_id]
