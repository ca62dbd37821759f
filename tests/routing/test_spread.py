"""Exchanges that choose one destination, and the one that remembers: who gets a message, and what is refused with RabbitMQ's texts."""

from __future__ import annotations

import collections
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode
from flintmq.protocol.v0_9_1.codec import encode_properties
from flintmq.routing.exchange import Exchange
from flintmq.routing.history import RecentHistoryExchange
from flintmq.routing.kept import Kept
from flintmq.routing.kinds import EXCHANGE_KINDS
from flintmq.routing.message import MessageHeaders
from flintmq.routing.spread import (
    ConsistentHashExchange,
    LocalRandomExchange,
    ModulusHashExchange,
    RandomExchange,
    hash_of_value,
)

from .test_exchanges import A, B, Target, bind

TARGETS = [Target(f"q{number}") for number in range(10)]
CHI_SQUARE_9 = 33.72  # exceeded with probability 0.0001


def targets_of(exchange: Exchange, keys: list[bytes], headers: Any = None) -> list[Any]:
    found = [list(exchange.match(key, headers)) for key in keys]
    assert all(len(one) == 1 for one in found)
    return [one[0] for one in found]


def keys(count: int) -> list[bytes]:
    return [f"key.{number}".encode() for number in range(count)]


def test_every_kind_has_its_name() -> None:
    assert all(kind.kind == name for name, kind in EXCHANGE_KINDS.items())
    assert {"x-consistent-hash", "x-modulus-hash", "x-random", "x-local-random", "x-recent-history"} <= EXCHANGE_KINDS.keys()


@pytest.mark.parametrize("kind", [ConsistentHashExchange, ModulusHashExchange])
def test_routing_keys_are_spread_evenly(kind: type[Exchange]) -> None:
    exchange = kind("x")
    for target in TARGETS:
        bind(exchange, target, b"1")
    counts = collections.Counter(targets_of(exchange, keys(20_000)))
    assert sum((counts[target] - 2000) ** 2 / 2000 for target in TARGETS) < CHI_SQUARE_9


def test_consistent_hash_a_binding_moves_only_what_it_wins_or_loses() -> None:
    exchange = ConsistentHashExchange("x")
    made = [bind(exchange, target, b"2") for target in TARGETS]
    before = targets_of(exchange, keys(2000))
    exchange.remove(made[3])
    after = targets_of(exchange, keys(2000))
    assert {then for then, now in zip(before, after, strict=True) if then is not now} == {TARGETS[3]}
    bind(exchange, TARGETS[3], b"2")
    assert targets_of(exchange, keys(2000)) == before


def test_consistent_hash_weights_of_one_destination_add_up_and_go_one_by_one() -> None:
    exchange = ConsistentHashExchange("x")
    bind(exchange, A, b"1")
    first, second = bind(exchange, B, b"1"), bind(exchange, B, b"2")
    counts = collections.Counter(targets_of(exchange, keys(8000)))
    assert 5700 < counts[B] < 6300
    exchange.remove(second)
    assert 3700 < collections.Counter(targets_of(exchange, keys(8000)))[B] < 4300
    exchange.remove(first)
    assert set(targets_of(exchange, keys(100))) == {A}


def test_consistent_hash_by_header_and_by_property() -> None:
    by_header = ConsistentHashExchange("x", arguments={"hash-header": "tenant"})
    by_property = ConsistentHashExchange("x", arguments={"hash-property": "message_id"})
    plain = ConsistentHashExchange("x")
    assert by_header.needs_headers and by_property.needs_headers and not plain.needs_headers
    for target in TARGETS:
        bind(by_header, target, b"1")
        bind(by_property, target, b"1")
    for exchange, given in (
        (by_header, lambda number: MessageHeaders({"tenant": number})),
        (by_property, lambda number: MessageHeaders({}, lambda: {"message_id": str(number)})),
    ):
        chosen = [targets_of(exchange, [b"a", b"b"], given(number)) for number in range(200)]
        assert all(one is other for one, other in chosen), "the routing key does not count"
        assert len({one for one, _ in chosen}) == 10
        without = targets_of(exchange, keys(20), MessageHeaders({}))
        assert len(set(without)) == 1 and targets_of(exchange, [b"a"], None) == without[:1]


