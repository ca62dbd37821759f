"""Pulls for Python: a PullGroup is asked, a Pull is the request and its answer, Answers is where a thread finds those that are done.

in: calls of the pull service. out: answers with messages as bytes, results of settlements.

I1  A Pull that was dispatched has one reference of its own until `Answers.take` handed it out: its memory outlives the actor system's use.
I2  A PullGroup's memory is freed by `close` alone, and only when nothing of the actor system is inside.
"""

from __future__ import annotations

import os
import select

from cython import NULL, address, cast, cclass, nogil, p_void, pointer, sizeof
from cython.cimports.cpython.ref import Py_DECREF, Py_INCREF
from cython.cimports.flintmq.core.atomics import at_add64, at_load64, at_store32
from cython.cimports.flintmq.core.content import content_decref, content_from_bytes, content_incref, content_t
from cython.cimports.flintmq.core.content_view import ContentView, content_view
from cython.cimports.flintmq.pulls.pull_group import (
    answers_take, pull_group_attach, pull_group_close, pull_group_due, pull_group_extend, pull_group_finish, pull_group_free,
    pull_group_is_idle, pull_group_leases, pull_group_new, pull_group_next_due, pull_group_pause, pull_group_pull, pull_group_release,
    pull_group_return, pull_group_settle, pull_group_take,
)  # fmt: skip
from cython.cimports.flintmq.pulls.types import answers_t, pull_group_t, pull_t
from cython.cimports.flintmq.queue.control import QueueHandle, content_tuple
from cython.cimports.flintmq.queue.log_port import LogPort
from cython.cimports.flintmq.queue.queue_core import queue_enqueue, queue_enqueue_once, queue_is_deleted, queue_is_durable
from cython.cimports.flintmq.queue.returns import queue_pass_on
from cython.cimports.flintmq.queue.types import PRESSURE_DISK
from cython.cimports.flintmq.scheduler.actor import DISPATCH_OK, actor_wake, request_cancel, system_now
from cython.cimports.flintmq.scheduler.system import ActorSystem
from cython.cimports.flintmq.streams.control import Seat, seat_give
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memset

# outcomes (scheduler/actor.pxd)
MESSAGES = 1
FILTERED_EMPTY = 2
EMPTY = 3
EXPIRED = 4
INVALID = 5
BUSY = 6
FAILED = 7
CLOSED = 8


def place(handle: QueueHandle, log: LogPort | None, message: tuple, expires_at_ms: int = 0, original: tuple | None = None) -> tuple:
    """Puts a message on a queue or stream. Args: message: exchange, routing key, header, body, flags, priority; original: as
    QueueHandle.publish.

    Returns: (position, LSN, ticket), the latter two for `is_durable`; position 0: refused (deleted)."""
    lsn: uint64_t = 0
    ticket: uint64_t = 0
    position: uint64_t
    content: pointer[content_t]
    exchange, routing_key, header, body, flags, priority = message
    content = content_from_bytes(exchange, routing_key, header, body, flags, priority)
    if handle.queue.once != NULL:
        position = queue_enqueue_once(handle.queue, content, expires_at_ms, False, address(lsn))
    elif original is not None:
        position = handle._publish_letter(content, expires_at_ms, original, address(lsn))
    else:
        position = queue_enqueue(handle.queue, content, 0, expires_at_ms, address(lsn))
    content_decref(content)
    if log is not None:
        if position and handle.queue.ops != NULL:
            ticket = at_load64(address(log.port.stream_ticket))  # its own, or a later one of another thread
        if (lsn or ticket) and log.port.kick != NULL:
            log.port.kick(log.port.context, True)
    return (position, lsn, ticket)


def is_durable(log: LogPort | None, lsn: int, ticket: int) -> bool:
    """Whether everything up to the LSN and the ticket is on disk."""
    if log is None or log.port.durable_lsn == NULL:
        return True
    return log.port.durable_lsn(log.port.context) >= lsn and at_load64(address(log.port.durable_ticket)) >= ticket


