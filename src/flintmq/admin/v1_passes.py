"""/api/v1/passes: where the time of the I/O loops and of the log's writer goes (core/pass_trace).

in: calls of an administrator. out: figures of the passes of a few seconds.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from flintmq.admin.answers import answer
from flintmq.admin.api_call import Call
from flintmq.admin.http_refusals import HttpError

SECONDS_MAX = 60


def traces_of(parts: Any) -> list[Any]:
    """Those of all loops, in their order, and of the writer."""
    writers = [] if parts.store is None else [parts.store.writer]
    return [one.passes() for one in (*parts.broker.loops, *writers)]


async def passes(call: Call) -> Response:
    """GET passes"""
    parts = call.app.parts
    if parts.is_tracing:
        raise HttpError(409, "conflict", "somebody else traces the passes now", "try again in a minute")
    traces = traces_of(parts)
    parts.is_tracing = True
    try:
        for trace in traces:
            trace.start()
        await asyncio.sleep(call.params.get("seconds", 5))
    finally:
        for trace in traces:
            trace.stop()
        parts.is_tracing = False
    return answer({"threads": [trace.report() for trace in traces]})
