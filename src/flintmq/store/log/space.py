"""How much of a disk stays free: publishers are told to wait while everybody else still has room to work, and the next start has, too.

in: container size, bytes that write buffers may hold. out: Floors, which ManagedLog keeps when it makes containers and Maintenance
compares with what is free.

Rule: publishers are blocked below `roomy`. All that they may have under way then (the write buffers), acks, outcomes, copies forward
and definitions fit into `roomy - tight`; containers for them are made down to `tight`, and down to `last` when none is ready. `last`
is what a start needs: it writes the container with the tail anew.
"""

from __future__ import annotations

from dataclasses import dataclass

# bytes for the definitions' own log (SQLite checkpoints it at 1,000 pages of 4 KiB) and for growth of their file
SQL_BYTES = 4 << 20
# bytes for the definitions' recovery at a start (shared memory file, first pages)
SQL_START_BYTES = 1 << 20
# containers that acks and outcomes may fill after publishers were blocked
ENDING_CONTAINERS = 2


@dataclass(frozen=True, slots=True)
class Floors:
    """Bytes that stay free when a container is made. `last`: none is ready; `tight`: of those that are always kept ready; `roomy`: of
    all others. `again`: what must be free before blocked publishers go on."""

    last: int = 0
    tight: int = 0
    roomy: int = 0
    again: int = 0


NO_FLOORS = Floors()


def message_floors(container_size: int, buffered: int) -> Floors:
    """Of the logs that must go on. Args: bytes of a message log's container; bytes that write buffers hold at most."""
    last = container_size + SQL_START_BYTES
    tight = 2 * container_size + SQL_BYTES
    roomy = tight + buffered + ENDING_CONTAINERS * container_size
    return Floors(last, tight, roomy, roomy + 2 * container_size)


def page_floors(floors: Floors) -> Floors:
    """Of the page log: what it holds is transient and must not take the room of what ends messages."""
    return Floors(floors.roomy, floors.roomy, floors.roomy, floors.again)
