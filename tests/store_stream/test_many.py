"""Many streams: little is read and written to open one that holds little, files and syncs of several overlap, and nothing is lost by it."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.clock import SystemClock
from flintmq.store.log.file_port import OsFiles
from flintmq.store.log_store import LogStore
from flintmq.store.stream import stream_store
from tests.store_stream.rig import UUID, Rig, header
from tests.store_stream.test_stream_store import Node, read_all
from tests.support.effort import tries
from tests.twins.sim_disk import SimDisk

MIB = 1 << 20
WRITES = st.lists(st.tuples(st.integers(0, 60), st.binary(min_size=1, max_size=700)), max_size=6)


def play(files: Any, path: str, writes: list[tuple[int, bytes]]) -> tuple[bytes, int]:
    """A reserved file with these sectors written. Returns its bytes and where its data ends."""
    fd = files.open(path, create=True)
    files.allocate(fd, 32 * 1024, False)
    for sector, data in writes:
        files.write(fd, data, 512 * sector % (31 * 1024))
    found = files.read(fd, 32 * 1024, 0), files.data_end(fd, 32 * 1024)
    files.close(fd)
    return found


@settings(max_examples=60, deadline=None)
@given(WRITES, st.booleans())
def test_nothing_stands_behind_the_end_of_the_data(writes: list[tuple[int, bytes]], real: bool) -> None:
    """Both ports: what is behind data_end reads as zeros, whatever was written; and an untouched file has no data."""
    import tempfile

    with tempfile.TemporaryDirectory() as root:
        disk = SimDisk()
        disk.make_dir("/d")
        data, end = play(OsFiles(), f"{root}/f", writes) if real else play(disk, "/d/f", writes)
        assert data[end:] == bytes(len(data) - end)
        assert end <= len(data)
        if not real and not writes:
            assert end == 0


def test_data_end_never_fails(tmp_path: Path) -> None:
    """A descriptor that can't be asked has data everywhere."""
    read, write = os.pipe()
    assert OsFiles().data_end(read, 5000) == 5000
    assert OsFiles().data_end(987_654, 5000) == 5000
    os.close(read)
    os.close(write)


def sparse(root: str) -> bool:
    """Whether the file system tells what was never written."""
    fd = os.open(f"{root}/probe", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, MIB)
    end = OsFiles().data_end(fd, MIB)
    os.close(fd)
    return end == 0


@pytest.mark.parametrize("clean", [True, False])
def test_a_stream_with_little_is_opened_with_little(tmp_path: Path, clean: bool) -> None:
    """Of a container of 4 MiB with a few messages in it some KiB are read and written, after a crash, too; again and again."""
    if not sparse(str(tmp_path)):
        pytest.skip("the file system does not tell what was never written")
    rig = Rig(4 * MIB, OsFiles(), root=str(tmp_path))
    for run in range(3):
        rig.append(b"x" * 100)
        rig.pump()
        rig.reopen(clean=clean)
        assert rig.stream.opened_bytes <= 64 * 1024
        assert rig.stream.visible == run + 1
        fd = os.open(rig.stream.managed.path_of(1), os.O_RDONLY)
        assert os.fstat(fd).st_size == 4 * MIB and os.fstat(fd).st_blocks * 512 >= 4 * MIB  # its room is reserved
        assert OsFiles().data_end(fd, 4 * MIB) <= 64 * 1024
        os.close(fd)
    assert rig.read_all() == rig.sent
    rig.close()


def test_all_of_a_wave_is_written_before_the_first_sync() -> None:
    """One pass over several streams writes them all, then syncs each."""
    node = Node(set(range(1, 9)))
    streams = [node.streams.open(queue_id) for queue_id in range(1, 9)]
    for stream in streams:
        node.append(stream)
    node.pump()
    for stream in streams:
        node.append(stream)
    start = node.disk.position
    assert node.store.flush() == 1
    kinds = [operation[0] for operation in node.disk.journal[start:]]
    assert kinds == ["write"] * 8 + ["sync"] * 8
    assert all(stream.visible == 2 for stream in streams)
    node.store.close()


def test_more_streams_than_a_wave_has() -> None:
    """150 streams, some with more than a container of messages: all of it becomes durable, each ticket with its message."""
    node = Node(set(range(1, 151)))
    streams = [node.streams.open(queue_id) for queue_id in range(1, 151)]
    tickets = []
    for number, stream in enumerate(streams):
        for _ in range(200 if number % 50 == 0 else 1):
            tickets.append((stream, *stream.append(b"ex", b"key", header(b"y" * 200), b"y" * 200)))
    for _ in range(100):
        node.store.flush()
        durable = node.streams.durable_ticket
        assert all(stream.visible > offset for stream, offset, ticket in tickets if ticket <= durable)
        node.streams.prepare()
    assert node.streams.durable_ticket == tickets[-1][2]
    node.restart(clean=False)
    assert [node.streams.open(queue_id).visible for queue_id in range(1, 151)] == [200 if n % 50 == 0 else 1 for n in range(150)]
    node.store.close()


