"""MemoryStore with what distributed transactions need besides: the twin of TransactionStore."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from flintmq.errors import StoreError
from flintmq.ports import DequeueReason
from flintmq.store.transaction_log import Row
from flintmq.transactions import HeuristicOutcome, RecoveredTransaction
from flintmq.transactions.xid import ENCODED_BYTES_MAX
from tests.support.blocks import block_entries
from tests.support.stored import StoredContent
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

    def settle_stage(self, stage, committed: bool) -> None:
        pass


class TwinEnrolment:
    """See Enrolment."""

    def __init__(self, store: TwinStore, tx: int) -> None:
        self._store = store
        self.tx = tx

    def acquire(self, runs, consumer_id: int) -> None:
        rows = [(run.queue_id, first, count) for run in runs for first, count in run.ranges()]
        self._store.record(lambda state: state.sets.__setitem__(self.tx, (rows, consumer_id, 1)))

    def stage(self) -> TwinStage:
        return TwinStage(self._store, self.tx)

    def held(self) -> RecoveredTransaction:
        return self._store.in_doubt_entries(self.tx)

    def adopt(self, core_of):
        return self._store.staged(self.tx)

    def prepare(self) -> int:
        return self._store.prepare(self.tx)

    def commit(self, rows) -> int:
        return self._store.commit(self.tx, rows)

    def rollback(self) -> int:
        return self._store.rollback(self.tx)

    def finish(self) -> None:
        self._store.record(lambda state: state.sets.pop(self.tx, None))


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

    def open_branch(self, xid: bytes) -> TwinEnrolment:
        return TwinEnrolment(self, self.begin(xid))

    def branch_of(self, xid: bytes) -> TwinEnrolment:
        return TwinEnrolment(self, self.transaction_of(xid))

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

    def in_doubt_entries(self, tx: int) -> RecoveredTransaction:
        return RecoveredTransaction(list(self._state.transactions[tx].dequeues), self._state.sets.get(tx, ((), 0, 0)))

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
