"""Events and log lines for HTTP clients that listen: which of them a client gets, and what a slow client loses.

in: changes of the broker and lines of its log, from any thread. out: server-sent events to each client that asked.

E1  Nobody waits for a listener. Each has a queue of Limits.sse_waiting_max events; the oldest goes when another one comes, and the listener
    is told how many it lost.
E2  A listener gets the events of virtual hosts that its user sees, log lines only with the tag that shows the node, and nothing once its
    user may not.
E3  While nobody listens, an event costs a comparison; the log is tapped while somebody listens to it. An event for all is encoded once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flintmq.access.tags import NotAuthorised, sees_everything
from flintmq.admin.answers import small
from flintmq.admin.pools import take
from flintmq.core.shares import Holding
from flintmq.guard import guarded
from flintmq.loglines import LineFormatter, LineLogger

TOPICS = ("overview", "events", "logs")
# the events' own names, for those who listen: docs/HTTP.md has the list
_LOST = b'event: lost\ndata: {"count": %d}\n\n'
_BEAT = b": still here\n\n"


def encoded(kind: str, value: Any, number: int = 0) -> bytes:
    """One event. A value's text has no line ends: JSON writes them as escapes."""
    return (b"id: %d\n" % number if number else b"") + b"event: " + kind.encode() + b"\ndata: " + small(value) + b"\n\n"


@dataclass(eq=False, slots=True)
class Listener:
    """One client. Args: user; topics; sees: whether it is told of a virtual host (None: of the node); may: whether it may still listen."""

    user: str
    topics: frozenset[str]
    sees: Callable[[str | None], bool]
    may: Callable[[], bool]
    waiting_max: int
    place: Holding
    waiting: deque[bytes] = field(default_factory=deque)
    lost: int = 0
    lost_all: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, event: bytes) -> None:
        """On the service's loop."""
        if len(self.waiting) >= self.waiting_max:
            self.waiting.popleft()
            self.lost += 1
            self.lost_all += 1
        self.waiting.append(event)
        self.wake.set()

    def miss(self, count: int) -> None:
        """Events that were dropped before it was known whose they are: it may have been some of them."""
        self.lost += count
        self.lost_all += count
        self.wake.set()

    def take(self) -> bytes:
        """All that waits."""
        before = _LOST % self.lost if self.lost else b""
        self.lost = 0
        octets = before + b"".join(self.waiting)
        self.waiting.clear()
        self.wake.clear()
        return octets


