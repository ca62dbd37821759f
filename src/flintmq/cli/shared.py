"""`flintmq shared`: what an engine of shared queues does on this machine.

in: where the engine keeps its rows, what to measure. out: one line of JSON for each way to dequeue.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path

import click

from flintmq.config import Limits
from flintmq.errors import OperatorError
from flintmq.kv.engine import EngineError
from flintmq.kv.sqlite_engine import SqliteEngine
from flintmq.shared.measure import WAYS, measure


@click.group()
def shared() -> None:
    """Queues that several brokers share (docs/SHARED_QUEUES.md)."""


@shared.command("measure")
@click.option("--dir", "directory", type=click.Path(file_okay=False, path_type=Path), help="where the embedded engine's file is made")
@click.option("--way", "ways", type=click.Choice(WAYS), multiple=True, help="how to dequeue; several are measured one after the other")
@click.option("--messages", default=2_000, show_default=True, type=click.IntRange(1, 10_000_000))
@click.option(
    "--takers", default=8, show_default=True, type=click.IntRange(1, 1_000), help="threads that dequeue, each as a node of its own"
)
@click.option("--size", default=256, show_default=True, type=click.IntRange(8, 64 * 1024 * 1024), help="bytes of a message")
def measure_command(directory: Path | None, ways: tuple[str, ...], messages: int, takers: int, size: int) -> None:
    """Measures the embedded engine: a new file is filled and emptied in each way, and removed."""
    limits = Limits()
    try:
        with contextlib.ExitStack() as stack:
            place = stack.enter_context(tempfile.TemporaryDirectory(dir=directory, prefix="flintmq-measure-"))
            engine = stack.enter_context(contextlib.closing(SqliteEngine(Path(place) / "shared.db", limits)))
            for way in ways or WAYS:
                click.echo(json.dumps(measure(engine, limits, way, messages, takers, size)))
    except (EngineError, OSError) as error:
        raise OperatorError(f"can't measure: {error}", 74) from error
