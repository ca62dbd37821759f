"""Makes queues with message groups, and sorted ones (see group_kinds.pyi).

in: declared queues. out: queue cores whose entry list tells the groups of arrivals and returns.
"""

from __future__ import annotations

from cython import NULL, address, bint, declare, pointer
from cython import int as c_int
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.grouped import grouped_arrived, grouped_returned
from cython.cimports.flintmq.queue.list_kinds import LIST_STANDARD
from cython.cimports.flintmq.queue.message_groups import groups_new, groups_read_all
from cython.cimports.flintmq.queue.types import GROUPS_SHARED, GROUPS_SORTED, GROUPS_STICKY, list_ops_t, message_groups_t, queue_t
from cython.cimports.flintmq.selectors.program import program_decref, program_of_header, program_t
from cython.cimports.libc.stdint import uint32_t, uint8_t

_ops = declare(list_ops_t[2])
MODES = {"shared": GROUPS_SHARED, "sticky": GROUPS_STICKY, "sorted": GROUPS_SORTED}


def queue_set_groups(queue: pointer[queue_t], mode: c_int, name: pointer[program_t], groups_max: uint32_t, idle_max: uint32_t) -> bint:
    ops: pointer[list_ops_t] = address(_ops[0 if queue.list_kind == LIST_STANDARD else 1])
    groups: pointer[message_groups_t] = groups_new(mode, name, groups_max, idle_max)
    if groups == NULL:
        return False
    queue.message_groups = groups
    # The same values each time: queues of both kinds share the tables.
    ops.level_of = queue.entries.ops.level_of
    ops.compare = queue.entries.ops.compare
    ops.priorities = queue.entries.ops.priorities
    ops.in_order = False
    ops.arrived = grouped_arrived
    ops.returned = grouped_returned
    ops.destroy = NULL  # the queue has them
    queue.entries.ops = ops
    return True


def new_grouped(
    queue_id: int,
    mode: str,
    header: bytes,
    log: object,
    durable: bool,
    *,
    list_kind: int,
    levels: int,
    level_rule: int,
    groups_max: int,
    idle_max: int,
) -> QueueHandle:
    handle: QueueHandle = QueueHandle(queue_id, list_kind, levels, level_rule)
    text: pointer[uint8_t] = header
    name: pointer[program_t] = program_of_header(text, len(header))
    if name == NULL or not queue_set_groups(handle.queue, MODES[mode], name, groups_max, idle_max):
        if name != NULL:
            program_decref(name)
        raise MemoryError("no memory for a queue with message groups")
    handle.set_durable(durable)
    if log is not None:
        handle.attach_log(log)
    return handle


def restore_groups(handle: QueueHandle) -> None:
    groups_read_all(handle.queue)
