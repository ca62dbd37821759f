"""A LogStore on a simulated disk for the tests of this folder: nothing runs by itself, positions are counted as queues count them.

in: publishes, acks, transactions of a test. out: what the store and the disk then show.
"""

from __future__ import annotations

from typing import Any

from flintmq.clock import ManualClock
from tests.drivers.log_driver import LogDriver
from tests.drivers.store_driver import DrivenStore
from tests.twins.sim_disk import SimDisk

STORE = "/store"
UUID = bytes(range(16))


# stores that rigs have opened in this test: tests/store/conftest.py closes them
opened: list[Any] = []


class TellingDisk(SimDisk):  # type: ignore[misc]
    """A disk that says how much is free."""

    def free_bytes(self, path: str) -> Any:
        return self.budget


class Rig:
    """One store. `model`: queue -> {position: message id} of what a restart must show; `bodies`: message id -> body."""

    def __init__(self, size: int = 8192, disk: Any = None, queues: tuple[int, ...] = (1, 2, 3), **options: Any) -> None:
        self.size = size
        self.disk = disk or SimDisk(clock=None)
        self.queues = set(queues)
        self.options = {"initial_containers": 2, "spill": False, **options}
        self.clock = ManualClock()
        self.next = dict.fromkeys(queues, 1)
        self.model: dict[int, dict[int, int]] = {queue: {} for queue in queues}
        self.bodies: dict[int, bytes] = {}
        self.open()

    def open(self) -> None:
        self.disk.make_dir(STORE)
        self.store: Any = DrivenStore.open(
            self.disk,
            STORE,
            container_size=self.size,
            store_uuid=UUID,
            known_queues=self.queues,
            threads=False,
            clock=self.clock,
            **self.options,
        )
        opened.append(self.store)
        self.driver = LogDriver(self.store)

    @property
    def messages(self) -> Any:
        return self.store.messages

    # --- what clients do

    def publish(self, *queues: int, body: bytes = b"body") -> int:
        places = []
        for queue in queues or (1,):
            places.append((queue, self.next[queue], 0))
            self.next[queue] += 1
        message, _ = self.driver.publish(places, b"x", b"key", b"header", body)
        for queue, position, _ in places:
            self.model[queue][position] = message
        self.bodies[message] = body
        return message  # type: ignore[no-any-return]

    def ack(self, queue: int, position: int) -> None:
        message = self.model[queue].pop(position)
        self.driver.ack(queue, position, message, 1)

    # --- the disk

    def flush(self) -> None:
        """Writes and syncs until nothing is left, or the writer can't go on."""
        while self.store.flush() == 1:
            pass

    def settle(self, passes: int = 400) -> int:
        """Maintenance and writing until nothing changes any more. Returns the passes it took; fails when it never ends."""
        for number in range(passes):
            before = self._state()
            self.flush()
            self.store.maintain()
            self.flush()
            if before == self._state() and not self.store.maintenance.busy:
                return number
        raise AssertionError("the maintenance never comes to rest")

    def _state(self) -> tuple[Any, ...]:
        state: list[Any] = []
        for log in (self.store.messages, self.store.transaction_records, self.store.pages):
            if log is not None:
                state.append((log.tail, log.base, log.base_durable, log.durable_lsn, log.dead, log.ready_ahead, log.low))
        return tuple(state)

    def reopen(self, clean: bool = True) -> None:
        """Stops and starts. clean False: the process dies after its last sync; what was not written is lost."""
        if clean:
            self.store.close()
        else:
            self.disk = self.disk.restart()
        self.open()

    def files(self, log: str = "messages") -> list[str]:
        return [name for name in self.disk.list_dir(f"{STORE}/{log}") if name.endswith(".flog")]

    # --- checks

    def recovered(self) -> dict[int, dict[int, int]]:
        """What the opening found."""
        return {queue: {one[0]: one[1] for one in self.driver.recovered(queue)} for queue in sorted(self.queues)}

    def entries(self) -> dict[int, dict[int, int]]:
        """What a restart would find now."""
        return {queue: {one.position: one.message_id for one in self.store.entries(queue)} for queue in sorted(self.queues)}

    def check_contents(self) -> None:
        for entries in self.model.values():
            for message in entries.values():
                assert self.store.content(message).body == self.bodies[message]
