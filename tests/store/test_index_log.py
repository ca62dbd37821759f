"""Runs in the index log: read back as they were, on disk only behind the message log, gone when nothing names them, never in the way."""

from __future__ import annotations

import random

from tests.drivers.index_driver import append_run, limit_unwritten, read_run, run_at, run_dead, run_most
from tests.store.rig import STORE, Rig

ROOM = 4096


def filled(rig: Rig, count: int, seed: int = 1) -> dict[int, bytes]:
    """Runs of different lengths, written and synced: name -> bytes."""
    rng = random.Random(seed)
    runs = {}
    for _ in range(count):
        data = rng.randbytes(rng.randrange(1, 400))
        name = append_run(rig.store.index, data)
        assert name
        runs[name] = data
        if rng.random() < 0.2:
            rig.flush()
            rig.store.maintain()
    rig.settle()
    return runs


def test_a_run_is_read_as_it_was_written_from_memory_and_from_its_file() -> None:
    """Before it is written, after that, and over several containers; no LSN beside a run's gives one."""
    rig = Rig(size=4096)
    name = append_run(rig.store.index, b"first")
    assert read_run(rig.store.index, name, ROOM) == b"first"
    runs = filled(rig, 200) | {name: b"first"}
    assert len(rig.files("index")) > 5
    assert {one: read_run(rig.store.index, one, ROOM) for one in runs} == runs
    for wrong in (0, 8, name + 8, name + 4, rig.store.index.log.tail, 1 << 40):
        assert read_run(rig.store.index, wrong, ROOM) == b""
    assert read_run(rig.store.index, name, 4) == b"" and read_run(rig.store.index, name, 5) == b"first"


def test_a_damaged_run_is_not_read() -> None:
    """A byte of its record is another one: nothing comes back; the runs beside it do."""
    rig = Rig(size=4096)
    runs = filled(rig, 30)
    name = sorted(runs)[3]
    path = rig.store.index.log.path_of(name // 4096)
    fd = rig.disk.open(path)
    rig.disk.write(fd, bytes([rig.disk.read(fd, 1, name % 4096 + 24)[0] ^ 1]), name % 4096 + 24)
    rig.disk.close(fd)
    assert read_run(rig.store.index, name, ROOM) == b""
    assert all(read_run(rig.store.index, one, ROOM) == data for one, data in runs.items() if one != name)


def test_there_is_no_file_before_the_first_run() -> None:
    """A store without runs has no directory of them. The first run gets its container from the maintenance; nothing else waits for that."""
    rig = Rig(size=4096)
    rig.publish(1)
    rig.settle()
    assert "index" not in rig.disk.list_dir(STORE)
    assert append_run(rig.store.index, b"one")
    rig.publish(1)
    rig.flush()
    assert rig.store.messages.durable_lsn == rig.store.messages.tail
    rig.settle()
    assert rig.files("index") and rig.store.index.log.durable_lsn == rig.store.index.log.tail


def test_dead_runs_give_their_containers_back_and_live_ones_are_written_anew() -> None:
    """One run in ten stays: the log shrinks to about what lives, and each of those is read under its old name, also after moving twice."""
    rig = Rig(size=4096)
    runs = filled(rig, 400)
    kept = {name: runs[name] for name in sorted(runs)[::10]}
    for name in set(runs) - set(kept):
        run_dead(rig.store.index, name)
        run_dead(rig.store.index, name)
    rig.settle()
    index = rig.store.index
    assert index.log.live_count == len(kept)
    assert index.log.used_bytes <= 2 * index.log.live_bytes + 5 * 4096
    for name in filled(rig, 300, seed=2):
        run_dead(index, name)
    rig.settle()
    moved = [name for name in kept if run_at(index, name) != name]
    assert moved and index.figures["moved"] > len(moved)
    assert {name: read_run(index, name, ROOM) for name in kept} == kept
    for name in kept:
        run_dead(index, name)
    rig.settle()
    assert index.log.live_count == 0 and index.log.used_bytes <= 2 * 4096


def test_what_a_checkpoint_may_name_stays() -> None:
    """Runs that died at or behind the LSN from which is kept stay in their containers, also when nothing else lives there."""
    rig = Rig(size=4096)
    index = rig.store.index
    early = filled(rig, 60)
    for name in early:
        run_dead(index, name)
    late = filled(rig, 60, seed=2)
    index.log.set_keep(index.log.tail)
    for name in late:
        run_dead(index, name)
    filled(rig, 100, seed=3)
    assert index.log.base // 4096 > min(early) // 4096
    assert index.log.base <= min(late)
    index.log.set_keep(index.log.tail)
    rig.settle()
    assert index.log.base > max(late) - 4096


def test_a_run_is_on_disk_only_behind_the_messages_before_it() -> None:
    """In every image that a power loss may leave: a run that is there finds the message that was published before it."""
    rig = Rig(size=8192)
    append_run(rig.store.index, b"makes the log")
    rig.settle()
    before = rig.disk.position
    pairs = []
    for number in range(6):
        message = rig.publish(1, body=b"m%d" % number)
        pairs.append((append_run(rig.store.index, b"r%d" % number), message))
        rig.flush()
    seen = 0
    for position in range(before, rig.disk.position + 1):
        for image in rig.disk.images(position, 8):
            found = {name: data for name, data in image.files.items() if name.endswith(".flog")}
            index = b"".join(data for name, data in found.items() if "/index/" in name)
            messages = b"".join(data for name, data in found.items() if "/messages/" in name)
            for number in range(6):
                if b"r%d\0" % number in index:
                    seen += 1
                    assert b"m%d" % number in messages
    assert seen and all(name for name, _ in pairs)


def test_an_append_may_be_refused_and_nothing_waits() -> None:
    """Too long, too much that is not written, no room on the disk, a failed log: no run, no harm to messages."""
    rig = Rig(size=4096)
    index = rig.store.index
    assert append_run(index, bytes(run_most(index) + 1)) == 0
    assert append_run(index, bytes(run_most(index)))
    limit_unwritten(index, 1000)
    assert append_run(index, b"x") == 0
    rig.settle()
    assert append_run(index, b"x")
    rig.store.logs.set_disk_low(True)
    assert append_run(index, b"x") == 0
    rig.store.logs.set_disk_low(False)
    assert append_run(index, b"x")
    assert index.figures["refused"] == 3
    index.log.latch(5)
    assert append_run(index, b"x") == 0


def test_a_start_without_a_checkpoint_throws_the_runs_away() -> None:
    """Whatever the directory has: containers, halves of them, others' files, which stay."""
    rig = Rig(size=4096)
    filled(rig, 60)
    rig.publish(1)
    rig.flush()
    rig.store.close()
    fd = rig.disk.open(f"{STORE}/index/notes", create=True)
    rig.disk.close(fd)
    rig.open()
    assert rig.disk.list_dir(f"{STORE}/index") == ["notes"]
    assert rig.recovered() == rig.model
    runs = filled(rig, 20)
    assert {name: read_run(rig.store.index, name, ROOM) for name in runs} == runs
