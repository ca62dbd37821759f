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
    handler.broker.permissions.authorize_keys(handler.user, handler.vhost, verb, exchange, keys)


def each_key(handler: Session, exchange: str) -> bool:
    """Whether every publish to the exchange must be asked for by its routing key: a user from outside may use some keys only."""
    vhost = handler.vhost
    return (
        isinstance(handler.user, OutsideUser)
        and exchange in vhost.exchanges
        and vhost.exchanges[exchange].kind == "topic"
        and not handler.user.may_every_key(vhost.name, Verb.WRITE.value, exchange)
    )
