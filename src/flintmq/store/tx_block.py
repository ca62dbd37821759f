"""BlockEnrolment: a local transaction whose records stand in one commit block of the message log, so that one sync decides it.

in: enqueues and dequeues of one front (tx.commit), its decision. out: plain Message-Start, -Enqueue, -Dequeue in one block; for a large
transaction, records of both logs by a LogEnrolment.

B1  Nothing is written before `decide`: a transaction that is abandoned before has left nothing in the log.
B2  All its records are in one block: room for them is made first, and the log's lock is not let go. A torn block is cut off whole, so
    recovery sees all of it or nothing, without a Commit. Such a transaction has no id, and no message names it.
B3  Nothing can fail between the first record and the last, but for a log that has failed: that writes no more. So a message with several
    places, whose entry in the message list takes memory, is for both logs.
B4  A held entry of a queue that is deleted meanwhile ends: by the sweep of that queue or here, whichever comes later.

Threading: as Enrolment.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, cfunc, exceptval, longlong, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load64, at_store64
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import CONTENT_SHARED, content_t
from cython.cimports.flintmq.queue.enrolment import Enrolment, held_t
from cython.cimports.flintmq.queue.queue_core import queue_is_deleted
from cython.cimports.flintmq.queue.slot import slot_content
from cython.cimports.flintmq.queue.types import ENTRY_COUNT_SHIFT, queue_t, slot_t, swept_t
from cython.cimports.flintmq.store.enrolment import LogEnrolment
from cython.cimports.flintmq.store.log.log import (
    LSN_NEVER, content_total, content_write, log_begin, log_end, log_is_live, log_room, log_where,
)  # fmt: skip
from cython.cimports.flintmq.store.log.record import CONTENT_FIXED, RECORD_HEADER, RECORD_START, align8
from cython.cimports.flintmq.store.logs import Logs
from cython.cimports.flintmq.store.message_log import (
    DEQUEUE_PLAIN, ENQUEUE_MOST, list_find, message_log_t, ml_dequeue_locked, ml_sweep, ml_write_enqueue,
)  # fmt: skip
from cython.cimports.flintmq.store.tx_sets import BulkTransactions
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, realloc


@cfunc
@exceptval(True, check=True)
def _add_enqueue(context: p_void, queue: pointer[queue_t], position: uint64_t, slot: pointer[slot_t], expires_at_ms: longlong) -> bint:
    return True  # the held entry says all there is to say


@cfunc
@exceptval(True, check=True)
def _add_dequeue(
    context: p_void,
    queue: pointer[queue_t],
    position: uint64_t,
    slot: pointer[slot_t],
    owner: uint32_t,
    reason: c_int,
    delivered_us: uint64_t,
) -> bint:
    work: BlockEnrolment = cast(BlockEnrolment, context)
    endings: pointer[ending_t]
    size: uint32_t
    if work.ending_count == work.ending_size:
        size = work.ending_size * 2 if work.ending_size else 16
        endings = cast(pointer[ending_t], realloc(work.endings, size * sizeof(ending_t)))
        if endings == NULL:
            raise MemoryError
        work.endings = endings
        work.ending_size = size
    endings = work.endings + work.ending_count
    endings.queue = queue
    endings.position = position
    endings.slot = slot
    endings.owner = owner
    endings.reason = reason
    endings.delivered_us = delivered_us
    work.ending_count += 1
    return True


@cclass
class BlockEnrolment(Enrolment):
    """See module. Args: logs, bulk: of the store."""

    def __cinit__(self, logs: Logs, bulk: BulkTransactions):
        self.logs = logs
        self.bulk = bulk
        self.port.context = cast(p_void, self)
        self.port.enqueue = _add_enqueue
        self.port.dequeue = _add_dequeue

    def __dealloc__(self):
        free(self.endings)

    def _bytes(self) -> uint32_t:
        """Bytes of its records at most; 0: it is for both logs."""
        ml: pointer[message_log_t] = address(self.logs.ml)
        i: uint32_t
        total: uint32_t
        size: uint64_t = cast(uint64_t, self.ending_count) * DEQUEUE_PLAIN
        content: pointer[content_t]
        if cast(uint64_t, self.held_count) + self.ending_count > BLOCK_RECORDS:
            return 0
        for i in range(self.held_count):
            if not self.held[i].logged:
                continue
            content = slot_content(self.held[i].slot)
            total = content_total(content)
            if total > ml.split_above or content.flags & CONTENT_SHARED or content.message_id:
                return 0
            size += align8(RECORD_HEADER + CONTENT_FIXED + total) + ENQUEUE_MOST
        return cast(uint32_t, size) if size <= BLOCK_BYTES else 0

    def _write(self, size: uint32_t) -> uint64_t:
        """Writes all its records. Returns the LSN behind them, 0: there is no room for them in one block; LSN_NEVER: the log has failed.
        The log's lock is held for up to BLOCK_BYTES and BLOCK_RECORDS."""
        ml: pointer[message_log_t] = address(self.logs.ml)
        i: uint32_t
        held: pointer[held_t]
        ending: pointer[ending_t]
        content: pointer[content_t]
        message_id: uint64_t
        lsn: uint64_t
        end: uint64_t = 0
        block: uint64_t
        log_begin(ml.log)
        if log_room(ml.log, size) < size:
            log_end(ml.log)
            return 0
        block = ml.log.last_block
        for i in range(self.held_count):
            held = address(self.held[i])
            if not held.logged:
                continue
            content = slot_content(held.slot)
            message_id = content_write(ml.log, RECORD_START, ml.split_above, ENQUEUE_MOST, content)
            if message_id == LSN_NEVER:
                end = LSN_NEVER
                break
            content.message_id = message_id
            held.slot.message_id = message_id
            end = ml_write_enqueue(ml.log, message_id, held.queue.id, held.position, held.expires_at_ms, 0)
            at_store64(address(held.queue.logged_at), end)
            if at_load64(address(held.queue.entries.cold_count)) == 0:
                at_store64(address(ml.hot_arrivals), ml.hot_arrivals + 1)
        for i in range(self.ending_count):
            ending = address(self.endings[i])
            message_id = ending.slot.message_id
            if end == LSN_NEVER:
                break
            if list_find(address(ml.messages), message_id) == NULL and not log_is_live(ml.log, log_where(ml.log, message_id)):
                continue  # its queue was deleted, and the sweep of that has told the log
            lsn = ml_dequeue_locked(
                ml, ending.queue.id, ending.position, message_id, ending.owner, ending.reason, ending.delivered_us,
                cast(uint32_t, (at_load64(address(ending.slot.state)) >> ENTRY_COUNT_SHIFT) & 0xFFFF),
            )  # fmt: skip
            if lsn:
                end = lsn
        check(block == ml.log.last_block, b"tx_block B2 no block ends inside a transaction", block, ml.log.last_block)
        if end == 0:
            end = ml.log.tail
        log_end(ml.log)
        return end

    def _end_deleted(self) -> void:
        """Ends the messages on queues that were deleted since they came (B4)."""
        i: uint32_t
        swept: swept_t
        for i in range(self.held_count):
            if self.held[i].logged and queue_is_deleted(self.held[i].queue):
                swept.position = self.held[i].position
                swept.message_id = self.held[i].slot.message_id
                ml_sweep(address(self.logs.ml), self.held[i].queue, address(swept), 1, True)

    def decide(self) -> c_int:
        size: uint32_t = self._bytes()
        if size:
            with nogil:
                self.lsn = self._write(size)
                if self.lsn:
                    self._end_deleted()
            if self.lsn == LSN_NEVER:
                raise self.logs.error()
        if self.lsn == 0:
            self._write_large()
        self.ending_count = 0
        return 0

    def _write_large(self) -> object:
        """The same by records of both logs, which have an outcome of their own."""
        i: uint32_t
        held: pointer[held_t]
        ending: pointer[ending_t]
        self.large = LogEnrolment(self.logs, self.bulk)
        self.large.begin()
        for i in range(self.held_count):
            held = address(self.held[i])
            if held.logged:
                self.large.port.enqueue(self.large.port.context, held.queue, held.position, held.slot, held.expires_at_ms)
        for i in range(self.ending_count):
            ending = address(self.endings[i])
            # False: its queue was deleted, and everything in it. It is settled all the same.
            self.large.port.dequeue(
                self.large.port.context, ending.queue, ending.position, ending.slot, ending.owner, ending.reason, ending.delivered_us
            )
        self.large.decide()

    def durable(self) -> bint:
        if self.large is not None:
            return self.large.durable()
        return at_load64(address(self.logs.ml.log.durable)) >= self.lsn

    def applied(self) -> c_int:
        return 0 if self.large is None else self.large.applied()

    def abandon(self) -> None:
        self.undo()
        if self.large is not None and self.large.transaction is not None:
            self.large.abandon()
