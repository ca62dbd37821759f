"""The calls that work in the service now: few at once, others in a fair line, and the rest at home, told when to come again.

in: calls of users that were let in, each with the query that its client names. out: a Pass; or PlaneError BUSY with a wait.

N1  At most `most` calls of a kind are in. A call that finds no free place stands in line, in a thread that nobody wakes before its turn,
    for `flight_line_ms` at most. The line is there so that a place that becomes free is taken at once.
N2  A free place goes to the users in turn, to the queries of a user in turn, and in a query to the first one; but a task that began goes
    before one that would begin, so what is let in goes through, and a crowd waits where it holds nothing yet.
N3  A query has at most as many places as are free beside them, and a user three times as many. So whoever comes new finds a free place
    beside a query of a thousand tasks, and beside a user with a thousand queries. The same holds for the places in line.
N4  Who finds no place in line costs nothing here until it comes again. Waits are given one behind the other, as fast as places became free
    lately: a crowd comes back spread out. They are never longer than `flight_busy_ms_max`, as nobody knows how long work takes.
N5  The name of a query is the client's word. It divides what its user has, and gives nobody more.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

from flintmq.config import Limits
from flintmq.dataplane.calls import CALLS
from flintmq.flight.plane_error import BUSY, PlaneError

# places of a user for each one that is free, and of a query
USER_PART, QUERY_PART = 3, 1
# how much sooner the next one is told to come than a place becomes free: a line that runs dry leaves places empty
SOONER = 0.7
# seconds: the first guess of the time between two places that become free; how long, and how many at least, they are counted for the next
FIRST_S, COUNTED_S, COUNTED = 0.005, 0.25, 8

_Query = tuple[str, str]
_Waiting = tuple["deque[Pass]", "deque[Pass]"]


class Shares:
    """Places of one kind, and who has them (N3). Args: most. Threading: under its owner's lock."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._users: Counter[str] = Counter()
        self._queries: Counter[_Query] = Counter()

    def may(self, user: str, query: str) -> bool:
        """Whether this query of this user gets one more."""
        free = self.most - self.taken
        return self._queries[user, query] < QUERY_PART * free and self._users[user] < USER_PART * free

    def take(self, user: str, query: str) -> None:
        self.taken += 1
        self._users[user] += 1
        self._queries[user, query] += 1

    def give_back(self, user: str, query: str) -> None:
        self.taken -= 1
        for counter, key in ((self._users, user), (self._queries, (user, query))):
            counter[key] -= 1  # type: ignore[index]
            if not counter[key]:  # type: ignore[index]
                del counter[key]  # type: ignore[arg-type]


class Pass:
    """A place that a call has, until `release`. Again is no error."""

    __slots__ = ("_line", "_query", "_user", "entered")

    def __init__(self, line: Line, user: str, query: str) -> None:
        self._line, self._user, self._query = line, user, query
        # its turn: what a waiter's thread sleeps at
        self.entered = threading.Lock()

    def release(self) -> None:
        """The place is free."""
        line, self._line = self._line, None  # type: ignore[assignment]
        if line is not None:
            line._leave(self._user, self._query)