def publishers_wait(log: LogPort | None) -> bool:
    """Whether the log asks publishers to wait because the disk is full."""
    return log is not None and log.port.pressure != NULL and log.port.pressure(log.port.context) == PRESSURE_DISK


def tend(pull_groups: list, idle_ns: int, most: int) -> tuple:
    """A pass over many pull groups: what is due goes back, `most` leases of each at most. Returns those that should close (their queue is
    deleted, or nobody has pulled for `idle_ns` and nothing is leased), and when the next lease of the others ends: monotonic nanoseconds,
    0: none is left. A tenth of a microsecond for each that has nothing to do."""
    one: PullGroup
    pull_group: pointer[pull_group_t]
    now: int64_t = -1
    idle: int64_t = idle_ns
    limit: uint32_t = most
    due: int64_t
    first: int64_t = 0
    closing: list = []
    for item in pull_groups:
        one = item
        pull_group = one.pull_group
        if pull_group == NULL:
            continue
        if now < 0:
            now = system_now(pull_group.system)
        if queue_is_deleted(pull_group.queue):
            closing.append(one)
        elif pull_group_leases(pull_group):
            pull_group_due(pull_group, now, limit)
            due = pull_group_next_due(pull_group)
            if due and (first == 0 or due < first):
                first = due
        elif pull_group_is_idle(pull_group) and now - pull_group.used_ns >= idle:
            closing.append(one)
    return (closing, first)


@cclass
class Answers:
    """Where finished pulls wait for one thread, which watches `fileno` or calls `wait`."""

    def __cinit__(self):
        memset(address(self.answers), 0, sizeof(answers_t))
        self.answers.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __dealloc__(self):
        if self.answers.descriptor > 0:
            os.close(self.answers.descriptor)

    def fileno(self) -> int:
        """A descriptor that is readable while there is something to take."""
        return self.answers.descriptor

    def wait(self, timeout_ms: int) -> bool:
        """Waits without the GIL until there is something to take. False: the time is over."""
        if self.poll is None:
            self.poll = select.poll()
            self.poll.register(self.answers.descriptor, select.POLLIN)
        return bool(self.poll.poll(timeout_ms))

    def take(self) -> list:
        """The Pulls that were answered since, in the order of their answers. Each is given once."""
        pull: pointer[pull_t] = answers_take(address(self.answers))
        after: pointer[pull_t]
        done: list = []
        while pull != NULL:
            after = pull.next
            one: Pull = cast(Pull, pull.owner)
            one.answered = True
            done.append(one)
            Py_DECREF(one)
            pull = after
        self.taken += len(done)
        return done


