"""The line between the message path and the service of shared queues (see handoff.pxd), and the window of a shared queue.

in: publishes and settlements, on any thread without the GIL. out: Python values for the service's thread; entries of windows.

H1  Every item leaves the line once. Its content, queue and receipt were counted when it came in, and are given up when it leaves.
H2  A receipt has its answer when each queue of its message gave one; until then its confirm waits.
H3  The list of a window is closed: whatever else puts messages on queues is refused there. Only `window_add` adds to it.
H4  An entry of a window is marked as logged, so that the core tells this port of its end; `window_empty` takes the mark away first.
H5  An entry that a consumer gives back is held until `window_end`: no consumer gets it again.
H6  What is counted on a lane is taken off that lane, whoever uses it by then: lanes are used again and never freed.
"""

from __future__ import annotations

import os

from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import (
    at_add32, at_load32, at_load64, at_load_ptr, at_store32, at_sub32, at_swap32, spin_lock, spin_unlock,
)  # fmt: skip
from cython.cimports.flintmq.core.content import content_decref, content_from_bytes, content_incref, content_t
from cython.cimports.flintmq.core.memory_account import MEMORY_ENTRIES, memory_add
from cython.cimports.flintmq.queue.consumer_manager import manager_available, manager_wake_waiters
from cython.cimports.flintmq.queue.control import QueueHandle, content_tuple
from cython.cimports.flintmq.queue.due import due_worked
from cython.cimports.flintmq.queue.log_port import LogPort, log_port_wake
from cython.cimports.flintmq.queue.queue_core import (
    queue_decref, queue_dequeue, queue_forget_logged, queue_get_id, queue_incref, queue_next_available, queue_settle, queue_take_at,
)  # fmt: skip
from cython.cimports.flintmq.queue.restoring import list_insert_closed
from cython.cimports.flintmq.queue.types import ENTRY_LOGGED, ENTRY_REDELIVERED, REASON_DROP, REASON_PURGE, queue_t, slot_t, swept_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memset
from cython.cimports.posix.unistd import write

# what stands for the log's number of a message in each entry of a window
_MESSAGE_ID = declare(uint64_t, 1)


def receipt_new() -> pointer[receipt_t]:
    receipt: pointer[receipt_t] = cast(pointer[receipt_t], calloc(1, sizeof(receipt_t)))
    if receipt != NULL:
        receipt.refs = 1
    return receipt


def receipt_decref(receipt: pointer[receipt_t]) -> void:
    following: pointer[receipt_t]
    while receipt != NULL and at_sub32(address(receipt.refs), 1) == 1:
        following = receipt.more
        if receipt.queue != NULL:
            queue_decref(receipt.queue)
        free(receipt)
        receipt = following


def receipt_ticket(receipt: pointer[receipt_t]) -> uint64_t:
    return (cast(uint64_t, 1) << RECEIPT_SHIFT) | cast(uint64_t, receipt)


def ticket_receipt(ticket: uint64_t) -> pointer[receipt_t]:
    if not ticket >> RECEIPT_SHIFT:
        return NULL
    return cast(pointer[receipt_t], ticket & ~(cast(uint64_t, 1) << RECEIPT_SHIFT))


@cfunc
@nogil
@exceptval(check=False)
def _cost(content: pointer[content_t]) -> uint64_t:
    return cast(uint64_t, content.body_len) + content.header_len + content.route_len + WAITING_BYTES


@cfunc
@nogil
@exceptval(check=False)
def _admit(lane: pointer[lane_t], size: uint64_t) -> bint:
    """Counts a message of `size` bytes that is to wait; an empty lane takes one of any size. Under the lock."""
    if lane == NULL:
        return False
    if lane.bytes and lane.bytes + size > lane.bytes_max:
        return False
    if lane.share.bytes and lane.share.bytes + size > lane.share.bytes_max:
        return False
    lane.bytes += size
    lane.share.bytes += size
    return True


@cfunc
@nogil
@exceptval(check=False)
def _append(handoff: pointer[handoff_t], item: pointer[item_t]) -> void:
    """Puts the item into the last block, which has a free place. Under the lock."""
    handoff.last.items[BLOCK_ITEMS - handoff.free_places] = item[0]
    handoff.free_places -= 1
    handoff.count += 1


