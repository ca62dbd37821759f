"""The three descriptions of the tables agree: Core metadata, the kept SQLite texts, and what the migrations make."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.dialects import mysql

from flintmq.store.sql import migrate, schema
from flintmq.store.sql.definitions import SqlDefinitions
from flintmq.store.sql.driver import SCHEMA_VERSION, TABLES, Location
from flintmq.store.sql.statements import compile_all
from tests.support.postgres import PostgresServer
from tools import gen_sqlite_text


def test_the_kept_texts_are_those_of_the_statements() -> None:
    assert gen_sqlite_text.TARGET.read_text() == gen_sqlite_text.render(), "run: python -m tools.gen_sqlite_text"


def test_the_newest_migration_is_the_version_we_write() -> None:
    assert migrate.versions_after(SCHEMA_VERSION) == []


def test_the_names_that_tell_our_database_are_all_our_tables() -> None:
    assert set(TABLES) == {*schema.metadata.tables, schema.version.name}


def test_other_dialects_are_refused() -> None:
    with pytest.raises(ValueError, match="mysql"):
        compile_all(mysql.dialect())


def _tables_of(path: Path) -> set[tuple[str, str]]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    connection.close()
    return {(name, " ".join(sql.replace(" ,", ",").split())) for name, sql in rows}


def test_migrations_from_nothing_make_the_same_sqlite_tables(tmp_path: Path) -> None:
    SqlDefinitions.open(tmp_path).close()
    migrated = tmp_path / "migrated.db"
    migrate.migrate(Location(path=migrated))
    made = _tables_of(tmp_path / "definitions.db")
    assert len(made) > len(TABLES)
    assert _tables_of(migrated) == made


def test_migrations_from_nothing_make_the_same_postgres_tables(postgres: PostgresServer, catalog: str) -> None:
    made, migrated = f"{catalog}_made", f"{catalog}_migrated"
    SqlDefinitions(postgres.url(), made).close()
    postgres.execute(f"CREATE DATABASE {migrated}")
    migrate.migrate(Location(url=postgres.url(migrated)))
    queries = (
        "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns"
        " WHERE table_schema = 'public' ORDER BY 1, 2",
        "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2",
        "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1",
    )
    for query in queries:
        rows = postgres.execute(query, database=made)
        assert rows
        assert postgres.execute(query, database=migrated) == rows
