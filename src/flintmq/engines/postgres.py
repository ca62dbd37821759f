"""The PostgreSQL engine: one table of rows, and a function on the server that is a whole commit, so that a commit is one round trip.

in: commits and reads of one event loop. out: rows of a schema of a database, as durable as the server is set up to be.

P1  A commit first takes locks, in one order: the gate, then one lock for each key, by its hash. A key that is written takes its lock
    alone, one that is only compared shares it. Commits with `clears`, or with more than `_LOCKS` keys, take the gate alone, and all others
    share it. So two commits of which one writes what the other reads or writes follow each other, and there is no deadlock.
P2  The locks end with the transaction, behind the moment from which others see it (and behind its sync, and that of the standbys). The
    isolation is READ COMMITTED: each statement of the function reads what is committed when it begins, so behind the locks. P1 and P2
    together are strict two-phase locking: commits are strictly serializable (E2), also against a row that is not there yet. The row of
    an owner, which all commits of a node compare, is shared by them, and not written: commits in flight do not wait for each other.
P3  The server's answer ERROR: it rolled back, nothing happened. Anything else that is no result is an unknown outcome. So is a result
    with a warning: the server gave up its wait for a standby, and has committed alone.
P4  NOTIFY makes transactions wait for each other's sync. So a watch writes its range to the table `watches` (alone at the gate), and a
    commit notifies of keys in such ranges only. Ranges stay: there are as many as different ones were ever watched.
P5  No call of psycopg is cancelled: it would wait for the server. A call that takes too long has its socket shut down.

Rights: the first connection makes the schema (CREATE on the database; or an operator made the schema and granted USAGE and CREATE on it).
Later ones need USAGE on the schema, and SELECT, INSERT, UPDATE, DELETE on its tables. `tidy` does nothing but for the table's owner.
Room: rows of 100 KB that come and go leave dead parts in the TOAST table. They are stored as they are (EXTERNAL: no cpu for compression),
autovacuum starts by number, not by share, without pauses, and does not cut the file (that would lock readers out); `tidy` is a VACUUM.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import socket
import zlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import conninfo

from flintmq.config import Limits
from flintmq.engines.engine import Commit, EngineError, EngineLimits, Full, Row, Unavailable, Unfit, UnknownOutcome, Usage, check
from flintmq.engines.feed import Feed

T = TypeVar("T")
Connection = psycopg.AsyncConnection[tuple[Any, ...]]

SCHEMA = "flintmq_shared"
FORMAT = 1
_SCHEMA_FORM = re.compile(r"[a-z_][a-z0-9_]{0,39}")
# locks of keys of one commit at most: the server has room for some 64 in each connection (max_locks_per_transaction)
_LOCKS = 32
# keys that one commit names to watches; for more it says that anything may have changed
_TOLD = 100
# tries of a commit that the server rolled back because of others: deadlocks with other programs' locks
_TRIES = 10
_DISK_FULL, _ROLLED_BACK = "53100", ("40001", "40P01")
# of the session: no plan but that by the key's index, whatever the statistics say
_SETTINGS = {"enable_seqscan": "off", "enable_bitmapscan": "off", "jit": "off", "plan_cache_mode": "force_generic_plan"}

_MAKE = """
SELECT pg_advisory_xact_lock(hashtext('{schema}'), 0);
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.rows (key bytea PRIMARY KEY, value bytea NOT NULL) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 20000, toast.autovacuum_vacuum_cost_delay = 0,
    toast.vacuum_truncate = false);
ALTER TABLE {schema}.rows ALTER COLUMN value SET STORAGE EXTERNAL;
CREATE TABLE IF NOT EXISTS {schema}.watches (low bytea, high bytea, PRIMARY KEY (low, high));
CREATE OR REPLACE FUNCTION {schema}.commit_{format}(alone boolean, locks int[], alones boolean[], keys bytea[], vals bytea[],
    put_keys bytea[], put_vals bytea[], gone bytea[], lows bytea[], highs bytea[]) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    space CONSTANT int := hashtext('{schema}');
    seen bytea;
    cleared bytea[];
    changed bytea[] := put_keys || gone;
