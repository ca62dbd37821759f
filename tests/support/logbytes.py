"""An independent writer of the on-disk format (docs/FORMAT.md) in plain Python: tests make logs with it that the broker did not write.

`LogBytes` collects records into commit blocks and blocks into containers, exactly as FORMAT.md says, and gives the files' bytes.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

SECTOR = 512
HEADER = 512
BLOCK_HEADER = 64
UUID = bytes(range(16))
MESSAGES, TRANSACTIONS, PAGES = 1, 2, 3

START, CHUNK, MESSAGE_DELETE, ENQUEUE, DEQUEUE, COPY, QUEUE_MARK, REDELIVERED, NAME, QUEUE_END, QUEUE_PURGE, SHAPE, MESSAGE = range(1, 14)
DELIVERED = 14
DTX_START, TX_START, PREPARE, COMMIT, ROLLBACK, TX_DELETE, END, TX_COPY, HEURISTIC, NOTE, ACQUIRE_SET = range(33, 44)


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ 0x82F63B78 if value & 1 else value >> 1
        table.append(value)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C of data, continued from `crc`."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def container_header(sequence: int, size: int, log_id: int = MESSAGES, uuid: bytes = UUID, version: int = 1, epoch: int = 1) -> bytes:
    head = struct.pack("<8sII16sIIQQQ", b"FLNTLOG1", version, SECTOR, uuid, log_id, epoch, sequence, size, 0).ljust(508, b"\0")
    return head + struct.pack("<I", crc32c(head))


def record(
    lsn: int, kind: int, body: bytes = b"", *, undo_prev: int = 0, tx: int = 0, expires: int = 0, last: bool = False, time: int = 0
) -> bytes:
    """One record as it stands at `lsn`, without padding."""
    flags = (2 if tx else 0) | (4 if expires else 0) | (8 if last else 0)
    optional = (struct.pack("<Q", tx) if tx else b"") + (struct.pack("<q", expires) if expires else b"")
    length = 24 + len(optional) + len(body)
    rest = struct.pack("<BBHIQ", kind, 0, flags, time, undo_prev) + optional + body
    crc = crc32c(struct.pack("<I", length) + b"\0\0\0\0" + rest, crc32c(struct.pack("<Q", lsn)))
    return struct.pack("<II", length, crc) + rest


def content(route: bytes, header: bytes, body: bytes, flags: int = 1, priority: int = 0, first: int | None = None) -> bytes:
    """Own fields of Message-Start; first: bytes of content in this record (None: all)."""
    data = route + header + body
    piece = data if first is None else data[:first]
    return struct.pack("<IIHBBI", len(body), len(header), len(route), flags, priority, len(piece)) + piece


def shape(queue_id: int, position: int, route: bytes, header: bytes, flags: int = 1, priority: int = 0) -> bytes:
    """Own fields of Message-Shape."""
    return struct.pack("<QQ", queue_id, position) + content(route, header, b"", flags, priority)


def message(distance: int, body: bytes) -> bytes:
    """Own fields of Message, whose undo-prev is its shape."""
    return struct.pack("<I", distance) + body


def chunk(offset: int, piece: bytes) -> bytes:
    return struct.pack("<I", offset) + piece


def waiting(number: int) -> int:
    """The position of an enqueue that waits for its Commit: it is its transaction's `number`-th one on the queue, from 0 on."""
    return 0xFFFFFFFF << 32 | number


def enqueue(queue_id: int, position: int) -> bytes:
    return struct.pack("<QQ", queue_id, position)


def dequeue(queue_id: int, position: int, reason: int = 1) -> bytes:
    return struct.pack("<QQQIHBB", queue_id, position, 0, 0, 0, reason, 0)


def copy(places: list[tuple[int, int, int, int, int]], start: bytes, published_us: int = 0) -> bytes:
    """places: (queue id, position, expiry, enqueuing tx, dequeuing tx); start: from content(); published_us: 0 = not known."""
    head = struct.pack("<II", len(places), int(bool(published_us))) + b"".join(struct.pack("<QQqQQ", *place) for place in places)
    return head + (struct.pack("<Q", published_us) if published_us else b"") + start


def ranges(queue_id: int, pairs: list[tuple[int, int]]) -> bytes:
    return struct.pack("<QII", queue_id, len(pairs), 0) + b"".join(struct.pack("<QQ", *pair) for pair in pairs)


def mark(queue_id: int, levels: list[int]) -> bytes:
    return struct.pack("<QII", queue_id, len(levels), 0) + struct.pack(f"<{len(levels)}Q", *levels)


def rows(entries: list[tuple[int, int, int]]) -> bytes:
    """Own fields of Commit: (queue id, first position, count)."""
    return struct.pack("<II", len(entries), 0) + b"".join(struct.pack("<QQQ", *row) for row in entries)


def xid(value: bytes) -> bytes:
    return struct.pack("<H", len(value)) + value


