"""Exchanges that choose one of their destinations: by a hash of the message (x-consistent-hash, x-modulus-hash), or by chance (x-random,
x-local-random).

in: as of Exchange. out: one destination, or none.

S1  The hash of a value is the same in each run: a restart moves no key.
S2  One message, however many routing keys it has, goes to one destination of such an exchange (MessageHeaders.decided).
Source: names, arguments and texts of RabbitMQ's plugins rabbitmq_consistent_hash_exchange, rabbitmq_sharding, rabbitmq_random_exchange and
of its rabbit_exchange_type_local_random.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Collection, Mapping
from typing import Any

from flintmq.config import Limits
from flintmq.digests import blake2b
from flintmq.errors import PeerError, ReplyCode
from flintmq.ports import freeze
from flintmq.routing.binding import QUEUE, Destination
from flintmq.routing.deciding import Deciding
from flintmq.routing.exchange import Binding, Exchange, FanoutExchange, Headers, erlang_term
from flintmq.routing.message import MessageHeaders
from flintmq.routing.rendezvous import Rendezvous

HASH_HEADER, HASH_PROPERTY = "hash-header", "hash-property"
HASH_PROPERTIES = ("correlation_id", "message_id", "timestamp")
_DIGITS_MAX = 32


def _invalid(text: str) -> PeerError:
    return PeerError(ReplyCode.PRECONDITION_FAILED, text)


def shown_binary(octets: bytes) -> str:
    """Octets as Erlang prints them: `<<"abc">>`."""
    return f'<<"{octets.decode("utf-8", "backslashreplace")}">>' if octets else "<<>>"


def digest_of_value(value: Any, size: int = 16) -> bytes:
    """`size` bytes that stand for a field's value, of its type too: 5 is not "5"; a string and a byte array are the same."""
    if isinstance(value, str):
        octets = b"s" + value.encode("utf-8", "surrogateescape")
    elif isinstance(value, bytes | bytearray):
        octets = b"s" + bytes(value)
    elif value is None or isinstance(value, bool | float):
        octets = f"{type(value).__name__} {value!r}".encode()
    elif isinstance(value, int):
        octets = f"i{int(value)}".encode()
    else:
        octets = repr(freeze(value)).encode("utf-8", "backslashreplace")
    return blake2b(octets, digest_size=size).digest()


def hash_of_value(value: Any) -> int:
    """64 bits."""
    return int.from_bytes(digest_of_value(value, 8), "big")


def _seed(destination: Destination) -> int:
    name = f"{destination.destination_kind} {destination.name}".encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(name, digest_size=8, person=b"destination").digest(), "big")


class ConsistentHashExchange(Exchange):
    """x-consistent-hash: the routing key, a header (`hash-header`) or a property (`hash-property`) chooses one destination.

    A binding key is the weight of its destination; those of several bindings of one destination add up. Weighted rendezvous hashing instead
    of RabbitMQ's jump hash over buckets (routing/rendezvous): a binding that comes or goes moves just the keys that it wins or loses,
    whichever it is. A message without the header or property goes where all of those go, as on RabbitMQ.
    """

    kind = "x-consistent-hash"
    __slots__ = ("_header", "_most", "_numbers", "_places", "_property", "_weights")

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        header, wanted = self.arguments.get(HASH_HEADER), self.arguments.get(HASH_PROPERTY)
        self._header = header if isinstance(header, str) else None
        self._property = wanted if self._header is None and isinstance(wanted, str) else None
        self.needs_headers = self._header is not None or self._property is not None
        self.by_headers = self._header is not None
        self._places = Rendezvous()
        self._numbers: list[Destination] = []  # number of a place -> its destination
        self._weights: dict[Destination, list[int]] = {}  # -> number of its place, weight
        self._most = Limits().hash_destinations_max

    @classmethod
    def check(cls, arguments: Mapping[str, Any]) -> None:
        header, wanted = arguments.get(HASH_HEADER), arguments.get(HASH_PROPERTY)
        for name in (HASH_HEADER, HASH_PROPERTY):
            if name in arguments and not isinstance(arguments[name], str):
                raise _invalid(f"invalid type '{erlang_term(arguments[name])[0]}' for arg '{name}': expected longstr")
        if header is not None and wanted is not None:
            raise _invalid("hash-header and hash-property are mutually exclusive")
        if wanted is not None and wanted not in HASH_PROPERTIES:
            raise _invalid(f"Unsupported property: {wanted}")

    def limit(self, limits: Limits, total: Any = None) -> None:
        self._most = limits.hash_destinations_max

    def validate_binding(self, binding: Binding) -> None:
        weight, most = _integer(binding.routing_key), Limits().hash_weight_max
        if weight is None:
            raise _invalid(f"The binding key must be an integer: {shown_binary(binding.routing_key)}")
        if weight < 1:
            raise _invalid("The binding key must be greater than 0")
        if weight > most:
            raise _invalid(f"The binding key is a weight of at most {most}: {weight}")
        if binding.destination not in self._weights and len(self._numbers) >= self._most:
            text = f"exchange '{self.name}' has {self._most} destinations to hash to, as many as it may (hash_destinations_max)"
            raise _invalid(text)

    def match(self, routing_key: bytes, headers: Headers | None) -> Collection[Destination]:
        if not self._numbers:
            return ()
        if isinstance(headers, MessageHeaders):
            known = headers.decided.get(self)
            if known is None or known not in self._weights:
                known = headers.decided[self] = self._numbers[self._places.choose(self._hash(routing_key, headers))]
            return (known,)
        return (self._numbers[self._places.choose(self._hash(routing_key, headers))],)

    def deciding(self, deciding: Deciding) -> None:
        if self._header is not None:
            deciding.add_whole((self._header,))

    def _hash(self, routing_key: bytes, headers: Headers | None) -> int:
        if self._header is not None:
            return hash_of_value(headers.get(self._header) if headers else None)
        if self._property is not None:
            return hash_of_value(headers.properties().get(self._property) if isinstance(headers, MessageHeaders) else None)
        return hash_of_value(routing_key)

    def _index(self, binding: Binding) -> None:
        destination, weight = binding.destination, _weight_of(binding)
        known = self._weights.get(destination)
        if known is None:
            self._places.add(_seed(destination), weight)
            self._weights[destination] = [len(self._numbers), weight]
            self._numbers.append(destination)
        else:
            known[1] += weight
            self._places.set_weight(known[0], known[1])

    def _unindex(self, binding: Binding) -> None:
        known = self._weights[binding.destination]
        known[1] -= _weight_of(binding)
        if known[1] > 0:
            self._places.set_weight(known[0], known[1])
            return
        del self._weights[binding.destination]
        self._places.remove(known[0])
        last = self._numbers.pop()
        if last is not binding.destination:
            self._numbers[known[0]] = last
            self._weights[last][0] = known[0]


