"""tx.commit, from the request to the answer; and what of a channel waits behind an answer that is still to come.

in: tx.commit, and every other method that arrives while a commit of its channel waits for the log. out: transactions for the loop,
commit-ok in order.

I1  No answer of a channel overtakes the commit-ok of a commit that came before it; publishes and settlements, which have no answer,
    go on and belong to the next transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from flintmq.broker.dead_letters import Attempt
from flintmq.channel.transaction import Transaction, begin, commits_waiting
from flintmq.errors import PeerError, ReplyCode, StoreError
from flintmq.protocol.v0_9_1 import spec
from flintmq.protocol.v0_9_1.codec import encode_method
from flintmq.session import shared_commits
from flintmq.vhost.dead_letter import REJECTED

if TYPE_CHECKING:
    from flintmq.session.session_port import Session

TX_COMMIT_ID = spec.METHOD_IDS["tx.commit"]


def must_wait(handler: Session, channel: int, method_id: int) -> bool:
    """Whether a method waits because a commit of its channel does. A further commit only waits when there are too many."""
    waiting = commits_waiting(handler.connection, channel)
    return waiting > 0 and (method_id != TX_COMMIT_ID or waiting >= handler.broker.limits.channel_commits_max)


def commit(handler: Session, number: int) -> None:
    """tx.commit of a channel: at once when nothing of it is logged, else when the log, or the engine of shared queues, has it.

    Raises: PeerError(406) when a full queue refuses a part of it, 541 when the log refuses, 540 when it has shared queues and others:
    nothing of it happened.
    """
    broker = handler.broker
    try:
        transaction = begin(handler.connection, number)
        if transaction is None:
            handler.after_publish()
            when_over(handler, partial(handler.send, number, spec.TxCommitOk()))
            return
        try:
            if transaction.is_shared:
                if commits_waiting(handler.connection, number):  # it is answered after them (I1)
                    transaction.abandon()
                    wait(handler, number, encode_method(spec.TxCommit()), TX_COMMIT_ID)
                else:
                    shared_commits.commit(handler, transaction)
                return
            for queue_id, _, message in transaction.take_letters():
                queue = broker.queues.get(queue_id)
                if queue is None:
                    continue
                if not queue.policy.keeps_letters:
                    broker.dead_letters.publish(queue, message, REJECTED, transaction)
                elif broker.dead_letters.publish_to_all(queue, message, REJECTED, Attempt(), transaction) is not None:
                    text = f"partial tx completion: {queue.name!r} keeps what its dead-letter targets refuse"
                    raise PeerError(ReplyCode.PRECONDITION_FAILED, text)
            transaction.write()
        except BaseException:
            transaction.abandon()
            raise
    except StoreError as error:
        raise PeerError(ReplyCode.INTERNAL_ERROR, f"the transaction can't be logged: {error}") from error
    handler.loop.commit(transaction)


def committed(handler: Session, transaction: Transaction, alive: bool) -> None:
    """The transaction has taken effect. `alive`: its channel is still there and gets the answer."""
    handler.after_publish()
    if transaction.on_applied is not None:
        transaction.on_applied()
    if transaction.limited:
        handler.broker.queue_limits.settle_many(transaction.limited)
    if not alive:
        return
    if len(handler.works):
        when_over(handler, partial(_answer, handler, transaction.number))
    else:
        _answer(handler, transaction.number)


def when_over(handler: Session, answer: Callable[[], None]) -> None:
    """Answers when what the commit left to do is done, which may take more than a slice; nothing of the connection is read till then."""
    if len(handler.works):
        handler.works.add(handler, _over, answer)
    else:
        answer()


def _over() -> bool:
    return True


def _answer(handler: Session, number: int) -> None:
    if handler.ended:
        return
    if number in handler.channels:
        handler.send_later(number, spec.TxCommitOk())
    go_on(handler)


def wait(handler: Session, channel: int, payload: bytes, method_id: int) -> None:
    """Keeps a method until what comes before it is answered. The loop reads nothing more of the connection until then."""
    handler.deferred = partial(handler.method, channel, payload, method_id)
    handler.connection.waiting = True


def go_on(handler: Session) -> None:
    """What a method waited for has come: serves it, if it may now, and then what the client sent after it."""
    deferred = handler.deferred
    if deferred is None:
        return
    handler.deferred = None
    handler.connection.waiting = len(handler.verbs) > 0
    deferred()  # which waits again when there are still commits before it, or its message is not there yet
    if handler.socket is not None and not handler.connection.waiting:
        handler.loop.resume(handler.socket)
        handler.loop.touch(handler.socket)
