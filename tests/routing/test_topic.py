"""The trie finds exactly the destinations whose pattern matches by the rules of AMQP 0-9-1, and unbinding leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.config import Limits
from flintmq.errors import PeerError
from flintmq.routing.exchange import Binding, TopicExchange
from flintmq.routing.topic import TopicTrie

STEPS = 1_000_000
WORDS = [b"", b"a", b"b", b"ab", b"*", b"#"]
keys = st.lists(st.sampled_from([b"", b"a", b"b", b"ab"]), max_size=6).map(b".".join)
patterns = st.lists(st.sampled_from(WORDS), max_size=6).map(b".".join)


def words_of(key: bytes) -> tuple[bytes, ...]:
    return tuple(key.split(b".")) if key else ()


def one_hash(pattern: bytes) -> bytes:
    """The pattern that says the same without `#` in a row."""
    words = words_of(pattern)
    return b".".join(word for at, word in enumerate(words) if word != b"#" or at == 0 or words[at - 1] != b"#")


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
    trie = TopicTrie(STEPS)
    trie.add(pattern, "q")
    assert (trie.match(key) == {"q"}) is expected
    assert naive_match(pattern, key) is expected


@settings(max_examples=300)
@given(st.lists(st.tuples(patterns, st.integers(0, 4)), max_size=20), st.lists(keys, min_size=1, max_size=5))
def test_agrees_with_the_definition(bindings: list[tuple[bytes, int]], asked: list[bytes]) -> None:
    trie = TopicTrie(STEPS)
    for pattern, destination in bindings:
        trie.add(pattern, destination)
    for key in asked:
        assert trie.match(key) == {destination for pattern, destination in bindings if naive_match(pattern, key)}


@settings(max_examples=200)
@given(st.lists(st.tuples(patterns, st.integers(0, 3)), max_size=15), st.data())
def test_removal_undoes_addition(bindings: list[tuple[bytes, int]], data: st.DataObject) -> None:
    trie = TopicTrie(STEPS)
    for pattern, destination in bindings:
        trie.add(pattern, destination)
    left = list(bindings)
    for binding in data.draw(st.permutations(bindings)):
        assert trie.remove(*binding)
        left.remove(binding)
        key = data.draw(keys)
        assert trie.match(key) == {destination for pattern, destination in left if naive_match(pattern, key)}
        assert trie.pattern_count == len({(one_hash(pattern), destination) for pattern, destination in left})
    assert trie.node_count() == 1


def test_removing_what_is_not_there_changes_nothing() -> None:
    trie = TopicTrie(STEPS)
    trie.add(b"a.b", "q")
    assert not trie.remove(b"a", "q")
    assert not trie.remove(b"a.b", "other")
    assert not trie.remove(b"a.b.c", "q")
    assert not trie.remove(b"*", "q")
    assert trie.match(b"a.b") == {"q"}


def test_a_pair_bound_twice_needs_two_removals() -> None:
    trie = TopicTrie(STEPS)
    trie.add(b"a.#", "q")
    trie.add(b"a.#", "q")
    assert trie.remove(b"a.#", "q")
    assert trie.match(b"a") == {"q"}
    assert trie.remove(b"a.#", "q")
    assert trie.match(b"a") == set()


def test_hashes_in_a_row_do_not_multiply_the_work() -> None:
    # 127 times "#" against 127 words: with backtracking this is C(254, 127) steps and never ends.
    trie = TopicTrie(STEPS)
    trie.add(b".".join([b"#"] * 127 + [b"end"]), "q")
    assert trie.match(b".".join([b"a"] * 127)) == set()
    assert trie.match(b".".join([b"a"] * 126 + [b"end"])) == {"q"}


def everything(words: list[bytes], length: int) -> Iterator[bytes]:
    """Every pattern over these words, `*`, and `#` between them, of so many words."""
    for edges in product([*words, b"*"], repeat=length):
        for hashes in product([False, True], repeat=length + 1):
            path = [b"#"] if hashes[0] else []
            for edge, behind in zip(edges, hashes[1:], strict=True):
                path += [edge, b"#"] if behind else [edge]
            yield b".".join(path)


@pytest.mark.parametrize("words", [[b"a"], [b"a", b"b", b"c"]])
def test_a_short_key_costs_a_bounded_number_of_steps_whatever_is_bound(words: list[bytes]) -> None:
    """After i words at most 2 x 5^i nodes: all patterns of up to three words that can begin to match are there."""
    trie = TopicTrie(STEPS)
    for length in range(4):
        for pattern in everything(words, length):
            trie.add(pattern, "q")
    for count in range(4):
        trie.match(b".".join((words * 3)[:count]))
        assert trie.steps <= sum(2 * 5**i for i in range(count + 1))


def test_hashes_in_a_row_are_one() -> None:
    trie = TopicTrie(STEPS)
    for count in range(1, 50):
        trie.add(b".".join([b"#"] * count) + b".a", count)
    assert trie.node_count() == 3
    assert trie.match(b"x.a") == set(range(1, 50))
    assert trie.steps <= 2 * 3 + 2
    for count in range(1, 50):
        assert trie.remove(b".".join([b"#"] * count) + b".a", count)
    assert trie.node_count() == 1 and trie.pattern_count == 0


def test_a_match_ends_at_its_limit() -> None:
    trie = TopicTrie(1_000)
    for pattern in everything([b"a"], 6):
        trie.add(pattern, "q")
    assert trie.match(b"a.a") == set()
    assert trie.match(b".".join([b"a"] * 30)) is None
    assert trie.steps <= 1_000 + 2 * 3
    assert trie.match(b"a.b") == set()  # the next one is as good as ever


def test_an_exchange_refuses_what_is_over_the_limit() -> None:
    exchange = TopicExchange("t")
    exchange.limit(Limits(topic_steps_max=100))
    for number, pattern in enumerate(everything([b"a"], 4)):
        exchange.add(Binding(exchange, exchange, pattern, {"n": number}))
    with pytest.raises(PeerError, match=r"routing key of 20 words takes more than 100 steps .* exchange 't': use a shorter key") as error:
        exchange.match(b".".join([b"a"] * 20), None)
    assert error.value.code == 406
