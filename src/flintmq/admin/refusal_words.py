"""Refusals of AMQP as people read them: the Erlang terms at their end, which clients' programs compare, become words.

in: a text of a PeerError, such as `invalid arg 'x-max-length' for queue 'q' in vhost '/': {value_negative,-1}`. out: the same with
`-1 is negative`. The text on the wire stays as RabbitMQ has it.
"""

from __future__ import annotations

import re

# the name of a term -> words, with the value in them
_WORDS = {
    "value_negative": "{} is negative",
    "value_zero": "0 is too little",
    "value_too_large": "{} is too large",
    "value_out_of_range": "{} is out of range",
    "max_value_exceeded": "{} is more than the highest value",
    "invalid_value": "{} is no value of it",
    "invalid_offset_arg": "an offset is no {}",
    "unacceptable_type": "its type can't be {}",
    "unacceptable_type_in_header": "a header has a type that it can't have: {}",
    "delivery_mode_unknown": "there is no delivery mode {}",
    "leftover_string": "{} stands behind the number",
    "error": "{}",
}
# terms without a value, and reasons that are one word
_ALONE = {
    "{value_empty}": "it is empty",
    "routing_key_but_no_dlx_defined": "a dead-letter routing key needs a dead-letter exchange",
    "invalid_max_age": "no age such as 7D, 12h, 30m",
    "no_integer": "it is no whole number",
}
_TERM = re.compile(r"\{([a-z_]{1,40}),([^{}]{0,300})\}")
_BINARY = re.compile(r'<<("[^"]{0,300}")?>>')
_REASON = re.compile("|".join(map(re.escape, _ALONE)))


def in_words(text: str) -> str:
    """The text with its terms in words; one without terms as it is. Cost: O(length)."""
    text = _BINARY.sub(lambda binary: binary[1] or '""', text)
    text = _TERM.sub(lambda term: _WORDS[term[1]].format(term[2]) if term[1] in _WORDS else term[0], text)
    return _REASON.sub(lambda reason: _ALONE[reason[0]], text)
