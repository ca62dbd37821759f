# ruff: noqa -- compiled: types come from the .pxd
"""Virtual threads that use an actor system in all ways at once: producers, wakers, suspenders, cancellers, an answering thread.

in: a scene_t. out: calls of the scheduler; what is known of each request goes into the model that checks.py watches. Random numbers come from
the simulation's seed only.
"""

from __future__ import annotations

from cython import NULL, address, int as c_int, cast, cfunc, declare, exceptval, inline, nogil, p_void, pointer, sizeof, void
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.string import memset
from cython.cimports.flintmq.actor_sim.checks import check_answer, check_enter, check_leave
from cython.cimports.flintmq.actor_sim.run import scene_stop
from cython.cimports.flintmq.actor_sim.runtime import sim_burn, sim_fail, sim_now, sim_random, sim_wait
from cython.cimports.flintmq.core.atomics import at_add64, at_load64, at_sub64, at_yield
from cython.cimports.flintmq.scheduler.actor import (
    DISPATCH_BUSY,
    DISPATCH_OK,
    HOLD_NONE,
    OUTCOME_FILTERED_EMPTY,
    OUTCOME_INVALID,
    OUTCOME_MESSAGES,
    PROCESS_AGAIN,
    PROCESS_DONE,
    PROCESS_FAILED,
    PROCESS_PARK,
    TABLE_SHARDS,
    actor_close,
    actor_dispatch,
    actor_get,
    actor_put,
    actor_resume,
    actor_retire,
    actor_suspend,
    actor_t,
    actor_wake,
    actor_wake_next,
    request_answer,
    request_cancel,
    request_t,
    system_dispatch,
)
from cython.cimports.flintmq.scheduler.actor_table import table_sweep
from cython.cimports.flintmq.scheduler.deadlines import timers_run
from cython.cimports.flintmq.scheduler.worker import worker_run

SPACE = declare(uint32_t, 0)  # ACTORS_TEST
FAR = declare(int64_t, 0x7FFFFFFFFFFFFFFF)  # later than any time of a run


@cfunc
@inline
@nogil
@exceptval(check=False)
def _pick(below: uint64_t) -> uint32_t:
    return cast(uint32_t, sim_random() % below)


# --- requests -------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _process(actor: pointer[actor_t], request: pointer[request_t]) -> c_int:
    ask: pointer[ask_t] = cast(pointer[ask_t], request)
    scene: pointer[scene_t] = ask.scene
    key: pointer[key_t] = address(scene.key[ask.key])
    result: c_int = PROCESS_DONE
    check_enter(scene, actor, ask)
    at_yield()
    sim_burn(ask.burn_ns)
    if ask.kind == ASK_TAKE:
        # One actor is one reader: nobody else takes from this store.
        if at_load64(address(key.stock)):
            at_sub64(address(key.stock), 1)
            key.taken += 1
            ask.taken = 1
            request_answer(request, OUTCOME_MESSAGES)
        else:
            at_yield()
            result = PROCESS_PARK
    elif ask.kind == ASK_AGAIN and ask.steps:
        ask.steps -= 1
        result = PROCESS_AGAIN
    elif ask.kind == ASK_FAIL:
        result = PROCESS_FAILED
        scene.failures += 1
    elif ask.kind == ASK_HAND:
        ask.handed = 1
        scene.held += 1
    else:
        request_answer(request, OUTCOME_FILTERED_EMPTY if ask.kind == ASK_FILTER else OUTCOME_MESSAGES)
    at_yield()
    check_leave(scene, actor, ask, result)
    return result


@cfunc
@nogil
@exceptval(check=False)
def _answer(request: pointer[request_t]) -> void:
    ask: pointer[ask_t] = cast(pointer[ask_t], request)
    check_answer(ask.scene, ask)
    at_yield()
    # From here on nobody may touch it, except who cancels.
    if not ask.scene.mix & MIX_CANCEL:
        memset(request, 0xEE, sizeof(request_t))


