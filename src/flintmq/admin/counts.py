"""Counts of RabbitMQ's API with their rates, and with the samples that a client asks for (`lengths_age`, `msg_rates_age`).

in: counts that exist anyway, rings of samples (admin.samples), the query. out: members of an answer.

R1  Samples are those that the sampler has: each 5 s of a queue, each second of the node, further apart for longer times. A question
    between two of them gets the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import Any

from flintmq.vhost.names import SCHEDULE

# member of an answer -> the sum that it has: of virtual hosts and the node (admin.api_node.Totals)
MESSAGES: Mapping[str, tuple[str, ...]] = {
    "messages": ("ready", "unacked"),
    "messages_ready": ("ready",),
    "messages_unacknowledged": ("unacked",),
}
STATS: Mapping[str, tuple[str, ...]] = {"publish": ("enqueued",), "deliver_get": ("delivered",)}
# of the node alone: counters of the I/O loops (core/counters.pxd)
LOOP_STATS: Mapping[str, str] = {
    "ack": "acknowledged",
    "confirm": "confirmed",
    "deliver": "consumed_manual",
    "deliver_no_ack": "consumed_auto",
    "drop_unroutable": "dropped",
    "get": "got_manual",
    "get_no_ack": "got_auto",
    "redeliver": "redelivered",
    "return_unroutable": "returned",
}
# figures of a queue's core (QueueHandle.flows) by the names of message_stats
FLOWS = ("deliver", "deliver_no_ack", "get", "get_no_ack", "redeliver", "ack")
CHURN = {
    "connection_created": "connections_opened",
    "connection_closed": "connections_closed",
    "channel_created": "channels_opened",
    "channel_closed": "channels_closed",
    "queue_declared": "queues_declared",
    "queue_created": "queues_created",
    "queue_deleted": "queues_deleted",
}
# the same in columns of admin.samples
_LENGTHS = {
    "messages": ("messages_ready", "messages_unacked"),
    "messages_ready": ("messages_ready",),
    "messages_unacknowledged": ("messages_unacked",),
}
# bytes of a content header's payload before its properties, of which the last two are flags; the flag of the timestamp, and properties
# before it: short text, table, octet (specification 1.8 and 4.2.6.1)
_PROPERTIES, _TIMESTAMP, _BEFORE_TIMESTAMP = 14, 1 << 6, "sstoossss"
# samples of one answer
_SAMPLES_MAX = 1_000


def is_hidden(queue: Any) -> bool:
    """Whether no list shows a queue: it is the broker's own, and no total counts it."""
    return bool(queue.name == SCHEDULE)


def queue_count(broker: Any) -> int:
    """Queues that lists show. O(virtual hosts)."""
    return len(broker.queues) - sum(vhost.schedule is not None for vhost in list(broker.vhosts.values()))


def scheduled_count(broker: Any) -> int:
    """Messages that wait for their time in all virtual hosts. O(virtual hosts)."""
    schedules = [vhost.schedule for vhost in list(broker.vhosts.values())]
    return sum(queue.core.ready_count() for queue in schedules if queue is not None)


def head_timestamp(core: Any) -> int | None:
    """The property timestamp of a queue's first message, seconds since 1970; None: it has none, or is on disk only. O(1)."""
    header = core.head_header()
    if header is None or len(header) < _PROPERTIES or not header[_PROPERTIES - 1] & _TIMESTAMP:
        return None
    flags, offset = int.from_bytes(header[_PROPERTIES - 2 : _PROPERTIES]), _PROPERTIES
    for bit, kind in enumerate(_BEFORE_TIMESTAMP):
        if flags >> (15 - bit) & 1:
            offset += 1 if kind == "o" else 1 + header[offset] if kind == "s" else 4 + int.from_bytes(header[offset : offset + 4])
            if offset >= len(header):
                return None
    return int.from_bytes(header[offset : offset + 8])


def queue_stats(core: Any) -> dict[str, int]:
    """message_stats of a queue, without rates. O(its consumers)."""
    flows = core.flows()
    return {"publish": core.enqueued_total(), "deliver_get": core.delivered_total(), **{name: flows[name] for name in FLOWS}}


def counted(rates: Any, scope: Any, counts: Mapping[str, int]) -> dict[str, Any]:
    """Members with a count each, and their rates: null until two looks at the counts are known. Args: rates: admin.api_node.Rates; scope:
    whose counts they are, and which: a tuple that no name of a client can be."""
    figures: dict[str, Any] = {}
    known = rates.of(scope, tuple(counts.values())) or repeat(None)
    for (name, count), rate in zip(counts.items(), known, strict=False):
        figures[name] = count
        figures[f"{name}_details"] = {"rate": rate}
    return figures


def sums_of(names: Mapping[str, tuple[str, ...]], sums: Mapping[str, int]) -> dict[str, int]:
    return {name: sum(sums[one] for one in of) for name, of in names.items()}


def add_samples(query: Mapping[str, str], series: Any, lengths: dict[str, Any], stats: dict[str, Any]) -> None:
    """Puts what the query asks for into the `_details` of lengths and of message_stats. Args: series: admin.samples.Series; None: there
    are no samples."""
    for kind, columns, figures in (("lengths", _LENGTHS, lengths), ("msg_rates", STATS, stats)):
        age, every = _seconds(query, f"{kind}_age"), _seconds(query, f"{kind}_incr")
        if series is None or not age or not every:
            continue
        known = series.of(age)
        step = max(1, every // known["every_s"])
        most = min(_SAMPLES_MAX, age // max(every, known["every_s"]) + 1)
        for name, of in columns.items():
            rows = [known["samples"][column] for column in of]
            values = [sum(row) for row in zip(*rows, strict=True)][::-1][::step][:most]
            figures.setdefault(f"{name}_details", {}).update(_details(values, known["end_s"], step * known["every_s"]))


def _details(values: list[int], end_s: int, step_s: int) -> dict[str, Any]:
    """As RabbitMQ has them, the newest first."""
    if not values:
        return {"samples": []}
    samples = [{"sample": value, "timestamp": (end_s - index * step_s) * 1000} for index, value in enumerate(values)]
    seconds = (len(values) - 1) * step_s
    return {
        "samples": samples,
        "avg": round(sum(values) / len(values), 2),
        "avg_rate": round((values[0] - values[-1]) / seconds, 2) if seconds else 0.0,
    }


def _seconds(query: Mapping[str, str], name: str) -> int:
    """A number of seconds; what is none asks for nothing, as on RabbitMQ."""
    text = query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 0
