# ruff: noqa -- compiled: types come from the .pxd
"""Groups of consumers that pull from an actor system as fast as they are served; who got how much, and who waited how long.

in: a list of groups and a policy. out: figures of a window of the run. In the simulated build a request costs exactly what it says, a
worker is a virtual thread and `cores` of them work at once, in time slices of 1 ms; in the plain build a request spins for that CPU time.
"""

from __future__ import annotations

from cython import NULL, address, int as c_int, cast, cfunc, exceptval, nogil, p_void, pointer, sizeof, void
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memset
from cython.cimports.flintmq.actor_sim.runtime import (
    SIM_ROUND,
    SIM_SIMULATED,
    sim_abandon,
    sim_begin,
    sim_end,
    sim_now,
    sim_options_t,
    sim_run,
    sim_spawn,
    sim_spend,
    sim_wait,
)
from cython.cimports.flintmq.core.atomics import at_load32, at_store32
from cython.cimports.flintmq.scheduler.actor import (
    DISPATCH_OK,
    OUTCOME_MESSAGES,
    PROCESS_DONE,
    actor_charge_io,
    actor_dispatch,
    actor_get,
    actor_put,
    actor_system_t,
    actor_t,
    request_answer,
    request_t,
)
from cython.cimports.flintmq.scheduler.system import ActorSystem
from cython.cimports.flintmq.scheduler.deadlines import timers_run
from cython.cimports.flintmq.scheduler.worker import worker_run
from cython.cimports.flintmq.actor_sim.compat import make_system, stop_threads


@cfunc
@nogil
@exceptval(check=False)
def _bucket(ns: int64_t) -> c_int:
    octave: c_int = 0
    if ns < 256:
        return 0
    while ns >= 512:
        ns >>= 1
        octave += 1
    octave = octave * 4 + cast(c_int, (ns - 256) >> 6)
    return octave if octave < WAIT_BUCKETS else WAIT_BUCKETS - 1


