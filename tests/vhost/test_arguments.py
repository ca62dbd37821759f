"""Every row of the table is whole and agrees with QueuePolicy; a refusal names the value that came and the good ones; effects are told."""

from __future__ import annotations

from dataclasses import fields

import pytest

from flintmq.errors import REPLY_TEXT_MAX, PeerError, ReplyCode
from flintmq.vhost import equivalence
from flintmq.vhost.arguments import KINDS, LAST_VALUE_KEYS, POLICY_KEYS, QUEUE_ARGUMENTS, SHARED, effective
from flintmq.vhost.policy import QueuePolicy, parse_queue_arguments
from flintmq.vhost.queue import Queue, QueueSpec
from tools.gen_arguments import TARGET, page

DESCRIPTION = "queue 'q' in vhost '/'"


def test_every_row_is_whole() -> None:
    known = {field.name for field in fields(QueuePolicy)}
    for row in QUEUE_ARGUMENTS.values():
        assert row.name.startswith(("x-", "qpid.")) and row.values
        assert set(row.effect) <= {*KINDS, SHARED}
        assert not row.field or row.field in known
        assert not row.effect or row.field, f"{row.name} has an effect and sets nothing"
        assert "stream" not in row.effect or row.stream, f"{row.name} has an effect on streams, which refuse it"
    # synonyms, of which a queue has one
    set_by_rows = [row.field for row in QUEUE_ARGUMENTS.values() if row.field and row.name not in LAST_VALUE_KEYS[1:]]
    assert sorted(set_by_rows) == sorted(known), "a field of QueuePolicy that no argument sets, or two set"
    assert all(key == row.name.removeprefix("x-") for key, row in POLICY_KEYS.items())


def test_the_page_has_the_table_of_now() -> None:
    assert page() == TARGET.read_text()


def test_a_refusal_shows_what_came_and_what_is_good() -> None:
    with pytest.raises(PeerError) as refused:
        parse_queue_arguments({"x-max-priority": 256}, DESCRIPTION)
    assert refused.value.reply_text == (
        f"PRECONDITION_FAILED - invalid arg 'x-max-priority' for {DESCRIPTION}: {{max_value_exceeded,256}} "
        "(hint: received signedint '256'; x-max-priority takes: integer, 0 to 255)"
    )


@pytest.mark.parametrize("value", ["x" * 10_000, "\x00\x1b[2J", b"\xff" * 300, {"a": "b" * 500}])
def test_a_hint_is_short_and_printable_whatever_came(value: object) -> None:
    with pytest.raises(PeerError) as refused:
        parse_queue_arguments({"x-max-length": value}, DESCRIPTION)
    hint = refused.value.hint
    assert hint.isprintable() and len(hint) < 150


def test_a_hint_without_room_is_left_out_whole() -> None:
    with pytest.raises(PeerError) as refused:
        parse_queue_arguments({"x-max-length": -1}, f"queue '{'q' * 150}' in vhost '/'")
    text = refused.value.reply_text
    assert "hint" not in text and text.endswith("{value_negative,-1}")
    assert len(text.encode()) <= REPLY_TEXT_MAX < len(f"PRECONDITION_FAILED - {refused.value.told}")


def test_a_queue_declared_again_with_another_value_names_the_policy_key() -> None:
    spec = QueueSpec("/", "q", True, False, None, {"x-message-ttl": 5, "x-max-priority": 3}, QueuePolicy())
    queue = Queue(1, spec, None)

    def refusal(**changed: int) -> PeerError:
        with pytest.raises(PeerError) as refused:
            equivalence.check_queue(queue, True, False, {**spec.arguments, **{f"x-{k}": v for k, v in changed.items()}})
        assert refused.value.code is ReplyCode.PRECONDITION_FAILED
        return refused.value

    told = refusal(**{"message-ttl": 6})
    assert told.text == f"inequivalent arg 'x-message-ttl' for {DESCRIPTION}: received '6' but current is '5'"
    assert told.hint == "change 'message-ttl' of a queue that exists with a policy"
    assert refusal(**{"max-priority": 4}).hint == ""  # levels are made once


def test_what_has_an_effect_depends_on_the_kind() -> None:
    def working(kind: str, ttl_ms: int = 5) -> tuple[list[str], list[str]]:
        arguments = {"x-max-age": "7D", "x-what-ever": 1, "x-message-ttl": 5, "x-queue-mode": "lazy", "x-queue-type": kind}
        return effective(arguments, QueuePolicy(queue_type=kind, message_ttl_ms=ttl_ms, max_age="7D"))

    assert working("classic") == (["x-message-ttl", "x-queue-type"], ["x-max-age", "x-what-ever", "x-queue-mode"])
    assert working("stream")[0] == ["x-max-age", "x-queue-type"]
    assert working("somebody's")[0] == ["x-message-ttl", "x-queue-type"]
    assert working("classic", 4)[0] == ["x-queue-type"]  # a policy's is lower
