"""Orders to nodes as rows: who reads them, how long they stand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from flintmq.config import Limits
from flintmq.engines.engine import Commit
from flintmq.engines.memory import MemoryEngine, MemoryStore
from flintmq.shared.orders import Orders, forget_orders, order_move, order_state, orders_of, take_orders

NOTHING = Orders(False, [])


def scene(work: Callable[[MemoryEngine], Awaitable[None]]) -> None:
    limits = Limits()
    asyncio.run(work(MemoryEngine(MemoryStore(limits.engine_commit_rows_max), limits)))  # type: ignore[arg-type]


def test_a_state_stands_until_another_replaces_it_and_a_move_is_taken_once() -> None:
    async def work(engine: MemoryEngine) -> None:
        await order_state(engine, "a", "life", True)
        await order_move(engine, "a", "life", b"queue", "b")
        assert await take_orders(engine, "a", "life") == Orders(True, [(b"queue", "b")])
        assert await take_orders(engine, "a", "life") == Orders(True, [])
        await order_state(engine, "a", "life", False)
        assert await take_orders(engine, "a", "life") == NOTHING

    scene(work)


def test_an_order_to_an_earlier_life_is_obeyed_by_nobody_and_goes() -> None:
    async def work(engine: MemoryEngine) -> None:
        await order_state(engine, "a", "earlier", True)
        await order_move(engine, "a", "earlier", b"queue", "b")
        assert await take_orders(engine, "a", "life") == NOTHING
        assert await engine.scan(*orders_of("a"), 10, 1_000) == []

    scene(work)


def test_orders_are_one_nodes_alone_and_go_with_it() -> None:
    async def work(engine: MemoryEngine) -> None:
        await order_state(engine, "a", "life", True)
        await order_state(engine, "a.b", "life", True)
        assert (await take_orders(engine, "b", "life")) == NOTHING
        await forget_orders(engine, "a")
        assert await take_orders(engine, "a", "life") == NOTHING
        assert (await take_orders(engine, "a.b", "life")).is_drained

    scene(work)


def test_a_row_that_is_no_order_is_nobodys_and_goes() -> None:
    async def work(engine: MemoryEngine) -> None:
        begin, _ = orders_of("a")
        await engine.commit(Commit(puts={begin + b"m/1": b"\xff", begin + b"m/2": b"[]", begin + b"m/3": b'{"life": "life", "to": 1}'}))
        assert await take_orders(engine, "a", "life") == NOTHING
        assert await engine.scan(*orders_of("a"), 10, 1_000) == []

    scene(work)
