"""Opening a store keeps what it has, repeats without harm, and never trusts what was not proved durable."""

from __future__ import annotations

import logging

import pytest

from flintmq.errors import OperatorError
from flintmq.store.log.containers import round_container_size
from flintmq.store.log.managed import repair_tail
from tests.store.rig import STORE, Rig
from tests.twins.sim_disk import SimDisk


def test_an_existing_log_keeps_its_container_size(caplog: pytest.LogCaptureFixture) -> None:
    """Another --container-size on an existing store is ignored, with a warning that names it."""
    rig = Rig(size=4096)
    rig.publish(1)
    rig.settle()
    rig.store.close()
    rig.size = 16384
    with caplog.at_level(logging.WARNING):
        rig.open()
    assert rig.messages.container_size == 4096
    assert "--container-size" in caplog.text
    assert rig.recovered() == rig.model


@pytest.mark.parametrize(("size", "expected"), [(0, 524288), (1, 524288), (524288, 524288), (524289, 528384), (1 << 20, 1 << 20)])
def test_container_sizes_are_rounded_up(size: int, expected: int) -> None:
    """Below 512 KiB to 512 KiB, and always to a multiple of 4 KiB."""
    assert round_container_size(size, 524288) == expected


def test_one_broker_at_a_time() -> None:
    """A second opening of a store in use is refused by name."""
    rig = Rig(size=4096)
    with pytest.raises(OperatorError, match="open in another broker"):
        Rig(size=4096, disk=rig.disk)


@pytest.mark.parametrize("clean", [True, False])
def test_opening_again_and_again_changes_nothing(clean: bool) -> None:
    """Starts without work in between find the same entries and do not let the log grow without bound."""
    rig = Rig(size=4096)
    for number in range(30):
        rig.publish(1, body=b"%d" % number * 50)
    rig.settle()
    for _ in range(6):
        rig.reopen(clean)
        assert rig.recovered() == rig.model
    rig.settle()
    assert rig.messages.used_bytes <= 2 * rig.messages.live_bytes + 4 * rig.size
    rig.check_contents()


def test_a_crash_at_any_operation_of_the_opening_is_harmless() -> None:
    """The process dies after each operation that an opening does: the next one finds the same."""
    rig = Rig(size=4096)
    for number in range(20):
        rig.publish(1, body=b"%d" % number * 50)
    for position in range(1, 12):
        rig.ack(1, position)
    rig.flush()
    disk = rig.disk.restart()
    first = Rig(size=4096, disk=disk)
    assert first.recovered() == rig.model
    for position in range(len(disk.journal) + 1):
        again = Rig(size=4096, disk=SimDisk(disk.state(position)))
        assert again.recovered() == rig.model
    assert len(disk.journal) > 5


def test_torn_bytes_behind_the_tail_are_gone_after_the_start() -> None:
    """Garbage behind the last good block is overwritten by zeros, not left to be taken for something later."""
    rig = Rig(size=8192)
    rig.publish(1)
    rig.flush()
    tail = rig.messages.tail
    path = f"{STORE}/messages/{tail // 8192:020d}.flog"
    fd = rig.disk.open(path)
    rig.disk.write(fd, b"FBLK" + b"\xa5" * 508, tail % 8192)
    rig.disk.close(fd)
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model
    fd = rig.disk.open(path)
    assert b"\xa5" * 16 not in rig.disk.read(fd, 8192, 0)
    rig.disk.close(fd)


def test_what_is_confirmed_after_the_tail_was_written_anew_survives_power_loss() -> None:
    """The new file of the tail's container is in the directory before anything more is synced into it: no image shows the old one."""
    rig = Rig(size=4096)
    rig.publish(1)
    rig.flush()
    tail = rig.messages.tail
    disk = rig.disk.restart()
    repair_tail(disk, f"{STORE}/messages", tail, 4096, 0)
    path = f"{STORE}/messages/{tail // 4096:020d}.flog"
    fd = disk.open(path)
    disk.write(fd, b"confirmed", tail % 4096)
    disk.sync(fd)
    disk.close(fd)
    images = 0
    for image in disk.images(limit=64):
        shown = SimDisk.from_image(image)
        fd = shown.open(path)
        assert shown.read(fd, 9, tail % 4096) == b"confirmed"
        images += 1
    assert images
