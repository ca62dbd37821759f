"""Prometheus metrics with RabbitMQ's names, labels and endpoints: `/metrics`, `/metrics/per-object`, `/metrics/detailed`.

in: the node's parts; families and virtual hosts of the query. out: the text format 0.0.4, family by family. Names that RabbitMQ does not
have begin with `flintmq_` (admin.figures). The format is written here (a few lines; a client library brings its own registry and locks).

M1  Nothing is counted for the metrics on the message path but plain additions of an I/O loop (core/counters.pxd), which are read here.
M2  Objects are looked at PIECE at a time, with turns of other requests and of the I/O loops in between; one request at a time does that.
    It is done before the first byte goes out: who reads its answer slowly, or not at all, holds up nobody.
M3  What FlintMQ does not have (Erlang processes, Raft, I/O seeks) is left out rather than shown as 0.

Source: metrics.md and metrics-detailed.md of RabbitMQ's rabbitmq_prometheus plugin (names, groups).
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from starlette.responses import Response, StreamingResponse

from flintmq import __version__
from flintmq.admin import figures, traffic
from flintmq.admin.api_call import Call
from flintmq.admin.api_clients import on_loops
from flintmq.admin.api_definitions import COMPATIBLE
from flintmq.admin.counts import head_timestamp, is_hidden, queue_count
from flintmq.admin.figures import Family, label_text, shown_name
from flintmq.admin.http_refusals import bad
from flintmq.admin.node_facts import DESCRIPTORS_KEPT, alarms_of, descriptors, disk_free, federation_of, shovels_of
from flintmq.admin.parts import Parts
from flintmq.admin.pools import take
from flintmq.admin.samples import Sampler
from flintmq.core.memory_account import bytes_held
from flintmq.core.shares import Holding

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
# objects that are looked at in one piece
PIECE = 200
# queues whose samples are looked at in one piece
SERIES_PIECE = 50
# lines of one piece of an answer
LINES = 500
_BOUNDS = ("100", "1000", "10000", "100000", "1000000", "10000000", "50000000", "100000000", "+Inf")
_PROTOCOL = '{protocol="amqp091"}'
_QUEUES = '{protocol="amqp091",queue_type="rabbit_classic_queue"}'

# name, help, value of the loops' counters
_GLOBAL: tuple[tuple[str, str, str, Callable[[Mapping[str, Any]], int]], ...] = (
    ("messages_received_total", "Total number of messages received from publishers", _PROTOCOL, lambda c: sum(c["sizes"])),
    (
        "messages_received_confirm_total",
        "Total number of messages received from publishers expecting confirmations",
        _PROTOCOL,
        lambda c: c["received_confirm"],
    ),
    ("messages_confirmed_total", "Total number of messages confirmed to publishers", _PROTOCOL, lambda c: c["confirmed"]),
    ("messages_routed_total", "Total number of messages routed to queues or streams", _PROTOCOL, lambda c: c["routed"]),
    (
        "messages_unroutable_dropped_total",
        "Total number of messages published as non-mandatory into an exchange and dropped as unroutable",
        _PROTOCOL,
        lambda c: c["dropped"],
    ),
    (
        "messages_unroutable_returned_total",
        "Total number of messages published as mandatory into an exchange and returned to the publisher as unroutable",
        _PROTOCOL,
        lambda c: c["returned"],
    ),
    (
        "messages_delivered_total",
        "Total number of messages delivered to consumers",
        _QUEUES,
        lambda c: c["consumed_auto"] + c["consumed_manual"] + c["got_auto"] + c["got_manual"],
    ),
    (
        "messages_delivered_consume_auto_ack_total",
        "Total number of messages delivered to consumers using basic.consume with automatic acknowledgment",
        _QUEUES,
        lambda c: c["consumed_auto"],
    ),
    (
        "messages_delivered_consume_manual_ack_total",
        "Total number of messages delivered to consumers using basic.consume with manual acknowledgment",
        _QUEUES,
        lambda c: c["consumed_manual"],
    ),
    (
        "messages_delivered_get_auto_ack_total",
        "Total number of messages delivered to consumers using basic.get with automatic acknowledgment",
        _QUEUES,
        lambda c: c["got_auto"],
    ),
    (
        "messages_delivered_get_manual_ack_total",
        "Total number of messages delivered to consumers using basic.get with manual acknowledgment",
        _QUEUES,
        lambda c: c["got_manual"],
    ),
    ("messages_get_empty_total", "Total number of times basic.get operations fetched no message", _QUEUES, lambda c: c["get_empty"]),
    ("messages_redelivered_total", "Total number of messages redelivered to consumers", _QUEUES, lambda c: c["redelivered"]),
    ("messages_acknowledged_total", "Total number of messages acknowledged by consumers", _QUEUES, lambda c: c["acknowledged"]),
)

# group, name, kind, help, value of a queue's core
_OF_QUEUES: tuple[tuple[str, str, str, str, Callable[[Any], int]], ...] = (
    ("queue_coarse_metrics", "queue_messages_ready", "gauge", "Messages ready to be delivered to consumers", lambda q: q.ready_count()),
    (
        "queue_coarse_metrics",
        "queue_messages_unacked",
        "gauge",
        "Messages delivered to consumers but not yet acknowledged",
        lambda q: q.unacked_count(),
    ),
    (
        "queue_coarse_metrics",
        "queue_messages",
        "gauge",
        "Sum of ready and unacknowledged messages - total queue depth",
        lambda q: q.ready_count() + q.unacked_count(),
    ),
    ("queue_consumer_count", "queue_consumers", "gauge", "Consumers on a queue", lambda q: q.consumer_count()),
    (
        "queue_metrics",
        "queue_messages_bytes",
        "gauge",
        "Size in bytes of ready and unacknowledged messages",
        lambda q: q.ready_bytes() + q.unacked_bytes(),
    ),
    ("queue_metrics", "queue_messages_ready_bytes", "gauge", "Size in bytes of ready messages", lambda q: q.ready_bytes()),
    ("queue_metrics", "queue_messages_unacked_bytes", "gauge", "Size in bytes of all unacknowledged messages", lambda q: q.unacked_bytes()),
    (
        "queue_metrics",
        "queue_messages_ram_bytes",
        "gauge",
        "Size of ready and unacknowledged messages stored in memory",
        lambda q: q.resident_bytes,
    ),
    ("queue_metrics", "queue_messages_paged_out", "gauge", "Messages paged out to disk", lambda q: q.cold_count),
    (
        "queue_delivery_metrics",
        "queue_messages_published_total",
        "counter",
        "Total number of messages published to queues",
        lambda q: q.enqueued_total(),
    ),
    (
        "queue_delivery_metrics",
        "queue_messages_delivered_total",
        "counter",
        "Total number of messages delivered to consumers",
        lambda q: q.delivered_total(),
    ),
)

# counters of queues -> what broker.counters.totals_of calls them: their sums include queues that are gone
_OF_GONE = {"queue_messages_published_total": "enqueued", "queue_messages_delivered_total": "delivered"}

# name, help, value of (consumers, (unacked, unconfirmed, publishes, settles), prefetch, totals)
_OF_CHANNELS: tuple[tuple[str, str, Callable[[tuple[int, tuple[int, int, int, int], int, tuple[int, ...]]], int]], ...] = (
    ("channel_consumers", "Consumers on a channel", lambda c: c[0]),
    ("channel_messages_unacked", "Delivered but not yet acknowledged messages", lambda c: c[1][0]),
    ("channel_messages_unconfirmed", "Published but not yet confirmed messages", lambda c: c[1][1]),
    ("channel_messages_uncommitted", "Messages received in a transaction but not yet committed", lambda c: c[1][2]),
    ("channel_acks_uncommitted", "Message acknowledgements in a transaction not yet committed", lambda c: c[1][3]),
    ("consumer_prefetch", "Limit of unacknowledged messages for each consumer", lambda c: c[2]),
    ("channel_prefetch", "Total limit of unacknowledged messages for all consumers on a channel", lambda c: c[2] * c[0]),
)

# What `family` may name: those that are here, and those that RabbitMQ has and this broker has nothing of.
_HERE = frozenset(
    {
        "connection_churn_metrics",
        "node_coarse_metrics",
        "node_metrics",
        "queue_coarse_metrics",
        "queue_consumer_count",
        "queue_metrics",
        "queue_delivery_metrics",
        "channel_metrics",
        "connection_metrics",
        "connection_coarse_metrics",
        "channel_exchange_metrics",
        "channel_queue_metrics",
        "auth_attempt_metrics",
        "vhost_status",
        "exchange_names",
        "exchange_bindings",
    }
)
_ELSEWHERE = frozenset(
    {
        "auth_attempt_detailed_metrics",
        "channel_process_metrics",
        "channel_queue_exchange_metrics",
        "exchange_metrics",
        "node_persister_metrics",
        "queue_exchange_metrics",
        "ra_metrics",
        "stream_consumer_metrics",
    }
)


def counters(parts: Parts) -> dict[str, Any]:
    """The sum of what all loops counted, and what the broker counts itself."""
    sums: dict[str, Any] = {}
    for loop in parts.broker.loops:
        for name, value in loop.counters().items():
            known = sums.get(name)
            if known is None:
                sums[name] = value
            else:
                sums[name] = [one + other for one, other in zip(known, value, strict=True)] if name == "sizes" else known + value
    return sums | {"get_empty": parts.broker.counters.gets_empty}


def _by_state(links: Iterable[Mapping[str, Any]], field: str) -> list[str]:
    """A line for each state of shovels, or of links of federation. O(those)."""
    states = Counter(str(one[field]) for one in links)
    return [f'{{status="{state}"}} {count}\n' for state, count in sorted(states.items())] or ['{status="running"} 0\n']


def _one(name: str, kind: str, text: str, value: float, labels: str = "") -> Family:
    return name, kind, text, [f"{labels} {value}\n"]


class Metrics:
    """What the three endpoints answer. For one event loop."""

    def __init__(self, parts: Parts, node_name: str, sampler: Sampler) -> None:
        self._parts = parts
        self._sampler = sampler
        self._node = node_name
        self._turn = asyncio.Lock()

    async def aggregated(self) -> AsyncIterator[bytes]:
        """`/metrics`: everything without labels of objects; our own families go before."""
        async with self._turn:
            # sums over all queues: in a thread, so that held polls are answered meanwhile
            own = await asyncio.to_thread(figures.own_families, self._parts)
            families = [*self._identity("aggregated"), *await self._node_families(), *self._global()]
            families += await self._queue_families(None, None, labelled=False)
            families += await self._channel_families(None, None, labelled=False)
            families += traffic.of_node(counters(self._parts), self._parts.broker.counters)
        for prefix, some in (("flintmq_", own), ("rabbitmq_", families)):
            for piece in _text(prefix, some):
                yield piece

    async def per_object(self) -> AsyncIterator[bytes]:
        """`/metrics/per-object`: with a line for each queue, channel and connection."""
        async with self._turn:
            families = [*self._identity("per-object"), *await self._node_families(), *self._global()]
            families += await self._queue_families(None, None, labelled=True)
            families += await self._channel_families(None, None, labelled=True)
            families.append(await self._connection_channels(None))
            families += await traffic.of_connections(None, self._handlers(None))
            families += traffic.of_logins(self._parts.broker.counters)
        for piece in _text("rabbitmq_", families):
            yield piece

    async def detailed(self, families: Sequence[str], vhosts: Sequence[str]) -> AsyncIterator[bytes]:
        """`/metrics/detailed`: the groups of the query alone, of the virtual hosts of the query (none: all)."""
        chosen, seen = frozenset(families), frozenset(vhosts) or None
        async with self._turn:
            chosen_families = [one for group, one in await self._grouped_node_families() if group in chosen]
            if "queue_metrics" in chosen:
                chosen |= {"queue_consumer_count"}  # a subset of it
            chosen_families += await self._queue_families(chosen, seen, labelled=True)
            if chosen & {"channel_metrics", "channel_exchange_metrics", "channel_queue_metrics"}:
                chosen_families += await self._channel_families(chosen, seen, labelled=True)
            if "connection_metrics" in chosen:
                chosen_families.append(await self._connection_channels(seen))
            chosen_families += await traffic.of_connections(chosen, self._handlers(seen))
            if "auth_attempt_metrics" in chosen:
                chosen_families += traffic.of_logins(self._parts.broker.counters)
            cluster = await self._definitions(chosen, seen)
        for prefix, some in (
            ("rabbitmq_", self._identity("detailed")),
            ("rabbitmq_detailed_", chosen_families),
            ("rabbitmq_cluster_", cluster),
        ):
            for piece in _text(prefix, some):
                yield piece

    # --- the node -------------------------------------------------------------------------------------------------------

    def _identity(self, endpoint: str) -> list[Family]:
        cluster = self._parts.broker.cluster_name
        labels = {
            "rabbitmq_node": self._node,
            "rabbitmq_cluster": cluster,
            "rabbitmq_cluster_permanent_id": cluster,
            "rabbitmq_endpoint": endpoint,
        }
        build = {
            "rabbitmq_version": COMPATIBLE,
            "product_name": "FlintMQ",
            "product_version": __version__,
            "erlang_version": f"Python {platform.python_version()}",
            "prometheus_plugin_version": __version__,
            "prometheus_client_version": "0",
        }
        return [
            _one("identity_info", "gauge", "RabbitMQ node & cluster identity info", 1, label_text(labels)),
            _one("build_info", "gauge", "RabbitMQ & Erlang/OTP version info", 1, label_text(build)),
        ]

    async def _node_families(self) -> list[Family]:
        families = [family for _, family in await self._grouped_node_families()]
        values = {name: lines for name, _, _, lines in families}
        opened, most = (int(values[name][0]) for name in ("process_open_fds", "process_max_fds"))
        return families + self._alarms(opened + DESCRIPTORS_KEPT >= most) + self._totals()

    async def _grouped_node_families(self) -> list[tuple[str, Family]]:
        broker = self._parts.broker
        churn = (
            ("connections_opened_total", "Total number of connections opened", broker.counters.connections_opened),
            ("connections_closed_total", "Total number of connections closed or terminated", broker.counters.connections_closed),
            ("channels_opened_total", "Total number of channels opened", broker.counters.channels_opened),
            ("channels_closed_total", "Total number of channels closed", broker.counters.channels_closed),
            ("queues_declared_total", "Total number of queues declared", broker.counters.queues_declared),
            ("queues_created_total", "Total number of queues created", broker.counters.queues_created),
            ("queues_deleted_total", "Total number of queues deleted", broker.counters.queues_deleted),
        )
        families = [("connection_churn_metrics", _one(name, "counter", text, value)) for name, text, value in churn]
        facts = await asyncio.to_thread(_of_process, self._parts)  # asks the operating system
        return families + [(group, _one(name, "gauge", text, value)) for group, name, text, value in facts]

    def _alarms(self, few: bool) -> list[Family]:
        """Args: few: descriptors are free."""
        memory, disk = alarms_of(self._parts)
        help_text = "is 1 if an alarm is in effect"
        return [
            _one("alarms_file_descriptor_limit", "gauge", f"{help_text}: few descriptors are free", int(few)),
            _one("alarms_memory_used_watermark", "gauge", f"{help_text}: memory", int(memory)),
            _one("alarms_free_disk_space_watermark", "gauge", f"{help_text}: disk", int(disk)),
        ]

    def _totals(self) -> list[Family]:
        broker = self._parts.broker
        with broker.lock:
            consumers = sum(len(known) for known in broker.consumers.values())
        handlers = list(broker.connections.values())
        return [
            _one("connections", "gauge", "Connections currently open", len(handlers)),
            _one("channels", "gauge", "Channels currently open", sum(len(handler.channels) for handler in handlers)),
            _one("consumers", "gauge", "Consumers currently connected", consumers),
            _one("queues", "gauge", "Queues available", queue_count(broker)),
            ("federation_links", "gauge", "Federation links, by their status", _by_state(federation_of(self._parts), "status")),
            ("shovel_dynamic", "gauge", "Shovels, by their status", _by_state(shovels_of(self._parts), "state")),
            _one("global_consumers", "gauge", "Consumers currently connected", consumers, _PROTOCOL),
        ]

    def _global(self) -> list[Family]:
        counts = counters(self._parts)
        families = [_one(f"global_{name}", "counter", text, value(counts), labels) for name, text, labels, value in _GLOBAL]
        families.append(_one("global_publishers", "gauge", "Publishers currently connected", counts["publishers"], _PROTOCOL))
        lines, below = [], 0
        for bound, count in zip(_BOUNDS, counts["sizes"], strict=True):
            below += count
            lines.append(f'_bucket{{protocol="amqp091",le="{bound}"}} {below}\n')
        lines += [f"_count{_PROTOCOL} {below}\n", f"_sum{_PROTOCOL} {counts['size_sum']}\n"]
        families.append(("message_size_bytes", "histogram", "Size of messages received from publishers", lines))
        counted = self._parts.broker.counters
        letters, drops, homeless = dict(counted.dead_lettered), dict(counted.drops), dict(counted.homeless)
        for reason in ("expired", "rejected", "maxlen", "delivery_limit"):
            labels = 'queue_type="rabbit_classic_queue",dead_letter_strategy='
            text = "Total number of messages dead-lettered (strategy disabled: dropped, for want of a dead-letter exchange)"
            lines = [
                f'{{{labels}"at_most_once"}} {letters.get(reason, 0)}\n',
                f'{{{labels}"disabled"}} {drops.get(reason, 0) + homeless.get(reason, 0)}\n',
            ]
            families.append((f"global_messages_dead_lettered_{reason}_total", "counter", text, lines))
        return families

    # --- objects --------------------------------------------------------------------------------------------------------

    async def _queue_families(self, groups: frozenset[str] | None, vhosts: frozenset[str] | None, *, labelled: bool) -> list[Family]:
        """Of all queues, or their sums. groups, vhosts: None: all."""
        metrics = [one for one in _OF_QUEUES if groups is None or one[0] in groups]
        if not metrics:
            return []
        values = [one[4] for one in metrics]
        columns: list[list[str]] = [[] for _ in metrics]
        queues, gone = self._parts.broker.counters.with_gone(self._parts.broker.queues)
        sums = [sum(counts[_OF_GONE.get(one[1], "")] for counts in gone.values()) for one in metrics]
        for start in range(0, len(queues), PIECE):
            for queue in queues[start : start + PIECE]:
                if is_hidden(queue) or (vhosts is not None and queue.vhost not in vhosts):
                    continue
                core = queue.core
                if not labelled:
                    for index, value in enumerate(values):
                        sums[index] += value(core)
                    continue
                labels = label_text({"vhost": shown_name(queue.vhost), "queue": shown_name(queue.name)})
                for column, value in zip(columns, values, strict=True):
                    column.append(f"{labels} {value(core)}\n")
            await asyncio.sleep(0)
        if not labelled:
            columns = [[f" {count}\n"] for count in sums]
        families = [(one[1], one[2], one[3], column) for one, column in zip(metrics, columns, strict=True)]
        if labelled and (groups is None or "queue_metrics" in groups):
            families += await self._capacities(vhosts)
        return families

    async def _capacities(self, vhosts: frozenset[str] | None) -> list[Family]:
        """Of queues with samples: the part of these that found no message waiting for a consumer; and the time of the first message."""
        lines: list[str] = []
        heads: list[str] = []
        sampled = list(self._sampler.queues.items())
        for start in range(0, len(sampled), SERIES_PIECE):
            for queue_id, series in sampled[start : start + SERIES_PIECE]:
                queue = self._parts.broker.queues.get(queue_id)
                if queue is not None and (vhosts is None or queue.vhost in vhosts):
                    labels = label_text({"vhost": shown_name(queue.vhost), "queue": shown_name(queue.name)})
                    lines.append(f"{labels} {series.capacity()}\n")
                    head_s = head_timestamp(queue.core)
                    if head_s is not None:
                        heads.append(f"{labels} {head_s}\n")
            await asyncio.sleep(0)
        text = "Part of the samples of the last minute in which its consumers had taken all there was; 0: it has none"
        capacities = [(f"queue_consumer_{name}", "gauge", text, lines) for name in ("capacity", "utilisation")]
        text = "Property timestamp of the first message in the queue, if it has one and is in memory"
        return [*capacities, ("queue_head_message_timestamp", "gauge", text, heads)]

    async def _channel_families(self, groups: frozenset[str] | None, vhosts: frozenset[str] | None, *, labelled: bool) -> list[Family]:
        items = [(handler, number) for handler in self._handlers(vhosts) for number in sorted(handler.channels)]
        rows = await on_loops(items, _channel_row)
        gauges = _OF_CHANNELS if groups is None or "channel_metrics" in groups else ()
        if not labelled:
            return [(name, "gauge", text, [f" {sum(value(row) for row in rows)}\n"]) for name, text, value in gauges]
        names = [f"{handler.name} ({number})" for handler, number in items]
        labels = [label_text({"channel": name}) for name in names]
        return [
            (name, "gauge", text, [f"{label} {value(row)}\n" for label, row in zip(labels, rows, strict=True)])
            for name, text, value in gauges
        ] + traffic.of_channels(groups, labels, [row[3] for row in rows])

    async def _connection_channels(self, vhosts: frozenset[str] | None) -> Family:
        lines = [f"{label_text({'connection': one.name})} {len(one.channels)}\n" for one in self._handlers(vhosts)]
        return "connection_channels", "gauge", "Channels on a connection", lines

    def _handlers(self, vhosts: frozenset[str] | None) -> list[Any]:
        handlers = list(self._parts.broker.connections.values())
        return [one for one in handlers if vhosts is None or (one.vhost is not None and one.vhost.name in vhosts)]

    async def _definitions(self, groups: frozenset[str], vhosts: frozenset[str] | None) -> list[Family]:
        """Of virtual hosts and exchanges; they are the cluster's in RabbitMQ, not a node's."""
        chosen = [one for one in list(self._parts.broker.vhosts.values()) if vhosts is None or one.name in vhosts]
        families: list[Family] = []
        if "vhost_status" in groups:
            lines = [f"{label_text({'vhost': one.name})} 1\n" for one in chosen]
            families.append(("vhost_status", "gauge", "Whether a given vhost is running", lines))
        names: list[str] = []
        bindings: list[str] = []
        for vhost in chosen if groups & {"exchange_names", "exchange_bindings"} else ():
            exchanges = list(vhost.exchanges.values())
            for start in range(0, len(exchanges), PIECE):
                for exchange in exchanges[start : start + PIECE]:
                    labels = label_text({"vhost": vhost.name, "exchange": shown_name(exchange.name), "type": exchange.kind})
                    names.append(f"{labels} 1\n")
                    bindings.append(f"{labels} {len(exchange.bindings)}\n")
                await asyncio.sleep(0)
        if "exchange_names" in groups:
            families.append(("exchange_name", "gauge", "Enumerates exchanges without any additional info", names))
        if "exchange_bindings" in groups:
            families.append(("exchange_bindings", "gauge", "Number of bindings for an exchange", bindings))
        return families


class Counted(StreamingResponse):
    """Args: turn: of the answer, given back when it has left or its client has; content."""

    def __init__(self, turn: Holding, content: AsyncIterator[bytes]) -> None:
        super().__init__(content, 200, None, PROMETHEUS)
        self._turn = turn

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._turn:
            await super().__call__(scope, receive, send)


def scrape(call: Call, text: AsyncIterator[bytes]) -> Response:
    """An answer that counts until its last byte is on its way: a whole one is held in memory. Raises: HttpError 503."""
    return Counted(take(call.pools.scrapes, call.who, "answers of metrics"), text)


async def aggregated(call: Call) -> Response:
    """GET /metrics"""
    return scrape(call, call.app.metrics.aggregated())


async def per_object(call: Call) -> Response:
    """GET /metrics/per-object"""
    return scrape(call, call.app.metrics.per_object())


async def detailed(call: Call) -> Response:
    """GET /metrics/detailed?family=...&vhost=..."""
    families, vhosts = call.request.query_params.getlist("family"), call.request.query_params.getlist("vhost")
    check_families(families)
    return scrape(call, call.app.metrics.detailed(families, vhosts))


def _channel_row(item: tuple[Any, int]) -> tuple[int, tuple[int, int, int, int], int, tuple[int, ...]]:
    """On the loop of the channel's connection; zeros for one that ended meanwhile."""
    handler, number = item
    state = handler.channels.get(number)
    if state is None or handler.ended:
        return 0, (0, 0, 0, 0), 0, (0,) * traffic.TOTALS
    link = handler.connection
    return len(state.consumers), link.figures(number), link.prefetch(number), link.totals(number)


