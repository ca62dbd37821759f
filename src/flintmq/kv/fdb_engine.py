"""The FoundationDB engine: transactions of the port on the official binding. ADR 12 has the reasons.

in: transactions of any thread, of any number of processes. out: rows of a FoundationDB cluster, below a namespace of their own.

F1  Reads are FoundationDB's snapshot reads at the transaction's version; what the port declares is added as read conflicts at the commit.
F2  Stamps are FoundationDB's versionstamps. Stamped rows are sent with the commit, so no read of the transaction meets them.
F3  Each commit declares the key of this engine's session. After a commit without an answer that key is written before anything else is
    read: a commit that comes late conflicts, and does nothing (G6). The key never has a row: nothing is left behind by a process that dies.
F4  No wait is without an end: each transaction has a deadline. One that passes it while it reads did nothing; while it commits: F3.
"""

from __future__ import annotations

import importlib
import secrets
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flintmq.config import Limits
from flintmq.guard import guarded
from flintmq.kv.engine import STAMP_BYTES, Conflict, EngineError, EngineLimits, TooLarge, TooOld, Unavailable, UnknownOutcome
from flintmq.kv.writes import Request, Rows, Writes

# the version of FoundationDB's API that this module speaks; clients and clusters from 7.1 on have it
API_VERSION = 710
_SESSIONS = b"\x00s"
# error codes of FoundationDB (its documentation, "Error codes")
_TOO_OLD, _FUTURE_VERSION, _NOT_COMMITTED, _BEHIND = 1007, 1009, 1020, 1037
_TOO_LARGE = (2101, 2102, 2103)
# what the client library refused by itself
_MISUSE = range(2000, 3000)


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


class FdbEngine:
    """Args: binding: of `load_binding`; cluster_file: of FoundationDB; namespace: what all keys begin with.

    Raises: Unavailable: the file is not there, or the cluster does not answer.
    """

    def __init__(self, binding: Any, cluster_file: Path, limits: Limits, namespace: bytes = b"flintmq/") -> None:
        self.limits = EngineLimits(
            key_bytes=limits.kv_key_bytes_max,
            value_bytes=limits.kv_fdb_value_bytes_max,
            transaction_bytes=limits.kv_fdb_transaction_bytes_max,
            transaction_writes=limits.kv_fdb_transaction_writes_max,
            transaction_ms=limits.kv_transaction_ms_max,
            exclusive=False,
        )
        self.name = f"fdb:{cluster_file}"
        self.namespace = namespace
        self.binding = binding
        self.session = namespace + _SESSIONS + secrets.token_bytes(8)
        self._timeout_ms = limits.kv_fdb_request_ms_max
        self._lock = threading.Lock()  # of the two below
        self._doubts = 0  # commits without an answer
        self._settled = 0  # how many of them can't come late any more
        self._closed = False
        if not cluster_file.is_file():
            raise Unavailable(f"{cluster_file}: there is no cluster file of FoundationDB")
        try:
            self._database = binding.open(str(cluster_file))
        except binding.FDBError as error:
            raise Unavailable(f"{self.name}: {error}") from error
        self._renew_session(0)

    def begin(self) -> FdbTransaction:
        if self._closed:
            raise Unavailable(f"{self.name}: the engine is closed")
        with self._lock:
            doubts, settled = self._doubts, self._settled
        if doubts != settled:
            self._renew_session(doubts)
        return FdbTransaction(self, self.new_transaction())

    def new_transaction(self) -> Any:
        """One of FoundationDB's, with a deadline (F4)."""
        made = self._database.create_transaction()
        made.options.set_timeout(self._timeout_ms)
        return made

    def close(self) -> None:
        self._closed = True

    # --- session (F3) -----------------------------------------------------------------------------------------------

    def in_doubt(self) -> None:
        """A commit has no answer, and may come late."""
        with self._lock:
            self._doubts += 1

    def _renew_session(self, doubts: int) -> None:
        """None of the first `doubts` commits in doubt has an effect from now on. Raises: Unavailable."""
        made = self.new_transaction()
        try:
            made.clear(self.session)
            made.commit().wait()
        except self.binding.FDBError as error:  # done or not: the next one does it again
            raise Unavailable(f"{self.name}: {error}") from error
        with self._lock:
            self._settled = max(self._settled, doubts)

    # --- errors -----------------------------------------------------------------------------------------------------

    def read_error(self, error: Any) -> EngineError:
        """What an error of FoundationDB means where nothing was sent to be committed."""
        text = f"{self.name}: {error}"
        if error.code == _TOO_OLD:
            return TooOld(text)
        if error.code in (_NOT_COMMITTED, _FUTURE_VERSION, _BEHIND):
            return Conflict(text)
        return TooLarge(text) if error.code in _TOO_LARGE else Unavailable(text)

    def commit_error(self, error: Any) -> EngineError:
        """What an error of a commit means: UnknownOutcome unless FoundationDB says that nothing happened."""
        known = error.code in (_NOT_COMMITTED, _TOO_OLD) or error.code in _MISUSE
        if known or self.binding.predicates.is_retryable_not_committed(error):
            return self.read_error(error)
        self.in_doubt()
        return UnknownOutcome(f"{self.name}: {error}")


