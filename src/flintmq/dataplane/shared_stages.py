"""Stages and scopes on shared queues: the scope.* and stage.* calls with `shared`, on any node of the engine.

in: calls of writers, blocks of messages. out: rows of the engine (shared/scope_commits.py); Refused.

N1  What docs/DATAPLANE.md promises of a scope holds here over all nodes: its row in the engine is the scope. This module has the stages
    that take blocks, of which a task has one, and which end with their node.
N2  A stage that is prepared is the engine's: any node commits it, aborts it, or goes on with a decision.
N3  A stage of which a block is in doubt can't be prepared.
Locks: a stage's, held during one of its calls; `_lock` for the table.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from flintmq.broker.cores import refuses_over
from flintmq.core.checksum import crc32c_of
from flintmq.dataplane.arguments import Arguments
from flintmq.dataplane.blocks import Counts, Router
from flintmq.dataplane.engine_asks import EngineAsks
from flintmq.dataplane.scope import kind_of
from flintmq.dataplane.shared import Caller, Plane
from flintmq.dataplane.stage_arguments import BATCH_MAX, SHARED_MARK, is_shared_stage, routes_of, wish_of
from flintmq.dataplane.wire import Buffer, Refused
from flintmq.engines.engine import Full
from flintmq.errors import PeerError
from flintmq.ports import Verb
from flintmq.shared.scope_commits import ScopeCommits, ScopeRefusal, Why
from flintmq.shared.scope_rows import PREPARED, ScopeRow, Stage
from flintmq.shared.transaction_commits import Changes, Moved, QueueGone
from flintmq.shared.transaction_rows import TRANSACTION_BYTES, Message, TransactionRow, transaction_key
from flintmq.transactions.bulk import BLOCK_ENTRY

T = TypeVar("T")
# seconds between two tries for a place among calls that wait for the engine
_PLACE_S = 0.05
_PLACE_TRIES = 200


@dataclass(slots=True, eq=False)
class _Writing:
    """A stage that this node takes blocks of. row, value: as they stand in the engine; next: queue -> number of its next part; reason: why
    it takes nothing more."""

    row: TransactionRow
    stage: Stage
    router: Router
    since_ms: int
    counts: Counts = field(default_factory=Counts)
    next: dict[bytes, int] = field(default_factory=dict)
    limited: dict[str, list[int]] = field(default_factory=dict)
    crc: int = 0
    reason: Refused | None = None
    lock: Any = field(default_factory=threading.Lock)


class SharedStages:
    """See module. Threading: threads of channels; coroutines run on the engine's event loop."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._asks = EngineAsks(plane)
        self._lock = threading.Lock()
        self._writing: dict[bytes, _Writing] = {}

    @property
    def _transactions(self) -> Any:
        shared: Any = self._plane.broker.shared
        if shared is None:
            raise Refused("NOT_FOUND", "this broker has no shared queue")
        return shared.transactions

    @property
    def _scopes(self) -> ScopeCommits:
        scopes: ScopeCommits = self._transactions.scopes
        return scopes

    def _ask(self, caller: Caller, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `work` returns. Raises: Refused."""

        async def refusing() -> T | Refused:
            try:
                return await work()
            except ScopeRefusal as refusal:
                return Refused(refusal.why.name, str(refusal))
            except PeerError:
                return Refused("OVER_LIMIT", "a queue that refuses when it is full has no room for the batch. Nothing of it was published")
            except (QueueGone, Moved) as error:
                return Refused("STAGE_FAILED", str(error))

        for _ in range(_PLACE_TRIES):
            try:
                answer = self._asks.ask(caller, refusing)
                break
            except Refused as refused:
                if refused.code != "BUSY":
                    raise
                self._plane.pause(_PLACE_S)
        else:
            raise Refused("BUSY", "too many calls about stages on shared queues at once")
        if isinstance(answer, Refused):
            raise answer
        return answer

    # --- scopes ---------------------------------------------------------------------------------------------------------

    def open(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """scope.open. A scope that is named hears of the new epoch at once."""
        name = arguments.text("scope", self._plane.limits.dataplane_name_max, None)
        arguments.done()
        self._plane.check_grants(caller, Verb.WRITE)
        epoch = self._ask(caller, self._scopes.next_epoch)
        if name is None:
            return {"epoch": epoch}
        fresh = ScopeRow(caller.name, kind_of(name))
        row = self._ask(caller, partial(self._scopes.enter, caller.vhost, name, fresh, epoch))
        return {"epoch": epoch, "committed": _committed(row)}

    def status(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """scope.status."""
        name = arguments.text("scope", self._plane.limits.dataplane_name_max)
        arguments.done()
        row = self._ask(caller, partial(self._scopes.load, caller.vhost, name))
        if row is not None and row.user != caller.name and not self._plane.is_administrator(caller):
            raise Refused("FORBIDDEN", f"scope '{name}' belongs to another user")
        stages = self._ask(caller, partial(self._scopes.stages, caller.vhost, name))
        views = [
            {**_facts(one, stage), "state": stage.state, "batch": stage.batch, "part": stage.part, "user": stage.user}
            for one, (_, stage) in stages.items()
        ]
        prepared = sum(stage.state == PREPARED for _, stage in stages.values())
        shown = self._plane.limits.scope_stages_shown
        return {**_view(name, row), "open": len(stages) - prepared, "prepared": prepared, "stages": views[:shown]}

    def list_all(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """scope.list: the caller's own, by their names, those behind `after`; an administrator sees all."""
        after = arguments.text("after", self._plane.limits.dataplane_name_max, "")
        arguments.done()
        most, everybody = self._plane.limits.scopes_page, self._plane.is_administrator(caller)
        views: list[dict[str, Any]] = []
        goes_on = True
        while goes_on and not views:
            page = self._ask(caller, partial(self._scopes.listed, caller.vhost, after, most))
            views = [_view(name, row) for name, row in page if everybody or row.user == caller.name]
            after, goes_on = (page[-1][0] if page else after), len(page) == most
        return {"scopes": views, "more": goes_on}

    def forget(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """scope.forget."""
        name = arguments.text("scope", self._plane.limits.dataplane_name_max)
        arguments.done()
        count = self._ask(caller, partial(self._scopes.forget, caller.vhost, name, caller.name))
        return {"scope": name, "forgotten": True, "rolled_back": count}

    # --- stages ---------------------------------------------------------------------------------------------------------

    def begin(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """stage.begin."""
        plane, limits = self._plane, self._plane.limits
        wish = wish_of(plane, caller, arguments)
        self._tick()
        fresh = ScopeRow(caller.name, wish.kind)
        scope = self._ask(caller, partial(self._scopes.enter, caller.vhost, wish.scope, fresh, wish.epoch))
        if wish.batch <= scope.committed:
            return {"already": True, "committed": scope.committed}
        stage = Stage(caller.vhost, wish.scope, caller.name, wish.epoch, wish.batch, wish.part, wish.attempt)
        router = Router(plane, caller, wish.unroutable, wish.over_limit, shared=True)
        with self._lock:
            if sum(one.stage.user == caller.name for one in self._writing.values()) >= limits.shared_user_stages_max:
                text = f"user '{caller.name}' writes {limits.shared_user_stages_max} stages on this node: commit or abort some"
                raise Refused("LIMIT", text)
        transaction, row = self._ask(caller, partial(self._made, stage))
        with self._lock:
            self._writing[transaction] = _Writing(row, stage, router, plane.now_ms())
        return {"stage_id": SHARED_MARK + transaction.decode()}

    async def _made(self, stage: Stage) -> tuple[bytes, TransactionRow]:
        transactions = self._transactions
        transaction = transactions.new_id()
        row = TransactionRow(False, transactions.me.name, transactions.me.life, [], stage.pack())
        transactions.writing.add(transaction)
        try:
            await transactions.deciding.change(transaction, None, row.pack())
        except BaseException:
            transactions.writing.discard(transaction)
            raise
        return transaction, row

    def block(self, caller: Caller, arguments: Arguments, payload: Buffer) -> dict[str, Any]:
        """block."""
        transaction, one = self._stage(caller, arguments)
        routes = routes_of(arguments, self._plane.limits.block_routes_max)
        arguments.done()
        with one.lock:
            if one.reason is not None:
                raise one.reason
            before = (one.counts.count, one.counts.bytes)
            try:
                block, all_routes, destinations = one.router.place(caller, payload, routes, one.counts)
                if one.counts.bytes > self._plane.limits.shared_stage_bytes_max:
                    raise Refused("LIMIT", f"a stage on shared queues has {self._plane.limits.shared_stage_bytes_max} bytes at most")
                if one.counts.failed == 0:
                    changes = self._changes(one, bytes(block), all_routes, destinations)
                    one.row = self._ask(caller, partial(self._put, transaction, one, changes))
            except (Refused, PeerError, ValueError) as error:
                one.reason = error if isinstance(error, Refused) else Refused("BAD_ARGUMENT", f"block: {error}")
                self._leave(transaction)  # N3: the rows go with the next sweep, or with its batch
                raise one.reason from None
            one.crc = crc32c_of(memoryview(payload), one.crc)
            one.since_ms = self._plane.now_ms()
            return {"count": one.counts.count - before[0], "bytes": one.counts.bytes - before[1]}

    async def _put(self, transaction: bytes, one: _Writing, changes: dict[bytes, Changes]) -> TransactionRow:
        deciding, limits = self._transactions.deciding, self._plane.limits
        if self._transactions.rests:
            raise Full("it has no room for messages")
        for queue, part in changes.items():
            part.first = one.next.get(queue, 0)
            part.pack(limits)
            one.next[queue] = part.first + len(part.parts)
        queues = sorted({*one.row.queues, *(queue.decode() for queue in changes)})
        row = replace(one.row, queues=queues)
        if row != one.row:
            if len(queues) > limits.shared_transaction_queues_max:
                raise ScopeRefusal(Why.LIMIT, f"a stage writes to {limits.shared_transaction_queues_max} shared queues at most")
            await deciding.change(transaction, one.row.pack(), row.pack())
        if changes:
            await deciding.add(transaction, changes, row.pack())
        return row

    def _changes(
        self, one: _Writing, block: bytes, routes: Sequence[tuple[bytes, bytes]], destinations: Sequence[Sequence[int]]
    ) -> dict[bytes, Changes]:
        """What a block puts into each queue. O(bytes)."""
        broker, now_ms = self._plane.broker, self._plane.clock.wall_ms()
        shared: Any = broker.shared
        queues = {number: (broker.queues.get(number), shared.row_id(number)) for numbers in destinations for number in numbers}
        changes: dict[bytes, Changes] = {}
        offset = 0
        while offset < len(block):
            length, route, header_len, flags, priority, _, expiration_ms = BLOCK_ENTRY.unpack_from(block, offset)
            start = offset + BLOCK_ENTRY.size
            header, body = block[start : start + header_len], block[start + header_len : start + length]
            for number in destinations[route]:
                queue, row_id = queues[number]
                if queue is None:
                    continue  # it was deleted just now
                if row_id is None:
                    raise Refused("UNAVAILABLE", f"shared queue '{queue.name}' in vhost '{queue.vhost}' is not served yet")
                times = [time for time in (expiration_ms, queue.core.ttl_ms) if time >= 0]
                exchange, key = routes[route]
                expires_at_ms = now_ms + max(min(times), 1) if times else 0
                message = Message(exchange, key, header, body, flags, priority, expires_at_ms)
                changes.setdefault(row_id, Changes()).messages.append(message)
                if refuses_over(queue.policy):
                    total = one.limited.setdefault(row_id.decode(), [0, 0, 0])
                    total[:] = [total[0] + 1, total[1] + len(body), len(body)]
            offset = start + length + (-length % 8)
        return changes

    def prepare(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """stage.prepare. Any node answers for one that is prepared."""
        stage_id = arguments.peek("stage_id")
        try:
            transaction, one = self._stage(caller, arguments)
        except Refused as refused:
            arguments.done()
            known = self._prepared(caller, str(stage_id)) if refused.code == "NOT_FOUND" else None
            if known is None:
                raise
            return known
        arguments.done()
        with one.lock:
            if one.reason is not None:
                raise Refused("STAGE_FAILED", one.reason.text)
            counts = one.counts
            if counts.failed:
                text = f"{counts.unroutable} messages are unroutable, {counts.over_limit} are over the limit of a queue: {counts.first}"
                one.reason = Refused("STAGE_FAILED", text)
                self._leave(transaction)
                raise one.reason
            numbers = {"count": counts.count, "bytes": counts.bytes, "unroutable": counts.unroutable, "over_limit": counts.over_limit}
            stage = replace(one.stage, state=PREPARED, crc=one.crc, limited=one.limited, **numbers)  # type: ignore[arg-type]
            row = replace(one.row, stage=stage.pack())
            self._ask(caller, partial(self._transactions.deciding.change, transaction, one.row.pack(), row.pack()))
            self._leave(transaction)
            return _facts(transaction, stage)

    def _prepared(self, caller: Caller, stage_id: str) -> dict[str, Any] | None:
        transaction = _transaction(stage_id)
        (value,) = self._ask(caller, partial(self._transactions.engine.get, [transaction_key(transaction)]))
        row = None if value is None else TransactionRow.unpack(value)
        stage = None if row is None or row.stage is None or row.is_decided else Stage.unpack(row.stage)
        if stage is None or stage.state != PREPARED or (stage.vhost, stage.user) != (caller.vhost, caller.name):
            return None
        return _facts(transaction, stage)

    def commit(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """stage.commit: one decision, on any node."""
        name = arguments.text("scope", self._plane.limits.dataplane_name_max)
        epoch, batch = (arguments.integer(one, 0, BATCH_MAX) for one in ("epoch", "batch"))
        given = arguments.raw("stage_ids")
        if not isinstance(given, list) or not all(is_shared_stage(one) for one in given) or len(set(given)) != len(given):
            raise arguments.refuse("stage_ids", "a list of different ids of stages on shared queues", given)
        arguments.done()
        ids = [_transaction(one) for one in given]
        work = partial(self._scopes.commit, caller.vhost, name, epoch, batch, ids, caller.name)
        committed, already = self._ask(caller, work)
        return {"committed": committed, "already": already, "rolled_back": 0}

    def abort(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """stage.abort."""
        name = arguments.text("scope", self._plane.limits.dataplane_name_max)
        batch = arguments.integer("batch", 0, BATCH_MAX)
        epoch = arguments.integer("epoch", 0, BATCH_MAX, None)
        stage_id = arguments.text("stage_id", 1 + TRANSACTION_BYTES, None)
        arguments.done()
        only = None if stage_id is None else _transaction(stage_id)
        count = self._ask(caller, partial(self._scopes.abort, caller.vhost, name, caller.name, batch, epoch, only))
        return {"rolled_back": count}

    # --- inside ---------------------------------------------------------------------------------------------------------

    def _stage(self, caller: Caller, arguments: Arguments) -> tuple[bytes, _Writing]:
        stage_id = arguments.text("stage_id", 1 + TRANSACTION_BYTES)
        transaction = _transaction(stage_id)
        with self._lock:
            one = self._writing.get(transaction)
        if one is None or one.stage.vhost != caller.vhost:
            raise Refused("NOT_FOUND", f"there is no stage {stage_id} on this node: it was rolled back, or prepared")
        if one.stage.user != caller.name:
            raise Refused("FORBIDDEN", f"stage {stage_id} belongs to another user")
        return transaction, one

    def _leave(self, transaction: bytes) -> None:
        """This node takes no more blocks of it: an open stage is swept then."""
        with self._lock:
            self._writing.pop(transaction, None)
        with suppress(Refused):
            self._transactions.writing.discard(transaction)

    def _tick(self) -> None:
        """Gives up stages of which nothing was heard for stage_unprepared_s."""
        least_ms = self._plane.now_ms() - self._plane.limits.stage_unprepared_s * 1000
        with self._lock:
            old = [transaction for transaction, one in self._writing.items() if one.since_ms < least_ms]
        for transaction in old:
            self._leave(transaction)


def _transaction(stage_id: str) -> bytes:
    return stage_id.removeprefix(SHARED_MARK).encode()


def _committed(row: ScopeRow | None) -> int | None:
    return None if row is None or row.committed < 0 else row.committed


def _view(name: str, row: ScopeRow | None) -> dict[str, Any]:
    known = row or ScopeRow("", kind_of(name))
    return {"scope": name, "committed": _committed(row), "epoch": known.epoch, "user": known.user, "kind": known.kind, "used_ms": 0}


def _facts(transaction: bytes, stage: Stage) -> dict[str, Any]:
    """The answer to stage.prepare."""
    numbers = {name: getattr(stage, name) for name in ("count", "bytes", "unroutable", "over_limit", "crc")}
    return {"stage_id": SHARED_MARK + transaction.decode(), **numbers}
