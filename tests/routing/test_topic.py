"""The trie finds exactly the destinations whose pattern matches by the rules of AMQP 0-9-1, and unbinding leaves nothing behind."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.routing.topic import TopicTrie

WORDS = [b"", b"a", b"b", b"ab", b"*", b"#"]
keys = st.lists(st.sampled_from([b"", b"a", b"b", b"ab"]), max_size=6).map(b".".join)
patterns = st.lists(st.sampled_from(WORDS), max_size=6).map(b".".join)


def words_of(key: bytes) -> tuple[bytes, ...]:
    return tuple(key.split(b".")) if key else ()


def naive_match(pattern: bytes, key: bytes) -> bool:
    """The definition, by recursion: the model."""
    pattern_words, key_words = words_of(pattern), words_of(key)

    @cache
    def matches(i: int, j: int) -> bool:
        if i == len(pattern_words):
            return j == len(key_words)
        if pattern_words[i] == b"#":
            return matches(i + 1, j) or (j < len(key_words) and matches(i, j + 1))
        return j < len(key_words) and pattern_words[i] in (b"*", key_words[j]) and matches(i + 1, j + 1)

    return matches(0, 0)


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        (b"", b"", True),
        (b"*", b"", False),
        (b"#", b"", True),
        (b"#", b"a.b.c", True),
        (b"a.*", b"a", False),
        (b"a.*", b"a.", True),
        (b"a.#", b"a", True),
        (b"a.#.b", b"a.b", True),
        (b"a.#.b", b"a.x.y.b", True),
        (b"#.#.#", b"a", True),
        (b"*.#.*", b"a", False),
        (b"*.#.*", b"a.b", True),
        (b"a.b", b"a.b.c", False),
        (b"a*", b"ab", False),
        (b"\xff.*", b"\xff.\x00", True),
    ],
)
def test_rules(pattern: bytes, key: bytes, expected: bool) -> None:
    trie = TopicTrie()
    trie.add(pattern, "q")
    assert (trie.match(key) == {"q"}) is expected
    assert naive_match(pattern, key) is expected


@settings(max_examples=300)
@given(st.lists(st.tuples(patterns, st.integers(0, 4)), max_size=20), st.lists(keys, min_size=1, max_size=5))
def test_agrees_with_the_definition(bindings: list[tuple[bytes, int]], asked: list[bytes]) -> None:
    trie = TopicTrie()
    for pattern, destination in bindings:
        trie.add(pattern, destination)
    for key in asked:
        assert trie.match(key) == {destination for pattern, destination in bindings if naive_match(pattern, key)}


@settings(max_examples=200)
@given(st.lists(st.tuples(patterns, st.integers(0, 3)), max_size=15), st.data())
def test_removal_undoes_addition(bindings: list[tuple[bytes, int]], data: st.DataObject) -> None:
    trie = TopicTrie()
    for pattern, destination in bindings:
        trie.add(pattern, destination)
    left = list(bindings)
    for binding in data.draw(st.permutations(bindings)):
        assert trie.remove(*binding)
        left.remove(binding)
        key = data.draw(keys)
        assert trie.match(key) == {destination for pattern, destination in left if naive_match(pattern, key)}
        assert trie.pattern_count == len(set(left))
    assert trie.node_count() == 1


def test_removing_what_is_not_there_changes_nothing() -> None:
    trie = TopicTrie()
    trie.add(b"a.b", "q")
    assert not trie.remove(b"a", "q")
    assert not trie.remove(b"a.b", "other")
    assert not trie.remove(b"a.b.c", "q")
    assert not trie.remove(b"*", "q")
    assert trie.match(b"a.b") == {"q"}


def test_a_pair_bound_twice_needs_two_removals() -> None:
    trie = TopicTrie()
    trie.add(b"a.#", "q")
    trie.add(b"a.#", "q")
    assert trie.remove(b"a.#", "q")
    assert trie.match(b"a") == {"q"}
    assert trie.remove(b"a.#", "q")
    assert trie.match(b"a") == set()


def test_hashes_in_a_row_do_not_multiply_the_work() -> None:
    # 127 times "#" against 127 words: with backtracking this is C(254, 127) steps and never ends.
    trie = TopicTrie()
    trie.add(b".".join([b"#"] * 127 + [b"end"]), "q")
    assert trie.match(b".".join([b"a"] * 127)) == set()
    assert trie.match(b".".join([b"a"] * 126 + [b"end"])) == {"q"}
