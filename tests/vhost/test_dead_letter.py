"""A dead message carries RabbitMQ's x-death headers, and never goes round in a circle that no client is part of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.errors import PeerError
from flintmq.protocol.v0_9_1.codec import decode_table, encode_table
from flintmq.protocol.v0_9_1.death import letter_header
from flintmq.protocol.v0_9_1.splice import (
    field_integer,
    join_properties,
    join_table,
    longstr_field,
    split_array,
    split_properties,
    split_table,
)
from flintmq.vhost.dead_letter import Deaths, without_cycles
from tests.oracle import dead_letter as oracle
from tests.oracle.dead_letter import DEATHS_BYTES_MAX, Fields, read_deaths


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


@dataclass(frozen=True)
class DeadLetter:
    headers: bytes
    routing_keys: tuple[bytes, ...]
    deaths: Deaths


def dead_letter_headers(headers: bytes, **settings: Any) -> DeadLetter:
    """What the compiled half makes of a headers table, which is what the oracle makes of it, to the byte."""
    expected = oracle.dead_letter_headers(headers, **settings)
    expiration = settings.get("expiration")
    texts = {} if expiration is None else {"expiration": bytes([len(expiration)]) + expiration}
    header = join_properties(
        7, {"headers": headers, "content_type": b"\4text", "priority": b"\5", "reply_to": b"\1r", "app_id": b"\1a", **texts}
    )
    reason, exchange, key, time_s = settings["reason"].encode(), settings["exchange"], settings["routing_key"], settings["time_s"]
    made, keys, items, cut, mode, priority = letter_header(
        header, settings["queue"], reason, exchange, key, time_s, settings.get("dead_letter_routing_key")
    )
    size, parts = split_properties(made)
    assert (size, mode, priority) == (7, 0, 5)
    rest = {"content_type": b"\4text", "priority": b"\5", "reply_to": b"\1r", "app_id": b"\1a"}
    assert parts == {**rest, "headers": expected.headers}
    assert (tuple(keys), items, cut) == (expected.routing_keys, expected.deaths.items, expected.deaths.cut)
    return DeadLetter(parts["headers"], tuple(keys), Deaths(items, cut))


def letter(headers: dict[str, Any] | None, queue: str, reason: str = "expired", **options: Any) -> DeadLetter:
    settings: dict[str, Any] = {"exchange": b"x", "routing_key": b"k", "time_s": 1000, **options}
    return dead_letter_headers(encode_table(headers or {}), queue=queue.encode(), reason=reason, **settings)


def die(headers: dict[str, Any] | None, queue: str, reason: str = "expired", **options: Any) -> dict[str, Any]:
    return decode_table(letter(headers, queue, reason, **options).headers)


def deaths_of(headers: dict[str, Any] | None) -> Deaths:
    """x-death of decoded headers."""
    return Deaths(read_deaths(dict(split_table(encode_table(headers or {}))).get(b"x-death")))


def tables(dead: DeadLetter) -> list[Fields]:
    return [split_table(item[5:]) for item in split_array(dead.deaths.items)]


def test_the_first_death() -> None:
    original = {"CC": ["c1", "c2"], "mine": 5}
    dead = letter(original, "q", "expired", expiration=b"60000")
    assert dead.routing_keys == (b"k", b"c1", b"c2")
    assert decode_table(dead.headers) == {
        "CC": ["c1", "c2"],
        "mine": 5,
        "x-death": [
            {
                "count": 1,
                "reason": "expired",
                "queue": "q",
                "time": 1000,
                "exchange": "x",
                "routing-keys": ["k", "c1", "c2"],
                "original-expiration": "60000",
            }
        ],
        "x-first-death-reason": "expired",
        "x-first-death-queue": "q",
        "x-first-death-exchange": "x",
    }


def test_types_are_those_of_rabbitmq() -> None:
    """count: l, time: T, the rest S; a count that a client wrote as int32 is int64 after the next death."""
    death = tables(letter(None, "q", expiration=b"1"))[0]
    kinds = {b"count": b"l", b"reason": b"S", b"queue": b"S", b"time": b"T", b"exchange": b"S", b"routing-keys": b"A"}
    assert {name: value[:1] for name, value in death} == {**kinds, b"original-expiration": b"S"}
    again = letter({"x-death": [{"count": 3, "queue": "q", "reason": "expired"}]}, "q")
    assert dict(tables(again)[0])[b"count"] == b"l" + (4).to_bytes(8, "big")


# One field of every type that the wire has, in a nested table and in an array, too: (name, value with its type octet).
EVERY_TYPE: Fields = [
    (name.encode(), value)
    for name, value in {
        "bool": b"t\x01",
        "int8": b"b\xff",
        "uint8": b"B\xff",
        "int16": b"s\xff\xfe",
        "uint16": b"u\xff\xfe",
        "int32": b"I\xff\xff\xff\xfe",
        "uint32": b"i\xff\xff\xff\xfe",
        "int64": b"l" + bytes(8),
        "int64-qpid": b"L" + bytes(8),
        "float": b"f\x3f\x80\x00\x00",
        "double": b"d\x3f\xf0" + bytes(6),
        "decimal": b"D\x02\x00\x00\x01\x00",
        "longstr": longstr_field(b"text"),
        "not-utf8": longstr_field(b"\xff\xfe"),
        "bytes": b"x\x00\x00\x00\x02\x00\xff",
        "timestamp": b"T" + (1000).to_bytes(8, "big"),
        "void": b"V",
    }.items()
]


def test_other_headers_keep_their_wire_bytes() -> None:
    inner = join_table(EVERY_TYPE)
    items = b"".join(value for _, value in EVERY_TYPE)
    fields = [
        *EVERY_TYPE,
        (b"table", b"F" + len(inner).to_bytes(4, "big") + inner),
        (b"array", b"A" + len(items).to_bytes(4, "big") + items),
    ]
    settings: dict[str, Any] = {"queue": b"q", "reason": "expired", "exchange": b"", "routing_key": b"k", "time_s": 1}
    once = dead_letter_headers(join_table(fields), **settings)
    twice = dead_letter_headers(once.headers, **{**settings, "queue": b"other"})
    kept = [field for field in split_table(twice.headers) if not field[0].startswith(b"x-")]
    assert kept == sorted(fields)
    # and so do the deaths before the last one, whatever a client put into them
    forged = [(b"count", b"s\x00\x01"), (b"queue", longstr_field(b"z")), (b"reason", longstr_field(b"rejected")), *EVERY_TYPE]
    death = join_table(forged)
    table = b"F" + len(death).to_bytes(4, "big") + death
    headers = join_table([(b"x-death", b"A" + len(table).to_bytes(4, "big") + table)])
    assert tables(dead_letter_headers(headers, **settings))[1] == forged


@pytest.mark.parametrize(
    ("count", "then"), [(2**63 - 1, 2**63 - 1), (2**63 - 2, 2**63 - 1), (-1, 0), (True, 1), (1.5, 1), ("9", 1), (None, 1)]
)
def test_a_count_saturates_and_one_that_is_no_number_starts_again(count: Any, then: int) -> None:
    found = letter({"x-death": [{"count": count, "queue": "q", "reason": "expired"}]}, "q")
    assert field_integer(dict(tables(found)[0])[b"count"]) == then


def test_a_second_death_elsewhere_comes_first_and_keeps_the_first_death() -> None:
    headers = die(die(None, "q1", "rejected"), "q2", "maxlen", exchange=b"y", time_s=2000)
    assert [(death["queue"], death["reason"], death["count"]) for death in headers["x-death"]] == [
        ("q2", "maxlen", 1),
        ("q1", "rejected", 1),
    ]
    assert headers["x-first-death-queue"] == "q1"


def test_the_same_death_again_counts_and_moves_to_the_front() -> None:
    headers = die(die(None, "q1", time_s=1000), "q2", time_s=2000)
    headers = die(headers, "q1", time_s=3000)
    assert [(death["queue"], death["count"], death["time"]) for death in headers["x-death"]] == [("q1", 2, 1000), ("q2", 1, 2000)]


def test_another_reason_in_the_same_queue_is_another_entry() -> None:
    headers = die(die(None, "q", "expired"), "q", "rejected")
    assert [death["reason"] for death in headers["x-death"]] == ["rejected", "expired"]


def test_a_dead_letter_routing_key_replaces_all_keys_and_drops_cc() -> None:
    dead = letter({"CC": ["c"]}, "q", "rejected", dead_letter_routing_key=b"dlk")
    headers = decode_table(dead.headers)
    assert dead.routing_keys == (b"dlk",)
    assert "CC" not in headers
    assert headers["x-death"][0]["routing-keys"] == ["k", "c"]


@pytest.mark.parametrize("junk", ["text", 5, None, [1, "a"], {"a": 1}, [{"count": "many", "queue": "q", "reason": "expired"}]])
def test_a_forged_x_death_does_no_harm(junk: Any) -> None:
    headers = die({"x-death": junk}, "q")
    assert headers["x-death"][0]["count"] == 1
    assert headers["x-death"][0]["queue"] == "q"


def test_keys_that_are_not_utf8_and_odd_cc_entries() -> None:
    dead = letter({"CC": ["k\udcff", b"raw", 5, None, ["k"], {"k": 1}]}, "q", routing_key=b"\xff")
    assert dead.routing_keys == (b"\xff", b"k\xff")
    assert decode_table(dead.headers)["x-death"][0]["routing-keys"] == [b"\xff", b"k\xff"]  # type: ignore[index]
    for odd in ("c", 5, None, {"k": "v"}, b"k"):
        assert letter({"CC": odd}, "q").routing_keys == (b"k",)


def deaths(*pairs: tuple[str, str]) -> Deaths:
    return deaths_of({"x-death": [{"queue": queue, "reason": reason} for queue, reason in pairs]})


@pytest.mark.parametrize(
    ("history", "queue", "expected"),
    [
        ((("q", "expired"),), "q", True),
        ((("q", "expired"),), "other", False),
        ((("b", "expired"), ("a", "maxlen")), "a", True),
        ((("b", "rejected"), ("a", "expired")), "a", False),
        ((("b", "expired"), ("a", "rejected")), "a", False),
        ((("b", "expired"), ("a", "expired"), ("c", "rejected")), "a", True),
        ((), "q", False),
    ],
)
def test_cycles(history: tuple[tuple[str, str], ...], queue: str, expected: bool) -> None:
    assert deaths(*history).is_cycle(queue.encode()) is expected


def test_a_ring_of_expiring_queues_ends_and_a_rejecting_consumer_does_not_end_it() -> None:
    headers: dict[str, Any] | None = None
    for queue, following, goes_on in (("a", "b", True), ("b", "a", False)):
        headers = die(headers, queue, "expired")
        good, cyclic = without_cycles([Named(following)], deaths_of(headers), "expired")
        assert bool(good) is goes_on
        assert bool(cyclic) is not goes_on
    headers = die(None, "a", "rejected")
    good, cyclic = without_cycles([Named("a")], deaths_of(headers), "rejected")
    assert len(good) == 1
    assert not cyclic


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(("expired", "rejected", "maxlen"))), max_size=12))
def test_one_entry_per_queue_and_reason_and_counts_add_up(events: list[tuple[str, str]]) -> None:
    headers: dict[str, Any] | None = None
    for queue, reason in events:
        headers = die(headers, queue, reason)
    found: Any = (headers or {}).get("x-death", [])
    assert {(death["queue"], death["reason"]) for death in found} == set(events)
    assert len(found) == len(set(events))
    assert all(death["count"] == events.count((death["queue"], death["reason"])) for death in found)
    if events:
        assert (found[0]["queue"], found[0]["reason"]) == events[-1]


def walked(count: int, reason: str = "maxlen") -> DeadLetter:
    """A message that died in so many queues, one after the other."""
    dead = letter(None, "c-0", reason)
    for number in range(1, count):
        dead = dead_letter_headers(dead.headers, queue=b"c-%d" % number, reason=reason, exchange=b"x", routing_key=b"k", time_s=1000)
    return dead


def test_the_history_has_a_bound_and_its_end_counts_as_a_circle() -> None:
    dead = walked(2_000)
    assert DEATHS_BYTES_MAX - 200 < len(dead.deaths.items) <= DEATHS_BYTES_MAX
    assert dict(tables(dead)[0])[b"queue"] == longstr_field(b"c-1999")
    assert dead.deaths.is_cycle(b"elsewhere")
    # A reject among those that are left is a client's part in it.
    again = dead_letter_headers(dead.headers, queue=b"d", reason="rejected", exchange=b"x", routing_key=b"k", time_s=1000)
    once_more = dead_letter_headers(again.headers, queue=b"e", reason="expired", exchange=b"x", routing_key=b"k", time_s=1000)
    assert not once_more.deaths.is_cycle(b"elsewhere") and once_more.deaths.is_cycle(b"e") and not once_more.deaths.is_cycle(b"c-1999")
    assert decode_table(once_more.headers, 8, 100_000)["x-first-death-queue"] == "c-0"


@pytest.mark.parametrize("item", [b"", b"x", {}, [], {"queue": "a", "reason": "expired"}])
def test_what_a_client_made_up_costs_little(item: Any) -> None:
    """An array of anything, however long, gives tables; one entry for what happened is in front."""
    dead = letter({"x-death": [item] * 500}, "q", "expired")
    found = tables(dead)
    assert dict(found[0])[b"queue"] == longstr_field(b"q") and len(found) in (1, 501)


_names = st.sampled_from([b"a", b"x-death", b"CC", b"count", b"queue", b"reason", b"x-first-death-queue", b"zz", b""])
_leaves = st.sampled_from(
    [value for _, value in EVERY_TYPE] + [longstr_field(text) for text in (b"q", b"expired", b"rejected", b"maxlen", b"")]
)


def _composite(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    tables = st.lists(st.tuples(_names, values), max_size=6).map(join_table)
    arrays = st.lists(values, max_size=12).map(b"".join)
    return st.one_of(
        tables.map(lambda data: b"F" + len(data).to_bytes(4, "big") + data),
        arrays.map(lambda data: b"A" + len(data).to_bytes(4, "big") + data),
    )


_death = st.lists(
    st.one_of(
        st.tuples(st.just(b"queue"), st.sampled_from([longstr_field(b"q"), longstr_field(b"p"), b"V"])),
        st.tuples(st.just(b"reason"), st.sampled_from([longstr_field(b"expired"), longstr_field(b"rejected"), b"t\1"])),
        st.tuples(_names, _leaves),
    ),
    max_size=8,
).map(join_table)
_deaths = st.lists(st.one_of(_death.map(lambda data: b"F" + len(data).to_bytes(4, "big") + data), _leaves), max_size=12).map(
    lambda items: b"A" + len(b"".join(items)).to_bytes(4, "big") + b"".join(items)
)
_tables = st.lists(
    st.one_of(st.tuples(st.just(b"x-death"), _deaths), st.tuples(_names, st.recursive(_leaves, _composite, max_leaves=12))), max_size=40
).map(join_table)


@given(
    _tables,
    st.sampled_from(["expired", "rejected"]),
    st.sampled_from([None, b"", b"dlk"]),
    st.sampled_from([None, b"100"]),
    st.integers(1, 4),
)
def test_any_headers_die_as_the_oracle_says(headers: bytes, reason: str, key: bytes | None, expiration: bytes | None, times: int) -> None:
    for number in range(times):
        queue = b"q" if number % 2 == 0 else b"p"
        dead = dead_letter_headers(
            headers,
            queue=queue,
            reason=reason,
            exchange=b"x",
            routing_key=b"k",
            time_s=9,
            expiration=expiration,
            dead_letter_routing_key=key,
        )
        same = oracle.Deaths(dead.deaths.items, dead.deaths.cut)
        for name in (b"q", b"p", b"other"):
            assert dead.deaths.is_cycle(name) == same.is_cycle(name)
        headers = dead.headers


@given(st.binary(max_size=80), st.integers(0, 60))
def test_bytes_of_any_kind_are_refused_or_read(junk: bytes, cut: int) -> None:
    """What the oracle's parser refuses is refused, and nothing else."""
    whole = join_properties(0, {"headers": junk, "expiration": b"\1" + b"5"})
    for header in (whole, whole[: len(whole) - min(cut, len(whole))], junk):
        try:
            _, parts = split_properties(header)
            fields = split_table(parts.get("headers", b""))
            copies = next((value for name, value in fields if name == b"CC"), b"")
            if copies[:1] == b"A":
                split_array(copies[5:])
        except PeerError:
            with pytest.raises(PeerError):
                letter_header(header, b"q", b"expired", b"", b"", 0)
        else:
            letter_header(header, b"q", b"expired", b"", b"", 0)
