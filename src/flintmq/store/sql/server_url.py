"""The URL of a PostgreSQL server: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE?option=value`.

in: the text of `--connect`. out: what psycopg connects with, and a text without password. OperatorError (78) names what is wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode

from flintmq.errors import OperatorError
from flintmq.store.sql.driver import Location

_URL = re.compile(
    r"(?P<scheme>[\w+]+)://"
    r"((?P<user>[^:/@]*)(:(?P<password>[^@]*))?@)?"
    r"(\[(?P<ipv6>[^/?\]]+)\]|(?P<host>[^/:?]+))?(:(?P<port>[0-9]*))?"
    r"(/(?P<database>[^?]*))?(\?(?P<options>.*))?"
)
_OURS = ("postgresql", "postgresql+psycopg")
_OTHER_DRIVERS = ("postgres", "postgresql+psycopg2", "postgresql+asyncpg", "postgresql+pg8000")
_SECRET_OPTIONS = ("password", "sslpassword")


@dataclass(frozen=True)
class ServerUrl:
    """Parts of the URL, decoded. options: libpq's, from behind the question mark."""

    user: str | None
    password: str | None = field(repr=False)
    host: str | None
    port: int | None
    database: str
    options: dict[str, str]

    def __str__(self) -> str:
        """The URL with stars for passwords."""
        login = "" if self.user is None else quote(self.user, safe=" +") + ("" if self.password is None else ":***") + "@"
        host = f"[{self.host}]" if self.host and ":" in self.host else self.host or ""
        port = "" if self.port is None else f":{self.port}"
        shown = {name: "***" if name in _SECRET_OPTIONS else value for name, value in sorted(self.options.items())}
        return f"postgresql://{login}{host}{port}/{quote(self.database, safe=' +/')}{'?' if shown else ''}{urlencode(shown)}"

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of psycopg.connect."""
        parts = {"user": self.user, "password": self.password, "host": self.host, "port": self.port, "dbname": self.database}
        return {name: value for name, value in parts.items() if value is not None} | self.options


def server_url(location: Location) -> ServerUrl:
    """The URL with the catalog in it. Raises: OperatorError (78)."""
    match = _URL.fullmatch(location.url)
    if match is None:
        raise OperatorError("--connect is no URL that can be read: postgresql://USER:PASSWORD@HOST:PORT/DATABASE")
    scheme = match["scheme"]
    if scheme in _OTHER_DRIVERS:
        raise OperatorError(f"--connect {scheme}://...: PostgreSQL is reached by psycopg 3, write postgresql://...")
    if scheme not in _OURS:
        raise OperatorError(
            f"--connect {scheme}://...: not supported, definitions are kept in SQLite or PostgreSQL: use sqlite:///PATH or postgresql://..."
        )
    user, password = (None if match[name] is None else unquote(match[name]) for name in ("user", "password"))
    host = match["ipv6"] or match["host"]
    # `host=A:1&host=B:2` names several servers, as `host=A,B&port=1,2` does
    options = {name: values for name, values in parse_qs(match["options"] or "").items() if values}
    if any(":" in one and "/" not in one for one in options.get("host", ())):
        pairs = [one.partition(":") for one in options["host"]]
        options |= {"host": [name for name, _, _ in pairs], "port": [port for _, _, port in pairs]}
    database = match["database"] if location.catalog is None else location.catalog
    url = ServerUrl(
        user, password, host, int(match["port"]) if match["port"] else None, database or "", {k: ",".join(v) for k, v in options.items()}
    )
    if not url.database:
        raise OperatorError(f"--connect {str(url).removesuffix('/')}: no database named, add /DATABASE or --catalog")
    return url
