"""The in-memory twins keep the contracts of their ports."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.access.permissions import Permissions
from flintmq.ports import Authorizer, ContentStore, Cursor, Definitions, EntryList, EntryState, Store, StoredContent
from flintmq.store.definitions import MemoryDefinitions
from flintmq.store.memory import MemoryContentStore, MemoryStore
from flintmq.store.memory_list import MemoryCursor, MemoryEntry, MemoryEntryList, qpid_level, rabbitmq_level

from .definitions_contract import DefinitionsContract
from .store_contract import CONTENT, StoreContract


class TestMemoryStore(StoreContract):
    def make(self) -> MemoryStore:
        return MemoryStore()

    def hold(self, store: Store) -> None:
        assert isinstance(store, MemoryStore)
        store.hold()

    def release(self, store: Store) -> None:
        assert isinstance(store, MemoryStore)
        store.release()

    def crash(self, store: Store) -> MemoryStore:
        assert isinstance(store, MemoryStore)
        return store.crash()

    def decide(self, store: Store, xid: bytes) -> int:
        assert isinstance(store, MemoryStore)
        return store.transaction_of(xid)

    def test_a_partial_release_makes_just_that_much_durable(self) -> None:
        store = MemoryStore()
        message = store.append_content(CONTENT)
        store.hold()
        first, second = store.enqueue(1, 1, message), store.enqueue(1, 2, message)
        ran: list[int] = []
        for lsn in (first, second):
            store.on_durable(lsn, lambda lsn=lsn: ran.append(lsn))  # type: ignore[misc]
        store.release(first)
        assert ran == [first]
        assert self.positions(store.crash()) == [1]


class TestMemoryDefinitions(DefinitionsContract):
    def make(self) -> MemoryDefinitions:
        return MemoryDefinitions()


def test_shapes() -> None:
    entries = MemoryEntryList(1)
    assert isinstance(entries, EntryList)
    assert isinstance(MemoryCursor(entries, "g"), Cursor)
    assert isinstance(MemoryContentStore(MemoryStore()), ContentStore)
    assert isinstance(MemoryDefinitions(), Definitions)
    assert isinstance(Permissions(MemoryDefinitions()), Authorizer)


# --- content ------------------------------------------------------------------------------------------------------------


def test_content_is_not_resident_until_asked_for() -> None:
    store = MemoryStore()
    content = MemoryContentStore(store)
    message = store.append_content(CONTENT)
    answers: list[StoredContent | None] = []
    assert content.load(message) is None
    with pytest.raises(KeyError):
        content.load(message + 1)
    content.hold_loads()
    content.request(message, answers.append)
    assert answers == []
    content.release_loads()
    assert answers == [CONTENT]
    assert content.load(message) == CONTENT
    assert content.evict(message)
    assert not content.evict(message)
    assert content.load(message) is None


def test_a_request_for_a_message_that_went_is_answered_with_none() -> None:
    content = MemoryContentStore(MemoryStore())
    answers: list[StoredContent | None] = []
    content.request(77, answers.append)
    assert answers == [None]


# --- entry lists --------------------------------------------------------------------------------------------------------


def remove(entries: MemoryEntryList, entry: MemoryEntry) -> None:
    entry.state = EntryState.DEQUEUED
    entries.remove(entry)


def test_an_entry_is_followed_also_after_its_removal() -> None:
    entries = MemoryEntryList(1)
    first, second, third = (entries.add(message) for message in (1, 2, 3))
    with pytest.raises(ValueError):
        entries.remove(second)
    remove(entries, second)
    assert second.state is EntryState.DELETED
    assert entries.next(first) is third
    assert entries.next(second) is third
    assert entries.next(third) is None
    remove(entries, first)
    assert entries.head() is third
    assert entries.add(4).position > third.position


def test_iteration_survives_removal_and_sees_what_is_added_at_the_end() -> None:
    entries = MemoryEntryList(1)
    added = [entries.add(message) for message in range(4)]
    seen = []
    for entry in entries.iterator():
        seen.append(entry.message_id)
        if entry is added[0]:
            remove(entries, added[0])
            remove(entries, added[2])
            entries.add(9)
    assert seen == [0, 1, 3, 9]


@pytest.mark.parametrize(
    ("rule", "levels", "priorities", "served"),
    [
        (rabbitmq_level, 11, [None, 3, 10, 200, 0], [10, 200, 3, None, 0]),
        (qpid_level, 10, [None, 9, 4, 0], [9, None, 4, 0]),
        (qpid_level, 2, [4, 5, 9, None], [5, 9, 4, None]),
        (rabbitmq_level, 1, [5, None], [5, None]),
    ],
)
def test_priority_rules(rule: object, levels: int, priorities: list[int | None], served: list[int | None]) -> None:
    entries = MemoryEntryList(1, levels, rule)  # type: ignore[arg-type]
    messages = {}
    for number, priority in enumerate(priorities):
        messages[entries.add(number, priority).position] = priority
    assert [messages[entry.position] for entry in entries.iterator()] == served
    assert entries.priorities == levels


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
def test_order_is_level_then_arrival(events: list[tuple[int, bool]]) -> None:
    entries = MemoryEntryList(1, 4)
    model: list[tuple[int, int]] = []
    for number, (priority, take) in enumerate(events):
        entry = entries.add(number, priority)
        model.append((-min(priority, 3), number))
        if take:
            head = entries.head()
            assert head is not None
            assert head.message_id == min(model)[1]
            model.remove(min(model))
            remove(entries, head)
        assert entries.compare(entry, entry) == 0
    listed = list(entries.iterator())
    assert [entry.message_id for entry in listed] == [number for _, number in sorted(model)]
    assert all(entries.compare(left, right) < 0 for left, right in pairwise(listed))


# --- cursors ------------------------------------------------------------------------------------------------------------


def test_a_cursor_reads_without_changing_and_goes_on_where_it_committed() -> None:
    entries = MemoryEntryList(1)
    for message in range(5):
        entries.add(message)
    cursor = MemoryCursor(entries, "group")
    assert [entry.message_id for entry in cursor.next(2)] == [0, 1]
    cursor.commit()
    assert [entry.message_id for entry in cursor.next(10)] == [2, 3, 4]
    assert list(cursor.next(1)) == []
    with pytest.raises(ValueError):
        cursor.commit(6)
    with pytest.raises(ValueError):
        cursor.next(0)
    cursor.commit(1)
    assert (cursor.committed, cursor.position, cursor.group) == (2, 5, "group")
    again = MemoryCursor(entries, "group", cursor.committed)
    assert [entry.message_id for entry in again.next(1)] == [2]
    again.seek(0)
    assert (again.committed, [entry.message_id for entry in again.next(1)]) == (0, [0])
    assert len(list(entries.iterator())) == 5


def test_a_cursor_refuses_a_priority_list() -> None:
    with pytest.raises(ValueError):
        MemoryCursor(MemoryEntryList(1, 2), "group")
