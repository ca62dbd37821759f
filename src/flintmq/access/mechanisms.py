"""SASL responses of connection.start-ok: PLAIN and AMQPLAIN.

in: mechanism name and response bytes of a peer nobody knows yet. out: user name and password, or a PeerError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flintmq.access.secret import Secret
from flintmq.errors import PeerError, ReplyCode

# What connection.start offers, in the order of preference.
MECHANISMS = "PLAIN AMQPLAIN"

TableDecoder = Callable[[bytes], Mapping[str, Any]]


class Credentials(NamedTuple):
    """Who someone says they are."""

    user: str
    password: Secret


def login_refused(mechanism: str) -> PeerError:
    """The answer to wrong credentials. It says nothing about which part was wrong, or whether the user exists."""
    return PeerError(
        ReplyCode.ACCESS_REFUSED,
        f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile.",
        hard=True,
    )


def parse_response(mechanism: str, response: bytes, decode_table: TableDecoder) -> Credentials:
    """Reads the response of `mechanism`.

    Args: decode_table: field table (without its length prefix) -> mapping; may raise PeerError or ValueError.
    Raises: PeerError 503 for a mechanism that was not offered (RabbitMQ's text); 403 for a response that cannot be read.
    """
    if mechanism == "PLAIN":
        return _plain(response)
    if mechanism == "AMQPLAIN":
        return _amqplain(response, decode_table)
    # A peer's own words in the text: bounded, and only printable ones.
    shown = "".join(character for character in mechanism[:64] if character.isprintable())
    raise PeerError(ReplyCode.COMMAND_INVALID, f"unknown authentication mechanism '{shown}'")


def _plain(response: bytes) -> Credentials:
    """RFC 4616: [authorization id] NUL user NUL password. The authorization id is not used, as on RabbitMQ."""
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise login_refused("PLAIN")
    try:
        return Credentials(parts[1].decode("utf-8"), Secret(parts[2].decode("utf-8")))
    except UnicodeDecodeError:
        raise login_refused("PLAIN") from None


def _amqplain(response: bytes, decode_table: TableDecoder) -> Credentials:
    try:
        table = decode_table(response)
    except (PeerError, ValueError):
        raise login_refused("AMQPLAIN") from None
    user, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(user, str) or not isinstance(password, str):
        raise login_refused("AMQPLAIN")
    return Credentials(user, Secret(password))
