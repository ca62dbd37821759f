"""A local Spark session for FlintMQ's jobs: two cores, loopback only, quiet.

In: a scratch directory. Out: a SparkSession. Invariant: nothing listens on an address other than 127.0.0.1.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from flintmq.errors import OperatorError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark reads each value of a record batch through Arrow's Java vectors: without these two they check each access twice, Spark having asked
# for null before. What they read was made by pyarrow in a process that the JVM started.
_ARROW = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
# No value comes twice in these, or hardly one (the times, in microseconds): a dictionary is tried, and given up, at the cost of a third of
# a column's writing.
_UNIQUE = ("lsn", "msg_lsn", "position", "enqueued_time", "published_time")
# Spark's own start-up messages are warnings for people who run clusters; errors stay.
_LOG4J = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark %p %c{1}: %m%n
# The shell's logger would otherwise announce that it sets its own level.
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
# The same error arrives as a Python exception.
logger.streams.name = org.apache.spark.sql.execution.streaming
logger.streams.level = off
"""


def check_java() -> None:
    """Raises: OperatorError (69) when Spark would not find a `java` command."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(Path(home) / "bin" / "java", os.X_OK):
        return
    if home or shutil.which("java") is None:
        problem = f"JAVA_HOME is {home}, which has no bin/java" if home else "no java command was found"
        raise OperatorError(f"Spark needs Java 17 or newer, but {problem}. `sh tools/ensure_java.sh` finds or installs one", 69)


def check_pyspark() -> None:
    """Raises: OperatorError (69) when the extra `spark` is not installed."""
    for name in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(name) is None:
            raise OperatorError(f"the pipeline needs the Python package {name}: pip install 'flintmq[spark]'", 69)


def java_options(log4j: Path) -> str:
    """Options of the JVM. The collector for throughput, unless the environment chooses one: the JVM does not start with two."""
    chosen = any("GC" in os.environ.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"))
    collector = "" if chosen else " -XX:+UseParallelGC"
    return f"-Dlog4j2.configurationFile=file:{log4j} -Djava.net.preferIPv4Stack=true {_ARROW}{collector}"


def spark_session(
    name: str, scratch: Path, master: str = "local[2]", *, log_level: str = "error", settings: dict[str, str] | None = None
) -> SparkSession:
    """Starts (or returns) the process's Spark session. `scratch` must exist; Spark's temporary files and configuration go there.

    Args: log_level: of Spark's own messages on stderr: `off`, `error` ...; settings: over ours.
    Raises: OperatorError (69) without PySpark or Java.
    """
    check_pyspark()
    check_java()
    from pyspark.sql import SparkSession

    from pyspark_flintmq import several_queries
    from pyspark_flintmq.quick import quick_python

    log4j = scratch / "log4j2.properties"
    log4j.write_text(_LOG4J.replace("{level}", log_level))
    # Workers run the interpreter that runs us, and find this package where we found it, also without an installation.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = quick_python(scratch)
    source = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if source not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([source, *filter(None, known)])
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    ours = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": java_options(log4j),
        "spark.driver.memory": "1g",
        "spark.local.dir": str(scratch / "spark"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        # Two cores: the default of 200 would be two hundred tiny tasks.
        "spark.sql.shuffle.partitions": "4",
        # A file for each date and queue at a time: else a task that writes by partition sorts all its rows first, bodies and all.
        "spark.sql.maxConcurrentOutputFileWriters": "64",
        # Eight bytes with statistics, by which readers skip files, instead of twelve without (INT96, long deprecated, Spark's default).
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        **{f"spark.hadoop.parquet.enable.dictionary#{name}": "false" for name in _UNIQUE},
    }
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in (ours | (settings or {})).items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    several_queries(session)
    return session