BEGIN
    IF alone THEN
        PERFORM pg_advisory_xact_lock(space, 0);
    ELSE
        PERFORM pg_advisory_xact_lock_shared(space, 0);
        FOR i IN 1 .. cardinality(locks) LOOP
            IF alones[i] THEN
                PERFORM pg_advisory_xact_lock(space, locks[i]);
            ELSE
                PERFORM pg_advisory_xact_lock_shared(space, locks[i]);
            END IF;
        END LOOP;
    END IF;
    FOR i IN 1 .. cardinality(keys) LOOP
        seen := (SELECT value FROM {schema}.rows WHERE key = keys[i]);
        IF seen IS DISTINCT FROM vals[i] THEN
            RETURN false;
        END IF;
    END LOOP;
    FOR i IN 1 .. cardinality(lows) LOOP
        WITH cut AS (DELETE FROM {schema}.rows WHERE key >= lows[i] AND key < highs[i] RETURNING key)
        SELECT array_agg(key) INTO cleared FROM cut;
        changed := changed || coalesce(cleared, '{{}}');
    END LOOP;
    FOR i IN 1 .. cardinality(gone) LOOP
        DELETE FROM {schema}.rows WHERE key = gone[i];
    END LOOP;
    FOR i IN 1 .. cardinality(put_keys) LOOP
        INSERT INTO {schema}.rows VALUES (put_keys[i], put_vals[i]) ON CONFLICT (key) DO UPDATE SET value = excluded.value;
    END LOOP;
    IF cardinality(changed) > {told} THEN
        PERFORM pg_notify('{schema}', '') WHERE EXISTS (SELECT FROM {schema}.watches);
    ELSE
        PERFORM pg_notify('{schema}', encode(one, 'hex')) FROM unnest(changed) AS one
            WHERE EXISTS (SELECT FROM {schema}.watches WHERE low <= one AND one < high);
    END IF;
    RETURN true;
END $$
"""
_WATCH = """
DO $$ BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('{schema}'), 0);
    INSERT INTO {schema}.watches VALUES (decode('{low}', 'hex'), decode('{high}', 'hex')) ON CONFLICT DO NOTHING;
END $$
"""
_STATE = """
SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean, current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names'), current_setting('fsync'), current_setting('full_page_writes'),
    EXISTS (SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = %s AND p.proname = %s), {settings}
"""


def _number(key: bytes) -> int:
    """The lock of a key: any number of 32 bits but 0, the gate's. Every node has to know it by the same rule."""
    return zlib.crc32(key) - (1 << 31) or 1


def _locks(commit: Commit) -> tuple[bool, list[int], list[bool]]:
    """Whether the gate is taken alone; else the locks in their order, and whether each is (P1)."""
    alone = {_number(key): False for key, _ in commit.conditions}
    alone |= {_number(key): True for key in (*commit.puts, *commit.deletes)}
    if commit.clears or len(alone) > _LOCKS:
        return True, [], []
    numbers = sorted(alone)
    return False, numbers, [alone[number] for number in numbers]


