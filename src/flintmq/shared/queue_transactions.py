"""What transactions do in one shared queue, by its owner: messages that are put there, and messages that end (docs/adr/0015, R10).

in: rows of transactions; word of their coordinators. out: entries of the queue, exactly once; rows that are deleted when nothing is to be
done any more.

X1  Messages of a decided transaction are put into the queue by its owner alone. A row in the commit of their batch says so, and counts as
    the batch does: so whoever takes over knows which of them it has to put there.
X2  Whoever takes over does what decided transactions have left to do before anybody gets a message of the queue.
X3  Rows of a transaction go after its messages are settled, and after its ends are in the engine.
X4  No limit of the queue refuses a message of a decided transaction.

All of it is of one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from flintmq.config import Limits
from flintmq.engines.engine import Engine, Unavailable
from flintmq.guard import caught
from flintmq.shared.queue_log import Lost
from flintmq.shared.serving import Served
from flintmq.shared.transaction_rows import (
    Message,
    TransactionRow,
    applied_of,
    is_set,
    part_of,
    pending,
    pending_of,
    transaction_key,
    transaction_of,
    unpack_part,
)  # fmt: skip

log = logging.getLogger("flintmq.shared")

# rows that are read at once
_ROWS_AT_ONCE = 64


@dataclass(slots=True)
class _Open:
    """A decided transaction that has rows in this queue. parts: that were put there; begun: so many messages of a part that is not whole
    there; ends_over: its ends were told to the core; work: puts its messages there, and is over when the engine has them."""

    is_alone: bool
    ends_over: asyncio.Event = field(default_factory=asyncio.Event)
    has_ends: bool = False
    parts: set[int] = field(default_factory=set)
    begun: dict[int, int] = field(default_factory=dict)
    settled: list[asyncio.Future[None]] = field(default_factory=list)
    work: asyncio.Task[None] | None = None


class QueueTransactions:
    """Args: served: the queue."""

    def __init__(self, engine: Engine, served: Served, limits: Limits) -> None:
        self.served = served
        self._engine = engine
        self._limits = limits
        self._queue = served.queue
        self._open: dict[bytes, _Open] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def restore(self) -> None:
        """After `taking_over.restore`, before anybody consumes (X2). Raises: EngineError: to be begun anew, also with this object; Lost;
        ValueError: a row is damaged. O(messages of transactions that are not over)."""
        rows: dict[bytes, TransactionRow | None] = {}
        async for transaction, part, data in self._parts(*pending(self._queue)):
            if transaction not in rows:
                rows[transaction] = await self._row(transaction)
            row = rows[transaction]
            if row is not None and row.is_decided:
                one = self._opened(transaction, row)
                await self.served.log.may_apply()
                self._put(transaction, one, part, data, restored=True)
            await asyncio.sleep(0)
        for transaction, row in rows.items():
            if row is None:
                # Given up: its row went first, so no part of it comes after these.
                self._keep(self._forgotten(transaction, []))
            elif row.is_decided:
                one = self._open[transaction]
                one.ends_over.set()
                one.work = asyncio.get_running_loop().create_task(self._settle(transaction, one))
                one.work.add_done_callback(_heard)

    async def apply(self, transaction: bytes, known: tuple[TransactionRow, Sequence[bytes]] | None = None, ends_here: bool = False) -> None:
        """A transaction is decided: returns when the engine has its messages in the queue. Again, it does nothing.

        Args: known: its row and its parts, for whoever has them at hand; ends_here: deliveries of this node's own clients end with it, and
        `ended` tells so. Raises: Lost; EngineError: to be asked again; ValueError: a row is damaged.
        """
        one = self._open.get(transaction)
        if one is None:
            row = known[0] if known is not None else await self._unfinished(transaction)
            if row is None:
                return
            one = self._opened(transaction, row)
            if not ends_here:
                one.ends_over.set()
        if one.work is None:
            one.work = asyncio.get_running_loop().create_task(self._apply(transaction, one, () if known is None else known[1]))
            one.work.add_done_callback(_heard)
        work = one.work
        try:
            await asyncio.shield(work)
        except BaseException:
            if work.done() and one.work is work:
                one.work = None  # the next call goes on with the parts that are missing
            raise

    def ended(self, transaction: bytes) -> None:
        """The deliveries that end with it have ended."""
        one = self._open.get(transaction)
        if one is not None:
            one.ends_over.set()

    def is_over(self, transaction: bytes) -> bool:
        """Of a transaction that was applied: its rows are gone from this queue."""
        return transaction not in self._open

    def close(self) -> None:
        """The queue is served here no more."""
        for task in list(self._tasks):
            task.cancel()

    # --- rows -----------------------------------------------------------------------------------------------------------

    async def _row(self, transaction: bytes) -> TransactionRow | None:
        (value,) = await self._engine.get([transaction_key(transaction)])
        return None if value is None else TransactionRow.unpack(value)

    async def _unfinished(self, transaction: bytes) -> TransactionRow | None:
        """The row of a decided transaction that has something to do here; None: it is over, or was given up."""
        row = await self._row(transaction)
        if row is None or not row.is_decided:
            return None
        return row if await self._engine.scan(*pending_of(self._queue, transaction), 1, 1) else None

    async def _parts(self, begin: bytes, end: bytes) -> AsyncIterator[tuple[bytes, int, bytes]]:
        """(transaction, part, bytes) of the rows of a range. One part is in memory at a time, and a page of rows."""
        number: tuple[bytes, int] | None = None
        data: list[bytes] = []
        while rows := await self._engine.scan(begin, end, _ROWS_AT_ONCE, self._limits.shared_scan_bytes):
            for key, value in rows:
                one = (transaction_of(key), part_of(key))
                if number is not None and one != number:
                    yield *number, b"".join(data)
                    data = []
                number = one
                data.append(value)
            begin = rows[-1][0] + b"\0"
        if number is not None:
            yield *number, b"".join(data)

    # --- effects --------------------------------------------------------------------------------------------------------

    def _opened(self, transaction: bytes, row: TransactionRow) -> _Open:
        return self._open.setdefault(transaction, _Open(row.queues == [self._queue.decode()]))

    async def _apply(self, transaction: bytes, one: _Open, parts: Sequence[bytes]) -> None:
        if parts:
            for part, data in enumerate(parts):
                await self.served.log.may_apply()
                self._put(transaction, one, part, data)
                await asyncio.sleep(0)
        else:
            async for _, part, data in self._parts(*pending_of(self._queue, transaction)):
                await self.served.log.may_apply()
                self._put(transaction, one, part, data)
        self.served.log.look()
        await self._settle(transaction, one)

    async def _settle(self, transaction: bytes, one: _Open) -> None:
        """All its parts are in the queue: returns when they are in the engine."""
        for settled in one.settled:
            await settled
        self._keep(self._finish(transaction, one))

    def _put(self, transaction: bytes, one: _Open, part: int, data: bytes, restored: bool = False) -> None:
        """A part's messages are in the queue afterwards, once; at a take-over its ends, too. At once, for `QueueLog.apply`. O(part)."""
        if part in one.parts:
            return
        core, taken = self.served.core, self.served.taken
        messages, ends = unpack_part(data)
        here = taken.applied.get((transaction, part), ())
        positions = [0] * len(messages)
        is_whole = True
        for index in range(one.begun.get(part, 0), len(messages)):
            if any(is_set(value, index) for value in here):
                continue
            position = positions[index] = self._publish(messages[index])
            if not position and not core.is_deleted():
                one.begun[part] = index
                is_whole = False
                break
            if restored and taken.seen and core.hold(position):
                core.release_held(position, delivered=True)  # somebody may have had it, of an owner that died before its batch was there
        one.settled.append(self.served.log.apply(transaction, part, positions).settled)
        one.has_ends = one.has_ends or bool(ends)
        for position in ends if restored else ():
            if core.hold(position):
                core.settle_held(position, logged=False)
        if not is_whole:
            raise Unavailable("the queue takes no messages just now")
        one.parts.add(part)

    def _publish(self, one: Message) -> int:
        content = (one.exchange, one.routing_key, one.header, one.body)
        return self.served.core.publish(*content, one.flags, one.priority, one.expires_at_ms)

    async def _finish(self, transaction: bytes, one: _Open) -> None:
        """X3."""
        await one.ends_over.wait()
        if one.has_ends:
            await self.served.log.ends_written()
        # What names it goes with its last rows; of several queues, its coordinator sees that.
        await self._forgotten(transaction, [transaction_key(transaction)] if one.is_alone else [])
        self._open.pop(transaction, None)

    async def _forgotten(self, transaction: bytes, deletes: list[bytes]) -> None:
        await self.served.log.forget(deletes, [pending_of(self._queue, transaction), applied_of(self._queue, transaction)])

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Lost:
            return  # whoever serves the queue goes on
        except Exception as error:
            caught("shared queues", "a transaction", error)


def _heard(work: asyncio.Task[None]) -> None:
    """Perhaps nobody waits for it any more, or not yet."""
    if not work.cancelled():
        work.exception()
