"""A database of every released version opens with all that was in it; migrations go forward, whole, and only when asked for."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from flintmq.cli import db as cli_db
from flintmq.cli.main import cli
from flintmq.errors import OperatorError
from flintmq.ports import BindingRecord, ExchangeRecord, PermissionRecord, QueueRecord
from flintmq.store.sql import definitions as definitions_module
from flintmq.store.sql import driver, migrate
from flintmq.store.sql.definitions import SqlDefinitions
from tests.support.postgres import PostgresServer

HERE = Path(__file__).parent


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A store directory with a database as version 0001 wrote it."""
    connection = sqlite3.connect(tmp_path / "definitions.db")
    connection.executescript((HERE / "fixtures/v0001.sql").read_text())
    connection.close()
    return tmp_path


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """This FlintMQ knows version 0002."""
    monkeypatch.setattr(migrate, "FOLDERS", [*migrate.FOLDERS, HERE / "next_version"])
    for module in (driver, definitions_module, cli_db):
        monkeypatch.setattr(module, "SCHEMA_VERSION", "0002")


def rows(path: Path, query: str) -> Sequence[tuple[object, ...]]:
    connection = sqlite3.connect(path / "definitions.db")
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def dump(path: Path) -> str:
    connection = sqlite3.connect(path / "definitions.db")
    try:
        return "\n".join(connection.iterdump())
    finally:
        connection.close()


def check_contents(opened: SqlDefinitions) -> None:
    """What fixtures/v0001.sql holds."""
    assert opened.store_uuid == bytes(range(16))
    assert opened.queue_id_high_water == 1000
    assert [record.name for record in opened.load_vhosts()] == ["/", "orders"]
    assert [(record.name, record.tags) for record in opened.load_users()] == [("ada", ("administrator",))]
    assert list(opened.load_permissions()) == [PermissionRecord("ada", "orders", "^a", "", ".*")]
    assert list(opened.load_exchanges("orders")) == [
        ExchangeRecord("orders", "events", "topic", False, True, {"alternate-exchange": "spare"})
    ]
    for queue_id, vhost in ((1, "/"), (2, "orders")):
        assert list(opened.load_queues(vhost)) == [QueueRecord(vhost, "work", queue_id, False, {"x-max-length": 1000, "raw": b"\xff"})]
        assert opened.load_bindings(vhost)[0] == BindingRecord(vhost, "amq.topic", "queue", "work", b"a.\xff")
    assert opened.load_bindings("orders")[1] == BindingRecord("orders", "events", "exchange", "amq.fanout", b"#", {"n": 1})


def test_a_released_version_opens(released: Path) -> None:
    opened = SqlDefinitions.open(released)
    check_contents(opened)
    assert opened.new_queue_id() == 1001
    opened.close()


@pytest.mark.usefixtures("next_version")
def test_an_older_version_is_migrated_at_the_start(released: Path) -> None:
    for _ in range(2):
        opened = SqlDefinitions.open(released)
        assert not opened.created
        check_contents(opened)
        opened.close()
    assert rows(released, "SELECT version_num FROM alembic_version") == [("0002",)]
    assert rows(released, "SELECT text FROM notes") == [("migrated",)]
    assert rows(released, "SELECT DISTINCT note FROM queues") == [("none",)]
    assert rows(released, "PRAGMA foreign_key_check") == []


