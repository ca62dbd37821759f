# ruff: noqa -- compiled: types come from the .pxd
"""Births and ends of actor systems for scenes and loads (see compat.pxd).

in: policy and number of workers. out: an ActorSystem whose threads the caller provides (simulation) or starts (real threads).
"""

from __future__ import annotations

import dataclasses

from cython import NULL, address, int as c_int, pointer, void
from cython.cimports.flintmq.core.atomics import at_store32
from cython.cimports.flintmq.scheduler.actor import actor_system_t
from cython.cimports.flintmq.scheduler.lines import run_queue_stop
from cython.cimports.flintmq.scheduler.system import ActorSystem
from cython.cimports.flintmq.scheduler.timers import timers_kick

from flintmq.config import Limits

LIMITS = Limits()
KNOWN: dict = {}


def make_system(policy: str, workers: c_int, mailbox_max: object) -> ActorSystem:
    limits = LIMITS
    if mailbox_max is not None:
        limits = KNOWN.get(mailbox_max)
        if limits is None:
            limits = KNOWN[mailbox_max] = LIMITS.replace(actor_mailbox_max=mailbox_max)
    return ActorSystem(limits, policy=policy, workers=workers)


def stop_system(system: pointer[actor_system_t]) -> void:
    at_store32(address(system.stopping), 1)
    run_queue_stop(system)
    timers_kick(address(system.timers))


def stop_threads(system: ActorSystem) -> object:
    system.stop()
    return None


def forget_system(system: ActorSystem) -> object:
    system.system = NULL
    return None