def test_hash_of_a_value_tells_types_apart_and_never_changes() -> None:
    values = ["5", 5, 5.0, True, None, [5], {"a": 5}, ""]
    assert len({hash_of_value(value) for value in values}) == len(values)
    assert hash_of_value(b"5") == hash_of_value("5")
    assert hash_of_value("orders") == HASHED


HASHED = 8125101537494709699


def test_what_a_consistent_hash_refuses() -> None:
    refused = []
    for arguments in ({"hash-header": "a", "hash-property": "message_id"}, {"hash-property": "type"}, {"hash-header": 5}):
        with pytest.raises(PeerError) as error:
            ConsistentHashExchange.check(arguments)
        assert error.value.code == ReplyCode.PRECONDITION_FAILED
        refused.append(error.value.text)
    assert refused[:2] == ["hash-header and hash-property are mutually exclusive", "Unsupported property: type"]
    exchange = ConsistentHashExchange("x")
    for key, text in (
        (b"abc", 'The binding key must be an integer: <<"abc">>'),
        (b"", "The binding key must be an integer: <<>>"),
        (b"1.5", 'The binding key must be an integer: <<"1.5">>'),
        (b"0", "The binding key must be greater than 0"),
        (b"-3", "The binding key must be greater than 0"),
        (b"1000001", "The binding key is a weight of at most 1000000: 1000001"),
        (b"9" * 200, 'The binding key must be an integer: <<"' + "9" * 200 + '">>'),
    ):
        with pytest.raises(PeerError) as error:
            bind(exchange, A, key)
        assert error.value.text == text and not exchange.bindings


def test_a_consistent_hash_has_at_most_so_many_destinations() -> None:
    exchange = ConsistentHashExchange("x")
    exchange.limit(Limits(hash_destinations_max=2))
    bind(exchange, A, b"1")
    bind(exchange, B, b"1")
    with pytest.raises(PeerError, match="hash_destinations_max"):
        bind(exchange, TARGETS[0], b"1")
    bind(exchange, B, b"2")  # no further destination


def test_modulus_counts_each_destination_once_and_follows_its_bindings() -> None:
    exchange = ModulusHashExchange("x")
    assert not exchange.match(b"a", None)
    first, _, _ = bind(exchange, A, b"one"), bind(exchange, A, b"two"), bind(exchange, B, b"")
    assert set(targets_of(exchange, keys(100))) == {A, B}
    exchange.remove(first)
    assert set(targets_of(exchange, keys(100))) == {A, B}
    for binding in [one for one in exchange.bindings.values() if one.destination is A]:
        exchange.remove(binding)
    assert set(targets_of(exchange, keys(100))) == {B}


def test_random_is_any_of_its_destinations() -> None:
    exchange = RandomExchange("x")
    assert not exchange.match(b"k", None) and exchange.needs_headers
    for target in TARGETS:
        bind(exchange, target, b"k")
    bind(exchange, TARGETS[1], b"other")
    counts = collections.Counter(targets_of(exchange, [b"whatever"] * 2000))
    assert set(counts) == set(TARGETS)  # each is missing with probability 10^-91
    exchange.remove(next(one for one in exchange.bindings.values() if one.destination is TARGETS[0]))
    assert TARGETS[0] not in targets_of(exchange, [b"k"] * 500)


def test_local_random_takes_any_of_its_queues() -> None:
    exchange = LocalRandomExchange("x")
    bind(exchange, A)
    bind(exchange, B)
    assert set(targets_of(exchange, [b"whatever"] * 200)) == {A, B}
    with pytest.raises(PeerError, match="Non empty binding 'k' key not permitted"):
        bind(exchange, A, b"k")
    with pytest.raises(PeerError, match="Destination not found"):
        bind(exchange, exchange, b"")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [ConsistentHashExchange, ModulusHashExchange, RandomExchange])
