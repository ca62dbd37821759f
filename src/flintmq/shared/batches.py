"""Sets of messages that subscriptions read from shared queues, each exactly once (docs/adr/0015, R9 and R10).

in: calls of the readers of subscriptions; on the owner of a queue, its core, mirror and log. out: rows (batch_rows.py); messages that a set
holds, has ended, or gave back.

A set is collected (each owner holds messages for it, and writes which), sealed (the subscription's row says which parts it has), read, and
committed. Only sealed sets are shown.

B1  A part's row is written before its messages are shown. Its commit compares the owner row, the subscription's row as it was judged, and
    that there is no other part of this subscription in this queue.
B2  `committed = n` in the subscription's row decides set n, in one commit that compares the row. Everything afterwards follows from rows:
    `fate` says what becomes of a part, and what it once said of an end or a return stays true.
B3  The row of a part whose messages end goes after their ends are in the engine; until then a new owner ends them. So there is one part of
    a subscription in a queue at most, and `last` of the subscription tells of it.
B4  A commit whose outcome is unknown is asked about again by the next call; what it may still do is what that call wants, or it compares a
    row that has changed for good (marks are random).
B5  A part is settled messages only: their rows are in the engine before the part's.

All of it is of one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from flintmq.config import Limits
from flintmq.core.content_view import ContentView
from flintmq.engines.engine import Commit, Engine, EngineError, Unavailable, UnknownOutcome
from flintmq.errors import FlintError
from flintmq.mirror.mirror import Mirror
from flintmq.queue.control import QueueHandle
from flintmq.shared.batch_rows import (
    MADE,
    Fate,
    PartRow,
    SealedSet,
    Subscription,
    fate,
    identity_of,
    name_key,
    names_of,
    new_identity,
    part_row_key,
    runs_max,
    sign_key,
    subscription_key,
    subscription_rows,
)  # fmt: skip
from flintmq.shared.layout import Owner, kind_of, owner_key
from flintmq.shared.queue_log import Lost, QueueLog

log = logging.getLogger("flintmq.shared")

# tries of a change of a subscription's row that others change at the same time
_TRIES = 10
# messages that are held, ended or given back before others have their turn: some 2 ms
_MESSAGES_AT_ONCE = 500
# rows of subscriptions, or names, that are read at once, and their bytes
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 500, 1 << 20
_MARK_BYTES = 8


class Why(Enum):
    """Of a refusal. BEHIND, AHEAD: the set was committed, or the subscription has not come to it; CHANGED: the set is not the one that is
    read now, or its queue has no part of it; BUSY: the caller tries again; IN_USE: of a queue."""

    GONE = "there is no such subscription"
    FENCED = "another reader has opened the subscription"
    NEVER_OPENED = "the epoch was never given out"
    BEHIND = "the set was committed before"
    AHEAD = "the set was never prepared"
    CHANGED = "the set changed"
    BUSY = "others change the subscription at the same time"
    LIMIT = "there are as many subscriptions as may be"
    IN_USE = "a consumer has the queue for itself"


class Refusal(FlintError):
    """A call about a subscription that can't be done."""

    def __init__(self, why: Why, text: str = "") -> None:
        super().__init__(f"{why.value}{': ' if text else ''}{text}")
        self.why = why


@dataclass(frozen=True, slots=True)
class Asked:
    """For a part of a set. seq, round: of the set; messages, size: at most, but for one message of any size; now_ms: wall clock."""

    subscription: bytes
    seq: int
    round: int
    messages: int
    size: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A message of a part. deliveries: earlier ones that were counted; is_redelivered: somebody may have had it; content: None: it can't
    be read any more."""

    position: int
    deliveries: int
    is_redelivered: bool
    content: ContentView | None


# --- the owner of a queue ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Part:
    """A part in this queue. is_in: its row is in the engine; is_doubtful: it may come to be; is_over: its messages end or go back; done: of
    so many; is_seen: somebody may have read them."""

    row: PartRow
    done: int = 0
    is_in: bool = False
    is_doubtful: bool = False
    is_over: bool = False
    is_seen: bool = False


@dataclass(slots=True)
class _Place:
    """Of one subscription in this queue. Whoever changes its part holds the lock."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    part: _Part | None = None
    users: int = 0


