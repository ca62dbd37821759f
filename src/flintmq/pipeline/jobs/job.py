"""What a canned job is: parameters, a plan for Spark, a summary for people and programs, sometimes a picture.

in: a SparkSession and a job's parameters (a frozen dataclass). out: `Summary`, and a self-contained HTML page where one says more.

J1  `build` starts no Spark job that reads data: what it returns is lazy, so it can be shown (`--dry-run`), tested and combined.
J2  Whatever `build` opened, `close` lets go, also when `summarise` failed.
J3  This module imports neither Spark nor pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EX_OK, EX_USAGE, EX_DATA = 0, 64, 65

P = TypeVar("P", contravariant=True)
R = TypeVar("R")


@dataclass(frozen=True)
class Summary:
    """What a job found. lines: a table for people, no line ends with a line feed; figures: the same as JSON values;
    exit_code: of the command (65: an audit found violations)."""

    job: str
    lines: Sequence[str]
    figures: dict[str, Any] = field(default_factory=dict)
    exit_code: int = EX_OK


class Job(Protocol[P, R]):
    """A canned job. Stateless: one object serves any number of runs, one after the other."""

    name: str
    about: str  # one line, for `flintmq pipeline list`
    parameters: type[Any]  # a frozen dataclass whose fields were made by `parameter`

    def build(self, spark: SparkSession, params: P) -> R:
        """The plan: data frames, or a query that is not started. Raises: OperatorError, SourceError for wrong parameters."""

    def summarise(self, result: R) -> Summary:
        """Runs the plan."""

    def report(self, result: R, summary: Summary) -> str | None:
        """A self-contained HTML page of what `summarise` found; None: this job has none."""

    def close(self, result: R) -> None:
        """Lets go of what `build` opened. Again is no error."""


def parameter(default: Any, text: str, *, choices: Sequence[str] = (), metavar: str = "", secret: bool = False) -> Any:
    """A field of a parameters dataclass; its type (str, int, float, bool) says how text becomes a value.

    Args: default: also the value of "not given"; text: help, one line, with unit and range; choices: the only values allowed;
    metavar: what stands for the value in help; secret: never shown.
    """
    about = {"help": text, "choices": tuple(choices), "metavar": metavar, "secret": secret}
    return field(default=default, metadata=about, repr=not secret)


def parameters_of(kind: type[Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """(name, default, metadata) of each parameter, in order; the command line makes its options of these."""
    for one in fields(kind):
        if "help" in one.metadata:
            yield one.name, one.default, dict(one.metadata)


@contextmanager
def built(job: Job[P, R], spark: SparkSession, params: P) -> Iterator[R]:
    """`build`, and `close` at the end of the block."""
    result = job.build(spark, params)
    try:
        yield result
    finally:
        job.close(result)


@dataclass(frozen=True)
class LogParameters:
    """Which log a job reads, and how much of it: the parameters that all jobs over the log have. They are options of the log source."""

    store_dir: str = parameter("", "store directory of a stopped broker", metavar="DIR")
    archive_dir: str = parameter("", "archived containers (--log-archive-dir), read besides", metavar="DIR")
    host: str = parameter("127.0.0.1", "host of a running broker (without --store-dir)")
    flight_port: int = parameter(15_680, "port of its data plane")
    url: str = parameter("", "grpc://HOST:PORT or grpc+tls://HOST:PORT (or several, with commas), instead of host and port")
    user: str = parameter("guest", "user; needs the tag administrator")
    password: str = parameter("guest", "password", secret=True)
    vhost: str = parameter("/", "virtual host of the queue names")
    tls_ca: str = parameter("", "PEM file of authorities to trust", metavar="FILE")
    timeout: int = parameter(30, "seconds for connecting and for an answer")
    since: str = parameter("", "first moment: 2026-01-31T12:00:00 (UTC unless it names a zone), or milliseconds since 1970", metavar="TIME")
    until: str = parameter("", "moment behind the last one, in the same form", metavar="TIME")
    queue: str = parameter("", "queue names, separated by commas (all)", metavar="NAMES")
    mode: str = parameter("FAILFAST", "what damage in the log does: an error, or counted and skipped", choices=("FAILFAST", "PERMISSIVE"))

    def source_options(self) -> dict[str, str]:
        """Where the log is, as options of `format("flintmq")`. Times and queues are the jobs' own matter."""
        options: dict[str, str] = {"mode": self.mode, "vhost": self.vhost}
        if self.store_dir:
            options["storeDir"] = self.store_dir
        else:
            place = {"url": self.url} if self.url else {"host": self.host, "flightPort": str(self.flight_port)}
            options |= {**place, "user": self.user, "password": self.password, "timeout": str(self.timeout)}
            if self.tls_ca:
                options["tlsCa"] = self.tls_ca
        if self.archive_dir:
            options["archiveDir"] = self.archive_dir
        return options
