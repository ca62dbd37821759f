"""Deciding a transaction on shared queues (docs/adr/0015, R10): its rows, and the one commit from which on it takes place.

in: what it does in each queue. out: the decision, or an error after which nothing of it ever takes place.

D1  The row x/TRANSACTION decides: without it, or with an undecided one, no owner does anything. It is made once: the commit that makes it
    compares the node's row of coordinators, and after one whose outcome is unknown that row changes before anything else happens.
D2  Every commit with rows of a queue compares the queue's owner row, so no rows come to a deleted queue, and no message ends that another
    owner may have given to others.
D3  What fits one commit is decided by it. Else the rows come first, with an undecided row that whoever gives the transaction up deletes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flintmq.config import Limits
from flintmq.engines.engine import Commit, Engine, EngineError, Full, TooLarge, Unavailable, UnknownOutcome
from flintmq.shared.layout import Owner, owner_key
from flintmq.shared.queue_log import QueueLog
from flintmq.shared.transaction_rows import (
    Message,
    TransactionRow,
    coordinator_key,
    pack_part,
    pending_key,
    pending_of,
    pieces,
    transaction_key,
)  # fmt: skip

# bytes of a commit beside its rows' values and keys: conditions with rows of owners
_OWNER_BYTES = 512
_KEY_BYTES = 96


class QueueGone(Exception):
    """A queue of the transaction is deleted. Nothing of the transaction takes place. Attributes: queue."""

    def __init__(self, queue: bytes) -> None:
        super().__init__(f"queue {queue.decode()} is deleted")
        self.queue = queue


class Moved(Exception):
    """Messages that it ends may have been given to others meanwhile. Nothing of the transaction takes place."""


@dataclass(slots=True)
class Changes:
    """What a transaction does in one queue. log: of the owner that delivered what ends, which is this node: positions mean nothing to a
    later one; parts: both as they stand in rows."""

    messages: list[Message] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    log: QueueLog | None = None
    parts: list[bytes] = field(default_factory=list)
    first: int = 0  # the number of the first part

    def pack(self, limits: Limits) -> None:
        """Sets `parts`. O(bytes)."""
        self.parts = []
        ends, messages, size = self.ends, list[Message](), 0
        for one in self.messages:
            one_size = len(one.body) + len(one.header)
            if messages and (len(messages) == limits.shared_part_messages or size + one_size > limits.shared_part_bytes):
                self.parts.append(pack_part(messages, ends))
                ends, messages, size = [], [], 0
            messages.append(one)
            size += one_size
        self.parts.append(pack_part(messages, ends))


class Deciding:
    """Of one node. Args: owner_of: the owner row of a queue that is served here; is_deleted: whether this node knows that a queue is."""

    def __init__(
        self,
        engine: Engine,
        node: str,
        life: str,
        limits: Limits,
        owner_of: Callable[[bytes], Owner | None],
        is_deleted: Callable[[bytes], bool],
    ) -> None:
        self._engine = engine
        self._node = node
        self._life = life
        self._limits = limits
        self._owner_of = owner_of
        self._is_deleted = is_deleted
        self._key = coordinator_key(node)
        self._row_now: bytes | None = None  # this node's row of coordinators, once it was written
        self._fences = 0
        self._fencing = asyncio.Lock()
        self._owners: dict[bytes, bytes] = {}  # of queues that others serve, as they were read last

    async def decide(self, transaction: bytes, changes: Mapping[bytes, Changes]) -> TransactionRow:
        """Args: transaction: a new id; changes: by the ids of queues, packed. Waits as long as nobody knows whether it is decided.

        Raises: QueueGone, Moved; EngineError: of an engine that does not take it within half of `shared_waiting_ms_max`. Nothing of the
        transaction takes place then, and `undo` deletes what there may be of it.
        """
        row = self._row(transaction, changes)
        rows = self._rows(transaction, changes)
        limits = self._engine.limits
        size = sum(len(value) + _KEY_BYTES for value in rows.values()) + len(row.pack()) + _OWNER_BYTES * (len(changes) + 1)
        try_one = _Try(transaction, None, row.pack(), self._deadline_s())
        if size <= limits.commit_bytes and len(rows) + len(changes) + 4 <= limits.commit_rows:
            await self._commit(try_one, rows, changes)
            return row
        undecided = replace(row, is_decided=False).pack()
        await self._commit(replace(try_one, after=undecided), {}, {})
        await self._write(transaction, rows, changes, undecided)
        ends = {queue: one for queue, one in changes.items() if one.ends}
        await self._commit(replace(try_one, before=undecided, until_s=self._deadline_s()), {}, ends)
        return row

    async def change(self, transaction: bytes, before: bytes | None, after: bytes) -> None:
        """Its row, undecided or decided. Raises: EngineError: it is not what it was before."""
        await self._commit(_Try(transaction, before, after, self._deadline_s()), {}, {})

    async def add(self, transaction: bytes, changes: Mapping[bytes, Changes], row: bytes) -> None:
        """Parts of an undecided transaction. Args: row: as it stands, with these queues. Raises: as `decide`."""
        await self._write(transaction, self._rows(transaction, changes), changes, row)

    async def undo(self, transaction: bytes, queues: Sequence[bytes], undecided: bytes) -> None:
        """Deletes what there is of a transaction that was given up (D3), unless it was decided, or changed. Any node.

        Raises: EngineError: to be done again."""
        # In one commit: nobody would find rows without the transaction's own. It has shared_transaction_queues_max queues at most.
        clears = [pending_of(queue, transaction) for queue in queues]
        await self._engine.commit(Commit([(transaction_key(transaction), undecided)], {}, [transaction_key(transaction)], clears))

    def _row(self, transaction: bytes, changes: Mapping[bytes, Changes]) -> TransactionRow:
        return TransactionRow(True, self._node, self._life, sorted(queue.decode() for queue in changes))

    def _rows(self, transaction: bytes, changes: Mapping[bytes, Changes]) -> dict[bytes, bytes]:
        size = min(self._engine.limits.value_bytes, self._engine.limits.commit_bytes // 2)
        return {
            pending_key(queue, transaction, part, piece): value
            for queue, one in changes.items()
            for part, data in enumerate(one.parts, one.first)
            for piece, value in enumerate(pieces(data, size))
        }

    async def _write(self, transaction: bytes, rows: Mapping[bytes, bytes], changes: Mapping[bytes, Changes], undecided: bytes) -> None:
        """The rows, in as many commits as they need, in the order of queues."""
        limits = self._engine.limits
        puts: dict[bytes, bytes] = {}
        queues: dict[bytes, Changes] = {}
        size = _OWNER_BYTES
        for key, value in [*rows.items(), (b"", b"")]:
            queue = key[2 : key.index(b"/", 2)] if key else b""
            cost = len(value) + _KEY_BYTES + _OWNER_BYTES
            if puts and (not key or size + cost > limits.commit_bytes or len(puts) + len(queues) + 4 > limits.commit_rows):
                await self._commit(_Try(transaction, undecided, undecided, self._deadline_s()), puts, queues)
                puts, queues, size = {}, {}, _OWNER_BYTES
            if key:
                puts[key], queues[queue] = value, changes[queue]
                size += cost

    # --- one commit -----------------------------------------------------------------------------------------------------

    def _deadline_s(self) -> float:
        return asyncio.get_running_loop().time() + self._limits.shared_waiting_ms_max / 2000

    async def _commit(self, one: _Try, puts: Mapping[bytes, bytes], queues: Mapping[bytes, Changes]) -> None:
        """One commit, until it is known to be done. Raises: as `decide`: it never is."""
        key = transaction_key(one.transaction)
        rows = dict(puts) if one.after == one.before else {**puts, key: one.after}
        is_doubtful, commit = False, await self._made(one, rows, queues)
        while True:
            is_known = False
            try:
                if await self._engine.commit(commit):
                    return
                is_known = True
            except UnknownOutcome as error:
                if one.before is None:
                    if not error.final:
                        await self._fence(dict(commit.conditions)[self._key])
                    is_known = True
                is_doubtful = not is_known  # the same one is asked for until it did, or can't any more (E4)
            except EngineError as error:
                if not is_doubtful and (isinstance(error, Full | TooLarge) or self._is_late(one.until_s)):
                    raise
            if is_known:
                there, mine, *values = await self._read([key, self._key, *map(owner_key, queues)])
                if there == one.after != one.before:
                    return
                if there != one.before:
                    raise Unavailable("another node has given the transaction up")
                if mine is not None and mine.startswith(self._life.encode() + b"."):
                    self._row_now = mine  # also of a change whose caller was gone before its answer
                compared = dict(commit.conditions)
                changed = {queue: value for queue, value in zip(queues, values, strict=True) if value != compared[owner_key(queue)]}
                if changed or not is_doubtful:
                    self._note_owners(changed, queues)
                    # No try of before can happen any more: epochs rise.
                    is_doubtful, before, commit = False, commit, await self._made(one, rows, queues)
                    if commit.conditions != before.conditions:
                        continue
                    if self._is_late(one.until_s):
                        raise Unavailable("the engine, or the owner of a queue of the transaction, does not answer")
            await self._pause()

    async def _made(self, one: _Try, rows: Mapping[bytes, bytes], queues: Mapping[bytes, Changes]) -> Commit:
        conditions: list[tuple[bytes, bytes | None]] = [(transaction_key(one.transaction), one.before)]
        if one.before is None:
            if self._row_now is None:
                await self._fence(None)
            conditions.append((self._key, self._row_now))
        conditions += [(owner_key(queue), await self._owner(queue, changes, one.until_s)) for queue, changes in queues.items()]
        return Commit(conditions, rows)

    async def _fence(self, compared: bytes | None) -> None:
        """No commit that compared this row of the node can happen any more. Raises: Unavailable: another process has the node's name."""
        async with self._fencing:
            while self._row_now == compared:
                (there,) = await self._read([self._key])
                if compared is not None and there is not None and not there.startswith(self._life.encode() + b"."):
                    raise Unavailable("another process has the name of this node")
                self._fences += 1
                row = f"{self._life}.{self._fences}".encode()
                try:
                    if await self._engine.commit(Commit([(self._key, there)], {self._key: row})):
                        self._row_now = row
                        return
                except EngineError:
                    await self._pause()

    def _note_owners(self, changed: Mapping[bytes, bytes | None], queues: Mapping[bytes, Changes]) -> None:
        """The owners that these queues have now. Raises: Moved."""
        for queue, value in changed.items():
            log = queues[queue].log
            owner = None if value is None else Owner.unpack(value)
            # Its own epoch a node raises now and then, and its deliveries stay what they are.
            if log is not None and (owner is None or (owner.node, owner.life) != (log.owner.node, log.owner.life)):
                raise Moved
            self._owners.pop(queue, None)
            if value is not None:
                self._owners[queue] = value

    async def _owner(self, queue: bytes, changes: Changes, until_s: float) -> bytes:
        """The owner row to be compared. Raises: QueueGone, Moved, Unavailable: it has none for long."""
        if changes.log is not None:
            if changes.log.is_lost:
                raise Moved
            return changes.log.owner.pack()
        here = self._owner_of(queue)
        if here is not None:
            return here.pack()
        value = self._owners.get(queue)
        while value is None:
            (value,) = await self._read([owner_key(queue)])
            if value is None:
                if self._is_deleted(queue):
                    raise QueueGone(queue)
                if self._is_late(until_s):
                    raise Unavailable("a queue of the transaction has no owner")
                await self._pause()
        if len(self._owners) >= self._limits.shared_queues_max:
            self._owners.clear()  # they are read again
        self._owners[queue] = value
        return value

    def _is_late(self, until_s: float) -> bool:
        return asyncio.get_running_loop().time() >= until_s

    async def _pause(self) -> None:
        await asyncio.sleep(self._limits.shared_pause_ms / 1000)

    async def _read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        while True:
            try:
                return await self._engine.get(keys)
            except Unavailable:
                await self._pause()


@dataclass(frozen=True, slots=True)
class _Try:
    """A commit of a transaction: its row before and after; until_s: of the loop's clock, when an engine that is away is given up."""

    transaction: bytes
    before: bytes | None
    after: bytes
    until_s: float
