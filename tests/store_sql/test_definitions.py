"""SqlDefinitions beyond the contract: restarts, ids, submitted groups, constraint and disk errors, what the file looks like."""

from __future__ import annotations

import os
import resource
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.clock import ManualClock
from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode, StoreError
from flintmq.ports import BindingRecord, Definitions, ExchangeRecord, PermissionRecord, QueueRecord, UserRecord, VhostRecord
from flintmq.protocol.v0_9_1.codec import Timestamp
from flintmq.store.sql.changes import Change, Delete, Save
from flintmq.store.sql.definitions import SqlDefinitions
from flintmq.store.sql.failures import NotSaved
from tests.support.postgres import PostgresServer


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database that does not exist yet; with the catalog in it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/d.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    catalog: str = request.getfixturevalue("catalog")
    server.execute(f"CREATE DATABASE {catalog}")
    return server.url(catalog)


@pytest.fixture
def definitions(location: str) -> Iterator[SqlDefinitions]:
    opened = SqlDefinitions(location)
    yield opened
    opened.close()


def submit(definitions: SqlDefinitions, *changes: Change) -> Exception | None:
    """`submit`, waited for."""
    done = threading.Event()
    answers: list[Exception | None] = []

    def answer(error: Exception | None) -> None:
        answers.append(error)
        done.set()

    definitions.submit(changes, answer)
    assert done.wait(30)
    assert len(answers) == 1
    return answers[0]


def test_it_is_a_definitions(definitions: SqlDefinitions) -> None:
    assert isinstance(definitions, Definitions)


def test_everything_is_there_after_a_restart(location: str) -> None:
    first = SqlDefinitions(location, clock=ManualClock(wall_ms=1_700_000_000_123))
    assert first.created
    arguments = {"at": Timestamp(5), "!bytes": "mine", "n": [1, {"x": None}], "b": b"\0\xff"}
    name = b"q\xff\\\0".decode("utf-8", "surrogateescape")
    vhost = VhostRecord("v\\\0é", "text \ud800")
    user = UserRecord("ü", "$argon2id$", ("administrator", "a,b"))
    permission = PermissionRecord("ü", vhost.name, "^a\\.b$", "", ".*\\\\")
    exchange = ExchangeRecord(vhost.name, name, "headers", True, False, arguments)
    queue = QueueRecord(vhost.name, name, first.new_queue_id(), True, arguments)
    binding = BindingRecord(vhost.name, "amq.topic", "queue", name, b"\0\xff", arguments)
    for save, record in (
        (first.save_vhost, vhost), (first.save_user, user), (first.save_permission, permission),
        (first.save_exchange, exchange), (first.save_queue, queue), (first.save_binding, binding),
    ):  # fmt: skip
        save(record)  # type: ignore[operator]
    store_uuid = first.store_uuid
    first.close()
    second = SqlDefinitions(location, timestamp=Timestamp)
    assert not second.created
    assert second.store_uuid == store_uuid
    assert len(store_uuid) == 16
    assert second.store_format == 1
    assert [record.name for record in second.load_vhosts()] == ["/", vhost.name]
    assert second.load_vhosts()[1] == vhost
    assert list(second.load_users()) == [user]
    assert list(second.load_permissions()) == [permission]
    assert list(second.load_exchanges(vhost.name)) == [exchange]
    assert list(second.load_queues(vhost.name)) == [queue]
    assert list(second.load_bindings(vhost.name)) == [binding]
    assert type(second.load_queues(vhost.name)[0].arguments["at"]) is Timestamp
    second.close()


def test_two_stores_have_two_uuids(tmp_path: Path) -> None:
    found = set()
    for name in ("a", "b"):
        opened = SqlDefinitions(f"sqlite:///{tmp_path}/{name}.db")
        found.add(opened.store_uuid)
        opened.close()
    assert len(found) == 2


def test_queue_ids_go_on_above_every_reserved_one(location: str) -> None:
    limits = Limits(queue_id_block=10)
    first = SqlDefinitions(location, limits=limits)
    assert first.queue_id_high_water == 0
    ids = [first.new_queue_id() for _ in range(25)]
    assert ids == list(range(1, 26))
    assert first.queue_id_high_water == 30
    # Not closed in order: what a crash leaves is all that counts.
    high_water = first.queue_id_high_water
    first.close()
    second = SqlDefinitions(location, limits=limits)
    assert second.queue_id_high_water == high_water
    second.save_queue(QueueRecord("/", "of an earlier run", 30))
    with pytest.raises(ValueError, match="31"):
        second.save_queue(QueueRecord("/", "q", 31))
    assert second.new_queue_id() == 31
    second.close()


def test_ids_cost_one_commit_a_block(definitions: SqlDefinitions) -> None:
    before = definitions.transactions
    for _ in range(3 * Limits().queue_id_block):
        definitions.new_queue_id()
    assert definitions.transactions - before == 3


