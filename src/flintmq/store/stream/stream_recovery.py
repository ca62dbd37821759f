"""What the log of a stream tells when it is opened (see stream_recovery.pxd).

in: records of the log's scan. out: the next offset, the last whole message; whether the end of the log is proven.
"""

from __future__ import annotations

from cython import cast, cfunc, exceptval, nogil, p_void, pointer, void
from cython.cimports.flintmq.store.log.record import BLOCK_HEADER, le16, le32, le64, record_t
from cython.cimports.flintmq.store.log.scan import LogScan
from cython.cimports.flintmq.store.stream.stream_content import (
    RECORD_STREAM_CHUNK,
    RECORD_STREAM_MARK,
    RECORD_STREAM_MESSAGE,
    STREAM_FIXED,
)
from cython.cimports.libc.stdint import uint64_t

from flintmq.store.log.containers import container_name


@cfunc
@nogil
@exceptval(check=False)
def _whole(found: pointer[recovered_t], offset: uint64_t, lsn: uint64_t) -> void:
    found.next = max(found.next, offset + 1)
    found.start = lsn
    found.open_left = 0


def stream_on_record(context: p_void, record: pointer[record_t]) -> void:
    found: pointer[recovered_t] = cast(pointer[recovered_t], context)
    offset: uint64_t
    left: uint64_t
    found.last_lsn = record.lsn
    if record.size < 8:
        return
    offset = le64(record.data)
    if record.type == RECORD_STREAM_MARK:
        found.any = True
        found.mark_lsn = record.lsn
        found.next = max(found.next, offset)
    elif record.type == RECORD_STREAM_MESSAGE and record.size >= STREAM_FIXED:
        found.any = True
        found.next = max(found.next, offset)
        if record.lsn // found.container_size != found.container:
            found.container = record.lsn // found.container_size
            found.first = offset
            found.first_us = record.time_us
        found.open_start = record.lsn
        found.open_filled = le32(record.data + 20)
        left = cast(uint64_t, le32(record.data + 8)) + le32(record.data + 12) + le16(record.data + 16)
        found.open_left = left - found.open_filled if left > found.open_filled else 0
        if found.open_left == 0:
            _whole(found, offset, record.lsn)
    elif record.type == RECORD_STREAM_CHUNK and record.size >= 12:
        found.any = True
        found.next = max(found.next, offset)
        if found.open_left and record.undo_prev == found.open_start and le32(record.data + 8) == found.open_filled:
            left = record.size - 12
            if left < found.open_left:
                found.open_filled += left
                found.open_left -= left
            else:
                _whole(found, offset, found.open_start)


def stream_proven(files: object, directory: str | None, scan: LogScan | None, found: pointer[recovered_t]) -> object:
    """LSN of the block before a Stream-Mark that proves everything before it, or None.

    The mark is the only record of the last block, its hint covers what is before, and nothing was ever written behind it.
    """
    size: uint64_t = scan.container_size
    at: uint64_t = scan.last_block
    if (
        scan.damage
        or scan.torn_at
        or at == 0
        or found.mark_lsn != at + BLOCK_HEADER
        or found.last_lsn != found.mark_lsn
        or scan.hint < at
        or found.open_left
    ):
        return None
    block = scan.sector(at)
    before = int.from_bytes(block[48:56], "little")
    if before == 0 or not scan.is_last(at):
        return None
    try:
        fd = files.open(f"{directory}/{container_name(before // size)}")
    except FileNotFoundError:
        return None
    try:
        base = files.read(fd, 8, before % size + 32)
    finally:
        files.close(fd)
    return before if base == block[32:40] else None  # else the base is told by the mark alone


def remove_files(files: object, directory: str) -> None:
    """Removes a stream's directory with everything in it. Raises: OSError."""
    names = files.list_dir(directory)
    for name in reversed(names):
        files.unlink(f"{directory}/{name}")
    if names:
        files.sync_dir(directory)
    try:
        files.remove_dir(directory)
    except FileNotFoundError:
        pass
