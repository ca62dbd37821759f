"""How fast an engine carries one queue of `flintmq.recipes`: the naive dequeue, the staged one, and batches, beside each other.

in: an engine, numbers of messages and takers. out: rates, and whether each message was taken once.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

from flintmq.engines.engine import Commit, Engine
from flintmq.recipes.queue import SharedQueue

WAYS = ("naive", "staged", "batched")
_PLACE = b"measure/"
# messages that one commit takes where batches are measured, and that one enqueue puts; the engine's limits may allow fewer
_BATCH = 200
# enqueues at a time, as long as there are so many
_AT_ONCE = 8


async def measure(engine: Engine, way: str, messages: int, takers: int, size: int) -> dict[str, Any]:
    """Fills a queue, and empties it by `takers` tasks, each a client of its own. The queue is deleted afterwards.

    Args: way: of WAYS; size: bytes of a message, 8 at least.
    Returns: rates in messages a second; whether each message was taken exactly once. Raises: EngineError.
    """
    name = secrets.token_hex(8)
    place = _PLACE + name.encode() + b"/"
    clients = [SharedQueue(engine, name, place) for _ in range(takers)]
    contents = [number.to_bytes(8, "big") + bytes(max(0, size - 8)) for number in range(messages)]
    limits = engine.limits
    batch = max(1, min(_BATCH, limits.commit_rows // 3, limits.commit_bytes // 2 // (size + 100)))
    try:
        began = time.monotonic()
        pieces = iter([contents[first : first + batch] for first in range(0, messages, batch)])

        async def fill() -> None:
            for piece in pieces:
                await clients[0].enqueue_many(piece)

        await asyncio.gather(*(fill() for _ in range(_AT_ONCE)))
        filled_s = time.monotonic() - began
        taken: list[bytes] = []
        began = time.monotonic()
        await asyncio.gather(*(_take(client, way, batch, taken) for client in clients))
        taken_s = time.monotonic() - began
        for client in clients:
            await client.close()
    finally:
        await engine.commit(Commit(clears=[(place, place + b"\xff")]))
    return {
        "engine": engine.name.partition(":")[0],
        "way": way,
        "messages": messages,
        "bytes": size,
        "takers": takers,
        "enqueued_per_s": round(messages / filled_s),
        "dequeued_per_s": round(messages / taken_s),
        "exactly_once": sorted(taken) == contents,
    }


async def _take(client: SharedQueue, way: str, batch: int, taken: list[bytes]) -> None:
    """Until the queue is empty."""
    while True:
        if way == "batched":
            values = await client.dequeue_many(batch)
        else:
            value = await (client.dequeue() if way == "naive" else client.dequeue_staged())
            values = [] if value is None else [value]
        if not values:
            return
        taken += values