class Line:
    """Calls of one kind. Args: kind: their name, plural, for people; most: that are in at once; limits; now: seconds. Thread-safe."""

    def __init__(self, kind: str, most: int, limits: Limits, now: Callable[[], float] = time.monotonic) -> None:
        self._kind = kind
        self._now = now
        self._line_s = limits.flight_line_ms / 1000
        self._wait_s, self._wait_s_max = limits.flight_busy_ms / 1000, limits.flight_busy_ms_max / 1000
        self._lock = threading.Lock()
        self._in = Shares(most)
        self._waiting = Shares(limits.flight_line_max)
        # user -> query -> those that go on, those that begin
        self._users: OrderedDict[str, OrderedDict[str, _Waiting]] = OrderedDict()
        # when the next one is told to come, and the time between two; places given, and since when, while others waited
        self._due = self._since = now()
        self._between_s = FIRST_S
        self._given = 0
        # answers BUSY, and as many of them there were when a place was given last
        self.refused = self._refused = 0

    @property
    def running(self) -> int:
        """Calls that are in."""
        return self._in.taken

    @property
    def crowded(self) -> bool:
        """Whether others wait, here or at home."""
        return self._waiting.taken > 0 or self._due > self._now()

    def enter(self, user: str, query: str, goes_on: bool = False) -> Pass:
        """A place for a call, at once or after a turn in the line. Args: goes_on: it continues what an earlier call began.

        Raises: PlaneError BUSY, with a wait.
        """
        one = Pass(self, user, query)
        with self._lock:
            before = self._before(user, query)
            if self._in.may(user, query) and not (before[0] if goes_on else any(before)):
                self._give(user, query, goes_on)
                return one
            if not self._waiting.may(user, query):
                raise self._busy()
            one.entered.acquire()
            self._waiting.take(user, query)
            self._users.setdefault(user, OrderedDict()).setdefault(query, (deque(), deque()))[0 if goes_on else 1].append(one)
        if one.entered.acquire(timeout=self._line_s):
            return one
        with self._lock:
            if self._drop(one, user, query):
                raise self._busy()
        return one  # its turn came with the end of its wait

    def busy(self, text: str) -> PlaneError:
        """The refusal of a call that finds no place elsewhere, with a wait as those of the line have."""
        with self._lock:
            return self._busy(text)

    def _before(self, user: str, query: str) -> _Waiting:
        """The calls of this query that wait."""
        queries = self._users.get(user)
        return (queries.get(query) if queries else None) or (deque(), deque())

    # --- inside, under the lock -----------------------------------------------------------------------------------------

    def _give(self, user: str, query: str, goes_on: bool) -> None:
        self._in.take(user, query)
        if goes_on:
            return  # those at home wait to begin
        now = self._now()
        if not (self._waiting.taken or self._due > now or self.refused > self._refused):
            self._since, self._given = now, 0
            return
        self._refused = self.refused
        self._given += 1
        elapsed_s = now - self._since
        if self._given >= COUNTED and elapsed_s >= COUNTED_S:
            self._between_s = (self._between_s + elapsed_s / self._given) / 2
            self._since, self._given = now, 0

    def _leave(self, user: str, query: str) -> None:
        with self._lock:
            self._in.give_back(user, query)
            while self._next():
                pass
            if not self._waiting.taken:
                self._due = min(self._due, self._now() + self._wait_s)

    def _next(self) -> bool:
        """Gives a free place to the next call (N2). Returns whether anybody got one. O(users and queries in line)."""
        for user, queries in self._users.items():
            for query in queries:
                if self._in.may(user, query):
                    going, beginning = queries[query]
                    one = (going or beginning)[0]
                    self._give(user, query, bool(going))
                    self._drop(one, user, query)
                    if user in self._users:
                        self._users.move_to_end(user)
                        if query in queries:
                            queries.move_to_end(query)
                    one.entered.release()
                    return True
        return False

    def _drop(self, one: Pass, user: str, query: str) -> bool:
        """It stands in line no more. Returns False when it did not."""
        lines = self._before(user, query)
        line = next((line for line in lines if one in line), None)
        if line is None:
            return False
        line.remove(one)
        self._waiting.give_back(user, query)
        if not any(lines):
            del self._users[user][query]
            if not self._users[user]:
                del self._users[user]
        return True

    def _busy(self, text: str = "") -> PlaneError:
        """N4."""
        self.refused += 1
        now = self._now()
        self._due = max(self._due, now) + self._between_s * SOONER
        wait_s = self._due - now
        if wait_s > self._wait_s_max:
            self._due = now + self._wait_s_max
            wait_s = random.uniform(self._wait_s_max / 2, self._wait_s_max)
        behind = round((self._due - now) / (self._between_s * SOONER))
        text = text or f"{self._in.taken} {self._kind} run and {self._waiting.taken} stand in line; about {behind} are told to come again"
        return PlaneError(BUSY, text, wait_ms=round(max(wait_s, self._wait_s) * 1000))


class Turn:
    """How long a reader may go on in one call. Args: line: of the readers; None: to its end, its client knows no turns."""

    __slots__ = ("_line", "ended")

    def __init__(self, line: Line | None = None) -> None:
        self._line = line
        # whether its rows ended before their end
        self.ended = False

    def is_over(self) -> bool:
        """To be asked where it may end: whether others wait. True once it was."""
        self.ended = self.ended or (self._line is not None and self._line.crowded)
        return self.ended


class Lines:
    """The lines of the service. Thread-safe. Args: limits; now: seconds."""

    def __init__(self, limits: Limits, now: Callable[[], float] = time.monotonic) -> None:
        self.actions = Line("calls", limits.flight_actions_max, limits, now)
        self.reads = Line("reads", limits.flight_reads_max, limits, now)
        # all that a task does that writes
        self.writes = Line("writes", limits.flight_writes_max, limits, now)
        # sub.acquire that waits for messages
        self.waits = Line("readers that wait for messages", limits.flight_waits_max, limits, now)

    def of_action(self, name: str) -> tuple[Line, bool]:
        """Where an action stands in line, and whether it goes on with something."""
        call = CALLS.get(name)
        return (self.actions, False) if call is None or call.goes_on is None else (self.writes, call.goes_on)

    def counts(self) -> dict[str, int]:
        """For the call `status`."""
        kinds = {"actions": self.actions, "reads": self.reads, "writes": self.writes, "waits": self.waits}
        return {**{name: line.running for name, line in kinds.items()}, "busy": sum(line.refused for line in kinds.values())}
