# ruff: noqa -- compiled: types come from the .pxd
"""A crowd of groups whose consumers wait: what an idle actor and a parked request cost, and how fast a wake is answered.

in: numbers. out: figures in nanoseconds and bytes. Real threads only (plain build).
"""

from __future__ import annotations

from cython import NULL, address, int as c_int, cast, cfunc, exceptval, nogil, pointer, sizeof, void
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.flintmq.actor_sim.compat import make_system, stop_threads
from cython.cimports.flintmq.actor_sim.runtime import sim_now, sim_wait
from cython.cimports.flintmq.core.atomics import at_add64, at_load64, at_sub64
from cython.cimports.flintmq.core.atomics import at_load32
from cython.cimports.flintmq.scheduler.actor import (
    DISPATCH_OK,
    OUTCOME_MESSAGES,
    PROCESS_DONE,
    PROCESS_PARK,
    actor_dispatch,
    actor_get,
    actor_put,
    actor_t,
    actor_wake,
    actor_wake_next,
    request_answer,
    request_t,
)
from cython.cimports.flintmq.scheduler.system import ActorSystem


@cfunc
@nogil
@exceptval(check=False)
def _process(actor: pointer[actor_t], request: pointer[request_t]) -> c_int:
    one: pointer[wait_t] = cast(pointer[wait_t], request)
    crowd: pointer[crowd_t] = one.crowd
    if at_load64(address(crowd.stock[one.group])) == 0:
        return PROCESS_PARK
    at_sub64(address(crowd.stock[one.group]), 1)
    at_add64(address(crowd.messages), 1)
    request_answer(request, OUTCOME_MESSAGES)
    return PROCESS_DONE


@cfunc
@nogil
@exceptval(check=False)
def _answer(request: pointer[request_t]) -> void:
    one: pointer[wait_t] = cast(pointer[wait_t], request)
    one.answered_ns = sim_now()
    at_add64(address(one.crowd.answered), 1)


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@cfunc
@nogil
@exceptval(check=False)
def _wait_parked(crowd: pointer[crowd_t], wanted: uint32_t) -> void:
    i: c_int
    for i in range(20_000):
        if at_load32(address(crowd.system.parked)) >= wanted:
            return
        sim_wait(1_000_000)


@cfunc
@nogil
@exceptval(check=False)
def _wait_answered(crowd: pointer[crowd_t], wanted: uint64_t) -> void:
    i: c_int
    for i in range(200_000):
        if at_load64(address(crowd.answered)) >= wanted:
            return
        sim_wait(100_000)


