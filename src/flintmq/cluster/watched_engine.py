"""An engine whose answers are counted, and whose silence is said once: what an operator sees of it.

in: the calls of an engine. out: the same answers and errors; figures; a line of the log when it stops to answer, and when it is back.

Threading: the engine's loop alone; `figures` any thread, each number by itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import TypeVar

from flintmq.engines.engine import Commit, Engine, EngineError, EngineLimits, Row, Unavailable, UnknownOutcome, Usage

log = logging.getLogger("flintmq.shared")
T = TypeVar("T")


class WatchedEngine:
    """See module. Args: engine: the real one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._away_s = 0.0  # since when it does not answer (monotonic); 0: it does
        self._commits = self._conflicts = self._failures = 0
        self._commit_s = 0.0

    @property
    def limits(self) -> EngineLimits:
        return self._engine.limits

    @property
    def name(self) -> str:
        return self._engine.name

    @property
    def answers(self) -> bool:
        """Whether its last call was answered; True before the first one."""
        return not self._away_s

    def figures(self) -> dict[str, float]:
        """Of the engine: commits that were decided, and the seconds that they took together; conflicts: commits of which a condition did
        not hold; failures: calls without an answer."""
        return {
            "engine_commits": self._commits,
            "engine_commit_seconds": self._commit_s,
            "engine_conflicts": self._conflicts,
            "engine_failures": self._failures,
        }

    async def _asked(self, answer: Awaitable[T]) -> T:
        try:
            result = await answer
        except (Unavailable, UnknownOutcome) as error:
            if not getattr(error, "final", False):  # a final one is an answer: of an engine that is full
                self._failed(error)
            raise
        except EngineError:
            self._answered()
            raise
        self._answered()
        return result

    def _failed(self, error: EngineError) -> None:
        self._failures += 1
        if not self._away_s:
            self._away_s = time.monotonic()
            log.warning("the engine of shared queues does not answer: %s", str(error))  # the error has its frames

    def _answered(self) -> None:
        if self._away_s:
            log.warning("the engine of shared queues answers again, after %.1f s", time.monotonic() - self._away_s)
            self._away_s = 0.0

    # --- Engine -----------------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        await self._asked(self._engine.connect())

    async def commit(self, commit: Commit) -> bool:
        began_s = time.monotonic()
        held = await self._asked(self._engine.commit(commit))
        self._commits += 1
        self._commit_s += time.monotonic() - began_s
        if not held:
            self._conflicts += 1
        return held

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return await self._asked(self._engine.get(keys))

    async def scan(self, begin: bytes, end: bytes, rows: int, size: int, reverse: bool = False) -> list[Row]:
        return await self._asked(self._engine.scan(begin, end, rows, size, reverse))

    def watch(self, begin: bytes, end: bytes) -> AsyncGenerator[frozenset[bytes] | None, None]:
        return self._engine.watch(begin, end)

    async def usage(self) -> Usage:
        return await self._asked(self._engine.usage())

    async def tidy(self) -> None:
        await self._engine.tidy()

    async def close(self) -> None:
        await self._engine.close()
