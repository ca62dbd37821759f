"""The timer wheel of an actor system (see timers.pxd).

in: actors with their earliest times. out: actors whose time has come.

Four levels of 64 slots; a tick is a millisecond. An actor stands in the wheel at most once, at a time that is never later than its
earliest request's: requests that were answered before their time leave the entry as it is, and it is set anew when it fires. So a request
with a deadline costs the wheel nothing in the usual case.

I1  armed_ns != 0 exactly while the actor is in the wheel or taken out by timers_take and not yet given to timers_taken.
I2  An actor fires in the first tick that begins at or after its time: never early, late by less than a tick.
I3  Nothing armed is slept over: arming and going to sleep decide under the same lock.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add32, at_load64, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.futex import futex_wait, futex_wake
from cython.cimports.flintmq.scheduler.cpu_clock import lowest_bit
from cython.cimports.flintmq.scheduler.types import WHEEL_LEVELS, WHEEL_SLOTS, actor_t, timers_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.string import memset

TICK_NS = declare(int64_t, 1_000_000)
# ticks the wheel reaches ahead; a later time goes round
REACH = declare(int64_t, 64 * 64 * 64 * 64 - 1)
# actor_t.timer_slot of one that timers_take gave out
TAKEN = declare(uint32_t, 0xFFFFFFFF)
FOREVER = declare(int64_t, 0x7FFFFFFFFFFFFFFF)


def timers_start(timers: pointer[timers_t], now_ns: int64_t) -> void:
    memset(timers, 0, sizeof(timers_t))
    timers.tick = now_ns // TICK_NS


@cfunc
@nogil
@exceptval(check=False)
def _place(timers: pointer[timers_t], actor: pointer[actor_t], first: int64_t) -> void:
    """Into the slot of its time, but not before tick `first`."""
    due: int64_t = (cast(int64_t, actor.armed_ns) + TICK_NS - 1) // TICK_NS
    ahead: int64_t
    level: uint32_t = 0
    slot: uint32_t
    if due < first:
        due = first
    ahead = due - timers.tick
    if ahead > REACH:
        due = timers.tick + REACH
        ahead = REACH
    while ahead >= WHEEL_SLOTS:
        ahead >>= 6
        level += 1
    check(level < WHEEL_LEVELS, b"timers I1 the wheel reaches to the time of an actor", level, ahead)
    slot = cast(uint32_t, (due >> (6 * level)) & (WHEEL_SLOTS - 1))
    actor.timer_slot = level * WHEEL_SLOTS + slot
    actor.timer_prev = NULL
    actor.timer_next = timers.slots[level][slot]
    if actor.timer_next != NULL:
        actor.timer_next.timer_prev = actor
    timers.slots[level][slot] = actor
    timers.occupied[level] |= cast(uint64_t, 1) << slot


@cfunc
@nogil
@exceptval(check=False)
def _unlink(timers: pointer[timers_t], actor: pointer[actor_t]) -> void:
    level: uint32_t = actor.timer_slot // WHEEL_SLOTS
    slot: uint32_t = actor.timer_slot % WHEEL_SLOTS
    check(
        level < WHEEL_LEVELS and (actor.timer_prev != NULL or timers.slots[level][slot] == actor),
        b"timers I1 an actor that leaves the wheel stands in its slot",
        actor.timer_slot,
        actor.a,
    )
    if actor.timer_prev != NULL:
        actor.timer_prev.timer_next = actor.timer_next
    else:
        timers.slots[level][slot] = actor.timer_next
        if actor.timer_next == NULL:
            timers.occupied[level] &= ~(cast(uint64_t, 1) << slot)
    if actor.timer_next != NULL:
        actor.timer_next.timer_prev = actor.timer_prev
    actor.timer_next = NULL
    actor.timer_prev = NULL


def timers_arm(timers: pointer[timers_t], actor: pointer[actor_t], at_ns: int64_t) -> void:
    sleeper: bint = False
    armed: int64_t = cast(int64_t, at_load64(cast(pointer[uint64_t], address(actor.armed_ns))))
    if at_ns < 1:
        at_ns = 1
    # The usual case, without the lock. That the actor is taken out just now does no harm: the thread that takes it looks at the actor
    # afterwards.
    if armed and armed <= at_ns:
        return
    spin_lock(address(timers.lock))
    if actor.armed_ns == 0:
        at_add32(address(actor.refs), 1)
        timers.count += 1
    elif actor.timer_slot == TAKEN or actor.armed_ns <= at_ns:
        spin_unlock(address(timers.lock))
        return
    else:
        _unlink(timers, actor)
    at_store64(cast(pointer[uint64_t], address(actor.armed_ns)), cast(uint64_t, at_ns))
    _place(timers, actor, timers.tick + 1)
    if timers.sleep_until_ns > at_ns:
        timers.sleep_until_ns = at_ns
        at_add32(address(timers.signal), 1)
        sleeper = True
    spin_unlock(address(timers.lock))
    if sleeper:
        futex_wake(address(timers.signal), 1)


@cfunc
@nogil
@exceptval(check=False)
def _cascade(timers: pointer[timers_t]) -> void:
    """The tick has just come to a multiple of 64: the entries of the slots that begin here move down."""
    level: uint32_t = 1
    slot: uint32_t
    actor: pointer[actor_t]
    following: pointer[actor_t]
    tick: int64_t = timers.tick
    while level < WHEEL_LEVELS and tick & ((cast(int64_t, 1) << (6 * level)) - 1) == 0:
        slot = cast(uint32_t, (tick >> (6 * level)) & (WHEEL_SLOTS - 1))
        actor = timers.slots[level][slot]
        timers.slots[level][slot] = NULL
        timers.occupied[level] &= ~(cast(uint64_t, 1) << slot)
        while actor != NULL:
            following = actor.timer_next
            _place(timers, actor, tick)  # the slot of this tick fires after the cascade
            actor = following
        level += 1


def timers_take(timers: pointer[timers_t], now_ns: int64_t, actors: pointer[pointer[actor_t]], room: uint32_t) -> uint32_t:
    upto: int64_t = now_ns // TICK_NS
    taken: uint32_t = 0
    slot: uint32_t
    actor: pointer[actor_t]
    spin_lock(address(timers.lock))
    while taken < room:
        slot = cast(uint32_t, timers.tick & (WHEEL_SLOTS - 1))
        actor = timers.slots[0][slot]
        if actor != NULL:
            # Everything in the slot of the present tick is due: a slot is filled for one tick of the coming 63 only.
            _unlink(timers, actor)
            check(actor.armed_ns != 0 and timers.count > 0, b"timers I1 who fires is armed and counted", timers.count, actor.a)
            check(actor.armed_ns <= timers.tick * TICK_NS, b"timers I2 nobody fires early", actor.armed_ns, timers.tick)
            actor.timer_slot = TAKEN
            timers.count -= 1
            actors[taken] = actor
            taken += 1
            continue
        if timers.tick >= upto:
            break
        if timers.count == 0:
            timers.tick = upto
            break
        timers.tick += 1
        if timers.occupied[0] == 0 and timers.tick & (WHEEL_SLOTS - 1):
            timers.tick |= WHEEL_SLOTS - 1  # nothing until the next cascade
            if timers.tick > upto:
                timers.tick = upto
        elif timers.tick & (WHEEL_SLOTS - 1) == 0:
            _cascade(timers)
    spin_unlock(address(timers.lock))
    return taken


def timers_take_any(timers: pointer[timers_t]) -> pointer[actor_t]:
    actor: pointer[actor_t] = NULL
    level: uint32_t
    spin_lock(address(timers.lock))
    for level in range(WHEEL_LEVELS):
        if timers.occupied[level]:
            actor = timers.slots[level][lowest_bit(timers.occupied[level])]
            _unlink(timers, actor)
            actor.timer_slot = TAKEN
            check(timers.count > 0, b"timers I1 who is taken out was counted", timers.count, actor.a)
            timers.count -= 1
            break
    spin_unlock(address(timers.lock))
    return actor


def timers_taken(timers: pointer[timers_t], actor: pointer[actor_t]) -> void:
    spin_lock(address(timers.lock))
    check(actor.armed_ns != 0 and actor.timer_slot == TAKEN, b"timers I1 who is given back was taken out", actor.armed_ns, actor.timer_slot)
    at_store64(cast(pointer[uint64_t], address(actor.armed_ns)), 0)
    spin_unlock(address(timers.lock))


@cfunc
@nogil
@exceptval(check=False)
def _next(timers: pointer[timers_t]) -> int64_t:
    """Under the lock: when the first occupied slot fires or moves down; FOREVER: none."""
    level: uint32_t
    base: int64_t
    turn: uint32_t
    word: uint64_t
    tick: int64_t
    least: int64_t = FOREVER
    for level in range(WHEEL_LEVELS):
        word = timers.occupied[level]
        if word == 0:
            continue
        base = (timers.tick >> (6 * level)) + 1
        turn = cast(uint32_t, base & (WHEEL_SLOTS - 1))
        if turn:
            word = (word >> turn) | (word << (WHEEL_SLOTS - turn))
        tick = (base + lowest_bit(word)) << (6 * level)
        if tick < least:
            least = tick
    return least if least == FOREVER else least * TICK_NS


def timers_next(timers: pointer[timers_t]) -> int64_t:
    at_ns: int64_t
    spin_lock(address(timers.lock))
    at_ns = _next(timers)
    spin_unlock(address(timers.lock))
    return 0 if at_ns == FOREVER else at_ns


def timers_sleep(timers: pointer[timers_t], signal: uint32_t, until_ns: int64_t, now_ns: int64_t) -> void:
    ms: int64_t = SLEEP_MS_MAX
    at_ns: int64_t
    spin_lock(address(timers.lock))
    at_ns = _next(timers)
    if until_ns and until_ns < at_ns:
        at_ns = until_ns
    timers.sleep_until_ns = at_ns
    spin_unlock(address(timers.lock))
    if at_ns != FOREVER:
        ms = (at_ns - now_ns + TICK_NS - 1) // TICK_NS
        if ms > SLEEP_MS_MAX:
            ms = SLEEP_MS_MAX
    if ms > 0:
        futex_wait(address(timers.signal), signal, cast(c_int, ms))
    spin_lock(address(timers.lock))
    timers.sleep_until_ns = 0
    spin_unlock(address(timers.lock))


def timers_kick(timers: pointer[timers_t]) -> void:
    at_add32(address(timers.signal), 1)
    futex_wake(address(timers.signal), 1)
