"""LogEnrolment: one transaction in the logs, whatever its front: what it enqueues and dequeues, its outcome, and its End.

in: entries with their places (the tx class), runs of held entries and a stage of blocks (branches), the decision.
out: records of both logs.

N1  A Commit is on disk after everything that it makes true (writer.py I1); effects follow when it is durable, and End follows them.
N2  What a front of before enqueued by single records is its stage after a restart: positions are given in one way.

Threading: one thread at a time for each; the store's transaction lock guards the table.
"""

from __future__ import annotations

import contextlib
import heapq

from cython import address, bint, cast, cclass, longlong, pointer
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load64
from cython.cimports.flintmq.queue.slot import slot_content
from cython.cimports.flintmq.queue.types import ENTRY_COUNT_SHIFT, queue_t, slot_t
from cython.cimports.flintmq.store.log.log import LSN_NEVER
from cython.cimports.flintmq.store.logs import Logs
from cython.cimports.flintmq.store.message_log import ml_dequeue_tx, ml_enqueue_tx, ml_settle_tx, ml_undo_dequeues
from cython.cimports.flintmq.store.tx_stage import Stage
from cython.cimports.libc.stdint import uint32_t, uint64_t

from flintmq.errors import StoreError
from flintmq.ports import TxState
from flintmq.store.transaction_log import Dequeue, Enqueue, Row


