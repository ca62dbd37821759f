"""Arguments of the calls about stages, of local ones and of those on shared queues.

in: arguments. out: routes, and what becomes of messages that can't go where they should; Refused BAD_ARGUMENT.
"""

from __future__ import annotations

from flintmq.dataplane.arguments import Arguments
from flintmq.dataplane.blocks import DROP, FAIL, Elsewhere, Route


def routes_of(arguments: Arguments, most: int) -> list[Route]:
    """The routes of a block: at most so many pairs of exchange and routing key. Raises: Refused."""
    value = arguments.raw("routes")
    if not isinstance(value, list) or len(value) > most:
        raise arguments.refuse("routes", f"a list of at most {most} pairs", value)
    routes = []
    for one in value:
        if not isinstance(one, list) or len(one) != 2 or not all(isinstance(name, str) for name in one):
            raise arguments.refuse("routes", "a list of [exchange, routing key]", one)
        try:
            exchange, key = one[0].encode("utf-8", "surrogateescape"), one[1].encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise arguments.refuse("routes", "a list of names in UTF-8", one) from None
        if len(exchange) > 255 or len(key) > 255:
            raise arguments.refuse("routes", "a list of names of at most 255 bytes", one)
        routes.append((exchange, key))
    return routes


def elsewhere_of(arguments: Arguments, name: str, actions: tuple[str, ...], most: int) -> Elsewhere:
    """fail, drop, `exchange:NAME`, or the name of an exchange. Raises: Refused."""
    value = arguments.text(name, most + len("exchange:"), FAIL)
    if value in actions:
        return Elsewhere(value)
    exchange = value.removeprefix("exchange:")
    if not exchange or (exchange == value and value == DROP):
        raise arguments.refuse(name, f"{', '.join(actions)} or exchange:NAME", value)
    return Elsewhere("exchange", exchange)
