"""The room of an engine: when publishes rest."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flintmq.cluster.room import Room
from flintmq.config import Limits
from flintmq.engines.engine import Usage

LIMITS = Limits().replace(cluster_room_used=0.8, cluster_room_used_low=0.75, cluster_room_used_max=0.9)


class Engine:
    def __init__(self) -> None:
        self.now = Usage(0, 100, False)

    async def usage(self) -> Usage:
        return self.now


def looks(*usages: Usage) -> tuple[list[bool], list[bool]]:
    """(whether room was low after each look, words about it)."""
    engine, words = Engine(), []

    async def run() -> list[bool]:
        room = Room(engine, LIMITS)  # type: ignore[arg-type]
        room.on_low = words.append
        seen = []
        for engine.now in usages:
            await room.look()
            seen.append(room.is_low)
        return seen

    return asyncio.run(run()), words


def test_publishes_are_refused_from_the_third_bound_on() -> None:
    assert looks(of(89), of(90), of(89), of(76), of(74))[1] == [1, 2, 1, 0]


def of(share: int) -> Usage:
    return Usage(share, 100, False)


def test_room_is_low_from_the_first_bound_to_below_the_second() -> None:
    assert looks(of(79), of(80), of(76), of(74), of(79)) == ([False, True, True, False, False], [True, False])


@pytest.mark.parametrize(("usage", "low"), [(Usage(1 << 40, 0, False), False), (Usage(1, 0, True), True), (Usage(1, 100, True), True)])
def test_an_engine_without_a_quota_is_low_when_it_is_full(usage: Any, low: bool) -> None:
    assert looks(usage)[0] == [low]
