"""Each exchange kind gives the destinations RabbitMQ would, each once, and forgets exactly what is unbound."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.errors import PeerError, ReplyCode
from flintmq.ports import freeze, same_value
from flintmq.protocol.v0_9_1.codec import Timestamp
from flintmq.routing.exchange import Binding, DirectExchange, Exchange, FanoutExchange, HeadersExchange, TopicExchange, loose


class Target:
    """A destination of no further meaning."""

    destination_kind = "queue"
    durable = False

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


A, B = Target("a"), Target("b")


def bind(exchange: Exchange, target: Target, key: bytes = b"", arguments: dict[str, Any] | None = None) -> Binding:
    binding = Binding(exchange, target, key, arguments)
    exchange.validate_binding(binding)
    exchange.add(binding)
    return binding


@pytest.mark.parametrize("exchange_class", [DirectExchange, FanoutExchange, TopicExchange, HeadersExchange])
def test_two_bindings_of_one_pair_give_one_destination_until_both_are_gone(exchange_class: type[Exchange]) -> None:
    exchange = exchange_class("x")
    first = bind(exchange, A, b"k", {"a": 1})
    second = bind(exchange, A, b"k", {"b": 2})
    headers = {"a": 1, "b": 2}
    assert list(exchange.match(b"k", headers)) == [A]
    exchange.remove(first)
    assert list(exchange.match(b"k", headers)) == [A]
    exchange.remove(second)
    assert list(exchange.match(b"k", headers)) == []
    with pytest.raises(KeyError):
        exchange.remove(second)


def test_direct_compares_the_whole_key() -> None:
    exchange = DirectExchange("x")
    bind(exchange, A, b"a.b")
    bind(exchange, B, b"a.*")
    assert set(exchange.match(b"a.b", None)) == {A}
    assert set(exchange.match(b"a.*", None)) == {B}
    assert not exchange.match(b"a", None)


def test_fanout_ignores_the_key() -> None:
    exchange = FanoutExchange("x")
    bind(exchange, A, b"one")
    bind(exchange, B, b"two")
    assert set(exchange.match(b"three", None)) == {A, B}


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "a": 1}, {"a": 2}, False),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"x-match": "all"}, {}, True),
        ({}, None, True),
        ({"a": None}, {"a": "whatever"}, True),
        ({"a": None}, {"b": 1}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1.0}, {"a": 1}, True),  # from here: as Erlang's == compares what RabbitMQ decoded
        ({"a": Timestamp(1)}, {"a": 1}, True),
        ({"a": b"bytes"}, {"a": "bytes"}, True),
        ({"a": "\udc80"}, {"a": b"\x80"}, True),
        ({"a": Decimal("1.0")}, {"a": 1}, False),
        ({"a": Decimal("1.0")}, {"a": Decimal("1.00")}, False),
        ({"a": float("nan")}, {"a": float("nan")}, False),
        ({"a": True}, {"a": "true"}, False),
        ({"a": [1]}, {"a": [1.0]}, False),
        ({"a": 1}, {"a": None}, False),
        ({"a": None}, {"a": None}, True),
        ({"x-match": "any", "a": None, "b": 1}, {"b": 1}, True),
        ({"x-match": "any", "a": None, "b": 1}, {"a": 2}, True),
        ({"a": None, "b": 1}, {"b": 1}, False),
        ({"a": None, "b": 1}, {"a": 7, "b": 1.0}, True),
        ({"x-match": "all", "x-a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"b": 2}, False),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"x-a": 1, "b": 2}, True),
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-match": "any-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"a": {"deep": [1, 2]}}, {"a": {"deep": [1, 2]}}, True),
    ],
)
def test_headers_matching(arguments: dict[str, Any], headers: dict[str, Any] | None, expected: bool) -> None:
    exchange = HeadersExchange("x")
    bind(exchange, A, b"ignored", arguments)
    assert (set(exchange.match(b"", headers)) == {A}) is expected


def matches_slowly(arguments: dict[str, Any], headers: dict[str, Any]) -> bool:
    """The rule, one binding at a time: what the index must agree with."""
    mode = arguments.get("x-match", "all")
    wanted = [(key, value) for key, value in arguments.items() if key != "x-match" and (mode.endswith("-x") or not key.startswith("x-"))]
    hits = [key in headers and (value is None or loose(value) == loose(headers[key])) for key, value in wanted]
    return all(hits) if mode.startswith("all") else any(hits)


fields = st.dictionaries(st.sampled_from(("a", "b", "c", "x-d")), st.sampled_from((None, 1, 1.0, 2, True, "s", b"s", "t")), max_size=4)
modes = st.sampled_from(({}, {"x-match": "all"}, {"x-match": "any"}, {"x-match": "all-with-x"}, {"x-match": "any-with-x"}))


@given(st.lists(st.tuples(modes, fields, st.sampled_from((A, B))), max_size=12), st.lists(fields, max_size=5), st.randoms())
def test_the_index_of_headers_bindings_finds_what_a_look_at_each_would(
    asked: list[tuple[dict[str, Any], dict[str, Any], Target]], messages: list[dict[str, Any]], random: Any
) -> None:
    exchange = HeadersExchange("x")
    bindings = [Binding(exchange, target, b"%d" % number, {**mode, **wanted}) for number, (mode, wanted, target) in enumerate(asked)]
    for binding in bindings:
        exchange.add(binding)
    while True:
        for headers in messages:
            expected = {binding.destination for binding in bindings if matches_slowly(dict(binding.arguments), headers)}
            assert set(exchange.match(b"", headers)) == expected
        if not bindings:
            break
        exchange.remove(bindings.pop(random.randrange(len(bindings))))
    assert not (exchange._patterns or exchange._by_pair or exchange._by_key or exchange._always or exchange._place or exchange._keys)


def test_a_headers_match_looks_at_few_of_many_bindings() -> None:
    """20,000 bindings that ask for an own value of one header, another one in common: all of them were looked at for each message."""
    exchange = HeadersExchange("x")
    for number in range(20_000):
        arguments = {"x-match": "all" if number % 2 else "any", "kind": "order", "customer": number} if number % 2 else {"customer": number}
        bind(exchange, Target(str(number)), b"", arguments)
    for number in range(100):
        found = exchange.match(b"", {"customer": number, "kind": "order", "more": 1})
        assert [target.name for target in found] == [str(number)]
    assert exchange.steps <= 300


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("some", 'Invalid x-match field value <<"some">>; expected all, any, all-with-x, or any-with-x'),
        (5, "Invalid x-match field type signedint (value 5); expected longstr"),
    ],
)
def test_a_bad_x_match_is_refused(value: Any, text: str) -> None:
    with pytest.raises(PeerError) as refused:
        bind(HeadersExchange("x"), A, b"", {"x-match": value})
    assert (refused.value.code, refused.value.text) == (ReplyCode.PRECONDITION_FAILED, text)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(values, values)
def test_frozen_values_are_equal_exactly_when_values_of_one_type_are(left: Any, right: Any) -> None:
    assert hash(freeze(left)) is not None
    assert freeze(left) == freeze(left)
    if freeze(left) == freeze(right):
        assert same_value(left, right)


def test_frozen_values_tell_types_apart() -> None:
    assert len({freeze(value) for value in (1, True, 1.0, "1", b"1", [1], {"1": 1}, None)}) == 8


def test_an_exchange_knows_who_leads_to_it() -> None:
    source, target = FanoutExchange("source"), FanoutExchange("target")
    bindings = [Binding(source, target, key) for key in (b"1", b"2")]
    for binding in bindings:
        source.add(binding)
    assert target.upstream == {source: 2}
    source.remove(bindings[0])
    assert target.upstream == {source: 1}
    source.remove(bindings[1])
    assert target.upstream == {}
