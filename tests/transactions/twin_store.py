"""MemoryStore with what distributed transactions need besides: the twin of TransactionStore."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flintmq.errors import StoreError
from flintmq.store.memory import MemoryStore, _State
from flintmq.transactions import CommitRow, HeuristicOutcome, RecoveredEnqueue, RecoveredTransaction
from flintmq.transactions.xid import ENCODED_BYTES_MAX


class _TwinState(_State):
    """Records of heuristic outcomes, and commits with several rows per queue."""

    def __init__(self) -> None:
        super().__init__()
        self.heuristics: dict[int, HeuristicOutcome] = {}
        self.notes: dict[tuple[int, bytes], bytes] = {}

    def note(self, kind: int, key: bytes, value: bytes) -> None:
        self.notes[kind, key] = value
        if not value:
            del self.notes[kind, key]

    def commit_rows(self, tx: int, rows: Sequence[CommitRow]) -> None:
        ended = self.transactions[tx]
        places = {queue_id: _places(queue_id, rows) for queue_id, _, _ in ended.enqueues}
        enqueues, ended.enqueues = ended.enqueues, []
        self.commit(tx, {})
        for queue_id, message_id, expires_at_ms in enqueues:
            self.enqueue(queue_id, next(places[queue_id]), message_id, expires_at_ms, 0)
            self._unrefer(message_id)  # the transaction's own reference


def _places(queue_id: int, rows: Sequence[CommitRow]) -> Iterator[int]:
    for row in rows:
        if row.queue_id == queue_id:
            yield from range(row.first, row.first + row.length)


class TwinStore(MemoryStore):
    """See TransactionStore. `full`: there is no room for the outcome of a transaction, so none can be prepared."""

    def __init__(self) -> None:
        super().__init__()
        self._state: _TwinState = _TwinState()
        self.full = False
        self.written: list[str] = []  # names of the records of transactions

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

    def prepare(self, tx: int) -> int:
        if self.full:
            raise StoreError("no room for the outcome")
        self.written.append("prepare")
        return super().prepare(tx)

    def commit(self, tx, first_positions=None) -> int:
        self.written.append("commit")
        return super().commit(tx, first_positions)

    def rollback(self, tx: int) -> int:
        self.written.append("rollback")
        return super().rollback(tx)

    def in_doubt_entries(self, tx: int) -> RecoveredTransaction:
        state, record = self._state, self._state.transactions[tx]
        enqueues = [RecoveredEnqueue(*item, state.priorities[item[1]], len(state.contents[item[1]].body)) for item in record.enqueues]
        return RecoveredTransaction(enqueues, list(record.dequeues))

    def commit_rows(self, tx: int, rows: Sequence[CommitRow]) -> int:
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
