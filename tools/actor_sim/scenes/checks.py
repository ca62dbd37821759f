# ruff: noqa -- compiled: types come from the .pxd
"""The twelve properties of the actor system, watched from inside of a simulated run.

in: the scene's model and the scheduler's own records. out: sim_fail with a text that begins with the property's number.
Invariant: nothing here is a site, so no other virtual thread runs in the middle of a look.
"""

from __future__ import annotations

from cython import NULL, address, bint, int as c_int, cast, cfunc, declare, exceptval, nogil, pointer, sizeof, uchar, void
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.string import memset
from cython.cimports.flintmq.actor_sim.runtime import sim_fail, sim_locked, sim_now
from cython.cimports.flintmq.actor_sim.scene import (
    ASK_AGAIN,
    ASK_DONE,
    ASK_FAIL,
    ASK_FILTER,
    ASK_HAND,
    ASK_TAKE,
    MIX_CANCEL,
    MIX_CLOSE,
    MIX_MEMORY,
    MIX_RETIRE,
    ask_t,
    key_t,
    scene_t,
)
from cython.cimports.flintmq.scheduler.actor import (
    HOLD_NONE,
    OUTCOME_BUSY,
    OUTCOME_CLOSED,
    OUTCOME_EMPTY,
    OUTCOME_EXPIRED,
    OUTCOME_FAILED,
    OUTCOME_FILTERED_EMPTY,
    OUTCOME_INVALID,
    OUTCOME_MESSAGES,
    PLACE_AGAIN,
    POLICY_LAST_RUN,
    POLICY_TOTAL,
    POLICY_VRUNTIME,
    PROCESS_AGAIN,
    PROCESS_FAILED,
    STATE_CLOSED,
    STATE_SCHEDULED,
    STATE_SUSPEND,
    SUSPENSIONS_MAX,
    TABLE_SHARDS,
    actor_system_t,
    actor_t,
    list_t,
    request_t,
    run_entry_t,
)

# What is due is done within two ticks of the wheel, 1 ms each. But the simulated clock jumps by up to 6 ms between any two sites, as if the machine
# had taken a thread off its core: a timer thread that is taken off between its look at the clock and its sleep sleeps that much too long. So
# lateness counts from when it is first seen, and what was forgotten is later by far: the timer wakes by itself after a second only.
LATE_NS = declare(int64_t, 150_000_000)
KEYS = declare(c_int, 4)  # KEYS_MAX; keys are their own numbers


def check_enter(scene: pointer[scene_t], actor: pointer[actor_t], ask: pointer[ask_t]) -> void:
    key: pointer[key_t] = address(scene.key[ask.key])
    i: uint32_t
    mark: uint64_t = 0
    scene.looks += 1
    key.looks += 1
    if key.inside:
        sim_fail(b"1 mutual exclusion: process() of one actor overlaps itself")
        return
    key.inside = 1
    if ask.answers:
        sim_fail(b"5 exactly one answer: an answered request is processed")
        return
    if ask.looks == 0:
        if ask.number <= key.first_seen[ask.producer]:
            sim_fail(b"6 FIFO: a later request of the same producer was looked at first")
            return
        key.first_seen[ask.producer] = ask.number
    ask.looks += 1
    if key.again != NULL and key.again != ask and key.again.answers == 0 and key.again.request.place == PLACE_AGAIN:
        sim_fail(b"8 slice: a request that said AGAIN does not come first")
        return
    key.again = NULL
    if key.suspensions:
        # The suspension may have come after the worker's look at the state word: one start is allowed, a second is not.
        key.starts += 1
        if key.starts > 1:
            sim_fail(b"7 suspend: a suspended actor goes on")
            return
    if sim_now() < key.rest_until_ns and key.closes == 0:
        sim_fail(b"10 poison: an actor that failed is run before its pause is over")
        return
    for i in range(scene.workers):
        if scene.system.workers[i].running == actor:
            if mark:
                sim_fail(b"1 mutual exclusion: two workers run one actor")
                return
            mark = (cast(uint64_t, i + 1) << 56) | scene.system.workers[i].slices
    if mark == 0:
        sim_fail(b"2 one entry: no worker knows that it runs this actor")
        return
    if mark == key.slice_mark:
        if key.slice_over:
            sim_fail(b"8 slice: it goes on after a request ended past the quantum, failed, or said AGAIN")
            return
    else:
        key.slice_mark = mark
        key.slice_burnt_ns = 0
        key.slice_over = 0
    check_moment(scene)


