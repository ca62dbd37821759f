"""tx.commit of a transaction on shared queues: from its request to its answer, which comes when the engine has decided (docs/adr/0015).

in: transactions of channels. out: commit-ok, or an error after which nothing of it takes place, or one that says that nobody knows.

S1  Nothing of the connection is read until the answer: what it publishes next comes after the transaction.
S2  What the transaction settles has left its channel before the engine decides: it is ended, or given back, whatever becomes of the client.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.channel.transaction import Transaction
from flintmq.errors import PeerError, ReplyCode
from flintmq.protocol.v0_9_1 import spec

if TYPE_CHECKING:
    from flintmq.session.session_port import Session

_COMMIT_ID = spec.METHOD_IDS["tx.commit"]


def commit(handler: Session, transaction: Transaction) -> None:
    """Raises: PeerError 541: a queue moved; nothing of it happened, and the caller calls `abandon`."""
    shared = handler.broker.shared
    assert shared is not None
    logs = shared.logs({number for number, _ in transaction.ends})
    if transaction.is_lost() or any(number not in logs for number, _ in transaction.ends):
        raise PeerError(ReplyCode.INTERNAL_ERROR, "a shared queue moved, and messages that the transaction acknowledges go to others")
    transaction.write()
    handler.connection.waiting = True

    def on_outcome(outcome: Any, ended: Callable[[], object], error: PeerError | None) -> None:
        handler.loop.call(partial(_told, handler, transaction, outcome.name, ended, error))

    shared.commit(handler.user, transaction, logs, on_outcome)


def _told(handler: Session, transaction: Transaction, outcome: str, ended: Callable[[], object], error: PeerError | None) -> None:
    """On the connection's loop."""
    if outcome == "REFUSED":
        transaction.refuse()
    elif outcome == "DECIDED":
        transaction.on_applied = ended
        handler.loop.commit(transaction)
    if handler.ended:
        return
    handler.connection.waiting = False
    if error is not None and transaction.number in handler.channels:
        handler.refuse(transaction.number, error, _COMMIT_ID)
    if handler.socket is not None and not handler.connection.waiting:
        handler.loop.resume(handler.socket)
        handler.loop.touch(handler.socket)
