"""Cold reads of streams as requests of actors (see cold_reads.pxd).

in: cursors that want a batch. out: batches read on worker threads, the wait for the disk charged to the actor; owners told.

I1  Every cursor that was asked is answered once: read, or failed (system busy, stopped), in which case its owner tries again later.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, exceptval, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.scheduler.actor import (
    ACTORS_STREAM, DISPATCH_OK, OUTCOME_MESSAGES, PROCESS_DONE, actor_charge_io, actor_system_t, actor_t, request_answer, request_t,
    system_dispatch,
)  # fmt: skip
from cython.cimports.flintmq.scheduler.system import ActorSystem
from cython.cimports.flintmq.streams.control import StreamQueue
from cython.cimports.flintmq.streams.cursor import cursor_read
from cython.cimports.flintmq.streams.stream_queue import cursor_answered, cursor_refused
from cython.cimports.flintmq.streams.types import cursor_t
from cython.cimports.libc.stdint import int64_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free


@cfunc
@nogil
@exceptval(check=False)
def _process(actor: pointer[actor_t], request: pointer[request_t]) -> c_int:
    asked: pointer[cold_read_t] = cast(pointer[cold_read_t], request)
    actor_charge_io(actor, cast(int64_t, cursor_read(asked.cursor)))
    asked.done = True
    request_answer(request, OUTCOME_MESSAGES)
    return PROCESS_DONE


@cfunc
@nogil
@exceptval(check=False)
def _answer(request: pointer[request_t]) -> void:
    asked: pointer[cold_read_t] = cast(pointer[cold_read_t], request)
    cursor: pointer[cursor_t] = asked.cursor
    done: bint = asked.done
    free(asked)
    if done:
        cursor_answered(cursor)
    else:
        cursor_refused(cursor)


@cfunc
@nogil
@exceptval(check=False)
def _ask(context: p_void, cursor: pointer[cursor_t]) -> void:
    asked: pointer[cold_read_t] = cast(pointer[cold_read_t], calloc(1, sizeof(cold_read_t)))
    who: uint64_t
    if asked == NULL:
        cursor_refused(cursor)
        return
    asked.request.process = _process
    asked.request.answer = _answer
    asked.cursor = cursor
    # Both cursors of a group are one actor. Addresses of groups and consumer ids don't meet: ids are below 2^32.
    who = cursor.seat.consumer.id if cursor.seat != NULL else cast(uint64_t, cursor.group)
    if (
        system_dispatch(
            cast(pointer[actor_system_t], context),
            ACTORS_STREAM,
            cursor.stream.queue.id,
            who,
            0,
            address(asked.request),
        )
        != DISPATCH_OK
    ):
        free(asked)
        cursor_refused(cursor)


def use(stream: StreamQueue, actors: ActorSystem) -> None:
    """Cold reads of this stream run on these actors from now on; before, in the thread that wants to deliver. Call it before consumers
    come; the actors live longer than they."""
    stream.actors = actors
    stream.stream.ask_context = actors.system
    stream.stream.ask = _ask
