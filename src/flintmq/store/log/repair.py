"""`flintmq log repair`: makes a damaged log open again, and says exactly what that costs.

in: the surveyed logs of a stopped store (inspect.py). out: a `Plan`: new bytes of the containers that must change; `apply` writes them.

LSNs are identities and record CRCs name them, so nothing good is moved: good blocks and records stay where they are. A stretch without
good blocks is covered with empty blocks, one inside a block with records that speak of a message or transaction below every LSN in use,
and the chain is closed over them. Containers that are missing are made anew, with one empty block.

Invariants: a container is copied to quarantine/ before it changes; every write is temp file, fsync, rename, fsync of the directory; a
crash in between leaves a store that can be repaired again.
"""

from __future__ import annotations

import os
import struct
import time
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

from flintmq.errors import OperatorError
from flintmq.store.log import record_fields as kinds
from flintmq.store.log.containers import SECTOR, SUFFIX, TRANSACTIONS, ContainerHeader
from flintmq.store.log.inspect import BLOCK_HEADER, EX_DATA, EX_IO, LOGS, Block, Damage, Log, StoreView
from flintmq.store.log.reader import block_bytes, blocks_in, sealed
from flintmq.store.log.record_fields import HEADER_SIZE, Malformed, Record, aligned, fields_of

# The id that filler records speak of: below the first container, so no message or transaction ever has it.
NOBODY = 1
# Kind of a Note that nobody reads.
NOTE_NOTHING = 0xFFFF
_NOTE_SIZE = 8
_NOTE_KEY_MAX = 0xFFFF // 8 * 8


@dataclass(slots=True)
class Plan:
    """What a repair would do. images: (log, sequence) -> new bytes; lost: stretches that hold no good records any more."""

    images: dict[tuple[str, int], bytes] = field(default_factory=dict)
    lost: list[Damage] = field(default_factory=list)


def filler(log: int, lsn: int, size: int) -> list[bytes]:
    """Records that mean nothing and take exactly `size` bytes (a multiple of 8, at least 24) from `lsn` on."""
    records = []
    while size:
        if log == TRANSACTIONS:
            take = min(size, HEADER_SIZE + _NOTE_SIZE + _NOTE_KEY_MAX)
            if 0 < size - take < HEADER_SIZE:
                take -= HEADER_SIZE
            kind = kinds.NOTE if take >= HEADER_SIZE + _NOTE_SIZE else kinds.TX_DELETE
            key = take - HEADER_SIZE - _NOTE_SIZE
            own = struct.pack("<HHI", NOTE_NOTHING, key, 0) + bytes(key) if kind == kinds.NOTE else b""
        else:
            take = size
            kind = kinds.CHUNK if take > HEADER_SIZE else kinds.MESSAGE_DELETE
            own = bytes(take - HEADER_SIZE)
        raw = kinds.HEADER.pack(HEADER_SIZE + len(own), 0, kind, 0, 0, 0, NOBODY if kind != kinds.NOTE else 0) + own
        records.append(sealed(raw, lsn))
        lsn += take
        size -= take
    return records


