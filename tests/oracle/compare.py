"""The fields of a record as a reader tells them, so that two readers can be compared."""

from __future__ import annotations

from dataclasses import astuple, is_dataclass
from typing import Any

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
