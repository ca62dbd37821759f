"""The embedded engine: one SQLite file in WAL mode, used by one process, durable (synchronous=FULL). ADR 12 has the reasons.

in: transactions of any thread. out: rows; commits of several threads in one SQLite transaction, so in one sync.

S1  Reads of a transaction come from one SQLite snapshot; commits pass one writer, where the resolver judges declared reads.
S2  A commit that SQLite did not take leaves nothing. One whose outcome SQLite does not tell (an I/O error) makes the engine fail for good:
    a failed sync is never tried again.
S3  Versions go on over a restart: they are a row of the file, written with each commit.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from flintmq.config import Limits
from flintmq.kv.engine import STAMP_BYTES, EngineError, EngineLimits, TooOld, Unavailable, UnknownOutcome
from flintmq.kv.resolver import Resolver
from flintmq.kv.watches import KeyWatch, Watches
from flintmq.kv.writes import Request, Rows, Writes

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS versions (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO versions VALUES ('format', 1), ('commit', 0);
"""
FORMAT = 1
# rows that a snapshot fetches at once when a range is merged with a transaction's own writes
_FORWARD = "SELECT key, value FROM rows WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
_BACKWARD = "SELECT key, value FROM rows WHERE key >= ? AND key < ? ORDER BY key DESC LIMIT ?"


class _Waiting:
    """A transaction in the line of those that are to be committed."""

    __slots__ = ("done", "error", "request", "version")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.done = False
        self.error: EngineError | None = None
        self.version = 0


