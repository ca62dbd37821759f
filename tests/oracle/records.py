"""Records of the log as docs/FORMAT.md describes them: a table of layouts, and one decoder that walks it.

in: bytes of a record. out: `Record`s; with `fields_of` their type's fields by name.

Written from the page alone. It has no line in common with `store/log/record_fields` (tests/oracle/test_independent.py checks that), and
every store that a test looks at is read by both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from crc32c import crc32c

(MESSAGES, TRANSACTIONS, PAGES, STREAMS) = (1, 2, 3, 4)

# A layout is a row of words. `name:2` is an unsigned little-endian integer of 2 bytes; `name=size` the bytes that the integer `size`
# counts, `name=*` all that follow; `name[count](...)` a list of rows; `[word]?flag` a word that is there when the integer `flag` is 1; `~4`
# zeros up to a multiple of 4. A name that begins with `-` is left out of the result. `place` is a position or a waiting number.
CONTENT = "body:4 header:4 route:2 content_flags:1 priority:1 here:4"
ROWS = "(queue:8,first:8,count:8)"
RANGES = "(first:8,last:8)"
PLACES = "(queue:8,place:8,expires_ms:8,enqueued_by:8,dequeued_by:8)"
COMMIT = f"-rows:4 -zero:4 rows[-rows]{ROWS}"

# log -> number of the type -> (name, layout)
MESSAGE_LOG = {
    1: ("Message-Start", f"{CONTENT} content=here"),
    2: ("Message-Chunk", "offset:4 content=*"),
    3: ("Message-Delete", ""),
    4: ("Message-Enqueue", "queue:8 place:8"),
    5: ("Message-Dequeue", "queue:8 position:8 delivered_us:8 consumer:4 deliveries:2 reason:1 -zero:1"),
    6: ("Message-Copy", f"-places:4 -flags:4 places[-places]{PLACES} [published_us:8]?-flags {CONTENT} content=here"),
    7: ("Queue-Mark", "queue:8 -levels:4 -zero:4 levels[-levels](highest:8)"),
    8: ("Queue-Redelivered", f"queue:8 -ranges:4 -zero:4 ranges[-ranges]{RANGES}"),
    9: ("Name", "kind:4 -zero:4 id:8 -tag:2 tag=-tag -group:2 group=-group"),
    10: ("Queue-End", "queue:8"),
    11: ("Queue-Purge", f"queue:8 -runs:4 -zero:4 ranges[-runs]{RANGES}"),
    12: ("Message-Shape", f"queue:8 position:8 {CONTENT} content=here"),
    13: ("Message", "distance:4 content=*"),
    14: ("Queue-Delivered", "queue:8 -levels:4 -zero:4 levels[-levels](highest:8)"),
}
TRANSACTION_LOG = {
    33: ("Dtx-Start", "-xid:2 xid=-xid"),
    34: ("Tx-Start", ""),
    35: ("Prepare", ""),
    36: ("Commit", COMMIT),
    37: ("Rollback", ""),
    38: ("Delete", ""),
    39: ("End", ""),
    40: (
        "Tx-Copy",
        f"state:1 heuristic:1 ended:1 -flags:1 -xid:2 xid=-xid ~4 {COMMIT} [-sets:4]?-flags [consumer:4]?-flags [sets[-sets]{ROWS}]?-flags",
    ),
    41: ("Heuristic", "outcome:1"),
    42: ("Note", "kind:2 -key:2 -value:4 key=-key value=-value"),
    43: ("Acquire-Set", f"-sets:4 consumer:4 sets[-sets]{ROWS}"),
}
STREAM_LOG = {
    48: ("Stream-Record", "payload=*"),
    49: ("Stream-Base", "base:8"),
    50: ("Stream-Message", f"stream_offset:8 {CONTENT} -filter:2 -zero:2 filter=-filter content=here"),
    51: ("Stream-Chunk", "stream_offset:8 offset:4 content=*"),
    52: ("Stream-Mark", "next_offset:8"),
}
PAGE_LOG = {64: ("Page-Content", MESSAGE_LOG[1][1]), 2: MESSAGE_LOG[2]}
LOG_TYPES = {MESSAGES: MESSAGE_LOG, TRANSACTIONS: TRANSACTION_LOG, PAGES: PAGE_LOG, STREAMS: {**STREAM_LOG, 9: MESSAGE_LOG[9]}}
NAMES = {number: name for types in LOG_TYPES.values() for number, (name, _) in types.items()}
Kind = IntEnum("Kind", {name.replace("-", "_").upper(): number for number, name in NAMES.items()})  # type: ignore[misc]

# words for numbers, by the field's name
WORDS: dict[str, list[str]] = {
    "reason": ["", "ack", "reject", "expire", "drop", "purge", "move"],
    "state": ["", "open", "prepared", "committed", "rolled back"],
    "heuristic": ["none", "committed", "rolled back"],
    "outcome": ["none", "committed", "rolled back"],
}

COMMON = "length:4 crc:4 type:1 stream:1 flags:2 time:4 undo_prev:8"
COMMON_SIZE = 24
# flag -> what it adds to the common part, 8 bytes each
PRESENT = {1: "undo_next", 2: "tx", 4: "expires_ms"}
MESSAGE_ENDS = 8


class Misshapen(ValueError):
    """The bytes are not those of the layout."""


class Record(NamedTuple):
    """A record; times in microseconds, 0 for what is absent. `data`: the bytes of its type's own fields."""

    lsn: int
    type: int
    stream: int
    flags: int
    time_us: int
    undo_prev: int
    undo_next: int
    tx: int
    expires_ms: int
    length: int
    data: bytes

    @property
    def name(self) -> str:
        """The page's name of the type."""
        return NAMES[self.type]


