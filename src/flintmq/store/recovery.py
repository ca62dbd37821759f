"""Recovery: what a restart puts back (see recovery.pxd; seed 003, "During recovery").

in: a scan of the transaction log and one of the message log, the queue ids that the definitions know. out: live messages, the entries of
every queue in position order, transactions with those in doubt, and a report. Writes nothing: run twice, it finds the same.

I1  Transactions are read first; what happened to a place is decided by the table of decisions.py alone: every place goes through it,
    those of plain messages, too.
I2  A transaction that was open at the end has rolled back. One that the message log names and the transaction log never had durable, too.
I3  What can't be told from the logs is named in the report as lost, never guessed. Damage in the transaction log refuses: a lost Commit
    would look like an open transaction.
I4  After an unclean stop what a queue's mark of deliveries covers counts as delivered before; without one, or with damage, all of it.
"""

from __future__ import annotations


import cython
from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, gil, inline, nogil, p_char, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.hash64 import map64_get
from cython.cimports.flintmq.queue.entry_list import LARGE_SLOTS
from cython.cimports.flintmq.queue.restoring import (
    restored_first, restored_flagged, restored_hold_range, restored_mark_range, restored_range, restored_sort,
)  # fmt: skip
from cython.cimports.flintmq.queue.types import RESTORED_HELD, RESTORED_REDELIVERED, RESTORED_UNSIZED, restored_t
from cython.cimports.flintmq.store.log.record import align8, position_number, position_waits, record_t
from cython.cimports.flintmq.store.log.scan import LogScan
from cython.cimports.flintmq.store.past import (
    Past, past_entry, past_first, past_gone, past_owner_at, past_owner_t, past_place, past_segment, past_segment_t, past_where,
)  # fmt: skip
from cython.cimports.flintmq.store.recovery_past import past_flagged, past_judge, past_left, past_lowest, past_standing, past_stands
from cython.cimports.flintmq.store.recovery_read import work_complete, work_past, work_purged, work_record, work_transactions
from cython.cimports.flintmq.store.recovery_work import (
    CONTENT_BELOW_BASE, CONTENT_DAMAGED, CONTENT_PRESENT, CONTENT_TORN, DEQUEUE_PLAIN, ENQUEUE_PLAIN, LEVEL_SHIFT, LOST_NO_PLACE,
    LOST_NO_POSITION, LOST_NO_SHAPE, LOST_TAKEN, OUTCOME_HELD, OUTCOME_LIVE, OUTCOME_LOST, OUTCOME_PENDING, SEEN_ENDED, SEEN_EXPIRES,
    SEEN_EXTRA, SEEN_GONE, SEEN_LIVE, SEEN_MISSING, SEEN_MOVED, SEEN_NO_SHAPE, SEEN_OLD, SEEN_PAST, SEEN_PLACE, extra_of, extra_t, live_t,
    location_t, lost_t, moved_t, name_node_t, named_t, place_at, place_position, queue_at, queue_info_t, range_t, seen_at, seen_id,
    seen_place_t, seen_t, tx_info_t, work_delivered, work_free, work_gap, work_gap_end, work_init, work_known, work_levels, work_mark,
    work_mark_level, work_queue, work_segment, work_t, work_trim, work_tx, work_used,
)  # fmt: skip
from cython.cimports.flintmq.store.vectors import vector_add
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free, malloc, realloc
from cython.cimports.libc.string import memmove

from flintmq.errors import StoreError
from flintmq.store.decisions import ROWS, Queue, lookup
from flintmq.store.past import UnreadableError
from flintmq.store.recovery_report import Lost, RecoveryReport
from flintmq.store.transaction_log import COMMITTED, OPEN, PREPARED, ROLLED_BACK, RecoveredTx, in_call_order, read_record

# --- every place gets its outcome, and what lives is written into arrays ----------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _lose(work: pointer[work_t], message_id: uint64_t, queue_id: uint64_t, position: uint64_t, row: uint32_t, most: uint64_t) -> void:
    lost: pointer[lost_t]
    work.lost_count += 1
    if work.lost.count >= most:
        return
    lost = cast(pointer[lost_t], vector_add(address(work.lost), sizeof(lost_t)))
    if lost == NULL:
        work.failed = True
        return
    lost.message_id = message_id
    lost.queue_id = queue_id
    lost.position = position
    lost.row = row


