"""The log port of the message path.

in: enqueues and dequeues of logged messages (persistent, on a durable queue), on loop threads without the GIL. out: LSNs, and the
LSN up to which everything is durable.

A confirm is sent when the durable LSN has reached the LSN of its message (session/confirms.py). Whoever moves the durable LSN
calls `on_durable` afterwards, so that waiting confirms leave without the publisher having to say anything more.
"""

from __future__ import annotations

import cython


@cython.cclass
class LogPort:
    """Base of every log. A subclass sets context and functions before the first queue or connection is attached."""

    def __init__(self):
        self.on_durable = None
