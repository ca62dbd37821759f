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
from flintmq.transactions.bulk import INLINE, ROW, BlockFacts, HeldRun, Octets, RunFacts, block_entries
from flintmq.transactions.effects import (
    CommitRow,
    MessageRef,
    PendingEnqueue,
    QueueEffects,
    RecoveredTransaction,
    Session,
    TransactionStore,
)
from flintmq.transactions.errors import Condition, TransactionRefused


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
        self.tx = 0  # the store's transaction; 0 while nothing is logged
        self._messages: set[MessageRef] = set()
        self._enqueues: dict[tuple[MessageRef, int], PendingEnqueue] = {}
        # (queue, position) -> True for a transient entry that was copied into the log; dropped from it again if we roll back.
        self._dequeues: dict[tuple[int, int], bool] = {}
        self._queue_ids: set[int] = set()  # of all enrolments
        self._placed: dict[int, list[tuple[int, PendingEnqueue]]] = {}  # filled by commit

    @property
    def enqueue_count(self) -> int:
        """Messages that wait to enter queues."""
        return len(self._enqueues)

    @property
    def dequeue_count(self) -> int:
        """Entries that are held."""
        return len(self._dequeues)

    def queues(self) -> dict[int, tuple[int, int]]:
        """Queue id -> (enqueues, dequeues)."""
        found: dict[int, tuple[int, int]] = {}
        for enqueue in self._enqueues.values():
            enqueues, dequeues = found.get(enqueue.queue_id, (0, 0))
            found[enqueue.queue_id] = (enqueues + 1, dequeues)
        for queue_id, _ in self._dequeues:
            enqueues, dequeues = found.get(queue_id, (0, 0))
            found[queue_id] = (enqueues, dequeues + 1)
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
        if logged:
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

    def hold_run(self, queue_id: int, messages_max: int, bytes_max: int, consumer: str, upto: int) -> RunFacts:
        """See TransactionCoordinator.hold_run."""
        count = size = first = last = 0
        while count < messages_max:
            position = self._effects.next_available(queue_id, last + 1)
            if not position or (upto and position > upto):
                break
            body_len = len(self._effects.content(queue_id, position).body)
            if count and size + body_len > bytes_max:
                break
            try:
                self.dequeue(queue_id, position, None, DequeueReason.ACK, consumer, "spark")
            except TransactionRefused:
                last = position
                continue  # a consumer was quicker
            count, size, first, last = count + 1, size + body_len, first or position, position
        return RunFacts(count, size, first, last)

    def runs(self) -> list[HeldRun]:
        """See TransactionCoordinator.runs."""
        return [_Run(self._effects, queue_id, sorted(positions)) for queue_id, positions in self._held().items()]

    def enqueue_block(
        self, block: bytes, routes: Sequence[tuple[bytes, bytes]], destinations: Sequence[Sequence[int]], now_ms: int
    ) -> BlockFacts:
        """See TransactionCoordinator.enqueue_block."""
        if len(routes) != len(destinations):
            raise ValueError(f"{len(routes)} routes and destinations for {len(destinations)}")
        entries = list(block_entries(block, len(routes)))
        for queue_id in {queue_id for one in destinations for queue_id in one}:
            if self._effects.durable(queue_id) is None:
                raise TransactionRefused(Condition.NOT_FOUND, f"there is no queue {queue_id}")
        enqueues = unroutable = 0
        for entry in entries:
            exchange, key = routes[entry.route]
            message: StoredContent | MessageRef = StoredContent(exchange, key, entry.header, entry.body)
            for queue_id in destinations[entry.route]:
                ttls = [ttl for ttl in (entry.expiration_ms, self._effects.ttl_ms(queue_id)) if ttl >= 0]
                expires = now_ms + min(ttls) if ttls else 0
                message = self.enqueue(queue_id, message, durable=True, priority=entry.priority, expires_at_ms=expires)
                enqueues += 1
            unroutable += not destinations[entry.route]
        return BlockFacts(len(entries), enqueues, sum(len(entry.body) for entry in entries), unroutable)

    def recover(self, tx: int, found: RecoveredTransaction) -> None:
        """Takes over what a prepared transaction holds after a restart; entries of queues that are gone are left out."""
        self.tx = tx
        enqueues, dequeues = found
        messages: dict[int, MessageRef] = {}
        for queue_id, message_id, expires_at_ms, priority, body_len in enqueues:
            ref = messages.setdefault(message_id, MessageRef(None, message_id, body_len=body_len, priority=priority))
            self._enqueues[ref, queue_id] = PendingEnqueue(queue_id, ref, priority, expires_at_ms, True)
        self._messages.update(messages.values())
        for queue_id, position in dequeues:
            if self._effects.hold(queue_id, position, None) is not None:
                self._dequeues[queue_id, position] = False
        self._queue_ids = {key[1] for key in self._enqueues} | {key[0] for key in self._dequeues}

    def drop_queue(self, queue_id: int) -> None:
        """The queue was deleted: what was enrolled for it has no place any more."""
        self._queue_ids.discard(queue_id)
        self._enqueues = {key: value for key, value in self._enqueues.items() if key[1] != queue_id}
        self._dequeues = {key: value for key, value in self._dequeues.items() if key[0] != queue_id}

    # --- outcome --------------------------------------------------------------------------------------------------------

    def prepare(self) -> int:
        """Phase one. Returns the LSN. Raises: StoreError without room for the outcome."""
        return self._store.prepare(self._begin())

    def commit(self) -> int:
        """Gives every new entry its position and writes the decision. Returns the LSN that `apply` waits for, 0 if nothing is logged."""
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
        firsts = {row.queue_id: row.first for row in rows}
        return self._store.commit(self.tx, firsts) if len(firsts) == len(rows) else self._store.commit_rows(self.tx, rows)

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
        for queue_id, positions in self._held().items():
            self._effects.settle(queue_id, positions)
        for queue_id, entries in self._placed.items():
            self._effects.publish(queue_id, entries)
        self._clear()

    def undo(self) -> None:
        """The rollback is durable: held entries go back."""
        for queue_id, positions in self._held().items():
            self._effects.release(queue_id, positions)
        self._clear()

    # --- inside -----------------------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        """A tombstone or a heuristic outcome may be remembered for long, its work need not. New objects: a reader may have the old."""
        self._messages, self._enqueues, self._dequeues, self._placed, self._queue_ids = set(), {}, {}, {}, set()

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
        if len(self._enqueues) + len(self._dequeues) >= self._enrolments_max:
            text = f"a transaction has at most {self._enrolments_max} enqueues and dequeues"
            raise TransactionRefused(Condition.RESOURCE_LIMIT_EXCEEDED, text)


