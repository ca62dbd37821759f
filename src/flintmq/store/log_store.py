"""LogStore: the store of distributed transactions over the logs (seed 003), opened for Python callers.

in: their calls, any thread. out: records of the logs, callbacks when they are durable.

LSNs that this face gives out are tickets: numbers that grow, over both logs. The message path sees LSNs of the message log.
I1  A callback runs when everything up to its ticket is on disk, in ticket order, never after a failure.
"""

from __future__ import annotations

import heapq
import logging

from cython import address, cclass
from cython.cimports.flintmq.core.atomics import at_load64
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import CONTENT_PRIORITY
from cython.cimports.flintmq.queue.log_port import Enrolment
from cython.cimports.flintmq.store.enrolment import LogEnrolment
from cython.cimports.flintmq.store.log_engine import LogEngine
from cython.cimports.flintmq.store.message_log import ml_drop_places, ml_drop_queue
from cython.cimports.libc.stdint import uint8_t, uint32_t, uint64_t

from flintmq.clock import SystemClock
from flintmq.errors import OperatorError
from flintmq.store import marks
from flintmq.store.log.file_port import OsFiles
from flintmq.store.maintenance import Maintenance
from flintmq.store.transaction_log import Heuristic
from flintmq.store.tx_runs import BulkTransactions

log = logging.getLogger("flintmq.store")


