"""QueueEffects over the broker's queues: what transactions (flintmq.transactions) do to them.

in: calls of the coordinator, and of its durability callbacks (the log's writer thread). out: held, reserved and published entries.

Q1  A held entry is acquired by the broker: consumers, purge, expiry and limits pass it. Only `settle` and `release` end that.
Q2  A reserved place is an invisible entry in the queue's own list, so no publish can get its position. It has no message until `publish`.
Q3  A message that the transaction did not keep in memory goes into the queue as not resident: whoever needs it reads it from the log.

Threading: any thread; no lock of its own is held while a queue or the log is called.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from flintmq.core.content import CONTENT_PERSISTENT, CONTENT_PRIORITY
from flintmq.ports import POSITION_INDEX_BITS, DequeueReason, StoredContent
from flintmq.queue.handle import free_owner, new_owner
from flintmq.queue.runs import Run, reserve_many
from flintmq.routing.route_cache import DEST_DEAD_LETTERS, DEST_LIMITED
from flintmq.transactions.effects import HeldEntry, PendingEnqueue, Session

log = logging.getLogger("flintmq.transactions")


class BrokerQueueEffects:
    """See module and transactions.QueueEffects.

    Args: queues: id -> queue of the control plane (`core`: its QueueHandle, `durable`); a deleted queue is taken out of it before
    Store.drop_queue is called.
    """

    def __init__(self, queues: Mapping[int, Any]) -> None:
        self._queues = queues
        self._lock = threading.Lock()
        # What sessions of this process acquired: session -> (its consumer id, its (queue id, position)s).
        self._sessions: dict[Session, tuple[int, set[tuple[int, int]]]] = {}
        # Queues that are not durable and may have records all the same (log_transient): their end must be logged, too.
        self._logged: set[int] = set()

    # --- sessions of this process -----------------------------------------------------------------------------------------

    def acquire(self, queue_id: int, position: int, session: Session) -> bool:
        """A session of this process takes an available entry, as a consumer would. False when it is not available."""
        core = self._core(queue_id)
        if core is None:
            return False
        with self._lock:
            if session not in self._sessions:
                self._sessions[session] = (new_owner(), set())
            owner, held = self._sessions[session]
        if not core.take_at(position, owner):
            return False
        with self._lock:
            held.add((queue_id, position))
        return True

    def session_closed(self, session: Session) -> None:
        """Gives back what the session acquired and no transaction holds."""
        with self._lock:
            owner, held = self._sessions.pop(session, (0, set()))
        for queue_id, position in held:
            core = self._core(queue_id)
            if core is not None:
                core.release_held(position, True, owner)
        free_owner(owner)

    def take_logged(self, queue_id: int) -> bool:
        """True once for a queue that is not durable and may have records in the log."""
        with self._lock:
            if queue_id not in self._logged:
                return False
            self._logged.discard(queue_id)
            return True

    # --- the port ---------------------------------------------------------------------------------------------------------

    def durable(self, queue_id: int) -> bool | None:
        queue = self._queues.get(queue_id)
        if queue is None or queue.policy.is_stream:  # an append can't be prepared: to transactions a stream is no queue
            return None
        if not queue.durable:
            with self._lock:
                self._logged.add(queue_id)
        return bool(queue.durable)

    def hold(self, queue_id: int, position: int, session: Session | None) -> HeldEntry | None:
        core = self._core(queue_id)
        if core is None or not (core.hold(position) or self._take_over(core, position, session)):
            return None
        self.durable(queue_id)
        logged, delivery_count, expires_at_ms = core.entry_facts(position)
        return HeldEntry(logged, delivery_count, 0, expires_at_ms)

    def _take_over(self, core: Any, position: int, session: Session | None) -> bool:
        """An entry that is not available: one that recovery put back held, or one that the session acquired."""
        if session is None:
            return bool(core.adopt_held(position))
        with self._lock:
            owner, held = self._sessions.get(session, (0, None))
        if held is None or not core.pass_on(position, owner):
            return False
        with self._lock:
            held.discard((core.queue_id, position))
        return True

    def run(self, queue_id: int) -> Run | None:
        core = self.core(queue_id)
        return None if core is None else Run(core)

    def core(self, queue_id: int) -> Any:
        return None if self.durable(queue_id) is None else self._core(queue_id)

    def ttl_ms(self, queue_id: int) -> int:
        core = self._core(queue_id)
        return -1 if core is None else int(core.ttl_ms)

    def content(self, queue_id: int, position: int) -> StoredContent:
        core = self._core(queue_id)
        if core is None:
            raise KeyError(queue_id)
        return StoredContent(*core.message_at(position))

    def release(self, queue_id: int, positions: Sequence[int]) -> None:
        core = self._core(queue_id)
        if core is not None:
            for position in positions:
                core.release_held(position, True)

    def settle(self, queue_id: int, positions: Sequence[int]) -> None:
        core = self._core(queue_id)
        if core is not None:
            for position in positions:
                core.settle_held(position)

    def reserve(self, queue_id: int, priorities: Sequence[int | None]) -> Sequence[int] | None:
        core = self._core(queue_id)
        if core is None:
            return None
        positions: list[int] = reserve_many(core, priorities)
        if len(positions) == len(priorities):
            return positions
        # It is being deleted: its end is not in the log yet, where the commit must still say a position for each entry. Nobody adds to
        # it any more, so the ones behind its end are free, and nothing will stand there.
        free = (core.priorities() - 1 << POSITION_INDEX_BITS) + core.tail(core.priorities() - 1)
        return list(range(free + 1, free + 1 + len(priorities)))

    def publish(self, queue_id: int, entries: Sequence[tuple[int, PendingEnqueue]]) -> None:
        core = self._core(queue_id)
        if core is None:
            return
        try:
            for position, enqueue in entries:
                _fill(core, position, enqueue)
            for position, enqueue in entries:
                core.publish_held(position, enqueue.logged)
            _keep_limit(core)
        except Exception:  # the transaction is committed: a restart puts the entries there
            log.critical("queue id %d: a committed transaction is not seen before the next restart", queue_id, exc_info=True)

    def publish_stage(self, queue_id: int, stage: Any) -> None:
        core = self._core(queue_id)
        if core is None:
            return
        try:
            stage.publish(core, lambda: _keep_limit(core))
        except Exception:  # the transaction is committed: a restart puts the entries there
            log.critical("queue id %d: a committed transaction is not seen before the next restart", queue_id, exc_info=True)

    def _core(self, queue_id: int) -> Any:
        queue = self._queues.get(queue_id)
        return None if queue is None else queue.core


def _fill(core: Any, position: int, enqueue: PendingEnqueue) -> None:
    message = enqueue.message
    content, priority = message.content, enqueue.priority
    flags = (CONTENT_PERSISTENT if message.message_id else 0) | (0 if priority is None else CONTENT_PRIORITY)
    parts = None if content is None else (content.exchange, content.routing_key, content.header, content.body)
    message_id = message.message_id if enqueue.logged else 0
    core.fill_held(position, message_id, message.body_len, parts, flags, priority or 0, enqueue.expires_at_ms)


def _keep_limit(core: Any) -> None:
    """Drop-head of a queue without a dead-letter exchange; the housekeeping does it for those that have one."""
    if core.destination_flags & (DEST_LIMITED | DEST_DEAD_LETTERS) != DEST_LIMITED:
        return
    if core.limit_waits():
        return  # its consumers first
    while core.over_limit():
        # Nobody looks at the message: one that is not in memory is not read.
        if core.take_head(DequeueReason.DROP, _ignore) is None:
            return


def _ignore(message: Any) -> None:
    pass