@cclass
class Pull:
    """One request for messages, and its answer once Answers.take returned it. Made by PullGroup.pull."""

    def __cinit__(self):
        memset(address(self.pull), 0, sizeof(pull_t))

    def __dealloc__(self):
        i: uint32_t
        for i in range(self.pull.count):
            content_decref(self.pull.items[i].content)
        free(self.pull.items)

    def cancel(self) -> bool:
        """Nobody waits for it any more. True: it is answered INVALID, without messages; False: it is looked at, or answered already, so
        what it brings must be given back; what brings nothing is answered INVALID then. Either way it comes out of Answers.take."""
        # The pull group keeps the actor; it is freed under the GIL or not at all.
        if self.pull_group.pull_group == NULL:
            return False
        at_store32(address(self.pull.gone), 1)
        if request_cancel(address(self.pull.request)):
            return True
        # It is being looked at: should it park after that, it is looked at once more.
        actor_wake(self.pull_group.pull_group.actor)
        return False

    @property
    def outcome(self) -> int:
        """MESSAGES, EMPTY, ...: after it was taken."""
        return self.pull.request.outcome

    @property
    def count(self) -> int:
        return self.pull.count

    @property
    def bytes(self) -> int:
        """Of bodies, headers and routes."""
        return self.pull.bytes

    @property
    def loading(self) -> bool:
        """BUSY, because a message is there that could not be read from disk in time."""
        return self.pull.loading != 0

    @property
    def asked_ns(self) -> int:
        """Monotonic."""
        return self.pull.asked_ns

    @property
    def answered_ns(self) -> int:
        """Monotonic."""
        return self.pull.answered_ns

    def messages(self) -> list:
        """(lease, position, earlier deliveries, redelivered, exchange, routing key, header, body) of each message."""
        return [(*self.facts(index), *content_tuple(self.pull.items[index].content)) for index in range(self.pull.count)]

    def facts(self, index: int) -> tuple:
        """(lease, position, earlier deliveries, redelivered) of a message, 0 <= index < count."""
        i: uint32_t = index
        if i >= self.pull.count:
            raise IndexError(index)
        return (
            self.pull.items[i].lease,
            self.pull.items[i].position,
            self.pull.items[i].delivery_count,
            self.pull.items[i].redelivered != 0,
        )

    def view(self, index: int) -> ContentView:
        """A message as it lies in memory, 0 <= index < count."""
        i: uint32_t = index
        if i >= self.pull.count:
            raise IndexError(index)
        content_incref(self.pull.items[i].content)
        return content_view(self.pull.items[i].content)

    def give_back(self, delivered: bool) -> int:
        """Its messages go back to the queue; returns how many. `delivered`: they may have reached the client: flagged redelivered."""
        i: uint32_t
        returned: uint32_t = 0
        pull_group: pointer[pull_group_t] = self.pull_group.pull_group
        if pull_group != NULL:
            for i in range(self.pull.count):
                returned += pull_group_release(pull_group, self.pull.items[i].lease, 0, delivered)
        return returned