def check_leave(scene: pointer[scene_t], actor: pointer[actor_t], ask: pointer[ask_t], result: c_int) -> void:
    """`ask` may be answered: only its own fields are read."""
    key: pointer[key_t] = address(scene.key[ask.key])
    pause: int64_t
    key.slice_burnt_ns += ask.burn_ns
    # Clock readings take time that is no CPU time here: the scheduler's sum is a few hundred nanoseconds less than this one.
    if key.slice_burnt_ns >= scene.quantum_ns + 50_000 or result == PROCESS_AGAIN or result == PROCESS_FAILED:
        key.slice_over = 1
    if result == PROCESS_AGAIN:
        key.again = ask
    if result == PROCESS_FAILED:
        # A new actor of the key knows nothing of the failures of the old one.
        pause = scene.system.pause_ns << (0 if scene.mix & (MIX_RETIRE | MIX_CLOSE) else (key.fails if key.fails < 20 else 20))
        key.fails += 1
        key.failures += 1
        key.rest_until_ns = sim_now() + (pause if pause < scene.system.pause_max_ns else scene.system.pause_max_ns)
    else:
        key.fails = 0
    if not key.inside:
        sim_fail(b"1 mutual exclusion: process() of one actor overlapped itself")
        return
    key.inside = 0
    check_moment(scene)


def check_answer(scene: pointer[scene_t], ask: pointer[ask_t]) -> void:
    key: pointer[key_t] = address(scene.key[ask.key])
    outcome: uint32_t = ask.request.outcome
    hold: int64_t = ask.request.hold_ns
    deadline: int64_t = ask.request.deadline_ns
    now: int64_t = sim_now()
    right: bint = False
    # Early only by the actor's usual service time, from which each early answer takes an eighth.
    usual: int64_t = ask.request.actor.service_p50_ns
    near: int64_t = usual + usual // 6 + 20
    ask.answers += 1
    if ask.answers > 1:
        sim_fail(b"5 exactly one answer: a request was answered twice")
        return
    ask.outcome = outcome
    ask.answered_ns = now
    key.ended += 1
    if outcome == OUTCOME_MESSAGES:
        right = ask.looks > 0 and (
            ask.kind == ASK_DONE or ask.kind == ASK_AGAIN or ask.kind == ASK_HAND or (ask.kind == ASK_TAKE and ask.taken)
        )
    elif outcome == OUTCOME_FILTERED_EMPTY:
        right = ask.looks > 0 and ask.kind == ASK_FILTER
    elif outcome == OUTCOME_EMPTY:
        right = ask.kind == ASK_TAKE and not ask.taken and ask.looks > 0
        if hold >= 0:
            right = right and ((hold > 0 and now >= hold) or (deadline != 0 and now + near >= deadline))
    elif outcome == OUTCOME_EXPIRED:
        right = deadline != 0 and now + near >= deadline and not ask.taken
    elif outcome == OUTCOME_INVALID:
        right = ask.cancelling > 0
    elif outcome == OUTCOME_FAILED:
        right = ask.kind == ASK_FAIL and ask.looks > 0
    elif outcome == OUTCOME_CLOSED:
        right = key.closes > 0 or scene.stopping
    elif outcome == OUTCOME_BUSY:
        right = (scene.mix & MIX_MEMORY) != 0
    if not right:
        sim_fail(b"5 exactly one answer: an outcome that nothing explains")


@cfunc
@nogil
@exceptval(check=False)
def _length(items: pointer[list_t]) -> int64_t:
    """Walks a list; -1: its links do not fit."""
    count: int64_t = 0
    request: pointer[request_t] = items.first
    before: pointer[request_t] = NULL
    while request != NULL:
        if request.prev != before or count > 100_000:
            return -1
        before = request
        request = request.next
        count += 1
    return count if items.last == before or count == 0 else -1


