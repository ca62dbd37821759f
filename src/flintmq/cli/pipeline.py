"""`flintmq pipeline`: the canned Spark jobs, what the broker knows of readers and writers, and a project to begin with.

in: options. out: text, or JSON with --json; the exit codes of sysexits. Spark is started by `run` only.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flintmq.cli.pipeline_run import RunGroup
from flintmq.errors import OperatorError

if TYPE_CHECKING:
    from flintmq.flight.client import DataPlane


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def pipeline() -> None:
    """Spark jobs over queues and logs, and the state of readers and writers."""


@pipeline.group(cls=RunGroup)
def run() -> None:
    """Run a job: `flintmq pipeline run NAME --help` shows its options."""


@pipeline.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def list_(as_json: bool) -> None:
    """List the jobs."""
    from flintmq.pipeline.jobs import JOBS

    if as_json:
        click.echo(json.dumps({name: about for name, (_, about) in JOBS.items()}))
        return
    for name, (_, about) in JOBS.items():
        click.echo(f"{name:<11} {about}")


def _connection(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say which broker, and who asks."""
    for option in (
        click.option("--timeout", type=click.IntRange(1, 3_600), default=10, show_default=True, help="Seconds for an answer."),
        click.option("--tls-ca", metavar="FILE", default="", help="PEM file of authorities to trust; turns TLS on."),
        click.option("--vhost", default="/", show_default=True, help="Virtual host."),
        click.option("--password", default="guest", envvar="FLINTMQ_PASSWORD", help="Password; or the variable FLINTMQ_PASSWORD."),
        click.option("--user", default="guest", show_default=True, help="User."),
        click.option("--url", default="", help="grpc://HOST:PORT or grpc+tls://HOST:PORT, instead of host and port."),
        click.option("--flight-port", type=click.IntRange(1, 65_535), default=15_680, show_default=True, help="Port of the data plane."),
        click.option("--host", default="127.0.0.1", show_default=True, help="Host of the broker."),
    ):
        command = option(command)
    return command


@contextlib.contextmanager
def _plane(options: dict[str, Any]) -> Iterator[DataPlane]:
    """A client. Raises: OperatorError with one line for all that goes wrong inside."""
    from flintmq.pipeline.jobs.failures import one_clear_line
    from flintmq.pipeline.session import check_pyspark

    check_pyspark()
    from pyspark_flintmq.connection import Connection

    with one_clear_line():
        raw = {
            "user": options["user"],
            "password": options["password"],
            "vhost": options["vhost"],
            "timeout": str(options["timeout"]),
            **({"tlsCa": options["tls_ca"]} if options["tls_ca"] else {}),
            **({"url": options["url"]} if options["url"] else {"host": options["host"], "flightPort": str(options["flight_port"])}),
        }
        connection, _ = Connection.take(raw)
        with connection.errors(), contextlib.closing(connection.open()) as plane:
            yield plane


@pipeline.command()
@_connection
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def status(as_json: bool, **options: Any) -> None:
    """Show the subscriptions (readers) and scopes (writers) that the broker knows, and how far each is."""
    with _plane(options) as plane:
        subscriptions = [{**one, **_lag(plane, one["sub_id"])} for one in plane.sub_list()]
        scopes = plane.scope_list()
    if as_json:
        click.echo(json.dumps({"subscriptions": subscriptions, "scopes": scopes}))
        return
    rows: list[tuple[str, ...]] = [
        (
            one["name"],
            ", ".join(one["queues"]),
            str(one["epoch"]),
            f"{one['committed']:,}",
            _prepared(one["prepared_messages"], one["prepared_age_ms"]) if one["prepared"] is not None else "-",
            _behind(one),
        )
        for one in subscriptions
    ]
    click.echo(_table(("subscription", "queues", "epoch", "committed", "prepared", "behind"), rows))
    click.echo()
    rows = [_scope_row(one) for one in scopes]
    click.echo(_table(("scope", "user", "epoch", "committed", "open", "prepared"), rows))


def _lag(plane: DataPlane, sub_id: str) -> dict[str, Any]:
    """The messages that wait in its queues; nothing when one of them was deleted, or the subscription is being deleted."""
    from flintmq.flight.plane_error import PlaneError

    try:
        tail = plane.sub_tail(sub_id)
    except PlaneError as error:
        if error.code != "NOT_FOUND":
            raise
        return {"behind_messages": None, "behind_bytes": None, "oldest_age_ms": None, "problem": error.text}
    return {"behind_messages": tail.behind_messages, "behind_bytes": tail.behind_bytes, "oldest_age_ms": tail.oldest_age_ms}


def _behind(one: dict[str, Any]) -> str:
    if one["behind_messages"] is None:
        return str(one.get("problem", "?"))
    age = "" if one["oldest_age_ms"] is None else f", {_age(one['oldest_age_ms'])}"
    return f"{one['behind_messages']:,}{age}"


def _prepared(count: int, age_ms: int | None) -> str:
    return f"{count:,}" if age_ms is None else f"{count:,}, {_age(age_ms)}"


