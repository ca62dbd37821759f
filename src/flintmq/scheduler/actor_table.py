"""The table of actors (see actor_table.pxd).

in: keys. out: counted actors; retirement of idle ones.

I1  A key has at most one actor in the table. An actor that was closed by force stays until its last slice is over, so that the next actor
    of the key never runs beside it; a retired one has nothing to run and leaves in the same step.
I2  An actor is retired only while the shard's lock and its own are held, it has no request and its state word is 0: a request is either in
    before (then it stays) or refused with CLOSED (then the dispatcher asks for the key again). Nothing is lost.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, longlong, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import (
    at_add32, at_add64, at_cas32, at_load32, at_load64, at_store32, at_sub32, spin_lock, spin_unlock,
)  # fmt: skip
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.clock import monotonic_ns
from cython.cimports.flintmq.scheduler.lines import VRUN_NEW, mailbox_free, run_queue_reserve
from cython.cimports.flintmq.scheduler.types import STATE_CLOSED, TABLE_SHARDS, WEIGHT_DEFAULT, WEIGHT_MAX, actor_system_t, actor_t, shard_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free

# buckets of a shard at first; doubled when there are more actors than buckets
BUCKETS_MIN = declare(uint32_t, 16)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _hash(space: uint32_t, a: uint64_t, b: uint64_t) -> uint64_t:
    h: uint64_t = (a + space) * cast(uint64_t, 0x9E3779B97F4A7C15)
    h ^= h >> 32
    h = (h ^ b) * cast(uint64_t, 0xD6E8FEB86659FD93)
    h ^= h >> 32
    return h * cast(uint64_t, 0xD6E8FEB86659FD93)


@cfunc
@nogil
@exceptval(check=False)
def _bucket(shard: pointer[shard_t], hashed: uint64_t) -> uint32_t:
    return cast(uint32_t, hashed >> 20) & shard.mask


@cfunc
@nogil
@exceptval(check=False)
def _grow(shard: pointer[shard_t]) -> bint:
    """Room for one more. Without memory a filled shard goes on with longer chains."""
    size: uint32_t = BUCKETS_MIN if shard.buckets == NULL else (shard.mask + 1) * 2
    old: pointer[pointer[actor_t]] = shard.buckets
    old_size: uint32_t = 0 if old == NULL else shard.mask + 1
    i: uint32_t
    at: uint32_t
    actor: pointer[actor_t]
    following: pointer[actor_t]
    fresh: pointer[pointer[actor_t]]
    if old != NULL and shard.count < old_size:
        return True
    fresh = cast(pointer[pointer[actor_t]], calloc(size, sizeof(pointer[actor_t])))
    if fresh == NULL:
        return old != NULL
    shard.buckets = fresh
    shard.mask = size - 1
    for i in range(old_size):
        actor = old[i]
        while actor != NULL:
            following = actor.table_next
            at = _bucket(shard, _hash(actor.space, actor.a, actor.b))
            actor.table_next = fresh[at]
            fresh[at] = actor
            actor = following
    free(old)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _new(system: pointer[actor_system_t], space: uint32_t, a: uint64_t, b: uint64_t, weight: uint32_t) -> pointer[actor_t]:
    actor: pointer[actor_t] = cast(pointer[actor_t], calloc(1, sizeof(actor_t)))
    if actor == NULL:
        return NULL
    at_add32(address(system.alive), 1)
    actor.refs = 2  # the table's and the caller's
    actor.space = space
    actor.a = a
    actor.b = b
    actor.system = system
    actor.weight = weight if weight else WEIGHT_DEFAULT
    actor.vrun = VRUN_NEW
    actor.went_idle = 1
    actor.in_table = 1
    actor.idle_ns = cast(int64_t, at_load64(address(system.manual_ns))) if system.manual else monotonic_ns()
    return actor


def table_get(system: pointer[actor_system_t], space: uint32_t, a: uint64_t, b: uint64_t, weight: uint32_t, make: bint) -> pointer[actor_t]:
    hashed: uint64_t = _hash(space, a, b)
    shard: pointer[shard_t] = address(system.shards[hashed & (TABLE_SHARDS - 1)])
    actor: pointer[actor_t] = NULL
    count: uint32_t
    if weight > WEIGHT_MAX:
        weight = WEIGHT_MAX
    spin_lock(address(shard.lock))
    if shard.buckets != NULL:
        actor = shard.buckets[_bucket(shard, hashed)]
        while actor != NULL and (actor.b != b or actor.a != a or actor.space != space):
            actor = actor.table_next
    if actor != NULL:
        check(at_add32(address(actor.refs), 1) > 0, b"actor_table I1 an actor in the table is referenced", actor.a, actor.b)
        if weight and at_load32(address(actor.weight)) != weight:
            at_store32(address(actor.weight), weight)
    elif make and not at_load32(address(system.stopping)):
        count = at_add32(address(system.actors), 1)
        if count < system.actors_max and _grow(shard) and run_queue_reserve(system, count + 1):
            actor = _new(system, space, a, b, weight)
        if actor == NULL:
            at_sub32(address(system.actors), 1)
        else:
            actor.table_next = shard.buckets[_bucket(shard, hashed)]
            shard.buckets[_bucket(shard, hashed)] = actor
            shard.count += 1
            at_add64(address(system.created), 1)
    spin_unlock(address(shard.lock))
    return actor


@cfunc
@nogil
@exceptval(check=False)
def _shard_of(actor: pointer[actor_t]) -> pointer[shard_t]:
    return address(actor.system.shards[_hash(actor.space, actor.a, actor.b) & (TABLE_SHARDS - 1)])


@cfunc
@nogil
@exceptval(check=False)
def _unlink(shard: pointer[shard_t], actor: pointer[actor_t]) -> bint:
    """Under the shard's lock. False: it was out already. The table's reference is the caller's now."""
    at: uint32_t = _bucket(shard, _hash(actor.space, actor.a, actor.b))
    before: pointer[actor_t]
    if not actor.in_table:
        return False
    actor.in_table = 0
    if shard.buckets[at] == actor:
        shard.buckets[at] = actor.table_next
    else:
        before = shard.buckets[at]
        while before.table_next != actor:
            before = before.table_next
        before.table_next = actor.table_next
    actor.table_next = NULL
    check(shard.count > 0, b"actor_table I1 an actor that leaves was counted", shard.count, actor.a)
    shard.count -= 1
    at_sub32(address(actor.system.actors), 1)
    return True


