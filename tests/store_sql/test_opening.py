"""What can't be opened is refused in one line that names the cause and the fix, without a password, with the right exit code."""

from __future__ import annotations

import socket
import sqlite3
import threading
from pathlib import Path

import pytest

from flintmq.config import Limits
from flintmq.errors import OperatorError, StoreError
from flintmq.ports import UserRecord
from flintmq.store.sql import postgres_driver
from flintmq.store.sql.definitions import SqlDefinitions
from flintmq.store.sql.location import locate
from tests.support.broker import wait_until
from tests.support.postgres import PostgresServer


def refusal(url: str, catalog: str | None = None) -> OperatorError:
    with pytest.raises(OperatorError) as refused:
        SqlDefinitions(url, catalog, limits=Limits(sql_busy_ms=50))
    text = str(refused.value)
    assert "\n" not in text
    assert "hunter2" not in text
    return refused.value


# --- URLs ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("definitions.db", "is no URL"),
        ("host=db password=hunter2", "is no URL"),
        ("://", "no URL that can be read"),
        ("postgresql://u:hunter2@h:port/d", "no URL that can be read"),
        ("nodb://u:hunter2@h/d", "use sqlite:///PATH or postgresql://"),
        ("mysql://u:hunter2@h/d", "not supported"),
        ("postgres://u:hunter2@h/d", "write postgresql://"),
        ("postgresql+psycopg2://u:hunter2@h/d", "psycopg 3"),
        ("postgresql://u:hunter2@h", "no database named"),
        ("sqlite://", "must be kept in a file"),
        ("sqlite:///", "must be kept in a file"),
        ("sqlite:///:memory:", "must be kept in a file"),
        ("sqlite:///x.db?mode=memory", "options after"),
    ],
)
def test_a_url_that_cannot_be_used(url: str, expected: str) -> None:
    error = refusal(url)
    assert expected in str(error)
    assert error.exit_code == 78


@pytest.mark.parametrize("catalog", ["a/b", "..", "a\\b", "a\nb"])
def test_a_catalog_that_is_no_file_name(catalog: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="--catalog"):
        locate(None, catalog, tmp_path)


def test_where_the_database_is(tmp_path: Path) -> None:
    assert locate(None, None, tmp_path).path == tmp_path / "definitions.db"
    assert locate(None, "second", tmp_path).path == tmp_path / "second.db"
    assert locate("sqlite:////abs/x.db", None, tmp_path).path == Path("/abs/x.db")
    assert locate("sqlite+pysqlite:///rel/x.db").path == Path("rel/x.db")
    assert locate("postgresql://h/d", "c").catalog == "c"
    with pytest.raises(OperatorError, match="--catalog"):
        locate("sqlite:////abs/x.db", "c")


# --- SQLite -------------------------------------------------------------------------------------------------------------


def test_a_missing_directory(tmp_path: Path) -> None:
    error = refusal(f"sqlite:///{tmp_path}/none/d.db")
    assert "No such file or directory" in str(error)
    assert "--store-dir" in str(error)
    assert error.exit_code == 69


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "d.db").write_bytes(b"something else entirely" * 100)
    assert "is no SQLite database" in str(refusal(f"sqlite:///{tmp_path}/d.db"))
    assert (tmp_path / "d.db").read_bytes() == b"something else entirely" * 100


@pytest.mark.parametrize("table", ["users", "alembic_version", "store"])
def test_a_database_of_something_else(tmp_path: Path, table: str) -> None:
    connection = sqlite3.connect(tmp_path / "d.db")
    connection.execute(f"CREATE TABLE {table} (version_num TEXT)")
    connection.close()
    assert f"belongs to something else (it has tables {table})" in str(refusal(f"sqlite:///{tmp_path}/d.db"))