@cfunc
@nogil
@exceptval(check=False)
def _put(handoff: pointer[handoff_t], item: pointer[item_t]) -> bint:
    """Puts the item behind the others. An end has no lane: nothing but a lack of memory keeps it out."""
    one: uint64_t = 1
    done: bint = False
    fresh: pointer[item_block_t] = NULL
    spin_lock(address(handoff.lock))
    if handoff.free_places == 0 and not handoff.closed:
        spin_unlock(address(handoff.lock))
        fresh = cast(pointer[item_block_t], calloc(1, sizeof(item_block_t)))
        if fresh == NULL:
            return False
        spin_lock(address(handoff.lock))
        if handoff.free_places == 0:  # else another thread was here first
            if handoff.last == NULL:
                handoff.first = fresh
            else:
                handoff.last.next = fresh
            handoff.last = fresh
            handoff.free_places = BLOCK_ITEMS
            handoff.block_count += 1
            fresh = NULL
            memory_add(MEMORY_ENTRIES, sizeof(item_block_t))
    if not handoff.closed and (item.content == NULL or _admit(item.lane, item.bytes)):
        _append(handoff, item)
        done = True
    spin_unlock(address(handoff.lock))
    free(fresh)
    if done and at_swap32(address(handoff.asleep), 0):
        write(handoff.descriptor, address(one), sizeof(uint64_t))
    return done


@cfunc
@nogil
@exceptval(check=False)
def _take_first(handoff: pointer[handoff_t], item: pointer[item_t]) -> bint:
    """Takes the first item of the line. False: there is none."""
    emptied: pointer[item_block_t] = NULL
    spin_lock(address(handoff.lock))
    if handoff.count == 0:
        spin_unlock(address(handoff.lock))
        return False
    item[0] = handoff.first.items[handoff.first_index]
    handoff.first_index += 1
    handoff.count -= 1
    if handoff.count == 0 and handoff.first == handoff.last:
        handoff.first_index = 0
        handoff.free_places = BLOCK_ITEMS
    elif handoff.first_index == BLOCK_ITEMS:
        emptied = handoff.first
        handoff.first = emptied.next
        handoff.first_index = 0
        handoff.block_count -= 1
    spin_unlock(address(handoff.lock))
    if emptied != NULL:
        memory_add(MEMORY_ENTRIES, -cast(int64_t, sizeof(item_block_t)))
        free(emptied)
    return True


def handoff_rests(queue: pointer[queue_t]) -> bint:
    return at_load32(address(cast(pointer[handoff_t], queue.port.context).rests)) != 0


def handoff_publish(queue: pointer[queue_t], content: pointer[content_t], expires_at_ms: int64_t, receipt: pointer[receipt_t]) -> bint:
    item: item_t
    memset(address(item), 0, sizeof(item_t))
    item.queue = queue
    item.content = content
    item.receipt = receipt
    item.expires_at_ms = expires_at_ms
    item.lane = cast(pointer[lane_t], at_load_ptr(address(queue.ops_context)))
    item.bytes = _cost(content)
    queue_incref(queue)
    content_incref(content)
    if receipt != NULL:
        at_add32(address(receipt.refs), 1)
        at_add32(address(receipt.waiting), 1)
    if _put(cast(pointer[handoff_t], queue.port.context), address(item)):
        return True
    if receipt != NULL:
        at_sub32(address(receipt.waiting), 1)
        receipt_decref(receipt)
    content_decref(content)
    queue_decref(queue)
    return False


@cfunc
@nogil
@exceptval(check=False)
def _end(handoff: pointer[handoff_t], queue: pointer[queue_t], position: uint64_t, reason: c_int) -> void:
    item: item_t
    memset(address(item), 0, sizeof(item_t))
    item.queue = queue
    item.position = position
    item.reason = reason
    queue_incref(queue)
    if not _put(handoff, address(item)):
        at_store32(address(handoff.lost), 1)
        queue_decref(queue)


@cfunc
@nogil
@exceptval(check=False)
def _ended(
    context: p_void,
    queue: pointer[queue_t],
    position: uint64_t,
    slot: pointer[slot_t],
    owner: uint32_t,
    reason: c_int,
    delivered_us: uint64_t,
) -> uint64_t:
    _end(cast(pointer[handoff_t], context), queue, position, reason)
    return 0


@cfunc
@nogil
@exceptval(check=False)
def _returned(context: p_void, queue: pointer[queue_t], position: uint64_t, count: uint32_t) -> bint:
    _end(cast(pointer[handoff_t], context), queue, position, RETURNED)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _swept(context: p_void, queue: pointer[queue_t], swept: pointer[swept_t], count: uint32_t, ended: bint) -> uint64_t:
    i: uint32_t
    for i in range(count):
        _end(cast(pointer[handoff_t], context), queue, swept[i].position, REASON_PURGE)
    return 0


