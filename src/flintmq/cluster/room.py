"""The room that an engine has, as each node looks at it. EngineThread has it tidied.

in: usage of the engine. out: word that publishers are to wait, or that publishes are to be refused, before the engine is full: ends of
messages, moves of queues and signs of life need the rest.

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
        self.level = 0  # 0: there is room; 1: publishers are to wait; 2: publishes are refused
        self.on_low: Callable[[int], object] = lambda level: None

    @property
    def is_low(self) -> bool:
        return self.level > 0

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
        level = 2 if usage.full or share >= self._limits.cluster_room_used_max else int(share >= bound)
        if level != self.level:
            self.level = level
            word = ("go on: the engine has room again", "wait", "are refused")[level]
            log.warning("publishes to shared queues %s: the engine has %d of %d bytes", word, usage.bytes, usage.bytes_max)
            guarded("the cluster", "the room of the engine", self.on_low, level)
