"""Cold reads out of the socket path (see content_loader.pxd).

in: requests of parked deliveries (queue, position). out: queue_content_loaded for that entry and for those behind it, up to the queue's
hot window, so that a drain reads the log in runs.
"""

from __future__ import annotations

import logging
import threading

import cython
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_store32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.core.futex import futex_wait, futex_wake
from cython.cimports.flintmq.queue.queue_core import (
    queue_content_failed,
    queue_content_loaded,
    queue_decref,
    queue_incref,
    queue_is_deleted,
    queue_load_room,
    queue_next_cold,
)
from cython.cimports.flintmq.queue.types import queue_t
from cython.cimports.flintmq.store.message_log import message_log_t
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memset

log = logging.getLogger("flintmq.store")

STOPPED = cython.declare(cython.int, 1)
UNREADABLE = cython.declare(cython.int, 2)
# entries of one run at most: other queues wait for their turn
RUN_ENTRIES = cython.declare(uint32_t, 8192)


def loader_request(loader, queue, position):
    request: cython.pointer(request_t) = cython.cast(cython.pointer(request_t), calloc(1, cython.sizeof(request_t)))
    if request == cython.NULL:
        queue_content_loaded(queue, position, cython.NULL)  # no memory now: the next delivery attempt asks again
        return
    queue_incref(queue)
    request.queue = queue
    request.position = position
    spin_lock(cython.address(loader.lock))
    if loader.first == cython.NULL:
        loader.first = request
    else:
        loader.last.next = request
    loader.last = request
    spin_unlock(cython.address(loader.lock))
    at_add32(cython.address(loader.signal), 1)
    futex_wake(cython.address(loader.signal), 1)


def store_load(context, queue, position, message_id):
    ml: cython.pointer(message_log_t) = cython.cast(cython.pointer(message_log_t), context)
    loader_request(cython.cast(cython.pointer(loader_t), ml.loader), queue, position)


@cython.cclass
class ContentLoader:
    """Args: reader: its own ContentReader."""

    def __cinit__(self, reader: ContentReader):
        memset(cython.address(self.loader), 0, cython.sizeof(loader_t))
        self.reader = reader
        self.thread = None
        self.on_failed = None

    def __dealloc__(self):
        request: cython.pointer(request_t)
        while self.loader.first != cython.NULL:
            request = self.loader.first
            self.loader.first = request.next
            queue_decref(request.queue)
            free(request)

    def start(self) -> None:
        """Starts the thread."""
        self.thread = threading.Thread(target=self._run, name="flintmq-loader", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Ends the thread; requests that wait are not answered any more."""
        at_store32(cython.address(self.loader.stopping), 1)
        at_add32(cython.address(self.loader.signal), 1)
        futex_wake(cython.address(self.loader.signal), 1)
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        self.reader.close()

    @property
    def figures(self) -> dict:
        """Entries loaded, runs, entries whose content could not be read."""
        return {"loaded": self.loader.loaded, "runs": self.loader.runs, "failed": self.loader.failed}

    def _run(self):
        what: cython.int
        while True:
            with cython.nogil:
                what = self.serve()
            if what == STOPPED:
                return
            log.error(
                "the content of message %d (queue id %d, position %d) can't be read from the log: the entry is set aside",
                self.failed_message,
                self.failed_queue,
                self.failed_position,
            )
            if self.on_failed is not None:
                self.on_failed(self.failed_queue, self.failed_position, self.failed_message)

    def serve(self):
        """Answers requests until something must be told to Python."""
        request: cython.pointer(request_t)
        signal: uint32_t
        what: cython.int
        while True:
            signal = at_load32(cython.address(self.loader.signal))
            if at_load32(cython.address(self.loader.stopping)):
                return STOPPED
            spin_lock(cython.address(self.loader.lock))
            request = self.loader.first
            if request != cython.NULL:
                self.loader.first = request.next
            spin_unlock(cython.address(self.loader.lock))
            if request == cython.NULL:
                futex_wait(cython.address(self.loader.signal), signal, -1)
                continue
            what = self.run(request.queue, request.position)
            queue_decref(request.queue)
            free(request)
            if what:
                return what

    def run(self, queue, position):
        """Loads from `position` on until the queue's hot window is full. 0, or UNREADABLE."""
        done: uint32_t = 0
        found: uint64_t = 0
        message_id: uint64_t = 0
        content: cython.pointer(content_t)
        loaded: uint64_t = 0
        room: uint64_t = queue_load_room(queue)
        self.loader.runs += 1
        while done < RUN_ENTRIES and not queue_is_deleted(queue):
            if done and loaded >= room:
                return 0
            if not queue_next_cold(queue, position, cython.address(found), cython.address(message_id)):
                return 0
            content = self.reader.read(message_id)
            if content == cython.NULL:
                # It may have been taken meanwhile: then nothing is wrong.
                if queue_content_failed(queue, found):
                    self.loader.failed += 1
                    self.failed_queue = queue.id
                    self.failed_position = found
                    self.failed_message = message_id
                    return UNREADABLE
            else:
                queue_content_loaded(queue, found, content)
                loaded += content.body_len
                content_decref(content)
                self.loader.loaded += 1
            position = found + 1
            done += 1
        return 0
