"""MemoryStore with what distributed transactions need besides: the twin of TransactionStore."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from flintmq.errors import EnrolmentRefused, StoreError
from flintmq.ports import DequeueReason
from flintmq.store.transaction_log import Row
from flintmq.transactions import HeldRun, HeuristicOutcome
from flintmq.transactions.xid import ENCODED_BYTES_MAX
from tests.support.blocks import block_entries
from tests.support.stored import StoredContent
from tests.twins.memory_effects import MemoryQueueEffects, MemoryRun
from tests.twins.memory_store import MemoryStore, _State


class _TwinState(_State):
    """Records of heuristic outcomes, and commits with several rows per queue."""

    def __init__(self) -> None:
        super().__init__()
        self.heuristics: dict[int, HeuristicOutcome] = {}
        self.notes: dict[tuple[int, bytes], bytes] = {}
        self.sets: dict[int, tuple] = {}

    def note(self, kind: int, key: bytes, value: bytes) -> None:
        self.notes[kind, key] = value
        if not value:
            del self.notes[kind, key]

    def commit_rows(self, tx: int, rows: Sequence[Row]) -> None:
        ended = self.transactions[tx]
        places = {queue_id: _places(queue_id, rows) for queue_id, _, _ in ended.enqueues}
        enqueues, ended.enqueues = ended.enqueues, []
        self.commit(tx, {})
        for queue_id, message_id, expires_at_ms in enqueues:
            self.enqueue(queue_id, next(places[queue_id]), message_id, expires_at_ms, 0)
            self._unrefer(message_id)  # the transaction's own reference

    def rollback(self, tx: int) -> None:
        self.sets.pop(tx, None)
        super().rollback(tx)

    def recover(self) -> None:
        super().recover()
        for tx in [tx for tx in self.sets if tx not in self.transactions]:  # committed, and not yet dequeued
            for queue_id, first, count in self.sets.pop(tx)[0]:
                for position in range(first, first + count):
                    if position in self.queues.get(queue_id, {}):
                        self.dequeue(queue_id, position, 0)


def _places(queue_id: int, rows: Sequence[Row]) -> Iterator[int]:
    for row in rows:
        if row.queue_id == queue_id:
            yield from range(row.first, row.first + row.length)


class TwinStage:
    """See Stage: messages as records of the store."""

    def __init__(self, store: TwinStore, tx: int) -> None:
        self._store = store
        self.tx = tx
        self.rows = 0
        self.items: list[list] = []  # queue, message, content, priority, expiry, position

    @property
    def enqueues(self) -> int:
        return len(self.items)

    def queue_counts(self) -> dict[int, int]:
        return dict(Counter(item[0] for item in self.items))

    def plan(self, routes, destinations, ttls):
        return routes, destinations, ttls

    def add(self, plan, block: bytes, at: int, now_ms: int) -> int:
        routes, destinations, ttls = plan
        for entry in block_entries(block, len(routes)):
            content = StoredContent(*routes[entry.route], entry.header, entry.body)
            if not destinations[entry.route]:
                continue
            message_id = self._store.append_content(content, priority=entry.priority)
            for core, ttl in zip(destinations[entry.route], ttls[entry.route], strict=True):
                times = [time for time in (ttl, entry.expiration_ms) if time >= 0]
                expires = now_ms + min(times) if times else 0
                self._store.enqueue(core.queue_id, 0, message_id, tx=self.tx, expires_at_ms=expires)
                self.items.append([core.queue_id, message_id, content, entry.priority, expires, 0])
        return len(block)

    def reserve(self, core) -> list[tuple[int, int, int]]:
        rows = []
        for item in self.items:
            if item[0] == core.queue_id:
                item[5] = core.next(item[3])
                rows.append((core.queue_id, item[5], 1))
        return rows

    def placed(self, queue_id: int):
        return [(position, message_id, content) for queue, message_id, content, _, _, position in self.items if queue == queue_id]

    def drop_queue(self, queue_id: int) -> None:
        self.items = [item for item in self.items if item[0] != queue_id]


class TwinBulk:
    """See BulkStore."""

    rows_max = 1000
    disk_low = False

    def __init__(self, store: TwinStore) -> None:
        self._store = store

    def in_background(self, work) -> None:
        work()

    def let_write(self, most: int = 0) -> None:
        pass

    def check(self, block: bytes, routes: int):
        entries = list(block_entries(block, routes))
        counts = [sum(entry.route == route for entry in entries) for route in range(routes)]
        return len(entries), sum(len(entry.body) for entry in entries), counts

    def consumer(self, name: str) -> int:
        return len(name)

    def taken(self, run) -> None:
        pass

    def held(self, run):
        return run

    def dequeue_run(self, run, consumer_id: int) -> None:
        for position, entry in run.entries:
            if entry.message_id and run.queue_id in self._store.queue_ids():
                self._store.dequeue(run.queue_id, position, DequeueReason.ACK)
        run.settle()


class TwinEnrolment:
    """See Enrolment in transactions/ports.py: the same over the twins of store and queues."""

    def __init__(self, store: TwinStore, xid: bytes, effects: MemoryQueueEffects, enrolments_max: int) -> None:
        self._store = store
        self._bulk = store.bulk
        self._effects = effects
        self._xid = xid
        self._enrolments_max = enrolments_max
        self.tx = 0
        self._queue_ids: set[int] = set()
        self._runs: dict[int, MemoryRun] = {}
        self._singles: dict[int, MemoryRun] = {}
        self._consumer_id = 0
        self._acquired = False
        self._stage: TwinStage | None = None

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

    def queue_counts(self) -> dict[int, tuple[int, int]]:
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
            raise EnrolmentRefused(f"there is no queue {queue_id}", missing=True)
        left = self._enrolments_max - self.enqueue_count - self.dequeue_count
        ranges_left = self._bulk.rows_max - sum(one.range_count for one in self._runs.values() if one is not run)
        if left <= 0 or ranges_left <= 0:
            self._too_many()
        self._runs[queue_id] = run
        self._queue_ids.add(queue_id)
        found = run.hold(cursor, min(messages_max, left), bytes_max, upto, alone, ranges_left, 1)
        self._bulk.taken(run)
        if consumer and not self._consumer_id:
            self._consumer_id = self._bulk.consumer(consumer)
        return found

    def runs(self) -> list[HeldRun]:
        """See TransactionCoordinator.runs."""
        return [self._bulk.held(run) for run in self._runs.values() if run.count]

    def last_position(self, queue_id: int, number: int) -> int:
        """Of an entry of the queue's run by its number; negative: from the end."""
        return self._runs[queue_id].position(number)

    def run_count(self, queue_id: int) -> int:
        """Entries of the queue's run."""
        run = self._runs.get(queue_id)
        return 0 if run is None else run.count

    def plan_block(
        self, routes: Sequence[tuple[bytes, bytes]], destinations: Sequence[Sequence[int]], counts: Sequence[int]
    ) -> tuple[TwinStage, object]:
        """Checks whether a block may enter. Args: counts: messages per route."""
        queue_ids = {queue_id for one in destinations for queue_id in one}
        cores = {queue_id: self._effects.core(queue_id) for queue_id in queue_ids}
        for queue_id, core in cores.items():
            if core is None:
                raise EnrolmentRefused(f"there is no queue {queue_id}", missing=True)
        more = sum(len(one) * count for one, count in zip(destinations, counts, strict=True))
        if self.enqueue_count + self.dequeue_count + more > self._enrolments_max:
            self._too_many()
        bulk = self._bulk
        if bulk.disk_low:
            raise EnrolmentRefused("there is no room on the disk for more messages")
        if self._stage is None:
            self._stage = TwinStage(self._store, self._begin())
        if self._stage.rows >= bulk.rows_max:
            text = "the messages of this transaction stand on too many queues and priority levels by turns"
            raise EnrolmentRefused(text)
        ttls = [[self._effects.ttl_ms(queue_id) for queue_id in one] for one in destinations]
        self._queue_ids |= queue_ids
        return self._stage, self._stage.plan(routes, [[cores[queue_id] for queue_id in one] for one in destinations], ttls)

    def recover(self) -> None:
        """Takes over what a prepared transaction holds after a restart; entries of queues that are gone are left out."""
        self.tx = self._store.transaction_of(self._xid)
        dequeues, (rows, self._consumer_id, acquired_us) = self._store.in_doubt_entries(self.tx)
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
        self._stage = self._store.staged(self.tx)
        self._queue_ids = set(self._runs) | set(self._singles) | set({} if self._stage is None else self._stage.queue_counts())

    def drop_queue(self, queue_id: int) -> None:
        """The queue was deleted: what was enrolled for it has no place any more."""
        self._queue_ids.discard(queue_id)
        self._singles.pop(queue_id, None)
        run = self._runs.pop(queue_id, None)
        if run is not None:
            # Nobody else ends its messages: they would stay in the log until the next restart.
            bulk = self._bulk
            bulk.in_background(lambda: bulk.dequeue_run(run, 0))
        if self._stage is not None:
            self._stage.drop_queue(queue_id)

    # --- outcome --------------------------------------------------------------------------------------------------------

    def prepare(self) -> int:
        """Phase one. Returns the LSN. Raises: StoreError without room for the outcome."""
        self._acquire()
        return self._store.prepare(self._begin())

    def _acquire(self) -> None:
        """What is held as runs, in the log."""
        runs = [run for run in self._runs.values() if run.count]
        if runs and not self._acquired:
            rows = [(run.queue_id, first, count) for run in runs for first, count in run.ranges()]
            tx = self._begin()
            self._store.record(lambda state: state.sets.__setitem__(tx, (rows, self._consumer_id, 1)))
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
        return self._store.commit(self.tx, rows) if self.tx else 0

    def rollback(self) -> int:
        """Writes that nothing happened. Returns the LSN that `undo` waits for, 0 if nothing is logged."""
        return self._store.rollback(self.tx) if self.tx else 0

    def apply(self) -> None:
        """The commit is durable: it happens in the queues."""
        stage = self._stage
        for run in list(self._runs.values()):  # a queue of a branch that an operator decided may be deleted meanwhile
            self._bulk.dequeue_run(run, self._consumer_id)
        for run in list(self._singles.values()):
            run.settle()
        if stage is not None:
            for queue_id in stage.queue_counts():
                self._effects.publish_stage(queue_id, stage)
        self._finish()

    def undo(self) -> None:
        """The rollback is durable: held entries go back."""
        for run in self._held():
            run.release()
        self._finish()

    # --- inside -----------------------------------------------------------------------------------------------------------

    def _held(self) -> list[MemoryRun]:
        return [*self._runs.values(), *self._singles.values()]

    def _finish(self) -> None:
        """Its effects are there. A tombstone or a heuristic outcome may be remembered for long, its work need not."""
        tx = self.tx
        if tx and (self._acquired or self._stage is not None):
            self._store.record(lambda state: state.sets.pop(tx, None))
        # New objects: a reader may have the old ones.
        self._queue_ids, self._runs, self._singles, self._stage = set(), {}, {}, None

    def _begin(self) -> int:
        if not self.tx:
            self.tx = self._store.begin(self._xid)
        return self.tx

    def _too_many(self) -> None:
        text = f"a transaction has at most {self._enrolments_max} enqueues and dequeues, and its runs {self._bulk.rows_max} pieces"
        raise EnrolmentRefused(text)


