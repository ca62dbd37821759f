# ruff: noqa -- compiled: types come from the .pxd
"""Births and ends of actor systems for scenes and loads (see compat.pxd).

in: policy and number of workers. out: an ActorSystem whose threads the caller provides (simulation) or starts (real threads).
"""

from __future__ import annotations

import dataclasses

import cython
from cython.cimports.flintmq.core.atomics import at_store32
from cython.cimports.flintmq.scheduler.actor import actor_system_t
from cython.cimports.flintmq.scheduler.run_queue import run_queue_stop
from cython.cimports.flintmq.scheduler.system import ActorSystem
from cython.cimports.flintmq.scheduler.timers import timers_kick

from flintmq.config import Limits

LIMITS = Limits()
KNOWN: dict = {}


@cython.cfunc
def make_system(policy: str, workers: cython.int, mailbox_max: object) -> ActorSystem:
    limits = LIMITS
    if mailbox_max is not None:
        limits = KNOWN.get(mailbox_max)
        if limits is None:
            limits = KNOWN[mailbox_max] = dataclasses.replace(LIMITS, actor_mailbox_max=mailbox_max)
    return ActorSystem(limits, policy=policy, workers=workers)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def stop_system(system: cython.pointer(actor_system_t)) -> cython.void:
    at_store32(cython.address(system.stopping), 1)
    run_queue_stop(system)
    timers_kick(cython.address(system.timers))


@cython.cfunc
def stop_threads(system: ActorSystem) -> object:
    system.stop()
    return None


@cython.cfunc
def forget_system(system: ActorSystem) -> object:
    system.system = cython.NULL
    return None