def _of_process(parts: Parts) -> list[tuple[str, str, str, float]]:
    """(group, name, help, value)."""
    limits = parts.broker.limits
    opened, most = descriptors()
    facts: list[tuple[str, str, str, float]] = [
        ("node_coarse_metrics", "process_open_fds", "Open file descriptors", opened),
        ("node_coarse_metrics", "process_open_tcp_sockets", "Open TCP sockets", len(parts.broker.connections) + parts.connections()),
        (
            "node_coarse_metrics",
            "process_resident_memory_bytes",
            "Memory in bytes that counts for the limit: what clients make the broker hold",
            bytes_held(),
        ),
        ("node_metrics", "process_max_fds", "Open file descriptors limit", most),
        ("node_metrics", "process_max_tcp_sockets", "Open TCP sockets limit", limits.connections_max),
        ("node_metrics", "resident_memory_limit_bytes", "Memory high watermark in bytes", parts.memory_limit),
        ("node_metrics", "erlang_uptime_seconds", "Node uptime", round(time.monotonic() - parts.started_s, 3)),
    ]
    free = disk_free(parts)
    if free is not None:
        facts.append(("node_coarse_metrics", "disk_space_available_bytes", "Disk space available in bytes", free))
        low = "Free disk space low watermark in bytes"
        facts.append(("node_metrics", "disk_space_available_limit_bytes", low, parts.disk_reserve))
    return facts


def check_families(names: Iterable[str]) -> None:
    """Raises: HttpError 400 for a family that neither this broker nor RabbitMQ has."""
    for name in names:
        if name not in _HERE and name not in _ELSEWHERE:
            raise bad(f"there is no family '{name[:80]}'", f"the families are: {', '.join(sorted(_HERE))}")


def _text(prefix: str, families: Iterable[Family]) -> Iterator[bytes]:
    """Pieces of LINES lines, some 50 KiB."""
    for name, kind, text, lines in families:
        head = f"# HELP {prefix}{name} {text}\n# TYPE {prefix}{name} {kind}\n"
        for start in range(0, max(len(lines), 1), LINES):
            piece = "".join(f"{prefix}{name}{line}" for line in lines[start : start + LINES])
            yield (head + piece).encode("utf-8", "replace")
            head = ""
