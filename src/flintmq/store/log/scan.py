"""Reads a log: containers, the chain of commit blocks, every record's CRC (docs/FORMAT.md, "Reading").

in: a directory of containers, through the file port. out: every good record from the base LSN on, in LSN order; where appending goes
on; what was torn and what is damaged. Writes nothing.

I1  Nothing is handed out whose CRC does not match its own LSN: bytes of a recycled file are never taken for new ones.
I2  A block whose records do not all check is handed out only when it is damaged (then its good records are), never when it is torn.
I3  No length or number from a file is used before it was checked against the bytes that are there.
I4  The base comes from the last block of the good chain, never from a block that is cut off: what a torn block says about the base
    may rest on records that were lost with it.

Torn or damaged: durable hints never fall along the log, so the highest one near the end decides for every place: what does not check
below it was durable once (damage), what does not check above it was never confirmed (torn).
"""

from __future__ import annotations

import os

import cython
from flintmq.slotted import slotted
from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, gil, long, nogil, p_char, p_void, pointer, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.store.log.file_port import FilePort
from cython.cimports.flintmq.store.log.reader import block_check, block_salvage, block_search
from cython.cimports.flintmq.store.log.record import (
    BLOCK_CLEAN, BLOCK_HEADER, BLOCK_MAGIC, CONTAINER_HEADER, SALVAGE_EFFORT, SECTOR, align8, align_sector, block_decode, block_t, le32,
    le64, record_decode, record_t,
)  # fmt: skip
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memset

from flintmq.errors import StoreError
from flintmq.store.log.containers import (
    FORMAT_VERSION,
    FORMAT_VERSIONS,
    MAGIC,
    SIZE_MAX,
    SIZE_MIN,
    ContainerHeader,
    container_name,
    read_header,
    sequence_of,
)

# bytes of one read call: long enough for the disk, short enough that a signal gets through
READ_PIECE = declare(uint64_t, 4 << 20)


@slotted(frozen=True)
class Damage:
    """A stretch of the log that was durable once and does not check any more: LSNs [lsn, next_lsn); next_lsn 0 = up to the end."""

    file: str
    offset: int
    lsn: int
    next_lsn: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: damaged at offset {self.offset} (LSN {self.lsn}, next good LSN {self.next_lsn}): {self.reason}"


@cfunc
@nogil
@exceptval(check=False)
def _bad(p: pointer[cython.const[uint8_t]], block: pointer[block_t]) -> bint:
    """Whether a record of the block at `p` does not check, or their number is not the header's."""
    count: uint32_t = 0
    return block_check(p, block, address(count)) < block.length or count != block.records


@cfunc
@nogil
@exceptval(check=False)
def _hand_out(
    p: pointer[cython.const[uint8_t]],
    block: pointer[block_t],
    base: uint64_t,
    on_record: scan_record_t,
    context: p_void,
) -> uint64_t:
    """Hands out the records of a block that was checked, from `base` on; returns their number."""
    offset: uint32_t = BLOCK_HEADER
    count: uint64_t = 0
    record: record_t
    while offset < block.length:
        record_decode(p + offset, block.lsn + offset, block.length - offset, block.time_us, False, address(record))
        offset += cast(uint32_t, align8(record.length))
        if record.lsn >= base:
            on_record(context, address(record))
            count += 1
    return count


@cfunc
@nogil
@exceptval(check=False)
def _ignore(context: p_void, record: pointer[record_t]) -> void:
    pass


@cfunc
@nogil
@exceptval(check=False)
def _collect(context: p_void, record: pointer[record_t]) -> void:
    with gil:
        records: list = cast(list, cast(object, context))
        records.append(
            (
                record.lsn,
                record.type,
                record.flags,
                record.undo_prev,
                record.tx,
                record.expires_at_ms,
                record.time_us,
                PyBytes_FromStringAndSize(cast(p_char, record.data), record.size),
            )
        )


