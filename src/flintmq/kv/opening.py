"""Engines by their URLs.

in: `sqlite:PATH` or `etcd://HOST:PORT,HOST:PORT` (`etcds://`: with TLS). out: an engine, or the reason why there is none.
"""

from __future__ import annotations

from pathlib import Path

from flintmq.config import Limits
from flintmq.kv.engine import Engine, Unavailable
from flintmq.kv.sqlite_engine import SqliteEngine


def check_engine(url: str) -> None:
    """Raises: ValueError: no engine has such a URL."""
    scheme, _, rest = url.partition(":")
    if not (scheme == "sqlite" and rest) and not (scheme in ("etcd", "etcds") and _members(rest)):
        raise ValueError(f"{url!r} is no engine: sqlite:PATH or etcd://HOST:PORT[,HOST:PORT]")
    if scheme != "sqlite":
        import flintmq.kv.etcd_engine  # noqa: F401  # an HTTP client: when the broker starts, and only then


def _members(rest: str) -> tuple[str, ...]:
    return tuple(member for member in rest[2:].rstrip("/").split(",") if member) if rest.startswith("//") else ()


def open_engine(url: str, limits: Limits, watched: bytes) -> Engine:
    """Args: watched: what keys that are watched begin with. Raises: Unavailable: the engine can't be reached; ValueError: no such URL."""
    check_engine(url)
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite":
        path = Path(rest)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"{path.parent} can't be made: {error.strerror}") from error
        return SqliteEngine(path, limits)
    from flintmq.kv.etcd_engine import EtcdEngine

    protocol = "https" if scheme == "etcds" else "http"
    return EtcdEngine(tuple(f"{protocol}://{member}" for member in _members(rest)), limits, watched=watched)
