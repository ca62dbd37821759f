"""The links that should run: shovels of parameters, and the federated exchanges and queues of policies with their upstreams.

in: parameters, policies, exchanges and queues as they are now. out: `Wanted` by key; bindings of exchanges; whether queues want messages.

W1  Exchanges and queues are looked at only where a policy federates, in pieces: other threads have their turns.
W2  Not federated are the default exchange, what is internal, what federation made, exclusive queues and streams. A shared queue is, by the
    node that owns it: one link feeds it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from flintmq.moves import shovels, upstreams
from flintmq.patterns import Among, Pattern
from flintmq.ports import ParameterRecord
from flintmq.protocol.v0_9_1.codec import encode_table
from flintmq.routing.binding import EXCHANGE, QUEUE
from flintmq.slotted import slotted

log = logging.getLogger("flintmq.links")

SHOVEL = "shovel"
# nanoseconds in which exchanges or queues are looked at in one piece
PIECE_NS = 1_000_000

Key = tuple[str, str, str, str]  # kind, virtual host, name, upstream


@slotted(frozen=True)
class Wanted:
    """One link. Args: kind: SHOVEL, EXCHANGE or QUEUE; component, parameter: whose owner it acts for; basis: changes with anything that
    makes it another link; value: of the parameter, with the settings of a federated link; thing: the exchange or queue."""

    kind: str
    vhost: str
    name: str
    upstream: str
    component: str
    parameter: str
    basis: Any
    value: Any
    record: ParameterRecord
    thing: Any = None

    @property
    def key(self) -> Key:
        return self.kind, self.vhost, self.name, self.upstream

    @property
    def title(self) -> str:
        if self.kind == SHOVEL:
            return f"Shovel {self.name} in vhost {self.vhost}"
        return f"Federation {self.kind} {self.name} in vhost {self.vhost} from {self.upstream}"

    @property
    def id(self) -> str:
        return upstreams.link_id(*self.key)

    def errors(self) -> list[str]:
        """The mistake in its parameter, and with the member of its set."""
        if self.kind == SHOVEL:
            return shovels.check(self.name, self.value)
        wrong = upstreams.check(upstreams.UPSTREAM, self.upstream, self.record.value)
        return wrong or upstreams.check(upstreams.UPSTREAM, self.upstream, self.value)

    def plan(self, cluster: str) -> dict[str, Any]:
        if self.kind == SHOVEL:
            return shovels.plan(self.name, self.vhost, cluster, self.value)
        return upstreams.plan(self.kind, self.vhost, self.name, cluster, self.value, _declared(self.thing))


def _declared(thing: Any) -> dict[str, Any]:
    """How an exchange or a queue is declared, for the upstream that has none of its name."""
    facts = {"durable": thing.durable, "auto_delete": thing.auto_delete, "arguments": encode_table(dict(thing.arguments)).hex()}
    return facts | ({"type": thing.kind} if thing.destination_kind == EXCHANGE else {})


def bindings(exchange: Any) -> list[list[str]]:
    """(routing key, arguments on the wire as hex) of the exchange's bindings; each once."""
    pairs: dict[tuple[str, str], None] = {}
    for one in list(exchange.bindings.values()):
        pairs[one.routing_key.decode("utf-8", "surrogateescape"), encode_table(dict(one.arguments)).hex()] = None
    return [list(one) for one in pairs]


def wants(queue: Any) -> bool:
    """Whether a consumer of this broker, none of another one's federation, has nothing to do."""
    return bool(queue.core.takers(0)) and queue.core.ready_count() == 0


