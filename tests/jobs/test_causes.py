"""A job's test that fails says why: each failed task with its reason, and what the JVM said."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from flintmq.errors import OperatorError
from flintmq.pipeline.jobs.failures import one_clear_line
from tests.jobs import causes
from tests.pipeline.patience import TOO_LATE


def fails(number: int) -> int:
    if number == 3:
        raise ValueError("the third one does not work")
    return number


@pytest.mark.spark
def test_the_reason_of_a_failed_task_is_shown_and_kept(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's error is one line; behind it stands the task's own, here and in a file. What failed before the test is not named."""
    monkeypatch.setattr(causes, "KEPT", tmp_path / "kept")
    began = time.time()
    with pytest.raises(OperatorError) as error, one_clear_line("archive"):
        spark.sparkContext.parallelize(range(4), 2).map(fails).collect()
    assert "\n" not in str(error.value)
    report: Any = SimpleNamespace(failed=True, sections=[], nodeid="tests/jobs/test_x.py::test_y[a/b]", when="call")
    causes.add(report, SimpleNamespace(excinfo=error, start=began))
    ((title, text),) = report.sections
    assert title == causes.TITLE and text.count("ValueError: the third one does not work") >= 2
    assert ", task 1.0, " in text
    # Task 0 does not fail. It is named when Spark ended it because of the other one, or had no worker for it in time.
    said = re.findall(r", task 0\.0, [^:]*: (.*)", text)
    assert TOO_LATE in text or all(re.search("cancel|kill", one, re.IGNORECASE) for one in said), said
    (kept,) = (tmp_path / "kept").iterdir()
    assert kept.name == "tests_jobs_test_x.py_test_y_a_b_.txt" and text in kept.read_text()
    assert causes.failed_tasks(time.time() + 1) == []


def test_what_has_nothing_to_do_with_spark_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No section, no file: neither for a test that passed nor for an assertion."""
    monkeypatch.setattr(causes, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(causes, "failed_tasks", lambda since_s: [])
    report: Any = SimpleNamespace(failed=True, sections=[], nodeid="x", when="call")
    with pytest.raises(AssertionError) as error:
        raise AssertionError("one is not two")
    causes.add(report, SimpleNamespace(excinfo=error, start=0.0))
    report.failed = False
    causes.add(report, SimpleNamespace(excinfo=error, start=0.0))
    assert report.sections == [] and not (tmp_path / "kept").exists()


def test_an_error_of_a_jvm_that_is_gone_has_no_text_and_ends_no_other_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Py4JJavaError does, whose text is the JVM's."""
    monkeypatch.setattr(causes, "failed_tasks", lambda since_s: [])

    class OfJava(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError("no JVM")

    monkeypatch.setattr(causes, "KEPT", tmp_path / "kept")
    report: Any = SimpleNamespace(failed=True, sections=[], nodeid="x", when="call")
    with pytest.raises(OfJava) as error:
        raise OfJava
    causes.add(report, SimpleNamespace(excinfo=error, start=0.0))
    assert report.sections == []
