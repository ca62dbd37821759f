"""Subscriptions on shared queues that one node serves each: the sub.* calls, on any node of the engine.

in: calls, each with its user. out: changed rows of the engine (shared/batches.py), tickets, rows.

H1  What docs/DATAPLANE.md promises of a subscription holds here over all nodes: the row in the engine is the subscription, and this module
    keeps only what makes calls cheap.
H2  A call with an epoch below the row's is refused by the commit that would change something.
H3  A set is decided by one commit; its messages end at the owners of their queues then, or later.
H4  The names of queues that a row has are authorized for each call, and a change refuses a row that has others meanwhile.
H5  A reader's sign of life is a row that changes: nodes look whether it changed for `subscription_alive_ms` on their own clock.
"""

from __future__ import annotations

import secrets
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from flintmq.dataplane import set_rows
from flintmq.dataplane.arguments import Arguments
from flintmq.dataplane.choice import in_use, there
from flintmq.dataplane.engine_asks import AWAY, EngineAsks
from flintmq.dataplane.shared import Caller, Plane, log
from flintmq.dataplane.taking import SEQ_MAX, active, ahead, lost, planned, unknown, unread, used
from flintmq.dataplane.wire import Refused
from flintmq.ports import Verb
from flintmq.shared import queue_rows
from flintmq.shared.batch_rows import SealedSet, Subscription
from flintmq.shared.batches import Judge, Refusal, Subscriptions, Why, given_back

T = TypeVar("T")
# what is done about a subscription: its row, and what refuses one that may not be seen (H4)
Work = Callable[[Subscription, Judge], Coroutine[Any, Any, T]]
# tries of a call whose row changed its queues, or whose name another call took, in between
_TRIES = 5
# messages, and bytes of bodies, that one request to an owner gives
_PIECE_ROWS, _PIECE_BYTES = 500, 1 << 20
# subscriptions of a list whose signs of life are read in one request
_LIST_AT_ONCE = 100
# seconds between two looks for messages in sub.acquire: the first, and the longest
_LOOK_S, _LOOK_MAX_S = 0.02, 0.2
# bytes of a sign of life
_TOKEN_BYTES = 8

_CODES = {
    Why.FENCED: "FENCED",
    Why.NEVER_OPENED: "BAD_ARGUMENT",
    Why.BEHIND: "CHECKPOINT_BEHIND",
    Why.AHEAD: "CHECKPOINT_AHEAD",
    Why.LIMIT: "LIMIT",
    Why.IN_USE: "QUEUE_BUSY",
}


class _Moved(Refused):
    """The row has queues that were not asked about: they are to be authorized first."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__("BUSY", "the queues of the subscription changed")
        self.names = names


@dataclass(slots=True)
class _Seen:
    """What this node knows of a subscription. names: its queues, as they were; beat: the sign of life that was read last, None: none was;
    heard_ns: since when it is that one; written_ns: when this node wrote one; empty_ns: when nothing was found."""

    names: frozenset[str] = frozenset()
    beat: bytes | None = None
    heard_ns: int = 0
    written_ns: int | None = None
    empty_ns: int | None = None


@dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments of sub.acquire."""

    epoch: int
    seq: int
    messages: int
    bytes: int
    redeliver: bool


@dataclass(frozen=True, slots=True)
class _Opening:
    """The arguments of sub.open. same: the queues must be those of before."""

    wanted: list[str] | None
    same: bool
    fresh: str | None
    on_lost: str


