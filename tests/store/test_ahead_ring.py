"""A backlog that is read in its order is read ahead around the page cache, and whatever becomes of that, each message's own bytes come."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tests.drivers.loader_driver")

from flintmq.core.content import bytes_mapped
from flintmq.queue.control import QueueHandle
from flintmq.store.log import file_port
from tests.drivers.loader_driver import BacklogReader, LoaderDriver
from tests.store import rig
from tests.store.rig import Rig
from tests.twins.sim_disk import SimDisk

OsFiles: Any = file_port.OsFiles
SIZE = 65536
BODY = 1000
RUN = 512 * 1024  # bytes of the log after which a run is one
PIECES = 5  # a piece is a container here, but where its size is given


class Direct(SimDisk):  # type: ignore[misc]
    """Notes what is opened around the page cache, and what is closed."""

    def open_direct(self, path: str) -> int:
        if refusals:
            raise OSError(refusals[0], "no such thing")
        fd: int = super().open_direct(path)
        opened.append(int(Path(path).stem))
        live.add(fd)
        return fd

    def read(self, fd: int, size: int, offset: int) -> Any:
        reads.append(size)
        return super().read(fd, size, offset)

    def read_ahead(self, path: str) -> None:
        asked.append(path)

    def close(self, fd: int) -> None:
        live.discard(fd)
        super().close(fd)


opened: list[int] = []
reads: list[int] = []  # sizes, in bytes
asked: list[str] = []
live: set[int] = set()
refusals: list[int] = []


class Backlog:
    """Messages on a simulated disk, `share` of them for queue 1, and a reader of queue 1."""

    def __init__(self, messages: int = 2000, share: int = 1, size: int = SIZE) -> None:
        opened.clear()
        live.clear()
        refusals.clear()
        self.rig = Rig(size=size, disk=Direct())
        self.held = []
        for number in range(messages):
            message = self.rig.publish(1 if number % share == 0 else 2, body=self.body(number))
            if number % share == 0:
                self.held.append((message, number))
            if number % 200 == 199:
                self.rig.flush()
        self.rig.settle()
        self.reader = BacklogReader(self.rig.store)

    @staticmethod
    def body(number: int) -> bytes:
        return b"%0*d" % (BODY, number)

    def read(self, begin: int = 0, end: int | None = None) -> None:
        for message, number in self.held[begin:end]:
            assert self.reader.body(message) == self.body(number), number

    def sequence(self, index: int) -> int:
        """The container of a message."""
        return int(self.held[index][0]) // SIZE

    def first_after(self, count: int) -> int:
        """Index of the first message behind so many bytes of the log."""
        return next(index for index, (message, _) in enumerate(self.held) if message - self.held[0][0] >= count)

    def close(self) -> None:
        self.reader.close()
        self.rig.store.close()
        assert live == set(), "no descriptor is left"


@pytest.fixture
def made() -> Iterator[list[Backlog]]:
    rigs: list[Backlog] = []
    yield rigs
    for one in rigs:
        one.close()


def backlog(made: list[Backlog], **options: Any) -> Backlog:
    made.append(Backlog(**options))
    return made[-1]


def test_a_run_is_read_in_pieces_ahead_of_it(made: list[Backlog]) -> None:
    """After half a MiB in a row containers are opened in their order, once, a ring's worth ahead; the one that is written to never is."""
    log = backlog(made)
    begins = log.first_after(RUN + 2 * SIZE)
    log.read(0, 100)
    assert opened == [] and not log.reader.ahead, "not a run yet"
    log.read(100, begins)
    assert log.reader.ahead
    first = opened[0]
    assert log.sequence(0) + RUN // SIZE <= first <= log.sequence(begins)
    assert opened == list(range(first, log.sequence(begins - 1) + PIECES))
    log.read(begins)
    assert opened == list(range(first, log.sequence(-1))), "all but the last one, which is not full"


