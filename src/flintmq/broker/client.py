"""A connected client as the node's services know it; for the type checker.

in: nothing. out: Client, which session.handlers.ConnectionHandler fills in. Services are a lower layer than the session, and must not know
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from flintmq.channel.loop_port import LoopPort, SocketPort


class Channel(Protocol):
    """An open channel: its consumers by tag."""

    @property
    def consumers(self) -> dict[str, Any]: ...


class Client(Protocol):
    """One client. Its methods run on the thread of its loop (Loops.run_on)."""

    # who it is
    connection_id: int
    name: str
    user: str
    vhost: Any
    secure: bool
    peer_host: str
    peer_port: int
    mechanism: str
    client_properties: bytes
    connected_at_ms: int
    # what was agreed
    heartbeat_s: int
    frame_size_max: int
    channel_max: int
    wants_blocked: bool
    wants_cancel: bool
    # where it is, and what it has
    connection: Any
    loop: LoopPort
    socket: SocketPort | None
    memory: Any
    works: Any
    ended: bool
    is_blocked: bool
    deferred: Callable[[], None] | None

    @property
    def channels(self) -> Any: ...
    @property
    def is_open(self) -> bool:
        """It has opened a virtual host, and its close has not begun."""
        ...

    def __hash__(self) -> int: ...
    def send(self, channel: int, method: Any) -> None: ...
    def send_later(self, channel: int, method: Any) -> None: ...
    def close(self, code: int, text: str) -> None: ...
    def evict(self) -> None: ...
    def unblocked(self) -> None: ...
    def go_on(self) -> None: ...
    def after_publish(self) -> None: ...
    def consumer_left(self, consumer: Any) -> None: ...