class SharedSets:
    """See module. Threading: threads of channels; `Work` runs on the engine's event loop."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._asks = EngineAsks(plane)
        self._lock = threading.Lock()
        self._seen: OrderedDict[bytes, _Seen] = OrderedDict()
        self._away_until_s = 0.0

    @property
    def _sets(self) -> Any:
        shared: Any = self._plane.broker.shared
        return shared.sets

    @property
    def _subscriptions(self) -> Subscriptions:
        subscriptions: Subscriptions = self._sets.subscriptions
        return subscriptions

    # --- the engine -----------------------------------------------------------------------------------------------------

    def _peek(self, identity: bytes) -> _Seen:
        """The memory of an id that perhaps is none: a caller with such ids takes nobody's place."""
        with self._lock:
            return self._seen.get(identity) or _Seen()

    def _known(self, identity: bytes) -> _Seen:
        """The same of one that is there, to be kept."""
        with self._lock:
            seen = self._seen.setdefault(identity, _Seen())
            self._seen.move_to_end(identity)
            while len(self._seen) > self._plane.limits.shared_subscriptions_max:
                self._seen.popitem(last=False)
            return seen

    def _call(self, caller: Caller, identity: bytes, work: Work[T]) -> T:
        """Does something about a subscription for a caller that may read all of its queues (H4). Raises: Refused."""
        seen = self._peek(identity)
        names = seen.names if self._plane.may_read(caller, seen.names) else frozenset[str]()
        for _ in range(_TRIES):
            try:
                return self._asks.ask(caller, partial(self._run, caller, identity, names, work))
            except _Moved as moved:
                names = moved.names
                self._plane.authorize(caller, Verb.READ, "queue", sorted(names))
                self._known(identity).names = names
            except Refusal as refusal:
                raise self._refused(caller, identity, refusal) from None
        raise Refused("BUSY", "the queues of the subscription change all the time")

    async def _run(self, caller: Caller, identity: bytes, names: frozenset[str], work: Work[T]) -> T:
        def judge(subscription: Subscription) -> None:
            if subscription.vhost != caller.vhost:
                raise _deleted(caller, identity)
            if not _names(subscription) <= names:
                raise _Moved(_names(subscription))

        subscription = await self._subscriptions.load(identity)
        judge(subscription)
        return await work(subscription, judge)

    @staticmethod
    def _refused(caller: Caller, identity: bytes, refusal: Refusal) -> Refused:
        if refusal.why is Why.GONE:
            return _deleted(caller, identity)
        return Refused(_CODES.get(refusal.why, "BUSY"), f"subscription {_text(identity)}: {refusal}")

    def _find(self, caller: Caller, name: str) -> bytes | None:
        """The id of a subscription of that name."""
        try:
            return self._asks.ask(caller, partial(self._subscriptions.named, caller.vhost, name))
        except Refused as refused:
            if refused.code == "UNAVAILABLE":
                self._away_until_s = time.monotonic() + self._plane.limits.shared_pause_ms_max / 1000
            raise

    def _is_away(self) -> bool:
        """Whether the engine did not answer a moment ago."""
        return time.monotonic() < self._away_until_s

    def _named(self, caller: Caller, name: str) -> bytes:
        """The same. Raises: Refused NOT_FOUND, UNAVAILABLE."""
        identity = self._find(caller, name)
        if identity is None:
            raise unknown(caller, name)
        return identity

    @staticmethod
    def _subject(arguments: Arguments) -> tuple[bytes, int, int]:
        return _identity(arguments), arguments.integer("epoch", 1, SEQ_MAX), arguments.integer("seq", 1, SEQ_MAX)

    # --- signs of life --------------------------------------------------------------------------------------------------

    @staticmethod
    def _check(subscription: Subscription, epoch: int) -> None:
        """H2. Raises: Refused FENCED, BAD_ARGUMENT."""
        name, present = subscription.name, subscription.epoch
        if epoch < present:
            raise Refused("FENCED", f"subscription '{name}' was opened again (epoch {present}, this is {epoch}): another reader has it")
        if epoch > present:
            text = f"subscription '{name}': epoch {epoch} was never given out (the present one is {present})"
            raise Refused("BAD_ARGUMENT", text)

    async def _hear(self, identity: bytes, subscription: Subscription, epoch: int, anew: bool = False) -> None:
        """The same, and the caller, its reader, works (H5). A call that only looks does not count."""
        self._check(subscription, epoch)
        seen, now = self._known(identity), self._plane.clock.monotonic_ns()
        written = seen.written_ns
        if anew or not seen.beat or written is None or now - written >= self._plane.limits.subscription_alive_ms * 250_000:
            token = secrets.token_bytes(_TOKEN_BYTES)
            await self._subscriptions.sign(identity, subscription, token)
            seen.beat, seen.written_ns = token, now
        seen.heard_ns = now

    async def _leave(self, identity: bytes, subscription: Subscription) -> None:
        """The reader says good-bye."""
        await self._subscriptions.sign(identity, subscription, b"")
        self._known(identity).beat = None

    async def _heard_ms(self, identity: bytes) -> int | None:
        """Milliseconds since the sign of life changed, as far as this node knows; None: the reader said good-bye, or there was none."""
        beat = await self._subscriptions.last_sign(identity)
        seen, now = self._known(identity), self._plane.clock.monotonic_ns()
        if not beat:
            seen.beat = None
            return None
        if beat != seen.beat:
            seen.beat, seen.heard_ns = beat, now
        return max(0, now - seen.heard_ns) // 1_000_000

    def _active_ms(self, heard_ms: int | None) -> int | None:
        return heard_ms if heard_ms is not None and heard_ms < self._plane.limits.subscription_alive_ms else None

    # --- queues ---------------------------------------------------------------------------------------------------------

    def _readable(self, vhost: str, names: list[str], before: list[str]) -> list[Any]:
        """The shared queues of these names that this node has. Raises: Refused NOT_FOUND: a new one is not there, or none; BAD_ARGUMENT."""
        return there(lambda name: self._plane.shared_queue(vhost, name), names, before)

    async def _ids(self, vhost: str, names: list[str], before: Mapping[str, str]) -> dict[str, str]:
        """id -> name of the queues, in the order of the names. Args: before: those that it reads so far, of which some may be deleted.

        Raises: Refused NOT_FOUND."""
        known = {name: queue for queue, name in before.items()}
        ids: dict[str, str] = {}
        for name in names:
            row = await queue_rows.read(self._sets.engine, vhost, name)
            identity = known.get(name) if row is None else row.id.decode()
            if identity is None:
                raise Refused("NOT_FOUND", f"no queue '{name}' in vhost '{vhost}'")
            ids[identity] = name
        return ids

    def _free(self, subscription: Subscription) -> list[str]:
        """Names of the queues of the subscription: some are there, and no consumer has one for itself. Raises: Refused NOT_FOUND,
        QUEUE_BUSY."""
        names = [subscription.names[queue] for queue in subscription.queues]
        for queue in self._readable(subscription.vhost, names, names):
            if (busy := in_use(queue)) is not None:
                raise busy
        return names

    # --- open -----------------------------------------------------------------------------------------------------------

    def open(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.open."""
        limits = self._plane.limits
        mode = arguments.choice("mode", ("create", "attach"), "create")
        identity = _identity(arguments) if mode == "attach" and arguments.given("sub_id") else None
        name = arguments.text("name", limits.dataplane_name_max, *(() if identity is None else (None,)))
        pattern = arguments.text("pattern", limits.name_bytes_max, None)
        queues = arguments.texts("queues", limits.name_bytes_max, limits.shared_set_queues_max, None)
        start = arguments.raw("start", "earliest")
        fresh = arguments.choice("fresh", ("refuse", "continue"), None)
        on_lost = arguments.choice("onlost", ("fail", "redeliver"), "fail")
        arguments.done()
        if mode == "create" and queues is None:
            raise Refused("BAD_ARGUMENT", "sub.open: queues is missing")
        if pattern is not None:
            raise Refused("BAD_ARGUMENT", "sub.open: a pattern reads no shared queue: name them (queues)")
        if start != "earliest":
            text = "sub.open: a subscription on shared queues starts at earliest: purge the queue to start behind it"
            raise Refused("BAD_ARGUMENT", text)
        self._plane.check_grants(caller, Verb.READ)
        opening = _Opening(queues, mode == "create" and fresh != "continue", fresh, on_lost)
        for _ in range(_TRIES):
            known = identity if identity is not None else self._find(caller, name)
            if known is None:
                if mode == "attach":
                    raise unknown(caller, name)
                made = self._create(caller, name, queues or [])
                if made is not None:
                    return made
                continue
            try:
                self._may_read(caller, known, queues)
                return self._call(caller, known, partial(self._open, known, opening))
            except Refused as refused:
                if refused.code != "NOT_FOUND" or identity is not None:
                    raise
                if self._find(caller, name) == known:
                    raise
        raise Refused("BUSY", f"subscription '{name}' comes and goes")

    def _may_read(self, caller: Caller, identity: bytes, queues: list[str] | None) -> None:
        """Whether the caller may read the queues that it asks for; of those it read before some may be gone. Raises: Refused FORBIDDEN,
        NOT_FOUND, BAD_ARGUMENT."""
        if queues is None:
            return

        async def before(subscription: Subscription, judge: Judge) -> list[str]:
            return [subscription.names[queue] for queue in subscription.queues]

        self._plane.authorize(caller, Verb.READ, "queue", queues)
        self._readable(caller.vhost, queues, self._call(caller, identity, before))

    async def _open(self, identity: bytes, opening: _Opening, known: Subscription, judge: Judge) -> dict[str, Any]:
        before = {queue: known.names[queue] for queue in known.queues}
        names = await self._ids(known.vhost, opening.wanted or list(before.values()), before)
        active_ms = self._active_ms(await self._heard_ms(identity))

        def refuses(subscription: Subscription) -> None:
            judge(subscription)
            _judge_opening(subscription, opening, active_ms)

        opened = await self._subscriptions.open(identity, names, refuses)
        await self._hear(identity, opened, opened.epoch, anew=True)
        self._known(identity).empty_ns = None
        return _opened(identity, opened)

    def _create(self, caller: Caller, name: str, queues: list[str]) -> dict[str, Any] | None:
        """None: somebody else was faster. Raises: Refused NOT_FOUND, FORBIDDEN, LIMIT, QUEUE_BUSY, BAD_ARGUMENT."""
        plane = self._plane
        plane.authorize(caller, Verb.READ, "queue", queues)
        for queue in self._readable(caller.vhost, queues, []):
            if (busy := in_use(queue)) is not None:
                raise busy
        born = str(plane.identity(caller)[1])

        async def work() -> dict[str, Any] | None:
            names = await self._ids(caller.vhost, queues, {})
            made = Subscription(caller.vhost, name, caller.name, born, tuple(names), plane.now_ms(), names)
            identity = await self._subscriptions.create(made, partial(self._check_quota, caller))
            if identity is None:
                return None
            self._known(identity).names = frozenset(queues)
            await self._hear(identity, made, made.epoch, anew=True)
            return {**_opened(identity, made), "discarded": 0}

        try:
            return self._asks.ask(caller, work)
        except Refusal as refusal:
            if refusal.why is Why.LIMIT:
                raise Refused("LIMIT", f"{refusal}: `sub.reset` some with action delete") from None
            raise Refused("BUSY", str(refusal)) from None

    def _check_quota(self, caller: Caller, subscriptions: list[Subscription]) -> None:
        """Raises: Refused LIMIT."""
        limits = self._plane.limits
        mine = sum(one.user == caller.name for one in subscriptions)
        here = sum(one.vhost == caller.vhost for one in subscriptions)
        taken = (
            (mine, limits.subscriptions_user_max, f"user '{caller.name}' has"),
            (here, limits.subscriptions_vhost_max, f"vhost '{caller.vhost}' has"),
        )
        for count, most, who in taken:
            if count >= most:
                raise Refused("LIMIT", f"{who} {most} subscriptions on shared queues already: `sub.reset` some with action delete")

    def alive(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.alive."""
        identity, epoch = _identity(arguments), arguments.integer("epoch", 1, SEQ_MAX)
        leave = arguments.boolean("leave", False)
        arguments.done()

        async def work(subscription: Subscription, judge: Judge) -> dict[str, Any]:
            if leave:
                self._check(subscription, epoch)
                await self._leave(identity, subscription)
            else:
                await self._hear(identity, subscription, epoch)
            return {"epoch": subscription.epoch, "committed": subscription.committed}

        return self._call(caller, identity, work)

    # --- sets -----------------------------------------------------------------------------------------------------------

    def acquire(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.acquire."""
        plane, limits = self._plane, self._plane.limits
        identity, epoch, seq = self._subject(arguments)
        messages = arguments.integer("max_messages", 1, SEQ_MAX, limits.shared_set_messages_max)
        size = arguments.integer("max_bytes", 1, SEQ_MAX, limits.shared_set_bytes_max)
        wait_ms = min(arguments.integer("max_wait_ms", 0, 2**31, 0), limits.acquire_wait_ms_max)
        redeliver = arguments.choice("onlost", ("fail", "redeliver"), "fail") == "redeliver"
        arguments.done()
        asked = _Asked(epoch, seq, messages, size, redeliver)
        until, pause = time.monotonic() + wait_ms / 1000, _LOOK_S
        nothing = {"seq": seq, "count": 0, "bytes": 0, "queues": []}
        while True:
            now, empty_ns = plane.clock.monotonic_ns(), self._peek(identity).empty_ns
            if empty_ns is None or now - empty_ns >= limits.shared_set_look_ms * 1_000_000:
                facts = self._call(caller, identity, partial(self._acquire, identity, asked))
                if facts is not None:
                    return facts
            if time.monotonic() >= until:
                return nothing
            plane.pause(min(pause, max(0.0, until - time.monotonic())))
            pause = min(pause * 1.5, _LOOK_MAX_S)

    async def _acquire(self, identity: bytes, asked: _Asked, subscription: Subscription, judge: Judge) -> dict[str, Any] | None:
        """The set; None: there is nothing."""
        await self._hear(identity, subscription, asked.epoch)
        _check_seq(subscription, asked.seq)
        if asked.seq > subscription.committed + 1:
            raise ahead(subscription, asked.seq)
        sealed = subscription.sealed
        if sealed is not None:
            is_lost = may_be_read(sealed, asked.epoch)
            # One that nobody has seen and of which nothing is left makes way: it would mean "nothing is there" for ever.
            if not is_lost and (sealed.count or sealed.planned is not None):
                return _facts(subscription, sealed)
            if is_lost and not asked.redeliver:
                raise lost(subscription, sealed.seq)
            subscription = await self._give_back(identity, asked.epoch, sealed, judge)
        names = self._free(subscription)
        ids = await self._ids(subscription.vhost, names, {queue: subscription.names[queue] for queue in subscription.queues})
        if set(ids) != set(subscription.queues):
            subscription = await self._subscriptions.aim(identity, ids, judge)
        sealed = await self._subscriptions.plan(identity, asked.epoch, asked.seq, asked.messages, asked.bytes)
        if sealed is None:
            self._known(identity).empty_ns = self._plane.clock.monotonic_ns() if subscription.drain is None else None
            return None
        return _facts(subscription, sealed)

    async def _give_back(self, identity: bytes, epoch: int, sealed: SealedSet, judge: Judge) -> Subscription:
        def body(subscription: Subscription) -> Subscription:
            judge(subscription)
            self._check(subscription, epoch)
            present = subscription.sealed
            is_same = present is not None and (present.seq, present.round) == (sealed.seq, sealed.round)
            return given_back(subscription) if is_same else subscription

        after = await self._subscriptions.change(identity, body)
        log.warning("subscription %s: set %d (%d messages) goes back to its queues", after.name, sealed.seq, sealed.count)
        await self._subscriptions.settle(identity, after)
        return after

    def plan(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.plan."""
        identity, epoch, seq = self._subject(arguments)
        slices = arguments.integer("slices", 1, self._plane.limits.slices_max, 1)
        arguments.done()

        async def work(subscription: Subscription, judge: Judge) -> SealedSet:
            await self._hear(identity, subscription, epoch)
            gone = await self._subscriptions.gone(sorted(self._ready(subscription, epoch, seq).parts))

            def body(subscription: Subscription) -> Subscription:
                judge(subscription)
                sealed = self._ready(subscription, epoch, seq)
                parts = {queue: part for queue, part in sealed.parts.items() if queue not in gone}  # its messages went with a queue
                return replace(subscription, sealed=replace(sealed, parts=parts, planned=epoch))

            return _sealed(await self._subscriptions.change(identity, body))

        sealed = self._call(caller, identity, work)
        bounds = set_rows.bounds(sealed, slices)
        ticket = {"kind": "set", "sub_id": _text(identity), "epoch": epoch, "seq": seq, "rows": sealed.count}
        tickets = [{**ticket, "slice": number, "slices": len(bounds) - 1} for number in range(len(bounds) - 1)]
        return {"seq": seq, "count": sealed.count, "bytes": sealed.size, "tickets": tickets}

    def _ready(self, subscription: Subscription, epoch: int, seq: int) -> SealedSet:
        """The set that is read now. Raises: Refused."""
        self._check(subscription, epoch)
        _check_seq(subscription, seq)
        sealed = subscription.sealed
        if sealed is None or sealed.seq != seq:
            raise Refused("NOT_PREPARED", f"subscription '{subscription.name}': set {seq} is not prepared")
        return sealed

    def rows(self, caller: Caller, arguments: Arguments) -> tuple[dict[str, Any], list[bytes]]:
        """rows of a ticket of kind set."""
        limits = self._plane.limits
        identity, epoch, seq = self._subject(arguments)
        count_planned = arguments.integer("rows", 1, SEQ_MAX)
        slices = arguments.integer("slices", 1, min(count_planned, limits.slices_max), 1)
        number = arguments.integer("slice", 0, slices - 1, 0)
        first = arguments.integer("first", 0, SEQ_MAX, 0)
        count = arguments.integer("count", 1, SEQ_MAX, limits.dataplane_rows_max)
        arguments.done()

        async def work(subscription: Subscription, judge: Judge) -> Subscription:
            if self._ready(subscription, epoch, seq).read:
                return subscription

            def body(subscription: Subscription) -> Subscription:
                judge(subscription)
                return replace(subscription, sealed=replace(self._ready(subscription, epoch, seq), read=True))

            return await self._subscriptions.change(identity, body)

        subscription = self._call(caller, identity, work)
        sealed = _sealed(subscription)
        if count_planned != sealed.count:
            text = f"set {seq} had {count_planned} messages when it was planned, and has {sealed.count} now: a queue was deleted"
            raise Refused("SET_CHANGED", text)
        bounds = set_rows.bounds(sealed, slices)
        begin = min(bounds[number] + first, bounds[number + 1])
        end = min(begin + min(count, limits.dataplane_rows_max), bounds[number + 1])
        queues: list[list[Any]] = []
        rows: list[bytes] = []
        contents: list[bytes] = []
        for piece in set_rows.pieces(sealed, begin, end):
            if sum(map(len, contents)) >= limits.dataplane_inline_max:
                break
            own_rows, own_contents = self._read(caller, identity, sealed, piece, limits.dataplane_inline_max - sum(map(len, contents)))
            rows += own_rows
            contents += own_contents
            queues.append([subscription.names[piece.queue], len(own_rows), 0])
        return {"queues": queues, "more": begin + len(rows) < bounds[number + 1]}, [*rows, *contents]

    def _read(
        self, caller: Caller, identity: bytes, sealed: SealedSet, piece: set_rows.Piece, room: int
    ) -> tuple[list[bytes], list[bytes]]:
        """Rows of a piece, some of its last ones left out when there is no room for them. Raises: Refused SET_CHANGED."""
        rows: list[bytes] = []
        contents: list[bytes] = []
        number = (sealed.seq, sealed.round)
        while len(rows) < piece.count and room > 0:
            asked = piece.first + len(rows), min(_PIECE_ROWS, piece.count - len(rows)), min(room, _PIECE_BYTES)

            async def work(subscription: Subscription, judge: Judge, asked: tuple[int, int, int] = asked) -> Any:
                present = subscription.sealed
                if present is None or (present.seq, present.round) != number:
                    raise Refused("NOT_PREPARED", f"set {sealed.seq} of subscription '{subscription.name}' was decided meanwhile")
                try:
                    return await self._sets.read(piece.queue, identity, number, *asked)
                except Refusal as refusal:
                    name = subscription.names[piece.queue]
                    raise Refused("SET_CHANGED", f"messages of queue '{name}' are not there any more: {refusal}") from None

            own_rows, own_contents = set_rows.rows_of(sealed.seq, piece.number + len(rows), self._call(caller, identity, work))
            if not own_rows:
                raise Refused("SET_CHANGED", f"set {sealed.seq} has fewer messages than it was sealed with")
            rows += own_rows
            contents += own_contents
            room -= sum(map(len, own_contents))
        return rows, contents

    def commit(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.commit: one commit of the engine decides (H3)."""
        identity, epoch = _identity(arguments), arguments.integer("epoch", 1, SEQ_MAX)
        upto = arguments.integer("upto", 0, SEQ_MAX)
        only_read = arguments.boolean("read", False)
        arguments.done()

        async def work(subscription: Subscription, judge: Judge) -> dict[str, Any]:
            def refuses(subscription: Subscription) -> None:
                judge(subscription)
                sealed = subscription.sealed
                if sealed is None or sealed.seq != upto:
                    raise ahead(subscription, upto)
                if only_read and not sealed.read and sealed.count:
                    raise unread(subscription, upto, sealed.count)

            await self._hear(identity, subscription, epoch)
            return {"committed": (await self._subscriptions.commit(identity, epoch, upto, refuses)).committed}

        return self._call(caller, identity, work)

    # --- looking and deciding -------------------------------------------------------------------------------------------

    def tail(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.tail. A drain counts: what is ready now is how many messages may still be taken of each queue."""
        identity = _identity(arguments)
        epoch = arguments.integer("epoch", 1, SEQ_MAX, None)
        drain = arguments.boolean("drain", False)
        arguments.done()

        async def work(subscription: Subscription, judge: Judge) -> list[dict[str, Any]]:
            if epoch is not None:
                self._check(subscription, epoch)
            sealed, ready, figures = subscription.sealed, {}, []
            for queue in subscription.queues:
                counts = await self._sets.counts(queue)
                if counts is None:
                    continue  # deleted: sub.acquire says so
                ready[queue] = counts[0]
                facts = {"queue": subscription.names[queue], "ready": counts[0], "bytes": counts[1], "oldest_us": None}
                held = 0 if sealed is None else sealed.parts.get(queue, (0, 0))[0]
                figures.append({**facts, "prepared": held, "next": 0, "last": SEQ_MAX})

            def body(subscription: Subscription) -> Subscription:
                judge(subscription)
                if epoch is not None:
                    self._check(subscription, epoch)
                return replace(subscription, drain=ready)

            if drain:
                await self._subscriptions.change(identity, body)
                self._known(identity).empty_ns = None
            return figures

        queues = self._call(caller, identity, work)
        return {
            "queues": queues,
            "behind_messages": sum(one["ready"] for one in queues),
            "behind_bytes": sum(one["bytes"] for one in queues),
            "oldest_age_ms": None,
        }

    def list_all(self, caller: Caller) -> list[dict[str, Any]]:
        """What sub.list has of them: those whose queues the caller may read. A row that can't be read hides no other."""
        if self._is_away():
            raise Refused("UNAVAILABLE", AWAY)
        every = self._asks.ask(caller, self._subscriptions.listed)
        own = [one for one in every if one[1].vhost == caller.vhost and self._plane.may_read(caller, _names(one[1]))]
        statuses: list[dict[str, Any]] = []
        for start in range(0, len(own), _LIST_AT_ONCE):
            statuses += self._asks.ask(caller, partial(self._statuses, own[start : start + _LIST_AT_ONCE]))
        return sorted(statuses, key=lambda one: str(one["name"]))

    async def _statuses(self, subscriptions: list[tuple[bytes, Subscription]]) -> list[dict[str, Any]]:
        return [await self._status(identity, one) for identity, one in subscriptions]

    def status(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.status."""
        if arguments.given("sub_id"):
            identity = _identity(arguments)
        else:
            name = arguments.text("name", self._plane.limits.dataplane_name_max)
            if self._is_away():  # readers of other queues ask by name, and wait for no engine
                refused = unknown(caller, name)
                raise Refused(refused.code, f"{refused.text}, and {AWAY}")
            identity = self._named(caller, name)
        arguments.done()

        async def work(subscription: Subscription, judge: Judge) -> dict[str, Any]:
            return await self._status(identity, subscription)

        return self._call(caller, identity, work)

    async def _status(self, identity: bytes, subscription: Subscription) -> dict[str, Any]:
        sealed = subscription.sealed
        by_queue = {} if sealed is None else {subscription.names[queue]: count for queue, (count, _) in sealed.parts.items()}
        return {
            "name": subscription.name,
            "vhost": subscription.vhost,
            **_opened(identity, subscription),
            "created_ms": subscription.created_ms,
            "left_out": 0,
            "heard_ms": await self._heard_ms(identity),
            "prepared_messages": 0 if sealed is None else sealed.count,
            "prepared_bytes": 0 if sealed is None else sealed.size,
            "prepared_age_ms": None if sealed is None else max(0, self._plane.now_ms() - sealed.since_ms),
            "prepared_queues": by_queue,
        }

    def reset(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.reset: an operator decides. The reader that has the subscription open is fenced."""
        name = arguments.text("name", self._plane.limits.dataplane_name_max)
        action = arguments.choice("action", ("redeliver", "commit", "delete"))
        seq = arguments.integer("seq", 1, SEQ_MAX, None)
        may_duplicate = arguments.boolean("may_duplicate", True)
        arguments.done()
        identity = self._named(caller, name)

        async def work(subscription: Subscription, judge: Judge) -> dict[str, Any]:
            def refuses(subscription: Subscription) -> None:
                judge(subscription)
                sealed = subscription.sealed
                is_meant = sealed is not None and seq in (None, sealed.seq)
                if sealed is not None and is_meant and action != "commit" and not may_duplicate and may_be_read(sealed):
                    raise planned(subscription, sealed.seq)

            refuses(subscription)
            log.warning("subscription %s: reset (%s) by user %s", name, action, caller.user)
            if action == "delete":
                return {**await self._status(identity, await self._subscriptions.forget(identity, refuses)), "deleted": True}
            after = await self._subscriptions.reset(identity, seq, action == "commit", refuses)
            if after.epoch != subscription.epoch:
                await self._leave(identity, after)
            return await self._status(identity, after)

        answer = self._call(caller, identity, work)
        if action == "delete":
            with self._lock:
                self._seen.pop(identity, None)
        return answer


def may_be_read(sealed: SealedSet, before: int = SEQ_MAX) -> bool:
    """Whether tasks may have read the set. Args: before: only what was planned under an older epoch counts."""
    return sealed.read and sealed.planned is not None and sealed.planned < before


def _judge_opening(subscription: Subscription, opening: _Opening, active_ms: int | None) -> None:
    """Raises: Refused QUEUES_DIFFER, CHECKPOINT_NEW, CHECKPOINT_LOST, READER_ACTIVE."""
    wanted, queues = opening.wanted, [subscription.names[queue] for queue in subscription.queues]
    is_other = wanted is not None and sorted(wanted) != sorted(queues)
    if opening.same and is_other:
        text = f"subscription '{subscription.name}' reads {', '.join(queues)}: it can't be opened with {', '.join(wanted or ())}"
        raise Refused("QUEUES_DIFFER", f"{text}; take another name, or `sub.reset` it with action delete")
    if opening.fresh is None:
        if is_other and active_ms is not None:
            raise active(subscription, active_ms)
        return
    if subscription.committed and opening.fresh == "refuse":
        raise used(subscription, active_ms is not None)
    if active_ms is not None:
        raise active(subscription, active_ms)
    sealed = subscription.sealed
    if sealed is not None and may_be_read(sealed) and opening.on_lost == "fail":
        raise lost(subscription, sealed.seq)


def _sealed(subscription: Subscription) -> SealedSet:
    """Of one that has a set."""
    assert subscription.sealed is not None
    return subscription.sealed


def _names(subscription: Subscription) -> frozenset[str]:
    """Queues that it reads, and those of which its set has messages."""
    return frozenset(subscription.names.values())


def _identity(arguments: Arguments) -> bytes:
    identity: str = arguments.identity("sub_id").hex
    return identity.encode()


def _text(identity: bytes) -> str:
    return str(uuid.UUID(identity.decode()))


def _deleted(caller: Caller, identity: bytes) -> Refused:
    return Refused("NOT_FOUND", f"there is no subscription with id {_text(identity)} in vhost '{caller.vhost}': it was deleted")


def _opened(identity: bytes, subscription: Subscription) -> dict[str, Any]:
    sealed = subscription.sealed
    return {
        "sub_id": _text(identity),
        "epoch": subscription.epoch,
        "committed": subscription.committed,
        "prepared": None if sealed is None else sealed.seq,
        "planned": sealed is not None and sealed.planned is not None,
        "queues": [subscription.names[queue] for queue in subscription.queues],
        "pattern": None,
    }


def _facts(subscription: Subscription, sealed: SealedSet) -> dict[str, Any]:
    queues = [
        {"queue": subscription.names[queue], "count": count, "bytes": size, "first": 0, "last": 0}
        for queue, (count, size) in sorted(sealed.parts.items())
    ]
    return {"seq": sealed.seq, "count": sealed.count, "bytes": sealed.size, "queues": queues}


def _check_seq(subscription: Subscription, seq: int) -> None:
    if seq <= subscription.committed:
        name, committed = subscription.name, subscription.committed
        text = f"subscription '{name}' has committed set {committed}, and is asked for set {seq}: the checkpoint is older"
        raise Refused("CHECKPOINT_BEHIND", text)
