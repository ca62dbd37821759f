"""The oracle's fields by name and those of `store/log/record_fields` come from two hands: a mistake in one of them is a difference."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from types import ModuleType

import pytest

from flintmq.store.log import record_fields
from tests.oracle import records
from tests.oracle.compare import told_fields
from tests.oracle.records import LOG_TYPES, MESSAGES, NAMES, PAGES, STREAMS, TRANSACTIONS, Kind, Record
from tests.support import logbytes as lb

SOURCE = Path(record_fields.__file__)
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
    *((log, kind, b"\0" * 16) for log in (MESSAGES, TRANSACTIONS, PAGES, STREAMS) for kind in (4, 12, 42, 44, 49, 53, 64, 65)),
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
    ("state, heuristic, ended, more, size", "heuristic, state, ended, more, size"),
    ("-fields.at % 4", "-fields.at % 8"),
    ("if more & TX_COPY_SETS", "if not more & TX_COPY_SETS"),
    ("if state not in TX_STATES or", "if"),
    ('"ended": bool(ended)', '"ended": ended == 1'),
    ("count, consumer = fields.take", "consumer, count = fields.take"),
    ("kind, key_size, value_size = fields.take", "kind, value_size, key_size = fields.take"),
    ("if self.at != len(self.data)", "if False"),
    ("QUEUE_PURGE: _redelivered", "QUEUE_PURGE: _mark"),
    ("STREAM_CHUNK: _stream_chunk", "STREAM_CHUNK: _chunk"),
    ("frozenset(range(START, QUEUE_PURGE + 1))", "frozenset(range(START, QUEUE_PURGE))"),
    ("frozenset((PAGE_CONTENT, CHUNK))", "frozenset((PAGE_CONTENT,))"),
]


def differences(reader: object) -> list[tuple[int, int]]:
    """(log, type) of the samples that the reader and the oracle read differently."""
    found = []
    for log, kind, data in SAMPLES:
        record = Record(4096, kind, 0, 0, 1, 0, 0, 0, 0, 24 + len(data), data)
        if told_fields(reader, record, log) != told_fields(records, record, log):
            found.append((log, kind))
    return found


def test_the_readers_agree() -> None:
    assert differences(record_fields) == []
    assert {kind for _, kind, _ in SAMPLES} >= NAMES.keys()


def test_the_types_have_their_names() -> None:
    assert record_fields.TYPE_NAMES == NAMES
    for log, types in LOG_TYPES.items():
        assert [kind for kind in range(256) if record_fields.is_known(kind, log)] == sorted(types)
    assert {kind.name for kind in Kind} == {name.replace("-", "_").upper() for name in record_fields.TYPE_NAMES.values()}


@pytest.mark.parametrize(("text", "mistake"), MISTAKES)
def test_a_mistake_is_a_difference(text: str, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SOURCE.read_text()
    assert text in source
    mutant = ModuleType("mutant_of_record_fields")
    monkeypatch.setitem(sys.modules, mutant.__name__, mutant)
    exec(compile(source.replace(text, mistake), str(SOURCE), "exec"), mutant.__dict__)
    try:
        found = differences(mutant)
    except (LookupError, ValueError, struct.error):  # no reader raises these
        return
    assert found


def test_no_line_is_shared() -> None:
    """A copied line is a copied mistake. Imports and signatures are the interface, and short lines are syntax."""
    lines = {line.strip() for line in SOURCE.read_text().splitlines()}
    own = {line.strip() for line in Path(records.__file__).read_text().splitlines()}
    assert {line for line in lines & own if len(line) > 20 and not line.startswith(("from ", "import ", "def "))} == set()