def test_records_across_the_ends_of_pieces_are_whole(made: list[Backlog]) -> None:
    """Containers of several pieces: what begins in one piece and ends in the next is put together; nothing is read around the ring."""
    log = backlog(made, messages=9000, size=4 << 20)
    begins = log.first_after(RUN + 300_000)
    log.read(0, begins)
    assert log.reader.ahead
    disk = log.rig.disk
    before = disk.calls["read"]
    log.read(begins, log.first_after(int(log.held[0][0]) // (4 << 20) * (4 << 20) + (4 << 20) - int(log.held[0][0])))
    assert len(opened) == 2, "the next container is on its way"
    assert disk.calls["read"] - before <= 2 * PIECES, "pieces, and nothing else"
    assert log.reader.ahead
    log.read()


def test_who_wants_little_of_the_log_is_not_read_ahead_for(made: list[Backlog]) -> None:
    """Every third message: two thirds would be read for nobody."""
    log = backlog(made, messages=4000, share=3)
    log.read()
    assert opened == [] and not log.reader.ahead


def test_of_a_queue_among_many_little_is_read(made: list[Backlog]) -> None:
    """A window is small where its neighbours are others' messages, and grows to its full length where they are not. No container is
    asked for ahead by one who wants a hundredth of it."""
    log = backlog(made, messages=6000, share=100)
    reads.clear()
    asked.clear()
    log.read()
    assert sum(reads) <= len(log.held) * 3 * 4096, "the record, and the shape of its container"
    assert asked == [] and opened == []


def test_a_window_grows_while_what_it_has_is_wanted(made: list[Backlog]) -> None:
    log = backlog(made, messages=1500)
    reads.clear()
    log.read(0, 400)
    assert reads[:4] == [4096, 8192, 16384, 32768] and max(reads) > SIZE - 4096 and len(reads) < 30


def test_contents_of_many_containers_share_chunks_of_memory(made: list[Backlog]) -> None:
    """Of a queue among many each container has a few messages: a chunk for each container would be mapped for hardly anything."""
    log = backlog(made, messages=6000, share=25)
    assert log.sequence(-1) - log.sequence(0) > 60
    before = bytes_mapped()
    assert all(log.reader.keep(message) for message, _ in log.held)
    assert bytes_mapped() - before <= 4 * (256 << 10), "chunks"


NO_MEMORY = """
import resource
from tests.store import test_ahead_ring as module
module.SIZE = 1 << 20
log = module.Backlog(messages=2, size=1 << 20)
large = log.rig.publish(1, body=bytes(80_000))
log.rig.settle()
size = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
assert log.reader.body(large) is None and log.reader.no_means, "no room for a content"
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert log.reader.body(large) == bytes(80_000) and not log.reader.no_means
"""


def test_a_content_for_which_there_is_no_memory_is_not_an_unreadable_one() -> None:
    """It may be asked for again: in a process of its own, whose address space is full."""
    done = subprocess.run([sys.executable, "-c", NO_MEMORY], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr


def test_a_run_that_gets_sparse_ends(made: list[Backlog]) -> None:
    """It is judged again and again, by what it passed since it began."""
    log = backlog(made, messages=6000)
    middle = log.first_after(RUN + 3 * SIZE)
    log.read(0, middle)
    assert log.reader.ahead
    for message, number in log.held[middle::4]:
        assert log.reader.body(message) == log.body(number)
    assert not log.reader.ahead
    assert opened[-1] < log.sequence(-1) - PIECES


def test_some_messages_elsewhere_do_not_end_a_run_but_many_do(made: list[Backlog]) -> None:
    """Of a message that was copied forward only its id stands in the run; its content is read where it is."""
    log = backlog(made)
    middle = log.first_after(RUN + 2 * SIZE)
    log.read(0, middle)
    for index in range(middle, middle + 100):
        log.read(index, index + 1)
        log.read(0, 1) if index % 10 == 0 else None
    assert log.reader.ahead, "a piece that was left for another place is still there"
    for _ in range(20):
        log.read(0, 1)
        log.read(1900, 1901)
    assert not log.reader.ahead


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL])
def test_what_can_not_be_opened_is_read_as_ever(made: list[Backlog], error: int) -> None:
    """A container that is gone, damaged or on a file system without direct reads: the run goes on through the page cache."""
    log = backlog(made)
    refusals.append(error)
    log.read(0, 1000)
    assert opened == [] and not log.reader.ahead
    refusals.clear()
    log.read(1000)
    assert bool(opened) == (error in (errno.EIO, errno.ENOENT)), "what the file system does not have is not tried again"


def test_a_read_ahead_that_failed_costs_nothing_but_time(made: list[Backlog]) -> None:
    """EIO for pieces that are under way: those messages are read again, by themselves."""
    log = backlog(made)
    middle = log.first_after(RUN + 2 * SIZE)
    log.read(0, middle)
    ahead = opened[-1]
    log.rig.disk.fail("read", nth=1, path=f"{ahead + 1:020d}")
    log.read(middle)
    assert log.rig.disk.failures, "it was tried"


def test_damage_in_a_piece_is_judged_by_the_file_itself(made: list[Backlog]) -> None:
    """Bytes that were not right when the piece was read are read once more; what is damaged on disk is not given."""
    log = backlog(made)
    middle = log.first_after(RUN + 2 * SIZE)
    log.read(0, middle)
    ahead = opened[-1]  # read already
    inside = next(index for index in range(middle, len(log.held)) if log.sequence(index) == ahead)
    message, _ = log.held[inside + 3]
    files = log.rig.disk
    fd = files.open(f"/store/messages/{ahead:020d}.flog")
    files.write(fd, b"?", message % SIZE + 100)
    log.read(middle, inside + 3)
    assert log.reader.body(message) is not None, "as it was when the piece was read"
    log.reader.close()
    assert log.reader.body(message) is None
    files.close(fd)
    log.read(inside + 4)
    assert log.reader.ahead, "a new run"


def test_a_run_that_reaches_the_end_goes_on_when_more_was_written(made: list[Backlog]) -> None:
    """Near the tail it reads windows, from the write buffers what is not on disk; a longer log is a run again."""
    log = backlog(made)
    log.read()
    for number in range(2000, 4000):
        log.held.append((log.rig.publish(1, body=log.body(number)), number))
        if number % 300 == 299:
            log.rig.flush()
            log.read(number - 10)
    log.rig.settle()
    opened.clear()
    log.read(2000)
    assert opened and log.reader.ahead


def test_transient_messages_are_left_to_the_page_cache(made: list[Backlog]) -> None:
    """The page log was written through the cache and is still there: the same run, read window by window."""
    log = backlog(made, messages=0)
    log.rig.store.close()
    log.rig = Rig(size=SIZE, disk=Direct(), spill=True, hot_bytes=0)
    handle = QueueHandle(1)
    handle.set_durable(True)
    handle.attach_log(log.rig.store)
    for number in range(2000):
        handle.publish(b"", b"q", b"header", log.body(number), 0, 0)
        if number % 200 == 199:
            log.rig.flush()
    log.rig.settle()
    driver = LoaderDriver(log.rig.store)
    log.held = [(driver.message_id(handle, number + 1), number) for number in range(2000)]
    assert log.rig.store.pages.live_count == 2000
    log.reader = BacklogReader(log.rig.store)
    log.read()
    assert opened == [] and not log.reader.ahead


@pytest.mark.parametrize("asked", [True, False])
def test_real_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    """Around the page cache where the file system can do that and it is not turned off: the same bytes; a reader may go in the middle of
    what it asked for."""
    probe = os.open(tmp_path / "probe", os.O_RDWR | os.O_CREAT)
    possible = asked and OsFiles().make_direct(probe)
    os.close(probe)
    monkeypatch.setattr(rig, "STORE", str(tmp_path / "store"))
    store = Rig(size=2 << 20, disk=OsFiles(asked))
    held = []
    for number in range(12_000):
        held.append((store.publish(1, body=b"%0*d" % (BODY, number)), number))
        if number % 1000 == 999:
            store.flush()
    store.settle()
    for last in (3000, 1500, len(held)):
        reader = BacklogReader(store.store)
        for message, number in held[:last]:
            assert reader.body(message) == b"%0*d" % (BODY, number), number
            if number == 1400:
                assert reader.ahead == possible
        if last == 3000:
            reader.close()
        del reader  # with reads under way
    store.store.close()