@cclass
class PullGroup:
    """One (queue, group). See the pull service.

    Args: system: the node's actors; handle: of the queue; queue: what it is to the control plane; group; key: unique in the process;
    serial: the same as a number; leases_max: messages handed out and not settled; grace_ns: how long beyond its hold a pull may wait for
    its turn; load_ns: how long one waits for a message that is read from disk; on_expired(queue): takes expired messages out, a
    slice of them; whether that was all.
    Raises: MemoryError.
    """

    def __cinit__(
        self,
        system: ActorSystem,
        handle: QueueHandle,
        queue: object,
        group: str,
        key: str,
        serial: int,
        *,
        leases_max: int,
        grace_ns: int,
        load_ns: int,
        on_expired: object,
    ):
        self.pull_group = pull_group_new(system.system, handle.queue, serial, leases_max)
        if self.pull_group == NULL:
            raise MemoryError("no memory for a group")
        self.pull_group.owner = cast(p_void, self)
        self.pull_group.grace_ns = grace_ns
        self.pull_group.load_ns = load_ns
        self.pull_group.logged = handle.log is not None
        self.system = system
        self.handle = handle
        self.queue = queue
        self.group = group
        self.key = key
        self.on_expired = on_expired

    def attach(self, seat: Seat | None = None) -> bool:
        """Joins the queue; `seat`: its place in a group of the stream that the queue is. False: an exclusive consumer is there, or the
        queue is deleted. Raises: StoreError."""
        if seat is not None:
            seat_give(seat, self.pull_group.consumer)
        elif self.handle.log is not None and queue_is_durable(self.handle.queue):
            self.handle.log.note_consumer(self.pull_group.consumer.id, b"pull", self.group.encode("utf-8", "surrogateescape"))
        return pull_group_attach(self.pull_group)

    def pause(self, paused: bool) -> None:
        """The queue rests, or is resumed: pulls wait meanwhile, as at an empty queue."""
        if self.pull_group != NULL:
            pull_group_pause(self.pull_group, paused)

    def expire_now(self):
        return self.on_expired(self.queue)

    def pull(self, answers: Answers, context: object, most: int, bytes_max: int, visibility_ns: int, hold_ns: int) -> Pull | None:
        """Asks for up to `most` messages (>= 1), about `bytes_max` bytes of bodies; waits up to `hold_ns` for the first, 0: not at all.
        None: too many pulls wait already, or the pull group is closed (`closed`)."""
        request: Pull = Pull.__new__(Pull)
        request.pull_group = self
        request.answers = answers
        request.context = context
        request.pull.answers = address(answers.answers)
        request.pull.owner = cast(p_void, request)
        request.pull.most = most
        request.pull.bytes_max = bytes_max
        request.pull.visibility_ns = visibility_ns
        if self.pull_group == NULL:
            return None
        Py_INCREF(request)
        if pull_group_pull(self.pull_group, address(request.pull), hold_ns) != DISPATCH_OK:
            Py_DECREF(request)
            return None
        return request

    # --- leases ---------------------------------------------------------------------------------------------------------

    def settle(self, lease: int, reason: int) -> bool:
        """The end of a leased message, REASON_* of queue/types.pxd. False: the lease is over, or never was."""
        return self.pull_group != NULL and pull_group_settle(self.pull_group, lease, reason)

    def take(self, lease: int) -> int:
        """Position of a leased message that is no longer leased: `finish` or `put_back` must follow. 0: the lease is over."""
        return pull_group_take(self.pull_group, lease) if self.pull_group != NULL else 0

    def finish(self, position: int, reason: int) -> bool:
        return self.pull_group != NULL and pull_group_finish(self.pull_group, position, reason)

    def pass_on(self, position: int) -> bool:
        if self.pull_group == NULL or not queue_pass_on(self.pull_group.queue, position, self.pull_group.consumer.id):
            return False
        at_add64(address(self.pull_group.nacked), 1)
        return True

    def put_back(self, position: int, delivered: bool) -> bool:
        return self.pull_group != NULL and pull_group_return(self.pull_group, position, delivered)

    def release(self, lease: int, delay_ns: int, delivered: bool = True) -> bool:
        """The message goes back at once (0), after a delay, or as its queue says (-1). False: the lease is over."""
        return self.pull_group != NULL and pull_group_release(self.pull_group, lease, delay_ns, delivered)

    def extend(self, lease: int, visibility_ns: int) -> bool:
        """The lease is over in that time from now. False: it is over already."""
        return self.pull_group != NULL and pull_group_extend(self.pull_group, lease, visibility_ns)

    # --- life -----------------------------------------------------------------------------------------------------------

    def idle_ns(self) -> int:
        """How long nobody has pulled and nothing was leased; -1: somebody does, or something is."""
        used: int64_t
        if self.pull_group == NULL:
            return 0
        used = self.pull_group.used_ns
        if pull_group_leases(self.pull_group) or not pull_group_is_idle(self.pull_group):
            return -1
        return system_now(self.pull_group.system) - used

    def stop(self) -> None:
        """No more pulls; those that wait are answered CLOSED."""
        if self.pull_group != NULL:
            pull_group_close(self.pull_group)

    def close(self) -> bool:
        """After `stop`: leaves the queue, which gets what is leased back. False: somebody is inside, try again."""
        if self.pull_group == NULL:
            return True
        if not pull_group_is_idle(self.pull_group):
            return False
        pull_group: pointer[pull_group_t] = self.pull_group
        self.pull_group = NULL
        with nogil:
            pull_group_free(pull_group)
        return True

    @property
    def closed(self) -> bool:
        return self.pull_group == NULL or self.pull_group.closed != 0

    @property
    def pending(self) -> int:
        return self.pull_group.pending if self.pull_group != NULL else 0

    @property
    def consumer_id(self) -> int:
        return self.pull_group.consumer.id if self.pull_group != NULL else 0

    def figures(self) -> dict:
        """Pulls, deliveries, settlements: counts since it was made; pending and leased: now."""
        if self.pull_group == NULL:
            return {}
        return {
            "pulls": self.pull_group.pulls,
            "waiting": self.pull_group.pending,
            "leased": pull_group_leases(self.pull_group),
            "delivered": self.pull_group.delivered,
            "acked": self.pull_group.acked,
            "nacked": self.pull_group.nacked,
            "expired": self.pull_group.expired,
            "given_back": self.pull_group.given_back,
        }
