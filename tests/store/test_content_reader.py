"""The reader gives back a message's own bytes or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.rig import Rig
from tests.twins.sim_disk import SimDisk


def test_what_was_read_before_is_not_taken_for_what_came_later() -> None:
    """A read past the end of what is written must not hide what is written there afterwards."""
    rig = Rig(size=16384)
    first = rig.publish(1, body=b"first")
    rig.flush()
    rig.reopen(clean=False)
    assert rig.store.content(first).body == b"first"  # its window reaches behind the tail
    later = [rig.publish(1, body=b"later %d" % number) for number in range(5)]
    rig.flush()
    assert [rig.store.content(message).body for message in later] == [b"later %d" % number for number in range(5)]
    long = rig.publish(1, body=bytes(range(256)) * 40)
    rig.settle()
    assert rig.store.content(long).body == bytes(range(256)) * 40


def test_bytes_of_a_recycled_container_are_never_given() -> None:
    """The id of a message whose container was recycled finds nothing, although the file is full of other messages."""
    rig = Rig(size=4096)
    gone = [rig.publish(1, body=b"old %d" % number) for number in range(20)]
    rig.settle()
    for message in gone[:3]:
        rig.store.content(message)  # the reader may keep a descriptor
    for position in list(rig.model[1]):
        rig.ack(1, position)
    for _ in range(200):
        rig.publish(1, body=b"new")
        rig.ack(1, rig.next[1] - 1)
        rig.flush()
        rig.store.maintain()
    rig.settle()
    assert rig.messages.base > gone[-1]
    for number, message in enumerate(gone):
        try:
            assert rig.store.content(message).body == b"old %d" % number  # read before, and still in the reader's window
        except KeyError:
            continue
    other = rig.publish(1, body=b"other")
    rig.flush()
    for message in gone:
        assert rig.store.content(other).body == b"other"  # the window holds something else now
        with pytest.raises(KeyError):
            rig.store.content(message)


class Ahead(SimDisk):  # type: ignore[misc]
    """Notes the containers that the disk is asked for ahead of their turn."""

    def read_ahead(self, path: str) -> None:
        asked.append(int(Path(path).stem))


asked: list[int] = []


def test_a_backlog_that_is_read_in_its_order_is_read_ahead() -> None:
    """From the second container in a row on, what follows is asked for, in its order and once: not the next container, which is about to be
    read, nor the one that is being written. Jumping about asks for nothing, and a new run begins anew."""
    rig = Rig(size=4096, disk=Ahead())
    held = [rig.publish(1, body=bytes(500)) for _ in range(300)]
    rig.settle()
    first, last = held[0] // rig.size, rig.messages.tail // rig.size
    assert last - held[99] // rig.size > 17, "more than are asked for at a time"
    for _ in range(2):
        asked.clear()
        for message in held[:100]:
            rig.store.content(message)
        assert asked == list(range(first + 3, held[99] // rig.size + 17)), "16 containers ahead of the one that is read"
        for message in held[100:]:
            rig.store.content(message)
        assert asked == list(range(first + 3, last))
    asked.clear()
    for message in reversed(held):
        rig.store.content(message)
    assert asked == []


def test_a_copied_message_is_found_at_its_new_place() -> None:
    """The id does not change when the message moves, any number of times."""
    rig = Rig(size=4096)
    held = rig.publish(1, body=b"held" * 700)
    for _ in range(6):
        before = rig.store.maintenance.copied_messages if rig.store.maintenance else 0
        for _ in range(120):
            rig.publish(2, body=bytes(100))
            rig.ack(2, rig.next[2] - 1)
        rig.settle()
        assert rig.store.maintenance.copied_messages > before
        assert rig.store.content(held).body == b"held" * 700


def test_damaged_content_is_not_given() -> None:
    """One changed byte: no content, rather than a wrong one."""
    rig = Rig(size=4096)
    message = rig.publish(1, body=b"precious" * 20)
    for _ in range(30):
        rig.publish(2, body=bytes(200))
    rig.settle()
    fd = rig.disk.open(f"/store/messages/{message // rig.size:020d}.flog")
    rig.disk.write(fd, b"?", message % rig.size + 100)
    rig.disk.close(fd)
    with pytest.raises(KeyError):
        rig.store.content(message)
