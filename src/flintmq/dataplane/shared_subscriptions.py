"""Subscriptions on shared queues: the sub.* calls, on any node that has the engine.

in: calls, each with its user. out: changed rows of the engine (shared/sets.py), tickets, rows.

H1  What docs/DATAPLANE.md promises of a subscription holds here over all nodes: the row in the engine is the subscription, and this module
    keeps only what makes calls cheap.
H2  A call with an epoch below the row's is refused in the transaction that would change something.
H3  A set is decided by one transaction; its end is made in parts, and gone on with by the next call about the subscription.
H4  The names of queues that a row has are authorized for each call, and a transaction refuses a row that has others meanwhile.
H5  A reader's sign of life is a row that changes: nodes look whether it changed for `subscription_alive_ms` on their own clock.
"""

from __future__ import annotations

import secrets
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from flintmq.dataplane.arguments import Arguments
from flintmq.dataplane.choice import in_use, there
from flintmq.dataplane.engine_calls import EngineCalls
from flintmq.dataplane.shared import Caller, Plane, log
from flintmq.dataplane.shared_rows import Manifest, read_piece, rows_of
from flintmq.dataplane.taking import SEQ_MAX, active, ahead, lost, planned, unknown, unread, used
from flintmq.dataplane.wire import Refused
from flintmq.ports import Verb
from flintmq.shared import sets
from flintmq.shared.active import has_holder
from flintmq.shared.keys import SUBSCRIPTION_BYTES, SUBSCRIPTION_MADE, QueueKeys, definition, subscription_row
from flintmq.shared.queue import attempt
from flintmq.shared.sets import BACK, COMMIT, READY, TAKING, Bounds, Held, Record

if TYPE_CHECKING:
    from flintmq.kv.engine import Engine, Transaction

T = TypeVar("T")
# tries of a call whose row changed its queues, or whose name another call took, in between
_TRIES = 5
# parts of a set that are read, and bytes of contents and messages that one piece of rows has, in one request to the engine
_PARTS_AT_ONCE, _PIECE_BYTES, _PIECE_ROWS = 20, 1 << 20, 500
# parts of deleted sets that a deletion gives back by itself; the nodes do the rest
_PARTS_ENDED = 200
# subscriptions of a list that are read in one request
_LIST_AT_ONCE = 100
# seconds between two looks for messages in sub.acquire: the first, and the longest
_LOOK_S, _LOOK_MAX_S = 0.02, 0.2
# bytes of a mark, and of a sign of life
_TOKEN_BYTES = 8
_AGAIN = "again"


class _Moved(Refused):
    """The row has queues that were not asked about: they are to be authorized first."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__("BUSY", "the queues of the subscription changed")
        self.names = names


@dataclass(slots=True)
class _Seen:
    """What this node knows of a subscription. names: its queues, as they were; beat: the sign of life that was read last, None: none was;
    heard_ns: since when it is that one; written_ns: when this node wrote one; empty_ns: when nothing was found; manifest: of its set, by
    (seq, wall ms, messages)."""

    names: frozenset[str] = frozenset()
    beat: bytes | None = None
    heard_ns: int = 0
    written_ns: int | None = None
    empty_ns: int | None = None
    manifest: tuple[tuple[int, int, int], Manifest] | None = None


@dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments of sub.acquire."""

    epoch: int
    seq: int
    messages: int
    bytes: int
    redeliver: bool


