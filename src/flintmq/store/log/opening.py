"""Opening the logs of a store: scan, cut the torn tail, write the last container anew, adopt what is there.

in: what LogScan found. out: logs ready to append. docs/RELIABILITY.md has the rules.

I1  Opening is idempotent: a crash at any point of it leaves a store that opens to the same state.
I2  Nothing is trusted because a read showed it, not even after a clean stop: at every start the containers from the durable hint's to
    the tail's are written to new files and synced before anything is confirmed (after a failed sync the page cache may show bytes that
    the disk does not have).
"""

from __future__ import annotations

import logging
from typing import Any

from flintmq.core.checksum import crc32c_of
from flintmq.errors import StoreError
from flintmq.store.log.containers import (
    SECTOR,
    TEMPORARY,
    clear_temporaries,
    container_name,
    copy_file,
    in_present_format,
    sequence_of,
)
from flintmq.store.log.managed import ManagedLog

log = logging.getLogger("flintmq.store")

# flag of a block: the last one of a clean stop (record.pxd)
BLOCK_CLEAN = 1


def open_log(
    files: Any,
    directory: str,
    log_id: int,
    scan: Any,
    uuid: bytes,
    container_size: int,
    initial: int,
    *,
    epoch: int,
    clock: Any,
    floors: Any,
    keeping: tuple[Any, ...],
) -> Any:
    """The log in `directory` as `scan` found it, or a new one: its ManagedLog, ready to append.

    Args: initial: containers of a new log; floors: what stays free of the disk; keeping: retention in bytes and seconds, archive.
    Raises: OSError, StoreError.
    """
    name = directory.rpartition("/")[2]
    if scan.container_size and scan.container_size != container_size:
        log.warning("%s keeps its container size of %d bytes: --container-size is ignored", name, scan.container_size)
        container_size = scan.container_size
    make: Any = ManagedLog  # compiled: its arguments are not seen by mypy
    managed = make(files, directory, name, log_id, uuid, container_size, container_size, True, clock, *keeping)
    managed.set_floors(floors)
    managed.set_ahead(max(2, initial))
    if not scan.container_size:
        clear_temporaries(files, directory)
        managed.open_new(initial, epoch)
        return managed
    # Also after a clean stop: that a read shows its last block does not say that the block was synced.
    repair_tail(files, directory, scan.tail, container_size, scan.hint)
    clear_temporaries(files, directory)
    managed.open_at(scan.tail, scan.last_block, epoch, scan.base)
    first = scan.base // container_size
    here = sorted(number for number in map(sequence_of, files.list_dir(directory)) if number is not None)
    ahead = [number for number in here if number > scan.tail // container_size]
    useless = [number for place, number in enumerate(ahead, scan.tail // container_size + 1) if number != place]
    for number in reversed(useless):  # behind a gap that a crash left: nothing was ever written there
        files.unlink(managed.path_of(number))
    if useless:
        files.sync_dir(directory)
    for sequence in [number for number in here if number not in useless]:
        if sequence < first:
            managed.adopt_dead(sequence)
        else:
            managed.adopt(sequence)
    managed.prepare(True)
    return managed


def check_whole(files: Any, store_dir: str, last_blocks: dict[str, int]) -> None:
    """Both logs are there, or none is. Args: last_blocks: log -> LSN of its last block, 0 for one without any.

    A directory that is there and empty stands for a log that somebody gave up. Raises: StoreError.
    """
    names = files.list_dir(store_dir)
    for missing, other in (("messages", "transactions"), ("transactions", "messages")):
        if missing not in names and last_blocks[other]:
            raise StoreError(missing_text(f"{store_dir}/{missing}", f"{store_dir}/{other} is a log in use"))


def missing_text(path: str, why: str) -> str:
    """What to say of a log's directory that should be there."""
    return (
        f"{path} is missing, but {why}: starting without it would lose what it holds. Put it back (is its disk mounted?); to go on"
        " without it, make an empty directory of that name"
    )


def take_back_clean(files: Any, managed: Any, last_block: int) -> None:
    """The last block of a clean stop becomes an ordinary one, in its place: it holds nothing else, so it may be torn by that.

    For a start that can't write a block of its own, since the disk is full: what it delivers must count as delivered after the next stop.
    Raises: OSError.
    """
    fd = files.open(managed.path_of(last_block // managed.container_size))
    try:
        offset = last_block % managed.container_size
        header = bytearray(files.read(fd, SECTOR, offset))
        flags = int.from_bytes(header[56:60], "little") & ~BLOCK_CLEAN
        header[56:60] = flags.to_bytes(4, "little")
        header[60:64] = crc32c_of(bytes(header[:60])).to_bytes(4, "little")
        files.write(fd, bytes(header), offset)
        files.sync(fd)
    finally:
        files.close(fd)


def repair_tail(files: Any, directory: str, tail: int, container_size: int, durable: int, *, zero: bool = True) -> None:
    """Writes the containers anew that may hold something which was never synced: from the durable hint's to the tail's, zeros behind the
    tail; and removes those behind it.

    zero: the zeros are written, which makes later syncs cheaper; else the room is only reserved and reads as zeros. Not in place: the
    confirmed blocks above the hint would be in flight once more, and a power failure may spoil a sector that is being written.
    """
    sequence = tail // container_size
    names = {number: name for name in files.list_dir(directory) if (number := sequence_of(name)) is not None}
    # From the last one down: a crash in between leaves no gap. First, so that a full disk has room for the rest.
    behind = sorted((number for number in names if number > sequence), reverse=True)
    for later in behind:
        files.unlink(f"{directory}/{container_name(later)}")
    if behind:
        files.sync_dir(directory)
    for number in range(min(durable // container_size, sequence), sequence + 1):
        if number in names:
            _write_anew(files, directory, number, tail % container_size if number == sequence else container_size, container_size, zero)
    files.sync_dir(directory)


def _write_anew(files: Any, directory: str, sequence: int, kept: int, size: int, zero: bool) -> None:
    """Replaces a container by a copy of its first `kept` bytes and zeros."""
    path = f"{directory}/{container_name(sequence)}"
    temporary = f"{directory}/{sequence:020d}{TEMPORARY}"
    fd = files.open(path)
    try:
        data = files.read(fd, kept, 0)
    finally:
        files.close(fd)
    if len(data) < SECTOR:
        return
    if f"{sequence:020d}{TEMPORARY}" in files.list_dir(directory):
        files.unlink(temporary)
    fd = files.open(temporary, create=True)
    try:
        files.allocate(fd, size, zero)
        files.write(fd, in_present_format(data), 0)
        files.sync(fd)
    finally:
        files.close(fd)
    files.rename(temporary, path)


def set_damage_aside(files: Any, store_dir: str, log_name: str, damage: Any, container_size: int) -> None:
    """Names every damaged place in the broker's log and keeps a copy of its container in the quarantine directory."""
    for one in damage:
        copy = quarantine(files, store_dir, log_name, f"{store_dir}/{log_name}", one.lsn // container_size)
        log.error("damaged container: %s%s", one, f"; copied to {copy}" if copy else "")


def quarantine(files: Any, store_dir: str, log_name: str, directory: str, sequence: int) -> str | None:
    """Copies a damaged container to the quarantine directory, once. Returns the copy's path, None when it was there already."""
    target_dir = f"{store_dir}/quarantine"
    files.make_dir(target_dir)
    name = f"{log_name}-{container_name(sequence)}"
    if name in files.list_dir(target_dir) or container_name(sequence) not in files.list_dir(directory):
        return None
    copy_file(files, f"{directory}/{container_name(sequence)}", target_dir, name)
    files.sync_dir(target_dir)
    return f"{target_dir}/{name}"


def clear_pages(files: Any, directory: str) -> None:
    """Spilled transient messages don't survive: their log starts empty."""
    names = files.list_dir(directory)
    for name in names:
        files.unlink(f"{directory}/{name}")
    files.make_dir(directory)
    if names:
        files.sync_dir(directory)
