"""A shared queue's log: what its owner writes to the engine (docs/adr/0015, R1 to R8).

in: news of the queue's mirror; answers of the engine. out: batches, up to `shared_flights` under way; ends, in one line; confirms that may
leave (`on_settled`); the end of the ownership (`on_lost`).

L1  A commit compares the owner row. One that fails there ends the ownership, and nothing is written afterwards.
L2  A batch is settled when it and all before are in, so confirms leave in order.
L3  Ends, thinned and deleted rows travel with one commit at a time, which writes the mark, and are of settled batches.
L4  After an unknown outcome nothing is sent before the epoch is raised, by this node itself; what is missing then is sent again. An outcome
    that is final (UnknownOutcome) needs no new epoch, which a full engine would not take.
L5  What a transaction publishes is in batches with rows that say so, in the same commits (transaction_rows.py): these rows count as their
    batches do. Its rows go with a mark that covers these batches.
L6  A full engine gets no batch. Segments that have ended are deleted as far as the mark, which can't be written, covers their batches.

All of it is of one event loop. Nobody waits for anything but the engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from flintmq.config import Limits
from flintmq.engines.engine import Commit, Engine, EngineError, Full, Range, Unavailable, UnknownOutcome
from flintmq.mirror.mirror import Mirror
from flintmq.shared.layout import (
    Mark,
    Owner,
    ends_key,
    head_of,
    mark_key,
    owner_key,
    part_key,
    parts_count,
    parts_of,
    parts_value,
    position_of,
    quiet_key,
    renumbered,
    row_numbers,
    segment_key,
)  # fmt: skip
from flintmq.shared.taking_over import TakenOver
from flintmq.shared.transaction_rows import applied_key, bits, joined

log = logging.getLogger("flintmq.shared")

# bytes of a row of ends with its key, at most
_ENDS_BYTES_MAX = 4_096
# what of the rows of a commit may say which messages of transactions are in its batch: one in four
_APPLIED_SHARE = 4
# rows and ranges, and bytes of their keys, that the end of one transaction deletes, at most
_FORGET_ROWS, _FORGET_BYTES = 4, 512
# a position has its level above these bits (queue/types.pxd)
_INDEX_BITS = 56
_INDEX_MASK = (1 << _INDEX_BITS) - 1


class Lost(Exception):
    """Another node owns the queue, or the queue is deleted."""


@dataclass(slots=True)
class Applying:
    """A part of a transaction whose messages are in the queue. waiting: (position, index in the part) of those in no batch yet, rising in
    each level; flights: batches under way with others; settled: all are in the engine."""

    transaction: bytes
    part: int
    count: int
    waiting: list[tuple[int, int]]
    settled: asyncio.Future[None]
    flights: int = 0

    def take(self, sent: list[int]) -> bytes:
        """The messages, a bit each, that are in batches by now and were in none before; b"": none. O(messages that wait)."""
        gone = [index for position, index in self.waiting if position & _INDEX_MASK <= sent[position >> _INDEX_BITS]]
        if not gone:
            return b""
        self.waiting = [one for one in self.waiting if one[0] & _INDEX_MASK > sent[one[0] >> _INDEX_BITS]]
        self.flights += 1
        return bits(gone, self.count)

    def landed(self) -> None:
        """A batch with messages of it is in the engine."""
        self.flights -= 1
        if not self.flights and not self.waiting and not self.settled.done():
            self.settled.set_result(None)


@dataclass(slots=True)
class Flight:
    """A batch on its way. positions: of its segments, those of which nothing is left, too; rows: the others'; applied: which messages of
    transactions are in it."""

    batch: int
    positions: list[int]
    rows: dict[int, bytes]
    applied: list[tuple[Applying, bytes]] = field(default_factory=list)
    is_in: bool = False

    def applied_rows(self, queue: bytes, epoch: int) -> dict[bytes, bytes]:
        rows: dict[bytes, bytes] = {}
        for one, value in self.applied:
            key = applied_key(queue, one.transaction, one.part, epoch, self.batch)
            rows[key] = joined(rows[key], value) if key in rows else value
        return rows


@dataclass(slots=True)
class Forgetting:
    """Rows of a transaction that is over in this queue. done: they are deleted."""

    deletes: list[bytes]
    clears: list[Range]
    done: asyncio.Future[None]


@dataclass(slots=True)
class Ends:
    """What one commit of the line says: rows of ends, segments to delete, rows to thin. marked: the batch that its mark says is settled;
    taken: segments whose ends it took from the mirror."""

    puts: dict[bytes, bytes] = field(default_factory=dict)
    deletes: list[bytes] = field(default_factory=list)
    clears: list[Range] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    thin: list[int] = field(default_factory=list)
    forgotten: list[Forgetting] = field(default_factory=list)
    marked: int = 0
    taken: int = 0


class QueueLog:
    """Of one queue, by its owner. Args: taken: what `restore` came to; on_settled: called when confirms may leave; on_lost: once, with the
    reason, when the ownership is over."""

    def __init__(
        self,
        engine: Engine,
        queue: bytes,
        mirror: Mirror,
        taken: TakenOver,
        limits: Limits,
        on_settled: Callable[[], None],
        on_lost: Callable[[BaseException], None],
    ) -> None:
        self.owner = taken.owner
        self.is_full = False
        self.is_quiet = True
        self.loads = asyncio.Semaphore(limits.shared_loads_max)  # one for all queues of a node (Serving)
        self._asks = False
        self._engine = engine
        self._queue = queue
        self._mirror = mirror
        self._limits = limits
        self._on_settled = on_settled
        self._on_lost = on_lost
        self._flights: dict[int, Flight] = {}
        self._next = 1
        self._settled = 0
        self._marked = 0
        self._batches: dict[int, int] = {}  # position -> batch, of segments that no mark covers
        self._parts = dict(taken.parts)
        self._flagged = taken.flagged
        self._applying: list[Applying] = []
        self._forgetting: list[Forgetting] = []
        self._line: Ends | None = None  # those under way
        # segments whose ends were taken from the mirror, the oldest first, and those that the engine has; changes of that order
        self._ends_taken = 0
        self._ends_told = 0
        self._disorder = 0
        self._doubt = False
        self._late_ones = False  # commits of unknown outcome may still happen
        self._lost: BaseException | None = None
        self._tasks: set[asyncio.Task[bool]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()

    # --- what others ask ------------------------------------------------------------------------------------------------

    @property
    def is_lost(self) -> bool:
        """Whether the ownership is over."""
        return self._lost is not None

    def look(self) -> None:
        """There is news: starts what can be started."""
        if self._lost is not None or self._doubt:
            return
        while self._may_fly() and self._take_off():
            pass
        if (self._mirror.ended_rows or self._forgetting) and self._line is None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._limits.shared_ends_ms / 1000, self._ends_due)
        for position in self._mirror.take_wanted():
            self._start(self._load(position))

    async def open(self) -> None:
        """Before a consumer or a get comes to a queue that had none: whoever takes over flags what it gets (R6). A full engine takes it.

        Raises: Lost; Unavailable: not within `shared_waiting_ms_max`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._limits.shared_waiting_ms_max / 1000
        while self.is_quiet:
            if loop.time() >= until:
                # It may still arrive: the queue then flags more than it has to.
                raise Unavailable("the engine of shared queues does not answer")
            self._check()
            if self._doubt:  # whoever finds out waits for all tasks to end
                await asyncio.sleep(self._limits.shared_pause_ms / 1000)
            else:
                await asyncio.wait([self._start(self._open())], timeout=until - loop.time())
        self._check()

    async def drain(self) -> None:
        """Everything that came and ended is in the engine. Raises: Lost."""
        while self._flights or self._mirror.unsent or self._mirror.ended_rows or self._line is not None or self._doubt:
            self._check()
            if self._timer is not None:
                self._ends_due()
            self.look()
            await self._changed.wait()

    async def ends_written(self) -> None:
        """Every end until now is in the engine. A full engine keeps it waiting. Raises: Lost."""
        while True:
            disorder, until = self._disorder, self._ends_taken + self._mirror.ended_rows
            while self._ends_told < until and disorder == self._disorder:
                self._check()
                if self._timer is not None:
                    self._ends_due()
                self.look()
                await self._changed.wait()
            if disorder == self._disorder:
                return

    async def may_apply(self) -> None:
        """Before `apply`, with nothing in between: until a batch has a row for one more part of a transaction. Raises: Lost."""
        most = max(1, self._engine.limits.commit_rows // _APPLIED_SHARE)
        while True:
            self._check()
            self.look()
            if len(self._applying) < most:
                return
            await self._changed.wait()

    def apply(self, transaction: bytes, part: int, positions: list[int]) -> Applying:
        """Messages of a transaction were put into the queue just now, at these positions (0: it did not take this one), and nothing ran in
        between. `settled` of the result is told, or has Lost, when the engine has them. The caller has waited for `may_apply`."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sent = self._mirror.sent_to()
        # One that was sent before is a message of which the queue took no second copy.
        waiting = [(position, index) for index, position in enumerate(positions) if position & _INDEX_MASK > sent[position >> _INDEX_BITS]]
        applying = Applying(transaction, part, len(positions), waiting, settled)
        if self._lost is not None:
            settled.set_exception(Lost(str(self._lost)))
            settled.exception()  # perhaps nobody waits
        elif not waiting:
            settled.set_result(None)
        else:
            self._applying.append(applying)
        return applying

    def forget(self, deletes: list[bytes], clears: list[Range]) -> asyncio.Future[None]:
        """Deletes rows of a transaction whose messages are settled, with the next mark. The result is told, or has Lost."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._lost is not None:
            done.set_exception(Lost(str(self._lost)))
            done.exception()
        else:
            self._forgetting.append(Forgetting(deletes, clears, done))
            self.look()
        return done

    async def row_of(self, position: int) -> bytes | None:
        """The row of the segment that has the message at this position, with all its parts. Raises: Lost; EngineError."""
        level = position >> _INDEX_BITS << _INDEX_BITS
        rows = await self._engine.scan(segment_key(self._queue, level), segment_key(self._queue, position) + b"\0", 1, 1, reverse=True)
        return await self._read_row(position_of(rows[0][0])) if rows else None

    async def hand_over(self, node: str, life: str, quiet: bool = True) -> Owner:
        """After `drain`, with nobody publishing or consuming: that node owns the queue. quiet: False: somebody holds messages, or may
        still be given some, and the new owner flags all.

        Raises: Lost; EngineError: the ownership is over, and another node may have it."""
        after = self.owner.next(node, life)
        mark, before = self._mark(), self.owner
        self._lose(Lost(f"the queue was handed over to {node}"))
        rows = {owner_key(self._queue): after.pack(), mark_key(self._queue): mark.pack()}
        if quiet:
            rows[quiet_key(self._queue)] = b""
        deletes = [] if quiet else [quiet_key(self._queue)]
        if not await self._engine.commit(Commit([(owner_key(self._queue), before.pack())], rows, deletes)):
            raise Lost("another node has taken the queue")
        return after

    def close(self) -> None:
        """Nothing is written any more."""
        self._lose(Lost("the node has given the queue up"))

    # --- batches ----------------------------------------------------------------------------------------------------------

    def _may_fly(self) -> bool:
        """Whether a batch is to leave now: at once when none is under way, else what makes a full one."""
        flying = len(self._flights)
        if not self._mirror.unsent or flying >= self._limits.shared_flights:
            return False
        if self.is_full:
            # One batch asks whether there is room again; it goes on asking by itself.
            asks, self._asks = self._asks and not flying, False
            return asks
        return not flying or self._mirror.unsent >= self._limits.shared_flight_messages

    def _take_off(self) -> bool:
        limits, rows_max = self._limits, self._engine.limits.commit_rows // 2
        try:
            segments = self._mirror.take(
                self.owner.epoch, self._next, limits.shared_segment_messages, limits.shared_segment_bytes, rows_max
            )
        except MemoryError as error:
            self._lose(error)  # the mirror has counted messages as sent that are not: whoever takes over knows nothing of them
            return False
        if not segments:
            return False
        rows = {position: row for position, row in segments if row}
        positions = [position for position, _ in segments]
        covered = self._take_applied()
        if not rows and not covered:
            self._settle_ended(positions)
            return True
        flight = Flight(self._next, positions, rows, covered)
        self._flights[flight.batch] = flight
        self._next += 1
        self._start(self._fly(flight))
        return True

    def _take_applied(self) -> list[tuple[Applying, bytes]]:
        """The messages of transactions that are in the batch that was taken just now."""
        if not self._applying:
            return []
        sent = self._mirror.sent_to()
        taken = [(one, value) for one in self._applying if (value := one.take(sent))]
        self._applying = [one for one in self._applying if one.waiting]
        return taken

    def _settle_ended(self, positions: list[int]) -> None:
        """Segments that need no row (R8). They are no batch: a number without rows would be a gap for whoever takes over, and the batches
        behind it would not count."""
        if self._flights:
            next(reversed(self._flights.values())).positions += positions
        else:
            self._mirror.settle(positions)
            self._on_settled()

    async def _fly(self, flight: Flight) -> None:
        """Sends a batch until the engine has it. One that needs several commits has its parts first: they count with its segment."""
        puts: dict[bytes, bytes] = {}
        most = self._engine.limits.value_bytes
        for position, row in flight.rows.items():
            puts[segment_key(self._queue, position)] = row if len(row) <= most else await self._put_parts(position, row)
            self._batches[position] = flight.batch
        puts.update(flight.applied_rows(self._queue, self.owner.epoch))
        ends = self._take_ends(len(puts), sum(map(len, puts.values()))) if self._carries() else None
        while True:
            try:
                await self._commit(puts, ends)
                break
            except Full:
                if ends is not None:
                    self._give_back(ends)
                    ends = None
                await asyncio.sleep(self._limits.shared_full_ms / 1000)
        flight.is_in = True
        self._land()

    async def _put_parts(self, position: int, row: bytes) -> bytes:
        size = self._engine.limits.value_bytes
        count = (len(row) + size - 1) // size
        for number in range(count):
            part = {part_key(self._queue, position, number): row[number * size : (number + 1) * size]}
            while True:
                try:
                    await self._commit(part, None)
                    break
                except Full:
                    await asyncio.sleep(self._limits.shared_full_ms / 1000)
        self._parts[position] = count
        return parts_value(row, count)

    def _land(self) -> None:
        """Settles the batches up to the first that is not in."""
        landed = False
        while (flight := self._flights.get(self._settled + 1)) is not None and flight.is_in:
            del self._flights[flight.batch]
            self._settled = flight.batch
            self._mirror.settle(flight.positions)
            for applying, _ in flight.applied:
                applying.landed()
            landed = True
        if landed:
            self._on_settled()

    # --- ends -------------------------------------------------------------------------------------------------------------

    def _carries(self) -> bool:
        """Whether the commit of a batch takes ends with it, or a mark that is due."""
        if self._line is not None:
            return False
        due = self._mirror.ended_rows > 0 or bool(self._forgetting)
        return due or self._settled - self._marked >= self._limits.shared_mark_batches

    def _take_ends(self, rows: int, size: int) -> Ends:
        """The next ends for a commit that has `rows` rows and `size` bytes already. The line is busy until it is told of their outcome."""
        self._line = ends = Ends(marked=self._settled)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        limits = self._engine.limits
        rows += self._take_forgetting(ends, (limits.commit_rows - rows - 3) // 2, (limits.commit_bytes - size) // 2)
        most = max(0, min((limits.commit_rows - rows - 3) // 3, (limits.commit_bytes - size) // 2 // _ENDS_BYTES_MAX))
        for position, gone, value, thin in self._mirror.take_ends(most):
            ends.taken += 1
            if gone:
                ends.puts.pop(ends_key(self._queue, position), None)  # its last messages ended while the mirror told of the others
                self._delete(ends, position)
                continue
            self._mirror.note_ends(position)
            ends.written.append(position)
            ends.puts[ends_key(self._queue, position)] = value
            if thin and position not in self._parts:
                ends.thin.append(position)
        self._ends_taken += ends.taken
        ends.puts[mark_key(self._queue)] = self._mark().pack()
        return ends

    def _take_forgetting(self, ends: Ends, rows: int, size: int) -> int:
        """Rows of transactions that go with a commit that has room for so many rows and bytes. Returns how many."""
        most = min(rows // _FORGET_ROWS, size // _FORGET_BYTES)
        ends.forgotten, self._forgetting = self._forgetting[:most], self._forgetting[most:]
        for one in ends.forgotten:
            ends.deletes += one.deletes
            ends.clears += one.clears
        return sum(len(one.deletes) + len(one.clears) for one in ends.forgotten)

    def _delete(self, ends: Ends, position: int) -> None:
        ends.gone.append(position)
        ends.deletes.append(segment_key(self._queue, position))
        if self._mirror.has_ends(position):
            ends.deletes.append(ends_key(self._queue, position))
        if position in self._parts:
            ends.clears.append(parts_of(self._queue, position))

    def _mark(self) -> Mark:
        return Mark(self.owner.epoch, self._settled, self._mirror.sent_to(), self._flagged)

    def _told(self, ends: Ends) -> None:
        """The engine has them."""
        self._line = None
        self._ends_told += ends.taken
        for one in ends.forgotten:
            if not one.done.done():
                one.done.set_result(None)
        for position in ends.gone:
            self._mirror.drop(position)
            self._parts.pop(position, None)
            self._batches.pop(position, None)
        if ends.marked > self._marked:
            self._marked = ends.marked
            self._batches = {position: batch for position, batch in self._batches.items() if batch > self._marked}
        if ends.thin:
            self._start(self._thin(ends.thin))

    def _give_back(self, ends: Ends) -> None:
        """The engine may not have them: they come with another commit."""
        self._line = None
        self._ends_taken -= ends.taken
        self._forgetting = ends.forgotten + self._forgetting
        self._disorder += 1
        self._soil([*ends.gone, *ends.written])

    def _soil(self, positions: list[int]) -> None:
        """Their ends come with another commit, if they were not deleted meanwhile."""
        for position in filter(self._mirror.has_row, positions):
            self._mirror.soil(position)

    def _ends_due(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lost is None and not self._doubt and self._line is None and (self._mirror.ended_rows or self._forgetting):
            self._start(self._write_ends())

    async def _write_ends(self) -> None:
        if self._line is not None:
            return  # the commit of a batch was faster
        ends = self._take_ends(0, 0)
        try:
            await self._commit({}, ends)
        except Full:
            self._give_back(ends)
            await self._make_room()
            await asyncio.sleep(self._limits.shared_full_ms / 1000)

    async def _make_room(self) -> None:
        """L6: the engine is full."""
        self._line = ends = Ends()
        for position, gone, _, _ in self._mirror.take_ends((self._engine.limits.commit_rows - 1) // 3):
            if gone and self._batches.get(position, 0) <= self._marked:
                self._delete(ends, position)
            else:
                ends.written.append(position)
        written, ends.written = ends.written, []
        self._soil(written)
        ends.taken = len(ends.gone)
        self._ends_taken += ends.taken
        self._disorder += 1
        if ends.gone:
            await self._commit({}, ends)
        else:
            self._line = None

    async def _line_free(self) -> None:
        """Waits for the commit of ends that is under way. Raises: Lost; UnknownOutcome: another commit has no answer, and whoever finds out
        waits for all tasks to end."""
        while True:
            self._check()
            if self._doubt:
                raise UnknownOutcome("another commit of the queue has no answer", final=True)
            if self._line is None:
                return
            await self._changed.wait()

    async def _open(self) -> None:
        await self._line_free()
        self._line = Ends(deletes=[quiet_key(self._queue)])
        await self._commit({}, self._line)
        self.is_quiet = False

    async def _thin(self, positions: list[int]) -> None:
        """Writes rows anew that are mostly of ended messages: what waits takes twice its size at most."""
        try:
            await self._line_free()
        except UnknownOutcome:
            self._soil(positions)
            return
        self._line = ends = Ends(marked=self._settled, written=list(positions))
        sizes: dict[int, int] = {}
        room = self._engine.limits.commit_bytes // 2
        for position in filter(self._mirror.has_row, positions):
            key = segment_key(self._queue, position)
            row = (await self._read([key])).get(key)
            thin, size = (b"", 0) if row is None else self._mirror.thin(position, row)
            if row is None or len(thin) > room:
                break
            room -= len(thin)
            ends.puts[key], sizes[position] = thin, size
        ends.puts[mark_key(self._queue)] = self._mark().pack()
        try:
            await self._commit({}, ends)
        except Full:
            self._give_back(ends)
            return
        for position, size in sizes.items():
            self._mirror.thinned(position, size)
        self._soil([position for position in positions if position not in sizes])

    # --- contents that are not in memory -----------------------------------------------------------------------------------

    async def _load(self, position: int) -> None:
        async with self.loads:
            value = await self._read_row(position)
            if value is not None:
                self._mirror.load(value)

    async def _read_row(self, position: int) -> bytes | None:
        key = segment_key(self._queue, position)
        value = (await self._read([key])).get(key)
        if value is None or not parts_count(value):
            return value
        keys = [part_key(self._queue, position, number) for number in range(parts_count(value))]
        parts = await self._read(keys)
        return b"".join(parts[one] for one in keys) if len(parts) == len(keys) else None

    # --- commits ----------------------------------------------------------------------------------------------------------

    async def _commit(self, puts: dict[bytes, bytes], ends: Ends | None) -> None:
        """One commit of the owner, tried until its outcome is known. Raises: Full; Lost; UnknownOutcome: the ownership is in doubt."""
        pause_ms = self._limits.shared_pause_ms
        rows = puts if ends is None else {**puts, **ends.puts}
        deletes = [] if ends is None else ends.deletes
        clears = [] if ends is None else ends.clears
        commit = Commit([(owner_key(self._queue), self.owner.pack())], rows, deletes, clears)
        while True:
            self._check()
            if self._doubt:
                raise UnknownOutcome("another commit of the queue has no answer", final=True)
            try:
                done = await self._engine.commit(commit)
            except Full:
                self._note_full(True)
                raise
            except Unavailable:
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, self._limits.shared_pause_ms_max)
                continue
            if not done:
                raise Lost("another node has taken the queue, or it is deleted")
            break
        if rows:
            self._note_full(False)
        if ends is not None:
            self._told(ends)

    def _note_full(self, full: bool) -> None:
        if full and not self.is_full:
            self._asks = False
            asyncio.get_running_loop().call_later(self._limits.shared_full_ms / 1000, self._ask_again)
        self.is_full = full

    def _ask_again(self) -> None:
        self._asks = True
        self.look()

    # --- doubt ------------------------------------------------------------------------------------------------------------

    async def _resolve(self) -> None:
        """L4: the other commits come to an end, the epoch rises, and what did not arrive is sent again."""
        current = asyncio.current_task()
        while others := [task for task in self._tasks if task is not current]:
            await asyncio.wait(others)
        if self._line is not None:
            self._give_back(self._line)
        if self._late_ones:
            flown = self.owner.epoch
            while not await self._take_over_again(flown):
                pass
            missing = list(self._flights.values())
            self._flights, self._next = {}, 1
            for flight in missing:
                flight.batch, self._next = self._next, self._next + 1
                flight.rows = {position: renumbered(row, self.owner.epoch, flight.batch) for position, row in flight.rows.items()}
                self._flights[flight.batch] = flight
        else:
            await self._note_arrived(self.owner.epoch)
        self._doubt = self._late_ones = False
        for flight in self._flights.values():
            if not flight.is_in:
                self._start(self._fly(flight))

    async def _take_over_again(self, flown: int) -> bool:
        """Raises the epoch, lands the batches of the epoch `flown` that are in, and deletes those behind a gap. False: nobody knows whether
        it did. Then a late commit could delete what is sent next, so the epoch rises once more."""
        before, self.owner = self.owner, self.owner.next(self.owner.node, self.owner.life)
        await self._raise_epoch(before)
        late = await self._note_arrived(flown)
        mark = Mark(self.owner.epoch, 0, self._mirror.sent_to(), self._flagged)
        condition = [(owner_key(self._queue), self.owner.pack())]
        most = self._engine.limits.commit_rows // 2
        commits = [Commit(condition, deletes=late[begin : begin + most]) for begin in range(0, len(late), most)]
        commits.append(Commit(condition, {mark_key(self._queue): mark.pack()}))
        for commit in commits:
            if not await self._try(commit):
                return False
        self._settled, self._marked, self._batches = 0, 0, {}
        return True

    async def _try(self, commit: Commit) -> bool:
        """False: nobody knows. Raises: Lost."""
        while True:
            self._check()
            try:
                if await self._engine.commit(commit):
                    return True
                raise Lost("another node has taken the queue, or it is deleted")
            except (Full, Unavailable):
                await asyncio.sleep(self._limits.shared_pause_ms / 1000)
            except UnknownOutcome:
                return False

    async def _note_arrived(self, flown: int) -> list[bytes]:
        """Lands the batches of the epoch `flown` that are in, up to the first that is not. Returns the keys from that one on."""
        flights = list(self._flights.values())
        marks = [list(flight.applied_rows(self._queue, flown)) for flight in flights]
        segments = [[segment_key(self._queue, position) for position in flight.rows] for flight in flights]
        there = await self._read([key for keys in (*marks, *segments) for key in keys])
        late: list[bytes] = []
        for flight, own_marks, keys in zip(flights, marks, segments, strict=True):
            is_there = all(self._is_of(there.get(key), flown, flight.batch) for key in keys) and all(key in there for key in own_marks)
            flight.is_in = not late and is_there
            if not flight.is_in:
                late += [*keys, *own_marks]
        self._land()
        return late

    @staticmethod
    def _is_of(value: bytes | None, epoch: int, batch: int) -> bool:
        return value is not None and row_numbers(head_of(value)) == (epoch, batch)

    async def _raise_epoch(self, before: Owner) -> None:
        """Raises: Lost."""
        key = owner_key(self._queue)
        commit = Commit([(key, before.pack())], {key: self.owner.pack()})
        while True:
            self._check()
            try:
                if await self._engine.commit(commit):
                    return
                (value,) = await self._engine.get([key])
            except EngineError:
                await asyncio.sleep(self._limits.shared_pause_ms / 1000)
                continue
            if value == self.owner.pack():
                return  # an earlier try
            if value != before.pack():
                raise Lost("another node has taken the queue, or it is deleted")

    async def _read(self, keys: list[bytes]) -> dict[bytes, bytes]:
        rows: dict[bytes, bytes] = {}
        for key in keys:
            while True:
                self._check()
                try:
                    (value,) = await self._engine.get([key])
                    break
                except EngineError:
                    await asyncio.sleep(self._limits.shared_pause_ms / 1000)
            if value is not None:
                rows[key] = value
        return rows

    # --- tasks ------------------------------------------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[bool]:
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[bool]) -> None:
        self._tasks.discard(task)
        self._note_change()
        self.look()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> bool:
        """Runs a part of the work, and knows what its errors mean. Whether it was done."""
        try:
            await work
            return True
        except Lost as error:
            self._lose(error)
        except UnknownOutcome as error:
            self._doubtful(error.final)
        except Full:
            pass  # what it had to say comes with another commit
        except Exception as error:
            # Nothing is known any more of what the engine has: another owner reads it.
            log.exception("internal error: the log of a shared queue stops")
            self._lose(error)
        return False

    def _doubtful(self, final: bool) -> None:
        self._late_ones = self._late_ones or not final
        if not self._doubt and self._lost is None:
            self._doubt = True
            self._note_change()
            self._start(self._resolve())

    def _lose(self, reason: BaseException) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        if self._timer is not None:
            self._timer.cancel()
        self._tell_lost(Lost(str(reason)))
        self._note_change()
        self._on_lost(reason)

    def _tell_lost(self, error: Lost) -> None:
        """Whoever waits for the rows of a transaction."""
        flying = [applying for flight in self._flights.values() for applying, _ in flight.applied]
        forgotten = [] if self._line is None else self._line.forgotten
        waiting = [one.settled for one in (*self._applying, *flying)] + [one.done for one in (*self._forgetting, *forgotten)]
        for future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # perhaps nobody waits any more

    def _check(self) -> None:
        if self._lost is not None:
            raise Lost(str(self._lost)) from self._lost

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
