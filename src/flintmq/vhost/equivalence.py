"""Redeclaration: is the existing object the one that is asked for? If not, 406 with RabbitMQ's text.

in: an existing queue or exchange and the properties of a new declaration. out: nothing, or a PeerError naming the first difference.

Only arguments that the broker knows are compared. Integers of all widths are one type; otherwise types must agree too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flintmq.errors import PeerError, ReplyCode
from flintmq.ports import same_value
from flintmq.routing.delayed import DELAYED_TYPE
from flintmq.routing.exchange import Exchange, erlang_term
from flintmq.vhost.arguments import QUEUE_ARGUMENTS, Argument
from flintmq.vhost.names import describe
from flintmq.vhost.queue import Queue

_ABSENT = object()


def check_queue(queue: Queue, durable: bool, auto_delete: bool, arguments: Mapping[str, Any]) -> None:
    """Raises: PeerError 406 `inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'`."""
    if queue.durable == durable and queue.auto_delete == auto_delete and not queue.arguments and not arguments:
        return  # most of them
    description = describe("queue", queue.name, queue.vhost)
    _check_flag(description, "durable", queue.durable, durable)
    _check_flag(description, "auto_delete", queue.auto_delete, auto_delete)
    check_arguments(description, queue.arguments, arguments)


def check_arguments(description: str, current: Mapping[str, Any], received: Mapping[str, Any]) -> None:
    """Arguments of a queue. Raises: PeerError 406."""
    if current or received:
        for key, row in QUEUE_ARGUMENTS.items():
            _check_argument(description, key, current, received, row)


def check_exchange(
    exchange: Exchange, description: str, kind: str, durable: bool, auto_delete: bool, internal: bool, arguments: Mapping[str, Any]
) -> None:
    """Raises: PeerError 406, the type compared first."""
    if exchange.kind != kind:
        raise _inequivalent(description, "type", f"'{kind}'", f"'{exchange.kind}'")
    _check_flag(description, "durable", exchange.durable, durable)
    _check_flag(description, "auto_delete", exchange.auto_delete, auto_delete)
    _check_flag(description, "internal", exchange.internal, internal)
    for key in ("alternate-exchange", DELAYED_TYPE):
        _check_argument(description, key, exchange.arguments, arguments)


def _check_flag(description: str, key: str, current: bool, received: bool) -> None:
    if current != received:
        raise _inequivalent(description, key, f"'{str(received).lower()}'", f"'{str(current).lower()}'")


def _check_argument(
    description: str, key: str, current_table: Mapping[str, Any], received_table: Mapping[str, Any], row: Argument | None = None
) -> None:
    current = current_table.get(key, _ABSENT)
    received = received_table.get(key, _ABSENT)
    if current is _ABSENT and received is _ABSENT:
        return
    if current is _ABSENT or received is _ABSENT:
        if row is not None and row.implied is not None and row.implied in (current, received):
            return
        raise _inequivalent(description, key, _shown_alone(received), _shown_alone(current), row)
    if not same_value(current, received):
        raise _inequivalent(description, key, f"'{erlang_term(received)[1]}'", f"'{erlang_term(current)[1]}'", row)


def _shown_alone(value: Any) -> str:
    if value is _ABSENT:
        return "none"
    kind, shown = erlang_term(value)
    return f"the value '{shown}' of type '{kind}'"


def _inequivalent(description: str, key: str, received: str, current: str, row: Argument | None = None) -> PeerError:
    text = f"inequivalent arg '{key}' for {description}: received {received} but current is {current}"
    settable = row is not None and row.policy and row.field
    hint = f"change '{row.key}' of a queue that exists with a policy" if row is not None and settable else ""
    return PeerError(ReplyCode.PRECONDITION_FAILED, text, hint=hint)
