"""A message that was copied forward is the same message: id, places, expiry, bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from flintmq.store.copy_forward import copy_container
from tests.oracle.log import Damage, open_store
from tests.oracle.records import MESSAGES, fields_of
from tests.store.rig import Rig
from tests.twins.sim_disk import SimDisk


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


class EndingDisk(SimDisk):  # type: ignore[misc]
    """With its `countdown`th read from now on, `ending` is called, and nothing is read any more until `countdown` is set anew."""

    def __init__(self) -> None:
        super().__init__()
        self.countdown = -1
        self.ending: Callable[[], None] = lambda: None

    def read(self, fd: int, size: int, offset: int) -> bytes:
        if self.countdown > 0:
            self.countdown -= 1
            if self.countdown == 0:
                self.ending()
        if self.countdown == 0:
            return b""
        found: bytes = super().read(fd, size, offset)
        return found


@pytest.mark.parametrize("read", [1, 2])
@pytest.mark.parametrize("others", [0, 1])
def test_a_message_that_ends_while_it_is_copied_is_no_damage(read: int, others: int, caplog: pytest.LogCaptureFixture) -> None:
    """It was copied before: when it ends, nobody knows any more where it was, and its file may go. It is not found then, and that is no
    error; whether other messages were copied, too, or not. The reads of a copy: the place, the content."""
    disk = EndingDisk()
    rig = Rig(size=4096, disk=disk)
    moved = rig.publish(1, body=b"moved")
    for _ in range(others):
        rig.publish(2, body=b"other")
    push_out(rig)
    sequence = next(one[0] for one in rig.messages.containers() if one[1])
    for _ in range(40):  # what is to be copied is on disk only
        rig.publish(3, body=bytes(100))
        rig.ack(3, rig.next[3] - 1)
    rig.flush()
    disk.ending = lambda: rig.ack(1, 1)
    disk.countdown = read
    copy_container(rig.store.logs, sequence)
    assert disk.countdown == 0
    disk.countdown = -1
    assert not [one for one in caplog.records if f"message {moved} " in one.getMessage()]
    rig.settle()
    assert rig.entries() == rig.model


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


def test_a_copy_between_a_rollback_and_its_sync_frees_nothing_of_a_transaction_in_doubt() -> None:
    """A prepared transaction is rolled back and what it takes is copied before the Rollback is on disk: after a crash in between the
    transaction is in doubt again, and holds its entry; after one behind it, neither."""
    rig = Rig(size=4096)
    message = rig.publish(1, body=b"held")
    tx = rig.store.begin(b"xid")
    rig.store.dequeue(1, 1, 1, tx=tx, message_id=message)
    rig.store.prepare(tx)
    for _ in range(80):
        rig.publish(3, body=bytes(100))
    rig.flush()
    rig.store.maintain()
    before = rig.disk.position
    rig.store.rollback(tx)
    assert copy_container(rig.store.logs, message // rig.size)[0] >= 1
    rig.flush()
    seen = set()
    for position in range(before, rig.disk.position + 1):
        for image in rig.disk.images(position, 20):
            found = Rig(4096, SimDisk.from_image(image))
            held = [entry[3] for entry in found.driver.recovered(1)]
            assert held == [bool(found.store.in_doubt())], (position, image.choice)
            seen |= set(held)
    assert seen == {True, False}


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


def test_the_time_of_publishing_survives_copies_of_copies() -> None:
    """Every Message-Copy has the time of the Message-Start, wherever its block began, and those copied from it have the same."""
    rig = Rig(size=8192)
    rig.flush()
    for number in range(6):  # some at the start of a block, some behind others in theirs
        rig.publish(1, body=b"m%d" % number)
        if number % 3 == 0:
            rig.flush()
    rig.flush()
    with_times = {lsn: time_us for _, lsn, _, time_us, _ in records(rig) if lsn in rig.bodies}
    assert len(with_times) == 6
    times: dict[int, set[int]] = {}
    for _ in range(3):
        push_out(rig)
        rig.reopen(clean=False)
        for kind, _, message, _, published in records(rig):
            if kind == "Message-Copy":
                times.setdefault(message, set()).add(published)
    assert times == {message: {time} for message, time in with_times.items()}


def records(rig: Rig) -> list[tuple[str, int, int, int, int]]:
    """(name, LSN, undo-prev, time, published time or 0) of the records of the message log, as the independent reader sees them."""
    with tempfile.TemporaryDirectory() as directory:
        for name, raw in list(rig.disk.images(limit=2))[-1].files.items():  # the last one: nothing that is un-synced
            path = Path(directory) / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)
        logs = open_store(next(Path(directory).rglob("messages")).parent)
        found = []
        for item in logs["messages"].records():
            if not isinstance(item, Damage):
                found.append((item.name, item.lsn, item.undo_prev, item.time_us, fields_of(item, MESSAGES).get("published_us", 0)))
        return found


def test_messages_behind_a_damaged_record_of_their_block_are_copied() -> None:
    """One record of a block does not check any more: its message can't be copied, the messages before and behind it are."""
    rig = Rig(size=16384)
    held = [rig.publish(1, body=b"%03d" % number) for number in range(30)]
    rig.flush()
    sequence, offset = divmod(held[10], rig.size)
    assert held[-1] // rig.size == sequence
    long = rig.publish(2, body=bytes(14000))  # begins in this container and goes on in the next one
    rig.flush()
    fd = rig.disk.open(rig.messages.path_of(sequence))
    rig.disk.write(fd, b"\xff", offset + 26)
    rig.disk.close(fd)
    assert copy_container(rig.store.logs, sequence)[0] == len(held)
    rig.flush()
    assert all(rig.messages.is_live(message) for message in held)
    moved = [record for record in records(rig) if record[0] == "Message-Copy"]
    assert {record[2] for record in moved} == {long, *held} - {held[10]}
