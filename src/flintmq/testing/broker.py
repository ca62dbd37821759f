"""A broker inside the test's process: real protocol, real loop, up in milliseconds; nothing on disk, unless a data_dir is given.

with Broker() as broker:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from flintmq.clock import Clock
from flintmq.config import Config
from flintmq.node import Node

# milliseconds for which a stop waits for connections that a test left open and reads no more
CLOSE_MS_MAX = 250


class Broker:
    """Context manager around a Node on a free loopback port.

    Args: log: a LogPort (tests.twins.memory_log) whose durability the test controls; clock: time port for expiry; limits: changes to
    config.Limits by name; options: other fields of Config (with data_dir or store_dir it is a durable broker).
    """

    def __init__(self, log: Any = None, clock: Clock | None = None, limits: dict[str, Any] | None = None, **options: Any) -> None:
        options.setdefault("memory", not ({"data_dir", "store_dir"} & options.keys()))
        config = Config(port=0, **options).with_limits(**{"close_ms_max": CLOSE_MS_MAX, **(limits or {})})
        self.node = Node(config, clock, log)

    def __enter__(self) -> Broker:
        self.node.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.node.stop()

    @property
    def port(self) -> int:
        assert self.node.amqp_port is not None
        return self.node.amqp_port

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"
