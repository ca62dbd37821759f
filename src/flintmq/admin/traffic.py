"""Metrics of RabbitMQ about channels, connections and logins that only grow: messages, bytes, attempts.

in: counters of the I/O loops, of sockets and of channels. out: families, which admin.metrics writes.

T1  Sums come from the loops, which keep what closed channels and connections counted: no sum falls. Lines of one channel or connection
    come from it, and end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flintmq.admin.figures import Family, label_text
from flintmq.broker.counters import AMQP, HTTP

# connections that are looked at in one piece
PIECE = 200

# group of /metrics/detailed, name, help, what of the loops' counters
CHANNELS: tuple[tuple[str, str, str, Callable[[Mapping[str, Any]], int]], ...] = (
    ("channel_exchange_metrics", "channel_messages_published_total", "Messages published on channels", lambda c: sum(c["sizes"])),
    ("channel_exchange_metrics", "channel_messages_confirmed_total", "Messages confirmed to publishers", lambda c: c["confirmed"]),
    (
        "channel_exchange_metrics",
        "channel_messages_unroutable_returned_total",
        "Messages published as mandatory and returned to the publisher as unroutable",
        lambda c: c["returned"],
    ),
    (
        "channel_exchange_metrics",
        "channel_messages_unroutable_dropped_total",
        "Messages published as non-mandatory and dropped as unroutable",
        lambda c: c["dropped"],
    ),
    ("channel_queue_metrics", "channel_get_total", "Messages fetched with basic.get without acknowledgement", lambda c: c["got_auto"]),
    ("channel_queue_metrics", "channel_get_ack_total", "Messages fetched with basic.get, to be acknowledged", lambda c: c["got_manual"]),
    ("channel_queue_metrics", "channel_get_empty_total", "basic.get operations that fetched no message", lambda c: c["get_empty"]),
    (
        "channel_queue_metrics",
        "channel_messages_delivered_total",
        "Messages delivered to consumers without acknowledgement",
        lambda c: c["consumed_auto"],
    ),
    (
        "channel_queue_metrics",
        "channel_messages_delivered_ack_total",
        "Messages delivered to consumers, to be acknowledged",
        lambda c: c["consumed_manual"],
    ),
    ("channel_queue_metrics", "channel_messages_redelivered_total", "Messages redelivered to consumers", lambda c: c["redelivered"]),
    ("channel_queue_metrics", "channel_messages_acked_total", "Messages acknowledged by consumers", lambda c: c["acknowledged"]),
)
# the same of one channel: group, name, index of Connection.totals
_OF_CHANNEL = (
    ("channel_exchange_metrics", "channel_messages_published_total", 0),
    ("channel_exchange_metrics", "channel_messages_confirmed_total", 1),
    ("channel_exchange_metrics", "channel_messages_unroutable_returned_total", 5),
    ("channel_exchange_metrics", "channel_messages_unroutable_dropped_total", 6),
    ("channel_queue_metrics", "channel_messages_redelivered_total", 3),
    ("channel_queue_metrics", "channel_messages_acked_total", 4),
)
TOTALS = 7
# group, name, help, name of the loops' counter, index of SocketPort.traffic
_OF_CONNECTION = (
    ("connection_coarse_metrics", "connection_incoming_bytes_total", "Bytes received on connections", "received_bytes", 0),
    ("connection_coarse_metrics", "connection_outgoing_bytes_total", "Bytes sent on connections", "sent_bytes", 2),
    ("connection_metrics", "connection_incoming_packets_total", "Packets received on connections", "received_packets", 1),
    ("connection_metrics", "connection_outgoing_packets_total", "Packets sent on connections", "sent_packets", 3),
)
_HELP = {name: text for _, name, text, _ in CHANNELS}
_LOGINS = (
    ("auth_attempts_total", "Logins that were tried", (True, False)),
    ("auth_attempts_succeeded_total", "Logins that succeeded", (True,)),
    ("auth_attempts_failed_total", "Logins that failed", (False,)),
)


def of_node(loops: Mapping[str, Any], counters: Any) -> list[Family]:
    """Sums. Args: loops: sum of the counters of the I/O loops; counters: broker.counters.Counters."""
    families = [(name, "counter", text, [f" {value(loops)}\n"]) for _, name, text, value in CHANNELS]
    families += [(name, "counter", text, [f" {loops[of]}\n"]) for _, name, text, of, _ in _OF_CONNECTION]
    return families + of_logins(counters)


def of_logins(counters: Any) -> list[Family]:
    """Attempts to log in, by protocol."""
    logins = dict(counters.logins)
    protocols = sorted({protocol for protocol, _ in logins} | {AMQP, HTTP})
    return [
        (
            name,
            "counter",
            text,
            [f'{{protocol="{protocol}"}} {sum(logins.get((protocol, one), 0) for one in outcomes)}\n' for protocol in protocols],
        )
        for name, text, outcomes in _LOGINS
    ]


def of_channels(groups: frozenset[str] | None, labels: Sequence[str], totals: Sequence[Sequence[int]]) -> list[Family]:
    """A line for each channel. Args: groups: None: all; labels, totals: Connection.totals, of each. O(channels)."""
    return [
        (name, "counter", _HELP[name], [f"{label} {row[index]}\n" for label, row in zip(labels, totals, strict=True)])
        for group, name, index in _OF_CHANNEL
        if groups is None or group in groups
    ]


async def of_connections(groups: frozenset[str] | None, handlers: Sequence[Any]) -> list[Family]:
    """A line for each connection, in pieces. Args: groups: None: all. O(connections)."""
    chosen = [one for one in _OF_CONNECTION if groups is None or one[0] in groups]
    lines: dict[str, list[str]] = {name: [] for _, name, *_ in chosen}
    for start in range(0, len(handlers) if chosen else 0, PIECE):
        for one in handlers[start : start + PIECE]:
            if one.socket is not None:
                label, row = label_text({"connection": one.name}), one.socket.traffic()
                for _, name, _, _, index in chosen:
                    lines[name].append(f"{label} {row[index]}\n")
        await asyncio.sleep(0)
    return [(name, "counter", text, lines[name]) for _, name, text, _, _ in chosen]
