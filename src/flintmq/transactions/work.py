"""What one transaction, local or distributed, does to queues: enrolments, and their effects when the outcome is durable.

in: enqueues and dequeues of one transaction. out: records of the store, calls of QueueEffects.
Threading: none of its own; the coordinator's lock guards everything but `apply` and `undo`, which run after the last change.

W1  One enrolment per (message, queue) and per (queue, position): a message on ten queues is written once; a second dequeue of an
    entry is refused when it is asked for, not at commit.
W2  Queues change only in `apply` (the commit is durable) or `undo` (the rollback is). Until then dequeued entries are held.
W3  Positions of one queue follow the order in which the enqueues were asked for, transient messages included.
"""

from __future__ import annotations

from collections.abc import Sequence

from flintmq.errors import InvariantError
from flintmq.ports import DequeueReason, StoredContent
from flintmq.transactions.bulk import HeldRun
from flintmq.transactions.effects import (
    CommitRow,
    MessageRef,
    PendingEnqueue,
    QueueEffects,
    RecoveredTransaction,
    Run,
    Session,
    Stage,
    TransactionStore,
)
from flintmq.transactions.errors import Condition, TransactionRefused

# hundreds of entries that a run takes in one go, under the coordinator's lock: less than a millisecond
HOLD_PIECES = 32
# places that are reserved together (queue/runs.py, CHUNK): others may come in between after so many
ROW_LEAST = 256


