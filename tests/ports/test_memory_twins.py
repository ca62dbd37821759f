"""The ports that have an implementation in memory: it keeps their contracts."""

from __future__ import annotations

from flintmq.ports import Definitions
from flintmq.store.definitions import MemoryDefinitions
from tests.support.stored import Store
from tests.twins.memory_store import MemoryStore

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
    assert isinstance(MemoryStore(), Store)
    assert isinstance(MemoryDefinitions(), Definitions)
