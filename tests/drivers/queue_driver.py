"""Drives the queue core from Python, one call per verb, and from real threads without the GIL (tests only).

in: plain Python values. out: plain Python values; every C record is owned here.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, cfunc, exceptval, nogil, p_char, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_load64, at_store32, at_swap32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import (
    CONTENT_PERSISTENT, CONTENT_PRIORITY, content_body, content_decref, content_from_bytes, content_t,
)  # fmt: skip
from cython.cimports.flintmq.queue.consumer_manager import manager_credit_back, manager_move
from cython.cimports.flintmq.queue.entry_list import LARGE_SLOTS, list_find_floor, list_raise_floor, list_set_segments
from cython.cimports.flintmq.queue.group_kinds import queue_set_groups
from cython.cimports.flintmq.queue.held_runs import placed_t, run_publish, run_reserve
from cython.cimports.flintmq.queue.limits import WANTED_VISITS, queue_limit_due, queue_limit_waits, queue_refuses, queue_wanted
from cython.cimports.flintmq.queue.list_kinds import LEVEL_QPID, LEVEL_RABBITMQ, LIST_PRIORITY, LIST_STANDARD
from cython.cimports.flintmq.queue.message_groups import groups_read_all
from cython.cimports.flintmq.queue.owner_ids import owner_id_new
from cython.cimports.flintmq.queue.pager import Pager
from cython.cimports.flintmq.queue.paging import PAGE_CAME, queue_page_in, shell_refused
from cython.cimports.flintmq.queue.purge import queue_purge
from cython.cimports.flintmq.queue.queue_core import (
    consumer_decref, consumer_give_back_credit, consumer_has_credit, consumer_new, consumer_select, entry_sent, queue_add_consumer,
    queue_add_held, queue_add_waiter, queue_cold_count, queue_cold_run, queue_consumer_count, queue_consumer_leaves, queue_content_failed,
    queue_content_loaded, queue_contents_loaded, queue_decref, queue_deliver_single, queue_delivered_total, queue_dequeue, queue_drop_held,
    queue_enqueue, queue_enqueue_immediate, queue_enqueued_total, queue_failed_count, queue_forget_logged, queue_hold_at,
    queue_housekeeping, queue_mark_deleted, queue_new, queue_next_available, queue_next_cold, queue_next_expiry, queue_next_redelivered,
    queue_peek, queue_priorities, queue_publish_held, queue_pull, queue_ready_bytes, queue_ready_count, queue_release,
    queue_remove_consumer, queue_remove_waiter, queue_resident_bytes, queue_restore_many, queue_set_durable, queue_set_notify_work_desired,
    queue_set_ports, queue_set_tail, queue_tail, queue_take_expired, queue_take_head, queue_unacked_count,
)  # fmt: skip
from cython.cimports.flintmq.queue.types import (
    CONSUMER_ACQUIRES, CONSUMER_EXCLUSIVE, CONSUMER_NOT_INTERESTED, CONSUMER_NO_ACK, LEVEL_SHIFT, REASON_ACK, RESTORED_REDELIVERED,
    delivery_t, message_groups_t, place_t, restored_t, slot_t, target_t,
)  # fmt: skip
from cython.cimports.flintmq.selectors.program import Selector, program_incref
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memset
from cython.cimports.posix.unistd import usleep
from cython.cimports.tests.drivers.queue_parts import evict_content, queue_memory
from cython.cimports.tests.drivers.queue_ports import (
    count_wake, loads_free, note_dequeue, note_enqueue, note_load, note_page_bury, note_page_end, note_page_in, note_page_out, note_spill,
    note_sweep, note_unspill,
)  # fmt: skip
from cython.cimports.tests.twins.memory_log import MemoryLog

from flintmq.queue.group_kinds import MODES

LIST_NAMES = ("REMOVED", "INTERESTED", "NOT_INTERESTED", "NOTIFIED", "NON_ACQUIRING")


@cfunc
@nogil
@exceptval(check=False)
def _count_notify(target: pointer[target_t]) -> void:
    at_add32(cast(pointer[uint32_t], target.context), 1)


@cfunc
@nogil
@exceptval(check=False)
def _first_byte(context: p_void, content: pointer[content_t]) -> bint:
    return content.body_len > 0 and content_body(content)[0] == cast(pointer[uint8_t], context)[0]


@cfunc
@nogil
@exceptval(check=False)
def _at_gate(context: p_void, content: pointer[content_t]) -> bint:
    gate: pointer[gate_t] = cast(pointer[gate_t], context)
    if at_swap32(address(gate.reached), 1) == 0:
        while at_load32(address(gate.consumer.list)) != CONSUMER_NOT_INTERESTED:
            usleep(20)
    return True


@cfunc
def _body(content: pointer[content_t]):
    if content == NULL:
        return None
    if content.body_len == 0:
        return b""
    return PyBytes_FromStringAndSize(cast(p_char, content_body(content)), content.body_len)


def set_segments(small: int = 16, large: int = LARGE_SLOTS) -> None:
    """Slots of the first segment of a level, and of the others."""
    list_set_segments(small, large)


@cclass
class Queue:
    """One queue. `levels` > 1 or `rule` makes it a priority queue; rule "rabbitmq" or "qpid".

    It is durable, with ports that give out ids and count, or those of `log`. `hot`: bytes of bodies it keeps in memory before arrivals go
    cold; None: all. `groups`: (mode, a selector whose first name's value is a message's group, groups at most, idle ones at most).
    """

    def __cinit__(
        self,
        levels: c_int = 1,
        rule: str | None = None,
        queue_id: int = 1,
        hot: int | None = None,
        log: MemoryLog | None = None,
        groups: tuple | None = None,
    ):
        kind: c_int = LIST_PRIORITY if levels > 1 or rule is not None else LIST_STANDARD
        self.queue = queue_new(queue_id, kind, levels, LEVEL_QPID if rule == "qpid" else LEVEL_RABBITMQ)
        if self.queue == NULL:
            raise MemoryError("queue_new refused")
        if groups is not None:
            selector: Selector = groups[1]
            program_incref(selector.program)
            if not queue_set_groups(self.queue, MODES[groups[0]], selector.program, groups[2], groups[3]):
                raise MemoryError("queue_set_groups refused")
        self.port.context = address(self.loads)
        self.port.load = note_load
        self.port.enqueue = note_enqueue
        self.port.dequeue = note_dequeue
        self.port.sweep = note_sweep
        self.port.spill = note_spill
        self.port.unspill = note_unspill
        self.port.page_out = note_page_out
        self.port.page_in = note_page_in
        self.port.page_end = note_page_end
        self.port.page_bury = note_page_bury
        self.pager = Pager()
        self.port.hot_bytes = ~cast(uint64_t, 0)
        if hot is not None:
            self.port.hot_bytes = hot
        queue_set_durable(self.queue, True)
        if log is not None:
            self.log = log  # which the queue uses instead
            queue_set_ports(self.queue, address(log.port))
        else:
            queue_set_ports(self.queue, address(self.port))

    def __dealloc__(self):
        if self.port.paging != NULL:  # it is the only queue of the port
            queue_decref(self.port.paging)
        if self.queue != NULL:
            queue_decref(self.queue)
        loads_free(address(self.loads))

    # --- entries that leave memory --------------------------------------------------------------------------------------

    def page_out(self) -> int:
        """All segments that may become shells do. Returns how many did."""
        before: uint64_t = self.pager._out
        for _ in range(10):  # one that came back rests for some looks
            self.pager.refused = False  # as a round begins
            self.pager._page_queue(self.queue)
        return self.pager._out - before

    def page_in(self, position: int) -> int:
        """PAGE_*."""
        return queue_page_in(self.queue, position)

    def refuse_page(self, position: int) -> None:
        shell_refused(self.queue, position)

    def set_runs(self, lost: bool = False, full: bool = False) -> None:
        """Runs can't be read; none is taken."""
        self.loads.runs_lost = lost
        self.loads.runs_full = full

    @property
    def refusals(self) -> int:
        """How often the log took no run."""
        return self.loads.refusals

    @property
    def shells(self) -> int:
        return self.queue.entries.shells

    @property
    def shell_entries(self) -> int:
        return self.queue.entries.shell_entries

    @property
    def kept_runs(self) -> int:
        """Runs that somebody may still ask for."""
        return len([i for i in range(self.loads.run_count) if self.loads.runs[i].bytes != NULL])

    def delivery_of(self, delivery: pointer[delivery_t]) -> object:
        return (delivery.position, _body(delivery.content), delivery.redelivered != 0, delivery.delivery_count, delivery.rotate != 0)

    def enqueue(
        self,
        body: bytes,
        priority: int | None = None,
        expires_at: int = 0,
        immediate: bool = False,
        persistent: bool = True,
        key: bytes = b"q",
    ) -> int:
        flags: uint8_t = CONTENT_PRIORITY if priority is not None else 0
        if persistent:
            flags |= CONTENT_PERSISTENT
        content: pointer[content_t] = content_from_bytes(b"", key, b"", body, flags, priority or 0)
        position: uint64_t
        expires_at_ms: int64_t = expires_at
        at_once: bint = immediate
        with nogil:
            if at_once:
                position = queue_enqueue_immediate(self.queue, content, 0, expires_at_ms, NULL)
            else:
                position = queue_enqueue(self.queue, content, 0, expires_at_ms, NULL)
        content_decref(content)
        return position

    def restore(self, position: int, body: bytes | None, redelivered: bool = False, expires_at: int = 0, body_len: int = 0) -> int:
        """An entry that recovery found; `body`: its content is loaded at once. Its position, or 0: it is refused."""
        with nogil:
            spin_lock(address(self.loads.lock))
            self.loads.ids += 1
            spin_unlock(address(self.loads.lock))
        size: int = body_len if body is None else len(body)
        if not self.restore_many([(position, self.loads.ids, expires_at, size, RESTORED_REDELIVERED if redelivered else 0)]):
            return 0
        if body is not None:
            self.loaded(position, body)
        return position

    def restore_many(self, entries: list) -> int:
        """Restores (position, message id, expires at, body length, flags) tuples; returns how many."""
        count: uint64_t = len(entries)
        done: uint64_t
        i: uint64_t = 0
        restored: pointer[restored_t] = cast(pointer[restored_t], calloc(count + 1, sizeof(restored_t)))
        for entry in entries:
            restored[i].position = entry[0]
            restored[i].message_id = entry[1]
            restored[i].expires_at_ms = entry[2]
            restored[i].body_len = entry[3]
            restored[i].flags = entry[4]
            i += 1
        done = queue_restore_many(self.queue, restored, count)
        free(restored)
        self.loads.logged += done
        return done

    def tail(self, level: int = 0) -> int:
        return queue_tail(self.queue, level)

    def set_tail(self, level: int, index: int) -> bool:
        return queue_set_tail(self.queue, level, index) != 0

    def next_redelivered(self, position: int = 0):
        """(first, last) or None."""
        first: uint64_t = 0
        last: uint64_t = 0
        if not queue_next_redelivered(self.queue, position, address(first), address(last)):
            return None
        return (first, last)

    def add_held(self, body: bytes, priority: int | None = None, expires_at: int = 0) -> int:
        """Position of the held entry, 0 when refused."""
        flags: uint8_t = CONTENT_PERSISTENT | (CONTENT_PRIORITY if priority is not None else 0)
        content: pointer[content_t] = content_from_bytes(b"", b"q", b"", body, flags, priority or 0)
        position: uint64_t = 0
        slot: pointer[slot_t] = queue_add_held(self.queue, content, expires_at, address(position))
        content_decref(content)
        if slot == NULL:
            return 0
        self.loads.ids += 1
        slot.message_id = self.loads.ids
        return position

    def publish_held(self, position: int, logged: bool = True) -> bool:
        done: bint = queue_publish_held(self.queue, NULL, position, logged)
        if done and logged:
            self.loads.logged += 1
        return done

    def reserve(self, count: int) -> list[int]:
        """Positions of places of a run, which `publish_run` publishes."""
        placed: pointer[placed_t] = cast(pointer[placed_t], calloc(count, sizeof(placed_t)))
        done: uint64_t = run_reserve(self.queue, placed, count)
        positions = [placed[i].position for i in range(done)]
        free(placed)
        return positions

    def publish_run(self, positions: list[int], body_len: int) -> None:
        """Their messages are in the log only: cold."""
        count: uint64_t = len(positions)
        i: uint64_t
        placed: pointer[placed_t] = cast(pointer[placed_t], calloc(count, sizeof(placed_t)))
        for i in range(count):
            self.loads.ids += 1
            self.loads.logged += 1
            placed[i].position = positions[i]
            placed[i].message_id = self.loads.ids
            placed[i].body_len = body_len
        run_publish(self.queue, placed, count)
        free(placed)

    def find_floor(self, level: int = 0) -> tuple[int, int]:
        """The first step of raising a level's floor: where it may be, and the figure of what came back before the scan."""
        place: place_t
        released: uint64_t = 0
        place.segment = NULL
        place.generation = 0
        index: uint64_t = list_find_floor(address(self.queue.entries), address(place), level, address(released))
        return (index, released)

    def raise_floor(self, found: tuple[int, int], level: int = 0) -> None:
        """The second step; others may have come in between."""
        list_raise_floor(address(self.queue.entries), level, found[0], found[1])

    @property
    def group_figures(self) -> tuple:
        """(groups, places of entries in them, groups without an entry, entries that somebody has)"""
        groups: pointer[message_groups_t] = self.queue.message_groups
        return (groups.by_hash.count, groups.positions, groups.idle_count, groups.held.count)

    def read_groups(self) -> None:
        """After a restore."""
        groups_read_all(self.queue)

    def available(self) -> list[int]:
        """Positions of all entries that a reader from the start finds."""
        found: list = []
        position: uint64_t = queue_next_available(self.queue, 0)
        while position:
            if queue_page_in(self.queue, position) != PAGE_CAME:
                found.append(position)
                position += 1
            position = queue_next_available(self.queue, position)
        return found

    def floor(self, level: int = 0) -> int:
        return at_load64(address(self.queue.entries.levels[level].floor))

    def drop_held(self, position: int) -> bool:
        return queue_drop_held(self.queue, NULL, position) != 0

    def hold_at(self, position: int) -> bool:
        queue_page_in(self.queue, position)
        return queue_hold_at(self.queue, position) != NULL

    def forget_logged(self, position: int, owner: int = 0) -> bool:
        return queue_forget_logged(self.queue, NULL, position, owner) != 0

    def failed(self, position: int) -> bool:
        queue_page_in(self.queue, position)
        return queue_content_failed(self.queue, position) != 0

    def next_cold(self, position: int = 0):
        """(position, message id) or None."""
        found: uint64_t = 0
        message_id: uint64_t = 0
        while queue_next_cold(self.queue, position, address(found), address(message_id)):
            if queue_page_in(self.queue, found) != PAGE_CAME:
                return (found, message_id)
        return None

    def cold_run(self, position: int, most: int) -> list:
        """[(position, message id)]; shells stay."""
        positions: uint64_t[64]
        message_ids: uint64_t[64]
        count: uint32_t = queue_cold_run(self.queue, position, positions, message_ids, most)
        return [(positions[i], message_ids[i]) for i in range(count)]

    def run_loaded(self, run: list, key: bytes = b"q") -> None:
        """The contents of some entries come at once. Args: run: [(position, body)]."""
        positions: uint64_t[64]
        contents: pointer[content_t][64]
        count: uint32_t = len(run)
        i: uint32_t
        for i in range(count):
            positions[i] = run[i][0]
            contents[i] = content_from_bytes(b"", key, b"", run[i][1], 0, 0)
        queue_contents_loaded(self.queue, positions, contents, count)
        for i in range(count):
            content_decref(contents[i])

    @property
    def cold_count(self) -> int:
        return queue_cold_count(self.queue)

    @property
    def resident_bytes(self) -> int:
        return queue_resident_bytes(self.queue)

    @property
    def failed_count(self) -> int:
        return queue_failed_count(self.queue)

    @property
    def logged(self) -> int:
        """Enqueues less dequeues that the log was told of (restored and published held entries count as told)."""
        return self.loads.logged

    @property
    def spilled(self) -> int:
        """Spills less unspills."""
        return self.loads.spilled

    def pull(self, owner: int):
        """basic.get: (position, body, redelivered, count, rotate) or None."""
        delivery: delivery_t
        if not queue_pull(self.queue, owner, address(delivery)):
            return None
        entry_sent(delivery.slot)
        return self.delivery_of(address(delivery))

    def pull_some(self, owner: int):
        """The same; "again" when it stopped at its limit."""
        delivery: delivery_t
        if not queue_pull(self.queue, owner, address(delivery)):
            return "again" if delivery.rotate else None
        entry_sent(delivery.slot)
        return self.delivery_of(address(delivery))

    def take_head(self):
        delivery: delivery_t
        while not queue_take_head(self.queue, address(delivery)):
            if queue_page_in(self.queue, delivery.position) != PAGE_CAME:
                return None
        return self.delivery_of(address(delivery))

    def take_expired(self, now: int):
        delivery: delivery_t
        while not queue_take_expired(self.queue, now, address(delivery)):
            if self.queue.entries.due_shell == NULL:
                return None
            queue_page_in(self.queue, cast(uint64_t, self.queue.entries.due_shell.level) << LEVEL_SHIFT | self.queue.entries.due_shell.base)
        return self.delivery_of(address(delivery))

    def dequeue(self, position: int, owner: int = 0) -> bool:
        return queue_dequeue(self.queue, NULL, position, owner, REASON_ACK) != 0

    def release(self, position: int, owner: int = 0, delivered: bool = True) -> bool:
        return queue_release(self.queue, NULL, position, owner, delivered) != 0

    def peek(self, position: int = 0):
        delivery: delivery_t
        while queue_peek(self.queue, position, address(delivery)):
            if queue_page_in(self.queue, delivery.position) != PAGE_CAME:
                break
        else:
            return None
        result = (delivery.position, _body(delivery.content), delivery.redelivered != 0)
        if delivery.content != NULL:
            content_decref(delivery.content)
        return result

    def purge(self) -> int:
        return queue_purge(self.queue)

    def evict(self, position: int) -> bool:
        return evict_content(self.queue, position) != 0

    def loaded(self, position: int, body: bytes | None, key: bytes = b"q") -> None:
        content: pointer[content_t] = NULL
        if body is not None:
            queue_page_in(self.queue, position)
            content = content_from_bytes(b"", key, b"", body, 0, 0)
        queue_content_loaded(self.queue, position, content)
        if content != NULL:
            content_decref(content)

    def take_loads(self) -> list:
        """Positions whose content was asked for since the last call."""
        result = [self.loads.positions[i] for i in range(self.loads.count)]
        self.loads.count = 0
        return result

    def housekeeping(self) -> None:
        queue_housekeeping(self.queue)

    def mark_deleted(self) -> None:
        queue_mark_deleted(self.queue)

    @property
    def ready(self) -> int:
        return queue_ready_count(self.queue)

    @property
    def ready_bytes(self) -> int:
        return queue_ready_bytes(self.queue)

    @property
    def unacked(self) -> int:
        return queue_unacked_count(self.queue)

    @property
    def consumer_count(self) -> int:
        return queue_consumer_count(self.queue)

    def watch(self, due) -> None:
        """Tells the index what it has to do; `due.release()` afterwards."""
        self.due_index = due
        self.queue.due = address(self.due_index.index)

    def limit(self, messages: int, size: int = 0xFFFFFFFFFFFFFFFF) -> None:
        self.queue.max_length = messages
        self.queue.max_bytes = size

    def consumers_want(self, most: int, visits: int = WANTED_VISITS) -> int:
        return queue_wanted(self.queue, most, visits)

    def limit_waits(self) -> bool:
        return queue_limit_waits(self.queue)

    def limit_due(self) -> bool:
        return queue_limit_due(self.queue)

    def refuses(self, size: int, messages: int = 0, bytes_: int = 0) -> bool:
        return queue_refuses(self.queue, size, messages, bytes_)

    @property
    def priorities(self) -> int:
        return queue_priorities(self.queue)

    @property
    def enqueued_total(self) -> int:
        return queue_enqueued_total(self.queue)

    @property
    def delivered_total(self) -> int:
        return queue_delivered_total(self.queue)

    @property
    def next_expiry(self) -> int:
        return queue_next_expiry(self.queue)

    @property
    def memory(self) -> int:
        return queue_memory(self.queue)

    @property
    def passed(self) -> int:
        """Slots that scans passed over: what holes cost."""
        return at_load64(address(self.queue.entries.passed))

    @property
    def visited(self) -> int:
        """Consumers that loops over them looked at: what many of them cost."""
        return self.queue.manager.visited

    @property
    def compared(self) -> tuple[int, int]:
        """Selectors that were run for arrivals, and for looks of their consumers."""
        if self.queue.manager.selections == NULL:
            return (0, 0)
        return (self.queue.manager.selections.compared, self.queue.manager.selections.looked)

    @property
    def wanted(self) -> int:
        """Consumers that an arrival would wake, as the producers' side sees it."""
        return at_load32(address(self.queue.entries.wanted))

    def list_counts(self) -> dict:
        """List name -> consumers on it, from the manager's own counters."""
        counts = {"INTERESTED": 0, "NOTIFIED": 0}
        group = self.queue.manager.groups
        while group != NULL:
            counts["INTERESTED"] += group.interested.count
            counts["NOTIFIED"] += group.notified.count
            group = group.next
        if self.queue.manager.selections != NULL:
            selection = self.queue.manager.selections.all
            while selection != NULL:
                counts["INTERESTED"] += selection.interested.count
                counts["NOTIFIED"] += selection.notified.count
                selection = selection.next
        counts["NOT_INTERESTED"] = self.queue.manager.not_interested.count
        counts["NON_ACQUIRING"] = self.queue.manager.non_acquiring.count
        return counts

    def fill(self, count: int) -> None:
        """Enqueues `count` references of one message."""
        content: pointer[content_t] = content_from_bytes(b"", b"q", b"", b"0123456789abcdef", 0, 0)
        total: uint64_t = count
        i: uint64_t
        with nogil:
            for i in range(total):
                queue_enqueue(self.queue, content, 0, 0, NULL)
        content_decref(content)


