"""The twin of the store that the other tests trust keeps the contract that the real one must keep."""

from __future__ import annotations

from typing import Any

from ..ports.store_contract import StoreContract
from .contracts import TransactionStoreContract
from .twin_store import TwinStore


class TestTwinStore(TransactionStoreContract, StoreContract):
    def make(self) -> Any:
        return TwinStore()

    def hold(self, store: Any) -> None:
        store.hold()

    def release(self, store: Any) -> None:
        store.release()

    def crash(self, store: Any) -> Any:
        return store.crash()

    def decide(self, store: Any, xid: bytes) -> int:
        return store.transaction_of(xid)
