"""CRC-32C (Castagnoli) of bytes-like objects: the checksum of everything FlintMQ writes."""

from __future__ import annotations

from cython import address, uint
from cython.cimports.flintmq.core.crc32c import crc32c


def crc32c_of(data, crc: uint = 0) -> uint:
    """CRC-32C of `data`, continuing `crc` (0 to begin). O(n)."""
    if data.shape[0] == 0:
        return crc
    return crc32c(crc, address(data[0]), data.shape[0])
