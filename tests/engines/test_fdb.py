"""The FoundationDB engine on a recording stand-in of the binding: what is sent, what each error means, what comes late, watches."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import inspect
import sys
import types
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.engines import fdb
from flintmq.engines.engine import Commit, EngineError, Full, TooLarge, Unavailable, UnknownOutcome
from flintmq.engines.fdb import API_VERSION, FdbEngine
from flintmq.engines.opening import open_engine
from tests.engines.engines import NETWORK
from tests.twins import fdb_binding
from tests.twins.fdb_binding import Answer, Binding

LIMITS = Limits().replace(engine_fdb_pause_ms=1)
WAIT_S = 60
SPACE = b"flintmq/"
ROWS = SPACE + b"\x01"


class Bench:
    """A stand-in and an engine on it. `answers`: of the next commits that write."""

    def __init__(self, path: Path) -> None:
        self.answers: list[Answer | None] = []
        self.binding = Binding(lambda: self.answers.pop(0) if self.answers else None, NETWORK)
        self.file = path / "fdb.cluster"
        self.file.touch()
        self.engine = self.another()

    def another(self, limits: Limits = LIMITS) -> FdbEngine:
        return FdbEngine(self.binding, self.file, limits, SPACE)

    def calls(self, name: str) -> list[Any]:
        return [call for call in self.binding.calls if call[0] == name]

    def run(self, story: Callable[[FdbEngine], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            try:
                await asyncio.wait_for(story(self.engine), WAIT_S)
            finally:
                await self.engine.close()

        asyncio.run(whole())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# --- what is sent -----------------------------------------------------------------------------------------------------
def test_a_commit_writes_below_its_prefix_and_declares_what_it_compared(bench: Bench) -> None:
    async def story(engine: FdbEngine) -> None:
        await engine.commit(Commit(puts={b"a": b"1", b"d": b"", b"m1": b""}))
        commit = Commit([(b"a", b"1"), (b"b", None)], {b"c": b"3"}, [b"d"], [(b"m", b"n"), (b"y", b"x")])
        assert await engine.commit(commit)
        assert bench.calls("commit")[-1][1] == [
            ("clear", ROWS + b"m", ROWS + b"n"),
            ("clear", ROWS + b"d", ROWS + b"d\0"),
            ("set", ROWS + b"c", b"3"),
        ]
        assert {begin for begin, _ in bench.binding.reads[-1]} == {ROWS + b"a", ROWS + b"b", SPACE + b"\0w"}
        assert all(key.startswith(ROWS) for key in bench.binding.rows), "nobody watches, so nothing else is written"

    bench.run(story)


def test_conditions_that_do_not_hold_and_commits_without_writes_send_nothing(bench: Bench) -> None:
    async def story(engine: FdbEngine) -> None:
        assert not await engine.commit(Commit([(b"a", b"1")], {b"b": b""}))
        assert await engine.commit(Commit([(b"a", None)]))
        assert bench.calls("commit") == []

    bench.run(story)


def test_a_row_that_changes_between_its_comparison_and_the_commit_is_compared_again(bench: Bench) -> None:
    """Whatever it was changed to: the same value makes it hold, another one does not."""

    async def story(engine: FdbEngine) -> None:
        other = bench.another()
        for value, outcome in ((b"1", True), (b"2", False)):
            await other.commit(Commit(puts={b"a": b"1"}))

            def meanwhile(value: bytes = value) -> None:
                transaction = fdb_binding.Transaction(bench.binding)
                transaction.set(ROWS + b"a", value)
                assert transaction.decide() == 0

            bench.binding.before_commit = meanwhile
            assert await engine.commit(Commit([(b"a", b"1")], {b"b": b""})) is outcome

    bench.run(story)


def test_each_transaction_has_a_deadline(bench: Bench) -> None:
    assert bench.engine._begin().timeout_ms == LIMITS.engine_fdb_request_ms


# --- what errors mean -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("code", [1007, 1009, 1020, 1037, 1042, 1051, 1213])
def test_a_commit_that_did_nothing_and_may_pass_later_is_made_again(bench: Bench, code: int) -> None:
    async def story(engine: FdbEngine) -> None:
        bench.answers = [Answer(code), Answer(code)]
        assert await engine.commit(Commit([(b"a", None)], {b"a": b"1"}))
        assert len(bench.calls("commit")) == 3
        bench.binding.read_codes = [code, code]
        assert await engine.get([b"a"]) == [b"1"]

    bench.run(story)


@pytest.mark.parametrize(("code", "expected"), [(2101, TooLarge), (2102, TooLarge), (2103, TooLarge), (2004, Unavailable)])
def test_a_commit_that_the_client_library_refuses_did_nothing(bench: Bench, code: int, expected: type[EngineError]) -> None:
    async def story(engine: FdbEngine) -> None:
        bench.answers = [Answer(code)]
        with pytest.raises(expected):
            await engine.commit(Commit(puts={b"a": b"1"}))
        assert await engine.get([b"a"]) == [None]

    bench.run(story)


@pytest.mark.parametrize("code", [1021, 1031, 1039, 1025, 1100, 4100])
@pytest.mark.parametrize("happens", ["yes", "no", "late"])
def test_any_other_error_of_a_commit_is_an_unknown_outcome_and_is_never_tried_again(bench: Bench, code: int, happens: str) -> None:
    async def story(engine: FdbEngine) -> None:
        bench.answers = [Answer(code, happens)]
        with pytest.raises(UnknownOutcome) as error:
            await engine.commit(Commit([(b"owner", None)], {b"a": b"doubtful"}))
        assert not error.value.final
        assert len(bench.calls("commit")) == 1
        assert await engine.get([b"a"]) == [b"doubtful" if happens == "yes" else None]
        bench.binding.deliver_late()
        assert await engine.get([b"a"]) == [None if happens == "no" else b"doubtful"], "as nobody changed the row that it compared"

    bench.run(story)


def test_a_late_commit_does_nothing_once_a_row_that_it_compared_has_changed(bench: Bench) -> None:
    """Also when the row has its old value again (E4)."""

    async def story(engine: FdbEngine) -> None:
        for values in ([b"2"], [b"2", b"1"]):
            await engine.commit(Commit(puts={b"owner": b"1"}))
            bench.answers = [Answer(1021, "late")]
            with pytest.raises(UnknownOutcome):
                await engine.commit(Commit([(b"owner", b"1")], {b"a": b"late"}))
            for value in values:
                await engine.commit(Commit(puts={b"owner": value}))
            assert bench.binding.deliver_late() == [1020]
            assert await engine.get([b"a"]) == [None]

    bench.run(story)


@pytest.mark.parametrize("code", [1031, 1025, 2004, 4100])
def test_an_error_of_a_read_is_never_unknown(bench: Bench, code: int) -> None:
    async def story(engine: FdbEngine) -> None:
        bench.binding.read_code = code
        for call in (
            engine.connect(),
            engine.get([b"a"]),
            engine.scan(b"a", b"b", 1, 1),
            engine.usage(),
            engine.tidy(),
            engine.commit(Commit([(b"a", None)], {b"a": b""})),
        ):
            with pytest.raises(Unavailable):
                await call

    bench.run(story)


def test_limits_are_below_those_of_foundationdb(bench: Bench) -> None:
    limits = bench.engine.limits
    assert limits.key_bytes + len(SPACE) + 20 <= fdb_binding.KEY_BYTES
    assert limits.value_bytes <= fdb_binding.VALUE_BYTES
    # each key is written, and is the begin and the end of a declared range
    assert 3 * limits.commit_bytes + limits.commit_rows * 3 * (len(SPACE) + 20) <= fdb_binding.TRANSACTION_BYTES
    assert limits.value_bytes >= fdb._TOLD_BYTES + 4 * fdb._TOLD
    assert LIMITS.engine_fdb_ranges_max * 2 * 300 <= limits.value_bytes


# --- room -------------------------------------------------------------------------------------------------------------
def test_a_cluster_without_room_refuses_puts_while_deletes_and_reads_go_on(bench: Bench) -> None:
    async def story(_: FdbEngine) -> None:
        engine = bench.another(LIMITS.replace(engine_fdb_status_ms=1))
        await engine.commit(Commit(puts={b"a": b"1", b"b": b"2"}))
        bench.binding.limited_by = "storage_server_min_free_space"
        for _ in range(2):
            with pytest.raises(Full):
                await engine.commit(Commit(puts={b"c": b""}))
        assert await engine.commit(Commit([(b"a", b"1")], deletes=[b"a"]))
        assert await engine.scan(b"a", b"z", 5, 1 << 20) == [(b"b", b"2")]
        assert (await engine.usage()).full
        bench.binding.limited_by = "workload"
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    assert await engine.commit(Commit(puts={b"c": b""}))
                    break
                except Full:
                    await asyncio.sleep(0)
        usage = await engine.usage()
        assert (usage.full, usage.bytes_max) == (False, 0)
        assert usage.bytes > 0

    bench.run(story)


# --- watches ----------------------------------------------------------------------------------------------------------
async def _told(events: Any, keys: set[bytes]) -> None:
    while keys:
        event = await anext(events)
        assert event is not None
        keys -= event


def log_rows(bench: Bench) -> list[bytes]:
    return [key for key in bench.binding.rows if key.startswith(SPACE + b"\0l")]


def test_commits_log_the_keys_of_watched_ranges_only_and_tidying_takes_the_log_back(bench: Bench) -> None:
    async def story(engine: FdbEngine) -> None:
        events = engine.watch(b"m", b"n")
        assert await anext(events) is None
        other = bench.another()
        await other.commit(Commit(puts={b"a": b"1"}))
        assert log_rows(bench) == []
        await other.commit(Commit(puts={b"a": b"1", b"m1": b"", b"m2": b""}))
        assert len(log_rows(bench)) == 1
        await _told(events, {b"m1", b"m2"})
        bench.binding.grow_old(LIMITS.engine_fdb_history_ms)
        await other.tidy()
        await other.tidy()
        assert log_rows(bench) == []
        await other.commit(Commit(clears=[(b"a", b"m2")]))
        await _told(events, {b"m1"})

    bench.run(story)


def test_a_reader_of_a_log_that_was_cut_since_is_told_that_anything_may_have_changed(bench: Bench) -> None:
    async def story(engine: FdbEngine) -> None:
        seen: list[Any] = []
        engine._feeds = [types.SimpleNamespace(lose=lambda: seen.append(None), tell=seen.append)]  # type: ignore[list-item]
        other = bench.another()
        await anext(other.watch(b"m", b"n"))
        await engine._transact(engine._read_log)
        seen.clear()
        await other.commit(Commit(puts={b"m1": b""}))
        bench.binding.grow_old(2 * LIMITS.engine_fdb_history_ms)
        await bench.another().tidy()
        await engine._transact(engine._read_log)
        assert seen == [None]
        await engine._transact(engine._read_log)
        assert seen == [None, []]
        engine._feeds.clear()
        await other.close()

    bench.run(story)


def test_more_keys_than_a_row_of_the_log_names_are_told_as_anything(bench: Bench) -> None:
    async def story(engine: FdbEngine) -> None:
        events = engine.watch(b"m", b"n")
        assert await anext(events) is None
        await engine.commit(Commit(puts={b"m%03d" % number: b"" for number in range(fdb._TOLD + 1)}))
        assert await anext(events) is None
        await engine.commit(Commit(clears=[(b"m", b"n")]))
        assert await anext(events) is None

    bench.run(story)


def test_a_watch_goes_on_over_failures_and_says_none_when_the_cluster_is_back(bench: Bench) -> None:
    async def story(engine: FdbEngine) -> None:
        events = engine.watch(b"m", b"n")
        assert await anext(events) is None
        bench.binding.read_code = 1031
        for _, _, future in list(bench.binding.watches):
            future.become_ready(1101)
        event = asyncio.ensure_future(anext(events))  # type: ignore[arg-type]
        for _ in range(10):
            await asyncio.sleep(0.002)
        assert not event.done()
        bench.binding.read_code = 0
        assert await event is None
        await bench.another().commit(Commit(puts={b"m1": b""}))
        await _told(events, {b"m1"})

    bench.run(story)


def test_ranges_above_the_limit_become_one_that_has_them_all(bench: Bench) -> None:
    async def story(engine: FdbEngine) -> None:
        few = bench.another(LIMITS.replace(engine_fdb_ranges_max=2))
        watches = [few.watch(b"%d" % number, b"%da" % number) for number in range(3)]
        for events in watches:
            assert await anext(events) is None
        assert fdb._pairs(bench.binding.rows[SPACE + b"\0w"]) == [(b"0", b"2a")]
        await engine.commit(Commit(puts={b"1": b""}))
        await _told(watches[1], {b"1"})
        for events in watches:
            await events.aclose()  # type: ignore[attr-defined]
        await few.close()

    bench.run(story)


# --- opening ----------------------------------------------------------------------------------------------------------
def test_without_a_cluster_file_there_is_no_engine(bench: Bench, tmp_path: Path) -> None:
    async def story(_: FdbEngine) -> None:
        with pytest.raises(Unavailable, match="no cluster file"):
            await FdbEngine(bench.binding, tmp_path / "none", LIMITS, SPACE).connect()

    bench.run(story)


def test_a_url_opens_the_engine_with_the_api_version_of_this_module(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    module = types.ModuleType("fdb")
    for name in ("open", "FDBError", "StreamingMode", "KeySelector", "predicates"):
        setattr(module, name, getattr(bench.binding, name))
    module.api_version = chosen.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fdb", module)
    engine = open_engine(f"fdb:{bench.file}", LIMITS)

    async def story(_: FdbEngine) -> None:
        assert await engine.commit(Commit(puts={b"a": b"1"}))
        await engine.close()

    bench.run(story)
    assert chosen == [API_VERSION]
    assert bench.calls("open") == [("open", str(bench.file))]
    with pytest.raises(ValueError, match="fdb:PATH"):
        open_engine("fdb:", LIMITS)


def test_a_missing_package_or_library_is_said_with_its_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "fdb", None)
    with pytest.raises(ValueError, match=r"pip install 'flintmq\[fdb\]'"):
        open_engine(f"fdb:{tmp_path}/fdb.cluster", LIMITS)

    def refuse(version: int) -> None:
        raise OSError("libfdb_c.so: cannot open shared object file")

    module = types.ModuleType("fdb")
    module.api_version = refuse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fdb", module)
    with pytest.raises(ValueError, match=r"foundationdb-clients.*cannot open shared object file"):
        open_engine(f"fdb:{tmp_path}/fdb.cluster", LIMITS)


# --- the stand-in and the binding -------------------------------------------------------------------------------------
def _binding_source() -> Path:
    """The folder of the installed binding, which is not imported: its library is not here."""
    spec = importlib.util.find_spec("fdb")
    assert spec is not None and spec.origin is not None, "requirements-test.txt has the package foundationdb"
    return Path(spec.origin).parent


def _methods(source: ast.Module) -> dict[str, dict[str, list[str]]]:
    """Class -> method -> names of its arguments, those of its bases among them."""
    classes = {node.name: node for node in source.body if isinstance(node, ast.ClassDef)}

    def of(name: str) -> dict[str, list[str]]:
        node = classes[name]
        methods: dict[str, list[str]] = {}
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in classes:
                methods.update(of(base.id))
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef):
                methods[inner.name] = [argument.arg for argument in inner.args.args[1:]]
        return methods

    return {name: of(name) for name in classes}


_GENERATED = {"set_versionstamped_key", "set_versionstamped_value", "set_timeout", "set_priority_system_immediate"}
_OURS = {"decide", "read_code", "become_ready"}


def test_the_stand_in_has_the_calls_of_the_binding() -> None:
    """Names and order of the arguments. What the binding generates (options, versionstamps) is in the table of its options."""
    methods = _methods(ast.parse((_binding_source() / "impl.py").read_text()))
    for ours, theirs in (
        (fdb_binding.Transaction, "Transaction"),
        (fdb_binding._Snapshot, "TransactionRead"),
        (fdb_binding.Future, "Future"),
        (fdb_binding.KeySelector, "KeySelector"),
    ):
        for name, function in inspect.getmembers(ours, inspect.isfunction):
            if (name.startswith("_") and name != "_get_range") or name in _GENERATED | _OURS:
                continue
            arguments = list(inspect.signature(function).parameters)[1:]
            assert methods[theirs][name][: len(arguments)] == arguments, f"{theirs}.{name}"
    assert "create_transaction" in methods["Database"]
    assert {"first_greater_than", "first_greater_or_equal"} <= set(methods["KeySelector"])
    options = (_binding_source() / "fdboptions.py").read_text()
    for name in ("timeout", "priority_system_immediate", "retryable_not_committed", "want_all", "set_versionstamped_key"):
        assert f'"{name}"' in options, name


def test_the_engine_calls_nothing_that_the_stand_in_has_not() -> None:
    """So that a call which this stand-in does not know fails in the tests above, and not at a user's."""
    tree = ast.parse(Path(fdb.__file__).read_text())
    called = {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) in ("made", "made.snapshot", "made.options", "future", "signal", "retried", "self._database")
    }
    kinds = (fdb_binding.Transaction, fdb_binding._Snapshot, fdb_binding._Options, fdb_binding.Future, fdb_binding.Database)
    known = {name for kind in kinds for name in dir(kind)}
    assert called and called <= known
