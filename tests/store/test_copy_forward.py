"""A message that was copied forward is the same message: id, places, expiry, bytes."""

from __future__ import annotations

import pytest

from tests.store.rig import Rig


def push_out(rig: Rig, count: int = 300) -> None:
    """Other messages come and go until copy-forward has moved what stays."""
    before = rig.store.maintenance.copied_messages if rig.store.maintenance else 0
    for _ in range(count):
        rig.publish(3, body=bytes(100))
        rig.ack(3, rig.next[3] - 1)
    rig.settle()
    assert rig.store.maintenance.copied_messages > before


def test_places_and_expiry_survive_the_copy() -> None:
    """A message on two queues with an expiry shows the same entries after two copies and a restart; acked on one, it stays on the other."""
    rig = Rig(size=4096)
    message, _ = rig.driver.publish([(1, 1, 123), (2, 1, 456)], b"x", b"key", b"header", b"body")
    rig.bodies[message] = b"body"
    rig.model[1][1] = rig.model[2][1] = message
    push_out(rig)
    push_out(rig)
    assert [(one.position, one.message_id, one.expires_at_ms) for one in rig.store.entries(1)] == [(1, message, 123)]
    rig.reopen(clean=False)
    assert [one[:3] for one in rig.driver.recovered(2)] == [(1, message, 456)]
    rig.ack(1, 1)
    push_out(rig)
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model
    rig.check_contents()
    rig.ack(2, 1)
    rig.settle()
    assert not rig.messages.is_live(message)


@pytest.mark.parametrize("first", range(0, 600, 8))
def test_small_messages_are_copied_wherever_the_tail_stands(first: int) -> None:
    """No offset of the tail in its container keeps a message of a few bytes from being copied."""
    rig = Rig(size=4096)
    held = [rig.publish(1, body=b"%d" % number) for number in range(4)]
    rig.publish(3, body=bytes(first))
    rig.ack(3, 1)
    push_out(rig, 160)
    assert rig.messages.used_bytes <= 2 * rig.messages.live_bytes + 4 * rig.size
    assert rig.messages.base > held[-1]
    assert rig.entries() == rig.model


def test_an_ack_between_copy_and_sync_is_not_lost() -> None:
    """A message that is acked after it was copied, before the copy is on disk, is gone after a restart."""
    rig = Rig(size=4096)
    rig.publish(1, body=b"held")
    for _ in range(300):
        rig.publish(3, body=bytes(100))
        rig.ack(3, rig.next[3] - 1)
    for _ in range(30):
        rig.flush()
        rig.store.maintain()
        if rig.store.maintenance.copied_messages:
            break
    assert rig.store.maintenance.copied_messages
    rig.ack(1, 1)
    rig.settle()
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model
