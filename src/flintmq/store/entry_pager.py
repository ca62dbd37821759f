"""The pager's thread, and what queues call when entries leave memory and come back (see entry_pager.pxd).

in: queues with cold entries, shells that come back or end. out: Index-Run records, messages that are counted out.

E1  A run names no message of the message list: such a message may have other places, and its facts are kept there.
E2  A burial is in the list under the lock under which its record was written: who holds that lock and sees no burial sees no record of one
    whose messages are not counted out.
E3  A run that can't be read stops the store: its entries are in the message log, and the next start reads that.
"""

from __future__ import annotations

import logging
import threading

from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add64, at_load32, at_load64, at_load_ptr, at_store32, at_store64
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.futex import futex_wait
from cython.cimports.flintmq.queue.entry_list import LARGE_SLOTS
from cython.cimports.flintmq.queue.log_port import LogPort
from cython.cimports.flintmq.queue.pager import Pager
from cython.cimports.flintmq.queue.paging import PAGE_NOT_NOW, paging_wake
from cython.cimports.flintmq.queue.types import MESSAGE_SPILLED_BIT, log_port_t, queue_t, restored_t
from cython.cimports.flintmq.store.index_log import index_append_run, index_read_run, index_run_dead
from cython.cimports.flintmq.store.index_run import RUN_BYTES_MAX, run_decode, run_encode
from cython.cimports.flintmq.store.log.log import LSN_NEVER, log_begin, log_end
from cython.cimports.flintmq.store.message_log import message_log_t, ml_count_out, ml_listed, ml_purge_range, ml_unspill
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc
from cython.cimports.libc.string import memset

log = logging.getLogger("flintmq.store")

# milliseconds: the pager's sleep when nobody calls it; between two rounds while entries leave memory
IDLE_MS = declare(c_int, 500)
ROUND_MS = declare(c_int, 20)
BURIAL_MS = declare(c_int, 2)  # while burials wait
# burials of one round: a millisecond or two
BURIALS_AT_ONCE = declare(uint32_t, 32)


@cfunc
@nogil
@exceptval(check=False)
def _pager(context: p_void) -> pointer[entry_pager_t]:
    return cast(pointer[entry_pager_t], cast(pointer[message_log_t], context).pages_out)


def entry_page_out(context: p_void, queue: pointer[queue_t], entries: pointer[restored_t], count: uint32_t) -> uint64_t:
    pager: pointer[entry_pager_t] = _pager(context)
    size: uint32_t
    run: uint64_t
    if ml_listed(pager.ml, entries, count):
        return 0
    size = run_encode(queue.id, entries, count, pager.bytes, RUN_BYTES_MAX)
    run = index_append_run(pager.index, pager.bytes, size) if size else 0
    return run if run else PAGE_NOT_NOW


def entry_page_in(context: p_void, run: uint64_t, entries: pointer[restored_t], room: uint32_t) -> uint32_t:
    pager: pointer[entry_pager_t] = _pager(context)
    queue_id: uint64_t = 0
    size: uint32_t
    count: uint32_t = 0
    data: pointer[uint8_t] = cast(pointer[uint8_t], malloc(RUN_BYTES_MAX))
    if data == NULL:
        return 0
    size = index_read_run(pager.index, run, data, RUN_BYTES_MAX)
    if size:
        count = run_decode(data, size, entries, room, address(queue_id))
    free(data)
    if count == 0:
        at_add64(address(pager.unread), 1)
        paging_wake(pager.port)  # its thread stops the store (E3)
    return count


def entry_page_end(context: p_void, run: uint64_t) -> void:
    index_run_dead(_pager(context).index, run)


def entry_page_bury(context: p_void, queue: pointer[queue_t], run: uint64_t, first: uint64_t, last: uint64_t, ended: bint) -> uint64_t:
    pager: pointer[entry_pager_t] = _pager(context)
    burial: pointer[burial_t] = cast(pointer[burial_t], calloc(1, sizeof(burial_t)))
    lsn: uint64_t
    log_begin(pager.ml.log)
    # Of the end of a queue the log has a record already: before its present tail, whatever came after it.
    lsn = pager.ml.log.tail if ended else ml_purge_range(pager.ml, queue.id, first, last)
    if lsn != LSN_NEVER:
        _bury(pager, burial, run, queue.id, lsn)
        burial = NULL
    log_end(pager.ml.log)
    free(burial)
    return lsn


@cfunc
@nogil
@exceptval(check=False)
def _bury(pager: pointer[entry_pager_t], burial: pointer[burial_t], run: uint64_t, queue_id: uint64_t, by: uint64_t) -> void:
    """`burial` NULL: there is no memory for it, and the messages take room until the next start. Log lock held (E2)."""
    if burial == NULL:
        return
    burial.run = run
    burial.queue_id = queue_id
    burial.by = by
    if pager.last == NULL:
        pager.first = burial
    else:
        pager.last.next = burial
    pager.last = burial
    at_store64(address(pager.burials), pager.burials + 1)


