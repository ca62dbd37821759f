"""A queue of values that programs share, in an engine's rows, with FoundationDB's two ways to dequeue.

in: values. out: each of them to one taker, in the order of their indices.

Q1  A value stands at (index, random part); its index is one above that of the tail, which is read without a condition. So enqueues never
    conflict; those at the same time may get one index, and their order is that of their random parts.
Q2  `dequeue` takes the head by a commit that compares it. Takers of one queue conflict: one succeeds in each round.
Q3  `dequeue_staged` leaves a request in the store: one for all waiters of a client. One client at a time, the fulfiller, whose name stands
    in the baton row, pairs requests with values, and puts results, many in one commit that compares the baton and raises its number.
    Waiters watch the baton alone. The fulfiller stops after some rounds and frees the baton; whoever has no result then takes it.
Q4  A baton that did not change for `_DEAD_S` is taken from its owner: its commits compare the old one, and can't happen any more.
Q5  A result is at most once: it goes with the client's next request. A client that dies before its caller has the value loses that value
    (it stays in the result row); one that dies while its request waits loses what is paired with it. `dequeue` loses nothing before its
    commit. A waiter that is cancelled leaves its value to the next of its client, or to the queue's tail at `close`.
Q6  "Empty" is true of a moment between call and return.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Sequence

from flintmq.engines.engine import Commit, Engine, EngineError, Full, Row, TooLarge, Unavailable, UnknownOutcome
from flintmq.recipes.session import Session

PLACE = b"queue/"
# requests of one commit of the fulfiller, and its rounds until it looks after its own callers
_REQUESTS = 100
_ROUNDS = 16
# seconds without a change of the baton after which its owner counts as dead; a fulfiller that lives is slower only on a failing engine
_DEAD_S = 2.0
# bytes of a commit that are no values: conditions, keys, session
_ROOM = 20_000
# seconds between two tries to reach an engine, and tries: half a minute
_PAUSE_S = 0.1
_TRIES = 300
_NOBODY = bytes(12)


def _packed(values: Sequence[bytes]) -> bytes:
    return b"".join(len(value).to_bytes(4, "big") + value for value in values)


def _unpacked(data: bytes) -> list[bytes]:
    values = []
    while data:
        size = int.from_bytes(data[:4], "big")
        values.append(data[4 : 4 + size])
        data = data[4 + size :]
    return values


class SharedQueue:
    """One client of a queue. One event loop; any number of calls at a time.

    Args: engine: of the caller, who closes it; name: of the queue; place: what its keys begin with.
    Every call raises Unavailable and Full (nothing happened), and UnknownOutcome only where the engine stays away for half a minute.
    """

    def __init__(self, engine: Engine, name: str, place: bytes = PLACE) -> None:
        encoded = name.encode()
        self._engine = engine
        self._base = place + len(encoded).to_bytes(2, "big") + encoded
        self._items = self._base + b"i"
        self._requests = self._base + b"p"
        self._results = self._base + b"r"
        self._baton = self._base + b"b"
        self._session = Session(engine, self._base)
        self._waiters: deque[asyncio.Future[bytes | None]] = deque()
        self._spare: deque[bytes] = deque()  # values of waiters that were cancelled
        self._result: bytes | None = None  # key of a result that was handed out, and still stands
        self._made = 0
        self._pump: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    # --- Q1, Q2 -------------------------------------------------------------------------------------------------------
    async def enqueue(self, value: bytes) -> None:
        """Puts a value at the tail. Raises: TooLarge."""
        await self.enqueue_many([value])

    async def enqueue_many(self, values: Sequence[bytes]) -> None:
        """Puts values at the tail together, in their order. Raises: TooLarge: above the limits of a value or a commit of the engine."""
        if any(len(value) + 4 > self._value_bytes for value in values):
            raise TooLarge(f"a value above {self._value_bytes - 4} bytes")
        tail = await self._engine.scan(self._items, self._items + b"\xff" * 9, 1, 1, reverse=True)
        index = int.from_bytes(tail[0][0][len(self._items) :][:8], "big") if tail else 0
        puts = {self._items + (index + 1 + place).to_bytes(8, "big") + secrets.token_bytes(12): value for place, value in enumerate(values)}
        if puts:
            await self._session.commit(puts=puts)

    @property
    def _value_bytes(self) -> int:
        """Of a value, so that a commit can compare it and put it in a result."""
        limits = self._engine.limits
        return min(limits.value_bytes, (limits.commit_bytes - _ROOM) // 2)

    async def dequeue(self) -> bytes | None:
        """Takes the head. None: the queue is empty. Cost: a read and a commit, again for each taker that was faster."""
        values = await self.dequeue_many(1)
        return values[0] if values else None

    async def dequeue_many(self, count: int) -> list[bytes]:
        """Takes up to `count` values from the head in one commit; fewer: the engine's limits, or there are no more."""
        while True:
            rows = await self._head(count, self._engine.limits.commit_rows // 3)
            if not rows or await self._session.commit(rows, deletes=[key for key, _ in rows]):
                return [value for _, value in rows]

    async def _head(self, count: int, rows_max: int) -> list[Row]:
        room = (self._engine.limits.commit_bytes - _ROOM) // 2
        rows = await self._engine.scan(self._items, self._items + b"\xff" * 9, max(1, min(count, rows_max)), room)
        size = 0
        kept: list[Row] = []
        for key, value in rows:
            size += 2 * len(key) + len(value)
            if size > room and kept:
                break
            kept.append((key, value))
        return kept

    # --- Q3: waiters --------------------------------------------------------------------------------------------------
    async def dequeue_staged(self) -> bytes | None:
        """Takes a value by a request; None: the queue is empty. For many takers at a time. Cost: a commit, and its part of another."""
        if self._spare:
            return self._spare.popleft()
        waiter: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._serve())
        return await waiter

    async def _serve(self) -> None:
        """Requests for the waiters, one after the other, until there are none."""
        while self._waiters:
            asked = list(self._waiters)
            try:
                values = await self._request(len(asked))
            except EngineError as error:
                for _ in asked:
                    waiter = self._waiters.popleft()
                    if not waiter.done():
                        waiter.set_exception(type(error)(str(error)))
                continue
            self._spare.extend(values)
            while self._spare and self._waiters:
                waiter = self._waiters.popleft()
                if not waiter.done():
                    waiter.set_result(self._spare.popleft())
            for _ in asked if not values else ():  # those that came meanwhile ask again
                waiter = self._waiters.popleft()
                if not waiter.done():
                    waiter.set_result(None)

    async def _request(self, count: int) -> list[bytes]:
        if self._watch is None:
            self._watch = asyncio.create_task(self._follow())
        self._made += 1
        name = self._session.id + self._made.to_bytes(8, "big")
        request = self._requests + name, b"%d" % count
        await self._session.commit(puts=dict([request]), deletes=[self._result] if self._result else [])
        self._result = self._results + name
        while True:
            try:
                return await self._wait(self._result)
            except Full:  # results find no room; `dequeue` only deletes
                if await self._session.commit([request], deletes=[request[0]]):
                    raise

    async def _wait(self, key: bytes) -> list[bytes]:
        """The values of a result. An engine that is away is waited for: the request stands."""
        before: bytes | None = None
        is_dead = False
        failures = 0
        while failures < _TRIES:
            self._changed.clear()
            try:
                result, baton = await self._engine.get([key, self._baton])
                if result is not None:
                    return _unpacked(result)
                if baton is None or baton[:12] in (_NOBODY, self._session.id) or (is_dead and baton == before):
                    await self._fulfil(baton)
                    continue
            except (Unavailable, UnknownOutcome):
                failures += 1
                await asyncio.sleep(_PAUSE_S)
                continue
            before, is_dead, failures = baton, False, 0
            try:
                async with asyncio.timeout(_DEAD_S):
                    await self._changed.wait()
            except TimeoutError:
                is_dead = True
        raise UnknownOutcome(f"{self._engine.name}: the engine does not answer, and a request stands")

    async def _follow(self) -> None:
        async for _ in self._engine.watch(self._baton, self._baton + b"\0"):
            self._changed.set()

    # --- Q3: the fulfiller --------------------------------------------------------------------------------------------
    def _next(self, baton: bytes | None, owner: bytes) -> bytes:
        return owner + (int.from_bytes((baton or b"")[12:], "big") + 1).to_bytes(8, "big")

    async def _fulfil(self, baton: bytes | None) -> None:
        """Takes the baton, serves some rounds, and frees it. Returns at once when another client took it."""
        mine = self._next(baton, self._session.id)
        if not await self._engine.commit(Commit([(self._baton, baton)], {self._baton: mine})):
            return
        for number in range(_ROUNDS):
            requests = await self._engine.scan(self._requests, self._requests + b"\xff" * 9, self._requests_max, 1 << 20)
            commit = await self._pair(requests)
            is_last = number == _ROUNDS - 1 or len(requests) == 0
            after = self._next(mine, _NOBODY if is_last else self._session.id)
            puts = {**commit.puts, self._baton: after}
            if await self._engine.commit(Commit([(self._baton, mine), *commit.conditions], puts, commit.deletes)):
                if is_last:
                    return
                mine = after
            else:  # a value was taken by `dequeue`, or the baton by another client
                (now,) = await self._engine.get([self._baton])
                if now != mine:
                    return

    @property
    def _requests_max(self) -> int:
        return max(1, min(_REQUESTS, self._engine.limits.commit_rows // 7))

    async def _pair(self, requests: list[Row]) -> Commit:
        """Results of these requests, in their order, from the queue's head; a request gets fewer, but not none while there is a value."""
        rows = deque(await self._head(sum(int(count) for _, count in requests), self._engine.limits.commit_rows // 4) if requests else [])
        is_short = bool(rows)
        conditions: list[tuple[bytes, bytes | None]] = []
        puts: dict[bytes, bytes] = {}
        deletes: list[bytes] = []
        for key, count in requests:
            values: list[bytes] = []
            size = 0
            while rows and len(values) < int(count) and size + len(rows[0][1]) + 4 <= self._value_bytes:
                item, value = rows.popleft()
                conditions.append((item, value))
                deletes.append(item)
                values.append(value)
                size += len(value) + 4
            if not values and is_short:
                break  # whether there are more values is for the next round to see
            conditions.append((key, count))
            deletes.append(key)
            puts[self._results + key[len(self._requests) :]] = _packed(values)
        return Commit(conditions, puts, deletes)

    # --- end ----------------------------------------------------------------------------------------------------------
    async def close(self) -> None:
        """Ends the client: waiters are cancelled. Values that were taken for them are put back at the tail. Raises: as the other calls."""
        if self._pump is not None and not self._pump.done():
            for waiter in self._waiters:
                waiter.cancel()
            await self._pump  # a request that stands would take a value after the end
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        spare = list(self._spare)
        while spare:
            await self.enqueue(spare.pop(0))
        self._spare.clear()
        if self._result is not None:
            await self._session.commit(deletes=[self._result])
            self._result = None
        await self._session.close()