@cfunc
@inline
@nogil
@exceptval(check=False)
def _decide(
    table: pointer[cython.const[uint8_t]], content: uint32_t, enqueue: uint32_t, dequeue: uint32_t, ended: uint32_t, queue: uint32_t
) -> uint8_t:
    return table[(((content * 6 + enqueue) * 7 + dequeue) * 2 + ended) * 3 + queue]


@cfunc
@nogil
@exceptval(check=False)
def _stands(work: pointer[work_t], message_id: uint64_t, queue: uint32_t, position: uint64_t, verdict: uint8_t, most: uint64_t) -> uint8_t:
    """Counts one decided place; the outcome, which is LOST for an entry without a position."""
    outcome: uint8_t = verdict & 7
    row: uint32_t = verdict >> 3
    if work.past != NULL:
        work_known(work, queue, position)
    if outcome <= OUTCOME_HELD and (position == 0 or position_waits(position)):
        outcome = OUTCOME_LOST
        row = LOST_NO_POSITION
    if outcome <= OUTCOME_HELD:
        queue_at(work, queue).count += 1
        work.entry_count += 1
    elif outcome == OUTCOME_LOST:
        _lose(work, message_id, queue_at(work, queue).id, 0 if position_waits(position) else position, row, most)
    return outcome


@cfunc
@nogil
@exceptval(check=False)
def _decide_places(
    work: pointer[work_t],
    table: pointer[cython.const[uint8_t]],
    number: uint32_t,
    message_id: uint64_t,
    content: uint32_t,
    ended: uint32_t,
    lost_max: uint64_t,
) -> uint64_t:
    """What becomes of a message in each of its places, `number` and those behind it. Returns in how many of them it lives."""
    place: pointer[seen_place_t]
    outcome: uint8_t
    alive: uint64_t = 0
    while number:
        place = place_at(work, number)
        place.position = place_position(work, place)
        place.row = 0
        if work_purged(work, place.queue, place.position):
            place.dequeue = DEQUEUE_PLAIN
        outcome = _decide(table, content, place.enqueue, place.dequeue, ended, queue_at(work, place.queue).status)
        place.outcome = _stands(work, message_id, place.queue, place.position, outcome, lost_max)
        if place.outcome <= OUTCOME_PENDING:
            alive += 1
        number = place.next
    return alive


@cfunc
@nogil
@exceptval(check=False)
def _refer(work: pointer[work_t], number: uint32_t) -> void:
    """The transactions that a live message names, from name `number` on, are referred to once more."""
    nodes: pointer[name_node_t] = cast(pointer[name_node_t], work.names.data)
    while number:
        work_tx(work, nodes[number - 1].tx).references += 1
        work.name_count += 1
        number = nodes[number - 1].next


def work_decide(work: pointer[work_t], table: pointer[cython.const[uint8_t]], last_damage: uint64_t, lost_max: uint64_t) -> void:
    i: uint64_t
    message_id: uint64_t
    next_moved: uint64_t = 0
    entry: pointer[seen_t]
    extra: pointer[extra_t]
    content: uint32_t
    ended: uint32_t
    number: uint32_t
    outcome: uint8_t
    places: uint64_t
    alive: uint64_t
    work_complete(work)
    for i in range(work.seen.count):
        entry = seen_at(work, i)
        message_id = seen_id(work, i, address(next_moved))
        if entry.flags & SEEN_OLD:
            if entry.flags & SEEN_PAST:
                past_gone(work.past, past_where(work.past, message_id))
            continue
        content = CONTENT_PRESENT
        if entry.flags & SEEN_MISSING:
            content = CONTENT_BELOW_BASE if message_id < work.base[0] else CONTENT_DAMAGED
        ended = 1 if entry.flags & SEEN_ENDED else 0
        places = 0
        alive = 0
        if entry.flags & SEEN_EXTRA:
            extra = extra_of(work, entry)
            if extra.missing and content == CONTENT_PRESENT:
                content = CONTENT_DAMAGED if entry.lsn < last_damage else CONTENT_TORN
            places = 1 if extra.first else 0
            alive = _decide_places(work, table, extra.first, message_id, content, ended, lost_max)
            number = extra.names
            if alive:
                work.location_count += alive
                _refer(work, number)
            elif number and not ended:
                work.homeless_count += 1
        elif entry.flags & SEEN_PLACE:
            places = 1
            if work_purged(work, entry.queue, entry.word):
                entry.flags |= SEEN_GONE
            outcome = _stands(
                work,
                message_id,
                entry.queue,
                entry.word,
                _decide(table, content, ENQUEUE_PLAIN, 1 if entry.flags & SEEN_GONE else 0, ended, queue_at(work, entry.queue).status),
                lost_max,
            )
            if outcome == OUTCOME_LIVE:
                alive = 1
        if alive:
            entry.flags |= SEEN_LIVE
            work.live_count += 1
        else:
            work.dead_count += 1
            if entry.flags & SEEN_PAST:
                past_gone(work.past, past_where(work.past, message_id))
            if entry.flags & SEEN_NO_SHAPE and not ended:
                _lose(work, message_id, 0, 0, LOST_NO_SHAPE, lost_max)
            elif places == 0 and not ended and content != CONTENT_TORN and entry.lsn < last_damage:
                _lose(work, message_id, 0, 0, LOST_NO_PLACE, lost_max)


