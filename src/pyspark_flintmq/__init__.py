"""The Spark data source `flintmq`: a queue as a DataFrame.

Spark finds it by itself: it imports each top-level package named `pyspark_*` and registers the class `DefaultSource` in it. That import
happens in every Spark session on this machine, so it must be light and must not fail.
"""

from __future__ import annotations

from pyspark_flintmq.errors import ConnectionLost, SourceError
from pyspark_flintmq.several import several_queries
from pyspark_flintmq.source import FlintSource as DefaultSource

__all__ = ["ConnectionLost", "DefaultSource", "SourceError", "several_queries"]
