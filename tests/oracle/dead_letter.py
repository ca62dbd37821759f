"""The headers of a dead letter in plain Python, as protocol/v0_9_1/death.py makes them: what its tests compare it with.

Written from RabbitMQ's rabbit_dead_letter.erl, rabbit_basic.erl (prepend_table_header) and rabbit_misc.erl (sort_field_table), 3.10.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter

from flintmq.config import Limits
from flintmq.errors import PeerError
from flintmq.protocol.v0_9_1.splice import (
    array_field,
    field_integer,
    field_text,
    join_table,
    long_field,
    longstr_field,
    split_array,
    split_table,
    table_field,
)

REJECTED = "rejected"

# (name, value with its type octet), as on the wire
Fields = list[tuple[bytes, bytes]]

_BY_NAME = itemgetter(0)
DEATHS_BYTES_MAX = Limits().dead_letter_deaths_bytes_max
# What clients have put into x-death is put in order (one table for a queue and reason, no other types) while it has so few items; an array
# that is no list of tables and has more of them is set anew.
TIDY_MAX = 8
_REJECTED = longstr_field(REJECTED.encode())


@dataclass(frozen=True, slots=True)
class Deaths:
    """An x-death, most recent first. items: an array without its length; cut: it has lost its oldest tables."""

    items: bytes
    cut: bool = False

    def is_cycle(self, queue: bytes) -> bool:
        """Whether going (back) to `queue` would close a loop without a client in it.

        True when the message died in `queue` before and none of the deaths since then, that one included, was a reject: nothing but the
        broker moves it round, so it is dropped there. O(1) unless it was there.
        """
        name = longstr_field(queue)
        place = find_table(self.items, b"queue", name) if b"\5queue" + name in self.items else None
        if place is None and not self.cut:
            return False
        reject = find_table(self.items, b"reason", _REJECTED) if b"\6reason" + _REJECTED in self.items else None
        return reject is None or (place is not None and place[0] < reject[0])


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What to publish to the dead-letter exchange. The expiration property is to be removed: the message must not expire again.

    headers: a table without its length; deaths: its x-death.
    """

    headers: bytes
    routing_keys: tuple[bytes, ...]
    deaths: Deaths


def dead_letter_headers(
    headers: bytes,
    *,
    queue: bytes,
    reason: str,
    exchange: bytes,
    routing_key: bytes,
    time_s: int,
    expiration: bytes | None = None,
    dead_letter_routing_key: bytes | None = None,
) -> DeadLetter:
    """Headers and routing keys of a message that died. O(fields of the headers), and copies of their bytes.

    Args: headers: the message's, a table without its length; queue: where it died; reason: one of the constants above; exchange,
    routing_key: as it was published; time_s: Unix time; expiration: its property, if set; dead_letter_routing_key: the queue's, replaces
    all keys and drops CC. An x-death that is no array is replaced; what a client put into one that is no table is left out.
    Raises: PeerError when the headers are malformed.
    """
    fields = split_table(headers)
    reason_octets = reason.encode()
    carbon_copies = _keys_of(_value(fields, b"CC"))
    info: Fields = [
        (b"reason", longstr_field(reason_octets)),
        (b"queue", longstr_field(queue)),
        (b"time", timestamp_field(time_s)),
        (b"exchange", longstr_field(exchange)),
        (b"routing-keys", array_field([longstr_field(key) for key in (routing_key, *carbon_copies)])),
    ]
    if expiration is not None:
        info.append((b"original-expiration", longstr_field(expiration)))
    value = _value(fields, b"x-death")
    if value is None:
        for name, octets in ((b"reason", reason_octets), (b"queue", queue), (b"exchange", exchange)):
            _store(fields, b"x-first-death-" + name, longstr_field(octets))
    before = read_deaths(value)
    place = known_death(before, longstr_field(queue), longstr_field(reason_octets))
    if place is None:
        death = [(b"count", long_field(1)), *info]
    else:
        death = _counted(split_table(before[place[0] + 5 : place[1]]))
        before = before[: place[0]] + before[place[1] :]
    if value is not None:
        death.sort(key=_BY_NAME)
    deaths = _with(table_field(death), before)
    _store(fields, b"x-death", array_field([deaths.items]))
    keys = (routing_key, *carbon_copies)
    if dead_letter_routing_key is not None:
        keys = (dead_letter_routing_key,)
        fields = [field for field in fields if field[0] != b"CC"]
    fields.sort(key=_BY_NAME)
    return DeadLetter(join_table(fields), keys, deaths)


