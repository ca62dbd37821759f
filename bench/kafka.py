"""A Kafka broker for the benches: one node, KRaft, of jars that are there. Never a dependency: where the jars are not, there is no Kafka.

in: $KAFKA_HOME, a directory with `libs` (a download of Kafka, or what Maven's `dependency:copy-dependencies` gives for
org.apache.kafka:kafka_2.13 and :kafka-tools); $KAFKA_SPARK_JARS, a directory with spark-sql-kafka-0-10, spark-token-provider-kafka-0-10,
kafka-clients and commons-pool2. out: a server on a free loopback port, its data in a scratch directory; topics that its own tool fills.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import string
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import servers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_START_S, _FILL_S = 60.0, 600.0
FOLDER, FETCH = Path(__file__).resolve().parents[1] / "build/kafka", Path(__file__).resolve().parents[1] / "tools/kafka_jars.sh"
# bodies of 1 KiB that are 20 times what a dictionary of Parquet holds
BODIES = 20_000
_CONNECTOR = ("spark-sql-kafka-0-10_", "spark-token-provider-kafka-0-10_", "kafka-clients-", "commons-pool2-")
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
log.message.timestamp.type=LogAppendTime
num.partitions=2
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def fetched() -> str:
    """Sees that the jars are there: those that the environment names, else those of build/kafka, by Maven. Returns: what is wrong."""
    if "KAFKA_HOME" not in os.environ and "KAFKA_SPARK_JARS" not in os.environ:
        os.environ |= {"KAFKA_HOME": str(FOLDER / "kafka"), "KAFKA_SPARK_JARS": str(FOLDER / "spark")}
        if not (home() and connector()):
            done = subprocess.run(["sh", str(FETCH), str(FOLDER)], capture_output=True, text=True, check=False)
            if done.returncode:
                return f"Kafka is not here, and tools/kafka_jars.sh can't fetch it: {(done.stderr or done.stdout).strip()[-300:]}"
    return "" if home() and connector() else "KAFKA_HOME and KAFKA_SPARK_JARS lack jars: bench/kafka.py says which"


def home() -> Path | None:
    """The directory of the jars; None: there is none here."""
    path = os.environ.get("KAFKA_HOME")
    return Path(path) if path and any((Path(path) / "libs").glob("kafka_2.13-*.jar")) else None


def bodies(folder: Path, size: int) -> Path:
    """A file of bodies like those of `flintmq perf`, a line each: a number, then a period of 251 bytes. So many that no dictionary holds
    them. They are ASCII, because Kafka's tool reads text.
    """
    path = folder / "bodies"
    if not path.exists():
        letters = random.Random(1)
        period = "".join(letters.choice(string.ascii_letters + string.digits) for _ in range(251))
        text = period * (size // 251 + 1)
        path.write_text("\n".join(f"{number:016}{text[16:size]}" for number in range(BODIES)))
    return path


def connector() -> str:
    """Spark's `spark.jars` for its Kafka connector; empty: it is not here."""
    folder = os.environ.get("KAFKA_SPARK_JARS", "")
    found = [str(path) for path in sorted(Path(folder).glob("*.jar")) if path.name.startswith(_CONNECTOR)] if folder else []
    return ",".join(found) if len(found) >= len(_CONNECTOR) else ""


class Kafka:
    """A running server."""

    def __init__(self, where: Path, pid: int, port: int) -> None:
        self._where = where
        self.pid = pid
        self.address = f"127.0.0.1:{port}"

    def fill(self, topic: str, count: int, size: int, bodies: Path | None = None) -> None:
        """Publishes with acks=all. Args: bodies: of `bodies`; None: random letters, which nothing compresses. Raises: RuntimeError."""
        made = ["--record-size", str(size)] if bodies is None else ["--payload-file", str(bodies)]
        options = ["--topic", topic, "--num-records", str(count), *made, "--throughput", "-1"]
        _java(
            self._where,
            "org.apache.kafka.tools.ProducerPerformance",
            *options,
            "--producer-props",
            f"bootstrap.servers={self.address}",
            "acks=all",
        )

    def producer(self, topic: str, count: int, size: int, rate: int) -> list[str]:
        """The command line of a producer with acks=all that sends `rate` messages a second."""
        options = ["--topic", topic, "--num-records", str(count), "--record-size", str(size), "--throughput", str(rate)]
        options += ["--producer-props", f"bootstrap.servers={self.address}", "acks=all"]
        return [_program(), "-cp", f"{self._where}/libs/*", "org.apache.kafka.tools.ProducerPerformance", *options]

    def consume(self, topic: str, count: int) -> None:
        """Kafka's own consumer reads `count` messages from the beginning. Raises: RuntimeError: it read fewer."""
        options = ["--bootstrap-server", self.address, "--topic", topic, "--messages", str(count), "--timeout", "60000"]
        told = _java(self._where, "org.apache.kafka.tools.ConsumerPerformance", *options)
        found = int(told.strip().splitlines()[-1].split(",")[4])
        if found < count:
            raise RuntimeError(f"Kafka's consumer read {found} messages of {count}")

    def count(self, topic: str) -> int:
        """Messages of a topic."""
        told = _java(self._where, "org.apache.kafka.tools.GetOffsetShell", "--bootstrap-server", self.address, "--topic", topic)
        return sum(int(line.rpartition(":")[2]) for line in told.split() if line.startswith(f"{topic}:"))

    def stream(self, spark: SparkSession, topic: str, batch: int | None) -> DataFrame:
        """The topic from its beginning, in micro-batches. batch: messages of one at most; None: all that are there."""
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.address).option("subscribe", topic)
        reader = reader if batch is None else reader.option("maxOffsetsPerTrigger", batch)
        return reader.option("startingOffsets", "earliest").load()


@contextlib.contextmanager
def kafka(where: Path, scratch: Path, more: str = "") -> Iterator[Kafka]:
    """Args: where: of `home()`; scratch: a directory on a disk; more: lines of its configuration. Raises: RuntimeError: not up."""
    port, controller = servers.free_ports(2)
    config = scratch / "kafka.properties"
    config.write_text(_PROPERTIES.format(port=port, controller=controller, data=scratch / "kafka") + more)
    _java(where, "kafka.tools.StorageTool", "format", "--cluster-id", "MkU3OEVBNTcwNTJENDM2Qk", "--config", str(config))
    with (scratch / "kafka.log").open("w") as log:
        command = [_program(), "-Xmx1g", "-cp", f"{where}/libs/*", "kafka.Kafka", str(config)]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            until = time.monotonic() + _START_S
            while not _listens(port):
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"Kafka did not come up: {(scratch / 'kafka.log').read_text()[-2000:]}")
                time.sleep(0.2)
            yield Kafka(where, process.pid, port)
        finally:
            process.terminate()
            process.wait(60)


def _program() -> str:
    """Java, as Spark finds it."""
    return str(Path(os.environ["JAVA_HOME"], "bin/java")) if os.environ.get("JAVA_HOME") else "java"


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _java(where: Path, *arguments: str) -> str:
    done = subprocess.run(
        [_program(), "-cp", f"{where}/libs/*", *arguments],
        capture_output=True,
        text=True,
        timeout=_FILL_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise RuntimeError(f"{arguments[0]}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout
