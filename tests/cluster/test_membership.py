"""A node's lease: in doubt without accepted signs, and sure again."""

from __future__ import annotations

import asyncio
from typing import Any

from flintmq.cluster.membership import Membership
from flintmq.config import Limits
from flintmq.engines.engine import EngineError, Full, Unavailable

LIMITS = Limits().replace(shared_node_lease_ms=40, shared_pause_ms_max=1)
WAIT_S = 20.0


class Signs:
    """Nodes (shared/nodes.py) of one, whose signs the engine takes as `refusal` says."""

    def __init__(self) -> None:
        self.living: dict[str, Any] = {}
        self.refusal: EngineError | None = None
        self.given = 0

    async def join(self) -> None: ...

    async def beat(self) -> None:
        self.given += 1
        if self.refusal is not None:
            raise self.refusal

    async def look(self) -> None: ...

    def until_gone_s(self) -> float:
        return 1.0


class Scene:
    def __init__(self) -> None:
        self.signs = Signs()
        self.word: asyncio.Queue[str] = asyncio.Queue()
        self.membership = Membership(self.signs, LIMITS, lambda: None, lambda: self.word.put_nowait("doubt"), self._sure)  # type: ignore[arg-type]

    async def _sure(self) -> None:
        self.word.put_nowait("sure")

    async def next(self) -> str:
        return await asyncio.wait_for(self.word.get(), WAIT_S)

    async def given(self, count: int) -> None:
        until = self.signs.given + count
        while self.signs.given < until:
            await asyncio.sleep(0.001)


def test_a_lease_without_accepted_signs_is_in_doubt_until_one_is_accepted() -> None:
    async def scene() -> None:
        one = Scene()
        task = asyncio.create_task(one.membership.run())
        await one.given(1)
        one.signs.refusal = Unavailable("away")
        assert await one.next() == "doubt"
        await one.given(3)
        assert one.word.empty() and one.membership.in_doubt
        one.signs.refusal = None
        assert await one.next() == "sure"
        task.cancel()
        one.membership.stop()

    asyncio.run(scene())


def test_a_full_engine_leaves_no_lease_in_doubt() -> None:
    async def scene() -> None:
        one = Scene()
        task = asyncio.create_task(one.membership.run())
        await one.given(1)
        one.signs.refusal = Full("no room")
        assert [await one.next() for _ in range(4)] == ["doubt", "sure", "doubt", "sure"]
        task.cancel()
        one.membership.stop()

    asyncio.run(scene())
