"""What a streaming query says of itself after each batch: one line of JSON on stderr. The three pipelines use it.

    spark.streams.addListener(Progress())
    {"query": "enrich", "batch": 7, "rows": 5000, "rows_per_s": 21000, "messages_behind": 84000, "oldest_age_ms": 3100, "prepared_ms": 260}

messages_behind, oldest_age_ms: of what waited in the queues when the batch was made. prepared_ms: how long the batch before it stood
prepared in the broker. Dashboards ask the broker for the same: docs/pipeline/pipelines.md.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql.streaming import StreamingQueryListener


class Progress(StreamingQueryListener):
    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        report = event.progress
        figures = {
            "query": report.name,
            "batch": report.batchId,
            "rows": report.numInputRows,
            "rows_per_s": round(report.processedRowsPerSecond),
        }
        for source in report.sources:
            figures |= json.loads(source.latestOffset or "{}")
        for operator in report.stateOperators:
            figures |= {
                "state_rows": operator.numRowsTotal,
                "state_bytes": operator.memoryUsedBytes,
                "late_rows": operator.numRowsDroppedByWatermark,
            }
        print(json.dumps(figures), file=sys.stderr, flush=True)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass
