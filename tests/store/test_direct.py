"""Direct writes: what they put into a file is what others read, whatever their alignment; who asked for none gets none."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flintmq.store.log import file_port
from flintmq.store.log_store import LogStore
from tests.twins.sim_disk import SimDisk, port_sync, port_write

SECTOR, SIZE = 512, 64 * 512
OsFiles: Any = file_port.OsFiles

WRITES = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 63), st.integers(1, 16)).map(lambda at: (at[0] * SECTOR, at[1] * SECTOR)),
        st.tuples(st.integers(0, SIZE - 1), st.integers(1, 5000)),
    ),
    max_size=12,
)


def is_direct(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(writes=WRITES, zero=st.booleans(), data=st.data())
def test_a_second_descriptor_reads_what_was_written(tmp_path: Path, writes: list[tuple[int, int]], zero: bool, data: Any) -> None:
    """After every write, aligned or not, another descriptor reads just the bytes that were written, also where it read before."""
    files = OsFiles()
    path = str(tmp_path / "file")
    fd = files.open(path, create=True)
    model = bytearray(SIZE)
    try:
        files.allocate(fd, SIZE, zero)
        assert files.make_direct(fd) == is_direct(fd)
        reader = files.open(path)
        try:
            for number, (offset, size) in enumerate(writes):
                size = min(size, SIZE - offset)
                piece = bytes([number + 1]) * size
                assert port_write(files, fd, piece, offset) == 0
                model[offset : offset + size] = piece
                if data.draw(st.booleans()):
                    assert files.read(reader, SIZE, 0) == bytes(model)
            assert port_sync(files, fd) == 0
            assert files.read(reader, SIZE, 0) == bytes(model)
        finally:
            files.close(reader)
    finally:
        files.close(fd)
        os.unlink(path)


def test_a_write_that_the_disk_refuses_as_direct_goes_through_the_cache(tmp_path: Path) -> None:
    """A write of 100 bytes can't be direct: it is written all the same, and the descriptor isn't direct any more."""
    files = OsFiles()
    fd = files.open(str(tmp_path / "file"), create=True)
    files.allocate(fd, SIZE, True)
    files.make_direct(fd)
    assert port_write(files, fd, b"x" * 100, 7) == 0
    assert not is_direct(fd)
    assert files.read(fd, SIZE, 0) == bytes(7) + b"x" * 100 + bytes(SIZE - 107)
    files.close(fd)


def test_a_refused_write_of_another_kind_is_not_tried_again(tmp_path: Path) -> None:
    """EINVAL on a descriptor that is not direct is the caller's error, not a reason to go on."""
    files = OsFiles()
    fd = files.open(str(tmp_path / "file"), create=True)
    assert port_write(files, fd, b"x", (1 << 63) + 5) == errno.EINVAL
    files.close(fd)


def test_it_is_off_when_told_so_and_on_the_simulated_disk(tmp_path: Path) -> None:
    """A port that was made without direct writes never turns a descriptor; nor does the simulated disk, whose files stay readable."""
    files = OsFiles(False)
    fd = files.open(str(tmp_path / "file"), create=True)
    assert not files.make_direct(fd)
    assert not is_direct(fd)
    files.close(fd)
    disk: Any = SimDisk()  # type: ignore[no-untyped-call]
    disk.make_dir("/d")
    assert not disk.make_direct(disk.open("/d/f", True))


def test_a_closed_descriptor_is_no_error() -> None:
    """make_direct answers no where it can't be done."""
    assert not OsFiles().make_direct(-1)


@pytest.mark.parametrize("asked", [True, False])
def test_the_writer_s_descriptors_of_a_store(tmp_path: Path, asked: bool) -> None:
    """Containers of the synced logs are open for direct writes where the file system takes them, and only when asked for; those of the
    page log never; what is appended is found again."""
    probe = os.open(tmp_path / "probe", os.O_RDWR | os.O_CREAT)
    possible = OsFiles().make_direct(probe)
    os.close(probe)
    (tmp_path / "store").mkdir()
    size = 1 << 20
    for run in range(2):
        store = LogStore.open(OsFiles(asked), str(tmp_path / "store"), container_size=size)
        lsns = [store.messages.append(2, bytes([run]) * 20_000)[0] for _ in range(40)]
        store.writer.kick()
        while store.messages.durable_lsn <= lsns[-1]:
            pass
        store.maintenance.stop()  # it makes containers, closes full ones and uses dead ones again: what is looked at must stay
        seen: dict[str, set[bool]] = {"messages": set(), "transactions": set(), "pages": set()}
        for name in os.listdir("/proc/self/fd"):
            try:
                path = os.readlink(f"/proc/self/fd/{name}")
                if path.startswith(str(tmp_path)) and path.endswith(".flog"):
                    seen[Path(path).parent.name].add(is_direct(int(name)))
            except OSError:
                continue  # closed meanwhile
        assert seen["messages"] == {asked and possible}
        assert seen["transactions"] == {asked and possible}
        assert True not in seen["pages"]
        here = [lsn for lsn in lsns if lsn // size == store.messages.tail // size]  # nothing is live: other containers may be used again
        assert here
        for lsn in here:
            assert store.messages.read(lsn + 24, 20_000) == bytes([run]) * 20_000
        store.close(clean=False)