@pytest.mark.parametrize("version", ["", "abc", "1", "00001", "0x01"])
def test_a_version_that_is_none_of_ours(tmp_path: Path, version: str) -> None:
    SqlDefinitions.open(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "definitions.db")
    connection.execute("UPDATE alembic_version SET version_num = ?", [version])
    connection.commit()
    connection.close()
    assert "no FlintMQ schema version" in str(refusal(f"sqlite:///{tmp_path}/definitions.db"))


@pytest.mark.parametrize("checked", [True, False])
def test_a_damaged_database_is_a_store_error(tmp_path: Path, checked: bool, caplog: pytest.LogCaptureFixture) -> None:
    SqlDefinitions.open(tmp_path).close()
    path = tmp_path / "definitions.db"
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    limits = Limits() if checked else Limits(sql_check_bytes_max=0)
    caplog.set_level("INFO")
    with pytest.raises(StoreError, match=r"definitions\.db"):
        SqlDefinitions.open(tmp_path, limits=limits).load_users()
    assert ("not checked" in caplog.text) is not checked


def test_damage_in_a_part_that_is_not_loaded_is_found(tmp_path: Path) -> None:
    opened = SqlDefinitions.open(tmp_path)
    (page,) = opened._driver._connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'policies'").fetchone()  # type: ignore[attr-defined]
    opened.close()
    path = tmp_path / "definitions.db"
    data = bytearray(path.read_bytes())
    data[(page - 1) * 4096] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"definitions\.db"):
        SqlDefinitions.open(tmp_path)


def test_a_locked_database(tmp_path: Path) -> None:
    SqlDefinitions.open(tmp_path).close()
    other = sqlite3.connect(tmp_path / "definitions.db", isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(OperatorError, match="is a broker running") as refused:
        SqlDefinitions.open(tmp_path, limits=Limits(sql_busy_ms=1))
    assert refused.value.exit_code == 69
    other.close()


def test_a_crash_before_the_tables_were_made(tmp_path: Path) -> None:
    (tmp_path / "definitions.db").touch()
    opened = SqlDefinitions.open(tmp_path)
    assert opened.created
    opened.close()


# --- PostgreSQL ---------------------------------------------------------------------------------------------------------


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as taken:  # bound, and nobody listens: no other process can begin to
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        error = refusal(f"postgresql://u:hunter2@127.0.0.1:{port}/d")
    assert f"cannot connect to postgresql://u:***@127.0.0.1:{port}/d" in str(error)
    assert error.exit_code == 69


def test_a_driver_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_driver, "psycopg", None)
    error = refusal("postgresql://u:hunter2@h/d")
    assert "pip install 'flintmq[postgres]'" in str(error)
    assert error.exit_code == 78


def test_a_wrong_password(postgres: PostgresServer) -> None:
    error = refusal(postgres.url(password="hunter2"), "postgres")
    assert "cannot connect" in str(error)
    assert error.exit_code == 69


def test_a_missing_catalog_is_made_and_used_again(postgres: PostgresServer, catalog: str) -> None:
    assert "cannot connect" in str(refusal(postgres.url(catalog)))  # named by the URL alone: not made
    for created in (True, False):
        opened = SqlDefinitions(postgres.url(), catalog)
        assert opened.created is created
        assert postgres.password not in opened.where
        opened.close()
    opened = SqlDefinitions(postgres.url(catalog))
    assert not opened.created
    opened.close()
    (encoding,) = postgres.execute(f"SELECT pg_encoding_to_char(encoding) FROM pg_database WHERE datname = '{catalog}'")
    assert encoding == ("UTF8",)


def test_a_catalog_that_may_not_be_made(postgres: PostgresServer, catalog: str) -> None:
    postgres.execute(f"CREATE ROLE {catalog} LOGIN PASSWORD 'hunter2'")
    error = refusal(postgres.url(user=catalog, password="hunter2"), f"{catalog}_d")
    assert "permission denied to create database" in str(error)
    assert f"{catalog} as owner" in str(error)
    assert error.exit_code == 78


