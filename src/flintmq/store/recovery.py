"""Recovery: what a restart puts back (see recovery.pxd; seed 003, "During recovery").

in: a scan of the transaction log and one of the message log, the queue ids that the definitions know. out: live messages, the entries of
every queue in position order, transactions with what is in doubt, and a report. Writes nothing: run twice, it finds the same.

I1  Transactions are read first; what happened to a place is decided by the table of decisions.py alone.
I2  A transaction that was open at the end has rolled back. One that the message log names and the transaction log never had durable, too.
I3  What can't be told from the logs is named in the report as lost, never guessed. Damage in the transaction log refuses: a lost Commit
    would look like an open transaction.
I4  After an unclean stop every entry counts as delivered before; so it does when a part of the log is damaged.
"""

from __future__ import annotations

import heapq
import struct
from dataclasses import dataclass, field
from typing import Any

import cython
from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, gil, nogil, p_char, p_void, pointer, sizeof, void
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.hash64 import map64_get
from cython.cimports.flintmq.queue.types import RESTORED_REDELIVERED, restored_t
from cython.cimports.flintmq.store.log.record import (
    RECORD_ACQUIRE_SET,
    RECORD_COMMIT,
    RECORD_DTX_START,
    RECORD_END,
    RECORD_HEURISTIC,
    RECORD_NOTE,
    RECORD_PREPARE,
    RECORD_ROLLBACK,
    RECORD_TX_COPY,
    RECORD_TX_DELETE,
    RECORD_TX_START,
    align8,
    position_number,
    position_waits,
    record_t,
)
from cython.cimports.flintmq.store.log.scan import LogScan
from cython.cimports.flintmq.store.recovery_read import (
    LOST_NO_PLACE,
    LOST_NO_POSITION,
    LOST_TAKEN,
    OUTCOME_HELD,
    OUTCOME_PENDING,
    SEEN_ENDED,
    SEEN_EXTRA,
    SEEN_LIVE,
    SEEN_MOVED,
    SEEN_OLD,
    extra_t,
    lost_t,
    moved_t,
    queue_info_t,
    range_t,
    row_t,
    seen_place_t,
    seen_t,
    tx_info_t,
    vector_add,
    work_free,
    work_gap,
    work_gap_end,
    work_init,
    work_queue,
    work_record,
    work_t,
    work_trim,
    work_tx,
    work_used,
)
from cython.cimports.flintmq.store.recovery_result import (
    result_fill,
    result_hold_range,
    result_mark_range,
    result_range,
    result_sort,
    work_decide,
)
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, malloc, realloc
from cython.cimports.libc.string import memmove

from flintmq.errors import StoreError
from flintmq.store import decisions
from flintmq.store.transaction_log import NOTE_RUN

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


_CODES = {
    OPEN: decisions.Enqueue.OPEN,
    PREPARED: decisions.Enqueue.PREPARED,
    COMMITTED: decisions.Enqueue.COMMITTED,
    ROLLED_BACK: decisions.Enqueue.ROLLED_BACK,
}
# lost places that are named one by one; more are counted only
LOST_NAMED_MAX = 10_000
# without a transaction log, no transaction is known to be later than it
TX_TAIL_NONE = declare(uint64_t, 0xFFFFFFFFFFFFFFFF)


@cfunc
@nogil
@exceptval(check=False)
def _ignore(context: p_void, record: pointer[record_t]) -> void:
    pass


@cfunc
@nogil
@exceptval(check=False)
def _on_transaction(context: p_void, record: pointer[record_t]) -> void:
    with gil:
        recovery: Recovery = cast(Recovery, context)
        if recovery._error is not None:
            return
        try:
            recovery._transaction(
                record.lsn,
                record.type,
                record.undo_prev,
                PyBytes_FromStringAndSize(cast(p_char, record.data), record.size),
                record.time_us,
            )
            recovery._behind = record.lsn + align8(record.length)
        except Exception as error:
            recovery._error = error


def _rows(data: bytes, at: int) -> list[tuple[int, int, int]]:
    count = struct.unpack_from("<I", data, at)[0]
    if at + 8 + 24 * count > len(data):
        raise ValueError("rows of a Commit run past its end")
    return [struct.unpack_from("<QQQ", data, at + 8 + 24 * n) for n in range(count)]


