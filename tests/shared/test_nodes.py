"""Nodes of an engine: who lives, and who is gone."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.engines.engine import EngineError, Full
from flintmq.shared.nodes import NameTaken, Nodes, Replaced, candidates
from tests.shared.owners_of_one_queue import Store

LEASE_S = 5.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Cluster:
    """Nodes of one engine, each with a clock of its own that runs as the others."""

    def __init__(self, seed: int = 1) -> None:
        self.store = Store(seed)
        self.clocks: dict[str, Clock] = {}

    def node(self, name: str, offset_s: float = 0.0) -> Nodes:
        clock = self.clocks[name] = Clock()
        clock.now += offset_s
        return Nodes(self.store.engine(), name, {"amqp": f"{name}:5672"}, Limits(), clock)

    def pass_time(self, seconds: float) -> None:
        for clock in self.clocks.values():
            clock.now += seconds


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_a_node_that_beats_lives_and_one_that_does_not_is_gone_after_a_lease() -> None:
    async def scene() -> None:
        cluster = Cluster()
        a, b = cluster.node("a"), cluster.node("b", offset_s=1_000)
        await a.join()
        await b.join()
        for _ in range(8):
            await a.look()
            assert a.living.keys() == {"a", "b"} and not a.is_gone("b", b.life)
            cluster.pass_time(1)
            await b.beat()
            await a.beat()
        await a.look()
        cluster.pass_time(LEASE_S - 0.1)
        await a.beat()
        await a.look()
        assert not a.is_gone("b", b.life)
        cluster.pass_time(0.2)
        await a.look()
        assert a.is_gone("b", b.life)
        assert a.living["a"].facts == {"amqp": "a:5672"}

    run(scene)


def test_a_look_when_the_next_one_is_due_sees_a_silent_node_gone_at_its_lease() -> None:
    async def scene() -> None:
        cluster = Cluster()
        a, b = cluster.node("a"), cluster.node("b")
        await a.join()
        assert a.until_gone_s() == math.inf
        await b.join()
        await a.look()
        assert a.until_gone_s() == LEASE_S
        cluster.pass_time(2)
        await a.beat()
        await b.beat()
        await a.look()
        cluster.pass_time(1)
        assert a.until_gone_s() == LEASE_S - 1
        cluster.pass_time(a.until_gone_s())
        await a.look()
        assert a.is_gone("b", b.life) and a.until_gone_s() == math.inf

    run(scene)


def test_after_an_outage_of_the_engine_everybody_has_a_lease_to_give_a_sign() -> None:
    async def scene() -> None:
        cluster = Cluster()
        a, b = cluster.node("a"), cluster.node("b")
        await a.join()
        await b.join()
        await a.look()
        cluster.store.faults.share = 1.0
        with pytest.raises(EngineError):
            for _ in range(20):
                await a.beat()
        cluster.pass_time(120)
        cluster.store.faults.share = 0.0
        await a.look()
        assert not a.is_gone("b", b.life)
        await a.beat()
        cluster.pass_time(LEASE_S + 0.1)
        await a.look()
        assert a.is_gone("b", b.life)

    run(scene)


def test_in_a_full_engine_that_takes_no_signs_nobody_is_gone() -> None:
    async def scene() -> None:
        cluster = Cluster()
        a, b = cluster.node("a"), cluster.node("b")
        await a.join()
        await b.join()
        await a.look()
        cluster.store.faults.full = True
        for _ in range(10):
            cluster.pass_time(LEASE_S)
            with pytest.raises(Full):
                await a.beat()
            await a.look()
            assert not a.is_gone("b", b.life)

    run(scene)


def test_whoever_takes_a_queue_over_compares_the_row_by_which_its_owner_is_gone() -> None:
    async def scene() -> None:
        cluster = Cluster()
        a, b = cluster.node("a"), cluster.node("b")
        await a.join()
        await b.join()
        await a.look()
        key, value = a.judged("b")
        assert cluster.store.rows[key] == value
        await b.beat()
        assert cluster.store.rows[key] != value
        assert a.judged("nobody") == (b"n/nobody", None)

    run(scene)


def test_a_node_that_was_stopped_itself_declares_nobody_gone_before_a_fresh_read() -> None:
    async def scene() -> None:
        cluster = Cluster()
        a, b = cluster.node("a"), cluster.node("b")
        await a.join()
        await b.join()
        await a.look()
        cluster.pass_time(60)
        await b.beat()
        assert not a.is_gone("b", b.life)
        await a.look()
        assert not a.is_gone("b", b.life)

    run(scene)


def test_a_name_is_one_node_s_while_it_lives() -> None:
    async def scene() -> None:
        cluster = Cluster()
        a, again = cluster.node("a"), cluster.node("a")
        await a.join()
        with pytest.raises(NameTaken):
            await again.join()
        cluster.pass_time(LEASE_S + 0.1)
        await again.join()
        with pytest.raises(Replaced):
            await a.beat()

    run(scene)


def test_a_node_that_leaves_or_begins_anew_is_gone_at_once() -> None:
    async def scene() -> None:
        cluster = Cluster()
        a, b = cluster.node("a"), cluster.node("b")
        await a.join()
        await b.join()
        await b.leave()
        await a.look()
        assert a.is_gone("b", b.life)
        anew = cluster.node("b")
        await anew.join()
        await a.look()
        assert a.is_gone("b", b.life) and not a.is_gone("b", anew.life)

    run(scene)


def test_a_beat_without_an_answer_ends_no_life() -> None:
    async def scene() -> None:
        for seed in range(60):
            cluster = Cluster(seed)
            a = cluster.node("a")
            await a.join()
            cluster.store.faults.share = 0.4
            for _ in range(30):
                try:
                    await a.beat()
                except EngineError:
                    continue
            cluster.store.faults.share = 0.0
            await a.beat()

    run(scene)


def test_every_node_names_the_same_candidates_and_a_queue_stays_when_another_node_goes() -> None:
    names = ["a", "b", "c", "d"]
    firsts = {number: candidates(b"%d" % number, names)[0] for number in range(200)}
    assert candidates(b"7", reversed(names)) == candidates(b"7", names)
    assert set(firsts.values()) == set(names)
    for number, first in firsts.items():
        if first != "d":
            assert candidates(b"%d" % number, ["a", "b", "c"])[0] == first
