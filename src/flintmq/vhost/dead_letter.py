"""Dead-lettering, the pure part: the headers a message gets when it dies, and which queues it must not go back to.

in: the wire bytes of the dead message's headers, and how it died. out: the wire bytes of its new headers, routing keys, and the queues
that close a cycle.

The format is that of RabbitMQ 3.10 (Celery, NServiceBus, Spring read it): `x-death` is an array of tables, most recent first, one for
each (queue, reason), with count (int64), reason, queue, time (of the first such death), exchange, routing-keys and, for a message that
had an expiration property, original-expiration. `x-first-death-*` are set with the first x-death and never change. Everything else
stays as the publisher wrote it, byte for byte; the table is sorted by name, as RabbitMQ leaves it.

Source: rabbit_dead_letter.erl, rabbit_basic.erl (prepend_table_header), rabbit_misc.erl (sort_field_table) of RabbitMQ 3.10.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from flintmq.errors import PeerError
from flintmq.protocol.v0_9_1.splice import (
    array_field,
    field_integer,
    field_text,
    join_table,
    long_field,
    longstr_field,
    split_array,
    split_table,
    table_field,
    timestamp_field,
)

REJECTED = "rejected"
EXPIRED = "expired"
MAXLEN = "maxlen"
DELIVERY_LIMIT = "delivery_limit"

# (name, value with its type octet), as on the wire
Fields = list[tuple[bytes, bytes]]

_BY_NAME = itemgetter(0)


# bytes of one death whose ends are remembered, and deaths: those of one second are the same bytes in message after message
_REMEMBERED_BYTES, _REMEMBERED = 512, 4096


class Death(NamedTuple):
    """One table of x-death: its bytes with the type octet, and what cycles are found by."""

    item: bytes
    queue: bytes | None
    reason: bytes | None

    @property
    def fields(self) -> Fields:
        """O(bytes)."""
        return split_table(self.item[5:])


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What to publish to the dead-letter exchange. The expiration property is to be removed: the message must not expire again.

    headers: a table without its length; deaths: its x-death.
    """

    headers: bytes
    routing_keys: tuple[bytes, ...]
    deaths: list[Death]


def dead_letter_headers(
    headers: bytes,
    *,
    queue: bytes,
    reason: str,
    exchange: bytes,
    routing_key: bytes,
    time_s: int,
    expiration: bytes | None = None,
    dead_letter_routing_key: bytes | None = None,
) -> DeadLetter:
    """Headers and routing keys of a message that died. O(bytes of the headers).

    Args: headers: the message's, a table without its length; queue: where it died; reason: one of the constants above; exchange,
    routing_key: as it was published; time_s: Unix time; expiration: its property, if set; dead_letter_routing_key: the queue's, replaces
    all keys and drops CC. An x-death that is no array is replaced; what a client put into one that is no table is left out.
    Raises: PeerError when the headers are malformed.
    """
    fields = split_table(headers)
    reason_octets = reason.encode()
    carbon_copies = _keys_of(_value(fields, b"CC"))
    info: Fields = [
        (b"reason", longstr_field(reason_octets)),
        (b"queue", longstr_field(queue)),
        (b"time", timestamp_field(time_s)),
        (b"exchange", longstr_field(exchange)),
        (b"routing-keys", array_field([longstr_field(key) for key in (routing_key, *carbon_copies)])),
    ]
    if expiration is not None:
        info.append((b"original-expiration", longstr_field(expiration)))
    value = _value(fields, b"x-death")
    if value is None:
        for name, octets in ((b"reason", reason_octets), (b"queue", queue), (b"exchange", exchange)):
            _store(fields, b"x-first-death-" + name, longstr_field(octets))
    deaths = _grouped(read_deaths(value))
    known = next((death for death in deaths if death.queue == queue and death.reason == reason_octets), None)
    if known is None:
        death = [(b"count", long_field(1)), *info]
    else:
        deaths.remove(known)
        death = _counted(known.fields)
    if value is not None:
        death.sort(key=_BY_NAME)
    deaths.insert(0, Death(table_field(death), queue, reason_octets))
    _store(fields, b"x-death", array_field([one.item for one in deaths]))
    keys = (routing_key, *carbon_copies)
    if dead_letter_routing_key is not None:
        keys = (dead_letter_routing_key,)
        fields = [field for field in fields if field[0] != b"CC"]
    fields.sort(key=_BY_NAME)
    return DeadLetter(join_table(fields), keys, deaths)


def read_deaths(value: bytes | None) -> list[Death]:
    """The tables in a value of x-death, most recent first; what a client put there that is no table is left out."""
    if value is None or value[:1] != b"A":
        return []
    try:
        return [_death(item) if len(item) <= _REMEMBERED_BYTES else _read(item) for item in split_array(value[5:]) if item[:1] == b"F"]
    except PeerError:
        return []  # as an x-death of another type: it is set anew


def _read(item: bytes) -> Death:
    """Raises: PeerError when it is malformed."""
    fields = split_table(item[5:])
    return Death(item, _text(fields, b"queue"), _text(fields, b"reason"))


_death = lru_cache(_REMEMBERED)(_read)


def is_cycle(queue: bytes, deaths: Sequence[Death]) -> bool:
    """Whether going (back) to `queue` would close a loop without a client in it.

    Args: deaths: x-death including the present death. True when the message died in `queue` before and none of the deaths since
    then, that one included, was a reject: nothing but the broker moves it round, so it is dropped there.
    """
    for death in deaths:
        if death.reason == b"rejected":
            return False
        if death.queue == queue:
            return True
    return False


def without_cycles(queues: Iterable[Any], deaths: Sequence[Death], reason: str) -> tuple[list[Any], list[Any]]:
    """(queues to enqueue to, queues that would close a cycle). Args: queues: objects with a name; deaths: of dead_letter_headers."""
    if reason == REJECTED:
        return list(queues), []
    good: list[Any] = []
    cyclic: list[Any] = []
    for queue in queues:
        (cyclic if is_cycle(queue.name.encode("utf-8", "surrogateescape"), deaths) else good).append(queue)
    return good, cyclic


def _value(fields: Fields, name: bytes) -> bytes | None:
    """The value of the first field of that name: of names that a table repeats the first counts."""
    for at, value in fields:
        if at == name:
            return value
    return None


def _text(fields: Fields, name: bytes) -> bytes | None:
    value = _value(fields, name)
    return None if value is None else field_text(value)


def _store(fields: Fields, name: bytes, value: bytes) -> None:
    """Replaces the first field of that name, or adds one."""
    for at, (known, _) in enumerate(fields):
        if known == name:
            fields[at] = (name, value)
            return
    fields.append((name, value))


def _grouped(deaths: list[Death]) -> list[Death]:
    """One table for each (queue, reason): the first; clients that copy headers may have repeated them."""
    first: dict[tuple[bytes | None, bytes | None], Death] = {}
    for death in deaths:
        first.setdefault(death[1:], death)
    return list(first.values())


def _counted(death: Fields) -> Fields:
    """The same death once more. A count that is no number, which a client made up, starts again at 1; the count saturates."""
    value = _value(death, b"count")
    count = None if value is None else field_integer(value)
    result = list(death)
    _store(result, b"count", long_field(1 if count is None else count + 1))
    return result


def _keys_of(value: bytes | None) -> list[bytes]:
    """Routing keys of a CC header; anything but strings is left out."""
    if value is None or value[:1] != b"A":
        return []
    return [key for item in split_array(value[5:]) if (key := field_text(item)) is not None]
