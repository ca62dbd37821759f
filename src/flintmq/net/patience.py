"""Whether a loop polls for a moment before it sleeps.

in: how long its passes and its waits took. out: yes or no, for each wait.

A client that waits for each answer (prefetch 1, a get, a confirm) pays with each message for the wakening of the loop: 5 us, and 20 to 40
on a virtual machine whose idle processor is given away. A loop that still polls when the next request comes saves that.

P1  A loop polls only where requests come one by one and at once: after `needed` passes in a row that took less than a poll's time, each
    with a wait of less than two. A loop that is idle, paced or busy sleeps as ever.
P2  A poll in vain costs its time. It doubles `needed`, unless NEEDED_MIN polls in a row paid before it; as many that paid halve it. So a
    poll in vain comes after NEEDED_MIN that paid, or after more and more wakenings, NEEDED_MAX in the end.
"""

from __future__ import annotations

from cython import bint, cclass, declare, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.core.jobs import turn_clock_t, turn_now
from cython.cimports.flintmq.net.sockets import EVENTS_MAX
from cython.cimports.flintmq.net.sysio import epoll_event, epoll_wait
from cython.cimports.libc.stdint import int64_t, uint32_t

# short waits in a row before a loop polls: at first and at least; and at most
NEEDED_MIN = declare(uint32_t, 16)
NEEDED_MAX = declare(uint32_t, 1024)
# looks at the sockets of one poll, whatever the clock says
POLLS_MAX = declare(c_int, 1024)
# a wait that took no longer found its event there: it says nothing of wakenings
AT_ONCE_NS = declare(int64_t, 3_000)


@cclass
class Patience:
    """Args: poll_us: Limits.loop_poll_us."""

    def __init__(self, poll_us: int):
        self.poll_ns = poll_us * 1000
        self.needed = NEEDED_MIN

    def wait(
        self,
        epoll: c_int,
        events: pointer[epoll_event],
        timeout: c_int,
        worked_ns: int64_t,
        clock: pointer[turn_clock_t],
        polled_ns: int64_t,
    ) -> c_int:
        count: c_int = 0
        polls: bint = timeout > 0 and self.polls(worked_ns)
        i: c_int
        if polls:
            for i in range(POLLS_MAX):
                count = epoll_wait(epoll, events, EVENTS_MAX, 0)
                if count != 0 or turn_now(clock) - polled_ns > self.poll_ns:
                    break
        if count == 0:
            count = epoll_wait(epoll, events, EVENTS_MAX, timeout)
        else:
            polls = False
        if timeout > 0:
            self.waited(turn_now(clock) - polled_ns, polls)
        return count

    def polls(self, worked_ns: int64_t) -> bint:
        if worked_ns > self.poll_ns:
            self.in_row = 0
        return self.in_row >= self.needed

    def waited(self, waited_ns: int64_t, in_vain: bint) -> void:
        polled: bint = self.in_row >= self.needed
        if in_vain or waited_ns > 2 * self.poll_ns:  # a wait that was slept through has the wakening in it
            if in_vain and self.paid < NEEDED_MIN and self.needed < NEEDED_MAX:
                self.needed *= 2
            self.in_row = self.paid = 0
            return
        if not polled:
            if waited_ns > AT_ONCE_NS:
                self.in_row += 1
            return
        self.paid += 1
        if self.paid % NEEDED_MIN == 0 and self.needed > NEEDED_MIN:
            self.needed /= 2