class _Tap(logging.Handler):
    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell
        self.setFormatter(LineFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(self.format(record))


class Hub:
    """All listeners of a node. Args: parts; overview: makes the overview that all may see in part (by user's sight). For one event loop."""

    def __init__(self, parts: Any, overview: Callable[[], dict[str, Any]]) -> None:
        self._parts = parts
        self._limits = parts.broker.limits
        self._overview = overview
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: dict[Listener, None] = {}
        self._kept: deque[tuple[int, str | None, bytes]] = deque(maxlen=self._limits.events_kept)
        self._number = 0
        self._task: asyncio.Task[None] | None = None
        self._tap: _Tap | None = None
        self._sink: Callable[[str, str], None] | None = None
        self._formatter = LineFormatter()
        # lines and events on their way to the loop; more than this are dropped, so that a storm of them is no storm of wake-ups
        self._coming: deque[tuple[str, str | None, Any]] = deque(maxlen=4 * self._limits.sse_waiting_max)
        self._missed = 0  # of those
        self._called = False
        self.listened_to = False
        # called when that has changed
        self.on_listened: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._listeners)

    # --- what happens (any thread) ----------------------------------------------------------------------------------------

    def event(self, kind: str, vhost: str | None, value: dict[str, Any]) -> None:
        """Something changed. Args: kind: such as queue.created; vhost: None: it is of the node."""
        if self.listened_to:
            self._tell(("events", vhost, {"kind": kind, "at_ms": self._parts.broker.clock.wall_ms(), "vhost": vhost, **value}))

    def line(self, text: str) -> None:
        """A line of the log."""
        self._tell(("logs", None, text[: self._limits.sse_text_max]))

    def _tell(self, one: tuple[str, str | None, Any]) -> None:
        if len(self._coming) == self._coming.maxlen:
            self._missed += 1  # about: threads that come here together may count one less
        self._coming.append(one)
        if not self._called and self._loop is not None:
            self._called = True
            try:
                self._loop.call_soon_threadsafe(self._spread)
            except RuntimeError:
                return  # the service has ended

    def _spread(self) -> None:
        self._called = False
        missed, self._missed = self._missed, 0
        for listener in self._listeners if missed else ():
            if not listener.topics.isdisjoint(("events", "logs")):
                listener.miss(missed)
        while self._coming:
            topic, vhost, value = self._coming.popleft()
            if topic == "events":
                self._number += 1
                event = encoded("event", value, self._number)
                self._kept.append((self._number, vhost, event))
            else:
                event = encoded("log", {"line": value})
            for listener in self._listeners:
                if topic in listener.topics and listener.sees(vhost):
                    listener.put(event)

    # --- who listens --------------------------------------------------------------------------------------------------------

    def listen(self, call: Any, topics: Sequence[str], last: int) -> AsyncIterator[bytes]:
        """A new listener's events, until it leaves. `last`: number of the last event it had. Raises: HttpError 503."""
        limits, caller, user = self._limits, call.caller, call.caller.user
        place = take(call.pools.streams, call.who, "clients listen to events")
        permissions, users, service, actor = self._parts.broker.permissions, self._parts.broker.users, self._parts.definitions, call.actor

        def sees(vhost: str | None) -> bool:
            record = users.get(user)
            if record is None:
                return False
            return sees_everything(record.tags) or (vhost is not None and permissions.has_vhost(user, vhost))

        def may() -> bool:
            if not caller.is_current:
                return False
            try:
                service.allow(actor, "node.look" if "logs" in topics else "look")
            except NotAuthorised:
                return False
            return True

        listener = Listener(user, frozenset(topics), sees, may, limits.sse_waiting_max, place)
        self._add(listener)
        if "events" in topics and last:
            for number, vhost, event in self._kept:
                if number > last and sees(vhost):
                    listener.put(event)
        return self._events(listener)

    def _add(self, listener: Listener) -> None:
        self._loop = asyncio.get_running_loop()
        self._listeners[listener] = None
        self._follow()
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._run())

    def _remove(self, listener: Listener) -> None:
        if self._listeners.pop(listener, listener) is listener:
            return
        listener.place.release()
        self._follow()

    def _follow(self) -> None:
        """Listens to the broker and its log while somebody wants that (E3)."""
        self.listened_to = any("events" in one.topics for one in self._listeners)
        self.on_listened()
        wants_lines = any("logs" in one.topics for one in self._listeners)
        if wants_lines and self._tap is None:
            self._tap = _Tap(self.line)
            logging.getLogger().addHandler(self._tap)
            sink = LineLogger.sink
            if sink is not None:
                self._sink = sink
                LineLogger.sink = self._through
        elif not wants_lines and self._tap is not None:
            logging.getLogger().removeHandler(self._tap)
            self._tap = None
            if self._sink is not None:
                LineLogger.sink = self._sink
                self._sink = None

    def _through(self, name: str, text: str) -> None:
        """The short way of a line, and to us."""
        sink = self._sink
        if sink is not None:
            sink(name, text)
        self.line(self._formatter.line(time.time(), "INFO", name, text))

    async def _events(self, listener: Listener) -> AsyncIterator[bytes]:
        loop, beat = asyncio.get_running_loop(), self._limits.sse_beat_ms / 1000
        try:
            yield b"retry: 2000\n\n"
            sent_at = loop.time()
            while listener in self._listeners:
                if listener.waiting or listener.lost:
                    yield listener.take()
                    sent_at = loop.time()
                elif loop.time() - sent_at >= beat:
                    yield _BEAT
                    sent_at = loop.time()
                else:
                    await listener.wake.wait()
                    listener.wake.clear()
            if listener.waiting:
                yield listener.take()
        finally:
            self._remove(listener)

    async def _run(self) -> None:
        """The overview once a second, beats, and the end of those that may listen no more."""
        limits, next_overview = self._limits, 0.0
        loop = asyncio.get_running_loop()
        while self._listeners:
            stopping = self._parts.pulls.stopping
            for listener in list(self._listeners):
                if stopping or not listener.may():
                    self._remove(listener)
                    listener.put(b"event: end\ndata: {}\n\n")
                elif not listener.waiting:
                    listener.wake.set()  # it looks whether a beat is due
            if loop.time() >= next_overview:
                next_overview = loop.time() + limits.sse_overview_ms / 1000 - 0.05
                guarded("event streams", "the overview", self._tell_overview)
            await asyncio.sleep(limits.sse_look_ms / 1000)
        self._follow()

    def _tell_overview(self) -> None:
        """One overview for all who see everything; others ask for theirs."""
        event = b""
        for listener in self._listeners:
            if "overview" in listener.topics and listener.sees(None):
                if not event:
                    event = encoded("overview", self._overview())
                listener.put(event)
