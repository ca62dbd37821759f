"""The messages of etcd's API (packages etcdserverpb and mvccpb) that the engine needs, in protobuf's encoding.

in: keys, values, numbers. out: bytes of requests; fields of answers. Numbers of fields are those of etcd's public rpc.proto and kv.proto.
By hand, because fifteen messages are smaller than a code generator's output with its run-time package, whose versions Spark pins, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

RANGE = "/etcdserverpb.KV/Range"
TXN = "/etcdserverpb.KV/Txn"
COMPACT = "/etcdserverpb.KV/Compact"
WATCH = "/etcdserverpb.Watch/Watch"
AUTHENTICATE = "/etcdserverpb.Auth/Authenticate"
ALARM = "/etcdserverpb.Maintenance/Alarm"
STATUS = "/etcdserverpb.Maintenance/Status"
DEFRAGMENT = "/etcdserverpb.Maintenance/Defragment"

NOSPACE = 1  # AlarmType
_VARINT, _BYTES = 0, 2  # wire types
_DESCEND = 2
_DEACTIVATE = 2
_VALUE = 3  # CompareTarget; VERSION is 0


# --- encoding ---------------------------------------------------------------------------------------------------------
def _varint(number: int) -> bytes:
    """A number from 0 to 2**64 - 1."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _number(index: int, number: int) -> bytes:
    return _varint(index << 3 | _VARINT) + _varint(number)


def _bytes(index: int, value: bytes) -> bytes:
    return b"".join((_varint(index << 3 | _BYTES), _varint(len(value)), value))


def _bounds(begin: bytes, end: bytes) -> bytes:
    """key and range_end. An end that is sent empty is a range to etcd, not one key."""
    return _bytes(1, begin) + (_bytes(2, end) if end else b"")


def read(begin: bytes, end: bytes = b"", limit: int = 0, revision: int = 0, reverse: bool = False) -> bytes:
    """RangeRequest. end: b"": this one key; limit: rows, 0: all; revision: 0: the newest."""
    order = _number(5, _DESCEND) if reverse else b""  # ascending is etcd's own order, and the cheap one
    return b"".join((_bounds(begin, end), _number(3, limit), _number(4, revision), order))


def compare(key: bytes, value: bytes | None) -> bytes:
    """Compare: the key has this value; None: there is no such key (version 0)."""
    if value is None:
        return _bytes(3, key) + _number(4, 0)
    return b"".join((_number(2, _VALUE), _bytes(3, key), _bytes(7, value)))


def read_step(request: bytes) -> bytes:
    """RequestOp of a RangeRequest."""
    return _bytes(1, request)


def put_step(key: bytes, value: bytes) -> bytes:
    """RequestOp of a PutRequest."""
    return _bytes(2, _bytes(1, key) + _bytes(2, value))


def delete_step(begin: bytes, end: bytes = b"") -> bytes:
    """RequestOp of a DeleteRangeRequest. end: b"": this one key."""
    return _bytes(3, _bounds(begin, end))


def transaction(compares: Iterable[bytes], steps: Iterable[bytes]) -> bytes:
    """TxnRequest."""
    return b"".join((*(_bytes(1, one) for one in compares), *(_bytes(2, step) for step in steps)))


def watch(begin: bytes, end: bytes) -> bytes:
    """WatchRequest: changes from now on, large revisions in fragments."""
    return _bytes(1, _bounds(begin, end) + _number(8, 1))


def compaction(revision: int, physical: bool) -> bytes:
    """CompactionRequest. physical: it is answered when the rows are gone from the file, which may take seconds."""
    return _number(1, revision) + _number(2, int(physical))


def login(user: str, password: str) -> bytes:
    """AuthenticateRequest."""
    return _bytes(1, user.encode()) + _bytes(2, password.encode())


def disarm(member: int) -> bytes:
    """AlarmRequest that ends an alarm for lack of space. An empty one asks for the alarms."""
    return b"".join((_number(1, _DEACTIVATE), _number(2, member), _number(3, NOSPACE)))