def _scope_row(one: dict[str, Any]) -> tuple[str, ...]:
    held = [stage for stage in one["stages"] if stage["state"] == "prepared"]
    committed = "-" if one["committed"] is None else f"{one['committed']:,}"
    oldest = max((stage["age_ms"] for stage in held), default=None)
    prepared = _prepared(sum(stage["count"] for stage in held), oldest) if held else "-"
    return one["scope"], one["user"], str(one["epoch"]), committed, f"{one['open']:,}", prepared


def _age(ms: int) -> str:
    seconds = ms / 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return f"no {head[0]}s"
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows))


@pipeline.command()
@click.argument("name")
@click.option("--redeliver", "action", flag_value="redeliver", help="Give the prepared batch back to its queues.")
@click.option("--commit", "action", flag_value="commit", help="Take it as processed: its messages are gone.")
@click.option("--delete", "action", flag_value="delete", help="Give it back, and forget the subscription.")
@click.option("--may-duplicate", is_flag=True, help="Give back also a batch that Spark may have written: its messages may come twice.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@_connection
def reset(name: str, action: str | None, may_duplicate: bool, yes: bool, as_json: bool, **options: Any) -> None:
    """Decide a batch whose query will not come again. A query that still runs is fenced by it."""
    if action is None:
        raise click.UsageError("give one of --redeliver, --commit and --delete")
    with _plane(options) as plane:
        before = plane.sub_status(name)
        count = before["prepared_messages"] if before["prepared"] is not None else 0
        if before["planned"] and action != "commit" and not may_duplicate:
            raise OperatorError(
                f"batch {before['prepared']} of subscription {name} was handed to Spark's tasks: its {count:,} messages may be in the sink "
                "and would come twice. Start the query once more, it commits what Spark has; or --commit when the sink has the batch; or "
                "add --may-duplicate",
                75,
            )
        subject = {
            "redeliver": f"{count:,} messages go back to their queues",
            "commit": f"{count:,} messages count as processed and are gone",
            "delete": f"{count:,} messages go back to their queues, and subscription {name} is forgotten",
        }[action]
        if not yes:
            if not sys.stdin.isatty():
                raise OperatorError(f"{subject}: give --yes where nobody can be asked", 64)
            click.confirm(f"{subject}. Go on?", abort=True)
        # Only the batch that was shown: another one may have been prepared while somebody thought.
        seq = {"seq": before["prepared"]} if before["prepared"] is not None and action != "delete" else {}
        after = plane.sub_reset(name, action, may_duplicate=may_duplicate, **seq)
    click.echo(json.dumps({**after, "action": action, "messages": count}) if as_json else f"{name}: {subject}")


@pipeline.command()
@click.argument("names", nargs=-1, metavar="[SCOPE]...")
@click.option("--unused-days", type=click.FloatRange(0), metavar="DAYS", help="All whose last commit is so long ago, instead of names.")
@click.option("--kind", type=click.Choice(("query", "write", "once")), help="With --unused-days: only queries, or only batch writes.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@_connection
def forget(names: tuple[str, ...], unused_days: float | None, kind: str | None, yes: bool, as_json: bool, **options: Any) -> None:
    """Forget scopes: queries and named writes (txn:NAME) that will not come again. What they staged is rolled back. One that does come
    again publishes anew what it published before."""
    if bool(names) == (unused_days is not None) or (kind and names):
        raise click.UsageError("give names of scopes, or --unused-days (and --kind)")
    with _plane(options) as plane:
        known = {one["scope"]: one for one in plane.scope_list()}
        if unused_days is not None:
            before_ms = time.time() * 1000 - unused_days * 86_400_000
            names = tuple(name for name, one in known.items() if one["used_ms"] <= before_ms and kind in (None, one["kind"]))
        for name in names:
            if name not in known:
                raise OperatorError(f"there is no scope {name}: `flintmq pipeline status` lists them", 69)
        action = f"{len(names):,} scopes" if unused_days is not None else f"scope {', '.join(names)}"
        if names and not yes:
            if not sys.stdin.isatty():
                raise OperatorError(f"{action} would be forgotten: give --yes where nobody can be asked", 64)
            click.confirm(f"{action}: what was published would be published again by a repetition. Go on?", abort=True)
        for name in names:
            plane.scope_forget(name)
    click.echo(json.dumps({"forgotten": list(names)}) if as_json else f"forgotten: {action}")


@pipeline.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--queue", default="orders", show_default=True, help="Queue that the project reads.")
@click.option("--sink-queue", default="order-totals", show_default=True, help="Queue that it writes to.")
@click.option("--flight-port", type=click.IntRange(1, 65_535), default=15_680, show_default=True, help="Port of the broker's data plane.")
def init(directory: Path, queue: str, sink_queue: str, flight_port: int) -> None:
    """Write a project for `spark-pipelines` that reads a queue and writes to another."""
    from flintmq.pipeline.project import write_project

    for path in write_project(directory, queue=queue, sink_queue=sink_queue, flight_port=flight_port):
        click.echo(f"{path}")
    python = shlex.quote(sys.executable)
    click.echo(f"\nnow: cd {shlex.quote(str(directory))} && PYSPARK_PYTHON={python} SPARK_CONF_DIR=$PWD/conf spark-pipelines run")
    click.echo(f"The queues {queue} and {sink_queue} must exist. README.md says more.")
