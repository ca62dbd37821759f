"""Names of options as the documentation writes them.

In: the map that Spark gives a Python source, whose keys are in lower case, whatever the user wrote. Out: the same map with the names as
they are documented, so that every text shows an option as people know it.
Invariant: nothing is refused here; a name that nobody knows stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_flintmq.amqp.options import OPTIONS
from pyspark_flintmq.connection import CONNECTION_OPTIONS
from pyspark_flintmq.kafka_names import kafka_names
from pyspark_flintmq.log_options import LOG_OPTIONS
from pyspark_flintmq.queue_options import ALL_OPTIONS
from pyspark_flintmq.schema import TABLE_OPTIONS
from pyspark_flintmq.sink_options import SINK_OPTIONS

_ALL = (kafka_names(), OPTIONS, SINK_OPTIONS, LOG_OPTIONS, ALL_OPTIONS, TABLE_OPTIONS, CONNECTION_OPTIONS)
_AS_WRITTEN = {name.lower(): name for names in _ALL for name in names}


def respelled(raw: Mapping[str, str]) -> dict[str, str]:
    """`raw` with the names as the documentation has them."""
    return {_AS_WRITTEN.get(key.lower(), key): text for key, text in raw.items()}
