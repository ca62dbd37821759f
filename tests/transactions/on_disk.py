"""A small broker around the coordinator whose queues and store are the real ones: files in a directory, nothing runs by itself."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flintmq.broker.branch_queues import BranchQueues
from flintmq.clock import ManualClock
from flintmq.config import Limits
from flintmq.queue.control import QueueHandle
from flintmq.transactions import TransactionCoordinator
from flintmq.vhost.policy import DEFAULT_POLICY
from tests.drivers.store_driver import DrivenStore

PERSISTENT = 1
LEVELS = 4


def queue_of(store: Any, number: int) -> Any:
    """A durable queue of the store; number 2 has priority levels."""
    core = QueueHandle(number, 1, LEVELS) if number == 2 else QueueHandle(number)
    core.set_durable(True)
    core.attach_log(store)
    store.attach(core)
    return SimpleNamespace(core=core, durable=True, policy=DEFAULT_POLICY)


class OnDisk:
    """Queues 1 to 3 are durable, 2 has four priority levels. What is called waits in memory until `settle` or `step`."""

    def __init__(
        self, directory: Path, limits: Limits | None = None, files: Any = None, container_size: int = 16384, threads: bool = False
    ) -> None:
        self.directory = directory
        self.store: Any = DrivenStore.open(files, str(directory), container_size=container_size, known_queues={1, 2, 3}, threads=threads)
        self.queues = {number: self._queue(number) for number in (1, 2, 3)}
        self.restored = sum(self.store.restore(queue.core) for queue in self.queues.values())
        self.store.restored()
        self.coordinator = TransactionCoordinator(self.store, BranchQueues(self.queues), ManualClock(), limits or Limits())
        self.coordinator.restore()

    def _queue(self, number: int) -> Any:
        return queue_of(self.store, number)

    def put(self, number: int, body: bytes, *, flags: int = PERSISTENT, priority: int = 0) -> int:
        """A message outside any transaction."""
        position: int = self.queues[number].core.publish(b"", b"q", b"", body, flags, priority)
        return position

    def available(self, number: int) -> list[int]:
        """Positions of what a new consumer would get, in order."""
        found: list[int] = []
        while position := self.queues[number].core.next_available(found[-1] + 1 if found else 0):
            found.append(position)
        return found

    def bodies(self) -> list[list[bytes]]:
        """What consumers of the three queues would get now."""
        return [[queue.core.message_at(position)[3] for position in self.available(number)] for number, queue in self.queues.items()]

    def step(self) -> bool:
        """One pass of the log's writer. False when it had nothing to do."""
        return bool(self.store.flush() == 1)

    def settle(self) -> None:
        """Writes everything, with maintenance in between where a container is missing."""
        while True:
            while self.step():
                pass
            tails = self.store.messages.tail, self.store.transaction_records.tail
            self.store.maintain()
            durable = self.store.messages.durable_lsn, self.store.transaction_records.durable_lsn
            if tails == (self.store.messages.tail, self.store.transaction_records.tail) == durable:
                return

    def image(self, directory: Path) -> Path:
        """The files as they are now: what kill -9 would leave."""
        shutil.copytree(self.directory, directory)
        return directory

    def kill(self) -> None:
        """Nothing more is written."""
        self.store.close(clean=False)
