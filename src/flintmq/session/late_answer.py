"""Answers that wait for work behind the request: a sweep, a replay, a group's first place.

in: a request whose effect takes longer than its turn. out: its answer, in its place: nothing more of the connection is read until then.

W1  purge-ok says that the purge is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flintmq.broker.replay import replay
from flintmq.routing.history import RecentHistoryExchange

if TYPE_CHECKING:
    from flintmq.session.session_port import Session


class LateAnswer:
    """An answer that waits for a sweep. Args: handler: of the connection that asked: nothing more of it is read until then."""

    def __init__(self, handler: Session, answer: Callable[[], object]) -> None:
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


def remembers(handler: Session, source: str) -> bool:
    """Whether an exchange gives a new destination messages of before."""
    return isinstance(handler.vhost.exchanges.get(source), RecentHistoryExchange)


def bound(handler: Session, number: int, source: str, kind: str, destination: str, answer: Callable[[Any], None], new: bool) -> None:
    """Answers a bind, after the destination has what the source remembers. Nothing more of the connection is read until then."""
    if not new or not remembers(handler, source):
        answer(new)
        return
    pending = LateAnswer(handler, lambda: answer(new) if number in handler.channels else None)
    replay(handler.broker, handler.broker.queue_limits.put, handler.vhost, source, kind, destination, pending.finish)
    pending.wait()
