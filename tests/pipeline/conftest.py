"""Fixtures of the pipeline's tests: a broker, a queue on it, one Spark session for all.

`amqp_url` is our own broker, or the one that FLINTMQ_TEST_URL names; `plane_broker` is always our own, with a data plane.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest

from flintmq.errors import OperatorError
from tests.pipeline.patience import patient_frames
from tests.support.broker import ENV_URL, Broker, unique

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Over a minute each, and what they hold has a shorter witness beside it: `make test-spark` runs them.
LONG = ["test_sink_crowd.py", "test_sink_speculation.py", "test_sink_volume.py", "test_amqp_kill_driver.py", "test_examples_killed.py"]
collect_ignore = [] if os.environ.get("FLINTMQ_LONG") == "1" else list(LONG)
# Not in the test set-up: its dependencies are many.
if find_spec("pyiceberg") is None:
    collect_ignore.append("test_lakes_iceberg.py")


# A JVM of the tests ends within minutes: what its second compiler makes hardly runs, and takes a third of the processor time of all.
# Without it a JVM reserves 48 MiB for compiled code, which the shared session fills: it ends then, with all tests behind. One that crashes
# says why in a file that tools/run_tests.sh prints. For the shared session, the drivers that tests start, and the small JVM that makes the
# command line of each.
CRASHES = Path(__file__).resolve().parents[2] / "build" / "spark-failures" / "hs_err_%p.log"
CRASHES.parent.mkdir(parents=True, exist_ok=True)
os.environ.setdefault("SPARK_SUBMIT_OPTS", f'-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m "-XX:ErrorFile={CRASHES}"')
os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="session")
def amqp_url() -> Iterator[str]:
    with Broker() as broker:
        yield broker.url


@pytest.fixture(scope="session")
def plane_broker() -> Iterator[Broker]:
    """A durable broker with its data plane."""
    pytest.importorskip("pyarrow")
    if os.environ.get(ENV_URL):
        pytest.skip(f"needs a broker with a data plane, but {ENV_URL} names another one")
    with Broker("--flight-port", "0") as broker:
        yield broker


@pytest.fixture
def channel(amqp_url: str) -> Iterator[Any]:
    """A pika channel with confirms, for preparing and looking at queues."""
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    if connection.is_open:
        connection.close()


@pytest.fixture
def queue(channel: Any) -> Iterator[str]:
    """An empty durable queue, deleted afterwards."""
    name = unique("pipeline")
    channel.queue_declare(name, durable=True)
    yield name
    if channel.is_open:
        channel.queue_delete(name)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    pytest.importorskip("pyspark")
    from flintmq.pipeline.session import check_java, spark_session

    try:
        check_java()
    except OperatorError as e:
        pytest.skip(str(e))
    scratch: Path = tmp_path_factory.mktemp("spark")
    # A worker that dies says where it was.
    session = spark_session("tests", scratch, settings={"spark.python.worker.faulthandler.enabled": "true"})
    with pytest.MonkeyPatch.context() as patch:
        patient_frames(patch)
        yield session
    session.stop()
