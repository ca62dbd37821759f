"""AMQP URIs: read as RabbitMQ reads them; no password is ever shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.moves.uri import UriError, masked, masked_values, parse, shown


def test_parts() -> None:
    uri = parse("amqps://al%40ice:p%2Fw@rabbit.example.com:1234/a%2Fb?heartbeat=10&verify=verify_none")
    assert (uri.secure, uri.host, uri.port, uri.user, uri.password, uri.vhost) == (True, "rabbit.example.com", 1234, "al@ice", "p/w", "a/b")
    assert uri.options == {"heartbeat": "10", "verify": "verify_none"}
    assert "p/w" not in repr(uri)
    assert (parse("amqp://h").port, parse("amqps://h").port, parse("amqp://[::1]:5/").host) == (5672, 5671, "::1")


@pytest.mark.parametrize(
    ("text", "host", "vhost"), [("amqp://", None, "/"), ("amqp:///", None, "/"), ("amqp:///a", None, "a"), ("amqp://h", "h", "/")]
)
def test_this_node_and_the_virtual_host(text: str, host: str | None, vhost: str) -> None:
    uri = parse(text)
    assert (uri.host, uri.vhost, uri.user) == (host, vhost, None)
    assert parse("amqp://h", "own").vhost == "own"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h",
        "http://h",
        "amqp://h:x",
        "amqp://h:99999",
        "amqp://h/a/b",
        "amqp://h?foo=1",
        "amqp://h?heartbeat=x",
        "amqp://h\n",
        "amqp://h#f",
        "amqp://[h",
    ],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(UriError) as caught:
        parse(text)
    assert str(caught.value)


word = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)


@given(word, word, word)
def test_a_password_is_not_shown(user: str, rest: str, noise: str) -> None:
    """Whatever a text looks like, what stands where a password may stand is not in what is shown."""
    secret = "SECRET"
    for text in (
        f"amqp://u:{secret}{noise}@{rest}",
        f"amqp://h/{rest.replace('?', '')}?password={secret}",
        f"amqp://h?pass%77ord={secret}&heartbeat=1",
    ):
        assert secret not in masked(text) and secret not in shown(text)
    assert secret not in masked(f"{user}{secret}".replace("amqp://", ""))


def test_values_of_parameters() -> None:
    value = {"src-uri": "amqp://u:p@h/v?heartbeat=1", "dest-uri": ["amqp://", "amqps://x:y@z"], "src-queue": "amqp://u:p@h", "uri": 5}
    found = masked_values(value)
    assert found == {
        "src-uri": "amqp://u:***@h/v?heartbeat=1",
        "dest-uri": ["amqp://", "amqps://x:***@z"],
        "src-queue": "amqp://u:p@h",
        "uri": "***",
    }
    assert masked_values([1]) == [1]