def test_tables_that_may_not_be_made(postgres: PostgresServer, catalog: str) -> None:
    postgres.execute(f"CREATE DATABASE {catalog}", f"CREATE ROLE {catalog} LOGIN PASSWORD 'hunter2'")
    error = refusal(postgres.url(catalog, user=catalog, password="hunter2"))
    assert "no permission to create tables" in str(error)
    assert error.exit_code == 78
    assert postgres.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", database=catalog) == [(0,)]


def test_a_second_broker_on_the_same_database(postgres: PostgresServer, catalog: str) -> None:
    first = SqlDefinitions(postgres.url(), catalog)
    error = refusal(postgres.url(), catalog)
    assert "in use by another broker" in str(error)
    assert error.exit_code == 69
    first.save_user(UserRecord("u"))
    first.close()
    SqlDefinitions(postgres.url(), catalog).close()


def test_a_database_in_another_encoding(postgres: PostgresServer, catalog: str) -> None:
    postgres.execute(f"CREATE DATABASE {catalog} ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    assert "encoding SQL_ASCII" in str(refusal(postgres.url(catalog)))


def test_a_read_only_server(postgres: PostgresServer, catalog: str) -> None:
    postgres.execute(f"CREATE DATABASE {catalog}", f"ALTER DATABASE {catalog} SET default_transaction_read_only = on")
    assert "read only" in str(refusal(postgres.url(catalog)))


def test_a_lock_that_is_let_go_in_time_is_waited_for(postgres: PostgresServer, catalog: str) -> None:
    """A server ends a session some time after its client has: who restarts a broker must not be told that another one runs."""
    import psycopg

    postgres.execute(f"CREATE DATABASE {catalog}")
    opened: list[SqlDefinitions] = []
    with psycopg.connect(postgres.url(catalog), autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(%s)", [postgres_driver.LOCK_KEY])
        start = threading.Thread(target=lambda: opened.append(SqlDefinitions(postgres.url(catalog), limits=Limits(sql_busy_ms=60_000))))
        start.start()
        waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        wait_until(lambda: postgres.execute(waits, database=catalog), what="the second broker waits")
        assert not opened
    start.join(60)
    opened[0].save_user(UserRecord("u"))
    opened[0].close()


def test_commits_are_flushed_whatever_the_servers_default(postgres: PostgresServer, catalog: str) -> None:
    postgres.execute(f"CREATE DATABASE {catalog}", f"ALTER DATABASE {catalog} SET synchronous_commit = off")
    opened = SqlDefinitions(postgres.url(catalog))
    (value,) = opened._driver._connection.execute("SHOW synchronous_commit").fetchone()  # type: ignore[attr-defined]
    assert value == "on"
    opened.close()


def test_a_lost_connection_is_latched_since_the_lock_is_lost_with_it(postgres: PostgresServer, catalog: str) -> None:
    opened = SqlDefinitions(postgres.url(), catalog)
    opened.save_user(UserRecord("before"))
    postgres.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{catalog}'")
    with pytest.raises(StoreError, match=catalog) as lost:
        opened.save_user(UserRecord("after"))
    assert postgres.password not in str(lost.value)
    second = SqlDefinitions(postgres.url(), catalog)
    with pytest.raises(StoreError):
        opened.save_user(UserRecord("after"))
    assert [record.name for record in second.load_users()] == ["before"]
    second.close()
    opened.close()


def test_another_sessions_lock_refuses_the_change_only(postgres: PostgresServer, catalog: str) -> None:
    import psycopg

    from flintmq.store.sql.failures import NotSaved

    opened = SqlDefinitions(postgres.url(), catalog, limits=Limits(sql_busy_ms=1))
    with psycopg.connect(postgres.url(catalog)) as other:
        other.execute("LOCK TABLE users IN EXCLUSIVE MODE")
        with pytest.raises(NotSaved, match="55P03"):
            opened.save_user(UserRecord("u"))
        with pytest.raises(NotSaved, match="55P03"):
            opened.delete_user("u")
    opened.save_user(UserRecord("u"))
    assert opened.failed is None
    opened.close()