@cclass
class LogStore(LogEngine):
    """See module. Made by `LogStore.open`."""

    # --- opening ------------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        files: object,
        directory: str,
        *,
        container_size: int,
        initial_containers: int = 2,
        max_write_buffers: int = 10,
        store_uuid: bytes = bytes(16),
        known_queues: object = (),
        queue_high_water: int = 2**63,
        threads: bool = True,
        clock: object = None,
        retain_bytes: int = 0,
        retain_s: int = 0,
        hot_bytes: int = 4 << 20,
        spill: bool = True,
        archive_dir: str | None = None,
        actors: object = None,
        limits: object = None,
    ) -> LogStore:
        """Opens or creates the logs under `directory` (which exists) and recovers them.

        Args: files: file port, None for the operating system; sizes in bytes; known_queues: ids of durable queues; queue_high_water: no
        id above it was ever given out; archive_dir: where dead containers are copied before they go (its parent exists); threads: False:
        nothing runs by itself, see flush() and maintain() (tests); actors: the ActorSystem that reads of cold messages run on (None: a
        small one of the store's own); limits: cold_* (None: the defaults).
        Raises: OperatorError (69): another broker has the store; StoreError: another store's logs, unknown format, damage that can't be
        set aside.
        """
        store: LogStore = cls()
        store.files = files or OsFiles()
        store.directory = directory
        store.clock = clock or SystemClock()
        try:
            store.lock_file = store.files.lock(f"{directory}/lock")
        except BlockingIOError:
            raise OperatorError(f"store {directory} is open in another broker: stop that one, or give another --store-dir", 69) from None
        try:
            store._open(
                container_size,
                initial_containers,
                max_write_buffers,
                store_uuid,
                set(known_queues),
                queue_high_water,
                threads,
                retain_bytes,
                retain_s,
                hot_bytes,
                spill,
                archive_dir,
                actors,
                limits,
            )
        except BaseException:
            store.files.close(store.lock_file)
            raise
        return store

    def _new_bulk(self, threads):
        return BulkTransactions(self, threads)

    def _new_maintenance(self):
        return Maintenance(self)

    # --- TransactionStore ----------------------------------------------------------------------------------------------------

    @property
    def durable_lsn(self) -> int:
        """Highest ticket up to which everything is durable."""
        with self.lock:
            self._collect_tickets()
            return self.durable_ticket

    def enrol(self) -> Enrolment:
        with self.lock:
            return LogEnrolment(self, self.transactions.begin(None))

    def open_branch(self, xid: bytes) -> LogEnrolment:
        """See TransactionStore."""
        with self.lock:
            return LogEnrolment(self, self.transactions.begin(xid))

    def branch_of(self, xid: bytes) -> LogEnrolment:
        """See TransactionStore."""
        with self.lock:
            return LogEnrolment(self, self.transactions.by_xid[xid])

    def on_durable(self, lsn: int, callback: object) -> None:
        """See TransactionStore."""
        with self.lock:
            heapq.heappush(self.waiting, (lsn, next(self.order), callback))
            self._count_waiting()
        self._run_due()
        self.writer.kick()

    def when_durable(self, lsn: int, callback: object) -> None:
        """See LogPort: `lsn` is one of the message log."""
        with self.lock:
            ticket = self._ticket(lsn, 0)
        self.on_durable(ticket, callback)

    def in_doubt(self) -> list:
        """See TransactionStore."""
        with self.lock:
            return [transaction.xid for transaction in self.transactions.in_doubt()]

    def _facts(self, message_id):
        """(priority or None, body length) of a message. What can't be read has neither: delivery will find that out."""
        body_len: uint32_t = 0
        flags: uint8_t = 0
        priority: uint8_t = 0
        with self.reader_lock:
            self.reader.facts(message_id, address(body_len), address(flags), address(priority))
        return (priority if flags & CONTENT_PRIORITY else None, body_len)

    def note_heuristic(self, tx: int, committed: bool) -> int:
        """An operator decided a prepared transaction; kept over restarts until forgotten."""
        with self.lock:
            return self._ticket(0, self.transactions.heuristic(self.transactions.known(tx), committed))

    def heuristics(self) -> list:
        """(tx, xid, committed) of every decision that was not forgotten, oldest first."""
        with self.lock:
            table = self.transactions.table
            return [Heuristic(tx, table[tx].xid, table[tx].heuristic == 1) for tx in sorted(table) if table[tx].heuristic]

    def forget_heuristic(self, tx: int) -> int:
        """Raises: KeyError."""
        with self.lock:
            return self._ticket(0, self.transactions.forget(tx))

    def note(self, kind: int, key: bytes, value: bytes) -> int:
        """A small durable fact of the pipeline (subscriptions, scopes); an empty value removes it."""
        with self.lock:
            return self._ticket(0, self.transactions.note(kind, key, value))

    def notes(self, kind: int) -> dict:
        """key -> value of all notes of a kind."""
        with self.lock:
            return {key: value for (one, key), (_, value) in self.transactions.notes.items() if one == kind}

    def drop_queue(self, queue_id: int) -> int:
        """Writes Queue-End, which ends every entry of a deleted queue. Returns the LSN; an unknown id is no error (recovery may repeat it).

        A queue that logs here (`attach`) is swept afterwards (queue/purge.py), which gives the room of its entries back; of another one
        that is done here: O(listed messages)."""
        message_id: uint64_t
        wanted: uint64_t = queue_id
        with self.lock:
            known = self.queues.pop(queue_id, None) is not None and self.recovery is None
            if self.recovery is not None:
                self.recovery.marks.pop(queue_id, None)
            end: uint64_t = marks.write_queue_end(self, queue_id)
            for transaction in self.transactions.table.values():
                if transaction.stage is not None and queue_id in transaction.stage.numbers:
                    known = False  # its messages stand nowhere yet, so no sweep finds them
                for one in (*transaction.enqueues, *transaction.dequeues):
                    if one.queue_id == queue_id:
                        message_id = one.message_id
                        ml_drop_places(address(self.ml), wanted, message_id)
                transaction.enqueues = [one for one in transaction.enqueues if one.queue_id != queue_id]
                transaction.dequeues = [one for one in transaction.dequeues if one.queue_id != queue_id]
                transaction.sets = [one for one in transaction.sets if one.queue_id != queue_id]
                if transaction.stage is not None:
                    transaction.stage.drop_queue(queue_id)
            if not known:
                ml_drop_queue(address(self.ml), wanted)
            return self._ticket(end, 0)

    # --- tickets --------------------------------------------------------------------------------------------------------

    def _ticket(self, message_lsn: uint64_t, transaction_lsn: uint64_t) -> uint64_t:
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
            check(ticket > self.durable_ticket, b"log_store I1 tickets become durable in their order", ticket, self.durable_ticket)
            self.durable_ticket = ticket

    def _count_waiting(self):
        self.writer.want_callbacks(len(self.waiting))

    def _run_due(self):
        """Runs the callbacks whose ticket is durable, in order, without the lock. One thread at a time: it also runs what others added."""
        while True:
            with self.lock:
                self._collect_tickets()
                if self.running:
                    return
                if not self.waiting or self.waiting[0][0] > self.durable_ticket:
                    self._count_waiting()
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
