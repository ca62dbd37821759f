"""The twins that the other tests trust keep the contracts that real stores and queues must keep."""

from __future__ import annotations

from flintmq.transactions import QueueEffects, TransactionStore
from tests.twins.memory_effects import MemoryQueueEffects

from ..ports.store_contract import StoreContract
from .contracts import CONTENT, QueueEffectsContract, TransactionStoreContract
from .twin_store import TwinStore


class TestTwinStore(TransactionStoreContract, StoreContract):
    def make(self) -> TransactionStore:
        return TwinStore()

    def hold(self, store: TransactionStore) -> None:
        store.hold()

    def release(self, store: TransactionStore) -> None:
        store.release()

    def crash(self, store: TransactionStore) -> TransactionStore:
        return store.crash()

    def decide(self, store: TransactionStore, xid: bytes) -> int:
        return store.transaction_of(xid)


class TestMemoryQueueEffects(QueueEffectsContract):
    def make(self) -> QueueEffects:
        effects = MemoryQueueEffects()
        effects.declare(1)
        return effects

    def add(self, effects: QueueEffects, *, durable: bool) -> int:
        return effects.add(1, CONTENT, message_id=77 if durable else 0)

    def acquire(self, effects: QueueEffects, position: int, session: str) -> bool:
        return effects.acquire(1, position, session)

    def available(self, effects: QueueEffects) -> list[int]:
        return effects.available(1)
