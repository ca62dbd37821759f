"""The oracle and `store/log` come from two hands: a mistake in one of them is a difference.

`record_fields` and the oracle read samples of each type of record; `inspect`, the broker's scan and the oracle read damaged stores.
"""

from __future__ import annotations

import copy
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flintmq.errors import StoreError
from flintmq.store.log import containers, inspect, record_fields
from tests.oracle import log as oracle
from tests.oracle import records
from tests.oracle.compare import differences, told_fields
from tests.oracle.records import LOG_TYPES, MESSAGES, NAMES, PAGES, STREAMS, TRANSACTIONS, Kind, Record
from tests.support import logbytes as lb
from tests.support.logstore import StoreBytes, sample

reader = pytest.importorskip("flintmq.store.log.reader", reason="the compiled reader is not built")
scan = pytest.importorskip("flintmq.store.log.scan")
OsFiles = pytest.importorskip("flintmq.store.log.file_port").OsFiles

ROUTE = b"\x02ex\x03key"
CONTENT = lb.content(ROUTE, b"header", b"the body", flags=5, priority=7)
WAITING = lb.waiting(3)
PLACES = [(11, 12, 13, 14, 15), (21, WAITING, 23, 24, 25)]
ROWS = [(31, 32, 33), (34, 35, 36)]


def stream_message(value: bytes | None, content: bytes = CONTENT) -> bytes:
    size = 0xFFFF if value is None else len(value)
    return struct.pack("<Q", 41) + content[:16] + struct.pack("<HH", size, 0) + (value or b"") + content[16:]


# log, type, bytes of own fields; each type of each log at least once, and what is not well formed
SAMPLES: list[tuple[int, int, bytes]] = [
    *((log, kind, data) for log, kind in ((MESSAGES, 1), (PAGES, 64)) for data in (CONTENT, CONTENT[:-1], CONTENT + b"\0")),
    (MESSAGES, 1, lb.content(ROUTE, b"header", b"the body", first=4)),
    (MESSAGES, 1, lb.content(ROUTE, b"", b"", first=len(ROUTE))),
    (MESSAGES, 1, struct.pack("<IIHBBI", 1, 1, 1, 0, 0, 4) + b"four"),
    *((MESSAGES, 1, lb.content(route, b"h", b"b")) for route in (b"", b"\0\0", b"\1", b"\1\1", b"\0\2k", b"\1e\1kk", b"\5e\1k")),
    *((log, 2, lb.chunk(77, b"piece")) for log in (MESSAGES, PAGES)),
    (MESSAGES, 3, b""),
    (MESSAGES, 3, b"\0"),
    (TRANSACTIONS, 33, struct.pack("<H", 9) + b"an xid"),
    (TRANSACTIONS, 42, lb.note(16, b"the key", b"value")[:-1]),
    (MESSAGES, 4, lb.enqueue(51, 52)),
    (MESSAGES, 4, lb.enqueue(51, WAITING)),
    *((MESSAGES, 5, struct.pack("<QQQIHBB", 61, 62, 63, 64, 65, reason, 0)) for reason in range(8)),
    (MESSAGES, 5, struct.pack("<QQQIHBB", 61, WAITING, 63, 64, 65, 1, 0)),
    (MESSAGES, 6, lb.copy(PLACES, CONTENT)),
    (MESSAGES, 6, lb.copy(PLACES, CONTENT, 71)),
    (MESSAGES, 6, struct.pack("<II", 0, 2) + CONTENT),
    (MESSAGES, 6, struct.pack("<II", 1 << 20, 0) + CONTENT),
    (MESSAGES, 7, lb.mark(81, [82, 83])),
    *((MESSAGES, kind, lb.ranges(91, [(92, 93), (94, 95)])) for kind in (8, 11)),
    *((log, 9, struct.pack("<IIQH3sH5s", 1, 0, 101, 3, b"tag", 5, b"group")) for log in (MESSAGES, STREAMS)),
    (MESSAGES, 10, struct.pack("<Q", 111)),
    (MESSAGES, 12, lb.shape(112, 113, ROUTE, b"header", 5, 7)),
    (MESSAGES, 12, struct.pack("<QQ", 112, 113) + CONTENT),
    (MESSAGES, 12, struct.pack("<QQ", 112, 113) + lb.content(ROUTE, b"header", b"", first=4)),
    (MESSAGES, 12, struct.pack("<QQ", 112, 113) + lb.content(ROUTE, b"header", b"the body", first=len(ROUTE) + 6)),
    (MESSAGES, 12, lb.shape(112, 113, b"\1\1", b"header")),
    *((MESSAGES, 13, lb.message(114, body)) for body in (b"", b"the body")),
    (MESSAGES, 13, b"\0\0\0"),
    (TRANSACTIONS, 33, lb.xid(b"an xid")),
    *((TRANSACTIONS, kind, b"") for kind in (34, 35, 37, 38, 39)),
    (TRANSACTIONS, 36, lb.rows(ROWS)),
    *((TRANSACTIONS, 40, lb.tx_copy(state, heuristic, 1, b"xid", ROWS)) for state in range(6) for heuristic in range(4)),
    *((TRANSACTIONS, 40, lb.tx_copy(2, 0, ended, b"x" * size, ROWS, ROWS[:1], 121)) for ended in range(3) for size in range(5)),
    *((TRANSACTIONS, 41, bytes([outcome])) for outcome in range(4)),
    (TRANSACTIONS, 42, lb.note(16, b"the key", b"value")),
    (TRANSACTIONS, 43, lb.acquire_set(ROWS, 131)),
    (STREAMS, 48, b"a program's own"),
    (STREAMS, 49, struct.pack("<Q", 141)),
    *((STREAMS, 50, stream_message(value)) for value in (None, b"", b"filter")),
    (STREAMS, 50, stream_message(b"filter", lb.content(ROUTE, b"h", b"b", first=3))),
    (STREAMS, 50, stream_message(None, struct.pack("<IIHBBI", 1, 1, 1, 0, 0, 4) + b"four")),
    (STREAMS, 51, struct.pack("<Q", 151) + lb.chunk(152, b"piece")),
    (STREAMS, 52, struct.pack("<Q", 161)),
    *((log, kind, b"\0" * 16) for log in (MESSAGES, TRANSACTIONS, PAGES, STREAMS) for kind in (4, 12, 13, 14, 42, 44, 49, 53, 64, 65)),
]