def _has_news(connection: Connection) -> bool:
    """An idle connection on which the server said something: most likely its end."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _cut(connection: Connection) -> None:
    """Calls that wait for this connection end with an error at once (P5)."""
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as copy:
        copy.shutdown(socket.SHUT_RDWR)


class PostgresEngine:
    """Args: url: of libpq, without the engine's own parameters; name: for people; schema: of the rows; allow_async: a server that
    confirms what it may lose is accepted; limits: of the node."""

    def __init__(self, url: str, name: str, schema: str, allow_async: bool, limits: Limits) -> None:
        self.limits = EngineLimits(
            key_bytes=limits.engine_key_bytes_max,
            value_bytes=limits.engine_value_bytes_max,
            commit_bytes=limits.engine_commit_bytes_max,
            commit_rows=limits.engine_postgres_commit_rows_max,
        )
        self.name = name
        self._schema = schema
        self._allow_async = allow_async
        self._settings = limits
        self._timeout = limits.engine_postgres_request_ms / 1_000
        # earlier than the time of the whole call: the server's own answer says that nothing happened
        self._statement_timeout = str(limits.engine_postgres_request_ms * 4 // 5)
        seconds = str(max(2, limits.engine_postgres_request_ms // 1_000))
        given: dict[str, Any] = {"target_session_attrs": "read-write", "connect_timeout": seconds, "application_name": "flintmq"}
        self._parameters = given | conninfo.conninfo_to_dict(url)
        self._slots = asyncio.Semaphore(limits.engine_postgres_connections)
        self._idle: list[Connection] = []
        self._used: set[Connection] = set()
        self._warned: set[Connection] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._feeds: list[Feed] = []
        self._listener: asyncio.Task[None] | None = None
        self._wire: Connection | None = None  # of the listener
        self._is_closed = False

    # --- connections --------------------------------------------------------------------------------------------------
    async def connect(self) -> None:
        async def look(connection: Connection) -> None:
            await connection.execute("SELECT 1")

        await self._run(look)

    async def _open(self) -> Connection:
        """A connection that was looked at. Raises: Unavailable, Unfit."""
        try:
            connection: Connection = await psycopg.AsyncConnection.connect(autocommit=True, **self._parameters)  # bounds itself
        except psycopg.Error as error:
            raise Unavailable(f"{self.name} can't be reached: {' '.join(str(error).split())}") from error
        try:
            await self._bounded(connection, self._look(connection), self._timeout)
        except psycopg.Error as error:
            await connection.close()
            raise Unavailable(f"{self.name}: {' '.join(str(error).split())}") from error
        except BaseException:
            _cut(connection)
            await connection.close()
            raise
        connection.add_notice_handler(lambda notice: self._note(connection, notice))
        return connection

    def _note(self, connection: Connection, notice: Any) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warned.add(connection)

    async def _look(self, connection: Connection) -> None:
        values = _SETTINGS | {"statement_timeout": self._statement_timeout}
        settings = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in values.items())
        function = f"commit_{FORMAT}"
        cursor = await connection.execute(_STATE.format(settings=settings).encode(), (self._schema, function))
        row = await cursor.fetchone()
        assert row is not None
        is_reading, synchronous, standbys, fsync, pages, is_made = row[:6]
        if is_reading:
            raise Unavailable(
                f"{self.name} takes no writes: it is a standby, or read-only. Connect to the primary, or name all hosts in the URL"
            )
        if not self._allow_async:
            for name, value in (("fsync", fsync), ("full_page_writes", pages)):
                if value != "on":
                    raise Unfit(
                        f"{self.name}: {name} is {value}, so a crash loses what was confirmed. Set {name} = on, or say ?allow_async=1"
                    )
            if synchronous == "off" or (standbys and synchronous in ("local", "remote_write")):
                raise Unfit(
                    f"{self.name}: synchronous_commit is {synchronous}, so a {'failover' if standbys else 'crash'} loses what it confirmed."
                    " Set it to on for this role (ALTER ROLE ... SET synchronous_commit = on), or say ?allow_async=1"
                )
        if not is_made:
            await connection.execute(_MAKE.format(schema=self._schema, format=FORMAT, told=_TOLD).encode())

    async def _run(self, work: Callable[[Connection], Coroutine[Any, Any, T]], timeout: float | None = None, is_commit: bool = False) -> T:
        """Does work on a connection of the pool. A caller that is cancelled leaves it to end. Raises: Unavailable, Full, UnknownOutcome."""
        if self._is_closed:
            raise Unavailable(f"{self.name} is closed")
        return await asyncio.shield(self._task(self._on_connection(work, timeout or self._timeout, is_commit)))

    def _task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # its caller may be gone
        return task

    async def _on_connection(self, work: Callable[[Connection], Coroutine[Any, Any, T]], timeout: float, is_commit: bool) -> T:
        try:
            async with asyncio.timeout(self._timeout):
                await self._slots.acquire()
        except TimeoutError:
            raise Unavailable(f"{self.name}: all {self._settings.engine_postgres_connections} connections are busy") from None
        try:
            connection = await self._take()
            try:
                return await self._bounded(connection, work(connection), timeout)
            except psycopg.Error as error:
                raise self._error(error, is_commit) from error
            finally:
                self._used.discard(connection)
                if connection.closed or connection.broken or self._is_closed or connection in self._warned:
                    self._warned.discard(connection)
                    await connection.close()
                else:
                    self._idle.append(connection)
        finally:
            self._slots.release()

    async def _take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not (connection.closed or _has_news(connection)):
                self._used.add(connection)
                return connection
            await connection.close()
        connection = await self._open()
        self._used.add(connection)
        if self._is_closed:
            _cut(connection)
        return connection

    async def _bounded(self, connection: Connection, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """Waits for a call so long, then cuts its connection. Whoever is cancelled meanwhile has to cut it, too (P5)."""
        task = self._task(work)
        done, _ = await asyncio.wait({task}, timeout=timeout)
        if not done:
            _cut(connection)
        return await task

    def _error(self, error: psycopg.Error, is_commit: bool) -> EngineError:
        text = f"{self.name}: {' '.join(str(error).split()) or type(error).__name__}"
        if is_commit and error.diag.severity_nonlocalized != "ERROR":  # P3, whatever the reason: a disk that is full may end the server
            return UnknownOutcome(text)
        return Full(text) if is_commit and error.sqlstate == _DISK_FULL else Unavailable(text)

    # --- the port -----------------------------------------------------------------------------------------------------
    async def commit(self, commit: Commit) -> bool:
        check(commit, self.limits)
        alone, numbers, alones = _locks(commit)
        keys, values = [key for key, _ in commit.conditions], [value for _, value in commit.conditions]
        lows, highs = [low for low, _ in commit.clears], [high for _, high in commit.clears]
        arguments = (alone, numbers, alones, keys, values, list(commit.puts), list(commit.puts.values()), list(commit.deletes), lows, highs)
        statement = f"SELECT {self._schema}.commit_{FORMAT}(%b::boolean, %b::int[], %b::boolean[]{', %b::bytea[]' * 7})".encode()

        async def send(connection: Connection) -> bool:
            for number in range(_TRIES):
                try:
                    row = await (await connection.execute(statement, arguments)).fetchone()
                    break
                except psycopg.Error as error:
                    if error.sqlstate not in _ROLLED_BACK or number == _TRIES - 1:
                        raise
            if connection in self._warned:  # P3
                raise UnknownOutcome(f"{self.name}: the server did not wait for its standby")
            return bool(row and row[0])

        return await self._run(send, is_commit=True)

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        async def read(connection: Connection) -> list[bytes | None]:
            cursor = connection.cursor(binary=True)
            await cursor.execute(f"SELECT key, value FROM {self._schema}.rows WHERE key = ANY(%b::bytea[])".encode(), (list(keys),))
            rows: dict[bytes, bytes] = {key: value for key, value in await cursor.fetchall()}  # noqa: C416
            return [rows.get(key) for key in keys]

        return await self._run(read)

    async def scan(self, begin: bytes, end: bytes, rows: int, size: int, reverse: bool = False) -> list[Row]:
        # the rows that stand in front of the first `size` bytes are counted on the server: values are not read for it, their lengths are
        order = "DESC" if reverse else "ASC"
        statement = (
            f"SELECT key, value FROM (SELECT key, value, sum(length(key) + octet_length(value)) OVER (ORDER BY key {order} ROWS UNBOUNDED"
            f" PRECEDING) - length(key) - octet_length(value) AS before FROM (SELECT key, value FROM {self._schema}.rows"
            f" WHERE key >= %b::bytea AND key < %b::bytea ORDER BY key {order} LIMIT %b::bigint) AS page) AS summed"
            f" WHERE before < %b::bigint ORDER BY key {order}"
        ).encode()

        async def read(connection: Connection) -> list[Row]:
            cursor = connection.cursor(binary=True)
            await cursor.execute(statement, (begin, end, max(0, rows), size))
            return [(key, value) for key, value in await cursor.fetchall()]

        return await self._run(read)

    async def usage(self) -> Usage:
        async def read(connection: Connection) -> int:
            row = await (await connection.execute("SELECT pg_database_size(current_database())")).fetchone()
            return int(row[0]) if row else 0

        return Usage(await self._run(read), 0, full=False)

    async def tidy(self) -> None:
        async def vacuum(connection: Connection) -> None:
            await connection.execute("SET statement_timeout = 0")
            try:
                await connection.execute(f"VACUUM (TRUNCATE false, SKIP_LOCKED) {self._schema}.rows".encode())
            finally:
                if not connection.closed:
                    await connection.execute(f"SET statement_timeout = {self._statement_timeout}".encode())

        await self._run(vacuum, self._settings.engine_postgres_tidy_ms / 1_000)

    async def close(self) -> None:
        self._is_closed = True
        listener, self._listener = self._listener, None
        if listener is not None:
            if self._wire is not None:
                _cut(self._wire)
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)
        for connection in self._used:
            _cut(connection)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._idle:
            await self._idle.pop().close()

    # --- watches (P4) -------------------------------------------------------------------------------------------------
    async def watch(self, begin: bytes, end: bytes) -> AsyncGenerator[frozenset[bytes] | None, None]:
        """See Engine.watch."""
        feed = Feed(begin, end, self._settings.engine_watch_keys_max)
        self._feeds.append(feed)
        if self._listener is not None:  # another connection from now on: one that knows of this range
            self._listener.cancel()
        self._listener = asyncio.create_task(self._listen(self._listener))
        try:
            while True:
                yield await feed.next()
        finally:
            self._feeds.remove(feed)
            if not self._feeds and self._listener is not None:
                self._listener.cancel()

    async def _listen(self, before: asyncio.Task[None] | None) -> None:
        """Tells the feeds, over any number of connections, until it is cancelled."""
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        me = asyncio.current_task()
        while self._listener is me:  # psycopg may make another error of a cancel
            connection: Connection | None = None
            try:
                self._wire = connection = await self._open()
                await self._bounded(connection, self._subscribe(connection), self._timeout)
                for feed in self._feeds:
                    feed.lose()
                while True:
                    await self._tell(connection)
            except (EngineError, psycopg.Error):
                await asyncio.sleep(self._settings.engine_postgres_pause_ms / 1_000)
            finally:
                if connection is not None:
                    _cut(connection)
                    await connection.close()

    async def _subscribe(self, connection: Connection) -> None:
        await connection.execute(f"LISTEN {self._schema}".encode())
        for low, high in {(feed.begin, feed.end) for feed in self._feeds}:
            await connection.execute(_WATCH.format(schema=self._schema, low=low.hex(), high=high.hex()).encode())

    async def _tell(self, connection: Connection) -> None:
        """Hands on the notes of a while; then the server has to show that it lives."""
        async for note in connection.notifies(timeout=self._timeout):
            key = bytes.fromhex(note.payload)
            for feed in self._feeds:
                if note.payload:
                    feed.tell((key,))
                else:
                    feed.lose()
        await self._bounded(connection, connection.execute("SELECT 1"), self._timeout)


def open_url(url: str, limits: Limits, prefix: bytes) -> PostgresEngine:
    """A URL of libpq, and `?schema=NAME`, `?allow_async=1`. `prefix` is not used: a schema is the engine's alone. Raises: ValueError."""
    parts = urlsplit(url)
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema, allow_async = parameters.pop("schema", SCHEMA), parameters.pop("allow_async", "0")
    name = f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"
    if not _SCHEMA_FORM.fullmatch(schema) or allow_async not in ("0", "1"):
        raise ValueError(f"{name}: schema is up to 40 of a-z, 0-9 and _, and begins with no digit; allow_async is 0 or 1")
    try:
        return PostgresEngine(urlunsplit(parts._replace(query=urlencode(parameters))), name, schema, allow_async == "1", limits)
    except psycopg.Error as error:
        raise ValueError(f"{name} is no URL of PostgreSQL: {type(error).__name__}") from None  # the error's text may name the password
