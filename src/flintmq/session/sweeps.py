"""Purges and the ends of deleted queues, in slices, and the answers that wait for them.

in: queue.purge, deleted queues. out: entries that are gone (queue/purge.py); the answer once all is done, and the log has it.

W1  purge-ok says that the purge is durable. That a deleted queue is gone for good is what the end of its definition says, which is durable
    before its entries are swept: nobody waits for that.
W2  A sweep that is cut short by the end of its loop is not answered; what it has ended stays ended.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.queue.purge_slices import Sweep

if TYPE_CHECKING:
    from flintmq.queue.control import QueueHandle
    from flintmq.session.broker import Broker
    from flintmq.session.handlers import ConnectionHandler


def run(broker: Broker, core: QueueHandle, ending: bool, done: Callable[[Any], object]) -> None:
    """Sweeps a queue: `done(sweep)` is called on the loop's thread when it has ended, before this returns when it is a small one."""
    sweep: Any = Sweep(core, ending)
    step = partial(sweep.step, broker.limits.sweep_places)
    if step():
        done(sweep)
    else:
        broker.in_slices(step, lambda whole: done(sweep) if whole else None)


class LateAnswer:
    """An answer that waits for a sweep. Args: handler: of the connection that asked: nothing more of it is read until then."""

    def __init__(self, handler: ConnectionHandler, answer: Callable[[], object]) -> None:
        self.handler = handler
        self.answer = answer
        self.done = False
        self.waits = False

    def finish(self) -> None:
        """All is done (any thread)."""
        self.done = True
        if self.waits:
            self.handler.head_came()

    def finish_durable(self, lsn: int) -> None:
        """All is done when the log is durable up to there; 0: nothing of it was logged."""
        if lsn and self.handler.broker.log is not None:
            self.handler.broker.log.when_durable(lsn, self.finish)
        else:
            self.finish()

    def wait(self) -> None:
        """Answers, now or when all is done. Loop thread of the connection."""
        self.waits = True  # before the look: whoever finishes after it tells the loop
        if self.done:
            self.answer()
            return
        self.handler.deferred = self.wait
        self.handler.connection.waiting = True
