"""tools/compiled.py: each rule of compiled modules finds what is planted, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import compiled
from tools.pxd import compiled_modules, imported, read_pxd, spelled

PXD = """
# A comment with cdef void never(int a)
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport (
    content_t, content_free as freed,
)

cdef extern from *:
    \"\"\"
    static inline int inside(int a) { return a; }
    \"\"\"
    int inside(int a) noexcept nogil

cpdef enum:                   # shown to Python
    KIND_A = 1
    KIND_B = 1 << 4

cdef enum:
    ROOM = 64, DOOR = 2

cdef struct thing_t:
    uint32_t count
    int (*call)(void *context, int what) noexcept nogil

cdef int thing_use(thing_t *thing, const uint64_t *at, void *context, bytes name, list more=*) except -1
cpdef object shown(int a)
cdef inline bint thing_ready(thing_t *thing) noexcept nogil:
    return thing.count != 0

cdef class Face:
    cdef thing_t *thing
    cdef readonly uint64_t total
    cdef public object owner
    cdef void step(self, int which) noexcept nogil
"""

PY = """
import cython
from cython import int as c_int
from cython import p_void, pointer, void
from cython.cimports.libc.stdint import uint64_t


def thing_use(thing: pointer[thing_t], at: pointer[cython.const[uint64_t]], context: p_void, name: bytes | None, more: list) -> c_int:
    return KIND_A


def shown(a: c_int) -> object:
    return a


class Face:
    def __cinit__(self, size: int = 4):
        spot: thing_t
        spot.count = size

    def step(self, which: c_int) -> void:
        pass

    def read(self, count: int = 100) -> bytes:
        return b""

    @property
    def left(self) -> int:
        return 0
"""

PYI = """
KIND_A: int
KIND_B: int

def shown(a: int) -> object: ...

class Face:
    total: int
    owner: object
    def __init__(self, size: int = ...) -> None: ...
    def read(self, count: int = 100) -> bytes: ...
    @property
    def left(self) -> int: ...
"""


def plant(root: Path, py: str = PY, pyi: str = PYI, pxd: str = PXD) -> dict[Path, compiled.Declarations]:
    folder = root / "src" / "flintmq" / "room"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "thing.py").write_text(py)
    (folder / "thing.pyi").write_text(pyi)
    (folder / "thing.pxd").write_text(pxd)
    return {module: read_pxd(module.with_suffix(".pxd").read_text()) for module in compiled_modules(root)}


def test_a_pxd_is_read() -> None:
    told = read_pxd(PXD)
    assert {name for _, name in told.functions} == {"thing_use", "shown", "step"}
    use = told.functions["", "thing_use"]
    assert use.result == "int" and [(one.type, one.name) for one in use.arguments] == [
        ("thing_t *", "thing"),
        ("const uint64_t *", "at"),
        ("void *", "context"),
        ("bytes", "name"),
        ("list", "more"),
    ]
    assert told.functions["", "shown"].shown and not use.shown
    assert told.constants == {"KIND_A": "1", "KIND_B": "1 << 4", "ROOM": "64", "DOOR": "2"} and told.shown == {"KIND_A", "KIND_B"}
    assert told.attributes["Face", "total"] == "readonly" and told.attributes["Face", "thing"] == ""
    assert imported(PXD) == {
        "uint32_t": "libc.stdint",
        "uint64_t": "libc.stdint",
        "content_t": "flintmq.core.content",
        "freed": "flintmq.core.content",
    }


@pytest.mark.parametrize(
    ("declared", "written"),
    [
        ("int", "c_int"),
        ("queue_t *", "pointer[queue_t]"),
        ("const char *", "pointer[cython.const[char]]"),
        ("void *", "p_void"),
        ("void **", "pointer[p_void]"),
        ("const unsigned char[:]", None),
        ("unsigned char *", "pointer[uchar]"),
    ],
)
def test_types_as_a_signature_writes_them(declared: str, written: str | None) -> None:
    assert spelled(declared) == written


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    told = plant(tmp_path)
    assert compiled.stubs(told, tmp_path) == [] and compiled.undefined(told, tmp_path) == []
    assert compiled.constants(tmp_path) == [] and compiled.signatures(told, tmp_path) == []


@pytest.mark.parametrize(
    ("before", "after", "finding"),
    [
        ("count: int = 100", "count: int", "Face.read(self, count) is read(self, count=100)"),
        ("count: int = 100", "size: int = 100", "Face.read(self, size=100) is read(self, count=100)"),
        ("    def read(self, count: int = 100) -> bytes: ...\n", "", "Face.read is missing"),
        ("    @property\n", "", "Face.left is a property in one of the two"),
        ("KIND_B: int\n", "", "KIND_B is missing"),
        ("KIND_B: int\n", "KIND_B: int\nKIND_C: int\n", "there is no KIND_C"),
        ("    total: int\n", "    total: int\n    thing: int\n", "Face.thing is no attribute that Python sees"),
        (
            "def shown(a: int)",
            "def thing_use(thing: int, at: int, context: int, name: int, more: int)",
            "thing_use can't be called from Python",
        ),
        ("class Face", "class Mask", "there is no class Mask"),
    ],
)
def test_a_stub_that_drifts_is_found(tmp_path: Path, before: str, after: str, finding: str) -> None:
    assert before in PYI
    told = plant(tmp_path, pyi=PYI.replace(before, after))
    assert f"src/flintmq/room/thing.pyi: {finding}" in compiled.stubs(told, tmp_path)


def test_a_name_that_nobody_declares_is_found(tmp_path: Path) -> None:
    (finding,) = compiled.undefined(plant(tmp_path, py=PY.replace("return KIND_A", "return KIND_Z")), tmp_path)
    assert "KIND_Z" in finding


def test_a_constant_that_stands_twice_is_found(tmp_path: Path) -> None:
    plant(tmp_path)
    other = tmp_path / "src" / "flintmq" / "room" / "other.py"
    other.write_text("_KIND_B = 0x10\nROOM = 32\n")  # the second is another thing of that name
    (finding,) = compiled.constants(tmp_path)
    assert "other.py:1: KIND_B stands in src/flintmq/room/thing.pxd" in finding
    other.with_suffix(".pxd").write_text("cdef enum:\n    DOOR = 2\n")
    assert len(compiled.constants(tmp_path)) == 2


@pytest.mark.parametrize(
    ("before", "after", "finding"),
    [
        ("context: p_void", "context", "thing_use: argument context is written as nothing, the .pxd says p_void"),
        ("pointer[cython.const[uint64_t]]", "pointer[uint64_t]", "the .pxd says pointer[cython.const[uint64_t]]"),
        ("name: bytes | None", "label: bytes | None", "thing_use: argument label is name in the .pxd"),
        (", more: list", "", "thing_use has 4 arguments, 5 in the .pxd"),
        ("-> void", "-> c_int", "step returns c_int, the .pxd says void"),
        ("return KIND_A", "return cython.cast(c_int, KIND_A)", "cython.cast: import it from cython"),
    ],
)
def test_a_signature_that_drifts_is_found(tmp_path: Path, before: str, after: str, finding: str) -> None:
    assert before in PY
    (found,) = compiled.signatures(plant(tmp_path, py=PY.replace(before, after)), tmp_path)
    assert found.startswith("src/flintmq/room/thing.py:") and finding in found


def test_the_lists_are_derived(tmp_path: Path) -> None:
    plant(tmp_path)
    mark = f"{compiled.BEGIN}\nold\n{compiled.END}\n"
    text = compiled.with_lists(f"a\n{mark}b\n{mark}c\n", compiled_modules(tmp_path), tmp_path)
    assert '"src/flintmq/room/thing.py" = ["F821"' in text and '    "flintmq.room.thing",\n' in text and "old" not in text
    with pytest.raises(ValueError, match="two places"):
        compiled.with_lists(mark, [], tmp_path)


def test_cimports_fill_their_lines(tmp_path: Path) -> None:
    """Written once they stay; a comment at a name, and imports of Python, are left as they are."""
    long = ", ".join(f"name_{number}" for number in range(20, 0, -1))
    text = f"from cython.cimports.flintmq.core.atomics import ({long})\nfrom cython import NULL, cast, c\nfrom os import (\n    path,\n)\n"
    written = compiled.with_cimports(text)
    assert "from cython import NULL, c, cast\n" in written and "from os import (\n    path,\n)\n" in written
    assert ")  # fmt: skip\n" in written and all(len(line) <= compiled.WIDTH for line in written.splitlines())
    assert compiled.with_cimports(written) == written
    assert compiled.with_cimports("from cython import (\n    b,  # why\n    a,\n)\n") == "from cython import (\n    b,  # why\n    a,\n)\n"
    assert written.index("from cython import") < written.index("from cython.cimports"), "sorted by their modules"
    path = tmp_path / "module.py"
    path.write_text(written)
    assert compiled.cimports([path], tmp_path) == []
    path.write_text("from cython.cimports.flintmq.core.atomics import a\n\nx = 1\nfrom cython import b\n")
    (finding,) = compiled.cimports([path], tmp_path)
    assert finding == "module.py:4: cython comes before cython.cimports.flintmq.core.atomics: imports of C names are in order"
    path.write_text(text)
    assert "do not fill their lines" in compiled.cimports([path], tmp_path)[0]
