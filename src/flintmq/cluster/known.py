"""The rows of definitions as this node knows them, and the definitions that may differ here.

in: rows that were read, rows that this node wrote. out: rows, whether they count; keys of definitions that may differ here.

K1  A row counts when all on which it hangs is there, in the life that it names (definition_rows.D2). Another one is void, and is deleted
    by whichever node comes first.
K2  One event loop. A row that can't be read is kept as such: it is neither followed nor missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
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
        self._engine = engine
        self._limits = limits
        self.rows: dict[bytes, Row] = {}
        # what hangs on a life, and shared queues by the key of their virtual host
        self._hanging: dict[str | bytes, set[bytes]] = {}
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
        lives: set[str | bytes] = {one.life for one in (before, after) if one is not None}
        if before is None or after is None or len(lives) > 1:
            for life in (*lives, key):
                for child in self._hanging.get(life, ()):
                    self.touch(child)

    def touch(self, key: bytes) -> None:
        """The definition of a row may differ here."""
        record = self._record(key)
        if record is not None:
            self.dirty[key] = record

    def _hang(self, key: bytes, row: Row, hangs: bool) -> None:
        if row.row is None:
            return
        names: Iterable[str | bytes] = parents_of(row.row.record) if isinstance(row.row.record, SharedQueue) else row.row.of
        for name in names:
            if hangs:
                self._hanging.setdefault(name, set()).add(key)
            elif (keys := self._hanging.get(name)) is not None:
                keys.discard(key)
                if not keys:
                    del self._hanging[name]

    def counts(self, key: bytes) -> bool:
        """Whether there is such a row, and it is not void (K1)."""
        row = self.rows.get(key)
        if row is None or row.row is None:
            return False
        parents = parents_of(row.row.record)
        if isinstance(row.row.record, SharedQueue):
            return all(parent in self.rows for parent in parents)
        return len(parents) == len(row.row.of) and all(
            parent in self.rows and self.rows[parent].life == life for parent, life in zip(parents, row.row.of, strict=True)
        )

    # --- reading --------------------------------------------------------------------------------------------------------

    async def reread(self, keys: Collection[bytes]) -> None:
        """Reads these rows. Raises: Unavailable: some of them may have been read."""
        remaining = iter(keys)
        slices = Slices()
        while some := list(islice(remaining, self._engine.limits.commit_rows)):
            for key, value in zip(some, await self._engine.get(some), strict=True):
                self.learn(key, value)
                await slices.step()

    async def read_all(self) -> None:
        """Reads all rows. Raises: Unavailable: some of them may have been read."""
        limits = self._limits
        missing = set(self.rows)
        slices = Slices()
        async for page in read_pages(self._engine, limits.shared_definitions_page, limits.shared_definitions_page_bytes):
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
        size = min(self._limits.shared_definitions_batch, self._engine.limits.commit_rows // 6)
        for start in range(0, len(keys), size):
            some = keys[start : start + size]
            parents = [parent for record in map(self._record, some) if record is not None for parent in parents_of(record)]
            await self.reread(dict.fromkeys((*some, *parents)))
            void = {key: record for key in some if (record := self._record(key)) is not None and not self.counts(key)}
            rows = []
            for key, record in void.items():
                if isinstance(record, SharedQueue):
                    await self._end_queue(record)
                else:
                    rows.append(key)
            if rows:
                await self._engine.commit(Commit([(key, self.rows[key].value) for key in rows], deletes=rows))
            await self.reread(void)

    def _record(self, key: bytes) -> Record | None:
        known = self.rows.get(key)
        return None if known is None or known.row is None else known.row.record

    async def _end_queue(self, queue: SharedQueue) -> None:
        with contextlib.suppress(queue_rows.NotThere):  # another node was faster
            await queue_rows.remove(self._engine, queue.vhost, queue.name, queue.row)

    async def end_queues(self, vhost: str) -> None:
        """Deletes the shared queues of a virtual host, with their messages. Raises: EngineError."""
        begin, end = queue_rows.queues_of(vhost)
        while page := await self._engine.scan(begin, end, self._limits.shared_definitions_page, self._limits.shared_definitions_page_bytes):
            for key, value in page:
                self.learn(key, value)
                record = self._record(key)
                if isinstance(record, SharedQueue):
                    await self._end_queue(record)
            begin = page[-1][0] + b"\0"
