"""SQLite through the standard library: WAL, one fdatasync of the WAL per transaction (synchronous=FULL), foreign keys on.

in: operations. out: durable changes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from flintmq.errors import OperatorError, StoreError
from flintmq.store.sql.driver import Operation, Parameters
from flintmq.store.sql.failures import DISK_ERRORS, ConstraintFailure, NotSaved, unknown_outcome
from flintmq.store.sql.statements import STATEMENTS

log = logging.getLogger("flintmq.store.sql")

# Statements that are kept prepared: all of them.
_CACHED = 128
# rows that are read at a time where there may be very many: what a piece takes is used again for the next one
_PIECE_ROWS = 512
# Pragma -> what it must read back as. synchronous 2 = FULL: with NORMAL a power failure may undo the last commits.
_PRAGMAS = {"journal_mode": ("wal", "wal"), "synchronous": ("full", 2), "foreign_keys": ("on", 1), "fullfsync": ("on", 1)}


class SqliteDriver:
    """See driver.Driver.

    Args: path: the file; busy_ms: wait for another process's lock, milliseconds; create: make it (mode 0600) when it is missing;
    check_bytes_max: size up to which it is checked for damage.
    Raises: OperatorError when the file can't be opened or is no database; StoreError when it is damaged.
    """

    def __init__(self, path: Path, busy_ms: int, *, create: bool = True, check_bytes_max: int = 0) -> None:
        self.path = path
        self.dialect = "sqlite"
        self._texts = STATEMENTS
        try:
            # It holds password hashes. SQLite gives its WAL the mode of the database file.
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600))
            self._connection = sqlite3.connect(
                path, timeout=busy_ms / 1000, isolation_level=None, check_same_thread=False, cached_statements=_CACHED
            )
        except (OSError, sqlite3.Error) as error:
            if isinstance(error, OSError) and error.errno in DISK_ERRORS:
                raise StoreError(f"cannot open {path}: {error.strerror}") from error
            reason = error.strerror if isinstance(error, OSError) else error
            raise OperatorError(f"cannot open {path}: {reason}. Check --store-dir and its permissions.", 69) from error
        try:
            for name, (value, expected) in _PRAGMAS.items():
                self._connection.execute(f"PRAGMA {name}={value}").fetchall()
                if self._connection.execute(f"PRAGMA {name}").fetchone()[0] != expected:
                    raise OperatorError(f"{path}: this SQLite can't set {name}={value} (a network file system?)", 69)
            # A process that ended on a failed sync may leave frames in the WAL that are in the page cache but not on the disk; later
            # syncs would not write them again. Copied into the database file, they are.
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._check_damage(check_bytes_max)
        except sqlite3.Error as error:
            self._connection.close()
            raise self._at_opening(error) from error
        except (OperatorError, StoreError):
            self._connection.close()
            raise

    def _check_damage(self, bytes_max: int) -> None:
        """SQLite keeps no checksums; this finds broken structure, not a flipped bit in a text."""
        size = self.path.stat().st_size
        if size > bytes_max:
            log.info("%s is not checked for damage: %d bytes", self.path, size)
            return
        problems = [row[0] for row in self._connection.execute("PRAGMA quick_check(1)")]
        if problems != ["ok"]:
            raise StoreError(f"{self.path} is damaged: {' '.join(problems[0].split())}. Put a backup in its place.")

    @property
    def where(self) -> str:
        return str(self.path)

    def run(self, operations: Sequence[Operation]) -> None:
        execute = self._connection.execute
        texts = self._texts
        committing = False
        try:
            if len(operations) == 1:
                name, parameters = operations[0]
                text = texts[name]
                committing = True
                execute(text, parameters)
                return
            execute("BEGIN IMMEDIATE")
            for name, parameters in operations:
                execute(texts[name], parameters)
            committing = True
            execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            raise self._failure(error) from error
        except (TypeError, ValueError, OverflowError):  # a parameter that SQLite can't hold: the statement was not begun
            self._roll_back()
            raise
        except BaseException as error:
            self._roll_back()
            if committing:
                raise unknown_outcome(str(self.path), error) from error
            raise

    def rows(self, name: str, parameters: Parameters) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(self._texts[name], parameters).fetchall()
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def pieces(self, name: str, parameters: Parameters) -> Iterator[list[tuple[Any, ...]]]:
        try:
            cursor = self._connection.execute(self._texts[name], parameters)
            while piece := cursor.fetchmany(_PIECE_ROWS):
                yield piece
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def tables(self) -> Collection[str]:
        try:
            return [row[0] for row in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        except sqlite3.Error as error:
            raise self._at_opening(error) from error

    def change_schema(self, texts: Sequence[str], operations: Sequence[Operation]) -> None:
        execute = self._connection.execute
        try:
            # A table that is rebuilt is dropped, and that would cascade. References are checked before the commit instead.
            execute("PRAGMA foreign_keys=off")
            execute("BEGIN IMMEDIATE")
            for text in texts:
                execute(text)
            for name, parameters in operations:
                execute(self._texts[name], parameters)
            broken = execute("PRAGMA foreign_key_check").fetchall()
            if broken:
                raise OperatorError(f"migration refused: it would break {len(broken)} references, first {tuple(broken[0])}")
            execute("COMMIT")
            execute("PRAGMA foreign_keys=on")
        except sqlite3.Error as error:
            raise self._at_opening(error) from error
        finally:
            self._roll_back()

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def _roll_back(self) -> None:
        if self._connection.in_transaction:  # some errors, such as a full disk, have ended it already
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def _at_opening(self, error: sqlite3.Error) -> Exception:
        code = _primary(error)
        if code == sqlite3.SQLITE_NOTADB:
            return OperatorError(f"{self.path} is no SQLite database: is it the right file?")
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return OperatorError(f"{self.path} is locked by another process: is a broker running on this store?", 69)
        # The file itself was opened before: what can't be opened is its WAL, in a directory that may be written to or not.
        own = code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM) or (
            code == sqlite3.SQLITE_CANTOPEN and not os.access(self.path.parent, os.W_OK | os.X_OK)
        )
        if own:
            return OperatorError(f"cannot use {self.path}: {error}. Check the disk and the permissions of its directory.", 69)
        return self._failure(error)

    def _failure(self, error: sqlite3.Error) -> Exception:
        code = _primary(error)
        if code == sqlite3.SQLITE_CONSTRAINT:
            return ConstraintFailure(str(error), unknown_vhost=error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY)
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return NotSaved(f"{self.path}: {error} ({name})")
        return StoreError(f"{self.path}: {error} ({name})")


def _primary(error: sqlite3.Error) -> int:
    """The primary result code: the low byte of the extended one. 0 when SQLite did not give one."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF
