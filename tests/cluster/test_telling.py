"""How the engine is told: each change is one commit that compares, and none happens behind a later one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from flintmq.engines.engine import TooLarge
from flintmq.errors import PeerError, ReplyCode
from flintmq.ports import ExchangeRecord, UserRecord
from flintmq.shared.definition_rows import key_of
from tests.cluster.several_nodes import Nodes, good, until
from tests.twins.faulty_engine import Fate, Plan

KEY = key_of(ExchangeRecord("/", "x", ""))


async def play(nodes: Nodes, fates: Sequence[Fate]) -> None:
    """An exchange comes and goes; calls meet these fates from its first commit on. Then late commits happen."""
    one, other = await nodes.start(), await nodes.start()
    await nodes.settle()

    async def begin(call: str) -> None:
        if call == "commit":
            nodes.plan.script.extend(fates)
            nodes.plan.gate = None

    nodes.plan.gate = begin
    await good(one.exchange("x"))
    assert KEY in nodes.rows
    await until(lambda: "x" in other.broker.vhosts["/"].exchanges)
    await good(other.ask_vhost("/", "delete_exchange", "x"))
    while nodes.plan.late:
        await nodes.plan.let_happen()
    await nodes.settle()
    assert KEY not in nodes.rows and "x" not in one.broker.vhosts["/"].exchanges


@pytest.mark.parametrize(
    "fates",
    [[Fate.LATER], [Fate.LATER, Fate.LATER], [Fate.HAPPENED], [Fate.NEVER], [Fate.LOST], [Fate.LATER, Fate.LOST, Fate.HAPPENED]],
    ids=lambda fates: " ".join(fate.name for fate in fates),
)
def test_a_commit_whose_outcome_was_not_known_does_not_happen_behind_a_later_change(fates: list[Fate]) -> None:
    async def run() -> None:
        nodes = Nodes(Plan())
        try:
            await play(nodes, fates)
        finally:
            await nodes.close()

    asyncio.run(run())


def test_a_definition_that_is_too_large_is_refused_and_others_of_its_commit_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        nodes = Nodes(shared_definitions_batch=10)
        try:
            node = await nodes.start()
            engine = nodes.engines[0]
            commit = engine.commit

            async def refuse(one: object) -> bool:
                if any(b"large" in value for value in one.puts.values()):  # type: ignore[attr-defined]
                    raise TooLarge("a value above 5 bytes")
                return await commit(one)  # type: ignore[arg-type]

            monkeypatch.setattr(engine, "commit", refuse)
            answers = [node.ask("put_user", name, []) for name in ("a", "large", "b")]
            await until(lambda: all(answer.is_over for answer in answers))
            error = answers[1].error
            assert isinstance(error, PeerError) and error.code == ReplyCode.PRECONDITION_FAILED
            assert answers[0].is_good and answers[2].is_good and key_of(UserRecord("b")) in nodes.rows
            await until(lambda: not node.users.is_user("large"))
        finally:
            await nodes.close()

    asyncio.run(run())


def test_many_changes_share_commits_within_the_engine_s_limits() -> None:
    async def run() -> None:
        nodes = Nodes(shared_definitions_batch=50, engine_commit_rows_max=32)
        try:
            node = await nodes.start()
            calls: list[str] = []

            async def count(call: str) -> None:
                calls.append(call)

            nodes.plan.gate = count
            for answer in [node.exchange(f"x{number}") for number in range(60)]:
                await good(answer)
            assert 10 <= calls.count("commit") <= 12
        finally:
            await nodes.close()

    asyncio.run(run())
