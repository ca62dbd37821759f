"""An engine with faults on demand, around any engine.

in: an engine, and a plan that says what becomes of each call. out: the same answers, and all that E4 to E6 of the port allow. A late
commit happens after further commits. A delayed call waits for a gate of the test, or lets others run for turns of the loop: no time passes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from enum import Enum
from typing import Any

from flintmq.engines.engine import Commit, Engine, EngineError, EngineLimits, Full, Row, Unavailable, UnknownOutcome, Usage
from flintmq.engines.feed import Feed


class Fate(Enum):
    """Of a call. LOST: Unavailable. HAPPENED, NEVER, LATER: UnknownOutcome of a commit; of any other call they are LOST. FULL: of puts."""

    DONE = 0
    LOST = 1
    HAPPENED = 2
    NEVER = 3
    LATER = 4
    FULL = 5


class Plan:
    """The fates of all clients' calls. This one: those of `script`, in order, then DONE. `gate`: each call waits for it first. `is_meant`:
    whether a call, by its name and its commit, takes the next fate of the script; another one is DONE."""

    def __init__(self, script: Sequence[Fate] = ()) -> None:
        self.script = deque(script)
        self.is_meant: Callable[[str, Commit | None], bool] = lambda call, commit: True
        self.gate: Callable[[str], Awaitable[Any]] | None = None
        self.late: list[tuple[Engine, Commit]] = []  # commits that have yet to happen

    async def fate(self, call: str, commit: Commit | None = None) -> Fate:
        """What becomes of the next call: commit (then which), get, scan, usage or tidy."""
        if self.gate is not None:
            await self.gate(call)
        return self.script.popleft() if self.script and self.is_meant(call, commit) else Fate.DONE

    def is_due(self) -> bool:
        """Whether a late commit happens now, after a commit."""
        return False

    def is_late_when_cancelled(self) -> bool:
        """Whether a commit that its caller gave up is one that may still happen."""
        return False

    async def let_happen(self, index: int = 0) -> bool:
        """The late commit of that index happens now, or never does: whether it did."""
        engine, commit = self.late.pop(index)
        with contextlib.suppress(EngineError):
            return await engine.commit(commit)
        return False


class RandomPlan(Plan):
    """Fates by chance. Args: seed; share: of calls that meet a fault, 0 to 1; turns: of the loop that a call waits at most."""

    def __init__(self, seed: int, share: float, turns: int = 5) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.share = share
        self._turns = turns

    async def fate(self, call: str, commit: Commit | None = None) -> Fate:
        for _ in range(self.random.randint(0, self._turns)):
            await asyncio.sleep(0)
        if self.random.random() >= self.share:
            return await super().fate(call, commit)
        return self.random.choice((Fate.LOST, Fate.HAPPENED, Fate.NEVER, Fate.LATER, Fate.FULL))

    def is_due(self) -> bool:
        return self.random.random() < 0.3

    def is_late_when_cancelled(self) -> bool:
        return self.random.random() < 0.5


class FaultyEngine:
    """Args: engine: the real one; plan: shared by the clients of one store."""

    def __init__(self, engine: Engine, plan: Plan) -> None:
        self.engine = engine
        self.plan = plan
        self._feeds: list[Feed] = []

    @property
    def limits(self) -> EngineLimits:
        return self.engine.limits

    @property
    def name(self) -> str:
        return self.engine.name

    def lose_watches(self) -> None:
        """Each watch says None."""
        for feed in self._feeds:
            feed.lose()

    async def _reach(self, call: str) -> None:
        if await self.plan.fate(call) not in (Fate.DONE, Fate.FULL):
            raise Unavailable("injected")

    async def connect(self) -> None:
        await self.engine.connect()

    async def commit(self, commit: Commit) -> bool:
        plan = self.plan
        try:
            fate = await plan.fate("commit", commit)
        except asyncio.CancelledError:
            if plan.is_late_when_cancelled():
                plan.late.append((self.engine, commit))
            raise
        if fate is Fate.LOST:
            raise Unavailable("injected")
        if fate is Fate.FULL and commit.puts:
            raise Full("injected")
        if fate is Fate.LATER:
            plan.late.append((self.engine, commit))
        if fate in (Fate.DONE, Fate.HAPPENED, Fate.FULL):
            outcome = await self.engine.commit(commit)
            while plan.late and plan.is_due():
                await plan.let_happen()
            if fate is not Fate.HAPPENED:
                return outcome
        raise UnknownOutcome("injected")

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        await self._reach("get")
        return await self.engine.get(keys)

    async def scan(self, begin: bytes, end: bytes, rows: int, size: int, reverse: bool = False) -> list[Row]:
        await self._reach("scan")
        return await self.engine.scan(begin, end, rows, size, reverse)

    async def watch(self, begin: bytes, end: bytes) -> AsyncGenerator[frozenset[bytes] | None, None]:
        """The engine's events by way of a feed that can be lost."""
        feed = Feed(begin, end, 10_000)
        inner = self.engine.watch(begin, end)

        async def pump() -> None:
            async for keys in inner:
                if keys is None:
                    feed.lose()
                else:
                    feed.tell(keys)

        await anext(inner)  # from here on nothing is missed
        feed.lose()
        task = asyncio.create_task(pump())
        self._feeds.append(feed)
        try:
            while True:
                yield await feed.next()
        finally:
            self._feeds.remove(feed)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def usage(self) -> Usage:
        await self._reach("usage")
        return await self.engine.usage()

    async def tidy(self) -> None:
        await self._reach("tidy")
        await self.engine.tidy()

    async def close(self) -> None:
        await self.engine.close()
