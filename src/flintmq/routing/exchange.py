"""Exchanges: where the next hop of a message is decided. Default, direct, fanout, topic and headers.

in: bindings, and a routing key with headers. out: destinations (queues and exchanges), one hop; the walk over several exchanges
and alternates is the virtual host's.

I1  `match` gives each destination at most as often as `collect` can remove duplicates for: callers always use a set or dict.
I2  An exchange knows its bindings as a source, which exchanges lead to it (`upstream`), so that a change tells everyone whose
    cached routes it may touch, and which it leads to (`downstream`), without a look at every binding.

Not thread-safe: every call is made under the virtual host's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, MutableMapping
from decimal import Decimal
from typing import Any, ClassVar

from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode
from flintmq.ports import freeze
from flintmq.routing.binding import EXCHANGE, NO_ARGUMENTS, QUEUE, Binding, BindingIdentity, Destination
from flintmq.routing.by_key import BindingsByKey
from flintmq.routing.deciding import Deciding
from flintmq.routing.kept import Kept
from flintmq.routing.topic import TopicTrie

DEFAULT_EXCHANGE = ""
X_MATCH = "x-match"
# of an exchange whose virtual host has not told it its limits (`limit`)
_STEPS_MAX = Limits().topic_steps_max
X_MATCH_VALUES = ("all", "any", "all-with-x", "any-with-x")

Headers = Mapping[str, Any]


class Exchange:
    """Base of all kinds.

    Args: name; durable; auto_delete: deleted when its last binding as a source goes; internal: publishes are refused;
    arguments: as declared; `alternate-exchange` takes what matched nothing.
    """

    kind: ClassVar[str] = ""

    __slots__ = (
        "alternate",
        "arguments",
        "auto_delete",
        "bindings",
        "by_headers",
        "cache",
        "downstream",
        "durable",
        "incoming",
        "internal",
        "name",
        "needs_headers",
        "upstream",
        "watch",
    )

    destination_kind = EXCHANGE
    # whether it does not look at the routing key: a message with several is asked for once
    keyless: ClassVar[bool] = False
    # whether it gives a message to one of its destinations, by chance
    by_chance: ClassVar[bool] = False
    # whether it remembers messages, and whether what it remembers decides where a message goes
    remembers: ClassVar[bool] = False
    decides: ClassVar[bool] = False

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
        self.bindings: MutableMapping[BindingIdentity, Binding] = {}
        self.incoming: dict[BindingIdentity, Binding] = {}  # those that lead here
        self.upstream: dict[Exchange, int] = {}  # exchange that is bound to this one -> number of bindings
        self.downstream: dict[Exchange, int] = {}  # exchange that this one is bound to -> number of bindings
        self.cache: Any = None  # the connection layer's route cache for this exchange; opaque here
        self.watch: Callable[[Binding, bool], object] | None = None  # told of each binding that comes (True) or goes; must not wait
        self.needs_headers = False  # its own choice depends on more of a message than its key, so its routes can't be cached by key
        self.by_headers = False  # that more is headers alone (`deciding`)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @classmethod
    def check(cls, arguments: Mapping[str, Any]) -> None:
        """Refuses arguments of exchange.declare that this kind cannot use. Raises: PeerError 406."""

    def validate(self, arguments: Mapping[str, Any]) -> None:
        """Refuses binding arguments this kind cannot use. Raises: PeerError 406."""

    def validate_binding(self, binding: Binding) -> None:
        """Refuses a binding that this kind cannot use. Raises: PeerError 406."""
        self.validate(binding.arguments)

    def limit(self, limits: Limits, total: Kept | None = None) -> None:
        """Tells the exchange what one match may cost, and what it counts the messages in that it keeps (None: nowhere)."""

    def forget_some(self) -> bool:
        """It is deleted: a slice of what it remembers of messages goes. True: all has gone."""
        return True

    def add(self, binding: Binding) -> None:
        """Indexes a binding that is not there yet (the virtual host checked)."""
        self._keep(binding)
        if isinstance(binding.destination, Exchange):
            target = binding.destination
            target.incoming[binding.identity] = binding
            target.upstream[self] = target.upstream.get(self, 0) + 1
            self.downstream[target] = self.downstream.get(target, 0) + 1
        self._index(binding)
        if self.watch is not None:
            self.watch(binding, True)

    def remove(self, binding: Binding) -> None:
        """Takes out a binding that is there. Raises: KeyError otherwise."""
        del self.bindings[binding.identity]
        if isinstance(binding.destination, Exchange):
            target = binding.destination
            del target.incoming[binding.identity]
            target.upstream[self] -= 1
            if not target.upstream[self]:
                del target.upstream[self]
            self.downstream[target] -= 1
            if not self.downstream[target]:
                del self.downstream[target]
        self._unindex(binding)
        if self.watch is not None:
            self.watch(binding, False)

    def last_binding(self) -> Binding | None:
        """One of those that lead from here, or else to here. O(1) also where many that came behind it were taken out."""
        bound = self.bindings or self.incoming
        if not bound:
            return None
        identity, binding = bound.popitem()
        bound[identity] = binding
        return binding

    def match(self, routing_key: bytes, headers: Headers | None) -> Collection[Destination]:
        """Destinations of one message, distinct. `headers` None reads as no headers."""
        raise NotImplementedError

    def deciding(self, deciding: Deciding) -> None:
        """Adds the headers that it looks at (`by_headers`)."""

    @property
    def match_steps(self) -> int:
        """What the last match took beyond a look into a table, in steps of some 30 ns."""
        return 0

    def _keep(self, binding: Binding) -> None:
        self.bindings[binding.identity] = binding

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
    __slots__ = ("_by_key",)

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self.bindings = self._by_key = BindingsByKey()

    def match(self, routing_key: bytes, headers: Headers | None) -> Collection[Destination]:
        return self._by_key.destinations(routing_key)

    def _keep(self, binding: Binding) -> None:
        self._by_key.add(binding)

    def _index(self, binding: Binding) -> None:
        """`bindings` is its index."""

    def _unindex(self, binding: Binding) -> None:
        """As `_index`."""


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
    keyless = True
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
        self._trie = TopicTrie(_STEPS_MAX)

    def match(self, routing_key: bytes, headers: Headers | None) -> Collection[Destination]:
        """Raises: PeerError 406: more than Limits.topic_steps_max steps, which no key of up to six words takes."""
        destinations: Collection[Destination] | None = self._trie.match(routing_key)
        if destinations is None:
            text = (
                f"routing key of {routing_key.count(b'.') + 1} words takes more than {self._trie.steps_max} steps to match with the "
                f"patterns of exchange '{self.name}': use a shorter key, or fewer patterns with '#' before other words"
            )
            raise PeerError(ReplyCode.PRECONDITION_FAILED, text)
        return destinations

    @property
    def match_steps(self) -> int:
        return self._trie.steps

    def limit(self, limits: Limits, total: Kept | None = None) -> None:
        self._trie.steps_max = limits.topic_steps_max

    def _index(self, binding: Binding) -> None:
        self._trie.add(binding.routing_key, binding.destination)

    def _unindex(self, binding: Binding) -> None:
        self._trie.remove(binding.routing_key, binding.destination)


Pair = tuple[str, Hashable]


class _HeadersPattern:
    """What one set of binding arguments asks for, and the destinations of all bindings that ask for just that."""

    __slots__ = ("destinations", "every", "pairs", "present")

    def __init__(self, every: bool, pairs: frozenset[Pair], present: frozenset[str]) -> None:
        self.every = every
        self.pairs = pairs
        self.present = present
        self.destinations: dict[Destination, int] = {}


class HeadersExchange(Exchange):
    """Message headers against binding arguments.

    x-match: "all" (also when absent) or "any"; arguments that begin with "x-" do not count, except with "all-with-x" and
    "any-with-x", where only x-match itself does not. An argument without value (void) asks for presence only. Values are compared as
    RabbitMQ compares Erlang terms (`loose`). "any" without arguments to look at matches nothing, "all" everything.

    A match looks at the patterns that one of the message's headers leads to, not at all of them: a pattern of "any" stands under each of
    its (key, value) pairs, one of "all" under one of them, that with the fewest others; what asks for presence stands under the key.
    Source: RabbitMQ 3.10, rabbit_exchange_type_headers.
    """

    kind = "headers"
    keyless = True
    __slots__ = ("_always", "_by_key", "_by_pair", "_keys", "_patterns", "_place", "steps")

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self.needs_headers = self.by_headers = True
        self._patterns: dict[tuple[bool, frozenset[Pair], frozenset[str]], _HeadersPattern] = {}
        self._by_pair: dict[Pair, dict[_HeadersPattern, None]] = {}
        self._by_key: dict[str, dict[_HeadersPattern, None]] = {}
        self._keys: dict[str, int] = {}  # of all patterns: those that ask for it. A message may have thousands of other headers
        self._always: dict[Destination, int] = {}
        self._place: dict[_HeadersPattern, Pair | str] = {}  # where a pattern of "all" stands
        self.steps = 0  # patterns looked at, of all matches (tests)

    def validate(self, arguments: Mapping[str, Any]) -> None:
        if X_MATCH not in arguments:
            return
        value = arguments[X_MATCH]
        if not isinstance(value, str):
            kind, shown = erlang_term(value)
            raise PeerError(ReplyCode.PRECONDITION_FAILED, f"Invalid x-match field type {kind} (value {shown}); expected longstr")
        if value not in X_MATCH_VALUES:
            shown = f'<<"{value}">>' if value else "<<>>"
            text = f"Invalid x-match field value {shown}; expected all, any, all-with-x, or any-with-x"
            raise PeerError(ReplyCode.PRECONDITION_FAILED, text)

    def match(self, routing_key: bytes, headers: Headers | None) -> Collection[Destination]:
        destinations = set(self._always)
        if not headers or not self._patterns:
            return destinations
        pairs = frozenset((key, loose(headers[key])) for key in headers.keys() & self._keys.keys())
        for pair in pairs:
            for pattern in self._by_pair.get(pair, ()):
                self._look(pattern, pairs, headers, destinations)
        for key in headers.keys() & self._by_key.keys() if self._by_key else ():
            for pattern in self._by_key[key]:
                self._look(pattern, pairs, headers, destinations)
        return destinations

    def deciding(self, deciding: Deciding) -> None:
        if not deciding.has_room(len(self._patterns)) or not deciding.has_room(
            sum(len(pairs) + len(keys) for _, pairs, keys in self._patterns)
        ):
            deciding.add_whole(self._keys)
            return
        for _, pairs, present in self._patterns:
            for name, value in pairs:
                deciding.add(name, value)
            for name in present:
                deciding.add(name, None)

    def _look(self, pattern: _HeadersPattern, pairs: frozenset[Pair], headers: Headers, destinations: set[Destination]) -> None:
        self.steps += 1
        if not pattern.every or (pattern.pairs <= pairs and (not pattern.present or pattern.present <= headers.keys())):
            destinations.update(pattern.destinations)

    def _wanted(self, binding: Binding) -> tuple[bool, frozenset[Pair], frozenset[str]]:
        mode = binding.arguments.get(X_MATCH, "all")
        with_x = mode in ("all-with-x", "any-with-x")
        wanted = [(key, value) for key, value in binding.arguments.items() if key != X_MATCH and (with_x or not key.startswith("x-"))]
        pairs = frozenset((key, loose(value)) for key, value in wanted if value is not None)
        return mode in ("all", "all-with-x"), pairs, frozenset(key for key, value in wanted if value is None)

    def _index(self, binding: Binding) -> None:
        every, pairs, present = wanted = self._wanted(binding)
        if not pairs and not present:
            if every:
                _count_up(self._always, binding.destination)
            return
        pattern = self._patterns.get(wanted)
        if pattern is None:
            pattern = self._patterns[wanted] = _HeadersPattern(*wanted)
            for key in _keys_of(pattern):
                self._keys[key] = self._keys.get(key, 0) + 1
            if not every:
                for pair in pairs:
                    self._by_pair.setdefault(pair, {})[pattern] = None
                for key in present:
                    self._by_key.setdefault(key, {})[pattern] = None
            elif pairs:
                place = min(pairs, key=lambda pair: len(self._by_pair.get(pair, ())))
                self._by_pair.setdefault(place, {})[pattern] = None
                self._place[pattern] = place
            else:
                shown = min(present, key=lambda key: len(self._by_key.get(key, ())))
                self._by_key.setdefault(shown, {})[pattern] = None
                self._place[pattern] = shown
        _count_up(pattern.destinations, binding.destination)

    def _unindex(self, binding: Binding) -> None:
        every, pairs, present = wanted = self._wanted(binding)
        if not pairs and not present:
            if every:
                _count_down(self._always, binding.destination)
            return
        pattern = self._patterns[wanted]
        _count_down(pattern.destinations, binding.destination)
        if pattern.destinations:
            return
        del self._patterns[wanted]
        for key in _keys_of(pattern):
            self._keys[key] -= 1
            if not self._keys[key]:
                del self._keys[key]
        place = self._place.pop(pattern, None)
        for pair in pairs if place is None else (place,) if isinstance(place, tuple) else ():
            _take_out(self._by_pair, pair, pattern)
        for key in present if place is None else (place,) if isinstance(place, str) else ():
            _take_out(self._by_key, key, pattern)


def _keys_of(pattern: _HeadersPattern) -> set[str]:
    return {key for key, _ in pattern.pairs} | pattern.present


def _take_out(index: dict[Any, dict[_HeadersPattern, None]], key: Hashable, pattern: _HeadersPattern) -> None:
    del index[key][pattern]
    if not index[key]:
        del index[key]


def loose(value: object) -> Hashable:
    """Equal for values that RabbitMQ's headers exchange takes for equal: all numbers and timestamps by value (1.0 is 1), strings and byte
    arrays by octets, booleans and decimals among themselves. Within tables and arrays the types must agree, as there."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, int):  # timestamps, too
        return int(value)
    if isinstance(value, float):
        return value
    if isinstance(value, Decimal):  # RabbitMQ compares scale and digits
        return ("decimal", value.as_tuple())
    return freeze(value)


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


__all__ = [
    "DEFAULT_EXCHANGE",
    "EXCHANGE",
    "QUEUE",
    "Binding",
    "DefaultExchange",
    "DirectExchange",
    "Exchange",
    "FanoutExchange",
    "Headers",
    "HeadersExchange",
    "TopicExchange",
    "erlang_term",
]
