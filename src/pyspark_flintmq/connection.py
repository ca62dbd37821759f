"""Where the data plane is and who asks: the options that source, sink and log source have in common, and the errors of its client.

In: Spark's case-insensitive str -> str map. Out: a frozen `Connection` with checked values, and what is left of the map for its caller.
Invariants: a password is never part of a text (`repr`, `where`, errors); files are read where the options are parsed, which is on the
driver, because executors may not have them; nothing is imported or connected before `open`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyspark_flintmq.errors import ConnectionLost, SourceError
from pyspark_flintmq.kafka_names import kafka_hint

if TYPE_CHECKING:
    from flintmq.flight.client import DataPlane

DEFAULT_FLIGHT_PORT = 15_680
# Addresses of one broker in option `url`, as many as the client takes.
ADDRESSES_MAX = 16
# A certificate bundle of all public authorities is about 250 KiB.
_TLS_CA_MAX_BYTES = 4 * 1024 * 1024
# As long as the broker takes (login_password_max), and a long token.
_PASSWORD_MAX_BYTES = 16 * 1024
# Seconds for which a call that the broker answers with "busy" comes again, from the last progress on: a Spark task may wait long for its
# turn, and a broker that says so is not one that is away (option `timeout`).
BUSY_S = 3_600
_CROWD = "Run fewer tasks at once (coalesce, fewer executor cores), or find out what else its users do (flintmq pipeline status)"
# What gRPC says of a connection that does not come about, in lower case -> what to look at.
_UP = "Is the broker up, with this --flight-port and pyarrow installed?"
_HINTS = (
    ("wrong version number", "It speaks no TLS: leave out option 'tlsCa', or write grpc:// in option 'url'"),
    ("certificate verify failed", "Its certificate is not trusted: option 'tlsCa' must name the authority that signed it"),
    ("is not in peer certificate", "Its certificate is for another name: give that name as option 'host'"),
    ("socket closed", f"{_UP} If it has a certificate (--tls-cert), give option 'tlsCa'"),
)


@dataclass(frozen=True)
class Connection:
    """Checked options of a connection to the data plane (Arrow Flight). Comments: unit, range, and what happens at the edge."""

    # TCP host name or address of the broker; not together with `url`
    host: str = "127.0.0.1"
    # TCP port of the broker's `--flight-port`, 1..65535; not together with `url`
    flightPort: int = DEFAULT_FLIGHT_PORT
    # grpc://HOST[:PORT] or grpc+tls://HOST[:PORT], or several addresses of one broker with commas between, tried in turn; empty: made of
    # host and flightPort, with TLS when tlsCa is given
    url: str = ""
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    # path of a file with the password, on every machine that has a reader or a task, read when a connection is made and when a login is
    # refused; empty: `password`. Not together with it
    passwordFile: str = ""
    vhost: str = "/"
    # path of a PEM file with the authorities to trust; empty: plain TCP, or the system's authorities with grpc+tls
    tlsCa: str = ""
    # the addresses of `url` are nodes that have shared queues on one engine: any of them goes on with what another one began. Only for
    # readers of shared queues: what else there is belongs to one node
    cluster: bool = False
    # seconds, 1..3,600: for connecting, for a broker that restarts, and for an answer
    timeout: int = 30
    # not an option: what the file `tlsCa` held when the options were parsed
    ca_pem: bytes = field(default=b"", repr=False)
    # not an option: with several addresses the store (or engine) that the driver found, so that tasks talk to no other
    store: str = ""

    @classmethod
    def take(cls, raw: Mapping[str, str]) -> tuple[Connection, dict[str, str]]:
        """Splits `raw` into a connection and the options that are not of the connection, their keys as they were written.

        Raises: SourceError OPTION_VALUE.
        """
        known = {name.lower(): name for name in CONNECTION_OPTIONS}
        values: dict[str, object] = {}
        rest: dict[str, str] = {}
        for key, text in raw.items():
            name = known.get(key.lower())
            if name is None:
                rest[key] = text
            elif name in ("flightPort", "timeout"):
                values[name] = whole_number(name, text)
            elif name == "cluster":
                values[name] = true_or_false(name, text)
            else:
                values[name] = text
        if values.get("url") and ("host" in values or "flightPort" in values):
            raise SourceError("OPTION_VALUE", "give either option 'url' or 'host' and 'flightPort', not both")
        if values.get("passwordFile") and "password" in values:
            raise SourceError("OPTION_VALUE", "give either option 'password' or 'passwordFile', not both")
        if values.get("tlsCa"):
            values["ca_pem"] = _read_authorities(str(values["tlsCa"]))
        connection = cls(**values)  # type: ignore[arg-type]
        in_range("flightPort", connection.flightPort, 1, 65_535)
        in_range("timeout", connection.timeout, 1, 3_600)
        if not connection.host or any(c in connection.host for c in "/@ "):
            raise SourceError("OPTION_VALUE", f"option 'host' must be a host name or an address, not '{connection.host}'")
        connection.location  # noqa: B018 - checks the URL
        return connection, rest

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.url.lower().startswith("grpc+tls://") or bool(self.tlsCa)

    @property
    def location(self) -> str:
        """`grpc://HOST:PORT` or `grpc+tls://HOST:PORT`; several with commas between.

        Raises: SourceError OPTION_VALUE for a URL of another form.
        """
        if not self.url:
            return self._written(self.host, self.flightPort)
        first, *others = (one.strip() for one in self.url.split(","))
        scheme = first.partition("://")[0]
        urls = [first, *(one if "://" in one else f"{scheme}://{one}" for one in others)]
        if len(urls) > ADDRESSES_MAX:
            raise SourceError("OPTION_VALUE", f"option 'url' has {len(urls)} addresses; at most {ADDRESSES_MAX} are tried")
        return ",".join(dict.fromkeys(self._written(*self._taken_apart(one)) for one in urls))

    def _taken_apart(self, url: str) -> tuple[str, int]:
        """Host and port of one address. Raises: SourceError OPTION_VALUE."""
        bad = SourceError(
            "OPTION_VALUE",
            "option 'url' must be grpc://HOST:PORT or grpc+tls://HOST:PORT, without user and password; several addresses of one broker "
            "have commas between them",
        )
        parts = urlsplit(url)
        try:
            host, port = parts.hostname, parts.port or DEFAULT_FLIGHT_PORT
        except ValueError:
            raise bad from None
        if parts.scheme not in ("grpc", "grpc+tls", "grpc+tcp") or not host or parts.username is not None:
            raise bad
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise bad
        if parts.scheme != "grpc+tls" and self.tlsCa:
            raise SourceError("OPTION_VALUE", "option 'tlsCa' needs a url that begins with grpc+tls://")
        if (parts.scheme == "grpc+tls") != self.tls:
            raise SourceError("OPTION_VALUE", "option 'url' has addresses with TLS and without: the password would be sent to both")
        return host, port

    def _written(self, host: str, port: int) -> str:
        if ":" in host:
            host = f"[{host.strip('[]')}]"
        return f"grpc+tls://{host}:{port}" if self.tls else f"grpc://{host}:{port}"

    @property
    def where(self) -> str:
        """For messages to people: never contains the password."""
        return f"{self.location} (vhost '{self.vhost}', user '{self.user}')"

    def open(self) -> DataPlane:
        """A client of the data plane. It may connect with its first call only; close it.

        Raises: SourceError DEPENDENCY_MISSING without pyarrow.
        """
        try:
            from flintmq.flight.client import DataPlane
        except ImportError as e:
            raise SourceError("DEPENDENCY_MISSING", f"the data plane needs pyarrow: pip install 'flintmq[spark]' ({e})") from e
        try:
            return DataPlane(
                self.location,
                user=self.user,
                password=self._password_now if self.passwordFile else self.password,
                vhost=self.vhost,
                tls_ca=self.ca_pem or None,
                timeout_s=float(self.timeout),
                busy_s=float(max(BUSY_S, self.timeout)),
                store=self.store,
                cluster=self.cluster,
            )
        except ValueError as e:
            raise SourceError("OPTION_VALUE", f"options of the connection: {e}") from None

    def _password_now(self) -> str:
        """What the file holds, without the end of its line. Raises: SourceError OPTION_VALUE."""
        try:
            with Path(self.passwordFile).expanduser().open("rb") as file:
                secret = file.read(_PASSWORD_MAX_BYTES + 1).decode().strip("\r\n")
        except OSError as e:
            text = f"option 'passwordFile': {self.passwordFile} cannot be read on this machine: {e.strerror}"
            raise SourceError("OPTION_VALUE", text) from None
        except UnicodeDecodeError:
            secret = ""
        if not secret or len(secret) > _PASSWORD_MAX_BYTES or "\n" in secret:
            text = f"option 'passwordFile': {self.passwordFile} must hold one line of text, at most {_PASSWORD_MAX_BYTES:,} bytes"
            raise SourceError("OPTION_VALUE", text) from None
        return secret

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns an error of the client (an exception with a `code`, or of gRPC) into one line for people."""
        try:
            yield
        except SourceError:
            raise
        except Exception as e:
            raise self._explained(e) from e

    def _explained(self, error: Exception) -> Exception:
        code = getattr(error, "code", None)
        if not isinstance(code, str):
            return error
        text = str(getattr(error, "text", "") or error).removeprefix(f"{code}: ")
        if code == "BUSY":
            return SourceError("BUSY", f"the data plane at {self.where} is up and has too much to do: {text}. {_CROWD}")
        if code in ("UNAVAILABLE", "TIMED_OUT", "STOPPING"):
            hint = next((hint for sign, hint in _HINTS if sign in text.lower()), _UP)
            return ConnectionLost(f"the data plane at {self.where} does not answer: {text}. {hint}", "UNREACHABLE")
        if code == "UNAUTHENTICATED":
            return SourceError("LOGIN_REFUSED", f"{self.where}: {text}")
        if code == "FORBIDDEN":
            return SourceError("FORBIDDEN", f"{self.where}: {text}")
        return SourceError(code, text)


