"""What every engine guarantees (flintmq/engines/engine.py, E1 to E6). Each test runs on each engine of tests/engines/engines.py."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.engines.engine import Commit, Engine, EngineError, TooLarge, Unavailable, UnknownOutcome
from tests.engines.engines import ENGINES, Open

WAIT_S = 60


@pytest.fixture(params=sorted(ENGINES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return ENGINES[request.param](tmp_path)


def run(store: Open, story: Callable[[Engine], Coroutine[Any, Any, None]]) -> None:
    """The story with one client of the store, on a loop of its own."""

    async def whole() -> None:
        engine = store()
        try:
            await asyncio.wait_for(story(engine), WAIT_S)
        finally:
            await engine.close()

    asyncio.run(whole())


async def keys_of(
    engine: Engine, begin: bytes = b"", end: bytes = b"\xff", rows: int = 100, size: int = 1 << 20, **more: bool
) -> list[bytes]:
    return [key for key, _ in await engine.scan(begin, end, rows, size, **more)]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await condition():
            await asyncio.sleep(0.01)


# --- E1: commits -----------------------------------------------------------------------------------------------------
def test_a_commit_changes_all_its_rows(store: Open) -> None:
    async def story(engine: Engine) -> None:
        await engine.connect()
        await engine.connect()
        assert await engine.commit(Commit(puts={b"a": b"1", b"b": b"", b"m1": b"x", b"m2": b"y", b"n": b"z", b"\xfe": b"\0"}))
        assert await engine.get([b"b", b"a", b"none"]) == [b"", b"1", None]
        assert await engine.commit(Commit(puts={b"a": b"2", b"c": b"3"}, deletes=[b"b", b"none"], clears=[(b"m", b"n"), (b"y", b"x")]))
        assert await engine.get([b"a", b"b", b"c", b"m1", b"m2", b"n"]) == [b"2", None, b"3", None, None, b"z"]
        assert await engine.scan(b"", b"\xff", 10, 1 << 20) == [(b"a", b"2"), (b"c", b"3"), (b"n", b"z"), (b"\xfe", b"\0")]
        assert await engine.get([]) == []
        assert await engine.commit(Commit())

    run(store, story)


@pytest.mark.parametrize("condition", [(b"a", b"0"), (b"a", None), (b"none", b""), (b"none", b"x"), (b"a", b"")])
def test_a_commit_with_a_condition_that_does_not_hold_changes_nothing(store: Open, condition: tuple[bytes, bytes | None]) -> None:
    async def story(engine: Engine) -> None:
        await engine.commit(Commit(puts={b"a": b"1", b"m": b"1"}))
        before = await engine.scan(b"", b"\xff", 10, 1 << 20)
        holding = [(b"a", b"1"), (b"other", None)]
        assert not await engine.commit(Commit([*holding, condition], {b"b": b"2", b"a": b"9"}, clears=[(b"m", b"n")]))
        assert await engine.scan(b"", b"\xff", 10, 1 << 20) == before
        assert await engine.commit(Commit(holding, {b"b": b"2"}))
        assert await engine.commit(Commit([(b"b", b"2")])), "conditions alone"

    run(store, story)


def test_rows_survive_their_client(store: Open, request: pytest.FixtureRequest) -> None:
    run(store, lambda engine: _put(engine, {b"a": b"1"}))

    async def later(engine: Engine) -> None:
        assert await engine.get([b"a"]) == [b"1"]

    run(store, later)


async def _put(engine: Engine, rows: dict[bytes, bytes]) -> None:
    assert await engine.commit(Commit(puts=rows))


def test_a_commit_that_names_a_key_twice_is_refused(store: Open) -> None:
    async def story(engine: Engine) -> None:
        for commit in (
            Commit(puts={b"a": b"1"}, deletes=[b"a"]),
            Commit(deletes=[b"a", b"a"]),
            Commit(puts={b"m": b"1"}, clears=[(b"m", b"n")]),
            Commit(deletes=[b"m"], clears=[(b"m", b"n")]),
        ):
            with pytest.raises(ValueError):
                await engine.commit(commit)
        assert await keys_of(engine) == []

    run(store, story)


def test_a_commit_above_a_limit_is_refused_and_one_at_it_is_made(store: Open) -> None:
    async def story(engine: Engine) -> None:
        limits = engine.limits
        many = {b"%08d" % number: b"" for number in range(limits.commit_rows)}
        count = limits.commit_bytes // limits.value_bytes
        large = {b"k%d" % number: bytes(limits.value_bytes) for number in range(count + 1)}
        for puts in ({bytes(limits.key_bytes + 1): b""}, {b"a": bytes(limits.value_bytes + 1)}, {**many, b"a": b""}, large):
            with pytest.raises(TooLarge):
                await engine.commit(Commit(puts=puts))
        assert await keys_of(engine) == []
        longest = b"k" * limits.key_bytes
        await _put(engine, {longest: b"1", b"a": bytes(limits.value_bytes)})
        assert await engine.get([longest, b"a"]) == [b"1", bytes(limits.value_bytes)]
        await _put(engine, many)
        assert len(await engine.scan(b"0", b"9", limits.commit_rows + 1, 1 << 24)) == limits.commit_rows
        assert await engine.commit(Commit([(key, b"") for key in many]))
        assert await engine.get(list(many)) == [b""] * len(many)
        assert await engine.commit(Commit(deletes=list(many)))
        assert await keys_of(engine, b"0", b"9") == []

    run(store, story)


# --- E2: concurrent commits --------------------------------------------------------------------------------------------
def test_of_commits_with_the_same_condition_one_wins(store: Open) -> None:
    async def story(engine: Engine) -> None:
        for number in range(10):
            key = b"absent%d" % number
            outcomes = await asyncio.gather(*(engine.commit(Commit([(key, None)], {key: b"%d" % me})) for me in range(8)))
            assert outcomes.count(True) == 1
            assert await engine.get([key]) == [b"%d" % outcomes.index(True)]

    run(store, story)


def test_clients_that_compare_and_set_lose_no_step(store: Open) -> None:
    async def story(engine: Engine) -> None:
        await _put(engine, {b"n": b"0", b"m": b"0"})
        other = engine if engine.limits.alone else store()

        async def count(client: Engine) -> None:
            steps = 0
            while steps < 10:
                values = await client.get([b"n", b"m"])
                assert values[0] == values[1] is not None, "both of one moment"
                step = b"%d" % (int(values[0] or b"") + 1)
                steps += await client.commit(Commit([(b"n", values[0])], {b"n": step, b"m": step}))

        await asyncio.gather(*(count(client) for client in (engine, other) for _ in range(3)))
        assert await other.get([b"n", b"m"]) == [b"60", b"60"]
        await other.close()

    run(store, story)


def test_commits_of_several_keys_could_have_run_one_after_the_other(store: Open) -> None:
    """Each compares three keys and writes two of them, with values of its own: versions of a key are a chain, and an order of all commits
    puts each behind the writers of what it compared, and before the writers of what came next."""
    keys = [b"k%d" % number for number in range(5)]
    made: dict[bytes, tuple[dict[bytes, bytes | None], list[bytes]]] = {}  # its value -> (what it compared, what it wrote)

    async def story(engine: Engine) -> None:
        async def play(client: Engine, me: int) -> None:
            chance = random.Random(me)
            for number in range(25):
                chosen = chance.sample(keys, 3)
                values = await client.get(chosen)
                mine = b"%d.%d" % (me, number)
                if chance.random() < 0.2:
                    await asyncio.sleep(0)
                if await client.commit(Commit(list(zip(chosen, values)), dict.fromkeys(chosen[:2], mine))):
                    made[mine] = (dict(zip(chosen, values)), chosen[:2])

        other = engine if engine.limits.alone else store()
        await asyncio.gather(*(play((engine, other)[me % 2], me) for me in range(8)))
        final = await engine.get(keys)
        await other.close()
        overwriters: dict[tuple[bytes, bytes | None], bytes] = {}  # (key, version) -> the commit that replaced it
        for mine, (compared, written) in made.items():
            for key in written:
                assert (key, compared[key]) not in overwriters, "a version was replaced twice"
                overwriters[key, compared[key]] = mine
        for key, last in zip(keys, final):
            assert (key, last) not in overwriters
        later = {
            mine: {overwriters[pair] for pair in compared.items() if pair in overwriters} - {mine} for mine, (compared, _) in made.items()
        }
        before: dict[bytes, set[bytes]] = {mine: {value for value in compared.values() if value} for mine, (compared, _) in made.items()}
        for mine, others in later.items():
            for one in others:
                before[one].add(mine)
        list(TopologicalSorter(before).static_order())  # raises CycleError

    run(store, story)
    assert len(made) > 20


def test_eight_commits_in_flight_are_all_made_and_seen_by_another_client(store: Open) -> None:
    async def story(engine: Engine) -> None:
        await _put(engine, {b"owner": b"me"})
        value = random.Random(1).randbytes(min(100 * 1024, engine.limits.value_bytes))
        limit = asyncio.Semaphore(8)

        async def one(number: int) -> None:
            async with limit:
                assert await engine.commit(Commit([(b"owner", b"me")], {b"row%04d" % number: value}))

        await asyncio.gather(*map(one, range(40)))
        other = engine if engine.limits.alone else store()
        assert await keys_of(other, b"row", b"rox", rows=100, size=1 << 24) == [b"row%04d" % number for number in range(40)]
        assert await other.commit(Commit([(b"owner", b"me")], {b"owner": b"other"}))
        assert not await engine.commit(Commit([(b"owner", b"me")], {b"late": b""})), "it is fenced at once"
        await other.close()

    run(store, story)


def test_values_of_256_kib_or_of_the_limit_come_back_as_they_were(store: Open) -> None:
    async def story(engine: Engine) -> None:
        size = min(256 * 1024, engine.limits.value_bytes)
        rows = {b"a%d" % number: random.Random(number).randbytes(size) for number in range(3)}
        await _put(engine, rows)
        assert await engine.scan(b"a", b"b", 10, 1 << 24) == sorted(rows.items())
        assert await engine.commit(Commit([(b"a1", rows[b"a1"])], deletes=[b"a2"]))

    run(store, story)


# --- E3: reads ----------------------------------------------------------------------------------------------------------
def test_a_page_ends_at_its_rows_or_behind_the_row_that_fills_its_size(store: Open) -> None:
    async def story(engine: Engine) -> None:
        await _put(engine, {b"k%02d" % number: bytes(97) for number in range(50)})  # 100 bytes a row
        keys = [b"k%02d" % number for number in range(50)]
        assert await keys_of(engine) == keys
        assert await keys_of(engine, reverse=True) == keys[::-1]
        for reverse in (False, True):
            order = keys[::-1] if reverse else keys
            assert await keys_of(engine, rows=7, reverse=reverse) == order[:7]
            assert await keys_of(engine, size=1_000, reverse=reverse) == order[:10]
            assert await keys_of(engine, size=1_001, reverse=reverse) == order[:11]
            assert await keys_of(engine, rows=50, size=4_900, reverse=reverse) == order[:49]
            assert await keys_of(engine, b"k10", b"k20", rows=3, reverse=reverse) == [key for key in order if b"k10" <= key < b"k20"][:3]
        assert await keys_of(engine, b"k10", b"k10") == await keys_of(engine, b"k20", b"k10") == []

    run(store, story)


def test_a_page_is_of_one_moment(store: Open) -> None:
    async def story(engine: Engine) -> None:
        rows = [b"p%02d" % number for number in range(60)]
        await _put(engine, dict.fromkeys(rows, b"0" * 1_000))
        done = asyncio.Event()

        async def change() -> None:
            for number in range(1, 20):
                await _put(engine, dict.fromkeys(rows, b"%d" % (number % 10) * 1_000))
            done.set()

        async def look() -> None:
            while not done.is_set():
                page = await engine.scan(b"p", b"q", 100, 1 << 24)
                assert len(page) == 60
                assert len({value for _, value in page}) == 1

        await asyncio.gather(change(), look(), look())

    run(store, story)


# --- E4: calls that are cut off -------------------------------------------------------------------------------------------
def test_a_cancelled_call_leaves_the_engine_usable_and_its_commit_whole(store: Open) -> None:
    async def story(engine: Engine) -> None:
        await engine.connect()
        for number in range(20):
            puts = {b"a%d" % number: b"", b"b%d" % number: bytes(10_000)}
            tasks = [asyncio.create_task(engine.commit(Commit(puts=puts))), asyncio.create_task(engine.scan(b"", b"\xff", 10, 1 << 20))]
            for _ in range(number % 5):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert await engine.commit(Commit([(b"n", b"%d" % (number - 1) if number else None)], {b"n": b"%d" % number}))
            first, second = await engine.get(list(puts))
            assert (first is None) == (second is None)

    run(store, story)


# --- E5: watches ----------------------------------------------------------------------------------------------------------
async def told(events: Any, count: int) -> set[bytes]:
    """Keys of events until there are so many. None among them fails."""
    keys: set[bytes] = set()
    while len(keys) < count:
        event = await anext(events)
        assert event is not None
        keys |= event
    return keys


def test_a_watch_says_none_first_and_then_the_keys_that_changed(store: Open) -> None:
    async def story(engine: Engine) -> None:
        other = engine if engine.limits.alone else store()
        events = engine.watch(b"m", b"n")
        await _put(engine, {b"m0": b"before"})
        assert await anext(events) is None
        await _put(other, {b"m1": b"", b"l": b"outside", b"n": b"outside"})
        assert await told(events, 1) - {b"m0"} == {b"m1"}
        await _put(engine, {b"m2": b"", b"m3": b"", b"m4": b""})
        assert {b"m2", b"m3", b"m4"} <= await told(events, 3)
        assert await other.commit(Commit(deletes=[b"m1"], clears=[(b"m2", b"m4")]))
        assert {b"m1", b"m2", b"m3"} <= await told(events, 3), "of deletes and clears, too"
        await events.aclose()  # type: ignore[attr-defined]
        await _put(engine, {b"m5": b""})
        await other.close()

    run(store, story)


def test_a_reader_of_a_watch_misses_no_change(store: Open) -> None:
    """It reads after each None, and the keys that it is told: in the end it knows the rows."""

    async def story(engine: Engine) -> None:
        chance = random.Random(4)
        known: dict[bytes, bytes] = {}

        async def follow() -> None:
            async for keys in engine.watch(b"w", b"x"):
                if keys is None:
                    known.clear()
                    known.update(await engine.scan(b"w", b"x", 1_000, 1 << 24))
                    continue
                for key, value in zip(sorted(keys), await engine.get(sorted(keys))):
                    known.pop(key, None)
                    if value is not None:
                        known[key] = value

        reader = asyncio.create_task(follow())
        for number in range(60):
            key = b"w%d" % chance.randrange(20)
            await engine.commit(Commit(deletes=[key]) if chance.random() < 0.3 else Commit(puts={key: b"%d" % number}))
        await _put(engine, {b"w-end": b""})

        async def is_equal() -> bool:
            assert not reader.done()
            return known == dict(await engine.scan(b"w", b"x", 1_000, 1 << 24))

        await until(is_equal)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)

    run(store, story)


# --- usage, end -----------------------------------------------------------------------------------------------------------
def test_usage_and_tidying_answer_on_an_engine_in_use(store: Open) -> None:
    async def story(engine: Engine) -> None:
        await _put(engine, {b"a": bytes(10_000)})
        usage = await engine.usage()
        assert usage.bytes >= 10_000
        assert not usage.full
        await engine.tidy()
        await engine.tidy()
        assert await engine.get([b"a"]) == [bytes(10_000)]

    run(store, story)


def test_calls_that_are_under_way_when_the_engine_is_closed_end_with_an_answer_or_an_error_of_the_port(store: Open) -> None:
    async def story(engine: Engine) -> None:
        await engine.connect()
        commits = [asyncio.create_task(engine.commit(Commit(puts={b"%d" % number: bytes(100_000)}))) for number in range(5)]
        reads = [asyncio.create_task(engine.scan(b"", b"\xff", 10, 1 << 20)) for _ in range(5)]
        for _ in range(20):
            await asyncio.sleep(0)
        await engine.close()
        for outcome in await asyncio.gather(*commits, return_exceptions=True):
            assert outcome is True or isinstance(outcome, Unavailable | UnknownOutcome), repr(outcome)
        for outcome in await asyncio.gather(*reads, return_exceptions=True):
            assert isinstance(outcome, list | Unavailable), repr(outcome)

    run(store, story)


def test_a_closed_engine_refuses_calls(store: Open) -> None:
    async def story(engine: Engine) -> None:
        await engine.connect()
        await engine.close()
        await engine.close()
        for call in (engine.commit(Commit(puts={b"a": b""})), engine.get([b"a"]), engine.scan(b"", b"z", 1, 1)):
            with pytest.raises(EngineError):
                await call

    run(store, story)


# --- against a model ------------------------------------------------------------------------------------------------------
KEYS = st.sampled_from([b"a", b"a\0", b"b", b"c", b"\xfe"])
VALUES = st.sampled_from([b"", b"0", b"1"])
RANGES = st.tuples(st.sampled_from([b"", b"a", b"b"]), st.sampled_from([b"a\0", b"c", b"\xff"]))
COMMITS = st.builds(
    Commit,
    conditions=st.lists(st.tuples(KEYS, st.none() | VALUES), max_size=2),
    puts=st.dictionaries(KEYS, VALUES, max_size=3),
    deletes=st.lists(KEYS, max_size=2),
    clears=st.lists(RANGES, max_size=1),
)
SCANS = st.tuples(RANGES, st.integers(1, 5), st.integers(1, 8), st.booleans())


def model_commit(rows: dict[bytes, bytes], commit: Commit) -> bool | type[Exception]:
    written = [*commit.puts, *commit.deletes]
    if len(set(written)) < len(written) or any(begin <= key < end for begin, end in commit.clears for key in written):
        return ValueError
    if any(rows.get(key) != value for key, value in commit.conditions):
        return False
    for key in list(rows):
        if key in commit.deletes or any(begin <= key < end for begin, end in commit.clears):
            del rows[key]
    rows.update(commit.puts)
    return True


def model_scan(rows: dict[bytes, bytes], bounds: tuple[bytes, bytes], limit: int, size: int, reverse: bool) -> list[tuple[bytes, bytes]]:
    page: list[tuple[bytes, bytes]] = []
    for key, value in sorted(rows.items(), reverse=reverse):
        if bounds[0] <= key < bounds[1] and len(page) < limit and sum(len(key) + len(value) for key, value in page) < size:
            page.append((key, value))
    return page


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_commits_and_pages_are_those_of_a_model(name: str, tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        engine = ENGINES[name](tmp_path)()

        async def play(plan: list[Any]) -> None:
            rows: dict[bytes, bytes] = {}
            await engine.commit(Commit(clears=[(b"", b"\xff")]))
            for step in plan:
                if not isinstance(step, Commit):
                    assert await engine.scan(*step[0], *step[1:]) == model_scan(rows, *step), step
                    continue
                expected = model_commit(rows, step)
                if expected is ValueError:
                    with pytest.raises(ValueError):
                        await engine.commit(step)
                else:
                    assert await engine.commit(step) is expected, step
            assert await engine.scan(b"", b"\xff", 100, 1 << 20) == sorted(rows.items())

        @settings(max_examples=50, deadline=None)
        @given(plan=st.lists(COMMITS | SCANS, max_size=8))
        def histories(plan: list[Any]) -> None:
            runner.run(play(plan))

        try:
            histories()
        finally:
            with contextlib.suppress(EngineError):
                runner.run(engine.close())