@cfunc
@nogil
@exceptval(check=False)
def _make(scene: pointer[scene_t], producer: uint32_t, number: uint32_t) -> pointer[ask_t]:
    ask: pointer[ask_t]
    pick: uint32_t
    now: int64_t = sim_now()
    if scene.asked == ASKS_MAX:
        return NULL
    ask = address(scene.asks[scene.asked])
    scene.asked += 1
    ask.scene = scene
    ask.key = _pick(scene.keys)
    ask.producer = producer
    ask.number = number
    ask.kind = ASK_DONE
    ask.request.process = _process
    ask.request.answer = _answer
    pick = _pick(16)
    if scene.mix & MIX_PARK and pick < 8:
        ask.kind = ASK_TAKE
    elif scene.mix & MIX_AGAIN and pick < 10:
        ask.kind = ASK_AGAIN
        ask.steps = 1 + _pick(3)
    elif scene.mix & MIX_FAIL and pick < 12:
        ask.kind = ASK_FAIL
    elif scene.mix & MIX_HAND and pick < 13:
        ask.kind = ASK_HAND
    elif pick == 13:
        ask.kind = ASK_FILTER
    if scene.mix & MIX_LONG:
        pick = _pick(8)
        ask.burn_ns = 6_000_000 if pick == 0 else (2_000_000 if pick < 3 else (100_000 if pick < 5 else 0))
    if scene.mix & MIX_TIMES:
        pick = _pick(8)
        if pick < 3:
            ask.request.deadline_ns = now + 1_000_000 + _pick(30_000_000)
        if pick == 2 or pick == 3:
            ask.request.hold_ns = now + 500_000 + _pick(20_000_000)
            if ask.request.deadline_ns:
                ask.request.deadline_ns += 25_000_000
        elif pick == 4:
            ask.request.hold_ns = HOLD_NONE
    return ask


@cfunc
@nogil
@exceptval(check=False)
def _dispatch(scene: pointer[scene_t], producer: uint32_t, number: uint32_t) -> void:
    ask: pointer[ask_t] = _make(scene, producer, number)
    key: pointer[key_t]
    actor: pointer[actor_t] = NULL
    result: c_int
    ended: uint64_t
    most: uint64_t
    told: uint32_t = 1  # the system counts what it refuses
    if ask == NULL:
        return
    key = address(scene.key[ask.key])
    key.started += 1
    ended = key.ended
    ask.sent_ns = sim_now()
    ask.accepted = 1  # it may be answered before dispatch returns
    if key.held != NULL and _pick(2):
        result = actor_dispatch(key.held, address(ask.request))
    elif _pick(2):
        result = system_dispatch(scene.system, SPACE, ask.key, 0, 0, address(ask.request))
    else:
        actor = actor_get(scene.system, SPACE, ask.key, 0, 0)
        if actor == NULL:
            told = 0
            result = DISPATCH_BUSY
            if not scene.mix & MIX_MEMORY and not scene.stopping:
                sim_fail(b"11 retire: no actor for a key")
        else:
            result = actor_dispatch(actor, address(ask.request))
            actor_put(actor)
    if result == DISPATCH_OK:
        scene.accepted += 1
        return
    most = key.started - ended - 1
    key.ended += 1
    ask.accepted = 2
    if ask.answers:
        sim_fail(b"5 exactly one answer: a refused request was answered")
    elif result == DISPATCH_BUSY:
        scene.refused_busy += told
        if most < scene.mailbox_max and not scene.mix & MIX_MEMORY and not scene.stopping:
            sim_fail(b"6 mailbox: BUSY although there was room")
    else:
        scene.refused_closed += 1
        # A retired actor is made anew by system_dispatch; who holds a reference is told.
        if not scene.stopping and not key.closes and (not scene.mix & MIX_RETIRE or actor == NULL):
            sim_fail(b"11 retire: CLOSED although nobody closed it")


# --- what producers do ----------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _append(scene: pointer[scene_t], number: uint32_t, count: uint32_t) -> void:
    key: pointer[key_t] = address(scene.key[number])
    actor: pointer[actor_t] = key.held
    key.appended += count
    at_add64(address(key.stock), count)
    if actor == NULL:
        actor = actor_get(scene.system, SPACE, number, 0, 0)
        if actor == NULL:
            return
    scene.wakes += 1
    if scene.mix & MIX_WAKE_NEXT:
        actor_wake_next(actor)
    else:
        actor_wake(actor)
    if key.held == NULL:
        actor_put(actor)


@cfunc
@nogil
@exceptval(check=False)
def _cancel(scene: pointer[scene_t]) -> void:
    ask: pointer[ask_t]
    if scene.asked == 0:
        return
    ask = address(scene.asks[_pick(scene.asked)])
    if ask.accepted != 1 or ask.request.actor == NULL or ask.answers or ask.cancelling:
        return
    if scene.key[ask.key].held == NULL:
        return  # its actor may be gone: the caller must know that it is not
    ask.cancelling += 1
    if request_cancel(address(ask.request)):
        ask.cancelled = 1
        if ask.answers != 1 or ask.outcome != OUTCOME_INVALID:
            sim_fail(b"5 exactly one answer: cancelled, but not answered INVALID")
    elif ask.answers and ask.outcome == OUTCOME_INVALID:
        sim_fail(b"5 exactly one answer: INVALID, but request_cancel said false")


