"""Answers of the control calls as typed values.

in: JSON objects of the service. out: frozen dataclasses; fields that a newer service adds stay in `more`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Self

from flintmq.flight.plane_error import PROTOCOL, PlaneError


@dataclass(frozen=True, slots=True)
class Answer:
    """What all have in common. more: what the answer says besides."""

    more: dict[str, Any] = field(default_factory=dict, kw_only=True, compare=False)

    @classmethod
    def read(cls, answer: Any) -> Self:
        """From the service's JSON. Raises: PlaneError PROTOCOL when a field without default is missing."""
        if not isinstance(answer, Mapping):
            raise PlaneError(PROTOCOL, f"{cls.__name__}: the service answered with {type(answer).__name__}, not with an object")
        known, rest = {}, dict(answer)
        for one in fields(cls):
            if one.name == "more":
                continue
            if one.name in rest:
                known[one.name] = rest.pop(one.name)
            elif one.default is MISSING and one.default_factory is MISSING:
                raise PlaneError(PROTOCOL, f"{cls.__name__}: the service's answer lacks '{one.name}'")
        return cls(**known, more=rest)


@dataclass(frozen=True, slots=True)
class Subscription(Answer):
    """`sub.open`. committed: seq of the last committed set; prepared: seq of the set that is prepared, None: none; planned: whether
    `sub.plan` was called for it."""

    sub_id: str
    epoch: int
    committed: int
    prepared: int | None = None
    planned: bool = False
    queues: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Acquired(Answer):
    """`sub.acquire`. count: messages of the set, 0: nothing was prepared; bytes: of their bodies; queues: positions per queue."""

    count: int
    bytes: int = 0
    queues: Any = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.count > 0


@dataclass(frozen=True, slots=True)
class Tail(Answer):
    """`sub.tail`. behind_*: what waits in all; oldest_age_ms: None when nothing waits; queues: figures per queue."""

    behind_messages: int
    behind_bytes: int = 0
    oldest_age_ms: int | None = None
    queues: Any = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StageBegun(Answer):
    """`stage.begin`. stage_id: None when the batch is committed already: drain the input and write nothing; committed: the scope's highest
    committed batch, given then."""

    stage_id: str | None = None
    already: bool = False
    committed: int | None = None


@dataclass(frozen=True, slots=True)
class Prepared(Answer):
    """`stage.prepare`. count: messages; bytes: of their bodies; unroutable, over_limit: messages that were; crc: CRC-32C of all blocks."""

    count: int
    bytes: int = 0
    unroutable: int = 0
    over_limit: int = 0
    crc: int = 0


@dataclass(frozen=True, slots=True)
class Committed(Answer):
    """`stage.commit`. committed: the scope's highest committed batch; already: it was committed before this call;
    rolled_back: stages that were not of this commit."""

    committed: int
    already: bool = False
    rolled_back: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot(Answer):
    """`log.snapshot`. store: directory, UUID, container size; logs: base, end, containers per log; queues, consumers by id."""

    id: str
    store: dict[str, Any] = field(default_factory=dict)
    logs: Any = field(default_factory=dict)
    queues: Any = field(default_factory=dict)
    consumers: Any = field(default_factory=dict)
    transactions: Any = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Browse(Answer):
    """`browse.open`. tickets: for `DataPlane.read`, in the queues' order; count: messages; queues: how many of each."""

    id: str
    tickets: list[bytes] = field(default_factory=list)
    count: int = 0
    queues: Any = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Put:
    """`do_put`. count: messages staged by it; bytes: of their blocks."""

    count: int
    bytes: int
