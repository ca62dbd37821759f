"""The small broker of broker.py over the real store and real queues: enrolments are those of store/enrolment.py."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flintmq.broker.branch_queues import BranchQueues
from flintmq.clock import ManualClock
from flintmq.config import Limits
from flintmq.transactions import TransactionCoordinator
from tests.drivers.store_driver import DrivenStore

from .broker import Broker
from .on_disk import PERSISTENT, queue_of

NUMBERS = (1, 2, 3)
SIZE = 1 << 16
OWNER = 7


class HeldStore(DrivenStore):
    """A store that writes when it is asked for durability, unless `hold` was called."""

    held = False

    def settle(self) -> None:
        while not self.held and self.flush() == 1:
            pass

    def on_durable(self, lsn: int, callback: Callable[[], None]) -> None:
        super().on_durable(lsn, callback)
        self.settle()

    @property
    def durable_lsn(self) -> int:
        self.settle()
        return super().durable_lsn

    def hold(self) -> None:
        """Nothing becomes durable from now on."""
        self.settle()
        self.held = True

    def release(self) -> None:
        self.held = False
        self.settle()


class StoredBroker(Broker):
    """Queues 1 to 3; queue 2 has priority levels."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock()
        path = directory / "store"
        path.mkdir(exist_ok=True)
        self.store: Any = HeldStore.open(None, str(path), container_size=SIZE, known_queues=set(NUMBERS), threads=False)
        self.queues: dict[int, Any] = {number: queue_of(self.store, number) for number in NUMBERS}
        for queue in self.queues.values():
            self.store.restore(queue.core)
        self.store.restored()
        self.coordinator = TransactionCoordinator(self.store, BranchQueues(self.queues), self.clock, Limits())
        self._sessions = 0
        self._after: list[StoredBroker] = []
        self.coordinator.restore()

    def __enter__(self) -> StoredBroker:
        return self

    def __exit__(self, *error: object) -> None:
        for broker in (*self._after, self):
            broker.store.close(clean=False)

    def put(self, queue_id: int, label: str, *, durable: bool = True) -> int:
        position: int = self.queues[queue_id].core.publish(b"", b"q", b"", label.encode(), PERSISTENT if durable else 0, 0)
        return position

    def labels(self, queue_id: int) -> list[str]:
        core, found, position = self.queues[queue_id].core, [], 0
        while position := core.next_available(position + 1 if position else 0):
            found.append(core.message_at(position)[3].decode())
        return found

    def stored(self, queue_id: int) -> list[str]:
        return [self.store.content(entry.message_id).body.decode() for entry in self.store.entries(queue_id)]

    def redelivered(self, queue_id: int, position: int) -> bool:
        _, ranges = self.store._redelivered(self.queues[queue_id].core)
        return any(first <= position <= last for first, last in ranges)

    def acquire(self, queue_id: int, position: int) -> None:
        assert self.queues[queue_id].core.take_at(position, OWNER)

    def delete(self, queue_id: int) -> None:
        del self.queues[queue_id]
        self.store.drop_queue(queue_id)

    def crash(self) -> StoredBroker:
        directory = self.directory / "after"
        shutil.copytree(self.directory / "store", directory / "store")
        self._after.append(StoredBroker(directory))
        return self._after[-1]
