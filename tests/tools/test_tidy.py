"""tools/tidy.py finds the tests that documents name."""

from __future__ import annotations

import ast

import pytest

from tools import tidy

LINE = "| x | `tests/a/test_b.py::test_c[d]`, `::test_e`; `tests/f.py`, `::TestG::test_h`, `pull::no_test` |"


def test_the_tests_of_a_line() -> None:
    named = {("tests/a/test_b.py", name) for name in ("test_c", "test_e")} | {("tests/f.py", name) for name in ("", "TestG", "test_h")}
    assert tidy.tests_of(LINE) == named
    assert tidy.tests_of("`::test_e` of nothing\n`tests/`") == set()


def test_documents_name_many() -> None:
    """The pattern fits what is written: a rule that finds nothing would be quiet."""
    found = {test for pattern in tidy.DOCUMENTS for path in tidy.ROOT.glob(pattern) for test in tidy.tests_of(path.read_text())}
    assert len(found) > 100


@pytest.mark.parametrize("name", ["tests/tools/test_none.py", "tests/tools/test_tidy.py::test_none"])
def test_a_test_that_is_not_there_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    file, _, test = name.partition("::")
    monkeypatch.setattr(tidy, "tests_of", lambda text: {(file, test)})
    assert any(f"names {name}, which does not exist" in line for line in tidy.findings())


def test_too_many_arguments_by_position_are_found() -> None:
    wide = "def f(a, b, c, d, e, f, g, h, i, *, j): pass\n"
    wide += "class A:\n    def g(self, a, b, c, d, e, f, g, h): pass\nk(1, 2, 3, 4, 5, 6, 7, 8, 9)\n"
    found = list(tidy.wide("src/x.py", ast.parse(wide)))
    assert [line for line, _ in found] == [1, 4]
    assert "f has 9 parameters" in found[0][1] and "k gets 9 arguments" in found[1][1]
    assert list(tidy.wide("src/x.py", ast.parse("guarded(1, 2, 3, 4, 5, 6, 7, 8, 9)\nk(1, 2, *a, b=3)"))) == []


@pytest.mark.parametrize("module", tidy.WIDE)
def test_a_known_wide_function_is_still_there(module: str) -> None:
    text = (tidy.ROOT / module).read_text()
    for name in tidy.WIDE[module]:
        assert name.rpartition(".")[2] + "(" in text, f"{module}: {name} is gone: take it off the list"


def test_a_yes_without_a_test_is_found() -> None:
    rows = (
        "| feature | ours |",
        "|---|---|",
        "| a | yes: `tests/tools/test_tidy.py` |",
        "| b | yes |",
        "| c | no |",
        "| d | yes: `src/x.py` |",
    )
    text = "\n".join(rows)
    assert tidy.unproven(text) == ["b", "d"]
    assert (tidy.ROOT / "docs/FEATURES.md").read_text().count("| yes: `tests/") > 40


def test_long_functions_and_exceptions_that_are_none_any_more_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def f():\n" + "    pass\n" * (tidy.FUNCTION_LINES_MAX - 1) + "def g():\n" + "    pass\n" * tidy.FUNCTION_LINES_MAX
    assert [line for line, _ in tidy.long("src/x.py", ast.parse(text))] == [tidy.FUNCTION_LINES_MAX + 1]
    monkeypatch.setitem(tidy.LONG, "src/x.py", {"f", "g"})
    assert [finding for _, finding in tidy.long("src/x.py", ast.parse(text))] == [
        "f is not too long any more, or gone: take it out of LONG in tools/tidy.py"
    ]
