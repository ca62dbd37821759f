"""A Spark driver killed with SIGKILL in the middle of its work loses nothing and repeats nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest

from tests.pipeline.test_amqp_spark import left, run, stream
from tests.support.broker import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

COUNT = 6_000


def test_kill_9_of_the_driver(spark: SparkSession, amqp_url: str, channel: Any, queue: str, tmp_path: Path) -> None:
    for i in range(COUNT):
        channel.basic_publish("", queue, b"%06d" % i, pika.BasicProperties(message_id=str(i), delivery_mode=2))
    driver = subprocess.Popen([sys.executable, "-m", "tests.pipeline.driver", amqp_url, queue, str(tmp_path)], start_new_session=True)
    try:
        # Three batches committed, others not: the kill falls somewhere in the work on one of them.
        wait_until(
            lambda: (tmp_path / "checkpoint" / "commits" / "2").exists() or driver.poll() is not None, timeout=180, what="third commit"
        )
        assert driver.poll() is None
    finally:
        # First the JVM alone: its Python reader lives on for a moment, as after a real crash, and the next reader has to wait for it.
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((tmp_path / "jvm").read_text()), signal.SIGKILL)
        driver.kill()
        driver.wait()
    committed = {int(file.name) for file in (tmp_path / "checkpoint" / "commits").iterdir() if file.name.isdigit()}
    assert len(committed) * 500 < COUNT, "the driver was done before it was killed"

    frame = stream(spark, amqp_url, queue, tmp_path / "spool", maxMessagesPerTrigger=2_000)
    run(frame, tmp_path)
    found = spark.read.parquet(str(tmp_path / "data")).select("body").collect()
    bodies = sorted(bytes(row["body"]) for row in found)
    assert len(bodies) == COUNT
    assert bodies == [b"%06d" % i for i in range(COUNT)]
    assert left(channel, queue) == 0
