"""The Definitions contract on a SQLite file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.ports import Definitions
from flintmq.store.sql.definitions import SqlDefinitions
from tests.ports.definitions_contract import DefinitionsContract


class TestSqlite(DefinitionsContract):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> Iterator[None]:
        self.opened = SqlDefinitions.open(tmp_path)
        yield
        self.opened.close()

    def make(self) -> Definitions:
        return self.opened
