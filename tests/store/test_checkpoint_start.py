"""A start from a checkpoint finds what a start from the whole log finds, whatever happened before, meanwhile and after; and a checkpoint
that may not be believed is not used."""

from __future__ import annotations

import logging
import random
import struct
import threading
from typing import Any

import pytest

pytest.importorskip("tests.drivers.run_driver")

from flintmq.config import Limits
from flintmq.queue.control import QueueHandle
from flintmq.queue.purge_slices import Sweep
from flintmq.store import checkpoint, log_store
from flintmq.store.checkpoint_proof import prove
from flintmq.store.log import scan
from flintmq.store.log.containers import MESSAGES
from tests.drivers.index_driver import limit_unwritten
from tests.drivers.run_driver import append_divided, before_sweep, decode_segments, divide, encode_segments, is_divided
from tests.drivers.store_driver import DrivenStore
from tests.store.rig import STORE, Rig
from tests.store.test_entry_pager import HEADER, PERSISTENT, fill, page_out, queue_of, rig_of, take_all
from tests.support.checkpoint_rows import SEGMENTS

LEVELS = {1: 1, 2: 3}


class Broker:
    """Two queues, one of them with priorities, and what must be in them: position -> body."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = rig_of()
        self.cores = {number: queue_of(self.rig, number, levels) for number, levels in LEVELS.items()}
        self.model: dict[int, dict[int, bytes]] = {number: {} for number in LEVELS}
        self.count = 0
        self.used = 0  # starts from a checkpoint
        self.rig.store.restored()

    def step(self) -> None:
        rng = self.rng
        number = rng.choice((1, 1, 2))
        core, model = self.cores[number], self.model[number]
        kind = rng.choice(("publish", "publish", "publish", "take", "settle", "page", "flush", "maintain", "purge"))
        if kind == "publish":
            for _ in range(rng.randrange(60)):
                self.publish(number, rng.randrange(LEVELS[number]))
        elif kind == "take":
            for _ in range(rng.randrange(30)):
                if core.take_head(1) is None:
                    break
            self.look(number)
        elif kind == "settle":
            for position in rng.sample(sorted(model), min(len(model), rng.randrange(6))):
                assert core.hold(position)
                core.settle_held(position, 1, False)
                del model[position]
        elif kind == "page":
            page_out(self.rig)
        elif kind == "flush":
            self.rig.flush()
        elif kind == "maintain":
            self.rig.flush()
            self.rig.store.maintain()
        elif rng.random() < 0.15:
            sweep: Any = Sweep(core, False)
            while not sweep.step(10_000):
                pass
            model.clear()

    def publish(self, number: int, priority: int) -> None:
        self.count += 1
        body = b"%d" % self.count
        position = self.cores[number].publish(b"", b"key", HEADER, body, PERSISTENT, priority)
        assert position
        self.model[number][position] = body

    def shown(self, number: int) -> dict[int, bytes]:
        core, found, position = self.cores[number], {}, 1
        while (entry := core.peek(position)) is not None:
            found[entry[0]] = entry[5]
            position = entry[0] + 1
        return found

    def look(self, number: int) -> None:
        """The model is what the queue shows: heads were taken."""
        shown = self.shown(number)
        assert shown.items() <= self.model[number].items()
        self.model[number] = shown

    def checkpoint(self) -> None:
        meanwhile = self.rng.random() < 0.7

        def between() -> None:
            if meanwhile:
                for _ in range(self.rng.randrange(3)):
                    self.step()

        self.rig.store.checkpoints.write(between)

    def restart(self, clean: bool) -> None:
        self.rig.flush()
        self.rig.reopen(clean=clean)
        recovery = self.rig.store.from_checkpoint
        self.used += recovery
        self.cores = {number: queue_of(self.rig, number, levels) for number, levels in LEVELS.items()}
        for core in self.cores.values():
            self.rig.store.restore(core)
        self.rig.store.restored()
        self.check()

    def check(self) -> None:
        while self.rig.store.pager.figures["burials"]:
            self.rig.store.pager.once()
        # Before anything is read, which brings it back.
        assert {number: core.ready_count() for number, core in self.cores.items()} == {
            number: len(model) for number, model in self.model.items()
        }
        assert self.rig.messages.live_count == sum(map(len, self.model.values()))
        for number, model in self.model.items():
            assert self.shown(number) == model


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_lost_and_nothing_comes_back(seed: int) -> None:
    """Random work, checkpoints in the middle of it, and starts, one behind the other."""
    broker = Broker(seed)
    for _ in range(5):
        for _ in range(broker.rng.randrange(1, 12)):
            broker.step()
            if broker.rng.random() < 0.25:
                broker.checkpoint()
        broker.restart(clean=broker.rng.random() < 0.3)


# --- one case each ------------------------------------------------------------------------------------------------------------------------


def backlog(count: int = 400) -> tuple[Rig, Any]:
    """A paged backlog, all of it on disk."""
    rig = rig_of()
    rig.store.restored()
    core = queue_of(rig)
    fill(core, count)
    page_out(rig)
    rig.flush()
    return rig, core


def write(rig: Rig) -> None:
    """A checkpoint, on disk."""
    assert rig.store.checkpoints.write()
    land(rig)


def land(rig: Rig) -> None:
    rig.flush()
    rig.store.maintain()
    rig.flush()
    rig.store.checkpoints.settle()


def again(rig: Rig, clean: bool = False) -> Any:
    """The queue after a restart."""
    rig.reopen(clean=clean)
    core = queue_of(rig)
    rig.store.restore(core)
    return core


def bodies(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, count)]


def test_what_nobody_touched_is_not_read() -> None:
    """A start from a checkpoint hands out the records behind it, and makes shells of the runs that it names."""
    rig, core = backlog()
    write(rig)
    fill(core, 5, 400)
    rig.flush()
    core = again(rig)
    assert rig.store.from_checkpoint and rig.store.report.records <= 12 and rig.store.report.entries == 405
    reads = rig.store.index.figures["reads"]
    assert core.ready_count() == 405 and rig.store.index.figures["reads"] == reads
    assert take_all(core) == bodies(405)


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_reads_each_containers_header_once_and_says_how_many_come_back(clean: bool, monkeypatch: Any) -> None:
    """Whether the entries stand in runs alone, or some of them in the log behind the checkpoint."""
    rig, core = backlog()
    write(rig)
    fill(core, 3, 400)
    rig.flush()
    read = scan.read_header
    headers: list[Any] = []
    monkeypatch.setattr(scan, "read_header", lambda data: headers.append(read(data)) or headers[-1])
    again(rig, clean)
    sequences = [header.sequence for header in headers if header.log_id == MESSAGES]
    assert sequences and sorted(sequences) == sorted(set(sequences))
    report = rig.store.report
    assert rig.store.from_checkpoint and (report.queues, report.entries, report.messages) == (1, 403, 403)


def runs_in_containers(monkeypatch: Any) -> tuple[Rig, Any]:
    """A paged backlog of 1,200 entries, whose runs fill some containers of the index log. Messages of another queue keep the
    base of the message log where it is: they are too large to be copied forward."""
    monkeypatch.setattr(log_store, "INDEX_CONTAINER", 4096)
    rig = rig_of()
    rig.store.restored()
    core, other = queue_of(rig), queue_of(rig, 2)
    for _ in range(12):
        assert other.publish(b"", b"key", HEADER, bytes(15_000), PERSISTENT, 0)
    fill(core, 1200)
    page_out(rig)
    rig.settle()
    assert len(rig.files("index")) > 3
    return rig, core


def test_a_second_crash_before_the_next_checkpoint_finds_the_same(monkeypatch: Any) -> None:
    """The runs of the checkpoint stay, also those whose entries came back into memory and ended."""
    rig, core = runs_in_containers(monkeypatch)
    write(rig)
    core = again(rig)
    assert rig.store.from_checkpoint
    rig.store.restore(queue_of(rig, 2))
    rig.store.restored()
    assert len(take_all(core)) == 1200
    fill(core, 5)
    rig.settle()
    core = again(rig)
    assert rig.store.from_checkpoint
    assert take_all(core) == bodies(5)


@pytest.mark.parametrize("first", [True, False])
def test_runs_that_end_while_the_checkpoint_that_names_them_is_written_stay(first: bool, monkeypatch: Any) -> None:
    """C3: before it is on disk and after that, although nothing in memory names them any more."""
    rig, core = runs_in_containers(monkeypatch)
    if not first:
        write(rig)
    steps = []

    def between() -> None:
        steps.append(len(steps))
        if len(steps) == 2:  # the queue is written down
            assert len(take_all(core)) == 1200
            fill(core, 5)

    assert rig.store.checkpoints.write(between)
    for _ in range(2):
        rig.settle()
        rig.store.checkpoints.settle()
    assert rig.store.checkpoints.in_force
    core = again(rig)
    assert rig.store.from_checkpoint and rig.store.report.records > 1000, "their ends are read behind its begin"
    assert take_all(core) == bodies(5)


def index_files(rig: Rig) -> list[str]:
    return [f"{STORE}/index/{name}" for name in rig.files("index")]


@pytest.mark.parametrize("part", range(12))
def test_damage_in_the_index_log_costs_the_checkpoint_and_nothing_else(part: int) -> None:
    """Wherever a byte of it is wrong: the older checkpoint is used, or the whole log; all messages are there."""
    rig, core = backlog()
    write(rig)
    fill(core, 40, 400)
    page_out(rig)
    write(rig)
    end = rig.store.index.log.tail
    rig.disk = rig.disk.restart()
    path = index_files(rig)[0]
    fd = rig.disk.open(path)
    place = 4096 + 512 + (end % 65536 - 4608) * part // 12
    rig.disk.write(fd, bytes([rig.disk.read(fd, 1, place)[0] ^ 0x55]), place)
    rig.disk.sync(fd)
    rig.disk.close(fd)
    rig.open()
    core = queue_of(rig)
    rig.store.restore(core)
    assert take_all(core) == bodies(440)


def test_a_checkpoint_of_another_log_is_not_used() -> None:
    """The message log was put back from a copy of before: it has another history."""
    rig, core = backlog()
    before = {name: bytes(data) for name, data in ((name, read_all(rig, name)) for name in rig.files())}
    fill(core, 40, 400)
    rig.flush()
    write(rig)
    fill(core, 3, 440)
    rig.flush()
    rig.disk = rig.disk.restart()
    for name in rig.files():
        rig.disk.unlink(f"{STORE}/messages/{name}")
    for name, data in before.items():
        put_back(rig, name, data, "messages")
    rig.open()
    core = queue_of(rig)
    rig.store.restore(core)
    assert not rig.store.from_checkpoint and take_all(core) == bodies(400)


def read_all(rig: Rig, name: str, log: str = "messages") -> bytes:
    fd = rig.disk.open(f"{STORE}/{log}/{name}")
    data: bytes = rig.disk.read(fd, rig.size, 0)
    rig.disk.close(fd)
    return data


def put_back(rig: Rig, name: str, data: bytes, log: str) -> None:
    fd = rig.disk.open(f"{STORE}/{log}/{name}", create=True)
    rig.disk.write(fd, data, 0)
    rig.disk.sync(fd)
    rig.disk.close(fd)
    rig.disk.sync_dir(f"{STORE}/{log}")


def test_a_checkpoint_whose_format_is_another_one_is_not_used(monkeypatch: Any, caplog: Any) -> None:
    """That of a program before or behind this one: the whole log is read, and the reason is told."""
    rig, _ = backlog()
    monkeypatch.setattr(checkpoint, "VERSION", 1)
    write(rig)
    monkeypatch.undo()
    with caplog.at_level(logging.INFO):
        core = again(rig)
    assert not rig.store.from_checkpoint and take_all(core) == bodies(400)
    assert "version 1 of its format, not 2" in caplog.text


FACTS = (1, 8, 8, 10, 0, 0, 0, 0, 1 << 20)
ROWS = {
    "cut off": encode_segments(1, 0, [FACTS])[:-1],
    "bytes behind": encode_segments(1, 0, [FACTS]) + b"\0",
    "no first index": encode_segments(1, 0, [(0, *FACTS[1:])]),
    "behind the last index": encode_segments(1, 0, [((1 << 56) - 7, *FACTS[1:])]),
    "around the last number": encode_segments(1, 0, [((1 << 64) - 2, *FACTS[1:])]),
    "too many slots": encode_segments(1, 0, [(1, 1366, *FACTS[2:])]),
    "no slots": encode_segments(1, 0, [(1, 0, 0, *FACTS[3:])]),
    "no entries": encode_segments(1, 0, [(1, 8, 0, *FACTS[3:])]),
    "more entries than slots": encode_segments(1, 0, [(1, 8, 9, *FACTS[3:])]),
    "more delivered ones than entries": encode_segments(1, 0, [(1, 8, 3, 10, 4, 0, 0, 0, 1 << 20)]),
    "more spilled ones than entries": encode_segments(1, 0, [(1, 8, 3, 10, 0, 4, 0, 0, 1 << 20)]),
    "one over the other": encode_segments(1, 0, [FACTS, (8, *FACTS[1:])]),
    "a run that is not there": encode_segments(1, 0, [FACTS]),
}


@pytest.mark.parametrize("case", sorted(ROWS))
def test_rows_that_contradict_themselves_cost_the_checkpoint(case: str, monkeypatch: Any, caplog: Any) -> None:
    """Under a good CRC, as another program may write them: the older checkpoint is used, and all messages are there."""
    rig, core = backlog()
    write(rig)
    fill(core, 40, 400)
    write(rig)
    take, last = checkpoint.Finder.take, rig.store.checkpoints.begin
    held: list[bool] = []

    def other(finder: Any, lsn: int, kind: int, undo_prev: int, data: bytes) -> None:
        if kind == checkpoint.CHECKPOINT_PART and finder.whole and struct.unpack_from("<I", data)[0] == SEGMENTS:
            held.append(True)
            data = data[:8] + struct.pack("<II", 1, 0) + ROWS[case]
        take(finder, lsn, kind, undo_prev, data)

    monkeypatch.setattr(checkpoint.Finder, "take", other)
    with caplog.at_level(logging.INFO):
        core = again(rig)
    assert held and rig.store.from_checkpoint and rig.store.checkpoints.begin < last
    assert take_all(core) == bodies(440)
    assert (
        "a run that is not there" if case == "a run that is not there" else "contradict" if case != "one over the other" else "overlap"
    ) in caplog.text


def test_a_run_that_cant_be_read_is_a_difference(monkeypatch: Any) -> None:
    """`flintmq log verify` says so, and does not take it for a run without entries."""
    rig, core = backlog()
    fill(queue_of(rig, 2), 1)
    take_all(core)
    write(rig)
    take = checkpoint.Finder.take

    def other(finder: Any, lsn: int, kind: int, undo_prev: int, data: bytes) -> None:
        if kind == checkpoint.CHECKPOINT_PART and struct.unpack_from("<I", data)[0] == SEGMENTS:
            queue_id, level, rows = decode_segments(data[16:])
            assert queue_id == 2
            data = data[:8] + struct.pack("<II", 2, 0) + data[16:] + encode_segments(1, level, rows)  # the run of another queue
        take(finder, lsn, kind, undo_prev, data)

    rig.store.close()
    assert prove(rig.disk, STORE)[1] == []
    monkeypatch.setattr(checkpoint.Finder, "take", other)
    begin, differences = prove(rig.disk, STORE)
    assert begin is not None and differences == ["queue id 1: a run of the checkpoint can't be read"]


def test_a_transaction_log_that_ends_too_early() -> None:
    """It was put back from a copy of before: records below the begin may name what begins next, so the whole log is read."""
    rig, core = backlog(40)
    before = {name: read_all(rig, name, "transactions") for name in rig.files("transactions")}
    rig.driver.tx_begin()
    rig.flush()
    write(rig)
    rig.disk = rig.disk.restart()
    for name, data in before.items():
        rig.disk.unlink(f"{STORE}/transactions/{name}")
        put_back(rig, name, data, "transactions")
    core = again(rig)
    assert not rig.store.from_checkpoint and take_all(core) == bodies(40)


def test_the_one_before_goes_when_the_next_one_is_on_disk() -> None:
    """C3: what lives in the index log for a checkpoint alone."""
    rig, core = backlog(40)
    checkpoints = rig.store.checkpoints
    base = rig.store.index.log.live_count
    assert checkpoints.write()
    first = rig.store.index.log.live_count
    assert first > base and not checkpoints.in_force
    land(rig)
    assert checkpoints.in_force
    fill(core, 1, 40)
    assert checkpoints.write()
    assert rig.store.index.log.live_count > first, "both, until the second is on disk"
    checkpoints.settle()
    assert rig.store.index.log.live_count > first
    land(rig)
    assert rig.store.index.log.live_count <= first + 2


def test_a_checkpoint_that_is_given_up_leaves_nothing() -> None:
    """The index log takes no more: nothing of it lives, and a start reads the whole log."""
    rig, core = backlog(40)
    before = rig.store.index.log.live_count

    def fail() -> None:
        rig.store.logs.set_disk_low(True)

    assert not rig.store.checkpoints.write(fail)
    rig.store.logs.set_disk_low(False)
    assert rig.store.index.log.live_count == before and rig.store.checkpoints.figures["given_up"] == 1
    rig.flush()
    core = again(rig)
    assert not rig.store.from_checkpoint and take_all(core) == bodies(40)


def test_a_purge_that_is_not_counted_out_delays_the_next_one() -> None:
    rig, core = backlog()
    sweep: Any = Sweep(core, False)
    while not sweep.step(10_000):
        pass
    assert rig.store.pager.figures["burials"] and not rig.store.checkpoints.write()
    while rig.store.pager.figures["burials"]:
        rig.store.pager.once()
    assert rig.store.checkpoints.write()


@pytest.mark.parametrize("paged", [False, True])
def test_a_queue_that_was_deleted_is_counted_out_first(paged: bool) -> None:
    """Its Queue-End is before the checkpoint, and names no message: no start would know which ones it ended."""
    rig, core = backlog(100)
    other = queue_of(rig, 2)
    fill(other, 20)
    if paged:
        page_out(rig)
    core.mark_deleted()
    rig.store.drop_queue(1)
    assert not rig.store.checkpoints.write(), "its entries are not swept"
    sweep: Any = Sweep(core, True)
    assert not sweep.step(1) and not rig.store.checkpoints.write(), "nor all of them"
    while not sweep.step(10_000):
        pass
    del sweep
    while rig.store.pager.figures["burials"]:
        rig.store.pager.once()
    write(rig)
    rig.reopen(clean=False)
    other = queue_of(rig, 2)
    rig.store.restore(other)
    rig.store.restored()
    assert rig.store.from_checkpoint and rig.messages.live_count == 20
    assert take_all(other) == bodies(20)


def test_a_purge_that_the_log_is_about_to_be_told_of() -> None:
    """It names positions: a checkpoint in between must have the messages that stand there."""
    rig, core = backlog(10)
    written: list[bool] = []
    before_sweep(rig.store, lambda: written.append(rig.store.checkpoints.write()))
    sweep: Any = Sweep(core, False)
    while not sweep.step(10_000):
        pass
    assert written[0]
    land(rig)
    core = again(rig)
    rig.store.restored()
    while rig.store.pager.figures["burials"]:
        rig.store.pager.once()
    assert rig.store.from_checkpoint and core.ready_count() == 0 and rig.messages.live_count == 0


def test_a_long_message_that_is_being_written() -> None:
    """No checkpoint begins between its chunks: the list does not have it yet, and what follows would name a message that nobody knows."""
    rig, core = backlog(10)
    for _ in range(50):
        end = rig.messages.tail + (16 << 20)
        writer = threading.Thread(target=append_divided, args=(rig.store, 16 << 20))
        writer.start()
        divided = is_divided(rig.store, end)
        writer.join()
        if divided:
            break
    assert divided and not is_divided(rig.store, 0), "the log tells of it, and of its end"
    divide(rig.store, True)
    assert not rig.store.checkpoints.write()
    divide(rig.store, False)
    write(rig)
    core = again(rig)
    rig.store.restored()
    assert rig.store.from_checkpoint and rig.messages.live_count == 10 and take_all(core) == bodies(10), "nobody has the long ones"


def test_entries_that_come_and_go_make_one_due() -> None:
    """The index log keeps what ended since the last checkpoint began: without one it would grow with each reading of a backlog."""
    rig = Rig(size=65536, hot_bytes=0, limits=Limits(entry_segment=8, checkpoint_bytes=100_000))
    core = queue_of(rig)
    fill(core, 400)
    page_out(rig)
    rig.flush()
    rig.settle()
    rig.store.restored()
    write(rig)
    tail = rig.messages.tail
    for _ in range(300):
        position = 1
        while (entry := core.peek(position)) is not None:
            position = entry[0] + 1
        page_out(rig)
        rig.flush()
        rig.store.maintain()
    assert rig.messages.tail - tail < 50_000 and rig.store.checkpoints.figures["written"] > 1
    limit = max(100_000, 100 * rig.store.checkpoints.size)
    assert rig.store.index.log.used_bytes < limit + 10 * 65536 < rig.store.index.log.tail


def test_a_clean_stop_has_room_for_its_checkpoint(tmp_path: Any) -> None:
    """It takes more containers of the index log than are ready."""
    limits = Limits(entry_segment=8, checkpoint_bytes=2_000_000)
    options: dict[str, Any] = {"container_size": 65536, "store_uuid": bytes(16), "known_queues": {1}, "hot_bytes": 1 << 30}
    store = DrivenStore.open(None, str(tmp_path), limits=limits, **options)
    store.restored()
    limit_unwritten(store.index, 32768)
    core: Any = QueueHandle(1)
    core.set_durable(True)
    core.attach_log(store)
    store.attach(core)
    fill(core, 20_000)
    store.close()
    store = DrivenStore.open(None, str(tmp_path), limits=limits, **options)
    used = store.from_checkpoint
    store.close()
    assert used


def test_one_is_due_when_the_log_has_grown() -> None:
    """By the interval, and by a hundred times what the last one took; a log that is short is read without."""
    rig = Rig(size=65536, hot_bytes=0, limits=Limits(entry_segment=8, checkpoint_bytes=100_000))
    rig.store.restored()
    core = queue_of(rig)
    fill(core, 200)
    rig.store.pager.once()
    assert rig.store.checkpoints.figures["written"] == 0
    number = 200
    while rig.messages.tail < 65536 + 110_000:
        fill(core, 50, number)
        number += 50
    rig.flush()
    rig.store.pager.once()
    assert rig.store.checkpoints.figures["written"] == 1
    size, tail = rig.store.checkpoints.size, rig.messages.tail
    rig.flush()
    while rig.messages.tail - tail < min(100 * size - 10_000, 400_000):
        fill(core, 50, number)
        number += 50
        rig.flush()
        rig.store.maintain()
        rig.store.pager.once()
    assert rig.store.checkpoints.figures["written"] == 1


def test_one_is_due_earlier_on_a_log_that_stands_still() -> None:
    """A broker that rests comes back in a blink, whatever its last burst left behind the checkpoint."""
    rig = Rig(size=65536, hot_bytes=0, limits=Limits(entry_segment=8, checkpoint_bytes=100_000))
    rig.store.restored()
    core = queue_of(rig)
    for first in range(0, 800, 50):
        fill(core, 50, first)
    rig.flush()
    assert 25_000 < rig.messages.tail - 65536 < 100_000
    for _ in range(3):  # what leaves memory moves the index log
        rig.store.pager.once()
        rig.settle()
    rig.clock.advance(ms=1_999)
    rig.store.pager.once()
    assert rig.store.checkpoints.figures["written"] == 0
    rig.clock.advance(ms=1)
    rig.store.pager.once()
    assert rig.store.checkpoints.figures["written"] == 1
    for _ in range(5):
        rig.settle()
        rig.clock.advance(ms=10_000)
        rig.store.pager.once()
    assert rig.store.checkpoints.figures["written"] == 1


@pytest.mark.parametrize("step_ms", [7, 60_000])
def test_checkpoints_take_a_tenth_of_the_time_at_most(step_ms: int) -> None:
    """One that took long since millions of entries are in memory is not followed at once, however fast the log grows; but after five
    seconds at the latest, or a start would read all that came meanwhile."""
    rig = Rig(size=65536, hot_bytes=0, limits=Limits(entry_segment=8, checkpoint_bytes=10_000))
    rig.store.restored()
    core = queue_of(rig)
    fill(core, 200)
    rig.flush()
    took = -rig.clock.monotonic_ns()
    assert rig.store.checkpoints.write(lambda: rig.clock.advance(ms=step_ms))
    took += rig.clock.monotonic_ns()
    assert took
    land(rig)
    number = 200
    while rig.messages.tail - rig.store.checkpoints.begin < 110 * rig.store.checkpoints.size + 20_000:
        fill(core, 50, number)
        number += 50
        rig.flush()
        rig.store.maintain()
    rig.clock.advance(ms=min(10 * took // 1_000_000, 5_000) - 1)
    rig.store.pager.once()
    assert rig.store.checkpoints.figures["written"] == 1
    rig.clock.advance(ms=1)
    rig.store.pager.once()
    assert rig.store.checkpoints.figures["written"] == 2


def test_the_rest_of_the_log_is_read_while_the_broker_serves() -> None:
    """A byte that went bad below the checkpoint is named, and its container set aside."""
    rig, core = backlog()
    write(rig)
    fill(core, 700, 400)
    rig.flush()
    rig.disk = rig.disk.restart()
    fd = rig.disk.open(f"{STORE}/messages/{rig.files()[0]}")
    rig.disk.write(fd, b"damage", 8192)
    rig.disk.sync(fd)
    rig.disk.close(fd)
    rig.open()
    core = queue_of(rig)
    rig.store.restore(core)
    if not rig.store.from_checkpoint:
        pytest.fail("damage below the begin is not looked for at the start")
    rig.store.restored()
    rig.store.verifier.begin = rig.messages.base + rig.size - 4096
    rig.store.verifier.run()
    assert rig.store.verifier.damage and any("quarantine" in path for path in map(str, rig.disk.list_dir(STORE)))
