"""The headers of one message on its way, with what else an exchange may look at or leave with it.

in: a message whose route depends on more than its key. out: a mapping of headers that all kinds of exchanges take.

M1  One message may be routed several times (a routing key of CC or BCC each, a queue that was deleted meanwhile): what an exchange
    decided once for it (`decided`) it decides again.
M2  `undo` takes back what exchanges remember of a message that a queue refused: its publisher sends it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode
from flintmq.routing.binding import NO_ARGUMENTS
from flintmq.routing.exchange import erlang_term
from flintmq.routing.recent import Recent
from flintmq.routing.seen import Seen

_KEYS_MAX = Limits().message_keys_max

# exchange name, routing key, content header payload, body
Content = tuple[bytes, bytes, bytes, bytes]


def _nothing() -> Mapping[str, Any]:
    return NO_ARGUMENTS


class MessageHeaders(dict[str, Any]):
    """Args: headers; properties: gives the message's properties (decoded only when asked for); content: gives the message itself,
    None: nobody may keep it; user: who published it, None: the broker; is_replay: it was routed before, and is not remembered once more."""

    __slots__ = ("content", "decided", "is_replay", "properties", "undo", "user")

    def __init__(
        self,
        headers: Mapping[str, Any],
        properties: Callable[[], Mapping[str, Any]] = _nothing,
        content: Callable[[], Content] | None = None,
        is_replay: bool = False,
        user: object = None,
    ) -> None:
        super().__init__(headers)
        self.properties = properties
        self.content = content
        self.is_replay = is_replay
        self.user = user
        self.decided: dict[Any, Any] = {}  # exchange -> what it made of this message
        self.undo: list[Callable[[], object]] = []

    def refused(self) -> None:
        """M2."""
        for forget in self.undo:
            forget()
        self.undo.clear()


class Plan(dict[str, Any]):
    """Stands for the headers of all messages with one key, where exchanges remember messages: who would remember them is noted.

    Args: passes: the one exchange that drops messages it has seen takes them for new ones. Attributes: recents: exchanges that remember the
    messages themselves, in the order of the way; seen: of that one exchange; None: there is none on the way.
    """

    __slots__ = ("passes", "recents", "seen")

    def __init__(self, passes: bool) -> None:
        super().__init__()
        self.passes = passes
        self.recents: list[Recent] = []
        self.seen: Seen | None = None


class PlannedRoute:
    """Cores of queues, and those that remember each message on its way there. other: the way of one that was seen before."""

    __slots__ = ("cores", "other", "recents", "seen")

    def __init__(self, cores: list[Any], plan: Plan, other: PlannedRoute | None) -> None:
        self.cores = cores
        self.recents = plan.recents
        self.seen = plan.seen
        self.other = other


def keys_of(key: bytes, headers: Mapping[str, object], allow: Callable[[list[bytes]], object] | None) -> list[bytes]:
    """All routing keys of a message: its own, those of CC and of BCC. Every way of publishing gets them here, and with them the permission.

    Args: allow: asks for the permission for keys of the exchange (authorize_topic); None: it was asked for when the message was published.
    Raises: PeerError 403; 406: a header that is no list, too many keys.
    """
    keys = [key, *_extra_keys(headers, "CC"), *_extra_keys(headers, "BCC")]
    if len(keys) > _KEYS_MAX:
        text = f"a message has {len(keys)} routing keys with those of CC and BCC, the limit is {_KEYS_MAX}: send it several times"
        raise PeerError(ReplyCode.PRECONDITION_FAILED, text)
    if allow is not None:
        allow(keys)
    return keys


def _extra_keys(headers: Mapping[str, object], name: str) -> list[bytes]:
    """Routing keys of a CC or BCC header (RabbitMQ's sender-selected distribution)."""
    if name not in headers:
        return []
    value = headers[name]
    if not isinstance(value, list):
        text = f'invalid message: {{unacceptable_type_in_header,"{name}",{erlang_term(value)[0]}}}'
        raise PeerError(ReplyCode.PRECONDITION_FAILED, text)
    return [one.encode("utf-8", "surrogateescape") for one in value if isinstance(one, str)]  # what is no string is no key