@cclass
class LogScan:
    """One reading of one log. Attributes: see scan.pxd.

    Args: files: the file port; directory: absolute path of the log's containers; log_id: 1 messages, 2 transactions, 3 pages;
    store_uuid: the store's 16 bytes, None to accept what the containers agree on.
    """

    def __cinit__(self):
        self._bytes = NULL

    def __init__(self, files: FilePort, directory: str, log_id: int, store_uuid: bytes | None = None) -> None:
        self.files = files
        self.directory = directory
        self.log_id = log_id
        self.store_uuid = store_uuid
        self._reset()

    def __dealloc__(self):
        free(self._bytes)

    def _reset(self) -> None:
        self.container_size = 0
        self.containers = []
        self.unusable = []
        self.damage = []
        self.base = self.tail = self.last_block = self.block_end = self.torn_at = 0
        self.epoch = 0
        self.clean = False
        self.begin_epoch = 0
        self.blocks = self.records = self.bytes_read = 0
        self._names = {}
        self._candidates = []
        self.hint = 0
        self._last = self._proven = self._behind = self._ends_at = 0
        self._flags = 0
        self._loaded = 0

    # --- for Python callers

    def check(self) -> None:
        """Reads everything and hands out nothing: fills the attributes in."""
        self.run(_ignore, NULL)

    def ends(self) -> None:
        """Reads the headers, and the last containers: fills in containers, base, tail, hint, last_block, block_end, torn_at, clean. Earlier
        damage is not seen."""
        self._reset()
        self._headers()
        if self._names:
            first = min(self._names) * self.container_size + CONTAINER_HEADER
            there = self._find_base()
            self.last_block = self._proven
            self.tail = self.block_end = self._behind if self._proven else first
            self.base = self.base if self._proven else first
            if there:
                self._end(self._ends_at, self._flags)

    def collect(self) -> list:
        """Every good record as (lsn, type, flags, undo_prev, tx, expires_at_ms, time_us, own fields)."""
        records: list = []
        self.run(_collect, cast(p_void, records))
        return records

    # --- containers

    def _path(self, sequence: int) -> str:
        return os.path.join(self.directory, self._names.get(sequence) or container_name(sequence))

    def _headers(self) -> None:
        """Reads the header of every container: names, sizes, store. Raises StoreError: see module."""
        if self.before is not None:
            self._names = self.before._names
            self.containers, self.unusable = self.before.containers, self.before.unusable
            self.container_size, self.store_uuid = self.before.container_size, self.before.store_uuid
            self.before = None
            return
        strange: str | None = None
        names: dict = {}
        for name in self.files.list_dir(self.directory):
            sequence = sequence_of(name) or 0
            if 0 < sequence < 1 << 44:
                names[sequence] = name
        for sequence in sorted(names):
            path = os.path.join(self.directory, names[sequence])
            try:
                fd = self.files.open(path)
                try:
                    data = self.files.read(fd, CONTAINER_HEADER, 0)
                finally:
                    self.files.close(fd)
            except OSError as error:
                raise StoreError(f"cannot read {path}: {error.strerror}") from error
            self._names[sequence] = names[sequence]
            header = read_header(data)
            if header is None:
                version = int.from_bytes(data[8:12], "little")
                if data[:8] == MAGIC and version not in FORMAT_VERSIONS:
                    strange = strange or _version_text(path, version)
                self.unusable.append(sequence)
                continue
            self._check_header(path, sequence, header)
        if strange and not self.containers:
            raise StoreError(strange)
        if self.unusable and not self.containers:
            raise StoreError(f"{self._path(self.unusable[0])}: no container of this log has a good header")

    def _check_header(self, path: str, sequence: int, header: ContainerHeader | None) -> None:
        if header.format_version not in FORMAT_VERSIONS:
            raise StoreError(_version_text(path, header.format_version))
        if self.store_uuid is None:
            self.store_uuid = header.store_uuid
        if header.store_uuid != self.store_uuid:
            raise StoreError(f"{path} belongs to the store {header.store_uuid.hex()}, not to {self.store_uuid.hex()}")
        if header.log_id != self.log_id:
            raise StoreError(f"{path} belongs to log {header.log_id}, not to log {self.log_id}")
        if header.sector != SECTOR:
            raise StoreError(f"{path} has blocks aligned to {header.sector} bytes; this FlintMQ reads {SECTOR}")
        if not header.known:
            raise StoreError(f"{path} says its container size is {header.size}: not a multiple of {SIZE_MIN} up to {SIZE_MAX}")
        if self.container_size and header.size != self.container_size:
            raise StoreError(f"{path} has container size {header.size}, others of the log {self.container_size}")
        if header.sequence != sequence:
            self.unusable.append(sequence)  # another container's file under this name
            return
        self.container_size = header.size
        self.containers.append(sequence)
        if self.files.size(path) < header.size:  # its size was durable before it had its name
            self.unusable.append(sequence)

    def _load(self, sequence: uint64_t) -> c_int:
        """Reads a container into `_bytes`; one that is not there, and what a short file lacks, reads as zeros. So does what was never
        written, which is not read: most of a container that was just begun."""
        size: uint64_t = self.container_size
        if self._loaded == sequence:
            return 0
        self._loaded = 0
        if self._bytes == NULL:
            self._bytes = cast(pointer[uint8_t], calloc(size, 1))
            if self._bytes == NULL:
                raise MemoryError("no memory for a container")
        got: uint64_t = 0
        end: uint64_t
        count: long = 0
        piece: uint64_t
        fd: c_int
        if sequence in self._names:
            path = self._path(sequence)
            try:
                fd = self.files.open(path)
            except OSError as error:
                raise StoreError(f"cannot read {path}: {error.strerror}") from error
            end = min(size, cast(uint64_t, self.files.data_end(fd, size)))
            with nogil:
                while got < end:
                    piece = end - got if end - got < READ_PIECE else READ_PIECE
                    count = self.files.read_at(self.files.context, fd, self._bytes + got, piece, got)
                    if count <= 0:
                        break
                    got += count
            self.files.close(fd)
        if got < self._filled:
            memset(self._bytes + got, 0, self._filled - got)
        self._filled = got
        if count < 0:
            raise StoreError(f"cannot read {path}: {os.strerror(-count)}")
        self.bytes_read += got
        self._loaded = sequence
        if self.between is not None:
            self.between()
        return 0

    def sector(self, lsn: uint64_t) -> bytes:
        self._load(lsn // self.container_size)
        return PyBytes_FromStringAndSize(cast(p_char, self._bytes + lsn % self.container_size), SECTOR)

    def is_last(self, lsn: uint64_t) -> bint:
        offset: uint64_t = lsn % self.container_size + SECTOR
        self._load(lsn // self.container_size)
        while offset < self._filled and self._bytes[offset] == 0:
            offset += 1
        return offset >= self._filled

    # --- blocks

    def _block_at(self, offset: uint64_t, lsn: uint64_t, out: pointer[block_t]) -> bint:
        """Decodes the block header there in the loaded container. False: there is none."""
        return block_decode(self._bytes + offset, lsn, self.container_size - offset, self.log_id, out)

    def _next(self, lsn: pointer[uint64_t], last: uint64_t, epoch: uint32_t, any_previous: bint, out: pointer[block_t]) -> bint:
        """The block at `*at`, or, when the container ends there, the first one of the next container (`*at` is moved to it). False:
        neither continues the chain. any_previous: the chain before was broken (or is not read)."""
        size: uint64_t = self.container_size
        offset: uint64_t = lsn[0] % size
        if offset < CONTAINER_HEADER:
            offset = CONTAINER_HEADER
            lsn[0] = lsn[0] - lsn[0] % size + offset
        sequence: uint64_t = lsn[0] // size
        self._load(sequence)
        if self._block_at(offset, lsn[0], out) and out.epoch >= epoch and (any_previous or out.previous == last):
            return True
        if any_previous or offset == CONTAINER_HEADER or (sequence + 1) not in self._names:
            return False
        first: uint64_t = (sequence + 1) * size + CONTAINER_HEADER
        self._load(sequence + 1)
        if self._block_at(CONTAINER_HEADER, first, out) and out.epoch >= epoch and out.previous == last:
            lsn[0] = first
            return True
        return False

    def _search(self, offset: uint64_t, start: uint64_t, epoch: uint32_t, out: pointer[block_t]) -> uint64_t:
        """Offset of the first good header from there on in the loaded container, whose LSN is `start`; `_filled` or more: none."""
        return block_search(self._bytes, start, offset, self._filled, self.container_size, self.log_id, epoch, out)

    def _headers_in(self, sequence: int) -> list:
        """Every block header of a container that checks, ascending: (lsn, end, epoch, hint, previous, base, flags). A good block's records
        are passed: a body could have bytes that look like a header, and would tell a base and a hint."""
        headers: list = []
        block: block_t
        size: uint64_t = self.container_size
        offset: uint64_t = CONTAINER_HEADER
        start: uint64_t = sequence
        start *= size
        self._load(sequence)
        while True:
            offset = self._search(offset, start, 0, address(block))
            if offset >= self._filled:
                return headers
            headers.append((block.lsn, block.lsn + block.length, block.epoch, block.durable_hint, block.previous, block.base, block.flags))
            offset = align_sector(offset + block.length)

    def _find_base(self) -> bool:
        """Looks at the last containers: the highest durable hint, then the end of the good chain above it and the base it tells.
        False: the log has no block."""
        headers: list = []
        hint = 0
        for sequence in sorted(self._names, reverse=True):
            headers = self._headers_in(sequence) + headers
            hint = max(hint, _highest_hint(headers))
            if headers and headers[0][1] <= hint:
                break
        epoch = 0
        for block in headers:
            if block[2] >= epoch:  # else it was cut off by a later epoch
                epoch = block[2]
                self._candidates.append(block)
        if not self._candidates:
            return False
        self.hint = _highest_hint(self._candidates)
        start = self._candidates[0]
        for block in self._candidates:
            if block[1] <= self.hint:
                start = block
        self.base = start[5]
        self._last = start[0]
        self._ends_at = start[0]
        self._flags = start[6]
        last: uint64_t = start[0]
        last_epoch: uint32_t = start[2]
        lsn: uint64_t = align_sector(start[1])
        header: block_t
        if start[1] > self.hint:  # nothing is known durable: the first block has to prove itself, too
            lsn = start[0]
            if not self._next(address(lsn), 0, 0, True, address(header)) or self._is_bad(address(header)):
                return True
            lsn = align_sector(start[1])
        self._proven = start[0]
        self._behind = lsn
        while self._next(address(lsn), last, last_epoch, False, address(header)) and not self._is_bad(address(header)):
            self.base = header.base
            self._flags = header.flags
            last = self._last = self._proven = header.lsn
            last_epoch = header.epoch
            lsn = self._behind = align_sector(header.lsn + header.length)
        self._ends_at = lsn
        return True

    def _is_bad(self, block: pointer[block_t]) -> bint:
        return _bad(self._bytes + block.lsn % self.container_size, block)

    # --- reading

    def run(self, on_record: scan_record_t, context: p_void) -> c_int:
        self._reset()
        self._headers()
        if not self._names:
            return 0
        size: uint64_t = self.container_size
        first: uint64_t = min(self._names)
        self.tail = first * size + CONTAINER_HEADER
        if not self._find_base():
            if first > 1:
                raise StoreError(f"{self._path(first)}: the log starts at container {first} and has no readable block")
            self.base = self.tail
            self._name_unusable()
            return 0
        if self.base // size < 1 or self.base > (max(self._candidates)[1] // size + 1) * size + CONTAINER_HEADER:
            raise StoreError(f"{self.directory}: the last block names the impossible base LSN {self.base}")
        # The base may stand behind the last block, when nothing lives any more.
        from_: uint64_t = max(self.base, self.begin)
        lsn: uint64_t = min(from_, self._last) // size * size + CONTAINER_HEADER
        block: block_t
        p: pointer[uint8_t]
        bad: bint
        any_previous: bint = True
        last_flags: uint32_t = 0
        while True:
            if self.until and lsn >= self.until:
                return 0
            if not self._next(address(lsn), self.last_block, self.epoch, any_previous, address(block)):
                if lsn >= self.hint:
                    break
                lsn = self._resume(lsn)
                if lsn == 0:  # appending goes on where nothing can be overwritten
                    lsn = (max(self._names) + 1) * size + CONTAINER_HEADER
                    break
                any_previous = True
                continue
            p = self._bytes + block.lsn % size
            if block.lsn + block.length > from_ or block.lsn >= self.hint:
                if self.begin_epoch == 0:
                    self.begin_epoch = block.epoch
                with nogil:
                    bad = _bad(p, address(block))
                    if not bad:
                        self.records += _hand_out(p, address(block), from_, on_record, context)
                if bad:
                    if block.lsn >= self.hint:
                        break
                    self._salvage(address(block), on_record, context)
            self.blocks += 1
            self.last_block = block.lsn
            self.epoch = block.epoch
            last_flags = block.flags
            lsn = self.block_end = align_sector(block.lsn + block.length)
            any_previous = False
        self._end(lsn, last_flags)
        return 0

    def _end(self, lsn: uint64_t, flags: uint32_t) -> c_int:
        """The good chain ended before `lsn`: sets tail, torn_at, clean; names containers with a bad header among those read."""
        size: uint64_t = self.container_size
        if self.last_block:
            self.tail = lsn
        if lsn and lsn % size + BLOCK_HEADER <= size:
            self._load(lsn // size)
            if le32(self._bytes + lsn % size) == BLOCK_MAGIC and le64(self._bytes + lsn % size + 8) == lsn:
                self.torn_at = lsn
        if not self.torn_at and max(self._candidates)[0] > self.last_block:
            self.torn_at = lsn
        self.clean = (flags & BLOCK_CLEAN) != 0 and self.torn_at == 0
        self._name_unusable()
        return 0

    def _name_unusable(self) -> None:
        """Containers with a bad header or cut short: a container has its name only after its header and size are durable."""
        size: uint64_t = self.container_size
        for sequence in self.unusable:
            if self.base // size <= sequence:
                lsn = sequence * size
                self.damage.append(
                    Damage(
                        self._path(sequence), 0, lsn, lsn + CONTAINER_HEADER, "the container header does not check, or the file is short"
                    )
                )
        self.damage.sort(key=_damage_lsn)

    def _note(self, lsn: uint64_t, upto: uint64_t, reason: str | None) -> c_int:
        """Records damage of [lsn, upto), unless all of it lies below the base."""
        if upto and upto <= self.base:
            return 0
        size: uint64_t = self.container_size
        if lsn // size not in self._names:
            reason = "the container is missing"
        self.damage.append(Damage(self._path(lsn // size), lsn % size, lsn, upto, reason))
        return 0

    def _resume(self, lsn: uint64_t) -> uint64_t:
        """The chain is broken at `lsn`, which was durable: notes the damage; returns the LSN of the next good block, 0 if there is none."""
        size: uint64_t = self.container_size
        block_lsn: uint64_t = 0
        offset: uint64_t
        block: block_t
        sequence: uint64_t = lsn // size
        last: uint64_t = max(self._names)
        reason = "no commit block where the last one says the next begins"
        start: uint64_t = lsn
        while sequence <= last:
            if sequence in self._names:
                self._load(sequence)
                offset = self._search(align_sector(start % size), start - start % size, self.epoch, address(block))
                if offset < self._filled:
                    block_lsn = start - start % size + offset
                    break
                if sequence + 1 <= last and sequence + 1 not in self._names and start == lsn:
                    reason = f"the chain breaks here and the next container, {container_name(sequence + 1)}, is missing"
            sequence += 1
            start = sequence * size + CONTAINER_HEADER
        self._note(lsn, block_lsn, reason)
        return block_lsn

    def _salvage(self, block: pointer[block_t], on_record: scan_record_t, context: p_void) -> c_int:
        """A block that was durable holds records that do not check: hands out the good ones and notes the stretches between."""
        p: pointer[cython.const[uint8_t]] = self._bytes + block.lsn % self.container_size
        effort: uint64_t = SALVAGE_EFFORT * block.length
        offset: uint32_t = BLOCK_HEADER
        good: uint32_t
        noted: bint = False
        record: record_t
        while offset < block.length:
            if record_decode(p + offset, block.lsn + offset, block.length - offset, block.time_us, True, address(record)):
                offset += cast(uint32_t, align8(record.length))
                if record.lsn >= max(self.base, self.begin):
                    on_record(context, address(record))
                    self.records += 1
                continue
            good = block_salvage(p, block, offset + 8, address(effort))
            self._note(block.lsn + offset, block.lsn + good, "records do not check")
            noted = True
            offset = good
        if not noted:
            self._note(block.lsn, block.lsn + block.length, f"the block header speaks of {block.records} records, there are others")
        return 0


def _version_text(path: str, version: int) -> str:
    return f"{path} has format version {version}; this FlintMQ reads versions up to {FORMAT_VERSION}"


def _highest_hint(blocks: list) -> int:
    highest = 0
    for block in blocks:
        highest = max(highest, block[3])
    return highest


def _damage_lsn(damage: Damage) -> int:
    return damage.lsn
