"""A dead message carries RabbitMQ's x-death headers, and never goes round in a circle that no client is part of."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.vhost.dead_letter import dead_letter_headers, is_cycle, read_deaths, without_cycles


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


def die(headers: dict[str, Any] | None, queue: str, reason: str = "expired", **options: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"exchange": "x", "routing_key": b"k", "time_s": 1000, **options}
    return dead_letter_headers(headers, queue=queue, reason=reason, **settings).headers


def test_the_first_death() -> None:
    original = {"CC": ["c1", "c2"], "mine": 5}
    dead = dead_letter_headers(original, queue="q", reason="expired", exchange="x", routing_key=b"k", time_s=1000, expiration="60000")
    assert original == {"CC": ["c1", "c2"], "mine": 5}
    assert dead.routing_keys == (b"k", b"c1", b"c2")
    assert dead.headers == {
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
        "x-last-death-reason": "expired",
        "x-last-death-queue": "q",
        "x-last-death-exchange": "x",
    }


def test_a_second_death_elsewhere_comes_first_and_keeps_the_first_death() -> None:
    headers = die(die(None, "q1", "rejected"), "q2", "maxlen", exchange="y", time_s=2000)
    assert [(death["queue"], death["reason"], death["count"]) for death in headers["x-death"]] == [
        ("q2", "maxlen", 1),
        ("q1", "rejected", 1),
    ]
    assert headers["x-first-death-queue"] == "q1"
    assert (headers["x-last-death-queue"], headers["x-last-death-exchange"]) == ("q2", "y")


def test_the_same_death_again_counts_and_moves_to_the_front() -> None:
    headers = die(die(None, "q1", time_s=1000), "q2", time_s=2000)
    headers = die(headers, "q1", time_s=3000)
    assert [(death["queue"], death["count"], death["time"]) for death in headers["x-death"]] == [("q1", 2, 1000), ("q2", 1, 2000)]


def test_another_reason_in_the_same_queue_is_another_entry() -> None:
    headers = die(die(None, "q", "expired"), "q", "rejected")
    assert [death["reason"] for death in headers["x-death"]] == ["rejected", "expired"]


def test_a_dead_letter_routing_key_replaces_all_keys_and_drops_cc() -> None:
    dead = dead_letter_headers(
        {"CC": ["c"]},
        queue="q",
        reason="rejected",
        exchange="x",
        routing_key=b"k",
        time_s=1,
        dead_letter_routing_key=b"dlk",
    )
    assert dead.routing_keys == (b"dlk",)
    assert "CC" not in dead.headers
    assert dead.headers["x-death"][0]["routing-keys"] == ["k", "c"]


@pytest.mark.parametrize("junk", ["text", 5, None, [1, "a"], {"a": 1}, [{"count": "many", "queue": "q", "reason": "expired"}]])
def test_a_forged_x_death_does_no_harm(junk: Any) -> None:
    headers = die({"x-death": junk}, "q")
    assert headers["x-death"][0]["count"] == 1
    assert headers["x-death"][0]["queue"] == "q"


def test_keys_that_are_not_utf8_and_odd_cc_entries() -> None:
    odd = {"CC": ["k\udcff", b"raw", 5, None]}
    dead = dead_letter_headers(odd, queue="q", reason="expired", exchange="", routing_key=b"\xff", time_s=1)
    assert dead.routing_keys == (b"\xff", b"k\xff", b"raw")
    assert dead.headers["x-death"][0]["routing-keys"] == ["\udcff", "k\udcff", "raw"]
    assert dead_letter_headers({"CC": "c"}, queue="q", reason="expired", exchange="", routing_key=b"k", time_s=1).routing_keys == (b"k",)


def deaths(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"queue": queue, "reason": reason} for queue, reason in pairs]


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
    assert is_cycle(queue, deaths(*history)) is expected


def test_a_ring_of_expiring_queues_ends_and_a_rejecting_consumer_does_not_end_it() -> None:
    headers: dict[str, Any] | None = None
    for queue, following, goes_on in (("a", "b", True), ("b", "a", False)):
        headers = die(headers, queue, "expired")
        good, cyclic = without_cycles([Named(following)], headers, "expired")
        assert bool(good) is goes_on
        assert bool(cyclic) is not goes_on
    headers = die(None, "a", "rejected")
    good, cyclic = without_cycles([Named("a")], headers, "rejected")
    assert len(good) == 1
    assert not cyclic


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(("expired", "rejected", "maxlen"))), max_size=12))
def test_one_entry_per_queue_and_reason_and_counts_add_up(events: list[tuple[str, str]]) -> None:
    headers: dict[str, Any] | None = None
    for queue, reason in events:
        headers = die(headers, queue, reason)
    found = read_deaths(headers)
    assert {(death["queue"], death["reason"]) for death in found} == set(events)
    assert len(found) == len(set(events))
    assert all(death["count"] == events.count((death["queue"], death["reason"])) for death in found)
    if events:
        assert (found[0]["queue"], found[0]["reason"]) == events[-1]
