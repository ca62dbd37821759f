"""The data plane of a node: service and supervisor, put together, started and stopped.

in: the node's broker and durable store. out: what node.py calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from flintmq.broker.broker import Broker
from flintmq.config import Config
from flintmq.dataplane.backups import Backups
from flintmq.dataplane.dispatch import Service
from flintmq.dataplane.supervisor import Supervisor, flight_is_installed
from flintmq.scheduler.system import ActorSystem

log = logging.getLogger("flintmq.dataplane")


class DataPlane:
    """Args: config; broker: durable, restored; logs: its LogStore; flight_command: of the child, for tests; actors: the node's ActorSystem,
    which runs when `start` is called and stops after `stop`. Raises: StoreError."""

    def __init__(
        self, config: Config, broker: Broker, logs: Any, flight_command: Sequence[str] | None = None, actors: ActorSystem | None = None
    ) -> None:
        self._config = config
        self._supervisor: Supervisor | None = None
        self.service = Service(broker, logs)
        self.backups = Backups(self.service.plane, self.service.pins)
        self._actors = actors
        self.service.restore()
        broker.on_housekeeping.append(self.service.tick)
        if config.flight_port is None:
            return
        if flight_command is None and not flight_is_installed():
            log.warning("no Arrow Flight: pyarrow is not installed (pip install 'flintmq[flight]'), or say --flight-port off")
            return
        self._supervisor = Supervisor(config, logs.directory, self.service.serve, flight_command)
        self.service.flight = self._supervisor.status

    def start(self) -> None:
        """Starts the Flight service, or listens for who needs it; returns at once. The actors run."""
        self.service.actors = self._actors
        if self._supervisor is not None:
            self._supervisor.start()

    def wait_ready(self, given_up: Callable[[], bool] = lambda: False) -> int | None:
        """The port of the Flight service, on demand at once; None: there is none, it is not up in time, or `given_up()`."""
        return None if self._supervisor is None else self._supervisor.wait_ready(self._config.limits.flight_start_s, given_up)

    @property
    def flight_port(self) -> int | None:
        """Where clients of the Flight service are served, or wait for its start."""
        return None if self._supervisor is None else self._supervisor.port

    def stop(self) -> None:
        """Ends the Flight service and every call that waits. Again is no error."""
        self.service.stop()
        if self._supervisor is not None:
            self._supervisor.stop()
        self.service.stages.close()
