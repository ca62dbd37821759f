"""What a table of a lake must show: a driver that fails behind the table's commit runs the batch again, and its rows are there once."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.patience import patient
from tests.pipeline.plane import publish, ready, source_options
from tests.support.broker import Broker, unique

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "queue,position,body"


def example() -> Any:
    """examples/lakes.py."""
    spec = spec_from_file_location("lakes", Path(__file__).resolve().parents[2] / "examples/lakes.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def each_message_once(
    spark: SparkSession, broker: Broker, where: Path, write: Callable[[Any, int], None], bodies: Callable[[], list[bytes]]
) -> None:
    """30 messages in batches of 10; the first try of batch 1 fails when its rows are in the table. bodies: of all rows of the table."""
    queue = unique("lake")
    sent = [b"m%02d" % number for number in range(30)]
    publish(broker, queue, sent)
    options = source_options(broker, queue=queue, maxMessagesPerTrigger=10, columns=COLUMNS)
    tries: list[int] = []

    def failing(frame: Any, batch: int) -> None:
        write(frame, batch)
        tries.append(batch)
        if tries == [0, 1]:
            raise RuntimeError("killed behind the commit")

    @patient
    def run() -> None:
        frame = spark.readStream.format("flintmq").options(**options).load()
        query = frame.writeStream.foreachBatch(failing).option("checkpointLocation", str(where / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="killed behind the commit"):
        run()
    assert sorted(bodies()) == sent[:20]
    run()
    assert tries[:3] == [0, 1, 1], "Spark ran the batch again"
    assert sorted(bodies()) == sent
    assert ready(broker, queue) == 0
