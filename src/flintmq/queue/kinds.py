"""Kinds of entry lists that come from outside this package: the extension point of seed 000's QueueEntryList for third parties.

in: kinds, by name, from code of this process (`register`) or from installed packages (entry points of the group ENTRY_POINTS). out: what
`x-queue-type` may name beside the broker's own types, and queues of those kinds.

A kind decides on which of its levels (1 to 256, level 0 is served first) an arrival goes, and is told of arrivals and of returns,
so that it can end entries that others replace. Storage, consumers, transactions, the log and limits are the broker's. docs/QUEUE_CORE.md,
"Kinds of entry lists", compares this with the seed. A kind's code runs with the interpreter's lock, on the loops: it must be short, and
only its queues pay for it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from flintmq.guard import guarded
from flintmq.queue.outside import Entries

log = logging.getLogger("flintmq.queue.kinds")

ENTRY_POINTS = "flintmq.queue_kinds"
LEVELS_MAX = 256

Message = tuple[bytes, bytes, bytes, bytes]


class EntryList(Protocol):
    """What a kind keeps for one queue. Called on any thread, also on several at once; it may call its Entries."""

    def level(self, message: Message | None) -> int:
        """The level of an arrival, 0 to levels - 1 (what is beside is cut). None: the place is taken before the message is known (a
        distributed transaction): then any constant level."""
        ...

    def arrived(self, position: int, message: Message | None) -> None:
        """An entry became available for the first time; consumers are woken after this. None: ask Entries.message_at, if need be."""
        ...

    def returned(self, position: int) -> None:
        """An entry came back: its consumer gave it back, or left."""
        ...


class ListKind(Protocol):
    """A kind of queue. Stateless: one object for all queues."""

    name: str  # of x-queue-type

    def check(self, arguments: Mapping[str, Any]) -> str | None:
        """Why a queue can't be declared with these arguments, for people (406); None: it can."""
        ...

    def levels(self, arguments: Mapping[str, Any]) -> int:
        """Levels of the list, 1 to 256: the same for the same arguments, now and after a restart."""
        ...

    def open(self, entries: Entries, arguments: Mapping[str, Any]) -> EntryList:
        """The list of a queue that is declared, or restored: then its entries come later, and nobody is told of them."""
        ...


_kinds: dict[str, ListKind] = {}
_OWN = ("classic", "quorum", "stream")


def register(kind: ListKind) -> None:
    """Makes a kind known by its name. Before queues of it are restored: before the node is made.

    Raises: ValueError: the name is empty, the broker's own, or taken by another kind.
    """
    if not kind.name or kind.name in _OWN or _kinds.get(kind.name, kind) is not kind:
        raise ValueError(f"a kind of queue can't be named {kind.name!r}: the name is empty or taken")
    _kinds[kind.name] = kind


def forget(name: str) -> None:
    """Queues of this kind can't be declared any more; those there are stay as they are. Unknown is no error."""
    _kinds.pop(name, None)


def find(name: str) -> ListKind | None:
    """The kind of that name, None: nobody registered it."""
    return _kinds.get(name)


def _some_installed(places: Sequence[str]) -> bool:
    """Whether an installed package may have such entry points. Args: places: as in sys.path; an archive may hide anything."""
    group = f"[{ENTRY_POINTS}]".encode()
    for place in places:
        try:
            names = os.listdir(place or ".")
        except NotADirectoryError:
            return True
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(os.path.join(place, name, "entry_points.txt"), "rb") as file:
                        if group in file.read():
                            return True
                except (FileNotFoundError, NotADirectoryError):
                    continue
                except OSError:
                    return True  # importlib says what is wrong with it
    return False


def load_installed() -> None:
    """Registers the kinds of installed packages: what their entry points of the group ENTRY_POINTS call to makes a kind. One that fails
    is logged and left out."""
    if not _some_installed(sys.path):
        return
    from importlib.metadata import entry_points  # 40 modules and 1.4 MiB, which most brokers never need

    for point in entry_points(group=ENTRY_POINTS):
        if point.name not in _kinds:
            guarded("kinds of queues", f"entry point {point.name!r}", lambda point=point: register(point.load()()))
