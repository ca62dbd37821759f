"""What the pipelines of examples/ are made of, without Spark. Their kill tests are in test_examples_killed.py.

ONCE-DELTA, ONCE-POSTGRES: a batch that comes again adds nothing, one of a new checkpoint with the same number does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgres import PostgresServer, postgres_missing, postgres_server

ROOT = Path(__file__).resolve().parents[2]


def example(name: str) -> Any:
    """A program of examples/ as a module, with the modules beside it."""
    spec = spec_from_file_location(f"example_{name}", ROOT / f"examples/{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])
        spec.loader.exec_module(module)
    return module


def checkpoint(folder: Path, query: str) -> str:
    """As Spark makes it before the first batch."""
    (folder / query).mkdir()
    (folder / query / "metadata").write_text(json.dumps({"id": query}))
    return str(folder / query)


def test_once_delta(tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import DeltaTable

    class Frame:
        def __init__(self, *numbers: int) -> None:
            self.numbers = numbers

        def toArrow(self) -> Any:
            return pa.table({"number": self.numbers})

    into_delta, path = example("lakes").into_delta, str(tmp_path / "table")
    first, second = (into_delta(path, checkpoint(tmp_path, name)) for name in ("first", "second"))
    for write, numbers, batch in (
        (first, (1, 2), 0),
        (first, (1, 2), 0),
        (first, (3,), 1),
        (first, (1, 2), 0),
        (second, (4,), 0),
        (second, (4,), 0),
    ):
        write(Frame(*numbers), batch)
    assert sorted(DeltaTable(path).to_pyarrow_table().column("number").to_pylist()) == [1, 2, 3, 4]


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    if reason := postgres_missing():
        pytest.skip(reason)
    with postgres_server() as server:
        yield server


def test_once_postgres(postgres: PostgresServer) -> None:
    totals = example("totals_to_postgres")
    postgres.execute(totals.TABLES)

    def add(query: str, batch: int, *rows: tuple[str, int, int]) -> bool:
        added: bool = totals.add_once(postgres.url(), query, batch, rows)
        return added

    assert add("first", 0, ("web", 2, 30), ("north", 1, 5))
    assert not add("first", 0, ("web", 2, 30), ("north", 1, 5))
    assert add("first", 1, ("web", 1, 10))
    assert not add("first", 0, ("web", 2, 30))
    assert add("second", 0, ("web", 1, 1)), "a new checkpoint counts from 0 under its own name"
    # What fails leaves no note behind.
    with pytest.raises(Exception, match="null value"):
        add("first", 2, ("web", 1, 1), ("north", None, 1))  # type: ignore[arg-type]
    assert add("first", 2, ("web", 1, 1))
    assert postgres.execute("SELECT shop, orders, cents FROM totals ORDER BY shop") == [("north", 1, 5), ("web", 5, 42)]
