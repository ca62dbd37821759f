"""Erlang terms of AMQP's refusals become words for people, and only they do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import flintmq
from flintmq.admin.http_refusals import bad, rabbit_refusal, refusal
from flintmq.admin.refusal_words import _WORDS, in_words
from flintmq.definitions.change_line import Refused
from flintmq.errors import PeerError, ReplyCode

HEAD = "invalid arg 'x-max-length' for queue 'q' in vhost '/': "


@pytest.mark.parametrize(
    ("term", "words"),
    [
        ("{value_negative,-1}", "-1 is negative"),
        ("{unacceptable_type,longstr} (hint: give a number)", "its type can't be longstr (hint: give a number)"),
        ("{value_empty}", "it is empty"),
        ("{error,invalid_max_age}", "no age such as 7D, 12h, 30m"),
        ('{leftover_string,"s"}', '"s" stands behind the number'),
        ('value <<"some">>', 'value "some"'),
        ("routing_key_but_no_dlx_defined", "a dead-letter routing key needs a dead-letter exchange"),
        ("{of_somebody,1} {} {value_negative}", "{of_somebody,1} {} {value_negative}"),
    ],
)
def test_a_term_becomes_words(term: str, words: str) -> None:
    assert in_words(HEAD + term) == HEAD + words


def test_every_refusal_over_http_is_in_words_whoever_makes_it() -> None:
    text, words = f"{HEAD}{{value_negative,-1}}", f"{HEAD}-1 is negative"
    for refused in (
        bad(text),
        refusal(Refused("bad_request", text)),
        rabbit_refusal(Refused("bad_request", text)),
        refusal(PeerError(ReplyCode.PRECONDITION_FAILED, text)),
        rabbit_refusal(PeerError(ReplyCode.PRECONDITION_FAILED, text)),
    ):
        assert refused is not None
        assert str(refused.body["reason"]).endswith(words) and str(refused.rabbit_body["reason"]).endswith(words)


def test_every_term_of_the_sources_has_words() -> None:
    """A new term that AMQP's clients compare is none that operators have to read."""
    terms = set()
    for path in Path(flintmq.__file__).parent.rglob("*.py"):
        terms |= set(re.findall(r"\{\{([a-z]+_[a-z_]+),", path.read_text()))
    assert {"value_negative", "unacceptable_type"} <= terms <= _WORDS.keys()
