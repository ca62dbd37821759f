"""LogStore keeps the contract of the Store port, and that of transactions, over crashes of its files."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drivers.store_driver import DrivenStore
from tests.ports.store_contract import StoreContract
from tests.store.rig import Rig
from tests.support.stored import Store
from tests.transactions.contracts import TransactionStoreContract

# ids that the contracts use for queues
QUEUES = set(range(1, 20))
SIZES = {"container_size": 16384, "known_queues": QUEUES, "threads": False}


class Flushing:
    """A LogStore whose calls are durable when they return, unless held."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store: Any = DrivenStore.open(None, str(directory), **SIZES)
        self.image: Path | None = None

    def settle(self) -> None:
        """Writes everything, with maintenance in between where a container is missing."""
        while True:
            while self.store.flush() == 1:
                pass
            before = self.store.messages.tail, self.store.transaction_records.tail
            self.store.maintain()
            durable = self.store.messages.durable_lsn, self.store.transaction_records.durable_lsn
            if before == (self.store.messages.tail, self.store.transaction_records.tail) == durable:
                return

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return found(*args, **kwargs)
            finally:
                if self.image is None:
                    self.settle()

        return call


@pytest.fixture(autouse=True)
def directories(tmp_path: Path) -> Any:
    yield
    for one in Files.open_stores:
        one.store.close(clean=False)
        shutil.rmtree(one.directory, ignore_errors=True)
    Files.open_stores = []


class Files:
    """The hooks of both contracts, on directories."""

    open_stores: list[Flushing] = []

    def make(self) -> Any:
        return self.opened(Path(tempfile.mkdtemp(prefix="flintmq-store-")))

    def opened(self, directory: Path) -> Flushing:
        store = Flushing(directory)
        Files.open_stores.append(store)
        return store

    def hold(self, store: Any) -> None:
        store.image = Path(tempfile.mkdtemp(prefix="flintmq-image-"))
        shutil.copytree(store.directory, store.image, dirs_exist_ok=True)

    def release(self, store: Any) -> None:
        shutil.rmtree(store.image)
        store.image = None
        store.settle()

    def crash(self, store: Any) -> Any:
        image = store.image
        if image is None:
            image = Path(tempfile.mkdtemp(prefix="flintmq-image-"))
            shutil.copytree(store.directory, image, dirs_exist_ok=True)
        return self.opened(image)

    def decide(self, store: Store, xid: bytes) -> int:
        return store.transaction_of(xid)  # type: ignore[attr-defined]


class TestStoreContract(Files, StoreContract):
    pass


class TestTransactionStoreContract(Files, TransactionStoreContract):
    pass


def test_a_callback_of_another_thread_waits_for_the_one_that_runs(tmp_path: Path) -> None:
    """Callbacks run in order, also when a second thread registers one that is due while the first one's is under way."""
    store: Any = DrivenStore.open(None, str(tmp_path), **SIZES)
    order: list[str] = []

    def first() -> None:
        other = threading.Thread(target=store.on_durable, args=(0, lambda: order.append("second")))
        other.start()
        other.join()
        order.append("first")

    try:
        store.on_durable(0, first)
    finally:
        store.close(clean=False)
    assert order == ["first", "second"]


def test_transactions_that_begin_together_leave_nothing_behind() -> None:
    """Their starts are the shortest records that live: each has its own bit of a dead map, so the log's base can pass all of them."""
    rig = Rig(size=8192)
    for _ in range(200):
        together = [rig.store.begin() for _ in range(5)]
        for tx in together:
            rig.store.rollback(tx)
        rig.flush()
    rig.settle()
    log = rig.store.transaction_records
    assert log.live_count == 0
    assert log.used_bytes <= 4 * log.container_size


@given(st.lists(st.tuples(st.sampled_from(["begin", "note", "drop", "end", "copy", "restart"]), st.integers(0, 5)), max_size=60))
@settings(max_examples=60, deadline=None)
def test_transactions_and_notes_stand_in_the_order_of_their_records(steps: list[tuple[str, int]]) -> None:
    """So what lives below an LSN is found without a look at all others: copies leave nothing below it, over restarts too."""
    rig = Rig()
    number = 0
    for what, which in steps:
        transactions = rig.store.transactions
        if what == "begin":
            rig.store.prepare(rig.store.begin(b"xid %d" % (number := number + 1)))
        elif what in ("note", "drop"):
            rig.store.note(99, b"key %d" % which, b"value" if what == "note" else b"")
        elif what == "end" and (open_ := [tx for tx, one in transactions.table.items() if not one.decided]):
            rig.store.rollback(open_[which % len(open_)])
        elif what == "copy":
            places = [one.at for one in transactions.table.values()] + [at for at, _ in transactions.notes.values()]
            below = sorted([*places, rig.store.transaction_records.tail])[min(which, len(places))]
            rig.store.copy_transactions(below)
            assert all(one.at >= below for one in transactions.table.values())
            assert all(at >= below for at, _ in transactions.notes.values())
        elif what == "restart":
            rig.settle()
            rig.reopen(clean=bool(which % 2))
            transactions = rig.store.transactions
        for places in ([one.at for one in transactions.table.values()], [at for at, _ in transactions.notes.values()]):
            assert places == sorted(places)
