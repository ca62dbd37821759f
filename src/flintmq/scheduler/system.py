"""The actor system of a node (see system.pxd, actor.pxd): settings, threads, Python requests, figures.

in: Limits, a policy; requests of Python callables (others come in through actor.pxd). out: their outcomes; gauges; fairness.

With a ManualClock there are no threads: `step` runs one slice on the caller's thread and `tick` serves the timers that are due, in an
order that the caller decides, so a run can be repeated exactly.
"""

from __future__ import annotations

import logging
import os
import threading

from cython import NULL, address, bint, cast, cclass, cfunc, declare, double, exceptval, nogil, pointer, sizeof, struct, void, with_gil
from cython import int as c_int
from cython.cimports.cpython.ref import PyObject, Py_DECREF, Py_INCREF
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, at_store32, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.clock import NS_PER_SECOND
from cython.cimports.flintmq.scheduler.actor import (
    DISPATCH_OK, HOLD_NONE, OUTCOME_COUNT, OUTCOME_FAILED, PROCESS_AGAIN, PROCESS_DONE, PROCESS_FAILED, PROCESS_PARK, STATE_CLOSED,
    STATE_SUSPEND, TABLE_SHARDS, WORKERS_MAX, actor_close, actor_find, actor_put, actor_resume, actor_retire, actor_suspend, actor_system_t,
    actor_t, actor_wake, actor_wake_next, request_answer, request_t, system_dispatch, system_now, worker_t,
)  # fmt: skip
from cython.cimports.flintmq.scheduler.actor_table import table_some
from cython.cimports.flintmq.scheduler.deadlines import system_close_all, system_next_ns, system_tick, timers_run
from cython.cimports.flintmq.scheduler.lines import run_queue_stop
from cython.cimports.flintmq.scheduler.statistics import histogram_quantile
from cython.cimports.flintmq.scheduler.timers import timers_kick, timers_start
from cython.cimports.flintmq.scheduler.worker import system_step, worker_run
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free

from flintmq.scheduler.outcomes import AGAIN, PARK, POLICIES, Outcome

log = logging.getLogger("flintmq.scheduler")

MS_NS = declare(int64_t, 1_000_000)


# --- requests of Python -----------------------------------------------------------------------------------------------

py_request_t = struct(request=request_t, process=pointer[PyObject], answer=pointer[PyObject])


@cfunc
@with_gil
@exceptval(check=False)
def _process(actor: pointer[actor_t], request: pointer[request_t]) -> c_int:
    """request_t.process of a Python callable."""
    own: pointer[py_request_t] = cast(pointer[py_request_t], request)
    what: c_int
    try:
        result = cast(object, own.process)()
        what = Outcome.MESSAGES if result is None else int(result)
        if what == PARK:
            return PROCESS_PARK
        if what == AGAIN:
            return PROCESS_AGAIN
        if not 0 < what < OUTCOME_COUNT:
            raise ValueError(f"process returned {result!r}, which is no outcome")
    except BaseException:
        log.exception("a request of actor (%d, %d, %d) failed", actor.space, actor.a, actor.b)
        return PROCESS_FAILED
    if what == OUTCOME_FAILED:
        return PROCESS_FAILED
    request_answer(request, cast(uint8_t, what))
    return PROCESS_DONE


@cfunc
@with_gil
@exceptval(check=False)
def _answer(request: pointer[request_t]) -> void:
    """request_t.answer of a Python callable: tells it, then ends the request."""
    own: pointer[py_request_t] = cast(pointer[py_request_t], request)
    process: object = cast(object, own.process)
    answer: object = cast(object, own.answer)
    outcome: c_int = request.outcome
    Py_DECREF(process)
    Py_DECREF(answer)
    free(own)
    if answer is None:
        return
    try:
        answer(Outcome(outcome))
    except BaseException:
        log.exception("the answer of a request failed")


