"""A stream on a simulated (or real) disk for the tests of this folder: nothing runs by itself.

in: appends, crashes, restarts of a test. out: what readers then see.
"""

from __future__ import annotations

import struct
import time
from typing import Any

from flintmq.clock import ManualClock
from flintmq.store.log.containers import STREAMS, LogSettings
from flintmq.store.log.writer import LogWriter
from flintmq.store.stream.stream_files import Stream
from flintmq.store.stream.stream_log import StreamSpace
from tests.drivers.stream_reader import StreamReader
from tests.twins.sim_disk import SimDisk

STORE = "/store"
UUID = bytes(range(16))
QUEUE = 7
MESSAGES, EMPTY, FILTERED, TRUNCATED, DAMAGED, COLD, IO, GONE = range(8)
PROGRESS, STARVED = 1, 2


def header(body: bytes, headers: bytes | None = None, content_type: bytes = b"") -> bytes:
    """A content header payload of the class basic. headers: the table's bytes without its length."""
    flags = (0x8000 if content_type else 0) | (0x2000 if headers is not None else 0) | 0x1000
    props = (bytes([len(content_type)]) + content_type) if content_type else b""
    if headers is not None:
        props += struct.pack(">I", len(headers)) + headers
    return struct.pack(">HHQH", 60, 0, len(body), flags) + props + b"\x02"


def field(name: bytes, kind: bytes, value: bytes) -> bytes:
    """One field of a headers table."""
    return bytes([len(name)]) + name + kind + value


def text(value: bytes) -> bytes:
    """A long string."""
    return struct.pack(">I", len(value)) + value


def filtered(body: bytes, value: bytes) -> bytes:
    """A content header whose headers hold that x-stream-filter-value."""
    return header(body, field(b"x-stream-filter-value", b"S", text(value)))


def offset_field(offset: int) -> bytes:
    """What consumers find in the headers."""
    return field(b"x-stream-offset", b"l", struct.pack(">q", offset))


class Rig:
    """One stream, opened. `sent`: offset -> body of everything that was taken."""

    def __init__(self, size: int = 8192, disk: Any = None, hot: int = 1 << 20, root: str = STORE) -> None:
        self.size = size
        self.disk = disk or SimDisk()
        self.hot = hot
        self.root = root
        self.clock = ManualClock(wall_ms=time.time_ns() // 1_000_000)
        self.sent: dict[int, bytes] = {}
        if disk is None:
            self.disk.make_dir(root)
        self.open()

    def open(self) -> None:
        self.writer: Any = LogWriter(self.disk)
        self.space: Any = StreamSpace(self.hot, 4 * self.hot, 1024)
        stream: Any = Stream
        settings = LogSettings(f"streams/{QUEUE}", STREAMS, UUID, self.size, self.clock)
        self.stream: Any = stream.open(self.disk, self.root, QUEUE, settings, self.writer, self.space)

    def append(self, body: bytes, head: bytes | None = None) -> int:
        offset, _ = self.stream.append(b"ex", b"key", header(body) if head is None else head, body)
        self.sent[offset] = body
        return int(offset)

    def pump(self, passes: int = 200) -> int:
        """Writes and maintains until nothing waits, or the writer can't go on. Returns what is visible then."""
        for _ in range(passes):
            what = self.writer.flush()
            if what != PROGRESS and not self.stream.prepare():
                break
        return int(self.stream.visible)

    def settle(self) -> None:
        """As time does to an idle stream: the base moves, the end is proven."""
        for _ in range(4):
            self.pump()
            self.clock.advance(ms=1_100)
            self.stream.maintain()
        self.pump()

    def close(self, clean: bool = True) -> None:
        if clean:
            self.pump()
            while self.stream.mark():
                self.pump()
        self.stream.close()

    def reopen(self, clean: bool = True, disk: Any = None) -> None:
        if self.stream is not None:
            self.close(clean)
        if disk is not None:
            self.disk = disk
        self.open()

    def read_all(self, start: int | None = None, count: int = 1000, max_bytes: int = 1 << 30) -> dict[int, bytes]:
        """Offset -> body of everything that can be read; what is damaged is left out."""
        found: dict[int, bytes] = {}
        reader = StreamReader(self.stream)
        at = self.stream.first if start is None else start
        while True:
            outcome, following, items = reader.read(at, count, max_bytes)
            for offset, exchange, key, head, body in items:
                assert offset not in found and offset >= at
                assert (exchange, key) == (b"ex", b"key")
                assert offset_field(offset) in head
                found[offset] = body
            if outcome == EMPTY:
                return found
            assert outcome in (MESSAGES, DAMAGED, FILTERED, TRUNCATED), outcome
            assert following > at
            at = following