def new_owner() -> int:
    """A consumer id for Queue.pull."""
    return owner_id_new()


@cclass
class Waiter:
    """Waits for a queue's head, as a basic.get does."""

    def add(self, queue: Queue) -> None:
        self.queue = queue
        self.waiter.context = address(self.woken)
        self.waiter.wake = count_wake
        queue_add_waiter(queue.queue, address(self.waiter))

    def remove(self) -> None:
        if self.queue is not None:
            queue_remove_waiter(self.queue.queue, address(self.waiter))
            self.queue = None

    def __dealloc__(self):
        if self.queue is not None:
            queue_remove_waiter(self.queue.queue, address(self.waiter))

    def take(self) -> int:
        """Wakes since the last call."""
        return at_swap32(address(self.woken), 0)


@cclass
class Credit:
    """A prefetch that several consumers share; limit 0 = unlimited."""

    def __init__(self, limit: int):
        self.credit.limit = limit

    @property
    def used(self) -> int:
        return self.credit.used


@cclass
class Target:
    """Counts notify_work calls; `take` reads and clears."""

    def __cinit__(self):
        memset(address(self.target), 0, sizeof(target_t))
        self.target.notify_work = _count_notify
        self.target.context = address(self.notified)
        self.members = []

    def take(self) -> int:
        return at_swap32(address(self.notified), 0)

    @property
    def suspended(self) -> bool:
        return self.target.suspended != 0


