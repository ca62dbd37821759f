"""The data plane of a node: service and supervisor, put together, started and stopped.

in: the node's broker and durable store. out: what node.py calls.

A node whose pipeline has nothing in the log loads the service with the first call that needs it: most brokers never meet Spark.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flintmq.broker.broker import Broker
from flintmq.config import Config
from flintmq.dataplane.in_log import has_work
from flintmq.dataplane.supervisor import Supervisor, flight_is_installed
from flintmq.scheduler.system import ActorSystem

if TYPE_CHECKING:
    from flintmq.dataplane.backups import Backups
    from flintmq.dataplane.dispatch import Service
    from flintmq.dataplane.wire import Channel

log = logging.getLogger("flintmq.dataplane")


class DataPlane:
    """Args: config; broker: durable, restored; logs: its LogStore; flight_command: of the child, for tests; actors: the node's ActorSystem,
    which runs when `start` is called and stops after `stop`. Raises: StoreError."""

    def __init__(
        self, config: Config, broker: Broker, logs: Any, flight_command: Sequence[str] | None = None, actors: ActorSystem | None = None
    ) -> None:
        self._config = config
        self._broker = broker
        self._logs = logs
        self._actors = actors
        self._supervisor: Supervisor | None = None
        self._loading = threading.Lock()
        self._service: Service | None = None
        self._backups: Backups | None = None
        self._started = self._stopped = False
        if config.flight_port is not None:
            if flight_command is None and not flight_is_installed():
                log.warning("no Arrow Flight: pyarrow is not installed (pip install 'flintmq[flight]'), or say --flight-port off")
            else:
                self._supervisor = Supervisor(config, logs.directory, self._serve, flight_command)
        if has_work(logs, broker.transactions):
            self._load()

    def _load(self) -> Service:
        """The service, restored. The first call takes some 10 ms, and waits for decisions from before the broker stopped."""
        with self._loading:
            if self._service is None:
                from flintmq.dataplane.backups import Backups
                from flintmq.dataplane.dispatch import Service

                service = Service(self._broker, self._logs)
                service.restore()
                self._backups = Backups(service.plane, service.pins)
                if self._supervisor is not None:
                    service.flight = self._supervisor.status
                if self._started:
                    service.actors = self._actors
                if self._stopped:
                    service.stop()
                self._broker.on_housekeeping.append(service.tick)
                self._service = service
            return self._service

    @property
    def service(self) -> Service:
        """What answers calls. Any thread but I/O loops. Raises: StoreError."""
        return self._service or self._load()

    def open_backups(self) -> Backups:
        """Backups of this broker. Any thread but I/O loops. Raises: StoreError."""
        self._load()
        assert self._backups is not None
        return self._backups

    def figures(self) -> dict[str, Any]:
        """See Service.figures. Any thread but I/O loops."""
        return self.service.figures()

    def _serve(self, channel: Channel) -> None:
        self.service.serve(channel)

    def start(self) -> None:
        """Starts the Flight service, or listens for who needs it; returns at once. The actors run."""
        with self._loading:
            self._started = True
            if self._service is not None:
                self._service.actors = self._actors
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
        with self._loading:
            self._stopped, service = True, self._service
        if service is not None:
            service.stop()
        if self._supervisor is not None:
            self._supervisor.stop()
        if service is not None:
            service.stages.close()
