"""The rows that say which shared queues there are (docs/adr/0015): virtual host and name -> id, arguments.

in: declarations and deletions. out: the queue's row, with the id under which its other rows stand.

Q1  A name is one queue's. Who declares it first decides id and arguments; a deletion and a new declaration make another id.
Q2  A deletion takes all rows of the queue with its name in one commit: its owner is fenced, and no row is left.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flintmq.engines.engine import Commit, Engine, Range, UnknownOutcome
from flintmq.protocol.v0_9_1.tables import decode_table, encode_table
from flintmq.shared.layout import new_id, owner_key, rows_of

_PREFIX = b"d/q/"
_VHOST = struct.Struct(">H")


class NotThere(Exception):
    """There is no such queue, or another one of that name."""


@dataclass(frozen=True, slots=True)
class QueueRow:
    """id: of this life of the queue, 16 characters."""

    id: bytes
    arguments: Mapping[str, Any]

    def pack(self) -> bytes:
        table = base64.b64encode(encode_table(dict(self.arguments))).decode()
        return json.dumps({"id": self.id.decode(), "arguments": table}, sort_keys=True).encode()

    @staticmethod
    def unpack(value: bytes) -> QueueRow:
        """Raises: ValueError."""
        try:
            row = json.loads(value)
            return QueueRow(row["id"].encode(), decode_table(base64.b64decode(row["arguments"], validate=True)))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"a row of a shared queue's definition can't be read: {value[:80]!r}") from error


def _text(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def queue_key(vhost: str, name: str) -> bytes:
    return queues_of(vhost)[0] + _text(name)


def queues_of(vhost: str) -> Range:
    """All queues of a virtual host."""
    prefix = _PREFIX + _VHOST.pack(len(_text(vhost))) + _text(vhost)
    return prefix, prefix + b"\xff"


def all_queues() -> Range:
    return _PREFIX, _PREFIX[:-1] + b"0"


def names_of(key: bytes) -> tuple[str, str]:
    """(virtual host, name) of a key."""
    behind = len(_PREFIX) + _VHOST.size
    end = behind + int(_VHOST.unpack_from(key, len(_PREFIX))[0])
    return key[behind:end].decode("utf-8", "surrogateescape"), key[end:].decode("utf-8", "surrogateescape")


async def read(engine: Engine, vhost: str, name: str) -> QueueRow | None:
    """None: there is no such queue. Raises: Unavailable; ValueError: its row can't be read."""
    (value,) = await engine.get([queue_key(vhost, name)])
    return None if value is None else QueueRow.unpack(value)


async def declare(engine: Engine, vhost: str, name: str, arguments: Mapping[str, Any]) -> tuple[QueueRow, bool]:
    """The queue's row, and whether this call made it. The caller compares its arguments. Raises: EngineError, ValueError."""
    key = queue_key(vhost, name)
    row = QueueRow(new_id(), dict(arguments))
    while True:
        known = await read(engine, vhost, name)
        if known is not None:
            return known, False
        try:
            if await engine.commit(Commit([(key, None)], {key: row.pack()})):
                return row, True
        except UnknownOutcome:
            if (await read(engine, vhost, name)) != row:
                raise
            return row, True


async def remove(engine: Engine, vhost: str, name: str, row: QueueRow) -> None:
    """Deletes the queue with all its rows (Q2). Raises: NotThere; EngineError."""
    key = queue_key(vhost, name)
    commit = Commit([(key, row.pack())], deletes=[key, owner_key(row.id)], clears=[rows_of(row.id)])
    try:
        if await engine.commit(commit):
            return
    except UnknownOutcome:
        if (await read(engine, vhost, name)) == row:
            raise
        return
    raise NotThere(f"there is no such queue any more: {name!r} in vhost {vhost!r}")
