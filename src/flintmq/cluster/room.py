"""The room that an engine has: looked at by each node, tidied by one of them.

in: usage of the engine. out: word that publishes are to be refused, before the engine is full: ends of messages, moves of queues and
signs of life need the rest.

All of it is of the engine's thread; figures may be read on any.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from flintmq.engines.engine import Engine, EngineError, Usage
from flintmq.guard import caught, guarded

if TYPE_CHECKING:
    from flintmq.config import Limits

log = logging.getLogger("flintmq.cluster")


class Room:
    """Args: is_first: whether this node is the one that tidies."""

    def __init__(self, engine: Engine, limits: Limits, is_first: Callable[[], bool]) -> None:
        self._engine = engine
        self._limits = limits
        self._is_first = is_first
        self.usage: Usage | None = None  # None: not known yet
        self.is_low = False
        self.on_low: Callable[[bool], object] = lambda low: None
        self._tidied_s = 0.0

    async def watch(self) -> None:
        """Until it is cancelled."""
        self._tidied_s = asyncio.get_running_loop().time()
        while True:
            try:
                await self.look()
            except EngineError as error:
                log.debug("the room of the engine is not known: %s", error)
            except Exception as error:
                caught("the cluster", "the room of the engine", error)
            await asyncio.sleep(self._limits.cluster_room_ms / 1000)

    async def look(self) -> None:
        """Once. Raises: EngineError."""
        self.usage = usage = await self._engine.usage()
        share = usage.bytes / usage.bytes_max if usage.bytes_max else 0.0
        bound = self._limits.cluster_room_used_low if self.is_low else self._limits.cluster_room_used
        is_low = usage.full or share >= bound
        if is_low != self.is_low:
            self.is_low = is_low
            if is_low:
                log.warning("the engine has %d of %d bytes: publishes to shared queues are refused", usage.bytes, usage.bytes_max)
            else:
                log.warning("the engine has room again: publishes to shared queues go on")
            guarded("the cluster", "the room of the engine", self.on_low, is_low)
        now_s = asyncio.get_running_loop().time()
        if self._is_first() and (is_low or now_s - self._tidied_s >= self._limits.cluster_tidy_ms / 1000):
            self._tidied_s = now_s
            await self._engine.tidy()
