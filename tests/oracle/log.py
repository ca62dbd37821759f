"""Logs as docs/FORMAT.md describes them: containers, commit blocks, the chain that the blocks form, and the records in it.

in: a store directory that nobody writes to. out: with `open_store` its logs by name; of each its chain, its records, and what of it does
not check: `Damage`, or a torn tail.

Written from the page alone, like records.py. It has no line in common with `store/log` (tests/oracle/test_independent.py checks that), and
every store that a test looks at is read by both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from crc32c import crc32c

from tests.oracle.records import MESSAGES, STREAMS, TRANSACTIONS, Decoder, Record, padded, read_record

# Layouts as in records.py. The CRC of either header is its last 4 bytes.
CONTAINER = "-magic:8 version:4 sector:4 uuid:16 log:4 epoch:4 sequence:8 size:8 time:8"
BLOCK = "-magic:4 length:4 lsn:8 epoch:4 records:4 hint:8 base:8 time_us:8 previous:8 flags:4 -crc:4"
SECTOR, BLOCK_SIZE = 512, 64
CLEAN_STOP = 1


class Damage(NamedTuple):
    """What was durable and does not check, between two LSNs. kind: header, format, store, name or size of a container; missing: there is
    none, or it is not this log's; block: there is no good one; record: likewise."""

    kind: str
    lsn: int
    end: int


class Block(NamedTuple):
    """The fields of a block's header. The flags have the log's number from bit 8 on."""

    lsn: int
    length: int
    epoch: int
    records: int
    hint: int
    base: int
    time_us: int
    previous: int
    flags: int

    @property
    def end(self) -> int:
        """LSN of the first sector that is not the block's."""
        return padded(self.lsn + self.length, SECTOR)


@dataclass
class Log:
    """One log. containers: the bytes of each by its number, None: its blocks do not count; chain: the blocks, each with its records and a
    Damage for each stretch without one; damage: outside of these blocks; torn_at: LSN of the torn tail, 0: there is none."""

    number: int
    container_size: int
    containers: dict[int, bytes | None]
    damage: list[Damage]
    chain: list[tuple[Block, list[Record | Damage]]] = field(default_factory=list)
    torn_at: int = 0

    @property
    def blocks(self) -> list[Block]:
        return [block for block, _ in self.chain]

    @property
    def last(self) -> Block | None:
        return self.chain[-1][0] if self.chain else None

    @property
    def base(self) -> int:
        return self.last.base if self.last else 0

    @property
    def tail(self) -> int:
        """LSN of the next block."""
        end = self.last.end if self.last else min(self.containers, default=0) * self.container_size
        return behind_header(end, self.container_size) if end else 0

    @property
    def clean(self) -> bool:
        return self.last is not None and self.last.flags & CLEAN_STOP == 1 and self.torn_at == 0

    def records(self) -> Iterator[Record | Damage]:
        """All records of the chain by their LSNs, those below the base too."""
        return (item for _, items in self.chain for item in items)

    def cut(self, lsn: int, size: int) -> bytes:
        """Bytes of the log; none of a container that does not count."""
        number, offset = divmod(lsn, self.container_size)
        return (self.containers.get(number) or b"")[offset : offset + size]


def sealed(header: bytes) -> bool:
    """Whether the last 4 bytes are the CRC of the others."""
    return crc32c(header[:-4]).to_bytes(4, "little") == header[-4:]


def behind_header(lsn: int, container_size: int) -> int:
    """Where a block may begin: a container begins with its header."""
    return lsn if lsn % container_size else lsn + SECTOR


# --- containers


def container_header(data: bytes) -> dict[str, int] | str:
    """The fields of a container's header, or the kind of damage."""
    if data[:8] != b"FLNTLOG1" or len(data) < SECTOR or not sealed(data[:SECTOR]):
        return "header"
    fields = Decoder(data[:64]).walk(CONTAINER)
    if fields["version"] not in (1, 2, 3):
        return "format"
    return fields if fields["sector"] == SECTOR and fields["size"] and not fields["size"] % 4096 else "header"


def container_files(directory: Path) -> dict[int, bytes]:
    """The containers' bytes by the numbers in their names."""
    names = [re.fullmatch(r"([0-9]{20})\.flog", path.name) for path in directory.glob("*")]
    return {int(name[1]): (directory / name[0]).read_bytes() for name in sorted(filter(None, names), key=lambda name: name[1])}


def place_kind(header: dict[str, int], number: int, log: int, uuid: int, size: int) -> str:
    """The kind of damage of a container whose header is good, but another one's; "" when it is the right one."""
    if (header["uuid"], header["log"]) != (uuid, log):
        return "store"
    if header["sequence"] != number:
        return "name"
    return "size" if header["size"] != size else ""


def read_log(files: dict[int, bytes], number: int, uuid: int, size: int) -> Log:
    """Reads a log from its containers. size: bytes of a container in the store's other logs, 0: not known."""
    headers = {sequence: container_header(data) for sequence, data in files.items()}
    sizes = Counter(header["size"] for header in headers.values() if isinstance(header, dict))
    size = most_common(sizes) or size or most_common(Counter(len(data) for data in files.values()))
    log = Log(number, size if size and size % 4096 == 0 else 0, {}, [])
    for sequence, data in files.items():
        header = headers[sequence]
        kind = header if isinstance(header, str) else place_kind(header, sequence, number, uuid, log.container_size)
        # blocks name their LSNs: they count behind a header that can't be read, but not behind one of another place
        log.containers[sequence] = data[:size].ljust(size, b"\0") if kind in ("", "header") else None
        if kind or len(data) != size:
            start = sequence * log.container_size
            log.damage.append(Damage(kind or "size", start, start + SECTOR))
    if log.containers and log.container_size:
        follow(log)
        log.damage += missing_below(log)
        log.damage = sorted(one for one in log.damage if one.kind != "missing" or one.end > log.base)
    return log