class Work:
    """Enrolments of one transaction.

    Args: xid: the store's xid of a distributed transaction, None for a local one; log_transient: transient messages and entries are
    logged too, so that a prepared transaction survives a crash whole; enrolments_max, content_bytes_max: see Limits.
    """

    def __init__(
        self,
        store: TransactionStore,
        effects: QueueEffects,
        *,
        xid: bytes | None,
        log_transient: bool,
        enrolments_max: int,
        content_bytes_max: int,
    ) -> None:
        self._store = store
        self._effects = effects
        self._xid = xid
        self.log_transient = log_transient
        self._enrolments_max = enrolments_max
        self._content_bytes_max = content_bytes_max
        self._content_bytes = 0
        # queue id -> priority of its last enqueue, and how many stand together there; rows that the Commit may need
        self._rows: dict[int, tuple[int | None, int]] = {}
        self._row_count = 0
        self.tx = 0  # the store's transaction; 0 while nothing is logged
        self._messages: set[MessageRef] = set()
        self._enqueues: dict[tuple[MessageRef, int], PendingEnqueue] = {}
        # (queue, position) -> True for a transient entry that was copied into the log; dropped from it again if we roll back.
        self._dequeues: dict[tuple[int, int], bool] = {}
        self._queue_ids: set[int] = set()  # of all enrolments
        self._placed: dict[int, list[tuple[int, PendingEnqueue]]] = {}  # filled by commit
        self._runs: dict[int, Run] = {}  # by queue
        self._consumer_id = 0  # whom the log names for them
        self._acquired = False  # the log knows them
        self._stage: Stage | None = None

    @property
    def enqueue_count(self) -> int:
        """Messages that wait to enter queues."""
        return len(self._enqueues) + (0 if self._stage is None else self._stage.enqueues)

    @property
    def dequeue_count(self) -> int:
        """Entries that are held."""
        return len(self._dequeues) + sum(run.count for run in self._runs.values())

    @property
    def takes_time(self) -> bool:
        """Its effects are many: not for the thread that made the outcome durable."""
        return bool(self._runs) or self._stage is not None

    def queues(self) -> dict[int, tuple[int, int]]:
        """Queue id -> (enqueues, dequeues)."""
        found: dict[int, tuple[int, int]] = {}
        for enqueue in self._enqueues.values():
            enqueues, dequeues = found.get(enqueue.queue_id, (0, 0))
            found[enqueue.queue_id] = (enqueues + 1, dequeues)
        for queue_id, _ in self._dequeues:
            enqueues, dequeues = found.get(queue_id, (0, 0))
            found[queue_id] = (enqueues, dequeues + 1)
        for queue_id, run in list(self._runs.items()):
            enqueues, dequeues = found.get(queue_id, (0, 0))
            found[queue_id] = (enqueues, dequeues + run.count)
        if self._stage is not None:
            for queue_id, count in self._stage.queue_counts().items():
                enqueues, dequeues = found.get(queue_id, (0, 0))
                found[queue_id] = (enqueues + count, dequeues)
        return found

    def touches(self, queue_id: int) -> bool:
        """True if an enrolment names the queue."""
        return queue_id in self._queue_ids

    # --- enrolment ------------------------------------------------------------------------------------------------------

    def enqueue(
        self, queue_id: int, message: StoredContent | MessageRef, *, durable: bool, priority: int | None, expires_at_ms: int
    ) -> MessageRef:
        """See TransactionCoordinator.enqueue."""
        if isinstance(message, StoredContent):
            ref = MessageRef(message, priority=priority)
        elif message not in self._messages:
            raise ValueError("this message belongs to another transaction")
        else:
            ref = message
        if (ref, queue_id) in self._enqueues:
            return ref
        if self._stage is not None:
            raise TransactionRefused(Condition.ILLEGAL_STATE, "a transaction with blocks takes no single enqueue")
        survives = self._effects.durable(queue_id)
        if survives is None:
            raise TransactionRefused(Condition.NOT_FOUND, f"there is no queue {queue_id}")
        self._admit()
        # A message that is no longer resident exists only as long as the log keeps it, so every queue it enters must be logged.
        logged = (durable and survives) or self.log_transient or ref.content is None
        resident = ref in self._messages or self._content_bytes + ref.size <= self._content_bytes_max
        if not resident and not logged:
            text = f"a transaction keeps at most {self._content_bytes_max} bytes of transient messages"
            raise TransactionRefused(Condition.RESOURCE_LIMIT_EXCEEDED, text)
        if not logged and queue_id in self._rows:
            self._rows[queue_id] = (ref.priority, ROW_LEAST)  # its place comes between those of others
        if logged:
            self._count_row(queue_id, ref.priority)
            if not ref.message_id:
                assert ref.content is not None
                ref.message_id = self._store.append_content(ref.content, priority=ref.priority)
            self._store.enqueue(queue_id, 0, ref.message_id, tx=self._begin(), expires_at_ms=expires_at_ms)
        if ref not in self._messages:
            self._messages.add(ref)
            if resident:
                self._content_bytes += ref.size
            else:
                ref.content = None
        self._enqueues[ref, queue_id] = PendingEnqueue(queue_id, ref, ref.priority, expires_at_ms, logged)
        self._queue_ids.add(queue_id)
        return ref

    def _count_row(self, queue_id: int, priority: int | None) -> None:
        """The Commit says the positions of neighbours in one row, and must fit into one record. Neighbours of one priority are reserved
        together, ROW_LEAST of them at least. Raises: TransactionRefused."""
        last, count = self._rows.get(queue_id, (priority, ROW_LEAST))
        fresh = last != priority or count >= ROW_LEAST
        if fresh:
            if self._row_count >= self._store.bulk.rows_max // 2:  # half: chunks and priorities each begin a row
                text = (
                    f"the messages of this transaction stand on too many queues and priorities by turns (more than {self._row_count} times)"
                )
                raise TransactionRefused(Condition.RESOURCE_LIMIT_EXCEEDED, text)
            self._row_count += 1
        self._rows[queue_id] = (priority, 1 if fresh else count + 1)

    def dequeue(self, queue_id: int, position: int, session: Session | None, reason: DequeueReason, consumer: str, group: str) -> None:
        """See TransactionCoordinator.dequeue."""
        if (queue_id, position) in self._dequeues:
            text = f"entry {position} of queue {queue_id} was dequeued in this transaction already"
            raise TransactionRefused(Condition.ILLEGAL_STATE, text)
        self._admit()
        held = self._effects.hold(queue_id, position, session)
        if held is None:
            text = f"entry {position} of queue {queue_id} is not there, or not yours to take"
            raise TransactionRefused(Condition.ILLEGAL_STATE, text)
        copied = False
        try:
            if not held.logged and self.log_transient:
                message_id = self._store.append_content(self._effects.content(queue_id, position))
                self._store.enqueue(queue_id, position, message_id, expires_at_ms=held.expires_at_ms)
                copied = True
            if held.logged or copied:
                self._store.dequeue(
                    queue_id,
                    position,
                    reason,
                    tx=self._begin(),
                    delivery_count=held.delivery_count,
                    first_delivery_ms=held.first_delivery_ms,
                    consumer=consumer,
                    group=group,
                )
        except KeyError as error:
            raise InvariantError(f"the log does not know entry {position} of queue {queue_id}") from error
        except BaseException:
            self._effects.release(queue_id, [position])
            raise
        self._dequeues[queue_id, position] = copied
        self._queue_ids.add(queue_id)

    # --- many at once ---------------------------------------------------------------------------------------------------

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
        if self._enqueues:
            raise TransactionRefused(Condition.ILLEGAL_STATE, "a transaction with single enqueues takes no block")
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
            self._stage = bulk.stage(self._begin())
        if self._stage.rows >= bulk.rows_max:
            text = "the messages of this transaction stand on too many queues and priority levels by turns"
            raise TransactionRefused(Condition.RESOURCE_LIMIT_EXCEEDED, text)
        ttls = [[self._effects.ttl_ms(queue_id) for queue_id in one] for one in destinations]
        self._queue_ids |= queue_ids
        return self._stage, self._stage.plan(routes, [[cores[queue_id] for queue_id in one] for one in destinations], ttls)

    def recover(self, tx: int, found: RecoveredTransaction) -> None:
        """Takes over what a prepared transaction holds after a restart; entries of queues that are gone are left out."""
        self.tx = tx
        enqueues, dequeues, (rows, self._consumer_id, acquired_us) = found
        messages: dict[int, MessageRef] = {}
        for queue_id, message_id, expires_at_ms, priority, body_len in enqueues:
            ref = messages.setdefault(message_id, MessageRef(None, message_id, body_len=body_len, priority=priority))
            self._enqueues[ref, queue_id] = PendingEnqueue(queue_id, ref, priority, expires_at_ms, True)
        self._messages.update(messages.values())
        for queue_id, position in dequeues:
            if self._effects.hold(queue_id, position, None) is not None:
                self._dequeues[queue_id, position] = False
        ranges: dict[int, list[tuple[int, int]]] = {}
        for queue_id, first, count in rows:
            ranges.setdefault(queue_id, []).append((first, count))
        for queue_id, found_ranges in ranges.items():
            run = self._effects.run(queue_id)
            if run is not None:
                run.adopt(found_ranges, acquired_us)
                self._runs[queue_id] = run
        self._acquired = True
        self._queue_ids = {key[1] for key in self._enqueues} | {key[0] for key in self._dequeues} | set(self._runs)

    def drop_queue(self, queue_id: int) -> None:
        """The queue was deleted: what was enrolled for it has no place any more."""
        self._queue_ids.discard(queue_id)
        self._enqueues = {key: value for key, value in self._enqueues.items() if key[1] != queue_id}
        self._dequeues = {key: value for key, value in self._dequeues.items() if key[0] != queue_id}
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
        return self._store.prepare(self._begin())

    def _acquire(self) -> None:
        """What is held as runs, in the log."""
        runs = [run for run in self._runs.values() if run.count]
        if runs and not self._acquired:
            self._store.bulk.acquire(self._begin(), runs, self._consumer_id)
            self._acquired = True

    def commit(self) -> int:
        """Gives every new entry its position and writes the decision. Returns the LSN that `apply` waits for, 0 if nothing is logged."""
        self._acquire()
        wanted: dict[int, list[PendingEnqueue]] = {}
        for enqueue in self._enqueues.values():
            wanted.setdefault(enqueue.queue_id, []).append(enqueue)
        rows: list[CommitRow] = []
        for queue_id, enqueues in wanted.items():
            positions = self._effects.reserve(queue_id, [enqueue.priority for enqueue in enqueues])
            if positions is None:
                continue
            self._placed[queue_id] = list(zip(positions, enqueues, strict=True))
            rows += _rows(queue_id, [position for position, enqueue in self._placed[queue_id] if enqueue.logged])
        if not self.tx:
            return 0
        if self._stage is not None:
            return self._store.bulk.commit(self.tx, self._reserve_stage(self._stage))
        firsts = {row.queue_id: row.first for row in rows}
        return self._store.commit(self.tx, firsts) if len(firsts) == len(rows) else self._store.commit_rows(self.tx, rows)

    def _reserve_stage(self, stage: Stage) -> list[tuple[int, int, int]]:
        rows: list[tuple[int, int, int]] = []
        for queue_id in stage.queue_counts():
            core = self._effects.core(queue_id)
            if core is None:
                stage.drop_queue(queue_id)
            else:
                rows += stage.reserve(core)
        return rows

    def rollback(self) -> int:
        """Writes that nothing happened. Returns the LSN that `undo` waits for, 0 if nothing is logged."""
        if not self.tx:
            return 0
        lsn = self._store.rollback(self.tx)
        for (queue_id, position), copied in self._dequeues.items():
            if copied:
                # The entry goes back as the transient one it was. Its copy must be gone for good before somebody can consume it,
                # or a crash would bring it back.
                lsn = max(lsn, self._store.dequeue(queue_id, position, DequeueReason.DROP))
        return lsn

    def apply(self) -> None:
        """The commit is durable: it happens in the queues."""
        stage = self._stage
        for run in list(self._runs.values()):  # a queue of a branch that an operator decided may be deleted meanwhile
            self._store.bulk.dequeue_run(run, self._consumer_id)
        if stage is not None:
            self._store.bulk.settle_stage(stage, True)
        for queue_id, positions in self._held().items():
            self._effects.settle(queue_id, positions)
        for queue_id, entries in self._placed.items():
            self._effects.publish(queue_id, entries)
        if stage is not None:
            for queue_id in stage.queue_counts():
                self._effects.publish_stage(queue_id, stage)
        self._finish()

    def undo(self) -> None:
        """The rollback is durable: held entries go back."""
        for run in list(self._runs.values()):
            run.release()
        if self._stage is not None:
            self._store.bulk.settle_stage(self._stage, False)
        for queue_id, positions in self._held().items():
            self._effects.release(queue_id, positions)
        self._finish()

    # --- inside -----------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        if self.tx and (self._acquired or self._stage is not None):
            self._store.bulk.finish(self.tx)
        self._clear()

    def _clear(self) -> None:
        """A tombstone or a heuristic outcome may be remembered for long, its work need not. New objects: a reader may have the old."""
        self._messages, self._enqueues, self._dequeues, self._placed, self._queue_ids = set(), {}, {}, {}, set()
        self._runs, self._stage = {}, None

    def _held(self) -> dict[int, list[int]]:
        held: dict[int, list[int]] = {}
        for queue_id, position in self._dequeues:
            held.setdefault(queue_id, []).append(position)
        return held

    def _begin(self) -> int:
        if not self.tx:
            self.tx = self._store.begin(self._xid)
        return self.tx

    def _admit(self) -> None:
        if self.enqueue_count + self.dequeue_count >= self._enrolments_max:
            self._too_many()

    def _too_many(self) -> None:
        text = f"a transaction has at most {self._enrolments_max} enqueues and dequeues, and its runs {self._store.bulk.rows_max} pieces"
        raise TransactionRefused(Condition.RESOURCE_LIMIT_EXCEEDED, text)


def _rows(queue_id: int, positions: list[int]) -> list[CommitRow]:
    """Positions in the order of their enqueues, as runs."""
    rows: list[CommitRow] = []
    for position in positions:
        if rows and rows[-1].first + rows[-1].length == position:
            rows[-1] = rows[-1]._replace(length=rows[-1].length + 1)
        else:
            rows.append(CommitRow(queue_id, position, 1))
    return rows