# text of record_fields -> a mistake there
MISTAKES = [
    ('_CONTENT = struct.Struct("<IIHBBI")', '_CONTENT = struct.Struct(">IIHBBI")'),
    ('_DEQUEUE = struct.Struct("<QQQIHBB")', '_DEQUEUE = struct.Struct("<QQQHIBB")'),
    ('_NOTE = struct.Struct("<HHI")', '_NOTE = struct.Struct("<HIH")'),
    ('3: "expire", 4: "drop"', '3: "drop", 4: "expire"'),
    ('2: "prepared", 3: "committed"', '2: "committed", 3: "prepared"'),
    ('1: "committed", 2: "rolled back"}\n\nHEADER', '2: "committed", 1: "rolled back"}\n\nHEADER'),
    ("WAITS = 0xFFFFFFFF", "WAITS = 0x7FFFFFFF"),
    ("position & 0xFFFFFFFF if", "position & 0xFFFF0000 if"),
    ("NO_FILTER = 0xFFFF", "NO_FILTER = 0"),
    ("body, header, route, flags, priority, here = fields.take", "header, body, route, flags, priority, here = fields.take"),
    ("body, header, route, flags, priority, here = fields.take", "body, header, route, priority, flags, here = fields.take"),
    ("if here > body + header + route", "if here > body + header + route + 1"),
    ("content[:route] if here >= route", "content[:route] if here > route"),
    ("cut = 1 + route[0]", "cut = route[0]"),
    ("2 + route[0] + route[1 + route[0]] != size", "False"),
    ("queue, position, delivered_us, consumer, deliveries", "position, queue, delivered_us, consumer, deliveries"),
    ("for queue, position, expires, enqueued_by, dequeued_by in", "for queue, position, expires, dequeued_by, enqueued_by in"),
    ("if copy_flags & ~COPY_PUBLISHED", "if False"),
    ("if copy_flags & COPY_PUBLISHED else", "if not copy_flags & COPY_PUBLISHED else"),
    ('"tag": fields.take_bytes(fields.u16()), "group"', '"group": fields.take_bytes(fields.u16()), "tag"'),
    ("state, heuristic, ended, flags, size", "heuristic, state, ended, flags, size"),
    ("-fields.at % 4", "-fields.at % 8"),
    ("if flags & TX_COPY_SETS", "if not flags & TX_COPY_SETS"),
    ("if state not in TX_STATES or", "if"),
    ('"ended": bool(ended)', '"ended": ended == 1'),
    ("count, consumer = fields.take", "consumer, count = fields.take"),
    ("kind, key_size, value_size = fields.take", "kind, value_size, key_size = fields.take"),
    ("if self.at != len(self.data)", "if False"),
    ("QUEUE_PURGE: _redelivered", "QUEUE_PURGE: _mark"),
    ("STREAM_CHUNK: _stream_chunk", "STREAM_CHUNK: _chunk"),
    ("frozenset(range(START, DELIVERED + 1))", "frozenset(range(START, DELIVERED))"),
    ('place = {"queue": fields.u64(), "position"', 'place = {"position": fields.u64(), "queue"'),
    ('if content["body"] or', "if"),
    ('"body": len(content), "content": content', '"body": distance, "content": content'),
    ("frozenset((PAGE_CONTENT, CHUNK))", "frozenset((PAGE_CONTENT,))"),
]


