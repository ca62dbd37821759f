"""Erlang terms of AMQP's refusals become words for people, and only they do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import flintmq
from flintmq.admin.refusal_words import _WORDS, in_words

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


def test_every_term_of_the_sources_has_words() -> None:
    """A new term that AMQP's clients compare is none that operators have to read."""
    terms = set()
    for path in Path(flintmq.__file__).parent.rglob("*.py"):
        terms |= set(re.findall(r"\{\{([a-z]+_[a-z_]+),", path.read_text()))
    assert {"value_negative", "unacceptable_type"} <= terms <= _WORDS.keys()
