"""The room that an engine has, as each node looks at it. EngineThread has it tidied.

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
    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self.usage: Usage | None = None  # None: not known yet
        self.is_low = False
        self.on_low: Callable[[bool], object] = lambda low: None

    async def watch(self) -> None:
        """Until it is cancelled."""
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