def pager_bury(pager: pointer[entry_pager_t], run: uint64_t, queue_id: uint64_t) -> void:
    burial: pointer[burial_t] = cast(pointer[burial_t], calloc(1, sizeof(burial_t)))
    log_begin(pager.ml.log)
    _bury(pager, burial, run, queue_id, pager.ml.log.tail)
    log_end(pager.ml.log)


def pager_bury_one(pager: pointer[entry_pager_t], entries: pointer[restored_t]) -> bint:
    burial: pointer[burial_t]
    count: uint32_t
    i: uint32_t
    log_begin(pager.ml.log)
    burial = pager.first
    log_end(pager.ml.log)
    if burial == NULL:
        return False
    count = entry_page_in(pager.ml, burial.run, entries, LARGE_SLOTS)
    ml_count_out(pager.ml, burial.queue_id, entries, count, burial.by)
    for i in range(count):
        if entries[i].message_id >> MESSAGE_SPILLED_BIT:
            ml_unspill(pager.ml, entries[i].message_id)
    index_run_dead(pager.index, burial.run)
    log_begin(pager.ml.log)
    pager.first = burial.next
    if pager.first == NULL:
        pager.last = NULL
    check(pager.burials > 0, b"entry_pager E2 a burial that is done was counted", pager.burials, burial.run)
    at_store64(address(pager.burials), pager.burials - 1)
    log_end(pager.ml.log)
    at_add64(address(pager.buried), 1)
    free(burial)
    return True


@cclass
class EntryPager:
    """Makes shells and buries them, on a thread of its own. Args: log: the port of the queues."""

    def __cinit__(self, log: LogPort):
        memset(address(self.pager), 0, sizeof(entry_pager_t))
        self.log = log
        self.pager.port = address(log.port)
        self.rounds = Pager()
        self.thread = None
        self.on_failed = None
        self.after_round = None
        self.pager.bytes = cast(pointer[uint8_t], malloc(RUN_BYTES_MAX))
        self.entries = cast(pointer[restored_t], malloc(LARGE_SLOTS * sizeof(restored_t)))
        if self.pager.bytes == NULL or self.entries == NULL:
            raise MemoryError

    def __dealloc__(self):
        burial: pointer[burial_t]
        while self.pager.first != NULL:
            burial = self.pager.first
            self.pager.first = burial.next
            free(burial)
        free(self.pager.bytes)
        free(self.entries)

    def fill_port(self, port: pointer[log_port_t]) -> void:
        port.page_out = entry_page_out
        port.page_in = entry_page_in
        port.page_end = entry_page_end
        port.page_bury = entry_page_bury

    def start(self) -> None:
        """Starts the thread."""
        self.thread = threading.Thread(target=self._run, name="flintmq-pager", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Ends the thread after the round under way. Burials that wait are done by the next start. Idempotent."""
        at_store32(address(self.pager.stopping), 1)
        paging_wake(address(self.log.port))
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        self.after_round = None
        self.rounds.forget(self.log)

    def once(self) -> bool:
        """One round. True: there is more to do soon."""
        burials: uint32_t = BURIALS_AT_ONCE
        gone: bint = self.rounds.round(self.log) != 0
        with nogil:
            while burials and not at_load32(address(self.pager.stopping)) and pager_bury_one(address(self.pager), self.entries):
                burials -= 1
        if self.after_round is not None:
            self.after_round()
        return not self.rounds.refused and (gone or burials == 0 or at_load_ptr(address(self.log.port.paging)) != NULL)

    def _run(self):
        signal: uint32_t
        busy: bint
        pause: c_int
        while not at_load32(address(self.pager.stopping)):
            signal = at_load32(address(self.log.port.paging_signal))
            try:
                busy = self.once()
            except Exception:
                log.exception("internal error: a round of the pager failed")
                busy = False
            if at_load64(address(self.pager.unread)) and self.on_failed is not None:
                self.on_failed("a run of the index log can't be read")
                return
            with nogil:
                at_store32(address(self.log.port.paging_sleeps), 0 if busy else 1)
                if not at_load32(address(self.pager.stopping)):
                    pause = ROUND_MS if busy else IDLE_MS
                    if at_load64(address(self.pager.burials)):
                        pause = BURIAL_MS
                    futex_wait(address(self.log.port.paging_signal), signal, pause)
                at_store32(address(self.log.port.paging_sleeps), 0)

    @property
    def figures(self) -> dict:
        """Segments that left memory since the start; runs whose entries ended together, and those that wait to be counted out."""
        return {
            "out": self.rounds.out,
            "buried": at_load64(address(self.pager.buried)),
            "burials": at_load64(address(self.pager.burials)),
            "unread": at_load64(address(self.pager.unread)),
        }