class _Rebuild:
    """New images of one log's containers."""

    def __init__(self, log: Log, uuid: bytes) -> None:
        self.log = log
        self.uuid = uuid
        self.size = log.container_size
        self.images: dict[int, bytes] = {}
        self.lost: list[Damage] = []
        self.last: Block | None = None

    def run(self) -> dict[int, bytes]:
        """Returns the images of the containers that change."""
        log = self.log
        if not log.blocks:
            return self._bad_headers(range(0))
        by_container: dict[int, list[Block]] = {}
        for block in log.blocks:
            by_container.setdefault(block.lsn // self.size, []).append(block)
        last = max(by_container)
        first = min(by_container)
        if log.base and log.base // self.size < first:
            first = log.base // self.size
        needed = [n for n in range(first, last + 1) if n in by_container or n >= log.base // self.size or n in log.containers]
        for sequence in needed:
            self._container(sequence, by_container.get(sequence, []), log.blocks[0], sequence == last)
        return self.images | self._bad_headers(needed)

    def _bad_headers(self, done: range | list[int]) -> dict[int, bytes]:
        """Containers outside the chain (made ahead, or dead) whose headers are bad: made empty."""
        images = {}
        for container in self.log.containers.values():
            if container.problem and container.sequence not in done and container.sequence > 0:
                images[container.sequence] = self._header(container.sequence, 1).ljust(self.size, b"\0")
        return images

    def _header(self, sequence: int, epoch: int) -> bytes:
        return ContainerHeader(self.uuid, self.log.number, epoch, sequence, self.size, time.time_ns() // 1000).encode()

    def _differs(self, sequence: int, image: bytearray) -> bool:
        container = self.log.containers.get(sequence)
        return container is None or container.problem is not None or self.log.load(container) != image

    def _container(self, sequence: int, blocks: list[Block], next_good: Block, is_last: bool) -> None:
        log, start = self.log, sequence * self.size
        container = log.containers.get(sequence)
        usable = container is not None and container.readable
        image = bytearray(log.load(container) if container is not None and usable else b"")[: self.size]
        image.extend(bytes(self.size - len(image)))
        like = blocks[0] if blocks else self.last or next_good
        if container is None or container.header is None or container.problem is not None:
            image[:SECTOR] = self._header(sequence, like.epoch)
        lsn = start + SECTOR
        if not blocks:
            lsn = self._empty(image, start, lsn, lsn + SECTOR, like)
        for block in blocks:
            lsn = self._empty(image, start, lsn, block.lsn, block)
            lsn = self._block(image, start, block)
        # Old blocks behind the chain that carry LSNs of this container must not be taken for a continuation. A torn tail stays: recovery
        # cuts it off itself.
        if not is_last or not log.torn_at:
            for old, *_ in blocks_in(bytes(image), start, log.number):
                if old >= lsn:
                    image[old - start : old - start + SECTOR] = bytes(SECTOR)
        if self._differs(sequence, image):
            self.images[sequence] = bytes(image)

    def _empty(self, image: bytearray, start: int, lsn: int, end: int, like: Block) -> int:
        """Covers [at, end) with empty blocks; returns where it stopped."""
        while lsn < end:
            before = self.last
            block = Block(
                lsn=lsn,
                length=BLOCK_HEADER,
                epoch=before.epoch if before else like.epoch,
                records=0,
                hint=before.hint if before else 0,
                base=before.base if before else like.base,
                time_us=before.time_us if before else like.time_us,
                previous=before.lsn if before else 0,
                flags=0,
            )
            image[lsn - start : lsn - start + SECTOR] = block_bytes(*astuple(block)).ljust(SECTOR, b"\0")
            self.last = block
            lsn += SECTOR
        return lsn

    def _block(self, image: bytearray, start: int, block: Block) -> int:
        """Keeps the good records of the block, fills the rest, closes the chain; returns where the next block is expected."""
        new, count, cut = block, 0, 0
        for item in self.log.records_of(block):
            bad = self._bad(item)
            if bad is None:
                count += 1
                continue
            if bad.kind == "block" and bad.lsn == block.lsn:  # only the count was wrong
                continue
            self.lost.append(bad)
            end = block.lsn + block.length
            if bad.end >= end or bad.end - bad.lsn < HEADER_SIZE:
                cut = bad.lsn
                break
            lsn = bad.lsn
            for raw in filler(self.log.number, bad.lsn, bad.end - bad.lsn):
                image[lsn - start : lsn - start + len(raw)] = raw
                lsn += aligned(len(raw), 8)
                count += 1
        if cut:
            new = replace(new, length=cut - block.lsn)
            image[cut - start : block.end - start] = bytes(block.end - cut)
        previous = self.last.lsn if self.last else block.previous
        new = replace(new, records=count, previous=previous)
        if new != block:
            image[block.lsn - start : block.lsn - start + BLOCK_HEADER] = block_bytes(*astuple(new))
        self.last = new
        return new.end

    def _bad(self, item: Record | Damage) -> Damage | None:
        if isinstance(item, Damage):
            return item
        try:
            fields_of(item, self.log.number)
        except Malformed as error:
            end = item.lsn + aligned(item.length, 8)
            return self.log.damaged("malformed", item.lsn, end, f"{item.name}: {error}")
        return None


def plan(view: StoreView) -> Plan:
    """The changes that are needed so that the logs open. Raises: OperatorError (65) for a format or a container size that is not known."""
    result = Plan()
    for name, log in view.logs.items():
        unknown = next((damage for damage in log.damage if damage.kind == "format"), None)
        if unknown is not None:
            raise OperatorError(f"{view.path / unknown.file}: {unknown.text}", EX_DATA)
        if not log.container_size:
            if log.containers:
                raise OperatorError(f"{view.path / name}: no container tells the container size; nothing can be repaired", EX_DATA)
            continue
        rebuild = _Rebuild(log, view.uuid or log.uuid or os.urandom(16))
        images = rebuild.run()
        result.images |= {(name, sequence): image for sequence, image in images.items()}
        result.lost += [damage for damage in log.damage if damage.kind in ("missing", "block") and damage.end > damage.lsn] + rebuild.lost
    return result


def apply(view: StoreView, changes: Plan) -> list[str]:
    """Writes the plan; returns the paths of the quarantined copies, below the store directory. Raises: OperatorError (74)."""
    copies = []
    try:
        _forget_checkpoints(view.path / "index")
        for (name, sequence), image in sorted(changes.images.items()):
            container = view.logs[name].containers.get(sequence)
            target = container.path if container else view.path / name / f"{sequence:020d}{SUFFIX}"
            if container is not None:
                copies.append(_quarantine(view.path, name, container.path))
            _write_whole(target, image, target.with_suffix(".tmp"))
    except OSError as error:
        raise OperatorError(f"{error.filename or view.path}: {error.strerror}; nothing was lost, run the repair again", EX_IO) from error
    return copies


def _forget_checkpoints(index: Path) -> None:
    """A checkpoint knows the log as it was: the next start reads all that is left. First, so that a crash leaves none."""
    containers = sorted(index.glob(f"*{SUFFIX}"))
    for container in containers:
        container.unlink()
    if containers:
        _sync_directory(index)


def _quarantine(store: Path, name: str, source: Path) -> str:
    """Copies a container as it is. A copy that is there already is kept: an earlier repair may have been interrupted."""
    directory = store / "quarantine"
    if not directory.is_dir():
        directory.mkdir(mode=0o700)
        _sync_directory(store)
    try:
        data: bytes | None = source.read_bytes()
    except OSError:  # what can't be read can still be moved
        data = None
    number = 1
    while True:
        target = directory / f"{name}-{source.stem}{'' if number == 1 else f'-{number}'}{SUFFIX}"
        if not target.exists():
            if data is None:
                os.rename(source, target)
                _sync_directory(directory)
            else:
                _write_whole(target, data, target.with_suffix(".tmp"))
            break
        if data is not None and target.read_bytes() == data:
            break
        number += 1
    return f"quarantine/{target.name}"


def _write_whole(target: Path, data: bytes, temporary: Path) -> None:
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, target)
    _sync_directory(target.parent)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


__all__ = ["LOGS", "Plan", "apply", "filler", "plan"]
