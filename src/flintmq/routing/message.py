"""The headers of one message on its way, with what else an exchange may look at or leave with it.

in: a message whose route depends on more than its key. out: a mapping of headers that all kinds of exchanges take.

M1  One message may be routed several times (a routing key of CC or BCC each, a queue that was deleted meanwhile): what an exchange
    decided once for it (`decided`) it decides again.
M2  `undo` takes back what exchanges remember of a message that a queue refused: its publisher sends it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flintmq.routing.binding import NO_ARGUMENTS

# exchange name, routing key, content header payload, body
Content = tuple[bytes, bytes, bytes, bytes]


def _nothing() -> Mapping[str, Any]:
    return NO_ARGUMENTS


class MessageHeaders(dict[str, Any]):
    """Args: headers; properties: gives the message's properties (decoded only when asked for); content: gives the message itself,
    None: nobody may keep it; user: who published it, None: the broker; again: it was routed before, and is not remembered once more."""

    __slots__ = ("again", "content", "decided", "properties", "undo", "user")

    def __init__(
        self,
        headers: Mapping[str, Any],
        properties: Callable[[], Mapping[str, Any]] = _nothing,
        content: Callable[[], Content] | None = None,
        again: bool = False,
        user: object = None,
    ) -> None:
        super().__init__(headers)
        self.properties = properties
        self.content = content
        self.again = again
        self.user = user
        self.decided: dict[Any, Any] = {}  # exchange -> what it made of this message
        self.undo: list[Callable[[], object]] = []

    def refused(self) -> None:
        """M2."""
        for forget in self.undo:
            forget()
        self.undo.clear()
