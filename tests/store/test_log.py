"""The log gives out final, growing LSNs and lays records out as the format says, to the byte."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.clock import ManualClock
from flintmq.store.log.containers import MESSAGES, LogSettings
from flintmq.store.log.managed import ManagedLog
from flintmq.store.log.scan import LogScan
from flintmq.store.log.writer import LogWriter
from tests.twins.sim_disk import SimDisk

SIZE = 4096
UUID = bytes(16)
# of a container: what records can take after its header and one block header
ROOM = SIZE - 512 - 64


def make(disk: Any = None, size: int = SIZE) -> tuple[Any, Any, Any]:
    disk = disk or SimDisk()
    log = ManagedLog(disk, "/log", LogSettings("messages", MESSAGES, UUID, size, ManualClock()))
    log.open_new(2)
    writer = LogWriter(disk)
    log.written_by(writer)
    return disk, log, writer


def write_all(log: Any, writer: Any) -> None:
    for _ in range(100):
        while writer.flush() == 1:
            pass
        if not log.dirty:
            return
        log.prepare(False)
    raise AssertionError("the writer never comes to an end")


def blocks_of(disk: Any) -> list[tuple[int, int, int]]:
    """(LSN, length, previous block) of every block on disk."""
    found = []
    for name in disk.list_dir("/log"):
        fd = disk.open(f"/log/{name}")
        data = disk.read(fd, SIZE, 0)
        disk.close(fd)
        for at in range(512, SIZE, 512):
            if data[at : at + 4] == b"FBLK":
                length, lsn = struct.unpack_from("<IQ", data, at + 4)
                found.append((lsn, length, struct.unpack_from("<Q", data, at + 48)[0]))
    return sorted(found)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, ROOM - 24), st.booleans()), max_size=40))
def test_lsns_grow_and_are_final(items: list[tuple[int, bool]]) -> None:
    """Whatever is appended and whenever it is written: LSNs grow, and a scan finds each record at its LSN with its bytes."""
    disk, log, writer = make()
    expected = []
    for number, (size, write) in enumerate(items):
        payload = bytes([number]) * size
        lsn, end = log.append(42, payload)
        assert end == lsn + 24 + size
        assert not expected or lsn > expected[-1][0]
        expected.append((lsn, payload))
        if write:
            write_all(log, writer)
            assert log.durable_lsn >= end
    write_all(log, writer)
    scan = LogScan(disk, "/log", MESSAGES, UUID)
    assert [(one[0], one[-1]) for one in scan.collect()] == expected
    assert not scan.damage


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 700), min_size=1, max_size=30))
def test_blocks_start_on_fresh_sectors_and_form_a_chain(sizes: list[int]) -> None:
    """No two blocks share a sector, each names the one before, and none is larger than its container."""
    disk, log, writer = make()
    for size in sizes:
        log.append(42, bytes(size))
        write_all(log, writer)
    before = 0
    end = 0
    for lsn, length, previous in blocks_of(disk):
        assert lsn % 512 == 0 and lsn >= end
        assert lsn // SIZE == (lsn + length - 1) // SIZE
        assert previous == before
        before, end = lsn, (lsn + length + 511) // 512 * 512


@pytest.mark.parametrize("over", [-8, 0])
def test_a_record_fits_to_the_last_byte(over: int) -> None:
    """A record that fills a container exactly stays in it; the next one begins the next container."""
    disk, log, writer = make()
    lsn, _ = log.append(42, bytes(ROOM - 24 + over))
    following, _ = log.append(42, b"")
    assert lsn == SIZE + 512 + 64
    assert following == 2 * SIZE + 512 + 64
    write_all(log, writer)
    assert [one[0] for one in LogScan(disk, "/log", MESSAGES, UUID).collect()] == [lsn, following]


def test_a_record_that_fits_nowhere_is_refused() -> None:
    """One byte more than a container holds: ValueError, and the log goes on."""
    _, log, writer = make()
    with pytest.raises(ValueError):
        log.append(42, bytes(ROOM - 24 + 1))
    lsn, end = log.append(42, b"fits")
    write_all(log, writer)
    assert log.durable_lsn >= end > lsn


def test_nothing_is_appended_after_a_failure() -> None:
    """A latched log takes no record, and its durable LSN stands still."""
    from flintmq.errors import StoreError

    _, log, writer = make()
    log.append(42, b"x")
    write_all(log, writer)
    durable = log.durable_lsn
    log.append(42, b"y")
    log.latch(5)
    with pytest.raises(StoreError):
        log.append(42, b"z")
    writer.flush()
    assert (log.durable_lsn, log.failed) == (durable, 5)
