"""tools/unused.py finds names that src defines and does not use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.unused import findings, unused

FILES = {
    "src/flintmq/one.py": """
from flintmq.two import helper, forgotten

LIMIT = 3
DEAD = 4


class Thing:
    size: int
    dead_field: int

    def grow(self) -> None:
        helper(self.size, LIMIT)

    def dead_method(self) -> None:
        \"\"\"dead_method stands in its docstring only.\"\"\"


@cli.command()
def command() -> None:
    Thing().grow()
""",
    "src/flintmq/two.py": """
def helper(size, limit):
    return size


def forgotten():
    return getattr(None, "named_in_a_text")


def named_in_a_text():
    return 1
""",
    "src/flintmq/low.pxd": """
cdef enum:
    USED = 0
    UNUSED = 1                  # UNUSED stands in its comment

cdef struct thing_t:
    int count
    int left_over

cdef int take(thing_t *thing) noexcept nogil
cdef int leave(thing_t *thing) noexcept nogil
""",
    "src/flintmq/low.py": """
def take(thing: pointer[thing_t]) -> c_int:
    return thing.count + USED


def leave(thing: pointer[thing_t]) -> c_int:
    return take(thing)
""",
}
DEAD = {"forgotten", "DEAD", "dead_field", "dead_method", "UNUSED", "left_over", "leave"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_what_nothing_uses_is_found(tree: Path) -> None:
    assert set(unused(tree)) == DEAD


def test_an_exception_holds_for_its_file_and_goes_with_its_need(tree: Path) -> None:
    told = findings(tree, (("flintmq/one.py", "DEAD dead_field grow", "test"), ("flintmq/low.pxd", "*", "test")))
    named = {line.split()[1] for line in told if "is used nowhere" in line}
    assert named == {"forgotten", "dead_method"}
    assert "tools/unused.py: grow of flintmq/one.py needs no exception" in told