@cfunc
@nogil
@exceptval(check=False)
def _restore(
    work: pointer[work_t],
    entries: pointer[restored_t],
    queue: uint32_t,
    position: uint64_t,
    message_id: uint64_t,
    expires_at_ms: int64_t,
    body_len: uint32_t,
    flags: uint32_t,
) -> void:
    info: pointer[queue_info_t] = cast(pointer[queue_info_t], work.queues.data) + queue
    entry: pointer[restored_t] = entries + info.start + info.count
    info.count += 1
    entry.position = position
    entry.message_id = message_id
    entry.expires_at_ms = expires_at_ms
    entry.body_len = body_len
    entry.flags = flags if work_delivered(work, queue, position) else flags & ~cast(uint32_t, RESTORED_REDELIVERED)


@cfunc
@nogil
@exceptval(check=False)
def _size_of_past(work: pointer[work_t], place: pointer[seen_place_t], body_len: pointer[uint32_t]) -> uint32_t:
    """The list of a checkpoint does not know the size of a message, and of one that a transaction takes not when it expires: the run does.
    Returns flags: RESTORED_UNSIZED when it does not either, for the message came there since."""
    segment: pointer[past_segment_t] = work_segment(work, place.queue, place.position)
    entry: pointer[cython.const[restored_t]] = NULL
    if segment != NULL:
        entry = past_entry(work.past, segment, place.position)
    if entry == NULL:
        return 0 if body_len[0] else RESTORED_UNSIZED
    body_len[0] = entry.body_len
    if place.expires_at_ms == 0:
        place.expires_at_ms = entry.expires_at_ms
    return 0


@cfunc
@nogil
@exceptval(check=False)
def _fill_places(
    work: pointer[work_t],
    entries: pointer[restored_t],
    locations: pointer[location_t],
    entry: pointer[seen_t],
    message_id: uint64_t,
    flags: uint32_t,
) -> uint32_t:
    """The places in which a message of the long form lives. Returns how many."""
    queues: pointer[queue_info_t] = cast(pointer[queue_info_t], work.queues.data)
    place: pointer[seen_place_t]
    held: uint32_t
    body_len: uint32_t = entry.body_len
    number: uint32_t = extra_of(work, entry).first
    count: uint32_t = 0
    while number:
        place = cast(pointer[seen_place_t], work.places.data) + (number - 1)
        number = place.next
        if place.outcome > OUTCOME_PENDING:
            continue
        locations[count].queue_id = queues[place.queue].id
        locations[count].position = place.position
        locations[count].expires_at_ms = place.expires_at_ms
        locations[count].enqueued_by = place.enqueued_by if place.outcome == OUTCOME_PENDING else 0
        locations[count].dequeued_by = place.dequeued_by
        count += 1
        if place.outcome != OUTCOME_PENDING:
            held = flags | RESTORED_HELD if place.outcome == OUTCOME_HELD else flags
            if entry.flags & SEEN_PAST:
                held |= _size_of_past(work, place, address(body_len))
            _restore(work, entries, place.queue, place.position, message_id, place.expires_at_ms, body_len, held)
    return count


