"""The steps of the schema: a new database is what those of earlier releases made, and its version is the one that we write."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from flintmq.store.sql.definitions import SqlDefinitions
from flintmq.store.sql.driver import SCHEMA_VERSION, TABLES
from flintmq.store.sql.migrate import steps_after
from flintmq.store.sql.statements import STATEMENTS, for_psycopg
from tests.support.postgres import PostgresServer

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_the_newest_step_is_the_version_we_write(dialect: str) -> None:
    steps = steps_after("", dialect)
    assert [step.version for step in steps] == [f"{number:04d}" for number in range(1, len(steps) + 1)]
    assert steps[-1].version == SCHEMA_VERSION
    assert all(step.about.endswith(".") and step.statements for step in steps)
    assert steps_after(SCHEMA_VERSION, dialect) == []


def test_a_statement_for_psycopg_has_the_same_parameters() -> None:
    for name, text in for_psycopg().items():
        assert re.findall(r"%\((\w+)\)s", text) == re.findall(r":(\w+)", STATEMENTS[name])
        assert ":" not in text


def _tables_of(path: Path) -> set[tuple[str, str]]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name <> 'sqlite_sequence'").fetchall()
    connection.close()
    return {(name, "".join(sql.split())) for name, sql in rows}


def test_a_new_sqlite_database_has_the_tables_of_the_newest_fixture(tmp_path: Path) -> None:
    SqlDefinitions.open(tmp_path).close()
    released = sqlite3.connect(tmp_path / "released.db")
    released.executescript((FIXTURES / f"v{SCHEMA_VERSION}.sql").read_text())
    released.close()
    made = _tables_of(tmp_path / "definitions.db")
    assert made == _tables_of(tmp_path / "released.db")
    assert {name for name, _ in made} >= set(TABLES)


def test_a_new_postgres_database_has_the_tables_of_the_newest_fixture(postgres: PostgresServer, catalog: str) -> None:
    SqlDefinitions(postgres.url(), catalog).close()
    queries = (
        "SELECT table_name, column_name, data_type, is_nullable, column_default, character_maximum_length"
        " FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2",
        "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2",
        "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1",
    )
    found = [str(row) for query in queries for row in postgres.execute(query, database=catalog)]
    assert found == (FIXTURES / f"v{SCHEMA_VERSION}.postgresql.txt").read_text().splitlines()
