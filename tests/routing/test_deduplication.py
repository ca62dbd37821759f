"""The deduplication exchange: each value once, for its time, within its bounds; what no queue took may come again."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.config import Limits
from flintmq.errors import PeerError
from flintmq.protocol.v0_9_1.codec import encode_properties
from flintmq.routing.deduplication import DeduplicationExchange
from flintmq.routing.kept import Kept
from flintmq.routing.message import Content, MessageHeaders
from flintmq.routing.seen import SEEN_VALUE_BYTES, Seen
from tests.oracle.seen import Oracle

from .test_exchanges import A, bind

# types of fields that struct names otherwise
PACKED = {"s": "h", "u": "H", "I": "i", "i": "I", "l": "q", "L": "q", "T": "Q"}


def content(headers: dict[str, Any]) -> Content:
    return b"x", b"k", encode_properties(4, {"headers": headers}), b"body"


class Made:
    """An exchange with a clock of its own, and one destination."""

    def __init__(self, **arguments: Any) -> None:
        self.now_ms = 0
        self.exchange = DeduplicationExchange("x", arguments={name.replace("_", "-"): value for name, value in arguments.items()})
        self.exchange.now_ns = lambda: self.now_ms * 1_000_000
        bind(self.exchange, A)

    def send(self, value: Any, user: object = None, **headers: Any) -> MessageHeaders:
        table = {"x-deduplication-header": value, **headers}
        message = MessageHeaders(table, content=lambda: content(table), user=user)
        self.went = bool(self.exchange.match(b"k", message))
        assert bool(self.exchange.match(b"copy", message)) is self.went, "one message, one decision"
        return message

    def takes(self, value: Any, user: object = None, **headers: Any) -> bool:
        self.send(value, user, **headers)
        return self.went


def test_each_value_once_and_types_count() -> None:
    made = Made(x_cache_size=100)
    values = ["a", "b", 1, "1", 1.0, True, None, ["a"], {"a": 1}]
    assert [made.takes(value) for value in values] == [True] * len(values)
    assert not any(made.takes(value) for value in [*values, b"a"])
    assert made.exchange.dropped == len(values) + 1


def test_values_of_a_kind_are_the_same_whatever_their_size_on_the_wire() -> None:
    made = Made(x_cache_size=100)
    seen = made.exchange._seen

    def new(kind: str, value: Any) -> bool:
        field = b"\x16x-deduplication-header" + kind.encode() + struct.pack(f">{PACKED.get(kind, kind)}", value)
        header = encode_properties(0, {})[:12] + b"\x20\x00" + len(field).to_bytes(4, "big") + field
        return bool(seen.is_new(header, None, 0)[0])

    assert [new(kind, 5) for kind in "bBsuIilLT"] == [True] + [False] * 8
    assert new("b", -1) and not new("l", -1) and new("T", 2**64 - 1)
    assert new("f", 1.5) and not new("d", 1.5)


def test_a_table_that_grows_forgets_nothing() -> None:
    made = Made(x_cache_size=5_000)
    for number in range(5_000):
        assert made.takes(number) and not made.takes(number // 2)
    assert made.exchange.values == 5_000 and not any(made.takes(number) for number in range(0, 5_000, 7))
    assert made.takes(5_000) and made.takes(0)
    pieces = 1
    while not made.exchange.forget_some():
        pieces += 1
    assert pieces > 5 and made.exchange.values == 0 and made.takes(0) and made.takes(0)


steps = st.tuples(
    st.integers(0, 30), st.sampled_from([None, "alice", "bob"]), st.sampled_from([0, 0, 5, 50]), st.integers(0, 10), st.integers(0, 9)
)


@settings(max_examples=200)
@given(st.lists(steps, max_size=120), st.integers(1, 25), st.sampled_from([0, 20]), st.integers(1, 20))
def test_it_remembers_what_the_oracle_does(steps: list[Any], count_max: int, ttl_ms: int, total: int) -> None:
    limits = Limits(kept_bytes_max=total * SEEN_VALUE_BYTES, kept_user_share=0.5)
    kept = Kept()
    kept.alone = lambda: False
    seen = Seen(count_max, ttl_ms, limits, kept)
    oracle = Oracle(count_max, ttl_ms, total, int(total * SEEN_VALUE_BYTES * 0.5) // SEEN_VALUE_BYTES)
    now_ms = 0
    for value, user, own_ms, passed, chance in steps:
        now_ms += passed
        headers = {"x-deduplication-header": value, **({"x-cache-ttl": own_ms} if own_ms else {})}
        made = seen.is_new(content(headers)[2], None if user is None else kept.user(user), now_ms * 1_000_000)
        is_new, noted = oracle.is_new(value, user, own_ms, now_ms)
        assert (made[0], made[1] is not None) == (is_new, noted)
        if made[1] is not None and not chance:  # no queue took it
            seen.forget(made[1])
            del oracle.values[value]
        assert seen.count == len(oracle.values) and kept.held == seen.count * SEEN_VALUE_BYTES
        for name in ("alice", "bob"):
            assert kept.of_user(name) == SEEN_VALUE_BYTES * sum(owner == name for _, owner in oracle.values.values())


def test_without_the_header_nothing_is_looked_at() -> None:
    made = Made(x_cache_size=1)
    for message in (None, {}, {"x-deduplication-header": "a"}, MessageHeaders({}, content=lambda: content({}))):
        for _ in range(2):
            assert made.exchange.match(b"k", message)
    undecided = MessageHeaders({"x-deduplication-header": "a"})  # of a transaction or a stage
    again = MessageHeaders({"x-deduplication-header": "a"}, content=lambda: content({"x-deduplication-header": "a"}), is_replay=True)
    assert made.takes("a")
    assert made.exchange.match(b"k", undecided) and made.exchange.match(b"k", again) and made.exchange.values == 1


def test_the_oldest_goes_when_the_cache_is_full() -> None:
    made = Made(x_cache_size=3)
    assert all(made.takes(value) for value in "abcd")
    assert not made.takes("d") and not made.takes("b") and made.takes("a") and made.takes("b")
    assert made.exchange.values == 3


def test_time_to_live_of_the_exchange_and_of_the_message() -> None:
    made = Made(x_cache_size="10", x_cache_ttl=1000)
    assert made.takes("a") and made.takes("b", **{"x-cache-ttl": 5000}) and made.takes("c", **{"x-cache-ttl": "nonsense"})
    made.now_ms = 999
    assert not any(made.takes(value) for value in "abc")
    made.now_ms = 1000
    assert made.takes("a") and made.takes("c") and not made.takes("b")
    made.now_ms = 6000
    assert made.takes("b")


def test_what_is_over_goes_without_being_asked_for() -> None:
    made = Made(x_cache_size=1000, x_cache_ttl=10)
    for number in range(1000):
        made.now_ms = number
        made.send(number)
        assert made.exchange.values <= 11


def test_what_was_refused_may_come_again() -> None:
    made = Made(x_cache_size=10)
    made.send("a").refused()
    assert made.takes("a") and not made.takes("a")


def test_memory_is_bounded_for_the_virtual_host_and_given_back() -> None:
    total = Kept()
    first, second = Made(x_cache_size=10**9), Made(x_cache_size=10**9)
    for made in (first, second):
        made.exchange.limit(Limits(kept_bytes_max=100 * SEEN_VALUE_BYTES, dedup_cache_max=80), total)
    assert all(first.takes(number) for number in range(500)) and first.exchange.values == 80
    assert all(second.takes(number) for number in range(500))
    assert total.held <= 100 * SEEN_VALUE_BYTES and second.exchange.values == 20 and not second.takes(499)
    first.exchange.forget_some()
    assert first.takes("late") and first.exchange.values == 0
    assert total.held == 20 * SEEN_VALUE_BYTES


def test_one_user_makes_no_exchange_forget_what_others_published() -> None:
    total, alone = Kept(), [False]
    total.alone = lambda: alone[0]
    flooded, other = Made(x_cache_size=10**6), Made(x_cache_size=10**6)
    for made in (flooded, other):
        made.exchange.limit(Limits(kept_bytes_max=100 * SEEN_VALUE_BYTES, kept_user_share=0.5), total)
    assert all(other.takes(number, "bob") for number in range(20))
    assert flooded.takes("bob's", "bob")
    assert all(flooded.takes(number, "alice") for number in range(500))
    assert total.of_user("alice") == 50 * SEEN_VALUE_BYTES and not flooded.takes("bob's", "bob")
    assert not any(other.takes(number, "bob") for number in range(20))
    assert not flooded.takes(499, "alice") and flooded.takes(0, "alice"), "she forgets her own"
    assert other.takes("hers", "alice") and other.takes("hers", "alice"), "she has nothing there that could go: it is not remembered"
    flooded.exchange.forget_some()
    assert total.of_user("alice") == 0 and total.of_user("bob") == 20 * SEEN_VALUE_BYTES == total.held
    alone[0] = True
    total.look_again()
    assert all(other.takes(number, "alice") for number in range(100, 500))
    assert total.held == 100 * SEEN_VALUE_BYTES


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "Missing or invalid argument, 'x-cache-size' must be an integer greater than 0"),
        ({"x-cache-size": 0}, "Missing or invalid argument, 'x-cache-size'"),
        ({"x-cache-size": "-5"}, "Missing or invalid argument, 'x-cache-size'"),
        ({"x-cache-size": True}, "Missing or invalid argument, 'x-cache-size'"),
        ({"x-cache-size": 5, "x-cache-ttl": 0}, "Invalid argument, 'x-cache-ttl' must be an integer greater than 0"),
        ({"x-cache-size": 5, "x-cache-persistence": "no"}, "Invalid argument, 'x-cache-persistence' must be either 'disk' or 'memory'"),
        ({"x-cache-size": 5, "x-cache-persistence": "disk"}, "'x-cache-persistence' 'disk' is not supported"),
        ({"x-cache-size": 5, "x-cache-persistence": ["a"]}, "Invalid argument, 'x-cache-persistence'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(PeerError) as error:
        DeduplicationExchange.check(arguments)
    assert error.value.text.startswith(text)


def test_good_arguments() -> None:
    for arguments in ({"x-cache-size": 5}, {"x-cache-size": "5", "x-cache-ttl": "10", "x-cache-persistence": "memory"}):
        DeduplicationExchange.check(arguments)
