"""One shared queue as this node has it: its definition, its core of the moment, and those who wait for the engine because of it.

in: messages that were given to it, and what the engine has. out: outcomes, in the order of the messages.

E1  An outcome is told once: True when the engine has the message, False when the queue is lost before that.
"""

from __future__ import annotations

import asyncio
import collections
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flintmq.guard import guarded
from flintmq.mirror.mirror import Mirror
from flintmq.shared.queue_rows import QueueRow
from flintmq.shared.serving import Served

if TYPE_CHECKING:
    from flintmq.vhost.queue import QueueSpec

OnOutcome = Callable[[bool], object]
OnServed = Callable[[Exception | None], object]


class Entry:
    """Of one queue. Attributes: row: its definition in the engine, None: not known yet; served: None: this node does not serve it now;
    forwards: its core is a window of the owner's; ended: the engine was told that it is deleted, or it is deleted here; looking, news: a
    look at its owner is under way, and is to be made again; ownerless_s: since when it has no living owner, 0: it has one; moving: it is
    being handed over: its core is a window already, and no look changes that; counts, counted_s: of a window, see
    SharedQueues.last_counts."""

    __slots__ = (
        "_lock",
        "_outcomes",
        "counted_s",
        "counts",
        "ended",
        "forwards",
        "is_declared_here",
        "looking",
        "moving",
        "name",
        "news",
        "opening",
        "ownerless_s",
        "queue",
        "queue_id",
        "row",
        "served",
        "spec",
        "vhost",
        "waiting",
    )

    def __init__(self, queue_id: int, spec: QueueSpec) -> None:
        self.queue_id = queue_id
        self.vhost = spec.vhost
        self.name = spec.name
        self.spec = spec
        self.queue: Any = None  # of the control plane, once it is declared
        self.row: QueueRow | None = None
        self.served: Served | None = None
        self.ended = False
        self.forwards = False
        self.is_declared_here = False
        self.looking = self.news = self.moving = False
        self.ownerless_s = self.counted_s = 0.0
        self.counts = (0, 0)
        self.opening = False  # its quiet row is being deleted
        # of the engine's thread: whoever waits until it is served, each with the timer of its patience
        self.waiting: dict[OnServed, asyncio.TimerHandle] = {}
        self._lock = threading.Lock()
        self._outcomes: collections.deque[tuple[Mirror, int, OnOutcome]] = collections.deque()

    def tell_waiting(self, error: Exception | None) -> None:
        """The queue has an owner, or never will. Of the engine's thread."""
        waiting, self.waiting = self.waiting, {}
        for done, timer in waiting.items():
            timer.cancel()  # it has the queue, which may be deleted by now
            guarded("shared queues", f"queue {self.name!r}", done, error)

    def expect(self, mirror: Mirror, position: int, on_outcome: OnOutcome) -> None:
        """`on_outcome` is told whether the engine has that message. Any thread."""
        with self._lock:
            self._outcomes.append((mirror, position, on_outcome))

    def tell(self, lost: Mirror | None = None) -> None:
        """The engine has more, or the queue is lost. Any thread."""
        while True:
            with self._lock:
                if not self._outcomes:
                    return
                mirror, position, on_outcome = self._outcomes[0]
                if mirror is not lost and not mirror.is_settled(position):
                    return
                self._outcomes.popleft()
            guarded("shared queues", f"queue {self.name!r}", on_outcome, mirror is not lost)
