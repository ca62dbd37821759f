"""Whose definitions an engine has: those of the first node that asked, and whether this node has had them before.

in: the row MADE; the definitions of this node. out: an engine with definitions, and its name in the store of this node.

F1  One node writes the first definitions: each of its commits compares the row MADE. Nobody follows before the last one.
F2  A node that stops in between is noticed by a row MADE that does not change: another node begins anew with its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any

from flintmq.cluster.local_definitions import LocalDefinitions
from flintmq.cluster.slices import Slices
from flintmq.config import Limits
from flintmq.engines.engine import Commit, Engine, UnknownOutcome
from flintmq.ports import Definitions, ParameterRecord
from flintmq.shared.definition_rows import (
    MADE,
    DefinitionRow,
    Record,
    SharedQueue,
    describe,
    has_life,
    key_of,
    new_token,
    parents_of,
    rank_of,
    unpack,
)
from flintmq.store.sql.changes import Save

log = logging.getLogger("flintmq.shared")

# what this node keeps for itself
_MEMBER = "cluster-member"
# all rows of definitions but MADE and those of shared queues
_OTHERS = ((b"d/a", MADE), (MADE + b"\0", b"d/q/"), (b"d/q0", b"d0"))


class Member:
    """engine: the name of the engine whose definitions are in the store of this node, "": of none; node: the name of the store itself.

    Args: definitions: whose changes are told to nobody. They are read, and written, at once.
    """

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        values = {record.name: str(record.value) for record in definitions.load_parameters(_MEMBER)}
        self.engine = values.get("engine", "")
        self.node = values.get("node", "")
        if not self.node:
            self.node = new_token()
            definitions.save_parameter(ParameterRecord(_MEMBER, "", "node", self.node))

    def keep(self, engine: str) -> None:
        """From now on it is this one; a crash that comes at once may lose that. Waits for nothing."""
        self.engine = engine
        record = ParameterRecord(_MEMBER, "", "engine", engine)
        definitions: Any = self._definitions
        if hasattr(definitions, "submit"):
            definitions.submit([Save(record)], _kept)
        else:
            definitions.save_parameter(record)


def _kept(error: Exception | None) -> None:
    if error is not None:
        log.error("the name of the engine was not kept: the next start joins its nodes anew: %s", error)


def _pack(name: str, count: int, is_whole: bool) -> bytes:
    return json.dumps({"id": name, "rows": count, "whole": is_whole}, sort_keys=True).encode()


def _unpack(value: bytes) -> tuple[str, bool]:
    """Raises: ValueError."""
    try:
        row = json.loads(value)
        return str(row["id"]), bool(row["whole"])
    except (KeyError, TypeError, ValueError):
        raise ValueError("the row of the first definitions can't be read") from None


class Joining:
    """Args: engine; local: this node's definitions; limits; member. One event loop."""

    def __init__(self, engine: Engine, local: LocalDefinitions, limits: Limits, member: Member) -> None:
        self._engine = engine
        self._local = local
        self._limits = limits
        self._member = member
        self.name = ""  # of the engine's definitions; "": not joined

    async def join(self) -> bool:
        """Returns when the engine has definitions. True: this node has not had them before. Raises: EngineError, ValueError."""
        seen: bytes | None = None
        since_s = time.monotonic()
        while True:
            (value,) = await self._engine.get([MADE])
            if value is not None and _unpack(value)[1]:
                self.name = _unpack(value)[0]
                return self.name != self._member.engine
            if value != seen:
                seen, since_s = value, time.monotonic()
            wait_s = 0.0 if value is None else since_s + self._limits.shared_definitions_first_ms / 1000 - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(min(wait_s, self._limits.shared_definitions_first_ms / 4000))
            elif (name := await self._write_first(value)) is not None:
                self._member.keep(name)

    def keep(self) -> None:
        """This node has the engine's definitions from now on."""
        self._member.keep(self.name)

    async def _step(self, before: bytes | None, after: bytes, commit: Commit) -> bool:
        """A commit with the row MADE. False: another node writes. Raises: EngineError."""
        commit = Commit([(MADE, before), *commit.conditions], {MADE: after, **commit.puts}, commit.deletes, commit.clears)
        while True:
            try:
                return await self._engine.commit(commit)
            except UnknownOutcome:
                (value,) = await self._engine.get([MADE])
                if value != before:
                    return value == after

    async def _write_first(self, before: bytes | None) -> str | None:
        """Writes the definitions of this node. Returns their name; None: another node writes. Raises: EngineError."""
        name, count, slices = new_token(), 0, Slices()
        made = _pack(name, 0, False)
        if not await self._step(before, made, Commit(clears=_OTHERS if before is not None else ())):
            return None
        lives: dict[bytes, str] = {}
        rows: dict[bytes, bytes] = {}
        size, limits = 0, self._engine.limits
        most = min(self._limits.shared_definitions_batch, limits.commit_rows - 2)
        for record in sorted(self._local.records(), key=lambda one: rank_of(key_of(one))):
            row = await self._row(record, lives)
            if row is None:
                continue
            rows[key_of(record)] = value = row.pack()
            size += len(value) + limits.key_bytes // 4
            if len(rows) >= most or size > limits.commit_bytes // 4:
                count += len(rows)
                before, made = made, _pack(name, count, False)
                if not await self._step(before, made, Commit((), rows)):
                    return None
                rows, size = {}, 0
            await slices.step()
        if not await self._step(made, _pack(name, count + len(rows), True), Commit((), rows)):
            return None
        log.info("the %d definitions of this node are those of all nodes of %s", count + len(rows), self._engine.name)
        return name

    async def _row(self, record: Record, lives: dict[bytes, str]) -> DefinitionRow | None:
        """None: it hangs on what the engine has not, or is a queue, which has its row."""
        if isinstance(record, SharedQueue):
            return None
        for parent in parents_of(record):
            if parent not in lives:
                (value,) = await self._engine.get([parent])
                if value is None:
                    log.warning("%s is not given to other nodes: it hangs on something that the engine has not", describe(record))
                    return None
                lives[parent] = unpack(parent, value).life
        life = new_token() if has_life(record) else ""
        if life:
            lives[key_of(record)] = life
        return DefinitionRow(record, new_token(), life, tuple(lives[parent] for parent in parents_of(record)))
