"""Scopes and stages in an engine: what writers put aside for shared queues, and the one commit that publishes a batch (docs/adr/0015, R10).

in: calls of writers, on any node. out: undecided transactions (transaction_commits.py), decided ones.

S1  A scope's row decides: `committed = b` with the stages of batch b is one commit that compares the row. The stages' own rows say so
    afterwards, before the scope's row changes again.
S2  A batch is committed once: a commit of one that is not above `committed` does nothing.
S3  An epoch below the scope's highest is fenced: its calls change nothing.
S4  A prepared stage is undone after the scope's row has changed: so a commit that chose it begins anew, and does not find it.

All of it is of one event loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum

from flintmq.config import Limits
from flintmq.engines.engine import Commit, Engine, UnknownOutcome
from flintmq.errors import FlintError
from flintmq.shared.scope_rows import EPOCH, PREPARED, ScopeRow, Stage, name_of, scope_key, scopes_of
from flintmq.shared.transaction_commits import Deciding
from flintmq.shared.transaction_rows import TransactionRow, transaction_key, transaction_of, transactions

_MARK_BYTES = 8
# rows that are read at once, and their bytes
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 500, 1 << 20


class Why(Enum):
    """Of a refusal."""

    FENCED = "another run has the scope"
    FORBIDDEN = "the scope belongs to another user"
    NOT_PREPARED = "a stage is not prepared"
    OVER_LIMIT = "a queue has no room"
    LIMIT = "there are as many scopes as may be"


class ScopeRefusal(FlintError):
    """A call about a scope that can't be done."""

    def __init__(self, why: Why, text: str) -> None:
        super().__init__(text)
        self.why = why


