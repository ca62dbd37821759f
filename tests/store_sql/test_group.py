"""Group commit: order as called, all or nothing, nobody refused for a neighbour, a broken store latched, callbacks in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

from flintmq.errors import StoreError
from flintmq.store.sql.driver import Operation, Parameters
from flintmq.store.sql.failures import ConstraintFailure, NotSaved
from flintmq.store.sql.group import GroupCommit


class Disk:
    """A driver that notes every transaction and fails where it is told to."""

    where = "disk"

    def __init__(self) -> None:
        self.transactions: list[list[str]] = []
        self.durable: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.gate.set()
        self.in_run = 0

    def run(self, operations: Sequence[Operation]) -> None:
        self.in_run += 1
        assert self.in_run == 1, "two threads in the driver"
        self.entered.release()
        assert self.gate.wait(30)
        self.in_run -= 1
        names = [name for name, _ in operations]
        self.transactions.append(names)
        for name in names:
            if name in self.errors:
                raise self.errors[name]
        self.durable += names

    def rows(self, name: str, parameters: Parameters) -> list[tuple[Any, ...]]:
        return []

    def tables(self) -> Collection[str]:
        return []

    def create(self, operations: Sequence[Operation]) -> None: ...
    def close(self) -> None: ...


class Bench:
    def __init__(self, group_max: int = 100) -> None:
        self.disk = Disk()
        self.group = GroupCommit(self.disk, group_max)
        self.answers: list[tuple[str, Exception | None]] = []
        self.threads: set[str] = set()

    def submit(self, *names: str) -> None:
        self.group.submit([(name, {}) for name in names], self._answer(names[0]))

    def _answer(self, name: str) -> Callable[[Exception | None], None]:
        def answer(error: Exception | None) -> None:
            assert error is not None or name in self.disk.durable
            self.threads.add(threading.current_thread().name)
            self.answers.append((name, error))

        return answer

    def run(self, *names: str) -> None:
        self.group.run([(name, {}) for name in names])

    def hold(self) -> None:
        """The next transaction stops inside the driver until `go`."""
        self.disk.gate.clear()
        self.submit("first")
        assert self.disk.entered.acquire(timeout=30)

    def go(self) -> None:
        self.disk.gate.set()

    def finish(self) -> dict[str, Exception | None]:
        self.group.close()
        return dict(self.answers)


@pytest.fixture
def bench():  # type: ignore[no-untyped-def]
    made = Bench()
    yield made
    made.go()
    made.group.close()


def test_what_gathers_while_a_transaction_runs_is_one_transaction(bench: Bench) -> None:
    bench.hold()
    for name in "abcd":
        bench.submit(name)
    bench.go()
    assert bench.finish() == dict.fromkeys(["first", "a", "b", "c", "d"])
    assert bench.disk.transactions == [["first"], ["a", "b", "c", "d"]]
    assert [name for name, _ in bench.answers] == ["first", "a", "b", "c", "d"]
    assert bench.threads == {"flintmq-definitions"}
    assert bench.group.transactions == 2


def test_a_group_has_a_limit() -> None:
    bench = Bench(group_max=2)
    bench.hold()
    for name in "abc":
        bench.submit(name)
    bench.go()
    bench.finish()
    assert bench.disk.transactions == [["first"], ["a", "b"], ["c"]]


def test_alone_a_waiting_caller_pays_no_thread(bench: Bench) -> None:
    others = set(threading.enumerate())  # of tests before this one, perhaps
    bench.run("a")
    bench.run("b", "c")
    assert bench.disk.transactions == [["a"], ["b", "c"]]
    assert not any(thread.name == "flintmq-definitions" for thread in set(threading.enumerate()) - others)


def test_a_waiting_caller_goes_after_what_was_submitted_before(bench: Bench) -> None:
    bench.hold()
    bench.submit("a")
    waiting = threading.Thread(target=bench.run, args=("b",))
    waiting.start()
    bench.go()
    waiting.join(30)
    assert not waiting.is_alive()
    assert bench.disk.durable == ["first", "a", "b"]
    bench.finish()
    assert [name for name, _ in bench.answers] == ["first", "a"]


def test_an_innocent_neighbour_is_not_refused_and_a_submission_is_all_or_nothing(bench: Bench) -> None:
    refused = ConstraintFailure("taken", unknown_vhost=False)
    bench.disk.errors["bad"] = refused
    bench.hold()
    bench.submit("a")
    bench.submit("half", "bad")
    bench.submit("c")
    bench.go()
    assert bench.finish() == {"first": None, "a": None, "half": refused, "c": None}
    assert bench.disk.durable == ["first", "a", "c"]
    assert bench.group.failed is None


def test_a_full_disk_refuses_what_does_not_fit_and_the_rest_goes_on(bench: Bench) -> None:
    full = NotSaved("disk full")
    bench.disk.errors["big"] = full
    bench.hold()
    bench.submit("a")
    bench.submit("big")
    bench.go()
    assert bench.finish() == {"first": None, "a": None, "big": full}
    assert bench.group.failed is None


def test_a_broken_store_is_latched_and_not_touched_again(bench: Bench) -> None:
    broken = StoreError("disk: I/O error")
    bench.disk.errors["bad"] = broken
    bench.hold()
    for name in ("a", "bad", "c"):
        bench.submit(name)
    bench.go()
    assert bench.finish() == {"first": None, "a": broken, "bad": broken, "c": broken}
    assert bench.disk.transactions == [["first"], ["a", "bad", "c"]]
    assert bench.group.failed is broken


def test_a_waiting_caller_gets_the_latched_error_too(bench: Bench) -> None:
    bench.disk.errors["bad"] = StoreError("disk: I/O error")
    for name in ("bad", "good"):
        with pytest.raises(StoreError, match="I/O error"):
            bench.run(name)
    assert bench.disk.transactions == [["bad"]]


def test_a_bug_in_the_driver_hangs_nobody(bench: Bench) -> None:
    bench.disk.errors["bad"] = KeyError("bug")
    with pytest.raises(KeyError):
        bench.run("bad")
    bench.submit("bad")
    assert isinstance(bench.finish()["bad"], KeyError)


def test_a_callback_that_fails_stops_no_other(bench: Bench) -> None:
    def fail(error: Exception | None) -> None:
        raise RuntimeError

    bench.group.submit([("a", {})], fail)
    bench.submit("b")
    assert bench.finish() == {"b": None}


def test_a_callback_may_submit_and_wait(bench: Bench) -> None:
    done = threading.Event()

    def again(error: Exception | None) -> None:
        bench.run("b")
        bench.submit("c")
        done.set()

    bench.group.submit([("a", {})], again)
    assert done.wait(30)
    bench.finish()
    assert bench.disk.durable == ["a", "b", "c"]


def test_close_commits_what_waits_and_refuses_what_comes(bench: Bench) -> None:
    bench.hold()
    bench.submit("a")
    closer = threading.Thread(target=bench.group.close)
    closer.start()
    bench.go()
    closer.join(30)
    assert dict(bench.answers) == {"first": None, "a": None}
    with pytest.raises(StoreError, match="closed"):
        bench.run("b")
    with pytest.raises(StoreError, match="closed"):
        bench.submit("b")
    assert bench.disk.durable == ["first", "a"]


def test_many_threads_each_get_their_own_answer(bench: Bench) -> None:
    bench.disk.errors = {
        f"{thread}-{number}": ConstraintFailure("no", unknown_vhost=False) for thread in range(8) for number in range(0, 50, 7)
    }
    wrong: list[str] = []

    def work(thread: int) -> None:
        for number in range(50):
            name = f"{thread}-{number}"
            try:
                bench.run(name)
                if name in bench.disk.errors:
                    wrong.append(name)
            except ConstraintFailure:
                if name not in bench.disk.errors:
                    wrong.append(name)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert len(bench.disk.durable) == 8 * 50 - len(bench.disk.errors)
    for thread_number in range(8):
        mine = [name for name in bench.disk.durable if name.startswith(f"{thread_number}-")]
        assert mine == sorted(mine, key=lambda name: int(name.split("-")[1]))
