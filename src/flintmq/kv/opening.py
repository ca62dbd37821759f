"""Engines by their URLs.

in: `sqlite:PATH`, `etcd://[USER:PASSWORD@]HOST:PORT,HOST:PORT` (`etcds://`: with TLS) or `fdb:PATH` of a cluster file, or `file:PATH` of a
file with such a URL. out: an engine, or the reason why there is none. No text of an error has the password.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from flintmq.config import Limits
from flintmq.kv.engine import Engine, Unavailable
from flintmq.kv.sqlite_engine import SqliteEngine

# bytes of a file with a URL
_FILE_BYTES_MAX = 4_096


def engine_url(named: str) -> str:
    """The URL itself, or the one in the file that it names.

    Raises: ValueError: no engine has such a URL; the file can't be read; what the engine needs is not installed.
    """
    url = named
    if named.startswith("file:"):
        try:
            with Path(named.removeprefix("file:")).open("rb") as file:
                url = file.read(_FILE_BYTES_MAX).decode("utf-8", "replace").strip()
        except OSError as error:
            raise ValueError(f"{named}: {error.strerror}") from error
    scheme, _, rest = url.partition(":")
    if not (scheme in ("sqlite", "fdb") and rest) and not (scheme in ("etcd", "etcds") and _members(rest) and _is_login(rest)):
        shown = named if named != url or "@" not in url else f"{scheme}://...@{url.rpartition('@')[2]}"
        raise ValueError(f"{shown!r} is no engine: sqlite:PATH, fdb:PATH or etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT]")
    if scheme == "fdb":
        from flintmq.kv.fdb_engine import load_binding

        load_binding()
    elif scheme != "sqlite":
        import flintmq.kv.etcd_engine  # noqa: F401  # an HTTP client: when the broker starts, and only then
    return url


def is_alone(url: str) -> bool:
    """Whether no other process opens that engine."""
    return url.startswith("sqlite:")


def _members(rest: str) -> tuple[str, ...]:
    hosts = rest[2:].rpartition("@")[2].rstrip("/")
    return tuple(member for member in hosts.split(",") if member) if rest.startswith("//") else ()


def _is_login(rest: str) -> bool:
    """Whether there is no login, or a user with a password."""
    login, sign, _ = rest[2:].rpartition("@")
    user, colon, _ = login.partition(":")
    return not sign or bool(user and colon)


def _login(rest: str) -> tuple[str, str] | None:
    login, sign, _ = rest[2:].rpartition("@")
    user, _, password = login.partition(":")
    return (unquote(user), unquote(password)) if sign else None


def open_engine(url: str, limits: Limits, watched: bytes) -> Engine:
    """Args: watched: what keys that are watched begin with. Raises: Unavailable: the engine can't be reached; ValueError: no such URL."""
    url = engine_url(url)
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite":
        path = Path(rest)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"{path.parent} can't be made: {error.strerror}") from error
        return SqliteEngine(path, limits)
    if scheme == "fdb":
        from flintmq.kv.fdb_engine import FdbEngine, load_binding

        return FdbEngine(load_binding(), Path(rest), limits)
    from flintmq.kv.etcd_engine import EtcdEngine

    protocol = "https" if scheme == "etcds" else "http"
    return EtcdEngine(tuple(f"{protocol}://{member}" for member in _members(rest)), limits, watched=watched, login=_login(rest))