def acquire_set(entries: list[tuple[int, int, int]], consumer: int = 0) -> bytes:
    """entries: (queue id, first position, count)."""
    return struct.pack("<II", len(entries), consumer) + b"".join(struct.pack("<QQQ", *entry) for entry in entries)


def tx_copy(
    state: int,
    heuristic: int,
    ended: int,
    value: bytes,
    entries: list[tuple[int, int, int]],
    sets: list[tuple[int, int, int]] | None = None,
    consumer: int = 0,
) -> bytes:
    head = struct.pack("<BBBB", state, heuristic, ended, int(sets is not None)) + xid(value)
    more = b"" if sets is None else acquire_set(sets, consumer)
    return head.ljust((len(head) + 3) & ~3, b"\0") + rows(entries) + more


def note(kind: int, key: bytes, value: bytes) -> bytes:
    return struct.pack("<HHI", kind, len(key), len(value)) + key + value


class LogBytes:
    """A log in memory. add() appends a record to the open block and returns its LSN; sync() closes the block.

    Each block's durable hint is the end of the block before it, as when every block is synced before the next is begun; with
    hint=... it is what the caller says (several blocks on their way at once).
    """

    def __init__(self, size: int = 4096, log_id: int = MESSAGES, uuid: bytes = UUID, sequence: int = 1) -> None:
        self.size, self.log_id, self.uuid = size, log_id, uuid
        self.files: dict[int, bytearray] = {}
        self.tail = sequence * size + HEADER
        self.previous = 0
        self.epoch = 1
        self.base = self.tail
        self.durable = self.tail
        self.block = 0
        self.records = b""
        self.count = 0
        self.blocks: list[tuple[int, int]] = []
        self._open(sequence)

    def _open(self, sequence: int) -> None:
        self.files[sequence] = bytearray(container_header(sequence, self.size, self.log_id, self.uuid)).ljust(self.size, b"\0")

    @property
    def end(self) -> int:
        """Where the next block goes: the tail, or behind the next container's header when this one is full to its last byte."""
        return self.tail if self.tail % self.size else self.tail + HEADER

    def room(self) -> int:
        """Bytes that one record may have in the open container now."""
        start = self.block or self.tail
        used = BLOCK_HEADER + len(self.records)
        return self.size - start % self.size - used if start % self.size else 0

    def add(self, kind: int, body: bytes = b"", **more: int | bool) -> int:
        need = len(record(0, kind, body, **more))  # type: ignore[arg-type]
        if need > self.room():
            self.sync(hint=self.durable)
            sequence = self.tail // self.size if self.tail % self.size == 0 else self.tail // self.size + 1
            self._open(sequence)
            self.tail = sequence * self.size + HEADER
            assert need <= self.room(), "the record is larger than a container"
        if not self.block:
            self.block = self.tail
        lsn = self.block + BLOCK_HEADER + len(self.records)
        data = record(lsn, kind, body, **more)  # type: ignore[arg-type]
        self.records += data.ljust((len(data) + 7) & ~7, b"\0")
        self.count += 1
        return lsn

    def sync(self, *, hint: int | None = None, flags: int = 0, base: int | None = None) -> None:
        """Closes the open block (an empty one only when flags or base are given)."""
        if base is not None:
            self.base = base
        if not self.block:
            if not flags and base is None:
                return
            if self.room() < 0 or self.tail % self.size == 0:
                sequence = -(-self.tail // self.size)
                self._open(sequence)
                self.tail = sequence * self.size + HEADER
            self.block = self.tail
        head = struct.pack(
            "<IIQIIQQQQI",
            0x4B4C4246,
            BLOCK_HEADER + len(self.records),
            self.block,
            self.epoch,
            self.count,
            self.durable if hint is None else hint,
            self.base,
            1_000_000,
            self.previous,
            flags,
        )
        data = head + struct.pack("<I", crc32c(head)) + self.records
        at = self.block % self.size
        self.files[self.block // self.size][at : at + len(data)] = data
        self.blocks.append((self.block, len(data)))
        self.previous = self.block
        self.tail = self.block + (len(data) + SECTOR - 1) // SECTOR * SECTOR
        if hint is None:
            self.durable = self.tail
        self.block, self.records, self.count = 0, b"", 0

    def write(self, directory: str) -> None:
        """Writes the containers as files (replacing what is there)."""
        os.makedirs(directory, exist_ok=True)
        for sequence, data in self.files.items():
            with open(os.path.join(directory, f"{sequence:020d}.flog"), "wb") as file:
                file.write(data)


def say_log(file: Path, at: int, log_id: int) -> None:
    """The block header at this offset of a container's file says that it is of that log (0: does not say), its CRC is right."""
    data = bytearray(file.read_bytes())
    flags = int.from_bytes(data[at + 56 : at + 60], "little") & 0xFF
    data[at + 56 : at + 60] = (flags | log_id << 8).to_bytes(4, "little")
    data[at + 60 : at + 64] = crc32c(bytes(data[at : at + 60])).to_bytes(4, "little")
    file.write_bytes(bytes(data))
