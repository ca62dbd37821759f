"""The cluster as its engine has it: who lives, who is gone, where queues are, orders; on an engine in memory, with nodes that give signs
of life, or no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.engines.engine import Commit
from flintmq.engines.memory import MemoryEngine, MemoryStore
from flintmq.errors import PeerError
from flintmq.shared import queue_rows
from flintmq.shared.engine_view import EngineView
from flintmq.shared.layout import Owner, owner_key
from flintmq.shared.node_facts import NodeFacts
from flintmq.shared.nodes import Nodes
from flintmq.shared.orders import orders_of, take_orders
from tests.twins.faulty_engine import Fate, FaultyEngine, Plan

LEASE_S = 0.4
LIMITS = Limits().replace(shared_node_lease_ms=int(LEASE_S * 1000))


class Rig:
    def __init__(self) -> None:
        self.plan = Plan()
        self.engine = FaultyEngine(MemoryEngine(MemoryStore(1_000), LIMITS), self.plan)
        self.view = EngineView(self.engine, LIMITS)
        self._beating: dict[str, asyncio.Task[None]] = {}

    async def node(self, name: str, **facts: Any) -> Nodes:
        nodes = Nodes(self.engine, name, NodeFacts(version="1.0", **facts).pack(), LIMITS)
        await nodes.join()

        async def beat() -> None:
            while True:
                await asyncio.sleep(0.02)
                await nodes.beat()

        self._beating[name] = asyncio.create_task(beat())
        return nodes

    def kill(self, *names: str) -> None:
        for name in names or tuple(self._beating):
            self._beating.pop(name).cancel()

    async def owned(self, queue: str, node: Nodes) -> bytes:
        row, _ = await queue_rows.declare(self.engine, "/", queue, {})
        await self.engine.commit(Commit(puts={owner_key(row.id): Owner(3, node.name, node.life).pack()}))
        return row.id

    async def states(self) -> dict[str, object]:
        return {str(row["name"]): row["state"] for row in await self.view.nodes()}


def run(story: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        rig = Rig()
        try:
            await asyncio.wait_for(story(rig), 30)
        finally:
            rig.kill()

    asyncio.run(whole())


def test_a_node_without_signs_for_a_lease_is_down_and_one_that_gives_them_is_what_it_says() -> None:
    async def story(rig: Rig) -> None:
        await rig.node("a", addresses={"amqp": "host:5672"}, left=2, queues=1)
        await rig.node("b", state="drained")
        await rig.node("c", left=7)
        rig.kill("c")
        rows = await rig.view.nodes()
        assert [(row["name"], row["state"], row["left"], row["queues"]) for row in rows] == [
            ("a", "up", 2, 1),
            ("b", "drained", 0, 0),
            ("c", "down", 0, 0),
        ]
        assert rows[0]["addresses"] == {"amqp": "host:5672"}
        rig.kill("a")
        await asyncio.sleep(1.1 * LEASE_S)
        assert await rig.states() == {"a": "down", "b": "drained", "c": "down"}

    run(story)


def test_in_an_engine_that_takes_no_puts_no_node_counts_as_down_and_none_is_removed() -> None:
    async def story(rig: Rig) -> None:
        await rig.node("a")
        rig.kill("a")
        rig.plan.script.extend([Fate.FULL] * 10_000)
        assert await rig.states() == {"a": "up"}
        with pytest.raises(PeerError, match="node 'a' is not down"):
            await rig.view.remove("a")

    run(story)


def test_a_dead_node_is_forgotten_with_its_orders_and_a_living_one_is_not() -> None:
    async def story(rig: Rig) -> None:
        await rig.node("a")
        await rig.node("dead")
        await rig.view.order("dead", True)
        rig.kill("dead")
        await asyncio.sleep(1.1 * LEASE_S)
        await rig.view.remove("dead")
        assert await rig.states() == {"a": "up"}
        assert await rig.engine.scan(*orders_of("dead"), 10, 1_000) == []
        for name, text in (("a", "node 'a' is not down"), ("dead", "there is no node 'dead'")):
            with pytest.raises(PeerError, match=text):
                await rig.view.remove(name)

    run(story)


def test_orders_reach_the_life_that_is_there_and_only_that_one() -> None:
    async def story(rig: Rig) -> None:
        a, b = await rig.node("a"), await rig.node("b")
        queue = await rig.owned("q", a)
        await rig.view.order("a", True)
        await rig.view.move("/", "q", "b")
        orders = await take_orders(rig.engine, "a", a.life)
        assert (orders.is_drained, orders.moves) == (True, [(queue, "b")])
        await rig.view.order("a", False)
        assert not (await take_orders(rig.engine, "a", a.life)).is_drained
        await rig.view.move("/", "q", "a")  # which owns it: nothing happens
        assert (await take_orders(rig.engine, "a", a.life)).moves == []
        assert (await take_orders(rig.engine, "b", b.life)).moves == []

    run(story)


def test_what_can_not_be_moved_is_said() -> None:
    async def story(rig: Rig) -> None:
        a = await rig.node("a")
        await rig.node("drained", state="drained")
        await rig.owned("q", a)
        cases = (
            ("nothing", "a", "no shared queue 'nothing' in vhost '/'"),
            ("q", "nobody", "no node 'nobody'"),
            ("q", "drained", "is drained"),
        )
        for queue, to, text in cases:
            with pytest.raises(PeerError, match=text):
                await rig.view.move("/", queue, to)
        b = await rig.node("b")
        await rig.owned("of-b", b)
        rig.kill("b")
        rig.view = EngineView(rig.engine, LIMITS)
        for queue, to, text in (("q", "b", "node 'b' is down"), ("of-b", "a", "has no owner now")):
            with pytest.raises(PeerError, match=text):
                await rig.view.move("/", queue, to)

    run(story)


def test_queues_are_shown_with_their_owners_page_by_page() -> None:
    async def story(rig: Rig) -> None:
        a = await rig.node("a")
        rig.view = EngineView(rig.engine, LIMITS.replace(shared_definitions_page=2))
        for name in ("c", "b", "d", "a"):
            await rig.owned(name, a)
        await queue_rows.declare(rig.engine, "other", "nobodys", {})
        rows = await rig.view.queues()
        assert [(row["vhost"], row["name"], row["owner"], row["epoch"]) for row in rows] == [
            *(("/", name, "a", 3) for name in "abcd"),
            ("other", "nobodys", None, 0),
        ]

    run(story)
