"""Owners of a shared queue, one after the other, on an engine that fails on demand: what the tests of its log and of take-overs drive."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from flintmq.config import Limits
from flintmq.engines.engine import Commit, Engine, EngineError, UnknownOutcome
from flintmq.engines.memory import MemoryEngine, MemoryStore
from flintmq.mirror.mirror import Mirror, MirrorPort
from flintmq.queue.control import QueueHandle
from flintmq.shared.layout import Owner, owner_key, rows_of
from flintmq.shared.queue_log import QueueLog
from flintmq.shared.taking_over import Taken, claim, restore
from tests.twins.faulty_engine import Fate, FaultyEngine, RandomPlan

QUEUE = b"00000000000000aa"
_CODE = SimpleNamespace(QueueLog=QueueLog, Taken=Taken, claim=claim, restore=restore)
PERSISTENT, HAS_PRIORITY = 1, 16
ACK = 1
LIMITS = Limits().replace(
    shared_pause_ms=0, shared_pause_ms_max=0, shared_ends_ms=0, shared_full_ms=1, shared_segment_messages=8, shared_flight_messages=1,
    shared_scan_bytes=600, shared_mark_batches=3,
)  # fmt: skip


class Faults(RandomPlan):
    """Fates by chance; `full`: the engine takes no puts."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, 0.0)
        self.full = False

    async def fate(self, call: str, commit: Commit | None = None) -> Fate:
        fate = await super().fate(call, commit)
        return Fate.FULL if self.full and call == "commit" else fate


class Crossing(FaultyEngine):
    """As etcd when it fills: the commits that cross its quota happen or not, and have the same answer; from the next one on it is full."""

    def __init__(self, engine: Engine, faults: Faults) -> None:
        super().__init__(engine, faults)
        self.crossing = 0

    async def commit(self, commit: Commit) -> bool:
        if self.crossing and commit.puts:
            self.crossing -= 1
            if self.crossing % 2:
                await self.engine.commit(commit)
            assert isinstance(self.plan, Faults)
            self.plan.full = not self.crossing
            await asyncio.sleep(0)
            raise UnknownOutcome("no space", final=True)
        return await super().commit(commit)


class Store:
    """The engine of several nodes. Args: value_bytes: of one row; commit_rows: of one commit."""

    def __init__(self, seed: int = 1, value_bytes: int = 1 << 20, commit_rows: int = 20_000) -> None:
        self.store = MemoryStore(10_000)
        self.faults = Faults(seed)
        self._limits = Limits().replace(engine_value_bytes_max=value_bytes, engine_commit_rows_max=commit_rows)

    @property
    def rows(self) -> dict[bytes, bytes]:
        return self.store.rows

    def engine(self) -> Crossing:
        return Crossing(MemoryEngine(self.store, self._limits), self.faults)


class OwnerNode:
    """A node that owns the queue from `take_over` on."""

    hot_bytes = 2**64 - 1

    def __init__(self, store: Store, name: str, limits: Limits = LIMITS, levels: int = 1, queue: bytes = QUEUE, code: Any = None) -> None:
        """Args: code: a mutant of what this module imports."""
        self._code = code or _CODE
        self.name = name
        self.queue = queue
        self.levels = levels
        self.engine = store.engine()
        self.limits = limits
        self.lost: BaseException | None = None
        self.settled = 0
        self.log: QueueLog | None = None

    async def take_over(self) -> OwnerNode:
        while True:
            try:
                (value,) = await self.engine.get([owner_key(self.queue)])
                owner = await self._code.claim(
                    self.engine, self.queue, None if value is None else Owner.unpack(value), self.name, self.name
                )
                self.port = MirrorPort(self.hot_bytes, 1 << 20, 1 << 21)
                self.handle = QueueHandle(1, int(self.levels > 1), self.levels)
                self.handle.set_returns(True, -1, False)
                self.mirror = Mirror(self.handle, self.port, "/")
                taken = await self._code.restore(self.engine, self.queue, owner, self.mirror, self.limits)
                break
            except (EngineError, self._code.Taken):
                await asyncio.sleep(0)
        self.log = self._code.QueueLog(self.engine, self.queue, self.mirror, taken, self.limits, self._settle, self._lose)
        self.restored = taken.messages
        return self

    def _settle(self) -> None:
        self.settled += 1

    def _lose(self, reason: BaseException) -> None:
        self.lost = reason

    def publish(self, body: bytes, priority: int = 0) -> int:
        position = self.handle.publish(b"", b"q", b"\0" * 14, body, PERSISTENT | HAS_PRIORITY, priority)
        self.look()
        return position

    def take(self) -> tuple[int, bytes, bool] | None:
        """(position, body, whether it is flagged) of the head, which ends."""
        head = self.handle.peek()
        if head is None:
            return None
        message = self.handle.take_head(ACK)
        assert message is not None
        self.look()
        return head[0], message[3], head[1]

    def look(self) -> None:
        assert self.log is not None
        self.port.take_told()
        self.log.look()

    def kill(self) -> None:
        """Its answers come to nobody; what it has sent may still arrive."""
        assert self.log is not None
        self.log.close()

    async def drain(self) -> None:
        assert self.log is not None
        await self.log.drain()

    def bodies(self) -> list[bytes]:
        bodies = []
        while (one := self.take()) is not None:
            bodies.append(one[1])
        return bodies


def row_count(store: Store) -> int:
    begin, end = rows_of(QUEUE)
    return sum(begin <= key < end for key in store.rows)
