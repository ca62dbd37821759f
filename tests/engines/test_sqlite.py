"""The embedded engine: kill -9, a second process, a disk that is full, a disk that fails, files of another form."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.engines.engine import Commit, Full, Unavailable, Unfit, UnknownOutcome
from flintmq.engines.sqlite import SqliteEngine

LIMITS = Limits()

# eight commits in flight, each compares the owner and writes a row of 20 KB; it says each number when it is answered
WRITER = """
import asyncio, itertools, sys
from pathlib import Path
from flintmq.config import Limits
from flintmq.engines.engine import Commit
from flintmq.engines.sqlite import SqliteEngine

async def main():
    engine = SqliteEngine(Path(sys.argv[1]), Limits())
    await engine.commit(Commit(puts={b"owner": b"me"}))
    numbers = itertools.count()
    async def one():
        for number in numbers:
            assert await engine.commit(Commit([(b"owner", b"me")], {b"a%08d" % number: bytes(20_000), b"b%08d" % number: b""}))
            print(number, flush=True)
    await asyncio.gather(*(one() for _ in range(8)))
asyncio.run(main())
"""


def run(path: Path, story: Callable[[SqliteEngine], Coroutine[Any, Any, None]], limits: Limits = LIMITS) -> None:
    async def whole() -> None:
        engine = SqliteEngine(path, limits)
        try:
            await asyncio.wait_for(story(engine), 60)
        finally:
            await engine.close()

    asyncio.run(whole())


def test_commits_that_were_answered_survive_kill_9_whole_and_the_file_opens_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    answered = [writer.stdout.readline() for _ in range(200)]
    writer.send_signal(signal.SIGKILL)
    answered += writer.stdout.read().splitlines(keepends=True)
    writer.stdout.close()
    writer.wait()
    numbers = {int(line) for line in answered if line.endswith("\n")}
    assert len(numbers) >= 200

    async def look(engine: SqliteEngine) -> None:
        kept = {half: {int(key[1:]) for key, _ in await engine.scan(half, half + b"\xff", 100_000, 1 << 30)} for half in (b"a", b"b")}
        assert kept[b"a"] == kept[b"b"] >= numbers

    run(path, look)


def test_a_second_process_is_refused_until_the_first_one_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None

    async def refused(engine: SqliteEngine) -> None:
        for _ in range(2):
            with pytest.raises(Unfit, match="another process"):
                await engine.commit(Commit(puts={b"owner": b"other"}))

    async def taken(engine: SqliteEngine) -> None:
        assert await engine.commit(Commit([(b"owner", b"me")], {b"owner": b"other"}))

    try:
        assert writer.stdout.readline() == "0\n"
        run(path, refused)
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    run(path, taken)


def test_the_files_are_their_owners_alone(tmp_path: Path) -> None:
    async def story(engine: SqliteEngine) -> None:
        await engine.commit(Commit(puts={b"a": b""}))
        for file in (tmp_path / "made").iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file

    run(tmp_path / "made" / "rows.db", story)
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700


class Failing:
    """A writer's connection whose COMMIT fails while there is an error."""

    def __init__(self, connection: sqlite3.Connection, code: int) -> None:
        self._connection = connection
        self.error: sqlite3.Error | None = sqlite3.OperationalError("injected")
        self.error.sqlite_errorcode = code  # type: ignore[attr-defined]

    def execute(self, text: str, *arguments: Any) -> Any:
        if text == "COMMIT" and self.error is not None:
            raise self.error
        return self._connection.execute(text, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


async def failing(engine: SqliteEngine, code: int) -> Failing:
    await engine.connect()
    assert engine._writer is not None
    writer = Failing(engine._writer, code)
    engine._writer = writer  # type: ignore[assignment]
    return writer


def test_a_full_disk_leaves_nothing_and_is_over_when_there_is_room(tmp_path: Path) -> None:
    async def story(engine: SqliteEngine) -> None:
        await engine.commit(Commit(puts={b"a": b"1"}))
        writer = await failing(engine, sqlite3.SQLITE_FULL)
        with pytest.raises(Full):
            await engine.commit(Commit(puts={b"a": b"2"}))
        assert await engine.get([b"a"]) == [b"1"]
        writer.error = None
        assert await engine.commit(Commit([(b"a", b"1")], {b"a": b"3"}))

    run(tmp_path / "rows.db", story)


def test_below_the_reserve_of_the_disk_puts_are_refused_and_deletes_are_made(tmp_path: Path) -> None:
    run(tmp_path / "rows.db", lambda engine: _put(engine, b"a"))

    async def story(engine: SqliteEngine) -> None:
        with pytest.raises(Full, match="MiB"):
            await engine.commit(Commit(puts={b"b": b"2"}))
        assert (await engine.usage()).full
        assert await engine.commit(Commit([(b"a", b"1")], deletes=[b"a"]))
        assert await engine.get([b"a", b"b"]) == [None, None]

    run(tmp_path / "rows.db", story, Limits(engine_sqlite_reserve_bytes=1 << 60))


async def _put(engine: SqliteEngine, key: bytes) -> None:
    await engine.commit(Commit(puts={key: b"1"}))


def test_an_error_of_the_disk_is_final_for_commits_and_reads(tmp_path: Path) -> None:
    async def story(engine: SqliteEngine) -> None:
        writer = await failing(engine, sqlite3.SQLITE_IOERR)
        group = [engine.commit(Commit(puts={b"a%d" % number: b""})) for number in range(3)]
        outcomes = await asyncio.gather(*group, return_exceptions=True)
        assert isinstance(outcomes[0], UnknownOutcome)
        assert all(isinstance(outcome, UnknownOutcome | Unavailable) for outcome in outcomes)
        writer.error = None
        for call in (engine.commit(Commit(puts={b"a": b"3"})), engine.get([b"a"]), engine.scan(b"", b"z", 1, 1), engine.usage()):
            with pytest.raises(Unavailable, match="failed"):
                await call

    run(tmp_path / "rows.db", story)


class _NoBytes(bytes):
    """A value that SQLite's binding refuses with an error of its own."""

    def __conform__(self, protocol: Any) -> Any:
        raise RuntimeError("injected")


def test_a_bug_while_committing_is_no_success_for_the_commits_that_wait(tmp_path: Path) -> None:
    async def story(engine: SqliteEngine) -> None:
        await engine.connect()
        values = (b"1", _NoBytes(b"2"), b"3")
        calls = [engine.commit(Commit(puts={b"a%d" % number: value})) for number, value in enumerate(values)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(outcomes[1], UnknownOutcome)
        assert outcomes[2] is not True

    run(tmp_path / "rows.db", story)


@pytest.mark.parametrize(
    ("statements", "text"),
    [
        ("CREATE TABLE rows (key); CREATE TABLE versions (name);", "earlier versions"),
        ("CREATE TABLE other (a);", "another program"),
        ("CREATE TABLE rows (key); PRAGMA application_id = 1179406706; PRAGMA user_version = 2;", "format 2"),
    ],
)
def test_a_file_of_another_form_is_left_as_it_is(tmp_path: Path, statements: str, text: str) -> None:
    path = tmp_path / "rows.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(statements)
    connection.close()
    before = path.read_bytes()

    async def story(engine: SqliteEngine) -> None:
        with pytest.raises(Unfit, match=text):
            await engine.connect()

    run(path, story)
    assert path.read_bytes() == before


def test_tidying_gives_room_back(tmp_path: Path) -> None:
    async def story(engine: SqliteEngine) -> None:
        keys = [b"%d" % number for number in range(8)]
        for key in keys:
            await engine.commit(Commit(puts={key: bytes(1 << 20)}))
        await engine.commit(Commit(deletes=keys))
        await engine.tidy()

    run(tmp_path / "rows.db", story)
    assert (tmp_path / "rows.db").stat().st_size < 1 << 20


def test_more_commits_than_may_wait_are_refused(tmp_path: Path) -> None:
    async def story(engine: SqliteEngine) -> None:
        await engine.connect()
        calls = [engine.commit(Commit(puts={b"%d" % number: b""})) for number in range(5)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [bool, bool, bool, Unavailable, Unavailable]
        assert await engine.commit(Commit([(b"2", b""), (b"3", None)])), "and the others go on"

    run(tmp_path / "rows.db", story, Limits(engine_sqlite_waiting_max=3))