class _Run:
    """See HeldRun: entries that are enrolled one by one."""

    def __init__(self, effects: QueueEffects, queue_id: int, positions: list[int]) -> None:
        self._effects = effects
        self._positions = positions
        self.queue_id = queue_id
        self.count = len(positions)

    @property
    def bytes(self) -> int:
        return sum(len(self._effects.content(self.queue_id, position).body) for position in self._positions)

    def ranges(self) -> list[tuple[int, int]]:
        return [(row.first, row.length) for row in _rows(self.queue_id, self._positions)]

    def rows(self, first: int, count: int) -> tuple[Octets, list[Octets]]:
        rows, contents = [], []
        for position in self._positions[first : first + count]:
            content = self._effects.content(self.queue_id, position)
            rows.append(ROW.pack(position, 0, 0, len(content.body), 0, 0, 0))
            route = bytes([len(content.exchange)]) + content.exchange + bytes([len(content.routing_key)]) + content.routing_key
            run = route + content.header + content.body
            contents.append(INLINE.pack(len(run), len(content.header), 0) + run)
        return b"".join(rows), contents


def _rows(queue_id: int, positions: list[int]) -> list[CommitRow]:
    """Positions in the order of their enqueues, as runs."""
    rows: list[CommitRow] = []
    for position in positions:
        if rows and rows[-1].first + rows[-1].length == position:
            rows[-1] = rows[-1]._replace(length=rows[-1].length + 1)
        else:
            rows.append(CommitRow(queue_id, position, 1))
    return rows
