"""The bytes of a disk that stay free: publishers wait while all others, and the next start, still have room to work.

in: container size, bytes that write buffers may hold. out: Reserves, which ManagedLog keeps when it makes containers and Maintenance
compares with the free bytes.

Rule: publishers are blocked below `roomy`. All that they may have under way then (the write buffers), acks, outcomes, copies forward
and definitions fit into `roomy - tight`; containers for them are made down to `tight`, and down to `last` when none is ready. `last`
is what a start needs: it writes the container with the tail anew.
"""

from __future__ import annotations

from flintmq.config import Limits
from flintmq.slotted import slotted

LIMITS = Limits()


@slotted(frozen=True)
class Reserves:
    """Bytes that stay free when a container is made. `last`: none is ready; `tight`: of those that are always kept ready; `roomy`: of
    all others. `resume`: what must be free before blocked publishers go on."""

    last: int = 0
    tight: int = 0
    roomy: int = 0
    resume: int = 0


NO_RESERVES = Reserves()


def message_reserves(container_size: int, buffered: int, free_limit: int = 0) -> Reserves:
    """Of the logs that must go on. Args: bytes of a message log's container; bytes that write buffers hold at most; bytes that an operator
    wants free for others (`--disk-free-limit`): publishers are blocked below them, acks and a start use them."""
    last = container_size + LIMITS.log_sql_start_bytes
    tight = 2 * container_size + LIMITS.log_sql_bytes
    roomy = max(tight + buffered + LIMITS.log_ending_containers * container_size, free_limit)
    return Reserves(last, tight, roomy, roomy + 2 * container_size)


def page_reserves(reserves: Reserves) -> Reserves:
    """Of the page log: what it holds is transient and must not take the room of what ends messages."""
    return Reserves(reserves.roomy, reserves.roomy, reserves.roomy, reserves.resume)
