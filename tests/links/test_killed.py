"""kill -9 of the broker that runs a shovel, and of the other one: every message is there, and the first of each come in order."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.links.rig import until
from tests.support import servers

COUNT = 3_000


class Killable:
    """A durable broker as a process, on ports that it keeps."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.port, self.http = servers.free_ports(2)
        self._stack = ExitStack()
        self.start()

    def start(self) -> None:
        options = (
            "--port",
            str(self.port),
            "--http-port",
            str(self.http),
            "--flight-port",
            "off",
            "--data-dir",
            str(self._directory / "data"),
        )
        self.server = self._stack.enter_context(servers.flintmq(*options, data_dir=self._directory))

    def kill(self) -> None:
        os.kill(self.server.pid, signal.SIGKILL)
        self._stack.close()

    def stop(self) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def ask(self, method: str, path: str, value: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=30)
        login = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode(), "Content-Type": "application/json"}
        try:
            connection.request(method, f"/api/{path}", None if value is None else json.dumps(value), login)
            raw = connection.getresponse().read()
        finally:
            connection.close()
        return json.loads(raw) if raw else None

    def depth(self, queue: str) -> int:
        found = self.ask("GET", f"queues/%2F/{queue}")
        return int(found.get("messages", 0))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Killable, Killable]]:
    one, two = Killable(tmp_path / "one"), Killable(tmp_path / "two")
    yield one, two
    one.stop()
    two.stop()


def publish(url: str, queue: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.tx_select()
    for number in range(COUNT):
        channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2))
    channel.tx_commit()
    connection.close()


def drain(url: str, queue: str) -> list[bytes]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    bodies = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        bodies.append(got[2])
    connection.close()
    return bodies


@pytest.mark.parametrize("victim", ["the one that runs it", "the destination"])
def test_kill_of_a_broker(pair: tuple[Killable, Killable], victim: str) -> None:
    here, there = pair
    publish(here.url, "a")
    shovel = {
        "src-uri": "amqp://",
        "src-queue": "a",
        "dest-uri": there.url,
        "dest-queue": "b",
        "src-prefetch-count": 5,
        "reconnect-delay": 0.1,
    }
    here.ask("PUT", "parameters/shovel/%2F/s", {"value": shovel})
    until(lambda: there.depth("b") > 20)
    killed = here if victim == "the one that runs it" else there
    killed.kill()
    killed.start()
    until(lambda: here.depth("a") == 0)
    assert list(dict.fromkeys(drain(there.url, "b"))) == [b"%d" % number for number in range(COUNT)]
