"""Flower, unmodified, in front of a broker: its page of queues by the management API, its events of workers and tasks by AMQP.

`make interop` sets Flower up and names its Python (FLINTMQ_FLOWER); with FLINTMQ_TEST_PEER the same runs on RabbitMQ. What Flower asks of
the API is a script of test_management_clients.py, too, which `make test` runs.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flintmq.testing.broker import Broker
from tests.interop.management_calls import ask
from tests.support import servers
from tests.support.broker import wait_until

PYTHON = os.environ.get("FLINTMQ_FLOWER", "")
APP = """
from celery import Celery

app = Celery("shop", broker={url!r})
app.conf.update(task_send_sent_event=True, worker_send_task_events=True, broker_connection_retry_on_startup=True)


@app.task
def add(a, b):
    return a + b
"""


@contextlib.contextmanager
def started(folder: str, *words: str) -> Iterator[None]:
    """A command of Celery's in this folder, ended by SIGTERM."""
    command = [PYTHON, "-m", "celery", "-A", "shop", *words]
    environment = {**os.environ, "C_FORCE_ROOT": "1", "FLOWER_UNAUTHENTICATED_API": "1"}
    with open(Path(folder, f"{words[0]}.log"), "wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def look(port: int, path: str) -> str:
    """A page of Flower's; "" while it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read().decode()
        return body if answer.status == 200 else ""
    except OSError:
        return ""
    finally:
        connection.close()


def facts(amqp_port: int, api_port: int) -> dict[str, Any]:
    """What Flower shows of a worker of two queues that did three tasks."""
    # In the virtual host / Flower 2.2 asks for queues//, which is 404 on RabbitMQ, too.
    ask(api_port, "PUT", "vhosts/shop", {})
    ask(api_port, "PUT", "permissions/shop/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        Path(folder, "shop.py").write_text(APP.format(url=f"amqp://guest:guest@127.0.0.1:{amqp_port}/shop"))
        (port,) = servers.free_ports(1)
        api = f"http://guest:guest@127.0.0.1:{api_port}/api/"
        stack.enter_context(started(folder, "flower", f"--port={port}", "--address=127.0.0.1", f"--broker-api={api}"))
        stack.enter_context(started(folder, "worker", "-c", "1", "-P", "solo", "-n", "shop@test", "-E", "-Q", "celery,later"))
        wait_until(lambda: "shop@test" in look(port, "/api/workers?refresh=1"), 90, 0.2, "Flower knows the worker")
        for number in range(3):
            subprocess.run([PYTHON, "-c", f"import shop; shop.add.delay({number}, 1)"], cwd=folder, check=True, timeout=60)

        def tasks() -> list[dict[str, Any]]:
            return list(json.loads(look(port, "/api/tasks") or "{}").values())

        wait_until(lambda: [one["state"] for one in tasks()].count("SUCCESS") == 3, 60, 0.2, "three tasks are done")
        wait_until(lambda: "later" in look(port, "/broker"), 60, 0.2, "the page of the broker has the queue")
        page = look(port, "/broker")
        rows = [re.findall(r"<td[^>]*>\s*(.*?)\s*</td>", row, re.DOTALL) for row in re.findall(r"<tr.*?</tr>", page, re.DOTALL)]
        shown = {row[0]: row[1:5] for row in rows if row}
        return {
            "results": sorted(one["result"] for one in tasks() if one["state"] == "SUCCESS"),
            "queues": {name: shown[name] for name in ("celery", "later")},
            "lengths": sorted((one["name"], one["messages"]) for one in json.loads(look(port, "/api/queues/length"))["active_queues"]),
        }


if PYTHON:

    def test_on_flintmq() -> None:
        with Broker(http_port=0) as broker:
            port = broker.node.http_port
            assert port is not None
            found = facts(broker.port, port)
        assert found["results"] == ["1", "2", "3"]
        # name, messages, unacked, ready, consumers
        assert found["queues"] == {"celery": ["0", "0", "0", "1"], "later": ["0", "0", "0", "1"]}
        assert found["lengths"] == [("celery", 0), ("later", 0)]

    if os.environ.get("FLINTMQ_TEST_PEER"):

        def test_on_rabbitmq() -> None:
            (port,) = servers.free_ports(1)
            config = f"management.tcp.port = {port}\nmanagement.tcp.ip = 127.0.0.1\ncollect_statistics_interval = 1000"
            with servers.rabbitmq(plugins=["rabbitmq_management"], config=config) as server:
                wait_until(lambda: look(port, "/") != "", 60, 0.2, "RabbitMQ's API answers")
                found = facts(server.port, port)
            with Broker(http_port=0) as broker:
                own = broker.node.http_port
                assert own is not None
                assert facts(broker.port, own) == found
