"""A log with streams for a program's own records, on the store's containers and writer: CLFS's dedicated and multiplexed logs (seed 003).

The broker itself needs no streams (docs/FORMAT.md, "Logs of streams"), so this stands here and not in the package.
Run it to see two streams of one log over a restart: `python examples/log_streams.py [directory]`.

in: payloads of callers, any thread. out: records of type Stream-Record, read forward or along their undo chains.

A dedicated log has one stream; a multiplexed one up to 100, each with a name (they can be listed) and a base of its own. The log's base
is the lowest of its streams' bases: a stream that does not move its base pins the log (`figures` tells which one does).

I1  An LSN belongs to one record of one stream for ever. A record counts once `is_durable` says so.
I2  The container with the first record at or above a stream's base is never given up.
I3  Names and bases of all streams are in the log above its base.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
import threading
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, NamedTuple

from flintmq.clock import SystemClock
from flintmq.core.checksum import crc32c_of
from flintmq.errors import StoreError
from flintmq.store.log.containers import STREAMS, LogSettings, sequence_of
from flintmq.store.log.file_port import OsFiles
from flintmq.store.log.managed import ManagedLog, clear_temporaries, repair_tail
from flintmq.store.log.scan import LogScan
from flintmq.store.log.writer import LogWriter

NAME, STREAM_RECORD, STREAM_BASE = 9, 48, 49
NAME_STREAM = 2
UNDO_NEXT = 1
NAME_BYTES_MAX = 255
# streams of a multiplexed log: about 100 in CLFS; a record's stream number has 8 bits
STREAMS_MAX = 100
SECTOR, CONTAINER_HEADER, BLOCK_HEADER, RECORD_HEADER = 512, 512, 64, 24
# bytes read at once
WINDOW = 65536


class StreamRecord(NamedTuple):
    """One record of a stream. undo_prev, undo_next: LSNs of the chains, 0 where there is none."""

    lsn: int
    undo_prev: int
    undo_next: int
    payload: bytes


class _Raw(NamedTuple):
    lsn: int
    end: int
    kind: int
    stream: int
    undo_prev: int
    undo_next: int
    data: bytes


class StreamLog:
    """A log of streams. Made by `open`; written by the LogWriter that `managed.written_by` names."""

    def __init__(self, managed: Any, multiplexed: bool, streams_max: int) -> None:
        self.managed = managed
        self.multiplexed = multiplexed
        self.streams_max = streams_max if multiplexed else 1
        self._lock = threading.RLock()
        self._by_name: dict[str, LogStream] = {}
        self._window = (0, b"")  # LSN and bytes of what was read last

    @classmethod
    def open(
        cls,
        files: Any,
        directory: str,
        *,
        container_size: int,
        store_uuid: bytes,
        clock: Any,
        multiplexed: bool = False,
        initial: int = 2,
        streams_max: int = STREAMS_MAX,
    ) -> StreamLog:
        """Opens or creates the log in `directory` (whose parent exists). An existing log keeps its container size (bytes).

        Raises: StoreError: another store's log, unknown format, damage.
        """
        scan = LogScan(files, directory, STREAMS, store_uuid)
        scan.check()
        if scan.damage:
            raise StoreError(f"log of streams {directory} is damaged: {scan.damage[0]}")
        size = scan.container_size or container_size
        make: Any = ManagedLog  # compiled: its arguments are not seen by mypy
        managed = make(files, directory, LogSettings("streams", STREAMS, store_uuid, size, clock))
        managed.set_ahead(max(2, initial))
        clear_temporaries(files, directory)
        if not scan.container_size:
            managed.open_new(initial, 1)
        else:
            repair_tail(files, directory, scan.tail, size, scan.hint)
            clear_temporaries(files, directory)
            managed.open_at(scan.tail, scan.last_block, scan.epoch + 1, scan.base)
            last = scan.tail // size
            for sequence in sorted(number for number in map(sequence_of, files.list_dir(directory)) if number is not None):
                if sequence < scan.base // size:
                    files.unlink(managed.path_of(sequence))  # nobody reads below the base of a stream
                elif sequence <= last:
                    managed.adopt(sequence)
                else:
                    files.unlink(managed.path_of(sequence))
            files.sync_dir(directory)
            managed.prepare(True)
        log = cls(managed, multiplexed, streams_max)
        log._recover()
        if not multiplexed and not log._by_name:
            log._add("", 0)
        return log

    def _recover(self) -> None:
        found: dict[int, list[int]] = {}
        bases: dict[int, int] = {}
        for raw in self._walk(self.managed.base):
            if raw.kind == NAME and struct.unpack_from("<I", raw.data)[0] == NAME_STREAM:
                number, length = struct.unpack_from("<QH", raw.data, 8)
                name = raw.data[18 : 18 + length].decode()
                if name not in self._by_name:
                    self._by_name[name] = LogStream(self, name, number)
                self._by_name[name].noted_at = raw.lsn
            elif raw.kind == STREAM_BASE:
                bases[raw.stream] = struct.unpack_from("<Q", raw.data)[0]
            elif raw.kind == STREAM_RECORD:
                found.setdefault(raw.stream, []).append(raw.lsn)
        self._by_name = {one.name: one for one in sorted(self._by_name.values(), key=lambda one: one.number)}
        for stream in self._by_name.values():
            lsns = found.get(stream.number, [])
            stream.base = bases.get(stream.number, 0)
            stream.last = lsns[-1] if lsns else 0
            at = bisect_left(lsns, stream.base)
            if at < len(lsns):
                self._pin(stream, lsns[at])

    # --- streams ------------------------------------------------------------------------------------------------------

    def create(self, name: str) -> LogStream:
        """A new stream of a multiplexed log. Raises: ValueError: name empty, too long or taken, too many; StoreError."""
        with self._lock:
            if not self.multiplexed:
                raise ValueError("a dedicated log has one stream")
            if not name or len(name.encode()) > NAME_BYTES_MAX:
                raise ValueError(f"a stream's name has 1 to {NAME_BYTES_MAX} bytes")
            if name in self._by_name:
                raise ValueError(f"stream {name} exists")
            if len(self._by_name) >= self.streams_max:
                raise ValueError(f"a log has at most {self.streams_max} streams")
            return self._add(name, len(self._by_name) + 1)

    def _add(self, name: str, number: int) -> LogStream:
        stream = LogStream(self, name, number)
        stream.base = self.managed.tail
        self._note(stream)
        self._by_name[name] = stream
        return stream

    def stream(self, name: str = "") -> LogStream:
        """Raises: KeyError."""
        return self._by_name[name]

    def names(self) -> list[str]:
        """Names of all streams, in the order in which they were made."""
        return list(self._by_name)

    def figures(self) -> dict[str, dict[str, int]]:
        """Per stream: its base, its last LSN, and the bytes of the log that it keeps (0: it keeps none)."""
        tail = self.managed.tail
        return {
            one.name: {"base": one.base, "last": one.last, "pinned_bytes": tail - one.pinned if one.pinned else 0}
            for one in self._by_name.values()
        }

    def is_durable(self, lsn: int) -> bool:
        """Whether the record at this LSN is on disk."""
        return bool(lsn < self.managed.durable_lsn)

    # --- records ------------------------------------------------------------------------------------------------------

    def _append(self, stream: LogStream, payload: bytes, undo_prev: int, undo_next: int) -> int:
        with self._lock:
            lsn, end = self.managed.append(STREAM_RECORD, payload, undo_prev, undo_next=undo_next, stream=stream.number)
            stream.last = lsn
            if not stream.pinned:
                self._pin(stream, lsn, end - lsn)
            return int(lsn)

    def _pin(self, stream: LogStream, lsn: int, size: int = 64) -> None:
        self.managed.mark_live(lsn, size)
        stream.pinned = lsn

    def _set_base(self, stream: LogStream, lsn: int) -> None:
        with self._lock:
            if lsn < stream.base or lsn > self.managed.tail:
                raise ValueError(f"the base of stream {stream.name} can't go from {stream.base} to {lsn}")
            if lsn <= stream.last:
                raw = self._record(lsn)
                if raw is None or raw.kind != STREAM_RECORD or raw.stream != stream.number:
                    raise ValueError(f"no record of stream {stream.name} at LSN {lsn}")
            stream.base = lsn
            end = self._note_base(stream)
            old = stream.pinned
            if lsn > stream.last:
                stream.pinned = 0
            elif lsn != old:
                self._pin(stream, lsn)
            if old and old != stream.pinned:
                self.managed.mark_dead(old, end)

    def _note(self, stream: LogStream) -> None:
        name = stream.name.encode()
        payload = struct.pack("<IIQH", NAME_STREAM, 0, stream.number, len(name)) + name + b"\0\0"
        stream.noted_at, _ = self.managed.append(NAME, payload)
        self._note_base(stream)

    def _note_base(self, stream: LogStream) -> int:
        return int(self.managed.append(STREAM_BASE, struct.pack("<Q", stream.base), stream=stream.number)[1])

    def _bytes(self, lsn: int, size: int) -> bytes:
        start, data = self._window
        if not start <= lsn <= lsn + size <= start + len(data):
            data = self.managed.read(lsn, max(size, WINDOW))
            start = lsn
            self._window = (start, data)
        return data[lsn - start : lsn - start + size]

    def _record(self, lsn: int) -> _Raw | None:
        """The record at this LSN, checked; None when there is none."""
        for _ in range(2):
            head = self._bytes(lsn, RECORD_HEADER)
            if len(head) == RECORD_HEADER:
                length, crc, kind, stream, flags, _time, undo_prev = struct.unpack("<IIBBHIQ", head)
                if RECORD_HEADER <= length <= self.managed.container_size:
                    data = self._bytes(lsn, length)
                    if len(data) == length and crc32c_of(struct.pack("<QQ", lsn, length) + data[8:]) == crc:
                        at = RECORD_HEADER + (8 if flags & UNDO_NEXT else 0)
                        undo_next = struct.unpack_from("<Q", data, RECORD_HEADER)[0] if flags & UNDO_NEXT else 0
                        end = lsn + (length + 7) // 8 * 8
                        return _Raw(lsn, end, kind, stream, undo_prev, undo_next, data[at:])
            self._window = (0, b"")  # it may be older than the record
        return None

    def _following(self, at: int) -> _Raw | None:
        """The first record at or behind `at`, where a record ended or a container begins; None at the end of the log.

        Raises: StoreError when what is there can't be read.
        """
        size = self.managed.container_size
        tail = self.managed.tail
        start = (at - 1) // size * size  # of the container that the last record is in
        sector = (at + SECTOR - 1) // SECTOR * SECTOR
        places = [at, sector + BLOCK_HEADER]
        if at % size == 0:
            places, start = [], at - size
        places = [place for place in places if place < start + size]
        places.append(start + size + CONTAINER_HEADER + BLOCK_HEADER)
        for place in places:
            if place < tail:
                raw = self._record(place)
                if raw is not None and (place == at or at % size == 0 or self._continues(place - BLOCK_HEADER, at)):
                    return raw
        if (tail <= start + size and sector < tail) or places[-1] < tail:
            raise StoreError(f"log of streams {self.managed.directory}: no record can be read at LSN {at}")
        return None

    def _block(self, lsn: int) -> tuple[int, int] | None:
        """(length, LSN of the previous block) of the closed block whose header stands there."""
        for _ in range(2):
            head = self._bytes(lsn, BLOCK_HEADER)
            if len(head) == BLOCK_HEADER and struct.unpack_from("<I", head, 60)[0] == crc32c_of(head[:60]):
                length, own = struct.unpack_from("<IQ", head, 4)
                if own == lsn:  # else it is left over in a buffer that is used again
                    return length, struct.unpack_from("<Q", head, 48)[0]
            self._window = (0, b"")  # it may be older than the header
        return None

    def _continues(self, lsn: int, at: int) -> bool:
        """Whether nothing lies between `at`, where a record ended, and the block at `lsn`: then the block before it ends there. The
        last block has no header yet while it is open."""
        block = self._block(lsn)
        before = self._block(block[1]) if block is not None else None
        return block is None or (before is not None and block[1] + before[0] == at)

    def _walk(self, at: int) -> Iterator[_Raw]:
        while True:
            with self._lock:
                raw = self._following(at)
            if raw is None:
                return
            yield raw
            at = raw.end

    # --- keeping ------------------------------------------------------------------------------------------------------

    def maintain(self) -> None:
        """One pass: seals, moves the base, gives containers up, makes new ones. Raises: OSError, StoreError."""
        managed = self.managed
        managed.seal()
        with self._lock:
            target = managed.base_target()
            if target > managed.base:
                for stream in self._by_name.values():
                    if stream.noted_at < target:
                        self._note(stream)
                managed.advance_base()
            if managed.base > managed.base_durable and not managed.dirty and self._by_name:
                self._note_base(next(iter(self._by_name.values())))  # a block must carry the base
        managed.retire()
        managed.prepare(False)
        managed.trim()

    def close(self) -> None:
        """Closes the files; what was not written is gone."""
        self.managed.close()


class LogStream:
    """One stream of a StreamLog. Attributes: name, number (0 in a dedicated log), base and last (LSNs; last 0: no record)."""

    def __init__(self, log: StreamLog, name: str, number: int) -> None:
        self.log = log
        self.name = name
        self.number = number
        self.base = 0
        self.last = 0
        self.pinned = 0  # LSN of the first record at or above the base; 0: none
        self.noted_at = 0  # LSN of the last record with its name

    def append(self, payload: bytes, undo_prev: int = 0, undo_next: int = 0) -> int:
        """Appends a record and returns its LSN. Raises: StoreError when the log has failed, ValueError when it is too large."""
        return self.log._append(self, payload, undo_prev, undo_next)

    def set_base(self, lsn: int) -> None:
        """Records below `lsn` are not needed any more. `lsn`: of a record of this stream, or the log's tail to give all up.

        Raises: ValueError, StoreError.
        """
        self.log._set_base(self, lsn)

    def record(self, lsn: int) -> StreamRecord:
        """The record at this LSN. Raises: KeyError when this stream has none there at or above its base."""
        with self.log._lock:
            raw = self.log._record(lsn) if self.base <= lsn <= self.last else None
        if raw is None or raw.kind != STREAM_RECORD or raw.stream != self.number:
            raise KeyError(lsn)
        return StreamRecord(raw.lsn, raw.undo_prev, raw.undo_next, raw.data)

    def read(self, lsn: int = 0) -> Iterator[StreamRecord]:
        """Records from the base, or from the record at `lsn`, to the end. Raises: KeyError as `record`; StoreError for damage."""
        if lsn:
            self.record(lsn)
        elif not self.pinned:
            return
        for raw in self.log._walk(lsn or self.pinned):
            if raw.kind == STREAM_RECORD and raw.stream == self.number:
                yield StreamRecord(raw.lsn, raw.undo_prev, raw.undo_next, raw.data)

    def undo_prev_chain(self, lsn: int) -> Iterator[StreamRecord]:
        """The record at `lsn`, that at its undo-prev, and so on, while they are at or above the base."""
        while lsn >= self.base and lsn:
            found = self.record(lsn)
            yield found
            lsn = found.undo_prev

    def undo_next_chain(self, lsn: int) -> Iterator[StreamRecord]:
        """As `undo_prev_chain`, along undo-next."""
        while lsn >= self.base and lsn:
            found = self.record(lsn)
            yield found
            lsn = found.undo_next


def main(directory: str) -> None:
    """Two streams of one log in `directory`, in two lives: the second reads what the first wrote, and gives up the older half of one."""
    for life in ("first", "second"):
        files: Any = OsFiles()
        writer: Any = LogWriter(files)
        path = os.path.join(directory, "log")
        log = StreamLog.open(files, path, container_size=512 * 1024, store_uuid=bytes(16), clock=SystemClock(), multiplexed=True)
        log.managed.written_by(writer)
        streams = [log.stream(name) if name in log.names() else log.create(name) for name in ("orders", "payments")]
        last = 0
        for number in range(4):
            for stream in streams:
                last = stream.append(f"{stream.name} {number} of the {life} life".encode(), undo_prev=stream.last)
        orders = streams[0]
        if life == "second":
            orders.set_base([record.lsn for record in orders.read()][4])
        while not log.is_durable(last):
            writer.flush()
        log.maintain()
        for stream in streams:
            print(f"{life} life, {stream.name}:", ", ".join(record.payload.decode() for record in stream.read()))
        print(f"{life} life, the last order and those before it:", [record.lsn for record in orders.undo_prev_chain(orders.last)])
        log.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as place:
            main(place)
