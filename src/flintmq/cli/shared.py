"""`flintmq shared`: what an engine of shared queues does on this machine.

in: an engine, what to measure. out: one line of JSON for each way to dequeue.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from pathlib import Path

import click

from flintmq.config import Limits
from flintmq.engines.engine import EngineError
from flintmq.engines.opening import open_engine
from flintmq.errors import OperatorError
from flintmq.recipes.measure import WAYS, measure


@click.group()
def shared() -> None:
    """Queues that several brokers share (docs/SHARED.md)."""


@shared.command("measure")
@click.option(
    "--engine",
    "url",
    help="sqlite:PATH, etcd://HOST:PORT,..., postgresql://HOST/DATABASE, fdb:PATH of a cluster file, or file:PATH of a file with such a"
    " URL; without it the embedded engine on a new file, which is removed",
)
@click.option(
    "--dir", "directory", type=click.Path(file_okay=False, path_type=Path), help="where the new file of the embedded engine is made"
)
@click.option("--way", "ways", type=click.Choice(WAYS), multiple=True, help="how to dequeue; several are measured one after the other")
@click.option("--messages", default=2_000, show_default=True, type=click.IntRange(1, 10_000_000))
@click.option(
    "--takers", default=8, show_default=True, type=click.IntRange(1, 1_000), help="tasks that dequeue, each as a client of its own"
)
@click.option("--size", default=256, show_default=True, type=click.IntRange(8, 64 * 1024 * 1024), help="bytes of a message")
def measure_command(url: str | None, directory: Path | None, ways: tuple[str, ...], messages: int, takers: int, size: int) -> None:
    """Fills a queue of its own and empties it, in each way."""
    try:
        with contextlib.ExitStack() as stack:
            if url is None:
                place = stack.enter_context(tempfile.TemporaryDirectory(dir=directory, prefix="flintmq-measure-"))
                url = f"sqlite:{place}/shared.db"
            asyncio.run(_measure_all(url, ways or WAYS, messages, takers, size))
    except ValueError as error:
        raise OperatorError(str(error), 64) from error
    except (EngineError, OSError) as error:
        raise OperatorError(f"can't measure: {error}", 69) from error


async def _measure_all(url: str, ways: tuple[str, ...], messages: int, takers: int, size: int) -> None:
    engine = open_engine(url, Limits())
    try:
        for way in ways:
            click.echo(json.dumps(await measure(engine, way, messages, takers, size)))
    finally:
        await engine.close()
