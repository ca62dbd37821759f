"""The embedded engine: one SQLite file in WAL mode, used by one process, durable (synchronous=FULL).

in: commits and reads of one event loop. out: commits that stand on the disk; what waits together is one SQLite transaction, so one sync.

S1  One thread writes: it judges the conditions of each commit of a group in turn, and tells the outcomes behind the sync. A second thread
    reads what is committed.
S2  A full disk leaves nothing of a group. After any other error the outcome of its group is not known, and the engine has failed for good:
    a page that the kernel dropped in a failed sync would look written to the next one.
S3  The file `PATH-lock` is locked while the engine is open. SQLite's own locks would let a second process write between two groups.
S4  Puts stop while the file system has less than `engine_sqlite_reserve_bytes` free, so that deletes find room for their log (E6).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

from flintmq.config import Limits
from flintmq.engines.engine import Commit, Engine, EngineError, EngineLimits, Full, Row, Unavailable, Unfit, UnknownOutcome, Usage, check
from flintmq.engines.feed import Feeds

T = TypeVar("T")

# "FLQr": application_id of the file; FORMAT is its user_version
_APPLICATION = 0x464C5172
FORMAT = 1
_SCHEMA = f"""
BEGIN;
CREATE TABLE rows (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {FORMAT};
COMMIT;
"""
# bytes of a page: a row of 100 KB is some six of them instead of 25
_PAGE = 16_384
# free pages that one call of tidy() gives back at most: some 16 MiB, a few tens of milliseconds between two groups
_TIDY_PAGES = 1_024
# busy_timeout, milliseconds: nobody else writes (S3), but a backup program may hold a lock for a moment
_BUSY_MS = 5_000
_FORWARD = "SELECT key, value FROM rows WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
_BACKWARD = "SELECT key, value FROM rows WHERE key >= ? AND key < ? ORDER BY key DESC LIMIT ?"


class _Waiting:
    """A commit in the line of the writing thread."""

    __slots__ = ("changed", "commit", "future", "outcome")

    def __init__(self, commit: Commit, future: asyncio.Future[bool]) -> None:
        self.commit = commit
        self.future = future
        self.changed: list[bytes] = []
        self.outcome: bool | EngineError = False


# of the writing thread's line: a commit, other work, or the end
_Item = _Waiting | Callable[[], None] | None


def _nothing() -> None:
    """Work that is none."""


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():  # its caller may be cancelled
        future.set_result(None)


class SqliteEngine:
    """Args: path: of the file, which is made (mode 0600; its directory 0700); limits: of the node."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.limits = EngineLimits(
            key_bytes=limits.engine_key_bytes_max,
            value_bytes=limits.engine_value_bytes_max,
            commit_bytes=limits.engine_commit_bytes_max,
            commit_rows=limits.engine_commit_rows_max,
            alone=True,
        )
        self.name = f"sqlite:{path}"
        self._path = path
        self._settings = limits
        self._feeds = Feeds(limits.engine_watch_keys_max)
        self._opened: asyncio.Future[None] | None = None
        self._failure: str | None = None  # set once (S2)
        self._is_closed = False
        self._waiting = 0
        self._line: SimpleQueue[_Item] = SimpleQueue()
        self._reads = ThreadPoolExecutor(1, "flintmq-rows-read")
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._thread: threading.Thread | None = None
        self._lock_file = -1

    # --- opening ------------------------------------------------------------------------------------------------------
    async def connect(self) -> None:
        if self._is_closed or self._failure is not None:
            raise Unavailable(self._failure or f"{self.name} is closed")
        if self._opened is None:
            self._opened = asyncio.ensure_future(self._on_reads(self._open))
        opened = self._opened
        try:
            await asyncio.shield(opened)
        except EngineError:
            if self._opened is opened:
                self._opened = None  # a later call tries again
            raise
        if self._is_closed:
            raise Unavailable(f"{self.name} is closed")
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._write, args=(loop,), name="flintmq-rows-write", daemon=True)
            self._thread.start()

    def _open(self) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take_lock()
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # before SQLite has locks on it, which a close ends
            self._writer = self._prepare()
            self._reader = self._connection()
            directory = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(directory)  # the file's name; SQLite syncs that of its log
            finally:
                os.close(directory)
        except (OSError, sqlite3.Error) as error:
            self._let_go()
            reason = error.strerror if isinstance(error, OSError) else error
            raise Unavailable(f"{self._path} can't be opened: {reason}") from error
        except EngineError:
            self._let_go()
            raise

    def _take_lock(self) -> None:
        self._lock_file = os.open(f"{self._path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unfit(
                f"{self._path} is open in another process, and SQLite serves one node. Stop that process, or take etcd or PostgreSQL"
            ) from None

    def _connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=_BUSY_MS / 1_000)
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    def _prepare(self) -> sqlite3.Connection:
        """The connection that writes, on a file of this form."""
        connection = self._connection()
        try:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            application, version = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
            if not tables:
                connection.execute(f"PRAGMA page_size={_PAGE}")
                connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
            elif tables == {"rows", "versions"} and application == 0:
                raise Unfit(
                    f"{self._path} holds shared queues in the form of earlier versions of FlintMQ. Drain them with that version and delete"
                    " the file, or name another one"
                )
            elif application != _APPLICATION:
                raise Unfit(f"{self._path} is another program's SQLite file. Name another one")
            elif version != FORMAT:
                raise Unfit(f"{self._path} has format {version}, and this version of FlintMQ reads format {FORMAT}")
            if connection.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
                raise Unfit(f"{self._path}: its file system gives no write-ahead log (shared memory is missing). Use a local one")
            if not tables:
                connection.executescript(_SCHEMA)
        except BaseException:
            connection.close()
            raise
        return connection

    def _let_go(self) -> None:
        """Closes what is open. The lock goes last."""
        for connection in (self._reader, self._writer):
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    connection.close()
        self._reader = self._writer = None
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1

    # --- commits ------------------------------------------------------------------------------------------------------
    async def commit(self, commit: Commit) -> bool:
        check(commit, self.limits)
        await self.connect()
        if self._waiting >= self._settings.engine_sqlite_waiting_max:
            raise Unavailable(f"{self._waiting} commits wait for {self.name}: the disk does not keep up")
        waiting = _Waiting(commit, asyncio.get_running_loop().create_future())
        self._waiting += 1
        self._line.put(waiting)
        return await waiting.future

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        """The writing thread, until None stands in the line."""
        item = self._line.get()
        while item is not None:
            group, item = self._group(item)
            if group:
                self._commit_group(group)
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                    loop.call_soon_threadsafe(self._answer, group)
            if item is not None:
                item()
                item = self._line.get()

    def _group(self, item: _Item) -> tuple[list[_Waiting], Callable[[], None] | None]:
        """The commits that wait, up to the size of a group; and the item behind them, if one was taken from the line."""
        group: list[_Waiting] = []
        size = 0
        while isinstance(item, _Waiting):
            group.append(item)
            size += sum(map(len, item.commit.puts.values()))
            try:
                item = self._line.get_nowait() if size < self._settings.engine_sqlite_group_bytes else _nothing
            except Empty:
                item = _nothing
        return group, item

    def _commit_group(self, group: list[_Waiting]) -> None:
        """Gives each of the group its outcome (S1, S2)."""
        writer = self._writer
        if self._failure is not None or writer is None:
            for one in group:
                one.outcome = Unavailable(self._failure or f"{self.name} is closed")
            return
        try:
            has_room = self._has_room()
            writer.execute("BEGIN IMMEDIATE")
            for one in group:
                one.outcome = self._apply(writer, one, has_room)
            writer.execute("COMMIT")
        except BaseException as error:  # a bug of ours, too: nobody may take it for success
            with contextlib.suppress(sqlite3.Error):
                writer.execute("ROLLBACK")
            is_full = isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            failure = f"{self.name} failed: {error}. Look at its disk, then start the node again"
            if not is_full:
                self._failure = failure
            for one in group:
                one.changed.clear()
                one.outcome = Full(f"{self.name}: {error}") if is_full else UnknownOutcome(failure)

    def _has_room(self) -> bool:
        system = os.statvfs(self._path)
        return system.f_bavail * system.f_frsize >= self._settings.engine_sqlite_reserve_bytes

    def _apply(self, writer: sqlite3.Connection, one: _Waiting, has_room: bool) -> bool | EngineError:
        commit = one.commit
        if commit.puts and not has_room:
            return Full(f"{self.name}: less than {self._settings.engine_sqlite_reserve_bytes >> 20} MiB of its disk are free")
        for key, value in commit.conditions:
            row = writer.execute("SELECT value FROM rows WHERE key = ?", (key,)).fetchone()
            if (None if row is None else row[0]) != value:
                return False
        for bounds in commit.clears:
            one.changed += [key for (key,) in writer.execute("DELETE FROM rows WHERE key >= ? AND key < ? RETURNING key", bounds)]
        if commit.deletes:
            writer.executemany("DELETE FROM rows WHERE key = ?", [(key,) for key in commit.deletes])
        if commit.puts:
            writer.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", commit.puts.items())
        one.changed += [*commit.puts, *commit.deletes]
        return True

    def _answer(self, group: list[_Waiting]) -> None:
        """On the loop: tells the outcomes, and the watches."""
        for one in group:
            self._waiting -= 1
            if one.outcome is True:
                self._feeds.tell(one.changed)
            if one.future.done():
                continue  # its caller was cancelled
            if isinstance(one.outcome, EngineError):
                one.future.set_exception(one.outcome)
            else:
                one.future.set_result(one.outcome)

    # --- reads --------------------------------------------------------------------------------------------------------
    async def _on_reads(self, function: Callable[[], T]) -> T:
        """Runs it on the reading thread."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reads, function)
        except RuntimeError as error:
            raise Unavailable(f"{self.name} is closed") from error
        except sqlite3.Error as error:
            raise Unavailable(f"{self.name}: {error}") from error

    def _the_reader(self) -> sqlite3.Connection:
        if self._reader is None or self._failure is not None:
            raise Unavailable(self._failure or f"{self.name} is closed")
        return self._reader

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        def read() -> list[bytes | None]:
            reader = self._the_reader()
            values: list[bytes | None] = []
            reader.execute("BEGIN")  # one snapshot for all of them
            try:
                for key in keys:
                    row = reader.execute("SELECT value FROM rows WHERE key = ?", (key,)).fetchone()
                    values.append(None if row is None else row[0])
            finally:
                reader.execute("COMMIT")
            return values

        await self.connect()
        return await self._on_reads(read)

    async def scan(self, begin: bytes, end: bytes, rows: int, size: int, reverse: bool = False) -> list[Row]:
        def read() -> list[Row]:
            page: list[Row] = []
            room = size
            cursor = self._the_reader().execute(_BACKWARD if reverse else _FORWARD, (begin, end, rows))
            with contextlib.closing(cursor):  # else its snapshot stays, and the log can't be used again
                for key, value in cursor:
                    page.append((key, value))
                    room -= len(key) + len(value)
                    if room <= 0:
                        break
            return page

        await self.connect()
        return await self._on_reads(read)

    def watch(self, begin: bytes, end: bytes) -> AsyncGenerator[frozenset[bytes] | None, None]:
        return self._feeds.watch(begin, end)

    # --- room ---------------------------------------------------------------------------------------------------------
    async def usage(self) -> Usage:
        def read() -> Usage:
            self._the_reader()
            size = 0
            for suffix in ("", "-wal"):
                with contextlib.suppress(FileNotFoundError):
                    size += os.stat(f"{self._path}{suffix}").st_size
            return Usage(size, 0, full=not self._has_room())

        await self.connect()
        return await self._on_reads(read)

    async def tidy(self) -> None:
        """Gives free pages back to the file system while they are more than half of the file."""
        await self.connect()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def give_back() -> None:
            try:
                self._give_back()
            except sqlite3.Error as error:
                self._failure = f"{self.name} failed: {error}. Look at its disk, then start the node again"
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, done)

        self._line.put(give_back)
        await done

    def _give_back(self) -> None:
        """On the writing thread."""
        writer = self._writer
        if writer is None or self._failure is not None:
            return
        free, pages = (writer.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_count"))
        if free > pages // 2:
            writer.executescript(f"PRAGMA incremental_vacuum({_TIDY_PAGES})")  # execute() would end it at the first page

    # --- end ----------------------------------------------------------------------------------------------------------
    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._opened is not None:
            with contextlib.suppress(EngineError):
                await asyncio.shield(self._opened)
        loop = asyncio.get_running_loop()
        self._line.put(None)
        if self._thread is not None:
            await loop.run_in_executor(None, self._thread.join)
        await loop.run_in_executor(self._reads, self._let_go)
        self._reads.shutdown(wait=False)


def open_url(url: str, limits: Limits, prefix: bytes) -> Engine:
    """`sqlite:PATH`. The file is the engine's own, so keys have no prefix. Raises: ValueError: no path."""
    path = url.removeprefix("sqlite:")
    if not path or path.startswith(":"):
        raise ValueError(f"{url!r}: an engine in SQLite is a file: sqlite:PATH")
    return SqliteEngine(Path(path), limits)
