"""Histories of a queue without a broker (flintmq.recipes): clients that enqueue, dequeue and dequeue staged.

in: a seed; engines, one for each client. out: a verdict on the operations of a window.
A window is a queue of its own: it begins with nothing, and ends with a client that takes all that is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from flintmq.config import Limits
from flintmq.engines.engine import Commit, Engine, EngineError
from flintmq.engines.memory import MemoryEngine, MemoryStore
from tests.twins.faulty_engine import Fate, FaultyEngine, RandomPlan
from tools.linearizability.checker import Verdict, check
from tools.linearizability.code import TODAY, Code
from tools.linearizability.models import ValuesModel
from tools.linearizability.recorder import BACKLOG, Recorder, run_quickly

# as small as an engine may be: a round of the fulfiller has few requests, and a dequeue of many is cut
_LIMITS = Limits().replace(engine_commit_rows_max=24)
CLIENTS = 4
# calls of one client at a time
_TASKS = 2
WAYS = ("dequeue", "staged", "mixed")


class Weather(RandomPlan):
    """Faults while it is on. An engine that is full for some calls is no part of it: a staged dequeue waits for room."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, 0.15)

    async def fate(self, call: str, commit: Commit | None = None) -> Fate:
        fate = await super().fate(call, commit)
        return Fate.LOST if fate is Fate.FULL else fate


class _Client:
    """Args: queue: of the client; way: see WAYS."""

    def __init__(self, number: int, queue: Any, seed: int, way: str, recorder: Recorder) -> None:
        self.queue = queue
        self._number = number
        self._random = random.Random(seed * 100 + number)
        self._way = way
        self._recorder = recorder

    async def work(self) -> None:
        """Until the window is full."""
        while not self._recorder.is_over:
            with contextlib.suppress(EngineError):
                if self._random.random() < 0.5 and self._recorder.backlog() < BACKLOG:
                    await self._enqueue()
                else:
                    await self.take()

    async def _enqueue(self) -> None:
        message = self._recorder.next_id()
        await self._recorder.call(self._number, "enqueue", (message,), lambda: self.queue.enqueue(b"%d" % message))

    async def take(self, way: str = "") -> tuple[int, ...]:
        """Raises: EngineError."""
        way = way or (self._random.choice(WAYS[:2]) if self._way == "mixed" else self._way)
        count = self._random.choice((1, 1, 1, 3)) if way == "dequeue" else 1

        async def action() -> tuple[int, ...]:
            if way == "dequeue":
                return tuple(map(int, await self.queue.dequeue_many(count)))
            value = await self.queue.dequeue_staged()
            return () if value is None else (int(value),)

        taken: tuple[int, ...] = await self._recorder.call(self._number, "take", (count,), action)
        return taken


async def window(seed: int, engines: Sequence[Engine], way: str = "mixed", code: Code = TODAY, weather: Weather | None = None) -> Verdict:
    """One window. Args: engines: of the clients; weather: is off when the queue is emptied."""
    recorder = Recorder()
    clients = [
        _Client(number, code.SharedQueue(engine, f"window {seed} {way}"), seed, way, recorder) for number, engine in enumerate(engines)
    ]
    async with asyncio.TaskGroup() as group:
        for client in clients:
            for _ in range(_TASKS):
                group.create_task(client.work())
    if weather is not None:
        weather.share = 0.0
    for client in clients[1:]:
        await client.queue.close()
    while await clients[0].take("dequeue"):
        pass
    await clients[0].queue.close()
    return check(ValuesModel(recorder.operations), recorder.operations)


def in_memory(seed: int, way: str = "mixed", code: Code = TODAY) -> Verdict:
    """On the engine in memory: answers that are lost, commits that come late, an engine that is away, at will."""

    async def story() -> Verdict:
        store, weather = MemoryStore(_LIMITS.engine_watch_keys_max), Weather(seed)
        engines = [FaultyEngine(MemoryEngine(store, _LIMITS), weather) for _ in range(CLIENTS)]
        return await window(seed, engines, way, code, weather)

    with mock.patch("secrets.token_bytes", random.Random(seed).randbytes):  # it decides the order of values at one index
        verdict: Verdict = run_quickly(story)
    return verdict


def on_engines(
    seed: int, opened: Callable[[], Sequence[Engine]], way: str = "mixed", meanwhile: Callable[[], None] | None = None
) -> Verdict:
    """On engines that are there. Args: opened: one for each client; meanwhile: runs beside them, in a thread."""

    async def story() -> Verdict:
        engines = opened()
        try:
            beside = None if meanwhile is None else asyncio.create_task(asyncio.to_thread(meanwhile))
            verdict = await window(seed, engines, way)
            if beside is not None:
                await beside
            return verdict
        finally:
            for engine in dict.fromkeys(engines):
                await engine.close()

    return asyncio.run(story())
