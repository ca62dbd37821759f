"""Definitions of shared queues in the engine: which queues there are, with their arguments, and which bindings lead to them.

in: bindings as rows; ids of lives that are known. out: all definitions at one version; a watch of the next change.

E1  What `read` returns was true at one moment: it is one snapshot.
E2  A binding is a row of its queue's life: it ends with the queue, and none is written for a queue that is gone.
E3  A change of definitions writes a token (`note_change`). A reader that finds its last token again needs to read nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from flintmq.kv.engine import Engine, Transaction, Watch
from flintmq.shared.keys import BINDINGS, CHANGED, DEFINITIONS, ID_BYTES, QueueKeys, after, defined
from flintmq.shared.queue import QueueGone, attempt, note_change

# bytes of the hash that names a binding
HASH_BYTES = 16
# rows that are read at once
_ROWS_AT_ONCE = 500


@dataclass(slots=True)
class Directory:
    """All definitions at one version.

    lives: (virtual host, name) -> id of the life; arguments: of lives that were not known, as they were declared, b"": the queue is from
    a version that did not write them; bindings: id of a life -> hash -> row; a life that is not in it is from a version that kept
    bindings in its nodes.
    """

    token: bytes = b""
    lives: dict[tuple[str, str], bytes] = field(default_factory=dict)
    arguments: dict[bytes, bytes] = field(default_factory=dict)
    bindings: dict[bytes, dict[bytes, bytes]] = field(default_factory=dict)


def binding_hash(identity: bytes) -> bytes:
    """The name of a binding in its queue, by the bytes of all that tells it from others."""
    return hashlib.sha256(identity).digest()[:HASH_BYTES]


def read_arguments(engine: Engine, keys: QueueKeys) -> bytes:
    """The arguments with which a queue was made; b"": they are not known."""
    transaction = engine.begin()
    try:
        return (transaction.get(keys.alive, snapshot=True) or b"").partition(b"\0")[2]
    finally:
        transaction.close()


def read(
    engine: Engine, token: bytes | None, known: Collection[bytes], on_change: Callable[[], None] | None
) -> tuple[Directory | None, Watch | None]:
    """The definitions, None: they are those of `token`; and a watch of the next change, when `on_change` is given. O(definitions).

    Args: known: lives whose arguments are not needed. Raises: EngineError.
    """
    transaction = engine.begin()
    try:
        now = transaction.get(CHANGED, snapshot=True) or b""
        directory = None if now == token else _read_all(transaction, now, known)
        watch = None if on_change is None else transaction.watch(CHANGED, on_change)
        transaction.commit()
        return directory, watch
    finally:
        transaction.close()


def _rows(transaction: Transaction, prefix: bytes) -> list[tuple[bytes, bytes]]:
    rows: list[tuple[bytes, bytes]] = []
    begin, end = prefix, after(prefix)
    while part := transaction.range(begin, end, _ROWS_AT_ONCE, snapshot=True):
        rows += part
        begin = part[-1][0] + b"\0"
        if len(part) < _ROWS_AT_ONCE:
            break
    return rows


def _read_all(transaction: Transaction, token: bytes, known: Collection[bytes]) -> Directory:
    directory = Directory(token)
    for key, life in _rows(transaction, DEFINITIONS):
        try:
            directory.lives[defined(key)] = life
        except ValueError:  # a later version's, perhaps: the others count
            continue
        if life not in known:
            directory.arguments[life] = (transaction.get(QueueKeys(life).alive, snapshot=True) or b"").partition(b"\0")[2]
    for key, row in _rows(transaction, BINDINGS):
        life, name = key[len(BINDINGS) :][:ID_BYTES], key[len(BINDINGS) + ID_BYTES :]
        rows = directory.bindings.setdefault(life, {})
        if name:
            rows[name] = row
    return directory


def write_binding(engine: Engine, keys: QueueKeys, name: bytes, row: bytes | None, patience_ms: int) -> None:
    """Writes a binding, or ends it (`row` None). Twice is no harm. Raises: QueueGone; EngineError."""

    def body(transaction: Transaction) -> None:
        if transaction.get(keys.alive) is None:
            raise QueueGone("the queue was deleted")
        if row is None:
            transaction.clear(keys.bindings + name)
        else:
            transaction.set(keys.bindings + name, row)
        note_change(transaction)

    attempt(engine, body, patience_ms)
