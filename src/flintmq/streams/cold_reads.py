"""Cold reads of streams as requests of actors (see cold_reads.pxd).

in: cursors that want a batch. out: batches read on worker threads, the wait for the disk charged to the actor; owners told.

I1  Every cursor that was asked is answered once: read, or failed (system busy, stopped), in which case its owner tries again later.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.scheduler.actor import (
    ACTORS_STREAM,
    DISPATCH_OK,
    OUTCOME_MESSAGES,
    PROCESS_DONE,
    actor_charge_io,
    actor_system_t,
    actor_t,
    request_answer,
    request_t,
    system_dispatch,
)
from cython.cimports.flintmq.scheduler.system import ActorSystem
from cython.cimports.flintmq.streams.cursor import cursor_read
from cython.cimports.flintmq.streams.handle import StreamQueue
from cython.cimports.flintmq.streams.stream_queue import cursor_answered, cursor_refused
from cython.cimports.flintmq.streams.types import cursor_t
from cython.cimports.libc.stdint import int64_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _process(actor: cython.pointer(actor_t), request: cython.pointer(request_t)) -> cython.int:
    asked: cython.pointer(cold_read_t) = cython.cast(cython.pointer(cold_read_t), request)
    actor_charge_io(actor, cython.cast(int64_t, cursor_read(asked.cursor)))
    asked.done = True
    request_answer(request, OUTCOME_MESSAGES)
    return PROCESS_DONE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _answer(request: cython.pointer(request_t)) -> cython.void:
    asked: cython.pointer(cold_read_t) = cython.cast(cython.pointer(cold_read_t), request)
    cursor: cython.pointer(cursor_t) = asked.cursor
    done: cython.bint = asked.done
    free(asked)
    if done:
        cursor_answered(cursor)
    else:
        cursor_refused(cursor)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _ask(context: cython.p_void, cursor: cython.pointer(cursor_t)) -> cython.void:
    asked: cython.pointer(cold_read_t) = cython.cast(cython.pointer(cold_read_t), calloc(1, cython.sizeof(cold_read_t)))
    who: uint64_t
    if asked == cython.NULL:
        cursor_refused(cursor)
        return
    asked.request.process = _process
    asked.request.answer = _answer
    asked.cursor = cursor
    # Both cursors of a group are one actor. Addresses of groups and consumer ids don't meet: ids are below 2^32.
    who = cursor.seat.consumer.id if cursor.seat != cython.NULL else cython.cast(uint64_t, cursor.group)
    if (
        system_dispatch(
            cython.cast(cython.pointer(actor_system_t), context),
            ACTORS_STREAM,
            cursor.stream.queue.id,
            who,
            0,
            cython.address(asked.request),
        )
        != DISPATCH_OK
    ):
        free(asked)
        cursor_refused(cursor)


def use(stream: StreamQueue, actors: ActorSystem) -> None:
    """Cold reads of this stream run on these actors, which live longer than the stream's consumers."""
    stream.actors = actors
    stream.stream.ask_context = actors.system
    stream.stream.ask = _ask
