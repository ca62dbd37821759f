"""Tells the engine of changes of this node: commits that compare each row with the one last seen.

in: changes that are untold, rows that are known. out: rows; the ends of changes, with an error where the engine takes none.

C1  Each commit replaces this node's mark, and compares it with the one before. So the mark says whether a commit happened whose outcome was
    not known, and the next commit is the end of one that has not: it does not happen behind a later change.
C2  Each change is a commit, also when the rows that are known have it already: they may be older than what another node was answered.
C3  A row is put while what it hangs on is there, in the same commit: else the change is refused.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flintmq.cluster.known import Known
from flintmq.cluster.local_definitions import LocalDefinitions, same
from flintmq.cluster.untold import State, Untold
from flintmq.config import Limits
from flintmq.engines.engine import Commit, Full, TooLarge, UnknownOutcome
from flintmq.errors import PeerError, ReplyCode
from flintmq.ports import ExchangeRecord, VhostRecord
from flintmq.shared.definition_rows import DefinitionRow, describe, has_life, mark_key, new_token, parents_of

log = logging.getLogger("flintmq.shared")

# rows that the commit of one change has at most: its own, compared and written, and those on which it hangs; and those of the mark
_ROWS = 5
_MARK_ROWS = 2


class Write(NamedTuple):
    """A row to write. before: as last seen; row: None: it is deleted."""

    state: State
    before: bytes | None
    row: DefinitionRow | None
    after: bytes | None


class Telling:
    """Args: known: with the engine; untold; local: this node's definitions; limits; node: the name of this node's mark. One event loop, one
    call at a time."""

    def __init__(self, known: Known, untold: Untold, local: LocalDefinitions, limits: Limits, node: str) -> None:
        self._engine = known.engine
        self._known = known
        self._untold = untold
        self._local = local
        self._limits = limits
        self._mark_key = mark_key(node)
        self._mark: bytes | None = None  # the value of the mark
        self._has_mark = False
        self._doubts: dict[bytes, Sequence[Write]] = {}  # commits whose outcome is not known, by the mark that each leaves
        self._full_until_s = 0.0

    async def tell(self) -> None:
        """All changes. Raises: EngineError: the rest waits."""
        alone = 0  # changes that are told one by one, since a commit of many met others
        while len(self._untold):
            if not self._has_mark or self._doubts:
                await self._look_at_mark()
            is_full = time.monotonic() < self._full_until_s
            batch = min(self._limits.shared_definitions_batch, (self._engine.limits.commit_rows - _MARK_ROWS) // _ROWS)
            states = self._untold.some(1 if alone else batch, is_full)
            if not states:
                if is_full and len(self._untold):
                    raise Full("the engine of shared queues is full")
                return
            alone = max(0, alone - 1)
            try:
                if not await self._tell_some(states):
                    alone = len(states)
            except Full:
                self._full_until_s = time.monotonic() + self._limits.shared_full_ms / 1000
                if is_full:
                    raise

    async def _look_at_mark(self) -> None:
        """Which of the commits in doubt has happened (C1). Of an earlier process all have, or never will: the first commit ends them."""
        (mark,) = await self._engine.get([self._mark_key])
        happened = self._doubts.get(mark or b"")
        if happened is not None:
            self._doubts.clear()
            for write in happened:
                self._happened(write)
            self._mark, self._has_mark = mark, True
            await self._known.reread([write.state.key for write in happened])
        elif mark != self._mark or not self._has_mark:
            self._doubts.clear()
            self._mark, self._has_mark = mark, True

    async def _tell_some(self, states: Sequence[State]) -> bool:
        """False: another node was faster with one of them, or they are too many."""
        writes: list[Write] = []
        rows: dict[bytes, DefinitionRow] = {}
        size = 0
        for state in states:
            if isinstance(state.record, VhostRecord) and (state.gone or state.anew):
                if writes:
                    break
                await self._known.end_queues(state.record.name, self._local.twin)
            write = self._write_of(state, rows)
            if write is None:
                continue
            writes.append(write)
            if write.row is not None:
                rows[state.key] = write.row
            size += sum(len(one) for one in (state.key, state.key, write.before, write.after) if one is not None)
            if size > self._engine.limits.commit_bytes // 4:
                break
        return not writes or await self._commit(writes)

    async def _commit(self, writes: Sequence[Write]) -> bool:
        keys = [one.state.key for one in writes]
        parents = {parent: self._known.rows[parent].value for parent in self._parents(writes)}
        mark = new_token().encode()
        commit = Commit(
            [(self._mark_key, self._mark), *((one.state.key, one.before) for one in writes), *parents.items()],
            {self._mark_key: mark, **{one.state.key: one.after for one in writes if one.after is not None}},
            [one.state.key for one in writes if one.after is None],
        )
        try:
            if await self._engine.commit(commit):
                self._mark = mark
                self._doubts.clear()
                for one in writes:
                    self._known.learn(one.state.key, one.after)
                    self._happened(one)
                return True
        except UnknownOutcome:
            self._doubts[mark] = writes
            raise
        except TooLarge as error:
            if len(writes) == 1:
                self._refuse(writes[0].state, str(error))
            return len(writes) == 1
        await self._look_at_mark()
        await self._known.reread([*keys, *parents])
        return False

    def _parents(self, writes: Sequence[Write]) -> list[bytes]:
        """Rows on which others hang that are written, and that the same commit does not write (C3)."""
        written = {one.state.key for one in writes}
        parents = dict.fromkeys(parent for one in writes if one.row is not None for parent in parents_of(one.state.record))
        return [parent for parent in parents if parent not in written]

    def _happened(self, write: Write) -> None:
        state = write.state
        if write.row is not None and write.row.life:
            self._known.lives[state.key] = write.row.life
        self._known.dirty[state.key] = state.record
        self._untold.over(state.change, state.version)

    def _refuse(self, state: State, why: str) -> None:
        text = f"{describe(state.record)} is not changed on other nodes: {why}"
        log.warning("%s", text)
        self._known.dirty[state.key] = state.record
        self._untold.over(state.change, state.version, PeerError(ReplyCode.PRECONDITION_FAILED, text))

    def _write_of(self, state: State, rows: Mapping[bytes, DefinitionRow]) -> Write | None:
        """Args: rows: those that the same commit writes. None: it is refused."""
        record, known = state.record, self._known.rows.get(state.key)
        before = None if known is None else known.value
        if state.gone:
            return Write(state, before, None, None)
        lives = []
        for parent in parents_of(record):
            row = rows.get(parent) or (self._known.rows[parent].row if self._known.counts(parent) else None)
            if row is None:
                self._refuse(state, "what it belongs to has been deleted there")
                return None
            lives.append(row.life)
        if known is None and len(self._known) >= self._limits.shared_definitions_max:
            self._refuse(state, f"the engine has {self._limits.shared_definitions_max} definitions, which is the limit")
            return None
        life, of = (new_token() if has_life(record) else ""), tuple(lives)
        if known is not None and known.row is not None and known.row.of == of and not state.anew:
            if isinstance(record, ExchangeRecord) and not same(known.row.record, record):
                self._refuse(state, "another node has declared it with other properties")
                return None
            life = known.life
        row = DefinitionRow(record, new_token(), life, of)
        try:
            return Write(state, before, row, row.pack())
        except (ValueError, TypeError) as error:
            self._refuse(state, str(error))
            return None
