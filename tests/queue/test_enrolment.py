"""One transaction on queues: what it adds is seen by nobody before `apply`, then all of it at its places; after `undo` nothing is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("tests.drivers.enrolment_driver")

from flintmq.core.content import CONTENT_PERSISTENT
from flintmq.errors import StoreError
from flintmq.queue.control import QueueHandle
from tests.drivers.enrolment_driver import EnrolmentDriver
from tests.twins.memory_log import MemoryLog

ACK = 1


def publish(queue: QueueHandle, body: bytes, flags: int = 0) -> None:
    assert queue.publish(b"", b"key", b"", body, flags, 0)


def bodies(queue: QueueHandle) -> list[bytes]:
    """What is available, in order; it is taken."""
    found = []
    while (message := queue.take_head(ACK)) is not None:
        found.append(message[3])
    return found


def durable(queue_id: int) -> tuple[QueueHandle, MemoryLog]:
    queue, log = QueueHandle(queue_id), MemoryLog()
    queue.set_durable(True)
    queue.attach_log(log)
    return queue, log


def test_nothing_is_seen_before_apply_and_then_all_of_it_in_its_places() -> None:
    first, second = QueueHandle(1), QueueHandle(2)
    work = EnrolmentDriver()
    publish(first, b"1")
    assert work.enqueue(first, b"2", persistent=False) and work.enqueue(second, b"a", persistent=False)
    publish(first, b"3")
    assert work.enqueue(first, b"4", persistent=False)
    assert [first.ready_count(), second.ready_count()] == [2, 0]
    assert [position for position, _ in work.held()] == [2, 1, 4], "a position is final when the entry is added"
    work.apply()
    assert bodies(first) == [b"1", b"2", b"3", b"4"] and bodies(second) == [b"a"]
    assert work.held() == []


@pytest.mark.parametrize("end", [EnrolmentDriver.undo, EnrolmentDriver.abandon])
def test_after_undo_nothing_of_it_is_there(end: Callable[[EnrolmentDriver], None]) -> None:
    queue = QueueHandle(1)
    work = EnrolmentDriver()
    publish(queue, b"1")
    assert work.enqueue(queue, b"2", persistent=False)
    publish(queue, b"3")
    end(work)
    assert work.held() == [] and queue.ready_count() == 2 and queue.unacked_count() == 0
    assert bodies(queue) == [b"1", b"3"]


@pytest.mark.parametrize("effect", [EnrolmentDriver.apply, EnrolmentDriver.undo])
def test_an_effect_happens_once(effect: Callable[[EnrolmentDriver], None]) -> None:
    """Each held entry is published or dropped once: a second call finds nothing."""
    queue = QueueHandle(1)
    work = EnrolmentDriver()
    work.enqueue(queue, b"x", persistent=False)
    effect(work)
    left = queue.ready_count()
    effect(work)
    work.undo()
    assert queue.ready_count() == left


def test_more_entries_than_the_first_array_holds_keep_their_order() -> None:
    queue = QueueHandle(1)
    work = EnrolmentDriver()
    wanted = [b"%d" % number for number in range(100)]
    for body in wanted:
        assert work.enqueue(queue, body, persistent=False)
    work.apply()
    assert bodies(queue) == wanted


def test_a_transaction_that_is_forgotten_lets_its_queue_go() -> None:
    """A loop that ended applies nothing: its held entries stay unseen, recovery decides."""
    queue = QueueHandle(1)
    work = EnrolmentDriver()
    work.enqueue(queue, b"x", persistent=False)
    del work
    publish(queue, b"y")
    assert bodies(queue) == [b"y"]


def test_a_deleted_queue_takes_nothing_and_the_log_is_not_asked() -> None:
    queue, _ = durable(1)
    queue.mark_deleted()
    work = EnrolmentDriver()
    assert not work.enqueue(queue, b"x")
    assert work.held() == [] and work.asked == []
    work.apply()


# --- the port: what of it the log is asked to write -----------------------------------------------------------------------


def test_the_log_is_asked_for_persistent_messages_of_durable_queues_only() -> None:
    kept, _ = durable(1)
    memory = QueueHandle(2)
    work = EnrolmentDriver()
    assert work.enqueue(kept, b"p") and work.enqueue(kept, b"t", persistent=False) and work.enqueue(memory, b"p")
    assert work.asked == [("enqueue", 1, 1)]
    assert work.held() == [(1, True), (2, False), (1, False)]


def test_without_a_port_nothing_is_logged_and_all_of_it_happens() -> None:
    queue, log = durable(1)
    work = EnrolmentDriver(logged=False)
    publish(queue, b"old", CONTENT_PERSISTENT)
    before = log.last_lsn
    assert work.enqueue(queue, b"new") and not work.dequeue(queue, 1)
    assert work.held() == [(2, False)] and work.asked == [] and log.last_lsn == before
    work.apply()
    assert bodies(queue) == [b"new"], "the old one is acquired until its owner settles it"


def test_a_dequeue_is_the_logs_if_the_entry_was_logged_and_the_log_takes_it() -> None:
    queue, _ = durable(1)
    publish(queue, b"logged", CONTENT_PERSISTENT)
    publish(queue, b"not", 0)
    publish(queue, b"refused", CONTENT_PERSISTENT)
    work = EnrolmentDriver()
    assert work.dequeue(queue, 1)
    assert not work.dequeue(queue, 2)
    work.takes = False
    assert not work.dequeue(queue, 3), "its queue was deleted: settled like any other delivery of it"
    assert work.asked == [("dequeue", 1, 1, ACK), ("dequeue", 1, 3, ACK)]


def test_a_refusal_of_the_log_reaches_the_caller_and_undo_leaves_nothing() -> None:
    queue, _ = durable(1)
    work = EnrolmentDriver()
    assert work.enqueue(queue, b"1")
    work.refusal = StoreError("the disk is full")
    with pytest.raises(StoreError, match="the disk is full"):
        work.enqueue(queue, b"2")
    assert len(work.held()) == 2, "the entry of the refused record is held still: undo drops it, too"
    work.abandon()
    assert queue.ready_count() == 0 and bodies(queue) == []
    publish(queue, b"3")
    assert bodies(queue) == [b"3"]


def test_a_refused_dequeue_reaches_the_caller() -> None:
    queue, _ = durable(1)
    publish(queue, b"x", CONTENT_PERSISTENT)
    work = EnrolmentDriver()
    work.refusal = StoreError("the disk is full")
    with pytest.raises(StoreError):
        work.dequeue(queue, 1)