@cfunc
def _group(actor: pointer[actor_t], short: bint):
    state: uint32_t = at_load32(address(actor.state))
    group = {"space": actor.space, "a": actor.a, "b": actor.b, "mailbox": actor.mailbox.count}
    if not short:
        group |= {
            "weight": at_load32(address(actor.weight)),
            "parked": at_load32(address(actor.waiting)),
            "suspensions": state // STATE_SUSPEND,
            "closed": bool(state & STATE_CLOSED),
            "paused": actor.pause_until_ns != 0,
            "served": at_load64(address(actor.served)),
            "failed": at_load64(address(actor.failed)),
            "time_s": at_load64(address(actor.total_ns)) / 1e9,
            "vruntime_s": actor.vrun / 1e9,
            "queue_wait_p50_s": histogram_quantile(address(actor.queue_wait), 0.5) / 1e9,
            "queue_wait_p99_s": histogram_quantile(address(actor.queue_wait), 0.99) / 1e9,
            "service_p50_s": histogram_quantile(address(actor.service), 0.5) / 1e9,
            "service_p99_s": histogram_quantile(address(actor.service), 0.99) / 1e9,
        }
    return group


class Failed(Exception):
    """A call was not carried out: its outcome is in `outcome`."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"request ended with {outcome.name.lower()}")
        self.outcome = outcome


@cclass
class ActorSystem:
    """Args: limits: config.Limits. policy: one of POLICIES. workers: threads; 0: Limits.actor_workers_per_core a core. clock: a ManualClock
    (or anything with monotonic_ns) for the single-step mode; None: the machine's."""

    def __cinit__(self, limits, *, policy: str = "vruntime", workers: int = 0, clock=None):
        i: uint32_t
        system: pointer[actor_system_t]
        if policy not in POLICIES:
            raise ValueError(f"policy {policy!r} is none of {', '.join(POLICIES)}")
        if workers <= 0:
            workers = limits.actor_workers_per_core * (
                len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            )
        workers = max(1, min(workers, WORKERS_MAX))
        system = cast(pointer[actor_system_t], calloc(1, sizeof(actor_system_t)))
        if system == NULL:
            raise MemoryError
        self.system = system
        system.workers = cast(pointer[worker_t], calloc(workers, sizeof(worker_t)))
        if system.workers == NULL:
            raise MemoryError
        self.limits = limits
        self.clock = clock
        self.threads = []
        self.lock = threading.Lock()
        self.started = False
        self.stopped = False
        system.worker_count = workers
        for i in range(system.worker_count):
            system.workers[i].system = system
            system.workers[i].number = i
        system.mailbox_max = limits.actor_mailbox_max
        system.parked_max = limits.actors_parked_max
        system.actors_max = limits.actors_max
        system.quantum_ns = limits.actor_quantum_us * 1000
        system.slice_min_ns = min(limits.actor_slice_min_us * 1000, system.quantum_ns)
        system.idle_ns = limits.actor_idle_ms * MS_NS
        system.pause_ns = limits.actor_pause_ms * MS_NS
        system.pause_max_ns = limits.actor_pause_ms_max * MS_NS
        system.queue.policy = POLICIES.index(policy)
        system.jain_1 = 1.0
        system.jain_10 = 1.0
        system.quiet = 100  # no sample before something runs
        if clock is not None:
            system.manual = True
            self._sync()
        system.sample_ns = system_now(system) + NS_PER_SECOND
        system.sweep_ns = system.sample_ns
        timers_start(address(system.timers), system_now(system))

    def __dealloc__(self):
        if self.system == NULL:
            return
        if self.system.workers != NULL:
            with nogil:
                system_close_all(self.system)
            if at_load32(address(self.system.alive)):
                return  # someone still holds an actor: its system must stay (an owner's mistake, and a small leak)
        free(self.system.queue.entries)
        for i in range(TABLE_SHARDS):
            free(self.system.shards[i].buckets)
        free(self.system.workers)
        free(self.system)

    def _sync(self) -> c_int:
        """Manual clock: time as its owner set it."""
        if self.clock is not None:
            at_store64(address(self.system.manual_ns), self.clock.monotonic_ns())
        return 0

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the workers and the timer thread (with a manual clock: nothing)."""
        with self.lock:
            if self.started or self.stopped or self.clock is not None:
                return
            self.started = True
            self.threads.append(threading.Thread(target=self._run_timers, name="flintmq-actor-timers", daemon=True))
            for i in range(self.system.worker_count):
                self.threads.append(threading.Thread(target=self._run_worker, args=(i,), name=f"flintmq-actor-{i}", daemon=True))
            for thread in self.threads:
                thread.start()

    def stop(self) -> None:
        """Ends the threads after their present requests; waiting requests are answered CLOSED. Not from a process()."""
        with self.lock:
            if self.stopped:
                return
            self.stopped = True
            at_store32(address(self.system.stopping), 1)
            run_queue_stop(self.system)
            timers_kick(address(self.system.timers))
            for thread in self.threads:
                thread.join()
            self.threads.clear()
            with nogil:
                system_close_all(self.system)

    def _run_worker(self, number: int) -> None:
        at: uint32_t = number
        with nogil:
            worker_run(self.system, at)

    def _run_timers(self) -> None:
        with nogil:
            timers_run(self.system)

    def step(self, worker: int = 0) -> bool:
        """Manual clock: one slice as that worker. False: nothing is runnable."""
        at: uint32_t = worker
        ran: bint
        if self.clock is None or not 0 <= worker < self.system.worker_count:
            raise ValueError("step needs a manual clock and one of its workers")
        self._sync()
        with nogil:
            ran = system_step(self.system, at)
        return ran

    def tick(self) -> int:
        """Manual clock: serves the timers that are due by now. Returns the number of requests answered."""
        answered: uint64_t
        if self.clock is None:
            raise ValueError("tick needs a manual clock")
        self._sync()
        with nogil:
            answered = system_tick(self.system, system_now(self.system))
        return answered

    def now_ns(self) -> int:
        """The system's clock (monotonic nanoseconds); a manual clock is read anew."""
        self._sync()
        return system_now(self.system)

    def next_ns(self) -> int:
        """When `tick` has something to do next (monotonic nanoseconds); 0: never."""
        return system_next_ns(self.system)

    # --- requests -----------------------------------------------------------------------------------------------------

    def dispatch(
        self, space: int, a: int, b: int, process, answer=None, *, weight: int = 0, deadline_ms: int = 0, hold_ms: int = 0
    ) -> bool:
        """Hands a callable to the actor (space, a, b), made if need be.

        process() runs on a worker and returns an Outcome (None: MESSAGES), PARK or AGAIN; an exception is FAILED. answer(outcome) is called
        exactly once, on any thread; it must not block. deadline_ms: from now, 0 none. hold_ms: how long it may stay parked, from now; 0:
        until its deadline; below 0: never parks. Returns False when it was not accepted (BUSY, or the system stopped): answer is not called
        then.
        """
        own: pointer[py_request_t]
        now: int64_t
        what: c_int
        key_space: uint32_t = space
        key_a: uint64_t = a
        key_b: uint64_t = b
        wanted: uint32_t = weight
        deadline: int64_t = deadline_ms
        hold: int64_t = hold_ms
        own = cast(pointer[py_request_t], calloc(1, sizeof(py_request_t)))
        if own == NULL:
            raise MemoryError
        self._sync()
        now = system_now(self.system)
        own.request.process = _process
        own.request.answer = _answer
        own.request.deadline_ns = now + deadline * MS_NS if deadline > 0 else 0
        own.request.hold_ns = HOLD_NONE if hold < 0 else (now + hold * MS_NS if hold else 0)
        own.process = cast(pointer[PyObject], process)
        own.answer = cast(pointer[PyObject], answer)
        Py_INCREF(process)
        Py_INCREF(answer)
        with nogil:
            what = system_dispatch(self.system, key_space, key_a, key_b, wanted, address(own.request))
        if what != DISPATCH_OK:
            Py_DECREF(process)
            Py_DECREF(answer)
            free(own)
            return False
        return True

    def call(self, space: int, a: int, b: int, function, *, weight: int = 0, deadline_ms: int = 0):
        """Runs function() on the actor and waits for it: its result, its exception, or Failed. Not from a process()."""
        result: list = []
        done = threading.Event()

        def process():
            try:
                result.append((True, function()))
            except BaseException as error:
                result.append((False, error))
            return Outcome.MESSAGES

        def answer(outcome):
            result.append(outcome)
            done.set()

        if not self.dispatch(space, a, b, process, answer, weight=weight, deadline_ms=deadline_ms):
            raise Failed(Outcome.CLOSED if self.stopped else Outcome.BUSY)
        done.wait()
        if len(result) < 2:
            raise Failed(result[0])
        fine, value = result[0]
        if fine:
            return value
        raise value

    def wake(self, space: int, a: int, b: int, *, next_only: bool = False) -> bool:
        """There may be something for those parked at that actor. False: there is no such actor."""
        actor: pointer[actor_t] = actor_find(self.system, space, a, b)
        if actor == NULL:
            return False
        self._sync()
        if next_only:
            actor_wake_next(actor)
        else:
            actor_wake(actor)
        actor_put(actor)
        return True

    def suspend(self, space: int, a: int, b: int) -> int:
        """Stops an actor; the token for `resume`, or 0: there is no such actor, or it is suspended too often."""
        token: uint64_t
        actor: pointer[actor_t] = actor_find(self.system, space, a, b)
        if actor == NULL:
            return 0
        token = actor_suspend(actor)
        actor_put(actor)
        return token

    def resume(self, space: int, a: int, b: int, token: int) -> bool:
        """Ends the suspension of that token. False: it is over already."""
        known: bint
        actor: pointer[actor_t] = actor_find(self.system, space, a, b)
        if actor == NULL:
            return False
        self._sync()
        known = actor_resume(actor, token)
        actor_put(actor)
        return known

    def close(self, space: int, a: int, b: int) -> bool:
        """Closes an actor: waiting requests are answered CLOSED. False: there is no such actor."""
        actor: pointer[actor_t] = actor_find(self.system, space, a, b)
        if actor == NULL:
            return False
        with nogil:
            actor_close(actor)
            actor_put(actor)
        return True

    def retire(self, space: int, a: int, b: int) -> bool:
        """Gives an idle actor up. False: there is none, or it has something to do."""
        done: bint
        actor: pointer[actor_t] = actor_find(self.system, space, a, b)
        if actor == NULL:
            return False
        done = actor_retire(actor)
        actor_put(actor)
        return done

    # --- figures ------------------------------------------------------------------------------------------------------

    @property
    def policy(self) -> str:
        """Ordering of the run queue."""
        return POLICIES[self.system.queue.policy]

    @property
    def workers(self) -> int:
        """Worker threads."""
        return self.system.worker_count

    @property
    def actor_bytes(self) -> int:
        """Bytes of an idle actor, its place in the run queue and in the table counted."""
        return sizeof(actor_t) + 24 + 16

    def jain(self, window_s: int = 10) -> float:
        """Jain's index of weighted worker time over the last 1 or 10 seconds, of the actors that had work all the time. 1.0: equal, or
        fewer than two such actors."""
        index: double
        spin_lock(address(self.system.figures_lock))
        index = self.system.jain_1 if window_s <= 1 else self.system.jain_10
        spin_unlock(address(self.system.figures_lock))
        return index

    def gauges(self) -> dict[str, float]:
        """Figures of the whole system; times in seconds. Counters (names end in _total) only grow."""
        s: pointer[actor_system_t] = self.system
        slices: uint64_t = 0
        requests: uint64_t = 0
        i: uint32_t
        for i in range(s.worker_count):
            slices += at_load64(address(s.workers[i].slices))
            requests += at_load64(address(s.workers[i].requests))
        spin_lock(address(s.figures_lock))
        wake_50 = histogram_quantile(address(s.wake_wait), 0.5)
        wake_99 = histogram_quantile(address(s.wake_wait), 0.99)
        backlogged, jain_1, jain_10, lag_1, lag_10 = s.backlogged, s.jain_1, s.jain_10, s.lag_1, s.lag_10
        spin_unlock(address(s.figures_lock))
        spin_lock(address(s.queue.lock))
        queued = s.queue.count
        spin_unlock(address(s.queue.lock))
        mailed, longest = self._mailboxes()
        figures = {
            "workers": s.worker_count,
            "actors": at_load32(address(s.actors)),
            "actors_alive": at_load32(address(s.alive)),
            "actors_backlogged": backlogged,
            "run_queue": queued,
            "mailboxes": mailed,
            "mailbox_longest": longest,
            "parked": at_load32(address(s.parked)),
            "jain_1s": jain_1,
            "jain_10s": jain_10,
            "service_lag_quanta_1s": lag_1,
            "service_lag_quanta_10s": lag_10,
            "wake_wait_p50_s": wake_50 / 1e9,
            "wake_wait_p99_s": wake_99 / 1e9,
            "dispatched_total": at_load64(address(s.dispatched)),
            "processed_total": requests,
            "slices_total": slices,
            "created_total": at_load64(address(s.created)),
            "retired_total": at_load64(address(s.retired)),
            "suspended_total": at_load64(address(s.suspended)),
            "resumed_total": at_load64(address(s.resumed)),
            "resumed_stale_total": at_load64(address(s.resumed_stale)),
            "paused_total": at_load64(address(s.paused)),
            "wakes_total": at_load64(address(s.wakes)),
            "wakes_spurious_total": at_load64(address(s.wakes_spurious)),
            "wakes_raced_total": at_load64(address(s.wakes_raced)),
            "wakes_lost_total": at_load64(address(s.wakes_lost)),
            "holds_ended_total": at_load64(address(s.holds_ended)),
            "dropped_busy_total": at_load64(address(s.refused_busy)),
            "dropped_closed_total": at_load64(address(s.refused_closed)),
            "dropped_parked_total": at_load64(address(s.dropped_parked)),
            "dropped_deadline_total": at_load64(address(s.dropped_deadline)),
            "dropped_estimate_total": at_load64(address(s.dropped_estimate)),
        }
        for outcome in Outcome:
            at: c_int = outcome.value
            figures[f"outcome_{outcome.name.lower()}_total"] = at_load64(address(s.outcomes[at]))
        return figures

    def _mailboxes(self):
        """Requests in all mailboxes, and in the longest one."""
        total = 0
        longest = 0
        for group in self.groups(mailbox_only=True):
            total += group["mailbox"]
            longest = max(longest, group["mailbox"])
        return total, longest

    def groups(self, *, limit: int = 1_000_000, mailbox_only: bool = False) -> list:
        """One dict per actor: key, weight, requests waiting, time used, wait and service quantiles (seconds), failures. `mailbox_only`:
        only those with a mailbox that is not empty, without quantiles."""
        s: pointer[actor_system_t] = self.system
        actors: pointer[pointer[actor_t]]
        actor: pointer[actor_t]
        shard: uint32_t
        count: uint32_t
        room: uint32_t
        i: uint32_t
        found: list = []
        for shard in range(TABLE_SHARDS):
            room = s.shards[shard].count + 64
            actors = cast(pointer[pointer[actor_t]], calloc(room, sizeof(pointer[actor_t])))
            if actors == NULL:
                raise MemoryError
            count = table_some(s, shard, actors, room)
            for i in range(count):
                actor = actors[i]
                if not mailbox_only or actor.mailbox.count:
                    if len(found) < limit:
                        found.append(_group(actor, mailbox_only))
                actor_put(actor)
            free(actors)
        return found