def scene_producer(raw: p_void) -> void:
    part: pointer[part_t] = cast(pointer[part_t], raw)
    scene: pointer[scene_t] = part.scene
    mix: uint32_t = scene.mix
    i: uint32_t
    number: uint32_t = 0
    choice: uint32_t
    at: uint32_t
    shard: uint32_t
    swept: uint32_t
    token: uint64_t = 0
    token_key: pointer[key_t] = NULL
    token_actor: pointer[actor_t] = NULL
    actor: pointer[actor_t]
    for i in range(scene.operations + 1):
        choice = _pick(32) if i < scene.operations else 99
        at = _pick(scene.keys)
        if token and (choice == 99 or choice >= 30):
            token_key.suspensions -= 1
            if not token_key.suspensions:
                token_key.starts = 0
            if actor_resume(token_actor, token):
                scene.resumes += 1
            elif not scene.stopping:
                sim_fail(b"7 suspend: a good token is refused")
            if _pick(2):
                scene.resumes_stale += 1
                if actor_resume(token_actor, token):
                    sim_fail(b"7 suspend: a token is good twice")
            actor_put(token_actor)
            token = 0
        elif choice < 14:
            number += 1
            _dispatch(scene, part.number, number)
        elif choice < 20 and mix & MIX_PARK:
            _append(scene, at, 1 + _pick(3))
        elif choice < 22 and mix & MIX_SUSPEND and not token:
            actor = actor_get(scene.system, SPACE, at, 0, 0)
            if actor != NULL:
                token = actor_suspend(actor)
                if token:
                    scene.suspends += 1
                    token_key = address(scene.key[at])
                    token_actor = actor
                    token_key.suspensions += 1
                    if token_key.suspensions == 1:
                        token_key.starts = 0
                else:
                    actor_put(actor)
        elif choice < 24 and mix & MIX_CANCEL:
            _cancel(scene)
        elif choice < 26 and mix & MIX_RETIRE:
            if _pick(8) == 0:  # as the timers' thread does it: all that have nothing to do and that nobody holds
                for shard in range(TABLE_SHARDS):
                    swept = table_sweep(scene.system, shard, FAR)  # not added in one step: others count meanwhile
                    scene.retires += swept
            else:
                actor = actor_get(scene.system, SPACE, at, 0, 0)
                if actor != NULL:
                    if actor_retire(actor):
                        scene.retires += 1
                    actor_put(actor)
        elif choice == 26 and mix & MIX_CLOSE:
            actor = actor_get(scene.system, SPACE, at, 0, 0)
            if actor != NULL:
                scene.key[at].closes += 1
                actor_close(actor)
                actor_put(actor)
        elif choice == 27 and mix & (MIX_TIMES | MIX_FAIL):
            # Sometimes for long, with the suspension in force: deadlines go on being answered.
            sim_wait(100_000 + _pick(8_000_000) if not token or _pick(3) else 600_000_000)
        elif choice == 28 and mix & MIX_STOP and _pick(4) == 0:
            if not scene.stopping:
                scene.stopping = 1
                scene_stop(scene)
        else:
            at_yield()
    scene.running -= 1


def scene_answerer(raw: p_void) -> void:
    """Answers what processes handed on, some time later."""
    scene: pointer[scene_t] = cast(pointer[part_t], raw).scene
    i: uint32_t
    while scene.workers_left <= scene.workers or scene.held:  # workers and the timer
        for i in range(scene.asked):
            if scene.asks[i].handed:
                at_yield()
                scene.asks[i].handed = 0
                scene.held -= 1
                request_answer(address(scene.asks[i].request), OUTCOME_MESSAGES)
        sim_wait(200_000 if scene.running else 20_000_000)


def scene_worker(raw: p_void) -> void:
    part: pointer[part_t] = cast(pointer[part_t], raw)
    worker_run(part.scene.system, part.number)
    part.scene.workers_left += 1


def scene_timer(raw: p_void) -> void:
    part: pointer[part_t] = cast(pointer[part_t], raw)
    timers_run(part.scene.system)
    part.scene.workers_left += 1