class TwinStore(MemoryStore):
    """See TransactionStore. `full`: there is no room for the outcome of a transaction, so none can be prepared."""

    def __init__(self) -> None:
        super().__init__()
        self._state: _TwinState = _TwinState()
        self.full = False
        self.written: list[str] = []  # names of the records of transactions
        self.bulk = TwinBulk(self)

    def record(self, change) -> int:
        """Writes a record."""
        with self._lock:
            return self._write(change)

    def queue_ids(self) -> set[int]:
        return set(self._state.queues)

    def crash(self) -> TwinStore:
        found, base = TwinStore(), super().crash()
        found.__dict__.update(_state=base._state, _lsn=base._lsn, _durable_lsn=base._durable_lsn)
        return found

    def begin(self, xid: bytes | None = None) -> int:
        assert xid is None or len(xid) <= ENCODED_BYTES_MAX
        tx = super().begin(None)
        if xid is not None:
            if any(record.xid == xid for record in self._state.transactions.values()):
                raise ValueError("this xid is in use")
            self._write(lambda state: setattr(state.transactions[tx], "xid", xid))
        return tx

    def branch(self, xid: bytes, queues: MemoryQueueEffects, enrolments_max: int) -> TwinEnrolment:
        return TwinEnrolment(self, xid, queues, enrolments_max)

    def recovered_branch(self, xid: bytes, queues: MemoryQueueEffects, enrolments_max: int) -> TwinEnrolment:
        found = self.branch(xid, queues, enrolments_max)
        found.recover()
        return found

    def prepare(self, tx: int) -> int:
        if self.full:
            raise StoreError("no room for the outcome")
        self.written.append("prepare")
        return super().prepare(tx)

    def commit(self, tx, places=None) -> int:
        """`places`: queue id -> first position, or rows."""
        if places is not None and not isinstance(places, Mapping):
            return self._commit_rows(tx, [Row(*row) for row in places])
        self.written.append("commit")
        return super().commit(tx, places)

    def rollback(self, tx: int) -> int:
        self.written.append("rollback")
        return super().rollback(tx)

    def enqueues_in_doubt(self, tx: int) -> list[tuple]:
        """(queue id, message id, expires_at_ms, priority or None, body length) of what a prepared transaction enqueues."""
        state = self._state
        return [(*item, state.priorities[item[1]], len(state.contents[item[1]].body)) for item in state.transactions[tx].enqueues]

    def staged(self, tx: int) -> TwinStage | None:
        """What a prepared transaction enqueues, as its stage."""
        stage = TwinStage(self, tx)
        for queue_id, message_id, expires_at_ms, priority, _ in self.enqueues_in_doubt(tx):
            stage.items.append([queue_id, message_id, self._state.contents[message_id], priority, expires_at_ms, 0])
        return stage if stage.items else None

    def in_doubt_entries(self, tx: int) -> tuple:
        return list(self._state.transactions[tx].dequeues), self._state.sets.get(tx, ((), 0, 0))

    def _commit_rows(self, tx: int, rows: Sequence[Row]) -> int:
        with self._lock:
            for queue_id, _, _ in self._known(tx).enqueues:
                wanted = sum(item[0] == queue_id for item in self._known(tx).enqueues)
                positions = list(_places(queue_id, rows))
                if len(positions) != wanted or any(position in self._state.queues.get(queue_id, {}) for position in positions):
                    raise ValueError(f"rows of queue {queue_id} do not fit")
            self.written.append("commit")
            return self._write(lambda state: state.commit_rows(tx, tuple(rows)))

    def note_heuristic(self, tx: int, committed: bool) -> int:
        with self._lock:
            xid = self._known(tx).xid
            assert xid is not None
            outcome = HeuristicOutcome(tx, xid, committed)
            self.written.append("heuristic")
            return self._write(lambda state: state.heuristics.__setitem__(tx, outcome))

    def heuristics(self) -> Sequence[HeuristicOutcome]:
        with self._lock:
            return list(self._state.heuristics.values())

    def note(self, kind: int, key: bytes, value: bytes) -> int:
        with self._lock:
            return self._write(lambda state: state.note(kind, key, value))

    def notes(self, kind: int) -> dict[bytes, bytes]:
        with self._lock:
            return {key: value for (one, key), value in self._state.notes.items() if one == kind}

    def forget_heuristic(self, tx: int) -> int:
        with self._lock:
            if tx not in self._state.heuristics:
                raise KeyError(tx)
            return self._write(lambda state: state.heuristics.pop(tx))
