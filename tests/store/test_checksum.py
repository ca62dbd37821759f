"""Property: a CRC-32C is that of the plain bit-by-bit definition, for every length and alignment, in one go or continued."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.core.checksum import crc32c_of

DATA = random.Random(32).randbytes(20_000)
# lengths around those at which another way of counting begins: 8, 3 x 256, 3 x 2048 bytes
EDGES = sorted({edge * times + more for edge in (8, 768, 6144) for times in (1, 2, 3) for more in (-1, 0, 1, 8)})


def plain(data: bytes, crc: int = 0) -> int:
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_known_value() -> None:
    assert crc32c_of(b"123456789") == 0xE3069283
    assert crc32c_of(b"") == 0


def test_every_length_and_alignment() -> None:
    for length in (*range(20), *EDGES):
        for start in (0, 3):
            data = DATA[start : start + length]
            assert crc32c_of(data) == plain(data), (length, start)


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 14_000), end=st.integers(0, 14_000))
def test_a_continued_crc_is_that_of_the_whole(cut: int, end: int) -> None:
    cut, end = sorted((cut, end))
    assert crc32c_of(DATA[cut:end], crc32c_of(DATA[:cut])) == crc32c_of(DATA[:end])


@given(at=st.integers(0, 6999), bit=st.integers(0, 7))
def test_one_wrong_bit_is_seen(at: int, bit: int) -> None:
    damaged = bytearray(DATA[:7000])
    damaged[at] ^= 1 << bit
    assert crc32c_of(damaged) != crc32c_of(DATA[:7000])
