"""Known queue arguments are checked with RabbitMQ's texts and become a policy; unknown ones are nobody's business."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.errors import PeerError, ReplyCode
from flintmq.vhost.arguments import QUEUE_ARGUMENTS
from flintmq.vhost.policy import DEFAULT_POLICY, QueuePolicy, parse_queue_arguments

DESCRIPTION = "queue 'q' in vhost '/'"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x-message-ttl": "5"}, '"expected integer, got longstr"'),
        ({"x-message-ttl": True}, '"expected integer, got bool"'),
        ({"x-message-ttl": -1}, "{value_negative,-1}"),
        ({"x-message-ttl": 315_360_000_001}, "{value_too_large,315360000001}"),
        ({"x-expires": 0}, "{value_zero,0}"),
        ({"x-max-length": -1}, "{value_negative,-1}"),
        ({"x-max-length-bytes": 1.5}, '"expected integer, got double"'),
        ({"x-max-priority": 256}, "{max_value_exceeded,256}"),
        ({"x-max-priority": -1}, "{value_negative,-1}"),
        ({"x-overflow": "drop-tail"}, "invalid_overflow"),
        ({"x-overflow": 1}, "{unacceptable_type,signedint}"),
        ({"x-dead-letter-routing-key": "k"}, "routing_key_but_no_dlx_defined"),
        ({"x-single-active-consumer": "true"}, "{unacceptable_type,longstr}"),
        ({"x-queue-type": "odd"}, "\"unsupported queue type 'odd'\""),
        ({"x-queue-mode": "eager"}, "\"unsupported queue mode 'eager'\""),
        ({"x-max-age": "7"}, "{error,invalid_max_age}"),
        ({"x-qpid-priorities": 0}, "{value_zero,0}"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(PeerError) as refused:
        parse_queue_arguments(arguments, DESCRIPTION)
    key = next(iter(arguments))
    assert refused.value.code is ReplyCode.PRECONDITION_FAILED
    assert refused.value.text == f"invalid arg '{key}' for {DESCRIPTION}: {reason}"


def test_a_dead_letter_exchange_of_a_wrong_type_has_its_own_text() -> None:
    with pytest.raises(PeerError) as refused:
        parse_queue_arguments({"x-dead-letter-exchange": 1}, DESCRIPTION)
    assert refused.value.text == f"invalid type 'signedint' for arg 'x-dead-letter-exchange' in {DESCRIPTION}"


def test_both_priority_rules_together_are_refused() -> None:
    with pytest.raises(PeerError):
        parse_queue_arguments({"x-max-priority": 5, "x-qpid-priorities": 5}, DESCRIPTION)


def test_good_arguments_become_the_policy() -> None:
    policy = parse_queue_arguments(
        {
            "x-message-ttl": 0,
            "x-expires": 1,
            "x-max-length": 0,
            "x-max-length-bytes": 10,
            "x-overflow": "reject-publish-dlx",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "kö",
            "x-max-priority": 10,
            "x-single-active-consumer": True,
            "x-queue-type": "classic",
            "x-delivery-limit": 3,
            "x-max-age": "7D",
        },
        DESCRIPTION,
    )
    assert policy == QueuePolicy(
        message_ttl_ms=0,
        expires_ms=1,
        max_length=0,
        max_length_bytes=10,
        overflow="reject-publish-dlx",
        dead_letter_exchange="",
        dead_letter_routing_key="kö".encode(),
        max_priority=10,
        single_active_consumer=True,
        queue_type="classic",
        delivery_limit=3,
        max_age="7D",
    )
    assert policy.levels == 11
    assert parse_queue_arguments({"x-qpid-priorities": 10}, DESCRIPTION).levels == 10
    assert parse_queue_arguments({"x-max-priority": 255}, DESCRIPTION).levels == 256


def test_unknown_arguments_are_ignored() -> None:
    assert parse_queue_arguments({"x-something": object(), "n": 1}, DESCRIPTION) == DEFAULT_POLICY
    assert parse_queue_arguments(None, DESCRIPTION) is DEFAULT_POLICY


@given(
    st.dictionaries(
        st.sampled_from(sorted(QUEUE_ARGUMENTS)),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2),
        max_size=4,
    )
)
def test_any_value_is_either_accepted_or_refused_with_406(arguments: dict[str, Any]) -> None:
    try:
        policy = parse_queue_arguments(arguments, DESCRIPTION)
    except PeerError as error:
        assert error.code is ReplyCode.PRECONDITION_FAILED
        assert DESCRIPTION in error.text
    else:
        assert 1 <= policy.levels <= 256
