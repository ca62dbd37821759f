"""The log of the broker as messages: each line goes to the exchange `amq.rabbitmq.log` of virtual host `/`, with its level as the key.

in: records of the logging module, and the short lines of LineLogger, from any thread, under any lock. out: messages with the line as their
body, of type text/plain, with a timestamp and the header node, as RabbitMQ's `log.exchange = true` makes them.

X1  It is off unless the operator asks for it (`--log-exchange`): lines have the names of users, addresses and all virtual hosts, and who
    may read the exchange reads them.
X2  What is logged while a line is put on its queues is no message: a fault there would feed itself.
X3  While nothing is bound a line costs one look; at Limits.events_bytes_max of waiting lines what comes is dropped, counted as `log`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flintmq.broker.events import DEFAULT_VHOST
from flintmq.broker.outbox import Outbox, Put
from flintmq.core.content import CONTENT_HEADERS
from flintmq.loglines import LineFormatter, LineLogger
from flintmq.protocol.v0_9_1.codec import Timestamp
from flintmq.routing.exchange import Binding, Exchange, TopicExchange

if TYPE_CHECKING:
    from flintmq.broker.state import NodeState

LOG = "amq.rabbitmq.log"


class _Own(threading.local):
    """Whether this thread is at work for the exchange."""

    at_work = False


class _Lines(Outbox):
    def __init__(self, state: NodeState, put: Put, own: _Own) -> None:
        super().__init__(state, put, LOG, state.limits.events_bytes_max, "log", CONTENT_HEADERS)
        self._own = own

    def _step(self) -> bool:
        before, self._own.at_work = self._own.at_work, True
        try:
            return super()._step()
        finally:
            self._own.at_work = before


class LogExchange(logging.Handler):
    """`watch` each virtual host, then `open`; `close` at the end."""

    def __init__(self, state: NodeState, put: Put) -> None:
        super().__init__()
        self.setFormatter(LineFormatter())
        self._state = state
        self._lines = LineFormatter()
        self._own = _Own()
        self._outbox = _Lines(state, put, self._own)
        # of the virtual host "/" that there is now, or was last
        self._exchange: Exchange | None = None
        self._wanted = False
        self._sink: Callable[[str, str], None] | None = None

    def watch(self, vhost: Any) -> None:
        """A virtual host is made: `/` gets the exchange."""
        if vhost.name == DEFAULT_VHOST:
            vhost.exchanges[LOG] = self._exchange = TopicExchange(LOG, durable=True, internal=True)
            vhost.predeclared += 1
            self._wanted = False

    def follow(self, binding: Binding, came: bool) -> None:
        """Something was bound or unbound (broker.events.Events.followers)."""
        exchange = self._exchange
        if exchange is not None and binding.source is exchange:
            self._wanted = bool(exchange.bindings)

    def open(self) -> None:
        """From now on lines are told."""
        logging.getLogger().addHandler(self)
        if LineLogger.sink is not None:
            self._sink = LineLogger.sink
            LineLogger.sink = self._through

    def close(self) -> None:
        """No more lines. Idempotent."""
        logging.getLogger().removeHandler(self)
        if self._sink is not None:
            LineLogger.sink = self._sink
            self._sink = None
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """One record. Any thread."""
        if self._wanted and not self._own.at_work:
            self._tell(record.levelname.lower(), self.format(record))

    def _through(self, name: str, text: str) -> None:
        """The short way of a line of level INFO, and to us."""
        sink = self._sink
        if sink is not None:
            sink(name, text)
        if self._wanted and not self._own.at_work:
            self._tell("info", self._lines.line(time.time(), "INFO", name, text))

    def _tell(self, level: str, line: str) -> None:
        self._own.at_work = True
        try:
            properties = {
                "content_type": "text/plain",
                "timestamp": Timestamp(self._state.clock.wall_ms() // 1000),
                "headers": {"node": self._state.node_name},
            }
            self._outbox.add(DEFAULT_VHOST, level, properties, line.encode("utf-8", "surrogateescape"))
        finally:
            self._own.at_work = False
