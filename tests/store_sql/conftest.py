"""A PostgreSQL server for the whole run of this folder, and a fresh database of it for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.inprocess import connect
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.servers import Unavailable

__all__ = ["connect"]

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    try:
        with postgres_server() as server:
            yield server
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def catalog(postgres: PostgresServer) -> str:
    """Name of a database that does not exist yet."""
    return f"flint{next(_numbers)}"
