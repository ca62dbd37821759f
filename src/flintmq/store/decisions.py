"""The decision table of recovery: what becomes of one place of a message, from five facts that the logs say of it.

in: what the logs say. out: what a start does with the place.

I1  Exactly one row matches every combination of facts (tests/store/test_decisions.py goes through the whole product).

The rule of seed 003 for a transaction that is not there: it was valid as long as a message named it, so the message ended further
along. When the log shows that end (Delete, flag 8, or a plain dequeue), the place ended; when it shows none, that is LOST.
A transaction that was open when the broker stopped has rolled back.
"""

from __future__ import annotations

import functools
from enum import IntEnum
from itertools import product

from flintmq.slotted import slotted


class Content(IntEnum):
    """Whether the message can be read."""

    PRESENT = 0
    BELOW_BASE = 1  # its first record is below the base: not needed any more when the base moved
    TORN = 2  # its last chunks were in the tail that is cut off: never confirmed
    DAMAGED = 3  # it should be there


class Enqueue(IntEnum):
    """What put the message there."""

    PLAIN = 0
    COMMITTED = 1
    ROLLED_BACK = 2
    OPEN = 3
    PREPARED = 4
    UNKNOWN = 5  # a transaction that the transaction log does not have


class Dequeue(IntEnum):
    """The transaction or consumer that took it from there."""

    NONE = 0
    PLAIN = 1
    COMMITTED = 2
    ROLLED_BACK = 3
    OPEN = 4
    PREPARED = 5
    UNKNOWN = 6


class Queue(IntEnum):
    """Whether the definitions know the queue."""

    KNOWN = 0
    GONE = 1  # not in SQL, and its id was given out once; or the log has its Queue-End
    ABOVE = 2  # an id that SQL never gave out


class Outcome(IntEnum):
    """What recovery does with the place."""

    LIVE = 0
    HELD = 1  # there, but a prepared transaction wants to take it
    PENDING = 2  # a prepared transaction wants to put it there
    ENDED = 3
    LOST = 4  # named in the report
    REFUSE = 5  # the store must not open: log and definitions do not belong together


@slotted(frozen=True)
class Row:
    """One row; an empty set of a column matches everything."""

    outcome: Outcome
    why: str
    queue: frozenset[Queue] = frozenset()
    ended: frozenset[bool] = frozenset()
    content: frozenset[Content] = frozenset()
    enqueue: frozenset[Enqueue] = frozenset()
    dequeue: frozenset[Dequeue] = frozenset()

    def matches(self, content: Content, enqueue: Enqueue, dequeue: Dequeue, ended: bool, queue: Queue) -> object:
        return (
            (not self.queue or queue in self.queue)
            and (not self.ended or ended in self.ended)
            and (not self.content or content in self.content)
            and (not self.enqueue or enqueue in self.enqueue)
            and (not self.dequeue or dequeue in self.dequeue)
        )


_KNOWN = frozenset({Queue.KNOWN})
_ALIVE = frozenset({False})
_READABLE = frozenset({Content.PRESENT})
_WANTED = frozenset({Content.PRESENT, Content.DAMAGED})
_TAKEN = frozenset({Dequeue.PLAIN, Dequeue.COMMITTED})
_NOT_TAKEN = frozenset(Dequeue) - _TAKEN
_UNDONE = frozenset({Enqueue.ROLLED_BACK, Enqueue.OPEN})
_STANDS = frozenset({Enqueue.PLAIN, Enqueue.COMMITTED})
_FREE = frozenset({Dequeue.NONE, Dequeue.ROLLED_BACK, Dequeue.OPEN})

ROWS: tuple[Row, ...] = (
    Row(Outcome.REFUSE, "the log names a queue id that the definitions never gave out", frozenset({Queue.ABOVE})),
    Row(Outcome.ENDED, "the queue was deleted, with everything on it", frozenset({Queue.GONE})),
    Row(Outcome.ENDED, "the message's life ended", _KNOWN, frozenset({True})),
    Row(Outcome.ENDED, "the base passed the message: it ended or was copied", _KNOWN, _ALIVE, frozenset({Content.BELOW_BASE})),
    Row(Outcome.ENDED, "the message was never written to its end, so never confirmed", _KNOWN, _ALIVE, frozenset({Content.TORN})),
    Row(Outcome.ENDED, "it was taken", _KNOWN, _ALIVE, _WANTED, frozenset(), _TAKEN),
    Row(Outcome.ENDED, "its transaction did not commit", _KNOWN, _ALIVE, _WANTED, _UNDONE, _NOT_TAKEN),
    Row(
        Outcome.LOST,
        "the message's content is in a damaged part of the log",
        _KNOWN,
        _ALIVE,
        frozenset({Content.DAMAGED}),
        frozenset(Enqueue) - _UNDONE,
        _NOT_TAKEN,
    ),
    Row(
        Outcome.LOST,
        "enqueued by a transaction that the transaction log does not have",
        _KNOWN,
        _ALIVE,
        _READABLE,
        frozenset({Enqueue.UNKNOWN}),
        _NOT_TAKEN,
    ),
    Row(
        Outcome.LOST,
        "dequeued by a transaction that the transaction log does not have",
        _KNOWN,
        _ALIVE,
        _READABLE,
        _STANDS | {Enqueue.PREPARED},
        frozenset({Dequeue.UNKNOWN}),
    ),
    Row(Outcome.LIVE, "it is there", _KNOWN, _ALIVE, _READABLE, _STANDS, _FREE),
    Row(Outcome.HELD, "a prepared transaction takes it", _KNOWN, _ALIVE, _READABLE, _STANDS, frozenset({Dequeue.PREPARED})),
    Row(
        Outcome.PENDING,
        "a prepared transaction puts it there",
        _KNOWN,
        _ALIVE,
        _READABLE,
        frozenset({Enqueue.PREPARED}),
        _FREE | {Dequeue.PREPARED},
    ),
)


def index(content: int, enqueue: int, dequeue: int, ended: bool, queue: int) -> int:
    """Place of a combination in `lookup()`."""
    return (((content * len(Enqueue) + enqueue) * len(Dequeue) + dequeue) * 2 + ended) * len(Queue) + queue


def row_of(content: Content, enqueue: Enqueue, dequeue: Dequeue, ended: bool, queue: Queue) -> Row:
    """The row that decides. Raises: StopIteration can't happen (I1)."""
    return next(row for row in ROWS if row.matches(content, enqueue, dequeue, ended, queue))


@functools.cache
def lookup() -> bytes:
    """The outcome of every combination, at `index(...)`; with 8 x the row's number added (outcome = value & 7)."""
    table = bytearray(len(Content) * len(Enqueue) * len(Dequeue) * 2 * len(Queue))
    for content, enqueue, dequeue, ended, queue in product(Content, Enqueue, Dequeue, (False, True), Queue):
        row = row_of(content, enqueue, dequeue, ended, queue)
        table[index(content, enqueue, dequeue, ended, queue)] = row.outcome + 8 * ROWS.index(row)
    return bytes(table)