def test_a_queue_may_get_a_new_id_and_frees_the_old_one(definitions: SqlDefinitions) -> None:
    one, two = definitions.new_queue_id(), definitions.new_queue_id()
    definitions.save_queue(QueueRecord("/", "q", one))
    definitions.save_queue(QueueRecord("/", "q", two))
    definitions.save_queue(QueueRecord("/", "r", one))
    assert {(record.name, record.queue_id) for record in definitions.load_queues("/")} == {("q", two), ("r", one)}


@pytest.mark.parametrize("kind", ["exchange", "queue", "binding", "permission"])
def test_nothing_is_saved_into_a_vhost_that_is_not_there(definitions: SqlDefinitions, kind: str) -> None:
    records = {
        "exchange": ExchangeRecord("gone", "x", "direct"),
        "queue": QueueRecord("gone", "q", definitions.new_queue_id()),
        "binding": BindingRecord("gone", "x", "queue", "q", b""),
        "permission": PermissionRecord("u", "gone"),
    }
    with pytest.raises(PeerError, match="vhost gone not found") as refused:
        getattr(definitions, f"save_{kind}")(records[kind])
    assert refused.value.code is ReplyCode.NOT_ALLOWED
    error = submit(definitions, Save(records[kind]))  # type: ignore[arg-type]
    assert isinstance(error, PeerError)
    assert definitions.failed is None


def test_a_submission_is_all_or_nothing(definitions: SqlDefinitions) -> None:
    one, two = definitions.new_queue_id(), definitions.new_queue_id()
    binding = BindingRecord("/", "amq.direct", "queue", "a", b"k")
    assert submit(definitions, Save(QueueRecord("/", "a", one)), Save(binding)) is None
    error = submit(definitions, Delete(binding), Save(QueueRecord("/", "b", two)), Save(QueueRecord("/", "c", one)))
    assert isinstance(error, ValueError)
    assert [record.name for record in definitions.load_queues("/")] == ["a"]
    assert list(definitions.load_bindings("/")) == [binding]


def test_a_group_with_a_bad_submission_in_it_saves_the_others(definitions: SqlDefinitions) -> None:
    ids = [definitions.new_queue_id() for _ in range(2)]
    definitions.save_queue(QueueRecord("/", "owner", ids[0]))
    before = definitions.transactions
    answers: dict[str, Exception | None] = {}
    done = threading.Event()

    def submit_one(name: str, change: Change) -> None:
        def answer(error: Exception | None) -> None:
            answers[name] = error
            if len(answers) == 4:
                done.set()

        definitions.submit([change], answer)

    with definitions._group.connection_lock:  # nothing is committed before all four wait
        submit_one("user", Save(UserRecord("u")))
        submit_one("taken", Save(QueueRecord("/", "thief", ids[0])))
        submit_one("queue", Save(QueueRecord("/", "honest", ids[1])))
        submit_one("vhost", Save(ExchangeRecord("gone", "x", "direct")))
    assert done.wait(30)
    assert answers["user"] is None
    assert answers["queue"] is None
    assert isinstance(answers["taken"], ValueError)
    assert isinstance(answers["vhost"], PeerError)
    assert [record.name for record in definitions.load_users()] == ["u"]
    assert [record.name for record in definitions.load_queues("/")] == ["owner", "honest"]
    assert definitions.transactions - before == 2


def test_submitted_records_of_every_kind_can_be_deleted_by_identity(definitions: SqlDefinitions) -> None:
    queue_id = definitions.new_queue_id()
    records = [
        VhostRecord("v"), UserRecord("u"), PermissionRecord("u", "/", ".*"), ExchangeRecord("/", "x", "topic"),
        QueueRecord("/", "q", queue_id), BindingRecord("/", "y", "queue", "z", b"k", {"a": 1}),
    ]  # fmt: skip
    assert submit(definitions, *map(Save, records)) is None
    assert len(definitions.load_vhosts()) == 2
    assert submit(definitions, *map(Delete, records)) is None
    assert submit(definitions, *map(Delete, records)) is None
    assert len(definitions.load_vhosts()) == 1
    for found in (
        definitions.load_users(), definitions.load_permissions(), definitions.load_exchanges("/"), definitions.load_queues("/"),
        definitions.load_bindings("/"),
    ):  # fmt: skip
        assert not found


def test_a_queue_id_that_was_not_given_out_is_refused_at_once(definitions: SqlDefinitions) -> None:
    with pytest.raises(ValueError, match="999999"):
        definitions.submit([Save(QueueRecord("/", "q", 999_999))], lambda error: None)
    assert not definitions.load_queues("/")


