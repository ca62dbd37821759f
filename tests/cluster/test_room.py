"""The room of an engine: when publishes rest, and who tidies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flintmq.cluster.room import Room
from flintmq.config import Limits
from flintmq.engines.engine import Usage

LIMITS = Limits().replace(cluster_room_used=0.8, cluster_room_used_low=0.75)


class Engine:
    def __init__(self) -> None:
        self.now = Usage(0, 100, False)
        self.tidied = 0

    async def usage(self) -> Usage:
        return self.now

    async def tidy(self) -> None:
        self.tidied += 1


def looks(*usages: Usage, first: bool = True) -> tuple[list[bool], list[bool], int]:
    """(whether room was low after each look, words about it, tidyings)."""
    engine, words = Engine(), []

    async def run() -> list[bool]:
        room = Room(engine, LIMITS, lambda: first)  # type: ignore[arg-type]
        room._tidied_s = asyncio.get_running_loop().time()
        room.on_low = words.append
        seen = []
        for engine.now in usages:
            await room.look()
            seen.append(room.is_low)
        return seen

    return asyncio.run(run()), words, engine.tidied


def of(share: int) -> Usage:
    return Usage(share, 100, False)


def test_room_is_low_from_the_first_bound_to_below_the_second() -> None:
    assert looks(of(79), of(80), of(76), of(74), of(79))[:2] == ([False, True, True, False, False], [True, False])


@pytest.mark.parametrize(("usage", "low"), [(Usage(1 << 40, 0, False), False), (Usage(1, 0, True), True), (Usage(1, 100, True), True)])
def test_an_engine_without_a_quota_is_low_when_it_is_full(usage: Any, low: bool) -> None:
    assert looks(usage)[0] == [low]


def test_one_node_tidies_at_once_where_room_is_low_and_the_others_never() -> None:
    assert looks(of(10))[2] == 0
    assert looks(of(90))[2] == 1
    assert looks(of(90), first=False)[2] == 0