def _xid(data: bytes, at: int) -> bytes:
    length = struct.unpack_from("<H", data, at)[0]
    if at + 2 + length > len(data):
        raise ValueError("an xid runs past the end of its record")
    return data[at + 2 : at + 2 + length]


@cclass
class Recovery:
    """One recovery. Attributes: see recovery.pxd."""

    def __cinit__(self):
        work_init(address(self._work))
        self.live = NULL
        self.locations = NULL
        self.names = NULL
        self._entries = NULL

    def __init__(self) -> None:
        self._reset()

    def __dealloc__(self):
        work_free(address(self._work))
        free(self.locations)
        free(self.names)
        free(self._entries)

    def _reset(self) -> None:
        work_free(address(self._work))  # frees `live`, too: it is the memory of _work.seen
        free(self.locations)
        free(self.names)
        free(self._entries)
        self.live = NULL
        self.locations = NULL
        self.names = NULL
        self._entries = NULL
        self.live_count = self.location_count = self.name_count = self.named_tx_max = 0
        self.transactions = {}
        self.notes = {}
        self.marks = {}
        self.unknown_queues = []
        self.homeless = []
        self.taken = []
        self.report = RecoveryReport()
        self._error = None
        self._scan = None
        self._behind = 0

    def run(
        self,
        message_scan: LogScan,
        transaction_scan: LogScan | None,
        known_queue_ids: set,
        queue_id_high_water: int,
        unclean: bool | None = None,
    ) -> None:
        """Reads both logs and fills the attributes in.

        Args: known_queue_ids: durable queues of the definitions; queue_id_high_water: highest id they ever gave out; unclean: the last
        run did not end with a clean stop; None: as the logs say.
        Raises: StoreError: a log can't be read, the transaction log is damaged, or the log names queues that SQL never had.
        """
        work: pointer[work_t] = address(self._work)
        self._reset()
        work.tx_tail = TX_TAIL_NONE
        if transaction_scan is not None:
            self._read_transactions(transaction_scan)
            if transaction_scan.container_size:
                # Not the tail: that may stand in the next container already, where a block is torn.
                work.tx_tail = max(transaction_scan.block_end, transaction_scan.base)
        self._give_transactions()
        work.base = address(message_scan.base)
        message_scan.run(work_record, work)
        if work.failed:
            raise MemoryError("no memory for recovery")
        self._judge_queues(known_queue_ids, queue_id_high_water, message_scan.directory)
        last_damage: uint64_t = 0
        for damage in message_scan.damage:
            last_damage = max(last_damage, damage.next_lsn or message_scan.tail)
        table: bytes = decisions.lookup()
        outcomes: pointer[cython.const[uint8_t]] = table
        most: uint64_t = LOST_NAMED_MAX
        with nogil:
            work_decide(work, outcomes, last_damage, most)
        if unclean is None:
            unclean = not message_scan.clean or (transaction_scan is not None and not transaction_scan.clean)
        self._collect_homeless()
        self._take_result(RESTORED_REDELIVERED if unclean or message_scan.damage else 0)
        self._finish_transactions()
        self._fill_report(message_scan, transaction_scan)
        work_trim(work)

    # --- transactions

    def _read_transactions(self, scan: LogScan) -> None:
        self._scan = scan
        scan.run(_on_transaction, cast(p_void, self))
        self._scan = None
        if self._error is not None:
            raise StoreError(f"{scan.directory}: a transaction record makes no sense: {self._error}") from self._error
        if scan.damage:
            raise StoreError(
                f"the transaction log is damaged, so outcomes of transactions may be missing: {scan.damage[0]}"
                " (`flintmq log repair --accept-loss` opens it without them)"
            )

    def _transaction(self, lsn: int, kind: int, tx_id: int, data: bytes, time_us: int) -> None:
        """Takes in one record of the transaction log. Raises: ValueError, struct.error for fields that make no sense."""
        work_gap_end(address(self._work), lsn)
        if kind == RECORD_TX_START:
            self.transactions[lsn] = RecoveredTx(lsn)
            return
        if kind == RECORD_DTX_START:
            self.transactions[lsn] = RecoveredTx(lsn, _xid(data, 0))
            return
        if kind == RECORD_NOTE:
            note_kind, key_len, value_len = struct.unpack_from("<HHI", data)
            if 8 + key_len + value_len > len(data):
                raise ValueError("a Note runs past its end")
            if note_kind == NOTE_RUN:
                # From where the log ended when this start began: the note itself may stand in the next container.
                work_gap(address(self._work), max(self._behind, self._scan.block_end, self._scan.base))
                return
            key = (note_kind, data[8 : 8 + key_len])
            value = data[8 + key_len : 8 + key_len + value_len]
            if value:
                self.notes[key] = value
            else:
                self.notes.pop(key, None)
            return
        if kind == RECORD_TX_COPY:
            state, heuristic, ended = data[0], data[1], data[2]
            if state not in _CODES:
                raise ValueError(f"a Tx-Copy has state {state}")
            xid = _xid(data, 4)
            at = 6 + len(xid) + 3 & ~3
            rows = _rows(data, at)
            tx = self.transactions[tx_id] = RecoveredTx(tx_id, xid, state, rows, heuristic, bool(ended))
            if data[3] & 1:
                at += 8 + 24 * len(rows)
                tx.sets = _rows(data, at)
                tx.consumer_id = struct.unpack_from("<I", data, at + 4)[0]
            return
        tx = self.transactions.get(tx_id)
        if tx is None:
            return  # it was deleted, and the base has passed its start
        if kind == RECORD_PREPARE:
            tx.state = PREPARED
        elif kind == RECORD_COMMIT:
            tx.state = COMMITTED
            tx.rows = _rows(data, 0)
        elif kind == RECORD_ROLLBACK:
            tx.state = ROLLED_BACK
        elif kind == RECORD_END:
            tx.ended = True
            tx.sets = []
        elif kind == RECORD_ACQUIRE_SET:
            tx.sets += _rows(data, 0)
            tx.consumer_id = struct.unpack_from("<I", data, 4)[0]
            tx.acquired_us = time_us
        elif kind == RECORD_HEURISTIC:
            tx.heuristic = data[0]
        elif kind == RECORD_TX_DELETE:
            del self.transactions[tx_id]

    def _give_transactions(self) -> None:
        """Tells the C side of every transaction and of the positions that commits gave."""
        work: pointer[work_t] = address(self._work)
        info: pointer[tx_info_t]
        row: pointer[row_t]
        queue: int64_t
        for tx in self.transactions.values():
            # A set's positions were given. Of a transient message the log has nothing else: one that got its position would be in the set.
            for queue_id, first, count in tx.sets:
                queue = work_queue(work, queue_id)
                if queue >= 0 and count:
                    work_used(work, cast(uint32_t, queue), first + count - 1)
            info = work_tx(work, tx.id)
            if info == NULL:
                raise MemoryError("no memory for recovery")
            info.lost_start = False
            info.state = _CODES[tx.state]
            info.first_row = cast(uint32_t, work.rows.count)
            last_rows: dict = {}  # queue id -> number of its last row so far
            for queue_id, first, count in tx.rows:
                row = cast(pointer[row_t], vector_add(address(work.rows), sizeof(row_t)))
                queue = work_queue(work, queue_id)
                if row == NULL or queue < 0:
                    raise MemoryError("no memory for recovery")
                row.queue_id = queue_id
                row.first = first
                row.count = count
                row.more = 0
                if queue_id in last_rows:
                    row = cast(pointer[row_t], work.rows.data) + cast(uint32_t, last_rows[queue_id])
                    row.more = cast(uint32_t, work.rows.count)
                last_rows[queue_id] = work.rows.count - 1
                info.row_count += 1
                if count and first:
                    work_used(work, cast(uint32_t, queue), first + count - 1)
        work.tx_named_max = 0

    def _finish_transactions(self) -> None:
        """References, what is in doubt, and what was open."""
        work: pointer[work_t] = address(self._work)
        info: pointer[tx_info_t]
        i: uint64_t
        self.named_tx_max = work.tx_named_max
        for i in range(work.txs.count):
            info = cast(pointer[tx_info_t], work.txs.data) + i
            tx = self.transactions.get(info.id)
            if tx is None and info.lost_start:
                tx = self.transactions[info.id] = RecoveredTx(info.id, start_lost=True)
            if tx is not None:
                tx.references = info.references
                if tx.state == OPEN:
                    tx.state = ROLLED_BACK
                    tx.was_open = True
        for tx in self.transactions.values():
            tx.enqueues = in_call_order(tx.enqueues)
            tx.dequeues = [item[1:] for item in sorted(tx.dequeues)]

    # --- queues and messages

    def _judge_queues(self, known: set, high_water: int, directory: str) -> None:
        work: pointer[work_t] = address(self._work)
        queue: pointer[queue_info_t]
        i: uint64_t
        level: uint32_t
        above: list = []
        for i in range(work.queues.count):
            queue = cast(pointer[queue_info_t], work.queues.data) + i
            queue_id = queue.id
            if queue_id in known and not queue.ended:
                queue.status = decisions.Queue.KNOWN
                highest = [queue.high[0]]
                if queue.levels != NULL:
                    for level in range(1, 256):
                        highest.append(queue.levels[level])
                    while not highest[len(highest) - 1]:
                        highest.pop()
                self.marks[queue_id] = tuple(highest)
            elif queue.ended or queue_id <= high_water:
                queue.status = decisions.Queue.GONE
                if queue.named and not queue.ended:
                    self.unknown_queues.append(queue_id)
            else:
                queue.status = decisions.Queue.ABOVE
                if queue.named:
                    above.append(queue_id)
        self.unknown_queues.sort()
        if above:
            raise StoreError(
                f"the message log {directory} names queue {min(above)}, but the definitions have given out ids up to {high_water} only:"
                " this log and this definitions database do not belong together"
            )

    def _collect_homeless(self) -> None:
        """Messages that name a transaction, stand nowhere, and have no end: without one, the next recovery would miss the transaction."""
        work: pointer[work_t] = address(self._work)
        seen: pointer[seen_t] = cast(pointer[seen_t], work.seen.data)
        moved: pointer[moved_t] = cast(pointer[moved_t], work.moved.data)
        extras: pointer[extra_t] = cast(pointer[extra_t], work.extras.data)
        places: pointer[seen_place_t] = cast(pointer[seen_place_t], work.places.data)
        queues: pointer[queue_info_t] = cast(pointer[queue_info_t], work.queues.data)
        i: uint64_t
        next_moved: uint64_t = 0
        number: uint32_t
        message_id: uint64_t
        doubt: bint = any(tx.state == PREPARED for tx in self.transactions.values())
        if not work.homeless_count and not doubt:
            return
        for i in range(work.seen.count):
            if seen[i].flags & SEEN_OLD or not seen[i].flags & SEEN_EXTRA:
                continue
            message_id = seen[i].lsn
            if seen[i].flags & SEEN_MOVED:
                while moved[next_moved].index < i:
                    next_moved += 1
                message_id = moved[next_moved].id
            if not seen[i].flags & SEEN_LIVE:
                if not seen[i].flags & SEEN_ENDED and extras[seen[i].word].names:
                    self.homeless.append(message_id)
                continue
            number = extras[seen[i].word].first
            while number:
                place = places[number - 1]
                if place.outcome == OUTCOME_PENDING:
                    waits = bool(position_waits(place.position))
                    self.transactions[place.enqueued_by].enqueues.append(
                        (
                            number,
                            queues[place.queue].id,
                            message_id,
                            place.expires_at_ms,
                            0 if waits else place.position,
                            seen[i].body_len,
                            position_number(place.position) if waits else -1,
                        )
                    )
                elif place.outcome == OUTCOME_HELD:
                    self.transactions[place.dequeued_by].dequeues.append((number, queues[place.queue].id, place.position, message_id))
                number = place.next

    def _take_result(self, flags: int) -> None:
        work: pointer[work_t] = address(self._work)
        c_flags: uint32_t = flags
        twice: uint64_t
        i: uint64_t
        span: pointer[range_t]
        queue: pointer[queue_info_t]
        self._entries = cast(pointer[restored_t], malloc(max(1, work.entry_count) * sizeof(restored_t)))
        self.locations = cast(pointer[location_t], malloc(max(1, work.location_count) * sizeof(location_t)))
        self.names = cast(pointer[named_t], malloc(max(1, work.name_count) * sizeof(named_t)))
        if self._entries == NULL or self.locations == NULL or self.names == NULL:
            raise MemoryError("no memory for recovery")
        self.live = cast(pointer[live_t], work.seen.data)
        with nogil:
            result_fill(work, self._entries, self.live, self.locations, self.names, c_flags)
        self.live_count = work.live_count
        self.location_count = work.location_count
        self.name_count = work.name_count
        smaller: p_void = realloc(work.seen.data, max(1, work.live_count) * sizeof(live_t))
        if smaller != NULL:
            work.seen.data = smaller
        self.live = cast(pointer[live_t], work.seen.data)
        for i in range(work.queues.count):
            queue = cast(pointer[queue_info_t], work.queues.data) + i
            if queue.count:
                with nogil:
                    twice = result_sort(self._entries + queue.start, queue.count)
                queue.count -= twice
                for at in range(queue.count, queue.count + twice):
                    self._lose(self._entries[queue.start + at].message_id, queue.id, self._entries[queue.start + at].position, LOST_TAKEN)
        for tx in self.transactions.values():
            for row in tx.sets:
                if tx.state == PREPARED or (tx.state == COMMITTED and not tx.ended):
                    self._set_row(tx, row)
        for i in range(work.ranges.count):
            span = cast(pointer[range_t], work.ranges.data) + i
            queue = cast(pointer[queue_info_t], work.queues.data) + span.queue
            result_mark_range(self._entries + queue.start, queue.count, span.first, span.last)

    def _set_row(self, tx: object, row: tuple) -> None:
        """A run of positions that a transaction dequeues: held while it is in doubt; taken out once it has committed."""
        work: pointer[work_t] = address(self._work)
        number: uint64_t = 0
        queue: pointer[queue_info_t]
        first: uint64_t
        count: uint64_t
        taken: uint64_t
        i: uint64_t
        start: uint64_t = 0
        queue_id, first, count = row
        if not map64_get(address(work.queue_index), cast(uint64_t, queue_id) + 1, address(number)):
            return
        queue = cast(pointer[queue_info_t], work.queues.data) + number
        if tx.state == PREPARED:
            result_hold_range(self._entries + queue.start, queue.count, first, count)
            return
        taken = result_range(self._entries + queue.start, queue.count, first, count, address(start))
        for i in range(start, start + taken):
            self.taken.append(
                (
                    queue_id,
                    self._entries[queue.start + i].position,
                    self._entries[queue.start + i].message_id,
                    tx.consumer_id,
                    tx.acquired_us,
                )
            )
        memmove(
            self._entries + queue.start + start,
            self._entries + queue.start + start + taken,
            (queue.count - start - taken) * sizeof(restored_t),
        )
        queue.count -= taken

    def _lose(self, message_id: int, queue_id: int, position: int, row: int) -> None:
        special = {
            LOST_NO_POSITION: "its transaction committed, but gave it no position",
            LOST_NO_PLACE: "the log behind it is damaged: it may have been enqueued",
            LOST_TAKEN: "another message has this position",
        }
        self.report.lost_count += 1
        if len(self.report.lost) < LOST_NAMED_MAX:
            self.report.lost.append(Lost(message_id, queue_id, position, special.get(row) or decisions.ROWS[row].why))

    def _fill_report(self, messages: LogScan, transactions: LogScan | None) -> None:
        work: pointer[work_t] = address(self._work)
        queue: pointer[queue_info_t] = cast(pointer[queue_info_t], work.queues.data)
        lost: pointer[lost_t] = cast(pointer[lost_t], work.lost.data)
        report = self.report
        i: uint64_t
        for i in range(work.lost.count):
            self._lose(lost[i].message_id, lost[i].queue_id, lost[i].position, lost[i].row)
        report.lost_count += work.lost_count - work.lost.count
        report.messages = self.live_count
        report.dead = work.dead_count
        for i in range(work.queues.count):
            report.entries += queue[i].count
            report.queues += 1 if queue[i].count else 0
        report.prepared = sum(1 for tx in self.transactions.values() if tx.state == PREPARED)
        report.rolled_back = sum(1 for tx in self.transactions.values() if tx.was_open)
        report.records = messages.records
        report.malformed = work.malformed
        report.unknown_kinds = work.unknown_kinds
        report.stray = work.stray
        for scan in (messages, transactions):
            if scan is not None:
                report.damage += scan.damage
                if scan.torn_at:
                    report.torn.append((scan.directory, scan.torn_at))

    # --- reading the result

    def entries(self, queue_id: uint64_t, count: pointer[uint64_t]) -> pointer[restored_t]:
        number: uint64_t = 0
        queue: pointer[queue_info_t]
        count[0] = 0
        if self._entries == NULL or not map64_get(address(self._work.queue_index), queue_id + 1, address(number)):
            return NULL
        queue = cast(pointer[queue_info_t], self._work.queues.data) + number
        count[0] = queue.count
        return self._entries + queue.start
