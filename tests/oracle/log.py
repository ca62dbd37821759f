"""An independent reader of a store directory in plain Python: the oracle of the log's reader (docs/FORMAT.md is all it knows).

in: a store directory, of a stopped or a running broker; nothing is written. out: `Log`: its containers, its chain of good commit blocks,
its records, and what is wrong with them: `Damage`, or a torn tail, which is none.

It checks the compiled reader. It is no second opinion on `store/log/inspect`, with which the walk along the chain has its lines in common.

Invariants: nothing found on disk is trusted before it is checked; a damaged file never raises, it becomes a Damage; only what no reader
can work with raises OperatorError.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from crc32c import crc32c

from flintmq.errors import OperatorError
from tests.oracle.records import COMMON_SIZE, MESSAGES, NAMES, STREAMS, TRANSACTIONS, Record, padded, read_record

FORMAT = 2
FORMATS = (1, 2)  # 1: without Queue-Purge
SECTOR = 512
BLOCK_HEADER = 64
CONTAINER_MAGIC = b"FLNTLOG1"
BLOCK_MAGIC = struct.pack("<I", 0x4B4C4246)
# a block's flags from here on: which log it is of; 0 in blocks from before that was written
BLOCK_LOG_SHIFT = 8
CLEAN = 1
LOGS = {"messages": MESSAGES, "transactions": TRANSACTIONS}
# the log of a stream queue is named streams/<queue id>, as its directory
STREAM_LOGS = "streams/"
SUFFIX = ".flog"
# bytes; a header that says more is not believed, so that a damaged one can't take all memory
CONTAINER_MAX = 1 << 30

_HEADER = struct.Struct("<8sII16sIIQQQ")
_BLOCK = struct.Struct("<IIQIIQQQQII")

# A running broker writes while we read: what looks damaged is read again this often, this many seconds apart, before it is believed.
LIVE_READS = 5
LIVE_PAUSE_S = 0.05

# The search for the next good record in a damaged block checks at most this many times the block's bytes: a body made to look like the
# heads of large records must not keep it busy for hours. What is left of the block then counts as damaged.
RESUME_EFFORT = 64

EX_USAGE, EX_DATA, EX_UNAVAILABLE, EX_IO = 64, 65, 69, 74


@dataclass(frozen=True, slots=True)
class Damage:
    """Something in the log that is not as it was written. [lsn, end): the stretch without good records."""

    log: str
    kind: str  # header, format, store, size, name, missing, block, record, malformed, reference, lost, read
    file: str
    offset: int
    lsn: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Header:
    """A container's header."""

    uuid: bytes
    log: int
    epoch: int
    sequence: int
    size: int
    time_us: int


@dataclass(slots=True)
class Container:
    """A file of the log. header: None when it is not good; readable: its blocks may be looked at."""

    sequence: int
    path: Path
    file_size: int
    inode: int
    header: Header | None = None
    problem: tuple[str, str] | None = None  # kind, text
    readable: bool = True


@dataclass(frozen=True, slots=True)
class Block:
    """A commit block's header that checks."""

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
        """LSN of the sector behind it."""
        return padded(self.lsn + self.length, SECTOR)


def read_header(data: bytes) -> Header | tuple[str, str]:
    """A container's header from its first 512 bytes, or (kind, why it is none)."""
    if len(data) < SECTOR:
        return "header", f"the file ends after {len(data)} bytes, inside the header"
    magic, version, sector, uuid, log, epoch, sequence, size, time_us = _HEADER.unpack_from(data)
    good = crc32c(data[:508]) == int.from_bytes(data[508:512], "little")
    if magic != CONTAINER_MAGIC:
        return "header", "no container: the magic number is missing"
    if version not in FORMATS:
        also = "" if good else ", and the CRC of the header does not match"
        return "format" if good else "header", f"format version {version}; this program knows versions up to {FORMAT}{also}"
    if not good:
        return "header", "the CRC of the container's header does not match"
    if sector != SECTOR or size < 4096 or size % 4096 or size > CONTAINER_MAX:
        return "header", f"sector size {sector}, container size {size}: not those of format {FORMAT}"
    return Header(uuid, log, epoch, sequence, size, time_us)


def read_block(data: bytes, at: int, lsn: int, log: int) -> Block | None:
    """The header of the commit block at data[at:] that should have this LSN; None when there is none, or it is one of another log than
    this one, which a disk wrote to the wrong place."""
    if at + BLOCK_HEADER > len(data) or data[at : at + 4] != BLOCK_MAGIC:
        return None
    _, length, own, epoch, records, hint, base, time_us, previous, flags, crc = _BLOCK.unpack_from(data, at)
    if own != lsn or crc32c(data[at : at + 60]) != crc or length < BLOCK_HEADER or length > len(data) - at:
        return None
    if flags >> BLOCK_LOG_SHIFT not in (0, log):
        return None
    return Block(lsn, length, epoch, records, hint, base, time_us, previous, flags)


