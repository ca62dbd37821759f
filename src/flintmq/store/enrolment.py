"""LogEnrolment: one transaction in the logs, whatever its front: what it enqueues and dequeues, its outcome, effects, and its End.

in: messages for queues and delivered entries (the tx class), runs of held entries and a stage of blocks (branches), the decision.
out: records of both logs; effects on queues.

N1  A Commit is on disk after everything that it makes true (writer.py I1); effects follow when it is durable, and End follows them.
N2  What a front of before enqueued by single records is its stage after a restart: positions are given in one way.
N3  An entry is held by one transaction at most; it is nobody else's until `apply` (the commit is durable) or `undo` (the rollback is).
N4  Positions of one queue follow the order in which the enqueues were asked for.

Threading: one thread at a time for each, of branches under the coordinator's lock, but for `apply` and `undo`, which run after the last
change. The store's transaction lock guards the table.
"""

from __future__ import annotations

import contextlib
import heapq
import logging

from cython import address, bint, cast, cclass, cfunc, exceptval, longlong, p_void, pointer
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load64
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.enrolment import Enrolment
from cython.cimports.flintmq.queue.held_runs import Run
from cython.cimports.flintmq.queue.slot import slot_content
from cython.cimports.flintmq.queue.types import ENTRY_COUNT_SHIFT, queue_t, slot_t
from cython.cimports.flintmq.store.log.log import LSN_NEVER
from cython.cimports.flintmq.store.logs import Logs
from cython.cimports.flintmq.store.message_log import ml_dequeue_tx, ml_enqueue_tx, ml_settle_tx, ml_undo_dequeues
from cython.cimports.flintmq.store.tx_sets import BulkTransactions
from cython.cimports.flintmq.store.tx_stage import Stage
from cython.cimports.libc.stdint import uint32_t, uint64_t

from flintmq.errors import EnrolmentRefused, StoreError
from flintmq.ports import TxState
from flintmq.store.transaction_log import Dequeue, Enqueue, Row

# hundreds of entries that a run takes in one go, under the coordinator's lock: less than a millisecond
HOLD_PIECES = 32
log = logging.getLogger("flintmq.transactions")


# --- the port of the enrolment: what it adds goes to the log -----------------------------------------------------------------------------


@cfunc
@exceptval(True, check=True)
def _write_enqueue(context: p_void, queue: pointer[queue_t], position: uint64_t, slot: pointer[slot_t], expires_at_ms: longlong) -> bint:
    work: LogEnrolment = cast(LogEnrolment, context)
    message_id: uint64_t = slot.message_id
    logs: Logs = work.logs
    with logs.lock:
        if (
            ml_enqueue_tx(address(logs.ml), work.tx, queue.id, position, slot, slot_content(slot), address(message_id), expires_at_ms)
            == LSN_NEVER
        ):
            raise logs.error()
        queue.logged_at = logs.messages.log.tail
        work.transaction.enqueues.append(Enqueue(queue.id, message_id, position, expires_at_ms))
        logs.transactions.name(work.transaction, message_id)
    return True


