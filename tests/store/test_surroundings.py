"""What stands around a log: its directory, the directory above, the archive, the mark of a clean stop when nothing can be written."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from flintmq.errors import StoreError
from flintmq.store.directory import make_directory
from flintmq.store.log.file_port import OsFiles
from tests.store.rig import UUID, Rig, TellingDisk

SIZE = 4096


def stopped_at_the_end_of_a_container() -> Rig:
    """Cleanly, with the tail where a next block needs another container, which there is no room for."""
    for count in range(1, 40):
        rig = Rig(size=SIZE, disk=TellingDisk(clock=None))
        rig.disk.budget = 0  # it has three containers, and gets no more
        for _ in range(count):
            rig.publish(1)
            rig.flush()
        rig.store.close()
        if rig.messages.durable_lsn == 4 * SIZE:
            return rig
    raise AssertionError("no such count")


def test_a_start_that_can_write_nothing_takes_the_mark_of_the_clean_stop_back() -> None:
    """Else what it delivers would come again after its stop without the flag."""
    rig = stopped_at_the_end_of_a_container()
    rig.disk.budget = SIZE + 512  # the tail can be written anew, no container can be made
    rig.open()
    assert rig.store.was_clean
    assert rig.messages.durable_lsn < rig.messages.tail  # nothing of this run is on disk
    rig.store.close()
    rig.open()
    assert not rig.store.was_clean  # its deliveries count as delivered
    assert rig.recovered() == rig.model


def open_on_disk(tmp_path: Path, queues: tuple[int, ...] = (1,)) -> Any:
    from flintmq.store.log_store import LogStore

    (tmp_path / "store").mkdir(exist_ok=True)
    return LogStore.open(
        None, str(tmp_path / "store"), container_size=8192, store_uuid=UUID, known_queues=queues, threads=False, spill=False
    )


@pytest.mark.parametrize("missing", ["messages", "transactions"])
def test_a_log_whose_directory_is_missing_is_refused_beside_one_in_use(tmp_path: Path, missing: str) -> None:
    """Not begun anew without a word; an empty directory says that this is meant."""
    open_on_disk(tmp_path).close()
    shutil.rmtree(tmp_path / "store" / missing)
    with pytest.raises(StoreError, match=rf"{missing} is missing, but .* is a log in use.*Put it back.*empty directory"):
        open_on_disk(tmp_path)
    (tmp_path / "store" / missing).mkdir()
    open_on_disk(tmp_path).close()


def test_the_first_start_may_die_between_the_two_logs(tmp_path: Path) -> None:
    open_on_disk(tmp_path).close()
    shutil.rmtree(tmp_path / "store")
    store = open_on_disk(tmp_path)
    store.close(clean=False)
    shutil.rmtree(tmp_path / "store" / "transactions")
    for name in (tmp_path / "store" / "messages").iterdir():
        name.write_bytes(name.read_bytes()[:512] + bytes(8192 - 512))  # made, and nothing written yet
    open_on_disk(tmp_path).close()


class Noting(OsFiles):  # type: ignore[misc]
    """Files that note which directories were synced."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def sync_dir(self, path: str) -> None:
        self.synced.append(path)
        super().sync_dir(path)


def test_the_names_of_a_new_store_directory_and_of_those_above_it_are_durable(tmp_path: Path) -> None:
    files: Any = Noting()
    make_directory(tmp_path / "a" / "b" / "store", files)
    assert (tmp_path / "a" / "b" / "store").is_dir()
    assert files.synced == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]
    files.synced.clear()
    make_directory(tmp_path / "a" / "b" / "store", files)  # whoever made it may have died before
    assert files.synced == [str(tmp_path / "a" / "b")]


def test_a_directory_above_that_may_not_be_read_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "no")

    monkeypatch.setattr(os, "open", refuse)
    make_directory(tmp_path)


def test_another_stores_archive_is_not_taken_for_ones_own(caplog: pytest.LogCaptureFixture) -> None:
    """Nor written over: containers stay, and the log says why."""
    other = Rig(size=SIZE, archive_dir="/archive")
    for number in range(60):
        other.publish(1, body=bytes(200))
        other.ack(1, number + 1)
        other.flush()
    other.settle()
    archived = other.disk.list_dir("/archive/messages")
    assert archived
    foreign = []
    for name in archived:
        fd = other.disk.open(f"/archive/messages/{name}")
        foreign.append((name, other.disk.read(fd, SIZE, 0)))
        other.disk.close(fd)

    rig = Rig(size=SIZE, archive_dir="/archive")
    rig.disk.make_dir("/archive")
    rig.disk.make_dir("/archive/messages")
    for name, data in foreign:
        fd = rig.disk.open(f"/archive/messages/{name}", True)
        rig.disk.write(fd, data[:16] + b"another store..." + data[32:], 0)
        rig.disk.close(fd)
    with caplog.at_level(logging.ERROR):
        for number in range(60):
            rig.publish(1, body=bytes(200))
            rig.ack(1, number + 1)
            rig.flush()
            rig.store.maintain()
    assert "no copy of this store's container" in caplog.text
    assert rig.messages.dead  # kept: none of them is in the archive
    for name, _ in foreign:
        fd = rig.disk.open(f"/archive/messages/{name}")
        assert rig.disk.read(fd, 32, 0)[16:] == b"another store..."
        rig.disk.close(fd)