def bucket_ns(number: int) -> int:
    """Upper end of a bucket of waits."""
    return (256 + 64 * (number % 4 + 1)) << (number // 4)


@cfunc
@nogil
@exceptval(check=False)
def _noted(pull: pointer[pull_t]) -> void:
    """The wait of a request is over: what of it was the newcomer's?"""
    load: pointer[load_t] = pull.group.load
    added: int64_t
    pull.waiting = 0
    if load.newcomer != NULL:
        added = load.newcomer.got_ns - pull.mark_ns
        if added > pull.group.added_ns:
            pull.group.added_ns = added
        if pull.mark_ns == 0 and added > pull.group.added_first_ns:
            pull.group.added_first_ns = added


@cfunc
@nogil
@exceptval(check=False)
def _send(pull: pointer[pull_t]) -> void:
    load: pointer[load_t] = pull.group.load
    pull.mark_ns = load.newcomer.got_ns if load.newcomer != NULL else 0
    pull.waiting = 1
    actor_dispatch(pull.group.actor, address(pull.request))


@cfunc
@nogil
@exceptval(check=False)
def _process(actor: pointer[actor_t], request: pointer[request_t]) -> c_int:
    group: pointer[group_t] = cast(pointer[pull_t], request).group
    load: pointer[load_t] = group.load
    began: int64_t = sim_now()
    wait: int64_t = began - request.enqueued_ns
    part: int64_t = (began - load.start_ns) * SERIES // (load.end_ns - load.start_ns)
    now: int64_t
    cost: int64_t = group.cost_ns + group.io_ns
    _noted(cast(pointer[pull_t], request))
    if part < 0:
        part = 0
    if part >= SERIES:
        part = SERIES - 1
    if group.io_ns:
        sim_wait(group.io_ns)
        actor_charge_io(actor, group.io_ns)
    sim_spend(group.cost_ns)
    now = sim_now()
    group.got_ns += cost
    group.series_ns[part] += cost
    if wait > group.series_wait_ns[part]:
        group.series_wait_ns[part] = wait
    if load.from_ns <= began < load.to_ns:
        group.served += 1
        group.busy_ns += cost
        group.wait_sum_ns += wait
        group.waits[_bucket(wait)] += 1
        if wait > group.wait_max_ns:
            group.wait_max_ns = wait
    request_answer(request, OUTCOME_MESSAGES)
    return PROCESS_DONE


@cfunc
@nogil
@exceptval(check=False)
def _answer(request: pointer[request_t]) -> void:
    group: pointer[group_t] = cast(pointer[pull_t], request).group
    if at_load32(address(group.load.stopping)) == 0 and sim_now() < group.load.start_ns + group.leave_ns:
        _send(cast(pointer[pull_t], request))


@cfunc
@nogil
@exceptval(check=False)
def _join(raw: p_void) -> void:
    """The groups begin at their times, in the order of the list."""
    load: pointer[load_t] = cast(pointer[load_t], raw)
    group: pointer[group_t]
    pull: pointer[pull_t]
    i: uint32_t
    k: uint32_t
    for i in range(load.count):
        group = address(load.groups[i])
        sim_wait(load.start_ns + group.join_ns - sim_now())
        for k in range(group.consumers):
            pull = address(group.pulls[k])
            pull.group = group
            pull.request.process = _process
            pull.request.answer = _answer
            _send(pull)
        load.joined += 1


@cfunc
@nogil
@exceptval(check=False)
def _worker(raw: p_void) -> void:
    numbered: pointer[numbered_t] = cast(pointer[numbered_t], raw)
    worker_run(numbered.system, numbered.number)


@cfunc
@nogil
@exceptval(check=False)
def _timer(raw: p_void) -> void:
    timers_run(cast(pointer[numbered_t], raw).system)


def run(policy: str, workers: int, cores: int, groups: list, seconds: float, window: list, newcomer: int = -1) -> list:
    """Runs a load. Args: groups: dicts with weight, cost_ns, io_ns, consumers, join_s, leave_s, ordered by join_s; window: [from, to] in s; newcomer: number of a group.

    Returns a dict for each group: served, busy_ns, wait_mean_ns, wait_p99_ns, wait_max_ns, newcomer_added_ns, newcomer_added_first_ns, series_ns, series_wait_ns.
    """
    load: load_t
    options: sim_options_t
    numbered: pointer[numbered_t] = cast(pointer[numbered_t], calloc(workers + 1, sizeof(numbered_t)))
    group: pointer[group_t]
    i: uint32_t
    k: uint32_t
    until: int64_t
    count: uint32_t = len(groups)
    memset(address(options), 0, sizeof(sim_options_t))
    options.seed = 1
    options.plan = SIM_ROUND
    options.cores = cores
    sim_begin(address(options))
    system: ActorSystem = make_system(policy, workers, None)
    load.system = system.system
    load.count = count
    load.stopping = 0
    load.joined = 0
    load.groups = cast(pointer[group_t], calloc(count, sizeof(group_t)))
    for i in range(count):
        given: dict = groups[i]
        group = address(load.groups[i])
        group.load = address(load)
        group.number = i + 1
        group.weight = given.get("weight", 100)
        group.consumers = given.get("consumers", 1)
        group.cost_ns = given.get("cost_ns", 0)
        group.io_ns = given.get("io_ns", 0)
        group.join_ns = int(given.get("join_s", 0) * 1e9)
        group.leave_ns = int(given.get("leave_s", 1e9) * 1e9)
        group.actor = actor_get(load.system, 0, given.get("key", i + 1), 0, group.weight)
        group.pulls = cast(pointer[pull_t], calloc(group.consumers, sizeof(pull_t)))
    load.newcomer = address(load.groups[newcomer]) if newcomer >= 0 else NULL
    load.start_ns = sim_now()
    load.end_ns = load.start_ns + int(seconds * 1e9)
    load.from_ns = load.start_ns + int(window[0] * 1e9)
    load.to_ns = load.start_ns + int(window[1] * 1e9)
    until = load.end_ns
    if SIM_SIMULATED:
        for i in range(workers):
            numbered[i].system = load.system
            numbered[i].number = i
            sim_spawn(_worker, address(numbered[i]))
        numbered[workers].system = load.system
        sim_spawn(_timer, address(numbered[workers]))
        sim_spawn(_join, address(load))
        with nogil:
            sim_run(until)
    else:
        system.start()
        with nogil:
            _join(address(load))
            sim_run(until)
    at_store32(address(load.stopping), 1)
    if SIM_SIMULATED:
        sim_abandon()
    stop_threads(system)
    found: list = []
    for i in range(count):
        group = address(load.groups[i])
        for k in range(group.consumers):
            if group.pulls[k].waiting:
                _noted(address(group.pulls[k]))
        waits: list = [group.waits[k] for k in range(WAIT_BUCKETS)]
        found.append(
            {
                "served": group.served,
                "busy_ns": group.busy_ns,
                "wait_mean_ns": group.wait_sum_ns / max(group.served, 1),
                "wait_p99_ns": _quantile(waits, 0.99),
                "wait_max_ns": group.wait_max_ns,
                "newcomer_added_ns": group.added_ns,
                "newcomer_added_first_ns": group.added_first_ns,
                "series_ns": [group.series_ns[k] for k in range(SERIES)],
                "series_wait_ns": [group.series_wait_ns[k] for k in range(SERIES)],
            }
        )
        actor_put(group.actor)
    del system
    for i in range(count):
        free(load.groups[i].pulls)
    free(load.groups)
    free(numbered)
    sim_end()
    return found


def _quantile(waits: list, part: float) -> int:
    left: float = sum(waits) * part
    for number, many in enumerate(waits):
        left -= many
        if left <= 0:
            return bucket_ns(number) if sum(waits) else 0
    return bucket_ns(len(waits) - 1)