def result_fill(
    work: pointer[work_t],
    entries: pointer[restored_t],
    live: pointer[live_t],
    locations: pointer[location_t],
    names: pointer[named_t],
    flags: uint32_t,
) -> void:
    """Writes the result of work_decide into its arrays. `live` is the memory of work.seen itself: it is shorter per message, so writing
    stays behind reading."""
    i: uint64_t
    count: uint64_t = 0
    places: uint64_t = 0
    named: uint64_t = 0
    start: uint64_t = 0
    next_moved: uint64_t = 0
    number: uint32_t
    message_id: uint64_t
    expires: uint64_t
    entry: seen_t
    moved: pointer[moved_t] = cast(pointer[moved_t], work.moved.data)
    node: pointer[name_node_t]
    queue: pointer[queue_info_t] = cast(pointer[queue_info_t], work.queues.data)
    seen: pointer[seen_t] = cast(pointer[seen_t], work.seen.data)
    for i in range(work.queues.count):
        queue[i].start = start
        start += queue[i].count
        queue[i].count = 0
    for i in range(work.seen.count):
        entry = seen[i]
        message_id = entry.lsn  # not seen_id: `live` has written over the entries before
        if entry.flags & SEEN_MOVED:
            while moved[next_moved].index < i:
                next_moved += 1
            message_id = moved[next_moved].id
        if entry.flags & SEEN_MISSING or entry.flags & (SEEN_PAST | SEEN_LIVE) == SEEN_PAST:
            continue
        live[count].lsn = entry.lsn if not entry.flags & SEEN_PAST else past_where(work.past, message_id)
        live[count].id = message_id
        live[count].bytes = entry.bytes
        live[count].places = 0
        if not entry.flags & SEEN_LIVE:
            live[count].id = 0
        elif entry.flags & SEEN_EXTRA:
            live[count].places = _fill_places(work, entries, locations + places, address(entry), message_id, flags)
            places += live[count].places
            number = extra_of(work, address(entry)).names
            while number:
                node = cast(pointer[name_node_t], work.names.data) + (number - 1)
                number = node.next
                names[named].message_id = message_id
                names[named].tx = node.tx
                named += 1
        else:
            expires = 0
            if entry.flags & SEEN_EXPIRES:
                map64_get(address(work.expiries), i + 1, address(expires))
            _restore(work, entries, entry.queue, entry.word, message_id, cast(int64_t, expires), entry.body_len, flags)
        count += 1
    work.kept_count = count


# --- the whole ----------------------------------------------------------------------------------------------------------------------

