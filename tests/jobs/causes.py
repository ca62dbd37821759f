"""Why a job's test failed: what Spark knows of its failed tasks, and what the JVM said in full, which a job's one clear line leaves out.

In: the error of a test, when it began. Out: a text; in a report of pytest as a section, and in a file of build/spark-failures, which stays
when the output does not.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flintmq.pipeline.jobs.failures import text_of

KEPT = Path(__file__).resolve().parents[2] / "build" / "spark-failures"
TITLE = "why Spark's tasks failed"
# characters of one error; milliseconds to wait until Spark's bookkeeping knows of the last task
TEXT_MAX, WAIT_MS = 20_000, 5_000
TASKS_MAX = 1_000


def add(report: Any, call: Any) -> None:
    """Adds the section to the report of a test that failed, and writes the file. Args: report, call: of pytest_runtest_makereport."""
    if not report.failed or call.excinfo is None:
        return
    text = told(call.excinfo.value, call.start)
    if not text:
        return
    report.sections.append((TITLE, text))
    KEPT.mkdir(parents=True, exist_ok=True)
    file = KEPT / (re.sub(r"[^\w.-]+", "_", report.nodeid)[-150:] + ".txt")
    file.write_text(f"{report.nodeid} ({report.when})\n\n{''.join(traceback.format_exception(call.excinfo.value))}\n{text}\n")


def told(error: BaseException, since_s: float) -> str:
    """What the JVM said of `error` and of what led to it, and each task that failed since then (seconds since 1970); "" when Spark has no
    part in it."""
    parts = [f"{type(one).__name__}: {said[:TEXT_MAX]}" for one in chain(error) if "at org.apache.spark" in (said := text_of(one) or "")]
    with contextlib.suppress(Exception):  # the JVM may be what failed
        parts += failed_tasks(since_s)
    return "\n\n".join(dict.fromkeys(parts))


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def failed_tasks(since_s: float) -> list[str]:
    """A text for each failed stage and task of this process's Spark that began since then."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        return []
    scala, gateway = context._jsc.sc(), context._gateway
    with contextlib.suppress(Exception):
        scala.listenerBus().waitUntilEmpty(WAIT_MS)
    store, jvm = scala.statusStore(), gateway.jvm
    nothing = jvm.java.util.ArrayList()
    found = []
    for stage in _each(store.stageList(nothing, False, False, gateway.new_array(jvm.double, 0), nothing)):
        begun = stage.submissionTime()
        if begun.isEmpty() or begun.get().getTime() < since_s * 1000 - 1 or not stage.numFailedTasks():
            continue
        number, attempt = stage.stageId(), stage.attemptId()
        why = stage.failureReason()
        found.append(f"stage {number}.{attempt} ({stage.name()}): {why.get() if why.nonEmpty() else 'went on'}"[:TEXT_MAX])
        for task in _each(store.taskList(number, attempt, TASKS_MAX)):
            why = task.errorMessage()
            if why.nonEmpty():
                where = f"stage {number}.{attempt}, task {task.index()}.{task.attempt()}, {task.duration().getOrElse(None)} ms"
                found.append(f"{where}: {why.get()}"[:TEXT_MAX])
    return found


def _each(sequence: Any) -> Iterator[Any]:
    """Of a Scala sequence."""
    for number in range(sequence.size()):
        yield sequence.apply(number)
