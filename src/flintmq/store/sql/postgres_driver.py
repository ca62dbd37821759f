"""PostgreSQL through psycopg 3: one connection, statements pipelined, one round trip and one flush of its WAL per transaction.

in: operations. out: durable changes.

I1  The connection holds a session-level advisory lock for its whole life: a second broker on the database is refused. When the
    connection is lost the lock may be lost too, so that is a StoreError (latched), never a silent reconnect.
I2  synchronous_commit is on for this session, whatever the server's default.
I3  A password is in no text.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from flintmq.errors import OperatorError, StoreError
from flintmq.store.sql.driver import TABLES, Location, Operation, Parameters
from flintmq.store.sql.failures import ConstraintFailure, NotSaved, unknown_outcome
from flintmq.store.sql.server_url import ServerUrl, server_url
from flintmq.store.sql.statements import for_psycopg

try:
    import psycopg
except ImportError:  # reported by PostgresDriver, which knows what the operator asked for
    psycopg = None  # type: ignore[assignment]

log = logging.getLogger("flintmq.store.sql")

# Any 63-bit number nobody else is likely to take; advisory locks are per database.
LOCK_KEY = 0x666C_696E_746D_71
# What a maintenance connection may be made to, to look for a database and create it.
_MAINTENANCE = ("postgres", "template1")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


class PostgresDriver:
    """See driver.Driver.

    Args: location: a server's URL; busy_ms: wait for another session's lock; connect_ms: wait for the server (milliseconds);
    create: make the catalog when it is missing.
    Raises: OperatorError: 69 unreachable, or another broker is there; 78 URL, driver, permission, encoding, standby.
    """

    def __init__(self, location: Location, busy_ms: int, connect_ms: int, *, create: bool = True) -> None:
        url = server_url(location)
        self._where = str(url)
        self.dialect = "postgresql"
        if psycopg is None:
            raise OperatorError(f"{self._where}: the PostgreSQL driver is missing, pip install 'flintmq[postgres]'")
        self._texts = for_psycopg()
        options = url.arguments()
        options.setdefault("connect_timeout", max(1, connect_ms // 1000))
        options.setdefault("application_name", "flintmq")
        # A server that vanished without a word must become an error, not a broker that hangs in a declare.
        options.setdefault("tcp_user_timeout", connect_ms)
        options.setdefault("keepalives_idle", max(1, connect_ms // 2000))
        options.setdefault("keepalives_interval", max(1, connect_ms // 6000))
        options.setdefault("keepalives_count", 3)
        self._connection = self._connect(options, url, may_create=create and location.catalog is not None)
        try:
            self._check_server(busy_ms)
        except BaseException:
            self._connection.close()
            raise

    def _connect(self, options: dict[str, Any], url: ServerUrl, may_create: bool) -> psycopg.Connection[Any]:
        try:
            return psycopg.connect(**options, autocommit=True)
        except psycopg.Error as error:
            # libpq tells why a connection failed only in words of the server's language, so a missing database is looked for.
            if not may_create or not self._make_catalog(options, url):
                raise OperatorError(f"cannot connect to {self._where}: {_line(error)}", 69) from error
        try:
            return psycopg.connect(**options, autocommit=True)
        except psycopg.Error as error:
            raise OperatorError(f"cannot connect to {self._where}: {_line(error)}", 69) from error

    def _make_catalog(self, options: dict[str, Any], url: ServerUrl) -> bool:
        """Creates the database. False when it is there, or nobody can tell. Raises: OperatorError when it may not be created."""
        for maintenance in _MAINTENANCE:
            try:
                connection = psycopg.connect(**{**options, "dbname": maintenance}, autocommit=True)
            except psycopg.Error:
                continue
            with contextlib.closing(connection):
                if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [url.database]).fetchone() is not None:
                    return False
                name = psycopg.sql.Identifier(str(url.database))
                try:
                    connection.execute(psycopg.sql.SQL("CREATE DATABASE {} ENCODING 'UTF8' TEMPLATE template0").format(name))
                except psycopg.errors.DuplicateDatabase:
                    return True
                except psycopg.Error as error:
                    raise OperatorError(
                        f"{self._where}: database {url.database!r} does not exist and can't be created ({_line(error)}): an administrator"
                        f" has to do it, with encoding UTF8 and {url.user or 'our user'} as owner"
                    ) from error
            log.info("created database %r", url.database)
            return True
        return False

    def _check_server(self, busy_ms: int) -> None:
        try:
            self._connection.execute("SELECT set_config('synchronous_commit', 'on', false)")
            self._connection.execute("SELECT set_config('lock_timeout', %s, false)", [str(busy_ms)])
            # Waits (lock_timeout): the server may end the session of a broker that has just stopped some time after its socket is closed.
            self._connection.execute("SELECT pg_advisory_lock(%s)", [LOCK_KEY])
            flushes, read_only = self._one("SELECT current_setting('fsync') = 'on', current_setting('transaction_read_only') = 'on'")
        except psycopg.errors.LockNotAvailable:
            raise OperatorError(
                f"{self._where} is in use by another broker: one database serves one broker, stop the other first", 69
            ) from None
        except psycopg.Error as error:
            raise OperatorError(f"{self._where}: {_line(error)}", 69) from error
        encoding = self._connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise OperatorError(f"{self._where} has encoding {encoding}: create the database with ENCODING 'UTF8'")
        if read_only:
            raise OperatorError(f"{self._where} is read only (a standby?): connect to the primary")
        if not flushes:
            log.warning("%s runs with fsync=off: it can lose definitions", self._where)

    def _one(self, text: str, *parameters: Any) -> tuple[Any, ...]:
        row: tuple[Any, ...] | None = self._connection.execute(text, parameters).fetchone()  # type: ignore[arg-type]
        return row or ()

    @property
    def where(self) -> str:
        return self._where

    def run(self, operations: Sequence[Operation]) -> None:
        connection = self._connection
        try:
            if len(operations) == 1:
                name, parameters = operations[0]
                connection.execute(self._texts[name], parameters)  # type: ignore[arg-type]
            else:
                self._run_many([(self._texts[name], parameters) for name, parameters in operations])
        except psycopg.Error as error:
            self._roll_back()
            raise self._failure(error) from error
        except (TypeError, ValueError, OverflowError, KeyError):  # a parameter or statement that psycopg refused: nothing was sent
            self._roll_back()
            raise
        except BaseException as error:  # a pipeline is one piece: where in it this came from can't be told
            self._roll_back()
            raise unknown_outcome(self._where, error) from error

    def _run_many(self, statements: Sequence[tuple[str, Parameters]]) -> None:
        # In a pipeline everything is sent before the first answer is awaited; leaving it waits for all of them.
        with self._connection.pipeline():
            self._connection.execute("BEGIN")
            for text, parameters in statements:
                self._connection.execute(text, parameters or None)  # type: ignore[arg-type]
            self._connection.execute("COMMIT")

    def rows(self, name: str, parameters: Parameters) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(self._texts[name], parameters).fetchall()  # type: ignore[arg-type]
        except psycopg.Error as error:
            raise self._failure(error) from error

    def pieces(self, name: str, parameters: Parameters) -> Iterator[list[tuple[Any, ...]]]:
        yield self.rows(name, parameters)  # the server has sent all of them by then

    def tables(self) -> Collection[str]:
        text = "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema() AND table_name = ANY(%s)"
        try:
            return [row[0] for row in self._connection.execute(text, [list(TABLES)])]
        except psycopg.Error as error:
            raise self._failure(error) from error

    def change_schema(self, texts: Sequence[str], operations: Sequence[Operation]) -> None:
        statements: list[tuple[str, Parameters]] = [(text, {}) for text in texts]
        statements += [(self._texts[name], parameters) for name, parameters in operations]
        try:
            self._run_many(statements)
        except psycopg.errors.InsufficientPrivilege as error:
            self._roll_back()
            raise OperatorError(
                f"{self._where}: no permission to create tables ({_line(error)}): make our user the database's owner"
            ) from error
        except psycopg.Error as error:
            self._roll_back()
            raise self._failure(error) from error

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._connection.close()

    def _roll_back(self) -> None:
        with contextlib.suppress(psycopg.Error):
            if self._connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                self._connection.execute("ROLLBACK")

    def _failure(self, error: psycopg.Error) -> Exception:
        """An answer with a SQLSTATE that leaves the session open says that the transaction was rolled back; anything else says nothing."""
        text = f"{self._where}: {_line(error)} ({error.sqlstate or 'connection'})"
        if self._connection.closed or self._connection.broken or error.sqlstate is None:
            return StoreError(text)
        if isinstance(error, psycopg.errors.IntegrityError):
            return ConstraintFailure(text, unknown_vhost=isinstance(error, psycopg.errors.ForeignKeyViolation))
        # Class 53: no resources (53100 disk full, 53200 memory); 55P03 lock_timeout, 40001/40P01 serialization, 57014 cancelled.
        if error.sqlstate.startswith("53") or error.sqlstate in ("55P03", "40001", "40P01", "57014"):
            return NotSaved(text)
        return StoreError(text)
