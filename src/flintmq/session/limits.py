"""The end of a consumer's turn on a queue above its length limit (see limits.pxd).

in: turns that ended. out: heads dropped, or dead-lettered. Should a turn be missed, the index looks some milliseconds later
(queue/limits.py).
"""

from __future__ import annotations

import logging

import cython
from cython.cimports.flintmq.queue.limits import queue_over_limit, queue_wanted
from cython.cimports.flintmq.queue.queue_core import queue_get_id
from cython.cimports.flintmq.queue.types import queue_t
from cython.cimports.flintmq.routing.route_cache import destination_t
from cython.cimports.flintmq.session.placing import drop_head
from cython.cimports.flintmq.session.types import DROP_MAXLEN, connection_t
from cython.cimports.libc.string import memset


def limit_after_turn(connection, subscription, queue):
    destination: destination_t
    if not queue_over_limit(queue) or queue_wanted(queue, 1):
        return
    if not subscription.dead_letters:
        memset(cython.address(destination), 0, cython.sizeof(destination_t))
        destination.queue = queue
        destination.max_length = queue.max_length
        destination.max_bytes = queue.max_bytes
        connection.dropped[DROP_MAXLEN] += drop_head(cython.address(destination))
        if not queue_over_limit(queue):
            return
    _keep_limit(connection, queue)  # in slices


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _keep_limit(connection: cython.pointer(connection_t), queue: cython.pointer(queue_t)) -> cython.void:
    with cython.gil:
        try:
            handler = cython.cast(object, connection.owner).handler
            if handler is not None:
                handler.keep_limit(queue_get_id(queue))
        except Exception:
            logging.getLogger("flintmq.connection").exception("internal error: a queue stays above its limit until the next look")
