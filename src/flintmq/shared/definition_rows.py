"""The rows that say what is defined on all nodes of an engine (docs/adr/0015): one row for each definition.

in: records of ports.py. out: keys by kind and names; values that are JSON; all rows, in pages.

D1  A row has a token, which each write renews. So a commit that compares rows decides which change is the last, and one that arrives late
    changes nothing.
D2  Things on which others hang (virtual host, user, exchange, queue) have a life, which a new one of the name does not share. A row names
    the lives on which it hangs: it is void when one of them is over. So the end of a thing is one row, and nothing of it comes back.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from flintmq.engines.engine import Engine, Range, Row
from flintmq.errors import PeerError
from flintmq.ports import (
    BindingRecord,
    ExchangeRecord,
    LimitsRecord,
    ParameterRecord,
    PermissionRecord,
    UserRecord,
    VhostRecord,
    freeze,
)
from flintmq.protocol.v0_9_1.tables import decode_table, encode_table
from flintmq.shared.queue_rows import QueueRow, all_queues, names_of, queue_key

# bytes of a token, of a life, and of the hash that tells bindings of one exchange apart
_TOKEN_BYTES = 8
_HASH_BYTES = 16
_LENGTH = struct.Struct(">H")
_PREFIX = b"d/"
# the row that says who wrote the first definitions of an engine
MADE = b"d/made"
# exchanges that each virtual host has from its start: no rows say so
_PREDECLARED = "amq."
# components of parameters that all nodes share. Others belong to their node: links, which would run once on each, and what a node keeps for
# itself
TOPIC, METADATA, GLOBAL = "topic-permission", "vhost-metadata", "global"
COMPONENTS = frozenset({"policy", "operator_policy", TOPIC, METADATA, GLOBAL})


@dataclass(frozen=True, slots=True)
class SharedQueue:
    """A shared queue; its row has its arguments, and its life as id."""

    vhost: str
    name: str
    row: QueueRow


Record = (
    VhostRecord | UserRecord | PermissionRecord | LimitsRecord | ParameterRecord | ExchangeRecord | BindingRecord | SharedQueue
)  # fmt: skip


class _Kind(NamedTuple):
    """letter: of its keys; rank: kinds on which it hangs have lower ones; lives: others hang on it; names: of the key; parents: keys of the
    rows on which it hangs."""

    letter: bytes
    rank: int
    lives: bool
    names: Callable[[Any], Iterable[str | bytes]]
    parents: Callable[[Any], tuple[bytes, ...]]


def _bytes(name: str | bytes) -> bytes:
    return name if isinstance(name, bytes) else name.encode("utf-8", "surrogatepass")


def _key(letter: bytes, names: Iterable[str | bytes]) -> bytes:
    return _PREFIX + letter + b"/" + b"".join(_LENGTH.pack(len(part)) + part for part in map(_bytes, names))


def _vhost(name: str) -> bytes:
    return _key(b"v", (name,))


def _user(name: str) -> bytes:
    return _key(b"u", (name,))


def _exchange(vhost: str, name: str) -> tuple[bytes, ...]:
    return () if is_predeclared(name) else (_key(b"x", (vhost, name)),)


def is_predeclared(exchange: str) -> bool:
    """Whether each virtual host has an exchange of that name, or none can."""
    return not exchange or exchange.startswith(_PREDECLARED)


def _binding_names(record: BindingRecord) -> tuple[str | bytes, ...]:
    frozen = freeze(record.arguments) if record.arguments else None
    return record.vhost, record.source, _hash([record.destination_kind, record.destination, record.routing_key, frozen])


def _hash(identity: list[Any]) -> bytes:
    """Of kind and name of the destination, routing key, frozen arguments (None: there are none)."""
    return hashlib.sha256(repr(identity).encode("utf-8", "surrogatepass")).digest()[:_HASH_BYTES]


def _binding_parents(record: BindingRecord) -> tuple[bytes, ...]:
    end = (
        (queue_key(record.vhost, record.destination),)
        if record.destination_kind == "queue"
        else _exchange(record.vhost, record.destination)
    )
    return (_vhost(record.vhost), *_exchange(record.vhost, record.source), *end)


def _parameter_parents(record: ParameterRecord) -> tuple[bytes, ...]:
    if not record.vhost:
        return ()
    if record.component == TOPIC:
        return _vhost(record.vhost), _user(str(json.loads(record.name)[0]))
    return (_vhost(record.vhost),)


_KINDS: dict[type, _Kind] = {
    VhostRecord: _Kind(b"v", 0, True, lambda one: (one.name,), lambda one: ()),
    UserRecord: _Kind(b"u", 1, True, lambda one: (one.name,), lambda one: ()),
    LimitsRecord: _Kind(
        b"l", 2, False, lambda one: (one.kind, one.name), lambda one: (_user(one.name) if one.kind == "user" else _vhost(one.name),)
    ),
    PermissionRecord: _Kind(b"p", 3, False, lambda one: (one.vhost, one.user), lambda one: (_vhost(one.vhost), _user(one.user))),
    ParameterRecord: _Kind(b"a", 4, False, lambda one: (one.vhost, one.component, one.name), _parameter_parents),
    ExchangeRecord: _Kind(b"x", 5, True, lambda one: (one.vhost, one.name), lambda one: (_vhost(one.vhost),)),
    SharedQueue: _Kind(b"q", 6, True, lambda one: (one.vhost, one.name), lambda one: (_vhost(one.vhost),)),
    BindingRecord: _Kind(b"b", 7, False, _binding_names, _binding_parents),
}
_OF_LETTER = {kind.letter: (record, kind) for record, kind in _KINDS.items()}


def key_of(record: Record) -> bytes:
    """The key of a record's row: of all records with its identity."""
    if isinstance(record, SharedQueue):
        return queue_key(record.vhost, record.name)
    kind = _KINDS[type(record)]
    return _key(kind.letter, kind.names(record))