# --- decoding ---------------------------------------------------------------------------------------------------------
def _fields(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """(number of the field, its number, its bytes). Raises: ValueError: it is no protobuf message."""
    offset, size = 0, len(data)
    try:
        while offset < size:
            tag, offset = _read_varint(data, offset)
            kind = tag & 7
            if kind == _VARINT:
                number, offset = _read_varint(data, offset)
                yield tag >> 3, number, data[:0]
                continue
            if kind == _BYTES:
                length, offset = _read_varint(data, offset)
            elif kind in (1, 5):  # fixed numbers, which no field we know has
                length = 8 if kind == 1 else 4
            else:
                raise ValueError(f"protobuf wire type {kind}")
            if offset + length > size:
                raise ValueError("a protobuf field is cut off")
            yield tag >> 3, 0, data[offset : offset + length]
            offset += length
    except IndexError:
        raise ValueError("a protobuf message is cut off") from None


def _read_varint(data: memoryview, offset: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, offset
        shift += 7
        if shift > 63:
            raise ValueError("a protobuf number is too long")


def _revision(header: memoryview) -> int:
    return next((number for index, number, _ in _fields(header) if index == 3), 0)


def _key_value(data: memoryview) -> tuple[bytes, bytes]:
    key = value = b""
    for index, _, part in _fields(data):
        if index == 1:
            key = bytes(part)
        elif index == 5:
            value = bytes(part)
    return key, value


@dataclass(slots=True)
class RangeAnswer:
    """more: the limit cut it."""

    revision: int = 0
    rows: list[tuple[bytes, bytes]] = field(default_factory=list)
    more: bool = False


def range_answer(data: bytes | memoryview) -> RangeAnswer:
    """RangeResponse."""
    answer = RangeAnswer()
    for index, number, part in _fields(memoryview(data)):
        if index == 1:
            answer.revision = _revision(part)
        elif index == 2:
            answer.rows.append(_key_value(part))
        elif index == 3:
            answer.more = bool(number)
    return answer


def transaction_answer(data: bytes) -> tuple[bool, list[RangeAnswer]]:
    """TxnResponse: whether it succeeded; the answers of its reads."""
    succeeded = False
    reads: list[RangeAnswer] = []
    for index, number, part in _fields(memoryview(data)):
        if index == 2:
            succeeded = bool(number)
        elif index == 3:
            reads += [range_answer(inner) for kind, _, inner in _fields(part) if kind == 1]
    return succeeded, reads


@dataclass(slots=True)
class WatchAnswer:
    """reason: of a watch that etcd cancelled."""

    created: bool = False
    canceled: bool = False
    reason: str = ""
    keys: list[bytes] = field(default_factory=list)


def watch_answer(data: bytes) -> WatchAnswer:
    """WatchResponse, or a fragment of one."""
    answer = WatchAnswer()
    for index, number, part in _fields(memoryview(data)):
        if index == 3:
            answer.created = bool(number)
        elif index == 4:
            answer.canceled = bool(number)
        elif index == 6:
            answer.reason = str(part, "utf-8", "replace")
        elif index == 11:
            answer.keys += [_key_value(inner)[0] for kind, _, inner in _fields(part) if kind == 2]
    return answer


@dataclass(slots=True)
class StatusAnswer:
    """Of one member. bytes: of its file; bytes_max: its quota, 0: it does not say (before etcd 3.6)."""

    version: str = ""
    bytes: int = 0
    bytes_max: int = 0


def status_answer(data: bytes) -> StatusAnswer:
    """StatusResponse."""
    answer = StatusAnswer()
    for index, number, part in _fields(memoryview(data)):
        if index == 2:
            answer.version = str(part, "utf-8", "replace")
        elif index == 3:
            answer.bytes = number
        elif index == 12:
            answer.bytes_max = number
    return answer


def alarm_answer(data: bytes) -> list[int]:
    """AlarmResponse: the members that stand under an alarm for lack of space."""
    members: list[int] = []
    for index, _, part in _fields(memoryview(data)):
        if index == 2:
            numbers = {inner: number for inner, number, _ in _fields(part)}
            if numbers.get(2) == NOSPACE:
                members.append(numbers.get(1, 0))
    return members


def token_answer(data: bytes) -> str:
    """AuthenticateResponse."""
    return next((str(part, "utf-8") for index, _, part in _fields(memoryview(data)) if index == 2), "")
