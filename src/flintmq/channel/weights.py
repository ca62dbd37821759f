"""Memory of a connection beside its buffers and channels, which are counted where they grow.

The constants are rounded up from what 300 connections with 20 channels and 50 consumers each took of the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flintmq.routing.binding import field_bytes

# bytes of a connection: its socket, its handler, their tables
CONNECTION_BYTES = 4_096
# of its TLS: state, keys and buffers of OpenSSL
TLS_BYTES = 24_576
# of a channel beside channel_t: its place in tables
CHANNEL_BYTES = 256
# of a consumer: its records in session and queue, its objects
CONSUMER_BYTES = 1_280


def consumer_bytes(tag: str, arguments: Mapping[str, Any]) -> int:
    """Bytes of one basic.consume. O(fields)."""
    return CONSUMER_BYTES + 2 * len(tag) + (2 * field_bytes(arguments) if arguments else 0)
