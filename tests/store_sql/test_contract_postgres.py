"""The Definitions contract on a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flintmq.ports import Definitions
from flintmq.store.sql.definitions import SqlDefinitions
from tests.ports.definitions_contract import DefinitionsContract
from tests.support.postgres import PostgresServer


class TestPostgres(DefinitionsContract):
    @pytest.fixture(autouse=True)
    def _server(self, postgres: PostgresServer, catalog: str) -> Iterator[None]:
        self.opened = SqlDefinitions(postgres.url(), catalog)
        yield
        self.opened.close()

    def make(self) -> Definitions:
        return self.opened