class Finder:
    """Args: broker; definitions: the DefinitionsService; most: federated links of one virtual host that are found, the others are not."""

    def __init__(self, broker: Any, definitions: Any, most: int) -> None:
        self._broker = broker
        self._definitions = definitions
        self._most = most
        self._warned: set[str] = set()

    def federates(self) -> bool:
        """Whether any policy does."""
        return any(_of_federation(vhost) for vhost in list(self._broker.vhosts.values()))

    def all(self) -> dict[Key, Wanted]:
        """W1."""
        wanted: dict[Key, Wanted] = {}
        for record in self._definitions.of(SHOVEL):
            one = Wanted(
                kind=SHOVEL,
                vhost=record.vhost,
                name=record.name,
                upstream="",
                component=SHOVEL,
                parameter=record.name,
                basis=id(record),
                value=record.value,
                record=record,
            )
            wanted[one.key] = one
        for vhost in list(self._broker.vhosts.values()):
            if _of_federation(vhost):
                many = list(islice(self._federated(vhost), self._most + 1))
                if len(many) > self._most and vhost.name not in self._warned:
                    self._warned.add(vhost.name)
                    log.warning(
                        "vhost %r: policies federate more than %d exchanges and queues: the rest has no link", vhost.name, self._most
                    )
                for one in many[: self._most]:
                    wanted[one.key] = one
        return wanted

    def _federated(self, vhost: Any) -> Iterator[Wanted]:
        for kind, things in ((EXCHANGE, vhost.exchanges), (QUEUE, vhost.queues)):
            policies = [
                one for one in _of_federation(vhost) if one.apply_to == "all" or (one.apply_to == "exchanges") == (kind == EXCHANGE)
            ]
            if not policies:
                continue
            began, among = time.monotonic_ns(), vhost.policies.for_names()
            for thing in list(things.values()):
                if time.monotonic_ns() - began > PIECE_NS:
                    time.sleep(0)
                    began = time.monotonic_ns()
                if self._is_apt(kind, thing) and any(one.pattern.matches(thing.name, among) for one in policies):
                    yield from self._links(vhost, kind, thing)

    @staticmethod
    def _is_apt(kind: str, thing: Any) -> bool:
        """W2."""
        if "x-internal-purpose" in thing.arguments:
            return False
        if kind == EXCHANGE:
            return bool(thing.name) and not thing.internal
        return thing.exclusive_owner is None and not thing.policy.is_stream and not thing.owned_elsewhere

    def _links(self, vhost: Any, kind: str, thing: Any) -> Iterator[Wanted]:
        queue_type = thing.policy.queue_type if kind == QUEUE else ""
        definition = vhost.policies.definition(kind, thing.name, queue_type)
        for element in self._elements(vhost.name, definition):
            name = str(element.get("upstream"))
            record = self._definitions.parameters.get((upstreams.UPSTREAM, vhost.name, name))
            if record is None or not isinstance(record.value, Mapping):
                continue
            settings = upstreams.settings(name, record.value, element)
            basis = id(record), repr(sorted(element.items(), key=str)), id(thing)
            yield Wanted(
                kind=kind,
                vhost=vhost.name,
                name=thing.name,
                upstream=name,
                component=upstreams.UPSTREAM,
                parameter=name,
                basis=basis,
                value=settings,
                record=record,
                thing=thing,
            )

    def _elements(self, vhost: str, definition: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The members of the set that a policy names."""
        one, many, pattern = (definition.get(key) for key in upstreams.POLICY_KEYS)
        if one is not None:
            return [{"upstream": one}]
        names = [record.name for record in self._definitions.of(upstreams.UPSTREAM, vhost)]
        if pattern is not None:
            chosen, among = Pattern(str(pattern), "federation"), Among.for_names()
            return [{"upstream": name} for name in names if chosen.matches(name, among)]
        if many == upstreams.ALL:
            return [{"upstream": name} for name in names]
        elements = self._definitions.value(upstreams.UPSTREAM_SET, vhost, many)
        return [each for each in elements if isinstance(each, Mapping)] if isinstance(elements, list) else []


def _of_federation(vhost: Any) -> list[Any]:
    policies = (*vhost.policies.ordinary, *vhost.policies.operator)
    return [one for one in policies if any(key in one.definition for key in upstreams.POLICY_KEYS)]
