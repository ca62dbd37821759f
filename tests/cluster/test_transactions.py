"""Transactions on shared queues through nodes that die: all or nothing in all queues, exactly once, in each client's order.

Properties: of a transaction that was answered each message is in its queue once until a later one ends it, and what it ended is gone; one
that was refused left nothing; one of which nobody knows is one or the other, whole; no row of any stays; of the deliveries of a message one
at most is not flagged.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from flintmq.cluster.transactions import Outcome
from tests.cluster.transaction_world import QUEUES, World


async def walk(world: World, clients: int, count: int, deaths: int) -> None:
    """Clients commit, and nodes die meanwhile; then all comes to rest without faults, on one node."""
    for name in ("a", "b", "c"):
        world.start(name)
    follower = asyncio.create_task(world.follow())
    at_work = [asyncio.create_task(world.client(f"c{number}", count)) for number in range(clients)]
    for _ in range(deaths):
        for _ in range(world.random.randint(50, 600)):
            await asyncio.sleep(0)
        name = world.random.choice(sorted(world.nodes))
        world.kill(name)
        world.start(name)
    async with asyncio.timeout(60):
        await asyncio.gather(*at_work)
    world.plan.share = 0.0
    for name in ("a", "b"):
        world.kill(name)
    async with asyncio.timeout(30):
        while not all(world.nodes["c"].serving.get(queue) and queue in world.nodes["c"].transactions._queues for queue in QUEUES):
            await asyncio.sleep(0)
        while world.rows_of_transactions():
            await asyncio.sleep(0.001)
    follower.cancel()


def judge(world: World) -> None:
    rest = world.rest()
    there = Counter(body for bodies in rest.values() for body in bodies)
    by_body = {body: work for work in world.done for bodies in work.bodies.values() for body in bodies}
    seen = set(there) | set(world.deliveries)
    # Of one of which nobody knows its first message tells; that all others agree is checked below.
    decided = {
        id(work): work.outcome is Outcome.DECIDED
        or (work.outcome in (None, Outcome.UNKNOWN) and any(body in seen for bodies in work.bodies.values() for body in bodies))
        for work in world.done
    }
    ended = Counter(body for work in world.done if decided[id(work)] for body in work.ended)
    for body, work in by_body.items():
        copies = there[body] + ended[body]
        assert copies == (1 if decided[id(work)] else 0), f"{body!r} of {work.outcome}: {there[body]} in queues, ended {ended[body]} times"
        if not decided[id(work)]:
            assert body not in world.deliveries
    for body, flags in world.deliveries.items():
        assert flags.count(False) <= 1, body
    for queue, bodies in rest.items():
        for client in {body.split(b".")[0] for body in bodies}:
            # What was not answered may come late: its client went on without knowing.
            own = [body for body in bodies if body.startswith(client + b".") and by_body[body].outcome is Outcome.DECIDED]
            assert own == sorted(own), f"{queue!r}: {own}"


@pytest.mark.parametrize("seed", range(16))
def test_transactions_are_whole_once_and_in_order_whatever_dies(seed: int) -> None:
    random.seed(seed)

    async def scene() -> None:
        world = World(seed, share=(0.0, 0.05, 0.15)[seed % 3], commit_rows=(200, 14)[seed % 2])
        await walk(world, clients=4, count=12, deaths=seed % 4)
        judge(world)
        for node in list(world.nodes):
            world.kill(node)

    asyncio.run(scene())
