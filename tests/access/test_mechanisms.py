"""PLAIN and AMQPLAIN responses give name and password or a refusal that tells nothing; no bytes make anything else happen."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.access.mechanisms import Credentials, parse_response
from flintmq.errors import PeerError, ReplyCode
from flintmq.protocol.v0_9_1.codec import decode_table, encode_table


def no_table(data: bytes) -> dict[str, Any]:
    raise AssertionError("PLAIN has no table")


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (b"\0guest\0guest", ("guest", "guest")),
        (b"authorization\0gu\xc3\xa9st\0p w", ("guést", "p w")),
        (b"\0\0", ("", "")),
    ],
)
def test_plain(response: bytes, expected: tuple[str, str]) -> None:
    assert parse_response("PLAIN", response, no_table) == Credentials(*expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("response", [b"", b"guest", b"\0guest", b"\0a\0b\0c", b"\0\xff\0guest", b"\0guest\0\xff"])
def test_bad_plain(response: bytes) -> None:
    with pytest.raises(PeerError) as refused:
        parse_response("PLAIN", response, no_table)
    assert refused.value.code is ReplyCode.ACCESS_REFUSED
    assert refused.value.hard
    assert refused.value.text == "Login was refused using authentication mechanism PLAIN. For details see the broker logfile."


def test_amqplain() -> None:
    found = parse_response("AMQPLAIN", b"x", lambda data: {"LOGIN": "guest", "PASSWORD": "canary", "more": 1})
    assert found == ("guest", "canary")
    assert "canary" not in repr(found)


@pytest.mark.parametrize("table", [{}, {"LOGIN": "guest"}, {"LOGIN": 5, "PASSWORD": "x"}, {"LOGIN": "guest", "PASSWORD": None}])
def test_bad_amqplain(table: dict[str, Any]) -> None:
    with pytest.raises(PeerError) as refused:
        parse_response("AMQPLAIN", b"x", lambda data: table)
    assert refused.value.code is ReplyCode.ACCESS_REFUSED


def test_amqplain_with_the_real_codec() -> None:
    response = encode_table({"LOGIN": "guest", "PASSWORD": "secret"})
    assert parse_response("AMQPLAIN", response, decode_table) == ("guest", "secret")


def test_an_unknown_mechanism_is_named_harmlessly() -> None:
    with pytest.raises(PeerError) as refused:
        parse_response("ODD\r\n" + "x" * 500, b"", no_table)
    assert refused.value.code is ReplyCode.COMMAND_INVALID
    assert refused.value.text.startswith("unknown authentication mechanism 'ODDx")
    assert len(refused.value.text) < 150


@given(st.sampled_from(("PLAIN", "AMQPLAIN")), st.binary(max_size=60))
def test_any_bytes_give_credentials_or_a_refusal(mechanism: str, response: bytes) -> None:
    try:
        found = parse_response(mechanism, response, decode_table)
    except PeerError as error:
        assert error.code is ReplyCode.ACCESS_REFUSED
    else:
        assert isinstance(found.user, str)
