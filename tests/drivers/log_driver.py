"""The message path of a LogStore without queues and connections: publishes, acks and local transactions as the queue core calls them.

in: plain values of a test. out: calls of the log port's C functions; tickets of the store for what they give.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, declare, nogil, p_char, pointer, size_t, sizeof
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add64, at_load32
from cython.cimports.flintmq.core.content import CONTENT_PERSISTENT, CONTENT_SHARED, content_decref, content_from_bytes, content_t
from cython.cimports.flintmq.queue.enrolment import held_t
from cython.cimports.flintmq.queue.types import queue_t, slot_t, swept_t
from cython.cimports.flintmq.store.enrolment import LogEnrolment
from cython.cimports.flintmq.store.log.log import (
    DEAD_GRAIN, log_append, log_append_done, log_begin, log_died, log_doubt, log_end, log_is_live, log_time,
)  # fmt: skip
from cython.cimports.flintmq.store.log.managed import ManagedLog
from cython.cimports.flintmq.store.log.record import record_encode, record_prefix
from cython.cimports.flintmq.store.log_store import LogStore
from cython.cimports.flintmq.store.tx_block import BlockEnrolment
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcpy, memset

from flintmq.errors import StoreError
from tests.drivers.recovered import entries_of

# an LSN that is never reached: the log has failed
_NEVER = declare(uint64_t, 0x7FFFFFFFFFFFFFFF)


@cclass
class LogDriver:
    """See module."""

    def __init__(self, store: LogStore) -> None:
        self.store = store
        self._queues = {}
        self.begun = {}

    def queue(self, queue_id: object) -> pointer[queue_t]:
        memory = self._queues.get(queue_id)
        if memory is None:
            memory = self._queues[queue_id] = bytearray(sizeof(queue_t))
        at: p_char = cast(bytearray, memory)
        queue: pointer[queue_t] = cast(pointer[queue_t], at)
        queue.id = queue_id
        return queue

    def publish(self, places: list, exchange: bytes, routing_key: bytes, header: bytes, body: bytes) -> tuple:
        """One message to the places [(queue id, position, expires_at_ms), ...]. Returns (message id, [ticket per place]).

        Raises: StoreError when the log has failed."""
        flags: c_int = CONTENT_PERSISTENT | (CONTENT_SHARED if len(places) > 1 else 0)
        content: pointer[content_t] = content_from_bytes(exchange, routing_key, header, body, flags, 0)
        slot: slot_t
        lsn: uint64_t
        tickets: list = []
        message_id: uint64_t = 0
        try:
            for queue_id, position, expires in places:
                memset(address(slot), 0, sizeof(slot_t))
                slot.content = content
                lsn = self.store.port.enqueue(self.store.port.context, self.queue(queue_id), position, address(slot), expires)
                if lsn == _NEVER or lsn == 0:
                    raise StoreError("the log took no enqueue")
                message_id = slot.message_id
                tickets.append(self.store.logs.ticket(lsn, 0))
            if len(places) > 1:
                self.store.port.placed(self.store.port.context, content)
        finally:
            content_decref(content)
        return message_id, tickets

    def ack(self, queue_id: int, position: int, message_id: int, reason: int) -> int:
        """Returns the ticket. Raises: StoreError."""
        slot: slot_t
        memset(address(slot), 0, sizeof(slot_t))
        slot.message_id = message_id
        lsn: uint64_t = self.store.port.dequeue(self.store.port.context, self.queue(queue_id), position, address(slot), 0, reason, 0)
        if lsn == _NEVER or lsn == 0:
            raise StoreError("the log took no dequeue")
        return self.store.logs.ticket(lsn, 0)

    def end_queue(self, queue_id: int, entries: list) -> None:
        """The sweep behind the end of a queue. Entries: (position, message id)."""
        swept: swept_t
        for position, message_id in entries:
            swept.position = position
            swept.message_id = message_id
            self.store.port.sweep(self.store.port.context, self.queue(queue_id), address(swept), 1, True)

    # --- local transactions

    def tx_begin(self) -> int:
        begun: LogEnrolment = self.store.enrol()
        self.begun[begun.tx] = begun
        return begun.tx

    def tx_abandon(self, tx: int) -> None:
        self.begun.pop(tx).abandon()

    def tx_publish(self, tx: int, places: list, exchange: bytes, routing_key: bytes, header: bytes, body: bytes) -> int:
        """As `publish`, visible when the transaction commits. Returns the message id."""
        flags: c_int = CONTENT_PERSISTENT | (CONTENT_SHARED if len(places) > 1 else 0)
        content: pointer[content_t] = content_from_bytes(exchange, routing_key, header, body, flags, 0)
        slot: slot_t
        message_id: uint64_t = 0
        begun: LogEnrolment = self.begun[tx]
        try:
            for queue_id, position, expires in places:
                memset(address(slot), 0, sizeof(slot_t))
                slot.content = content
                begun.port.enqueue(begun.port.context, self.queue(queue_id), position, address(slot), expires)
                message_id = slot.message_id
            if len(places) > 1:
                self.store.port.placed(self.store.port.context, content)
        finally:
            content_decref(content)
        return message_id

    def tx_ack(self, tx: int, queue_id: int, position: int, message_id: int) -> None:
        """An ack that counts when the transaction commits."""
        slot: slot_t
        memset(address(slot), 0, sizeof(slot_t))
        slot.message_id = message_id
        begun: LogEnrolment = self.begun[tx]
        begun.port.dequeue(begun.port.context, self.queue(queue_id), position, address(slot), 0, 1, 0)

    def tx_commit(self, tx: int) -> int:
        """Returns the ticket; call `tx_applied` once it is durable."""
        begun: LogEnrolment = self.begun[tx]
        begun.decide()
        return self.store.logs.ticket(0, begun.lsn)

    def tx_applied(self, tx: int) -> None:
        begun: LogEnrolment = self.begun.pop(tx)
        begun.applied()

    def tx_small(self, publishes: list, endings: list) -> tuple:
        """A whole transaction of a channel: messages [(queue id, position, expires_at_ms, exchange, routing key, header, body), ...] and
        acks [(queue id, position, message id), ...]. Returns (message ids, ticket, its number in both logs: `tx_applied` is due; 0: one
        block has it)."""
        work: BlockEnrolment = self.store.enrol_small()
        slots: pointer[slot_t] = cast(pointer[slot_t], calloc(len(publishes) + len(endings) + 1, sizeof(slot_t)))
        content: pointer[content_t]
        i: uint32_t
        number: uint64_t
        work.held = cast(pointer[held_t], calloc(len(publishes) + 1, sizeof(held_t)))
        try:
            for queue_id, position, expires, exchange, routing_key, header, body in publishes:
                content = content_from_bytes(exchange, routing_key, header, body, CONTENT_PERSISTENT, 0)
                i = work.held_count
                slots[i].content = content
                work.held[i].queue = self.queue(queue_id)
                work.held[i].slot = slots + i
                work.held[i].position = position
                work.held[i].expires_at_ms = expires
                work.held[i].logged = True
                work.held_count += 1
            i = work.held_count
            for queue_id, position, message_id in endings:
                slots[i].message_id = message_id
                number = position
                work.port.dequeue(work.port.context, self.queue(queue_id), number, slots + i, 0, 1, 0)
                i += 1
            work.decide()
            ids = [slots[i].message_id for i in range(work.held_count)]
        finally:
            for i in range(work.held_count):
                content_decref(slots[i].content)
            work.held_count = 0  # its queues are not counted here
            free(slots)
        if work.large is None:
            return ids, self.store.logs.ticket(work.lsn, 0), 0
        self.begun[work.large.tx] = work.large
        return ids, self.store.logs.ticket(0, work.large.lsn), work.large.tx

    # --- the writer

    def start_writer(self, soon_ms: int) -> None:
        """A writer thread; what nobody waits for gathers that long. `store.close()` ends it."""
        self.store.writer.writer.soon_ms = soon_ms
        self.store.writer.start()

    def kick(self, awaited: bool) -> None:
        """As a loop does at the end of a pass."""
        self.store.port.kick(self.store.port.context, awaited)

    @property
    def kicks(self) -> int:
        """How often the writer was told that there is work."""
        return at_load32(address(self.store.writer.writer.signal))

    def take_ticket(self) -> None:
        """As an append to a stream does."""
        at_add64(address(self.store.port.stream_ticket), 1)

    @property
    def pressure(self) -> int:
        """What loops are told: PRESSURE_*, 0 none, 1 publishers wait for the writer or for a container, 2 the disk is nearly full."""
        return self.store.port.pressure(self.store.port.context)

    @property
    def gathers(self) -> bool:
        """The writer thread lets something gather."""
        return at_load32(address(self.store.writer.writer.sleeping)) == 2

    @property
    def passes(self) -> int:
        """Group commits so far."""
        return self.store.writer.writer.passes

    # --- recovery

    def recovered(self, queue_id: int) -> list:
        """What the opening of the store found of a queue: (position, message id, expires_at_ms, held, redelivered), by position."""
        if self.store.recovery is None:
            raise ValueError("the recovery was given back already")
        return [
            (position, message_id, expires, held, redelivered)
            for position, message_id, expires, _, redelivered, held in entries_of(self.store.recovery, queue_id)
        ]


def append_many(managed: ManagedLog, kind: int, payload: bytes, count: int) -> int:
    """Appends the same record `count` times without the GIL, as a connection's thread does (bench/append.py). `payload`: smaller than a
    write buffer. Returns the LSN behind the last one. Raises: StoreError when the log has failed."""
    lsn: uint64_t = 0
    record: pointer[uint8_t] = NULL
    length: uint32_t = record_prefix(0) + len(payload)
    size: size_t = len(payload)
    most: uint32_t = count
    number: uint8_t = kind
    i: uint32_t
    data: p_char = payload
    with nogil:
        for i in range(most):
            log_begin(managed.log)
            record = log_append(managed.log, length, address(lsn))
            if record != NULL:
                memcpy(record_encode(record, length, number, 0, 0, log_time(managed.log), 0, 0, 0), data, size)
                log_append_done(managed.log, record, length, lsn)
            log_end(managed.log)
            if record == NULL:
                break
    if record == NULL:
        raise StoreError(f"log {managed.name} has failed: errno {managed.log.failed}")
    return lsn + length


def death_bytes(managed: ManagedLog) -> int:
    """Bytes of memory for what died in the log: maps and lists."""
    i: uint32_t
    total: uint64_t = 0
    words: uint64_t = (managed.log.container_size // DEAD_GRAIN + 63) // 64
    for i in range(managed.log.container_count):
        total += managed.log.containers[i].death_room * sizeof(uint32_t)
        if managed.log.containers[i].dead != NULL:
            total += words * 8
    return total


def lives_at(managed: ManagedLog, lsn: int) -> bool:
    """Whether what was written at this LSN lives."""
    alive: bint
    log_begin(managed.log)
    alive = log_is_live(managed.log, lsn)
    log_end(managed.log)
    return alive


def doubt(managed: ManagedLog, sequence: int) -> bool:
    """As recovery does for a container of which it could not read all."""
    done: bint
    log_begin(managed.log)
    done = log_doubt(managed.log, sequence)
    log_end(managed.log)
    return done


def died(managed: ManagedLog, lsn: int, size: int) -> bool:
    """As recovery does for what stands in the log and does not live."""
    done: bint
    log_begin(managed.log)
    done = log_died(managed.log, lsn, size)
    log_end(managed.log)
    return done