class QueueSets:
    """The parts of sets that one queue has, by its owner. Args: core, mirror, log: of the queue; it is served by this node."""

    def __init__(self, engine: Engine, queue: bytes, core: QueueHandle, mirror: Mirror, queue_log: QueueLog, limits: Limits) -> None:
        self._engine = engine
        self._queue = queue
        self._core = core
        self._mirror = mirror
        self._log = queue_log
        self._limits = limits
        self._places: dict[bytes, _Place] = {}
        self._is_restored = False

    async def restore(self) -> int:
        """After `taking_over.restore`, before anybody consumes: holds the messages of all parts. Other calls are refused before it is done.

        Returns: messages that are held. Raises: EngineError: to be begun anew; ValueError: a row is damaged. O(messages of sets).
        """
        begin, end = kind_of(self._queue, b"t")
        prefix = len(part_row_key(self._queue, b""))
        while rows := await self._engine.scan(begin, end, _ROWS_AT_ONCE, _BYTES_AT_ONCE):
            for key, value in rows:
                part = _Part(PartRow.unpack(value), is_in=True, is_seen=True)
                self._places.setdefault(key[prefix:], _Place()).part = part
                for number, position in enumerate(part.row.positions()):
                    self._core.hold(position)  # one that has ended is not there
                    if number % _MESSAGES_AT_ONCE == _MESSAGES_AT_ONCE - 1:
                        await asyncio.sleep(0)
            begin = rows[-1][0] + b"\0"
        self._is_restored = True
        return sum(place.part.row.count for place in self._places.values() if place.part is not None)

    def counts(self) -> tuple[int, int]:
        """Messages that nobody has, and bytes of their bodies."""
        return self._core.ready_count(), self._core.ready_bytes()

    async def look(self) -> None:
        """Ends, and gives back, whatever that is decided of. After `restore`, and now and then. Raises: Lost; EngineError."""
        for identity in list(self._places):
            try:
                await self.settle(identity)
            except ValueError as error:  # its messages stay where they are
                log.error("%s", error)

    @contextlib.asynccontextmanager
    async def _place(self, identity: bytes) -> AsyncIterator[_Place]:
        if not self._is_restored:
            raise Unavailable("the queue is being taken over")
        place = self._places.setdefault(identity, _Place())
        place.users += 1
        try:
            async with place.lock:
                yield place
        finally:
            place.users -= 1
            if not place.users and place.part is None:
                del self._places[identity]

    # --- taking ---------------------------------------------------------------------------------------------------------

    async def take(self, asked: Asked) -> tuple[int, int]:
        """Messages, and bytes of their bodies, that this queue gives to a set. The same ones whenever it is asked for the same set.

        Raises: Refusal CHANGED: the subscription does not collect this set now, GONE; EngineError: to be asked again; Lost.
        """
        async with self._place(asked.subscription) as place:
            part = place.part
            if part is not None and not part.is_over and (part.row.seq, part.row.round) == (asked.seq, asked.round):
                if not part.is_in:
                    await self._enter(asked.subscription, place, await self._judged(asked))
                return part.row.count, part.row.size
            if not await self._settle(asked.subscription, place):
                raise Refusal(Why.CHANGED, "another part of the queue waits for its set")
            if not self._core.next_available(0):
                return 0, 0
            value = await self._judged(asked)
            row = await self._hold(asked)
            if row.count:
                place.part = _Part(row)
                await self._enter(asked.subscription, place, value)
            return row.count, row.size

    async def _judged(self, asked: Asked) -> bytes:
        """The subscription's row, which collects this set. Raises: Refusal."""
        (value,) = await self._engine.get([subscription_key(asked.subscription)])
        if value is None:
            raise Refusal(Why.GONE)
        subscription = Subscription.unpack(value)
        wanted = PartRow(asked.seq, asked.round)
        if subscription.sealed is not None or fate(subscription, self._queue.decode(), wanted) is not Fate.WAITS:
            raise Refusal(Why.CHANGED, "it is not collected now")
        return value

    async def _hold(self, asked: Asked) -> PartRow:
        row = PartRow(asked.seq, asked.round)
        runs, steps = runs_max(self._engine.limits.value_bytes), 0
        try:
            position = self._core.next_available(0)
            while position and row.count < asked.messages and self._mirror.is_settled(position):
                steps += 1
                if steps % _MESSAGES_AT_ONCE == 0:
                    await asyncio.sleep(0)
                if not self._is_expired(position, asked.now_ms) and self._core.hold(position):
                    size = self._core.held_bytes(position)
                    if len(row.runs) == runs or (row.runs and row.size + size > asked.size):
                        self._core.release_held(position)
                        break
                    row.add(position, size)
                position = self._core.next_available(position + 1)
        except BaseException:
            self._release(row)
            raise
        return row

    def _release(self, row: PartRow) -> None:
        """Of which nobody was told. At once, so that no message is left out whatever happens to the caller. O(messages)."""
        for position in row.positions():
            self._core.release_held(position)

    def _is_expired(self, position: int, now_ms: int) -> bool:
        """The queue ends it, and has its letter."""
        facts = self._core.entry_facts(position)
        return facts is not None and 0 < facts[2] <= now_ms

    async def _enter(self, identity: bytes, place: _Place, value: bytes) -> None:
        """Writes the row of a part (B1). When nobody knows whether it is there, the part waits for the next call (B4).

        Args: value: the subscription's row. Raises: Refusal CHANGED; EngineError; Lost.
        """
        part = place.part
        assert part is not None
        key, row = part_row_key(self._queue, identity), part.row.pack()
        conditions = [(owner_key(self._queue), self._log.owner.pack()), (subscription_key(identity), value), (key, None)]
        was_doubtful, part.is_doubtful = part.is_doubtful, True
        try:
            part.is_in = await self._engine.commit(Commit(conditions, {key: row}))
        except UnknownOutcome:
            raise
        except EngineError:
            part.is_doubtful = was_doubtful
            if not was_doubtful:
                self._return(place)
            raise
        if part.is_in:
            return
        owned, judged, there = await self._engine.get([owner_key(self._queue), subscription_key(identity), key])
        if there == row:
            part.is_in = True  # an earlier try
            return
        self._check_owner(owned)
        if judged == value:
            raise Unavailable("the owner's row or an earlier part was in the way")  # both are gone: the next call has luck
        self._return(place)  # no try can come any more: the row that it compared has changed
        raise Refusal(Why.CHANGED, "it changed while the queue was asked")

    def _check_owner(self, value: bytes | None) -> None:
        """Raises: Lost; Unavailable: this node is about to own it again."""
        mine = self._log.owner
        owner = None if value is None else Owner.unpack(value)
        if owner is None or (owner.node, owner.life) != (mine.node, mine.life):
            raise Lost("another node has taken the queue, or it is deleted")
        if owner != mine:
            raise Unavailable("the ownership of the queue is being renewed")

    # --- reading --------------------------------------------------------------------------------------------------------

    async def read(self, identity: bytes, number: tuple[int, int], first: int, count: int, size: int) -> list[Entry]:
        """Messages of a part, from its message `first` on: `count` at most, and none after `size` bytes of bodies.

        Args: number: (seq, round) of a set that is sealed with this part. Raises: Refusal CHANGED: it is over, or there is none; Lost;
        EngineError.
        """
        place = self._places.get(identity)
        part = None if place is None else place.part
        if part is None or part.is_over or not part.is_in or (part.row.seq, part.row.round) != number:
            raise Refusal(Why.CHANGED, "the queue has no such part")
        part.is_seen = True
        entries: list[Entry] = []
        cold: dict[int, ContentView] = {}  # of the row that was read last
        for position in itertools.islice(part.row.positions(), first, first + count):
            content = await self._content(position, cold)
            if part.is_over:
                raise Refusal(Why.CHANGED, "it was decided meanwhile")
            facts = self._core.entry_facts(position)
            entries.append(Entry(position, 0 if facts is None else facts[1], self._core.is_redelivered(position), content))
            size -= 0 if content is None else content.body_bytes
            if size <= 0:
                break
        return entries

    async def _content(self, position: int, cold: dict[int, ContentView]) -> ContentView | None:
        """From memory, or the engine: what a set holds is not brought back into memory, as its queue has no use of it."""
        try:
            return self._core.view_at(position)
        except KeyError:
            if position not in cold:
                row = await self._log.row_of(position)
                cold.clear()
                cold.update(() if row is None else self._mirror.views(row))
        return cold.get(position)

    # --- ending ---------------------------------------------------------------------------------------------------------

    async def settle(self, identity: bytes) -> bool:
        """Does what the subscription decided of its part (`fate`). True: there is none any more. A full engine keeps ends waiting.

        Raises: Lost; EngineError: to be asked again.
        """
        async with self._place(identity) as place:
            return await self._settle(identity, place)

    async def _settle(self, identity: bytes, place: _Place) -> bool:
        part = place.part
        if part is None:
            return True
        (value,) = await self._engine.get([subscription_key(identity)])
        verdict = fate(None if value is None else Subscription.unpack(value), self._queue.decode(), part.row)
        if verdict is Fate.WAITS:
            return False
        # A part of which nobody knows whether its row is there comes here, too: the row that each try compared has changed.
        if verdict is Fate.ENDS:
            await self._end(part, lambda position: self._core.settle_held(position, logged=False))
            await self._log.ends_written()  # B3
        else:
            await self._end(part, lambda position: self._core.release_held(position, delivered=part.is_seen))
        await self._delete(part_row_key(self._queue, identity), part)
        place.part = None
        return True

    async def _delete(self, key: bytes, part: _Part) -> None:
        row = part.row.pack()
        if await self._engine.commit(Commit([(owner_key(self._queue), self._log.owner.pack()), (key, row)], {}, [key])):
            return
        owned, there = await self._engine.get([owner_key(self._queue), key])
        self._check_owner(owned)
        if there is not None:
            raise Unavailable("the owner's row was in the way")

    def _return(self, place: _Place) -> None:
        part, place.part = place.part, None
        assert part is not None
        self._release(part.row)

    async def _end(self, part: _Part, action: Callable[[int], bool]) -> None:
        """Does it with each message once, also when the caller is gone in between: others have their turn."""
        part.is_over = True
        for position in itertools.islice(part.row.positions(), part.done, None):
            action(position)
            part.done += 1
            if part.done % _MESSAGES_AT_ONCE == 0:
                await asyncio.sleep(0)


# --- subscriptions -------------------------------------------------------------------------------------------------------


class OwnerCalls(Protocol):
    """Calls to the owners of queues, wherever these are. Raises: FlintError: it can't be asked now."""

    async def take(self, queue: str, asked: Asked) -> tuple[int, int]:
        """`QueueSets.take` at the owner; (0, 0) of a queue that is deleted."""
        ...

    async def settle(self, queue: str, subscription: bytes) -> bool:
        """`QueueSets.settle` at the owner; True of a queue that is deleted: its rows went with it."""
        ...


# raises what refuses a change of the subscription as it is
Judge = Callable[[Subscription], object]


def _passes(subscription: Subscription) -> None:
    pass


class Subscriptions:
    """Subscriptions of an engine, on any node. Args: owners: of the queues; now_ms: the wall clock."""

    def __init__(self, engine: Engine, owners: OwnerCalls, limits: Limits, now_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._owners = owners
        self._limits = limits
        self._now_ms = now_ms

    # --- rows -----------------------------------------------------------------------------------------------------------

    async def load(self, identity: bytes) -> Subscription:
        """Raises: Refusal GONE; EngineError; ValueError: its row can't be read."""
        (value,) = await self._engine.get([subscription_key(identity)])
        subscription = None if value is None else Subscription.unpack(value)
        if subscription is None or subscription.is_deleted:
            raise Refusal(Why.GONE)
        return subscription

    async def gone(self, queues: Sequence[str]) -> set[str]:
        """Those of the queues that are deleted, or were never served. Raises: EngineError."""
        values = await self._engine.get([owner_key(queue.encode()) for queue in queues]) if queues else []
        return {queue for queue, value in zip(queues, values, strict=True) if value is None}

    async def named(self, vhost: str, name: str) -> bytes | None:
        """The id of the subscription of that name. Raises: EngineError."""
        (value,) = await self._engine.get([name_key(vhost, name)])
        return value

    async def listed(self) -> list[tuple[bytes, Subscription]]:
        """All, by their ids; a row that can't be read hides no other. O(subscriptions). Raises: EngineError."""
        return [one for one in await self._all() if not one[1].is_deleted]

    async def _all(self) -> list[tuple[bytes, Subscription]]:
        subscriptions: list[tuple[bytes, Subscription]] = []
        begin, end = subscription_rows()
        while rows := await self._engine.scan(begin, end, _ROWS_AT_ONCE, _BYTES_AT_ONCE):
            for key, value in rows:
                try:
                    subscriptions.append((identity_of(key), Subscription.unpack(value)))
                except ValueError as error:
                    log.warning("%s", error)
            begin = rows[-1][0] + b"\0"
        return subscriptions

    async def change(self, identity: bytes, body: Callable[[Subscription], Subscription]) -> Subscription:
        """What `body` makes of the subscription, in one commit that compares its row.

        `body` may be called again, with the change of another caller or with its own: done twice, it must come to the same.
        Raises: Refusal; EngineError: nobody knows."""
        return await self._change(identity, body, [])

    async def _change(self, identity: bytes, body: Callable[[Subscription], Subscription], deletes: list[bytes]) -> Subscription:
        key = subscription_key(identity)
        for _ in range(_TRIES):
            (value,) = await self._engine.get([key])
            if value is None:
                raise Refusal(Why.GONE)
            before = Subscription.unpack(value)
            if before.is_deleted:
                raise Refusal(Why.GONE)
            after = body(before)
            if after == before:
                return before
            after = replace(after, mark=secrets.token_hex(_MARK_BYTES))
            if await self._swap(key, value, after.pack(), deletes):
                return after
        raise Refusal(Why.BUSY)

    async def _swap(self, key: bytes, before: bytes, after: bytes | None, deletes: Sequence[bytes] = ()) -> bool:
        """False: the row is another one; perhaps it was `after` in between. Raises: EngineError."""
        puts = {} if after is None else {key: after}
        commit = Commit([(key, before)], puts, [*deletes, *([] if after is not None else [key])])
        for number in range(_TRIES):
            try:
                if await self._engine.commit(commit):
                    return True
                (value,) = await self._engine.get([key])
                return value == after
            except UnknownOutcome:
                if number == _TRIES - 1:
                    raise
            await asyncio.sleep(self._limits.shared_pause_ms / 1000)
        return False

    # --- making and opening ---------------------------------------------------------------------------------------------

    async def create(self, made: Subscription, judge: Callable[[list[Subscription]], object] | None = None) -> bytes | None:
        """The id of a new subscription, or None: its name is taken. Args: judge: is shown those that are there, and may refuse.

        Raises: Refusal LIMIT, BUSY; what `judge` raises; EngineError; ValueError: its fields. O(subscriptions)."""
        Subscription.unpack(made.pack())
        self._check_queues(made.queues)
        identity, name = new_identity(), name_key(made.vhost, made.name)
        row = replace(made, mark=secrets.token_hex(_MARK_BYTES)).pack()
        for _ in range(_TRIES):
            token, there = await self._engine.get([MADE, name])
            if there is not None:
                return there if there == identity else None
            if await self._count() >= self._limits.shared_subscriptions_max:
                raise Refusal(Why.LIMIT, f"{self._limits.shared_subscriptions_max}: delete some")
            if judge is not None:
                judge([subscription for _, subscription in await self.listed()])
            rows = {name: identity, subscription_key(identity): row, MADE: secrets.token_bytes(_MARK_BYTES)}
            with contextlib.suppress(UnknownOutcome):
                if await self._engine.commit(Commit([(name, None), (MADE, token)], rows)):
                    return identity
            await asyncio.sleep(self._limits.shared_pause_ms / 1000)
        raise Refusal(Why.BUSY)

    def _check_queues(self, queues: Collection[str]) -> None:
        if not 0 < len(queues) <= self._limits.shared_set_queues_max:
            raise ValueError(f"a subscription reads 1 to {self._limits.shared_set_queues_max} queues, and not {len(queues)}")

    async def _count(self) -> int:
        count = 0
        begin, end = names_of()
        while rows := await self._engine.scan(begin, end, _ROWS_AT_ONCE, _BYTES_AT_ONCE):
            count += len(rows)
            begin = rows[-1][0] + b"\0"
        return count

    async def open(self, identity: bytes, names: Mapping[str, str] | None = None, judge: Judge = _passes) -> Subscription:
        """A new reader: those of before are fenced. Args: names: id -> name of the queues that it reads from now on, None: as before.

        Raises: Refusal GONE, BUSY: sets that were committed still end in queues that it does not read any more; what `judge` raises;
        EngineError; ValueError: too many queues, or none.
        """
        over = {} if names is None else await self._over(identity, names)

        def body(subscription: Subscription) -> Subscription:
            judge(subscription)
            opened = replace(subscription, epoch=subscription.epoch + 1, drain=None)
            return opened if names is None else self._aimed(opened, names, over)

        return await self.change(identity, body)

    async def aim(self, identity: bytes, names: Mapping[str, str], judge: Judge = _passes) -> Subscription:
        """Its queues were deleted, and declared anew: these are read from now on. Raises: as `open`."""
        over = await self._over(identity, names)

        def body(subscription: Subscription) -> Subscription:
            judge(subscription)
            return self._aimed(subscription, names, over)

        return await self.change(identity, body)

    async def _over(self, identity: bytes, names: Mapping[str, str]) -> dict[str, tuple[int, int]]:
        """The sets in queues that are not read any more of which nothing stays."""
        self._check_queues(names)
        known = await self.load(identity)
        return {queue: known.last[queue] for queue in set(known.last) - set(names) if await self._settled(queue, identity)}

    def _aimed(self, subscription: Subscription, names: Mapping[str, str], over: Mapping[str, tuple[int, int]]) -> Subscription:
        if set(names) == set(subscription.queues):
            return subscription
        last = {queue: number for queue, number in subscription.last.items() if queue in names or over.get(queue) != number}
        if len(last) > 2 * self._limits.shared_set_queues_max:
            raise Refusal(Why.BUSY, "what it committed in other queues is still being ended")
        # A sealed set stays as it is, whatever it has messages of.
        sealed = subscription.sealed
        kept = {} if sealed is None else {queue: subscription.names[queue] for queue in sealed.parts if queue in subscription.names}
        number = subscription.round + (sealed is None)
        return replace(subscription, queues=tuple(names), names={**kept, **names}, last=last, round=number)

    @staticmethod
    def check(subscription: Subscription, epoch: int) -> None:
        """Raises: Refusal FENCED, NEVER_OPENED."""
        if epoch < subscription.epoch:
            raise Refusal(Why.FENCED, f"its epoch is {subscription.epoch}, this is {epoch}")
        if epoch > subscription.epoch:
            raise Refusal(Why.NEVER_OPENED, f"its epoch is {subscription.epoch}, this is {epoch}")

    async def sign(self, identity: bytes, subscription: Subscription, token: bytes) -> None:
        """The reader lives: a token that differs from the last one; b"": it says good-bye. Raises: Refusal GONE; EngineError."""
        name = name_key(subscription.vhost, subscription.name)
        # The name goes with the subscription: a sign that comes late does not stay.
        if not await self._engine.commit(Commit([(name, identity)], {sign_key(identity): token})):
            raise Refusal(Why.GONE)

    async def last_sign(self, identity: bytes) -> bytes | None:
        """A node that sees the same one for `subscription_alive_ms` on its own clock takes the reader for gone. Raises: EngineError."""
        (token,) = await self._engine.get([sign_key(identity)])
        return token

    # --- sets -----------------------------------------------------------------------------------------------------------

    async def plan(self, identity: bytes, epoch: int, seq: int, messages: int, size: int) -> SealedSet | None:
        """Set `seq`: collected from the queues and sealed, or as it was sealed before. None: there is nothing to read.

        Args: messages, size: bounds of a new set. Raises: Refusal; EngineError; FlintError: no owner can be asked.
        """
        messages = min(messages, self._limits.shared_set_messages_max)
        size = min(size, self._limits.shared_set_bytes_max)
        for _ in range(_TRIES):
            subscription = await self.load(identity)
            self.check(subscription, epoch)
            if seq <= subscription.committed:
                raise Refusal(Why.BEHIND, f"it has committed set {subscription.committed}, and is asked for set {seq}")
            if seq > subscription.committed + 1:
                raise Refusal(Why.AHEAD, f"it has committed set {subscription.committed}, and is asked for set {seq}")
            if subscription.sealed is not None:
                return subscription.sealed
            try:
                parts = await self._collect(identity, subscription, messages, size)
            except Refusal as refusal:
                if refusal.why is not Why.CHANGED:
                    raise
                continue  # another call was faster
            if not parts:
                return None
            sealed = SealedSet(seq, subscription.round, self._now_ms(), parts)
            drain = subscription.drain
            if drain is not None:
                drain = {queue: max(0, count - parts.get(queue, (0, 0))[0]) for queue, count in drain.items()}
            after = replace(subscription, sealed=sealed, drain=drain, mark=secrets.token_hex(_MARK_BYTES))
            if await self._swap(subscription_key(identity), subscription.pack(), after.pack()):
                return sealed
        raise Refusal(Why.BUSY)

    async def _collect(self, identity: bytes, subscription: Subscription, messages: int, size: int) -> dict[str, tuple[int, int]]:
        """Parts of a set, another queue first each time. A queue that can't be asked is left out, unless all are. Raises: FlintError."""
        parts: dict[str, tuple[int, int]] = {}
        failure: FlintError | None = None
        queues, seq = subscription.queues, subscription.committed + 1
        turn = seq % max(1, len(queues))
        for queue in queues[turn:] + queues[:turn]:
            most = messages if subscription.drain is None else min(messages, subscription.drain.get(queue, 0))
            if most <= 0 or size <= 0:
                continue
            try:
                async with asyncio.timeout(self._limits.shared_set_wait_ms / 1000):
                    count, taken = await self._owners.take(queue, Asked(identity, seq, subscription.round, most, size, self._now_ms()))
            except FlintError as error:
                failure = error
                continue
            except TimeoutError:
                failure = Unavailable("the owner of a shared queue does not answer")
                continue
            if count:
                parts[queue] = (count, taken)
                messages, size = messages - count, size - taken
        if not parts and failure is not None:
            raise failure
        return parts

    async def commit(self, identity: bytes, epoch: int, seq: int, judge: Judge = _passes) -> Subscription:
        """Set `seq` is committed: its messages end, now or later. Again, it does nothing. Args: judge: of a set that is not committed yet.

        Raises: Refusal; what `judge` raises; EngineError: nobody knows."""

        def body(subscription: Subscription) -> Subscription:
            self.check(subscription, epoch)
            if seq <= subscription.committed:
                return subscription
            judge(subscription)
            return committed(subscription, seq)

        subscription = await self.change(identity, body)
        await self.settle(identity, subscription)
        return subscription

    async def reset(self, identity: bytes, seq: int | None, commits: bool, judge: Judge = _passes) -> Subscription:
        """An operator decides of the set that is read now, if it is `seq`: it is committed, or goes back. Its reader is fenced.

        Raises: Refusal GONE, BUSY; what `judge` raises; EngineError: nobody knows.
        """

        def body(subscription: Subscription) -> Subscription:
            sealed = subscription.sealed
            if seq is not None and (sealed is None or sealed.seq != seq):
                return subscription  # done before
            judge(subscription)
            after = committed(subscription, sealed.seq) if commits and sealed is not None else given_back(subscription)
            return replace(after, epoch=subscription.epoch + 1)

        subscription = await self.change(identity, body)
        await self.settle(identity, subscription)
        return subscription

    async def settle(self, identity: bytes, subscription: Subscription) -> bool:
        """Has the owners do what is decided. True: no part of it stays anywhere. An owner that can't be asked does it later by itself
        (`QueueSets.look`)."""
        return all(await asyncio.gather(*(self._settled(queue, identity) for queue in subscription.known_queues())))

    async def _settled(self, queue: str, identity: bytes) -> bool:
        try:
            async with asyncio.timeout(self._limits.shared_set_wait_ms / 1000):
                return await self._owners.settle(queue, identity)
        except (FlintError, TimeoutError) as error:
            log.info("subscription %s: the end of a set in a queue waits: %s", identity.decode(), error)
            return False

    # --- forgetting -----------------------------------------------------------------------------------------------------

    async def forget(self, identity: bytes, judge: Judge = _passes) -> Subscription:
        """Deletes a subscription, and returns what it was: its set goes back. Its row stays until nothing that it committed is to be ended.

        Raises: Refusal GONE, BUSY; what `judge` raises; EngineError: nobody knows.
        """
        known = await self.load(identity)

        def body(subscription: Subscription) -> Subscription:
            judge(subscription)
            return replace(given_back(subscription), epoch=subscription.epoch + 1, is_deleted=True)

        gone = [name_key(known.vhost, known.name), sign_key(identity)]
        await self._bury(identity, await self._change(identity, body, gone))
        return known

    async def _bury(self, identity: bytes, subscription: Subscription) -> None:
        if await self.settle(identity, subscription):
            await self._swap(subscription_key(identity), subscription.pack(), None)

    async def sweep(self) -> None:
        """Goes on with subscriptions that were deleted. Any node, now and then. Raises: EngineError."""
        for identity, subscription in await self._all():
            if subscription.is_deleted:
                await self._bury(identity, subscription)


def committed(subscription: Subscription, seq: int) -> Subscription:
    """With set `seq` committed. Raises: Refusal AHEAD: it is not sealed."""
    sealed = subscription.sealed
    if sealed is None or sealed.seq != seq:
        raise Refusal(Why.AHEAD, f"it has committed set {subscription.committed}, and set {seq} is not planned")
    last = subscription.last | dict.fromkeys(sealed.parts, (seq, subscription.round))
    return replace(subscription, committed=seq, sealed=None, last=last)


def given_back(subscription: Subscription) -> Subscription:
    """With the set that is read, or collected, going back to its queues."""
    return replace(subscription, sealed=None, round=subscription.round + 1)