@cclass
class LogEnrolment:
    """See module, Enrolment (queue/log_port.pxd) and Enrolment in transactions/effects.py."""

    def __cinit__(self, logs: Logs, transaction: object):
        self.logs = logs
        self.transaction = transaction
        self.tx = transaction.tx

    # --- add ------------------------------------------------------------------------------------------------------------

    def enqueue(self, queue: pointer[queue_t], position: uint64_t, slot: pointer[slot_t], expires_at_ms: longlong) -> c_int:
        message_id: uint64_t = slot.message_id
        logs: Logs = self.logs
        with logs.lock:
            if (
                ml_enqueue_tx(address(logs.ml), self.tx, queue.id, position, slot, slot_content(slot), address(message_id), expires_at_ms)
                == LSN_NEVER
            ):
                raise logs.error()
            queue.logged_at = logs.messages.log.tail
            self.transaction.enqueues.append(Enqueue(queue.id, message_id, position, expires_at_ms))
            logs.transactions.name(self.transaction, message_id)
        return 0

    def dequeue(
        self,
        queue: pointer[queue_t],
        position: uint64_t,
        slot: pointer[slot_t],
        owner: uint32_t,
        reason: c_int,
        delivered_us: uint64_t,
    ) -> c_int:
        lsn: uint64_t
        logs: Logs = self.logs
        with logs.lock:
            lsn = ml_dequeue_tx(
                address(logs.ml),
                self.tx,
                queue.id,
                position,
                slot.message_id,
                owner,
                reason,
                delivered_us,
                cast(uint32_t, (at_load64(address(slot.state)) >> ENTRY_COUNT_SHIFT) & 0xFFFF),
            )
            if lsn == LSN_NEVER:
                raise logs.error()
            if lsn == 0:
                raise KeyError(f"no entry {position} in queue {queue.id}")
            self.transaction.dequeues.append(Dequeue(queue.id, position, slot.message_id))
            logs.transactions.name(self.transaction, slot.message_id)
        return 0

    def acquire(self, runs: object, consumer_id: int) -> None:
        """Logs what it holds as runs. Args: runs: all of its Run. Raises: StoreError."""
        with self.logs.lock:
            rows = [Row(run.queue_id, first, count) for run in runs for first, count in run.ranges()]
            transactions = self.logs.transactions
            transactions.acquire(transactions.known(self.tx), rows, consumer_id, min([run.acquired_us for run in runs]))
            self.transaction.bulk = True

    def stage(self) -> Stage:
        """The messages that it will enqueue. Raises: ValueError it is not open."""
        with self.logs.lock:
            transaction = self.logs.transactions.open(self.tx)
            if transaction.stage is None:
                transaction.stage = Stage(self.logs, self.tx)
                transaction.bulk = True
            return transaction.stage

    # --- after a restart ------------------------------------------------------------------------------------------------

    def held(self) -> tuple:
        """What it dequeues: see RecoveredTransaction."""
        with self.logs.lock:
            found = self.transaction
            singles = [(one.queue_id, one.position) for one in found.dequeues]
            return singles, (list(found.sets), found.consumer_id, found.acquired_us)

    def adopt(self, core_of: object) -> object:
        """What it enqueues, as its stage; None: nothing. Call it once.

        Args: core_of: of a queue id; None: the queue is gone. Reads the first record of every message. Raises: MemoryError.
        """
        with self.logs.lock:
            transaction = self.transaction
            queues: dict = {}
            for one in transaction.enqueues:
                queues.setdefault(one.queue_id, []).append(one)
            if not queues:
                return None
            stage = Stage(self.logs, self.tx)
            for queue_id, enqueues in queues.items():
                core = core_of(queue_id)
                if core is not None:
                    waiting = sorted((one.number, one.message_id, one.expires_at_ms) for one in enqueues)
                    stage.adopt(core, [(*one, *self.logs.facts(one[1])) for one in waiting])
            # From now on the stage ends them, in the log too.
            transaction.enqueues = []
            transaction.messages = {one.message_id for one in transaction.dequeues}
            transaction.stage = stage
            transaction.bulk = True
            return stage

    # --- outcome --------------------------------------------------------------------------------------------------------

    def prepare(self) -> int:
        """See transactions/effects.py."""
        with self.logs.lock:
            transactions = self.logs.transactions
            return self.logs.ticket(0, transactions.prepare(transactions.open(self.tx)))

    def decide(self) -> c_int:
        with self.logs.lock:
            self.lsn = self.logs.transactions.commit(self.logs.transactions.open(self.tx), ())
        return 0

    def durable(self) -> bint:
        return at_load64(address(self.logs.transaction_records.log.durable)) >= self.lsn

    def commit(self, rows: object) -> int:
        """See transactions/effects.py."""
        with self.logs.lock:
            transactions = self.logs.transactions
            return self._finish(transactions.commit(transactions.known(self.tx), [Row(*row) for row in rows]))

    def rollback(self) -> int:
        """See transactions/effects.py."""
        with self.logs.lock:
            transaction = self.logs.transactions.known(self.tx)
            prepared: bint = transaction.state is TxState.PREPARED
            lsn = self.logs.transactions.rollback(transaction)
            for one in transaction.dequeues:
                ml_undo_dequeues(address(self.logs.ml), self.tx, one.message_id, prepared)
            return self._finish(lsn)

    def _finish(self, lsn):
        """The outcome is written: its effects in the log follow when it is durable."""
        ticket = self.logs.ticket(0, lsn)
        heapq.heappush(self.logs.waiting, (ticket, -1, lambda: self._settle()))
        self.logs.count_waiting()
        return ticket

    # --- effects --------------------------------------------------------------------------------------------------------

    def applied(self) -> c_int:
        if self.logs.transactions.table.get(self.tx) is self.transaction:
            self._settle()
        return 0

    def finish(self) -> None:
        """The outcome of one with runs or a stage is done everywhere: writes End."""
        with self.logs.lock:
            if self.transaction.bulk and self.tx in self.logs.transactions.table:
                self.transaction.bulk = False
                self.transaction.stage = None
                self._settle()

    def abandon(self) -> None:
        """Rolls a local one back."""
        with self.logs.lock:
            self.logs.transactions.rollback(self.logs.transactions.open(self.tx))
            self._settle()

    def _settle(self) -> None:
        """The outcome is durable: places become plain or go, dead messages are deleted, End is written."""
        logs: Logs = self.logs
        with logs.lock:
            committed: bint = self.transaction.state is TxState.COMMITTED
            for message_id in sorted(self.transaction.messages):
                ml_settle_tx(address(logs.ml), self.tx, message_id, committed)
            with contextlib.suppress(StoreError):  # the disk failed: recovery ends it
                logs.transactions.end(self.transaction)
            logs.collect_released()