def blocks_in(data: bytes, start: int, log: int) -> Iterator[Block]:
    """Every block header of this log that checks, in order. start: LSN of data[0]. What a good block covers is not searched."""
    at = SECTOR
    while at + BLOCK_HEADER <= len(data):
        block = read_block(data, at, start + at, log)
        if block is not None:
            yield block
            at = block.end - start
            continue
        found = data.find(BLOCK_MAGIC, at + 1)
        if found < 0:
            return
        at = padded(found, SECTOR)


@dataclass(slots=True)
class Log:
    """One log of a store as a reader sees it. Filled in by `survey`."""

    name: str
    directory: Path
    live: bool
    containers: dict[int, Container] = field(default_factory=dict)
    container_size: int = 0
    uuid: bytes = b""
    blocks: list[Block] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    torn_at: int = 0
    _cached: tuple[int, bytes] = (0, b"")

    @property
    def number(self) -> int:
        return STREAMS if self.name.startswith(STREAM_LOGS) else LOGS[self.name]

    @property
    def base(self) -> int:
        """LSN at which recovery starts; 0 in an empty log."""
        return self.blocks[-1].base if self.blocks else 0

    @property
    def tail(self) -> int:
        """LSN where the next block goes: the sector behind the last good one, or the next container's first when this one is full."""
        if self.blocks:
            return self._place(self.blocks[-1].end)
        return min(self.containers) * self.container_size + SECTOR if self.containers else 0

    @property
    def clean(self) -> bool:
        """The last block is that of a clean stop."""
        return bool(self.blocks) and bool(self.blocks[-1].flags & CLEAN) and not self.torn_at

    def _place(self, lsn: int) -> int:
        return lsn if lsn % self.container_size else lsn + SECTOR

    def file_of(self, sequence: int) -> str:
        """The container's path below the store directory, whether or not it is there."""
        container = self.containers.get(sequence)
        return f"{self.name}/{container.path.name if container else f'{sequence:020d}{SUFFIX}'}"

    def damaged(self, kind: str, lsn: int, end: int, text: str, sequence: int | None = None, offset: int | None = None) -> Damage:
        """A Damage of this log; its file and offset follow from the LSN unless they are given."""
        sequence = lsn // self.container_size if sequence is None else sequence
        offset = lsn % self.container_size if offset is None else offset
        return Damage(self.name, kind, self.file_of(sequence), offset, lsn, end, text)

    # --- containers

    def load(self, container: Container) -> bytes:
        """The container's bytes; empty when they can't be had. What a short file lacks reads as zeros, as recovery reads it. A file that
        was recycled meanwhile is forgotten."""
        if self._cached[0] == container.sequence:
            return self._cached[1]
        try:
            with container.path.open("rb", buffering=0) as file:
                wanted = min(container.file_size, self.container_size or CONTAINER_MAX)
                data = file.read(wanted) or b""
                while len(data) < wanted and (more := file.read(wanted - len(data))):
                    data += more
            if self.live and os.stat(container.path).st_ino != container.inode:
                raise FileNotFoundError
        except FileNotFoundError:
            self.containers.pop(container.sequence, None)
            return b""
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                raise OperatorError(f"{container.path}: {error.strerror}", EX_IO) from error
            container.problem = "read", f"the file can't be read: {error.strerror}"
            container.readable = False
            return b""
        data = data.ljust(self.container_size, b"\0")
        self._cached = (container.sequence, data)
        return data

    def _list(self) -> None:
        for path in sorted(self.directory.iterdir()) if self.directory.is_dir() else ():
            if path.suffix == ".tmp" and path.stem.isdecimal():
                self.notes.append(f"{self.name}/{path.name}: a container that was being made")
            elif path.suffix != SUFFIX or len(path.stem) != 20 or not (path.stem.isascii() and path.stem.isdecimal()):
                self.notes.append(f"{self.name}/{path.name}: not a container, ignored")
            else:
                try:
                    info = path.stat()
                except FileNotFoundError:  # recycled since the directory was listed
                    continue
                self.containers[int(path.stem)] = Container(int(path.stem), path, info.st_size, info.st_ino)

    def _check_headers(self, uuid: bytes, other_size: int) -> None:
        for container in list(self.containers.values()):
            if container.sequence < 1:
                container.problem, container.readable = ("name", "containers are numbered from 1 on"), False
                continue
            try:
                with container.path.open("rb") as file:
                    header = read_header(file.read(SECTOR))
            except FileNotFoundError:
                self.containers.pop(container.sequence)
                continue
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EPERM):
                    raise OperatorError(f"{container.path}: {error.strerror}", EX_IO) from error
                header = "read", f"the file can't be read: {error.strerror}"
            if isinstance(header, Header):
                container.header = header
            else:
                container.problem = header
                container.readable = header[0] == "header"
        headers = [c.header for c in self.containers.values() if c.header]
        lengths = [c.file_size for c in self.containers.values()]
        sizes = Counter([header.size for header in headers] or ([other_size] if other_size else lengths))
        size = sizes.most_common(1)[0][0] if sizes else 0
        self.container_size = size if 4096 <= size <= CONTAINER_MAX and size % 4096 == 0 else 0
        own = Counter(header.uuid for header in headers)
        self.uuid = uuid or (own.most_common(1)[0][0] if own else b"")
        for container in self.containers.values():
            self._check_place(container)

    def _check_place(self, container: Container) -> None:
        """A good header must also be the right one."""
        header = container.header
        if header is None:
            return
        if header.uuid != self.uuid:
            container.problem = "store", f"a container of another store: {header.uuid.hex()}, this store is {self.uuid.hex()}"
        elif header.log != self.number:
            container.problem = "store", f"a container of another log ({header.log}, this log is {self.number})"
        elif header.sequence != container.sequence:
            container.problem = "name", f"the header says that this is container {header.sequence}"
        elif header.size != self.container_size:
            container.problem = "size", f"the header says {header.size} bytes, the other containers have {self.container_size}"
        elif container.file_size != header.size:
            container.problem = "size", f"the file has {container.file_size} bytes, a container has {header.size}"
            return
        container.readable = container.problem is None

    # --- the chain of blocks

    def survey(self, uuid: bytes = b"", size: int = 0) -> None:
        """Reads headers and chain, and finds base, tail and damage outside of records.

        Args: uuid: of the store, when it is known; size: of containers in the store's other log, taken when none tells it here.
        """
        for left in reversed(range(LIVE_READS if self.live else 1)):
            self.containers, self.blocks, self.damage, self.notes = {}, [], [], []
            self.torn_at, self._cached = 0, (0, b"")
            self._list()
            self._check_headers(uuid, size)
            if self.container_size:
                self._follow(self._candidates())
                self._cut_torn_records()
                self._check_presence()
            for container in self.containers.values():
                if container.problem:
                    start, (kind, text) = container.sequence * self.container_size, container.problem
                    self.damage.append(self.damaged(kind, start, start + SECTOR, text, container.sequence, 0))
            self.damage.sort(key=lambda found: found.lsn)
            if not self.damage or not left:
                return
            time.sleep(LIVE_PAUSE_S)

    def _candidates(self) -> list[Block]:
        """All blocks whose headers check, ascending."""
        found: list[Block] = []
        for sequence in sorted(self.containers):
            container = self.containers[sequence]
            if container.readable:
                data = self.load(container)[: self.container_size]
                found.extend(blocks_in(data, sequence * self.container_size, self.number))
        return found

    def _follow(self, found: list[Block]) -> None:
        """Takes the blocks that belong to the chain; what lies between is damage or, behind the last durable block, a torn tail."""
        last: Block | None = None
        # later_hint[i]: per block, the highest hint told from there on (in the order of LSNs epochs do not fall either)
        later: list[int] = [0] * (len(found) + 1)
        for i in reversed(range(len(found))):
            later[i] = max(later[i + 1], found[i].hint)
        at = min(self.containers) * self.container_size + SECTOR if self.containers else 0
        for i, block in enumerate(found):
            if last is not None and block.epoch < last.epoch:
                if all(other.epoch < last.epoch or other.hint <= block.lsn for other in found[i + 1 :]):
                    self.torn_at = at
                    break
                self.damage.append(
                    self.damaged("block", block.lsn, block.end, f"the block is of epoch {block.epoch}, one before it of epoch {last.epoch}")
                )
                continue
            if self._continues(last, block, at):
                self.blocks.append(block)
                last, at = block, self._place(block.end)
                continue
            epoch = last.epoch if last else 0
            hint = later[i] if last is None else max((other.hint for other in found[i:] if other.epoch >= epoch), default=0)
            if hint <= at:
                self.torn_at = at
                break
            self.damage.append(self._gap(at, block))
            self.blocks.append(block)
            last, at = block, self._place(block.end)
        if not self.torn_at and last is not None and self._looks_written(at):
            self.torn_at = at

    def _continues(self, last: Block | None, block: Block, at: int) -> bool:
        if last is None:
            return block.lsn == at
        if block.previous != last.lsn:
            return False
        first = (last.lsn // self.container_size + 1) * self.container_size + SECTOR
        return block.lsn == at or block.lsn == first

    def _looks_written(self, lsn: int) -> bool:
        """Whether a block was begun at this LSN. A whole header with another LSN is an old one of a recycled file."""
        container = self.containers.get(lsn // self.container_size)
        if container is None or not container.readable:
            return False
        at = lsn % self.container_size
        data = self.load(container)
        head = data[at : at + BLOCK_HEADER]
        if len(head) < BLOCK_HEADER or head[8:16] == lsn.to_bytes(8, "little"):
            return len(head) == BLOCK_HEADER
        return head[:4] == BLOCK_MAGIC and crc32c(head[:60]) != int.from_bytes(head[60:], "little")

    def _gap(self, at: int, block: Block) -> Damage:
        """No good block between `at` and `block`, which was written after everything there was durable."""
        size = self.container_size
        absent = [n for n in range(at // size, block.lsn // size + 1) if n not in self.containers]
        unread = [n for n in range(at // size, block.lsn // size + 1) if n in self.containers and not self.containers[n].readable]
        if absent or unread:
            which = ", ".join(self.file_of(n) for n in (absent + unread)[:5]) + (", ..." if len(absent + unread) > 5 else "")
            first = (absent + unread)[0]
            start = max(at, first * size)
            what = "missing" if absent else "not usable"
            return self.damaged("missing", start, block.lsn, f"{what}: {which}; the next good block is at {block.lsn}", first, 0)
        start = at
        if block.previous // size > at // size and not self._looks_written(at):
            start = (at // size + 1) * size + SECTOR  # the earlier container ended here; the damage is in the next one
        if start >= block.lsn:
            return self.damaged("block", block.lsn, block.lsn, f"the block names {block.previous} as the one before it, which is not there")
        return self.damaged("block", start, block.lsn, f"no good block here, though it was durable; the next one is at {block.lsn}")

    def _cut_torn_records(self) -> None:
        """Blocks that nobody told durable yet may be torn inside: from the first such block on, the tail is cut off."""
        durable = max((block.hint for block in self.blocks), default=0)
        first = len(self.blocks)
        while first and self.blocks[first - 1].end > durable:
            first -= 1
        for i in range(first, len(self.blocks)):
            bad = next((item for item in self.records_of(self.blocks[i]) if isinstance(item, Damage)), None)
            if bad is not None and all(block.hint <= bad.lsn for block in self.blocks[i + 1 :]):
                self.torn_at = self.blocks[i].lsn
                self.damage = [found for found in self.damage if found.lsn < self.torn_at]
                del self.blocks[i:]
                return

    def _check_presence(self) -> None:
        """Every container from the base to the tail must be there; what lies before the first block has no gap to show it."""
        if not self.blocks:
            return
        first, base = min(self.containers), self.base
        if base < self.blocks[0].lsn and base // self.container_size < first:
            text = f"containers {base // self.container_size} to {first - 1} are missing; the base LSN is {base}"
            self.damage.append(self.damaged("missing", base, first * self.container_size, text, base // self.container_size, 0))
        # Below the base containers are given back in any order: a hole there is none.
        self.damage = [found for found in self.damage if found.kind != "missing" or found.end > base]

    # --- records

    def records_of(self, block: Block) -> Iterator[Record | Damage]:
        """The block's records in order, and a Damage for each stretch where there is none that checks."""
        container = self.containers.get(block.lsn // self.container_size)
        data = self.load(container) if container else b""
        start = block.lsn - block.lsn % self.container_size
        at, end, count = block.lsn - start + BLOCK_HEADER, block.lsn - start + block.length, 0
        if end > len(data):
            if container is not None and container.sequence in self.containers:
                yield self.damaged("read", block.lsn, block.end, "the block can't be read any more")
            return
        whole = True
        while at < end:
            record = read_record(data, at, end, start + at, block.time_us)
            if isinstance(record, Record):
                yield record
                count += 1
                at += padded(record.length, 8)
                continue
            whole = False
            resumed = self._resume(data, at, end, start, block.time_us)
            goes_on = f"; the next good record is at {start + resumed}" if resumed < end else "; nothing good follows in its block"
            yield self.damaged("record", start + at, start + resumed, record + goes_on)
            at = resumed
        if whole and count != block.records:
            yield self.damaged("block", block.lsn, block.end, f"the block should hold {block.records} records and holds {count}")

    @staticmethod
    def _resume(data: bytes, at: int, end: int, start: int, time_base: int) -> int:
        """Where the next good record begins: records name their LSN in the CRC, so none is taken for another."""
        effort = RESUME_EFFORT * (end - at)
        for place in range(at + 8, end, 8):
            if end - place < COMMON_SIZE or data[place + 8] not in NAMES:
                continue
            length = int.from_bytes(data[place : place + 4], "little")
            if length > end - place or (effort := effort - length) < 0:
                continue
            if isinstance(read_record(data, place, end, start + place, time_base), Record):
                return place
        return end

    def records(self) -> Iterator[Record | Damage]:
        """All records of the chain in order of LSN, retained ones below the base too."""
        for block in self.blocks:
            yield from self.records_of(block)

    def has_record(self, lsn: int, types: frozenset[int]) -> bool:
        """Whether a good record of one of these types begins at this LSN."""
        if not self.container_size or lsn >= self.tail:
            return False
        container = self.containers.get(lsn // self.container_size)
        if container is None or not container.readable:
            return False
        try:
            with container.path.open("rb") as file:
                file.seek(lsn % self.container_size)
                head = file.read(24)
                length = int.from_bytes(head[:4], "little")
                if len(head) < 24 or head[8] not in types or not 24 <= length <= self.container_size:
                    return False
                raw = head + file.read(length - 24)
        except OSError:
            return False
        return isinstance(read_record(raw, 0, len(raw), lsn, 0), Record)


# --- the store ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class StoreView:
    """A store directory and its logs. live: a broker has it open."""

    path: Path
    live: bool
    uuid: bytes
    logs: dict[str, Log]
    pages: int


def is_locked(path: Path) -> bool:
    """Whether a broker holds the store. The lock is only tried, for the shortest possible time."""
    try:
        fd = os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise OperatorError(f"{path / 'lock'}: {error.strerror}", EX_IO) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def check_store(path: Path) -> None:
    """Raises OperatorError: no such directory or not a store (64), no permission (74)."""
    try:
        if not path.exists():
            raise OperatorError(f"{path}: no such directory", EX_USAGE)
        if not path.is_dir():
            raise OperatorError(f"{path}: not a directory", EX_USAGE)
        names = set(os.listdir(path))
        if not names & set(LOGS):
            raise OperatorError(f"{path}: not a store: neither a directory 'messages' nor 'transactions' is in it", EX_USAGE)
        for name in names & set(LOGS):
            os.listdir(path / name)
    except NotADirectoryError as error:
        raise OperatorError(f"{error.filename}: not a directory", EX_USAGE) from error
    except OSError as error:
        raise OperatorError(f"{error.filename or path}: {error.strerror}", EX_IO) from error


def open_store(path: Path, names: tuple[str, ...] = tuple(LOGS), live: bool | None = None) -> StoreView:
    """Reads headers and chains of a store's logs.

    Args: names: which logs (those of streams are none of the default ones); live: whether a broker may be writing (None: find out).
    Raises: OperatorError: no store (64), no permission or a read error (74).
    """
    check_store(path)
    live = is_locked(path) if live is None else live
    uuid, size = _identity(path)
    view = StoreView(path, live, uuid, {}, 0)
    try:
        for name in names:
            log = Log(name, path / name, live)
            stream = name.startswith(STREAM_LOGS)
            log.survey(uuid, 0 if stream else size)
            view.logs[name] = log
            if not log.containers and uuid and not stream:
                text = "the log has no container, the store's other log has"
                log.damage.append(Damage(name, "missing", f"{name}/", 0, 0, 0, text))
        view.pages = len(list((path / "pages").glob("*" + SUFFIX))) if (path / "pages").is_dir() else 0
    except OSError as error:
        raise OperatorError(f"{error.filename or path}: {error.strerror}", EX_IO) from error
    return view


def _identity(path: Path) -> tuple[bytes, int]:
    """The store's UUID and container size: those of most containers of both logs; empty and 0 when no header is good."""
    votes: Counter[tuple[bytes, int]] = Counter()
    for name in LOGS:
        for file in sorted((path / name).glob("*" + SUFFIX)) if (path / name).is_dir() else ():
            try:
                with file.open("rb") as opened:
                    header = read_header(opened.read(SECTOR))
            except OSError:
                continue
            if isinstance(header, Header):
                votes[header.uuid, header.size] += 1
    return votes.most_common(1)[0][0] if votes else (b"", 0)