@cfunc
@exceptval(True, check=True)
def _write_dequeue(
    context: p_void,
    queue: pointer[queue_t],
    position: uint64_t,
    slot: pointer[slot_t],
    owner: uint32_t,
    reason: c_int,
    delivered_us: uint64_t,
) -> bint:
    work: LogEnrolment = cast(LogEnrolment, context)
    lsn: uint64_t
    logs: Logs = work.logs
    with logs.lock:
        lsn = ml_dequeue_tx(
            address(logs.ml),
            work.tx,
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
            return False
        work.transaction.dequeues.append(Dequeue(queue.id, position, slot.message_id))
        logs.transactions.name(work.transaction, slot.message_id)
    return True


@cclass
class LogEnrolment(Enrolment):
    """See module, and Enrolment in queue/enrolment.py and transactions/ports.py.

    Args: logs, bulk: of the store. Of a branch: xid; queues: see BranchQueues in transactions/ports.py; enrolments_max: see Limits.
    """

    def __cinit__(self, logs: Logs, bulk: BulkTransactions, xid: bytes | None = None, queues: object = None, enrolments_max: int = 0):
        self.logs = logs
        self.bulk = bulk
        self.xid = xid
        self.queues = queues
        self.enrolments_max = enrolments_max
        self.queue_ids = set()
        self._runs = {}
        self.singles = {}
        self.port.context = cast(p_void, self)
        self.port.enqueue = _write_enqueue
        self.port.dequeue = _write_dequeue

    def begin(self) -> LogEnrolment:
        """Its transaction in the log, of a branch when something is to be logged. Raises: ValueError: the xid is in use."""
        if self.transaction is None:
            with self.logs.lock:
                self.take(self.logs.transactions.begin(self.xid))
        return self

    def take(self, transaction: object) -> LogEnrolment:
        """This is its transaction in the log."""
        self.transaction = transaction
        self.tx = transaction.tx
        return self

    # --- add: branches --------------------------------------------------------------------------------------------------

    @property
    def enqueue_count(self) -> int:
        """Messages that wait to enter queues."""
        return 0 if self.staged is None else self.staged.enqueues

    @property
    def dequeue_count(self) -> int:
        """Entries that are held."""
        return sum([run.count for run in self._held()])

    @property
    def takes_time(self) -> bool:
        """Its effects are many: not for the thread that made the outcome durable."""
        return bool(self._held()) or self.staged is not None

    def queue_counts(self) -> dict:
        """Queue id -> (enqueues, dequeues)."""
        counts: dict = {}
        for run in self._held():
            enqueues, dequeues = counts.get(run.queue_id, (0, 0))
            counts[run.queue_id] = (enqueues, dequeues + run.count)
        if self.staged is not None:
            for queue_id, number in self.staged.queue_counts().items():
                enqueues, dequeues = counts.get(queue_id, (0, 0))
                counts[queue_id] = (enqueues + number, dequeues)
        return counts

    def touches(self, queue_id: int) -> bool:
        """True if it holds or enqueues something there."""
        return queue_id in self.queue_ids

    def hold_piece(self, queue_id: int, cursor: int, messages_max: int, bytes_max: int, consumer: str, upto: int, alone: bool) -> tuple:
        """A piece of TransactionCoordinator.hold_run: how many, bytes, whether there may be more, where to go on."""
        run = self._runs.get(queue_id) or self._new_run(queue_id)
        if run is None:
            raise EnrolmentRefused(f"there is no queue {queue_id}", missing=True)
        room = self.enrolments_max - self.enqueue_count - self.dequeue_count
        ranges = self.bulk.rows_max - sum([one.range_count for one in self._runs.values() if one is not run])
        if room <= 0 or ranges <= 0:
            self._too_many()
        self._runs[queue_id] = run
        self.queue_ids.add(queue_id)
        held = run.hold(cursor, min(messages_max, room), bytes_max, upto, alone, ranges, HOLD_PIECES)
        self.bulk.taken(run)
        if consumer and not self.consumer_id:
            self.consumer_id = self.bulk.consumer(consumer)
        return held

    def runs(self) -> list:
        """What it holds by `hold_piece`, one HeldRun per queue."""
        return [self.bulk.held(run) for run in self._runs.values() if run.count]

    def last_position(self, queue_id: int, number: int) -> int:
        """Of an entry of the queue's run by its number; negative: from the end."""
        return self._runs[queue_id].position(number)

    def run_count(self, queue_id: int) -> int:
        """Entries of the queue's run."""
        run = self._runs.get(queue_id)
        return 0 if run is None else run.count

    def plan_block(self, routes: object, destinations: object, counts: object) -> tuple:
        """Checks whether a block may enter. Returns (its Stage, the plan for Stage.add). Args: counts: messages per route."""
        queue_ids = {queue_id for one in destinations for queue_id in one}
        cores = {queue_id: self.queues.core(queue_id) for queue_id in queue_ids}
        for queue_id, core in cores.items():
            if core is None:
                raise EnrolmentRefused(f"there is no queue {queue_id}", missing=True)
            inbox = self.bulk.inbox(queue_id)
            if inbox is not None and inbox.stream.broken:
                raise EnrolmentRefused(f"the stream with queue id {queue_id} can't be opened: the broker's log says why")
        size = sum([len(one) * number for one, number in zip(destinations, counts, strict=True)])
        if self.enqueue_count + self.dequeue_count + size > self.enrolments_max:
            self._too_many()
        if self.logs.disk_low:
            raise EnrolmentRefused("there is no room on the disk for more messages")
        if self.staged is None:
            self.staged = self.stage()
        if self.staged.rows >= self.bulk.rows_max:
            raise EnrolmentRefused("the messages of this transaction stand on too many queues and priority levels by turns")
        self.queue_ids |= queue_ids
        ttls = [[cores[queue_id].ttl_ms for queue_id in one] for one in destinations]
        return self.staged, self.staged.plan(routes, [[cores[queue_id] for queue_id in one] for one in destinations], ttls)

    def stage(self) -> Stage:
        """The messages that it will enqueue. Raises: ValueError it is not open."""
        with self.logs.lock:
            transaction = self.logs.transactions.open(self.begin().tx)
            if transaction.stage is None:
                transaction.stage = Stage(self.logs, self.tx)
                transaction.bulk = True
            return transaction.stage

    def drop_queue(self, queue_id: int) -> None:
        """The queue was deleted: what was enrolled for it has no place any more."""
        self.queue_ids.discard(queue_id)
        self.singles.pop(queue_id, None)
        run = self._runs.pop(queue_id, None)
        if run is not None:
            # Nobody else ends its messages: they would stay in the log until the next restart.
            self.bulk.in_background(lambda: self.bulk.dequeue_run(run, 0))
        if self.staged is not None:
            self.staged.drop_queue(queue_id)

    def _held(self):
        return [*self._runs.values(), *self.singles.values()]

    def _new_run(self, queue_id):
        core: QueueHandle = self.queues.core(queue_id)
        # A stream keeps what is read: nothing of it can be held.
        return None if core is None or self.bulk.inbox(queue_id) is not None else Run(core)

    def _too_many(self):
        text = f"a transaction has at most {self.enrolments_max} enqueues and dequeues, and its runs {self.bulk.rows_max} pieces"
        raise EnrolmentRefused(text)

    # --- after a restart ------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Takes over what it held before the restart; entries of queues that are gone are left out. Raises: MemoryError."""
        recovered = self.transaction
        self.consumer_id = recovered.consumer_id
        singles = [(one.queue_id, one.position, 1) for one in recovered.dequeues]
        for runs, ranges, since in ((self._runs, recovered.sets, recovered.acquired_us), (self.singles, singles, 0)):
            by_queue: dict = {}
            for queue_id, first, number in ranges:
                by_queue.setdefault(queue_id, []).append((first, number))
            for queue_id, held in by_queue.items():
                run = self._new_run(queue_id)
                if run is not None:
                    run.adopt(held, since)
                    runs[queue_id] = run
        self.acquired = True
        self.staged = self._adopt()
        self.queue_ids = {*self._runs, *self.singles, *(() if self.staged is None else self.staged.queue_counts())}

    def _adopt(self):
        """What it enqueues, as its stage; None: nothing. Reads the first record of every message."""
        with self.logs.lock:
            transaction = self.transaction
            queues: dict = {}
            for one in transaction.enqueues:
                queues.setdefault(one.queue_id, []).append(one)
            if not queues:
                return None
            stage = Stage(self.logs, self.tx)
            for queue_id, enqueues in queues.items():
                core = self.queues.core(queue_id)
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
        """See transactions/ports.py."""
        self._acquire()
        with self.logs.lock:
            transactions = self.logs.transactions
            return self.logs.ticket(0, transactions.prepare(transactions.open(self.begin().tx)))

    def _acquire(self):
        """What it holds as runs, in the log."""
        runs = [run for run in self._runs.values() if run.count]
        if runs and not self.acquired:
            with self.logs.lock:
                rows = [Row(run.queue_id, first, number) for run in runs for first, number in run.ranges()]
                transactions = self.logs.transactions
                since = min([run.acquired_us for run in runs])
                transactions.acquire(transactions.known(self.begin().tx), rows, self.consumer_id, since)
                self.transaction.bulk = True
            self.acquired = True

    def decide(self) -> c_int:
        with self.logs.lock:
            self.lsn = self.logs.transactions.commit(self.logs.transactions.open(self.tx), ())
        return 0

    def durable(self) -> bint:
        return at_load64(address(self.logs.transaction_records.log.durable)) >= self.lsn

    def on_durable(self, callback: object) -> None:
        """Calls `callback()` when what `decide` wrote is durable: at once, or on the thread that finds it."""
        with self.logs.lock:
            ticket = self.logs.ticket(0, self.lsn)
        self.logs.on_durable(ticket, callback)

    def commit(self) -> int:
        """See transactions/ports.py."""
        self._acquire()
        rows: list = []
        if self.staged is not None:
            for queue_id in self.staged.queue_counts():
                core = self.queues.core(queue_id)
                if core is None:
                    self.staged.drop_queue(queue_id)
                else:
                    rows += self.staged.reserve(core, self.bulk.inbox(queue_id))
        return 0 if self.transaction is None else self.write_commit(rows)

    def write_commit(self, rows: object) -> int:
        """Its Commit, with the positions of its enqueues (Stage.reserve). Returns the ticket."""
        with self.logs.lock:
            transactions = self.logs.transactions
            return self._finish(transactions.commit(transactions.known(self.tx), [Row(*row) for row in rows]))

    def rollback(self) -> int:
        """See transactions/ports.py."""
        if self.transaction is None:
            return 0
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

    def apply(self) -> object:
        Enrolment.apply(self)
        for run in list(self._runs.values()):  # a queue of a branch that an operator decided may be deleted meanwhile
            self.bulk.dequeue_run(run, self.consumer_id)
        for run in list(self.singles.values()):
            run.settle()
        stage = self.staged
        if stage is not None:
            stage.settle(True, self.bulk.let_write)
            for queue_id in stage.queue_counts():
                self._publish(queue_id, stage)
        self._forget()

    def _publish(self, queue_id, stage):
        core = self.queues.core(queue_id)
        if core is None:
            return
        try:
            inbox = self.bulk.inbox(queue_id)
            if inbox is not None:
                stage.deliver(queue_id, inbox)
            else:
                stage.publish(core, lambda: self.queues.keep_limit(core))
        except Exception:  # the transaction is committed: a restart puts the entries there
            log.critical("queue id %d: a committed transaction is not seen before the next restart", queue_id, exc_info=True)

    def undo(self) -> object:
        Enrolment.undo(self)
        for run in self._held():
            run.release()
        if self.staged is not None:
            self.staged.settle(False, self.bulk.let_write)
        self._forget()

    def _forget(self):
        """Its effects are there. A tombstone or a heuristic outcome may be remembered for long, what it held need not."""
        if self.acquired or self.staged is not None:
            self.finish()
        # New objects: a reader may have the old ones.
        self.queue_ids, self._runs, self.singles, self.staged = set(), {}, {}, None

    def finish(self) -> None:
        """The outcome of one with runs or a stage is done everywhere: writes End."""
        with self.logs.lock:
            if self.transaction.bulk and self.tx in self.logs.transactions.table:
                self.transaction.bulk = False
                self.transaction.stage = None
                self._settle()

    def abandon(self) -> None:
        """Rolls a local one back."""
        Enrolment.undo(self)
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
