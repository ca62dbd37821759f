"""A consumer and getter of a QueueHandle, and what its levels know of deliveries, for tests of marks (queue/delivered.pxd)."""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, cfunc, exceptval, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_add32, at_swap32
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.delivered import delivered_set_steps
from cython.cimports.flintmq.queue.log_port import LogPort
from cython.cimports.flintmq.queue.owner_ids import owner_id_new
from cython.cimports.flintmq.queue.queue_core import (
    consumer_decref, consumer_new, entry_sent, queue_add_consumer, queue_content_loaded, queue_deliver_single, queue_dequeue,
    queue_housekeeping, queue_next_cold, queue_pull, queue_release, queue_remove_consumer,
)  # fmt: skip
from cython.cimports.flintmq.queue.types import CONSUMER_ACQUIRES, REASON_ACK, RETURN_FAILED, delivery_t, level_t, target_t
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.string import memset


@cfunc
@nogil
@exceptval(check=False)
def _count(target: pointer[target_t]) -> void:
    at_add32(cast(pointer[uint32_t], target.context), 1)


def set_steps(step: int = 4096, grant: int = 256) -> None:
    """Entries that a mark is ahead at least, and those between two looks at it."""
    delivered_set_steps(step, grant)


def facts(handle: QueueHandle, level: int = 0) -> dict:
    """What a level of the queue knows of deliveries."""
    number: uint32_t = level
    place: pointer[level_t] = handle.queue.entries.levels + number
    return {
        "granted": place.granted,
        "covered": place.covered,
        "reserved": place.reserved,
        "step": place.step,
        "marked_at": handle.queue.marked_at,
        "waits": handle.queue.marked_waits,
    }


def keep_house(handle: QueueHandle) -> None:
    """One housekeeping of the queue."""
    queue_housekeeping(handle.queue)


def age(handle: QueueHandle, milliseconds: int) -> None:
    """As if so much time had passed since the marks were raised."""
    number: uint32_t
    passed: uint32_t = milliseconds
    for number in range(handle.queue.entries.level_count):
        handle.queue.entries.levels[number].reserved_ms -= passed


@cclass
class Taker:
    """A consumer, when `consumes`; else a getter."""

    def __cinit__(self, handle: QueueHandle, consumes: object = True):
        memset(address(self.target), 0, sizeof(target_t))
        self.handle = handle
        self.target.notify_work = _count
        self.target.context = address(self.notified)
        self.consumer = NULL
        self.owner = owner_id_new()
        if consumes:
            self.consumer = consumer_new(handle.queue, address(self.target), 0, CONSUMER_ACQUIRES, 0)
            if self.consumer == NULL or not queue_add_consumer(handle.queue, self.consumer):
                raise MemoryError
            self.owner = self.consumer.id

    def __dealloc__(self):
        self.close()

    def close(self) -> None:
        """Leaves; what it has stays acquired."""
        if self.consumer != NULL:
            queue_remove_consumer(self.handle.queue, self.consumer)
            consumer_decref(self.consumer)
            self.consumer = NULL

    def take(self) -> tuple:
        """(position of the delivery, redelivered); (0, False): nothing; (-1, False): an entry is there, and waits for the disk."""
        delivery: delivery_t
        while not self._try(address(delivery)):
            if delivery.position == 0:
                return (0, False)
            if not self._load(delivery.position):
                return (-1, False)
        entry_sent(delivery.slot)
        return (delivery.position, bool(delivery.redelivered))

    def _try(self, delivery: pointer[delivery_t]) -> bint:
        delivery.position = 0
        if self.consumer != NULL:
            return queue_deliver_single(self.handle.queue, self.consumer, delivery)
        return queue_pull(self.handle.queue, self.owner, delivery)

    def _load(self, position: uint64_t) -> bint:
        """Brings the content of an entry that was asked for. False: it is there."""
        cold: uint64_t = 0
        message_id: uint64_t = 0
        content: pointer[content_t]
        log: LogPort = self.handle.log
        if not queue_next_cold(self.handle.queue, position, address(cold), address(message_id)) or cold != position:
            return False
        content = log.load_now(message_id)
        queue_content_loaded(self.handle.queue, position, content)
        content_decref(content)
        return True

    def ack(self, position: int) -> bool:
        return bool(queue_dequeue(self.handle.queue, NULL, position, self.owner, REASON_ACK))

    def give_back(self, position: int) -> bool:
        return bool(queue_release(self.handle.queue, NULL, position, self.owner, RETURN_FAILED))

    def told(self) -> int:
        """How often it was notified since the last call."""
        return at_swap32(address(self.notified), 0)
