"""`flintmq pipeline run NAME`: a job with its parameters as options, its progress, its summary.

in: options, made of the job's parameters. out: progress on stderr, the summary on stdout (with --json one JSON object a batch and
one at the end), a report as HTML where the job has one; the job's exit code.
R1  What goes wrong is one line and an exit code; a trace is shown with --debug only.
R2  An interrupted job ends as a killed one would: nothing is lost or done twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flintmq.errors import FlintError, OperatorError

if TYPE_CHECKING:
    from flintmq.pipeline.jobs.job import Summary
    from flintmq.pipeline.jobs.queries import BatchReport

USAGE, INTERRUPTED = 64, 130
BAR_WIDTH = 30
BAR_S = 0.25
KINDS: dict[type, Any] = {int: click.INT, float: click.FLOAT, str: click.STRING}


class RunGroup(click.Group):
    """The jobs as sub-commands; a job's module is imported when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from flintmq.pipeline.jobs import JOBS

        return list(JOBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        from flintmq.pipeline.jobs import JOBS, find_job

        if name in JOBS and ctx.resilient_parsing:
            return None
        return _command(name, find_job(name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from flintmq.pipeline.jobs import JOBS

        with formatter.section("Jobs"):
            formatter.write_dl([(name, about) for name, (_, about) in JOBS.items()])


def _command(name: str, job: Any) -> click.Command:
    from flintmq.pipeline.jobs.job import parameters_of

    params: list[click.Parameter] = []
    for field, default, about in parameters_of(job.parameters):
        option = f"--{field.replace('_', '-')}"
        shown = bool(default) and not about["secret"] and not isinstance(default, bool)
        attributes: dict[str, Any] = {"default": default, "help": about["help"], "show_default": shown}
        if isinstance(default, bool):
            params.append(click.Option([option], is_flag=True, **attributes))
            continue
        kind = click.Choice(about["choices"], case_sensitive=False) if about["choices"] else KINDS[type(default)]
        if about["secret"]:
            attributes["envvar"] = "FLINTMQ_PASSWORD"
        params.append(click.Option([option], type=kind, metavar=about["metavar"] or None, **attributes))
    own = {"dry_run": "Show what would be done, and change nothing.", "json": "JSON lines instead of text.", "debug": "Show traces."}
    params += [click.Option([f"--{field.replace('_', '-')}", f"own_{field}"], is_flag=True, help=text) for field, text in own.items()]
    if not any(field == "follow" for field, _, _ in parameters_of(job.parameters)):
        params.append(click.Option(["--follow", "own_follow"], is_flag=True, hidden=True))
    params.append(click.Option(["--report", "own_report"], metavar="FILE", default="", help="Write the job's HTML report, if it has one."))
    params.append(click.Option(["--master", "own_master"], default=_local_master(), show_default=True, help="Spark master."))
    params.append(click.Option(["--driver-memory", "own_memory"], default="1g", show_default=True, help="Memory of Spark's driver."))

    def callback(**given: Any) -> int:
        own = {key.removeprefix("own_"): given.pop(key) for key in list(given) if key.startswith("own_")}
        return _guarded(name, job, given, own)

    return click.Command(name, params=params, callback=callback, help=f"{job.about[:1].upper()}{job.about[1:]}.")


def _local_master() -> str:
    """Two cores or more, and four tries for a task: a worker that is killed costs a try, not the job."""
    return f"local[{max(2, min(8, len(os.sched_getaffinity(0))))},4]"


def _guarded(name: str, job: Any, given: dict[str, Any], own: dict[str, Any]) -> int:
    """R1."""
    from flintmq.pipeline.jobs.failures import explained

    try:
        if own.get("follow"):
            raise OperatorError(f"job {name} has an end: --follow goes with archive", 64)
        return _run(job, job.parameters(**given), own)
    except (KeyboardInterrupt, click.Abort):
        raise click.Abort from None
    except Exception as error:
        if own["debug"]:
            traceback.print_exc()
        clear_error = error if isinstance(error, FlintError) and not hasattr(error, "code") else explained(error, name)
        code = getattr(clear_error, "exit_code", 74)
        if own["json"]:
            click.echo(json.dumps({"event": "error", "job": name, "text": str(clear_error), "exit_code": code}))
        if own["debug"]:
            raise clear_error from error
        raise clear_error from None


def _run(job: Any, params: Any, own: dict[str, Any]) -> int:
    from flintmq.pipeline.jobs.failures import one_line
    from flintmq.pipeline.session import check_java, check_pyspark, spark_session

    check_pyspark()
    if own["report"] and not getattr(job, "has_report", True):
        raise OperatorError(f"job {job.name} has no report", USAGE)
    if own["dry_run"]:
        from flintmq.pipeline.jobs.dry_run import plan

        return _finished(job, plan(job, params), None, own)
    if hasattr(params, "checked"):
        params.checked()
    if not own["report"] and hasattr(job, "done_already") and (summary := job.done_already(params)) is not None:
        return _finished(job, summary, None, own)
    check_java()
    from flintmq.pipeline.jobs.job import built

    level = "error" if own["debug"] else "off"
    settings = {"spark.driver.memory": own["memory"]}
    with tempfile.TemporaryDirectory(prefix="flintmq-spark-", ignore_cleanup_errors=True) as scratch, _quiet_workers(own["debug"]):
        try:
            spark = spark_session(f"flintmq {job.name}", Path(scratch), own["master"], log_level=level, settings=settings)
        except OperatorError:
            raise
        except Exception as error:
            line = one_line(str(error))
            raise OperatorError(f"Spark did not start: {line} (Java 17 or newer? --debug shows what it said)", 69) from error
        try:
            with contextlib.ExitStack() as stack:
                with _usage():
                    result = stack.enter_context(built(job, spark, params))
                with _listening(job, result, own["json"]):
                    summary = job.summarise(result)
                html = job.report(result, summary) if own["report"] else None
        finally:
            with contextlib.suppress(Exception):
                spark.stop()
    code = _finished(job, summary, html, own)
    stop = getattr(result, "stop", None)
    return INTERRUPTED if stop is not None and stop.is_set() and not params.follow else code


@contextlib.contextmanager
def _usage() -> Iterator[None]:
    """A ValueError of `build` says which parameter is wrong; Spark's errors are of other types."""
    try:
        yield
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        raise OperatorError(str(error), USAGE) from error


def _finished(job: Any, summary: Summary, html: str | None, own: dict[str, Any]) -> int:
    written = ""
    if own["report"] and not own["dry_run"]:
        if html is None:
            raise OperatorError(f"job {job.name} has no report of this", USAGE)
        path = Path(own["report"]).expanduser().absolute()
        try:
            path.write_text(html)
        except OSError as error:
            raise OperatorError(f"--report {path}: {error.strerror}", 74) from error
        written = str(path)
    if own["json"]:
        event = {"event": "end", "job": summary.job, "exit_code": summary.exit_code, **({"report": written} if written else {})}
        click.echo(json.dumps({**event, "figures": summary.figures}, default=str))
    else:
        for line in summary.lines:
            click.echo(line)
        if written:
            click.echo(f"report: {written}")
    return int(summary.exit_code)


@contextlib.contextmanager
def _quiet_workers(debug: bool) -> Iterator[None]:
    """Spark's Python workers and its JVM write traces to the stderr that they inherit, although the error comes back as well: without
    --debug that is a file. Ours stays where it was."""
    if debug:
        yield
        return
    sys.stderr.flush()
    with tempfile.TemporaryFile() as sink:
        kept = os.dup(2)
        ours = os.fdopen(os.dup(kept), "w", buffering=1)
        before = sys.stderr
        try:
            os.dup2(sink.fileno(), 2)
            sys.stderr = ours
            yield
        finally:
            sys.stderr = before
            os.dup2(kept, 2)
            os.close(kept)
            ours.close()


# --- progress ---------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _listening(job: Any, result: Any, as_json: bool) -> Iterator[None]:
    """Progress of a streaming query by batches, of other jobs by Spark's tasks (on a terminal only)."""
    if getattr(result, "streaming", False):
        result.listener = BatchLines(as_json)
        result.stop = threading.Event()
        with _stopping(result.stop):
            yield
        result.listener.end()
        return
    if as_json or not sys.stderr.isatty():
        yield
        return
    with TaskBar(job.name):
        yield


@contextlib.contextmanager
def _stopping(stop: threading.Event) -> Iterator[None]:
    """The first SIGINT or SIGTERM ends the query behind its batch, the second at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class BatchLines:
    """One line a batch; on a terminal a bar below them that counts towards what waits."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._bar = not as_json and sys.stderr.isatty()
        self._done = 0

    def __call__(self, report: BatchReport) -> None:
        self._done += report.rows
        if self._json:
            click.echo(json.dumps({"event": "batch", **report.figures}))
            sys.stdout.flush()
            return
        clear = "\r\x1b[K" if self._bar else ""
        click.echo(f"{clear}{report.line}", err=True)
        if self._bar and report.behind_messages is not None:
            click.echo(_bar(self._done, self._done + report.behind_messages), err=True, nl=False)

    def end(self) -> None:
        """Takes the bar away."""
        if self._bar:
            click.echo("\r\x1b[K", err=True, nl=False)


class TaskBar:
    """A bar over the tasks of the stages that run, while the block runs."""

    def __init__(self, label: str) -> None:
        self._what = label
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._show, name="flintmq-progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()
        click.echo("\r\x1b[K", err=True, nl=False)

    def _show(self) -> None:
        from pyspark import SparkContext

        while not self._done.wait(BAR_S):
            context = SparkContext._active_spark_context
            if context is None:
                continue
            with contextlib.suppress(Exception):  # a picture decides nothing
                tracker = context.statusTracker()
                stages = [info for info in map(tracker.getStageInfo, tracker.getActiveStageIds()) if info is not None]
                total = sum(info.numTasks for info in stages)
                if total:
                    ended = sum(info.numCompletedTasks for info in stages)
                    click.echo(f"\r\x1b[K{self._what} {_bar(ended, total)} tasks", err=True, nl=False)


def _bar(done: int, total: int) -> str:
    filled = BAR_WIDTH * done // max(total, 1)
    return f"[{'#' * filled}{' ' * (BAR_WIDTH - filled)}] {done:,} of {total:,}"
