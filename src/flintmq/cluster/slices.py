"""Long work of the engine's event loop in slices, so that commits of queues do not wait for it.

in: steps of the work. out: a turn for others when the slice is over.
"""

from __future__ import annotations

import asyncio
import time

# seconds of one slice
SLICE_S = 0.001


class Slices:
    """Of one piece of work."""

    def __init__(self) -> None:
        self._until_s = time.monotonic() + SLICE_S

    async def step(self) -> None:
        """Others have their turn when the slice is over."""
        if time.monotonic() >= self._until_s:
            await asyncio.sleep(0)
            self._until_s = time.monotonic() + SLICE_S
