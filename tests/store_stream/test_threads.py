"""A stream with everything running at once: appenders, the writer, the maintenance, hot and cold readers, retention."""

from __future__ import annotations

import struct
import threading
from pathlib import Path
from typing import Any

from flintmq.clock import SystemClock
from flintmq.store.log_store import LogStore
from tests.drivers.stream_reader import StreamReader, append_many
from tests.store_stream.rig import COLD, EMPTY, MESSAGES, TRUNCATED, UUID, header
from tests.support.broker import wait_until

EACH = 6_000
APPENDERS = 3


def open_store(path: Path) -> Any:
    return LogStore.open(
        None, str(path), container_size=524288, store_uuid=UUID, known_queues={4}, threads=True, clock=SystemClock(), spill=False
    )


class Reader(threading.Thread):
    """Reads from offset 0 to the end and checks that offsets are dense and each appender's messages in their order."""

    def __init__(self, stream: Any, total: int, hot: bool) -> None:
        super().__init__()
        self.stream, self.total, self.hot = stream, total, hot
        self.wrong: list[str] = []
        self.bodies: list[bytes] = []
        self.truncated = 0

    def run(self) -> None:
        reader = StreamReader(self.stream)
        at, last = 0, {}
        while at < self.total:
            outcome, following, items = self.stream.hot(at, 64) if self.hot else reader.read(at, 64)
            if outcome == COLD:
                outcome, following, items = reader.read(at, 64)
            if outcome == TRUNCATED:
                self.truncated += following - at
            elif outcome not in (EMPTY, MESSAGES):
                self.wrong.append(f"outcome {outcome} at {at}")
                return
            for offset, _, _, _, body in items:
                who, number = struct.unpack_from("<II", body)
                if offset != at or last.get(who, -1) >= number:
                    self.wrong.append(f"offset {offset} at {at}: appender {who}, number {number} after {last.get(who)}")
                    return
                last[who] = number
                self.bodies.append(body[:8])
                at += 1
            at = following


def run(path: Path, max_bytes: int) -> list[Reader]:
    store = open_store(path)
    stream = store.streams.open(4, max_bytes=max_bytes)
    failed: list[str] = []

    def append(who: int) -> None:
        for number in range(EACH):
            body = struct.pack("<II", who, number) + b"x" * (number % 97 * 10)
            stream.append(b"ex", b"key", header(body), body)
            if number % 50 == 0:
                store.writer.kick()
        store.writer.kick()

    readers = [Reader(stream, EACH * APPENDERS, hot) for hot in (True, True, False)]
    appenders = [threading.Thread(target=append, args=(who,)) for who in range(APPENDERS)]
    for thread in (*readers, *appenders):
        thread.start()
    for thread in (*appenders, *readers):
        thread.join(150)
        if thread.is_alive():
            failed.append(f"{thread.name} hangs: visible {stream.visible} of {stream.next}")
    assert failed == []
    assert [reader.wrong for reader in readers] == [[], [], []]
    assert stream.visible == EACH * APPENDERS
    # The writer shows the last messages first and counts them as written then: the readers may have been faster.
    wait_until(lambda: store.streams.space.unwritten == 0, what="nothing is unwritten")
    store.close()
    return readers


def test_all_at_once(tmp_path: Path) -> None:
    """Every reader sees every message once, in one and the same order; a restart shows the same."""
    readers = run(tmp_path, 0)
    assert readers[0].bodies == readers[1].bodies == readers[2].bodies
    assert len(readers[0].bodies) == EACH * APPENDERS
    store = open_store(tmp_path)
    again = Reader(store.streams.open(4), EACH * APPENDERS, False)
    again.run()
    assert again.bodies == readers[0].bodies
    store.close()


def test_all_at_once_with_retention(tmp_path: Path) -> None:
    """Under retention a reader sees a message or is told that it is gone: nothing is missing without a word."""
    for reader in run(tmp_path, 1_500_000):
        assert len(reader.bodies) + reader.truncated == EACH * APPENDERS


def test_delete_under_load(tmp_path: Path) -> None:
    """A stream is deleted while it is appended to and read: nobody hangs, and its files go."""
    store = open_store(tmp_path)
    stream = store.streams.open(4)
    stop = threading.Event()

    def append() -> None:
        while not stop.is_set():
            if not append_many(stream, b"ex", b"key", header(b"body" * 50), b"body" * 50, 100):
                return
            store.writer.kick()

    def read() -> None:
        reader, at = StreamReader(stream), 0
        while not stop.is_set():
            outcome, at, _ = reader.read(at, 100)
            if outcome not in (EMPTY, MESSAGES):
                return

    threads = [threading.Thread(target=one) for one in (append, append, read)]
    for thread in threads:
        thread.start()
    while stream.visible < 5_000:
        store.writer.kick()
    store.streams.delete(4)
    for thread in threads:
        thread.join(60)
    stop.set()
    assert not any(thread.is_alive() for thread in threads)

    def gone() -> bool:
        store.maintenance.wake()
        store.writer.kick()
        return not list((tmp_path / "streams").iterdir()) and store.streams.space.unwritten == 0

    wait_until(gone, what="no file is left, and nothing unwritten")
    store.close()
