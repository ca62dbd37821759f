"""The broker's queues as enrolments of distributed transactions see them (BranchQueues in transactions/ports.py).

in: ids of queues. out: their cores; limits kept after a commit.

Q1  A held entry is acquired by the broker: consumers, purge, expiry and limits pass it. Only the run that holds it ends that.
Q2  A reserved place is an invisible entry in the queue's own list, so no publish can get its position. It has no message until then.
Q3  A published message is not resident: whoever needs it reads it from the log.

Threading: any thread; no lock of its own is held while a queue or the log is called.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from flintmq.ports import DequeueReason
from flintmq.routing.route_cache import DEST_DEAD_LETTERS, DEST_LIMITED


class BranchQueues:
    """See module.

    Args: queues: id -> queue of the control plane (`core`: its QueueHandle, `durable`); a deleted queue is taken out of it before
    LogStore.drop_queue is called.
    """

    def __init__(self, queues: Mapping[int, Any]) -> None:
        self._queues = queues
        self._lock = threading.Lock()
        # Queues that are not durable, and streams, may have records in the message log all the same (a stage's): then their end must be
        # logged, too.
        self._logged: set[int] = set()

    def take_logged(self, queue_id: int) -> bool:
        """True once for a queue that is not durable, or a stream, and may have records in the message log."""
        with self._lock:
            if queue_id not in self._logged:
                return False
            self._logged.discard(queue_id)
            return True

    def core(self, queue_id: int) -> Any:
        queue = self._queues.get(queue_id)
        if queue is None or queue.policy.is_shared:  # its messages are in an engine, and no record of the log
            return None
        if not queue.durable or queue.policy.is_stream:
            with self._lock:
                self._logged.add(queue_id)
        return queue.core

    @staticmethod
    def keep_limit(core: Any) -> None:
        """Drop-head of a queue without a dead-letter exchange; the housekeeping does it for those that have one."""
        if core.destination_flags & (DEST_LIMITED | DEST_DEAD_LETTERS) != DEST_LIMITED:
            return
        if core.limit_waits():
            return  # its consumers first
        while core.over_limit():
            # Nobody looks at the message: one that is not in memory is not read.
            if core.take_excess(DequeueReason.DROP, _ignore) is None:
                return


def _ignore(message: Any) -> None:
    pass
