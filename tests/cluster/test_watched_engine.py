"""An engine that stops to answer is said once, and once that it is back; what it decides is counted."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from flintmq.cluster.watched_engine import WatchedEngine
from flintmq.config import Limits
from flintmq.engines.engine import Commit, EngineError, Full, UnknownOutcome
from flintmq.engines.memory import MemoryEngine, MemoryStore
from tests.twins.faulty_engine import Fate, FaultyEngine, Plan


def made(*fates: Fate) -> WatchedEngine:
    limits = Limits()
    return WatchedEngine(FaultyEngine(MemoryEngine(MemoryStore(limits.engine_commit_rows_max), limits), Plan(fates)))


def test_silence_and_its_end_are_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    engine = made(Fate.DONE, Fate.LOST, Fate.NEVER, Fate.LOST, Fate.DONE, Fate.DONE)

    async def run() -> list[bool]:
        seen = []
        for number in range(6):
            with contextlib.suppress(EngineError):
                await engine.commit(Commit((), {b"%d" % number: b""}))
            seen.append(engine.answers)
        return seen

    assert asyncio.run(run()) == [True, False, False, False, True, True]
    said = [text.removeprefix("the engine of shared queues ")[:13] for text in caplog.messages]
    assert said == ["does not answ", "answers again"]
    assert engine.figures()["engine_failures"] == 3 and engine.figures()["engine_commits"] == 3


def test_a_condition_that_does_not_hold_is_a_conflict_and_a_full_engine_answers() -> None:
    engine = made(Fate.DONE, Fate.FULL)

    async def run() -> None:
        assert not await engine.commit(Commit([(b"a", b"other")], {b"a": b""}))
        with pytest.raises(Full):
            await engine.commit(Commit((), {b"a": b""}))

    asyncio.run(run())
    figures = engine.figures()
    assert (figures["engine_conflicts"], figures["engine_failures"]) == (1, 0)
    assert engine.answers


def test_an_unknown_outcome_that_is_final_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = made()

    async def refused(commit: Commit) -> bool:
        raise UnknownOutcome("at its quota", final=True)

    monkeypatch.setattr(engine._engine, "commit", refused)
    with pytest.raises(UnknownOutcome):
        asyncio.run(engine.commit(Commit((), {b"a": b""})))
    assert engine.answers and engine.figures()["engine_failures"] == 0
