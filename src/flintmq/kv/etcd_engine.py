"""The etcd engine: transactions of the port as etcd's If/Then requests. ADR 12 has the reasons.

in: transactions of any thread, of any number of processes. out: rows of an etcd cluster, below a namespace of their own.

E1  Reads of a transaction are at the revision of its first one. A declared key is compared by its modification revision, a declared range
    that of each row it had, and by "nothing in it is newer", which etcd does not say of rows that are gone.
E2  Stamps come from a counter row: the commit compares it and raises it. Where only the counter moved, the commit is tried again here.
E3  Each write compares the session row of this engine. After a request without an answer the session row is changed before anything
    else is done: a request that comes late finds another session, and does nothing (G6).
E4  Watches follow one stream of changes below `watched`. When the stream has a gap, everybody is told.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import zlib
from collections.abc import Callable
from typing import Any

from flintmq.config import Limits
from flintmq.kv.engine import STAMP_BYTES, Conflict, EngineError, EngineLimits, TooLarge, TooOld, Unavailable, UnknownOutcome
from flintmq.kv.etcd_client import Doubtful, EtcdClient, NotSent, Refused, Table, decode, encode
from flintmq.kv.etcd_stream import ChangeStream
from flintmq.kv.watches import KeyWatch, Watches
from flintmq.kv.writes import Request, Rows, Writes, is_hidden

# rows of the engine's own stand in front of everybody's
_SESSIONS = b"\x00s"
_COUNTERS = b"\x00c"
# counter rows: two queues that share one are in each other's way, one that is gone leaves none behind
_COUNTERS_MAX = 256
_ROWS_AT_ONCE = 10_000


class EtcdEngine:
    """Args: endpoints: URLs of the cluster's members; namespace: what all keys begin with; watched: keys that can be watched begin with it;
    login: user and password.

    Raises: Unavailable: no member can be reached, or the login fails.
    """

    def __init__(
        self,
        endpoints: tuple[str, ...],
        limits: Limits,
        namespace: bytes = b"flintmq/",
        watched: bytes = b"",
        login: tuple[str, str] | None = None,
    ) -> None:
        # etcd's own: 128 comparisons, and 128 operations, in a request of 1.5 MiB
        self.limits = EngineLimits(
            key_bytes=limits.kv_key_bytes_max,
            value_bytes=limits.kv_etcd_value_bytes_max,
            transaction_bytes=limits.kv_etcd_transaction_bytes_max,
            transaction_writes=limits.kv_etcd_transaction_writes_max,
            transaction_ms=limits.kv_transaction_ms_max,
            exclusive=False,
        )
        self.name = f"etcd:{','.join(endpoints)}"
        self.namespace = namespace
        self.client = EtcdClient(endpoints, limits.kv_etcd_request_ms_max / 1000, login)
        self.watches = Watches()
        self._lock = threading.Lock()  # of the two below
        self._counters: dict[bytes, tuple[int, int]] = {}  # counter row -> (value, modification revision), as far as this engine knows
        self._session_revision = 0  # modification revision of the session row; 0: it is to be written
        self._session = namespace + _SESSIONS + secrets.token_bytes(8)
        try:
            self.renew_session()
        except EngineError as error:
            self.client.close()
            raise Unavailable(str(error)) from error
        self._stream = ChangeStream(self.client, self.watches, namespace, watched, self._session_revision, limits)
        self._stream.start()

    def begin(self) -> EtcdTransaction:
        if self._session_revision == 0:
            self.renew_session()
        return EtcdTransaction(self)

    def close(self) -> None:
        self._stream.stop()
        with contextlib.suppress(EngineError):  # its lease ends it
            self.client.call("/v3/kv/deleterange", {"key": encode(self._session)})
        self.client.close()

    # --- session (E3) -----------------------------------------------------------------------------------------------

    def renew_session(self) -> int:
        """Whatever was sent under the session before has no effect from now on. Returns the session's revision. Raises: Unavailable."""
        try:
            lease = self.client.call("/v3/lease/grant", {"TTL": 3600})["ID"]
            answer = self.client.call("/v3/kv/put", {"key": encode(self._session), "value": encode(b"1"), "lease": lease})
        except EngineError as error:
            raise Unavailable(str(error)) from error
        with self._lock:
            self._session_revision = max(self._session_revision, int(answer["header"]["revision"]))
            return self._session_revision

    def _in_doubt(self) -> None:
        with self._lock:
            self._session_revision = 0

    # --- reads ------------------------------------------------------------------------------------------------------

    def read(self, request: Table) -> Table:
        """A range. Raises: Unavailable, TooOld."""
        try:
            return self.client.call("/v3/kv/range", request)
        except Refused as error:
            if "compacted" in str(error):
                raise TooOld(str(error)) from error
            raise Unavailable(str(error)) from error
        except (NotSent, Doubtful) as error:
            raise Unavailable(str(error)) from error

    # --- commits ----------------------------------------------------------------------------------------------------

    def decide(self, request: Request, seen: dict[bytes, int]) -> int:
        """Commits. `seen`: modification revision of each row that was read, 0: it was not there. Returns the revision."""
        compares = self._compares(request, seen)
        operations = self._operations(request)
        while True:
            session = self._session_revision
            if session == 0:
                raise Conflict("the session changed")
            counters = {self._counter_of(prefix) for prefix, _, _ in request.stamped}
            known = {counter: self._counters.get(counter, (0, 0)) for counter in counters}
            comparisons = [_equal(self._session, session), *(_equal(counter, known[counter][1]) for counter in sorted(counters))]
            puts = [_put(counter, (known[counter][0] + 1).to_bytes(STAMP_BYTES, "big")) for counter in sorted(counters)]
            for prefix, suffix, value in request.stamped:
                stamp = (known[self._counter_of(prefix)][0] + 1).to_bytes(STAMP_BYTES, "big")
                puts.append(_put(self.namespace + prefix + stamp + suffix, value))
            looks = [{"request_range": {"key": encode(row)}} for row in [self._session, *sorted(counters)]]
            answer = self._send({"compare": compares + comparisons, "success": operations + puts, "failure": looks})
            revision = int(answer["header"]["revision"])
            if answer.get("succeeded"):
                with self._lock:
                    for counter in counters:
                        if self._counters.get(counter, (0, 0))[1] < revision:
                            self._counters[counter] = (known[counter][0] + 1, revision)
                return revision
            if not self._learn(answer, session, known):
                raise Conflict("what was read has changed")

    def _learn(self, answer: Table, session: int, known: dict[bytes, tuple[int, int]]) -> bool:
        """From a refused commit: True when it can be tried again as it is, since only counters moved."""
        parts = [one["response_range"].get("kvs", []) for one in answer["responses"]]
        ours = int(parts[0][0]["mod_revision"]) if parts[0] else 0
        if ours != session:
            with self._lock:
                if self._session_revision == session:
                    self._session_revision = 0
            raise Conflict("the session changed")
        moved = False
        with self._lock:
            for counter, rows in zip(sorted(known), parts[1:], strict=True):
                now = (int.from_bytes(decode(rows[0]["value"]), "big"), int(rows[0]["mod_revision"])) if rows else (0, 0)
                moved = moved or now != known[counter]
                self._counters[counter] = now
        return moved

    def _send(self, body: Table) -> Table:
        try:
            return self.client.call("/v3/kv/txn", body)
        except NotSent as error:
            raise Unavailable(str(error)) from error
        except Refused as error:
            if "too many operations" in str(error) or "too large" in str(error):
                raise TooLarge(str(error)) from error
            raise Unavailable(str(error)) from error
        except Doubtful as error:
            self._in_doubt()
            raise UnknownOutcome(str(error)) from error

    def _counter_of(self, prefix: bytes) -> bytes:
        return self.namespace + _COUNTERS + bytes([zlib.crc32(prefix) % _COUNTERS_MAX])

    def _compares(self, request: Request, seen: dict[bytes, int]) -> list[Table]:
        points = {self.namespace + key: seen[key] for key in request.points}
        compares = [_equal(key, revision) for key, revision in points.items()]
        for begin, end in request.ranges:
            if begin >= end:
                continue
            newest = {"key": encode(self.namespace + begin), "range_end": encode(self.namespace + end), "target": "MOD", "result": "LESS"}
            compares.append({**newest, "mod_revision": str(request.read_version + 1)})
            for key, revision in seen.items():
                if begin <= key < end and revision and key not in request.points:
                    compares.append(_equal(self.namespace + key, revision))
        return compares

    def _operations(self, request: Request) -> list[Table]:
        """Each key once: etcd refuses a request that puts what it deletes, so ranges are cut around the keys that are written."""
        operations: list[Table] = []
        keys = sorted(request.writes)
        for begin, end in request.cleared:
            low = begin
            for key in keys:
                if begin <= key < end:
                    operations += self._delete(low, key)
                    low = key + b"\0"
            operations += self._delete(low, end)
        for key, value in request.writes.items():
            if value is not None:
                operations.append(_put(self.namespace + key, value))
            elif not is_hidden(key, request.cleared):
                operations.append({"request_delete_range": {"key": encode(self.namespace + key)}})
            else:
                operations += self._delete(key, key + b"\0")
        return operations

    def _delete(self, begin: bytes, end: bytes) -> list[Table]:
        if begin >= end:
            return []
        return [{"request_delete_range": {"key": encode(self.namespace + begin), "range_end": encode(self.namespace + end)}}]


