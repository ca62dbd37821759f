"""The log itself as a DataFrame: what `source.py` asks for when option `log` or `stream` is given.

In: options, the schema that Spark was told. Out: a schema, a batch reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_flintmq.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType


def log_schema(raw: Mapping[str, str]) -> StructType:
    """The columns of the stream that the options ask for. Refuses wrong options; connects to nothing."""
    raise SourceError("OPTION_VALUE", "options 'log' and 'stream' (the log source) are not in this version")


def log_reader(schema: StructType, raw: Mapping[str, str]) -> DataSourceReader:
    """A batch reader."""
    raise SourceError("OPTION_VALUE", "options 'log' and 'stream' (the log source) are not in this version")
