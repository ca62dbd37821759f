"""A stand-in of FoundationDB's Python binding: the calls that the engine uses, with versions, conflicts, versionstamps, watches and error
codes as FoundationDB's documentation has them, in one process. It records what was asked of it.

It is no FoundationDB: that the engine works on a real cluster is what the conformance suite shows where FLINTMQ_FDB_CLUSTER names one.
tests/engines/test_fdb.py compares the calls here with the source of the binding.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

KEY_BYTES, VALUE_BYTES, TRANSACTION_BYTES = 10_000, 100_000, 10_000_000
# what FoundationDB's predicate says of its error codes
RETRYABLE_NOT_COMMITTED = (1007, 1009, 1020, 1037, 1042, 1051, 1078, 1213, 1223)
MAYBE_COMMITTED = (1021, 1039)
STATUS = b"\xff\xff/status/json"
Range = tuple[bytes, bytes]


class FDBError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"error {code} of FoundationDB")
        self.code = code


@dataclass(frozen=True, slots=True)
class Answer:
    """What a commit is answered. `happens`: "no", "yes", or "late": when `deliver_late` is called."""

    code: int
    happens: str = "no"


@dataclass(frozen=True, slots=True)
class KeyValue:
    key: bytes
    value: bytes


class _StreamingMode:
    want_all = -2


class KeySelector:
    """A key, or the first one behind it."""

    def __init__(self, key: bytes, or_equal: bool, offset: int) -> None:
        self.key = key + b"\0" if or_equal else key

    @classmethod
    def first_greater_than(cls, key: bytes) -> KeySelector:
        return cls(key, True, 1)

    @classmethod
    def first_greater_or_equal(cls, key: bytes) -> KeySelector:
        return cls(key, False, 1)


class _Predicates:
    def is_retryable_not_committed(self, error: FDBError) -> bool:
        return error.code in RETRYABLE_NOT_COMMITTED


class Future:
    """Ready from the beginning, but for those of watches. Args: network: its thread says that it is ready, and nobody may wait before."""

    def __init__(self, outcome: Any = None, code: int = 0, ready: bool = True, network: ThreadPoolExecutor | None = None) -> None:
        self._outcome = outcome
        self._code = code
        self._ready = ready
        self._network = network
        self._is_told = network is None
        self._callbacks: list[Callable[[Future], None]] = []
        self._lock = threading.Lock()

    def wait(self) -> Any:
        assert self.is_ready(), "the event loop would wait"
        if self._code:
            raise FDBError(self._code)
        return self._outcome

    @property
    def value(self) -> Any:
        return self.wait()

    def is_ready(self) -> bool:
        return self._ready and self._is_told

    def on_ready(self, callback: Callable[[Future], None]) -> None:
        with self._lock:
            if not self._ready:
                self._callbacks.append(callback)
                return
        self._call([callback])

    def _call(self, callbacks: list[Callable[[Future], None]]) -> None:
        def call() -> None:
            self._is_told = True
            for callback in callbacks:
                callback(self)

        if self._network is None:
            call()
        else:
            self._network.submit(call)

    def become_ready(self, code: int = 0) -> None:
        with self._lock:
            if self._ready:
                return
            self._ready, self._code = True, code
            callbacks, self._callbacks = self._callbacks, []
        self._call(callbacks)

    def cancel(self) -> None:
        self.become_ready(1101)


class Binding:
    """The module. Args: answer: asked before each commit that writes; None: it succeeds; network: of its futures."""

    FDBError = FDBError
    KeySelector = KeySelector
    StreamingMode = _StreamingMode()
    predicates = _Predicates()

    def __init__(self, answer: Callable[[], Answer | None] = lambda: None, network: ThreadPoolExecutor | None = None) -> None:
        self.answer = answer
        self.network = network
        self.page_rows = 1_000  # of one answer to a read of a range
        self.limited_by = "workload"  # what holds transactions up, as the status says
        self.lock = threading.RLock()
        self.calls: list[tuple[Any, ...]] = []
        self.version = 1_000
        self.states: dict[int, dict[bytes, bytes]] = {self.version: {}}  # version -> all rows
        self.written: list[tuple[int, list[Range]]] = []
        self.oldest = 0  # reads below it are too old
        self.watches: list[tuple[bytes, bytes | None, Future]] = []
        self.late: list[Transaction] = []
        self.read_code = 0  # what reads are answered, when it is not 0
        self.read_codes: list[int] = []  # of the next reads, before that
        self.reads: list[list[Range]] = []  # what the commits declared
        self.before_commit: Callable[[], Any] | None = None  # once, at the next commit that writes

    def open(self, cluster_file: str | None = None) -> Database:
        self.calls.append(("open", cluster_file))
        return Database(self)

    @property
    def rows(self) -> dict[bytes, bytes]:
        return self.states[self.version]

    def grow_old(self, ms: int = 5_000) -> None:
        """So many milliseconds pass, at least five seconds: versions of before can't be read any more."""
        with self.lock:
            self.version += ms * 1_000 + 1
            self.states = {self.version: self.states[max(self.states)]}
            self.oldest = self.version

    def deliver_late(self) -> list[int]:
        """The commits that were on their way arrive. Returns what FoundationDB says of each, which nobody hears."""
        late, self.late = self.late, []
        return [transaction.decide() for transaction in late]


