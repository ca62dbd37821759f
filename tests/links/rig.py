"""Two brokers in this process, their APIs, and what is waited for."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import quote

import pika

from flintmq.testing.broker import Broker
from tests.admin.api import PERMISSION, Api
from tests.admin.conftest import Client

WAIT_S = 60.0


def until(what: Callable[[], Any]) -> Any:
    """Waits until it is true, and returns it."""
    end = time.monotonic() + WAIT_S
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < end, f"not in {WAIT_S:.0f} s: {found!r}"
        time.sleep(0.02)


class Side:
    """One broker: its API as guest, a channel."""

    def __init__(self, stack: ExitStack, **options: Any) -> None:
        limits = {"housekeeping_ms": 20, "shovel_look_ms": 50, "shovel_restart_ms": 50, **options.pop("limits", {})}
        self.broker = stack.enter_context(Broker(http_port=0, limits=limits, **options))
        self.api = Api(Client(self.broker))
        self.url = self.broker.url
        self.connection = stack.enter_context(pika.BlockingConnection(pika.URLParameters(self.url)))
        self.channel = self.connection.channel()
        self.confirmed = self.connection.channel()
        self.confirmed.confirm_delivery()

    def uri(self, user: str) -> str:
        return self.url.replace("guest:guest", f"{user}:{user}")

    def fill(self, queue: str, count: int, start: int = 0) -> None:
        self.channel.queue_declare(queue, durable=True)
        for number in range(start, start + count):
            self.confirmed.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2))

    def depth(self, queue: str) -> int:
        """Ready and unacked."""
        found = self.broker.node.broker.vhosts["/"].queues.get(queue)
        return 0 if found is None else found.core.ready_count() + found.core.unacked_count()

    def take(self, queue: str) -> list[bytes]:
        bodies = []
        while (got := self.channel.basic_get(queue, auto_ack=True))[0] is not None:
            bodies.append(got[2])
        return bodies

    def shovel(self, name: str = "s", status: int = 201, api: Api | None = None, **value: Any) -> Any:
        """Sets one. Names have '_' for '-'."""
        named = {key.replace("_", "-"): one for key, one in value.items()}
        path = f"parameters/shovel/%2F/{quote(name, safe='')}"
        answer = (api or self.api).ask("PUT", path, {"value": named})
        assert answer.status == status, answer
        return answer

    def status(self, name: str = "s") -> dict[str, Any]:
        found: dict[str, Any] = next((one for one in self.api.get("shovels") if one["name"] == name), {})
        return found

    def state(self, wanted: str, name: str = "s") -> dict[str, Any]:
        """Waits for a state of the shovel."""
        found: dict[str, Any] = until(lambda: (one := self.status(name)).get("state") == wanted and one)
        return found

    def user(self, name: str, tags: str = "", permission: dict[str, str] | None = None) -> Api:
        self.api.ask("PUT", f"users/{name}", {"password": name, "tags": tags})
        self.api.ask("PUT", f"permissions/%2F/{name}", permission or PERMISSION)
        return Api(self.api.client, name)

    def kill_process(self) -> None:
        """kill -9 of the process that moves messages."""
        process = self.broker.node.links._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)


@contextmanager
def sides(count: int = 2, **options: Any) -> Iterator[list[Side]]:
    with ExitStack() as stack:
        yield [Side(stack, **options) for _ in range(count)]
