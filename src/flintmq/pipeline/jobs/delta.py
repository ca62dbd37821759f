"""Delta tables without a JVM: rows of one batch added once (package `deltalake`, extra `delta`).

in: an Arrow table, the name of the writer and the number of its batch. out: one commit of the Delta table, or none when it has it already.
D1  A batch's rows and its number (Delta's `txn` action) are one commit: a batch that is run again after a crash adds nothing.
D2  Numbers of one writer only grow; one writer at a time (its checkpoint, or its name, is the writer's).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flintmq.errors import OperatorError

if TYPE_CHECKING:
    import pyarrow as pa

UNAVAILABLE = 69


def check_installed() -> None:
    """Raises: OperatorError (69) without the package."""
    try:
        import deltalake  # noqa: F401
    except ImportError:
        raise OperatorError("Delta tables need the Python package deltalake: pip install 'flintmq[delta]'", UNAVAILABLE) from None


def is_table(path: Path) -> bool:
    """Whether a Delta table stands at `path`."""
    return (path / "_delta_log").is_dir()


def version_of(path: Path, writer: str) -> int | None:
    """The highest batch of `writer` that the table has; None: none, or no table."""
    if not is_table(path):
        return None
    from deltalake import DeltaTable

    version = DeltaTable(str(path)).transaction_version(writer)
    return None if version is None else int(version)


def append(path: Path, table: pa.Table, writer: str, batch: int, partitions: Sequence[str]) -> bool:
    """Adds the rows of batch `batch`. Returns: whether they were added now; False: they were there."""
    from deltalake import CommitProperties, Transaction, write_deltalake

    done = version_of(path, writer)
    if done is not None and done >= batch:
        return False
    properties = CommitProperties(app_transactions=[Transaction(writer, batch)])
    arguments: dict[str, Any] = {"mode": "append", "partition_by": list(partitions), "commit_properties": properties}
    write_deltalake(str(path), table, **arguments)
    return True


def files(path: Path) -> tuple[list[str], int]:
    """(paths of the Parquet files of the newest version, their rows)."""
    from deltalake import DeltaTable

    table = DeltaTable(str(path))
    return list(table.file_uris()), int(table.count())
