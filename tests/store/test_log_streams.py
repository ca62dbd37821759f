"""examples/log_streams.py: streams keep their records, chains, names and bases, dedicated and multiplexed, over restarts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from examples.log_streams import STREAMS_MAX, StreamLog, main
from flintmq.clock import ManualClock
from flintmq.errors import StoreError
from flintmq.store.log.writer import LogWriter
from tests.twins.sim_disk import SimDisk

UUID = bytes(range(16))


class Logs:
    """Some logs of streams and their one writer."""

    def __init__(self, count: int = 1, size: int = 4096, multiplexed: bool = False) -> None:
        self.disk: Any = SimDisk()
        self.disk.make_dir("/s")
        self.count, self.size, self.multiplexed = count, size, multiplexed
        self.open()

    def open(self) -> None:
        self.writer = LogWriter(self.disk)
        self.logs = []
        for number in range(self.count):
            log = StreamLog.open(
                self.disk, f"/s/{number}", container_size=self.size, store_uuid=UUID, clock=ManualClock(), multiplexed=self.multiplexed
            )
            log.managed.written_by(self.writer)
            self.logs.append(log)

    def settle(self) -> None:
        for _ in range(200):
            before = [(log.managed.tail, log.managed.durable_lsn, log.managed.base_durable) for log in self.logs]
            while self.writer.flush() == 1:
                pass
            for log in self.logs:
                log.maintain()
            while self.writer.flush() == 1:
                pass
            if before == [(log.managed.tail, log.managed.durable_lsn, log.managed.base_durable) for log in self.logs]:
                return
        raise AssertionError("the logs never come to rest")

    def restart(self) -> None:
        self.disk = self.disk.restart()
        self.open()


def payloads(stream: Any) -> list[bytes]:
    return [record.payload for record in stream.read()]


def test_a_dedicated_log_has_one_stream() -> None:
    """Records of all sizes read back in order, in buffers, on disk and after a restart; no second stream can be made."""
    logs = Logs()
    stream = logs.logs[0].stream()
    rng = random.Random(1)
    written: list[bytes] = []
    lsns: list[int] = []
    for number in range(300):
        written.append(rng.randbytes(rng.choice((0, 1, 7, 8, 100, 1000, 3000))))
        lsns.append(stream.append(written[-1]))
        if number % 40 == 0:
            assert payloads(stream) == written
            logs.settle()
    assert lsns == sorted(set(lsns))
    assert payloads(stream) == written
    logs.settle()
    assert logs.logs[0].is_durable(lsns[-1])
    with pytest.raises(ValueError):
        logs.logs[0].create("another")
    logs.restart()
    stream = logs.logs[0].stream()
    assert payloads(stream) == written
    assert [record.lsn for record in stream.read(lsns[150])] == lsns[150:]
    assert stream.append(b"more") > lsns[-1]
    assert payloads(stream) == [*written, b"more"]


def test_streams_of_a_multiplexed_log_do_not_mix() -> None:
    """Each stream sees its own records only; names are unique, listed and limited; all of it survives a restart."""
    logs = Logs(multiplexed=True)
    rng = random.Random(2)
    streams = [logs.logs[0].create(f"stream {number}") for number in range(STREAMS_MAX)]
    with pytest.raises(ValueError):
        logs.logs[0].create("one too many")
    written: dict[str, list[bytes]] = {stream.name: [] for stream in streams}
    for number in range(1500):
        stream = rng.choice(streams)
        written[stream.name].append(b"%d" % number)
        stream.append(b"%d" % number)
        if number % 50 == 0:
            logs.settle()
    logs.settle()
    for _ in range(2):
        assert logs.logs[0].names() == list(written)
        assert {name: payloads(logs.logs[0].stream(name)) for name in written} == written
        with pytest.raises(ValueError):
            logs.logs[0].create("stream 7")
        logs.restart()


def test_undo_chains_are_walked() -> None:
    """undo-prev and undo-next lead from record to record of a stream, as far as its base."""
    logs = Logs(multiplexed=True)
    stream, other = logs.logs[0].create("a"), logs.logs[0].create("b")
    lsns: list[int] = []
    for number in range(40):
        other.append(bytes(200))
        prev = lsns[-1] if lsns else 0
        skip = lsns[-2] if len(lsns) > 1 else 0
        lsns.append(stream.append(b"%d" % number, undo_prev=prev, undo_next=skip))
        if number % 10 == 0:
            logs.settle()
    for _ in range(2):
        stream = logs.logs[0].stream("a")
        assert [record.lsn for record in stream.undo_prev_chain(lsns[-1])] == lsns[::-1]
        assert [record.lsn for record in stream.undo_next_chain(lsns[-1])] == lsns[::-1][::2]
        with pytest.raises(KeyError):
            stream.record(lsns[3] + 8)
        logs.settle()
        logs.restart()
    stream = logs.logs[0].stream("a")
    stream.set_base(lsns[20])
    assert [record.lsn for record in stream.undo_prev_chain(lsns[-1])] == lsns[20:][::-1]
    with pytest.raises(KeyError):
        stream.record(lsns[19])


def test_the_lowest_base_pins_the_log_and_is_seen() -> None:
    """A stream that does not move its base keeps the log, figures say so; when it moves, the containers go, and the names stay."""
    logs = Logs(multiplexed=True)
    log = logs.logs[0]
    busy, lazy, empty = log.create("busy"), log.create("lazy"), log.create("empty")
    lazy.append(b"once")
    for _ in range(200):
        busy.set_base(busy.append(bytes(150)))
        logs.settle()
    files = len(logs.disk.list_dir("/s/0"))
    assert files > 10
    figures = log.figures()
    assert figures["lazy"]["pinned_bytes"] > 8 * logs.size > figures["busy"]["pinned_bytes"]
    assert figures["empty"]["pinned_bytes"] == 0
    lazy.set_base(log.managed.tail)
    for _ in range(100):
        busy.set_base(busy.append(bytes(150)))
        logs.settle()
    assert len(logs.disk.list_dir("/s/0")) < files
    assert len(logs.disk.list_dir("/s/0")) <= 8
    last = busy.last
    logs.restart()
    log = logs.logs[0]
    assert log.names() == ["busy", "lazy", "empty"]
    assert payloads(log.stream("lazy")) == []
    assert [record.lsn for record in log.stream("busy").read()] == [last]
    assert log.stream("empty").append(b"first") > last
    assert empty.number == log.stream("empty").number


def test_a_base_only_goes_forward_to_a_record() -> None:
    """set_base refuses what is no record of the stream, and what lies below the base or behind the tail."""
    logs = Logs(multiplexed=True)
    log = logs.logs[0]
    one, two = log.create("one"), log.create("two")
    lsns = [one.append(b"x") for _ in range(5)]
    foreign = two.append(b"y")
    last = one.append(b"x")
    one.set_base(lsns[2])
    for wrong in (lsns[1], lsns[3] + 1, foreign, log.managed.tail + 1):
        with pytest.raises(ValueError):
            one.set_base(wrong)
    assert [record.lsn for record in one.read()] == [*lsns[2:], last]


def test_one_writer_for_twenty_logs() -> None:
    """Twenty dedicated logs share a writer: each record is durable after its passes, one sync per log and pass, none where nothing is."""
    logs = Logs(count=20)
    logs.settle()
    for log in logs.logs:
        log.stream().append(b"warm")
    assert logs.writer.flush() == 1
    before = logs.writer.figures
    lsns = [log.stream().append(b"%d" % number) for number, log in enumerate(logs.logs) if number % 2]
    assert logs.writer.flush() == 1
    after = logs.writer.figures
    assert after["syncs"] - before["syncs"] == 10
    assert after["passes"] - before["passes"] == 1
    touched = [log for number, log in enumerate(logs.logs) if number % 2]
    assert all(log.is_durable(lsn) for log, lsn in zip(touched, lsns, strict=True))
    logs.restart()
    assert [payloads(log.stream())[1:] for log in logs.logs] == [[b"%d" % number] if number % 2 else [] for number in range(20)]


def test_damage_is_not_an_end() -> None:
    """A stream whose middle can't be read says so instead of ending early."""
    logs = Logs()
    stream = logs.logs[0].stream()
    lsns = [stream.append(bytes(300)) for _ in range(30)]
    logs.settle()
    stream.append(b"its block says that all before is durable")
    logs.settle()
    path = f"/s/0/{lsns[15] // logs.size:020d}.flog"
    fd = logs.disk.open(path)
    logs.disk.write(fd, b"\xff" * 64, lsns[15] % logs.size)
    logs.disk.close(fd)
    with pytest.raises(StoreError):
        list(stream.read())
    disk = logs.disk.restart()
    with pytest.raises(StoreError):
        StreamLog.open(disk, "/s/0", container_size=4096, store_uuid=UUID, clock=ManualClock())


def test_the_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second life finds what the first wrote; an order's chain ends at the base."""
    main(str(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].count("of the first life") == 4
    assert lines[3].count("of the first life") == 0 and lines[3].count("of the second life") == 4
    assert lines[4].count("of the first life") == lines[4].count("of the second life") == 4
    assert lines[5].count(",") == 4  # one in the text, three between LSNs
