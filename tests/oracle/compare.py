"""What two readers say of a log and of the fields of a record, so that they can be compared."""

from __future__ import annotations

from dataclasses import astuple, is_dataclass
from typing import Any

from tests.oracle.log import Log
from tests.oracle.records import Misshapen, Record


def told_fields(reader: Any, record: Record, log: int) -> dict[str, Any] | str:
    """`fields_of` of a reader's module in plain values; "malformed" when the reader refuses the record."""
    try:
        return {name: plain(value) for name, value in reader.fields_of(record, log).items()}
    except (getattr(reader, "Malformed", Misshapen), Misshapen):
        return "malformed"


def plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return astuple(value)
    return [tuple(plain(item)) if isinstance(item, tuple) else plain(item) for item in value] if isinstance(value, list) else value


def differences(log: Any, other: Log) -> list[tuple[Any, Any]]:
    """What a log of `store/log/inspect` says, and what the oracle says instead; of damage its kind and stretch."""
    pairs = [
        ((log.base, log.tail, log.torn_at, log.clean), (other.base, other.tail, other.torn_at, other.clean)),
        ([astuple(block) for block in log.blocks], other.blocks),
        (outermost(log.damage), sorted(other.damage)),
        ([told(item) for item in log.records()], list(other.records())),
    ]
    return [(mine, its) for mine, its in pairs if mine != its]


def outermost(damage: list[Any]) -> list[tuple[Any, ...]]:
    """Findings without those inside another one: a block of an epoch that fell is told beside the stretch in which it lies."""
    findings = sorted({told(one) for one in damage})
    inside = {
        one
        for one in findings
        for kind, lsn, end in findings
        if one != (kind, lsn, end) and kind == one[0] and lsn <= one[1] < one[2] <= end
    }
    return [one for one in findings if one not in inside]


def told(item: Any) -> tuple[Any, ...]:
    """All fields of a record; of damage the kind and the stretch, from which the rest follows."""
    return (item.kind, item.lsn, item.end) if hasattr(item, "kind") else astuple(item)
