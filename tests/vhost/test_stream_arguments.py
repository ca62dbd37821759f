"""A stream takes the arguments that mean something to it, refuses others in RabbitMQ's words; every form of basic.consume is understood."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.errors import PeerError, ReplyCode
from flintmq.protocol.v0_9_1.codec import Timestamp
from flintmq.vhost.arguments import QUEUE_ARGUMENTS
from flintmq.vhost.policy import parse_queue_arguments
from flintmq.vhost.stream_arguments import (
    GROUP_BYTES_MAX,
    UNITS_MS,
    StreamStart,
    age_ms,
    check_lasting_properties,
    parse_stream_start,
)

DESCRIPTION = "queue 's' in vhost '/'"
NOW = 1_800_000_000_000


def text_of(function: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(PeerError) as refused:
        function(*args, **kwargs)
    assert refused.value.code is ReplyCode.PRECONDITION_FAILED
    return refused.value.text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("x-message-ttl", 1000),
        ("x-expires", 1000),
        ("x-max-length", 10),
        ("x-max-priority", 5),
        ("x-overflow", "drop-head"),
        ("x-single-active-consumer", True),
        ("x-queue-mode", "lazy"),
    ],
)
def test_arguments_of_other_types_are_refused(key: str, value: Any) -> None:
    text = text_of(parse_queue_arguments, {"x-queue-type": "stream", key: value}, DESCRIPTION)
    assert text == f"invalid arg '{key}' for {DESCRIPTION} of queue type rabbit_stream_queue"
    if key in ("x-max-priority", "x-queue-mode"):
        text = text_of(parse_queue_arguments, {"x-queue-type": "quorum", key: value}, DESCRIPTION)
        assert text == f"invalid arg '{key}' for {DESCRIPTION} of queue type rabbit_quorum_queue"
    else:
        assert parse_queue_arguments({"x-queue-type": "quorum", key: value}, DESCRIPTION).queue_type == "quorum"
    stored = parse_queue_arguments({"x-queue-type": "quorum", key: value}, DESCRIPTION, restored=True)
    assert stored.queue_type == "quorum"


def test_a_stored_stream_keeps_what_a_new_one_may_not_have() -> None:
    policy = parse_queue_arguments({"x-queue-type": "stream", "x-max-length": 5}, DESCRIPTION, restored=True)
    assert policy.is_stream


def test_a_wrong_value_is_told_before_a_wrong_kind() -> None:
    text = text_of(parse_queue_arguments, {"x-queue-type": "stream", "x-max-length": -1}, DESCRIPTION)
    assert text == f"invalid arg 'x-max-length' for {DESCRIPTION}: {{value_negative,-1}}"


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("x-stream-max-segment-size-bytes", 3_000_000_001, "Exceeded max value for x-stream-max-segment-size-bytes"),
        ("x-stream-filter-size-bytes", 15, "Invalid value for  x-stream-filter-size-bytes"),
        ("x-stream-filter-size-bytes", 256, "Invalid value for  x-stream-filter-size-bytes"),
        ("x-max-age", "7W", f"invalid arg 'x-max-age' for {DESCRIPTION}: {{error,invalid_max_age}}"),
        ("x-retry-delay", -1, f"invalid arg 'x-retry-delay' for {DESCRIPTION}: {{value_negative,-1}}"),
    ],
)
def test_values_out_of_range(key: str, value: Any, text: str) -> None:
    assert text_of(parse_queue_arguments, {"x-queue-type": "stream", key: value}, DESCRIPTION) == text


def test_a_stream_with_everything_it_may_have() -> None:
    arguments = {
        "x-queue-type": "stream",
        "x-max-age": "2h",
        "x-max-length-bytes": 20_000_000,
        "x-stream-max-segment-size-bytes": 1_000_000,
        "x-stream-filter-size-bytes": 32,
        "x-initial-cluster-size": 3,
        "x-queue-leader-locator": "least-leaders",
        "x-delivery-limit": 4,
        "x-consumer-timeout": 30_000,
        "x-retry-delay": 250,
        "x-dead-letter-exchange": "dlx",
        "x-dead-letter-routing-key": "dead",
        "x-dead-letter-strategy": "at-least-once",
    }
    assert set(arguments) == {row.name for row in QUEUE_ARGUMENTS.values() if row.stream}
    policy = parse_queue_arguments(arguments, DESCRIPTION)
    assert policy.is_stream and policy.max_age_ms == 2 * 3600 * 1000
    assert (policy.max_length_bytes, policy.stream_segment_bytes) == (20_000_000, 1_000_000)
    assert (policy.delivery_limit, policy.consumer_timeout_ms, policy.retry_delay_ms) == (4, 30_000, 250)


def test_numbers_of_any_size_are_taken_as_never() -> None:
    """What RabbitMQ accepts is accepted; what the core counts with fits its counters, and a deadline can be added to a clock."""
    huge = 2**63 - 1
    arguments = {"x-queue-type": "stream", "x-delivery-limit": huge, "x-consumer-timeout": huge, "x-max-age": "9999999999999999999Y"}
    policy = parse_queue_arguments(arguments, "queue 'q' in vhost '/'")
    assert policy.delivery_limit == 2**31 - 1
    assert policy.consumer_timeout_ms == policy.max_age_ms == 315_360_000_000


@pytest.mark.parametrize(
    ("durable", "exclusive", "auto_delete", "wrong"),
    [
        (False, False, False, "non-durable"),
        (True, True, False, "exclusive-owner"),
        (True, False, True, "auto-delete"),
        (False, True, True, "auto-delete"),
        (True, False, False, ""),
    ],
)
def test_properties(durable: bool, exclusive: bool, auto_delete: bool, wrong: str) -> None:
    if not wrong:
        check_lasting_properties(DESCRIPTION, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
        return
    text = text_of(check_lasting_properties, DESCRIPTION, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
    assert text == f"invalid property '{wrong}' for {DESCRIPTION}"


@pytest.mark.parametrize(
    ("value", "kind", "number"),
    [
        ("first", "first", 0),
        ("last", "last", 0),
        ("next", "next", 0),
        (0, "offset", 0),
        (2**40, "offset", 2**40),
        (Timestamp(1_700_000_000), "time", 1_700_000_000_000),
        ("90s", "time", NOW - 90_000),
        ("1Y", "time", NOW - 365 * 86_400_000),
        ("9999Y", "time", 0),
    ],
)
def test_every_form_of_an_offset(value: Any, kind: str, number: int) -> None:
    start = parse_stream_start({"x-stream-offset": value}, DESCRIPTION, NOW)
    assert (start.kind, start.value) == (kind, number)


def test_without_arguments_a_consumer_starts_with_what_comes_next() -> None:
    assert parse_stream_start({}, DESCRIPTION, NOW) == StreamStart("next", 0, (), False, b"")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("x-stream-offset", -1, "{value_negative,-1}"),
        ("x-stream-offset", "yesterday", "invalid_max_age"),
        ("x-stream-offset", "", "invalid_max_age"),
        ("x-stream-offset", True, "{invalid_offset_arg,bool}"),
        ("x-stream-offset", 1.5, "{invalid_offset_arg,double}"),
        ("x-stream-filter", 5, "{unacceptable_type,signedint}"),
        ("x-stream-filter", ["a", 5], "{unacceptable_type,array}"),
        ("x-stream-match-unfiltered", "true", "{unacceptable_type,longstr}"),
        ("x-group", 7, "{unacceptable_type,signedint}"),
        ("x-group", "g" * (GROUP_BYTES_MAX + 1), f'"longer than {GROUP_BYTES_MAX} bytes"'),
    ],
)
def test_bad_consume_arguments(key: str, value: Any, reason: str) -> None:
    assert text_of(parse_stream_start, {key: value}, DESCRIPTION, NOW) == f"invalid arg '{key}' for {DESCRIPTION}: {reason}"


def test_filters_and_group() -> None:
    start = parse_stream_start(
        {"x-stream-filter": ["a", "ö", "a"], "x-stream-match-unfiltered": True, "x-group": "billing"}, DESCRIPTION, NOW
    )
    assert (start.filters, start.unfiltered, start.group) == ((b"a", "ö".encode()), True, b"billing")
    assert parse_stream_start({"x-stream-filter": "one"}, DESCRIPTION, NOW).filters == (b"one",)


@given(st.integers(0, 10**12), st.sampled_from(sorted(UNITS_MS)))
def test_an_age_is_a_number_and_a_unit(number: int, unit: str) -> None:
    assert age_ms(f"{number}{unit}") == number * UNITS_MS[unit]


@given(st.text(max_size=8))
def test_any_other_text_is_no_age(text: str) -> None:
    good = text[:-1].isascii() and text[:-1].isdigit() and text[-1:] in UNITS_MS
    assert (age_ms(text) is not None) == good


@given(
    st.dictionaries(
        st.sampled_from(["x-stream-offset", "x-stream-filter", "x-stream-match-unfiltered", "x-group", "x-other"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.text(max_size=3), max_size=3),
    )
)
def test_any_arguments_are_understood_or_refused_with_406(arguments: dict[str, Any]) -> None:
    try:
        start = parse_stream_start(arguments, DESCRIPTION, NOW)
    except PeerError as error:
        assert error.code is ReplyCode.PRECONDITION_FAILED and DESCRIPTION in error.text
    else:
        assert start.value >= 0
