"""A store directory as `flintmq log` sees it: its containers, its chain of good commit blocks, its records.

in: a store directory, of a stopped or a running broker; nothing is written. out: `Log`: what is there, and what is wrong with it:
`Damage`, or a torn tail, which is none. The log's reader (reader.py) decodes blocks and records; tests/oracle is what it is compared with.

Invariants: nothing found on disk is trusted before it is checked; a damaged file never raises, it becomes a Damage; only what no reader
can work with raises OperatorError.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flintmq.errors import OperatorError
from flintmq.store.log.containers import (
    FORMAT_VERSION,
    FORMAT_VERSIONS,
    MAGIC,
    MESSAGES,
    SECTOR,
    SIZE_MAX,
    SIZE_MIN,
    STREAMS,
    SUFFIX,
    TRANSACTIONS,
    ContainerHeader,
    read_header,
)
from flintmq.store.log.reader import begun_at, blocks_in, record_in, records_in
from flintmq.store.log.record_fields import HEADER, HEADER_SIZE, STREAM_MESSAGE, TYPE_NAMES, Malformed, Record, aligned, fields_of

BLOCK_HEADER = 64

CLEAN = 1
LOGS = {"messages": MESSAGES, "transactions": TRANSACTIONS}
# the log of a stream queue is named streams/<queue id>, as its directory
STREAM_LOGS = "streams/"
# a higher sequence number is not believed: its LSNs would have no 64 bits
SEQUENCE_MAX = 1 << 33

# A running broker writes while we read: what looks damaged is read again this often, this many seconds apart, before it is believed.
LIVE_READS = 5
LIVE_PAUSE_S = 0.05

EX_USAGE, EX_DATA, EX_IO = 64, 65, 74


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


@dataclass(slots=True)
class Container:
    """A file of the log. header: None when it is not good; readable: its blocks may be looked at."""

    sequence: int
    path: Path
    file_size: int
    inode: int
    header: ContainerHeader | None = None
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
        return aligned(self.lsn + self.length, SECTOR)


def header_of(data: bytes) -> ContainerHeader | tuple[str, str]:
    """A container's header from its first 512 bytes, or (kind, why it is none)."""
    if len(data) < SECTOR:
        return "header", f"the file ends after {len(data)} bytes, inside the header"
    if data[:8] != MAGIC:
        return "header", "no container: the magic number is missing"
    header = read_header(data)
    version = int.from_bytes(data[8:12], "little")
    if version not in FORMAT_VERSIONS:
        also = "" if header else ", and the CRC of the header does not match"
        return "format" if header else "header", f"format version {version}; this program knows versions up to {FORMAT_VERSION}{also}"
    if header is None:
        return "header", "the CRC of the container's header does not match"
    if not header.known:
        return "header", f"sector size {header.sector}, container size {header.size}: not those of format {FORMAT_VERSION}"
    return header


