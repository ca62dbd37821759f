"""Debian's RabbitMQ with its API, for tests of shovels and federation."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Any, NamedTuple

import pika
import pytest

from tests.admin.api import Api
from tests.links.rig import until
from tests.support import servers

PLUGINS = ("rabbitmq_management", "rabbitmq_shovel", "rabbitmq_shovel_management", "rabbitmq_federation", "rabbitmq_federation_management")


class Rabbit(NamedTuple):
    url: str
    api: Any
    channel: Any

    def depth(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)


class _Port:
    """What Api needs of a client."""

    def __init__(self, port: int) -> None:
        self.port = port

    def connection(self) -> Any:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)


def rabbits() -> Iterator[Rabbit]:
    """One with management, shovels and federation; the test is skipped where there is none."""
    (port,) = servers.free_ports(1)
    config = f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}"
    try:
        with servers.rabbitmq(plugins=PLUGINS, config=config) as server:
            url = f"amqp://guest:guest@127.0.0.1:{server.port}/%2F"
            connection = pika.BlockingConnection(pika.URLParameters(url + "?heartbeat=0"))
            api = Api(_Port(port))  # type: ignore[arg-type]
            until(lambda: _answers(api))
            yield Rabbit(url, api, connection.channel())
            connection.close()
    except servers.Unavailable as reason:
        pytest.skip(str(reason))


def _answers(api: Api) -> bool:
    try:
        return bool(api.ask("GET", "whoami").status == 200)
    except OSError:
        return False