def table_remove(actor: pointer[actor_t]) -> void:
    shard: pointer[shard_t] = _shard_of(actor)
    out: bint
    spin_lock(address(shard.lock))
    out = _unlink(shard, actor)
    spin_unlock(address(shard.lock))
    if out:
        table_drop(actor)


@cfunc
@nogil
@exceptval(check=False)
def _close_idle(actor: pointer[actor_t]) -> bint:
    """Under the shard's lock: CLOSED, if there is nothing to do."""
    closed: bint = False
    spin_lock(address(actor.lock))
    if actor.mailbox.first == NULL and actor.again == NULL and at_load32(address(actor.waiting)) == 0:
        closed = at_cas32(address(actor.state), 0, STATE_CLOSED)
    spin_unlock(address(actor.lock))
    return closed


def table_retire(actor: pointer[actor_t]) -> bint:
    shard: pointer[shard_t] = _shard_of(actor)
    closed: bint
    spin_lock(address(shard.lock))
    closed = _close_idle(actor)
    if closed:
        _unlink(shard, actor)
    spin_unlock(address(shard.lock))
    if closed:
        at_add64(address(actor.system.retired), 1)
        table_drop(actor)
    return closed


def table_sweep(system: pointer[actor_system_t], shard_number: uint32_t, idle_since: longlong) -> uint32_t:
    shard: pointer[shard_t] = address(system.shards[shard_number])
    out: pointer[actor_t] = NULL
    actor: pointer[actor_t]
    following: pointer[actor_t]
    count: uint32_t = 0
    i: uint32_t
    spin_lock(address(shard.lock))
    for i in range(shard.mask + 1 if shard.buckets != NULL else 0):
        actor = shard.buckets[i]
        while actor != NULL:
            following = actor.table_next
            # With one reference only, nobody can get to it but through this shard.
            if at_load32(address(actor.refs)) == 1 and actor.idle_ns <= idle_since and _close_idle(actor):
                _unlink(shard, actor)
                actor.table_next = out
                out = actor
                count += 1
            actor = following
    spin_unlock(address(shard.lock))
    while out != NULL:
        following = out.table_next
        table_drop(out)
        out = following
    at_add64(address(system.retired), count)
    return count


def table_some(system: pointer[actor_system_t], shard_number: uint32_t, actors: pointer[pointer[actor_t]], room: uint32_t) -> uint32_t:
    shard: pointer[shard_t] = address(system.shards[shard_number])
    actor: pointer[actor_t]
    count: uint32_t = 0
    i: uint32_t
    spin_lock(address(shard.lock))
    for i in range(shard.mask + 1 if shard.buckets != NULL else 0):
        actor = shard.buckets[i]
        while actor != NULL and count < room:
            at_add32(address(actor.refs), 1)
            actors[count] = actor
            count += 1
            actor = actor.table_next
    spin_unlock(address(shard.lock))
    return count


def table_drop(actor: pointer[actor_t]) -> void:
    before: uint32_t = at_sub32(address(actor.refs), 1)
    check(before > 0, b"actor_table I2 an actor that is let go was referenced", before, actor.a)
    if before == 1:
        check(
            not actor.in_table and actor.mailbox.first == NULL and actor.again == NULL,
            b"actor_table I2 an actor that is freed is out of the table and has no request",
            actor.in_table,
            actor.a,
        )
        at_sub32(address(actor.system.alive), 1)
        mailbox_free(actor)
        free(actor)