def key_of_name(vhost: str, name: Any) -> bytes | None:
    """The key of a thing by the name that verbs of a virtual host reserve: (kind, name), or the identity of a binding. None: a queue."""
    if len(name) > 2:
        source, *identity = name
        return _key(b"b", (vhost, source, _hash(identity)))
    kind, text = name
    return _key(b"x", (vhost, text)) if kind == "exchange" else None


def rank_of(key: bytes) -> int:
    """Rows hang on rows of lower ranks alone."""
    known = _OF_LETTER.get(key[len(_PREFIX) : len(_PREFIX) + 1])
    return len(_KINDS) if known is None else known[1].rank


def has_life(record: Record) -> bool:
    """Whether other rows hang on it (D2)."""
    return _KINDS[type(record)].lives


def parents_of(record: Record) -> tuple[bytes, ...]:
    """Keys of the rows on which its row hangs. Those of queues are the queues' own."""
    return _KINDS[type(record)].parents(record)


def new_token() -> str:
    """Of a row, or of a life."""
    return secrets.token_hex(_TOKEN_BYTES)


def mark_key(node: str) -> bytes:
    """A row beside the definitions, which each commit of a node replaces."""
    return b"w/" + node.encode()


def all_rows() -> Range:
    """All definitions, those of shared queues included."""
    return _PREFIX, _PREFIX[:-1] + b"0"


# --- values -------------------------------------------------------------------------------------------------------------

# how a field of a record stands in JSON, where it does not stand as it is: out, in
_FORMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "arguments": (lambda table: base64.b64encode(encode_table(dict(table))).decode(), lambda text: _table(text)),
    "routing_key": (lambda key: base64.b64encode(key).decode(), lambda text: base64.b64decode(text, validate=True)),
    "tags": (list, lambda tags: tuple(map(str, tags))),
    "limits": (dict, lambda limits: {str(name): int(limit) for name, limit in limits.items()}),
}
_TYPES = {"auto_delete": bool, "internal": bool, "value": object}


def _table(text: str) -> dict[str, Any]:
    table: dict[str, Any] = decode_table(base64.b64decode(text, validate=True))
    return table


@dataclass(frozen=True, slots=True)
class DefinitionRow:
    """token: D1; life, "": nothing hangs on it; of: the lives on which it hangs (D2), in the order of `parents_of`."""

    record: Record
    token: str
    life: str = ""
    of: tuple[str, ...] = ()

    def pack(self) -> bytes:
        """Raises: ValueError, TypeError: arguments that no table can hold."""
        record = {}
        for one in fields(self.record):
            value = getattr(self.record, one.name)
            record[one.name] = _FORMS[one.name][0](value) if one.name in _FORMS else value
        row = {"is": record, "life": self.life, "of": list(self.of), "token": self.token}
        return json.dumps(row, sort_keys=True, separators=(",", ":")).encode()


def unpack(key: bytes, value: bytes) -> DefinitionRow:
    """The row of a key. Raises: ValueError: a later version wrote it, or it is damaged; the text has nothing of its value."""
    try:
        begin, end = all_queues()
        if begin <= key < end:
            queue = QueueRow.unpack(value)
            return DefinitionRow(SharedQueue(*names_of(key), queue), queue.id.decode(), queue.id.decode())
        made = _OF_LETTER[key[len(_PREFIX) : len(_PREFIX) + 1]][0]
        row = json.loads(value)
        record = made(**{one.name: _field(one.name, row["is"][one.name]) for one in fields(made)})
        if key_of(record) != key:
            raise ValueError("another key")
        return DefinitionRow(record, _text(row["token"]), _text(row["life"]), tuple(map(_text, row["of"])))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, struct.error, RecursionError, PeerError):
        raise ValueError(f"the row of a definition can't be read: {key[:80]!r}") from None


def _field(name: str, value: Any) -> Any:
    if name in _FORMS:
        return _FORMS[name][1](value)
    if not isinstance(value, _TYPES.get(name, str)):
        raise ValueError(name)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")
    return value


async def read_pages(engine: Engine, rows: int, size: int) -> AsyncIterator[list[Row]]:
    """All rows but MADE, in pages of at most `rows`, and no more after `size` bytes. The pages are of several moments (E3 of the port).

    Raises: Unavailable.
    """
    begin, end = all_rows()
    while True:
        page = await engine.scan(begin, end, rows, size)
        if not page:
            return
        begin = page[-1][0] + b"\0"
        yield [(key, value) for key, value in page if key != MADE]


def describe(record: Record) -> str:
    """For people: kind and names, nothing else."""
    if isinstance(record, VhostRecord):
        return f"vhost '{record.name}'"
    if isinstance(record, UserRecord):
        return f"user '{record.name}'"
    if isinstance(record, LimitsRecord):
        return f"limits of {record.kind} '{record.name}'"
    where = f"in vhost '{record.vhost}'"
    if isinstance(record, PermissionRecord):
        return f"permissions of user '{record.user}' {where}"
    if isinstance(record, ParameterRecord):
        return f"{record.component} '{record.name}' {where}" if record.vhost else f"{record.component} parameter '{record.name}'"
    if isinstance(record, BindingRecord):
        return f"a binding of {record.destination_kind} '{record.destination}' to exchange '{record.source}' {where}"
    return f"{'exchange' if isinstance(record, ExchangeRecord) else 'shared queue'} '{record.name}' {where}"
