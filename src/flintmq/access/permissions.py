"""Permissions: the configure, write and read patterns of a user in a virtual host, and which of them each AMQP method needs.

in: permission records of Definitions; a user, a vhost, a verb and a resource. out: nothing, or a 403 (530 for the vhost) with
RabbitMQ's text.

Patterns are regular expressions of the operator (patterns.py), searched in the name as RabbitMQ does (so "^a" means "begins with a"; the
empty pattern allows only the empty name). A client's input is only ever the subject of a match, never a pattern. A search
that exceeds its budget is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from flintmq.access.outside_user import OutsideUser, Rights
from flintmq.errors import PeerError, ReplyCode
from flintmq.patterns import Among, Pattern, check, quoted
from flintmq.ports import Definitions, PermissionRecord, Resource, Verb

QUEUE = "queue"
EXCHANGE = "exchange"
# what the empty pattern means: no name but the empty one
_NOTHING = "^$"
# what undecided searches are counted as
_USE, _TOPIC_USE = "permission", "topic permission"


class Need(NamedTuple):
    """One permission that a method needs.

    verb: None = any of the three (passive declares must not tell a stranger what exists); kind: of the resource; name: the
    parameter that holds its name; only_if: a parameter without which the need does not arise.
    """

    verb: Verb | None
    kind: str
    name: str
    only_if: str = ""


# Method -> needs, all of which must be met. Parameter names: queue, exchange, source, destination, alternate_exchange,
# dead_letter_exchange. Source: RabbitMQ's access control guide.
NEEDS: Mapping[str, tuple[Need, ...]] = {
    "exchange.declare": (
        Need(Verb.CONFIGURE, EXCHANGE, "exchange"),
        Need(Verb.READ, EXCHANGE, "exchange", "alternate_exchange"),
        Need(Verb.WRITE, EXCHANGE, "alternate_exchange", "alternate_exchange"),
    ),
    "exchange.declare-passive": (Need(None, EXCHANGE, "exchange"),),
    "exchange.delete": (Need(Verb.CONFIGURE, EXCHANGE, "exchange"),),
    "exchange.bind": (Need(Verb.WRITE, EXCHANGE, "destination"), Need(Verb.READ, EXCHANGE, "source")),
    "exchange.unbind": (Need(Verb.WRITE, EXCHANGE, "destination"), Need(Verb.READ, EXCHANGE, "source")),
    "queue.declare": (
        Need(Verb.CONFIGURE, QUEUE, "queue"),
        Need(Verb.READ, QUEUE, "queue", "dead_letter_exchange"),
        Need(Verb.WRITE, EXCHANGE, "dead_letter_exchange", "dead_letter_exchange"),
    ),
    "queue.declare-passive": (Need(None, QUEUE, "queue"),),
    "queue.delete": (Need(Verb.CONFIGURE, QUEUE, "queue"),),
    "queue.bind": (Need(Verb.WRITE, QUEUE, "queue"), Need(Verb.READ, EXCHANGE, "exchange")),
    "queue.unbind": (Need(Verb.WRITE, QUEUE, "queue"), Need(Verb.READ, EXCHANGE, "exchange")),
    "queue.purge": (Need(Verb.READ, QUEUE, "queue"),),
    "basic.publish": (Need(Verb.WRITE, EXCHANGE, "exchange"),),
    "basic.get": (Need(Verb.READ, QUEUE, "queue"),),
    "basic.consume": (Need(Verb.READ, QUEUE, "queue"),),
}


class _Patterns(NamedTuple):
    configure: Pattern
    write: Pattern
    read: Pattern
    everything: bool  # all three are ".*": nothing needs to be searched

    def allows(self, verb: str, kind: str, name: str) -> bool:
        pattern: Pattern = getattr(self, verb)
        return pattern.matches(name)

    def grants(self, verb: str) -> bool:
        pattern: Pattern = getattr(self, verb)
        return pattern.source != _NOTHING


def asks_keys(user: str, keyed: Collection[str], exchange: str) -> bool:
    """Whether routing keys of a topic exchange are asked for: of exchanges with topic permissions, and of users from outside."""
    return exchange in keyed or isinstance(user, OutsideUser)


def checked(pattern: str) -> None:
    """Raises: ValueError with the reason when an operator's pattern is none."""
    reason = check(pattern)
    if reason is not None:
        raise ValueError(reason)


def _filled(pattern: str, user: str, vhost: str) -> str:
    """A pattern for routing keys, with RabbitMQ's variables filled in."""
    return pattern.replace("{username}", quoted(user)).replace("{vhost}", quoted(vhost))


