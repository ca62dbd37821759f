"""The log hears of each persistent message on a durable queue once when it comes and once when it goes, and of nothing else."""

from __future__ import annotations

import pytest

handle_module = pytest.importorskip("flintmq.queue.control")
memory_log = pytest.importorskip("tests.twins.memory_log")

PERSISTENT = 1


def make(durable: bool):
    queue = handle_module.QueueHandle(7)
    log = memory_log.MemoryLog()
    queue.set_durable(durable)
    queue.attach_log(log)
    return queue, log


def test_persistent_on_durable_is_logged_in_and_out() -> None:
    queue, log = make(durable=True)
    for number in range(5):
        queue.publish(b"", b"q", b"", b"%d" % number, PERSISTENT, 0)
    queue.publish(b"", b"q", b"", b"transient", 0, 0)
    assert (log.enqueues, log.dequeues) == (5, 0)
    assert queue.take_head(4)[3] == b"0"
    assert (log.enqueues, log.dequeues) == (5, 1)
    assert queue.purge() == 5
    assert (log.enqueues, log.dequeues) == (5, 5)
    assert queue.ready_count() == 0


@pytest.mark.parametrize(("durable", "flags"), [(False, PERSISTENT), (True, 0)])
def test_nothing_else_is_logged(durable: bool, flags: int) -> None:
    queue, log = make(durable)
    queue.publish(b"", b"q", b"", b"x", flags, 0)
    assert queue.take_head(1)[3] == b"x"
    assert (log.enqueues, log.dequeues) == (0, 0)


def test_expiry_of_a_logged_message_is_logged() -> None:
    queue, log = make(durable=True)
    queue.publish(b"", b"q", b"", b"x", PERSISTENT, 0, 50)
    assert queue.take_expired(49, 3) is None
    assert queue.take_expired(50, 3)[3] == b"x"
    assert (log.enqueues, log.dequeues) == (1, 1)