@pytest.mark.usefixtures("next_version")
def test_a_migration_that_fails_changes_nothing(
    released: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = tmp_path_factory.mktemp("versions")
    text = (HERE / "next_version/0002_notes.sqlite.sql").read_text()
    (scripts / "0002_notes.sqlite.sql").write_text(text + "INSERT INTO half_way VALUES (1);\n")
    monkeypatch.setattr(migrate, "FOLDERS", [migrate.FOLDERS[0], scripts])
    before = dump(released)
    with pytest.raises(
        OperatorError, match=r"migration of .*definitions\.db failed, nothing has changed: .*no such table: half_way"
    ) as failed:
        SqlDefinitions.open(released)
    assert failed.value.exit_code == 78
    assert dump(released) == before


@pytest.mark.usefixtures("next_version")
def test_a_migration_that_breaks_references_is_refused(
    released: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = tmp_path_factory.mktemp("versions")
    text = (HERE / "next_version/0002_notes.sqlite.sql").read_text()
    (scripts / "0002_notes.sqlite.sql").write_text(text + "DELETE FROM vhosts WHERE name = 'orders';\n")
    monkeypatch.setattr(migrate, "FOLDERS", [migrate.FOLDERS[0], scripts])
    before = dump(released)
    with pytest.raises(OperatorError, match="references"):
        SqlDefinitions.open(released)
    assert dump(released) == before


@pytest.mark.usefixtures("next_version")
def test_a_rebuilt_table_does_not_take_its_children_along(
    released: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = tmp_path_factory.mktemp("versions")
    text = (HERE / "next_version/0002_notes.sqlite.sql").read_text()
    columns = "name TEXT NOT NULL PRIMARY KEY, description TEXT NOT NULL, more TEXT"
    rebuild = f"""
CREATE TABLE vhosts_new ({columns}) WITHOUT ROWID;
INSERT INTO vhosts_new SELECT name, description, NULL FROM vhosts;
DROP TABLE vhosts;
ALTER TABLE vhosts_new RENAME TO vhosts;
"""
    (scripts / "0002_notes.sqlite.sql").write_text(text + rebuild)
    monkeypatch.setattr(migrate, "FOLDERS", [migrate.FOLDERS[0], scripts])
    opened = SqlDefinitions.open(released)
    check_contents(opened)
    opened.close()


def test_a_newer_version_is_refused_by_name(released: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        for module in (driver, definitions_module):
            patched.setattr(module, "SCHEMA_VERSION", "0002")
        patched.setattr(migrate, "FOLDERS", [*migrate.FOLDERS, HERE / "next_version"])
        SqlDefinitions.open(released).close()
    before = dump(released)
    with pytest.raises(OperatorError, match=r"schema version 0002, this FlintMQ knows 0001") as refused:
        SqlDefinitions.open(released)
    assert refused.value.exit_code == 78
    assert dump(released) == before


# --- the command --------------------------------------------------------------------------------------------------------


def command(*arguments: object) -> None:
    cli.main(["db", "migrate", *map(str, arguments)], standalone_mode=False)


@pytest.mark.usefixtures("next_version")
def test_a_dry_run_prints_the_sql_and_changes_nothing(released: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = dump(released)
    command("--dry-run", "--store-dir", released)
    printed = capsys.readouterr().out
    assert dump(released) == before
    assert "CREATE TABLE notes" in printed
    assert "ALTER TABLE queues ADD COLUMN note" in printed
    # What was printed is what a person could run.
    connection = sqlite3.connect(released / "definitions.db")
    connection.executescript(printed)
    connection.close()
    opened = SqlDefinitions.open(released)
    check_contents(opened)
    opened.close()


@pytest.mark.usefixtures("next_version")
def test_the_command_migrates_once(released: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("--store-dir", released)
    assert capsys.readouterr().out.splitlines() == [
        "0002: Queues get a note; the table of queues is rebuilt where the database can't alter it.",
        f"{released}/definitions.db: schema 0001 -> 0002",
    ]
    command("--store-dir", released)
    assert capsys.readouterr().out == f"{released}/definitions.db: schema 0002, nothing to do\n"


def test_the_command_makes_no_database(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"definitions\.db does not exist"):
        command("--store-dir", tmp_path)
    with pytest.raises(OperatorError, match=r"give --store-dir or --connect") as refused:
        command()
    assert refused.value.exit_code == 64
    sqlite3.connect(tmp_path / "definitions.db").close()
    with pytest.raises(OperatorError, match="is empty"):
        command("--store-dir", tmp_path)


def test_a_store_in_use_is_not_migrated(released: Path) -> None:
    import fcntl

    with (released / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OperatorError, match="stop the broker") as refused:
            command("--store-dir", released)
        assert refused.value.exit_code == 69


@pytest.mark.usefixtures("next_version")
def test_the_same_on_postgres(
    postgres: PostgresServer, catalog: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    postgres.execute(f"CREATE DATABASE {catalog}")
    with monkeypatch.context() as patched:
        for module in (driver, definitions_module):
            patched.setattr(module, "SCHEMA_VERSION", "0001")
        patched.setattr(migrate, "FOLDERS", migrate.FOLDERS[:1])
        opened = SqlDefinitions(postgres.url(), catalog)
        opened.save_queue(QueueRecord("/", "q", opened.new_queue_id()))
        with pytest.raises(OperatorError, match="in use by another broker"):
            command("--connect", postgres.url(), "--catalog", catalog)
        opened.close()
    command("--connect", postgres.url(), "--catalog", catalog, "--dry-run")
    printed = capsys.readouterr().out
    assert "CREATE TABLE notes" in printed
    assert postgres.execute("SELECT version_num FROM alembic_version", database=catalog) == [("0001",)]
    command("--connect", postgres.url(), "--catalog", catalog)
    shown = capsys.readouterr().out
    assert "schema 0001 -> 0002" in shown
    assert postgres.password not in shown
    assert postgres.execute("SELECT name, note FROM queues", database=catalog) == [("q", "none")]
    reopened = SqlDefinitions(postgres.url(catalog))
    assert [record.name for record in reopened.load_queues("/")] == ["q"]
    reopened.close()


def test_the_command_makes_no_catalog(postgres: PostgresServer, catalog: str) -> None:
    with pytest.raises(OperatorError, match="cannot connect"):
        command("--connect", postgres.url(), "--catalog", catalog)
    assert postgres.execute(f"SELECT 1 FROM pg_database WHERE datname = '{catalog}'") == []
