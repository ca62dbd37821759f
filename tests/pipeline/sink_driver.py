"""A Spark driver of its own for the sink's tests: task retries and speculation need other masters than the tests' session has.

`python -m tests.pipeline.sink_driver JSON` with master, conf, options, input, checkpoint, marks, fault; fault: `after_prepare` (the first
attempt of each task fails when its stage is prepared) or `slow` (that of one task ends only when another attempt has ended before it).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def faulty_source() -> type:
    """The data source with a fault in its writer. Defined here so that it is pickled by value: workers do not have the tests."""
    from pyspark_flintmq.sink import FlintStreamWriter
    from pyspark_flintmq.source import FlintSource

    class FaultyWriter(FlintStreamWriter):  # type: ignore[misc]
        def __init__(self, schema: Any, raw: dict[str, str], marks: str, fault: str) -> None:
            super().__init__(schema, raw)
            self._marks, self._fault = marks, fault

        def write(self, iterator: Any) -> Any:
            import contextlib
            import time
            from pathlib import Path

            message = super().write(iterator)
            name = f"{message.batch}.{message.part}"
            first = False
            with contextlib.suppress(FileExistsError):
                Path(self._marks, f"{name}.first").touch(exist_ok=False)
                first = True
            if first and self._fault == "after_prepare":
                raise RuntimeError(f"fault: {name} fails after its stage was prepared")
            # One task of a batch is slow: Spark looks for such when others have ended.
            if first and self._fault == "slow" and message.part == 0:
                for _ in range(600):
                    if Path(self._marks, f"{name}.second").exists():
                        break
                    time.sleep(0.1)
                time.sleep(5)
            else:
                Path(self._marks, f"{name}.second").touch()
            return message

    class FaultySource(FlintSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "flintmq_faulty"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            raw = {key: text for key, text in self._raw.items() if key.lower() not in ("marks", "fault")}
            return FaultyWriter(schema, raw, self._option("marks") or "", self._option("fault") or "")

    return FaultySource


def main(job: dict[str, Any]) -> None:
    from flintmq.pipeline.session import spark_session

    with tempfile.TemporaryDirectory() as scratch:
        # Settings of the context itself, that the session's builder has no argument for.
        conf = " ".join(f"--conf {key}={value}" for key, value in job.get("conf", {}).items())
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"{conf} pyspark-shell"
        spark = spark_session("sink", Path(scratch), master=job["master"])
        spark.dataSource.register(faulty_source())
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", 2).load(job["input"])
        writer = (
            lines.writeStream.format("flintmq_faulty").options(**job["options"]).option("marks", job["marks"]).option("fault", job["fault"])
        )
        query = writer.option("checkpointLocation", job["checkpoint"]).trigger(availableNow=True).start()
        query.awaitTermination()
        print(json.dumps({"id": str(query.id), "batches": len([p for p in query.recentProgress if p["numInputRows"]])}))
        spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