class _FdbWatch:
    """One watch. Any thread."""

    __slots__ = ("_cancelled", "_future", "_on_change", "key")

    def __init__(self, key: bytes, on_change: Callable[[], None]) -> None:
        self.key = key
        self._on_change = on_change
        self._future: Any = None
        self._cancelled = False

    def follow(self, future: Any) -> None:
        """From now on. A future that failed counts as a change: who is told for nothing looks again."""
        self._future = future
        future.on_ready(self._ready)
        if self._cancelled:  # meanwhile
            future.cancel()

    def _ready(self, future: Any) -> None:
        if not self._cancelled:
            guarded("watches of an engine", repr(self.key), self._on_change)

    def cancel(self) -> None:
        self._cancelled = True
        if self._future is not None:
            self._future.cancel()


class FdbTransaction:
    """See engine.Transaction. Args: made: a transaction of FoundationDB."""

    def __init__(self, engine: FdbEngine, made: Any) -> None:
        self._engine = engine
        self._made = made
        self._writes = Writes(engine.limits)
        self._watches: list[_FdbWatch] = []

    def _version(self) -> None:
        """The transaction reads at a version from here on."""
        request = self._writes.request
        if not request.read_version:
            try:
                request.read_version = self._made.get_read_version().wait()
            except self._engine.binding.FDBError as error:
                raise self._engine.read_error(error) from error

    def get(self, key: bytes, snapshot: bool = False) -> bytes | None:
        if not snapshot:
            self.require(key)
        decided, value = self._writes.own(key)
        if decided:
            return value
        self._version()
        try:
            row: bytes | None = self._made.snapshot.get(self._engine.namespace + key).value
        except self._engine.binding.FDBError as error:
            raise self._engine.read_error(error) from error
        return row

    def range(self, begin: bytes, end: bytes, limit: int, reverse: bool = False, snapshot: bool = False) -> Rows:
        if begin >= end:
            return []
        rows = self._writes.merge(self._fetch, begin, end, limit, reverse)
        if not snapshot:
            self._writes.declare_range(begin, end, rows, limit, reverse)
        return rows

    def _fetch(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> Rows:
        if begin >= end:
            return []
        self._version()
        space, mode = self._engine.namespace, self._engine.binding.StreamingMode.want_all
        try:
            rows = self._made.snapshot.get_range(space + begin, space + end, limit=max(1, limit), reverse=reverse, streaming_mode=mode)
            return [(row.key[len(space) :], row.value) for row in rows]
        except self._engine.binding.FDBError as error:
            raise self._engine.read_error(error) from error

    def set(self, key: bytes, value: bytes) -> None:
        self._writes.set(key, value)

    def clear(self, key: bytes) -> None:
        self._writes.clear(key)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self._writes.clear_range(begin, end)

    def require(self, key: bytes) -> None:
        self._version()
        self._writes.request.points.add(key)

    def require_range(self, begin: bytes, end: bytes) -> None:
        self._version()
        self._writes.request.ranges.append((begin, end))

    def set_stamped(self, prefix: bytes, suffix: bytes, value: bytes) -> None:
        self._writes.set_stamped(prefix, suffix, value)

    def watch(self, key: bytes, on_change: Callable[[], None]) -> _FdbWatch:
        """In a transaction that writes, FoundationDB declares the key, too."""
        self._version()
        watch = _FdbWatch(key, on_change)
        self._watches.append(watch)
        return watch

    def commit(self) -> int:
        engine, request = self._engine, self._writes.request
        self._version()  # also of blind writes: the session is declared as of before the commit was sent (F3)
        try:
            if not request.is_empty:
                self._send(request)
            futures = [self._made.watch(engine.namespace + watch.key) for watch in self._watches]
        except engine.binding.FDBError as error:
            raise engine.read_error(error) from error
        try:
            self._made.commit().wait()
        except engine.binding.FDBError as error:
            raise (engine.read_error(error) if request.is_empty else engine.commit_error(error)) from error
        for watch, future in zip(self._watches, futures, strict=True):
            watch.follow(future)
        return 0 if request.is_empty else int(self._made.get_committed_version())

    def _send(self, request: Request) -> None:
        """Declared reads (F1), then cleared ranges, then rows, then stamped rows (F2)."""
        made, space = self._made, self._engine.namespace
        made.add_read_conflict_key(self._engine.session)
        for key in request.points:
            made.add_read_conflict_key(space + key)
        for begin, end in request.ranges:
            if begin < end:
                made.add_read_conflict_range(space + begin, space + end)
        for begin, end in request.cleared:
            if begin < end:
                made.clear_range(space + begin, space + end)
        for key, value in request.writes.items():
            if value is None:
                made.clear(space + key)
            else:
                made.set(space + key, value)
        for prefix, suffix, value in request.stamped:
            place = struct.pack("<L", len(space) + len(prefix))
            made.set_versionstamped_key(space + prefix + bytes(STAMP_BYTES) + suffix + place, value)

    def close(self) -> None:
        """FoundationDB's transaction ends with its last reference."""
