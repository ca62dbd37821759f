"""The database that `--connect`, `--catalog` and `--store-dir` name, and its driver.

in: options. out: a Location, an open driver. OperatorError (78) for a URL that can't be used, in one line without its password.

| --connect             | --catalog                                                                    |
|-----------------------|------------------------------------------------------------------------------|
| not given             | name of the SQLite file in the store directory, without ".db" ("definitions") |
| sqlite:///PATH        | not allowed: the URL names the file                                          |
| postgresql://...      | name of the database; wins over the URL's                                    |
"""

from __future__ import annotations

from pathlib import Path

from flintmq.config import Limits
from flintmq.errors import OperatorError
from flintmq.store.sql.driver import Driver, Location

DEFAULT_CATALOG = "definitions"
_SQLITE = ("sqlite:", "sqlite+pysqlite:")


def locate(connect: str | None, catalog: str | None = None, store_dir: Path | None = None) -> Location:
    """Raises: OperatorError for a URL or name that can't be used, and without both `connect` and `store_dir`."""
    if not connect:
        if store_dir is None:
            raise OperatorError("no database: give --store-dir or --connect", 64)
        name = catalog or DEFAULT_CATALOG
        if name in (".", "..") or not name.isprintable() or "/" in name or "\\" in name:
            raise OperatorError(f"--catalog {name!r} can't be a file name in the store directory")
        return Location(path=store_dir / f"{name}.db")
    if connect.startswith(_SQLITE):
        return _sqlite_file(connect, catalog)
    if "://" not in connect:
        # Not shown: libpq's "host=... password=..." form ends up here.
        raise OperatorError("--connect is no URL: use sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/DATABASE")
    return Location(url=connect, catalog=catalog)


def _sqlite_file(connect: str, catalog: str | None) -> Location:
    scheme, _, rest = connect.partition("://")
    if not rest.startswith("/") or rest in ("/", "/:memory:"):
        raise OperatorError(f"--connect {connect}: definitions must be kept in a file, use {scheme}:///PATH")
    if "?" in rest:
        raise OperatorError(f"--connect {connect}: options after '?' are not taken, durability is set by FlintMQ")
    if catalog is not None:
        raise OperatorError(f"--catalog {catalog}: not with a SQLite URL, which names the file already")
    return Location(path=Path(rest[1:]))


def open_driver(location: Location, limits: Limits, *, create: bool = True) -> Driver:
    """Opens the database. Args: create: make the file or the catalog when it is missing. Raises: OperatorError."""
    if location.path is not None:
        from flintmq.store.sql.sqlite_driver import SqliteDriver

        return SqliteDriver(location.path, limits.sql_busy_ms, create=create, check_bytes_max=limits.sql_check_bytes_max)
    from flintmq.store.sql.postgres_driver import PostgresDriver

    return PostgresDriver(location, limits.sql_busy_ms, limits.sql_connect_ms, create=create)
