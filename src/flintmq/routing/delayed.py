"""The exchange type of RabbitMQ's delayed message plugin: routes as the type that its argument x-delayed-type names.

in: arguments, and everything of that type. out: what that type answers. When a message is routed is not the exchange's: the header x-delay
is read with each publish, whatever its exchange (channel/scheduling.py).

Source: names and texts of the plugin rabbitmq_delayed_message_exchange.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from flintmq.errors import PeerError, ReplyCode
from flintmq.routing.exchange import DirectExchange, Exchange

DELAYED_TYPE = "x-delayed-type"
_TEXT = f"Invalid argument, '{DELAYED_TYPE}' must be an existing exchange type"

# the types that it may name (kinds.py fills it in), and what it is then
BASES: dict[str, type[Exchange]] = {}
_made: dict[type[Exchange], type[Exchange]] = {}


class DelayedMessageExchange(Exchange):
    """Made by its name and arguments, it is an exchange of both types."""

    kind = "x-delayed-message"
    __slots__ = ()

    def __new__(cls, name: str, **options: Any) -> Self:
        named = (options.get("arguments") or {}).get(DELAYED_TYPE)
        # What a stored exchange names and nobody knows any more routes by its key: the node starts.
        base = BASES.get(named, DirectExchange) if isinstance(named, str) else DirectExchange
        made = _made.get(base)
        if made is None:
            made = _made[base] = type(f"Delayed{base.__name__}", (cls, base), {"__slots__": ()})
        return object.__new__(made)  # type: ignore[return-value]

    @classmethod
    def check(cls, arguments: Mapping[str, Any]) -> None:
        named = arguments.get(DELAYED_TYPE)
        base = BASES.get(named) if isinstance(named, str) else None
        if base is None:
            raise PeerError(ReplyCode.PRECONDITION_FAILED, _TEXT, hint=f"one of {', '.join(sorted(BASES))}")
        base.check(arguments)
