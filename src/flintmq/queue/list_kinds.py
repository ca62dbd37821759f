"""Kinds of entry lists: what distinguishes a standard from a priority list (the seed's QueueEntryList extension point).

in: the kind and levels a queue was declared with. out: list_t.ops. Kinds of others: kinds.py.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer, sizeof
from cython import int as c_int
from cython.cimports.flintmq.core.content import CONTENT_PRIORITY, content_t
from cython.cimports.flintmq.queue.types import level_t, list_ops_t, list_t
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc

_standard_ops = declare(list_ops_t)
_priority_ops = declare(list_ops_t)


# --- kinds ----------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _standard_level(entries: pointer[list_t], content: pointer[content_t]) -> uint32_t:
    return 0


@cfunc
@nogil
@exceptval(check=False)
def _priority_level(entries: pointer[list_t], content: pointer[content_t]) -> uint32_t:
    """Both rules of LEVEL_* in types.pxd; level 0 is served first, so the highest priority maps to it."""
    n: c_int = cast(c_int, entries.level_count)
    p: c_int = 0
    offset: c_int
    if content != NULL:
        p = content.priority
    if entries.level_rule == LEVEL_QPID:
        if content == NULL or not content.flags & CONTENT_PRIORITY:
            p = 4
        offset = 5 - (n + 1) // 2
        if offset > 0:
            p -= offset
        if p < 0:
            p = 0
    if p > n - 1:
        p = n - 1
    return cast(uint32_t, n - 1 - p)


@cfunc
@nogil
@exceptval(check=False)
def _compare(left: uint64_t, right: uint64_t) -> c_int:
    """Position order: level first, then index; both kinds share it."""
    if left < right:
        return -1
    return 1 if left > right else 0


@cfunc
@nogil
@exceptval(check=False)
def _priorities(entries: pointer[list_t]) -> c_int:
    return cast(c_int, entries.level_count)


_standard_ops.level_of = _standard_level
_standard_ops.compare = _compare
_standard_ops.priorities = _priorities
_standard_ops.in_order = True
_priority_ops.level_of = _priority_level
_priority_ops.compare = _compare
_priority_ops.priorities = _priorities
_priority_ops.in_order = False


def list_init(entries: pointer[list_t], kind: c_int, levels: c_int, level_rule: c_int) -> bint:
    if levels < 1 or levels > 256 or (kind == LIST_STANDARD and levels != 1):
        return False
    if kind == LIST_STANDARD:
        entries.ops = address(_standard_ops)
    elif kind == LIST_PRIORITY:
        entries.ops = address(_priority_ops)
    else:
        return False
    entries.level_count = cast(uint32_t, levels)
    entries.level_rule = level_rule
    entries.levels = address(entries.level0)
    if levels > 1:
        entries.levels = cast(pointer[level_t], calloc(levels, sizeof(level_t)))
    return entries.levels != NULL