class ScopeCommits:
    """Args: finish: has a decided transaction done in all its queues; ask_room: of a queue that refuses, whether it takes messages, their
    bytes and those of the last one."""

    def __init__(
        self,
        engine: Engine,
        deciding: Deciding,
        limits: Limits,
        finish: Callable[[bytes, TransactionRow], Awaitable[object]],
        ask_room: Callable[[bytes, int, int, int], Awaitable[object]],
    ) -> None:
        self._engine = engine
        self._deciding = deciding
        self._limits = limits
        self._finish = finish
        self._ask_room = ask_room

    # --- scopes ---------------------------------------------------------------------------------------------------------

    async def next_epoch(self) -> int:
        """A number above all given out before. Raises: EngineError."""
        while True:
            (value,) = await self._engine.get([EPOCH])
            epoch = 1 + (0 if value is None else int(value))
            try:
                if await self._engine.commit(Commit([(EPOCH, value)], {EPOCH: b"%d" % epoch})):
                    return epoch
            except UnknownOutcome:
                await self._pause()  # perhaps nobody has this number

    async def load(self, vhost: str, name: str) -> ScopeRow | None:
        """Raises: EngineError; ValueError."""
        (value,) = await self._engine.get([scope_key(vhost, name)])
        return None if value is None else ScopeRow.unpack(value)

    async def listed(self, vhost: str, after: str, most: int) -> list[tuple[str, ScopeRow]]:
        """Scopes by name, behind `after`. Raises: EngineError; ValueError."""
        begin, end = scopes_of(vhost)
        rows = await self._engine.scan(begin + after.encode() + b"\0" if after else begin, end, most, _BYTES_AT_ONCE)
        return [(name_of(key), ScopeRow.unpack(value)) for key, value in rows]

    async def enter(self, vhost: str, name: str, fresh: ScopeRow, epoch: int) -> ScopeRow:
        """A call of a run: its epoch is the scope's from now on. Args: fresh: what the scope is if there is none.

        Raises: ScopeRefusal FENCED, FORBIDDEN, LIMIT; EngineError; ValueError."""

        def body(row: ScopeRow) -> ScopeRow:
            self._check(row, fresh.user, name, epoch)
            return replace(row, epoch=epoch)

        known = await self.load(vhost, name)
        if known is not None and known.epoch == epoch:
            self._check(known, fresh.user, name, epoch)
            return known
        if known is None:
            await self._check_room(vhost, fresh.user)
        return await self._change(vhost, name, fresh, body)

    async def _check_room(self, vhost: str, user: str) -> None:
        limits = self._limits
        count, own, after = 0, 0, ""
        while rows := await self.listed(vhost, after, _ROWS_AT_ONCE):
            count, own, after = count + len(rows), own + sum(row.user == user for _, row in rows), rows[-1][0]
        for whose, there, most in (
            (f"user '{user}'", own, limits.scopes_user_max + limits.writes_user_max),
            (f"virtual host '{vhost}'", count, limits.scopes_vhost_max + limits.writes_vhost_max),
        ):
            if there >= most:
                raise ScopeRefusal(Why.LIMIT, f"{whose} has {most} scopes on shared queues: `scope.forget` some")

    @staticmethod
    def _check(row: ScopeRow, user: str, name: str, epoch: int | None) -> None:
        if row.user != user:
            raise ScopeRefusal(Why.FORBIDDEN, f"scope '{name}' belongs to another user")
        if epoch is not None and epoch < row.epoch:
            raise ScopeRefusal(Why.FENCED, f"scope '{name}' is used with epoch {row.epoch}, this is {epoch}: another driver has it")
        if epoch is not None and epoch <= row.aborted:
            raise ScopeRefusal(Why.FENCED, f"the run of scope '{name}' with epoch {epoch} was aborted")

    async def _change(self, vhost: str, name: str, fresh: ScopeRow | None, body: Callable[[ScopeRow], ScopeRow]) -> ScopeRow:
        """One commit that compares the row. `body` may be called again, also with its own change. Raises: ScopeRefusal; EngineError."""
        key = scope_key(vhost, name)
        made: set[bytes] = set()
        while True:
            (value,) = await self._engine.get([key])
            before = ScopeRow.unpack(value) if value is not None else fresh
            if before is None:
                raise ScopeRefusal(Why.NOT_PREPARED, f"there is no scope '{name}'")
            if value is not None and value in made:
                return before  # an earlier try
            after = replace(body(before), mark=secrets.token_hex(_MARK_BYTES))
            made.add(after.pack())
            try:
                if await self._engine.commit(Commit([(key, value)], {key: after.pack()})):
                    return after
            except UnknownOutcome:
                pass
            await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(self._limits.shared_pause_ms / 1000)

    # --- committing -----------------------------------------------------------------------------------------------------

    async def commit(self, vhost: str, name: str, epoch: int, batch: int, ids: Sequence[bytes], user: str) -> tuple[int, bool]:
        """(the committed batch, whether it was before). Done when the queues have its messages, or their owners will.

        Raises: ScopeRefusal; EngineError: nobody knows, and it is to be asked again; ValueError. O(stages)."""
        while True:
            row = await self.load(vhost, name)
            if row is None:
                raise ScopeRefusal(Why.NOT_PREPARED, f"scope '{name}' was forgotten")
            self._check(row, user, name, epoch)
            if row.decided:
                await self.complete(vhost, name, row)
                continue
            if batch <= row.committed:
                return row.committed, True
            chosen = await self._chosen(vhost, name, batch, ids)
            await self._ask_rooms(chosen.values())
            decided = sorted(chosen, key=lambda one: (chosen[one].part, one))
            seen = row.mark

            def body(there: ScopeRow, seen: str = seen, decided: list[bytes] = decided) -> ScopeRow:
                if there.mark != seen:
                    raise _Changed
                return replace(there, committed=batch, epoch=epoch, decided=[one.decode() for one in decided])

            try:
                after = await self._change(vhost, name, None, body)
            except _Changed:
                continue
            await self.complete(vhost, name, after)
            return batch, False

    async def _chosen(self, vhost: str, name: str, batch: int, ids: Sequence[bytes]) -> dict[bytes, Stage]:
        chosen: dict[bytes, Stage] = {}
        most = self._engine.limits.commit_rows // 2
        for begin in range(0, len(ids), most):
            some = ids[begin : begin + most]
            for one, value in zip(some, await self._engine.get([transaction_key(one) for one in some]), strict=True):
                stage = _stage_of(value)
                if stage is None or (stage.vhost, stage.scope, stage.batch) != (vhost, name, batch) or stage.state != PREPARED:
                    text = f"scope '{name}' has no stage {one.decode()} of batch {batch} that is prepared: it was rolled back, or never was"
                    raise ScopeRefusal(Why.NOT_PREPARED, text)
                chosen[one] = stage
        return chosen

    async def _ask_rooms(self, stages: Iterable[Stage]) -> None:
        sums: dict[str, list[int]] = {}
        for stage in stages:
            for queue, (messages, size, last) in stage.limited.items():
                total = sums.setdefault(queue, [0, 0, 0])
                sums[queue] = [total[0] + messages, total[1] + size, last]
        for queue, (messages, size, last) in sums.items():
            await self._ask_room(queue.encode(), messages, size, last)

    async def complete(self, vhost: str, name: str, row: ScopeRow) -> None:
        """What the scope's row has decided is done: by whoever sees it. Raises: EngineError; ValueError."""
        rows: dict[bytes, TransactionRow] = {}
        for one in row.decided:
            transaction = one.encode()
            (value,) = await self._engine.get([transaction_key(transaction)])
            if value is None:
                continue  # it is over
            before = TransactionRow.unpack(value)
            rows[transaction] = after = replace(before, is_decided=True, stage=None)
            if not before.is_decided:
                await self._deciding.change(transaction, value, after.pack())

        def body(there: ScopeRow) -> ScopeRow:
            return replace(there, decided=[]) if there.committed == row.committed else there

        await self._change(vhost, name, None, body)
        for transaction, one_row in rows.items():
            await self._finish(transaction, one_row)

    # --- undoing --------------------------------------------------------------------------------------------------------

    async def stages(self, vhost: str, name: str) -> dict[bytes, tuple[TransactionRow, Stage]]:
        """All of a scope that are not decided. O(transactions of the engine). Raises: EngineError; ValueError."""
        stages: dict[bytes, tuple[TransactionRow, Stage]] = {}
        begin, end = transactions()
        while rows := await self._engine.scan(begin, end, _ROWS_AT_ONCE, _BYTES_AT_ONCE):
            for key, value in rows:
                stage = _stage_of(value)
                if stage is not None and (stage.vhost, stage.scope) == (vhost, name):
                    stages[transaction_of(key)] = TransactionRow.unpack(value), stage
            begin = rows[-1][0] + b"\0"
        return stages

    async def abort(self, vhost: str, name: str, user: str, batch: int, epoch: int | None, only: bytes | None) -> int:
        """Rolls back stages of a batch, of runs up to `epoch`; that run begins none any more. only: this stage alone.

        Returns how many. Raises: ScopeRefusal; EngineError; ValueError."""

        def body(row: ScopeRow) -> ScopeRow:
            self._check(row, user, name, None)
            if epoch is not None and epoch < row.epoch:
                raise ScopeRefusal(Why.FENCED, f"scope '{name}' is used with epoch {row.epoch}, this is {epoch}: another driver has it")
            return row if epoch is None or only is not None else replace(row, aborted=epoch)

        if await self.load(vhost, name) is None:
            return 0
        row = await self._change(vhost, name, None, body)  # S4
        count = 0
        for transaction, (there, stage) in (await self.stages(vhost, name)).items():
            is_meant = stage.batch == batch and (epoch is None or stage.epoch <= epoch) and only in (None, transaction)
            if is_meant and transaction.decode() not in row.decided:
                await self.undo(transaction, there)
                count += 1
        return count

    async def forget(self, vhost: str, name: str, user: str) -> int:
        """Its stages are rolled back, and what it committed is not known any more. Returns how many. Raises: as `abort`."""
        row = await self.load(vhost, name)
        if row is None:
            return 0
        self._check(row, user, name, None)
        if row.decided:
            await self.complete(vhost, name, row)
        key, after = scope_key(vhost, name), await self._change(vhost, name, None, lambda there: there)
        while not await self._engine.commit(Commit([(key, after.pack())], deletes=[key])):
            after = await self._change(vhost, name, None, lambda there: there)
        stages = await self.stages(vhost, name)
        for transaction, (there, _) in stages.items():
            await self.undo(transaction, there)
        return len(stages)

    async def undo(self, transaction: bytes, row: TransactionRow) -> None:
        """Raises: EngineError."""
        await self._deciding.undo(transaction, [queue.encode() for queue in row.queues], row.pack())

    async def is_left(self, transaction: bytes, row: TransactionRow, is_old: bool) -> bool:
        """Of an undecided stage: whether nobody will decide it. What its scope has decided is done. Args: is_old: nothing was heard of it
        for long. Raises: EngineError; ValueError."""
        stage = Stage.unpack(row.stage or {})
        scope = await self.load(stage.vhost, stage.scope)
        if scope is None:
            return True
        if transaction.decode() in scope.decided:
            await self.complete(stage.vhost, stage.scope, scope)
            return False
        if stage.batch <= scope.committed:
            return True
        if is_old:
            scope = await self._change(stage.vhost, stage.scope, None, lambda there: there)  # S4
        return is_old and transaction.decode() not in scope.decided


class _Changed(Exception):
    """The scope's row is another one than that by which stages were chosen."""


def _stage_of(value: bytes | None) -> Stage | None:
    row = None if value is None else TransactionRow.unpack(value)
    return None if row is None or row.is_decided or row.stage is None else Stage.unpack(row.stage)
