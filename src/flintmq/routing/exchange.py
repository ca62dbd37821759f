"""Exchanges: where the next hop of a message is decided. Default, direct, fanout, topic and headers.

in: bindings, and a routing key with headers. out: destinations (queues and exchanges), one hop; the walk over several exchanges
and alternates is the virtual host's.

I1  `match` gives each destination at most as often as `collect` can remove duplicates for: callers always use a set or dict.
I2  An exchange knows its bindings as a source, which exchanges lead to it (`upstream`), so that a change tells everyone whose
    cached routes it may touch, and which it leads to (`downstream`), without a look at every binding.

Not thread-safe: every call is made under the virtual host's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, ClassVar

from flintmq.errors import PeerError, ReplyCode
from flintmq.ports import same_value
from flintmq.routing.binding import EXCHANGE, NO_ARGUMENTS, QUEUE, Binding, Destination
from flintmq.routing.topic import TopicTrie

DEFAULT_EXCHANGE = ""
X_MATCH = "x-match"
X_MATCH_VALUES = ("all", "any", "all-with-x", "any-with-x")

Headers = Mapping[str, Any]


class Exchange:
    """Base of all kinds.

    Args: name; durable; auto_delete: deleted when its last binding as a source goes; internal: publishes are refused;
    arguments: as declared; `alternate-exchange` takes what matched nothing.
    """

    kind: ClassVar[str] = ""
    needs_headers: ClassVar[bool] = False  # its own choice depends on message headers, so its routes cannot be cached by key

    __slots__ = ("alternate", "arguments", "auto_delete", "bindings", "cache", "downstream", "durable", "internal", "name", "upstream")

    destination_kind = EXCHANGE

    def __init__(
        self,
        name: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments: Mapping[str, Any] = arguments or NO_ARGUMENTS
        alternate = self.arguments.get("alternate-exchange")
        self.alternate: str | None = alternate if isinstance(alternate, str) else None
        self.bindings: dict[tuple[Hashable, ...], Binding] = {}
        self.upstream: dict[Exchange, int] = {}  # exchange that is bound to this one -> number of bindings
        self.downstream: dict[Exchange, int] = {}  # exchange that this one is bound to -> number of bindings
        self.cache: Any = None  # the connection layer's route cache for this exchange; opaque here

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def validate(self, arguments: Mapping[str, Any]) -> None:
        """Refuses binding arguments this kind cannot use. Raises: PeerError 406."""

    def add(self, binding: Binding) -> None:
        """Indexes a binding that is not there yet (the virtual host checked)."""
        self.bindings[binding.identity] = binding
        if isinstance(binding.destination, Exchange):
            target = binding.destination
            target.upstream[self] = target.upstream.get(self, 0) + 1
            self.downstream[target] = self.downstream.get(target, 0) + 1
        self._index(binding)

    def remove(self, binding: Binding) -> None:
        """Takes out a binding that is there. Raises: KeyError otherwise."""
        del self.bindings[binding.identity]
        if isinstance(binding.destination, Exchange):
            target = binding.destination
            target.upstream[self] -= 1
            if not target.upstream[self]:
                del target.upstream[self]
            self.downstream[target] -= 1
            if not self.downstream[target]:
                del self.downstream[target]
        self._unindex(binding)

    def match(self, routing_key: bytes, headers: Headers | None) -> Collection[Destination]:
        """Destinations of one message, distinct. `headers` None reads as no headers."""
        raise NotImplementedError

    def _index(self, binding: Binding) -> None:
        raise NotImplementedError

    def _unindex(self, binding: Binding) -> None:
        raise NotImplementedError


def _count_up(counts: dict[Destination, int], destination: Destination) -> None:
    counts[destination] = counts.get(destination, 0) + 1


def _count_down(counts: dict[Destination, int], destination: Destination) -> None:
    counts[destination] -= 1
    if not counts[destination]:
        del counts[destination]


class DirectExchange(Exchange):
    """Routing key equals binding key."""

    kind = "direct"
    __slots__ = ("_keys",)

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._keys: dict[bytes, dict[Destination, int]] = {}

    def match(self, routing_key: bytes, headers: Headers | None) -> Collection[Destination]:
        return self._keys.get(routing_key, ())

    def _index(self, binding: Binding) -> None:
        _count_up(self._keys.setdefault(binding.routing_key, {}), binding.destination)

    def _unindex(self, binding: Binding) -> None:
        counts = self._keys[binding.routing_key]
        _count_down(counts, binding.destination)
        if not counts:
            del self._keys[binding.routing_key]


class DefaultExchange(Exchange):
    """The nameless exchange: every queue is bound to it by its own name, implicitly and for ever."""

    kind = "direct"
    __slots__ = ("_find_queue",)

    def __init__(self, find_queue: Callable[[str], Destination | None]) -> None:
        super().__init__(DEFAULT_EXCHANGE, durable=True)
        self._find_queue = find_queue

    def match(self, routing_key: bytes, headers: Headers | None) -> Collection[Destination]:
        # Names that are not UTF-8 stand in str with surrogate escapes, here as everywhere.
        queue = self._find_queue(routing_key.decode("utf-8", "surrogateescape"))
        return () if queue is None else (queue,)


class FanoutExchange(Exchange):
    """Everything to everyone."""

    kind = "fanout"
    __slots__ = ("_all",)

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._all: dict[Destination, int] = {}

    def match(self, routing_key: bytes, headers: Headers | None) -> Collection[Destination]:
        return self._all

    def _index(self, binding: Binding) -> None:
        _count_up(self._all, binding.destination)

    def _unindex(self, binding: Binding) -> None:
        _count_down(self._all, binding.destination)


class TopicExchange(Exchange):
    """Words between dots; `*` is one word, `#` any number of them."""

    kind = "topic"
    __slots__ = ("_trie",)

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._trie = TopicTrie()

    def match(self, routing_key: bytes, headers: Headers | None) -> Collection[Destination]:
        found: Collection[Destination] = self._trie.match(routing_key)
        return found

    def _index(self, binding: Binding) -> None:
        self._trie.add(binding.routing_key, binding.destination)

    def _unindex(self, binding: Binding) -> None:
        self._trie.remove(binding.routing_key, binding.destination)


class HeadersExchange(Exchange):
    """Message headers against binding arguments.

    x-match: "all" (also when absent) or "any"; arguments that begin with "x-" do not count, except with "all-with-x" and
    "any-with-x", where only x-match itself does not. An argument without value (void) asks for presence only. Types must be of
    one class (all integers are one). "any" without arguments to look at matches nothing, "all" everything.
    """

    kind = "headers"
    needs_headers = True
    __slots__ = ("_patterns",)

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._patterns: dict[tuple[Hashable, ...], tuple[Destination, bool, tuple[tuple[str, Any], ...]]] = {}

    def validate(self, arguments: Mapping[str, Any]) -> None:
        if X_MATCH not in arguments:
            return
        value = arguments[X_MATCH]
        if not isinstance(value, str):
            kind, shown = erlang_term(value)
            raise PeerError(ReplyCode.PRECONDITION_FAILED, f"Invalid x-match field type {kind} (value {shown}); expected longstr")
        if value not in X_MATCH_VALUES:
            raise PeerError(
                ReplyCode.PRECONDITION_FAILED,
                f'Invalid x-match field value <<"{value}">>; expected all, any, all-with-x, or any-with-x',
            )

    def match(self, routing_key: bytes, headers: Headers | None) -> Collection[Destination]:
        present = headers or {}
        return {
            destination
            for destination, every, wanted in self._patterns.values()
            if (all if every else any)(_header_matches(present, key, value) for key, value in wanted)
        }

    def _index(self, binding: Binding) -> None:
        mode = binding.arguments.get(X_MATCH, "all")
        with_x = mode in ("all-with-x", "any-with-x")
        wanted = tuple((key, value) for key, value in binding.arguments.items() if key != X_MATCH and (with_x or not key.startswith("x-")))
        self._patterns[binding.identity] = (binding.destination, mode in ("all", "all-with-x"), wanted)

    def _unindex(self, binding: Binding) -> None:
        del self._patterns[binding.identity]


def _header_matches(headers: Headers, key: str, wanted: Any) -> bool:
    if key not in headers:
        return False
    return wanted is None or same_value(wanted, headers[key])


def erlang_term(value: object) -> tuple[str, str]:
    """(type, value) of a field as RabbitMQ's texts show them: int 5 is `signedint`, `5`; true is `bool`, `true`."""
    if isinstance(value, bool):
        return "bool", "true" if value else "false"
    if type(value) is int:
        return ("signedint" if -(2**31) <= value < 2**31 else "long"), str(value)
    if value is None:
        return "void", "undefined"
    if isinstance(value, str):
        return "longstr", value
    if isinstance(value, bytes | bytearray):
        return "binary", bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, float):
        return "double", repr(value)
    if isinstance(value, Mapping):
        return "table", repr(dict(value))
    if isinstance(value, list | tuple):
        return "array", repr(list(value))
    return type(value).__name__.lower(), str(value)


EXCHANGE_KINDS: dict[str, type[Exchange]] = {cls.kind: cls for cls in (DirectExchange, FanoutExchange, TopicExchange, HeadersExchange)}

__all__ = [
    "DEFAULT_EXCHANGE",
    "EXCHANGE",
    "EXCHANGE_KINDS",
    "QUEUE",
    "DefaultExchange",
    "DirectExchange",
    "Exchange",
    "FanoutExchange",
    "Headers",
    "HeadersExchange",
    "TopicExchange",
    "erlang_term",
]