class Permissions:
    """The one place where permission is decided. Threading: any thread; reads take no lock, because a record is replaced whole."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._lock = threading.Lock()
        # called after every change: what was granted before may not be granted any more
        self.on_changed: Callable[[], None] = lambda: None
        # called with each refusal: the user, the words of the answer
        self.on_refused: Callable[[str, str], object] = lambda user, text: None
        self._patterns: dict[tuple[str, str], _Patterns] = {}
        self._records: dict[tuple[str, str], PermissionRecord] = {}
        # (user, vhost, exchange) -> patterns for routing keys: to write, to read
        self._topics: dict[tuple[str, str, str], tuple[Pattern, Pattern]] = {}
        known: set[str] = set()
        for record in definitions.load_permissions():
            patterns = self._made(record)
            for pattern in patterns[:3]:
                if pattern.source not in known:
                    known.add(pattern.told().source)  # an earlier version had another engine: what is no pattern now allows nothing
            self._patterns[record.user, record.vhost] = patterns
            self._records[record.user, record.vhost] = record

    def set_permissions(self, record: PermissionRecord) -> None:
        """Grants (replaces). Raises: ValueError for a pattern that does not compile; then nothing has changed."""
        for pattern in (record.configure, record.write, record.read):
            checked(pattern)
        with self._lock:
            self._definitions.save_permission(record)
        self.changed(record)

    def changed(self, record: PermissionRecord) -> None:
        """The definitions have this record now; its patterns were checked."""
        patterns = self._made(record)
        with self._lock:
            self._patterns[record.user, record.vhost] = patterns
            self._records[record.user, record.vhost] = record
        self.on_changed()

    def clear_permissions(self, user: str, vhost: str) -> None:
        """Takes all permissions of the user in the vhost away, the right to open it included."""
        with self._lock:
            self._definitions.delete_permission(user, vhost)
        self.gone(lambda key: key == (user, vhost))

    def forget_user(self, user: str) -> None:
        """The user is gone (Definitions.delete_user removed its records)."""
        self.gone(lambda key: key[0] == user)

    def gone(self, which: Callable[[tuple[str, str]], bool]) -> None:
        """The definitions have the permissions of these (user, vhost) no more, nor the topic permissions."""
        with self._lock:
            for key in [key for key in self._patterns if which(key)]:
                del self._patterns[key], self._records[key]
            for topic in [key for key in self._topics if which(key[:2])]:
                del self._topics[topic]
        self.on_changed()

    def records(self) -> list[PermissionRecord]:
        """By user and vhost. Any thread."""
        with self._lock:
            return [self._records[key] for key in sorted(self._records)]

    def record(self, user: str, vhost: str) -> PermissionRecord | None:
        return self._records.get((user, vhost))

    def has_vhost(self, user: str, vhost: str) -> bool:
        """Whether the user may open the vhost."""
        return self._of(user, vhost) is not None

    def _of(self, user: str, vhost: str) -> _Patterns | Rights | None:
        """Whose patterns count: those of the user's record, or its own (outside_user.U1). Where each verb of a connection comes, a plain
        name spares the call."""
        if isinstance(user, OutsideUser):
            return user.rights(vhost)
        return self._patterns.get((user, vhost))

    # --- topics ---------------------------------------------------------------------------------------------------------

    def set_topic(self, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """The definitions have these patterns for routing keys now. One that does not compile allows nothing, and the log says so."""
        patterns = (
            Pattern(_filled(write, user, vhost) or _NOTHING, _TOPIC_USE).told(),
            Pattern(_filled(read, user, vhost) or _NOTHING, _TOPIC_USE).told(),
        )
        with self._lock:
            self._topics[user, vhost, exchange] = patterns
        self.on_changed()

    def clear_topic(self, user: str, vhost: str, exchange: str) -> None:
        with self._lock:
            self._topics.pop((user, vhost, exchange), None)
        self.on_changed()

    def authorize_topic(self, user: str, vhost: str, verb: Verb, exchange: str, routing_key: str, among: Among | None = None) -> None:
        """Returns when the user may write (publish) or read (bind) this routing key of a topic exchange. Raises: PeerError 403.

        Args: among: the keys that are asked for together.

        As on RabbitMQ: an exchange for which nothing is set lets every key pass.
        """
        if self.topic_is_refused(user, vhost, verb, exchange, routing_key, among):
            text = f"{verb.value} access to topic '{routing_key}' in exchange '{exchange}' in vhost '{vhost}' refused for user '{user}'"
            self.on_refused(user, text)
            raise PeerError(ReplyCode.ACCESS_REFUSED, text)

    def topic_is_refused(self, user: str, vhost: str, verb: Verb, exchange: str, routing_key: str, among: Among | None = None) -> bool:
        """What `authorize_topic` raises for."""
        if isinstance(user, OutsideUser):
            return not user.may_topic(vhost, verb.value, exchange, routing_key)
        patterns = self._topics.get((user, vhost, exchange))
        return patterns is not None and not patterns[verb is Verb.READ].matches(routing_key, among)

    def authorize_keys(self, user: str, vhost: Any, verb: Verb, exchange: str, keys: Iterable[bytes]) -> None:
        """The one rule for routing keys: each of them is asked for when its exchange is a topic exchange with topic permissions, or the
        user is one from outside. Every way of publishing (AMQP, HTTP, Flight, moves) and of binding comes here.

        Args: vhost: with its `name`, `keyed` and `exchanges`. Raises: PeerError 403.
        """
        exchange_of = vhost.exchanges.get(exchange) if asks_keys(user, vhost.keyed, exchange) else None
        if exchange_of is not None and exchange_of.kind == "topic":
            texts = [key.decode("utf-8", "surrogateescape") for key in keys]
            among = Among(len(texts))
            for text in texts:
                self.authorize_topic(user, vhost.name, verb, exchange, text, among)

    def authorize_vhost(self, user: str, vhost: str) -> None:
        """Returns when the user may open the vhost. Raises: PeerError 530."""
        patterns = self._patterns.get((user, vhost)) if type(user) is str else self._of(user, vhost)
        if patterns is None:
            text = f"access to vhost '{vhost}' refused for user '{user}'"
            self.on_refused(user, text)
            raise PeerError(ReplyCode.NOT_ALLOWED, text)

    def grants(self, user: str, vhost: str, *verbs: Verb) -> bool:
        """Whether the user may do one of these to anything in the vhost: whether one of the patterns is not the empty one."""
        patterns = self._of(user, vhost)
        return patterns is not None and any(patterns.grants(verb.value) for verb in verbs)

    def authorize(self, user: str, vhost: str, verb: Verb, resource: Resource) -> None:
        """As `_authorize`, and the refusal is told."""
        try:
            self._authorize(user, vhost, verb, resource)
        except PeerError as error:
            self.on_refused(user, error.text)
            raise

    def _authorize(self, user: str, vhost: str, verb: Verb, resource: Resource) -> None:
        """Returns when the user may do the verb to the resource. Raises: PeerError 403 with RabbitMQ's text ("configure access to queue
        'q' in vhost '/' refused for user 'u'")."""
        patterns = self._patterns.get((user, vhost)) if type(user) is str else self._of(user, vhost)
        name = resource.name or ("amq.default" if resource.kind == EXCHANGE else "")
        if patterns is not None and patterns.allows(verb.value, resource.kind, name):
            return
        raise self._refused(f"{verb.value} access", user, vhost, resource.kind, name)

    def authorize_method(self, user: str, vhost: str, method: str, names: Mapping[str, str | None]) -> None:
        """Everything that `method` (a key of NEEDS) needs, in order.

        Args: names: parameter -> name; None or missing: not given. Raises: PeerError 403; KeyError for a method without entry, if
        the user may not do everything.
        """
        patterns = self._patterns.get((user, vhost)) if type(user) is str else self._of(user, vhost)
        if patterns is not None and patterns.everything:
            return
        for need in NEEDS[method]:
            if need.only_if and names.get(need.only_if) is None:
                continue
            resource = Resource(need.kind, names.get(need.name) or "")
            if need.verb is not None:
                self.authorize(user, vhost, need.verb, resource)
            else:
                self._authorize_any(user, vhost, resource)

    def _authorize_any(self, user: str, vhost: str, resource: Resource) -> None:
        for verb in Verb:
            try:
                self._authorize(user, vhost, verb, resource)
            except PeerError:
                continue
            return
        refused = self._refused("access", user, vhost, resource.kind, resource.name)
        self.on_refused(user, refused.text)
        raise refused

    @staticmethod
    def _made(record: PermissionRecord) -> _Patterns:
        everything = record.configure == record.write == record.read == ".*"
        configure, write, read = (Pattern(one or _NOTHING, _USE) for one in (record.configure, record.write, record.read))
        return _Patterns(configure, write, read, everything)

    @staticmethod
    def _refused(verb: str, user: str, vhost: str, kind: str, name: str) -> PeerError:
        return PeerError(ReplyCode.ACCESS_REFUSED, f"{verb} to {kind} '{name}' in vhost '{vhost}' refused for user '{user}'")
