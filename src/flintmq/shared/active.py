"""Which node's consumers get the messages of a queue with a single active consumer: a row with the holder's life, and an epoch.

in: a node that has consumers, or has none any more. out: whether it is the one.

A1  At most one life holds the row. It is worth as much as that life: each transaction of a node declares that its life goes on (queue.py,
    Q3), so a holder that was declared gone takes nothing more, and whoever comes next need not wait for it.
A2  The epoch rises with each holder.
A3  Who waits is told by the queue's signal when the holder gives the row back; of a holder that dies it learns by asking again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from flintmq.kv.engine import Transaction, Watch
from flintmq.shared.keys import ID_BYTES, QueueKeys, owner_row
from flintmq.shared.queue import ALIVE, SharedQueue

_NOBODY = bytes(ID_BYTES)
_EPOCH_BYTES = 8


def _read(transaction: Transaction, queue: SharedQueue) -> tuple[bytes, int]:
    """(life of the holder, epoch)."""
    value = transaction.get(queue.keys.active) or _NOBODY
    return value[:ID_BYTES], int.from_bytes(value[ID_BYTES:], "big")


def has_holder(transaction: Transaction, keys: QueueKeys) -> bool:
    """Whether a node that lives is the active one. Declares nothing."""
    holder = (transaction.get(keys.active, snapshot=True) or _NOBODY)[:ID_BYTES]
    return holder != _NOBODY and transaction.get(owner_row(holder, b"e"), snapshot=True) == ALIVE


def claim(queue: SharedQueue, on_change: Callable[[], None]) -> tuple[bool, Watch | None]:
    """Makes this node the active one, unless another one that lives is; `on_change()` is called when that may have changed.

    Raises: Fenced, QueueGone, EngineError.
    """

    def body(transaction: Transaction) -> tuple[tuple[bool, Watch | None], bool]:
        holder, epoch = _read(transaction, queue)
        if holder == queue.owner:
            return (True, None), False
        if holder != _NOBODY and transaction.get(owner_row(holder, b"e")) == ALIVE:
            return (False, transaction.watch(queue.keys.signal, on_change)), False
        transaction.set(queue.keys.active, queue.owner + (epoch + 1).to_bytes(_EPOCH_BYTES, "big"))
        return (True, None), True

    return queue.run(body)


def yield_turn(queue: SharedQueue) -> None:
    """This node has no consumer any more: another one may be active. Raises: Fenced, QueueGone, EngineError."""

    def body(transaction: Transaction) -> tuple[None, bool]:
        holder, epoch = _read(transaction, queue)
        if holder != queue.owner:
            return None, False
        transaction.set(queue.keys.active, _NOBODY + epoch.to_bytes(_EPOCH_BYTES, "big"))
        transaction.set(queue.keys.signal, queue.owner + secrets.token_bytes(_EPOCH_BYTES))
        return None, True

    queue.run(body)
