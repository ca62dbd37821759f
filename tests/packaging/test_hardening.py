"""Every compiled module has full RELRO and was compiled with stack protection: setup.py's flags reach the compiler and the linker."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

import flintmq

PT_DYNAMIC, PT_GNU_RELRO = 2, 0x6474E552
DT_FLAGS, DT_FLAGS_1 = 30, 0x6FFFFFFB
DF_BIND_NOW, DF_1_NOW = 8, 1

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux") or sys.maxsize < 2**32, reason="reads 64-bit ELF files")


def compiled() -> list[Path]:
    return sorted(Path(flintmq.__file__).parent.glob("**/*.so"))


def segments(data: bytes) -> list[tuple[int, int, int]]:
    """(type, offset, size) of each program header of a 64-bit little-endian ELF file."""
    offset, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    rows = [struct.unpack_from("<IIQQQQ", data, offset + i * size) for i in range(count)]
    return [(row[0], row[2], row[5]) for row in rows]


def binds_now(data: bytes) -> bool:
    for kind, offset, size in segments(data):
        if kind == PT_DYNAMIC:
            for tag, value in struct.iter_unpack("<QQ", data[offset : offset + size]):
                if (tag == DT_FLAGS and value & DF_BIND_NOW) or (tag == DT_FLAGS_1 and value & DF_1_NOW):
                    return True
    return False


def test_full_relro() -> None:
    weak = []
    for path in compiled():
        data = path.read_bytes()
        if not binds_now(data) or PT_GNU_RELRO not in {kind for kind, _, _ in segments(data)}:
            weak.append(path.name)
    assert weak == []


def test_stack_protector() -> None:
    # A function with an array on its stack is protected; those that answer requests have some.
    weak = [
        path.name
        for path in compiled()
        if path.name.startswith(("loop.", "delivery.", "blocks.")) and b"__stack_chk_fail" not in path.read_bytes()
    ]
    assert weak == []
