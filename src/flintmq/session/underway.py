"""The verbs of one connection that are under way: methods that wait for the database, or for a name, and their answers.

in: verbs of methods. out: answers, in the order of the methods; nothing else of the connection is read until all of them are given.

U1  The answers of a connection come in the order of its methods, refusals included.
U2  A method joins those under way when each of them is over without a refusal, or with the database: nothing but a database that refuses
    can stop them then. So a client that declares many things in one piece has them saved together. Another method waits until all are
    answered.
U3  What joins has a bound: VERBS_MAX methods of JOIN_BYTES (net/sockets.pxd). They are in the account of memory.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from flintmq.errors import PeerError, StoreError
from flintmq.protocol.v0_9_1 import spec
from flintmq.routing.history import RecentHistoryExchange
from flintmq.session import commits
from flintmq.vhost.arguments import SHARED
from flintmq.vhost.changes import Job, Verb
from flintmq.vhost.names import RESERVED_PREFIX

if TYPE_CHECKING:
    from flintmq.session.session_port import Session

log = logging.getLogger("flintmq.session")

# verbs of one connection that are under way together
VERBS_MAX = 128
# bytes of one that joined: its frame (net.sockets JOIN_BYTES), decoded, and its records
JOINED_BYTES = 8_192


class Asked(NamedTuple):
    """A verb under way. job: None: the method was refused before it had one; joins: others may be under way behind it; refusal: of a method
    without a job."""

    channel: int
    method_id: int
    job: Job | None
    answer: Callable[[Any], None] | None
    joins: bool = False
    refusal: Exception | None = None

    @property
    def is_over(self) -> bool:
        return self.job is None or self.job.over


# of a connection none of whose verbs has waited yet: most need no queue of their own, 0.6 KiB
NONE: deque[Asked] = deque()


def change(handler: Session, channel: int, method: spec.Method, verb: Verb[Any], answer: Callable[[Any], None]) -> None:
    """Runs a verb of the virtual host and answers: now, or when the database has what it changes.

    A change that the database has is carried out even when the connection ends meanwhile. Raises: what the verb raises, when it is over at
    once and none is under way.
    """
    job = handler.vhost.perform(verb, handler.loop.call, partial(_over, handler), handler.is_there)
    if job.over and not handler.verbs:
        if job.failure is not None:
            raise job.failure
        answer(job.result)
        return
    joins = (job.saving or (job.over and job.failure is None)) and _is_joining(handler, method)
    _add(handler, Asked(channel, method.ID, job, answer, joins))
    if joins and len(handler.verbs) < VERBS_MAX:
        handler.connection.let_join()


def may_join(handler: Session, method: spec.Method) -> bool:
    """Whether a method joins the verbs that are under way (U2, U3)."""
    return handler.verbs[-1].joins and len(handler.verbs) < VERBS_MAX and _is_joining(handler, method)


def _is_joining(handler: Session, method: spec.Method) -> bool:
    """Whether a method needs nothing of the answers before it, and its own answer waits for nothing else."""
    if isinstance(method, spec.QueueDeclare):
        return bool(method.queue) and not method.queue.startswith(RESERVED_PREFIX) and method.arguments.get("x-queue-type") != SHARED
    if isinstance(method, spec.QueueBind):
        exchange = handler.vhost.exchanges.get(method.exchange)
        return bool(method.queue) and handler.broker.shared is None and not isinstance(exchange, RecentHistoryExchange)
    return isinstance(method, spec.ExchangeDeclare)


def refuse(handler: Session, channel: int, method_id: int, error: PeerError | StoreError) -> None:
    """A method is refused, when what is under way before it is answered."""
    if not handler.verbs:
        _refuse(handler, channel, method_id, error)
        return
    _add(handler, Asked(channel, method_id, None, None, refusal=error))


def _add(handler: Session, asked: Asked) -> None:
    """The client is read no further until this is answered."""
    if handler.verbs is NONE:
        handler.verbs = deque()
    handler.verbs.append(asked)
    handler.memory.add(JOINED_BYTES)
    handler.connection.waiting = True


def forget(handler: Session) -> None:
    """The connection has ended: nobody is answered."""
    handler.memory.add(-JOINED_BYTES * len(handler.verbs))
    handler.verbs.clear()


def _refuse(handler: Session, channel: int, method_id: int, error: PeerError | StoreError) -> None:
    if isinstance(error, PeerError):
        handler.refuse(channel, error, method_id)
    else:
        handler.not_saved(channel, method_id, error)


def _over(handler: Session, result: Any, failure: Exception | None) -> None:
    """A verb is over, on the loop's thread: it is answered, and what is over behind it, when nothing is under way before it."""
    verbs = handler.verbs
    if not verbs or not verbs[0].is_over:
        return
    while verbs and verbs[0].is_over:
        asked = verbs.popleft()
        handler.memory.add(-JOINED_BYTES)
        if not verbs:
            handler.connection.waiting = len(handler.works) > 0
        _answer(handler, asked)
    if handler.ended or handler.socket is None:
        return
    if verbs:
        handler.loop.touch(handler.socket)
    elif handler.works:
        handler.works.add(handler, lambda: True, partial(_read_on, handler))
    elif not handler.connection.waiting:  # else the last answer waits for something else
        _read_on(handler)


def _answer(handler: Session, asked: Asked) -> None:
    job = asked.job
    error = asked.refusal if job is None else job.failure
    try:
        if asked.channel in handler.channels:
            if error is not None:
                raise error
            assert job is not None and asked.answer is not None
            asked.answer(job.result)
    except (PeerError, StoreError) as refusal:
        _refuse(handler, asked.channel, asked.method_id, refusal)
    except Exception:
        log.exception("internal error on connection %s: it is closed", handler.name)
        handler.failed()


def _read_on(handler: Session) -> None:
    """Everything that was under way is answered: a method that waited for that is served, and the client is read on."""
    if handler.deferred is not None:
        commits.go_on(handler)
    elif handler.socket is not None:
        handler.connection.waiting = False
        handler.loop.resume(handler.socket)
        handler.loop.touch(handler.socket)
