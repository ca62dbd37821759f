"""The wheel for Spark's machines is pure Python, stands alone, and reads and writes queues of a broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.pipeline.plane import bodies_left, publish, source_options
from tests.support.broker import Broker, unique
from tools import spark_wheel

# Runs without the site's own paths, so without this checkout: arguments are the wheel, the site's directory, options of the source.
PROGRAM = """
import importlib.util, json, sys
wheel, site, raw = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
sys.path[:0] = [wheel]
sys.path.append(site)
assert importlib.util.find_spec("flintmq") is None
from pyspark_flintmq import DefaultSource, SourceError
import pyspark_flintmq
assert pyspark_flintmq.__file__.startswith(wheel)
from pyspark.sql.streaming.datasource import ReadAllAvailable
source = DefaultSource(raw)
reader = source.streamReader(source.schema())
start = reader.initialOffset()
end = reader.latestOffset(start, ReadAllAvailable())
bodies = [body.as_py().decode() for part in reader.partitions(start, end) for batch in reader.read(part) for body in batch["body"]]
assert reader.latestOffset(end, ReadAllAvailable()) == end
reader.stop()
import pyarrow
from pyspark_flintmq.connection import Connection
with Connection.take(raw)[0].open() as plane:
    stage = plane.stage_begin("wheel", plane.scope_open(), 0)
    plane.put(stage.stage_id, [pyarrow.record_batch({"body": ["back"]})], routing_key=raw["queue"])
    plane.stage_prepare(stage.stage_id)
    plane.scope_forget("wheel")
try:
    DefaultSource({"log": "messages", "storeDir": "/nowhere"}).schema()
except SourceError as error:
    print(json.dumps({"bodies": bodies, "error": str(error)}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spark_wheel.build(tmp_path_factory.mktemp("wheel"))


def test_it_reads_a_queue_without_the_package_of_the_broker(wheel: Path, plane_broker: Broker) -> None:
    queue = unique("wheel")
    publish(plane_broker, queue, [b"a", b"b", b"c"])
    raw = source_options(plane_broker, queue=queue)
    site = sysconfig.get_paths()["purelib"]
    command = [sys.executable, "-S", "-c", PROGRAM, str(wheel), site, json.dumps(raw)]
    # A Spark session of a test before put this checkout into the path of its children.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=wheel.parent, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert sorted(told["bodies"]) == ["a", "b", "c"]
    assert told["error"].startswith("FLINTMQ_DEPENDENCY_MISSING: ") and "pip install 'flintmq[spark]'" in told["error"]
    assert bodies_left(plane_broker, queue) == []


def test_it_has_what_its_record_says_and_nothing_compiled(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        assert len(names) == len(set(names))
        (record,) = [name for name in names if name.endswith(".dist-info/RECORD")]
        lines = opened.read(record).decode().splitlines()
        assert {line.split(",")[0] for line in lines} == set(names)
        metadata = opened.read(record.replace("RECORD", "METADATA")).decode()
    assert all(name.startswith("pyspark_flintmq") for name in names) and not any(name.endswith((".so", ".pxd")) for name in names)
    assert "Name: pyspark-flintmq\n" in metadata and "Requires-Dist: pyspark>=4.0,<5\n" in metadata
    assert wheel.name.endswith("-py3-none-any.whl")


def test_a_module_that_is_not_carried_is_refused() -> None:
    assert "from pyspark_flintmq._flintmq.flight.client import X" in spark_wheel.rewritten("    from flintmq.flight.client import X\n", "a")
    for text in ("from flintmq.queue.control import X\n", "import flintmq\n"):
        with pytest.raises(ValueError, match="is not carried"):
            spark_wheel.rewritten(text, "a")
    assert spark_wheel.rewritten("from flintmq.arrow.scan import X\n", "log_source") == "from flintmq.arrow.scan import X\n"
