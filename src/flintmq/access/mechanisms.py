"""SASL responses of connection.start-ok: PLAIN and AMQPLAIN; EXTERNAL, where the certificate of the client says who it is. SCRAM is in
access.scram.

in: mechanism name and response bytes of a peer nobody knows yet. out: user name and password, or a PeerError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flintmq.access.secret import Secret
from flintmq.errors import PeerError, ReplyCode

SCRAM = "SCRAM-SHA-256"
# what may be offered to clients without a certificate (Config.auth_mechanisms)
MECHANISMS = ("PLAIN", "AMQPLAIN", SCRAM)
EXTERNAL = "EXTERNAL"
# what of a certificate may name the user (RabbitMQ's ssl_cert_login_from)
LOGIN_FROM = ("distinguished_name", "common_name", "subject_alternative_name")
# the short names of RFC 4514, of those that Python's ssl module writes in full
_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}

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
    raise unknown_mechanism(mechanism)


def unknown_mechanism(mechanism: str) -> PeerError:
    """The answer to a mechanism that was not offered. A peer's own words in the text: bounded, and only printable ones."""
    shown = "".join(character for character in mechanism[:64] if character.isprintable())
    return PeerError(ReplyCode.COMMAND_INVALID, f"unknown authentication mechanism '{shown}'")


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


def certificate_user(certificate: Mapping[str, Any], login_from: str) -> str | None:
    """Whom a verified certificate names. None: nobody, or more than one.

    Args: certificate: of ssl.SSLObject.getpeercert(); login_from: one of LOGIN_FROM. A distinguished name is written as RabbitMQ writes it
    (RFC 4514: the last part first, `CN=client,O=org`); of alternative names the first DNS name counts.
    """
    subject: tuple[tuple[tuple[str, str], ...], ...] = certificate.get("subject", ())
    if login_from == "distinguished_name":
        return (
            ",".join("+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in part) for part in reversed(subject)) or None
        )
    if login_from == "common_name":
        names = [value for part in subject for kind, value in part if kind == "commonName"]
        return names[0] if len(names) == 1 else None
    return next((value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"), None)


def _escaped(value: str) -> str:
    """A value as RFC 4514 writes it: whatever a certificate says, it is one value of its name."""
    text = "".join("\\00" if one == "\0" else f"\\{one}" if one in ',+"\\<>;' else one for one in value)
    if text[:1] in ("#", " "):
        text = "\\" + text
    if text.endswith(" ") and len(text) > 1:
        text = text[:-1] + "\\ "
    return text