class Database:
    def __init__(self, binding: Binding) -> None:
        self._binding = binding

    def create_transaction(self) -> Transaction:
        return Transaction(self._binding)


class _Options:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def set_timeout(self, param: int) -> None:
        self._transaction.timeout_ms = param

    def set_priority_system_immediate(self) -> None:
        self._transaction.is_urgent = True


class _Snapshot:
    """Reads that declare nothing."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def get(self, key: bytes) -> Future:
        return self._transaction._read(key)

    def _get_range(self, begin: KeySelector, end: KeySelector, limit: int, streaming_mode: int, iteration: int, reverse: bool) -> Future:
        return self._transaction._read_range(begin.key, end.key, limit, reverse)

    def get_range(self, begin: bytes, end: bytes, limit: int = 0, reverse: bool = False, streaming_mode: int = 0) -> Iterator[KeyValue]:
        code = self._transaction.read_code() or (2005 if begin > end else 0)
        if code:
            raise FDBError(code)
        rows = sorted((key, value) for key, value in self._transaction.state.items() if begin <= key < end)
        return iter([KeyValue(*row) for row in (rows[::-1] if reverse else rows)][: limit or None])


class Transaction:
    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self.options = _Options(self)
        self.snapshot = _Snapshot(self)
        self.timeout_ms = 0
        self._clean()

    def _clean(self) -> None:
        """As a reset leaves it: the deadline stays."""
        self.is_urgent = False
        self._read_version = 0
        self._reads: list[Range] = []
        self._mutations: list[tuple[str, bytes, bytes]] = []
        self._watched: list[tuple[bytes, Future]] = []
        self._committed = -1

    # --- reads ------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> dict[bytes, bytes]:
        with self._binding.lock:
            if not self._read_version:
                self._read_version = self._binding.version
            return self._binding.states[self._read_version]

    def read_code(self) -> int:
        if self._binding.read_codes:
            return self._binding.read_codes.pop(0)
        if self._binding.read_code:
            return self._binding.read_code
        if "min_free_space" in self._binding.limited_by and not self.is_urgent:
            return 1031
        return 1007 if self._read_version and self._read_version < self._binding.oldest else 0

    def get_read_version(self) -> Future:
        self._binding.calls.append(("get_read_version",))
        if code := self.read_code():
            return self._future(code=code)
        _ = self.state
        return self._future(self._read_version)

    def _future(self, outcome: Any = None, code: int = 0, ready: bool = True) -> Future:
        return Future(outcome, code, ready, self._binding.network)

    def _read(self, key: bytes) -> Future:
        if key == STATUS and not self._binding.read_code:
            limited = {"qos": {"performance_limited_by": {"name": self._binding.limited_by}}}
            size = sum(len(key) + len(value) for key, value in self._binding.rows.items())
            return self._future(json.dumps({"cluster": limited | {"data": {"total_disk_used_bytes": size}}}).encode())
        code = self.read_code()
        return self._future(code=code) if code else self._future(self.state.get(key))

    def _read_range(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> Future:
        if code := self.read_code() or (2005 if begin > end else 0):
            return self._future(code=code)
        assert not any(key < end and begin < key + b"\0" for _, key, _ in self._mutations), "its own writes, which are not in here"
        rows = sorted((key, value) for key, value in self.state.items() if begin <= key < end)
        count = min(limit or len(rows), self._binding.page_rows)
        page = [KeyValue(*row) for row in (rows[::-1] if reverse else rows)[:count]]
        return self._future((page, len(page), len(page) < len(rows)))

    def get(self, key: bytes) -> Future:
        self._reads.append((key, key + b"\0"))
        return self._read(key)

    def _get_range(self, begin: KeySelector, end: KeySelector, limit: int, streaming_mode: int, iteration: int, reverse: bool) -> Future:
        self._reads.append((begin.key, end.key))
        return self._read_range(begin.key, end.key, limit, reverse)

    # --- writes -----------------------------------------------------------------------------------------------------

    def add_read_conflict_key(self, key: bytes) -> None:
        self.add_read_conflict_range(key, key + b"\0")

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        self._binding.calls.append(("read_conflict", begin, end))
        self._reads.append((begin, end))

    def set(self, key: bytes, value: bytes) -> None:
        self._mutations.append(("set", key, value))

    def clear(self, key: bytes) -> None:
        self._mutations.append(("clear", key, key + b"\0"))

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self._mutations.append(("clear", begin, end))

    def set_versionstamped_key(self, key: bytes, param: bytes) -> None:
        self._mutations.append(("stamped", key, param))

    def set_versionstamped_value(self, key: bytes, param: bytes) -> None:
        self._mutations.append(("stamp", key, param))

    def watch(self, key: bytes) -> Future:
        future = self._future(ready=False)
        self._watched.append((key, future))
        return future

    # --- the end ----------------------------------------------------------------------------------------------------

    def commit(self) -> Future:
        binding = self._binding
        if self._mutations and binding.before_commit is not None:
            before_commit, binding.before_commit = binding.before_commit, None
            before_commit()
        binding.calls.append(("commit", list(self._mutations)))
        binding.reads.append(list(self._reads))
        with binding.lock:
            answer = binding.answer() if self._mutations else None
            if answer is not None and answer.happens == "late":
                binding.late.append(self)
            happens = answer is None or answer.happens == "yes"
            code = self.decide() if happens else 0
            code = answer.code if answer is not None else code
        return self._future(code=code)

    def on_error(self, error: FDBError) -> Future:
        """Ready for another try; or the error itself, where another one is of no use."""
        if error.code not in RETRYABLE_NOT_COMMITTED + MAYBE_COMMITTED:
            return self._future(code=error.code)
        self._clean()
        return self._future()

    def decide(self) -> int:
        """0, or the code of the error. Tells watches."""
        binding = self._binding
        with binding.lock:
            if code := self._refused():
                return code
            if self._mutations:
                self._apply()
            state = binding.rows
            before = self.state if self._read_version >= binding.oldest else state
            binding.watches += [(key, before.get(key), future) for key, future in self._watched]
            due = [future for key, value, future in binding.watches if state.get(key) != value]
            binding.watches = [one for one in binding.watches if one[2] not in due]
        for future in due:
            future.become_ready()
        return 0

    def _refused(self) -> int:
        binding = self._binding
        for kind, key, value in self._mutations:
            if len(key) > KEY_BYTES:
                return 2102
            if kind != "clear" and len(value) > VALUE_BYTES:
                return 2103
        if sum(len(key) + len(value) for _, key, value in self._mutations) > TRANSACTION_BYTES:
            return 2101
        if self._mutations and self._reads:
            if self._read_version < binding.oldest:
                return 1007
            for version, ranges in binding.written:
                if version > self._read_version and any(b < end and begin < e for begin, end in self._reads for b, e in ranges):
                    return 1020
        return 0

    def _apply(self) -> None:
        binding = self._binding
        version = binding.version + 7
        state = dict(binding.rows)
        ranges: list[Range] = []
        for kind, key, value in self._mutations:
            if kind == "clear":
                state = {row: kept for row, kept in state.items() if not key <= row < value}
                ranges.append((key, value))
                continue
            if kind == "stamped":
                (place,) = struct.unpack("<L", key[-4:])
                key = key[:place] + version.to_bytes(8, "big") + b"\0\0" + key[place + 10 : -4]
            if kind == "stamp":
                (place,) = struct.unpack("<L", value[-4:])
                value = value[:place] + version.to_bytes(8, "big") + b"\0\0" + value[place + 10 : -4]
            state[key] = value
            ranges.append((key, key + b"\0"))
        binding.version = self._committed = version
        binding.states[version] = state
        binding.written.append((version, ranges))

    def get_committed_version(self) -> int:
        return self._committed