def measure(groups: int, each: int, wakes: int, workers: int, hold_s: float) -> dict:
    """Parks `each` requests in each of `groups`, wakes `wakes` groups one by one, then all at once, then lets holds run out."""
    crowd: crowd_t
    count: uint32_t = groups
    per: uint32_t = each
    total: uint32_t = groups * each
    i: uint32_t
    k: uint32_t
    one: pointer[wait_t]
    begin: int64_t
    told: dict = {}
    system: ActorSystem = make_system("vruntime", workers, None)
    crowd.system = system.system
    crowd.answered = 0
    crowd.messages = 0
    crowd.actors = cast(pointer[pointer[actor_t]], calloc(count, sizeof(pointer[actor_t])))
    crowd.stock = cast(pointer[uint64_t], calloc(count, 8))
    crowd.waits = cast(pointer[wait_t], calloc(total, sizeof(wait_t)))
    for i in range(total):  # touched before sizes are taken
        crowd.waits[i].crowd = address(crowd)
        crowd.waits[i].group = i % count
        crowd.waits[i].request.process = _process
        crowd.waits[i].request.answer = _answer
    system.start()
    before: int = _resident()
    begin = sim_now()
    with nogil:
        for i in range(count):
            crowd.actors[i] = actor_get(crowd.system, 0, i + 1, 0, 0)
    told["actor_ns"] = (sim_now() - begin) / groups
    told["actor_bytes"] = (_resident() - before) / groups
    before = _resident()
    end: int64_t = sim_now() + 600_000_000_000
    begin = sim_now()
    with nogil:
        for i in range(total):
            crowd.waits[i].request.hold_ns = end
            actor_dispatch(crowd.actors[crowd.waits[i].group], address(crowd.waits[i].request))
    told["dispatch_ns"] = (sim_now() - begin) / total
    with nogil:
        _wait_parked(address(crowd), total)
    told["park_s"] = (sim_now() - begin) / 1e9
    told["parked"] = crowd.system.parked
    told["parked_bytes"] = (_resident() - before) / total
    # one wake after the other, on an idle system
    latencies: list = []
    answered: uint64_t = 0
    chosen: uint32_t
    tries: c_int
    for k in range(wakes):
        chosen = (k * 7919) % count
        one = NULL
        with nogil:
            sim_wait(200_000)
            answered = at_load64(address(crowd.answered)) + 1
            at_add64(address(crowd.stock[chosen]), 1)
            begin = sim_now()
            actor_wake_next(crowd.actors[chosen])
            for tries in range(100_000):
                if at_load64(address(crowd.answered)) >= answered:
                    break
                sim_wait(20_000)
            for i in range(per):  # the one that was answered last
                if crowd.waits[chosen + i * count].answered_ns >= begin:
                    one = address(crowd.waits[chosen + i * count])
        latencies.append(one.answered_ns - begin if one != NULL else 10**12)
    latencies.sort()
    told["wake_p50_ns"] = latencies[len(latencies) // 2]
    told["wake_p99_ns"] = latencies[int(len(latencies) * 0.99)]
    told["wake_max_ns"] = max(latencies)
    # everybody at once
    for i in range(count):
        crowd.stock[i] = per
    begin = sim_now()
    with nogil:
        for i in range(count):
            actor_wake(crowd.actors[i])
    told["wake_all_call_ns"] = (sim_now() - begin) / groups
    with nogil:
        _wait_answered(address(crowd), total)
    told["wake_all_s"] = (sim_now() - begin) / 1e9
    told["answered"] = crowd.answered
    # holds that run out
    for i in range(count):
        crowd.stock[i] = 0
    end = sim_now() + cast(int64_t, hold_s * 1e9)
    with nogil:
        for i in range(total):
            crowd.waits[i].request.hold_ns = end
            crowd.waits[i].request.deadline_ns = 0
            actor_dispatch(crowd.actors[crowd.waits[i].group], address(crowd.waits[i].request))
        _wait_answered(address(crowd), cast(uint64_t, total) * 2)
    late: list = sorted(crowd.waits[i].answered_ns - end for i in range(total))
    told["hold_early"] = sum(1 for value in late if value < 0)
    told["hold_late_p50_ns"] = late[len(late) // 2]
    told["hold_late_p99_ns"] = late[int(len(late) * 0.99)]
    told["hold_late_max_ns"] = max(late)
    told["wakes_lost"] = crowd.system.wakes_lost
    told["wakes_spurious"] = crowd.system.wakes_spurious
    stop_threads(system)
    for i in range(count):
        actor_put(crowd.actors[i])
    del system
    free(crowd.actors)
    free(crowd.stock)
    free(crowd.waits)
    return told


def dispatch_cost(count: int, workers: int) -> dict:
    """Dispatch + schedule of requests that are done at once: ns a call, each to another actor that is idle, and to one that is busy."""
    crowd: crowd_t
    total: uint32_t = count
    i: uint32_t
    begin: int64_t
    told: dict = {}
    system: ActorSystem = make_system("vruntime", workers, None)
    crowd.system = system.system
    crowd.answered = 0
    crowd.messages = 0
    spread: uint32_t = 1000
    crowd.actors = cast(pointer[pointer[actor_t]], calloc(spread, sizeof(pointer[actor_t])))
    crowd.stock = cast(pointer[uint64_t], calloc(spread, 8))
    crowd.waits = cast(pointer[wait_t], calloc(total, sizeof(wait_t)))
    for i in range(spread):
        crowd.actors[i] = actor_get(crowd.system, 0, i + 1, 0, 0)
        crowd.stock[i] = total
    for i in range(total):
        crowd.waits[i].crowd = address(crowd)
        crowd.waits[i].group = i % spread
        crowd.waits[i].request.process = _process
        crowd.waits[i].request.answer = _answer
    # Before the workers start: what a dispatch costs by itself, the first thousand with the scheduling of an idle actor.
    begin = sim_now()
    with nogil:
        for i in range(spread):
            actor_dispatch(crowd.actors[i], address(crowd.waits[i].request))
    told["schedule_ns"] = (sim_now() - begin) / spread
    begin = sim_now()
    with nogil:
        for i in range(spread, total // 2):
            actor_dispatch(crowd.actors[crowd.waits[i].group], address(crowd.waits[i].request))
    told["dispatch_ns"] = (sim_now() - begin) / (total // 2 - spread)
    system.start()
    with nogil:
        _wait_answered(address(crowd), total // 2)
    begin = sim_now()
    with nogil:
        for i in range(total // 2, total):
            actor_dispatch(crowd.actors[crowd.waits[i].group], address(crowd.waits[i].request))
    told["dispatch_working_ns"] = (sim_now() - begin) / (total - total // 2)
    with nogil:
        _wait_answered(address(crowd), total)
    told["through_per_s"] = (total - total // 2) / ((sim_now() - begin) / 1e9)
    told["answered"] = crowd.answered
    stop_threads(system)
    for i in range(spread):
        actor_put(crowd.actors[i])
    del system
    free(crowd.actors)
    free(crowd.stock)
    free(crowd.waits)
    return told
