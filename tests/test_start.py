"""What a start of a broker loads: the price of each start, paid before the first connection."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# modules that a broker without clients, TLS, Spark and cluster does without, and what each of them would cost
LATER = {
    "argon2": "1 MiB: with the first password",
    "asyncio": "8 ms: with the first HTTP connection",
    "flintmq.cluster": "with --cluster, or the first shared queue",
    "flintmq.dataplane.dispatch": "10 ms: with the first call of Spark",
    "flintmq.engines": "with the first shared queue",
    "flintmq.pipeline": "the commands of the pipeline",
    "flintmq.shared": "25 ms: with the first shared queue",
    "flintmq.shovel": "a process of its own",
    "importlib.metadata": "1.4 MiB: where a package has kinds of queues",
    "pyarrow": "70 MiB: a process of its own",
    "ssl": "3 ms: with --tls-cert",
    "starlette": "with the first HTTP connection",
    "uvicorn": "with the first HTTP connection",
}

START = """
import dataclasses, json, sys
eager = []
make = dataclasses._process_class
dataclasses._process_class = lambda cls, *rest: (eager.append(cls.__module__), make(cls, *rest))[1]
import flintmq.cli.serve
from flintmq.config import Config
from flintmq.node import Node
node = Node(Config(port=0, http_port=0, flight_port=0, store_dir=sys.argv[1], no_data_dir=True))
node.start()
loaded = sorted(sys.modules)
node.stop()
print(json.dumps([loaded, eager]))
"""


def test_a_start_loads_nothing_that_can_wait_and_generates_no_code(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", START, str(tmp_path / "store")], capture_output=True, text=True, timeout=60, check=True)
    loaded, eager = json.loads(done.stdout)
    assert "flintmq.queue.queue_core" in loaded
    assert sorted(LATER.keys() & set(loaded)) == []
    assert [module for module in eager if module.startswith("flintmq.")] == [], "see flintmq.slotted"
