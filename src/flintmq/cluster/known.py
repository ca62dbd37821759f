"""The rows of definitions as this node knows them, and the definitions that may differ here.

in: rows that were read, rows that this node wrote. out: rows, whether they count; keys of definitions that may differ here.

K1  A row counts when all on which it hangs is there, in the life that it names (definition_rows.D2). Another one is void, and is deleted
    by whichever node comes first. The row of a queue counts always: messages hang on it.
K2  One event loop. A row that can't be read is kept as such: it is neither followed nor missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import NamedTuple

from flintmq.cluster.slices import Slices
from flintmq.config import Limits
from flintmq.engines.engine import Commit, Engine
from flintmq.shared import queue_rows
from flintmq.shared.definition_rows import MADE, DefinitionRow, Record, SharedQueue, parents_of, read_pages, unpack


class Row(NamedTuple):
    """row: None: it can't be read."""

    value: bytes
    row: DefinitionRow | None

    @property
    def life(self) -> str:
        return "" if self.row is None else self.row.life


class Known:
    """Args: engine; limits."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self.engine = engine
        self._limits = limits
        self.rows: dict[bytes, Row] = {}
        # keys of the rows that hang on a life
        self._hanging: dict[str, set[bytes]] = {}
        # lives of the things that are here
        self.lives: dict[bytes, str] = {}
        # by its key a record with the names of each definition that may differ here
        self.dirty: dict[bytes, Record] = {}

    def __len__(self) -> int:
        return len(self.rows)

    # --- rows -----------------------------------------------------------------------------------------------------------

    def learn(self, key: bytes, value: bytes | None) -> None:
        """The engine has, or had, this value. A later one may come."""
        before = self.rows.get(key)
        if before is not None and before.value == value:
            return
        if before is not None:
            del self.rows[key]
            self._hang(key, before, False)
        after: Row | None = None
        if value is not None and key != MADE:
            try:
                after = Row(value, unpack(key, value))
            except ValueError:
                after = Row(value, None)
            self.rows[key] = after
            self._hang(key, after, True)
        for one in (before, after):
            if one is not None and one.row is not None:
                self.dirty[key] = one.row.record
        lives = {one.life for one in (before, after) if one is not None}
        if before is None or after is None or len(lives) > 1:
            for life in lives:
                self.touch_under(life)

    def touch(self, key: bytes) -> None:
        """The definition of a row may differ here."""
        record = self._record(key)
        if record is not None:
            self.dirty[key] = record

    def touch_under(self, life: str) -> None:
        """Definitions that hang on a life may differ here. Cost: O(their number)."""
        for key in self._hanging.get(life, ()):
            self.touch(key)

    def _hang(self, key: bytes, row: Row, hangs: bool) -> None:
        if row.row is None:
            return
        for life in row.row.of:
            if hangs:
                self._hanging.setdefault(life, set()).add(key)
            elif (keys := self._hanging.get(life)) is not None:
                keys.discard(key)
                if not keys:
                    del self._hanging[life]

    def counts(self, key: bytes) -> bool:
        """Whether there is such a row, and it is not void (K1)."""
        row = self.rows.get(key)
        if row is None or row.row is None:
            return False
        if isinstance(row.row.record, SharedQueue):
            return True
        parents = parents_of(row.row.record)
        return len(parents) == len(row.row.of) and all(
            parent in self.rows and self.rows[parent].life == life for parent, life in zip(parents, row.row.of, strict=True)
        )

    # --- reading --------------------------------------------------------------------------------------------------------

    async def reread(self, keys: Collection[bytes]) -> None:
        """Reads these rows. Raises: Unavailable: some of them may have been read."""
        remaining = iter(keys)
        slices = Slices()
        while some := list(islice(remaining, self.engine.limits.commit_rows)):
            for key, value in zip(some, await self.engine.get(some), strict=True):
                self.learn(key, value)
                await slices.step()

    async def read_all(self) -> None:
        """Reads all rows. Raises: Unavailable: some of them may have been read."""
        limits = self._limits
        missing = set(self.rows)
        slices = Slices()
        async for page in read_pages(self.engine, limits.shared_definitions_page, limits.shared_definitions_page_bytes):
            for key, value in page:
                self.learn(key, value)
                missing.discard(key)
                await slices.step()
        for key in missing:
            self.learn(key, None)
            await slices.step()

    # --- void rows ------------------------------------------------------------------------------------------------------

    async def sweep(self, keys: Sequence[bytes]) -> None:
        """Deletes these rows, if they are void still. Raises: EngineError."""
        size = min(self._limits.shared_definitions_batch, self.engine.limits.commit_rows // 6)
        for start in range(0, len(keys), size):
            some = keys[start : start + size]
            parents = [parent for record in map(self._record, some) if record is not None for parent in parents_of(record)]
            await self.reread(dict.fromkeys((*some, *parents)))
            void = [key for key in some if self._record(key) is not None and not self.counts(key)]
            if void:
                await self.engine.commit(Commit([(key, self.rows[key].value) for key in void], deletes=void))
                await self.reread(void)

    def _record(self, key: bytes) -> Record | None:
        known = self.rows.get(key)
        return None if known is None or known.row is None else known.row.record

    async def end_queues(self, vhost: str, stays: Callable[[SharedQueue], object]) -> None:
        """Deletes the shared queues of a virtual host that has ended, with their messages. Args: stays: those of a new one of the name.

        Raises: EngineError."""
        begin, end = queue_rows.queues_of(vhost)
        while page := await self.engine.scan(begin, end, self._limits.shared_definitions_page, self._limits.shared_definitions_page_bytes):
            for key, value in page:
                self.learn(key, value)
                queue = self._record(key)
                if isinstance(queue, SharedQueue) and not stays(queue):
                    with contextlib.suppress(queue_rows.NotThere):  # another node was faster
                        await queue_rows.remove(self.engine, queue.vhost, queue.name, queue.row)
            begin = page[-1][0] + b"\0"
