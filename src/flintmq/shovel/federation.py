"""Links of federation: an exchange gets what is published to one of another broker, a queue gets what another one has too much of.

in: a plan (moves.upstreams.plan); bindings of the exchange, and whether the queue's consumers want more, as the broker says.
out: moved messages.

E1  A message goes round in no circle: it is dropped when it came over `max-hops` brokers, or was here already (x-received-from).
E2  A binding is passed on as long as it has hops (x-bound-from), so that what nobody here wants is not sent.
E3  The upstream's queue keeps messages while the link is down. It goes when the link is not wanted any more, not when this broker stops.
E4  A queue takes messages from upstream while a consumer here has nothing to do, with a priority below the upstream's own consumers. Acks
    go upstream when the broker says again that it wants more: at most `prefetch-count` messages come for each time it says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flintmq.protocol.v0_9_1 import spec
from flintmq.protocol.v0_9_1.codec import decode_table
from flintmq.protocol.v0_9_1.splice import (
    array_field,
    field_integer,
    field_text,
    join_properties,
    join_table,
    long_field,
    longstr_field,
    split_array,
    split_properties,
    split_table,
    table_field,
)
from flintmq.shovel.headers import prepend, put
from flintmq.shovel.mover import Mover
from flintmq.shovel.peer import ChannelClosed, LinkFailure, Peer
from flintmq.shovel.shovel import MODES, Shovel, ensure_queue

RECEIVED, BOUND = b"x-received-from", "x-bound-from"
PURPOSE = {"x-internal-purpose": "federation"}
NAME_BYTES_MAX = 255

# (routing key, arguments on the wire)
Binding = tuple[str, str]


def _seen(items: list[bytes], cluster: bytes, vhost: bytes) -> bool:
    """E1. Whether a broker and virtual host are in a list of those that a message came from."""
    for item in items:
        if item[:1] == b"F":
            fields = dict(split_table(item[5:]))
            if field_text(fields.get(b"cluster-name", b"")) == cluster and field_text(fields.get(b"vhost", b"")) == vhost:
                return True
    return False


class Federation(Shovel):
    """What both kinds share."""

    def _came_from(self, source: Peer) -> list[tuple[bytes, bytes]]:
        """The members of an entry of x-received-from that are the same for all messages."""
        plan = self.plan
        kind = plan["kind"].encode()
        return [(b"uri", longstr_field(self.source_uri.encode())), (kind, longstr_field(plan["remote"].encode()))]

    def _mover_to(self, source: Peer, dest: Peer, exchange: str, key: str | None, mandatory: bool, change: Any) -> Mover:
        return Mover(
            MODES[self.plan["ack-mode"]],
            exchange.encode(),
            None if key is None else key.encode(),
            mandatory=mandatory,
            window=self._prefetch() if self.plan["ack-mode"] == "on-confirm" else 1,
            change=change,
            source_frame_max=source.frame_max,
            frame_max=dest.frame_max,
        )

    def _properties(self, payload: bytes) -> tuple[int, dict[str, bytes], list[tuple[bytes, bytes]]]:
        size, parts = split_properties(payload)
        if not self.plan["trust-user-id"]:
            parts.pop("user_id", None)
        return size, parts, split_table(parts.get("headers", b""))

    async def _prepare_destination(self, dest: Peer) -> None:
        if self.plan["ack-mode"] == "on-confirm":
            await dest.call(spec.ConfirmSelect(), spec.ConfirmSelectOk)

    async def _qos(self, source: Peer) -> None:
        if self.plan["ack-mode"] != "no-ack":
            await source.call(spec.BasicQos(0, self._prefetch(), False), spec.BasicQosOk)


class ExchangeLink(Federation):
    """See module. The upstream's queue is bound to an exchange of the link's own, which is bound to the upstream's exchange as the exchange
    here is: two names of it take turns, so that one life's bindings are whole before those of the life before it go."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._wanted: list[Binding] = []
        self._bound: dict[Binding, dict[str, Any]] = {}
        self._source: Peer | None = None
        self._own = ""
        self._queue = ""

    def obey(self, message: Mapping[str, Any]) -> None:
        """The bindings of the exchange here, all of them."""
        self._wanted = [(one[0], one[1]) for one in message["bindings"]]
        if self._source is not None and not self._source.lost.done() and self._own:
            self._bind(self._source)

    def _names(self, source: Peer, vhost: str) -> str:
        """The name of the upstream's queue, as RabbitMQ makes it."""
        plan = self.plan
        part = "" if plan["name"] == plan["remote"] else f":{plan['name']}"
        if plan["vhost"] != vhost:
            part = f":{plan['vhost']}:{plan['name']}"
        name = f"federation: {plan['remote']} -> {plan['cluster']}{part}"
        if len(name.encode()) + 2 > NAME_BYTES_MAX:
            raise LinkFailure(f"source: the name of the upstream's queue would have more than {NAME_BYTES_MAX} bytes")
        return name

    async def _prepare_source(self, source: Peer) -> str:
        plan = self.plan
        await self._ensure_exchange(source)
        arguments: dict[str, object] = dict(PURPOSE)
        for key in ("expires", "message-ttl"):
            if plan[key] is not None:
                arguments[f"x-{key}"] = plan[key]
        queue = self._names(source, self.source_vhost)
        try:
            await source.call(spec.QueueDeclare(queue, durable=True, arguments=arguments), spec.QueueDeclareOk)
            await self._qos(source)
            old = f"{queue} A" if await self._is_there(source, f"{queue} A") else f"{queue} B"
            self._own = f"{queue} B" if old.endswith("A") else f"{queue} A"
            await source.call(spec.ExchangeDelete(self._own), spec.ExchangeDeleteOk)
            await self._declare_own(source)
            await source.call(spec.QueueBind(queue, self._own, ""), spec.QueueBindOk)
            self._bound = {}
            self._source, self._queue = source, queue
            self._bind(source)
            # the answer comes behind all bindings
            await source.call(spec.ExchangeDelete(old), spec.ExchangeDeleteOk)
        except ChannelClosed as error:
            raise LinkFailure(f"source: {error}") from None
        return queue

    async def _is_there(self, source: Peer, exchange: str) -> bool:
        try:
            await source.call(spec.ExchangeDeclare(exchange, "fanout", passive=True), spec.ExchangeDeclareOk)
        except ChannelClosed as error:
            if error.code != 404:
                raise
            await self._qos(source)
            return False
        return True

    async def _ensure_exchange(self, source: Peer) -> None:
        """The upstream's exchange, made as the one here when it is not there."""
        plan, here = self.plan, self.plan["declared"]
        try:
            await source.call(spec.ExchangeDeclare(plan["remote"], here["type"], passive=True), spec.ExchangeDeclareOk)
        except ChannelClosed as error:
            if error.code != 404:
                raise LinkFailure(f"source: {error}") from None
            declare = spec.ExchangeDeclare(
                plan["remote"], here["type"], durable=here["durable"], auto_delete=here["auto_delete"],
                arguments=decode_table(bytes.fromhex(here["arguments"])),
            )  # fmt: skip
            await source.call(declare, spec.ExchangeDeclareOk)

    async def _declare_own(self, source: Peer) -> None:
        """RabbitMQ's type of exchange sends nothing that went round already. A broker without it ends the connection that asks for it."""
        plan = self.plan
        # RabbitMQ wants the number as an int64.
        table = join_table(
            [
                (b"x-max-hops", long_field(plan["max-hops"])),
                (b"x-downstream-name", longstr_field(plan["cluster"].encode())),
                (b"x-downstream-vhost", longstr_field(plan["vhost"].encode())),
                *((name.encode(), longstr_field(value.encode())) for name, value in PURPOSE.items()),
            ]
        )
        named: dict[str, Any] = {"durable": True, "auto_delete": True, "internal": True}
        if source.server.get("product") == "FlintMQ":
            await source.call(spec.ExchangeDeclare(self._own, "fanout", arguments=dict(PURPOSE), **named), spec.ExchangeDeclareOk)
            return
        asking, _ = await self._connect("source", plan["src-uris"], self.limits.shovel_frame_max)
        try:
            declare = spec.ExchangeDeclare(self._own, "x-federation-upstream", **named)
            await asking.call(declare, spec.ExchangeDeclareOk, table)
            return
        except LinkFailure as error:
            if "503" not in str(error):
                raise
        finally:
            await asking.close()
        await source.call(spec.ExchangeDeclare(self._own, "fanout", arguments=dict(PURPOSE), **named), spec.ExchangeDeclareOk)

    def _bind(self, source: Peer) -> None:
        """Tells the difference between the bindings here and those of the link's exchange. E2."""
        remote = self.plan["remote"]
        wanted = {one: arguments for one in self._wanted if (arguments := self._passed_on(source, one)) is not None}
        for one, arguments in wanted.items():
            if one not in self._bound:
                source.post(spec.ExchangeBind(self._own, remote, one[0], True, arguments))
        for one, arguments in self._bound.items():
            if one not in wanted:
                source.post(spec.ExchangeUnbind(self._own, remote, one[0], True, arguments))
        self._bound = wanted

    def _passed_on(self, source: Peer, binding: Binding) -> dict[str, Any] | None:
        """The arguments of a binding upstream; None: it has no hops left, or comes from there."""
        plan = self.plan
        arguments = decode_table(bytes.fromhex(binding[1]))
        hops, bound = plan["max-hops"], arguments.get(BOUND)
        way: list[Any] = bound if isinstance(bound, list) else []
        if way:
            last = way[0].get("hops") if isinstance(way[0], dict) else None
            hops = min(last - 1 if isinstance(last, int) else 0, hops)
            ours = source.server.get("cluster_name"), self.source_vhost
            if any(isinstance(one, dict) and (one.get("cluster-name"), one.get("vhost")) == ours for one in way):
                hops = 0
        if hops <= 0:
            return None
        here = f"{plan['vhost']}:{plan['name']} {self._own[-1]}"
        entry = {"cluster-name": plan["cluster"], "vhost": plan["vhost"], "exchange": here, "hops": hops}
        return {**arguments, BOUND: [entry, *way]}

    def _new_mover(self, source: Peer, dest: Peer, source_uri: str, dest_uri: str) -> Mover:
        plan = self.plan
        cluster, vhost, most = plan["cluster"].encode(), plan["vhost"].encode(), plan["max-hops"]
        fixed = self._came_from(source)
        there = [(b"vhost", longstr_field(self.source_vhost.encode()))]
        name = source.server.get("cluster_name")
        if isinstance(name, str):
            there.insert(0, (b"cluster-name", longstr_field(name.encode())))

        def change(exchange: bytes, key: bytes, redelivered: bool, payload: bytes) -> bytes | None:
            size, parts, fields = self._properties(payload)
            before = next((value for known, value in fields if known == RECEIVED), b"")
            way = split_array(before[5:]) if before[:1] == b"A" else []
            if len(way) >= most or _seen(way, cluster, vhost):
                return None
            prepend(fields, RECEIVED, table_field([*fixed, (b"redelivered", b"t\x01" if redelivered else b"t\x00"), *there]))
            parts["headers"] = join_table(fields)
            return join_properties(size, parts)

        return self._mover_to(source, dest, plan["name"], None, False, change)

    async def _leave(self, source: Peer) -> None:
        """E3."""
        if self.unwanted and self.plan["cleanup"] and self._queue and not source.lost.done():
            source.intake = None
            source.post(spec.QueueDelete(self._queue, no_wait=True))
            source.post(spec.ExchangeDelete(self._own, no_wait=True))
        self._source = None


