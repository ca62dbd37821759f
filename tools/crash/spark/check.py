"""What must hold after the faults: each confirmed persistent message once in the Parquet output, in the sink's queue, in its stream; in
order.

in: what the publisher knows (`Sent`), the rows of the Parquet output in the order of its metadata log, the messages of the sink's queue.
out: `Finding`s; none is good. What was not confirmed, or was transient, may come once or never.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

SHOWN = 10  # examples in a finding


@dataclass
class Sent:
    """What was published. sure: confirmed and persistent; maybe: transient, or no confirmation came. Sets of (key, number)."""

    sure: set[tuple[str, int]] = field(default_factory=set)
    maybe: set[tuple[str, int]] = field(default_factory=set)

    def to_json(self) -> str:
        return json.dumps({"sure": sorted(self.sure), "maybe": sorted(self.maybe)})

    @classmethod
    def from_json(cls, text: str) -> Sent:
        known = json.loads(text)
        return cls({(key, number) for key, number in known["sure"]}, {(key, number) for key, number in known["maybe"]})


@dataclass(frozen=True)
class Row:
    """A message as it came out. position: in the queue it was read from."""

    key: str
    number: int
    position: int


@dataclass(frozen=True)
class Finding:
    """kind: lost, duplicate, alien (never sent), disorder."""

    where: str
    kind: str
    count: int
    examples: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.where}: {self.count} {self.kind}, such as {list(self.examples)}"


def body_of(key: str, number: int, padding: int = 0) -> bytes:
    """The body of a message: says what it is."""
    return b"%s %d " % (key.encode(), number) + b"x" * padding


def named(body: bytes) -> tuple[str, int]:
    """(key, number) of a body."""
    key, number, _ = bytes(body).split(b" ", 2)
    return key.decode(), int(number)


def check(where: str, sent: Sent, rows: Sequence[Row]) -> list[Finding]:
    """All that is wrong with one output."""
    counts: dict[tuple[str, int], int] = {}
    for row in rows:
        counts[row.key, row.number] = counts.get((row.key, row.number), 0) + 1
    known = sent.sure | sent.maybe
    wrong = {
        "lost": sorted(sent.sure - counts.keys()),
        "duplicate": sorted(one for one, count in counts.items() if count > 1),
        "alien": sorted(counts.keys() - known),
        "disorder": list(_disorder(rows)),
    }
    return [Finding(where, kind, len(found), tuple(found[:SHOWN])) for kind, found in wrong.items() if found]


def _disorder(rows: Sequence[Row]) -> Iterator[tuple[str, int, int]]:
    """Rows of a key that come behind a later one: (key, number before, number)."""
    last: dict[str, Row] = {}
    for row in rows:
        before = last.get(row.key)
        if before is not None and (row.number < before.number or row.position < before.position):
            yield row.key, before.number, row.number
        last[row.key] = row


def committed_files(directory: Path) -> list[Path]:
    """Files of a file sink's output that are committed, in the order of batches and of partitions in a batch.

    What stands in the directory only is of attempts that lost. Raises: ValueError for a metadata log of another version.
    """
    logs: dict[int, Path] = {}
    compact = -1
    for entry in (directory / "_spark_metadata").iterdir():
        number, _, kind = entry.name.partition(".")
        if not number.isdigit() or kind not in ("", "compact"):
            continue
        if kind:
            compact = max(compact, int(number))
        if kind or int(number) not in logs:
            logs[int(number)] = entry
    numbers = sorted(number for number in logs if number >= compact)
    if compact < 0 and numbers and numbers != list(range(numbers[-1] + 1)):
        raise ValueError(f"{directory}: the metadata log has gaps: {numbers[:5]} ...")
    found: dict[str, None] = {}
    for number in numbers:
        version, *lines = logs[number].read_text().splitlines()
        if version != "v1":
            raise ValueError(f"{logs[number]} is of version {version}")
        for line in lines:
            entry_of = json.loads(line)
            if entry_of["action"] != "add":
                raise ValueError(f"{logs[number]}: {line}")
            found[entry_of["path"]] = None
    return [Path(unquote(urlsplit(path).path)) for path in found]


def parquet_rows(directory: Path) -> list[Row]:
    """All rows that Spark would read."""
    import pyarrow.parquet as pq

    rows = []
    for file in committed_files(directory):
        table = pq.ParquetFile(file).read(columns=["body", "position"])
        for body, position in zip(table["body"].to_pylist(), table["position"].to_pylist(), strict=True):
            rows.append(Row(*named(body), position))
    return rows


def queue_rows(messages: Iterable[tuple[bytes, str]]) -> list[Row]:
    """Messages of the sink's queue: (body, position in the queue it came from)."""
    return [Row(*named(body), int(position)) for body, position in messages]
