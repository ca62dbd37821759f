"""What every engine guarantees (flintmq/kv/engine.py, G1 to G7). Each test runs on each engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.kv.engine import STAMP_BYTES, Conflict, TooLarge
from tests.kv.engines import ENGINES

WAIT_S = 60


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    made = ENGINES[request.param](tmp_path)
    yield made
    made.close()


def put(engine: Any, **rows: bytes) -> None:
    transaction = engine.begin()
    for key, value in rows.items():
        transaction.set(key.encode(), value)
    transaction.commit()


def get(engine: Any, key: bytes) -> bytes | None:
    transaction = engine.begin()
    try:
        return transaction.get(key)
    finally:
        transaction.close()


def rows_of(engine: Any, begin: bytes = b"a", end: bytes = b"z", limit: int = 100, reverse: bool = False) -> list[bytes]:
    transaction = engine.begin()
    try:
        return [key for key, _ in transaction.range(begin, end, limit, reverse)]
    finally:
        transaction.close()


def test_a_commit_is_seen_whole_by_who_begins_after_it(engine: Any) -> None:
    put(engine, a=b"1", b=b"2")
    assert (get(engine, b"a"), get(engine, b"b"), get(engine, b"c")) == (b"1", b"2", None)


def test_what_is_not_committed_never_happened(engine: Any) -> None:
    transaction = engine.begin()
    transaction.set(b"a", b"1")
    transaction.close()
    assert get(engine, b"a") is None


def test_a_range_is_in_order_from_either_end_and_cut_at_its_limit(engine: Any) -> None:
    put(engine, c=b"3", a=b"1", b=b"2", z=b"9")
    assert rows_of(engine) == [b"a", b"b", b"c"]
    assert rows_of(engine, reverse=True) == [b"c", b"b", b"a"]
    assert rows_of(engine, limit=2) == [b"a", b"b"]
    assert rows_of(engine, limit=1, reverse=True) == [b"c"]


def test_a_transaction_sees_its_own_writes(engine: Any) -> None:
    put(engine, a=b"1", b=b"2", c=b"3", d=b"4")
    transaction = engine.begin()
    transaction.clear(b"b")
    transaction.set(b"bb", b"new")
    transaction.clear_range(b"c", b"e")
    transaction.set(b"d", b"again")
    assert transaction.get(b"b") is None
    assert transaction.get(b"c") is None
    assert transaction.range(b"a", b"z", 10) == [(b"a", b"1"), (b"bb", b"new"), (b"d", b"again")]
    assert transaction.range(b"a", b"z", 2, reverse=True) == [(b"d", b"again"), (b"bb", b"new")]
    transaction.commit()
    assert rows_of(engine) == [b"a", b"bb", b"d"]


def test_a_read_key_that_changed_is_a_conflict(engine: Any) -> None:
    put(engine, a=b"1")
    transaction = engine.begin()
    transaction.get(b"a")
    put(engine, a=b"2")
    transaction.set(b"b", b"late")
    with pytest.raises(Conflict):
        transaction.commit()
    assert get(engine, b"b") is None


def test_a_key_that_was_read_and_not_there_is_a_conflict_when_it_came(engine: Any) -> None:
    transaction = engine.begin()
    assert transaction.get(b"a") is None
    put(engine, a=b"1")
    transaction.set(b"b", b"late")
    with pytest.raises(Conflict):
        transaction.commit()


def test_an_empty_range_that_was_read_has_no_phantoms(engine: Any) -> None:
    transaction = engine.begin()
    assert transaction.range(b"m", b"n", 10) == []
    put(engine, m1=b"came")
    transaction.set(b"b", b"late")
    with pytest.raises(Conflict):
        transaction.commit()


def test_a_deleted_row_of_a_range_is_a_conflict(engine: Any) -> None:
    put(engine, m1=b"1", m2=b"2")
    transaction = engine.begin()
    transaction.range(b"m", b"n", 10)
    other = engine.begin()
    other.clear(b"m1")
    other.commit()
    transaction.set(b"b", b"late")
    with pytest.raises(Conflict):
        transaction.commit()


def test_a_cleared_range_is_a_conflict_for_who_read_a_key_of_it(engine: Any) -> None:
    put(engine, m1=b"1")
    transaction = engine.begin()
    transaction.get(b"m1")
    other = engine.begin()
    other.clear_range(b"m", b"n")
    other.commit()
    transaction.set(b"b", b"late")
    with pytest.raises(Conflict):
        transaction.commit()


def test_behind_a_limit_nothing_was_read(engine: Any) -> None:
    put(engine, m1=b"1", m2=b"2")
    transaction = engine.begin()
    transaction.range(b"m", b"n", 1)
    put(engine, m3=b"3")
    transaction.set(b"b", b"fine")
    transaction.commit()
    assert get(engine, b"b") == b"fine"


def test_a_snapshot_read_declares_nothing_and_is_of_the_same_version(engine: Any) -> None:
    put(engine, a=b"1", m1=b"1")
    transaction = engine.begin()
    assert transaction.get(b"a", snapshot=True) == b"1"
    put(engine, a=b"2", m2=b"2")
    assert transaction.get(b"a", snapshot=True) == b"1"
    assert transaction.range(b"m", b"n", 10, snapshot=True) == [(b"m1", b"1")]
    transaction.set(b"b", b"fine")
    transaction.commit()
    assert get(engine, b"b") == b"fine"


@pytest.mark.parametrize("whole", [False, True])
def test_a_required_key_counts_as_read(engine: Any, whole: bool) -> None:
    put(engine, m1=b"1")
    transaction = engine.begin()
    if whole:
        transaction.require_range(b"m", b"n")
    else:
        transaction.require(b"m1")
    transaction.get(b"x", snapshot=True)
    put(engine, m1=b"2")
    transaction.set(b"b", b"late")
    with pytest.raises(Conflict):
        transaction.commit()


def test_blind_writes_never_conflict(engine: Any) -> None:
    first, second = engine.begin(), engine.begin()
    first.set(b"a", b"1")
    second.set(b"a", b"2")
    first.commit()
    second.commit()
    assert get(engine, b"a") == b"2"


def test_stamps_follow_the_order_of_commits(engine: Any) -> None:
    first, second = engine.begin(), engine.begin()
    first.set_stamped(b"s", b"first", b"1")
    second.set_stamped(b"s", b"0", b"2")
    second.set_stamped(b"s", b"1", b"3")
    second.commit()
    first.commit()
    transaction = engine.begin()
    rows = transaction.range(b"s", b"t", 10)
    transaction.close()
    assert [value for _, value in rows] == [b"2", b"3", b"1"]
    assert rows[0][0][: 1 + STAMP_BYTES] == rows[1][0][: 1 + STAMP_BYTES] != rows[2][0][: 1 + STAMP_BYTES]


def test_who_reads_a_range_conflicts_with_a_stamped_row_of_it(engine: Any) -> None:
    transaction = engine.begin()
    transaction.range(b"s", b"t", 10)
    other = engine.begin()
    other.set_stamped(b"s", b"", b"1")
    other.commit()
    transaction.set(b"b", b"late")
    with pytest.raises(Conflict):
        transaction.commit()


def test_a_watch_is_told_of_a_later_change_and_of_one_before_its_commit(engine: Any) -> None:
    put(engine, a=b"1")
    for early in (False, True):
        told = threading.Event()
        transaction = engine.begin()
        transaction.get(b"a", snapshot=True)
        transaction.watch(b"a", told.set)
        if early:
            put(engine, a=b"early")
        transaction.commit()
        if not early:
            put(engine, a=b"late")
        assert told.wait(WAIT_S)


def test_a_cancelled_watch_is_silent_and_leaves_nothing(engine: Any) -> None:
    calls: list[int] = []
    after = threading.Event()
    transaction = engine.begin()
    watch = transaction.watch(b"a", lambda: calls.append(1))
    transaction.watch(b"a", after.set)
    transaction.commit()
    watch.cancel()
    watch.cancel()
    put(engine, a=b"1")
    assert after.wait(WAIT_S)
    assert calls == []


def test_a_cleared_range_tells_its_watches(engine: Any) -> None:
    put(engine, m1=b"1")
    told = threading.Event()
    transaction = engine.begin()
    transaction.watch(b"m1", told.set)
    transaction.commit()
    other = engine.begin()
    other.clear_range(b"m", b"n")
    other.commit()
    assert told.wait(WAIT_S)


def test_what_is_too_large_is_refused_and_nothing_happens(engine: Any) -> None:
    limits = engine.limits
    for key, value in ((bytes(2 * limits.key_bytes + 1), b""), (b"a", bytes(limits.value_bytes + 1))):
        transaction = engine.begin()
        transaction.set(b"b", b"1")
        with pytest.raises(TooLarge):
            transaction.set(key, value)
        transaction.close()
    assert get(engine, b"b") is None


def test_many_threads_count_without_losing_one(engine: Any) -> None:
    put(engine, n=b"0")
    errors: list[BaseException] = []

    def count() -> None:
        try:
            for _ in range(10):
                while True:
                    transaction = engine.begin()
                    value = int(transaction.get(b"n") or b"0")
                    transaction.set(b"n", str(value + 1).encode())
                    try:
                        transaction.commit()
                        break
                    except Conflict:
                        continue
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=count) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert get(engine, b"n") == b"60"


KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
STEP = st.one_of(
    st.tuples(st.just("get"), KEYS),
    st.tuples(st.just("range"), KEYS, KEYS),
    st.tuples(st.just("set"), KEYS, st.binary(max_size=2)),
    st.tuples(st.just("clear"), KEYS),
    st.tuples(st.just("clear_range"), KEYS, KEYS),
)


def play(transaction: Any, step: tuple[Any, ...]) -> Any:
    kind, *arguments = step
    if kind == "range":
        return transaction.range(arguments[0], arguments[1], 3)
    return getattr(transaction, kind)(*arguments)


@pytest.mark.parametrize("name", sorted(ENGINES))
@settings(max_examples=60)
@given(plan=st.lists(st.tuples(st.integers(0, 2), st.one_of(STEP, st.just(("commit",)))), max_size=40))
def test_what_committed_could_have_run_one_after_the_other(name: str, tmp_path_factory: Any, plan: Any) -> None:
    """Three transactions at a time, interleaved: replayed alone in the order of their commits, each reads the same and leaves the same."""
    engine = ENGINES[name](tmp_path_factory.mktemp("engine"))
    opened: dict[int, tuple[Any, list[Any]]] = {}
    committed: list[list[Any]] = []

    def finish(slot: int) -> None:
        transaction, steps = opened.pop(slot)
        try:
            transaction.commit()
        except Conflict:
            return
        committed.append(steps)

    for slot, step in plan:
        if step[0] == "commit":
            if slot in opened:
                finish(slot)
            continue
        if slot not in opened:
            transaction = engine.begin()
            transaction.get(b"none", snapshot=True)  # its version is that of its first read
            opened[slot] = (transaction, [])
        transaction, steps = opened[slot]
        steps.append((step, play(transaction, step)))
    for slot in list(opened):
        finish(slot)
    alone: dict[bytes, bytes] = {}
    for steps in committed:
        if all(step[0] in ("get", "range") or (step[0] == "clear_range" and step[1] >= step[2]) for step, _ in steps):
            continue  # who wrote nothing has his place where he began, not where he ended
        for step, answer in steps:
            assert answer == play_alone(alone, step), steps
    assert dict(engine.begin().range(b"a", b"z", 100)) == alone
    engine.close()


def play_alone(state: dict[bytes, bytes], step: tuple[Any, ...]) -> Any:
    kind, *arguments = step
    if kind == "get":
        return state.get(arguments[0])
    if kind == "range":
        return sorted((key, value) for key, value in state.items() if arguments[0] <= key < arguments[1])[:3]
    if kind == "set":
        state[arguments[0]] = arguments[1]
    elif kind == "clear":
        state.pop(arguments[0], None)
    else:
        for key in [key for key in state if arguments[0] <= key < arguments[1]]:
            del state[key]
    return None