class QueueLink(Federation):
    """See module."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._wants = False
        self._consumes = False
        self._source: Peer | None = None

    def obey(self, message: Mapping[str, Any]) -> None:
        """Whether the consumers here want more."""
        self._wants = bool(message["wants"])
        if self._source is not None and not self._source.lost.done():
            self._turn(self._source)

    async def _prepare_source(self, source: Peer) -> str:
        plan, here = self.plan, self.plan["declared"]
        arguments = decode_table(bytes.fromhex(here["arguments"]))
        await ensure_queue(source, plan["remote"], arguments, False, durable=here["durable"], auto_delete=here["auto_delete"])
        await self._qos(source)
        return str(plan["remote"])

    async def _consume(self, source: Peer, queue: str) -> None:
        self._consumes = False
        self._source = source
        self._turn(source)

    def _turn(self, source: Peer) -> None:
        """E4. A message under way when the consumer is cancelled still comes."""
        tag = self.plan["consumer-tag"]
        if self._wants and not self._consumes:
            no_ack = self.plan["ack-mode"] == "no-ack"
            source.post(spec.BasicConsume(self.plan["remote"], tag, no_ack=no_ack, no_wait=True, arguments={"x-priority": -1}))
        elif self._consumes and not self._wants:
            source.post(spec.BasicCancel(tag, True))
        self._consumes = self._wants
        if self._mover is not None:
            source.send(self._mover.acks())

    def _settle(self, source: Peer, mover: Mover) -> None:
        if not self._consumes:
            source.send(mover.acks())

    def _new_mover(self, source: Peer, dest: Peer, source_uri: str, dest_uri: str) -> Mover:
        fixed = self._came_from(source)
        mine = dict(fixed)

        def change(exchange: bytes, key: bytes, redelivered: bool, payload: bytes) -> bytes:
            size, parts, fields = self._properties(payload)
            fields = [(b"x-original-cc" if name == b"CC" else name, value) for name, value in fields]
            before = next((value for known, value in fields if known == RECEIVED), b"")
            visits, kept = 0, []
            if before[:1] == b"A":
                for item in split_array(before[5:]):
                    members = dict(split_table(item[5:])) if item[:1] == b"F" else {}
                    if all(members.get(name) == value for name, value in mine.items()):
                        visits = field_integer(members.get(b"visit-count", b"")) or 0
                    else:
                        kept.append(item)
                put(fields, RECEIVED, array_field(kept))
            else:
                put(fields, b"x-original-exchange", longstr_field(exchange))
                put(fields, b"x-original-routing-key", longstr_field(key))
            flag = (b"redelivered", b"t\x01" if redelivered else b"t\x00")
            count = (b"visit-count", b"l" + min(visits + 1, 2**62).to_bytes(8, "big"))
            prepend(fields, RECEIVED, table_field([*fixed, flag, count]))
            parts["headers"] = join_table(fields)
            return join_properties(size, parts)

        return self._mover_to(source, dest, "", self.plan["name"], True, change)

    async def _leave(self, source: Peer) -> None:
        self._source = None
