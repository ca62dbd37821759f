"""What recovery tells in Python: transactions that the log still has, what was lost, and the report for the operator."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

# states of a transaction, as Tx-Copy writes them
OPEN, PREPARED, COMMITTED, ROLLED_BACK = 1, 2, 3, 4


@dataclass(slots=True)
class RecoveredTx:
    """A transaction that the log still has.

    was_open: it had no outcome when the broker stopped and counts as rolled back: a Rollback is to be logged. start_lost: not even its
    start became durable: a Tx-Copy is to be logged for it, and the transaction log has to go on above its id. references: live messages
    that name it; at 0 a transaction with an outcome may be deleted, once the homeless messages are. Prepared ones only: `enqueues`
    (queue id, message id, expires_at_ms, position or 0, body length, number) in the order of the calls (per queue; over queues as far as
    the log tells), where `number` is the running number of an enqueue that waits for its position, else -1; and `dequeues` (queue id,
    position, message id) in LSN order. `sets`: rows (queue id, first position, count) that it dequeues, for
    consumer_id, acquired at acquired_us
    (microseconds of the wall clock, 0 not known); empty once
    it ended.
    """

    id: int
    xid: bytes = b""
    state: int = OPEN
    rows: list[tuple[int, int, int]] = field(default_factory=list)
    heuristic: int = 0
    ended: bool = False
    references: int = 0
    was_open: bool = False
    start_lost: bool = False
    enqueues: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    dequeues: list[tuple[int, int, int]] = field(default_factory=list)
    sets: list[tuple[int, int, int]] = field(default_factory=list)
    consumer_id: int = 0
    acquired_us: int = 0


@dataclass(frozen=True, slots=True)
class Lost:
    """An entry that should be there, or may have been. queue_id 0: the log does not say where the message stood."""

    message_id: int
    queue_id: int
    position: int
    reason: str

    def __str__(self) -> str:
        where = f"at position {self.position} of queue {self.queue_id}" if self.queue_id else "on a queue that is not known"
        return f"message {self.message_id} {where}: {self.reason}"


@dataclass(slots=True)
class RecoveryReport:
    """What recovery found: for the log line and for the operator."""

    messages: int = 0  # live
    entries: int = 0
    queues: int = 0  # with entries
    dead: int = 0  # messages in the log that ended
    prepared: int = 0
    rolled_back: int = 0  # were open
    records: int = 0
    malformed: int = 0  # records that check and make no sense
    unknown_kinds: int = 0  # records of types that this version does not know
    stray: int = 0  # records about messages or places that are gone
    damage: list[Any] = field(default_factory=list)
    torn: list[tuple[str, int]] = field(default_factory=list)  # (directory, LSN) of tails that are cut off
    lost: list[Lost] = field(default_factory=list)
    lost_count: int = 0  # more than `lost` names when there are very many

    def __str__(self) -> str:
        text = f"{self.messages} messages, {self.entries} entries on {self.queues} queues, {self.prepared} transactions in doubt"
        if self.rolled_back:
            text += f", {self.rolled_back} open transactions rolled back"
        for directory, lsn in self.torn:
            text += f"; torn tail of {directory} cut off at LSN {lsn}"
        if self.damage:
            text += f"; {len(self.damage)} damaged places"
        if self.lost_count:
            text += f"; {self.lost_count} entries lost"
        return text


def in_call_order(found: list[Any]) -> list[Any]:
    """Enqueues of a transaction in doubt. found: (order in the log, queue id, ..., number), as RecoveredTx has them behind the first.

    Within a queue the numbers say the order. Over queues it is the order of the records, which a Message-Copy changes: of the first ones
    of each queue that are left, the one that stands first in the log comes next.
    """
    queues: dict[int, list[Any]] = {}
    for item in sorted(found, key=lambda item: (item[6], item[0]), reverse=True):
        queues.setdefault(item[1], []).append(item)
    heads = [left.pop() for left in queues.values()]
    heapq.heapify(heads)
    ordered = []
    while heads:
        item = heads[0]
        left = queues[item[1]]
        if left:
            heapq.heapreplace(heads, left.pop())
        else:
            heapq.heappop(heads)
        ordered.append(item[1:])
    return ordered