def bad_record(data: bytes) -> str:
    """One line that says why no record is at the beginning of `data`, the rest of a block."""
    if len(data) < HEADER_SIZE:
        return f"{len(data)} bytes are left, a record has at least {HEADER_SIZE}"
    length, _, kind, _, flags, _, _ = HEADER.unpack_from(data)
    if flags > 15 or not HEADER_SIZE <= length <= len(data):
        return f"no record: length {length} of {len(data)} bytes, flags {flags}"
    return f"the CRC of the record does not match ({TYPE_NAMES.get(kind, f'type {kind}')}, {length} bytes)"


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
                wanted = min(container.file_size, self.container_size or SIZE_MAX)
                data = file.read(wanted) or b""
                while len(data) < wanted and (piece := file.read(wanted - len(data))):
                    data += piece
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
            if not 0 < container.sequence < SEQUENCE_MAX:
                container.problem, container.readable = ("name", f"containers are numbered from 1 to {SEQUENCE_MAX - 1}"), False
                continue
            try:
                with container.path.open("rb") as file:
                    header = header_of(file.read(SECTOR))
            except FileNotFoundError:
                self.containers.pop(container.sequence)
                continue
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EPERM):
                    raise OperatorError(f"{container.path}: {error.strerror}", EX_IO) from error
                header = "read", f"the file can't be read: {error.strerror}"
            if isinstance(header, ContainerHeader):
                container.header = header
            else:
                container.problem = header
                container.readable = header[0] == "header"
        headers = [c.header for c in self.containers.values() if c.header]
        lengths = [c.file_size for c in self.containers.values()]
        sizes = Counter([header.size for header in headers] or ([other_size] if other_size else lengths))
        size = sizes.most_common(1)[0][0] if sizes else 0
        self.container_size = size if SIZE_MIN <= size <= SIZE_MAX and size % SIZE_MIN == 0 else 0
        own = Counter(header.store_uuid for header in headers)
        self.uuid = uuid or (own.most_common(1)[0][0] if own else b"")
        for container in self.containers.values():
            self._check_place(container)

    def _check_place(self, container: Container) -> None:
        """A good header must also be the right one."""
        header = container.header
        if header is None:
            return
        if header.store_uuid != self.uuid:
            container.problem = "store", f"a container of another store: {header.store_uuid.hex()}, this store is {self.uuid.hex()}"
        elif header.log_id != self.number:
            container.problem = "store", f"a container of another log ({header.log_id}, this log is {self.number})"
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
        for tries in reversed(range(LIVE_READS if self.live else 1)):
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
            self.damage.sort(key=lambda damage: damage.lsn)
            if not self.damage or not tries:
                return
            time.sleep(LIVE_PAUSE_S)

    def _candidates(self) -> list[Block]:
        """All blocks whose headers check, ascending."""
        blocks: list[Block] = []
        for sequence in sorted(self.containers):
            container = self.containers[sequence]
            if container.readable:
                data = self.load(container)[: self.container_size]
                blocks.extend(Block(*one) for one in blocks_in(data, sequence * self.container_size, self.number))
        return blocks

    def _follow(self, blocks: list[Block]) -> None:
        """Takes the blocks that belong to the chain; what lies between is damage or, behind the last durable block, a torn tail."""
        last: Block | None = None
        # later_hint[i]: per block, the highest hint told from there on (in the order of LSNs epochs do not fall either)
        later: list[int] = [0] * (len(blocks) + 1)
        for i in reversed(range(len(blocks))):
            later[i] = max(later[i + 1], blocks[i].hint)
        lsn = min(self.containers) * self.container_size + SECTOR if self.containers else 0
        for i, block in enumerate(blocks):
            if last is not None and block.epoch < last.epoch:
                if all(other.epoch < last.epoch or other.hint <= block.lsn for other in blocks[i + 1 :]):
                    self.torn_at = lsn
                    break
                self.damage.append(
                    self.damaged("block", block.lsn, block.end, f"the block is of epoch {block.epoch}, one before it of epoch {last.epoch}")
                )
                continue
            if self._continues(last, block, lsn):
                self.blocks.append(block)
                last, lsn = block, self._place(block.end)
                continue
            epoch = last.epoch if last else 0
            hint = later[i] if last is None else max((other.hint for other in blocks[i:] if other.epoch >= epoch), default=0)
            if hint <= lsn:
                self.torn_at = lsn
                break
            self.damage.append(self._gap(lsn, block))
            self.blocks.append(block)
            last, lsn = block, self._place(block.end)
        if not self.torn_at and last is not None and self._looks_written(lsn):
            self.torn_at = lsn

    def _continues(self, last: Block | None, block: Block, lsn: int) -> bool:
        if last is None:
            return block.lsn == lsn
        if block.previous != last.lsn:
            return False
        first = (last.lsn // self.container_size + 1) * self.container_size + SECTOR
        return block.lsn == lsn or block.lsn == first

    def _looks_written(self, lsn: int) -> bool:
        """Whether a block was begun at this LSN. A whole header with another LSN is an old one of a recycled file."""
        container = self.containers.get(lsn // self.container_size)
        if container is None or not container.readable:
            return False
        offset = lsn % self.container_size
        return begun_at(self.load(container)[offset : offset + BLOCK_HEADER], lsn)

    def _gap(self, lsn: int, block: Block) -> Damage:
        """No good block between `lsn` and `block`, which was written after everything there was durable."""
        size = self.container_size
        absent = [n for n in range(lsn // size, block.lsn // size + 1) if n not in self.containers]
        unread = [n for n in range(lsn // size, block.lsn // size + 1) if n in self.containers and not self.containers[n].readable]
        if absent or unread:
            which = ", ".join(self.file_of(n) for n in (absent + unread)[:5]) + (", ..." if len(absent + unread) > 5 else "")
            first = (absent + unread)[0]
            start = max(lsn, first * size)
            kind = "missing" if absent else "not usable"
            return self.damaged("missing", start, block.lsn, f"{kind}: {which}; the next good block is at {block.lsn}", first, 0)
        start = lsn
        if block.previous // size > lsn // size and not self._looks_written(lsn):
            start = (lsn // size + 1) * size + SECTOR  # the earlier container ended here; the damage is in the next one
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
                self.damage = [damage for damage in self.damage if damage.lsn < self.torn_at]
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
        self.damage = [damage for damage in self.damage if damage.kind != "missing" or damage.end > base]

    # --- records

    def records_of(self, block: Block) -> Iterator[Record | Damage]:
        """The block's records in order, and a Damage for each stretch where there is none that checks."""
        container = self.containers.get(block.lsn // self.container_size)
        data = self.load(container) if container else b""
        offset, count = block.lsn % self.container_size, 0
        raw = data[offset : offset + block.length]
        if len(raw) < block.length:
            if container is not None and container.sequence in self.containers:
                yield self.damaged("read", block.lsn, block.end, "the block can't be read any more")
            return
        whole = True
        for item in records_in(raw, block.lsn, block.time_us):
            if len(item) > 2:
                yield Record(*item)
                count += 1
                continue
            whole = False
            lsn, following = item[0], item[1]
            inside = following < block.lsn + block.length
            goes_on = f"; the next good record is at {following}" if inside else "; nothing good follows in its block"
            yield self.damaged("record", lsn, following, bad_record(raw[lsn - block.lsn :]) + goes_on)
        if whole and count != block.records:
            yield self.damaged("block", block.lsn, block.end, f"the block should hold {block.records} records and holds {count}")

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
        return record_in(raw, lsn) is not None


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
                    header = header_of(opened.read(SECTOR))
            except OSError:
                continue
            if isinstance(header, ContainerHeader):
                votes[header.store_uuid, header.size] += 1
    return votes.most_common(1)[0][0] if votes else (b"", 0)


# --- logs of stream queues: which there are, and whether every record of them checks ----------------------------------------------


def stream_names(path: Path) -> tuple[str, ...]:
    """Names of the logs of all streams of a store, by queue id."""
    names = [one.name for one in (path / STREAM_LOGS).glob("*") if one.is_dir() and one.name.isascii() and one.name.isdigit()]
    return tuple(STREAM_LOGS + name for name in sorted(names, key=int))


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