@pytest.mark.parametrize("seed", range(4))
def test_power_loss_among_many_streams(seed: int) -> None:
    """At every point of a history of several streams, kills and stops among it: what a durable ticket stands for is there."""
    rng = random.Random(seed)
    node = Node(set(range(1, 6)), size=8192)
    history: list[tuple[int, dict[int, int]]] = []
    bodies: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(1, 6)}
    kept: list[tuple[int, dict[int, list[bytes]]]] = []

    def note() -> None:
        history.append((node.disk.position, {queue_id: node.streams.open(queue_id).visible for queue_id in bodies}))
        kept.append((node.disk.position, {queue_id: list(sent) for queue_id, sent in bodies.items()}))

    for _ in range(30):
        kind = rng.choice(("append", "append", "flush", "flush", "prepare", "maintain", "kill", "stop"))
        if kind == "append":
            for _ in range(rng.randint(1, 4)):
                queue_id = rng.randint(1, 5)
                body = rng.randbytes(rng.choice((30, 900, 4000)))
                assert node.append(node.streams.open(queue_id), body) == len(bodies[queue_id])
                bodies[queue_id].append(body)
        elif kind == "flush":
            node.store.flush()
        elif kind == "prepare":
            node.streams.prepare()
        elif kind == "maintain":
            node.clock.advance(ms=rng.choice((10, 1_100)))
            node.store.maintain()
        else:
            node.restart(clean=kind == "stop")
            for queue_id, sent in bodies.items():
                del sent[node.streams.open(queue_id).visible :]
        note()
    images = 0
    for position in range(seed, node.disk.position + 1, tries(6, 2)):
        promised = {queue_id: max((seen[queue_id] for at, seen in history if at <= position), default=0) for queue_id in bodies}
        for image in node.disk.images(position, 3, position):
            images += 1
            other = Node(set(bodies), SimDisk.from_image(image), size=8192)
            for queue_id, least in promised.items():
                stream = other.streams.open(queue_id)
                found = read_all(stream)
                assert stream.damage == [] and stream.visible >= least
                assert sorted(found) == list(range(stream.visible))
                for offset in range(least):
                    assert any(offset < len(sent[queue_id]) and sent[queue_id][offset] == found[offset] for _, sent in kept)
            other.store.close(clean=False)
    assert images > 50
    node.store.close()


def open_real(root: str, count: int) -> Any:
    store: Any = LogStore
    opened = store.open(
        OsFiles(),
        root,
        container_size=MIB,
        store_uuid=UUID,
        known_queues=set(range(1, count + 1)),
        queue_high_water=count,
        clock=SystemClock(),
    )
    opened.restored()
    return opened


@pytest.mark.parametrize("room", [True, False])
def test_streams_are_opened_and_made_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool) -> None:
    """Threads open them and make their containers, unless the disk is nearly full; then one does. Each has what is its own, either way."""
    threads: set[str] = set()
    opened = stream_store.StreamStore._open

    def noted(self: Any, queue_id: int, segment_bytes: int) -> Any:
        threads.add(threading.current_thread().name)
        return opened(self, queue_id, segment_bytes)

    monkeypatch.setattr(stream_store.StreamStore, "_open", noted)
    if not room:
        monkeypatch.setattr(stream_store, "OVERLAP", 1 << 40)
    for run in range(3):
        threads.clear()
        store = open_real(str(tmp_path), 40)
        in_pool = {name for name in threads if name.startswith("flintmq-streams-files")}
        assert bool(in_pool) == (room and run > 0) and (run == 0 or threads)
        streams = [store.streams.open(queue_id) for queue_id in range(1, 41)]
        assert [stream.visible for stream in streams] == [run] * 40
        for queue_id, stream in enumerate(streams, 1):
            body = b"%d in run %d" % (queue_id, run)
            _, ticket = stream.append(b"ex", b"key", header(body), body)
        store.writer.kick()
        deadline = threading.Event()
        while store.streams.durable_ticket < ticket and not deadline.wait(0.002):
            pass
        assert [read_all(stream)[run] for stream in streams] == [b"%d in run %d" % (queue_id, run) for queue_id in range(1, 41)]
        store.close(clean=run == 1)