@cclass
class Consumer:
    """A consumer attached to a queue; `wants`: takes only bodies that begin with this byte; `gated`: the first time it is
    asked about a message, an offer waits under its send_lock until it is off the lists. Raises ValueError when refused."""

    def __init__(
        self,
        queue: Queue,
        target: Target | None = None,
        priority: int = 0,
        browser: bool = False,
        no_ack: bool = False,
        exclusive: bool = False,
        prefetch: int = 0,
        shared: Credit | None = None,
        wants: bytes | None = None,
        suspended: bool = False,
        gated: bool = False,
        selector: Selector | None = None,
    ):
        flags: uint32_t = 0 if browser else CONSUMER_ACQUIRES
        if no_ack:
            flags |= CONSUMER_NO_ACK
        if exclusive:
            flags |= CONSUMER_EXCLUSIVE
        self.queue = queue
        self.target = target if target is not None else Target()
        if suspended:
            self.target.target.suspended = 1
        self.consumer = consumer_new(queue.queue, address(self.target.target), priority, flags, prefetch)
        if self.consumer == NULL:
            raise MemoryError("consumer_new")
        if shared is not None:
            self.shared = shared
            self.consumer.shared_credit = address(shared.credit)
        if wants is not None:
            self.wanted_first = wants[0]
            self.consumer.interest = _first_byte
            self.consumer.interest_context = address(self.wanted_first)
        if selector is not None:
            consumer_select(self.consumer, selector.program)
        if gated:
            self.gate.consumer = self.consumer
            self.consumer.interest = _at_gate
            self.consumer.interest_context = address(self.gate)
        if not queue_add_consumer(queue.queue, self.consumer):
            raise ValueError("refused")

    def __dealloc__(self):
        if self.consumer != NULL:
            queue_remove_consumer(self.consumer.queue, self.consumer)
            while queue_consumer_leaves(self.consumer.queue, self.consumer):
                pass
            consumer_decref(self.consumer)

    def pull(self, sent: bool = True):
        """(position, body, redelivered, count, rotate) or None. No-ack: settled at once. `sent`: makes it stealable."""
        delivery: delivery_t
        if not queue_deliver_single(self.queue.queue, self.consumer, address(delivery)):
            return None
        result = self.queue.delivery_of(address(delivery))
        if not self.consumer.flags & CONSUMER_ACQUIRES:
            content_decref(delivery.content)
        elif self.consumer.flags & CONSUMER_NO_ACK:
            queue_dequeue(self.queue.queue, delivery.slot, delivery.position, self.consumer.id, REASON_ACK)
        elif sent:
            entry_sent(delivery.slot)
        return result

    def _credit_back(self):
        consumer_give_back_credit(self.consumer)
        if self.consumer.list == CONSUMER_NOT_INTERESTED and consumer_has_credit(self.consumer) and not self.target.suspended:
            queue_set_notify_work_desired(self.queue.queue, self.consumer, True)

    def ack(self, position: int) -> bool:
        if not queue_dequeue(self.queue.queue, NULL, position, self.consumer.id, REASON_ACK):
            return False
        self._credit_back()
        return True

    def release(self, position: int, delivered: bool = True) -> bool:
        if not queue_release(self.queue.queue, NULL, position, self.consumer.id, delivered):
            return False
        self._credit_back()
        return True

    def set_desired(self, desired: bool) -> None:
        queue_set_notify_work_desired(self.queue.queue, self.consumer, desired)

    def move(self, to: str) -> str:
        """manager_move: the list that it was on, REMOVED when it did not move."""
        return LIST_NAMES[manager_move(self.queue.queue, self.consumer, LIST_NAMES.index(to))]

    def credit_back(self) -> bool:
        """manager_credit_back: credit that an attempt had taken is there again."""
        return manager_credit_back(self.queue.queue, self.consumer, True)

    def suspend(self, suspended: bool = True) -> None:
        """Transport blocked or not: as the session does it."""
        at_store32(address(self.target.target.suspended), 1 if suspended else 0)
        if suspended or consumer_has_credit(self.consumer):
            queue_set_notify_work_desired(self.queue.queue, self.consumer, not suspended)

    def block(self) -> None:
        """Transport blocked: the first half of `suspend`, before the consumer leaves the lists."""
        at_store32(address(self.target.target.suspended), 1)

    def unblock(self) -> None:
        """Takes `block` back, before the session says so to its consumers."""
        at_store32(address(self.target.target.suspended), 0)

    def set_prefetch(self, limit: int) -> None:
        at_store32(address(self.consumer.credit.limit), limit)
        if self.consumer.list == CONSUMER_NOT_INTERESTED and consumer_has_credit(self.consumer) and not self.target.suspended:
            queue_set_notify_work_desired(self.queue.queue, self.consumer, True)

    def close(self) -> None:
        self.remove()
        while self.leaves():
            pass

    def remove(self) -> None:
        """The first slice of `close`."""
        queue_remove_consumer(self.queue.queue, self.consumer)

    def leaves(self) -> bool:
        """Another slice; True: there are more."""
        return queue_consumer_leaves(self.queue.queue, self.consumer)

    @property
    def id(self) -> int:
        return self.consumer.id

    @property
    def list(self) -> str:
        return LIST_NAMES[at_load32(address(self.consumer.list))]

    @property
    def used(self) -> int:
        return at_load32(address(self.consumer.credit.used))

    @property
    def has_credit(self) -> bool:
        return consumer_has_credit(self.consumer) != 0

    @property
    def at_gate(self) -> bool:
        return at_load32(address(self.gate.reached)) != 0

    @property
    def has_offer(self) -> bool:
        return self.consumer.offered != NULL

    @property
    def pointers(self) -> tuple:
        """(last_seen, released)."""
        return (self.consumer.last_seen, self.consumer.released)
