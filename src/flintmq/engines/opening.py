"""Engines by their URLs.

in: the URL of an engine, or `file:PATH` of a file whose text is one, so that a password stands in no command line. out: an engine that is
not connected yet, or the reason why there is none. No text has a password.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flintmq.config import Limits
from flintmq.engines.engine import Engine
from flintmq.engines.urls import shown

# bytes of a file with a URL; what is behind them is not read
_FILE_BYTES_MAX = 4_096
# keys of every engine that several programs may share begin with it unless the caller says otherwise
PREFIX = b"flintmq/"


@dataclass(frozen=True, slots=True)
class _Kind:
    """form: of a URL, for people; module and function (url, limits, prefix) -> Engine; package, extra: what its import needs."""

    form: str
    module: str
    function: str = "open_url"
    package: str = ""
    extra: str = ""


_KINDS = {
    "memory": _Kind("memory:", "memory"),
    "sqlite": _Kind("sqlite:PATH", "sqlite"),
    "etcd": _Kind("etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT]", "etcd.engine", package="grpc", extra="etcd"),
    "etcds": _Kind("etcds://... (TLS; ?ca=FILE&cert=FILE&key=FILE)", "etcd.engine", package="grpc", extra="etcd"),
    "postgresql": _Kind("postgresql://[USER:PASSWORD@]HOST[:PORT]/DATABASE", "postgres", package="psycopg", extra="postgres"),
    "postgres": _Kind("", "postgres", package="psycopg", extra="postgres"),
    "fdb": _Kind("fdb:PATH of a cluster file", "fdb", package="fdb", extra="fdb"),
}


def engine_url(named: str) -> str:
    """The URL itself, or the one in the file that it names. Raises: ValueError: the file can't be read."""
    if not named.startswith("file:"):
        return named
    try:
        with Path(named.removeprefix("file:")).open("rb") as file:
            return file.read(_FILE_BYTES_MAX).decode("utf-8", "replace").strip()
    except OSError as error:
        raise ValueError(f"{named}: {error.strerror}") from error


def open_engine(named: str, limits: Limits, prefix: bytes = PREFIX) -> Engine:
    """An engine, not connected yet.

    Args: named: its URL, or file:PATH; limits: of the node; prefix: what all its keys begin with in a store that others may use, too.
    Raises: ValueError: no such URL; the file can't be read; a package is missing. The text says what to do.
    Cost: it imports the engine's client library, once some 0.3 s; not for an event loop that serves others.
    """
    url = engine_url(named)
    kind = _KINDS.get(url.partition(":")[0])
    if kind is None:
        forms = ", ".join(kind.form for kind in _KINDS.values() if kind.form)
        raise ValueError(f"{shown(url)!r} names no engine. An engine is one of: {forms}; or file:PATH of a file with such a URL")
    try:
        module: Any = importlib.import_module(f"flintmq.engines.{kind.module}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != kind.package:
            raise
        raise ValueError(f"{shown(url)} needs the package {kind.package}: pip install 'flintmq[{kind.extra}]'") from error
    engine: Engine = getattr(module, kind.function)(url, limits, prefix)
    return engine