class SharedSubscriptions:
    """See module. Threading: threads of channels; bodies of transactions run on the workers of shared queues."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._calls = EngineCalls(plane)
        self._lock = threading.Lock()
        self._seen: OrderedDict[bytes, _Seen] = OrderedDict()

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

    def _change(self, caller: Caller, identity: bytes, body: Callable[[Transaction, Record], T]) -> T:
        """Runs a transaction about a subscription, once (T4), for a caller that may read all of its queues (H4). Raises: Refused."""
        seen = self._peek(identity)
        names = seen.names if self._plane.may_read(caller, seen.names) else frozenset[str]()
        for _ in range(_TRIES):
            try:
                return self._calls.ask(caller, partial(self._run, caller, identity, names, body))
            except _Moved as moved:
                names = moved.names
                self._plane.authorize(caller, Verb.READ, "queue", sorted(names))
                self._known(identity).names = names
        raise Refused("BUSY", "the queues of the subscription change all the time")

    def _run(self, caller: Caller, identity: bytes, names: frozenset[str], body: Callable[[Transaction, Record], T], engine: Engine) -> T:
        mark = secrets.token_hex(_TOKEN_BYTES)
        made: list[T] = []

        def run(transaction: Transaction) -> T:
            record = sets.load(transaction, identity)
            if record is None or record.vhost != caller.vhost:
                raise _deleted(caller, identity)
            if record.mark == mark:
                return made[-1]
            if not record.names() <= names:
                raise _Moved(frozenset(record.names()))
            before = record.encode()
            try:
                made.append(body(transaction, record))
            except sets.Stalled:
                raise Refused("BUSY", "what stands first in the queue has expired, and its nodes are ending it") from None
            if record.encode() != before:
                sets.save(transaction, record, mark)
            return made[-1]

        return attempt(engine, run, self._plane.limits.shared_patience_ms)

    def _engine(self) -> Engine:
        """In a transaction, so it is open."""
        shared = self._plane.broker.shared
        assert shared is not None
        engine: Engine = shared.node()[0]
        return engine

    def _find(self, caller: Caller, name: str) -> bytes | None:
        """The id of a subscription of that name."""

        def work(engine: Engine) -> bytes | None:
            return attempt(
                engine, lambda transaction: sets.identity_of(transaction, caller.vhost, name), self._plane.limits.shared_patience_ms
            )

        return self._calls.ask(caller, work)

    def _named(self, caller: Caller, name: str) -> bytes:
        """The same. Raises: Refused NOT_FOUND, also while nobody knows: other queues' readers ask by name, and wait for no engine."""
        if self._calls.is_away():
            refused = unknown(caller, name)
            raise Refused(refused.code, f"{refused.text}, and the engine of shared queues does not answer")
        identity = self._find(caller, name)
        if identity is None:
            raise unknown(caller, name)
        return identity

    def _subject(self, caller: Caller, arguments: Arguments) -> tuple[bytes, int, int]:
        return arguments.identity("sub_id").bytes, arguments.integer("epoch", 1, SEQ_MAX), arguments.integer("seq", 1, SEQ_MAX)

    # --- signs of life --------------------------------------------------------------------------------------------------

    @staticmethod
    def _check(record: Record, epoch: int) -> None:
        """H2. Raises: Refused FENCED, BAD_ARGUMENT."""
        if epoch < record.epoch:
            text = f"subscription '{record.name}' was opened again (epoch {record.epoch}, this is {epoch}): another reader has it"
            raise Refused("FENCED", text)
        if epoch > record.epoch:
            text = f"subscription '{record.name}': epoch {epoch} was never given out (the present one is {record.epoch})"
            raise Refused("BAD_ARGUMENT", text)

    def _hear(self, transaction: Transaction, record: Record, epoch: int, anew: bool = False) -> None:
        """The same, and the caller, its reader, works (H5). What only looks does not count."""
        self._check(record, epoch)
        seen, now = self._known(record.identity), self._plane.clock.monotonic_ns()
        written = seen.written_ns
        if anew or not seen.beat or written is None or now - written >= self._plane.limits.subscription_alive_ms * 250_000:
            seen.beat, seen.written_ns = secrets.token_bytes(_TOKEN_BYTES), now
            transaction.set(subscription_row(record.identity, b"b"), seen.beat)
        seen.heard_ns = now

    def _heard_ms(self, transaction: Transaction, record: Record) -> int | None:
        """Milliseconds since the sign of life changed, as far as this node knows; None: the reader said good-bye, or there was none."""
        beat = transaction.get(subscription_row(record.identity, b"b"))
        seen, now = self._known(record.identity), self._plane.clock.monotonic_ns()
        if not beat:
            seen.beat = None
            return None
        if beat != seen.beat:
            seen.beat, seen.heard_ns = beat, now
        return max(0, now - seen.heard_ns) // 1_000_000

    def _active_ms(self, heard_ms: int | None) -> int | None:
        return heard_ms if heard_ms is not None and heard_ms < self._plane.limits.subscription_alive_ms else None

    # --- open -----------------------------------------------------------------------------------------------------------

    def open(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.open."""
        limits = self._plane.limits
        mode = arguments.choice("mode", ("create", "attach"), "create")
        identity = arguments.identity("sub_id").bytes if mode == "attach" and arguments.given("sub_id") else None
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
            raise Refused(
                "BAD_ARGUMENT", "sub.open: a subscription on shared queues starts at earliest: purge the queue to start behind it"
            )
        self._plane.check_grants(caller, Verb.READ)
        for _ in range(_TRIES):
            known = identity if identity is not None else self._find(caller, name)
            if known is None:
                if mode == "attach":
                    raise unknown(caller, name)
                made = self._create(caller, name, queues or [])
                if made is not None:
                    return made
                continue
            wanted = self._wanted(caller, known, queues)
            opens = partial(self._open, wanted=wanted, same=mode == "create" and fresh != "continue", fresh=fresh, on_lost=on_lost)
            try:
                return self._change(caller, known, opens)
            except Refused as refused:
                if refused.code != "NOT_FOUND" or identity is not None:
                    raise
        raise Refused("BUSY", f"subscription '{name}' comes and goes")

    def _wanted(self, caller: Caller, identity: bytes, queues: list[str] | None) -> list[str] | None:
        """The queues that are asked for; of those it read before some may be gone. Raises: Refused FORBIDDEN, NOT_FOUND, BAD_ARGUMENT."""
        if queues is None:
            return None
        self._plane.authorize(caller, Verb.READ, "queue", queues)
        before = self._change(caller, identity, lambda transaction, record: list(record.queues))
        self._readable(caller.vhost, queues, before)
        return queues

    def _readable(self, vhost: str, names: list[str], before: list[str]) -> list[Any]:
        """The shared queues of these names that this node has. Raises: Refused NOT_FOUND: a new one is not there, or none; BAD_ARGUMENT."""
        return there(lambda name: self._plane.shared_queue(vhost, name), names, before)

    def _open(
        self, transaction: Transaction, record: Record, *, wanted: list[str] | None, same: bool, fresh: str | None, on_lost: str
    ) -> dict[str, Any]:
        is_other = wanted is not None and sorted(wanted) != sorted(record.queues)
        if same and is_other:
            text = f"subscription '{record.name}' reads {', '.join(record.queues)}: it can't be opened with {', '.join(wanted or ())}"
            raise Refused("QUEUES_DIFFER", f"{text}; take another name, or `sub.reset` it with action delete")
        active_ms, held = self._active_ms(self._heard_ms(transaction, record)), record.held
        if fresh is not None:
            if record.committed and fresh == "refuse":
                raise used(record, active_ms is not None)
            if active_ms is not None:
                raise active(record, active_ms)
            if held is not None and held.state == READY and record.may_be_read(held.seq) and on_lost == "fail":
                raise lost(record, held.seq)
        elif is_other and active_ms is not None:
            raise active(record, active_ms)
        record.epoch += 1
        record.drain = None
        if is_other and wanted is not None:
            record.queues = wanted
        self._hear(transaction, record, record.epoch, anew=True)
        self._known(record.identity).empty_ns = None
        return _opened(record)

    def _create(self, caller: Caller, name: str, queues: list[str]) -> dict[str, Any] | None:
        """None: somebody else was faster. Raises: Refused NOT_FOUND, FORBIDDEN, LIMIT, QUEUE_BUSY, BAD_ARGUMENT."""
        plane = self._plane
        plane.authorize(caller, Verb.READ, "queue", queues)
        for queue in self._readable(caller.vhost, queues, []):
            if (busy := in_use(queue)) is not None:
                raise busy
        record = Record(uuid.uuid4().bytes, caller.vhost, name, caller.name, 1, 0, queues, plane.now_ms())
        mark = secrets.token_hex(_TOKEN_BYTES)

        def work(engine: Engine) -> dict[str, Any] | None:
            for _ in range(_TRIES):
                token = attempt(engine, lambda transaction: transaction.get(SUBSCRIPTION_MADE), plane.limits.shared_patience_ms)
                self._check_quota(engine, caller)
                made = attempt(engine, partial(enter, token), plane.limits.shared_patience_ms)
                if made is None or made:
                    return _opened(record) if made else None
            raise Refused("BUSY", "other subscriptions are being made")

        def enter(token: bytes | None, transaction: Transaction) -> bool | None:
            """None: the name is taken; False: the count is out of date."""
            there = sets.identity_of(transaction, record.vhost, record.name)
            if there is not None:
                return True if there == record.identity else None
            if transaction.get(SUBSCRIPTION_MADE) != token:
                return False
            transaction.set(SUBSCRIPTION_MADE, secrets.token_bytes(_TOKEN_BYTES))
            sets.enter_name(transaction, record)
            sets.save(transaction, record, mark)
            self._hear(transaction, record, 1, anew=True)
            return True

        made = self._calls.ask(caller, work)
        if made is not None:
            self._known(record.identity).names = frozenset(queues)
            made["discarded"] = 0
        return made

    def _check_quota(self, engine: Engine, caller: Caller) -> None:
        """Raises: Refused LIMIT."""
        limits = self._plane.limits
        whole = mine = here = 0
        for key, user, _ in sets.names(engine):
            whole += 1
            mine += user == caller.name
            here += sets.is_of(key, caller.vhost)
        taken = (
            (mine, limits.subscriptions_user_max, f"user '{caller.name}' has"),
            (here, limits.subscriptions_vhost_max, f"vhost '{caller.vhost}' has"),
            (whole, limits.shared_subscriptions_max, "there are"),
        )
        for count, most, who in taken:
            if count >= most:
                raise Refused("LIMIT", f"{who} {most} subscriptions on shared queues already: `sub.reset` some with action delete")

    def alive(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.alive."""
        identity, epoch = arguments.identity("sub_id").bytes, arguments.integer("epoch", 1, SEQ_MAX)
        leave = arguments.boolean("leave", False)
        arguments.done()

        def body(transaction: Transaction, record: Record) -> dict[str, Any]:
            self._hear(transaction, record, epoch)
            if leave:
                transaction.set(subscription_row(identity, b"b"), b"")
                self._known(identity).beat = None
            if record.held is not None and record.held.is_ending:
                sets.end_part(transaction, record)
            return {"epoch": record.epoch, "committed": record.committed}

        return self._change(caller, identity, body)

    # --- sets -----------------------------------------------------------------------------------------------------------

    def acquire(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.acquire."""
        plane, limits = self._plane, self._plane.limits
        identity, epoch, seq = self._subject(caller, arguments)
        messages = arguments.integer("max_messages", 1, SEQ_MAX, limits.shared_set_messages_max)
        size = arguments.integer("max_bytes", 1, SEQ_MAX, limits.shared_set_bytes_max)
        wait_ms = min(arguments.integer("max_wait_ms", 0, 2**31, 0), limits.acquire_wait_ms_max)
        redeliver = arguments.choice("onlost", ("fail", "redeliver"), "fail") == "redeliver"
        arguments.done()
        asked = _Asked(epoch, seq, min(messages, limits.shared_set_messages_max), min(size, limits.shared_set_bytes_max), redeliver)
        until, pause = time.monotonic() + wait_ms / 1000, _LOOK_S
        nothing = {"seq": seq, "count": 0, "bytes": 0, "queues": []}
        while True:
            now, empty_ns = plane.clock.monotonic_ns(), self._peek(identity).empty_ns
            if empty_ns is None or now - empty_ns >= limits.shared_set_look_ms * 1_000_000:
                step = self._change(caller, identity, partial(self._step, asked=asked))
                if step == _AGAIN:
                    continue
                if isinstance(step, dict):
                    return step
            if time.monotonic() >= until:
                return nothing
            plane.pause(min(pause, max(0.0, until - time.monotonic())))
            pause = min(pause * 1.5, _LOOK_MAX_S)

    def _step(self, transaction: Transaction, record: Record, *, asked: _Asked) -> dict[str, Any] | str | None:
        """One transaction on the way to a set: the answer; `_AGAIN`: there is more to do; None: there is nothing."""
        self._hear(transaction, record, asked.epoch)
        _check_seq(record, asked.seq)
        if asked.seq > record.committed + 1:
            raise ahead(record, asked.seq)
        held = record.held
        if held is not None and held.is_ending:
            sets.end_part(transaction, record)
            return _AGAIN
        if held is None or held.state == TAKING:
            return self._take(transaction, record, asked)
        is_lost = record.may_be_read(held.seq, asked.epoch)
        # One that nobody has seen and of which nothing is left makes way: it would mean "nothing is there" for ever.
        if not is_lost and (held.count or record.is_planned(held.seq)):
            return _facts(held)
        if is_lost and not asked.redeliver:
            raise lost(record, held.seq)
        log.warning("subscription %s: set %d (%d messages) goes back to its queues", record.name, held.seq, held.count)
        held.state, record.planned = BACK, None
        return _AGAIN

    def _take(self, transaction: Transaction, record: Record, asked: _Asked) -> dict[str, Any] | str | None:
        """One part of a set, of the first queue in its turn that has something."""
        plane, limits = self._plane, self._plane.limits
        held = record.held or Held(asked.seq, plane.now_ms())
        record.held = held
        room, bytes_left = asked.messages - held.count, asked.bytes - held.bytes
        queues = self._free(transaction, record) if room > 0 and bytes_left > 0 else []
        engine = self._engine()
        batch, bytes_max = sets.at_once(engine, limits), min(limits.shared_batch_bytes, engine.limits.transaction_bytes // 2)
        taken, goes_on = 0, False
        turn = (held.seq + held.parts) % max(1, len(queues))  # another queue is first each time
        for name in queues[turn:] + queues[:turn]:
            most = room if record.drain is None else min(room, record.drain.get(name, 0))
            try:
                if most > 0:
                    taken, goes_on = sets.take_part(transaction, record, name, Bounds(most, bytes_left, plane.now_ms()), batch, bytes_max)
            except sets.Stalled:
                if not held.count:
                    raise
            if taken:
                if record.drain is not None:
                    record.drain[name] -= taken
                break
        if not held.count:
            record.held = None
            self._known(record.identity).empty_ns = plane.clock.monotonic_ns() if record.drain is None else None
            return None
        if taken and (goes_on or len(queues) > 1) and held.count < asked.messages:
            return _AGAIN
        held.state = READY
        return _facts(held)

    def _free(self, transaction: Transaction, record: Record) -> list[str]:
        """Queues of the subscription that this node has, that are not paused here, and that no consumer has for itself.

        Raises: Refused NOT_FOUND, QUEUE_BUSY.
        """
        names = []
        for queue in self._readable(record.vhost, record.queues, record.queues):
            if (busy := in_use(queue)) is not None:
                raise busy
            if queue.policy.single_active_consumer:
                life = transaction.get(definition(record.vhost, queue.name), snapshot=True)
                if life is not None and has_holder(transaction, QueueKeys(life)):
                    text = f"queue '{queue.name}' in vhost '{queue.vhost}' has x-single-active-consumer, and a consumer on some node"
                    raise Refused("QUEUE_BUSY", f"{text}: its messages are for that one alone. Stop the consumer")
            if queue.queue_id not in self._plane.broker.paused:
                names.append(queue.name)
        return names

    def plan(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.plan."""
        identity, epoch, seq = self._subject(caller, arguments)
        slices = arguments.integer("slices", 1, self._plane.limits.slices_max, 1)
        arguments.done()

        def body(transaction: Transaction, record: Record) -> Held:
            self._hear(transaction, record, epoch)
            _check_seq(record, seq)
            held = _ready(record, seq)
            for life in list(held.lives):
                if transaction.get(QueueKeys(life).alive) is None:
                    del held.lives[life]  # its messages went with the queue
            record.planned = (seq, epoch, held.since_ms)
            return replace(held, lives=dict(held.lives))

        held = self._change(caller, identity, body)
        manifest = self._manifest(caller, identity, held)
        bounds = manifest.bounds(slices)
        ticket = {"kind": "set", "sub_id": _text(identity), "epoch": epoch, "seq": seq, "rows": manifest.count}
        tickets = [{**ticket, "slice": number, "slices": len(bounds) - 1} for number in range(len(bounds) - 1)]
        return {"seq": seq, "count": manifest.count, "bytes": held.bytes, "tickets": tickets}

    def _manifest(self, caller: Caller, identity: bytes, held: Held) -> Manifest:
        """Which messages a set that is ready has. Read once, and again when other sets were read since."""
        seen, key = self._known(identity), (held.seq, held.since_ms, held.count)
        known = seen.manifest
        if known is not None and known[0] == key:
            return known[1]
        parts: list[sets.Part] = []
        while len(parts) < held.parts:
            first = len(parts)

            def work(engine: Engine, first: int = first) -> list[sets.Part]:
                transaction = engine.begin()
                try:
                    return sets.parts(transaction, identity, held.seq, first, min(_PARTS_AT_ONCE, held.parts - first))
                finally:
                    transaction.close()

            some = self._calls.ask(caller, work)
            if not some:
                break
            parts += some
        manifest = Manifest(held.seq, {life: one[0] for life, one in held.lives.items()}, parts)
        if manifest.count != held.count:
            raise Refused("NOT_PREPARED", f"set {held.seq} of subscription {_text(identity)} was decided meanwhile")
        with self._lock:
            seen.manifest = (key, manifest)
            known_sets = [one for one in self._seen.values() if one.manifest is not None]
            for one in known_sets[: max(0, len(known_sets) - self._plane.limits.shared_sets_known)]:
                one.manifest = None
        return manifest

    def rows(self, caller: Caller, arguments: Arguments) -> tuple[dict[str, Any], list[bytes]]:
        """rows of a ticket of kind set."""
        limits = self._plane.limits
        identity, epoch, seq = self._subject(caller, arguments)
        count_planned = arguments.integer("rows", 1, SEQ_MAX)
        slices = arguments.integer("slices", 1, min(count_planned, limits.slices_max), 1)
        number = arguments.integer("slice", 0, slices - 1, 0)
        first = arguments.integer("first", 0, SEQ_MAX, 0)
        count = arguments.integer("count", 1, SEQ_MAX, limits.dataplane_rows_max)
        arguments.done()

        def asked(transaction: Transaction, record: Record) -> Held:
            self._check(record, epoch)
            _check_seq(record, seq)
            held = _ready(record, seq)
            held.read = True
            return replace(held, lives=dict(held.lives))

        held = self._change(caller, identity, asked)
        if count_planned != held.count:
            text = f"set {seq} had {count_planned} messages when it was planned, and has {held.count} now: a queue was deleted"
            raise Refused("SET_CHANGED", text)
        manifest = self._manifest(caller, identity, held)
        bounds = manifest.bounds(slices)
        begin = min(bounds[number] + first, bounds[number + 1])
        end = min(begin + min(count, limits.dataplane_rows_max), bounds[number + 1])
        queues: list[list[Any]] = []
        rows: list[bytes] = []
        contents: list[bytes] = []
        inline, row = 0, begin
        for piece in manifest.pieces(begin, end, _PIECE_ROWS, _PIECE_BYTES):
            read = partial(self._read, seq=seq, epoch=epoch, piece=piece)
            more_rows, more_contents = rows_of(seq, piece, self._change(caller, identity, read))
            rows += more_rows
            contents += more_contents
            inline += sum(map(len, more_contents))
            row += len(more_rows)
            if queues and queues[-1][0] == piece.name:
                queues[-1][1] += len(more_rows)
            else:
                queues.append([piece.name, len(more_rows), 0])
            if inline >= limits.dataplane_inline_max:
                break
        return {"queues": queues, "more": row < bounds[number + 1]}, [*rows, *contents]

    def _read(self, transaction: Transaction, record: Record, *, seq: int, epoch: int, piece: Any) -> list[bytes]:
        self._check(record, epoch)
        _check_seq(record, seq)
        _ready(record, seq)
        return read_piece(self._engine(), transaction, QueueKeys(piece.life).set_leases(record.identity, seq), piece)

    def commit(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.commit: one transaction decides (H3)."""
        identity, epoch = arguments.identity("sub_id").bytes, arguments.integer("epoch", 1, SEQ_MAX)
        upto = arguments.integer("upto", 0, SEQ_MAX)
        only_read = arguments.boolean("read", False)
        arguments.done()

        def body(transaction: Transaction, record: Record) -> dict[str, Any]:
            self._hear(transaction, record, epoch)
            if upto > record.committed:
                held = record.held
                if held is None or held.state != READY or held.seq != upto:
                    raise ahead(record, upto)
                if only_read and held.read is False and held.count:
                    raise unread(record, upto, held.count)
                _commit(record, held)
            return {"committed": record.committed}

        answer = self._change(caller, identity, body)
        try:
            self._finish(caller, identity)
        except Refused as refused:
            # It is decided. The next call about the subscription goes on with the rest.
            log.info("subscription %s: the end of set %d waits: %s", _text(identity), upto, refused)
        return answer

    def _finish(self, caller: Caller, identity: bytes) -> None:
        """Ends what a decided set still has, a part at a time. Raises: Refused."""

        def body(transaction: Transaction, record: Record) -> bool:
            return record.held is not None and record.held.is_ending and sets.end_part(transaction, record)

        while self._change(caller, identity, body):
            pass

    # --- looking and deciding -------------------------------------------------------------------------------------------

    def tail(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.tail. A drain counts: what is ready now is how many messages may still be taken of each queue."""
        identity = arguments.identity("sub_id").bytes
        epoch = arguments.integer("epoch", 1, SEQ_MAX, None)
        drain = arguments.boolean("drain", False)
        arguments.done()

        def body(transaction: Transaction, record: Record) -> list[dict[str, Any]]:
            if epoch is not None:
                self._check(record, epoch)
            prepared = {} if record.held is None or record.held.is_ending else _by_queue(record.held)
            figures: list[dict[str, Any]] = []
            for name in record.queues:
                life = transaction.get(definition(record.vhost, name), snapshot=True)
                if life is None:
                    continue  # deleted: sub.acquire says so
                counts = sets.counts_of(transaction, QueueKeys(life), self._plane.limits.shared_nodes_max)
                facts = {"queue": name, "ready": counts.ready, "bytes": counts.ready_bytes, "oldest_us": None}
                figures.append({**facts, "prepared": prepared.get(name, [0, 0])[0], "next": 0, "last": SEQ_MAX})
            if drain:
                record.drain = {one["queue"]: one["ready"] for one in figures}
                self._known(identity).empty_ns = None
            return figures

        queues = self._change(caller, identity, body)
        return {
            "queues": queues,
            "behind_messages": sum(one["ready"] for one in queues),
            "behind_bytes": sum(one["bytes"] for one in queues),
            "oldest_age_ms": None,
        }

    def list_all(self, caller: Caller) -> list[dict[str, Any]]:
        """What sub.list has of them: those whose queues the caller may read. A row that can't be read hides no other."""
        if self._calls.is_away():
            raise Refused("UNAVAILABLE", "the engine of shared queues does not answer")
        identities = self._calls.ask(caller, lambda engine: [one for _, _, one in sets.names(engine, caller.vhost)])
        statuses: list[dict[str, Any]] = []
        for start in range(0, len(identities), _LIST_AT_ONCE):
            statuses += self._calls.ask(caller, partial(self._statuses, caller, identities[start : start + _LIST_AT_ONCE]))
        return statuses

    def _statuses(self, caller: Caller, identities: list[bytes], engine: Engine) -> list[dict[str, Any]]:
        statuses = []
        for identity in identities:
            transaction = engine.begin()
            try:
                record = sets.load(transaction, identity, snapshot=True)
                if record is not None and record.vhost == caller.vhost and self._plane.may_read(caller, record.names()):
                    statuses.append(self._status(transaction, record))
            except ValueError as error:
                log.warning("%s", error)
            finally:
                transaction.close()
        return statuses

    def status(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.status."""
        if arguments.given("sub_id"):
            identity = arguments.identity("sub_id").bytes
        else:
            identity = self._named(caller, arguments.text("name", self._plane.limits.dataplane_name_max))
        arguments.done()
        return self._change(caller, identity, self._status)

    def _status(self, transaction: Transaction, record: Record) -> dict[str, Any]:
        held = None if record.held is None or record.held.is_ending else record.held
        return {
            "name": record.name,
            "vhost": record.vhost,
            **_opened(record),
            "created_ms": record.created_ms,
            "left_out": 0,
            "heard_ms": self._heard_ms(transaction, record),
            "prepared_messages": 0 if held is None else held.count,
            "prepared_bytes": 0 if held is None else held.bytes,
            "prepared_age_ms": None if held is None else max(0, self._plane.now_ms() - held.since_ms),
            "prepared_queues": {} if held is None else {name: one[0] for name, one in _by_queue(held).items()},
        }

    def reset(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.reset: an operator decides. The reader that has the subscription open is fenced."""
        name = arguments.text("name", self._plane.limits.dataplane_name_max)
        action = arguments.choice("action", ("redeliver", "commit", "delete"))
        seq = arguments.integer("seq", 1, SEQ_MAX, None)
        may_duplicate = arguments.boolean("may_duplicate", True)
        arguments.done()

        def body(transaction: Transaction, record: Record) -> dict[str, Any]:
            held = None if record.held is None or record.held.is_ending else record.held
            if seq is not None and (held is None or held.seq != seq):
                return self._status(transaction, record)  # done before
            if held is not None and action != "commit" and not may_duplicate and record.may_be_read(held.seq):
                raise planned(record, held.seq)
            log.warning("subscription %s: reset (%s) by user %s", name, action, caller.user)
            transaction.set(subscription_row(record.identity, b"b"), b"")
            if held is not None:
                record.epoch += 1
                if action == "commit" and held.state == READY:
                    _commit(record, held)
                else:
                    held.state, record.planned = BACK, None
            return self._status(transaction, record)

        identity = self._named(caller, name)
        if action == "delete":
            return self._delete(caller, identity, body)
        answer = self._change(caller, identity, body)
        self._finish(caller, identity)
        return answer

    def _delete(self, caller: Caller, identity: bytes, body: Callable[[Transaction, Record], dict[str, Any]]) -> dict[str, Any]:
        """The row goes in one transaction; what the set has goes back by whichever node looks next, and some of it now."""

        def both(transaction: Transaction, record: Record) -> dict[str, Any]:
            return {**body(transaction, record), "deleted": True}

        answer = self._calls_delete(caller, identity, both)
        for _ in range(_PARTS_ENDED):
            if not self._calls.ask(caller, sets.end_deleted):
                break
        with self._lock:
            self._seen.pop(identity, None)
        return answer

    def _calls_delete(self, caller: Caller, identity: bytes, body: Callable[[Transaction, Record], dict[str, Any]]) -> dict[str, Any]:
        names = frozenset(self._change(caller, identity, lambda transaction, record: record.names()))
        self._plane.authorize(caller, Verb.READ, "queue", sorted(names))

        def work(engine: Engine) -> dict[str, Any]:
            made: list[dict[str, Any]] = []

            def run(transaction: Transaction) -> dict[str, Any]:
                record = sets.load(transaction, identity)
                if record is None or record.vhost != caller.vhost:
                    if made:
                        return made[-1]  # its outcome was not known: it is gone
                    raise _deleted(caller, identity)
                if not record.names() <= names:
                    raise Refused("BUSY", "the queues of the subscription changed")
                made.append(body(transaction, record))
                sets.delete(transaction, record)
                return made[-1]

            return attempt(engine, run, self._plane.limits.shared_patience_ms)

        return self._calls.ask(caller, work)


def _text(identity: bytes) -> str:
    return str(uuid.UUID(bytes=identity)) if len(identity) == SUBSCRIPTION_BYTES else identity.hex()


def _deleted(caller: Caller, identity: bytes) -> Refused:
    return Refused("NOT_FOUND", f"there is no subscription with id {_text(identity)} in vhost '{caller.vhost}': it was deleted")


def _opened(record: Record) -> dict[str, Any]:
    prepared = record.held.seq if record.held is not None and record.held.state == READY else None
    return {
        "sub_id": record.sub_id,
        "epoch": record.epoch,
        "committed": record.committed,
        "prepared": prepared,
        "planned": prepared is not None and record.is_planned(prepared),
        "queues": list(record.queues),
        "pattern": None,
    }


def _by_queue(held: Held) -> dict[str, list[int]]:
    """Queue -> [messages, bytes] of a set."""
    by_queue: dict[str, list[int]] = {}
    for name, count, size in held.lives.values():
        one = by_queue.setdefault(name, [0, 0])
        one[0] += count
        one[1] += size
    return by_queue


def _facts(held: Held) -> dict[str, Any]:
    queues = [{"queue": name, "count": count, "bytes": size, "first": 0, "last": 0} for name, (count, size) in _by_queue(held).items()]
    return {"seq": held.seq, "count": held.count, "bytes": held.bytes, "queues": queues}


def _check_seq(record: Record, seq: int) -> None:
    if seq <= record.committed:
        text = f"subscription '{record.name}' has committed set {record.committed}, and is asked for set {seq}: the checkpoint is older"
        raise Refused("CHECKPOINT_BEHIND", text)


def _ready(record: Record, seq: int) -> Held:
    held = record.held
    if held is None or held.seq != seq or held.state != READY:
        raise Refused("NOT_PREPARED", f"subscription '{record.name}': set {seq} is not prepared")
    return held


def _commit(record: Record, held: Held) -> None:
    record.committed, record.planned = held.seq, None
    held.state = COMMIT
