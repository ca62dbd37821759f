"""Deadlines, ends of holds and pauses, samples, retirement: the effects of the clock (see deadlines.pxd).

in: the time. out: answers of requests whose time is over, actors after their pause, samples of fairness, retired actors.

I1  A request that is not in process() is answered within two ticks of its deadline or end of hold, whatever the workers do: suspended and
    pausing actors and full mailboxes make no difference.
I2  A timer acts on the requests in the actor's heap at that moment, under the actor's lock: it can't wake or answer a later request by
    mistake.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, double, exceptval, nogil, pointer, void
from cython.cimports.flintmq.core.atomics import (
    at_add64, at_cas32, at_load32, at_load64, at_store32, at_sub32, at_swap32, spin_lock, spin_unlock,
)  # fmt: skip
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.clock import NS_PER_SECOND
from cython.cimports.flintmq.scheduler.actor import (
    OUTCOME_EMPTY, OUTCOME_EXPIRED, STATE_SCHEDULED, TABLE_SHARDS, WEIGHT_DEFAULT, WINDOW_SECONDS, actor_arm, actor_close,
    actor_finish_close, actor_has_work, actor_put, actor_schedule, actor_system_t, actor_t, request_answer, request_t, shard_t, system_now,
)  # fmt: skip
from cython.cimports.flintmq.scheduler.actor_table import table_some, table_sweep
from cython.cimports.flintmq.scheduler.lines import mailbox_due, mailbox_expired, run_queue_put, run_queue_take
from cython.cimports.flintmq.scheduler.statistics import jain_index
from cython.cimports.flintmq.scheduler.timers import timers_next, timers_sleep, timers_take, timers_take_any, timers_taken
from cython.cimports.libc.stdint import int64_t, uint16_t, uint32_t, uint64_t

# nanoseconds: a wake that nobody followed for so long is lost, not late
LOST_NS = declare(int64_t, 1_000_000_000)
# actors, and requests of one actor, that are taken out of their lists at once
FIRED_MAX = declare(uint32_t, 64)
# bits of actor_t.backlogged that say "the whole window"
WHOLE_WINDOW = declare(uint32_t, (1 << 10) - 1)


# --- deadlines --------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _is_lost(actor: pointer[actor_t], now: int64_t) -> bint:
    """Under the lock: there was a wake long ago, and nobody is going to look."""
    woken: uint64_t = at_load64(address(actor.woken_ns))
    if woken == 0 or now - cast(int64_t, woken) < LOST_NS:
        return False
    return at_load32(address(actor.state)) == 0 and actor_has_work(actor)


@cfunc
@nogil
@exceptval(check=False)
def _fire(system: pointer[actor_system_t], actor: pointer[actor_t], now: int64_t) -> uint64_t:
    """Answers the requests that are due of one actor that timers_take gave out, and ends its pause."""
    expired: pointer[request_t]
    request: pointer[request_t]
    answered: uint64_t = 0
    count: uint32_t
    parked: uint32_t
    due: int64_t
    run: bint = False
    lost: bint = False
    more: bint = True
    while more:
        expired = NULL
        count = 0
        parked = 0
        spin_lock(address(actor.lock))
        if _is_lost(actor, now):
            lost = True
        while count < FIRED_MAX:
            request = mailbox_expired(actor, now)
            if request == NULL:
                break
            request.next = expired
            expired = request
            count += 1
            parked += request.parked
        more = count == FIRED_MAX
        if not more:
            if actor.pause_until_ns and actor.pause_until_ns <= now:
                actor.pause_until_ns = 0
                run = True
            due = mailbox_due(actor)
            if actor.pause_until_ns and (due == 0 or actor.pause_until_ns < due):
                due = actor.pause_until_ns
            timers_taken(address(system.timers), actor)
            if due:
                actor_arm(actor, due)
        spin_unlock(address(actor.lock))
        check(
            at_sub32(address(system.parked), parked) >= parked,
            b"deadlines I2 parked requests whose time is over were counted",
            parked,
            actor.a,
        )
        at_add64(address(system.holds_ended), parked)
        at_add64(address(system.dropped_deadline), count - parked)
        answered += count
        _answer_reversed(expired)
    if lost:
        at_add64(address(system.wakes_lost), 1)
        actor_schedule(actor)
    if run:
        run_queue_put(system, actor)  # the reference of its schedule goes along
    return answered


@cfunc
@nogil
@exceptval(check=False)
def _answer_reversed(chain: pointer[request_t]) -> void:
    """Answers a chain that was built at its front: earliest deadline first."""
    first: pointer[request_t] = NULL
    following: pointer[request_t]
    while chain != NULL:
        following = chain.next
        chain.next = first
        first = chain
        chain = following
    while first != NULL:
        following = first.next
        request_answer(first, OUTCOME_EMPTY if first.parked else OUTCOME_EXPIRED)
        first = following


# --- samples ----------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _sample_actor(actor: pointer[actor_t], at: uint32_t) -> void:
    total: uint64_t = at_load64(address(actor.total_ns))
    busy: bint
    idle: uint32_t
    i: uint32_t
    spin_lock(address(actor.lock))
    busy = at_load32(address(actor.state)) == STATE_SCHEDULED and actor.pause_until_ns == 0
    spin_unlock(address(actor.lock))
    idle = at_swap32(address(actor.went_idle), not busy)
    i = at % WINDOW_SECONDS
    actor.window[i] = cast(uint32_t, (total - actor.sampled_ns) * WEIGHT_DEFAULT // at_load32(address(actor.weight)) // 1000)
    actor.sampled_ns = total
    actor.backlogged = cast(uint16_t, ((actor.backlogged << 1) | (busy and not idle)) & WHOLE_WINDOW)


@cfunc
@nogil
@exceptval(check=False)
def _sample(system: pointer[actor_system_t]) -> void:
    """Jain's index and the largest lag over the actors that had work during the whole window. Weighted time of each second,
    microseconds."""
    shard: pointer[shard_t]
    actor: pointer[actor_t]
    s: uint32_t
    i: uint32_t
    k: uint32_t
    one: double
    ten: double
    count_1: uint32_t = 0
    count_10: uint32_t = 0
    total_1: double = 0
    squares_1: double = 0
    least_1: double = 0
    total_10: double = 0
    squares_10: double = 0
    least_10: double = 0
    quantum: double = system.quantum_ns / 1000.0
    system.second += 1
    for s in range(TABLE_SHARDS):
        shard = address(system.shards[s])
        spin_lock(address(shard.lock))
        for i in range(shard.mask + 1 if shard.buckets != NULL else 0):
            actor = shard.buckets[i]
            while actor != NULL:
                _sample_actor(actor, system.second)
                if actor.backlogged & 1:
                    one = actor.window[system.second % WINDOW_SECONDS]
                    if count_1 == 0 or one < least_1:
                        least_1 = one
                    count_1 += 1
                    total_1 += one
                    squares_1 += one * one
                if actor.backlogged == WHOLE_WINDOW:
                    ten = 0
                    for k in range(WINDOW_SECONDS):
                        ten += actor.window[k]
                    if count_10 == 0 or ten < least_10:
                        least_10 = ten
                    count_10 += 1
                    total_10 += ten
                    squares_10 += ten * ten
                actor = actor.table_next
        spin_unlock(address(shard.lock))
    spin_lock(address(system.figures_lock))
    system.backlogged = count_1
    system.jain_1 = jain_index(total_1, squares_1, count_1)
    system.jain_10 = jain_index(total_10, squares_10, count_10)
    system.lag_1 = (total_1 / count_1 - least_1) / quantum if count_1 else 0.0
    system.lag_10 = (total_10 / count_10 - least_10) / quantum if count_10 else 0.0
    spin_unlock(address(system.figures_lock))


@cfunc
@nogil
@exceptval(check=False)
def _sample_if_busy(system: pointer[actor_system_t]) -> void:
    """After eleven quiet seconds all windows are empty: nothing changes any more."""
    if at_swap32(address(system.ran), 0) or system.backlogged:
        system.quiet = 0
    if system.quiet <= WINDOW_SECONDS:
        system.quiet += 1
        _sample(system)


# --- the clock's faces ------------------------------------------------------------------------------------------------


def system_tick(system: pointer[actor_system_t], now_ns: int64_t) -> uint64_t:
    fired: pointer[actor_t][64]
    count: uint32_t
    i: uint32_t
    answered: uint64_t = 0
    while True:
        count = timers_take(address(system.timers), now_ns, fired, FIRED_MAX)
        for i in range(count):
            answered += _fire(system, fired[i], now_ns)
            actor_put(fired[i])
        if count < FIRED_MAX:
            break
    if now_ns >= system.sample_ns:
        _sample_if_busy(system)
        system.sample_ns += NS_PER_SECOND
        if system.sample_ns <= now_ns:
            system.sample_ns = now_ns + NS_PER_SECOND
    if system.idle_ns and now_ns >= system.sweep_ns:
        table_sweep(system, system.sweep_at, now_ns - system.idle_ns)
        system.sweep_at = (system.sweep_at + 1) % TABLE_SHARDS
        system.sweep_ns = now_ns + system.idle_ns // TABLE_SHARDS
    return answered


@cfunc
@nogil
@exceptval(check=False)
def _regular(system: pointer[actor_system_t]) -> int64_t:
    """When the next sample or sweep is due; 0: there are no actors."""
    if at_load32(address(system.actors)) == 0:
        return 0
    if system.idle_ns and system.sweep_ns < system.sample_ns:
        return system.sweep_ns
    return system.sample_ns


def system_next_ns(system: pointer[actor_system_t]) -> int64_t:
    at_ns: int64_t = timers_next(address(system.timers))
    regular: int64_t = _regular(system)
    if at_ns == 0 or (regular and regular < at_ns):
        return regular
    return at_ns


def timers_run(system: pointer[actor_system_t]) -> void:
    signal: uint32_t
    while True:
        signal = at_load32(address(system.timers.signal))
        if at_load32(address(system.stopping)):
            return
        system_tick(system, system_now(system))
        timers_sleep(address(system.timers), signal, _regular(system), system_now(system))


# --- the end ----------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _unschedule(actor: pointer[actor_t]) -> void:
    """A closed actor whose entry was taken away by us."""
    state: uint32_t
    while True:
        state = at_load32(address(actor.state))
        if at_cas32(address(actor.state), state, state & ~cast(uint32_t, STATE_SCHEDULED)):
            break
    actor_finish_close(actor)
    actor_put(actor)


def system_close_all(system: pointer[actor_system_t]) -> void:
    actors: pointer[actor_t][64]
    actor: pointer[actor_t]
    count: uint32_t
    i: uint32_t
    s: uint32_t
    runnable: uint32_t = 0
    at_store32(address(system.stopping), 1)  # nobody makes new ones from here on
    for s in range(TABLE_SHARDS):
        while True:
            count = table_some(system, s, actors, FIRED_MAX)
            for i in range(count):
                actor_close(actors[i])
                # No worker runs: it need not stay until its slice is over.
                actor_finish_close(actors[i])
                actor_put(actors[i])
            if count == 0:
                break
    while True:
        actor = run_queue_take(system, address(system.workers[0]), address(runnable))
        if actor == NULL:
            break
        system.workers[0].running = NULL
        _unschedule(actor)
    while True:
        actor = timers_take_any(address(system.timers))
        if actor == NULL:
            break
        timers_taken(address(system.timers), actor)
        if actor.pause_until_ns:
            actor.pause_until_ns = 0
            _unschedule(actor)
        actor_put(actor)
