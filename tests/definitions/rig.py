"""A definitions service on a broker without a node: no loops, so that slices run at once; and verbs that are waited for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from flintmq.access.permissions import Permissions
from flintmq.access.users import Users
from flintmq.broker.broker import Broker
from flintmq.clock import SystemClock
from flintmq.config import Config, Limits
from flintmq.definitions.change_line import BROKER, Actor
from flintmq.definitions.verbs import DefinitionsService
from flintmq.store.definitions import MemoryDefinitions
from flintmq.store.sql.definitions import SqlDefinitions


class Answer:
    """A verb that was asked for."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self.result: Any = None
        self.error: Exception | None = None

    def done(self, result: Any, error: Exception | None) -> None:
        self.result, self.error = result, error
        self._over.set()

    def wait(self) -> Any:
        assert self._over.wait(60)
        if self.error is not None:
            raise self.error
        return self.result


class Rig:
    """Args: directory: of the database; None: in memory."""

    def __init__(self, directory: Path | None = None, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self.sql = None if directory is None else SqlDefinitions.open(directory, limits=limits)
        definitions: Any = self.sql or MemoryDefinitions()
        clock = SystemClock()
        self.users = Users(definitions, clock, limits)
        self.permissions = Permissions(definitions)
        config = Config(port=None, memory=True).with_limits()
        self.broker = Broker(config, clock, definitions, self.users, self.permissions, "rig")
        self.broker.limits = limits
        self.service = DefinitionsService(self.broker)
        for name in self.service.load():
            vhost = self.broker.add_vhost(name)
            self.service.prepare(vhost)
            vhost.restore()

    def ask(self, verb: str, *arguments: Any, actor: Actor = BROKER, **options: Any) -> Answer:
        """Asks for a verb of the service."""
        answer = Answer()
        getattr(self.service, verb)(actor, *arguments, answer.done, **options)
        return answer

    def do(self, verb: str, *arguments: Any, actor: Actor = BROKER, **options: Any) -> Any:
        """The same, waited for. Raises: what the verb is refused with."""
        return self.ask(verb, *arguments, actor=actor, **options).wait()

    def close(self) -> None:
        self.users.close()
        if self.sql is not None:
            self.sql.close()
