"""Logs: the open logs of a durable store, their writer and their reader; tickets, which say what of them is durable.

in: records of LogStore, of its transactions (enrolment, tx_sets, tx_stage) and of copy-forward. out: LSNs, tickets, callbacks when they
are durable, contents.

A ticket is a number that grows, over both logs. The message path sees LSNs of the message log.
I1  A callback runs when everything up to its ticket is on disk, in ticket order, never after a failure.
"""

from __future__ import annotations

import heapq
import logging
import struct
import threading
from collections import deque
from itertools import count

from cython import NULL, address, cclass, nogil, pointer, sizeof
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, at_store32
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import CONTENT_PRIORITY, content_t
from cython.cimports.flintmq.store.content_reader import ContentReader
from cython.cimports.flintmq.store.log.log import log_begin, log_end
from cython.cimports.flintmq.store.log.managed import ManagedLog
from cython.cimports.flintmq.store.log.record import RECORD_NAME, RECORD_NOTE, RECORD_REDELIVERED
from cython.cimports.flintmq.store.log.shapes import shapes_free
from cython.cimports.flintmq.store.log.writer import LogWriter
from cython.cimports.flintmq.store.message_log import list_free_all
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memset

from flintmq.errors import StoreBusyError, StoreError
from flintmq.store.transaction_log import TransactionLog

log = logging.getLogger("flintmq.store")

NAME_CONSUMER = 1
NAME_BYTES_MAX = 255
FILLER_MAX = 1024


def nothing(log: object) -> tuple[int, bytes]:
    """Arguments of ManagedLog.append: a record that says nothing, for the block that carries it. `log`: the message or transaction log."""
    if log.name == "messages":
        return RECORD_REDELIVERED, struct.pack("<QII", 0, 0, 0)
    return filler(0)


def filler(size: int) -> tuple[int, bytes]:
    """Arguments of ManagedLog.append: a note that says nothing and takes about `size` bytes, at most 1 KiB, of the transaction log."""
    size = min(max(size, 0), FILLER_MAX)
    return RECORD_NOTE, struct.pack("<HHI", 0, 0, size) + bytes(size)


def name_record(consumer_id: int, tag: bytes, group: bytes) -> tuple[int, bytes]:
    """Arguments of ManagedLog.append: which consumer tag and group a consumer id stands for."""
    tag, group = tag[:NAME_BYTES_MAX], group[:NAME_BYTES_MAX]
    payload = struct.pack("<IIQ", NAME_CONSUMER, 0, consumer_id)
    return RECORD_NAME, payload + struct.pack("<H", len(tag)) + tag + struct.pack("<H", len(group)) + group


