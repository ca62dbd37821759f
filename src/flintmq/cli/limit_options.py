"""Options of `flintmq serve` for limits of `flintmq.config`: those that an operator may have to change, with RabbitMQ's names for them.

in: a table. out: options of click; the limits that were given; rows of docs/CONFIGURATION.md (tools/reference.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from flintmq.cli.param_type import ParamType
from flintmq.config import KIB, MIB, Limits
from flintmq.config.units import size_of


class Size(ParamType[int]):
    """Bytes, with or without a unit (config.units). Args: low, high: bytes."""

    name = "size"

    def __init__(self, low: int = 0, high: int | None = None) -> None:
        self.low, self.high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            size = value if isinstance(value, int) else size_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if size < self.low or (self.high is not None and size > self.high):
            most = "" if self.high is None else f" and {self.high}"
            self.fail(f"{value} is not between {self.low}{most} bytes" if most else f"{value} is below {self.low} bytes", param, ctx)
        return size


class LimitOption(NamedTuple):
    """Args: name: of the option without dashes in front; field: of Limits; kind: its type; unit; text: for people; rabbitmq: the key of
    rabbitmq.conf, "" for none."""

    name: str
    field: str
    kind: click.ParamType[Any]
    unit: str
    text: str
    rabbitmq: str = ""


def _count(low: int, high: int) -> click.IntRange:
    return click.IntRange(low, high)


_MS = _count(100, 3_600_000)
LIMIT_OPTIONS = (
    LimitOption(
        "heartbeat", "heartbeat_s", _count(0, 65_535), "seconds", "Proposed to clients, which may take less; 0: none.", "heartbeat"
    ),
    # tables and spans are sized for frames of the default: larger ones are not offered
    LimitOption("frame-max", "frame_size_max", Size(8 * KIB, 128 * KIB), "bytes", "Of a frame; clients may take less.", "frame_max"),
    LimitOption("channel-max", "channels_max", _count(1, 65_535), "channels", "Open at once on a connection.", "channel_max"),
    LimitOption(
        "connection-max", "connections_max", _count(1, 1_000_000), "connections", "Of AMQP, if descriptors suffice.", "connection_max"
    ),
    LimitOption(
        "handshakes-max",
        "unauthenticated_connections_max",
        _count(1, 100_000),
        "connections",
        "That have not logged in yet; above it the oldest of the address with most of them is cut off.",
    ),
    LimitOption(
        "user-connections-share",
        "user_connections_share",
        click.FloatRange(0, 1, min_open=True),
        "share",
        "Of the connections, that one of several users may have.",
    ),
    LimitOption(
        "consumer-max-per-channel",
        "channel_consumers_max",
        _count(1, 1_000_000),
        "consumers",
        "Of a channel.",
        "consumer_max_per_channel",
    ),
    LimitOption(
        "consumer-timeout",
        "consumer_timeout_ms",
        _count(0, 2**31 - 1),
        "milliseconds",
        "To settle a delivery, for queues that say nothing themselves; then the message goes back. 0: any time.",
        "consumer_timeout",
    ),
    # messages of the data plane, and between nodes, have the default's size at most
    LimitOption("max-message-size", "message_size_max", Size(1, 128 * MIB), "bytes", "Of a message's body.", "max_message_size"),
    LimitOption("handshake-timeout", "handshake_ms_max", _MS, "milliseconds", "From connecting to connection.open.", "handshake_timeout"),
    LimitOption("tls-handshake-timeout", "tls_handshake_ms_max", _MS, "milliseconds", "For TLS alone.", "ssl_handshake_timeout"),
    LimitOption(
        "login-failures-max",
        "login_user_failures",
        _count(1, 1_000_000),
        "logins",
        "Wrong passwords of a user from one address, of which one is forgiven every 3 s; more are not looked at.",
    ),
    LimitOption(
        "login-source-failures-max",
        "login_source_failures",
        _count(1, 1_000_000),
        "logins",
        "The same of an address, whatever the user; ten a second are forgiven.",
    ),
    LimitOption("vhost-max", "vhosts_max", _count(1, 1_000_000), "virtual hosts", "Of the node.", "vhost_max"),
    LimitOption("queue-max", "queues_max", _count(1, 1_000_000), "queues", "Of a virtual host that has no limit of its own."),
    LimitOption("http-connection-max", "http_connections_max", _count(16, 100_000), "connections", "Of HTTP, if descriptors suffice."),
    LimitOption(
        "http-body-max",
        "http_json_bytes_max",
        Size(1 * KIB, 16 * MIB),
        "bytes",
        "Of a request's JSON; parsing holds the I/O loops for up to 40 ns a byte.",
    ),
    LimitOption(
        "definitions-file-max",
        "http_definitions_bytes_max",
        Size(1 * KIB, 256 * MIB),
        "bytes",
        "Of a definitions file that is imported; parsing holds the I/O loops for 10 ms a MiB.",
        "management.http.max_body_size",
    ),
    LimitOption(
        "checkpoint-bytes",
        "checkpoint_bytes",
        Size(64 * KIB, 64 * 1024 * MIB),
        "bytes",
        "Of the message log between two checkpoints at least; a start after a crash reads about so much.",
    ),
    LimitOption("stop-timeout", "shutdown_ms_max", _MS, "milliseconds", "That a stop may take before sockets are closed."),
)


def default_of(option: LimitOption) -> Any:
    """The limit unless the option is given."""
    return getattr(Limits, option.field)


def limit_options() -> list[click.Option]:
    """The options. Their default is None: a Config without any shares the class's own limits."""
    return [
        click.Option([f"--{one.name}"], type=one.kind, help=f"{one.unit.capitalize()}; default: {default_of(one)}. {one.text}")
        for one in LIMIT_OPTIONS
    ]


def limits_of(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the options that are no limits, limits that were given by their field)."""
    fields = {one.name.replace("-", "_"): one.field for one in LIMIT_OPTIONS}
    limits = {fields[name]: value for name, value in options.items() if name in fields and value is not None}
    return {name: value for name, value in options.items() if name not in fields}, limits
