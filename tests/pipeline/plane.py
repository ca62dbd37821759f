"""Help for tests with a real data plane: publishing, looking, a client under the model of Spark, a broker that is killed and comes back.

In: a `Broker` with `--flight-port`. Out: options of the source, bodies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika

from flintmq.flight.calls import Calls
from flintmq.flight.client import DataPlane
from flintmq.flight.plane_error import PlaneError
from tests.pipeline.fake_broker import Plan
from tests.support.broker import Broker
from tests.support.servers import free_ports


def flight_port(broker: Broker) -> int:
    return int(broker.ready["flight_port"])


def source_options(broker: Broker, **options: Any) -> dict[str, str]:
    """Options of `format("flintmq")` for this broker."""
    given = {"host": broker.host, "flightPort": flight_port(broker), "timeout": 60, **options}
    return {key: str(value) for key, value in given.items()}


@contextlib.contextmanager
def channel_of(broker: Broker) -> Iterator[Any]:
    """A pika channel with confirms."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
    finally:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


def publish(broker: Broker, queue: str, bodies: list[bytes], **properties: Any) -> None:
    """Declares the queue (durable) and publishes persistent messages, confirmed."""
    with channel_of(broker) as channel:
        channel.queue_declare(queue, durable=True)
        for body in bodies:
            channel.basic_publish("", queue, body, pika.BasicProperties(**{"delivery_mode": 2, **properties}))


def ready(broker: Broker, queue: str) -> int:
    with channel_of(broker) as channel:
        return int(channel.queue_declare(queue, passive=True).method.message_count)


def bodies_left(broker: Broker, queue: str) -> list[tuple[bytes, bool]]:
    """(body, redelivered) of what an AMQP client gets; it stays in the queue."""
    with channel_of(broker) as channel:
        found = []
        while True:
            method, _, body = channel.basic_get(queue)
            if method is None:
                return found
            found.append((body, method.redelivered))


class RealPlane:
    """The client as `FakeSpark` uses it: with points at which the driver may die. Every life of the driver has a client of its own."""

    def __init__(self, broker: Broker, plan: Plan | None = None) -> None:
        self.broker = broker
        self.plan = plan or Plan()
        self.late_opens = 0
        self._client: DataPlane | None = None

    def client(self) -> DataPlane:
        if self._client is None:
            self._client = DataPlane(self.broker.host, flight_port(self.broker), timeout_s=60)
        return self._client

    @property
    def calls(self) -> Calls:
        return Calls(self._action)

    def _action(self, name: str, arguments: dict[str, Any], wait_s: float) -> Any:
        self.plan.point(f"before {name}")
        answer = self.client()._action(name, arguments, wait_s)
        self.plan.point(f"after {name}")
        return answer

    def time_passes(self, name: str) -> None:
        """Until Spark is there again, the reader of a driver that was killed is not heard of any more."""
        with contextlib.suppress(PlaneError):
            there = self.client().sub_status(name)
            self.client().calls.sub_alive(sub_id=there["sub_id"], epoch=there["epoch"], leave=True)

    def read(self, ticket: bytes) -> Iterator[bytes]:
        for batch in self.client().read(ticket, columns=["body"]):
            yield from batch.column("body").to_pylist()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class RestartingBroker:
    """A broker that can be killed and started again on the same store and ports, or at another port of its data plane."""

    def __init__(self, directory: Path, env: dict[str, str] | None = None) -> None:
        self._directory = directory
        self._env = env
        # Nobody else is given them while the broker is away.
        *ports, self._other = map(str, free_ports(3))
        self._ports = tuple(ports)
        self.broker = self._start()

    def _start(self) -> Broker:
        broker = Broker("--data-dir", str(self._directory), "--port", self._ports[0], "--flight-port", self._ports[1], env=self._env)
        broker.__enter__()
        self._ports = (str(broker.port), str(flight_port(broker)))
        return broker

    def kill(self) -> None:
        self.broker.kill()
        self.broker.__exit__()

    @property
    def url(self) -> str:
        """Both addresses of the data plane."""
        return f"grpc://{self.broker.host}:{self._ports[1]},{self.broker.host}:{self._other}"

    def restart(self, *, moved: bool = False) -> None:
        if moved:
            self._ports, self._other = (self._ports[0], self._other), self._ports[1]
        self.broker = self._start()

    def stop(self) -> None:
        self.broker.__exit__()
