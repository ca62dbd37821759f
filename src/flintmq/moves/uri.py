"""AMQP URIs of parameters, read as RabbitMQ reads them, and shown without their passwords.

in: texts of users. out: `Uri`, or UriError with the mistake (never with the text itself, which may hold a password).

U1  `shown` and `masked` never show a password, whatever the text is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from urllib.parse import parse_qsl, unquote, urlsplit

from flintmq.slotted import slotted

URI_CHARS_MAX = 4_096
MASK = "***"
# of a query; those that name files are for administrators (files of the broker's machine are not a tenant's)
FILES = ("cacertfile", "certfile", "keyfile")
_NUMBERS = {"heartbeat": 65_535, "connection_timeout": 3_600_000, "channel_max": 65_535, "depth": 255}
_WORDS = {
    "verify": ("verify_none", "verify_peer"),
    "fail_if_no_peer_cert": ("true", "false"),
    "auth_mechanism": ("plain", "amqplain", "external"),
}
_FREE = (*FILES, "password", "server_name_indication")


class UriError(ValueError):
    """The text is no AMQP URI. `str` is for people."""


@slotted(frozen=True)
class Uri:
    """Args: host: None: this node; user: None: none is named (then it is guest, or whoever owns a link of this node);
    options: of the query, with small names."""

    secure: bool
    host: str | None
    port: int
    user: str | None
    password: str = field(repr=False, default="")
    vhost: str = "/"
    options: Mapping[str, str] = field(repr=False, default_factory=dict)

    @property
    def files(self) -> tuple[str, ...]:
        """Names of files on the broker's machine."""
        return tuple(self.options[name] for name in FILES if name in self.options)


def _number(name: str, text: str, most: int) -> None:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) <= most):
        raise UriError(f"{name} must be a number of at most {most}")


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, text in parse_qsl(query, keep_blank_values=True, max_num_fields=32):
        if name in _NUMBERS:
            _number(name, text, _NUMBERS[name])
        elif name in _WORDS:
            if text not in _WORDS[name]:
                raise UriError(f"{name} must be one of {', '.join(_WORDS[name])}")
        elif name not in _FREE:
            raise UriError(f"unknown parameter {name[:64]!a} in the query")
        options[name] = text
    return options


def parse(text: str, vhost: str = "/") -> Uri:
    """Args: vhost: unless the text names one. Raises: UriError."""
    if len(text) > URI_CHARS_MAX:
        raise UriError(f"it has more than {URI_CHARS_MAX} characters")
    if any(ord(one) < 33 or ord(one) == 127 for one in text):
        raise UriError("it has characters that must be percent-encoded")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
        options = _options(parts.query)
    except UriError:
        raise
    except ValueError:
        raise UriError("it can't be read: are '/', '@', ':' and '%' in its parts percent-encoded?") from None
    if parts.scheme not in ("amqp", "amqps"):
        raise UriError("its scheme must be amqp or amqps")
    secure = parts.scheme == "amqps"
    if parts.fragment:
        raise UriError("it has a fragment: percent-encode '#'")
    path = parts.path
    if path.count("/") > 1:
        raise UriError("percent-encode '/' in the name of the virtual host")
    # "amqp://host/" names the virtual host "" by the letter; RabbitMQ takes it so, too
    name = unquote(path[1:], errors="surrogateescape") if path else vhost
    if host is None and path == "/":
        name = vhost
    user = None if parts.username is None else unquote(parts.username)
    return Uri(secure, host, port or (5671 if secure else 5672), user, unquote(parts.password or ""), name, options)


def masked(text: object) -> str:
    """The text with its passwords replaced (U1): of the login, and of a private key."""
    if not isinstance(text, str):
        return MASK
    scheme, _, rest = text.partition("://")
    if scheme not in ("amqp", "amqps"):
        return MASK
    rest, has_query, query = rest.partition("?")
    if "@" in query:  # then the '?' stood in a password
        rest, has_query, query = f"{rest}?{query}", "", ""
    login, sign, place = rest.rpartition("@")
    if sign and ":" in login:
        login = f"{login.partition(':')[0]}:{MASK}"
    kept = [part if not unquote(part).lower().startswith("password") else f"password={MASK}" for part in query.split("&")]
    return f"{scheme}://{login}{sign}{place}{has_query}{'&'.join(kept)}"


def shown(text: str) -> str:
    """Scheme, host, port and virtual host alone, as RabbitMQ's status shows a URI (U1)."""
    try:
        uri = parse(text)
    except UriError:
        return MASK
    parts = urlsplit(text)
    host = "" if uri.host is None else f"[{uri.host}]" if ":" in uri.host else uri.host
    port = f":{uri.port}" if parts.port is not None else ""
    return f"{parts.scheme}://{host}{port}{parts.path}"


def masked_values(value: object) -> object:
    """The value of a parameter with the URIs in it masked."""
    if not isinstance(value, dict):
        return value
    return {name: _masked_uris(one) if name in ("src-uri", "dest-uri", "uri") else one for name, one in value.items()}


def _masked_uris(value: object) -> object:
    return [masked(one) for one in value] if isinstance(value, list) else masked(value)