@cfunc
@nogil
@exceptval(check=False)
def _free_lane(handoff: pointer[handoff_t], lane: pointer[lane_t]) -> void:
    lane.closed = 0
    lane.next = handoff.free_lanes
    handoff.free_lanes = lane


@cclass
class SharedPort(LogPort):
    """See handoff.pyi."""

    def __cinit__(self, log: LogPort | None, queue_bytes_max: int, vhost_bytes_max: int):
        memset(address(self.handoff), 0, sizeof(handoff_t))
        self.shares = {}
        self.queue_bytes_max = queue_bytes_max
        self.vhost_bytes_max = vhost_bytes_max
        self.log = log
        self.port.context = address(self.handoff)
        self.port.hot_bytes = ~cast(uint64_t, 0)
        self.port.dequeue = _ended
        self.port.counted = _returned
        self.port.sweep = _swept

    def __dealloc__(self):
        # No queue is left that it was attached to.
        block: pointer[item_block_t]
        memory_add(MEMORY_ENTRIES, -cast(int64_t, self.handoff.block_count * sizeof(item_block_t)))
        while self.handoff.first != NULL:
            block = self.handoff.first
            self.handoff.first = block.next
            free(block)
        if self.handoff.descriptor > 0:
            os.close(self.handoff.descriptor)

    def take(self, most: int) -> list:
        item: item_t
        taken: list = []
        while len(taken) < most and _take_first(address(self.handoff), address(item)):
            queue_id: uint64_t = queue_get_id(item.queue)
            lane: uint64_t = cast(uint64_t, item.lane)
            message: tuple | None = None
            if item.content != NULL:
                message = (*content_tuple(item.content), item.content.flags, item.content.priority)
                content_decref(item.content)
            queue_decref(item.queue)
            taken.append(
                (queue_id, message, cast(uint64_t, item.receipt), item.position, item.expires_at_ms, lane, item.bytes, item.reason)
            )
        return taken

    def hold_up(self, waits: bool) -> None:
        """See handoff.pyi."""
        at_store32(address(self.handoff.rests), 1 if waits else 0)

    def admit(self, handle: QueueHandle, size: int) -> int:
        """See handoff.pyi."""
        lane: pointer[lane_t] = cast(pointer[lane_t], handle.queue.ops_context)
        admitted: bint
        cost: uint64_t = size
        spin_lock(address(self.handoff.lock))
        admitted = not self.handoff.closed and _admit(lane, cost)
        spin_unlock(address(self.handoff.lock))
        return cast(uint64_t, lane) if admitted else 0

    def leave(self, lane: int, size: int) -> None:
        """See handoff.pyi."""
        number: uint64_t = lane
        cost: uint64_t = size
        one: pointer[lane_t] = cast(pointer[lane_t], number)
        spin_lock(address(self.handoff.lock))
        one.bytes -= cost
        one.share.bytes -= cost
        if one.closed and one.bytes == 0:
            _free_lane(address(self.handoff), one)
        spin_unlock(address(self.handoff.lock))

    def waiting_bytes(self) -> int:
        """See handoff.pyi."""
        total: uint64_t = 0
        for number in list(self.shares.values()):
            place: uint64_t = number
            spin_lock(address(self.handoff.lock))
            total += cast(pointer[share_t], place).bytes
            spin_unlock(address(self.handoff.lock))
        return total

    def _new_lane(self, vhost: str) -> pointer[lane_t]:
        share: pointer[share_t]
        lane: pointer[lane_t]
        number: uint64_t = self.shares.get(vhost, 0)
        share = cast(pointer[share_t], number)
        if share == NULL:
            share = cast(pointer[share_t], calloc(1, sizeof(share_t)))
            if share == NULL:
                raise MemoryError
            share.bytes_max = self.vhost_bytes_max
            self.shares[vhost] = cast(uint64_t, share)
        spin_lock(address(self.handoff.lock))
        lane = self.handoff.free_lanes
        if lane != NULL:
            self.handoff.free_lanes = lane.next
        spin_unlock(address(self.handoff.lock))
        if lane == NULL:
            lane = cast(pointer[lane_t], calloc(1, sizeof(lane_t)))
            if lane == NULL:
                raise MemoryError
        lane.next = NULL
        lane.bytes_max = self.queue_bytes_max
        lane.share = share
        return lane

    def close_lane(self, handle: QueueHandle) -> None:
        """See handoff.pyi."""
        lane: pointer[lane_t] = cast(pointer[lane_t], handle.queue.ops_context)
        spin_lock(address(self.handoff.lock))
        handle.queue.ops_context = NULL
        if lane != NULL:
            # What a publish that still has the address puts there, it takes away again (H6).
            lane.closed = 1
            if lane.bytes == 0:
                _free_lane(address(self.handoff), lane)
        spin_unlock(address(self.handoff.lock))

    @property
    def descriptor(self) -> int:
        """See handoff.pyi."""
        if self.handoff.descriptor <= 0:  # with the first queue: most nodes have none
            self.handoff.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return self.handoff.descriptor

    def rest(self) -> bool:
        """See handoff.pyi."""
        assert self.descriptor
        at_store32(address(self.handoff.asleep), 1)
        return at_load64(address(self.handoff.count)) == 0

    def wake(self) -> None:
        if self.handoff.descriptor > 0:
            os.eventfd_write(self.handoff.descriptor, 1)

    def close(self) -> None:
        spin_lock(address(self.handoff.lock))
        self.handoff.closed = 1
        spin_unlock(address(self.handoff.lock))

    def take_lost(self) -> bool:
        return at_swap32(address(self.handoff.lost), 0) != 0

    def stream_ticket(self) -> int:
        """See handoff.pyi."""
        return 0 if self.log is None else at_load64(address(self.log.port.stream_ticket))

    def stream_durable(self, ticket: int) -> bool:
        """See handoff.pyi."""
        wanted: uint64_t = ticket
        return self.log is None or at_load64(address(self.log.port.durable_ticket)) >= wanted

    def answer(self, receipts: list, taken: bool) -> None:
        receipt: pointer[receipt_t]
        for one in receipts:
            number: uint64_t = one
            receipt = cast(pointer[receipt_t], number)
            if receipt == NULL:
                continue
            if not taken:
                at_add32(address(receipt.refused), 1)
            at_sub32(address(receipt.waiting), 1)
            receipt_decref(receipt)
        if self.log is not None:
            log_port_wake(address(self.log.port))


