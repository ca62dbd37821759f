"""QueueEffects over the broker's queues: what transactions (flintmq.transactions) do to them.

in: calls of the coordinator, and of what follows its outcomes. out: runs of held entries, queues for stages, published entries.

Q1  A held entry is acquired by the broker: consumers, purge, expiry and limits pass it. Only the run that holds it ends that.
Q2  A reserved place is an invisible entry in the queue's own list, so no publish can get its position. It has no message until then.
Q3  A published message is not resident: whoever needs it reads it from the log.

Threading: any thread; no lock of its own is held while a queue or the log is called.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from flintmq.ports import DequeueReason
from flintmq.queue.runs import Run
from flintmq.routing.route_cache import DEST_DEAD_LETTERS, DEST_LIMITED

log = logging.getLogger("flintmq.transactions")


class BrokerQueueEffects:
    """See module and transactions.QueueEffects.

    Args: queues: id -> queue of the control plane (`core`: its QueueHandle, `durable`); a deleted queue is taken out of it before
    LogStore.drop_queue is called.
    """

    def __init__(self, queues: Mapping[int, Any]) -> None:
        self._queues = queues
        self._lock = threading.Lock()
        # Queues that are not durable and may have records all the same (those of a stage): their end must be logged, too.
        self._logged: set[int] = set()

    def take_logged(self, queue_id: int) -> bool:
        """True once for a queue that is not durable and may have records in the log."""
        with self._lock:
            if queue_id not in self._logged:
                return False
            self._logged.discard(queue_id)
            return True

    def run(self, queue_id: int) -> Run | None:
        core = self.core(queue_id)
        return None if core is None else Run(core)

    def core(self, queue_id: int) -> Any:
        queue = self._queues.get(queue_id)
        if queue is None or queue.policy.is_stream:  # an append can't be prepared: to transactions a stream is no queue
            return None
        if not queue.durable:
            with self._lock:
                self._logged.add(queue_id)
        return queue.core

    def ttl_ms(self, queue_id: int) -> int:
        queue = self._queues.get(queue_id)
        return -1 if queue is None else int(queue.core.ttl_ms)

    def publish_stage(self, queue_id: int, stage: Any) -> None:
        queue = self._queues.get(queue_id)
        if queue is None:
            return
        try:
            stage.publish(queue.core, lambda: _keep_limit(queue.core))
        except Exception:  # the transaction is committed: a restart puts the entries there
            log.critical("queue id %d: a committed transaction is not seen before the next restart", queue_id, exc_info=True)


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
