"""Arguments of the calls about stages, of local ones and of those on shared queues.

in: arguments. out: what a stage is for, routes, and what becomes of messages that can't go where they should; Refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from flintmq.dataplane.arguments import Arguments
from flintmq.dataplane.blocks import DROP, FAIL, Elsewhere, Route
from flintmq.dataplane.scope import KINDS, kind_of
from flintmq.dataplane.shared import Caller, Plane
from flintmq.ports import Verb

# numbers of epochs, batches, parts and attempts
BATCH_MAX = 2**63 - 1
# before the id of a stage on shared queues, which local ones (hexadecimal) never begin with
SHARED_MARK = "x"


def is_shared_stage(stage_id: object) -> bool:
    """Whether an id is one of a stage on shared queues."""
    return isinstance(stage_id, str) and stage_id.startswith(SHARED_MARK)


@dataclass(frozen=True, slots=True)
class Wish:
    """Of stage.begin: the stage of a part of a batch, of an attempt at it, and what becomes of messages that can't go where they should."""

    scope: str
    epoch: int
    batch: int
    part: int
    attempt: int
    unroutable: Elsewhere
    over_limit: Elsewhere
    kind: str


def wish_of(plane: Plane, caller: Caller, arguments: Arguments) -> Wish:
    """The arguments of stage.begin; the caller may write where they say. Raises: Refused."""
    most = plane.limits.name_bytes_max
    name = arguments.text("scope", plane.limits.dataplane_name_max)
    wish = Wish(
        name,
        arguments.integer("epoch", 0, BATCH_MAX),
        arguments.integer("batch", 0, BATCH_MAX),
        arguments.integer("part", 0, BATCH_MAX, 0),
        arguments.integer("attempt", 0, BATCH_MAX, 0),
        elsewhere_of(arguments, "unroutable", (FAIL, DROP), most),
        elsewhere_of(arguments, "over_limit", (FAIL,), most),
        arguments.choice("kind", KINDS, kind_of(name)),
    )
    arguments.done()
    plane.check_grants(caller, Verb.WRITE)
    plane.authorize(caller, Verb.WRITE, "exchange", [one.exchange for one in (wish.unroutable, wish.over_limit) if one.exchange])
    return wish


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
