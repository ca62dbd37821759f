"""A client's session as its verbs know it; for the type checker.

in: nothing. out: Session, which handlers.ConnectionHandler fills in: it calls the verbs, and so they must not know it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from flintmq.broker.client import Client
from flintmq.broker.records import ChannelState, Consumer

if TYPE_CHECKING:
    from flintmq.broker.broker import Broker
    from flintmq.errors import PeerError, StoreError
    from flintmq.protocol.v0_9_1 import spec
    from flintmq.routing.route_cache import RouteCache
    from flintmq.vhost.changes import Verb


class Session(Client, Protocol):
    """One session, on the thread of its loop. Attributes and methods as ConnectionHandler documents them."""

    broker: Broker
    channels: dict[int, ChannelState]
    # the handshake (handshake.STEPS)
    state: str
    login: Any  # of whichever mechanism: it has `cancel`
    trusted: str | None
    door: Any
    user_born: int
    is_py_amqp: bool
    wants_hints: bool
    wants_login_close: bool
    # answers
    verbs: deque[Any]  # of underway.Asked
    after_answer: list[tuple[int, spec.Method]] | None

    def change(self, channel: int, method: spec.Method, verb: Verb[Any], answer: Callable[[Any], None]) -> None: ...
    def method(self, channel: int, payload: bytes, method_id: int) -> None: ...
    def commit(self, number: int) -> None: ...
    def keep_cache(self, exchange_name: str, cache: RouteCache) -> None: ...
    def is_there(self) -> bool: ...
    def not_saved(self, channel: int, method_id: int, error: StoreError) -> None: ...
    def head_came(self) -> None: ...
    def complain(self, log_line: Callable[..., None], text: str, *values: object) -> None: ...
    # ends
    def refuse(self, channel: int, error: PeerError, method_id: int = 0) -> None: ...
    def drop_channel(self, number: int, done: Callable[[], object], *, wait_for_ok: bool) -> None: ...
    def close(self, code: int, text: str, class_id: int = 0, method_id: int = 0) -> None: ...
    def finish(self, *, awaits_end: bool = False) -> None: ...
    def agree(self) -> None: ...
    def failed(self) -> None: ...
    def logged_in(self, user: str, born: int) -> None: ...
    def consumer_came(self, consumer: Consumer) -> None: ...
    def channels_left(self, count: int) -> None: ...
