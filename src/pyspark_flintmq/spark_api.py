"""What Spark's interface for Python sources has since 4.1 and 4.2, under the same names where PySpark is 4.0 or 4.1.

In: the installed PySpark. Out: read limits and the mark of AvailableNow, the base class of a streaming sink that gets record batches,
the filters that are pushed down.
Invariant: with PySpark 4.2 or newer everything here is PySpark's own; an older Spark never looks at the substitutes.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

    # Whether Spark tells a streaming source where the query stands, and how much it wants: `latestOffset(start, limit)`.
    TELLS_START = True
except ImportError:
    TELLS_START = False

    class ReadLimit:  # type: ignore[no-redef]
        """How much Spark wants."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef,misc]
        """All that is there."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef,misc]
        """At most so many rows."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef,misc]
        """At most so many bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """The mark of a source that ends at the present end."""


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[no-redef,misc]
        """Of 4.0, which gives record batches to any writer that is a `DataSourceArrowWriter`."""


try:
    from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual
except ImportError:  # 4.0 pushes no filters down
    EqualTo = Filter = GreaterThan = GreaterThanOrEqual = In = LessThan = LessThanOrEqual = None


__all__ = [
    "TELLS_START",
    "DataSourceStreamArrowWriter",
    "EqualTo",
    "Filter",
    "GreaterThan",
    "GreaterThanOrEqual",
    "In",
    "LessThan",
    "LessThanOrEqual",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]
