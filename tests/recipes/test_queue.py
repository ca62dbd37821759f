"""A shared queue without a broker, on each engine: order, each value once, many takers, lost answers, clients that die."""

from __future__ import annotations

import asyncio
import functools
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flintmq.recipes.queue as recipe
from flintmq.engines.engine import Commit, Engine, TooLarge, UnknownOutcome
from flintmq.engines.memory import MemoryEngine, MemoryStore
from flintmq.recipes.queue import SharedQueue
from tests.engines.engines import ENGINES, LIMITS, Open

WAIT_S = 60


@pytest.fixture(params=sorted(ENGINES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return ENGINES[request.param](tmp_path)


def run(store: Open, story: Callable[[Engine], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        engine = store()
        try:
            await asyncio.wait_for(story(engine), WAIT_S)
        finally:
            await engine.close()

    asyncio.run(whole())


def memory() -> Open:
    rows = MemoryStore(LIMITS.engine_watch_keys_max)
    return lambda: MemoryEngine(rows, LIMITS)


class Doubtful:
    """An engine that answers some commits with UnknownOutcome: of these some happened, some never do, some happen a little later."""

    def __init__(self, engine: Engine, seed: int, share: float) -> None:
        self._engine = engine
        self._chance = random.Random(seed)
        self._share = share
        self.late: list[asyncio.Task[bool]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def commit(self, commit: Commit) -> bool:
        if self._chance.random() >= self._share:
            return await self._engine.commit(commit)
        kind = self._chance.randrange(3)
        if kind == 0:
            await self._engine.commit(commit)
        elif kind == 1:
            turns = self._chance.randrange(60)
            self.late.append(asyncio.create_task(self._later(commit, turns)))
        raise UnknownOutcome("the answer was lost")

    async def _later(self, commit: Commit, turns: int) -> bool:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await self._engine.commit(commit)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of a failing engine as short as an engine in memory is."""
    monkeypatch.setattr(recipe, "_PAUSE_S", 0.001)
    monkeypatch.setattr(recipe, "_DEAD_S", 0.05)
    monkeypatch.setattr("flintmq.recipes.session._PAUSE_S", 0.001)


def test_values_of_one_program_leave_in_their_order_by_any_way(store: Open) -> None:
    async def story(engine: Engine) -> None:
        queue = SharedQueue(engine, "q")
        assert await queue.dequeue() is None
        assert await queue.dequeue_staged() is None
        await queue.enqueue(b"0")
        await queue.enqueue_many([b"1", b"", b"3"])
        await queue.enqueue(b"4")
        assert [await queue.dequeue(), await queue.dequeue_staged(), await queue.dequeue_staged()] == [b"0", b"1", b""]
        assert await queue.dequeue_many(5) == [b"3", b"4"]
        assert await queue.dequeue_staged() is None
        await queue.close()

    run(store, story)


@pytest.mark.parametrize("way", ["dequeue", "dequeue_staged", "mixed"])
def test_takers_of_several_clients_take_each_value_once(store: Open, way: str) -> None:
    async def story(engine: Engine) -> None:
        queues = [SharedQueue(engine, "q") for _ in range(5)]
        values = [b"%d" % number for number in range(60)]
        await asyncio.gather(*(queues[number % 5].enqueue_many(values[number : number + 6]) for number in range(0, 60, 6)))
        taken: list[bytes] = []

        async def take(queue: SharedQueue, name: str) -> None:
            while (value := await getattr(queue, name)()) is not None:
                taken.append(value)

        names = ["dequeue", "dequeue_staged"] if way == "mixed" else [way]
        await asyncio.gather(*(take(queue, names[number % len(names)]) for queue in queues for number in range(2)))
        assert sorted(taken) == sorted(values)
        for queue in queues:
            await queue.close()

    run(store, story)


def test_closed_clients_leave_nothing_but_the_baton(store: Open) -> None:
    async def story(engine: Engine) -> None:
        queues = [SharedQueue(engine, "q") for _ in range(2)]
        await queues[0].enqueue_many([b"a", b"b", b"c"])
        assert {await queues[0].dequeue_staged(), await queues[1].dequeue_staged(), await queues[1].dequeue()} == {b"a", b"b", b"c"}
        for queue in queues:
            await queue.close()
        rows = await engine.scan(b"queue/", b"queue0", 10, 1_000)
        assert [key[-1:] for key, _ in rows] == [b"b"]

    run(store, story)


def test_queues_of_other_names_are_other_queues() -> None:
    async def story(engine: Engine) -> None:
        one, other = SharedQueue(engine, "q"), SharedQueue(engine, "qi")
        await one.enqueue(b"1")
        assert await other.dequeue() is None
        assert await other.dequeue_staged() is None
        assert await one.dequeue_staged() == b"1"

    run(memory(), story)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.usefixtures("quick")
def test_lost_answers_neither_lose_nor_double_a_value(seed: int) -> None:
    async def story(engine: Engine) -> None:
        doubtful = Doubtful(engine, seed, 0.2)
        queues = [SharedQueue(doubtful, "q") for _ in range(4)]
        values = [b"%d" % number for number in range(80)]
        taken: list[bytes] = []

        async def put(queue: SharedQueue, some: list[bytes]) -> None:
            for value in some:
                await queue.enqueue(value)

        async def take(queue: SharedQueue, way: str) -> None:
            while len(taken) < len(values):
                value = await getattr(queue, way)()
                if value is not None:
                    taken.append(value)

        puts = [put(queue, values[number::4]) for number, queue in enumerate(queues)]
        await asyncio.gather(*puts, *(take(queue, way) for queue in queues for way in ("dequeue", "dequeue_staged")))
        await asyncio.gather(*doubtful.late)
        assert Counter(taken) == Counter(values)
        assert await queues[0].dequeue_many(10) == []

    run(memory(), story)


@pytest.mark.usefixtures("quick")
def test_a_client_that_dies_with_the_baton_holds_nobody_up() -> None:
    async def story(engine: Engine) -> None:
        queue = SharedQueue(engine, "q")
        await queue.enqueue(b"1")
        await engine.commit(Commit(puts={queue._baton: b"the deceased" + bytes(8)}))
        assert await queue.dequeue_staged() == b"1"

    run(memory(), story)


def test_a_value_of_a_cancelled_waiter_goes_to_the_next_one_or_back() -> None:
    async def story(engine: Engine) -> None:
        queue, other = SharedQueue(engine, "q"), SharedQueue(engine, "q")
        await queue.enqueue_many([b"1", b"2"])
        waiters = [asyncio.create_task(queue.dequeue_staged()) for _ in range(2)]
        await asyncio.sleep(0)
        for waiter in waiters:
            waiter.cancel()
        while not queue._spare:
            await asyncio.sleep(0)
        assert await queue.dequeue_staged() == b"1"
        await queue.close()
        assert await other.dequeue() == b"2"

    run(memory(), story)


def test_a_value_above_the_limit_is_refused_and_one_at_it_passes_by_every_way() -> None:
    async def story(engine: Engine) -> None:
        queue = SharedQueue(engine, "q")
        largest = bytes(queue._value_bytes - 4)
        with pytest.raises(TooLarge):
            await queue.enqueue(largest + b"x")
        for take in (queue.dequeue, queue.dequeue_staged):
            await queue.enqueue(largest)
            assert await take() == largest

    run(memory(), story)


class Counting(MemoryEngine):
    calls = 0

    async def _turn(self) -> None:
        Counting.calls += 1
        await super()._turn()


def test_64_staged_takers_ask_the_engine_a_tenth_as_often_as_naive_ones() -> None:
    """The naive takers read and compare the same head, and one of them succeeds."""
    counts = {}
    for way in ("dequeue", "dequeue_staged"):
        rows = MemoryStore(LIMITS.engine_watch_keys_max)
        opened: Open = functools.partial(Counting, rows, LIMITS)

        async def story(engine: Engine, way: str = way) -> None:
            queues = [SharedQueue(engine, "q") for _ in range(64)]
            await queues[0].enqueue_many([b"%d" % number for number in range(256)])
            Counting.calls = 0

            async def take(queue: SharedQueue) -> None:
                while await getattr(queue, way)() is not None:
                    pass

            await asyncio.gather(*map(take, queues))
            counts[way] = Counting.calls

        run(opened, story)
    assert counts["dequeue"] >= 10 * counts["dequeue_staged"], counts


STEPS = st.one_of(st.lists(st.binary(max_size=3), max_size=3), st.sampled_from(["dequeue", "dequeue_staged"]), st.integers(1, 4))


@given(steps=st.lists(STEPS, max_size=20))
@settings(max_examples=60, deadline=None)
def test_a_client_alone_sees_a_queue_in_the_order_of_its_enqueues(steps: list[Any]) -> None:
    async def story(engine: Engine) -> None:
        queue, model = SharedQueue(engine, "q"), list[bytes]()
        for step in steps:
            if isinstance(step, list):
                await queue.enqueue_many(step)
                model += step
            elif isinstance(step, int):
                assert await queue.dequeue_many(step) == model[:step]
                del model[:step]
            else:
                assert await getattr(queue, step)() == (model.pop(0) if model else None)

    run(memory(), story)