def test_after_close_nothing_is_taken(location: str) -> None:
    opened = SqlDefinitions(location)
    opened.close()
    opened.close()
    with pytest.raises(StoreError, match="closed"):
        opened.save_user(UserRecord("u"))


# --- SQLite only --------------------------------------------------------------------------------------------------------


def test_the_file_is_private_and_set_to_survive_power_failures(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        opened = SqlDefinitions.open(tmp_path)
    finally:
        os.umask(old)
    opened.save_user(UserRecord("u"))
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["definitions.db", "definitions.db-shm", "definitions.db-wal"]
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    pragma = opened._driver._connection.execute  # type: ignore[attr-defined]
    assert [pragma(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous", "foreign_keys")] == ["wal", 2, 1]
    opened.close()
    assert [path.name for path in tmp_path.iterdir()] == ["definitions.db"]


def test_a_full_disk_refuses_the_change_and_the_next_one_may_succeed(tmp_path: Path) -> None:
    opened = SqlDefinitions.open(tmp_path)
    pragma = opened._driver._connection.execute  # type: ignore[attr-defined]
    pages = pragma("PRAGMA page_count").fetchone()[0]
    pragma(f"PRAGMA max_page_count={pages}")
    with pytest.raises(NotSaved, match="full"):
        opened.save_user(UserRecord("u", "x" * 100_000))
    assert isinstance(submit(opened, Save(UserRecord("v", "x" * 100_000))), NotSaved)
    assert opened.failed is None
    opened.save_user(UserRecord("small"))
    pragma(f"PRAGMA max_page_count={pages + 1000}")
    opened.save_user(UserRecord("u", "x" * 100_000))
    assert [record.name for record in opened.load_users()] == ["small", "u"]
    opened.close()


def test_an_io_error_is_latched_names_the_file_and_loses_nothing(tmp_path: Path) -> None:
    opened = SqlDefinitions.open(tmp_path)
    opened.save_user(UserRecord("before"))
    saved = 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # write fails with EFBIG
    try:
        with pytest.raises(StoreError, match=r"definitions\.db.*SQLITE_IOERR"):
            for saved in range(10_000):
                opened.save_user(UserRecord(f"u{saved}", "x" * 100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert opened.failed is not None
    with pytest.raises(StoreError, match="SQLITE_IOERR"):
        opened.save_user(UserRecord("after"))
    opened.close()
    again = SqlDefinitions.open(tmp_path)
    assert {record.name for record in again.load_users()} == {"before", *(f"u{number}" for number in range(saved))}
    again.close()


def test_another_processs_lock_refuses_the_change_only(tmp_path: Path) -> None:
    opened = SqlDefinitions.open(tmp_path, limits=Limits(sql_busy_ms=1))
    other = sqlite3.connect(tmp_path / "definitions.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(NotSaved, match="locked"):
        opened.save_user(UserRecord("u"))
    other.execute("ROLLBACK")
    other.close()
    opened.save_user(UserRecord("u"))
    assert opened.failed is None
    opened.close()


def test_damaged_arguments_are_a_store_error_that_names_the_file(tmp_path: Path) -> None:
    opened = SqlDefinitions.open(tmp_path)
    opened.save_exchange(ExchangeRecord("/", "x", "direct", arguments={"a": 1}))
    opened._driver._connection.execute("UPDATE exchanges SET arguments = '{'")  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match=r"definitions\.db"):
        opened.load_exchanges("/")
    opened.close()


def test_a_start_with_the_default_database_imports_no_driver_of_a_server(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from flintmq.store.sql.definitions import SqlDefinitions; d = SqlDefinitions.open(pathlib.Path(sys.argv[1]));"
        " d.save_queue(__import__('flintmq.ports').ports.QueueRecord('/', 'q', d.new_queue_id())); d.load_queues('/'); d.close();"
        " print([name for name in ('psycopg',) if name in sys.modules])"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
        assert done.stdout == "[]\n"


def test_many_rows_are_read_in_pieces(definitions: SqlDefinitions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that come in several pieces are all rows in their order, also when something is saved between two pieces; the ids are those of
    all virtual hosts."""
    monkeypatch.setattr("flintmq.store.sql.sqlite_driver._PIECE_ROWS", 7)
    definitions.save_vhost(VhostRecord("other"))
    records = [QueueRecord(vhost, f"q{number}", definitions.new_queue_id()) for number in range(20) for vhost in ("/", "other")]
    assert submit(definitions, *(Save(record) for record in records)) is None
    rows = definitions.queue_rows("/")
    names = [next(rows)[0] for _ in range(8)]
    definitions.save_exchange(ExchangeRecord("/", "x", "direct"))
    names += [row[0] for row in rows]
    assert names == [record.name for record in records if record.vhost == "/"]
    assert definitions.queue_ids() == {record.queue_id for record in records}
