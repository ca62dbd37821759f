"""Changes of definitions that the engine has yet to hear of, and whoever waits for that.

in: changes that are durable here; the engine's answers. out: changes in their order; the ends of waits.

U1  Of one definition the last state is told. Whoever waits for an earlier one is answered when that, or a later one, is told.
U2  A thing that ended takes the changes of what hung on it along: whoever waits for those waits for its end.
U3  The number of changes has a bound: there is one for each definition.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from flintmq.errors import PeerError, ReplyCode
from flintmq.guard import guarded
from flintmq.shared.definition_rows import Record, parents_of

Done = Callable[[Exception | None], object]


def late() -> PeerError:
    """For whoever waited for too long."""
    return PeerError(ReplyCode.INTERNAL_ERROR, "the engine of shared queues does not answer; other nodes will see the change later")


class Waiter:
    """Whoever waits for some changes."""

    __slots__ = ("changes", "done", "since_s")

    def __init__(self, changes: list[Change], done: Done) -> None:
        self.changes = changes
        self.done = done
        self.since_s = time.monotonic()


class Change:
    """What became of one definition here. record: as it is now, or was; gone: it ended; version: of that state; gone_at: the version in
    which it was gone last; told: the version that the engine has; waits: (version, waiter)."""

    __slots__ = ("gone", "gone_at", "key", "record", "since_s", "told", "version", "waits")

    def __init__(self, key: bytes, record: Record) -> None:
        self.key = key
        self.record = record
        self.gone = False
        self.version = self.gone_at = self.told = 0
        self.since_s = time.monotonic()
        self.waits: dict[Waiter, int] = {}


class State(NamedTuple):
    """What the engine is to be told of one definition. anew: it is another one than the engine has."""

    change: Change
    version: int
    record: Record
    gone: bool
    anew: bool

    @property
    def key(self) -> bytes:
        return self.change.key


class Untold:
    """Any thread; no call waits for anything but a lock that is held for microseconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changes: dict[bytes, Change] = {}  # in the order in which they came
        self._hanging: dict[bytes, dict[bytes, None]] = {}  # key of a thing -> keys of changes of what hangs on it
        self._waiters: dict[Waiter, None] = {}
        self._ended = False

    def __len__(self) -> int:
        return len(self._changes)

    def __contains__(self, key: bytes) -> bool:
        return key in self._changes

    def oldest_s(self) -> float | None:
        """When the change came that has waited for longest (monotonic). None: there is none."""
        with self._lock:
            return next((change.since_s for change in self._changes.values()), None)

    def note(self, key: bytes, record: Record, gone: bool) -> None:
        """A definition is so now. Cost: O(1); when a thing ends O(changes of what hangs on it)."""
        with self._lock:
            change = self._changes.get(key)
            if change is None:
                change = self._changes[key] = Change(key, record)
                for parent in parents_of(record):
                    self._hanging.setdefault(parent, {})[key] = None
            change.record, change.gone = record, gone
            change.version += 1
            if gone:
                change.gone_at = change.version
                for under in self._under(key):
                    self._remove(under)
                    for waiter in under.waits:
                        waiter.changes = [one for one in waiter.changes if one not in (under, change)] + [change]
                        change.waits[waiter] = change.version

    def _under(self, key: bytes) -> list[Change]:
        """What hangs on a thing. Under the lock."""
        return [self._changes[one] for one in self._hanging.get(key, ())]

    def _remove(self, change: Change) -> None:
        """Under the lock."""
        del self._changes[change.key]
        for parent in parents_of(change.record):
            keys = self._hanging[parent]
            del keys[change.key]
            if not keys:
                del self._hanging[parent]

    def forget_under(self, key: bytes) -> None:
        """A thing has ended whose end others tell."""
        with self._lock:
            under = self._under(key)
        for change in under:
            self.over(change, change.version)

    def some(self, count: int, ends_alone: bool) -> list[State]:
        """At most so many changes, the oldest first. Args: ends_alone: of things that ended."""
        states: list[State] = []
        with self._lock:
            for change in self._changes.values():
                if len(states) >= count:
                    break
                if change.gone or not ends_alone:
                    anew = change.gone_at > change.told
                    states.append(State(change, change.version, change.record, change.gone, anew))
        return states

    def over(self, change: Change, version: int, error: Exception | None = None) -> None:
        """The engine has this state of a definition, or never will: `error`."""
        answered: list[Waiter] = []
        with self._lock:
            change.told = version
            if change.version == version and self._changes.get(change.key) is change:
                self._remove(change)
            for waiter in [one for one, wanted in change.waits.items() if wanted <= version]:
                del change.waits[waiter]
                waiter.changes.remove(change)
                if error is not None or not waiter.changes:
                    self._forget(waiter)
                    answered.append(waiter)
        for waiter in answered:
            guarded("shared queues", "a change of definitions", waiter.done, error)

    def wait(self, keys: Iterable[bytes], done: Done) -> bool:
        """True: the engine has the present states of these definitions. Else `done` is called once, on any thread."""
        with self._lock:
            changes = [self._changes[key] for key in dict.fromkeys(keys) if key in self._changes]
            if not changes:
                return True
            if not self._ended:
                waiter = Waiter(changes, done)
                self._waiters[waiter] = None
                for change in changes:
                    change.waits[waiter] = change.version
                return False
        done(late())
        return False

    def refuse_late(self, waiting_s: float) -> bool:
        """Whoever has waited for so long is told so; the engine is told later. True: others wait, still."""
        since_s = time.monotonic() - waiting_s
        with self._lock:
            over = list(itertools.takewhile(lambda waiter: waiter.since_s <= since_s, self._waiters))  # they are in the order of time
            for waiter in over:
                self._forget(waiter)
            waits = len(self._waiters) > 0
        for waiter in over:
            guarded("shared queues", "a change of definitions", waiter.done, late())
        return waits

    def _forget(self, waiter: Waiter) -> None:
        """Under the lock."""
        del self._waiters[waiter]
        for change in waiter.changes:
            change.waits.pop(waiter, None)

    def end(self) -> None:
        """The broker stops: whoever waits is told so, as is whoever comes."""
        with self._lock:
            self._ended = True
        self.refuse_late(0.0)