def test_one_message_with_several_keys_goes_to_one_destination(kind: type[Exchange]) -> None:
    exchange = kind("x")
    for target in TARGETS:
        bind(exchange, target, b"1")
    for _ in range(50):
        message = MessageHeaders({})
        assert len({target for _ in range(5) for target in exchange.match(b"1", message)}) == 1


# --- recent history -------------------------------------------------------------------------------------------------------


def publish(
    exchange: Exchange, body: bytes, headers: dict[str, Any] | None = None, again: bool = False, user: object = None
) -> MessageHeaders:
    header = encode_properties(len(body), {"headers": headers or {}})
    message = MessageHeaders(headers or {}, content=lambda: (b"x", b"k", header, body), is_replay=again, user=user)
    exchange.match(b"k", message)
    return message


def bodies(exchange: RecentHistoryExchange) -> list[bytes]:
    return [content[3] for content in exchange.kept()]


def test_history_keeps_the_last_ones_and_each_once() -> None:
    exchange = RecentHistoryExchange("x", arguments={"x-recent-history-length": 3})
    for number in range(5):
        message = publish(exchange, b"%d" % number)
        exchange.match(b"other key", message)
    assert bodies(exchange) == [b"2", b"3", b"4"]
    publish(exchange, b"no", {"x-recent-history-no-store": True})
    publish(exchange, b"again", again=True)
    publish(exchange, b"yes", {"x-recent-history-no-store": "true"})
    assert bodies(exchange) == [b"3", b"4", b"yes"]
    assert len(RecentHistoryExchange("x").kept()) == 0


def test_history_is_twenty_unless_asked_for_and_never_above_the_limit() -> None:
    twenty, many = RecentHistoryExchange("x"), RecentHistoryExchange("x", arguments={"x-recent-history-length": 10**9})
    many.limit(Limits(history_messages_max=30))
    for number in range(50):
        publish(twenty, b"%d" % number)
        publish(many, b"%d" % number)
    assert (len(twenty.kept()), len(many.kept())) == (20, 30)


def test_history_is_bounded_in_bytes_of_its_own_and_of_the_virtual_host() -> None:
    total = Kept()
    first, second = RecentHistoryExchange("a"), RecentHistoryExchange("b")
    for exchange in (first, second):
        exchange.limit(Limits(history_bytes_max=4100, kept_bytes_max=6000), total)
    publish(first, b"x" * 5000)
    assert bodies(first) == [] and total.held == 0
    for _ in range(10):
        publish(first, b"x" * 1000)
    assert first.kept_bytes <= 4100 and len(first.kept()) == 3
    for _ in range(10):
        publish(second, b"y" * 1000)
    assert total.held <= 6000 and len(second.kept()) == 1 and len(first.kept()) == 3
    first.forget_some()
    publish(first, b"late")
    assert total.held == second.kept_bytes and not first.kept()


def test_one_user_makes_no_history_forget_what_others_published() -> None:
    total = Kept()
    total.alone = lambda: False
    total.look_again()
    first, second = RecentHistoryExchange("a"), RecentHistoryExchange("b")
    for exchange in (first, second):
        exchange.limit(Limits(kept_bytes_max=10_000, kept_user_share=0.5), total)
    publish(first, b"bob's", user="bob")
    for _ in range(10):
        publish(second, b"x" * 1000, user="alice")
    assert len(second.kept()) == 3
    publish(first, b"y" * 1000, user="alice")  # nothing of hers is there that could make room
    assert bodies(first) == [b"bob's"]
    publish(first, b"z" * 4000, user="bob")
    assert bodies(first) == [b"bob's", b"z" * 4000] and len(second.kept()) == 3
    second.forget_some()
    assert total.of_user("alice") == 0 and total.held == total.of_user("bob")


@pytest.mark.parametrize(("asked", "shown"), [(0, "0"), (-1, "-1"), ("a", '<<"a">>'), (True, "true"), (1.5, "1.5")])
def test_history_of_a_wrong_length(asked: Any, shown: str) -> None:
    with pytest.raises(PeerError) as error:
        RecentHistoryExchange.check({"x-recent-history-length": asked})
    assert error.value.text == f"Invalid argument {shown}, 'x-recent-history-length' must be a positive integer"