class Place(NamedTuple):
    """A row of a Message-Copy. number: its waiting number, when `position` is 0."""

    queue: int
    position: int
    expires_ms: int
    enqueued_by: int
    dequeued_by: int
    number: int | None


class Decoder:
    """Walks layouts over bytes. `seen` has all integers and bytes so far, those without a place in the result too."""

    def __init__(self, data: bytes) -> None:
        self.left, self.size, self.seen = data, len(data), {}  # type: ignore[var-annotated]

    def cut(self, size: int) -> bytes:
        if size > len(self.left):
            raise Misshapen(f"{size} bytes wanted, {len(self.left)} left")
        piece, self.left = self.left[:size], self.left[size:]
        return piece

    def integers(self, layout: str, separator: str) -> list[int]:
        return [int.from_bytes(self.cut(int(word.partition(":")[2])), "little") for word in layout.split(separator)]

    def walk(self, layout: str) -> dict[str, Any]:
        for word in layout.split():
            optional = re.fullmatch(r"\[(.+)\]\?(\S+)", word)
            if optional is None:
                self.word(word)
            elif self.seen[optional[2]] & 1:
                self.word(optional[1])
        return {name: value for name, value in self.seen.items() if name[0] != "-"}

    def word(self, word: str) -> None:
        listed = re.fullmatch(r"(\w+)\[(\S+)\]\((\S+)\)", word)
        if listed is not None:
            self.seen[listed[1]] = [tuple(self.integers(listed[3], ",")) for _ in range(self.seen[listed[2]])]
        elif word[0] == "~":
            self.cut((len(self.left) - self.size) % int(word[1:]))
        elif "=" in word:
            name, _, counter = word.partition("=")
            size = len(self.left) if counter == "*" else self.seen[counter]
            absent = counter == "-filter" and size == 0xFFFF
            self.seen[name] = None if absent else self.cut(size)
        else:
            (self.seen[word.partition(":")[0]],) = self.integers(word, " ")


def fields_of(record: Record, log: int) -> dict[str, Any]:
    """The record's own fields by name. Raises: Misshapen."""
    types = LOG_TYPES[log]
    if record.type not in types:
        raise Misshapen(f"type {record.type} in log {log}")
    decoder = Decoder(record.data)
    result = decoder.walk(types[record.type][1])
    if decoder.left or (record.type == Kind.MESSAGE_COPY and decoder.seen["-flags"] > 1):
        raise Misshapen(f"{len(decoder.left)} bytes left of {result}")
    if record.type == Kind.MESSAGE_SHAPE and (result["body"] or result["here"] != result["header"] + result["route"]):
        raise Misshapen(f"a shape has a route and a header, all of both, and no body: {result}")
    for field in WORDS.keys() & result.keys():
        number, words = result[field], WORDS[field]
        if field != "reason" and (number >= len(words) or not words[number]):
            raise Misshapen(f"{field} {number}")
        result[field] = words[number] if 0 < number < len(words) or words[0] else f"unknown-{number}"
    return meant(result)


