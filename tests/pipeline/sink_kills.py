"""A stream into a queue while driver and broker are killed with SIGKILL, over and over: each line of the input arrives once, in order.

`python -m tests.pipeline.sink_kills [SEED [KILLS]]` (3, 9: two and a half minutes). Prints what it did; exit code 1 when anything is
lost, doubled, out of order or left staged. Two kills of the broker (which the stream survives) come on one of the driver with its JVM.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pika

from tests.pipeline.test_sink_spark import drain, in_order, options, put_files, staged
from tests.support.broker import Broker

BATCHES_BETWEEN = 2
FILES_PER_BATCH = 2
LINES = 2_000


def main(seed: int, kills: int) -> bool:
    chance = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="flintmq-kills-"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kept = ("--data-dir", str(folder / "data"), "--flight-port", str(port))
    broker = Broker(*kept)
    broker.start()
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    connection.channel().queue_declare("out", durable=True)
    connection.close()
    files = put_files(folder / "in", 0, (kills + 2) * (BATCHES_BETWEEN + 2) * FILES_PER_BATCH, LINES)
    job = {"master": "local[2,4]", "options": options(broker, queue="out"), "input": str(folder / "in"), "fault": ""}
    job |= {"checkpoint": str(folder / "checkpoint"), "marks": str(folder)}
    done = 0
    try:
        while True:
            with (folder / "stderr").open("w") as stderr:
                command = [sys.executable, "-m", "tests.pipeline.sink_driver", json.dumps(job)]
                driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True, text=True)
            killed = False
            while done < kills and not killed:
                first = _commits(folder)
                while driver.poll() is None and _commits(folder) < first + BATCHES_BETWEEN:
                    time.sleep(0.02)
                time.sleep(chance.random() * 0.8)
                if driver.poll() is not None:
                    break
                done += 1
                if done % 3:
                    broker.kill()
                    broker = Broker(*kept)
                    broker.start()
                else:
                    _kill_with_jvm(driver)
                    killed = True
                print(f"{'driver' if killed else 'broker'} killed after batch {_commits(folder) - 1}", flush=True)
            if killed:
                continue
            out, _ = driver.communicate()
            if driver.returncode:
                print((folder / "stderr").read_text()[-2000:])
                return False
            break
        connection = pika.BlockingConnection(pika.URLParameters(broker.url + "?heartbeat=0"))
        got = drain(connection.channel(), "out")
        connection.close()
        expected = sorted(line for text in files for line in text)
        left = staged(broker, json.loads(out.splitlines()[-1])["id"], _commits(folder) - 1)
        exact, ordered = sorted(got) == expected, in_order(got, files)
        print(f"{done} kills: {len(got)} messages of {len(expected)}, exact {exact}, in order {ordered}, stages left {left}")
        return exact and ordered and left == 0
    finally:
        broker.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _commits(folder: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return sum(file.name.isdigit() for file in (folder / "checkpoint" / "commits").iterdir())
    return 0


def _kill_with_jvm(driver: subprocess.Popen[str]) -> None:
    for line in Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            os.kill(int(line), signal.SIGKILL)
    driver.kill()
    driver.wait()


if __name__ == "__main__":
    arguments = [int(one) for one in sys.argv[1:]]
    sys.exit(0 if main(*(arguments + [3, 9][len(arguments) :])) else 1)
