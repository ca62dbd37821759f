"""A log's files: as many as asked for, made in the right order, never too few when there is room."""

from __future__ import annotations

import errno

import pytest

from tests.store.test_log import SIZE, make, write_all


def test_a_container_counts_after_its_directory_was_synced() -> None:
    """Header written and synced, then the final name, then the directory's sync, then the first block."""
    disk, log, writer = make()
    log.append(42, b"x")
    write_all(log, writer)
    kinds = [one[0] for one in disk.journal if one[0] in ("allocate", "write", "sync", "rename", "sync_dir")]
    first_block = next(at for at, one in enumerate(disk.journal) if one[0] == "write" and one[3][:4] == b"FBLK")
    before = [one[0] for one in disk.journal[:first_block]]
    assert before.index("write") < before.index("rename") < len(before) - 1 - before[::-1].index("sync_dir")
    assert kinds.index("sync") < kinds.index("rename")


def test_the_log_grows_when_nothing_can_be_recycled() -> None:
    """With everything alive each container is a new file, and `ahead` of them are always ready after a pass."""
    disk, log, writer = make()
    for _ in range(20):
        lsn, end = log.append(42, bytes(2000))
        log.mark_live(lsn, end - lsn)
        write_all(log, writer)
        log.prepare(False)
        assert log.ready_ahead == log.ahead
    assert len(disk.list_dir("/log")) == 10 + log.ahead or len(disk.list_dir("/log")) > 10
    assert not log.advance_base()


def test_nothing_is_given_up_while_it_lives_or_its_end_is_not_durable() -> None:
    """The base passes a container only after the record that ended its last thing is on disk, and its file goes only after that base is."""
    disk, log, writer = make()
    lsn, end = log.append(42, bytes(2000))
    log.mark_live(lsn, end - lsn)
    for _ in range(8):
        log.append(42, bytes(2000))
    write_all(log, writer)
    log.prepare(False)
    write_all(log, writer)
    log.seal()
    assert log.base_target() == SIZE
    _, by = log.append(42, b"ends it")
    log.mark_dead(lsn, by)
    assert log.base_target() == SIZE
    write_all(log, writer)
    log.seal()
    assert log.advance_base()
    assert log.retire() == 0
    log.append(42, b"carries the base")
    write_all(log, writer)
    assert log.retire() > 0
    assert f"{1:020d}.flog" in disk.list_dir("/log")
    assert log.dead[0] == 1


def test_a_full_disk_is_no_error_and_is_noticed() -> None:
    """ENOSPC sets `low` and leaves no temporary; with room again it is cleared. Any other error is raised."""
    disk, log, writer = make()
    for _ in range(4):
        log.append(42, bytes(2000))
    write_all(log, writer)
    disk.fail("allocate", 1, errno.ENOSPC)
    for _ in range(4):
        log.append(42, bytes(2000))
    log.prepare(False)
    assert log.low == 1
    assert not [name for name in disk.list_dir("/log") if name.endswith(".tmp")]
    log.prepare(False)
    assert log.low == 0
    write_all(log, writer)
    for _ in range(8):
        log.append(42, bytes(2000))
    disk.fail("allocate", 1, errno.EIO)
    with pytest.raises(OSError):
        log.prepare(False)
