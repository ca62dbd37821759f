"""A small broker around the coordinator: store, queues and clock, restart included."""

from __future__ import annotations

from flintmq.clock import ManualClock
from flintmq.config import Limits
from flintmq.transactions import Outcome, TransactionCoordinator, XaStatus, Xid
from tests.support.blocks import enrol, take
from tests.support.stored import StoredContent
from tests.twins.memory_effects import MemoryQueueEffects

from .twin_store import TwinStore

OK = XaStatus.XA_OK
X = Xid(1, b"global", b"branch")
Y = Xid(1, b"global", b"another branch")


def message(label: str) -> StoredContent:
    return StoredContent(b"", b"q", b"", label.encode())


class Broker:
    """Queues 1 to `queues` are durable; `session()` makes sessions that selected distributed transactions."""

    def __init__(self, *, queues: int = 3, levels: int = 1, limits: Limits | None = None, store: TwinStore | None = None) -> None:
        self.queue_ids = range(1, queues + 1)
        self.levels = levels
        self.limits = limits or Limits()
        self.clock = ManualClock()
        self.store = store or TwinStore()
        self.effects = MemoryQueueEffects(levels)
        self.coordinator = TransactionCoordinator(self.store, self.effects, self.clock, self.limits)
        self._sessions = 0
        for queue_id in self.queue_ids:
            self.effects.declare(queue_id)
            for entry in self.store.entries(queue_id):
                content = self.store.content_of(entry.message_id)
                self.effects.add(queue_id, content, message_id=entry.message_id, position=entry.position)
        self.coordinator.restore()

    def session(self) -> str:
        self._sessions += 1
        name = f"session {self._sessions}"
        self.coordinator.select(name)
        return name

    def put(self, queue_id: int, label: str, *, durable: bool = True) -> int:
        """A message outside any transaction. Returns its position."""
        content = message(label)
        if not durable:
            return self.effects.add(queue_id, content)
        message_id = self.store.append_content(content)
        position = self.effects.add(queue_id, content, message_id=message_id)
        self.store.enqueue(queue_id, position, message_id)
        return position

    def _label(self, queue_id: int, position: int) -> str:
        entry = self.effects.queues[queue_id][position]
        content = entry.content or self.store.content_of(entry.message_id)
        return content.body.decode()

    def labels(self, queue_id: int) -> list[str]:
        """Messages a consumer would get now, in order."""
        return [self._label(queue_id, position) for position in self.effects.available(queue_id)]

    def stored(self, queue_id: int) -> list[str]:
        """Messages the store has in the queue, in order, those included that an in-doubt transaction wants to take."""
        return [self.store.content_of(entry.message_id).body.decode() for entry in self.store.entries(queue_id)]

    def redelivered(self, queue_id: int, position: int) -> bool:
        """Flagged so."""
        return self.effects.queues[queue_id][position].redelivered

    def acquire(self, queue_id: int, position: int) -> None:
        """A consumer takes the entry."""
        assert self.effects.acquire(queue_id, position, "somebody")

    def delete(self, queue_id: int) -> None:
        """The queue is gone, also from the store."""
        self.store.drop_queue(queue_id)
        self.effects.delete(queue_id)

    def crash(self) -> Broker:
        """The broker after kill -9 and a restart."""
        return Broker(queues=len(self.queue_ids), levels=self.levels, limits=self.limits, store=self.store.crash())

    def with_work(self, session: str, xid: Xid = X, *, label: str = "new", start: bool = True) -> int:
        """The session starts the branch, enqueues `label` on queues 1 and 2, takes the head of 3. Returns where "old" stands there."""
        position = self.put(3, "old")
        if start:
            assert self.coordinator.start(session, xid) is OK
        enrol(self.coordinator, session, xid, (1, 2), label.encode())
        assert take(self.coordinator, session, xid, 3).count == 1
        return position


def status(outcome: Outcome) -> XaStatus | None:
    """The status when it is known, else None."""
    return outcome.result(0) if outcome.done else None
