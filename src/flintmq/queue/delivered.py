"""How far deliveries of a queue went, as a crash will know it (see delivered.pxd).

in: deliveries and enqueues of durable queues, durable LSNs. out: marks (Queue-Delivered) in the message log; consumers woken.

D1  No entry above `covered` is delivered. An entry at or below it has a mark that is durable, or that stands in the log before the
    entry's own record: the log survives as a prefix, so an entry that survives has its mark. Positions that a Commit gives count, too: the
    transaction log is written after the message log (store/log/writer.py I1).
D2  `granted` <= `covered`. Deliveries read the first one alone. It moves on by 256 entries at a time: so far it may be ahead of them.
D3  The last mark of a queue counts. It is at most two steps above what was granted: what nobody came near is not marked.
D4  A mark falls to `granted`, above which nothing was delivered. `granted` falls to the tail alone, under log_lock: an entry above it is
    shown after that, so whoever sees the entry sees the lower index. Neither falls once an entry above it may have been shown
    (queue_t.shown).
D5  Deliveries of a level have one mark under way: a second one would only make its readers wait longer.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, pointer, void
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_load64, at_store32, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.clock import monotonic_ms
from cython.cimports.flintmq.queue.types import ENTRY_LOGGED, INDEX_MASK, LEVEL_SHIFT, QUEUE_LOGGED, level_t, log_port_t, queue_t
from cython.cimports.libc.stdint import uint32_t, uint64_t

# Entries that deliveries take between two looks at the mark: a power of two.
_grant = declare(uint64_t, 256)
# Entries of a step, at least and at most; in between those of a second.
_step_min = declare(uint64_t, 4096)
STEP_MAX = declare(uint64_t, 1 << 20)
# Milliseconds after which a mark that nobody needs falls.
REST_MS = declare(uint32_t, 10_000)
# Of the clock that is read: shorter times are not told apart.
TICK_MS = declare(uint32_t, 4)
NO_MARK = declare(uint64_t, 0xFFFFFFFFFFFFFFFF)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _keeps(queue: pointer[queue_t]) -> bint:
    return queue.entries.levels[0].reserved != NO_MARK


def delivered_set_steps(step: uint32_t, grant: uint32_t) -> void:
    global _step_min, _grant
    _step_min = step
    _grant = grant


def delivered_begin(queue: pointer[queue_t]) -> void:
    level: pointer[level_t]
    number: uint32_t
    start: uint64_t = NO_MARK
    if queue.durable == QUEUE_LOGGED and queue.ops == NULL and queue.port != NULL and queue.port.delivered != NULL:
        start = 0
    if start == 0 and _keeps(queue):
        return  # it does already
    # The threshold of a list of several levels, whose own first level is not this one: each position is looked at.
    queue.entries.level0.granted = start
    queue.entries.level0.ahead = start
    for number in range(queue.entries.level_count):
        level = queue.entries.levels + number
        level.granted = level.ahead = level.covered = level.reserved = start
        level.reserved_at = 0
        level.step = cast(uint32_t, _step_min)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _see_durable(queue: pointer[queue_t], level: pointer[level_t]) -> void:
    """A mark that became durable covers what it says. delivered_lock held."""
    if level.reserved > level.covered and queue.port.durable_lsn(queue.port.context) >= level.reserved_at:
        at_store64(address(level.covered), level.reserved)


@cfunc
@nogil
@exceptval(check=False)
def _reserve(queue: pointer[queue_t], level: pointer[level_t], index: uint64_t) -> void:
    """Raises the mark to a step above `index`, where deliveries are or come to. A step is what they take in a second, so that a disk may
    stand still for half of one; it grows by twice at most, so that a burst does not mark much more than it took. delivered_lock held."""
    now: uint32_t = cast(uint32_t, monotonic_ms())
    before: uint64_t = level.reserved - level.step if level.reserved > level.step else 0
    passed: uint32_t = now - level.reserved_ms
    pace: uint64_t
    if passed < TICK_MS:
        passed = TICK_MS
    if level.reserved and index > before:
        pace = min((index - before) * 1000 // passed, 2 * cast(uint64_t, level.step))
        level.step = cast(uint32_t, min(max(pace, _step_min), STEP_MAX))
    level.reserved_ms = now
    if index + level.step <= level.reserved:
        return  # the step became shorter: the mark stands where it is
    level.reserved = index + level.step
    level.reserved_at = queue.port.delivered(queue.port.context, queue)
    at_store64(address(level.ahead), level.reserved)
    at_store64(address(queue.marked_at), level.reserved_at)


def delivered_grant(queue: pointer[queue_t], position: uint64_t, state: uint64_t) -> bint:
    level: pointer[level_t] = queue.entries.levels + (position >> LEVEL_SHIFT)
    index: uint64_t = position & INDEX_MASK
    granted: bint
    reserved: bint = False
    if index <= at_load64(address(level.granted)):
        return True
    if not state & ENTRY_LOGGED and index > at_load64(address(level.covered)):
        return True  # a restart forgets it
    spin_lock(address(queue.delivered_lock))
    _see_durable(queue, level)
    if (
        index + level.step // 2 > level.covered
        and level.reserved <= level.covered
        and (index > level.covered or at_load64(address(level.tail)) > level.covered)
    ):
        _reserve(queue, level, index)
        reserved = True
    granted = index <= level.covered
    if granted:
        check(level.granted <= level.covered, b"delivered D2 what is granted is covered", level.granted, level.covered)
        if index > level.granted:
            at_store64(address(level.granted), min(index | (_grant - 1), level.covered))
        if level.ahead == NO_MARK:
            at_store64(address(level.ahead), level.reserved)
    spin_unlock(address(queue.delivered_lock))
    if reserved and queue.port.kick != NULL:
        queue.port.kick(queue.port.context, False)
    return granted


def delivered_wait(queue: pointer[queue_t], position: uint64_t) -> bint:
    port: pointer[log_port_t] = queue.port
    level: pointer[level_t] = queue.entries.levels + (position >> LEVEL_SHIFT)
    covered: bint
    wanted: uint64_t
    spin_lock(address(queue.delivered_lock))
    wanted = level.reserved_at
    spin_unlock(address(queue.delivered_lock))
    spin_lock(address(port.marked_lock))
    if not queue.marked_waits:
        queue.marked_waits = 1
        queue.marked_wanted = wanted
        queue.marked_next = NULL
        if port.marked == NULL:
            port.marked = queue
        else:
            port.marked_last.marked_next = queue
        port.marked_last = queue
        check(at_add32(address(queue.refs), 1) > 0, b"delivered D1 a queue that waits for its mark is alive", queue.id, 0)
    elif wanted < queue.marked_wanted:
        queue.marked_wanted = wanted
    spin_unlock(address(port.marked_lock))
    # Only now: a durable LSN that moved before this is seen here, one that moves after it finds the queue on the list.
    spin_lock(address(queue.delivered_lock))
    _see_durable(queue, level)
    covered = position & INDEX_MASK <= level.covered or level.reserved <= level.covered
    spin_unlock(address(queue.delivered_lock))
    if not covered and port.kick != NULL:
        port.kick(port.context, True)
    return not covered


def delivered_ahead(queue: pointer[queue_t], position: uint64_t) -> void:
    level: pointer[level_t] = queue.entries.levels + (position >> LEVEL_SHIFT)
    index: uint64_t = position & INDEX_MASK
    all_covered: bint
    if index <= at_load64(address(level.ahead)):
        return
    spin_lock(address(queue.delivered_lock))
    _see_durable(queue, level)
    all_covered = index - 1 <= level.covered
    if index <= level.granted + level.step // 2 and at_load32(address(queue.manager.consumer_count)):
        if all_covered or level.reserved <= level.covered:
            _reserve(queue, level, index)
            if all_covered:
                # D1: every entry that is not covered yet has its record behind this mark.
                at_store64(address(level.covered), level.reserved)
    else:
        at_store64(address(level.ahead), NO_MARK)  # nobody is near: the next delivery says when to look again
        if queue.marked_at == 0:
            # From now on the log knows that nothing was delivered.
            at_store64(address(queue.marked_at), queue.port.delivered(queue.port.context, queue))
    spin_unlock(address(queue.delivered_lock))


def delivered_pass(queue: pointer[queue_t], position: uint64_t) -> void:
    level: pointer[level_t] = queue.entries.levels + (position >> LEVEL_SHIFT)
    index: uint64_t = position & INDEX_MASK
    if not _keeps(queue):
        return
    spin_lock(address(queue.delivered_lock))
    if index == level.covered + 1:
        at_store64(address(level.covered), index)
    spin_unlock(address(queue.delivered_lock))


def delivered_show(queue: pointer[queue_t], position: uint64_t) -> uint64_t:
    level: pointer[level_t] = queue.entries.levels + (position >> LEVEL_SHIFT)
    index: uint64_t = position & INDEX_MASK
    wanted: uint64_t = 0
    if not _keeps(queue):
        return 0
    at_store32(address(queue.shown), 1)
    spin_lock(address(queue.delivered_lock))
    _see_durable(queue, level)
    if index > level.covered:
        if index > level.reserved:
            _reserve(queue, level, index)
        wanted = level.reserved_at
    spin_unlock(address(queue.delivered_lock))
    return wanted


def delivered_rest(queue: pointer[queue_t], stops: bint) -> bint:
    level: pointer[level_t]
    number: uint32_t
    now: uint32_t = cast(uint32_t, monotonic_ms())
    index: uint64_t
    fell: bint = False
    later: bint = False
    if not _keeps(queue) or at_load32(address(queue.shown)) or (not stops and at_load32(address(queue.manager.consumer_count))):
        return False
    spin_lock(address(queue.log_lock))
    spin_lock(address(queue.delivered_lock))
    for number in range(queue.entries.level_count):
        level = queue.entries.levels + number
        index = min(level.granted, at_load64(address(level.tail)))
        if level.reserved <= index:
            continue
        if not stops and now - level.reserved_ms < REST_MS:
            later = True
            continue
        at_store64(address(level.granted), index)
        at_store64(address(level.ahead), index)
        at_store64(address(level.covered), index)
        level.reserved = index
        level.step = cast(uint32_t, _step_min)
        level.reserved_ms = now - REST_MS
        fell = True
    if fell:
        at_store64(address(queue.marked_at), queue.port.delivered(queue.port.context, queue))
    spin_unlock(address(queue.delivered_lock))
    spin_unlock(address(queue.log_lock))
    return later


# --- the store ----------------------------------------------------------------------------------------------------------------


def delivered_restore(queue: pointer[queue_t], level: uint32_t, index: uint64_t, covered: uint64_t) -> void:
    place: pointer[level_t] = queue.entries.levels + level
    if level >= queue.entries.level_count or not _keeps(queue):
        return
    place.reserved = index
    place.reserved_at = 0
    place.covered = place.granted = covered
    place.ahead = index
    if covered < index:
        queue.shown = 1  # entries above `granted` may have been delivered before a damage


def delivered_write(queue: pointer[queue_t]) -> void:
    level: pointer[level_t]
    number: uint32_t
    lsn: uint64_t
    if not _keeps(queue):
        return
    spin_lock(address(queue.delivered_lock))
    lsn = queue.port.delivered(queue.port.context, queue)
    for number in range(queue.entries.level_count):
        level = queue.entries.levels + number
        if level.reserved_at == 0 and level.reserved > level.covered:
            level.reserved_at = lsn  # no record said so before (delivered_restore)
    at_store64(address(queue.marked_at), lsn)
    spin_unlock(address(queue.delivered_lock))