@cfunc
@nogil
@exceptval(check=False)
def _check_actor(scene: pointer[scene_t], actor: pointer[actor_t]) -> void:
    suspended: uint32_t = actor.state // STATE_SUSPEND
    mailed: int64_t
    waiting: int64_t
    woken: int64_t
    if suspended > SUSPENSIONS_MAX:
        sim_fail(b"12 state word: outside of the legal set")
        return
    if actor.lock:
        return
    mailed = _length(address(actor.mailbox))
    waiting = _length(address(actor.waiters))
    woken = _length(address(actor.woken))
    if mailed > scene.mailbox_max:
        sim_fail(b"6 mailbox: longer than its bound")
    elif mailed != actor.mailbox.count or waiting < 0 or woken < 0:
        sim_fail(b"6 mailbox: a list is torn")
    elif actor.waiting != waiting + woken:
        sim_fail(b"4 wake: the number of waiters is wrong")


def check_moment(scene: pointer[scene_t]) -> void:
    system: pointer[actor_system_t] = scene.system
    entries: pointer[run_entry_t] = system.queue.entries
    actor: pointer[actor_t]
    i: uint32_t
    k: uint32_t
    if system.queue.lock == 0:
        if system.queue.vmin < scene.vmin:
            sim_fail(b"9 virtual time went back")
            return
        scene.vmin = system.queue.vmin
        for i in range(system.queue.count):
            actor = entries[i].actor
            if i and (
                entries[i].key < entries[(i - 1) // 2].key
                or (entries[i].key == entries[(i - 1) // 2].key and entries[i].ticket < entries[(i - 1) // 2].ticket)
            ):
                sim_fail(b"2 one entry: the run queue is out of order")
                return
            if not actor.state & STATE_SCHEDULED:
                sim_fail(b"2 one entry: an actor in the run queue is not SCHEDULED")
                return
            if (
                (
                    system.queue.policy == POLICY_VRUNTIME and entries[i].key != actor.vrun and actor.total_ns
                )  # a newcomer stands before its own
                or (system.queue.policy == POLICY_TOTAL and entries[i].key != actor.total_ns)
                or (system.queue.policy == POLICY_LAST_RUN and entries[i].key != actor.last_run_ns)
            ):
                sim_fail(b"2 one entry: the key of a queued actor changed")
                return
            for k in range(i):
                if entries[k].actor == actor:
                    sim_fail(b"2 one entry: an actor is twice in the run queue")
                    return
            for k in range(scene.workers):
                if system.workers[k].running == actor:
                    sim_fail(b"2 one entry: an actor that runs is in the run queue")
                    return
    for i in range(scene.keys):
        if scene.key[i].held != NULL:
            _check_actor(scene, scene.key[i].held)


def check_quiet(scene: pointer[scene_t], now: int64_t) -> void:
    system: pointer[actor_system_t] = scene.system
    actor: pointer[actor_t]
    ask: pointer[ask_t]
    key: pointer[key_t]
    end: int64_t
    stopped_keys: uint32_t = 0  # bit set: suspended or pausing
    i: uint32_t
    k: uint32_t
    if sim_locked():
        sim_fail(b"3 no lost work: deadlock, all wait for a spin lock")
        return
    if system.stopping:
        return
    check_moment(scene)
    if system.queue.count:
        sim_fail(b"3 no lost work: all workers sleep and the run queue is not empty")
        return
    for i in range(scene.keys):
        key = address(scene.key[i])
        actor = key.held
        if actor == NULL or key.inside or actor.state & STATE_SCHEDULED and not actor.pause_until_ns:
            continue
        if actor.served != key.looks or actor.failed != key.failures or (key.looks and actor.total_ns == 0):
            sim_fail(b"9 charge: an actor's figures do not add up")
            return
    for i in range(TABLE_SHARDS):
        if system.shards[i].count == 0:
            continue
        for k in range(system.shards[i].mask + 1):
            actor = system.shards[i].buckets[k]
            while actor != NULL:
                _check_actor(scene, actor)
                key = address(scene.key[actor.a % KEYS])
                if not actor.state & STATE_CLOSED and actor.state // STATE_SUSPEND != key.suspensions:
                    sim_fail(b"7 suspend: the count is not that of the tokens in force")
                    return
                if not actor.state & STATE_SCHEDULED or actor.pause_until_ns == 0 or now <= actor.pause_until_ns:
                    key.late_ns = 0
                elif key.late_ns == 0 or key.late_pause_ns != actor.pause_until_ns:
                    key.late_ns = now
                    key.late_pause_ns = actor.pause_until_ns
                elif now > key.late_ns + LATE_NS:
                    sim_fail(b"10 poison: the pause is over and the actor is not run")
                    return
                if actor.state // STATE_SUSPEND or (actor.state & STATE_SCHEDULED and actor.pause_until_ns):
                    stopped_keys |= cast(uint32_t, 1) << (actor.a % KEYS)
                elif actor.state & STATE_SCHEDULED:
                    sim_fail(b"12 state word: SCHEDULED, but neither queued nor running nor pausing")
                    return
                elif actor.mailbox.count or actor.again != NULL or actor.woken.first != NULL:
                    sim_fail(b"3 no lost work: all workers sleep and a request waits")
                    return
                actor = actor.table_next
    for i in range(scene.asked):
        ask = address(scene.asks[i])
        if ask.accepted != 1 or ask.answers or ask.handed:
            continue
        key = address(scene.key[ask.key])
        if ask.kind == ASK_TAKE and key.stock and not stopped_keys & (cast(uint32_t, 1) << ask.key):
            sim_fail(b"4 no lost wake: there are items, and a request sleeps")
            return
        if ask.looks and ask.kind != ASK_TAKE:
            continue
        end = ask.request.deadline_ns
        if ask.looks and ask.request.hold_ns > 0:
            end = ask.request.hold_ns
        if end and now > end and ask.late_ns == 0:
            ask.late_ns = now
        elif end and now > end and now > ask.late_ns + LATE_NS:
            sim_fail(b"5 exactly one answer: its time is over and it was not answered")
            return


def check_end(scene: pointer[scene_t]) -> void:
    system: pointer[actor_system_t] = scene.system
    ask: pointer[ask_t]
    i: uint32_t
    byte: uint32_t
    raw: pointer[uchar]
    outcomes: uint64_t = 0
    for i in range(scene.asked):
        ask = address(scene.asks[i])
        if ask.answers != (1 if ask.accepted == 1 else 0):
            sim_fail(
                b"5 exactly one answer: none was given" if ask.accepted == 1 else b"5 exactly one answer: a refused request was answered"
            )
            return
        if ask.answers and not scene.mix & MIX_CANCEL:
            raw = cast(pointer[uchar], address(ask.request))
            for byte in range(sizeof(request_t)):
                if raw[byte] != 0xEE:
                    sim_fail(b"5 exactly one answer: a request was touched after its answer")
                    return
    for i in range(scene.keys):
        if scene.key[i].stock + scene.key[i].taken != scene.key[i].appended:
            sim_fail(b"3 no lost work: items were lost or doubled")
            return
    if system.wakes_lost:
        sim_fail(b"4 no lost wake: a timer found what a wake should have")
        return
    for i in range(9):
        outcomes += system.outcomes[i]
    if outcomes != scene.accepted or system.dispatched != scene.accepted:
        sim_fail(b"5 exactly one answer: the figures do not add up")
        return
    if (
        system.refused_busy != scene.refused_busy
        or system.suspended != scene.suspends
        or system.resumed != scene.resumes
        or system.resumed_stale != scene.resumes_stale
        or system.wakes != scene.wakes
        or system.retired != scene.retires
        or system.paused != scene.failures
        or system.outcomes[OUTCOME_FAILED] != scene.failures
    ):
        sim_fail(b"5 exactly one answer: the figures do not add up")
    elif system.parked:
        sim_fail(b"5 exactly one answer: the gauge of parked requests is not zero at the end")
    elif system.actors or system.alive:
        sim_fail(b"11 retire: actors are left over at the end")
