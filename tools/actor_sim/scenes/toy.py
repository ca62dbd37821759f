# ruff: noqa -- compiled: types come from the .pxd
"""Small programs with known answers, to test the simulator: is a lost update found, a deadlock told, a run replayed?"""

from __future__ import annotations

from cython import address, int as c_int, cast, cfunc, exceptval, nogil, p_void, pointer, sizeof, void
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.string import memset
from cython.cimports.flintmq.actor_sim.runtime import (
    sim_abandon,
    sim_begin,
    sim_now,
    sim_options_t,
    sim_run,
    sim_spawn,
    sim_switches,
    sim_vary,
)
from cython.cimports.flintmq.core.atomics import at_add64, at_load64, at_load32, at_store32, at_store64, at_yield, spin_lock, spin_unlock
from cython.cimports.flintmq.core.futex import futex_wait, futex_wake

PROGRAMS = {"atomic": 0, "lost_update": 1, "locked": 2, "missed_wake": 3, "kept_wake": 4, "endless": 5}
VERDICTS = ("ended", "quiet", "stuck", "failed")


@cfunc
@nogil
@exceptval(check=False)
def _body(raw: p_void) -> void:
    toy: pointer[toy_t] = cast(pointer[toy_t], raw)
    i: c_int
    for i in range(3):
        if toy.kind == 0:
            at_add64(address(toy.count), 1)
        elif toy.kind == 1:
            at_store64(address(toy.count), at_load64(address(toy.count)) + 1)
        elif toy.kind == 2:
            spin_lock(address(toy.lock))
            at_yield()
            toy.plain += 1
            at_yield()
            toy.count = toy.plain
            spin_unlock(address(toy.lock))
        elif toy.kind == 5:
            while not at_load32(address(toy.word)):
                at_yield()


@cfunc
@nogil
@exceptval(check=False)
def _sleeper(raw: p_void) -> void:
    toy: pointer[toy_t] = cast(pointer[toy_t], raw)
    if toy.kind == 3:  # looks, then sleeps on whatever the word is by then: the wake between them is lost
        if at_load64(address(toy.count)) == 0:
            futex_wait(address(toy.word), at_load32(address(toy.word)), -1)
    else:
        seen: uint32_t = at_load32(address(toy.word))
        if at_load64(address(toy.count)) == 0:
            futex_wait(address(toy.word), seen, -1)


@cfunc
@nogil
@exceptval(check=False)
def _waker(raw: p_void) -> void:
    toy: pointer[toy_t] = cast(pointer[toy_t], raw)
    at_store64(address(toy.count), 1)
    at_store32(address(toy.word), 1)
    futex_wake(address(toy.word), 1)


def run(program: str, seed: int) -> tuple:
    """Returns (verdict, count, switches, simulated ns)."""
    toy: toy_t
    options: sim_options_t
    memset(address(toy), 0, sizeof(toy_t))
    toy.kind = PROGRAMS[program]
    sim_vary(address(options), seed)
    options.sites_max = 2_000
    verdict: c_int
    with nogil:
        sim_begin(address(options))
        if toy.kind in (3, 4):
            sim_spawn(_sleeper, address(toy))
            sim_spawn(_waker, address(toy))
        else:
            sim_spawn(_body, address(toy))
            sim_spawn(_body, address(toy))
        verdict = sim_run(sim_now() + 1_000_000_000)
        sim_abandon()
    return VERDICTS[verdict], toy.count, sim_switches(), sim_now()
