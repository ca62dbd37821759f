"""The shared queues that a node serves, on real engines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from flintmq.config import Limits
from flintmq.engines.engine import Engine
from flintmq.engines.memory import MemoryEngine, MemoryStore
from flintmq.mirror.mirror import MirrorPort
from flintmq.queue.control import QueueHandle
from flintmq.shared.layout import Owner, segment_key
from flintmq.shared.queue_log import Lost
from flintmq.shared.serving import Condition, Served, Serving
from flintmq.shared.taking_over import Taken

QUEUES = [b"00000000000000a%d" % number for number in range(4)]


class Node:
    """A node that knows who is gone by being told."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.name = name
        self.cores = 0
        self.gone: set[str] = set()
        self.lost_queues: dict[bytes, BaseException] = {}
        self.settlements: list[bytes] = []
        self.serving = Serving(engine, name, name + "1", MirrorPort(2**64 - 1, 1 << 20, 1 << 21), self, Limits())
        self.serving.follow()

    def new_mirrored(self, queue: bytes) -> QueueHandle:
        self.cores += 1
        return QueueHandle(self.cores)

    def settled(self, queue: bytes) -> None:
        self.settlements.append(queue)

    def lost(self, queue: bytes, reason: BaseException) -> None:
        self.lost_queues[queue] = reason

    def judge(self, owner: Owner) -> Condition | None:
        return (b"n/" + owner.node.encode(), None) if owner.node in self.gone else None

    async def serve(self, queue: bytes) -> Served:
        return await asyncio.wait_for(self.serving.serve(queue, "/", self.judge), 20)


def publish(served: Served, *bodies: bytes) -> list[int]:
    return [served.core.publish(b"", b"q", b"\0" * 14, body, 1, 0) for body in bodies]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def bodies(served: Served) -> list[bytes]:
    found = []
    while (message := served.core.take_head(1)) is not None:
        found.append(message[3])
    return found


def in_memory(scene: Callable[[Callable[[str], Node], MemoryStore], Awaitable[None]]) -> None:
    """Runs a scene of nodes on one store."""

    async def run() -> None:
        store = MemoryStore(1_000)
        nodes: list[Node] = []

        def node(name: str) -> Node:
            nodes.append(Node(MemoryEngine(store, Limits()), name))
            return nodes[-1]

        await scene(node, store)
        for one in nodes:
            one.serving.close()

    asyncio.run(run())


def test_what_is_published_is_written_by_itself_and_the_next_node_has_it() -> None:
    async def scene(node: Callable[[str], Node], store: MemoryStore) -> None:
        a, b = node("a"), node("b")
        served = await a.serve(QUEUES[0])
        positions = publish(served, b"1", b"2", b"3")
        await until(lambda: all(map(served.mirror.is_settled, positions)))
        b.gone = {"a"}
        assert bodies(await b.serve(QUEUES[0])) == [b"1", b"2", b"3"]

    in_memory(scene)


def test_a_queue_that_another_node_serves_is_not_taken() -> None:
    async def scene(node: Callable[[str], Node], store: MemoryStore) -> None:
        a, b = node("a"), node("b")
        first = await a.serve(QUEUES[0])
        with pytest.raises(Taken):
            await b.serve(QUEUES[0])
        assert await a.serve(QUEUES[0]) is first

    in_memory(scene)


def test_of_nodes_that_want_a_queue_at_once_one_serves_it() -> None:
    async def scene(node: Callable[[str], Node], store: MemoryStore) -> None:
        nodes = [node(name) for name in "abcd"]
        for queue in QUEUES:
            outcomes = await asyncio.gather(*(one.serve(queue) for one in nodes), return_exceptions=True)
            assert sum(isinstance(one, Served) for one in outcomes) == 1
            assert sum(isinstance(one, Taken) for one in outcomes) == 3

    in_memory(scene)


def test_a_node_that_was_replaced_is_told_and_refuses_what_waits() -> None:
    async def scene(node: Callable[[str], Node], store: MemoryStore) -> None:
        a, b = node("a"), node("b")
        served = await a.serve(QUEUES[0])
        b.gone = {"a"}
        await b.serve(QUEUES[0])
        (position,) = publish(served, b"late")
        await until(lambda: QUEUES[0] in a.lost_queues)
        assert not served.mirror.is_settled(position)
        assert a.serving.get(QUEUES[0]) is None and a.serving.all() == []

    in_memory(scene)


def test_a_queue_is_handed_over_with_all_that_is_in_it_and_nobody_needs_to_be_gone() -> None:
    async def scene(node: Callable[[str], Node], store: MemoryStore) -> None:
        a, b = node("a"), node("b")
        served = await a.serve(QUEUES[0])
        publish(served, b"1", b"2")
        await a.serving.hand_over(QUEUES[0], "b", "b1")
        assert QUEUES[0] in a.lost_queues
        assert bodies(await b.serve(QUEUES[0])) == [b"1", b"2"]
        with pytest.raises(Lost):
            await a.serving.hand_over(QUEUES[0], "b", "b1")

    in_memory(scene)


def test_a_queue_with_a_damaged_row_is_refused_and_others_are_served() -> None:
    async def scene(node: Callable[[str], Node], store: MemoryStore) -> None:
        a, b = node("a"), node("b")
        for queue in QUEUES[:2]:
            served = await a.serve(queue)
            (position,) = publish(served, b"1")
            await served.log.drain()
        key = segment_key(QUEUES[0], position)
        store.rows[key] = store.rows[key][:-1]
        b.gone = {"a"}
        with pytest.raises(ValueError, match="damaged"):
            await b.serve(QUEUES[0])
        assert bodies(await b.serve(QUEUES[1])) == [b"1"]

    in_memory(scene)


def test_an_embedded_engine_keeps_what_was_settled_over_a_restart(tmp_path: Path) -> None:
    from flintmq.engines.opening import open_engine

    async def life(expected: list[bytes], *more: bytes) -> None:
        engine = open_engine(f"sqlite:{tmp_path / 'rows.db'}", Limits())
        node = Node(engine, "a")
        served = await node.serve(QUEUES[0])
        assert bodies(served) == expected
        positions = publish(served, *more)
        await until(lambda: all(map(served.mirror.is_settled, positions)))
        await served.log.drain()
        node.serving.close()
        await engine.close()

    asyncio.run(life([], b"1", b"2"))
    asyncio.run(life([b"1", b"2"], b"3"))
    asyncio.run(life([b"3"]))
