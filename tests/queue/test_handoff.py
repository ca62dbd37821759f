"""The line between the message path and the service of shared queues, and windows: what is counted leaves, and nothing else gets in.

Properties: H1 to H5 of queue/handoff.py, as far as Python sees them; tests/cluster/test_remote_windows.py has the message path.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from flintmq.core.memory_account import bytes_by_kind
from flintmq.ports import DequeueReason
from flintmq.queue.control import QueueHandle, free_owner, new_owner
from flintmq.queue.handoff import (
    RETURNED,
    SharedPort,
    open_window,
    window_add,
    window_available,
    window_end,
    window_take_back,
)

MESSAGE = b"x", b"key", b"\x00\x00", b"body"


def window(port: SharedPort, number: int = 1, vhost: str = "/") -> QueueHandle:
    handle = QueueHandle(number)
    open_window(handle, port, vhost)
    return handle


def add(handle: QueueHandle, body: bytes = b"body", redelivered: bool = False) -> int:
    return window_add(handle, (b"x", b"key", b"\x00\x00", body, 0, 0), redelivered)


def ends(port: SharedPort) -> list[tuple[int, int]]:
    return [(queue_id, position) for queue_id, message, _, position, *_ in port.take(100) if message is None]


@pytest.fixture
def port() -> SharedPort:
    return SharedPort(None, 1_000, 1_500)


def test_only_the_service_adds_to_a_window(port: SharedPort) -> None:
    handle = window(port)
    assert handle.publish(*MESSAGE, 0, 0) == 0
    assert add(handle) > 0
    assert (handle.ready_count(), handle.ready_bytes()) == (1, 4)


def test_a_settled_entry_is_told_once_and_one_that_is_taken_back_is_not(port: SharedPort) -> None:
    handle = window(port, 7)
    positions = [add(handle, b"%d" % number, redelivered=number == 2) for number in range(4)]
    assert positions == sorted(positions)
    assert handle.hold(positions[0])
    assert ends(port) == []
    assert handle.settle_held(positions[0], DequeueReason.ACK, False)
    assert ends(port) == [(7, positions[0])]
    assert not handle.settle_held(positions[0], DequeueReason.ACK, False)
    assert window_take_back(handle, positions[:2]) == [positions[1]]
    assert handle.purge() == 2
    assert ends(port) == [(7, position) for position in positions[2:]]


def test_the_line_keeps_its_order_and_gives_its_memory_back(port: SharedPort) -> None:
    """More items than one block of the line holds: some are taken while others come, then all."""
    handle = window(port, 7)
    positions = [add(handle) for _ in range(1_000)]
    told: list[int] = []
    for number, position in enumerate(positions):
        assert handle.hold(position)
        assert handle.settle_held(position, DequeueReason.ACK, False)
        if number in (0, 127, 128, 300):
            told += [position for _, position in ends(port)]
    fullest = bytes_by_kind()["entries"]
    while taken := ends(port):
        told += [position for _, position in taken]
    assert told == positions
    assert fullest - bytes_by_kind()["entries"] > 20_000


def test_what_nobody_has_is_taken_out_in_the_order_that_is_asked_for(port: SharedPort) -> None:
    handle = window(port)
    positions = [add(handle, redelivered=number == 1) for number in range(3)]
    assert window_available(handle, 2) == positions[:2]
    assert window_take_back(handle, positions[1::-1]) == positions[1::-1]
    assert window_available(handle, 9) == positions[2:]
    assert window_take_back(handle, [*positions, positions[2] + 1]) == [positions[2]]
    assert window_available(handle, 9) == []
    assert ends(port) == []
    assert add(handle) > positions[2], "a position never comes twice"


def test_a_deleted_window_takes_nothing(port: SharedPort) -> None:
    handle = window(port)
    handle.mark_deleted()
    assert add(handle) == 0


def test_a_lane_has_its_own_bound_and_its_share_of_a_virtual_host(port: SharedPort) -> None:
    one, two, other = window(port, 1), window(port, 2), window(port, 3, "other")
    first = port.admit(one, 900)
    assert first
    assert port.admit(one, 101) == 0, "of the queue"
    second = port.admit(two, 600)
    assert second
    assert port.admit(two, 100) == 0, "of the virtual host"
    assert port.admit(other, 5_000), "an empty one takes a message of any size"
    assert port.admit(other, 1) == 0
    assert port.waiting_bytes() == 6_500
    port.leave(first, 900)
    assert port.admit(two, 100) == second
    assert port.waiting_bytes() == 5_700


def test_a_lane_is_used_again_when_its_last_message_left(port: SharedPort) -> None:
    gone = window(port, 1)
    lane = port.admit(gone, 500)
    port.close_lane(gone)
    assert port.admit(gone, 1) == 0, "its queue is deleted"
    fresh = window(port, 2)
    assert port.admit(fresh, 100) not in (0, lane)
    port.leave(lane, 500)
    again = window(port, 3, "other")
    assert port.admit(again, 200) == lane
    assert port.waiting_bytes() == 300
    idle = window(port, 4)
    port.close_lane(idle)
    port.close_lane(idle)
    assert len({port.admit(window(port, number), 1) for number in (5, 6)}) == 2, "closed twice, it is free once"


def test_a_closed_line_refuses(port: SharedPort) -> None:
    handle = window(port)
    port.close()
    assert port.admit(handle, 1) == 0
    assert port.waiting_bytes() == 0


def returns(port: SharedPort) -> list[tuple[int, int]]:
    return [(position, reason) for _, message, _, position, _, _, _, reason in port.take(100) if message is None]


def test_the_line_says_why_an_entry_ended(port: SharedPort) -> None:
    handle = window(port)
    positions = [add(handle) for _ in range(3)]
    for position, reason in zip(positions, (DequeueReason.ACK, DequeueReason.REJECT), strict=False):
        assert handle.hold(position)
        assert handle.settle_held(position, reason, False)
    assert handle.purge() == 1
    assert returns(port) == [(positions[0], DequeueReason.ACK), (positions[1], DequeueReason.REJECT), (positions[2], DequeueReason.PURGE)]


def test_the_descriptor_tells_of_the_first_item_after_a_rest(port: SharedPort) -> None:
    handle = window(port)
    position = add(handle)
    assert select.select([port.descriptor], [], [], 0)[0] == []
    assert port.rest()
    assert handle.purge() == 1
    assert select.select([port.descriptor], [], [], 0)[0] == [port.descriptor]
    assert os.eventfd_read(port.descriptor) == 1
    assert not port.rest(), "there is an item"
    assert returns(port) == [(position, DequeueReason.PURGE)]
    port.wake()
    assert os.eventfd_read(port.descriptor) == 1


@pytest.fixture
def consumer() -> Iterator[int]:
    made = new_owner()
    yield made
    free_owner(made)


def test_what_a_consumer_gives_back_to_a_window_goes_to_no_consumer(port: SharedPort, consumer: int) -> None:
    handle = window(port)
    positions = [add(handle) for _ in range(3)]
    for position in positions[:2]:
        assert handle.take_at(position, consumer)
        assert handle.release_held(position, delivered=True, owner=consumer)
    assert returns(port) == [(positions[0], RETURNED), (positions[1], RETURNED)]
    assert window_available(handle, 9) == positions[2:]
    assert window_end(handle, positions[0]) and window_end(handle, positions[1])
    assert not window_end(handle, positions[0])
    assert returns(port) == [] and handle.returned_count == 0
    assert handle.take_at(positions[2], consumer) and handle.release_held(positions[2], delivered=False, owner=consumer)
    assert window_available(handle, 9) == positions[2:], "it was not sent to the consumer"
    assert returns(port) == []
