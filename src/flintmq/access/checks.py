"""The queue of password checks: bounded, fair by source; the check of a peer that is gone leaves it.

in: a user, a password, where from, a callback. out: the callback with True, False, or None: not checked, too many wait.

A check costs 50 ms and 19 MiB, and anybody may ask for one. So:

C1  At most Limits.password_checks_max run at once, at most `password_waiting_max` wait, at most `password_waiting_source_max` of them
    for one source. A source is an IPv4 address, the first 64 bits of an IPv6 one, or a name such as "flight".
C2  Sources are served in turn, in each of them users in turn. Whoever holds the longest line loses its newest check to a newcomer with a
    shorter one; else the newcomer is refused.
C3  A source whose user was verified within `password_recent_ms` with this very password goes before all others: somebody else's flood
    does not have that password. The memory of it is the keyed MAC that the caller gave.
C4  Equal credentials that wait share one check, wherever they come from. Whoever leaves (`Check.cancel`) is taken out; a check that
    nobody waits for does not run.
"""

from __future__ import annotations

import ipaddress
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from functools import lru_cache

from flintmq.access.secret import Secret
from flintmq.clock import Clock
from flintmq.config import Limits
from flintmq.slotted import slotted

log = logging.getLogger("flintmq.access")

# True: the right password; False: not; None: not checked, too many wait
Answer = Callable[[bool | None], None]