# lost places that are named one by one; more are counted only
LOST_NAMED_MAX = 10_000
# without a transaction log, no transaction is known to be later than it
TX_TAIL_NONE = declare(uint64_t, 0xFFFFFFFFFFFFFFFF)


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
        self.live_count = self.kept_count = self.location_count = self.name_count = self.named_tx_max = 0
        self.transactions = {}
        self.notes = {}
        self.marks = {}
        self.delivered = {}
        self.unknown_queues = []
        self.homeless = []
        self.taken = []
        self.past = None
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
        past: Past | None = None,
    ) -> None:
        """Reads both logs and fills the attributes in.

        Args: known_queue_ids: durable queues of the definitions; queue_id_high_water: highest id they ever gave out; unclean: the last
        run did not end with a clean stop; None: as the logs say; past: a checkpoint, and the message log is read from where that begins.
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
        work_transactions(work, self.transactions)
        work.base = address(message_scan.base)
        work.container_size = address(message_scan.container_size)
        if past is not None:
            self._begin_at(past, message_scan)
        message_scan.run(work_record, work)
        if work.failed:
            raise MemoryError("no memory for recovery")
        self._judge_queues(known_queue_ids, queue_id_high_water, message_scan.directory)
        last_damage: uint64_t = 0
        for damage in message_scan.damage:
            last_damage = max(last_damage, damage.next_lsn or message_scan.tail)
        table: bytes = lookup()
        outcomes: pointer[cython.const[uint8_t]] = table
        most: uint64_t = LOST_NAMED_MAX
        with nogil:
            work_decide(work, outcomes, last_damage, most)
        if unclean is None:
            unclean = not message_scan.clean or (transaction_scan is not None and not transaction_scan.clean)
        self._collect_homeless()
        work.all_delivered = work.all_delivered or len(message_scan.damage) != 0
        if past is not None:
            past_judge(work, unclean or bool(message_scan.damage))
        self._take_result(RESTORED_REDELIVERED if unclean or message_scan.damage else 0)
        self._finish_transactions()
        self._fill_report(message_scan, transaction_scan)
        work_trim(work)
        if past is not None and (past.past.failed or past.past.unread):
            raise UnreadableError("a run of the checkpoint can't be read")

    def _begin_at(self, past: Past, scan: LogScan) -> None:
        """The checkpoint is what the log says below its begin."""
        work: pointer[work_t] = address(self._work)
        queue: int64_t
        level: uint64_t
        self.past = past
        scan.begin = past.past.begin
        work_past(work, address(past.past))
        for queue_id, tails in past.tails.items():
            queue = work_queue(work, queue_id)
            for level in range(len(tails) if queue >= 0 else 0):
                work_used(work, cast(uint32_t, queue), level << LEVEL_SHIFT | tails[level])
        for queue_id, marks in past.marks.items():
            queue = work_queue(work, queue_id)
            if queue >= 0:
                work_mark(work, cast(uint32_t, queue))
            for level in range(len(marks) if queue >= 0 else 0):
                work_mark_level(work, cast(uint32_t, queue), level, marks[level])

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
        """Takes in one record of the transaction log. Raises: Malformed for fields that make no sense."""
        work_gap_end(address(self._work), lsn)
        if not read_record(self.transactions, self.notes, lsn, kind, tx_id, data, time_us):
            # From where the log ended when this start began: the note itself may stand in the next container.
            work_gap(address(self._work), max(self._behind, self._scan.block_end, self._scan.base))

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
        shared: dict = {}  # the tails of very many queues are the same few
        for i in range(work.queues.count):
            queue = cast(pointer[queue_info_t], work.queues.data) + i
            queue_id = queue.id
            if queue_id in known and not queue.ended:
                queue.status = Queue.KNOWN
                highest = [queue.high[0]]
                if queue.levels != NULL:
                    for level in range(1, 256):
                        highest.append(queue.levels[level])
                    while not highest[len(highest) - 1]:
                        highest.pop()
                tails = tuple(highest)
                self.marks[queue_id] = shared.setdefault(tails, tails)
                if queue.marked:
                    tails = work_levels(queue)
                    self.delivered[queue_id] = shared.setdefault(tails, tails)
            elif queue.ended or queue_id <= high_water:
                queue.status = Queue.GONE
                if queue.named and not queue.ended:
                    self.unknown_queues.append(queue_id)
            else:
                queue.status = Queue.ABOVE
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
        segments: list = self._count_segments()
        self._take_segments(segments, False)
        self._entries = cast(pointer[restored_t], malloc(max(1, work.entry_count) * sizeof(restored_t)))
        self.locations = cast(pointer[location_t], malloc(max(1, work.location_count) * sizeof(location_t)))
        self.names = cast(pointer[named_t], malloc(max(1, work.name_count) * sizeof(named_t)))
        if self._entries == NULL or self.locations == NULL or self.names == NULL:
            raise MemoryError("no memory for recovery")
        self.live = cast(pointer[live_t], work.seen.data)
        with nogil:
            result_fill(work, self._entries, self.live, self.locations, self.names, c_flags)
        self._take_segments(segments, True)
        self.live_count = work.live_count
        self.kept_count = work.kept_count
        self.location_count = work.location_count
        self.name_count = work.name_count
        smaller: p_void = realloc(work.seen.data, max(1, work.kept_count) * sizeof(live_t))
        if smaller != NULL:
            work.seen.data = smaller
        self.live = cast(pointer[live_t], work.seen.data)
        for i in range(work.queues.count):
            queue = cast(pointer[queue_info_t], work.queues.data) + i
            if queue.count:
                with nogil:
                    twice = restored_sort(self._entries + queue.start, queue.count)
                queue.count -= twice
                for index in range(queue.count, queue.count + twice):
                    self._lose(
                        self._entries[queue.start + index].message_id, queue.id, self._entries[queue.start + index].position, LOST_TAKEN
                    )
        for tx, row in self._sets():
            self._set_row(tx, row)
        for i in range(work.ranges.count):
            span = cast(pointer[range_t], work.ranges.data) + i
            queue = cast(pointer[queue_info_t], work.queues.data) + span.queue
            restored_mark_range(self._entries + queue.start, queue.count, span.first, span.last)

    def _sets(self) -> list:
        """(transaction, run of positions) of the sets that hold or take what stands there."""
        return [
            (tx, row)
            for tx in self.transactions.values()
            if tx.state == PREPARED or (tx.state == COMMITTED and not tx.ended)
            for row in tx.sets
        ]

    def _count_segments(self) -> list:
        """Numbers of the checkpoint's segments of which sets hold or take entries: those will be in the array, and are counted."""
        work: pointer[work_t] = address(self._work)
        number: uint64_t = 0
        place: uint64_t
        first: uint64_t
        length: uint64_t
        info: pointer[queue_info_t]
        owner: pointer[past_owner_t]
        wanted: set = set()
        for _, (queue_id, first, length) in self._sets() if self.past is not None else ():
            if not map64_get(address(work.queue_index), cast(uint64_t, queue_id) + 1, address(number)):
                continue
            info = queue_at(work, cast(uint32_t, number))
            if info.past == 0:
                continue
            owner = past_owner_at(work.past, info.past - 1)
            place = past_place(work.past, info.past - 1, first)
            while place < owner.first + owner.count and past_first(past_segment(work.past, place)) < first + length:
                if not past_segment(work.past, place).purged:
                    wanted.add(place)
                place += 1
        return sorted(wanted)

    def _take_segments(self, numbers: list, fill: bint) -> None:
        """Counts the entries of these segments that stand, or puts them into the array, behind those of the log."""
        work: pointer[work_t] = address(self._work)
        number: uint64_t
        queue: int64_t
        count: c_int
        ended: uint32_t = 0
        info: pointer[queue_info_t]
        segment: pointer[past_segment_t]
        spare: pointer[restored_t] = cast(pointer[restored_t], malloc(LARGE_SLOTS * sizeof(restored_t)))
        if spare == NULL:
            raise MemoryError("no memory for recovery")
        for number in numbers:
            segment = past_segment(work.past, number)
            segment.taken = True
            queue = work_queue(work, past_owner_at(work.past, segment.owner).id)
            info = queue_at(work, cast(uint32_t, queue))
            count = past_standing(work, segment, self._entries + info.start + info.count if fill else spare, NULL, address(ended))
            if count > 0:
                info.count += count
                work.entry_count += 0 if fill else count
        free(spare)

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
            restored_hold_range(self._entries + queue.start, queue.count, first, count)
            return
        taken = restored_range(self._entries + queue.start, queue.count, first, count, address(start))
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
            LOST_NO_SHAPE: "its Message-Shape, which says where it stood, is in a damaged part of the log",
        }
        self.report.lost_count += 1
        if len(self.report.lost) < LOST_NAMED_MAX:
            self.report.lost.append(Lost(message_id, queue_id, position, special.get(row) or ROWS[row].why))

    def _fill_report(self, messages: LogScan, transactions: LogScan | None) -> None:
        work: pointer[work_t] = address(self._work)
        queue: pointer[queue_info_t] = cast(pointer[queue_info_t], work.queues.data)
        lost: pointer[lost_t] = cast(pointer[lost_t], work.lost.data)
        report = self.report
        standing: uint64_t
        i: uint64_t
        for i in range(work.lost.count):
            self._lose(lost[i].message_id, lost[i].queue_id, lost[i].position, lost[i].row)
        report.lost_count += work.lost_count - work.lost.count
        report.messages = self.live_count
        report.dead = work.dead_count
        for i in range(work.queues.count):
            standing = past_left(work, queue + i)
            report.entries += queue[i].count + standing
            report.messages += standing
            report.queues += 1 if queue[i].count or standing else 0
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

    def lowest(self, queue_id: int, level: int) -> int:
        """Index of the first entry that may come back to a level, 0: none does."""
        count: uint64_t = 0
        entries: pointer[restored_t] = self.entries(queue_id, address(count))
        first: uint64_t = restored_first(entries, count, level)
        past: uint64_t = 0 if self.past is None else past_lowest(address(self._work), queue_id, level)
        return min(first, past) if first and past else max(first, past)

    def flagged(self, queue_id: int, level: int) -> int:
        """Highest index of a level whose entry may come back flagged as delivered before, 0: none does."""
        count: uint64_t = 0
        entries: pointer[restored_t] = self.entries(queue_id, address(count))
        past: uint64_t = 0 if self.past is None else past_flagged(address(self._work), queue_id, level)
        return max(past, restored_flagged(entries, count, level))

    def stands(self, queue_id: int, position: int) -> bool:
        """Whether an entry comes back at this position. May wait for the disk."""
        number: uint64_t = 0
        first: uint64_t = 0
        entries: pointer[restored_t] = self.entries(queue_id, address(number))
        if entries != NULL and restored_range(entries, number, position, 1, address(first)):
            return True
        return self.past is not None and past_stands(address(self._work), queue_id, position)

    def entries(self, queue_id: uint64_t, count: pointer[uint64_t]) -> pointer[restored_t]:
        number: uint64_t = 0
        queue: pointer[queue_info_t]
        count[0] = 0
        if self._entries == NULL or not map64_get(address(self._work.queue_index), queue_id + 1, address(number)):
            return NULL
        queue = cast(pointer[queue_info_t], self._work.queues.data) + number
        count[0] = queue.count
        return self._entries + queue.start
