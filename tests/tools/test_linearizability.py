"""The linearizability check of shared queues: it tells right histories from wrong ones; queues pass it on each engine, mutants do not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.engines.engine import Engine
from flintmq.engines.opening import open_engine
from tests.engines.engines import ENGINES, etcd_url
from tests.support.effort import LONG
from tests.support.etcd import etcd_cluster
from tests.support.servers import Unavailable
from tools.linearizability import owners, values
from tools.linearizability.checker import UNKNOWN, Operation, check
from tools.linearizability.models import OwnedQueueModel, SetsModel, ValuesModel
from tools.linearizability.mutants import MUTANTS, Mutant, hunt

LATER = 1_000
SEEDS = range(1, 201 if LONG else 21)


def operation(called: int, returned: int, kind: str, *arguments: Any, outcome: Any = None) -> Operation:
    return Operation(1, kind, arguments, outcome, called, returned)


def enqueue(called: int, returned: int, message: int, outcome: Any = None) -> Operation:
    return operation(called, returned, "enqueue", message, outcome=outcome)


def took(called: int, returned: int, count: int, *messages: int) -> Operation:
    return operation(called, returned, "take", count, outcome=messages)


def got(called: int, returned: int, message: int = 0, flagged: bool = False) -> Operation:
    return operation(called, returned, "take", outcome=((message, flagged),) if message else ())


def is_right(model: Callable[..., Any], *operations: Operation, **options: Any) -> bool:
    verdict = check(model(operations, **options), operations)
    assert verdict.decided
    return verdict.ok


# --- the checker and its models -----------------------------------------------------------------------------------------


def test_overlapping_enqueues_have_either_order_and_others_have_theirs() -> None:
    for second_called, allowed in ((5, True), (11, False)):
        history = [enqueue(1, 10, 1), enqueue(second_called, 20, 2), took(30, 40, 2, 2, 1)]
        assert is_right(ValuesModel, *history) is allowed


def test_a_value_is_taken_once_and_none_is_missing() -> None:
    sent = (enqueue(1, 2, 1), enqueue(3, 4, 2))
    assert is_right(ValuesModel, *sent, took(5, 6, 1, 1), took(7, 8, 1, 2), took(9, 10, 1))
    assert is_right(ValuesModel, *sent, took(5, 6, 3, 1))  # fewer than there are
    assert not is_right(ValuesModel, *sent, took(5, 6, 1, 1), took(7, 8, 1, 1))
    assert not is_right(ValuesModel, *sent, took(5, 6, 1))
    assert not is_right(ValuesModel, took(3, 4, 1, 1), enqueue(5, 6, 1))


def test_what_has_no_answer_happened_or_not_but_not_before_it_was_called() -> None:
    doubtful = enqueue(5, 0, 1, UNKNOWN)
    assert is_right(ValuesModel, doubtful, took(10, 11, 1))
    assert is_right(ValuesModel, doubtful, took(10, 11, 1), took(LATER, LATER + 1, 1, 1))
    assert not is_right(ValuesModel, doubtful, took(1, 2, 1, 1))
    taken = operation(7, 0, "take", 1, outcome=UNKNOWN)
    assert is_right(ValuesModel, enqueue(1, 2, 1), taken, took(10, 11, 1))
    assert not is_right(ValuesModel, enqueue(1, 2, 1), took(3, 4, 1), taken)


@pytest.mark.parametrize("delivered", [True, False])
def test_a_message_that_comes_back_has_its_place_and_its_flag(delivered: bool) -> None:
    begin = [enqueue(1, 2, 1), enqueue(3, 4, 2), got(5, 6, 1), operation(7, 8, "give_back", 1, delivered)]
    assert is_right(OwnedQueueModel, *begin, got(9, 10, 1, delivered))
    assert not is_right(OwnedQueueModel, *begin, got(9, 10, 1, not delivered))
    assert not is_right(OwnedQueueModel, *begin, got(9, 10, 2))


def test_after_a_take_over_what_was_held_is_there_flagged_and_what_ended_may_be() -> None:
    begin = [enqueue(1, 2, 1), enqueue(3, 4, 2), got(5, 6, 1), operation(9, 10, "take_over")]
    assert is_right(OwnedQueueModel, *begin, got(11, 12, 1, True), got(13, 14, 2, True))
    assert not is_right(OwnedQueueModel, *begin, got(11, 12, 1, False))
    assert not is_right(OwnedQueueModel, *begin, got(11, 12, 2))
    ended = [*begin, operation(7, 8, "settle", 1)]
    assert is_right(OwnedQueueModel, *ended, got(11, 12, 1, True))
    assert is_right(OwnedQueueModel, *ended, got(11, 12, 2))
    assert not is_right(OwnedQueueModel, *ended, got(11, 12, 2), got(13, 14, 1, True))


def test_a_queue_that_was_handed_over_has_what_did_not_end_with_its_flags() -> None:
    begin = [enqueue(1, 2, 1), enqueue(3, 4, 2), got(5, 6, 1), operation(7, 8, "settle", 1), operation(9, 10, "hand_over")]
    assert is_right(OwnedQueueModel, *begin, got(11, 12, 2))
    assert not is_right(OwnedQueueModel, *begin, got(11, 12, 2, True))
    assert not is_right(OwnedQueueModel, *begin, got(11, 12, 1, True))


def test_from_outside_a_message_may_come_again_flagged_and_once_without() -> None:
    begin = [enqueue(1, 2, 1), enqueue(3, 4, 2), got(5, 6, 1)]
    for after, allowed in (
        ([got(7, 8, 1, True), got(9, 10, 2), got(11, 12)], True),
        ([got(7, 8, 2), got(9, 10, 1, True)], True),
        ([got(7, 8, 1, False)], False),
        ([got(7, 8), got(9, 10, 2)], True),
        ([got(7, 8), operation(9, 10, "emptied")], False),
        ([got(7, 8, 2), operation(9, 10, "emptied")], True),
        ([got(7, 8, 2), got(9, 10, 2)], False),
    ):
        assert is_right(OwnedQueueModel, *begin, *after, is_watched=False) is allowed
    lost = operation(7, 0, "take", outcome=UNKNOWN)
    assert is_right(OwnedQueueModel, *begin, lost, operation(9, 10, "emptied"), is_watched=False)


def test_a_set_has_the_head_stays_the_same_and_ends_or_goes_back() -> None:
    def planned(called: int, number: int, *ids: int) -> Operation:
        return operation(called, called + 1, "plan", number, outcome=ids)

    begin = [enqueue(1, 2, 1), enqueue(3, 4, 2), enqueue(5, 6, 3), planned(7, 1, 1, 2)]
    committed, reset = operation(11, 12, "commit", 1), operation(11, 12, "reset", 1)
    assert is_right(SetsModel, *begin, planned(9, 1, 1, 2), committed, planned(13, 2, 3))
    assert is_right(SetsModel, *begin, reset, planned(13, 1, 1, 2, 3))
    assert not is_right(SetsModel, *begin, planned(9, 1, 1, 2, 3))
    assert not is_right(SetsModel, *begin, committed, planned(13, 2, 2))
    assert not is_right(SetsModel, *begin, reset, planned(13, 1, 3))
    assert not is_right(SetsModel, enqueue(1, 2, 1), enqueue(3, 4, 2), planned(5, 1, 2))


def test_a_search_that_is_too_long_says_so() -> None:
    history = [enqueue(1, 100, number) for number in range(9)] + [took(200, 201, 9, *range(9))]
    verdict = check(ValuesModel(history), history, steps_max=5)
    assert (verdict.ok, verdict.decided) == (False, False)
    assert "not decided" in str(verdict)


# --- queues -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", values.WAYS)
@pytest.mark.parametrize("seed", SEEDS)
def test_values_of_clients_on_an_engine_that_loses_answers(seed: int, way: str) -> None:
    verdict = values.in_memory(seed, way)
    assert verdict.ok, verdict


@pytest.mark.parametrize("run", [owners.gets, owners.sets], ids=["gets", "sets"])
@pytest.mark.parametrize("seed", SEEDS)
def test_messages_of_a_queue_whose_owners_die_and_are_replaced_and_hand_over(seed: int, run: Callable[[int], Any]) -> None:
    verdict = run(seed)
    assert verdict.ok, verdict


@pytest.mark.parametrize("way", values.WAYS)
@pytest.mark.parametrize("name", sorted(set(ENGINES) - {"memory", "faulty"}))
def test_values_of_clients_on_each_engine(name: str, way: str, tmp_path: Path) -> None:
    opened = ENGINES[name](tmp_path)

    def clients() -> list[Engine]:
        first = opened()
        return [first] * values.CLIENTS if first.limits.alone else [first, *(opened() for _ in range(values.CLIENTS - 1))]

    verdict = values.on_engines(1, clients, way)
    assert verdict.ok, verdict


def test_values_of_clients_on_etcd_while_each_of_its_members_is_killed() -> None:
    try:
        with etcd_cluster(3) as cluster, contextlib.ExitStack():
            url = etcd_url(cluster)

            def kill_each() -> None:
                for number in range(3):
                    cluster.kill(number)
                    cluster.start(number)
                    cluster.wait_healthy(number)

            verdict = values.on_engines(1, lambda: [open_engine(url, Limits()) for _ in range(values.CLIENTS)], "mixed", kill_each)
            assert verdict.ok or not verdict.decided, verdict
    except Unavailable as error:
        pytest.skip(f"no etcd: {error}")


def test_the_same_seed_is_the_same_history() -> None:
    for run in (owners.gets, owners.sets, values.in_memory):
        assert [str(one) for one in run(3).order] == [str(one) for one in run(3).order]


# --- mutants ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_found(mutant: Mutant) -> None:
    assert hunt(mutant, 150)[0]