@lru_cache(maxsize=1024)
def source_of(address: str) -> str:
    """Whom a peer's address stands for in the line: itself, of an IPv6 address the first 64 bits (a host may have all the rest)."""
    try:
        parsed = ipaddress.ip_address(address.split("%", 1)[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        mapped = parsed.ipv4_mapped
        return str(mapped) if mapped is not None else str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


@slotted(eq=False)
class _Job:
    """One check that waits. sources: in whose lines it stands."""

    user: str
    password: Secret | str = field(repr=False)
    mac: bytes
    first: bool
    sources: list[str] = field(default_factory=list)
    waiters: list[Check] = field(default_factory=list)


@slotted(eq=False)
class Check:
    """One caller's wait for an answer."""

    line: Checks
    source: str
    answer: Answer
    job: _Job | None = None

    def cancel(self) -> None:
        """The caller is gone: its answer is not given, unless it is on its way already. Any thread; again is no error."""
        self.line.cancel(self)


class _Lane:
    """Lines of jobs by source, in them by user; both in turn."""

    def __init__(self) -> None:
        self.lines: OrderedDict[str, OrderedDict[str, deque[_Job]]] = OrderedDict()
        self.sizes: dict[str, int] = {}

    def add(self, source: str, job: _Job) -> None:
        self.lines.setdefault(source, OrderedDict()).setdefault(job.user, deque()).append(job)
        self.sizes[source] = self.sizes.get(source, 0) + 1
        job.sources.append(source)

    def remove(self, job: _Job) -> None:
        """Takes a job out of all lines it stands in. O(length of its users' lines)."""
        for source in list(job.sources):
            self.leave(source, job)

    def leave(self, source: str, job: _Job) -> None:
        """Takes a job out of the line of one source."""
        users = self.lines[source]
        users[job.user].remove(job)
        self.sizes[source] -= 1
        if not users[job.user]:
            del users[job.user]
        if not users:
            del self.lines[source], self.sizes[source]
        job.sources.remove(source)

    def next(self) -> _Job | None:
        """The job whose turn it is, taken out."""
        if not self.lines:
            return None
        source, users = next(iter(self.lines.items()))
        user, jobs = next(iter(users.items()))
        job = jobs[0]
        self.lines.move_to_end(source)
        users.move_to_end(user)
        self.remove(job)
        return job

    def newest_of(self, source: str, than: int = 0) -> _Job | None:
        """The newest job of the user of `source` with the longest line, when that has more than `than` jobs."""
        jobs = max(self.lines.get(source, {}).values(), key=len, default=None)
        return jobs[-1] if jobs is not None and len(jobs) > than else None


class Checks:
    """See module.

    Args: check: does one check, slowly, in a thread of the pool; known: whether it need not be done (verified meanwhile), fast; clock;
    limits.
    Threading: all of it from any thread; answers come in a thread of the pool, or in the thread of the submit that pushed a check out.
    """

    def __init__(
        self, check: Callable[[str, Secret | str], bool], known: Callable[[str, Secret | str], bool | None], clock: Clock, limits: Limits
    ) -> None:
        self._check = check
        self._known = known
        self._clock = clock
        self._limits = limits
        self._lock = threading.Lock()
        self._lanes = (_Lane(), _Lane())  # those verified lately, then all others
        self._by_credentials: dict[tuple[str, bytes], _Job] = {}
        self._recent: OrderedDict[tuple[str, str, bytes], int] = OrderedDict()  # (source, user, MAC) -> monotonic ns of the end
        self._running = 0
        self._closed = False
        self._pool = ThreadPoolExecutor(limits.password_checks_max, thread_name_prefix="flintmq-password")
        self.refused = 0

    @property
    def waiting(self) -> int:
        """Checks that wait now, those that run not counted."""
        return len(self._by_credentials)

    def submit(self, user: str, password: Secret | str, mac: bytes, source: str, answer: Answer) -> Check:
        """Stands in line; `answer` is called once, unless the check is cancelled or the line closed.

        Args: mac: stands for user and password in memory. Raises: RuntimeError after `close`.
        """
        check = Check(self, source, answer)
        with self._lock:
            if self._closed:
                raise RuntimeError("the line of password checks is closed")
            pushed_out = self._stand(check, user, password, mac)
            start = self._running < self._limits.password_checks_max and bool(self._by_credentials)
            if start:
                self._running += 1
        if start:
            self._pool.submit(self._work)
        for one in pushed_out:
            _tell(one, None)
        return check

    def cancel(self, check: Check) -> None:
        """See Check.cancel."""
        with self._lock:
            job, check.job = check.job, None
            if job is None:
                return
            job.waiters.remove(check)
            if not job.waiters:
                self._take_out(job)

    def close(self) -> None:
        """Ends the pool; checks that wait are not run and not answered."""
        with self._lock:
            self._closed = True
            for job in list(self._by_credentials.values()):
                for check in job.waiters:
                    check.job = None
                self._take_out(job)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- the line, under the lock -----------------------------------------------------------------------------------------

    def _stand(self, check: Check, user: str, password: Secret | str, mac: bytes) -> list[Check]:
        """Puts a check into the line; the checks that are refused for it, which may be this one."""
        source = check.source
        until = self._recent.get((source, user, mac))
        first = until is not None and self._clock.monotonic_ns() < until
        job = self._by_credentials.get((user, mac))
        pushed_out: list[Check] = []
        if job is not None and first and not job.first:
            self._lanes[1].remove(job)
            job.first = True
            self._lanes[0].add(source, job)
        elif job is None or source not in job.sources:
            lane = self._lanes[0] if first or (job is not None and job.first) else self._lanes[1]
            room, pushed_out = self._make_room(lane, source, user, job is None)
            if job is None:
                if not room:
                    self.refused += 1
                    return [check]
                job = self._by_credentials[user, mac] = _Job(user, password, mac, first)
            if room:  # else it waits where others with the same credentials stand
                lane.add(source, job)
        job.waiters.append(check)
        check.job = job
        return pushed_out

    def _make_room(self, lane: _Lane, source: str, user: str, is_new: bool) -> tuple[bool, list[Check]]:
        """Whether `source` may have one more in its line, and who was pushed out for it (C2)."""
        mine = lane.sizes.get(source, 0)
        full = is_new and len(self._by_credentials) >= self._limits.password_waiting_max
        if mine < self._limits.password_waiting_source_max:
            if not full:
                return True, []
            longest = max(lane.sizes, key=lane.sizes.__getitem__, default=source)
            loser = lane.newest_of(longest) if lane.sizes.get(longest, 0) > mine + 1 else None
            if loser is not None:
                return True, self._push_out(lane, loser, None)
        users = lane.lines.get(source)
        own = len(users[user]) if users is not None and user in users else 0
        loser = lane.newest_of(source, own + 1)
        return (False, []) if loser is None else (True, self._push_out(lane, loser, None if full else source))

    def _push_out(self, lane: _Lane, loser: _Job, source: str | None) -> list[Check]:
        """Takes a job out of the line of one source, or (None) of all; those who wait for it no more."""
        if source is not None:
            lane.leave(source, loser)
        gone = [one for one in loser.waiters if source in (None, one.source) or not loser.sources]
        loser.waiters = [one for one in loser.waiters if one not in gone]
        for one in gone:
            one.job = None
        if not loser.waiters:
            self._take_out(loser)
        self.refused += len(gone)
        return gone

    def _take_out(self, job: _Job) -> None:
        self._lanes[not job.first].remove(job)
        if self._by_credentials.get((job.user, job.mac)) is job:
            del self._by_credentials[job.user, job.mac]

    # --- the pool ---------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._lock:
                job = self._lanes[0].next() or self._lanes[1].next()
                if job is None:
                    self._running -= 1
                    return
                self._take_out(job)
                waiters, job.waiters = job.waiters, []
                for check in waiters:
                    check.job = None
            good = False
            try:
                good = self._known(job.user, job.password) or self._check(job.user, job.password)
            except Exception:
                log.exception("a password check failed: the login is refused")
            if good:
                self._remember(job, waiters)
            for check in waiters:
                _tell(check, good)

    def _remember(self, job: _Job, waiters: list[Check]) -> None:
        until = self._clock.monotonic_ns() + self._limits.password_recent_ms * 1_000_000
        with self._lock:
            for source in {check.source for check in waiters}:
                self._recent[source, job.user, job.mac] = until
                self._recent.move_to_end((source, job.user, job.mac))
            while len(self._recent) > self._limits.password_recent_max:
                self._recent.popitem(last=False)


def _tell(check: Check, good: bool | None) -> None:
    """Whatever goes wrong in one answer, the others get theirs."""
    try:
        check.answer(good)
    except Exception:
        log.exception("the answer of a password check could not be given")