def _equal(key: bytes, revision: int) -> Table:
    return {"key": encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def _put(key: bytes, value: bytes) -> Table:
    return {"request_put": {"key": encode(key), "value": encode(value)}}


class EtcdTransaction:
    """See engine.Transaction."""

    def __init__(self, engine: EtcdEngine) -> None:
        self._engine = engine
        self._writes = Writes(engine.limits)
        self._seen: dict[bytes, int] = {}
        self._values: dict[bytes, bytes | None] = {}
        self._watches: list[KeyWatch] = []

    def _read(self, request: Table) -> list[Table]:
        mine = self._writes.request
        if mine.read_version:
            request["revision"] = str(mine.read_version)
        answer = self._engine.read(request)
        if not mine.read_version:
            mine.read_version = int(answer["header"]["revision"])
        rows: list[Table] = answer.get("kvs", [])
        return rows

    def _look(self, key: bytes) -> bytes | None:
        if key not in self._seen:
            rows = self._read({"key": encode(self._engine.namespace + key)})
            self._seen[key] = int(rows[0]["mod_revision"]) if rows else 0
            self._values[key] = decode(rows[0].get("value")) if rows else None
        return self._values[key]

    def get(self, key: bytes, snapshot: bool = False) -> bytes | None:
        if not snapshot:
            self._look(key)
            self._writes.request.points.add(key)
        decided, value = self._writes.own(key)
        return value if decided else self._look(key)

    def range(self, begin: bytes, end: bytes, limit: int, reverse: bool = False, snapshot: bool = False) -> Rows:
        if begin >= end:
            return []
        rows = self._writes.merge(self._fetch, begin, end, limit, reverse)
        if not snapshot:
            self._writes.declare_range(begin, end, rows, limit, reverse)
        return rows

    def _fetch(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> Rows:
        space = self._engine.namespace
        request: Table = {"key": encode(space + begin), "range_end": encode(space + end), "limit": str(max(1, limit))}
        if reverse:
            request.update(sort_order="DESCEND", sort_target="KEY")
        rows: Rows = []
        for row in self._read(request):
            key = decode(row["key"])[len(space) :]
            self._seen[key] = int(row["mod_revision"])
            self._values[key] = decode(row.get("value"))
            rows.append((key, self._values[key] or b""))
        return rows

    def set(self, key: bytes, value: bytes) -> None:
        self._writes.set(key, value)

    def clear(self, key: bytes) -> None:
        self._writes.clear(key)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self._writes.clear_range(begin, end)

    def require(self, key: bytes) -> None:
        self._look(key)
        self._writes.request.points.add(key)

    def require_range(self, begin: bytes, end: bytes) -> None:
        self._fetch(begin, end, _ROWS_AT_ONCE, False)
        self._writes.request.ranges.append((begin, end))

    def set_stamped(self, prefix: bytes, suffix: bytes, value: bytes) -> None:
        self._writes.set_stamped(prefix, suffix, value)

    def watch(self, key: bytes, on_change: Callable[[], None]) -> KeyWatch:
        self._look(key)
        watch = KeyWatch(self._engine.watches, key, on_change)
        self._watches.append(watch)
        return watch

    def commit(self) -> int:
        engine, request = self._engine, self._writes.request
        revision = 0 if request.is_empty else engine.decide(request, self._seen)
        for watch in self._watches:
            engine.watches.add(watch)
            if self._changed(watch.key):
                watch.cancel()
                watch.on_change()
        return revision

    def _changed(self, key: bytes) -> bool:
        """Whether a watched key is no longer what was read; whether the stream told of that or not."""
        try:
            rows: list[Any] = self._engine.read({"key": encode(self._engine.namespace + key)}).get("kvs", [])
        except EngineError:
            return True
        return (int(rows[0]["mod_revision"]) if rows else 0) != self._seen[key]

    def close(self) -> None:
        pass
