"""The one question that every verb asks before it does anything: may this user?

in: a connection's handler, a method's name, the names of what it touches. out: nothing, or PeerError(403).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from flintmq.access.outside_user import OutsideUser
from flintmq.ports import Verb

if TYPE_CHECKING:
    from flintmq.session.session_port import Session


def authorize(handler: Session, method: str, **names: str | None) -> None:
    """Asks for everything `method` needs (access.permissions.NEEDS). Raises PeerError(403).

    Every verb calls this once, before it does anything; `names` are the resources it touches.
    """
    handler.broker.permissions.authorize_method(handler.user, handler.vhost.name, method, names)


def authorize_topic(handler: Session, verb: Verb, exchange: str, keys: Iterable[bytes]) -> None:
    """Asks for routing keys besides (access.permissions.authorize_keys). Raises PeerError(403)."""
    if not handler.vhost.keyed and not isinstance(handler.user, OutsideUser):
        return
    handler.broker.permissions.authorize_keys(handler.user, handler.vhost, verb, exchange, keys)


def may_use_key(handler: Session, verb: Verb, exchange: str, key: bytes) -> bool:
    """The same question for one key, whose refusal is told nobody: a message with it is refused when it is complete."""
    text = key.decode("utf-8", "surrogateescape")
    return not handler.broker.permissions.topic_is_refused(handler.user, handler.vhost.name, verb, exchange, text)


def keys_are_asked(handler: Session, exchange: str) -> bool:
    """Whether some routing keys of the exchange may be refused: a topic exchange with topic permissions, or a user from outside who may use
    some keys only."""
    vhost = handler.vhost
    if exchange not in vhost.exchanges or vhost.exchanges[exchange].kind != "topic":
        return False
    return exchange in vhost.keyed or (
        isinstance(handler.user, OutsideUser) and not handler.user.may_every_key(vhost.name, Verb.WRITE.value, exchange)
    )
