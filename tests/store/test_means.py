"""No file descriptor (EMFILE) is pressure: nothing is latched, nothing set aside, and all goes on when there is one again."""

from __future__ import annotations

import errno
import logging
import os
from typing import Any

import pytest

from flintmq.errors import StoreBusyError, StoreError
from flintmq.queue.control import QueueHandle
from tests.store.rig import STORE, Rig, TellingDisk


class PoorDisk(TellingDisk):
    """A disk without descriptors while `error` is set; what is open goes on."""

    error = 0

    def _need(self, path: str) -> None:
        if self.error:
            raise OSError(self.error, os.strerror(self.error), path)

    def open(self, path: str, create: bool = False) -> Any:
        self._need(path)
        return super().open(path, create)

    def list_dir(self, path: str) -> Any:
        self._need(path)
        return super().list_dir(path)

    def sync_dir(self, path: str) -> None:
        self._need(path)
        super().sync_dir(path)


class NoDirectories(PoorDisk):
    """Files can be opened, directories not: what was made has to go again."""

    def open(self, path: str, create: bool = False) -> Any:
        return TellingDisk.open(self, path, create)


@pytest.fixture(params=[PoorDisk, NoDirectories])
def rig(request: Any) -> Rig:
    return Rig(size=8192, disk=request.param(clock=None))


def passes(rig: Rig, count: int) -> None:
    """What the maintenance's thread does, without the thread."""
    maintenance: Any = rig.store.maintenance
    maintenance._stopping = False
    seen = 0

    def wait(last: int, seconds: float) -> int:
        nonlocal seen
        seen += 1
        maintenance._stopping = seen > count
        rig.flush()
        return 0

    class Writer:
        wait_progress = staticmethod(wait)

        def __getattr__(self, name: str) -> Any:
            return getattr(rig.store.writer, name)

    class Store:
        writer = Writer()

        def __getattr__(self, name: str) -> Any:
            return getattr(rig.store, name)

    maintenance.store = Store()
    maintenance._run()
    maintenance.store = rig.store


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_containers_that_cannot_be_made_now_block_publishers_and_are_made_later(
    rig: Rig, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    rig.settle()
    before = rig.disk.list_dir(f"{STORE}/messages")
    rig.disk.error = error
    for _ in range(120):
        rig.publish(1, body=bytes(200))
    with caplog.at_level(logging.ERROR):
        passes(rig, 5)
    assert rig.store.failure is None
    assert rig.store.disk_low  # publishers are told
    assert rig.messages.durable_lsn < rig.messages.tail
    assert len([one for one in caplog.records if "no file descriptor" in one.message]) == 1  # once, not at every pass
    rig.disk.error = 0
    assert rig.disk.list_dir(f"{STORE}/messages") == before
    passes(rig, 60)
    rig.settle()
    assert not rig.store.disk_low
    assert rig.messages.durable_lsn == rig.messages.tail
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model


def test_a_container_is_not_lost_when_its_file_cannot_be_used_again_now(rig: Rig) -> None:
    """Dead containers stay known: retired, listed and recycled once that can be done."""
    for _ in range(200):
        rig.publish(1, body=bytes(200))
        rig.flush()
    rig.settle()
    for position in list(rig.model[1]):
        rig.ack(1, position)
    rig.flush()
    rig.disk.error = errno.EMFILE
    passes(rig, 3)
    assert rig.store.failure is None
    rig.disk.error = 0
    rig.settle()
    assert len(rig.files()) <= 6
    assert rig.store.failure is None


def test_another_error_is_still_fatal() -> None:
    rig = Rig(size=8192, disk=PoorDisk(clock=None))
    rig.settle()
    rig.disk.error = errno.EIO
    for _ in range(120):
        rig.publish(1, body=bytes(200))
    passes(rig, 2)
    assert isinstance(rig.store.failure, StoreError)


def test_a_message_that_cannot_be_read_now_stays_where_it_is() -> None:
    rig = Rig(size=8192, disk=PoorDisk(clock=None), hot_bytes=0)
    core: Any = QueueHandle(1)
    core.set_durable(True)
    core.attach_log(rig.store)
    rig.store.attach(core)
    for _ in range(120):
        core.publish(b"", b"key", b"\0\x3c" + bytes(12), bytes(200), 1, 0)
        rig.flush()
        rig.store.maintain()
    rig.settle()
    assert core.cold_count == 120
    rig.disk.error = errno.EMFILE
    with pytest.raises(StoreBusyError):
        core.take_head(4, lambda message: None) if core.dead_letters else core.peek(1)
    with pytest.raises(StoreBusyError):
        core.take_head(4)
    assert (core.failed_count, core.ready_count()) == (0, 120)
    rig.disk.error = 0
    assert core.take_head(4)[3] == bytes(200)
    assert (core.failed_count, core.ready_count()) == (0, 119)


def test_a_sync_that_fails_for_want_of_memory_is_a_failed_sync(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from flintmq.store.log import file_port

    def fail(fd: int) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    files: Any = file_port.OsFiles()
    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match="memory") as caught:
        files.sync_dir(str(tmp_path))
    assert caught.value.errno == errno.EIO
    with pytest.raises(OSError, match="memory") as caught:
        files.sync(0)
    assert caught.value.errno == errno.EIO