def meant(result: dict[str, Any]) -> dict[str, Any]:
    """What the page's text adds to the columns: waiting numbers, the parts of a content, levels and truth values."""
    if "ended" in result:
        result["ended"] = result["ended"] != 0
    if "levels" in result:
        result["levels"] = [highest for (highest,) in result["levels"]]
    if "place" in result:
        position = result.pop("place")
        result |= {"position": position} if (number := waits(position)) is None else {"position": 0, "number": number}
    if "places" in result:
        numbers = [waits(row[1]) for row in result["places"]]
        result["places"] = [
            Place(queue, position if number is None else 0, *rest, number)
            for (queue, position, *rest), number in zip(result["places"], numbers, strict=True)
        ]
    if "body" in result:
        whole = sum(result[part] for part in ("route", "header", "body"))
        if result["here"] > whole:
            raise Misshapen(f"{result['here']} bytes of a content of {whole}")
        result |= shortstrs(result["content"], result["route"])
    elif "offset" in result:
        result["here"] = len(result["content"])
    elif "distance" in result:
        result["body"] = len(result["content"])
    return result


def in_full(items: Iterable[Any], container_size: int) -> Iterator[Any]:
    """Records of the message log, each Message as the Message-Start and the Message-Enqueue that it stands for; what is no record stays.

    Raises: Misshapen: a Message names no Message-Shape of its container.
    """
    shapes: dict[int, tuple[Record, dict[str, Any]]] = {}
    for item in items:
        if getattr(item, "type", None) == Kind.MESSAGE_SHAPE:
            shapes[item.lsn] = (item, fields_of(item, MESSAGES))
        if getattr(item, "type", None) != Kind.MESSAGE:
            yield item
            continue
        if item.undo_prev not in shapes or item.undo_prev // container_size != item.lsn // container_size:
            raise Misshapen(f"the message at {item.lsn} names a shape at {item.undo_prev}, and there is none in its container")
        shape, values = shapes[item.undo_prev]
        own = fields_of(item, MESSAGES)
        head, run = shape.data[16:32], shape.data[32:]
        content = own["body"].to_bytes(4, "little") + head[4:12] + (len(run) + own["body"]).to_bytes(4, "little") + run + own["content"]
        place = shape.data[:8] + (values["position"] + own["distance"]).to_bytes(8, "little")
        yield item._replace(type=1, undo_prev=0, expires_ms=0, data=content)
        yield item._replace(type=4, undo_prev=item.lsn, length=0, data=place)


def waits(position: int) -> int | None:
    """The waiting number in a position's field: bits 32 to 63 are set."""
    high, low = divmod(position, 1 << 32)
    return low if high == (1 << 32) - 1 else None


def shortstrs(content: bytes, size: int) -> dict[str, bytes]:
    """Exchange and routing key, two shortstrs; nothing when they are not whole in this record, or do not fill the route."""
    match = re.fullmatch(rb"(.)(.*)", content[:size], re.DOTALL)
    if match is None or len(content) < size or len(match[2]) <= match[1][0]:
        return {}
    exchange, (length, *_), key = match[2][: match[1][0]], match[2][match[1][0] :], match[2][match[1][0] + 1 :]
    return {"exchange": exchange, "routing_key": key} if length == len(key) else {}


def content_parts(values: dict[str, Any]) -> tuple[bytes, bytes]:
    """(content header, body) as far as the record has them."""
    behind_route, header = values["content"][values["route"] :], values["header"]
    return behind_route[:header], behind_route[header:]


def padded(size: int, step: int) -> int:
    """The next multiple of step."""
    return size + -size % step


def read_record(data: bytes, at: int, end: int, lsn: int, time_base: int) -> Record | str:
    """Checks and takes apart the record at data[at:end].

    Args: lsn: the address of data[at]; time_base: that of the record's block.
    Returns: the record, or why there is none.
    """
    head = Decoder(data[at : min(at + 2 * COMMON_SIZE, end)])
    try:
        common = head.walk(COMMON)
        own = COMMON_SIZE + sum(8 for flag in PRESENT if common["flags"] & flag)
        if common["flags"] >= 2 * MESSAGE_ENDS or not own <= common["length"] <= end - at:
            return f"{common['length']} bytes with flags {common['flags']} are no record in {end - at} bytes"
        present = {name: head.integers("value:8", " ")[0] for flag, name in PRESENT.items() if common["flags"] & flag}
    except Misshapen as error:
        return f"no room for a record: {error}"
    whole = data[at : at + common["length"]]
    if crc32c(whole[:4] + bytes(4) + whole[8:], crc32c(lsn.to_bytes(8, "little"))) != common["crc"]:
        return f"checksum {common['crc']:08x} is not that of a {NAMES.get(common['type'], 'record')} at {lsn}"
    values = dict.fromkeys(PRESENT.values(), 0) | present
    values |= {"time_us": time_base + common["time"], "data": whole[own:], "lsn": lsn}
    return Record(**values, **{name: common[name] for name in ("type", "stream", "flags", "undo_prev", "length")})
