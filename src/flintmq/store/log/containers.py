"""Containers as files: names, headers, making and recycling them.

in: the file port. out: files that are ready for blocks. Layout: docs/FORMAT.md.

I1  A container's final name appears only after its header is durable, and counts only after the directory's fsync.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from typing import Any

from flintmq.core.checksum import crc32c_of

MAGIC = b"FLNTLOG1"
FORMAT_VERSION = 2
# 1: without Queue-Purge; its containers are read as they are
FORMAT_VERSIONS = (1, 2)
# bytes of a container, and what they are a multiple of; a header that says something else is not believed
SIZE_MIN = 4096
SIZE_MAX = 1 << 30
SECTOR = 512
HEADER_SIZE = 512
SUFFIX = ".flog"
TEMPORARY = ".tmp"
_HEADER = struct.Struct("<8sII16sIIQQQ")

MESSAGES = 1
TRANSACTIONS = 2
PAGES = 3
STREAMS = 4


@dataclass(frozen=True, slots=True)
class ContainerHeader:
    """The first sector of a container. `time_us`: wall clock at which the file got this header."""

    store_uuid: bytes
    log_id: int
    epoch: int
    sequence: int
    size: int
    time_us: int
    format_version: int = FORMAT_VERSION
    sector: int = SECTOR

    @property
    def known(self) -> bool:
        """Whether this version and these sizes are those of docs/FORMAT.md."""
        sizes = self.sector == SECTOR and SIZE_MIN <= self.size <= SIZE_MAX and self.size % SIZE_MIN == 0
        return self.format_version in FORMAT_VERSIONS and sizes

    def encode(self) -> bytes:
        """512 bytes."""
        fields = _HEADER.pack(
            MAGIC,
            self.format_version,
            self.sector,
            self.store_uuid,
            self.log_id,
            self.epoch,
            self.sequence,
            self.size,
            self.time_us,
        )
        body = fields.ljust(HEADER_SIZE - 4, b"\0")
        return body + struct.pack("<I", crc32c_of(body))


def read_header(data: bytes) -> ContainerHeader | None:
    """What the first bytes of a container say; None when there are too few, or magic number or CRC are not right."""
    if len(data) < HEADER_SIZE or data[:8] != MAGIC or crc32c_of(data[:508]) != int.from_bytes(data[508:HEADER_SIZE], "little"):
        return None
    _, version, sector, uuid, log_id, epoch, sequence, size, time_us = _HEADER.unpack_from(data)
    return ContainerHeader(uuid, log_id, epoch, sequence, size, time_us, version, sector)


def in_present_format(data: bytes) -> bytes:
    """A container's bytes, its header saying the present format version: what is added to an old one may be what old programs don't know.
    One whose header is damaged stays as it is."""
    header = read_header(data)
    if header is None or header.format_version >= FORMAT_VERSION:
        return data
    head = data[: HEADER_SIZE - 4]
    head = head[:8] + struct.pack("<I", FORMAT_VERSION) + head[12:]
    return head + struct.pack("<I", crc32c_of(head)) + data[HEADER_SIZE:]


def container_name(sequence: int) -> str:
    """File name of a container: names sort as sequence numbers do."""
    return f"{sequence:020d}{SUFFIX}"


def sequence_of(name: str) -> int | None:
    """Sequence number of a container's file name; None for other names."""
    stem = name.removesuffix(SUFFIX)
    return int(stem) if name.endswith(SUFFIX) and len(stem) == 20 and stem.isascii() and stem.isdigit() else None


