"""The embedded engine: kill -9, a disk that is full, a disk that fails."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.kv.engine import Conflict, TooOld, Unavailable, UnknownOutcome
from flintmq.kv.resolver import Resolver
from flintmq.kv.sqlite_engine import SqliteEngine
from flintmq.kv.writes import Request
from flintmq.shared.owners import Owners
from flintmq.shared.queue import SharedQueue, declare_queue

LIMITS = Limits()

WRITER = """
import sys
from pathlib import Path
from flintmq.config import Limits
from flintmq.kv.sqlite_engine import SqliteEngine
from flintmq.shared.owners import Owners
from flintmq.shared.queue import Message, SharedQueue, declare_queue
engine = SqliteEngine(Path(sys.argv[1]), Limits())
owners = Owners(engine, Limits())
keys = declare_queue(engine, "/", "q")
queue = SharedQueue(engine, keys, owners.register(), Limits())
owners.uses(keys.life)
number = 0
while True:
    queue.enqueue([Message(b"%08d" % (number + step)) for step in range(3)])
    number += 3
    print(number, flush=True)
    if number % 9 == 0:
        taken, _ = queue.take(2, 1 << 20)
        queue.settle(taken[:1])
        print("settled", taken[0].content.decode(), flush=True)
"""


def test_what_was_committed_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    said = [writer.stdout.readline() for _ in range(25)]
    writer.send_signal(signal.SIGKILL)
    said += writer.stdout.read().splitlines(keepends=True)
    writer.stdout.close()
    writer.wait()
    said = [line for line in said if line.endswith("\n")]
    enqueued = max(int(line) for line in said if not line.startswith("settled"))
    settled = {line.split()[1].encode() for line in said if line.startswith("settled")}
    engine = SqliteEngine(path, LIMITS)
    owners = Owners(engine, LIMITS)
    owner = owners.register()
    owners.look(others_are_gone=True)
    queue = SharedQueue(engine, declare_queue(engine, "/", "q"), owner, LIMITS)
    found: list[Any] = []
    while taken := queue.take(500, 1 << 20)[0]:
        found += taken
        queue.settle(taken)
    contents = [one.content for one in found]
    assert contents == sorted(set(contents)), "each once, in order"
    lost = {b"%08d" % number for number in range(enqueued)} - set(contents) - settled
    assert len(lost) <= 1, "but for a settlement that was not told of any more"
    assert not settled & set(contents)
    assert any(one.meta.redelivered for one in found)
    engine.close()


class Failing:
    """A writer's connection whose COMMIT fails."""

    def __init__(self, connection: sqlite3.Connection, error: sqlite3.Error) -> None:
        self._connection = connection
        self.error: sqlite3.Error | None = error

    def execute(self, text: str, *arguments: Any) -> Any:
        if text == "COMMIT" and self.error is not None:
            raise self.error
        return self._connection.execute(text, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def failing(engine: SqliteEngine, code: int) -> Failing:
    error = sqlite3.OperationalError("injected")
    error.sqlite_errorcode = code
    writer = Failing(engine._writer, error)
    engine._writer = writer  # type: ignore[assignment]
    return writer


def put(engine: SqliteEngine, key: bytes, value: bytes) -> None:
    transaction = engine.begin()
    transaction.get(key)
    transaction.set(key, value)
    transaction.commit()


def test_a_full_disk_leaves_nothing_and_is_over_when_there_is_room(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "shared.db", LIMITS)
    put(engine, b"a", b"1")
    writer = failing(engine, sqlite3.SQLITE_FULL)
    with pytest.raises(Unavailable):
        put(engine, b"a", b"2")
    assert engine.begin().get(b"a") == b"1"
    writer.error = None
    put(engine, b"a", b"3")
    assert engine.begin().get(b"a") == b"3"
    engine.close()


def test_an_error_of_the_disk_is_final(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "shared.db", LIMITS)
    writer = failing(engine, sqlite3.SQLITE_IOERR)
    with pytest.raises(UnknownOutcome):
        put(engine, b"a", b"2")
    writer.error = None
    with pytest.raises(Unavailable, match="failed"):
        put(engine, b"a", b"3")
    engine.close()


def test_a_bug_while_committing_is_no_success_for_those_who_wait(tmp_path: Path) -> None:
    """Whoever holds the writer commits for others, too: they are in its line when it fails."""
    engine = SqliteEngine(tmp_path / "shared.db", LIMITS)
    ended: list[BaseException | None] = []

    def commit(value: Any) -> None:
        transaction = engine.begin()
        transaction.set(b"a", value)
        try:
            transaction.commit()
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    with engine._writing:
        threads = [threading.Thread(target=commit, args=(value,)) for value in (b"1", _NoBytes(b"3"), b"2")]
        for thread in threads:
            thread.start()
        while len(engine._line) < 3:
            threading.Event().wait(0.001)
    for thread in threads:
        thread.join()
    assert len(ended) == 3
    assert None not in ended
    engine.close()


class _NoBytes(bytes):
    """A value that SQLite's binding refuses with an error of its own."""

    def __conform__(self, protocol: Any) -> Any:
        raise RuntimeError("injected")


def test_a_file_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    SqliteEngine(tmp_path / "shared.db", LIMITS).close()
    with sqlite3.connect(tmp_path / "shared.db") as connection:
        connection.execute("UPDATE versions SET value = 2 WHERE name = 'format'")
    with pytest.raises(Unavailable, match="format 2"):
        SqliteEngine(tmp_path / "shared.db", LIMITS)


def test_a_closed_engine_says_so(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "shared.db", LIMITS)
    transaction = engine.begin()
    transaction.set(b"a", b"1")
    engine.close()
    engine.close()
    with pytest.raises(Unavailable):
        transaction.commit()
    with pytest.raises(Unavailable):
        engine.begin()


def test_what_is_forgotten_makes_older_reads_too_old() -> None:
    resolver = Resolver(writes_max=2)
    for version in range(1, 5):
        resolver.note(version, [b"k%d" % version], [])
    old = Request(read_version=1, points={b"x"})
    with pytest.raises(TooOld):
        resolver.check(old)
    resolver.check(Request(read_version=4, points={b"k4"}))
    with pytest.raises(Conflict):
        resolver.check(Request(read_version=3, points={b"k4"}))
    assert resolver.changed_since(b"x", 1)
    assert not resolver.changed_since(b"x", 3)