# The names of the options, as they are written in the documentation.
CONNECTION_OPTIONS = tuple(f.name for f in fields(Connection) if f.name not in ("ca_pem", "store"))


def unknown_option(key: str, known: Iterable[str]) -> SourceError:
    """The error for an option that nobody knows, with the name that has its place, or the nearest one."""
    names = {name.lower(): name for name in known}
    if hint := kafka_hint(key):
        text = f"option '{key}' is one of Kafka's connector for Spark: {hint}. Known: {', '.join(names.values())}"
        return SourceError("OPTION_UNKNOWN", text)
    near = difflib.get_close_matches(key.lower(), names, n=1, cutoff=0.6)
    hint = f"; did you mean '{names[near[0]]}'?" if near else "."
    return SourceError("OPTION_UNKNOWN", f"unknown option '{key}'{hint} Known: {', '.join(names.values())}")


def whole_number(name: str, text: str) -> int:
    """Raises: SourceError OPTION_VALUE."""
    try:
        return int(text)
    except ValueError:
        raise SourceError("OPTION_VALUE", f"option '{name}' must be a whole number, not '{text}'") from None


def true_or_false(name: str, text: str) -> bool:
    """Raises: SourceError OPTION_VALUE."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise SourceError("OPTION_VALUE", f"option '{name}' must be 'true' or 'false', not '{text}'")


def in_range(name: str, value: int, low: int, high: int) -> None:
    """Raises: SourceError OPTION_VALUE."""
    if not low <= value <= high:
        raise SourceError("OPTION_VALUE", f"option '{name}' must be {low}..{high}, not {value}")


def _read_authorities(path: str) -> bytes:
    try:
        with Path(path).expanduser().open("rb") as file:
            pem = file.read(_TLS_CA_MAX_BYTES + 1)
    except OSError as e:
        raise SourceError("OPTION_VALUE", f"option 'tlsCa': {path} cannot be read: {e.strerror}") from None
    if b"-----BEGIN CERTIFICATE-----" not in pem or len(pem) > _TLS_CA_MAX_BYTES:
        raise SourceError("OPTION_VALUE", f"option 'tlsCa': {path} is not a PEM file with certificates")
    return pem