# --- records


def differing_samples(fields: object) -> list[tuple[int, int]]:
    """(log, type) of the samples that a module's `fields_of` and the oracle's read differently."""
    kinds = []
    for log, kind, data in SAMPLES:
        record = Record(4096, kind, 0, 0, 1, 0, 0, 0, 0, 24 + len(data), data)
        if told_fields(fields, record, log) != told_fields(records, record, log):
            kinds.append((log, kind))
    return kinds


def planted(module: ModuleType, text: str, mistake: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module with another text in one place."""
    source = Path(str(module.__file__)).read_text()
    assert text in source
    mutant = ModuleType(module.__name__)
    monkeypatch.setitem(sys.modules, mutant.__name__, mutant)
    exec(compile(source.replace(text, mistake), str(module.__file__), "exec"), mutant.__dict__)
    return mutant


def test_the_readers_agree() -> None:
    assert differing_samples(record_fields) == []
    assert {kind for _, kind, _ in SAMPLES} >= NAMES.keys()


def test_the_types_have_their_names() -> None:
    assert record_fields.TYPE_NAMES == NAMES
    for log, types in LOG_TYPES.items():
        assert [kind for kind in range(256) if record_fields.is_known(kind, log)] == sorted(types)
    assert {kind.name for kind in Kind} == {name.replace("-", "_").upper() for name in record_fields.TYPE_NAMES.values()}


@pytest.mark.parametrize(("text", "mistake"), MISTAKES)
def test_a_mistake_is_a_difference(text: str, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = planted(record_fields, text, mistake, monkeypatch)
    try:
        kinds = differing_samples(mutant)
    except (LookupError, ValueError, struct.error):  # no reader raises these
        return
    assert kinds


# --- logs


def flip(made: StoreBytes, lsn: int, mask: int = 1) -> None:
    made.messages.files[lsn // 4096][lsn % 4096] ^= mask


def say(made: StoreBytes, lsn: int, offset: int, value: bytes) -> None:
    """The header of the block at this LSN has other bytes, and their CRC."""
    file, start = made.messages.files[lsn // 4096], lsn % 4096
    file[start + offset : start + offset + len(value)] = value
    file[start + 60 : start + 64] = struct.pack("<I", lb.crc32c(bytes(file[start : start + 60])))


def zero(made: StoreBytes, lsn: int) -> None:
    """Nothing of the container from this LSN on was written."""
    made.messages.files[lsn // 4096][lsn % 4096 :] = bytes(4096 - lsn % 4096)


def head(made: StoreBytes, *arguments: Any, **more: Any) -> None:
    """Container 2 has another header."""
    made.messages.files[2][:512] = lb.container_header(*arguments, **more)


def unproven(made: StoreBytes, count: int = 3) -> list[int]:
    """Adds blocks of which none says that one before it is durable; returns their LSNs."""
    hint = made.messages.durable
    for _ in range(count):
        made.publish(1, b"unproven")
        made.messages.sync(hint=hint)
    return [lsn for lsn, _ in made.messages.blocks[-count:]]


def stale(made: StoreBytes) -> None:
    """A block was torn, and behind it stand two of an earlier epoch, which say that it is durable."""
    made.messages.epoch = 2
    _, torn = unproven(made, 2)
    made.messages.epoch = 1
    for _ in range(2):
        made.publish(1, b"stale")
        made.messages.sync()
    flip(made, torn)


def partly(made: StoreBytes) -> None:
    """The first record of a block is durable and damaged, the others are not durable."""
    (first,) = unproven(made, 1)
    made.publish(1, b"behind")
    made.messages.sync(hint=first + 128)
    flip(made, first + 70)


def fallen(made: StoreBytes) -> None:
    """The epoch falls in the middle of the log."""
    say(made, block(made, 4), 16, b"\2")
    for at, _ in made.messages.blocks[6:]:
        say(made, at, 16, b"\2")


def low(made: StoreBytes) -> None:
    """Adds blocks until the tail is low in a container."""
    while not 512 < made.messages.tail % 4096 <= 1024:
        made.publish(1, b"near")
        made.messages.sync()


def roomy(made: StoreBytes) -> int:
    """Leaves room at the end of a container, because the next message is too long for it; returns the number of the next one."""
    low(made)
    for _ in range(2):
        made.publish(1, bytes(2200))
        made.messages.sync()
    for _ in range(3):
        made.publish(1, b"behind")
        made.messages.sync()
    return block(made, -4) // 4096


def apart(made: StoreBytes, proven: bool) -> None:
    """A block names the last one and stands a sector too far behind it."""
    low(made)
    made.messages.tail += 512
    made.publish(1, b"apart")
    made.messages.sync()
    if proven:
        made.messages.sync(base=made.messages.base)


def forged(made: StoreBytes, durable: int = 0) -> None:
    """A body has a block with the LSN at which it stands: it says that all before it is needed no more, and all behind it is durable."""
    low(made)
    body_lsn = made.messages.tail + 64 + 24 + 16 + len(ROUTE) + 14
    place = -(-body_lsn // 512) * 512
    other = lb.LogBytes()
    other.tail, other.previous, other.durable, other.base = place, made.messages.blocks[-1][0], durable or place, place
    other.add(lb.MESSAGE_DELETE)
    other.files[place // 4096] = bytearray(4096)
    other.sync()
    made.publish(1, bytes(place - body_lsn) + bytes(other.files[place // 4096][place % 4096 : place % 4096 + 88]) + b"more")
    made.sync()


def recycled(made: StoreBytes) -> None:
    """The last container has old blocks behind its tail."""
    last = max(made.messages.files)
    old, end = made.messages.files[2], made.messages.tail % 4096
    made.messages.files[last][end:] = old[end:]


def gone(made: StoreBytes, *sequences: int) -> None:
    for sequence in sequences:
        del made.messages.files[sequence]


def passed(made: StoreBytes, *sequences: int) -> None:
    """The base passed all containers but the last, and these are not there."""
    made.messages.sync(base=made.messages.tail)
    gone(made, *sequences)


def cut_short(made: StoreBytes, size: int) -> None:
    made.messages.files[2] = made.messages.files[2][:size]


def block(made: StoreBytes, index: int) -> int:
    return made.messages.blocks[index][0]


def last_of(made: StoreBytes, sequence: int) -> int:
    return max(lsn for lsn, _ in made.messages.blocks if lsn // 4096 == sequence)


# Each makes another store of a good one. Blocks 0 to 4 are durable, the last one is not.
SCENES: dict[str, Callable[[StoreBytes], object]] = {
    "good": lambda made: None,
    "a clean stop": lambda made: made.messages.sync(flags=1),
    "a clean stop and a torn tail": lambda made: (made.messages.sync(flags=1), unproven(made, 1), flip(made, block(made, -1) + 20)),
    "old blocks": recycled,
    "a forged base": forged,
    "a forged hint": lambda made: forged(made, 1 << 20),
    **{f"torn {cut} bytes on": lambda made, cut=cut: zero(made, block(made, -1) + cut) for cut in (0, 2, 6, 40, 62, 63, 70, 100)},
    **{
        f"byte {offset} of block {index}": lambda made, offset=offset, index=index: flip(made, block(made, index) + offset)
        for index in (3, -1)
        for offset in (0, 4, 8, 20, 32, 48, 57, 60, 68, 76, 100, 300)
    },
    **{f"byte {offset} of a header": lambda made, offset=offset: flip(made, 8192 + offset) for offset in (0, 8, 40, 300, 507, 511)},
    "two records": lambda made: [flip(made, block(made, 3) + offset) for offset in (70, 400)],
    "a hole in what is not proven": lambda made: flip(made, unproven(made)[1]),
    "a record in what is not proven": lambda made: flip(made, unproven(made)[1] + 70),
    "a hint inside a block": partly,
    "the block before the last": lambda made: flip(made, block(made, -2)),
    "an epoch that grows": lambda made: (setattr(made.messages, "epoch", 2), unproven(made)),
    "a stale block": stale,
    "an epoch that falls": fallen,
    "a block apart": lambda made: apart(made, False),
    "a durable block apart": lambda made: apart(made, True),
    "another one before": lambda made: say(made, block(made, 3), 48, struct.pack("<Q", block(made, 1))),
    "another one before the last": lambda made: say(made, block(made, -1), 48, struct.pack("<Q", block(made, 1))),
    "another base": lambda made: made.messages.sync(base=block(made, 5)),
    "a record too many": lambda made: say(made, block(made, 3), 20, b"\1"),
    "a record too few in the last": lambda made: say(made, block(made, -1), 20, b"\3"),
    "a block too long": lambda made: say(made, block(made, 3), 4, struct.pack("<I", 4096)),
    "a block too short": lambda made: say(made, block(made, 3), 4, struct.pack("<I", 63)),
    "another LSN": lambda made: say(made, block(made, 3), 8, struct.pack("<Q", block(made, 3) + 512)),
    "another log's block": lambda made: say(made, block(made, 3), 57, b"\2"),
    "this log's block": lambda made: say(made, block(made, 3), 57, b"\1"),
    "the last block of a container": lambda made: flip(made, last_of(made, 2)),
    "the ends of two containers": lambda made: (flip(made, last_of(made, 2)), flip(made, 3 * 4096 + 512)),
    "room in front of a missing container": lambda made: gone(made, roomy(made)),
    "room in front of a block": lambda made: flip(made, roomy(made) * 4096 + 512),
    "container 1 is missing": lambda made: gone(made, 1),
    "container 2 is missing": lambda made: gone(made, 2),
    "containers 2 and 3 are missing": lambda made: gone(made, 2, 3),
    "the base passed containers": lambda made: passed(made, 1, 2),
    "the base passed a hole": lambda made: passed(made, 2),
    **{f"{size} bytes of a container": lambda made, size=size: cut_short(made, size) for size in (0, 100, 512, 1500, 4095)},
    "another version": lambda made: head(made, 2, 4096, version=4),
    "the present version": lambda made: head(made, 2, 4096, version=2),
    "another store": lambda made: head(made, 2, 4096, uuid=bytes(16)),
    "another log": lambda made: head(made, 2, 4096, log_id=2),
    "another sequence number": lambda made: head(made, 7, 4096),
    "another size": lambda made: head(made, 2, 8192),
    "no size": lambda made: head(made, 2, 1000),
}

# module of store/log, text -> a mistake there
LOG_MISTAKES: list[tuple[ModuleType, str, str]] = [
    # a wrong continuation is taken, a right one is not
    (inspect, "if block.previous != last.lsn:", "if False:"),
    (inspect, "return block.lsn == lsn or block.lsn == first", "return True"),
    (inspect, "return block.lsn == lsn or block.lsn == first", "return block.lsn == lsn"),
    (inspect, "if last is not None and block.epoch < last.epoch:", "if False:"),
    (inspect, "aligned(self.lsn + self.length, SECTOR)", "aligned(self.lsn + self.length, 8)"),
    (inspect, "return lsn if lsn % self.container_size else lsn + SECTOR", "return lsn"),
    # the base, the end
    (inspect, "self.blocks[-1].base", "self.blocks[0].base"),
    (inspect, "self.blocks[-1].base", "self.blocks[-1].hint"),
    (inspect, "& CLEAN) and not self.torn_at", "& CLEAN)"),
    (inspect, "self._place(self.blocks[-1].end)", "self.blocks[-1].lsn + self.blocks[-1].length"),
    # torn and damaged
    (inspect, "if hint <= lsn:", "if hint < 0:"),
    (inspect, "if hint <= lsn:", "if hint <= block.lsn:"),
    (inspect, "if hint <= lsn:", "if True:"),
    (inspect, "other.epoch < last.epoch or other.hint <= block.lsn for", "other.hint <= block.lsn for"),
    (inspect, "(block.hint <= bad.lsn for", "(True for"),
    (inspect, "if bad is not None and all(", "if False and all("),
    (inspect, "self.torn_at and last is not None and self._looks_written(lsn)", "self.torn_at"),
    (inspect, "del self.blocks[i:]", "del self.blocks[i + 1 :]"),
    (inspect, "return begun_at(", "return not begun_at("),
    # holes
    (inspect, "self.damage.append(self._gap(lsn, block))", "pass"),
    (inspect, "start = max(lsn, first * size)", "start = lsn"),
    (inspect, "start = (lsn // size + 1) * size + SECTOR", "pass"),
    (inspect, 'damage.kind != "missing" or damage.end > base', "True"),
    (inspect, "if base < self.blocks[0].lsn and", "if False and"),
    (inspect, "if whole and count != block.records", "if False"),
    # containers
    (inspect, "if header.store_uuid != self.uuid:", "if False:"),
    (inspect, "elif header.log_id != self.number:", "elif False:"),
    (inspect, "elif header.sequence != container.sequence:", "elif False:"),
    (inspect, "elif header.size != self.container_size:", "elif False:"),
    (inspect, "elif container.file_size != header.size:", "elif False:"),
    (inspect, "container.readable = container.problem is None", "container.readable = True"),
    (inspect, 'container.readable = header[0] == "header"', "container.readable = False"),
    (inspect, 'container.readable = header[0] == "header"', "container.readable = True"),
    (containers, "or crc32c_of(data[:508]) != int", "or 0 * int"),
    (containers, "crc32c_of(data[:508])", "crc32c_of(data[:64].ljust(508, bytes(1)))"),
    (containers, "FORMAT_VERSIONS = (1, 2, 3)", "FORMAT_VERSIONS = (1, 2, 3, 4)"),
    (containers, "FORMAT_VERSIONS = (1, 2, 3)", "FORMAT_VERSIONS = (1, 3)"),
    (containers, "SIZE_MIN <= self.size <= SIZE_MAX and self.size % SIZE_MIN == 0", "True"),
    (containers, "sector, uuid, log_id, epoch, sequence, size, time_us = _", "sector, uuid, epoch, log_id, sequence, size, time_us = _"),
]


def resealed(data: bytes) -> bytes:
    """The bytes of a container in which the CRC of each block's header is that of its bytes."""
    changed = bytearray(data)
    for at in range(512, len(data), 512):
        if data[at : at + 4] == b"FBLK":
            changed[at + 60 : at + 64] = struct.pack("<I", lb.crc32c(data[at : at + 60]))
    return bytes(changed)


def resealed_records(data: bytes, lsn: int, time_us: int) -> list[Any]:
    """`records_in` that checks no record's last byte."""
    items = reader.records_in(data, lsn, time_us)
    for index, item in enumerate(items):
        if len(item) == 2:
            raw = data[item[0] - lsn :]
            length = int.from_bytes(raw[:4], "little")
            items[index] = reader.record_in(reader.sealed(raw[:length], item[0]), item[0]) or item
    return items


# function of the compiled reader -> the same with a mistake
READER_MISTAKES: list[tuple[str, Callable[..., Any]]] = [
    ("blocks_in", lambda data, start, log: reader.blocks_in(resealed(data), start, log)),
    ("blocks_in", lambda data, start, log: sorted({*reader.blocks_in(data, start, 1), *reader.blocks_in(data, start, 2)})),
    ("blocks_in", lambda data, start, log: [one for one in reader.blocks_in(data, start, log) if not one[8] >> 8]),
    ("blocks_in", lambda data, start, log: reader.blocks_in(data[:-512], start, log)),
    ("blocks_in", lambda data, start, log: reader.blocks_in(data, start, log)[:4]),
    ("blocks_in", lambda data, start, log: [reader.block_at(data[at:], start + at, 4096 - at, log) for at in range(512, len(data), 512)
        if reader.block_at(data[at:], start + at, 4096 - at, log)]),
    ("blocks_in", lambda data, start, log: [(*one[:4], one[5], one[4], *one[6:]) for one in reader.blocks_in(data, start, log)]),
    ("records_in", resealed_records),
    ("records_in", lambda data, lsn, time_us: [one for one in reader.records_in(data, lsn, time_us) if len(one) > 2]),
    ("records_in", lambda data, lsn, time_us: reader.records_in(data, lsn, 0)),
    ("records_in", lambda data, lsn, time_us: reader.records_in(data, lsn, time_us)[:2]),
    ("begun_at", lambda data, lsn: False),
    ("begun_at", lambda data, lsn: data[:4] == b"FBLK"),
    ("begun_at", lambda data, lsn: data[8:16] == lsn.to_bytes(8, "little")),
]  # fmt: skip


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, oracle.Log]]]:
    """By name the store of each scene, and what the oracle says of it."""
    good, result = sample(), {}
    for number, (name, change) in enumerate(SCENES.items()):
        made = copy.deepcopy(good)
        change(made)
        path = made.write(tmp_path_factory.mktemp("scenes") / str(number))
        result[name] = path, oracle.open_store(path)
    return result


