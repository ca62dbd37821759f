"""Faults on demand do all that E4 to E6 allow, and no more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.engines.engine import Commit, Full, Unavailable, UnknownOutcome
from flintmq.engines.memory import MemoryEngine, MemoryStore
from tests.twins.faulty_engine import Fate, FaultyEngine, Plan, RandomPlan

LIMITS = Limits()


def run(plan: Plan, story: Callable[[FaultyEngine, MemoryStore], Coroutine[Any, Any, None]]) -> None:
    store = MemoryStore(100)
    asyncio.run(asyncio.wait_for(story(FaultyEngine(MemoryEngine(store, LIMITS), plan), store), 10))


def put(number: int, **condition: bytes) -> Commit:
    return Commit([(key.encode(), value) for key, value in condition.items()], {b"%d" % number: b""})


def test_each_fate_does_to_a_commit_as_it_says() -> None:
    plan = Plan([Fate.LOST, Fate.NEVER, Fate.FULL, Fate.HAPPENED, Fate.LATER, Fate.DONE])

    async def story(engine: FaultyEngine, store: MemoryStore) -> None:
        for number, error in enumerate([Unavailable, UnknownOutcome, Full, UnknownOutcome, UnknownOutcome]):
            with pytest.raises(error):
                await engine.commit(put(number))
        assert await engine.commit(put(5))
        assert store.keys == [b"3", b"5"]
        assert await plan.let_happen()
        assert store.keys == [b"3", b"4", b"5"]

    run(plan, story)


def test_a_late_commit_is_judged_when_it_happens() -> None:
    plan = Plan([Fate.DONE, Fate.LATER, Fate.FULL])

    async def story(engine: FaultyEngine, store: MemoryStore) -> None:
        await engine.commit(Commit(puts={b"owner": b"me"}))
        with pytest.raises(UnknownOutcome):
            await engine.commit(put(1, owner=b"me"))
        assert await engine.commit(Commit(deletes=[b"owner"])), "a full engine deletes"
        assert not await plan.let_happen()
        assert store.keys == []

    run(plan, story)


def test_calls_wait_for_the_gate_and_lost_watches_say_none() -> None:
    plan = Plan()
    gate = asyncio.Event()
    held: list[str] = []

    async def wait(call: str) -> None:
        held.append(call)
        await gate.wait()

    async def story(engine: FaultyEngine, store: MemoryStore) -> None:
        events = engine.watch(b"", b"\xff")
        assert await anext(events) is None
        plan.gate = wait
        task = asyncio.create_task(engine.commit(put(1)))
        while not held:
            await asyncio.sleep(0)
        assert (held, store.keys) == (["commit"], [])
        gate.set()
        assert await task
        assert await anext(events) == {b"1"}
        engine.lose_watches()
        assert await anext(events) is None
        await events.aclose()

    run(plan, story)


def test_a_commit_that_its_caller_gave_up_may_happen_later() -> None:
    plan = RandomPlan(1, 0.0, turns=20)

    async def story(engine: FaultyEngine, store: MemoryStore) -> None:
        tasks = [asyncio.create_task(engine.commit(put(number))) for number in range(40)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        before = len(store.keys)
        assert 0 < len(plan.late) < 40
        while plan.late:
            await plan.let_happen()
        assert before < len(store.keys) < 40

    run(plan, story)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_becomes_of_calls_outcomes_are_true_and_a_changed_row_ends_late_commits(seed: int) -> None:
    plan = RandomPlan(seed, 0.4)
    confirmed: set[bytes] = set()
    refused: set[bytes] = set()

    async def story(engine: FaultyEngine, store: MemoryStore) -> None:
        async def write(me: int) -> None:
            for number in range(20):
                key = b"row/%d/%d" % (me, number)
                try:
                    assert await engine.commit(Commit([(b"owner", b"me"), (key, None)], {key: b""}))
                    confirmed.add(key)
                except (Unavailable, Full):
                    refused.add(key)
                except UnknownOutcome:
                    pass

        store.apply(Commit(puts={b"owner": b"me"}))
        await asyncio.gather(*map(write, range(4)))
        assert store.apply(Commit([(b"owner", b"me")], {b"owner": b"other"}))
        kept = set(store.keys)
        while plan.late:
            assert not await plan.let_happen()
        assert set(store.keys) == kept
        assert confirmed <= kept
        assert not refused & kept

    run(plan, story)
    assert confirmed
    assert refused


def test_a_seed_gives_the_same_history_again() -> None:
    def history(seed: int) -> list[str]:
        outcomes: list[str] = []

        async def story(engine: FaultyEngine, store: MemoryStore) -> None:
            for number in range(100):
                with contextlib.suppress(Unavailable, UnknownOutcome, Full):
                    await engine.commit(put(number))
                    outcomes.append("done")
                outcomes.append(",".join(map(bytes.decode, store.keys)))

        run(RandomPlan(seed, 0.5), story)
        return outcomes

    assert history(1) == history(1) != history(2)
