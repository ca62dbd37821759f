"""The end of a consumer's turn on a queue above its length limit (see limits.pxd).

in: turns that ended. out: heads dropped, or dead-lettered. Should a turn be missed, the index looks some milliseconds later
(queue/limits.py).
"""

from __future__ import annotations

import logging

from cython import cast, cfunc, exceptval, gil, nogil, pointer, void
from cython.cimports.flintmq.queue.limits import queue_over_limit, queue_wanted
from cython.cimports.flintmq.queue.queue_core import queue_get_id
from cython.cimports.flintmq.queue.types import queue_t
from cython.cimports.flintmq.session.placing import drop_head
from cython.cimports.flintmq.session.types import DROP_MAXLEN, connection_t, subscription_t


def limit_after_turn(connection: pointer[connection_t], subscription: pointer[subscription_t], queue: pointer[queue_t]) -> void:
    if not queue_over_limit(queue) or queue_wanted(queue, 1):
        return
    if not subscription.dead_letters:
        connection.dropped[DROP_MAXLEN] += drop_head(queue)
        if not queue_over_limit(queue):
            return
    _keep_limit(connection, queue)  # in slices


@cfunc
@nogil
@exceptval(check=False)
def _keep_limit(connection: pointer[connection_t], queue: pointer[queue_t]) -> void:
    with gil:
        try:
            handler = cast(object, connection.owner).handler
            if handler is not None:
                handler.keep_limit(queue_get_id(queue))
        except Exception:
            logging.getLogger("flintmq.connection").exception("internal error: a queue stays above its limit until the next look")
