"""With speculation on, two attempts of one task stage the same rows, and they are published once.

Spark does not speculate with master `local`, nor on the host that runs the first attempt: two workers on two loopback addresses are needed.
That takes a minute, so it is collected with FLINTMQ_LONG=1 only: `make test-spark`.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline import test_sink_spark as common
from tests.support.broker import Broker, wait_until
from tests.support.servers import free_ports

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
]
broker, channel, queue = common.broker, common.channel, common.queue


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A standalone cluster: a master, and workers on 127.0.0.2 and 127.0.0.3 with two cores each."""
    import pyspark

    home = Path(pyspark.__file__).parent
    (port,) = free_ports(1)
    url = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    commands = [[f"{package}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    for host in ("127.0.0.2", "127.0.0.3"):
        work = ["--webui-port", "0", "--cores", "2", "--memory", "1g", "--work-dir", str(tmp_path / host), url]
        commands.append([f"{package}.worker.Worker", "--host", host, *work])
    with contextlib.ExitStack() as stack:
        for i, command in enumerate(commands):
            log = stack.enter_context((tmp_path / f"cluster{i}.log").open("w"))
            process = subprocess.Popen([str(home / "bin" / "spark-class"), *command], stdout=log, stderr=subprocess.STDOUT)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            if i == 0:
                wait_until(lambda: _listens(port), timeout=60, what="master")
        yield url


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def test_two_attempts_of_a_task(cluster: str, broker: Broker, channel: Any, queue: str, tmp_path: Path) -> None:
    """The first attempt of one task in each batch ends only after a speculative one has staged the same rows."""
    files = common.put_files(tmp_path / "in", 0, 4)
    (tmp_path / "marks").mkdir()
    speculation = {"": "true", ".interval": "100ms", ".quantile": "0.5", ".multiplier": "1.1", ".minTaskRuntime": "500ms"}
    job = {
        "master": cluster,
        "conf": {f"spark.speculation{key}": value for key, value in speculation.items()} | {"spark.executor.memory": "512m"},
        "options": common.options(broker, queue=queue),
        "input": str(tmp_path / "in"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "marks": str(tmp_path / "marks"),
        "fault": "slow",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.sink_driver", json.dumps(job)], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert {f"{batch}.0.second" for batch in (0, 1)} <= {mark.name for mark in (tmp_path / "marks").iterdir()}
    got = common.drain(channel, queue)
    assert sorted(got) == sorted(line for text in files for line in text) and common.in_order(got, files)
    assert common.staged(broker, json.loads(done.stdout.splitlines()[-1])["id"], 1) == 0
