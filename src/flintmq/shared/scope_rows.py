"""The rows of scopes whose writers put messages aside for shared queues (docs/DATAPLANE.md): what a scope committed, and what a stage is.

in: facts. out: the same, of the engine's rows.

    xe              the highest epoch that was given out
    xs/VHOST NAME   a scope (JSON)
    x/TRANSACTION   a stage: an undecided transaction, with `Stage` (transaction_rows.py)
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from flintmq.engines.engine import Range

EPOCH = b"xe"
OPEN, PREPARED = "open", "prepared"


@dataclass(frozen=True, slots=True)
class ScopeRow:
    """committed: the highest batch, -1: none; epoch: the highest that was seen; aborted: nothing is begun with epochs up to it; decided:
    the stages of batch `committed` whose own rows may not say so yet; mark: another one with each change."""

    user: str
    kind: str
    committed: int = -1
    epoch: int = 0
    aborted: int = -1
    decided: list[str] = field(default_factory=list)
    mark: str = ""

    def pack(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @staticmethod
    def unpack(value: bytes) -> ScopeRow:
        """Raises: ValueError."""
        names = {"user": str, "kind": str, "committed": int, "epoch": int, "aborted": int, "decided": list, "mark": str}
        return ScopeRow(**_fields(value, names))


@dataclass(frozen=True, slots=True)
class Stage:
    """What its writer says of a stage, and what it has. limited: queue that refuses -> [messages, bytes, bytes of the last one]."""

    vhost: str
    scope: str
    user: str
    epoch: int
    batch: int
    part: int
    attempt: int
    state: str = OPEN
    count: int = 0
    bytes: int = 0
    unroutable: int = 0
    over_limit: int = 0
    crc: int = 0
    limited: dict[str, list[int]] = field(default_factory=dict)

    def pack(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def unpack(row: dict[str, Any]) -> Stage:
        """Raises: ValueError."""
        names = {"vhost": str, "scope": str, "user": str, "state": str, "limited": dict}
        numbers = ("epoch", "batch", "part", "attempt", "count", "bytes", "unroutable", "over_limit", "crc")
        return Stage(**_fields(json.dumps(row).encode(), {**names, **dict.fromkeys(numbers, int)}))


def scope_key(vhost: str, name: str) -> bytes:
    return scopes_of(vhost)[0] + name.encode()


def scopes_of(vhost: str) -> Range:
    """All of a virtual host."""
    prefix = b"xs/" + vhost.encode("utf-8", "surrogateescape") + b"\0"
    return prefix, prefix + b"\xff"


def name_of(key: bytes) -> str:
    """Of a scope's key."""
    return key.partition(b"\0")[2].decode()


def _fields(value: bytes, fields: dict[str, type]) -> dict[str, Any]:
    try:
        row = json.loads(value)
    except ValueError:
        row = None
    if not isinstance(row, dict) or any(type(row.get(name)) is not one for name, one in fields.items()):
        raise ValueError(f"the row of a scope or a stage is damaged: {value[:80]!r}")
    return {name: row[name] for name in fields}
