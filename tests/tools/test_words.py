"""The check of words sees the names and clauses that Style 2 and 6 forbid, and leaves alone what only looks like them."""

from __future__ import annotations

import pytest

from tools import words


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "def f(at): pass",
        "def f():\n    for what in (): pass",
        "f = lambda more: more",
        "try:\n    pass\nexcept ValueError as found: pass",
        "left = [left for left in ()]",
        "if (more := 1): pass",
        "told = print",
        "def wait(again): pass",
        "_went = 1",
        "def f():\n    def told(): pass",
    ],
)
def test_a_name_without_a_kind_is_seen(source: str) -> None:
    assert words.names(source)


@pytest.mark.parametrize(
    "source",
    [
        "position = 1",
        "def f(left, right): return left < right",
        "class C:\n    left: int",
        "x.found = y.at",
        "f(what=1)",
        "def told(): pass",
    ],
)
def test_other_names_are_left_alone(source: str) -> None:
    assert words.names(source) == []


@pytest.mark.parametrize(
    "text",
    [
        "Done with by who holds it.",
        "Ends. What was taken goes back.",
        "Who waits is told.",
        "It goes on with what came.",
        "tells who waits",
    ],
)
def test_a_clause_in_the_place_of_a_noun_is_seen(text: str) -> None:
    assert words.clauses([(1, text)])


@pytest.mark.parametrize(
    "text", ["The holder settles it.", "A comment says what it does.", "It asks whoever comes.", "What next?", "the thread who"]
)
def test_other_sentences_are_left_alone(text: str) -> None:
    assert words.clauses([(1, text)]) == []


def test_comments_and_docstrings_are_read_and_code_is_not() -> None:
    source = '"""The holder settles it."""\ntext = "by who holds it"  # of what is left\n'
    assert sorted(line for line, _ in words.clauses(words.prose(source))) == [2]


def test_what_is_mended_leaves_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "KNOWN", {**words.KNOWN, "src/flintmq/gone": 1})
    (finding,) = words.findings()
    assert finding.startswith("src/flintmq/gone has no finding")


def test_one_more_than_the_list_allows_shows_all_of_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    package, allowed = next(iter(words.KNOWN.items()), ("", 0))
    if package:
        monkeypatch.setattr(words, "KNOWN", {**words.KNOWN, package: allowed - 1})
        assert len(words.findings()) == allowed
