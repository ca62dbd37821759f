"""The driver port: one connection to one database, and how a database is found to be new, ours, older or newer.

in: operations (statement name, parameters). out: durable changes, rows; OperatorError at opening, errors of failures.py later.

I1  `run` is one transaction: all of its operations are durable when it returns. When it raises a StoreError other than NotSaved, nobody
    knows (the answer to a commit was lost, a sync failed); when it raises anything else, none of them is.
I2  A driver is used by one thread at a time (definitions.py holds a lock); any thread may be that one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from flintmq.errors import OperatorError
from flintmq.slotted import slotted

# Of the newest file in migrations. Four digits, so that text order is the order of time.
SCHEMA_VERSION = "0001"
# Of the log beside the database (docs/FORMAT.md); written into a new store.
STORE_FORMAT = 1
# Tables that a database of ours has; also names that must be free in a new one.
TABLES = ("store", "vhosts", "users", "permissions", "exchanges", "queues", "bindings", "policies", "parameters", "alembic_version")

Parameters = Mapping[str, Any]
Operation = tuple[str, Parameters]


@slotted(frozen=True)
class Location:
    """Where the database is. Either `path` (SQLite file) or `url` (of a server, with its password)."""

    path: Path | None = None
    url: str = ""
    catalog: str | None = None


class Driver(Protocol):
    """One open connection."""

    @property
    def where(self) -> str:
        """The database in texts: a path or a URL without password."""
        ...

    @property
    def dialect(self) -> str:
        """ "sqlite" or "postgresql": which files of migrations are its own."""
        ...

    def run(self, operations: Sequence[Operation]) -> None:
        """Does them in one transaction, durable on return. Raises: ConstraintFailure, NotSaved, StoreError."""
        ...

    def rows(self, name: str, parameters: Parameters) -> list[tuple[Any, ...]]:
        """All rows of a query. Raises: StoreError."""
        ...

    def pieces(self, name: str, parameters: Parameters) -> Iterator[list[tuple[Any, ...]]]:
        """The same, some at a time. Raises: StoreError."""
        ...

    def tables(self) -> Collection[str]:
        """Names of the tables that are there."""
        ...

    def change_schema(self, texts: Sequence[str], operations: Sequence[Operation]) -> None:
        """Statements that change tables, then operations, in one transaction. Raises: OperatorError, StoreError; nothing has changed."""
        ...

    def close(self) -> None: ...


class State(Enum):
    """What an opened database turned out to be."""

    NEW = "new"
    CURRENT = "current"
    OLDER = "older"


def check_state(driver: Driver) -> tuple[State, str]:
    """The state, and the schema version that was found ("" for NEW).

    Raises: OperatorError for a newer version and for a database that belongs to something else.
    """
    tables = set(driver.tables())
    ours = tables.intersection(TABLES)
    if not ours:
        return State.NEW, ""
    if not {"store", "alembic_version"} <= ours:
        names = ", ".join(sorted(ours))
        raise OperatorError(f"{driver.where} belongs to something else (it has tables {names}): give FlintMQ a database of its own")
    versions = [row[0] for row in driver.rows("version", {})]
    if len(versions) != 1 or not (len(versions[0]) == len(SCHEMA_VERSION) and versions[0].isdigit()):
        raise OperatorError(f"{driver.where} has no FlintMQ schema version but {versions!r}: give FlintMQ a database of its own")
    if versions[0] > SCHEMA_VERSION:
        raise OperatorError(
            f"{driver.where} has schema version {versions[0]}, this FlintMQ knows {SCHEMA_VERSION}: run the newer FlintMQ that wrote it"
        )
    return (State.CURRENT if versions[0] == SCHEMA_VERSION else State.OLDER), versions[0]
