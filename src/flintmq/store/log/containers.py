"""Containers as files: names, headers, making and recycling them.

in: the file port. out: files that are ready for blocks. Layout: docs/FORMAT.md.

I1  A container's final name appears only after its header is durable, and counts only after the directory's fsync.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from flintmq.core.checksum import crc32c_of
from flintmq.slotted import slotted
from flintmq.store.log.space import NO_RESERVES, Reserves

if TYPE_CHECKING:
    from flintmq.clock import Clock

MAGIC = b"FLNTLOG1"
FORMAT_VERSION = 3
# 1: without Queue-Purge; 2: without Message-Shape and Message; their containers are read as they are
FORMAT_VERSIONS = (1, 2, 3)
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
INDEX = 5


@slotted(frozen=True)
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


@slotted(frozen=True)
class LogSettings:
    """What one log of a store is, and how it is kept.

    name: for texts, and of its directory in an archive; log_id, store_uuid: what headers carry; sizes in bytes; clock:
    flintmq.clock.Clock; syncs: False for the page log; reserves: what stays free of the disk when a container is made; retain_bytes,
    retain_s: dead containers are kept readable that long; archive: directory to which each dead container is copied before its file is
    used again or removed, None: none is.
    """

    name: str
    log_id: int
    store_uuid: bytes
    container_size: int
    clock: Clock
    syncs: bool = True
    reserves: Reserves = NO_RESERVES
    retain_bytes: int = 0
    retain_s: int = 0
    archive: str | None = None


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
