"""Dead-lettering, the pure part: the headers a message gets when it dies, and which queues it must not go back to.

in: the dead message's headers and how it died. out: new headers, routing keys, and the queues that close a cycle.

The format is RabbitMQ's (Celery, NServiceBus, Spring read it): `x-death` is an array of tables, most recent first, one for each
(queue, reason), with count, reason, queue, time (of the first such death), exchange, routing-keys and, for a message that had an
expiration property, original-expiration. `x-first-death-*` never change once set, `x-last-death-*` always do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REJECTED = "rejected"
EXPIRED = "expired"
MAXLEN = "maxlen"
DELIVERY_LIMIT = "delivery_limit"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What to publish to the dead-letter exchange. The expiration property is to be removed: the message must not expire again."""

    headers: dict[str, Any]
    routing_keys: tuple[bytes, ...]


def dead_letter_headers(
    headers: Mapping[str, Any] | None,
    *,
    queue: str,
    reason: str,
    exchange: str,
    routing_key: bytes,
    time_s: int,
    expiration: str | None = None,
    dead_letter_routing_key: bytes | None = None,
    timestamp: Callable[[int], Any] = int,
) -> DeadLetter:
    """Headers and routing keys of a message that died.

    Args: headers: the message's, not changed; queue: where it died; reason: one of the constants above; exchange, routing_key: as
    it was published; time_s: Unix time; expiration: its property, if set; dead_letter_routing_key: the queue's, replaces all keys
    and drops CC; timestamp: makes the codec's timestamp type of seconds. Malformed x-death from a client is replaced.
    """
    result = dict(headers or {})
    carbon_copies = _keys_of(result.get("CC"))
    deaths = read_deaths(result)
    first_death = "x-death" not in result
    known = next((death for death in deaths if death.get("queue") == queue and death.get("reason") == reason), None)
    if known is not None:
        deaths.remove(known)
        death = {**known, "count": _count(known) + 1}
    else:
        death = {
            "count": 1,
            "reason": reason,
            "queue": queue,
            "time": timestamp(time_s),
            "exchange": exchange,
            "routing-keys": [_text(key) for key in (routing_key, *carbon_copies)],
        }
        if expiration is not None:
            death["original-expiration"] = expiration
    result["x-death"] = [death, *deaths]
    for name, value in (("reason", reason), ("queue", queue), ("exchange", exchange)):
        if first_death:
            result[f"x-first-death-{name}"] = value
        result[f"x-last-death-{name}"] = value
    if dead_letter_routing_key is None:
        return DeadLetter(result, (routing_key, *carbon_copies))
    result.pop("CC", None)
    return DeadLetter(result, (dead_letter_routing_key,))


def read_deaths(headers: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The x-death tables of a message, most recent first; what a client put there that is no table is left out."""
    value = (headers or {}).get("x-death")
    return [dict(item) for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def is_cycle(queue: str, deaths: Sequence[Mapping[str, Any]]) -> bool:
    """Whether going (back) to `queue` would close a loop without a client in it.

    Args: deaths: x-death including the present death. True when the message died in `queue` before and none of the deaths since
    then, that one included, was a reject: nothing but the broker moves it round, so it is dropped there.
    """
    for death in deaths:
        if death.get("reason") == REJECTED:
            return False
        if death.get("queue") == queue:
            return True
    return False


def without_cycles(queues: Iterable[Any], headers: Mapping[str, Any], reason: str) -> tuple[list[Any], list[Any]]:
    """(queues to enqueue to, queues that would close a cycle). Args: queues: objects with a name; headers: of dead_letter_headers."""
    if reason == REJECTED:
        return list(queues), []
    deaths = read_deaths(headers)
    good: list[Any] = []
    cyclic: list[Any] = []
    for queue in queues:
        (cyclic if is_cycle(queue.name, deaths) else good).append(queue)
    return good, cyclic


def _count(death: Mapping[str, Any]) -> int:
    value = death.get("count")
    return value if isinstance(value, int) and value >= 0 else 0


def _keys_of(value: Any) -> tuple[bytes, ...]:
    """Routing keys of a CC header; anything but strings is left out."""
    if not isinstance(value, list | tuple):
        return ()
    return tuple(
        item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item for item in value if isinstance(item, str | bytes)
    )


def _text(key: bytes) -> str:
    """A routing key as a field value; bytes that are no UTF-8 stand in it as surrogate escapes, as in all names."""
    return key.decode("utf-8", "surrogateescape")