def _weight_of(binding: Binding) -> int:
    """Of a binding that was validated; of one that an earlier version took, 1."""
    weight = _integer(binding.routing_key)
    return 1 if weight is None else min(max(weight, 1), Limits().hash_weight_max)


def _integer(key: bytes) -> int | None:
    """A key of ASCII digits, perhaps with a sign; None: it is none, or too long for one."""
    digits = key[1:] if key[:1] in (b"+", b"-") else key
    return int(key) if digits.isdigit() and len(digits) <= _DIGITS_MAX else None


class ModulusHashExchange(Exchange):
    """x-modulus-hash: the routing key, modulo the number of destinations, chooses one. Binding keys do not count."""

    kind = "x-modulus-hash"
    __slots__ = ("_counts", "_sorted")

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._counts: dict[Destination, int] = {}
        self._sorted: list[tuple[str, str, Destination]] = []

    def match(self, routing_key: bytes, headers: Headers | None) -> Collection[Destination]:
        if not self._sorted:
            return ()
        chosen = self._sorted[hash_of_value(routing_key) % len(self._sorted)][2]
        if isinstance(headers, MessageHeaders):
            known = headers.decided.setdefault(self, chosen)
            if known in self._counts:
                chosen = known
        return (chosen,)

    def _index(self, binding: Binding) -> None:
        destination = binding.destination
        count = self._counts[destination] = self._counts.get(destination, 0) + 1
        if count == 1:
            bisect.insort(self._sorted, (destination.destination_kind, destination.name, destination), key=_by_name)

    def _unindex(self, binding: Binding) -> None:
        destination = binding.destination
        self._counts[destination] -= 1
        if not self._counts[destination]:
            del self._counts[destination]
            index = bisect.bisect_left(self._sorted, (destination.destination_kind, destination.name), key=_by_name)
            while self._sorted[index][2] is not destination:
                index += 1
            del self._sorted[index]


def _by_name(item: tuple[str, str, Destination]) -> tuple[str, str]:
    return item[:2]


class RandomExchange(FanoutExchange):
    """x-random: one of its destinations by chance. Keys do not count, as with RabbitMQ's plugin."""

    kind = "x-random"
    by_chance = True
    __slots__ = ("_among",)

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self.needs_headers = True  # each message is asked for anew
        self._among: list[Destination] = []  # its destinations, as far as asked for since they changed

    @property
    def candidates(self) -> Collection[Destination]:
        """All destinations that one may be chosen of."""
        return self._all

    def match(self, routing_key: bytes, headers: Headers | None) -> Collection[Destination]:
        if not self._all:
            return ()
        if not self._among:
            self._among = list(self._all)
        if not isinstance(headers, MessageHeaders):
            return (random.choice(self._among),)
        known = headers.decided.get(self)
        if known is None or known not in self._all:
            known = headers.decided[self] = random.choice(self._among)
        return (known,)

    def _index(self, binding: Binding) -> None:
        super()._index(binding)
        self._among = []

    def _unindex(self, binding: Binding) -> None:
        super()._unindex(binding)
        self._among = []


class LocalRandomExchange(RandomExchange):
    """x-local-random: one of its queues by chance; each queue of ours is local. Only queues are bound, with empty keys."""

    kind = "x-local-random"
    __slots__ = ()

    def validate_binding(self, binding: Binding) -> None:
        if binding.routing_key:
            shown = binding.routing_key.decode("utf-8", "backslashreplace")
            raise _invalid(f"Non empty binding '{shown}' key not permitted")
        if binding.destination.destination_kind != QUEUE:
            raise _invalid("Destination not found")
