"""The one question that every verb asks before it does anything: may this user?

in: a connection's handler, a method's name, the names of what it touches. out: nothing, or PeerError(403).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flintmq.session.handlers import ConnectionHandler

# the name that stands for a client's own replies: a queue that nobody declares
REPLY_TO = "amq.rabbitmq.reply-to"


def authorize(handler: ConnectionHandler, method: str, **names: str | None) -> None:
    """Asks for everything `method` needs (access.permissions.NEEDS). Raises PeerError(403).

    Every verb calls this once, before it does anything; `names` are the resources it touches.
    """
    handler.broker.permissions.authorize_method(handler.user, handler.vhost.name, method, names)
