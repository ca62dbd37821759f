"""What `flintmq shared measure` measures."""

from __future__ import annotations

import asyncio

import pytest

from flintmq.engines.memory import MemoryEngine, MemoryStore
from flintmq.recipes.measure import WAYS, measure
from tests.engines.engines import LIMITS


@pytest.mark.parametrize("way", WAYS)
def test_each_way_takes_every_message_once_and_leaves_no_row(way: str) -> None:
    async def story() -> None:
        store = MemoryStore(LIMITS.engine_watch_keys_max)
        result = await measure(MemoryEngine(store, LIMITS), way, messages=150, takers=4, size=20)
        assert result["exactly_once"]
        assert (result["way"], result["messages"], result["takers"], result["bytes"]) == (way, 150, 4, 20)
        assert min(result["enqueued_per_s"], result["dequeued_per_s"]) > 0
        assert store.keys == []

    asyncio.run(story())
