"""The schedule of a virtual host: the queue of messages that are to be routed later, which no client can name.

in: the first message that asks for a time; the definitions of a restart. out: one Queue beside those of VirtualHost.queues.
"""

from __future__ import annotations

from collections.abc import Callable

from flintmq.ports import Definitions, QueueRecord
from flintmq.routing.binding import QUEUE
from flintmq.store.sql.changes import Save
from flintmq.vhost.changes import Names, Verb
from flintmq.vhost.names import SCHEDULE
from flintmq.vhost.policy import DEFAULT_POLICY
from flintmq.vhost.queue import Queue, QueueCore, QueueSpec


class Scheduling:
    """The part of VirtualHost. schedule: None: there was no such message yet."""

    name: str
    _check_not_deleted: Callable[[], None]
    on_queue_created: Callable[[Queue], None]
    on_queue_deleted: Callable[[Queue], None]
    schedule: Queue | None = None
    _definitions: Definitions
    _queue_factory: Callable[[int, QueueSpec], QueueCore]

    def open_schedule(self) -> Verb[Queue]:
        """The schedule, made when it is asked for first. Raises: PeerError 530: the vhost is deleted; StoreError."""
        yield Names(alone=((QUEUE, SCHEDULE),))
        if self.schedule is None:
            record = QueueRecord(self.name, SCHEDULE, self._definitions.new_queue_id(), False, {})
            yield Save(record)
            self._add_schedule(record.queue_id)
        assert self.schedule is not None
        return self.schedule

    def _add_schedule(self, queue_id: int) -> None:
        self._check_not_deleted()
        spec = QueueSpec(self.name, SCHEDULE, True, False, None, {}, DEFAULT_POLICY)
        self.schedule = Queue(queue_id, spec, self._queue_factory(queue_id, spec))
        self.on_queue_created(self.schedule)

    def _drop_schedule(self) -> None:
        """Its virtual host is deleted."""
        queue, self.schedule = self.schedule, None
        if queue is not None:
            queue.deleted = True
            queue.core.mark_deleted()
            self.on_queue_deleted(queue)
