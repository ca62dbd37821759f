"""The engine's thread: work given from any thread is answered once, also at and after its end."""

from __future__ import annotations

import asyncio
import queue
from typing import Any

import pytest

from flintmq.cluster import engine_thread
from flintmq.cluster.engine_thread import EngineThread, check_engine
from flintmq.config import Limits
from flintmq.engines.engine import Commit, Unavailable, Unfit

WAIT_S = 20.0
Answers = queue.SimpleQueue[tuple[Any, Exception | None]]


async def nothing() -> None:
    pass


@pytest.fixture
def thread() -> Any:
    made = EngineThread("memory:", Limits())
    made.start()
    yield made
    made.stop(nothing, 5.0)


def test_the_engine_is_tidied_again_and_again_whatever_it_answers() -> None:
    made = EngineThread("memory:", Limits().replace(engine_tidy_ms=1))
    told = queue.SimpleQueue[int]()
    outcomes = iter([Unavailable("away"), ValueError("wrong"), None])

    async def tidy() -> None:
        told.put(1)
        if (error := next(outcomes, None)) is not None:
            raise error

    made.engine.tidy = tidy  # type: ignore[method-assign]
    made.start()
    for _ in range(4):
        told.get(timeout=WAIT_S)
    made.stop(nothing, 5.0)


def test_work_runs_with_the_engine_and_its_result_or_error_comes_back(thread: EngineThread) -> None:
    answers: Answers = queue.SimpleQueue()

    async def write() -> Any:
        await thread.engine.commit(Commit((), {b"k": b"v"}))
        return await thread.engine.get([b"k"])

    async def fail() -> None:
        raise ValueError("no")

    thread.run(write, lambda result, error: answers.put((result, error)))
    assert answers.get(timeout=WAIT_S) == ([b"v"], None)
    thread.run(fail, lambda result, error: answers.put((result, error)))
    result, error = answers.get(timeout=WAIT_S)
    assert result is None and isinstance(error, ValueError)


def test_what_takes_too_long_and_what_is_under_way_at_the_end_and_what_comes_after_is_refused(thread: EngineThread) -> None:
    answers: Answers = queue.SimpleQueue()
    began = queue.SimpleQueue[None]()

    async def wait() -> None:
        began.put(None)
        await asyncio.Event().wait()

    thread.run(wait, lambda result, error: answers.put((result, error)), 0.0)
    assert isinstance(answers.get(timeout=WAIT_S)[1], Unavailable)
    thread.run(wait, lambda result, error: answers.put((result, error)))
    began.get(timeout=WAIT_S)
    thread.stop(nothing, 5.0)
    assert isinstance(answers.get(timeout=WAIT_S)[1], Unavailable)
    thread.run(wait, lambda result, error: answers.put((result, error)))
    assert isinstance(answers.get(timeout=WAIT_S)[1], Unavailable)
    assert not thread.call(answers.put, None)


def test_the_last_work_runs_before_the_engine_is_closed(thread: EngineThread) -> None:
    seen = queue.SimpleQueue[Any]()

    async def last() -> None:
        seen.put(await thread.engine.commit(Commit((), {b"k": b"v"})))

    thread.stop(last, 5.0)
    assert seen.get(timeout=WAIT_S) is True


def test_a_thread_that_never_began_ends_at_once() -> None:
    EngineThread("memory:", Limits()).stop(nothing, 5.0)


def test_an_engine_with_rows_of_earlier_versions_is_refused_and_one_that_is_away_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked(url: str, limits: Limits) -> None:
        raise Unfit("earlier versions") if url == "etcd://old" else Unavailable("away")

    monkeypatch.setattr(engine_thread, "refuse_earlier", asked)
    with pytest.raises(ValueError, match="earlier versions"):
        check_engine("etcd://old", Limits())
    check_engine("etcd://away", Limits())
