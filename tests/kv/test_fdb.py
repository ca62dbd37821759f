"""The FoundationDB engine on a recording stand-in of the binding: what is sent, what each error means, what comes late."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import struct
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.kv import fdb_engine
from flintmq.kv.engine import STAMP_BYTES, Conflict, EngineError, TooLarge, TooOld, Unavailable, UnknownOutcome
from flintmq.kv.fdb_engine import API_VERSION, FdbEngine
from flintmq.kv.opening import engine_url, is_alone, open_engine
from flintmq.shared.keys import SIGNALS
from flintmq.shared.owners import Owners
from flintmq.shared.queue import Message, SharedQueue, declare_queue
from tests.twins import fdb_binding
from tests.twins.fdb_binding import Answer, Binding

LIMITS = Limits()
WAIT_S = 60
SPACE = b"flintmq/"


class Bench:
    """A stand-in and an engine on it. `answers`: of the next commits that write."""

    def __init__(self, path: Path) -> None:
        self.answers: list[Answer | None] = []
        self.binding = Binding(lambda: self.answers.pop(0) if self.answers else None)
        self.file = path / "fdb.cluster"
        self.file.touch()
        self.engine = self.another()

    def another(self) -> FdbEngine:
        return FdbEngine(self.binding, self.file, LIMITS)

    def calls(self, name: str) -> list[Any]:
        return [call for call in self.binding.calls if call[0] == name]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def put(engine: Any, key: bytes, value: bytes) -> int:
    transaction = engine.begin()
    transaction.set(key, value)
    version: int = transaction.commit()
    return version


def get(engine: Any, key: bytes) -> bytes | None:
    value: bytes | None = engine.begin().get(key)
    return value


# --- what is sent -----------------------------------------------------------------------------------------------------


def test_declared_reads_are_read_conflicts_and_snapshot_reads_are_none(bench: Bench) -> None:
    put(bench.engine, b"m1", b"1")
    bench.binding.calls.clear()
    transaction = bench.engine.begin()
    transaction.get(b"seen", snapshot=True)
    transaction.range(b"s", b"t", 5, snapshot=True)
    transaction.get(b"a")
    transaction.range(b"m", b"n", 1)
    transaction.require(b"r")
    transaction.require_range(b"u", b"v")
    transaction.set(b"b", b"")
    transaction.commit()
    declared = {(begin, end) for _, begin, end in bench.calls("read_conflict")}
    session = bench.engine.session
    expected = {(b"a", b"a\0"), (b"m", b"m1\0"), (b"r", b"r\0"), (b"u", b"v")}
    assert declared == {(SPACE + begin, SPACE + end) for begin, end in expected} | {(session, session + b"\0")}


def test_a_stamped_row_has_its_place_at_the_end_of_its_key(bench: Bench) -> None:
    transaction = bench.engine.begin()
    transaction.set_stamped(b"prefix", b"tail", b"value")
    assert transaction.range(b"prefix", b"q", 10) == []
    version = transaction.commit()
    _, mutations = bench.calls("commit")[-1]
    place = struct.pack("<L", len(SPACE + b"prefix"))
    assert mutations == [("stamped", SPACE + b"prefix" + bytes(STAMP_BYTES) + b"tail" + place, b"value")]
    rows = bench.engine.begin().range(b"prefix", b"q", 10)
    assert rows == [(b"prefix" + version.to_bytes(8, "big") + b"\0\0" + b"tail", b"value")]


def test_a_blind_write_has_its_version_before_it_is_sent(bench: Bench) -> None:
    """Otherwise a commit that comes late could have read the session after it was renewed."""
    bench.binding.calls.clear()
    put(bench.engine, b"a", b"1")
    names = [call[0] for call in bench.binding.calls]
    assert names.index("get_read_version") < names.index("commit")


def test_each_transaction_has_a_deadline(bench: Bench) -> None:
    assert bench.engine.begin()._made.timeout_ms == LIMITS.kv_fdb_request_ms_max
    assert LIMITS.kv_fdb_request_ms_max >= LIMITS.kv_transaction_ms_max


def test_what_only_read_sends_nothing(bench: Bench) -> None:
    transaction = bench.engine.begin()
    transaction.get(b"a")
    assert transaction.commit() == 0
    assert bench.calls("commit")[-1] == ("commit", [])


# --- what errors mean -------------------------------------------------------------------------------------------------

KNOWN = [
    (1020, Conflict),
    (1007, TooOld),
    (1009, Conflict),
    (1037, Conflict),
    (1042, Unavailable),
    (1051, Unavailable),
    (1213, Unavailable),
    (2101, TooLarge),
    (2102, TooLarge),
    (2103, TooLarge),
    (2004, Unavailable),
]


@pytest.mark.parametrize(("code", "expected"), KNOWN)
def test_an_error_that_says_that_nothing_happened(bench: Bench, code: int, expected: type[EngineError]) -> None:
    bench.answers = [Answer(code)]
    with pytest.raises(expected) as told:
        put(bench.engine, b"a", b"1")
    assert type(told.value) is expected
    bench.binding.calls.clear()
    assert get(bench.engine, b"a") is None
    assert bench.calls("commit") == [], "nothing was in doubt, and the session stays"


@pytest.mark.parametrize("code", [1021, 1031, 1039, 1025, 1100, 4100])
@pytest.mark.parametrize("happens", ["yes", "no", "late"])
def test_any_other_error_of_a_commit_is_an_unknown_outcome_that_is_over(bench: Bench, code: int, happens: str) -> None:
    """What comes late meets another session, and does nothing (G6)."""
    bench.answers = [Answer(code, happens)]
    with pytest.raises(UnknownOutcome):
        put(bench.engine, b"a", b"doubtful")
    put(bench.engine, b"b", b"later")
    before = get(bench.engine, b"a")
    assert before == (b"doubtful" if happens == "yes" else None)
    assert bench.binding.deliver_late() == ([1020] if happens == "late" else [])
    assert get(bench.engine, b"a") == before


def test_a_session_that_can_not_be_renewed_stops_what_comes_next(bench: Bench) -> None:
    bench.answers = [Answer(1031, "late"), Answer(1031)]
    with pytest.raises(UnknownOutcome):
        put(bench.engine, b"a", b"late")
    with pytest.raises(Unavailable):
        bench.engine.begin()
    assert get(bench.engine, b"a") is None
    assert bench.binding.deliver_late() == [1020]


def test_a_second_doubt_while_the_session_is_renewed_is_renewed_again(bench: Bench) -> None:
    bench.answers = [Answer(1031, "late")]
    with pytest.raises(UnknownOutcome):
        put(bench.engine, b"a", b"late")
    bench.engine.in_doubt()  # of another thread, at this moment
    bench.engine._renew_session(1)
    bench.binding.calls.clear()
    bench.engine.begin()
    assert len(bench.calls("commit")) == 1
    bench.engine.begin()
    assert len(bench.calls("commit")) == 1


@pytest.mark.parametrize(
    ("code", "expected"), [(1031, Unavailable), (1007, TooOld), (1009, Conflict), (1213, Unavailable), (4100, Unavailable)]
)
def test_an_error_of_a_read_is_never_unknown(bench: Bench, code: int, expected: type[EngineError]) -> None:
    for read in (lambda one: one.get(b"a"), lambda one: one.range(b"a", b"b", 1), lambda one: one.require(b"a")):
        transaction = bench.engine.begin()
        bench.binding.read_code = code
        with pytest.raises(expected):
            read(transaction)
        bench.binding.read_code = 0
    transaction = bench.engine.begin()
    transaction.set(b"a", b"1")
    bench.binding.read_code = code
    with pytest.raises(expected):
        transaction.commit()


def test_a_transaction_that_took_too_long_is_too_old(bench: Bench) -> None:
    transaction = bench.engine.begin()
    transaction.get(b"a")
    bench.binding.grow_old()
    transaction.set(b"b", b"1")
    with pytest.raises(TooOld):
        transaction.commit()


def test_limits_are_below_those_of_foundationdb(bench: Bench) -> None:
    limits = bench.engine.limits
    assert 2 * limits.key_bytes + len(SPACE) + STAMP_BYTES + 4 <= fdb_binding.KEY_BYTES
    assert limits.value_bytes <= fdb_binding.VALUE_BYTES
    assert LIMITS.shared_chunk_bytes <= limits.value_bytes
    # what is declared counts, too: twice the key of each row, and its own begin and end
    assert limits.transaction_bytes + limits.transaction_writes * 4 * 100 <= fdb_binding.TRANSACTION_BYTES
    put(bench.engine, b"a", bytes(limits.value_bytes))
    transaction = bench.engine.begin()
    with pytest.raises(TooLarge):
        transaction.set(b"a", bytes(limits.value_bytes + 1))


# --- watches ----------------------------------------------------------------------------------------------------------


def test_a_watch_begins_with_its_commit_and_a_failed_one_counts_as_a_change(bench: Bench) -> None:
    told: list[int] = []
    transaction = bench.engine.begin()
    transaction.watch(b"a", lambda: told.append(1))
    assert bench.binding.watches == []
    transaction.commit()
    ((_, _, future),) = bench.binding.watches
    future.become_ready(1032)
    assert told == [1]


def test_a_watch_of_a_commit_that_failed_is_never_told(bench: Bench) -> None:
    told: list[int] = []
    transaction = bench.engine.begin()
    transaction.set(b"b", b"1")
    transaction.watch(b"a", lambda: told.append(1))
    bench.answers = [Answer(1020)]
    with pytest.raises(Conflict):
        transaction.commit()
    put(bench.engine, b"a", b"1")
    assert told == []


# --- a queue ----------------------------------------------------------------------------------------------------------


def test_a_queue_makes_what_is_unknown_once(bench: Bench) -> None:
    keys = declare_queue(bench.engine, "/", "q")
    owners = Owners(bench.engine, LIMITS)
    owner = owners.register()
    owners.uses(keys.life)
    queue = SharedQueue(bench.engine, keys, owner, LIMITS)
    for number, happens in enumerate(["yes", "no", "late"]):
        bench.answers = [Answer(1021, happens)]
        queue.enqueue([Message(b"%d" % number)])
        bench.binding.deliver_late()
    other = SharedQueue(bench.another(), keys, owner, LIMITS)
    assert [one.content for one in other.take(10, 1 << 20)[0]] == [b"0", b"1", b"2"]


def test_another_node_is_told_of_what_becomes_ready(bench: Bench) -> None:
    engines = [bench.engine, bench.another()]
    keys = declare_queue(engines[0], "/", "q")
    queues = []
    for engine in engines:
        owners = Owners(engine, LIMITS)
        owner = owners.register()
        owners.uses(keys.life)
        queues.append(SharedQueue(engine, keys, owner, LIMITS))
    told = threading.Event()
    assert queues[0].take(1, 1 << 20, told.set)[0] == []
    queues[1].enqueue([Message(b"x")])
    assert told.wait(WAIT_S)
    assert [one.content for one in queues[0].take(1, 1 << 20)[0]] == [b"x"]


# --- opening ----------------------------------------------------------------------------------------------------------


def test_without_a_cluster_file_or_a_cluster_there_is_no_engine(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no cluster file"):
        FdbEngine(bench.binding, tmp_path / "none", LIMITS)
    bench.answers = [Answer(1031)]
    with pytest.raises(Unavailable):
        bench.another()


def test_a_closed_engine_is_unavailable(bench: Bench) -> None:
    bench.engine.close()
    with pytest.raises(Unavailable):
        bench.engine.begin()


def test_a_url_opens_the_engine_with_the_api_version_of_this_module(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    module = types.ModuleType("fdb")
    for name in ("open", "FDBError", "StreamingMode", "predicates"):
        setattr(module, name, getattr(bench.binding, name))
    module.api_version = chosen.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fdb", module)
    url = engine_url(f"fdb:{bench.file}")
    assert not is_alone(url)
    engine = open_engine(url, LIMITS, SIGNALS)
    put(engine, b"a", b"1")
    assert set(chosen) == {API_VERSION}
    assert bench.calls("open")[-1] == ("open", str(bench.file))


def test_what_is_not_installed_is_said_with_its_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "fdb", None)
    with pytest.raises(ValueError, match=r"pip install 'flintmq\[fdb\]'"):
        engine_url(f"fdb:{tmp_path}/fdb.cluster")

    def refuse(version: int) -> None:
        raise OSError("libfdb_c.so: cannot open shared object file")

    module = types.ModuleType("fdb")
    module.api_version = refuse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fdb", module)
    with pytest.raises(ValueError, match=r"foundationdb-clients.*cannot open shared object file"):
        engine_url(f"fdb:{tmp_path}/fdb.cluster")


# --- the stand-in and the binding -------------------------------------------------------------------------------------


def _binding_source() -> Path:
    """The folder of the installed binding, which is not imported: its library is not here."""
    found = importlib.util.find_spec("fdb")
    assert found is not None and found.origin is not None, "requirements-test.txt has the package foundationdb"
    return Path(found.origin).parent


def _methods(source: ast.Module) -> dict[str, dict[str, list[str]]]:
    """Class -> method -> names of its arguments, those of its bases among them."""
    classes = {node.name: node for node in source.body if isinstance(node, ast.ClassDef)}

    def of(name: str) -> dict[str, list[str]]:
        node = classes[name]
        found: dict[str, list[str]] = {}
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in classes:
                found.update(of(base.id))
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef):
                found[inner.name] = [argument.arg for argument in inner.args.args[1:]]
        return found

    return {name: of(name) for name in classes}


def test_the_stand_in_has_the_calls_of_the_binding() -> None:
    """Names and order of the arguments. What the binding generates (options, versionstamps) is in the table of its options."""
    methods = _methods(ast.parse((_binding_source() / "impl.py").read_text()))
    generated = {"set_versionstamped_key", "set_versionstamped_value"}
    of_stand_in = {"decide", "read_code"}
    for ours, theirs in (
        (fdb_binding.Transaction, "Transaction"),
        (fdb_binding._Snapshot, "TransactionRead"),
        (fdb_binding.Future, "Future"),
    ):
        for name, function in inspect.getmembers(ours, inspect.isfunction):
            if name.startswith("_") or name in generated | of_stand_in | {"become_ready"}:
                continue
            arguments = list(inspect.signature(function).parameters)[1:]
            assert methods[theirs][name][: len(arguments)] == arguments, f"{theirs}.{name}"
    assert "create_transaction" in methods["Database"]
    options = (_binding_source() / "fdboptions.py").read_text()
    for name in ("timeout", "retryable_not_committed", "want_all", "set_versionstamped_key"):
        assert f'"{name}"' in options or f"'{name}'" in options, name


def test_the_engine_calls_nothing_that_the_stand_in_has_not() -> None:
    """So that a call which this stand-in does not know fails in the tests above, and not at a user's."""
    tree = ast.parse(Path(fdb_engine.__file__).read_text())
    called = {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) in ("made", "self._made", "self._made.snapshot", "made.options", "future", "self._database")
    }
    known = {
        name
        for kind in (fdb_binding.Transaction, fdb_binding._Snapshot, fdb_binding._Options, fdb_binding.Future, fdb_binding.Database)
        for name in dir(kind)
    }
    assert called and called <= known
