"""With its threads running, the system serves Python callables, keeps holds, and ends with everything answered."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("flintmq.scheduler.system")

from flintmq.config import Limits
from flintmq.scheduler.outcomes import PARK, Outcome, Space
from flintmq.scheduler.system import ActorSystem, Failed
from tests.scheduler.conftest import Store

WAIT_S = 60


@pytest.fixture
def actors() -> Iterator[ActorSystem]:
    system = ActorSystem(Limits().replace(actor_idle_ms=100), workers=3)
    system.start()
    yield system
    system.stop()


def test_call_gives_result_and_exception(actors: ActorSystem) -> None:
    """call runs the function on a worker and hands over what it returned or raised."""
    here = threading.get_ident()
    assert actors.call(Space.PYTHON, 1, 1, threading.get_ident) != here
    with pytest.raises(ZeroDivisionError):
        actors.call(Space.PYTHON, 1, 1, lambda: 1 // 0)
    assert actors.gauges()["outcome_failed_total"] == 0


def test_hold_ends_by_the_machines_clock(actors: ActorSystem) -> None:
    """A parked request gets EMPTY from the timer thread."""
    answers: queue.Queue[Outcome] = queue.Queue()
    actors.dispatch(Space.PYTHON, 1, 1, lambda: PARK, answers.put, hold_ms=20)
    assert answers.get(timeout=WAIT_S) is Outcome.EMPTY


def test_wake_from_another_thread(actors: ActorSystem) -> None:
    """Items announced by threads reach parked requests one for one."""
    store = Store()
    lock = threading.Lock()
    answers: queue.Queue[Outcome] = queue.Queue()

    def take() -> int:
        with lock:
            return store.take()

    def give(count: int) -> None:
        for _ in range(count):
            with lock:
                store.items += 1
            actors.wake(Space.PYTHON, 1, 1, next_only=True)

    threads = [threading.Thread(target=give, args=(50,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        assert actors.dispatch(Space.PYTHON, 1, 1, take, answers.put)
    for thread in threads:
        thread.join()
    # An item given before its actor existed has woken nobody; every request looks once anyway.
    assert [answers.get(timeout=WAIT_S) for _ in range(100)] == [Outcome.MESSAGES] * 100


def test_stop_closes_what_waits() -> None:
    """stop answers parked and waiting requests CLOSED, and later ones are refused."""
    system = ActorSystem(Limits(), workers=1)
    system.start()
    answers: queue.Queue[Outcome] = queue.Queue()
    begun, go_on = threading.Event(), threading.Event()

    def long() -> None:
        begun.set()
        go_on.wait(WAIT_S)

    system.dispatch(Space.PYTHON, 1, 1, lambda: PARK, answers.put)
    system.dispatch(Space.PYTHON, 2, 1, long, answers.put)
    assert begun.wait(WAIT_S)
    system.dispatch(Space.PYTHON, 2, 1, long, answers.put)
    stopper = threading.Thread(target=system.stop)
    stopper.start()
    go_on.set()
    stopper.join(WAIT_S)
    assert not stopper.is_alive()
    found = [answers.get(timeout=WAIT_S) for _ in range(3)]
    assert Outcome.CLOSED in found
    assert set(found) <= {Outcome.CLOSED, Outcome.MESSAGES}
    assert answers.empty()
    assert not system.dispatch(Space.PYTHON, 1, 1, lambda: None)
    with pytest.raises(Failed) as refused:
        system.call(Space.PYTHON, 1, 1, lambda: None)
    assert refused.value.outcome is Outcome.CLOSED
    assert system.gauges()["actors_alive"] == 0
    system.stop()


def test_call_of_a_closed_actor_fails(actors: ActorSystem) -> None:
    """A call whose request is answered without being run raises Failed with the outcome."""
    token_of: list[int] = []
    actors.call(Space.PYTHON, 1, 1, lambda: token_of.append(actors.suspend(Space.PYTHON, 1, 1)))

    def close() -> None:
        while not actors.groups(mailbox_only=True):
            pass
        actors.close(Space.PYTHON, 1, 1)

    closer = threading.Thread(target=close)
    closer.start()
    with pytest.raises(Failed) as closed:
        actors.call(Space.PYTHON, 1, 1, lambda: None)
    assert closed.value.outcome is Outcome.CLOSED
    closer.join()
