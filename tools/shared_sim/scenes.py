"""Scenes: what walks meet too rarely, told step by step. The rules come through each; the mistake that it is made for does not.

in: rules. out: `Violation` for the mistake.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tools.shared_sim.owner import BATCH
from tools.shared_sim.rules import Rules
from tools.shared_sim.world import World


def half_merged(rules: Rules) -> None:
    """R10: most of a transaction is in, and mostly acked; its thin segments could be merged. Then the owner dies before the rest is in."""
    world = World(rules, random.Random(1), faults=0.0)
    owner, publisher, consumer = world.some_owner(), world.publishers[0], world.consumers[0]
    assert owner is not None
    consumer.attach()
    publisher.publish(True)
    publisher.publish_transaction(12)
    while len(owner.unsent) > BATCH:
        owner.step()
        while world.engine.flights:
            world.engine.turn(0, world.reaches)
    for _ in range(9):
        consumer.take()
    for place in range(9):
        if place % 4 != 3:
            consumer.ack(place // 4)
    for _ in range(8):  # the line alone
        owner._collect_batches()
        owner._settle()
        owner._collect_line()
        if not owner.line:
            owner._send_line()
        while world.engine.flights:
            world.engine.turn(0, world.reaches)
    owner.node.kill()
    world.heal()


# the mistake that a scene is made for -> the scene
SCENES: dict[str, Callable[[Rules], None]] = {"R10 segments of a transaction are merged before it counts": half_merged}