def missing_below(log: Log) -> list[Damage]:
    """Containers from the base on, of which no block is left that could show the gap."""
    first = min(log.containers) * log.container_size
    return [Damage("missing", log.base, first)] if log.chain and log.base < first else []


def most_common(votes: Counter[Any]) -> Any:
    return next((value for value, _ in votes.most_common(1)), 0)


# --- blocks and records


def block_headers(log: Log) -> Iterator[Block]:
    """All headers that check, at the sectors that no good block before them covers."""
    covered = 0
    for number, data in sorted(log.containers.items()):
        start = number * log.container_size
        for offset in range(SECTOR, len(data or b""), SECTOR):
            header = log.cut(start + offset, BLOCK_SIZE)
            if start + offset < covered or header[:4] != b"FBLK" or not sealed(header):
                continue
            block = Block(**Decoder(header).walk(BLOCK))
            fits = BLOCK_SIZE <= block.length <= log.container_size - offset
            if fits and block.lsn == start + offset and block.flags >> 8 in (0, log.number):
                covered = block.end
                yield block


def block_begun(log: Log, lsn: int) -> bool:
    """Whether there is a part of a block. The whole header of another LSN is left from the file's earlier life."""
    header = log.cut(lsn, BLOCK_SIZE)
    names_itself, is_one = header[8:16] == lsn.to_bytes(8, "little"), header[:4] == b"FBLK"
    return names_itself or (is_one and not sealed(header))


def block_contents(log: Log, block: Block) -> list[Record | Damage]:
    """The records of a block, and a Damage for each stretch without one; the block itself when it should have another number of them."""
    items: list[Record | Damage] = []
    data, offset = log.cut(block.lsn, block.length), BLOCK_SIZE
    while offset < len(data):
        record = next_record(data, offset, block)
        reached = record.lsn - block.lsn if record else block.length
        if reached > offset:
            items.append(Damage("record", block.lsn + offset, block.lsn + reached))
        if record:
            items.append(record)
            reached += padded(record.length, 8)
        offset = reached
    if len(items) != block.records and all(isinstance(item, Record) for item in items):
        items.append(Damage("block", block.lsn, block.end))
    return items


def next_record(data: bytes, offset: int, block: Block) -> Record | None:
    """The first record at this offset of the block or behind it. Its CRC names its LSN, so that it is no other one."""
    for place in range(offset, block.length, 8):
        if int.from_bytes(data[place : place + 4], "little") <= block.length - place:
            record = read_record(data, place, block.length, block.lsn + place, block.time_us)
            if isinstance(record, Record):
                return record
    return None


# --- the chain


def follow(log: Log) -> None:
    """Fills in the chain, block by block: the one that names the last one, at the place behind it or in the next container. Where there is
    none, the log goes on at the next good block if what stood there was durable; else its tail is torn."""
    found = list(block_headers(log))
    at = {block.lsn: block for block in found}
    while True:
        last, place = log.last, log.tail
        later = [at[place]] if place in at else []
        if last is not None:
            beyond = behind_header((last.lsn // log.container_size + 1) * log.container_size, log.container_size)
            later = [at[lsn] for lsn in (place, beyond) if lsn in at and at[lsn].previous == last.lsn and at[lsn].epoch >= last.epoch]
        if not later:
            later = [block for block in found if block.lsn >= place and (last is None or block.epoch >= last.epoch)]
            if max((block.hint for block in later), default=0) <= place:
                log.torn_at = place if later or (last and block_begun(log, place)) else 0
                return
            log.damage.append(hole(log, place, later[0]))
        block, items = later[0], block_contents(log, later[0])
        bad = next((item.lsn for item in items if isinstance(item, Damage)), None)
        if bad is not None and all(one.hint <= bad for one in found if one.lsn > block.lsn and one.epoch >= block.epoch):
            log.torn_at = block.lsn
            return
        log.chain.append((block, items))


def hole(log: Log, place: int, block: Block) -> Damage:
    """The stretch in front of a good block, from the place on at which the last one says that the next one begins."""
    size = log.container_size
    absent = [number for number in range(place // size, block.lsn // size + 1) if log.containers.get(number) is None]
    if absent:
        return Damage("missing", max(place, absent[0] * size), block.lsn)
    if place // size < block.previous // size and not block_begun(log, place):
        place = behind_header((place // size + 1) * size, size)  # the container was full
    return Damage("block", min(place, block.lsn), block.lsn)


# --- the store

NUMBERS = {"messages": MESSAGES, "transactions": TRANSACTIONS}


def open_store(path: Path, *names: str) -> dict[str, Log]:
    """Reads logs of a store by the names of their directories; without names those of messages and of transactions."""
    files = {name: container_files(path / name) for name in (*NUMBERS, *names)}
    headers = [container_header(data) for name in NUMBERS for data in files[name].values()]
    votes = Counter((header["uuid"], header["size"]) for header in headers if isinstance(header, dict))
    uuid, size = most_common(votes) or (0, 0)
    logs = {name: read_log(files[name], NUMBERS.get(name, STREAMS), uuid, size * (name in NUMBERS)) for name in names or NUMBERS}
    for name, log in logs.items():
        if name in NUMBERS and uuid and not log.containers:
            log.damage.append(Damage("missing", 0, 0))
    return logs
