"""Stages on shared queues: a batch is published once, by whichever node decides it, and nothing else of it ever is.

Properties: nothing is seen before the commit, all of it afterwards, over a restart in between, too; a driver that was replaced changes
nothing; what was left behind goes; an engine that hangs or answers nothing costs no message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c

from flintmq.shared.transaction_rows import transactions
from tests.cluster.own_engine import OwnEngine
from tests.dataplane.test_shared_sets import begin, engine, is_served, node
from tests.support.broker import wait_until
from tests.twins.faulty_engine import Fate

from .rig import Rig, block

__all__ = ["begin", "engine", "node"]


def epoch(rig: Rig) -> int:
    number: int = rig.call("scope.open", shared=True)["epoch"]
    return number


def stage(rig: Rig, scope: str, number: int, batch: int, *bodies: str, **options: Any) -> str:
    return rig.stage(scope, number, batch, *bodies, shared=True, **options)


def commit(rig: Rig, scope: str, number: int, batch: int, *ids: str) -> Any:
    return rig.call("stage.commit", scope=scope, epoch=number, batch=batch, stage_ids=list(ids), shared=True)


def is_clean(engine: OwnEngine) -> bool:
    begin_of, end_of = transactions()
    return not any(begin_of <= key < end_of or key[18:20] in (b"/x", b"/a") for key in engine.store.rows if key[:3] != b"xs/")


def test_a_batch_is_staged_prepared_and_published_at_once(node: Rig, engine: OwnEngine) -> None:
    mine = epoch(node)
    stage_id = node.call("stage.begin", scope="x", epoch=mine, batch=0, part=1, shared=True)["stage_id"]
    first, second = block("a", "b"), block("c")
    assert node.call("block", first, stage_id=stage_id, routes=[["", "q"]]) == {"count": 2, "bytes": 2}
    assert node.call("block", second, stage_id=stage_id, routes=[["", "q"]]) == {"count": 1, "bytes": 1}
    answer = node.twice("stage.prepare", stage_id=stage_id)
    assert answer == {"stage_id": stage_id, "count": 3, "bytes": 3, "unroutable": 0, "over_limit": 0, "crc": crc32c(second, crc32c(first))}
    assert node.bodies("q") == []
    assert commit(node, "x", mine, 0, stage_id) == {"committed": 0, "already": False, "rolled_back": 0}
    assert node.bodies("q") == ["a", "b", "c"]
    assert commit(node, "x", mine, 0, stage_id)["already"] is True
    assert node.call("stage.begin", scope="x", epoch=mine, batch=0, shared=True) == {"already": True, "committed": 0}
    assert node.bodies("q") == ["a", "b", "c"]
    wait_until(lambda: is_clean(engine))


def test_stages_of_a_batch_are_published_by_their_parts_on_all_their_queues(begin: Callable[..., Rig], engine: OwnEngine) -> None:
    node = begin("q", "r", limits={"shared_transactions_sweep_ms": 20})
    mine = epoch(node)
    ids = [stage(node, "x", mine, 0, f"{part}", part=part, queue=queue) for part in (2, 0, 1) for queue in ("q", "r")]
    lost = stage(node, "x", mine, 0, "lost")
    half = stage(node, "x", mine, 0, "half", prepare=False)
    assert node.code("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[half], shared=True) == "NOT_PREPARED"
    commit(node, "x", mine, 0, *ids)
    assert node.bodies("q") == node.bodies("r") == ["0", "1", "2"]
    wait_until(lambda: sum(key.startswith(b"x/") for key in engine.store.rows) <= 1)
    assert node.code("stage.commit", scope="x", epoch=mine, batch=1, stage_ids=[lost], shared=True) == "NOT_PREPARED"


def test_a_prepared_stage_outlives_its_node_and_an_open_one_does_not(begin: Callable[..., Rig], engine: OwnEngine) -> None:
    first = begin(limits={"shared_transactions_sweep_ms": 20})
    mine = epoch(first)
    prepared, half = stage(first, "x", mine, 0, "a", "b"), stage(first, "x", mine, 0, "c", prepare=False)
    again = first.kill()
    try:
        wait_until(lambda: is_served(again))
        assert again.call("stage.prepare", stage_id=prepared)["count"] == 2
        assert again.code("stage.prepare", stage_id=half) == "NOT_FOUND"
        wait_until(lambda: sum(key.startswith(b"x/") for key in engine.store.rows) == 1)
        commit(again, "x", mine, 0, prepared)
        assert again.bodies("q") == ["a", "b"]
        wait_until(lambda: is_clean(engine))
    finally:
        again.stop().join()


def test_a_driver_that_was_replaced_changes_nothing(node: Rig) -> None:
    old = epoch(node)
    left = stage(node, "x", old, 0, "old")
    new = epoch(node)
    mine = stage(node, "x", new, 0, "new")
    assert node.code("stage.begin", scope="x", epoch=old, batch=0, shared=True) == "FENCED"
    assert node.code("stage.commit", scope="x", epoch=old, batch=0, stage_ids=[left], shared=True) == "FENCED"
    commit(node, "x", new, 0, mine)
    assert node.bodies("q") == ["new"]


def test_an_abort_rolls_back_the_batch_of_that_run_and_its_tasks_begin_nothing(node: Rig, engine: OwnEngine) -> None:
    mine = epoch(node)
    first, second = stage(node, "x", mine, 0, "a"), stage(node, "x", mine, 1, "b")
    assert node.call("stage.abort", scope="x", batch=0, epoch=mine, shared=True) == {"rolled_back": 1}
    assert node.code("stage.begin", scope="x", epoch=mine, batch=0, shared=True) == "FENCED"
    later = epoch(node)
    assert node.code("stage.commit", scope="x", epoch=later, batch=0, stage_ids=[first], shared=True) == "NOT_PREPARED"
    commit(node, "x", later, 1, second)
    assert node.bodies("q") == ["b"]


def test_a_scope_is_its_user_s_and_is_forgotten_with_its_stages(node: Rig, engine: OwnEngine) -> None:
    mine = epoch(node)
    commit(node, "x", mine, 3, stage(node, "x", mine, 3, "a"))
    stage(node, "x", mine, 4, "b")
    node.user_with("eve", write=".*", read=".*")
    node.user = "eve"
    assert node.code("stage.begin", scope="x", epoch=mine, batch=4, shared=True) == "FORBIDDEN"
    assert node.code("scope.status", scope="x", shared=True) == "FORBIDDEN"
    assert node.call("scope.list", shared=True)["scopes"] == []
    node.user = "guest"
    status = node.call("scope.status", scope="x", shared=True)
    assert (status["committed"], status["prepared"], status["open"]) == (3, 1, 0)
    assert [one["scope"] for one in node.call("scope.list", shared=True)["scopes"]] == ["x"]
    assert node.call("scope.forget", scope="x", shared=True)["rolled_back"] == 1
    assert node.call("scope.status", scope="x", shared=True)["committed"] is None
    wait_until(lambda: is_clean(engine))


def test_a_stage_is_for_shared_queues_or_for_others_and_says_which(node: Rig) -> None:
    node.declare("plain")
    mine = epoch(node)
    shared_one = stage(node, "x", mine, 0, prepare=False)
    assert node.code("block", block("a"), stage_id=shared_one, routes=[["", "plain"]]) == "BAD_ARGUMENT"
    assert node.code("stage.prepare", stage_id=shared_one) == "NOT_FOUND"
    local = node.stage("y", node.call("scope.open")["epoch"], 0, prepare=False)
    assert node.code("block", block("a"), stage_id=local, routes=[["", "q"]]) == "BAD_ARGUMENT"


def test_a_queue_that_refuses_above_its_limit_refuses_the_batch(begin: Callable[..., Rig]) -> None:
    node = begin("q", x_max_length=2, x_overflow="reject-publish")
    mine = epoch(node)
    ids = [stage(node, "x", mine, 0, "a", "b"), stage(node, "x", mine, 0, "c")]
    assert node.code("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=ids, shared=True) == "OVER_LIMIT"
    assert node.bodies("q") == []
    commit(node, "x", mine, 0, ids[0])
    assert node.bodies("q") == ["a", "b"]


def test_stages_have_bounds(begin: Callable[..., Rig]) -> None:
    node = begin(limits={"shared_stage_bytes_max": 10, "shared_user_stages_max": 1})
    mine = epoch(node)
    one = stage(node, "x", mine, 0, "12345", prepare=False)
    assert node.code("stage.begin", scope="x", epoch=mine, batch=0, shared=True) == "LIMIT"
    assert node.code("block", block("123456"), stage_id=one, routes=[["", "q"]]) == "LIMIT"
    assert "stage_id" in node.call("stage.begin", scope="x", epoch=mine, batch=0, shared=True)


def test_one_user_takes_not_all_scopes_of_a_virtual_host(begin: Callable[..., Rig]) -> None:
    node = begin(limits={"scopes_user_max": 1, "writes_user_max": 0})
    node.user_with("other", write=".*")
    mine = epoch(node)
    assert "stage_id" in node.call("stage.begin", scope="x", epoch=mine, batch=0, shared=True)
    assert node.code("stage.begin", scope="y", epoch=mine, batch=0, shared=True) == "LIMIT"
    assert "stage_id" in node.call("stage.begin", user="other", scope="z", epoch=mine, batch=0, shared=True)
    assert "stage_id" in node.call("stage.begin", scope="x", epoch=mine, batch=1, shared=True), "one that is there"


@pytest.mark.parametrize("fate", [Fate.HAPPENED, Fate.NEVER, Fate.LATER])
@pytest.mark.parametrize("calls", [0, 1, 2, 3, 4, 5])
def test_a_commit_whose_answer_is_lost_publishes_the_batch_once(node: Rig, engine: OwnEngine, fate: Fate, calls: int) -> None:
    mine = epoch(node)
    ids = [stage(node, "x", mine, 0, "a"), stage(node, "x", mine, 0, "b", part=1)]
    engine.plan.script.extend([Fate.DONE] * calls + [fate])
    while node.code("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=ids, shared=True) == "UNAVAILABLE":
        pass  # as a client that asks again
    engine.plan.script.clear()
    assert commit(node, "x", mine, 0, *ids)["already"] is True
    assert node.bodies("q") == ["a", "b"]
    wait_until(lambda: is_clean(engine))
    assert node.bodies("q") == ["a", "b"]
