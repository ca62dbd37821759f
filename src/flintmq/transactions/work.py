"""What one branch does to queues: enrolments, and their effects when the outcome is durable.

in: runs of entries to dequeue and blocks of messages to enqueue. out: records of the store, effects on queues.
Threading: none of its own; the coordinator's lock guards everything but `apply` and `undo`, which run after the last change.

W1  One enrolment per message and queue, and per entry: an entry that is held is nobody else's.
W2  Queues change only in `apply` (the commit is durable) or `undo` (the rollback is). Until then dequeued entries are held.
W3  Positions of one queue follow the order in which the enqueues were asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from flintmq.transactions.bulk import HeldRun
from flintmq.transactions.effects import Enrolment, QueueEffects, Run, Stage, TransactionStore
from flintmq.transactions.errors import Condition, TransactionRefused

# hundreds of entries that a run takes in one go, under the coordinator's lock: less than a millisecond
HOLD_PIECES = 32


class Work:
    """Enrolments of one branch. Args: xid: the store's; enrolments_max: see Limits."""

    def __init__(self, store: TransactionStore, effects: QueueEffects, *, xid: bytes, enrolments_max: int) -> None:
        self._store = store
        self._effects = effects
        self._xid = xid
        self._enrolments_max = enrolments_max
        self.tx = 0  # the store's transaction; 0 while nothing is logged
        self._enrolment: Enrolment | None = None  # the same
        self._queue_ids: set[int] = set()  # of all enrolments
        self._runs: dict[int, Run] = {}  # by queue
        self._singles: dict[int, Run] = {}  # the same, where the log has a dequeue for each entry: of stores of before
        self._consumer_id = 0  # whom the log names for them
        self._acquired = False  # the log knows them
        self._stage: Stage | None = None

    @property
    def enqueue_count(self) -> int:
        """Messages that wait to enter queues."""
        return 0 if self._stage is None else self._stage.enqueues

    @property
    def dequeue_count(self) -> int:
        """Entries that are held."""
        return sum(run.count for run in self._held())

    @property
    def takes_time(self) -> bool:
        """Its effects are many: not for the thread that made the outcome durable."""
        return bool(self._held()) or self._stage is not None

    def queues(self) -> dict[int, tuple[int, int]]:
        """Queue id -> (enqueues, dequeues)."""
        found: dict[int, tuple[int, int]] = {}
        for run in self._held():
            enqueues, dequeues = found.get(run.queue_id, (0, 0))
            found[run.queue_id] = (enqueues, dequeues + run.count)
        if self._stage is not None:
            for queue_id, count in self._stage.queue_counts().items():
                enqueues, dequeues = found.get(queue_id, (0, 0))
                found[queue_id] = (enqueues + count, dequeues)
        return found

    def touches(self, queue_id: int) -> bool:
        """True if an enrolment names the queue."""
        return queue_id in self._queue_ids

    # --- enrolment ------------------------------------------------------------------------------------------------------

    def hold_piece(
        self, queue_id: int, cursor: int, messages_max: int, bytes_max: int, consumer: str, upto: int, alone: bool
    ) -> tuple[int, int, bool, int]:
        """A piece of TransactionCoordinator.hold_run: how many, bytes, whether there may be more, where to go on."""
        run = self._runs.get(queue_id) or self._effects.run(queue_id)
        if run is None:
            raise TransactionRefused(Condition.NOT_FOUND, f"there is no queue {queue_id}")
        left = self._enrolments_max - self.enqueue_count - self.dequeue_count
        ranges_left = self._store.bulk.rows_max - sum(one.range_count for one in self._runs.values() if one is not run)
        if left <= 0 or ranges_left <= 0:
            self._too_many()
        self._runs[queue_id] = run
        self._queue_ids.add(queue_id)
        found = run.hold(cursor, min(messages_max, left), bytes_max, upto, alone, ranges_left, HOLD_PIECES)
        self._store.bulk.taken(run)
        if consumer and not self._consumer_id:
            self._consumer_id = self._store.bulk.consumer(consumer)
        return found

    def runs(self) -> list[HeldRun]:
        """See TransactionCoordinator.runs."""
        return [self._store.bulk.held(run) for run in self._runs.values() if run.count]

    def last_position(self, queue_id: int, number: int) -> int:
        """Of an entry of the queue's run by its number; negative: from the end."""
        return self._runs[queue_id].position(number)

    def run_count(self, queue_id: int) -> int:
        """Entries of the queue's run."""
        run = self._runs.get(queue_id)
        return 0 if run is None else run.count

    def plan_block(
        self, routes: Sequence[tuple[bytes, bytes]], destinations: Sequence[Sequence[int]], counts: Sequence[int]
    ) -> tuple[Stage, object]:
        """Checks whether a block may enter. Args: counts: messages per route."""
        queue_ids = {queue_id for one in destinations for queue_id in one}
        cores = {queue_id: self._effects.core(queue_id) for queue_id in queue_ids}
        for queue_id, core in cores.items():
            if core is None:
                raise TransactionRefused(Condition.NOT_FOUND, f"there is no queue {queue_id}")
        more = sum(len(one) * count for one, count in zip(destinations, counts, strict=True))
        if self.enqueue_count + self.dequeue_count + more > self._enrolments_max:
            self._too_many()
        bulk = self._store.bulk
        if bulk.disk_low:
            raise TransactionRefused(Condition.RESOURCE_LIMIT_EXCEEDED, "there is no room on the disk for more messages")
        if self._stage is None:
            self._stage = self._begin().stage()
        if self._stage.rows >= bulk.rows_max:
            text = "the messages of this transaction stand on too many queues and priority levels by turns"
            raise TransactionRefused(Condition.RESOURCE_LIMIT_EXCEEDED, text)
        ttls = [[self._effects.ttl_ms(queue_id) for queue_id in one] for one in destinations]
        self._queue_ids |= queue_ids
        return self._stage, self._stage.plan(routes, [[cores[queue_id] for queue_id in one] for one in destinations], ttls)

    def recover(self, enrolment: Enrolment) -> None:
        """Takes over what a prepared transaction holds after a restart; entries of queues that are gone are left out."""
        self._enrolment, self.tx = enrolment, enrolment.tx
        dequeues, (rows, self._consumer_id, acquired_us) = enrolment.held()
        for runs, ranges, since in ((self._runs, rows, acquired_us), (self._singles, [(*one, 1) for one in dequeues], 0)):
            by_queue: dict[int, list[tuple[int, int]]] = {}
            for queue_id, first, count in ranges:
                by_queue.setdefault(queue_id, []).append((first, count))
            for queue_id, held in by_queue.items():
                run = self._effects.run(queue_id)
                if run is not None:
                    run.adopt(held, since)
                    runs[queue_id] = run
        self._acquired = True
        self._stage = enrolment.adopt(self._effects.core)
        self._queue_ids = set(self._runs) | set(self._singles) | set({} if self._stage is None else self._stage.queue_counts())

    def drop_queue(self, queue_id: int) -> None:
        """The queue was deleted: what was enrolled for it has no place any more."""
        self._queue_ids.discard(queue_id)
        self._singles.pop(queue_id, None)
        run = self._runs.pop(queue_id, None)
        if run is not None:
            # Nobody else ends its messages: they would stay in the log until the next restart.
            bulk = self._store.bulk
            bulk.in_background(lambda: bulk.dequeue_run(run, 0))
        if self._stage is not None:
            self._stage.drop_queue(queue_id)

    # --- outcome --------------------------------------------------------------------------------------------------------

    def prepare(self) -> int:
        """Phase one. Returns the LSN. Raises: StoreError without room for the outcome."""
        self._acquire()
        return self._begin().prepare()

    def _acquire(self) -> None:
        """What is held as runs, in the log."""
        runs = [run for run in self._runs.values() if run.count]
        if runs and not self._acquired:
            self._begin().acquire(runs, self._consumer_id)
            self._acquired = True

    def commit(self) -> int:
        """Gives every new entry its position and writes the decision. Returns the LSN that `apply` waits for, 0 if nothing is logged."""
        self._acquire()
        rows: list[tuple[int, int, int]] = []
        stage = self._stage
        if stage is not None:
            for queue_id in stage.queue_counts():
                core = self._effects.core(queue_id)
                if core is None:
                    stage.drop_queue(queue_id)
                else:
                    rows += stage.reserve(core)
        return 0 if self._enrolment is None else self._enrolment.commit(rows)

    def rollback(self) -> int:
        """Writes that nothing happened. Returns the LSN that `undo` waits for, 0 if nothing is logged."""
        return 0 if self._enrolment is None else self._enrolment.rollback()

    def apply(self) -> None:
        """The commit is durable: it happens in the queues."""
        stage = self._stage
        for run in list(self._runs.values()):  # a queue of a branch that an operator decided may be deleted meanwhile
            self._store.bulk.dequeue_run(run, self._consumer_id)
        for run in list(self._singles.values()):
            run.settle()
        if stage is not None:
            self._store.bulk.settle_stage(stage, True)
            for queue_id in stage.queue_counts():
                self._effects.publish_stage(queue_id, stage)
        self._finish()

    def undo(self) -> None:
        """The rollback is durable: held entries go back."""
        for run in self._held():
            run.release()
        if self._stage is not None:
            self._store.bulk.settle_stage(self._stage, False)
        self._finish()

    # --- inside -----------------------------------------------------------------------------------------------------------

    def _held(self) -> list[Run]:
        return [*self._runs.values(), *self._singles.values()]

    def _finish(self) -> None:
        """Its effects are there. A tombstone or a heuristic outcome may be remembered for long, its work need not."""
        if self._enrolment is not None and (self._acquired or self._stage is not None):
            self._enrolment.finish()
        # New objects: a reader may have the old ones.
        self._queue_ids, self._runs, self._singles, self._stage = set(), {}, {}, None

    def _begin(self) -> Enrolment:
        if self._enrolment is None:
            self._enrolment = self._store.open_branch(self._xid)
            self.tx = self._enrolment.tx
        return self._enrolment

    def _too_many(self) -> None:
        text = f"a transaction has at most {self._enrolments_max} enqueues and dequeues, and its runs {self._store.bulk.rows_max} pieces"
        raise TransactionRefused(Condition.RESOURCE_LIMIT_EXCEEDED, text)
