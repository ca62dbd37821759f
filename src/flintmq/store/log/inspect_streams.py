"""Logs of stream queues as `flintmq log` reads them: which there are, and whether every record of them checks.

in: a store directory. out: surveyed logs, what is damaged in them, and records by type.

Invariant: nothing found on disk is trusted before it is checked, as in inspect.py.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from flintmq.store.log.inspect import STREAM_LOGS, Damage, Log, StoreView, open_store
from flintmq.store.log.inspect_records import STREAM_MESSAGE, TYPE_NAMES, Malformed, fields_of


def stream_names(path: Path) -> tuple[str, ...]:
    """Names of the logs of all streams of a store, by queue id."""
    found = [one.name for one in (path / STREAM_LOGS).glob("*") if one.is_dir() and one.name.isascii() and one.name.isdigit()]
    return tuple(STREAM_LOGS + name for name in sorted(found, key=int))


def open_streams(path: Path, live: bool) -> StoreView:
    """Reads headers and chains of all streams. Raises: OperatorError as open_store."""
    return open_store(path, stream_names(path), live)


def check_stream(log: Log) -> tuple[Counter[str], list[Damage]]:
    """Records by type, and all findings: of the chain, of records, of offsets that fall or are missing."""
    counts: Counter[str] = Counter()
    findings = list(log.damage)
    following: int | None = None
    for block in log.blocks:
        for item in log.records_of(block):
            if isinstance(item, Damage):
                findings.append(item)
                following = None  # what is missing behind damage is told already
                continue
            counts[TYPE_NAMES.get(item.type, "unknown")] += 1
            try:
                values = fields_of(item, log.number)
            except Malformed as error:
                findings.append(log.damaged("malformed", item.lsn, item.lsn, f"{item.name}: {error}"))
                continue
            if item.type != STREAM_MESSAGE:
                continue
            offset = values["stream_offset"]
            # A message that was never whole is followed by another one with its offset.
            if following is not None and offset not in (following, following - 1) and not log.damage:
                text = f"offset {offset} where {following} was expected"
                findings.append(log.damaged("reference", item.lsn, item.lsn, text))
            following = offset + 1
    return counts, findings