def timestamp_field(seconds: int) -> bytes:
    return b"T" + seconds.to_bytes(8, "big")


def _has(table: bytes, name: bytes, value: bytes) -> bool:
    """Whether the first field of that name has the value; fields in front of malformed bytes count."""
    for end in range(len(table), -1, -1):
        try:
            fields = split_table(table[:end])
        except PeerError:
            continue
        return _value(fields, name) == value
    return False


def find_table(items: bytes, name: bytes, value: bytes, other: bytes = b"", other_value: bytes = b"") -> tuple[int, int] | None:
    """(start, end) of the first table in which two fields have these values. Raises: PeerError."""
    start = 0
    for item in split_array(items):
        end = start + len(item)
        if item[:1] == b"F" and _has(item[5:], name, value) and (not other or _has(item[5:], other, other_value)):
            return start, end
        start = end
    return None


def tables_within(items: bytes, most: int) -> tuple[int, int, bool]:
    """(count, bytes) of the first items that fit into `most` bytes, and whether all of these are tables. Raises: PeerError."""
    count = size = 0
    tables = True
    for item in split_array(items):
        if size + len(item) > most:
            break
        count, size, tables = count + 1, size + len(item), tables and item[:1] == b"F"
    return count, size, tables


def read_deaths(value: bytes | None) -> bytes:
    """The tables in a value of x-death, most recent first; what a client put there that is no table is left out."""
    if value is None or value[:1] != b"A":
        return b""
    items = value[5:]
    try:
        count, _, tables = tables_within(items, len(items))
        if count <= TIDY_MAX:
            return _tidy(items)
    except PeerError:
        return b""  # as an x-death of another type: it is set anew
    return items if tables else b""


def _tidy(items: bytes) -> bytes:
    """One table for each (queue, reason): the first; clients that copy headers may have repeated them. Raises: PeerError."""
    first: dict[tuple[bytes | None, bytes | None], bytes] = {}
    for item in split_array(items):
        if item[:1] == b"F":
            fields = split_table(item[5:])
            first.setdefault((_text(fields, b"queue"), _text(fields, b"reason")), item)
    return b"".join(first.values())


def known_death(items: bytes, queue: bytes, reason: bytes) -> tuple[int, int] | None:
    """(start, end) of the table of that queue and reason (values with their type octets), if the message died so before."""
    return find_table(items, b"queue", queue, b"reason", reason) if b"\5queue" + queue in items else None


def _with(death: bytes, before: bytes) -> Deaths:
    """The deaths before, and one more (D2)."""
    room = max(0, DEATHS_BYTES_MAX - len(death))
    if len(before) <= room:
        return Deaths(death + before)
    return Deaths(death + before[: tables_within(before, room)[1]], True)


def _value(fields: Fields, name: bytes) -> bytes | None:
    """The value of the first field of that name: of names that a table repeats the first counts."""
    for key, value in fields:
        if key == name:
            return value
    return None


def _text(fields: Fields, name: bytes) -> bytes | None:
    value = _value(fields, name)
    return None if value is None else field_text(value)


def _store(fields: Fields, name: bytes, value: bytes) -> None:
    """Replaces the first field of that name, or adds one."""
    for index, (known, _) in enumerate(fields):
        if known == name:
            fields[index] = (name, value)
            return
    fields.append((name, value))


def _counted(death: Fields) -> Fields:
    """The same death once more. A count that is no number, which a client made up, starts again at 1; the count saturates."""
    value = _value(death, b"count")
    count = None if value is None else field_integer(value)
    result = list(death)
    _store(result, b"count", long_field(1 if count is None else count + 1))
    return result


def _keys_of(value: bytes | None) -> list[bytes]:
    """Routing keys of a CC header; anything but strings is left out."""
    if value is None or value[:1] != b"A":
        return []
    return [key for item in split_array(value[5:]) if (key := field_text(item)) is not None]