class SqliteEngine:
    """Args: path: of the file, which is made; limits: of the node. Raises: Unavailable when it can't be opened."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.limits = EngineLimits(
            key_bytes=limits.kv_key_bytes_max,
            value_bytes=limits.kv_value_bytes_max,
            transaction_bytes=limits.kv_transaction_bytes_max,
            transaction_writes=limits.kv_transaction_writes_max,
            transaction_ms=limits.kv_transaction_ms_max,
            exclusive=True,
        )
        self.name = f"sqlite:{path}"
        self._path = path
        self._resolver = Resolver(limits.kv_resolver_writes)
        self._watches = Watches()
        self._failure: str | None = None
        self._closed = False
        self._readers: list[sqlite3.Connection] = []  # idle ones
        self._lock = threading.Lock()  # of the line, the idle readers and `_closed`
        self._line: list[_Waiting] = []
        self._writing = threading.Lock()  # of the writer's connection, the resolver and `_version`
        try:
            self._writer = self._connect()
            self._writer.executescript(_SCHEMA)
            versions = dict(self._writer.execute("SELECT name, value FROM versions").fetchall())
        except sqlite3.Error as error:
            raise Unavailable(f"{path} can't be opened as the store of shared queues: {error}") from error
        if versions["format"] != FORMAT:
            raise Unavailable(f"{path} has format {versions['format']}, and this version reads format {FORMAT}")
        self._version = int(versions["commit"])

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=30)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    # --- transactions -----------------------------------------------------------------------------------------------

    def begin(self) -> SqliteTransaction:
        if self._failure is not None or self._closed:
            raise Unavailable(self._failure or "the store of shared queues is closed")
        return SqliteTransaction(self)

    def take_reader(self) -> sqlite3.Connection:
        """A connection with no transaction; `give_reader` takes it back."""
        with self._lock:
            if self._closed:
                raise Unavailable("the store of shared queues is closed")
            if self._readers:
                return self._readers.pop()
        try:
            return self._connect()
        except sqlite3.Error as error:
            raise Unavailable(f"{self.name}: {error}") from error

    def give_reader(self, reader: sqlite3.Connection) -> None:
        with self._lock:
            if not self._closed:
                self._readers.append(reader)
                return
        reader.close()

    def decide(self, request: Request, watches: list[KeyWatch]) -> int:
        """Commits. The holder of the writer commits for all waiting threads: one sync for all of them."""
        if request.is_empty:
            self._begin_watches(request.read_version, watches)
            return 0
        mine = _Waiting(request)
        with self._lock:
            self._line.append(mine)
        due: list[_Waiting] = []
        with self._writing:
            if not mine.done:
                with self._lock:
                    due, self._line = self._line, []
                self._commit_all(due)
        for one in due:
            if one.error is None:
                keys = [*one.request.writes, *(key for key, _ in one.request.keys_of(_stamp(one.version)))]
                self._watches.tell(keys, one.request.cleared)
        if mine.error is not None:
            raise mine.error
        self._begin_watches(request.read_version, watches)
        return mine.version

    def _begin_watches(self, version: int, watches: list[KeyWatch]) -> None:
        if not watches:
            return
        late: list[KeyWatch] = []
        with self._writing:
            for watch in watches:
                if self._resolver.changed_since(watch.key, version):
                    late.append(watch)
                else:
                    self._watches.add(watch)
        for watch in late:
            watch.on_change()

    def _commit_all(self, due: list[_Waiting]) -> None:
        """Under `_writing`. Each of them is done afterwards."""
        if self._failure is not None or self._closed:
            for one in due:
                one.error, one.done = Unavailable(self._failure or "the store of shared queues is closed"), True
            return
        taken: list[_Waiting] = []
        before = self._version
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for one in due:
                self._take(one, taken)
            self._writer.execute("UPDATE versions SET value = ? WHERE name = 'commit'", (self._version,))
            self._writer.execute("COMMIT")
        except sqlite3.Error as error:
            self._not_committed(taken, due, error)
            self._version = before
            self._resolver.forget_all(before)
        except BaseException as error:  # a bug of ours: those who wait must not take it for success
            self._failure = f"{self.name} failed: {error!r}"
            with contextlib.suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")
            for one in due:
                one.error = UnknownOutcome(self._failure)
            raise
        finally:
            for one in due:
                one.done = True

    def _take(self, one: _Waiting, taken: list[_Waiting]) -> None:
        request = one.request
        try:
            self._resolver.check(request)
        except EngineError as error:
            one.error = error
            return
        self._version += 1
        one.version = self._version
        stamped = request.keys_of(_stamp(one.version))
        taken.append(one)
        if request.cleared:
            self._writer.executemany("DELETE FROM rows WHERE key >= ? AND key < ?", request.cleared)
        gone = [(key,) for key, value in request.writes.items() if value is None]
        rows = [(key, value) for key, value in request.writes.items() if value is not None]
        if gone:
            self._writer.executemany("DELETE FROM rows WHERE key = ?", gone)
        self._writer.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", rows + stamped)
        self._resolver.note(one.version, [*request.writes, *(key for key, _ in stamped)], request.cleared)

    def _not_committed(self, taken: list[_Waiting], due: list[_Waiting], error: sqlite3.Error) -> None:
        """SQLite refused, or failed. A full disk leaves nothing; of anything else it is not known."""
        with contextlib.suppress(sqlite3.Error):
            self._writer.execute("ROLLBACK")
        full = error.sqlite_errorcode in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY) if hasattr(error, "sqlite_errorcode") else False
        if not full:
            self._failure = f"{self.name} failed: {error}"
        for one in due:
            if one.error is None:
                text = f"{self.name}: {error}"
                one.error = Unavailable(text) if full or one not in taken else UnknownOutcome(text)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            readers, self._readers = self._readers, []
        for reader in readers:
            reader.close()
        with self._writing:
            self._writer.close()


def _stamp(version: int) -> bytes:
    return version.to_bytes(STAMP_BYTES, "big")


class SqliteTransaction:
    """See engine.Transaction."""

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine
        self._writes = Writes(engine.limits)
        self._reader: sqlite3.Connection | None = None
        self._watches: list[KeyWatch] = []
        self._began_ns = 0
        self._over = False

    def _snapshot(self) -> sqlite3.Connection:
        if self._over:
            raise RuntimeError("the transaction is over")
        if self._reader is None:
            reader = self._engine.take_reader()
            try:
                reader.execute("BEGIN")
                ((version,),) = reader.execute("SELECT value FROM versions WHERE name = 'commit'").fetchall()
            except sqlite3.Error as error:
                reader.close()
                raise Unavailable(f"{self._engine.name}: {error}") from error
            self._reader = reader
            self._writes.request.read_version = version
            self._began_ns = time.monotonic_ns()
        return self._reader

    def _run(self, text: str, arguments: tuple[object, ...]) -> Rows:
        try:
            return self._snapshot().execute(text, arguments).fetchall()
        except sqlite3.Error as error:
            raise Unavailable(f"{self._engine.name}: {error}") from error

    def get(self, key: bytes, snapshot: bool = False) -> bytes | None:
        if not snapshot:
            self._snapshot()
            self._writes.request.points.add(key)
        decided, value = self._writes.own(key)
        if decided:
            return value
        row = self._run("SELECT value FROM rows WHERE key = ?", (key,))
        return row[0][0] if row else None  # type: ignore[return-value]

    def range(self, begin: bytes, end: bytes, limit: int, reverse: bool = False, snapshot: bool = False) -> Rows:
        rows = self._writes.merge(self._fetch, begin, end, limit, reverse)
        if not snapshot:
            self._writes.declare_range(begin, end, rows, limit, reverse)
        return rows

    def _fetch(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> Rows:
        return self._run(_BACKWARD if reverse else _FORWARD, (begin, end, limit))

    def set(self, key: bytes, value: bytes) -> None:
        self._writes.set(key, value)

    def clear(self, key: bytes) -> None:
        self._writes.clear(key)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self._writes.clear_range(begin, end)

    def require(self, key: bytes) -> None:
        self._snapshot()
        self._writes.request.points.add(key)

    def require_range(self, begin: bytes, end: bytes) -> None:
        self._snapshot()
        self._writes.request.ranges.append((begin, end))

    def set_stamped(self, prefix: bytes, suffix: bytes, value: bytes) -> None:
        self._writes.set_stamped(prefix, suffix, value)

    def watch(self, key: bytes, on_change: Callable[[], None]) -> KeyWatch:
        self._snapshot()
        watch = KeyWatch(self._engine._watches, key, on_change)
        self._watches.append(watch)
        return watch

    def commit(self) -> int:
        if self._over:
            raise RuntimeError("the transaction is over")
        age_ms = (time.monotonic_ns() - self._began_ns) // 1_000_000 if self._began_ns else 0
        watches = self._watches
        self.close()
        if age_ms > self._engine.limits.transaction_ms:
            raise TooOld(f"the transaction was open for {age_ms} ms")
        return self._engine.decide(self._writes.request, watches)

    def close(self) -> None:
        self._over = True
        reader, self._reader = self._reader, None
        if reader is None:
            return
        try:
            reader.execute("ROLLBACK")
        except sqlite3.Error:
            reader.close()
            return
        self._engine.give_reader(reader)
