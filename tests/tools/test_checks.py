"""The lint of checks finds a check that says nothing, the wrong thing, or the same as another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.checks import all_checks, findings, labels

HEADER = '"""A shelf.\n\nI1  What is on it is counted.\nI2  A box stands once.\n"""\n\nimport cython\n'
IMPORT = "from cython.cimports.flintmq.core.check import check\n"
GOOD = 'def put(shelf):\n    check(shelf.count < shelf.room, b"shelf I1 there is room", shelf.count, 0)\n'


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / "src/flintmq" / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_good_check(tmp_path: Path) -> None:
    """Nothing to say; in Python, too, and in a .pxd."""
    python = HEADER.replace("import cython", "from flintmq.invariant import check") + GOOD.replace('b"shelf', '"rack')
    root = tree(tmp_path, queue__shelf=HEADER + IMPORT + GOOD, queue__rack=python)
    (root / "src/flintmq/queue/row.pxd").write_text(
        "# A row.\n#\n# I1  It ends.\nfrom flintmq.core.check cimport check\n"
        'cdef inline void end(row_t *row) noexcept nogil:\n    check(row.end, b"row I1 it has an end", row.end, 0)\n'
    )
    assert findings(root, 3) == []
    assert [one.name for one in all_checks(root)] == ["rack I1 there is room", "row I1 it has an end", "shelf I1 there is room"]
    assert labels(root / "src/flintmq/queue/shelf.py") == ["I1", "I2"]


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (GOOD.replace("I1", "I3"), "K1"),
        (GOOD.replace('b"shelf', 'b"rack'), "K1"),
        (GOOD.replace('b"shelf I1 there is room"', "name"), "K1"),
        (GOOD.replace(" there is room", ""), "K1"),
        (GOOD + GOOD.replace("put", "add"), "K2"),
    ],
)
def test_a_check_that_does_not_say_which_invariant_it_is(tmp_path: Path, body: str, rule: str) -> None:
    """A label that is not there, another module, no constant, nothing after the label, the same name twice."""
    found = findings(tree(tmp_path, queue__shelf=HEADER + IMPORT + body), 0)
    assert found
    assert all(rule in one for one in found)


def test_a_label_twice_in_a_header(tmp_path: Path) -> None:
    """It would name two invariants."""
    header = HEADER.replace("I2  A box", "I1  A box")
    assert "K3" in findings(tree(tmp_path, queue__shelf=header + IMPORT + GOOD), 0)[0]


@pytest.mark.parametrize("module", ["protocol__shelf", "store__recovery_shelf", "store__log__scan"])
def test_no_check_where_foreign_bytes_are_read(tmp_path: Path, module: str) -> None:
    """What a peer sent or a disk held is answered with an error."""
    body = HEADER + IMPORT + GOOD.replace("shelf I1", module.rpartition("__")[2] + " I1")
    assert ["K4" in one for one in findings(tree(tmp_path, **{module: body}), 0)] == [True]


def test_checks_do_not_vanish(tmp_path: Path) -> None:
    """Fewer than there were is a finding."""
    assert "K5" in findings(tree(tmp_path, queue__shelf=HEADER + IMPORT + GOOD), 2)[0]
