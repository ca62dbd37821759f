"""Facts of the node that lists, metrics and the diagnosis have in common: alarms, memory, descriptors, links.

in: the node's parts. out: plain values.

N1  Memory that is compared with the limit is what the memory alarm compares: bytes that clients make the broker hold
    (core.memory_account), not the size of the process, of which much is the interpreter's. So a quotient of 1 is the alarm.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Mapping
from typing import Any

from flintmq.admin.parts import Parts
from flintmq.core.memory_account import bytes_held

# descriptors of the process that are not for clients: logs, streams, the event loops' own. With fewer free ones new connections fail
# sooner or later, and the alarm of descriptors is on
DESCRIPTORS_KEPT = 32


def alarms_of(parts: Parts) -> tuple[bool, bool]:
    """(memory, disk): what publishers wait for. O(I/O loops)."""
    loops = parts.broker.loops
    disk = any(loop.disk_low for loop in loops)
    alarmed = any(loop.alarmed for loop in loops)
    # a loop under both alarms says disk: then the account decides about the other one
    return alarmed and (any(loop.alarmed and not loop.disk_low for loop in loops) or bytes_held() > parts.memory_limit), disk


def blocked_count(parts: Parts) -> int:
    """Connections that published and are blocked by an alarm. O(connections)."""
    return sum(bool(one.is_blocked) for one in list(parts.broker.connections.values()))


def descriptors() -> tuple[int, int]:
    """(open, limit) of the process. Asks the operating system: in a thread."""
    return len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def resident_bytes() -> int:
    """Size of the process in memory. Asks the operating system: in a thread."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def disk_free(parts: Parts) -> int | None:
    """Bytes of the store's disk that are free; None: nothing is on disk. Asks the operating system: in a thread."""
    if parts.directory is None:
        return None
    space = os.statvfs(str(parts.directory))
    return space.f_bavail * space.f_frsize


def shovels_of(parts: Parts) -> Iterable[Mapping[str, Any]]:
    """States of shovels, of all virtual hosts."""
    return () if parts.links is None else parts.links.shovels()


def federation_of(parts: Parts) -> Iterable[Mapping[str, Any]]:
    """States of links of federation, of all virtual hosts."""
    return () if parts.links is None else parts.links.federation()
