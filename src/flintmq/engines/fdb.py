"""The FoundationDB engine, on the official binding.

in: commits and reads of one event loop. out: rows of a FoundationDB cluster below a prefix; keys that changed, whoever changed them.

F1  Each call is one transaction of FoundationDB, which is strictly serializable. A commit reads its conditions in it as declared reads,
    and sends its writes when they hold: a commit of another that changed them meanwhile makes it conflict.
F2  A transaction that FoundationDB says did nothing is made anew, with FoundationDB's own pauses. A commit without an answer is not: it
    is an unknown outcome. A late one conflicts with whatever changed a row that it compared (E4).
F3  FoundationDB watches single keys. So the ranges that any node watches stand in one row, which each commit reads; a commit that changes
    keys in them writes these into a log, under its versionstamp, and changes one signal. A reader waits for the signal, and reads the log
    from the version on that it has seen. `tidy` deletes old rows of the log, and writes the version of the last one (`floor`).
F4  Each transaction has a deadline, the tries of F2 among it. One that passes it before its writes are sent did nothing.
F5  A cluster without room gives transactions no versions. Its status says so; then puts are refused, and all others go before that limit
    (E6): FoundationDB has it for tools that repair, and its servers keep space for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import json
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from flintmq.config import Limits
from flintmq.engines.engine import Commit, EngineError, EngineLimits, Full, Range, Row, TooLarge, Unavailable, UnknownOutcome, Usage, check
from flintmq.engines.feed import Feed

T = TypeVar("T")

# the version of FoundationDB's API that this module speaks; clients and clusters from 7.1 on have it
API_VERSION = 710
# below the prefix: rows, and what F3 needs
_ROWS, _WATCHED, _SIGNAL, _FLOOR, _LOG = b"\x01", b"\x00w", b"\x00s", b"\x00f", b"\x00l"
_STAMP = bytes(10)
_VERSION = struct.Struct(">Q")
_LENGTH = struct.Struct("<L")
# versions of FoundationDB in a millisecond, by its documentation
_VERSIONS_MS = 1_000
# keys that one row of the log names, and their bytes; for more the row says that anything may have changed
_TOLD, _TOLD_BYTES = 100, 50_000
# bytes that a commit reads to name the keys that it clears: more than `_TOLD` rows have
_CLEARED_BYTES = 1 << 30
# bytes of the log that a reader takes at once; where there are more, anything may have changed
_LOG_BYTES = 4 << 20
# error codes of FoundationDB (its documentation, "Error codes"); `_MISUSE`: refused by the client library itself
_TOO_OLD, _NOT_COMMITTED, _TIMED_OUT = 1007, 1020, 1031
_TOO_LARGE, _MISUSE = (2101, 2102, 2103), range(2000, 3000)
_STATUS = b"\xff\xff/status/json"


def load_binding() -> Any:
    """The official binding, with its API version chosen. Raises: ValueError: it is not here, or can't be used."""
    try:
        binding = importlib.import_module("fdb")
    except ImportError as error:
        raise ValueError("fdb: needs the FoundationDB binding: pip install 'flintmq[fdb]'") from error
    try:
        binding.api_version(API_VERSION)
    except Exception as error:  # the binding raises what its loader raises
        text = "needs FoundationDB's client library (libfdb_c, package foundationdb-clients) of the binding's version"
        raise ValueError(f"fdb: {text}: {error}") from error
    return binding


async def _ready(future: Any) -> None:
    """Waits for a future of FoundationDB, whose own thread says when; afterwards its value is there, or its error."""
    if future.is_ready():
        return
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def finish() -> None:
        if not done.done():  # its waiter may be gone
            done.set_result(None)

    def tell(_: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish)

    future.on_ready(tell)
    await done


def _pack(keys: Iterable[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(key)) + key for key in keys)


def _unpack(value: bytes | None) -> list[bytes]:
    keys: list[bytes] = []
    offset, value = 0, value or b""
    while offset < len(value):
        (length,) = _LENGTH.unpack_from(value, offset)
        keys.append(value[offset + 4 : offset + 4 + length])
        offset += 4 + length
    return keys


def _pairs(value: bytes | None) -> list[Range]:
    """Watched ranges, of their row."""
    bounds = _unpack(value)
    return list(zip(bounds[::2], bounds[1::2], strict=True))


class FdbEngine:
    """Args: binding: of `load_binding`; cluster_file: of FoundationDB; limits: of the node; prefix: what all keys begin with."""

    def __init__(self, binding: Any, cluster_file: Path, limits: Limits, prefix: bytes) -> None:
        self.limits = EngineLimits(
            key_bytes=limits.engine_key_bytes_max,
            value_bytes=limits.engine_fdb_value_bytes_max,
            commit_bytes=limits.engine_fdb_commit_bytes_max,
            commit_rows=limits.engine_fdb_commit_rows_max,
        )
        self.name = f"fdb:{cluster_file}"
        self._binding = binding
        self._file = cluster_file
        self._settings = limits
        self._prefix = prefix
        self._space = prefix + _ROWS
        self._database: Any = None
        self._is_closed = False
        self._is_full = False
        self._looked_s = 0.0  # when the status was read last
        self._feeds: list[Feed] = []
        self._fresh: list[Feed] = []  # those of which a reader has to hear first that they watch
        self._seen = 0  # the log was read up to this version
        self._follower: asyncio.Task[None] | None = None
        self._news = asyncio.Event()  # there are fresh feeds

    # --- transactions -------------------------------------------------------------------------------------------------
    def _begin(self) -> Any:
        """A transaction of FoundationDB with its deadline (F4). Raises: Unavailable."""
        if self._is_closed:
            raise Unavailable(f"{self.name}: the engine is closed")
        try:
            if self._database is None:
                if not self._file.is_file():
                    raise Unavailable(f"{self._file}: there is no cluster file of FoundationDB")
                self._database = self._binding.open(str(self._file))
            made = self._database.create_transaction()
            made.options.set_timeout(self._settings.engine_fdb_request_ms)
        except self._binding.FDBError as error:
            raise Unavailable(f"{self.name}: {error}") from error
        return made

    async def _transact(self, work: Callable[[Any], Awaitable[T]], puts: bool = False) -> T:
        """One call: `work`, and anew after each error that says that nothing happened and may pass (F2). Raises: EngineError."""
        made = self._begin()
        while True:
            try:
                if self._is_full:
                    made.options.set_priority_system_immediate()  # F5
                return await work(made)
            except self._binding.FDBError as error:
                reason = error
            try:
                retried = made.on_error(reason)
                await _ready(retried)
                retried.wait()
            except self._binding.FDBError as error:
                if error.code in _TOO_LARGE:
                    raise TooLarge(f"{self.name}: {error}") from error
                if error.code == _TIMED_OUT and await self._look_for_room() and puts:
                    raise Full(f"{self.name} has no room") from error
                raise Unavailable(f"{self.name}: {error}") from error

    async def connect(self) -> None:
        async def look(made: Any) -> None:
            await self._version(made)

        await self._transact(look)

    async def _version(self, made: Any) -> int:
        future = made.get_read_version()
        await _ready(future)
        return int(future.wait())

    async def _page(self, made: Any, bounds: Range, rows: int, size: int, reverse: bool = False) -> list[Row]:
        """Args: made: a transaction, or its snapshot; bounds: keys as they stand in FoundationDB."""
        if bounds[0] >= bounds[1]:
            return []
        of_key, behind_key = self._binding.KeySelector.first_greater_or_equal, self._binding.KeySelector.first_greater_than
        begin, end, mode = of_key(bounds[0]), of_key(bounds[1]), self._binding.StreamingMode.want_all
        page: list[Row] = []
        iteration, has_more = 1, True
        while has_more and len(page) < rows and size > 0:
            future = made._get_range(begin, end, rows - len(page), mode, iteration, reverse)  # get_range would block
            await _ready(future)
            batch, _, has_more = future.wait()
            for row in batch:
                if size <= 0:
                    break
                page.append((row.key, row.value))
                size -= len(row.key) - len(self._space) + len(row.value)
            if batch:
                begin, end = (begin, of_key(batch[-1].key)) if reverse else (behind_key(batch[-1].key), end)
            iteration += 1
        return page

    # --- the port -----------------------------------------------------------------------------------------------------
    async def commit(self, commit: Commit) -> bool:
        check(commit, self.limits)
        if commit.puts and self._is_full and await self._look_for_room():
            raise Full(f"{self.name} has no room")
        return await self._transact(lambda made: self._send(made, commit), bool(commit.puts))

    async def _send(self, made: Any, commit: Commit) -> bool:
        """Whether the conditions hold; then the writes are committed. Raises: UnknownOutcome; FDBError: nothing happened."""
        space, watched = self._space, made.get(self._prefix + _WATCHED)
        for future, value in [(made.get(space + key), value) for key, value in commit.conditions]:
            await _ready(future)
            if future.value != value:
                return False
        clears = [(begin, end) for begin, end in commit.clears if begin < end]
        if not (commit.puts or commit.deletes or clears):
            return True
        await _ready(watched)
        changed = await self._changed(made, commit, clears, _pairs(watched.value))
        for begin, end in clears:
            made.clear_range(space + begin, space + end)
        for key in commit.deletes:
            made.clear(space + key)
        for key, value in commit.puts.items():
            made.set(space + key, value)
        if changed:
            is_long = len(changed) > _TOLD or sum(map(len, changed)) > _TOLD_BYTES
            log = self._prefix + _LOG
            made.set_versionstamped_key(log + _STAMP + _LENGTH.pack(len(log)), b"" if is_long else _pack(changed))
            made.set_versionstamped_value(self._prefix + _SIGNAL, _STAMP + _LENGTH.pack(0))
        await self._finish(made)
        return True

    async def _changed(self, made: Any, commit: Commit, clears: list[Range], watched: list[Range]) -> list[bytes]:
        """The keys of watched ranges that a commit changes (F3). Read before it writes: a transaction sees its own writes."""
        changed = [key for key in (*commit.puts, *commit.deletes) if any(low <= key < high for low, high in watched)]
        for begin, end in clears:
            for low, high in watched:
                bounds = (self._space + max(begin, low), self._space + min(end, high))
                changed += [key[len(self._space) :] for key, _ in await self._page(made, bounds, _TOLD + 1, _CLEARED_BYTES)]
        return changed

    async def _finish(self, made: Any) -> None:
        future = made.commit()
        await _ready(future)
        try:
            future.wait()
        except self._binding.FDBError as error:
            is_known = error.code in (_NOT_COMMITTED, _TOO_OLD) or error.code in _MISUSE
            if is_known or self._binding.predicates.is_retryable_not_committed(error):
                raise
            raise UnknownOutcome(f"{self.name}: {error}") from error

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        async def read(made: Any) -> list[bytes | None]:
            futures = [made.snapshot.get(self._space + key) for key in keys]
            for future in futures:
                await _ready(future)
            return [future.value for future in futures]

        return await self._transact(read)

    async def scan(self, begin: bytes, end: bytes, rows: int, size: int, reverse: bool = False) -> list[Row]:
        async def read(made: Any) -> list[Row]:
            page = await self._page(made.snapshot, (self._space + begin, self._space + end), rows, size, reverse)
            return [(key[len(self._space) :], value) for key, value in page]

        return await self._transact(read)

    async def usage(self) -> Usage:
        """Of the whole cluster: FoundationDB counts files for all its users together. Cost: the cluster's status, some 100 ms."""

        async def read(made: Any) -> Usage:
            future = made.get(_STATUS)
            await _ready(future)
            cluster = json.loads(future.value)["cluster"]
            limited_by = cluster["qos"]["performance_limited_by"]["name"]
            return Usage(int(cluster["data"]["total_disk_used_bytes"]), 0, "min_free_space" in limited_by)

        made = self._begin()
        try:
            usage = await read(made)
        except (self._binding.FDBError, ValueError, KeyError, TypeError) as error:
            raise Unavailable(f"{self.name} has no status: {error!r}") from error
        self._is_full = usage.full
        return usage

    async def _look_for_room(self) -> bool:
        """Whether the cluster is full, as it said a moment ago."""
        now = asyncio.get_running_loop().time()
        if not self._looked_s or now - self._looked_s >= self._settings.engine_fdb_status_ms / 1_000:
            self._looked_s = now
            with contextlib.suppress(Unavailable):
                await self.usage()
        return self._is_full

    async def tidy(self) -> None:
        async def cut(made: Any) -> None:
            version = await self._version(made) - self._settings.engine_fdb_history_ms * _VERSIONS_MS
            log = self._prefix + _LOG
            last = await self._page(made, (log, log + _VERSION.pack(max(0, version))), 1, 1, reverse=True)
            if last:
                stamp = last[0][0][len(log) :]
                made.clear_range(log, log + stamp + b"\0")
                made.set(self._prefix + _FLOOR, stamp[: _VERSION.size])
                await self._finish(made)

        with contextlib.suppress(UnknownOutcome):  # the next one does it again
            await self._transact(cut)

    async def close(self) -> None:
        self._is_closed = True
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)

    # --- watches (F3) -------------------------------------------------------------------------------------------------
    async def watch(self, begin: bytes, end: bytes) -> AsyncGenerator[frozenset[bytes] | None, None]:
        feed = Feed(begin, end, self._settings.engine_watch_keys_max)
        self._feeds.append(feed)
        self._fresh.append(feed)
        self._news.set()
        if self._follower is None or self._follower.done():
            self._follower = asyncio.create_task(self._follow())
        try:
            while True:
                yield await feed.next()
        finally:
            self._feeds.remove(feed)
            self._fresh = [one for one in self._fresh if one is not feed]

    async def _follow(self) -> None:
        """Until nobody watches."""
        is_back = False
        while self._fresh or self._feeds:
            try:
                self._news.clear()
                fresh = list(self._fresh)
                await self._transact(functools.partial(self._register, fresh))
                signal = await self._transact(self._read_log)
                self._fresh = [feed for feed in self._fresh if feed not in fresh]
                for feed in self._feeds if is_back else fresh:
                    feed.lose()
                is_back = False
                await self._wait_for(signal)
            except (EngineError, ValueError):  # a cluster that was restored from a copy has lost rows, and says so by no version
                is_back = True
                await asyncio.sleep(self._settings.engine_fdb_pause_ms / 1_000)

    async def _register(self, feeds: list[Feed], made: Any) -> None:
        """From here on every commit tells of their ranges."""
        if not feeds:
            return
        row = made.get(self._prefix + _WATCHED)
        await _ready(row)
        ranges = _pairs(row.value)
        added = {(feed.begin, feed.end) for feed in feeds}.difference(ranges)
        if not added:
            return
        ranges += sorted(added)
        if len(ranges) > self._settings.engine_fdb_ranges_max:
            ranges = [(min(low for low, _ in ranges), max(high for _, high in ranges))]
        made.set(self._prefix + _WATCHED, _pack(bound for pair in ranges for bound in pair))
        await self._finish(made)

    async def _read_log(self, made: Any) -> Any:
        """Hands on what changed; returns the future of the next change."""
        signal = made.watch(self._prefix + _SIGNAL)
        version = await self._version(made)
        floor = made.snapshot.get(self._prefix + _FLOOR)
        await _ready(floor)
        log = self._prefix + _LOG
        bounds = (log + _VERSION.pack(self._seen + 1), log + b"\xff")
        limit = self._settings.engine_watch_keys_max
        rows = await self._page(made.snapshot, bounds, limit, _LOG_BYTES)
        finished = made.commit()  # from here on FoundationDB watches
        await _ready(finished)
        finished.wait()
        is_cut = self._seen < _VERSION.unpack(floor.value or bytes(8))[0] or len(rows) == limit
        is_cut |= sum(len(key) + len(value) for key, value in rows) >= _LOG_BYTES or any(not value for _, value in rows)
        keys = [key for _, value in rows for key in _unpack(value)]
        for feed in self._feeds:
            if feed in self._fresh:  # it has not begun
                continue
            if is_cut:
                feed.lose()
            else:
                feed.tell(keys)
        self._seen = version
        return signal

    async def _wait_for(self, signal: Any) -> None:
        """For a change, for a watch to be registered, or for a while: a watch of FoundationDB may end without a word when servers move."""
        tasks = [asyncio.create_task(_ready(signal)), asyncio.create_task(self._news.wait())]
        try:
            await asyncio.wait(tasks, timeout=self._settings.engine_fdb_watch_ms / 1_000, return_when=asyncio.FIRST_COMPLETED)
        finally:
            signal.cancel()
            for task in tasks:
                task.cancel()


def open_url(url: str, limits: Limits, prefix: bytes) -> FdbEngine:
    """`fdb:PATH` of a cluster file. Raises: ValueError: no path; the binding can't be used."""
    path = url.removeprefix("fdb:")
    if not path:
        raise ValueError(f"{url!r} names no cluster file: fdb:PATH")
    return FdbEngine(load_binding(), Path(path), limits, prefix)
