"""This node among the living: its lease is in doubt without accepted signs, and sure again with one; a name that is taken ends it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flintmq.cluster.membership import Membership
from flintmq.config import Limits
from flintmq.engines.engine import Full, Unavailable
from flintmq.shared.nodes import NameTaken, Node, Replaced

LIMITS = Limits().replace(shared_node_lease_ms=40, shared_pause_ms_max=1)
WAIT_S = 20.0


class Signs:
    """As Nodes, whose engine answers what the test says."""

    def __init__(self) -> None:
        self.name = "a"
        self.living: dict[str, Node] = {}
        self.known: dict[str, Node] = {}
        self.taken = 0  # times that the name is another node's
        self.failure: Exception | None = None
        self.beats = 0

    async def join(self) -> None:
        if self.taken:
            self.taken -= 1
            raise NameTaken("a node named 'a' lives")

    async def beat(self) -> None:
        self.beats += 1
        if self.failure is not None:
            raise self.failure

    async def look(self) -> None: ...

    def until_gone_s(self) -> float:
        return 1.0


class Scene:
    def __init__(self) -> None:
        self.nodes = Signs()
        self.told: list[str] = []
        self.heard = asyncio.Event()
        nodes: Any = self.nodes
        self.membership = Membership(nodes, LIMITS, lambda: self.tell("changed"), lambda: self.tell("doubted"), self.sure)

    def tell(self, word: str) -> None:
        self.told.append(word)
        self.heard.set()

    async def sure(self) -> None:
        self.tell("sure")

    async def until(self, *words: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.told[: len(words)] != list(words):
                self.heard.clear()
                await self.heard.wait()


@pytest.fixture
def run() -> Any:
    def made(scene_of: Any) -> None:
        async def play() -> None:
            scene = Scene()
            task = asyncio.create_task(scene.membership.run())
            try:
                await scene_of(scene, task)
            finally:
                task.cancel()
                scene.membership.stop()

        asyncio.run(play())

    return made


def test_a_lease_without_signs_is_in_doubt_and_sure_with_the_next_one(run: Any) -> None:
    async def scene_of(scene: Scene, task: Any) -> None:
        scene.nodes.living = {"a": Node("a", "1", 1, {})}
        await scene.until("changed")
        scene.nodes.failure = Unavailable("away")
        await scene.until("changed", "doubted")
        assert scene.membership.in_doubt
        scene.nodes.failure = None
        await scene.until("changed", "doubted", "sure")

    run(scene_of)


def test_a_full_engine_leaves_no_lease_in_doubt(run: Any) -> None:
    async def scene_of(scene: Scene, task: Any) -> None:
        scene.nodes.living = {"a": Node("a", "1", 1, {})}
        await scene.until("changed")
        scene.nodes.failure = Full("no room")
        await scene.until("changed", "doubted", "sure", "doubted", "sure")

    run(scene_of)


def test_nodes_that_come_and_go_and_other_lives_are_told_and_said(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "flintmq.cluster")

    async def scene_of(scene: Scene, task: Any) -> None:
        for life in ("1", "2"):
            scene.nodes.living = scene.nodes.known = {"b": Node("b", life, 1, {})}
            await scene.until(*["changed"] * int(life))
        scene.nodes.living = {}
        await scene.until(*["changed"] * 3)
        scene.nodes.living = scene.nodes.known
        await scene.until(*["changed"] * 4)
        scene.nodes.living = scene.nodes.known = {}
        await scene.until(*["changed"] * 5)

    run(scene_of)
    assert caplog.messages == [
        "node 'b' is there",
        "node 'b' is there, started anew",
        "node 'b' gives no sign of life: other nodes take its queues over",
        "node 'b' is there",
        "node 'b' has left the cluster",
    ]


def test_a_name_that_lives_is_waited_for_and_one_that_is_taken_ends_the_membership(run: Any) -> None:
    async def scene_of(scene: Scene, task: Any) -> None:
        scene.nodes.taken = 2
        async with asyncio.timeout(WAIT_S):
            await scene.membership.joined.wait()
        assert scene.nodes.taken == 0
        scene.nodes.failure = Replaced("another process has the name 'a'")
        async with asyncio.timeout(WAIT_S):
            await task
        assert scene.membership.why_not and scene.told == ["doubted"]

    run(scene_of)
