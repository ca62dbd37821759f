"""The state machine of ADR 15: its promises hold on random walks, and planted mistakes are found."""

from __future__ import annotations

import random

import pytest

from tools.shared_sim.campaign import STEPS, first_violation, scene_violation
from tools.shared_sim.engine import DONE, FAILED, FULL, OWNER, QUIET, UNAVAILABLE, UNKNOWN, Commit, Engine
from tools.shared_sim.mistakes import MISTAKES
from tools.shared_sim.rules import Rules
from tools.shared_sim.scenes import SCENES
from tools.shared_sim.world import World, walk

# walks in which a mistake is looked for; the campaign takes up to 20,000
SHORT = 300


def test_random_walks_break_no_promise_and_do_something() -> None:
    worlds = [walk(Rules(), seed, STEPS) for seed in range(1, 301)]
    assert sum(world.confirms for world in worlds) > 3_000
    assert sum(world.take_overs for world in worlds) > 600
    assert sum(world.rewrites for world in worlds) > 5


def test_the_same_seed_is_the_same_walk() -> None:
    one, other = walk(Rules(), 7, STEPS), walk(Rules(), 7, STEPS)
    assert (one.places, one.acked, one.take_overs, one.engine.rows) == (other.places, other.acked, other.take_overs, other.engine.rows)


QUICK = [
    "R1 batches compare no owner row",
    "R3 the mark is not written",
    "R3 a full engine's segments stay since no mark can be written",
    "R4 an unknown outcome is a success",
    "R4 a node that is named as owner does not serve",
    "R5 batches behind a gap are kept",
    "R5 the gap is counted from batch 1",
    "R5 batches above the mark go",
    "R6 a consumer comes before the queue is open",
    "R7 a lease counts although the observer's beats were not accepted",
    "R7 the life is not compared",
    "R11 an owner delivers after its lease",
]


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_mistake_is_found_by_a_short_run(name: str) -> None:
    assert first_violation(MISTAKES[name](), SHORT)[0]


@pytest.mark.parametrize("name", SCENES)
def test_the_rules_come_through_each_scene_and_its_mistake_does_not(name: str) -> None:
    SCENES[name](Rules())
    assert scene_violation(name, MISTAKES[name]())


def test_each_rule_has_a_mistake_and_each_mistake_overrides_a_rule() -> None:
    assert {name.split()[0] for name in MISTAKES} == {f"R{number}" for number in range(1, 12)}
    overridden = {name for kind in MISTAKES.values() for name in vars(kind) if name in vars(Rules) and not name.startswith("_")}
    assert overridden == {name for name in vars(Rules) if not name.startswith("_")}


# --- the engine of the model is no better than the port allows ---------------------------------------------------------


def _commit(value: int, expected: int | None, deletes: bool = False) -> Commit:
    puts = {} if deletes else {QUIET: value}
    return Commit("line", 1, 1, 1, ((QUIET, expected),), puts, frozenset({QUIET}) if deletes else frozenset())


def test_commits_in_the_air_have_every_outcome_that_the_port_names() -> None:
    outcomes: set[tuple[str | None, bool]] = set()
    for seed in range(400):
        chance = random.Random(seed)
        engine = Engine(chance, 0.5, lambda commit: None)
        flight = engine.submit(_commit(1, None), reachable=True)
        reachable = bool(seed % 2)
        for _ in range(6):
            engine.turn(0, lambda node, reachable=reachable: reachable)  # type: ignore[misc]
        outcomes.add((flight.outcome, QUIET in engine.rows))
    assert outcomes >= {(DONE, True), (UNKNOWN, True), (UNKNOWN, False), (UNAVAILABLE, False)}


def test_a_commit_whose_condition_does_not_hold_changes_nothing() -> None:
    engine = Engine(random.Random(1), 0.0, lambda commit: None)
    flight = engine.submit(_commit(2, 1), reachable=True)
    while flight.outcome is None:
        engine.turn(0, lambda node: True)
    assert (flight.outcome, engine.rows) == (FAILED, {})


def test_a_full_engine_refuses_puts_and_takes_deletes() -> None:
    engine = Engine(random.Random(1), 0.0, lambda commit: None)
    engine.rows[QUIET] = 1
    engine.full = True
    put, delete = engine.submit(_commit(2, 1), reachable=True), engine.submit(_commit(0, 1, deletes=True), reachable=True)
    while put.outcome is None or delete.outcome is None:
        engine.turn(0, lambda node: True)
    assert (put.outcome, delete.outcome, engine.rows) == (FULL, DONE, {})


def test_a_world_begins_with_a_queue_that_somebody_declared() -> None:
    world = World(Rules(), random.Random(1))
    assert OWNER in world.engine.rows
    world.heal()
    assert world.take_overs >= 1
