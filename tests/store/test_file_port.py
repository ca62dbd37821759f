"""Property: the simulated disk answers every call as the operating system does, and its model of power loss keeps what was synced."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flintmq.clock import ManualClock
from flintmq.store.log import file_port
from flintmq.store.log.file_port import OsFiles
from tests.twins.disk_images import SECTOR, digest
from tests.twins.sim_disk import SimDisk, port_read, port_sync, port_write

NAMES = st.sampled_from(["a", "b", "c", "sub/a", "sub/b"])
SIZES = st.integers(1, 3000)
SLOTS = st.integers(0, 3)  # which of the open descriptors
DATA = st.binary(min_size=1, max_size=40) | st.integers(1, 1200).map(lambda size: b"\x5a" * size)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), NAMES, st.booleans()),
        st.tuples(st.just("close"), SLOTS),
        st.tuples(st.just("write"), SLOTS, DATA, SIZES),
        st.tuples(st.just("port_write"), SLOTS, DATA, SIZES),
        st.tuples(st.just("read"), SLOTS, SIZES, SIZES),
        st.tuples(st.just("port_read"), SLOTS, SIZES, SIZES),
        st.tuples(st.just("allocate"), SLOTS, SIZES, st.booleans()),
        st.tuples(st.just("sync"), SLOTS),
        st.tuples(st.just("port_sync"), SLOTS),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("unlink"), NAMES),
        st.tuples(st.just("make_dir"), st.sampled_from(["sub", "sub/deep", "none/deep"])),
        st.tuples(st.just("list_dir"), st.sampled_from(["", "sub", "none"])),
        st.tuples(st.just("sync_dir"), st.sampled_from(["", "sub"])),
        st.tuples(st.just("size"), NAMES),
        st.tuples(st.just("lock"), st.sampled_from(["lock", "lock2"])),
    ),
    max_size=40,
)


class Player:
    """Plays steps on a file port; what each gave, without what may differ between ports (descriptors, texts)."""

    def __init__(self, files: OsFiles | SimDisk, root: str) -> None:
        self.files = files
        self.root = root
        self.fds: list[int] = []

    def path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def fd(self, slot: int) -> int:
        return self.fds[slot] if slot < len(self.fds) else 9_999_999

    def keep(self, fd: int) -> str:
        self.fds.append(fd)
        return "a descriptor"

    def play(self, step: tuple) -> object:
        try:
            return self.do(*step)
        except OSError as error:
            return errno.errorcode[error.errno]

    def do(self, kind: str, *args) -> object:
        files = self.files
        if kind == "open":
            return self.keep(files.open(self.path(args[0]), args[1]))
        if kind == "lock":
            return self.keep(files.lock(self.path(args[0])))
        if kind == "close":
            files.close(self.fd(args[0]))
            return self.fds.pop(args[0]) and None
        if kind in ("port_write", "port_read", "port_sync"):
            call = {"port_write": port_write, "port_read": port_read, "port_sync": port_sync}[kind]
            return call(files, self.fd(args[0]), *args[1:])
        if kind in ("write", "read", "allocate", "sync"):
            return getattr(files, kind)(self.fd(args[0]), *args[1:])
        if kind == "rename":
            return files.rename(self.path(args[0]), self.path(args[1]))
        return getattr(files, kind)(self.path(args[0]))

    def contents(self) -> dict[str, bytes]:
        found = {}
        for folder in ("", "sub"):
            for name in self.files.list_dir(self.path(folder)):
                path = f"{folder}/{name}".lstrip("/")
                if path not in ("sub", "sub/deep"):
                    fd = self.files.open(self.path(path))
                    found[path] = self.files.read(fd, 1 << 20, 0)
                    self.files.close(fd)
        return found


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS)
def test_simulated_and_real_files_behave_alike(steps: list[tuple]) -> None:
    """Whatever the calls, both ports give the same results, the same error numbers and the same files."""
    with tempfile.TemporaryDirectory() as root:
        disk = SimDisk()
        disk.make_dir("/root")
        real, simulated = Player(OsFiles(), root), Player(disk, "/root")
        try:
            for step in steps:
                assert simulated.play(step) == real.play(step), step
            assert simulated.contents() == real.contents()
            # the journal alone tells the same files, and the image with everything applied is what reads show
            everything = next(iter(disk.images(limit=1)))
            restarted = Player(disk.restart(), "/root")
            assert restarted.contents() == real.contents()
            assert {path[6:]: data for path, data in everything.files.items() if "lock" not in path} == {
                path: data for path, data in real.contents().items() if "lock" not in path
            }
        finally:
            for fd in real.fds:
                real.files.close(fd)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS, st.integers(0, 1 << 30))
def test_what_was_synced_is_in_every_image(steps: list[tuple], seed: int) -> None:
    """A file whose bytes and name were synced and not touched since is in every image; a replayed choice gives the same image."""
    disk = SimDisk()
    disk.make_dir("/root")
    player = Player(disk, "/root")
    player.play(("make_dir", "sub"))
    for step in [("open", "keep", True), ("write", 0, b"kept" * 300, 0), ("sync", 0), ("sync_dir", ""), ("close", 0)]:
        player.play(step)
    for step in steps:
        player.play(step)
    for image in disk.images(limit=60, seed=seed):
        assert image.files["/root/keep"] == b"kept" * 300
        again = disk.state(image.position).image(image.choice, image.position)
        assert again == image
        recovered = SimDisk.from_image(image)
        assert len(list(recovered.images())) == 1  # all of an image is synced
        assert next(iter(recovered.images())).files == image.files


def prepared(*, synced: bytes = b"old" * 400) -> tuple[SimDisk, int]:
    disk = SimDisk()
    disk.make_dir("/d")
    fd = disk.open("/d/f", create=True)
    disk.write(fd, synced, 0)
    disk.sync(fd)
    disk.sync_dir("/d")
    return disk, fd


def test_images_hold_every_subset_of_unsynced_sectors() -> None:
    """Three un-synced sectors: all eight mixtures of old and new occur, and damaged ones besides."""
    disk, fd = prepared(synced=bytes([1]) * 4 * SECTOR)
    disk.write(fd, bytes([2]) * 3 * SECTOR, SECTOR)
    found = {image.files["/d/f"] for image in disk.images(limit=10_000)}
    for mask in range(8):
        parts = [bytes([2 if mask >> sector & 1 else 1]) * SECTOR for sector in range(3)]
        assert bytes([1]) * SECTOR + b"".join(parts) in found
    assert any(bytes(SECTOR) in content for content in found)
    assert all(content[:SECTOR] == bytes([1]) * SECTOR for content in found)


def test_a_sync_leaves_one_image_and_a_failed_one_does_not() -> None:
    """After a good sync nothing is open; after a failed one the data may be missing, although reads show it and a later sync is fine."""
    disk, fd = prepared()
    disk.write(fd, b"N" * SECTOR, 0)
    disk.fail("sync", nth=1)
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(fd)
    assert disk.failures == [("sync", "/d/f", errno.EIO)]
    disk.write(fd, b"M" * SECTOR, 2 * SECTOR)
    disk.sync(fd)
    assert disk.read(fd, SECTOR, 0) == b"N" * SECTOR
    found = {(image.files["/d/f"][:1], image.files["/d/f"][2 * SECTOR : 2 * SECTOR + 1]) for image in disk.images()}
    assert {(b"N", b"M"), (b"o", b"M")} <= found
    assert {second for _, second in found} == {b"M"}
    assert port_read(disk.restart(), 1, 1, 0) == -errno.EBADF
    shown = disk.restart()
    assert shown.read(shown.open("/d/f"), 1, 0) == b"N"


def test_names_count_after_the_sync_of_their_directory() -> None:
    """create, rename and unlink may each be lost until then, in order along one name, independently otherwise."""
    disk, _ = prepared()
    fd = disk.open("/d/new.tmp", create=True)
    disk.write(fd, b"x", 0)
    disk.sync(fd)
    disk.rename("/d/new.tmp", "/d/new")
    disk.unlink("/d/f")
    names = {tuple(sorted(image.files)) for image in disk.images()}
    assert names == {
        ("/d/f",),
        ("/d/f", "/d/new.tmp"),
        ("/d/f", "/d/new"),
        (),
        ("/d/new.tmp",),
        ("/d/new",),
    }
    disk.sync_dir("/d")
    assert {tuple(sorted(image.files)) for image in disk.images()} == {("/d/new",)}


def test_stale_content_of_a_recycled_file_comes_back() -> None:
    """A sector that was overwritten twice may show what it held before the last synced version."""
    disk, fd = prepared(synced=b"1" * SECTOR)
    disk.write(fd, b"2" * SECTOR, 0)
    disk.sync(fd)
    disk.write(fd, b"3" * SECTOR, 0)
    assert b"1" * SECTOR in {image.files["/d/f"] for image in disk.images()}


def test_an_unsynced_size_may_be_lost() -> None:
    """A growth that was not synced is missing in some image."""
    disk, fd = prepared(synced=b"1" * SECTOR)
    disk.allocate(fd, 4 * SECTOR, False)
    assert {len(image.files["/d/f"]) for image in disk.images()} == {SECTOR, 4 * SECTOR}


@pytest.mark.parametrize(
    "kind", ["create", "allocate", "write", "sync", "rename", "unlink", "sync_dir", "open", "read", "lock", "close", "make_dir"]
)
def test_every_kind_of_call_fails_on_demand(kind: str) -> None:
    """The second call of a kind fails, once; with `forever` every later one too."""
    calls: dict[str, Callable[[SimDisk, int], object]] = {
        "create": lambda disk, n: disk.open(f"/d/{n}", create=True),
        "allocate": lambda disk, n: disk.allocate(disk.open("/d/f"), 5000, False),
        "write": lambda disk, n: disk.write(disk.open("/d/f"), b"x", n),
        "sync": lambda disk, n: disk.sync(disk.open("/d/f")),
        "rename": lambda disk, n: (disk.rename("/d/f", "/d/g"), disk.rename("/d/g", "/d/f")) if n == 9 else disk.rename("/d/f", "/d/f"),
        "unlink": lambda disk, n: disk.unlink(f"/d/u{n}"),
        "sync_dir": lambda disk, n: disk.sync_dir("/d"),
        "open": lambda disk, n: disk.open("/d/f"),
        "read": lambda disk, n: disk.read(disk.open("/d/f"), 3, 0),
        "lock": lambda disk, n: disk.close(disk.lock("/d/lock")),
        "close": lambda disk, n: disk.close(disk.open("/d/f")),
        "make_dir": lambda disk, n: disk.make_dir(f"/d/dir{n}"),
    }
    for forever in (False, True):
        disk, _ = prepared()
        for number in range(4):
            disk.open(f"/d/u{number}", create=True)
        disk.fail(kind, nth=2, error=errno.ENOSPC, forever=forever)
        results = []
        for number in range(4):
            try:
                calls[kind](disk, number)
                results.append("")
            except OSError as error:
                results.append(errno.errorcode[error.errno])
        assert results == (["", "ENOSPC", "ENOSPC", "ENOSPC"] if forever else ["", "ENOSPC", "", ""])
        disk.heal()


def test_a_short_disk_runs_full_and_gives_space_back() -> None:
    """Growth beyond the budget is ENOSPC; an unlinked, closed file returns its space."""
    disk = SimDisk(budget=4096)
    fd = disk.open("/f", create=True)
    disk.allocate(fd, 4096, True)
    other = disk.open("/g", create=True)
    with pytest.raises(OSError) as caught:
        disk.write(other, b"x", 0)
    assert caught.value.errno == errno.ENOSPC
    assert port_write(disk, other, b"x", 0) == errno.ENOSPC
    disk.write(fd, b"y", 4095)  # inside what is allocated
    disk.unlink("/f")
    with pytest.raises(OSError):
        disk.write(other, b"x", 0)
    disk.close(fd)
    disk.write(other, b"x", 0)


def test_calls_take_the_time_they_are_told_to() -> None:
    """Latency moves the virtual clock only."""
    clock = ManualClock()
    disk = SimDisk(clock=clock)
    fd = disk.open("/f", create=True)
    disk.latency_ms["sync"] = 30_000
    before = clock.monotonic_ns()
    disk.sync(fd)
    assert clock.monotonic_ns() - before == 30_000 * 1_000_000


def test_images_are_reproducible_and_different() -> None:
    """The same seed gives the same images in the same order; no two of them are the same choice; another seed gives others."""
    disk, fd = prepared(synced=bytes(20 * SECTOR))
    disk.write(fd, b"n" * 20 * SECTOR, 0)
    first = [image.choice for image in disk.images(limit=200, seed=3)]
    assert first == [image.choice for image in disk.images(limit=200, seed=3)]
    assert len(set(first)) == 200
    assert first != [image.choice for image in disk.images(limit=200, seed=4)]
    files = [digest(image.files) for image in disk.images(limit=200, seed=3)]
    assert len(set(files)) > 100


@pytest.mark.parametrize("size", [512, 4096, 300_000, 4 << 20])
def test_what_is_reserved_has_its_size_and_reads_as_zeros_also_when_it_cannot_be_read_beforehand(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OsFiles()
    tried: list[int] = []

    def refuse(fd: int, _buffers: object, offset: int) -> int:
        tried.append(offset)
        raise OSError(errno.EIO, "no")

    for name, broken in (("read", False), ("refused", True)):
        path = str(tmp_path / name)
        fd = files.open(path, create=True)
        with monkeypatch.context() as patch:
            if broken:
                patch.setattr("os.preadv", refuse)
            files.allocate(fd, size, False)
            files.warm(fd, size)
        assert files.size(path) == size
        assert files.read(fd, size, 0) == bytes(size)
        files.close(fd)
    assert tried == [0]


def test_a_file_is_read_ahead_once_in_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many readers come to the same containers; whoever asks after a second has them read again, as they may have left the cache."""
    started: list[str] = []
    now = [100.0]

    class Reader:
        def __init__(self, args: Any, **rest: Any) -> None:
            self.paths = args[0]

        def start(self) -> None:
            started.extend(self.paths)

    monkeypatch.setattr(file_port, "threading", SimpleNamespace(Thread=Reader))
    monkeypatch.setattr(file_port, "time", SimpleNamespace(monotonic=lambda: now[0]))
    files = OsFiles()
    for path in ("a", "a", "b", "a"):
        files.read_ahead(path)
    assert started == ["a", "b"]
    now[0] += 1.0
    files.read_ahead("a")
    assert started == ["a", "b", "a"]
    for number in range(1000):
        files.read_ahead(f"c{number}")
    files.read_ahead("a")
    assert started[-1] == "a", "it is the longest ago of many"
