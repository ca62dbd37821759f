"""Spark gives a Python process of its own ten seconds to come up, however busy the machine is; no option of Spark changes that.

What such a process was wanted for has not begun by then, so it is asked for again. Every other error goes through at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import pytest

from tests.support.broker import wait_until

P = ParamSpec("P")
R = TypeVar("R")
TOO_LATE = "Python worker failed to connect back"
TRIES = 6


def patient(call: Callable[P, R]) -> Callable[P, R]:
    """`call`, made again, TRIES times at most, while it fails for that reason only."""

    @functools.wraps(call)
    def tried(*arguments: P.args, **options: P.kwargs) -> R:
        for left in reversed(range(TRIES)):
            try:
                return call(*arguments, **options)
            except Exception as error:
                if not left or TOO_LATE not in str(error):
                    raise
        raise AssertionError("not reached")

    return tried


def run_until(start: Callable[[], Any], reached: Callable[[Any], Any], what: str, timeout: float = 300.0) -> Any:
    """Starts a streaming query, waits until `reached(query)`, and returns it while it runs. Started again where `patient` does.

    Args: timeout: of each try, in s. Raises: the query's own error, as soon as it ended; AssertionError after `timeout`.
    """

    @patient
    def tried() -> Any:
        query = start()

        def there() -> Any:
            if (error := query.exception()) is not None:
                raise error
            return reached(query)

        try:
            wait_until(there, timeout=timeout, step=0.05, what=what)
        except BaseException:
            query.stop()
            raise
        return query

    return tried()


def patient_frames(patch: pytest.MonkeyPatch) -> None:
    """Frames of all tests, and the tasks by which records are archived, are loaded, read and written with patience."""
    from pyspark.core.rdd import RDD
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamReader

    for where, name in (
        (DataFrameReader, "load"),
        (DataStreamReader, "load"),
        (DataFrame, "collect"),
        (DataFrame, "count"),
        (DataFrameWriter, "save"),
        (RDD, "collect"),
    ):
        patch.setattr(where, name, patient(getattr(where, name)))