def differing_scenes(module: Any, scenes: dict[str, tuple[Path, dict[str, oracle.Log]]]) -> Iterator[tuple[str, str, list[Any]]]:
    """The logs of scenes that a module's `open_store` and the oracle's read differently."""
    for name, (path, others) in scenes.items():
        view = module.open_store(path, live=False)
        for log, other in others.items():
            if pairs := differences(view.logs[log], other):
                yield name, log, pairs


def test_the_readers_of_logs_agree(scenes: dict[str, Any]) -> None:
    assert list(differing_scenes(inspect, scenes)) == []


def test_no_two_scenes_are_one(scenes: dict[str, Any]) -> None:
    """Most scenes are read as damage or a torn tail: nothing is agreed on because nothing is there."""
    logs = [logs["messages"] for _, logs in scenes.values()]
    assert sum(bool(log.torn_at) for log in logs) > 20 and sum(bool(log.damage) for log in logs) > 30
    assert {one.kind for log in logs for one in log.damage} == {"header", "format", "store", "size", "name", "missing", "block"}


def test_the_broker_reads_what_the_oracle_reads(scenes: dict[str, Any]) -> None:
    """The scan of a start hands out the same records from the same base on, and says the same of the end."""
    refused = set()
    for name, (path, logs) in scenes.items():
        if name == "another sequence number":
            continue  # the broker takes its blocks, which name their LSNs, and the page says nothing of it
        log, other = logs["messages"], scan.LogScan(OsFiles(), str(path / "messages"), lb.MESSAGES)
        try:
            told = [(lsn, kind, data) for lsn, kind, *_, data in other.collect()]
        except StoreError:
            refused.add(name)
            continue
        items = [item for item in log.records() if item.lsn >= log.base]
        assert told == [(item.lsn, item.type, item.data) for item in items if isinstance(item, Record)], name
        assert (other.base, other.tail, other.clean) == (log.base, log.tail, log.clean), name
        assert other.torn_at in (0, log.torn_at), name  # a block of which no LSN is there is not told
        stretches = {one for one in log.damage if one.end > log.base} | {item for item in items if isinstance(item, oracle.Damage)}
        assert len(other.damage) == len(stretches), name
    assert refused == {"another version", "another store", "another log", "another size", "no size"}


@pytest.mark.parametrize(("module", "text", "mistake"), LOG_MISTAKES)
def test_a_mistake_in_a_log_is_a_difference(
    module: ModuleType, text: str, mistake: str, scenes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant = planted(module, text, mistake, monkeypatch)
    if module is not inspect:
        mutant = planted(inspect, "", "", monkeypatch)
    assert any(differing_scenes(mutant, scenes))


@pytest.mark.parametrize(("function", "mistake"), READER_MISTAKES)
def test_a_mistake_of_the_compiled_reader_is_a_difference(
    function: str, mistake: Callable[..., Any], scenes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect, function, mistake)
    assert any(differing_scenes(inspect, scenes))


@pytest.mark.parametrize("own", [records, oracle])
def test_no_line_is_shared(own: ModuleType) -> None:
    """A copied line is a copied mistake. Imports and signatures are the interface, and short lines are syntax."""
    folder = Path(record_fields.__file__).parent
    for other in sorted(folder.glob("*.py")):
        lines, shared = ({line.strip() for line in Path(file).read_text().splitlines()} for file in (str(own.__file__), other))
        assert {line for line in lines & shared if len(line) > 20 and not line.startswith(("from ", "import ", "def "))} == set(), other