@cclass
class Logs:
    """See module. Filled in by LogStore."""

    def __cinit__(self):
        memset(address(self.ml), 0, sizeof(self.ml))
        self.tickets = deque()
        self.waiting = []
        self.order = count()
        self.lock = threading.RLock()
        self.reader_lock = threading.Lock()

    def __dealloc__(self):
        list_free_all(address(self.ml.messages))
        shapes_free(address(self.ml.shapes))
        free(self.ml.released)

    def begin(self, messages: ManagedLog, transaction_records: ManagedLog, pages: ManagedLog | None, writer: LogWriter) -> void:
        self.messages, self.transaction_records, self.pages, self.writer = messages, transaction_records, pages, writer
        self.transactions = TransactionLog(self.transaction_records)
        self.reader = ContentReader(self.messages, pages)
        self.last_ticket = self.durable_ticket = max(self.messages.tail, self.transaction_records.tail)
        self.writer.on_callbacks = self.run_due

    # --- messages -----------------------------------------------------------------------------------------------------

    def load(self, message_id: uint64_t) -> pointer[content_t]:
        content: pointer[content_t]
        with self.reader_lock:
            with nogil:
                content = self.reader.read(message_id)
            busy = content == NULL and self.reader.no_means
        if busy:
            raise StoreBusyError(f"message {message_id} can't be read now: no file descriptor or memory; raise the limit (ulimit -n)")
        if content == NULL:
            raise KeyError(message_id)
        return content

    def facts(self, message_id):
        """(priority or None, body length) of a message. An unreadable one has neither: delivery will find that out."""
        body_len: uint32_t = 0
        flags: uint8_t = 0
        priority: uint8_t = 0
        with self.reader_lock:
            self.reader.facts(message_id, address(body_len), address(flags), address(priority))
        return (priority if flags & CONTENT_PRIORITY else None, body_len)

    def note_consumer(self, consumer_id: uint32_t, tag: bytes | None, group: bytes | None) -> c_int:
        """See LogPort."""
        if not self.messages.failed:  # a name is for the pipeline: the failure itself is told elsewhere
            self.messages.append(*name_record(consumer_id, tag, group))
        return 0

    def take_released(self) -> list:
        """(transaction, messages that named it and are dead) since the last call."""
        released: list = []
        i: uint32_t
        if not at_load32(address(self.ml.released_count)):
            return released
        log_begin(self.ml.log)
        for i in range(self.ml.released_count):
            released.append((self.ml.released[i].tx, self.ml.released[i].messages))
        at_store32(address(self.ml.released_count), 0)
        log_end(self.ml.log)
        return released

    def collect_released(self) -> None:
        """Transactions whose last message is gone get their Delete record."""
        with self.lock:
            for tx, messages in self.take_released():
                self.transactions.release(tx, messages)

    @property
    def disk_low(self) -> bool:
        """True while nothing but the reserve is left."""
        return at_load32(address(self.ml.disk_low)) != 0

    def set_disk_low(self, low: bool) -> None:
        """Publishers are blocked while nothing but the reserve is left."""
        at_store32(address(self.ml.disk_low), 1 if low else 0)

    def error(self) -> object:
        return self.failure or StoreError("the log has failed")

    # --- tickets ------------------------------------------------------------------------------------------------------

    def durable(self) -> uint64_t:
        """Highest ticket up to which everything is durable."""
        with self.lock:
            self._collect_tickets()
            return self.durable_ticket

    def on_durable(self, lsn: int, callback: object) -> None:
        """See TransactionStore (transactions/ports)."""
        with self.lock:
            heapq.heappush(self.waiting, (lsn, next(self.order), callback))
            self.count_waiting()
        self.run_due()
        self.writer.kick()

    def ticket(self, message_lsn: uint64_t, transaction_lsn: uint64_t) -> uint64_t:
        self.last_ticket += 1
        self.tickets.append((self.last_ticket, message_lsn, transaction_lsn))
        self.writer.kick()
        return self.last_ticket

    def _collect_tickets(self):
        messages: uint64_t = at_load64(address(self.messages.log.durable))
        transactions: uint64_t = at_load64(address(self.transaction_records.log.durable))
        while self.tickets:
            ticket, message_lsn, transaction_lsn = self.tickets[0]
            if message_lsn > messages or transaction_lsn > transactions:
                return
            self.tickets.popleft()
            check(ticket > self.durable_ticket, b"logs I1 tickets become durable in their order", ticket, self.durable_ticket)
            self.durable_ticket = ticket

    def count_waiting(self) -> void:
        self.writer.want_callbacks(len(self.waiting))

    def run_due(self):
        """Runs the callbacks whose ticket is durable, in order, without the lock. One thread at a time: it also runs what others added."""
        while True:
            with self.lock:
                self._collect_tickets()
                if self.running:
                    return
                if not self.waiting or self.waiting[0][0] > self.durable_ticket:
                    self.count_waiting()
                    return
                callback = heapq.heappop(self.waiting)[2]
                self.running = True
            try:
                callback()
            except Exception:
                log.exception("internal error in a durability callback")
            finally:
                with self.lock:
                    self.running = False
