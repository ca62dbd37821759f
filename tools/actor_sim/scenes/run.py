# ruff: noqa -- compiled: types come from the .pxd
"""Runs interleavings: a scene of a mix of operations, simulated with a seed, watched by the checks.

in: mix, seeds. out: what failed first, with its seed, and counts. The same build, mix and seed give the same run.
"""

from __future__ import annotations

from cython import NULL, address, bint, int as c_int, cfunc, declare, exceptval, nogil, pointer, sizeof, void
from cython.cimports.libc.stdint import INT64_MAX, int64_t, uint32_t, uint64_t
from cython.cimports.libc.string import memset
from cython.cimports.flintmq.actor_sim.checks import check_end, check_quiet
from cython.cimports.flintmq.actor_sim.compat import forget_system, make_system, stop_system, stop_threads
from cython.cimports.flintmq.actor_sim.runtime import (
    SIM_ENDED,
    SIM_FAILED,
    SIM_QUIET,
    SIM_STUCK,
    sim_abandon,
    sim_begin,
    sim_end,
    sim_fail,
    sim_fail_allocations,
    sim_failure,
    sim_next,
    sim_now,
    sim_options_t,
    sim_random,
    sim_run,
    sim_sites_passed,
    sim_spawn,
    sim_switches,
    sim_vary,
    sim_catch_crashes,
)
from cython.cimports.flintmq.actor_sim.scene import (
    KEYS_MAX,
    MIX_ALL,
    MIX_CLOSE,
    MIX_HAND,
    MIX_MEMORY,
    MIX_RETIRE,
    MIX_SMALL,
    MIX_STOP,
    MIX_SUSPEND,
    part_t,
    scene_answerer,
    scene_producer,
    scene_t,
    scene_timer,
    scene_worker,
)
from cython.cimports.flintmq.scheduler.actor import actor_get, actor_put
from cython.cimports.flintmq.scheduler.system import ActorSystem

# more than the timer thread sleeps at most
END_NS = declare(int64_t, 3_000_000_000)

sim_catch_crashes()


def scene_stop(scene: pointer[scene_t]) -> void:
    scene.stopping = 1
    stop_system(scene.system)


@cfunc
@nogil
@exceptval(check=False)
def _live(scene: pointer[scene_t]) -> void:
    """From the first operation to the moment when nothing more can happen by itself."""
    verdict: c_int
    limit: int64_t = INT64_MAX
    soonest: int64_t
    while True:
        verdict = sim_run(sim_now())
        if verdict == SIM_FAILED or verdict == SIM_ENDED:
            return
        if verdict == SIM_STUCK:
            sim_fail(b"3 no lost work: the run does not end (livelock)")
            return
        check_quiet(scene, sim_now())
        if sim_failure() != NULL:
            return
        soonest = sim_next()
        if scene.running == 0 and limit == INT64_MAX:
            limit = sim_now() + 400_000_000  # longer than any deadline, hold or pause of a scene
        if scene.running and soonest == INT64_MAX:
            sim_fail(b"3 no lost work: nobody runs and nobody ever will")
            return
        if soonest > limit or soonest == INT64_MAX:
            check_quiet(scene, limit)  # nothing happens until then
            return
        check_quiet(scene, soonest - 1)
        if sim_failure() != NULL:
            return
        verdict = sim_run(soonest)
        if verdict == SIM_FAILED or verdict == SIM_ENDED:
            return
        if verdict == SIM_STUCK:
            sim_fail(b"3 no lost work: the run does not end (livelock)")
            return


@cfunc
@nogil
@exceptval(check=False)
def _end(scene: pointer[scene_t]) -> void:
    verdict: c_int
    i: uint32_t
    for i in range(scene.keys):
        if scene.key[i].held != NULL:
            actor_put(scene.key[i].held)
            scene.key[i].held = NULL
    if not scene.stopping:
        scene_stop(scene)
    verdict = sim_run(sim_now() + END_NS)
    if verdict == SIM_FAILED:
        return
    if verdict != SIM_ENDED:
        sim_fail(b"3 no lost work: a thread does not end when the system stops")


def run(mix: int, seed: int) -> str:
    """One interleaving. Returns the failure, or ''."""
    scene: scene_t
    options: sim_options_t
    parts: part_t[16]
    i: uint32_t
    left: int64_t
    memset(address(scene), 0, sizeof(scene_t))
    memset(address(options), 0, sizeof(sim_options_t))
    sim_vary(address(options), seed)
    sim_begin(address(options))
    scene.mix = mix
    scene.workers = 1 + sim_random() % 3
    scene.keys = 1 + sim_random() % 3
    scene.producers = 1 + sim_random() % 4
    scene.operations = 4 + sim_random() % 24
    system: ActorSystem = make_system(
        ("vruntime", "vruntime", "last_run", "total", "fifo")[sim_random() % 5], scene.workers, 3 if mix & MIX_SMALL else None
    )
    scene.system = system.system
    scene.mailbox_max = system.system.mailbox_max
    scene.quantum_ns = system.system.quantum_ns
    scene.running = scene.producers
    if not mix & (MIX_RETIRE | MIX_CLOSE):
        for i in range(scene.keys):
            scene.key[i].held = actor_get(scene.system, 0, i, 0, 50 << (i % 3))
    if mix & MIX_MEMORY:
        sim_fail_allocations(3 + sim_random() % 8)
    for i in range(16):
        parts[i].scene = address(scene)
    for i in range(scene.workers):
        parts[i].number = i
        sim_spawn(scene_worker, address(parts[i]))
    sim_spawn(scene_timer, address(parts[14]))
    if mix & MIX_HAND:
        sim_spawn(scene_answerer, address(parts[15]))
    for i in range(scene.producers):
        parts[4 + i].number = i
        sim_spawn(scene_producer, address(parts[4 + i]))
    with nogil:
        _live(address(scene))
        if sim_failure() == NULL:
            _end(address(scene))
    sim_fail_allocations(0)
    failed: bint = sim_failure() != NULL
    sim_abandon()
    if failed:
        # Threads were left in the middle of anything: their locks and memory with them.
        text: str = sim_failure().decode()
        forget_system(system)
        sim_end()
        return text
    stop_threads(system)
    check_end(address(scene))
    del system
    left = sim_end()
    if sim_failure() != NULL:
        return sim_failure().decode()
    return "" if left == 0 else f"11 retire: {left} allocations were never freed"


def run_many(mix: int, first: int, count: int) -> tuple:
    """Interleavings `first` to `first + count - 1`. Returns (failed seed or -1, failure, runs, sites passed, switches)."""
    seed: uint64_t
    sites: uint64_t = 0
    switches: uint64_t = 0
    for seed in range(first, first + count):
        failure = run(mix, seed)
        sites += sim_sites_passed()
        switches += sim_switches()
        if failure:
            return seed, failure, seed - first + 1, sites, switches
    return -1, "", count, sites, switches