def round_container_size(size: int, least: int) -> int:
    """A container size as seed 003 has it: at least `least` bytes, and a multiple of 4096 (any disk's sector)."""
    return max(least, (size + 4095) // 4096 * 4096)


def make_container(files: Any, directory: str, header: ContainerHeader, zero: bool, direct: bool) -> int:
    """A new container under its final name (the caller syncs the directory). Returns its descriptor, which is for writing only.

    zero: it is filled with zeros, else reserved only; direct: it is written around the page cache, if that can be. Raises: OSError,
    nothing is left.
    """
    temporary = f"{directory}/{header.sequence:020d}{TEMPORARY}"
    if f"{header.sequence:020d}{TEMPORARY}" in files.list_dir(directory):
        files.unlink(temporary)
    fd: int = files.open(temporary, create=True)
    try:
        files.allocate(fd, header.size, zero)
        files.write(fd, header.encode(), 0)
        files.sync(fd)
        files.rename(temporary, f"{directory}/{container_name(header.sequence)}")
    except OSError as error:
        error.filename = error.filename or temporary
        files.close(fd)
        files.unlink(temporary)
        raise
    if not (direct and files.make_direct(fd)) and not zero:
        files.warm(fd, header.size)
    return fd


def recycle_container(files: Any, directory: str, old_sequence: int, header: ContainerHeader, direct: bool) -> int:
    """The file of a dead container becomes another one (the caller syncs the directory). Returns its descriptor, which is for writing
    only. direct: it is written around the page cache, if that can be.

    The old header goes first: from then on the file is no container, whatever else happens. Raises: OSError.
    """
    temporary = f"{directory}/{header.sequence:020d}{TEMPORARY}"
    old = f"{directory}/{container_name(old_sequence)}"
    fd: int = files.open(old)  # first: without a descriptor nothing has happened
    try:
        files.rename(old, temporary)
        if direct:
            files.make_direct(fd)
        files.write(fd, header.encode(), 0)
        files.sync(fd)
        files.rename(temporary, f"{directory}/{container_name(header.sequence)}")
    except OSError as error:
        error.filename = error.filename or temporary
        files.close(fd)
        raise
    return fd


def copy_file(files: Any, path: str, directory: str, name: str) -> None:
    """Copies a file into `directory` under its final name, its bytes synced (the caller syncs the directory). Raises: OSError."""
    source = files.open(path)
    try:
        data = files.read(source, files.size(path), 0)
    finally:
        files.close(source)
    temporary = f"{name}{TEMPORARY}"
    if temporary in files.list_dir(directory):
        files.unlink(f"{directory}/{temporary}")
    fd = files.open(f"{directory}/{temporary}", create=True)
    try:
        files.write(fd, data, 0)
        files.sync(fd)
    finally:
        files.close(fd)
    files.rename(f"{directory}/{temporary}", f"{directory}/{name}")


def _check_copy(files: Any, path: str, copy: str) -> None:
    """Raises: FileExistsError when the headers differ."""
    headers = []
    for one in (path, copy):
        fd = files.open(one)
        try:
            headers.append(files.read(fd, HEADER_SIZE, 0))
        finally:
            files.close(fd)
    if headers[0] != headers[1]:
        text = "it is no copy of this store's container: give each store an archive of its own (--log-archive-dir)"
        raise FileExistsError(errno.EEXIST, text, copy)


def archive_containers(files: Any, source: str, directory: str, sequences: list[int], most: int) -> tuple[list[int], int]:
    """Copies up to `most` containers of a log into `directory`, which is made if need be. Returns those that are there now, their names
    durable, and how many of them were copied. Raises: OSError; FileExistsError for a file that is no copy of this log's container: another
    store's archive is neither taken for this one's nor written over."""
    files.make_dir(directory)
    there = set(files.list_dir(directory))
    archived: list[int] = []
    copied = 0
    for sequence in sequences:
        name = container_name(sequence)
        if name in there:
            _check_copy(files, f"{source}/{name}", f"{directory}/{name}")
        else:
            if copied == most:
                break
            copy_file(files, f"{source}/{name}", directory, name)
            copied += 1
        archived.append(sequence)
    files.sync_dir(directory)
    return archived, copied


def clear_temporaries(files: Any, directory: str) -> None:
    """Removes what a crash left of containers in the making."""
    left = [name for name in files.list_dir(directory) if name.endswith(TEMPORARY)]
    for name in left:
        files.unlink(f"{directory}/{name}")
    if left:
        files.sync_dir(directory)
