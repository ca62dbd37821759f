"""Scenes: what walks meet too rarely, told step by step. The rules come through each; a mistake that it is made for does not.

in: rules, a seed for what power loss takes. out: `Violation` for the mistake.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

from tools.replication_sim.member import COORDINATOR, Letter
from tools.replication_sim.rules import Rules
from tools.replication_sim.world import LEASE, World


def flow(world: World, among: Collection[int], hold: Callable[[Letter], bool] = lambda letter: False) -> None:
    """Letters between these arrive in their order, and their disks sync, until none of them is left but those that `hold` keeps."""
    while True:
        places = [n for n, one in enumerate(world.letters) if one.sender in among and one.receiver in among and not hold(one)]
        if not places:
            return
        world.deliver(places[0])
        for number in among:
            world.sync(number)


def begin(rules: Rules, seed: int) -> World:
    """Members 1 to 3; member 1 leads, and has confirmed a record."""
    world = World(rules, random.Random(seed))
    everybody = (COORDINATOR, 1, 2, 3)
    world.campaign(1)
    flow(world, everybody)
    world.submit(1)
    flow(world, everybody)
    return world


def late_activation(rules: Rules, seed: int) -> World:
    """R2: the change of the members to 1, 4 and 5 is done but for the word to the coordinator, which is late. Meanwhile 2 and 3 elect 2,
    which confirms. Then the word arrives, and 1 confirms something else in the same place."""
    world = begin(rules, seed)
    world.change_members(1, 0, 2)

    def late(letter: Letter) -> bool:
        return letter.kind == "activate" and letter.sender == 1

    flow(world, (COORDINATOR, 1, 2, 4, 5), late)
    world.pass_time(LEASE + 1)
    world.campaign(2)
    flow(world, (COORDINATOR, 2, 3), late)
    world.submit(2)
    flow(world, (COORDINATOR, 2, 3), late)
    flow(world, (COORDINATOR, 1, 4, 5))
    world.submit(1)
    flow(world, (COORDINATOR, 1, 4, 5))
    return world


def lost_promise(rules: Rules, seed: int) -> World:
    """R5: member 3 gives its word to 2, loses power, and has forgotten it when the old leader's block comes."""
    world = begin(rules, seed)
    world.pass_time(LEASE + 1)
    world.campaign(2)
    flow(world, (COORDINATOR, 2))
    for place in [n for n, letter in enumerate(world.letters) if letter.kind == "seal" and letter.receiver == 3]:
        world.deliver(place)
    world.kill(3)
    world.start(3)
    world.submit(1)
    flow(world, (1, 3), lambda letter: letter.kind == "sealed")
    flow(world, (COORDINATOR, 2, 3))
    return world


def longer_log(rules: Rules, seed: int) -> World:
    """R6: 1 has records of its epoch that nobody else has. 2 and 3 go on without it, and confirm less. Then 3 asks 1 and itself."""
    world = begin(rules, seed)
    for _ in range(5):
        world.submit(1)
        world.sync(1)
    world.letters.clear()
    world.pass_time(LEASE + 1)
    world.campaign(2)
    flow(world, (COORDINATOR, 2, 3))
    world.submit(2)
    flow(world, (COORDINATOR, 2, 3))
    world.kill(2)
    world.letters.clear()
    world.pass_time(LEASE + 1)
    world.campaign(3)
    flow(world, (COORDINATOR, 1, 3))
    world.start(2)
    return world


def old_answer(rules: Rules, seed: int) -> World:
    """R9: 3 has three blocks of epoch 1, which 1 lost with its power; the answer is late. 1 leads again, in epoch 3, when it comes: 1 takes
    it for one about a block that 3 never saw."""
    world = begin(rules, seed)
    for _ in range(3):
        world.submit(1)
    for place in reversed([n for n, letter in enumerate(world.letters) if letter.kind == "blocks" and letter.receiver == 3]):
        world.deliver(place)
    world.sync(3)

    def old(letter: Letter) -> bool:
        return letter.sender == 3

    world.letters = [letter for letter in world.letters if letter.kind == "has" and letter.sender == 3]
    world.kill(1)
    world.start(1)
    world.pass_time(LEASE + 1)
    world.campaign(2)
    flow(world, (COORDINATOR, 1, 2), old)
    world.submit(2)
    flow(world, (COORDINATOR, 1, 2), old)
    world.pass_time(LEASE + 1)
    world.campaign(1)
    flow(world, (COORDINATOR, 1, 2), lambda letter: letter.kind == "blocks" and letter.sender == 1)
    world.letters = [letter for letter in world.letters if old(letter)]
    flow(world, (COORDINATOR, 1, 3), lambda letter: letter.kind == "blocks")
    world.kill(1)
    world.letters.clear()
    world.pass_time(LEASE + 1)
    world.campaign(2)
    flow(world, (COORDINATOR, 2, 3))
    world.start(1)
    return world


# what a scene is made for, as its mistake is called -> the scene
SCENES: dict[str, Callable[[Rules, int], World]] = {
    "R2 an epoch becomes active although there is a newer one": late_activation,
    "R5 a member gives its word before it is on disk": lost_promise,
    "R6 the longest log wins, whatever its epoch": longer_log,
    "R9 an answer of an earlier epoch counts": old_answer,
    "R11 a leader confirms before its epoch is active": late_activation,
}
