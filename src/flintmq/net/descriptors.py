"""How many descriptors listeners may give to peers, so that the rest of the process always finds one.

in: RLIMIT_NOFILE as it is at the start, the configured limits. out: sockets that AMQP and HTTP may hold.
"""

from __future__ import annotations

import resource
from typing import NamedTuple

from flintmq.config import Limits


class Shares(NamedTuple):
    """Sockets of peers at most."""

    amqp: int
    http: int


def shares(limits: Limits, descriptors: int | None = None) -> Shares:
    """Divides the descriptors of the process. Args: descriptors: how many it may have; None: the soft limit of RLIMIT_NOFILE."""
    if descriptors is None:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if descriptors == resource.RLIM_INFINITY:
            descriptors = 1 << 30
    # A process with very few descriptors keeps half of them for itself.
    free = max(descriptors - limits.descriptors_reserve, descriptors // 2)
    http = min(limits.http_connections_max, free // limits.descriptors_http_part)
    return Shares(min(limits.connections_max + limits.unauthenticated_connections_max, free - http), http)
