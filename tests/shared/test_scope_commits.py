"""Scopes and stages whatever the engine answers and whoever dies: each batch once, whole, of the stages that its commit named.

Properties: a batch that was answered is in its queues once; one that was not is there once after its driver has asked again, or not at all;
a stage that was not named is nowhere; no row of a stage stays.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from flintmq.engines.engine import EngineError
from flintmq.shared.queue_log import Lost
from flintmq.shared.scope_commits import ScopeRefusal, Why
from flintmq.shared.scope_rows import PREPARED, ScopeRow, Stage
from flintmq.shared.transaction_commits import Changes
from flintmq.shared.transaction_rows import Message, TransactionRow
from tests.cluster.transaction_world import QUEUES, Node, World

FRESH = ScopeRow("guest", "query")


class Driver:
    """A run of a scope that writes batches through whichever node is there, and asks again until it is answered."""

    def __init__(self, world: World, scope: str) -> None:
        self.world = world
        self.scope = scope
        self.named: dict[int, list[bytes]] = {}  # bodies of the batches that were committed
        self.others: list[bytes] = []  # of stages that were not named

    async def node(self) -> Node:
        while not self.world.nodes:
            await asyncio.sleep(0)
        return self.world.nodes[self.world.random.choice(sorted(self.world.nodes))]

    async def surely(self, call: str, *arguments: object) -> object:
        while True:
            node = await self.node()
            try:
                async with asyncio.timeout(0.5):
                    return await getattr(node.transactions.scopes, call)(*arguments)
            except (EngineError, Lost, TimeoutError):
                await asyncio.sleep(0)

    async def stage(self, epoch: int, batch: int, part: int, bodies: list[bytes]) -> bytes | None:
        """None: it was lost on its way, and its task begins another one."""
        node = await self.node()
        transactions = node.transactions
        transaction = transactions.new_id()
        facts = Stage("/", self.scope, "guest", epoch, batch, part, 0)
        row = TransactionRow(False, node.me.name, node.me.life, [], facts.pack())
        transactions.writing.add(transaction)
        try:
            await transactions.deciding.change(transaction, None, row.pack())
            for number, body in enumerate(bodies):
                queue = QUEUES[number % len(QUEUES)]
                changes = Changes([Message(b"", b"q", b"\0" * 14, body, 1, 0)], first=number)
                changes.pack(self.world.limits)
                after = replace(row, queues=sorted({*row.queues, queue.decode()}))
                if after != row:
                    await transactions.deciding.change(transaction, row.pack(), after.pack())
                    row = after
                await transactions.deciding.add(transaction, {queue: changes}, row.pack())
            prepared = replace(row, stage=replace(facts, state=PREPARED).pack())
            await transactions.deciding.change(transaction, row.pack(), prepared.pack())
        except EngineError:
            return None
        finally:
            transactions.writing.discard(transaction)
        return None if node.is_dead else transaction

    async def run(self, batches: int) -> None:
        epoch = await self.surely("next_epoch")
        assert isinstance(epoch, int)
        await self.surely("enter", "/", self.scope, FRESH, epoch)
        for batch in range(batches):
            while batch not in self.named:
                await self._batch(epoch, batch)

    async def _batch(self, epoch: int, batch: int) -> None:
        ids: list[bytes] = []
        named: list[bytes] = []
        for part in range(self.world.random.randint(0, 3)):
            attempt = 0
            while True:
                attempt += 1
                bodies = [f"{self.scope}.{batch}.{len(self.others)}.{part}.{attempt}.{number}".encode() for number in range(4)]
                transaction = await self.stage(epoch, batch, part, bodies)
                if transaction is not None and self.world.random.random() < 0.8:
                    ids.append(transaction)
                    named += bodies
                    break
                self.others += bodies
        try:
            committed = await self.surely("commit", "/", self.scope, epoch, batch, ids, "guest")
        except ScopeRefusal as refusal:
            assert refusal.why is Why.NOT_PREPARED, refusal  # a stage of a node that died: the batch is written anew
            self.others += named
            return
        assert isinstance(committed, tuple) and committed[0] >= batch
        self.named[batch] = named


async def walk(world: World, deaths: int) -> list[Driver]:
    for name in ("a", "b"):
        world.start(name)
    follower = asyncio.create_task(world.follow())
    drivers = [Driver(world, "x"), Driver(world, "y")]
    at_work = [asyncio.create_task(driver.run(5)) for driver in drivers]
    for _ in range(deaths):
        for _ in range(world.random.randint(100, 800)):
            await asyncio.sleep(0)
        name = world.random.choice(sorted(world.nodes))
        world.kill(name)
        world.start(name)
    async with asyncio.timeout(60):
        await asyncio.gather(*at_work)
    world.plan.share = 0.0
    world.kill("a")
    last = world.nodes["b"].transactions
    async with asyncio.timeout(30):
        while not all(queue in last._queues for queue in QUEUES):
            await asyncio.sleep(0)
        for driver in drivers:  # of what was not named the next commit rids them
            epoch = await driver.surely("next_epoch")
            await driver.surely("commit", "/", driver.scope, epoch, 100, [], "guest")
        while world.rows_of_transactions():
            await asyncio.sleep(0.001)
    follower.cancel()
    return drivers


@pytest.mark.parametrize("seed", range(8))
def test_each_batch_is_published_once_and_whole_whatever_dies(seed: int) -> None:
    async def scene() -> None:
        world = World(seed, share=(0.0, 0.05, 0.1)[seed % 3], commit_rows=(200, 14)[seed % 2])
        drivers = await walk(world, deaths=seed % 4)
        there = Counter(body for bodies in world.rest().values() for body in bodies)
        for driver in drivers:
            assert sorted(driver.named) == list(range(5))
            for body in (body for bodies in driver.named.values() for body in bodies):
                assert there[body] == 1, body
            assert not any(there[body] for body in driver.others)
        for name in list(world.nodes):
            world.kill(name)

    asyncio.run(scene())