def open_window(handle: QueueHandle, port: SharedPort, vhost: str) -> None:
    handle.queue.ops_context = port._new_lane(vhost)
    handle.set_returns(True, -1, False, True, True, True)  # all are told of (H5)
    handle.set_durable(False)
    handle.attach_log(port)
    spin_lock(address(handle.queue.entries.lock))
    handle.queue.entries.closed = 1
    spin_unlock(address(handle.queue.entries.lock))


def window_add(handle: QueueHandle, message: tuple, redelivered: bool) -> int:
    content: pointer[content_t]
    queue: pointer[queue_t] = handle.queue
    position: uint64_t = 0
    wanted: uint32_t = 0
    marks: uint64_t = ENTRY_LOGGED | (ENTRY_REDELIVERED if redelivered else 0)
    exchange, routing_key, header, body, flags, priority = message
    content = content_from_bytes(exchange, routing_key, header, body, flags, priority)
    if not at_load32(address(queue.deleted)):
        position = list_insert_closed(address(queue.entries), content, _MESSAGE_ID, marks, 0, address(wanted))
    content_decref(content)
    if position:
        due_worked(queue)
        manager_available(queue, position, NULL, True)
        manager_wake_waiters(queue)
    return position


def window_take_back(handle: QueueHandle, positions: list) -> list:
    position: uint64_t
    slot: pointer[slot_t]
    taken: list = []
    for one in positions:
        position = one
        slot = queue_take_at(handle.queue, position, 0)
        if slot != NULL:
            queue_forget_logged(handle.queue, slot, position, 0)
            if queue_dequeue(handle.queue, slot, position, 0, REASON_DROP):
                taken.append(position)
    return taken


def window_end(handle: QueueHandle, position: int) -> bool:
    place: uint64_t = position
    handle.take_returns(handle.returned_count)
    queue_forget_logged(handle.queue, NULL, place, 0)
    return queue_settle(handle.queue, NULL, place, 0, REASON_DROP, 0) != 0


def window_available(handle: QueueHandle, most: int) -> list:
    position: uint64_t = queue_next_available(handle.queue, 1)
    positions: list = []
    while position and len(positions) < most:
        positions.append(position)
        position = queue_next_available(handle.queue, position + 1)
    return positions
