"""/api/v1, messages for programs: publish to a queue, pull, settle leases; a queue's figures. AMQP's permissions decide (Operation.needs).

in: calls that were admitted. out: JSON.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.responses import Response

from flintmq.admin import figures
from flintmq.admin.answers import answer
from flintmq.admin.api_call import Call, waited
from flintmq.admin.auth import OCTETS, content_type
from flintmq.admin.forwarding import by_owner
from flintmq.admin.http_refusals import HttpError, bad
from flintmq.admin.messages import parse_publish, parse_raw_publish
from flintmq.admin.publish import publish as publish_to
from flintmq.errors import PeerError
from flintmq.pulls import pull_service as pulls
from flintmq.vhost.stream_arguments import StreamStart, parse_stream_start


@by_owner
async def queue(call: Call) -> Response:
    """GET queues/{vhost}/{queue}"""
    return answer(figures.of_queue(call.queue, call.app.parts))


@by_owner
async def pull(call: Call) -> Response:
    """POST .../messages/pull, and GET .../messages with the header of auth.W3"""
    if call.request.method != "GET":
        await call.json()
    values = call.params
    if call.queue.policy.is_shared:
        await waited(partial(call.broker.shared.opened, call.queue.queue_id))
    return await call.app.held.pull(  # type: ignore[no-any-return]
        call.who,
        call.request,
        call.queue,
        values.get("group", ""),
        values["encoding"],
        most=values["count"],
        bytes_max=values["bytes"],
        visibility_ms=values["visibility"],
        hold_ms=values["hold"],
        allowed=partial(_may_pull, call),
        start=_start(call, values.get("offset")),
    )


def _may_pull(call: Call) -> None:
    """Asked again when messages are handed over, and when rights change meanwhile. Raises: HttpError, PeerError."""
    if not call.caller.is_current:
        raise HttpError(401, "unauthenticated", "the user was deleted, or has another password, since it asked", "log in again")
    call.find_queue()


def _start(call: Call, offset: str | None) -> StreamStart | None:
    """Where a new group of a stream begins: as x-stream-offset of basic.consume."""
    if offset is None:
        return None
    if not call.queue.policy.is_stream:
        raise bad("'offset' is for streams", "leave it out")
    number = offset.isascii() and offset.isdigit() and len(offset) <= 19
    try:
        return parse_stream_start({"x-stream-offset": int(offset) if number else offset}, "", call.broker.clock.wall_ms())
    except PeerError:
        raise bad(f"offset={offset[:40]!r} is none of: first, last, next, an offset, an interval like 2h or 7D") from None


async def publish(call: Call) -> Response:
    """POST .../messages"""
    limits, headers, persistent = call.app.limits, call.request.headers, call.params.get("persistent")
    if content_type(headers.get("content-type", "").encode("latin-1")) == OCTETS:
        body = await call.app.body(call.request, limits.http_publish_bytes_max)
        message = parse_raw_publish(persistent is not False, headers.getlist("x-flintmq-properties"), body, limits)
    elif persistent is None:
        message = parse_publish(await call.json(), limits)
    else:
        raise bad("unknown parameter 'persistent'", "known are: ")
    return answer(await publish_to(call.app.parts, call.caller.user, call.queue, message), 201)


@by_owner
async def ack(call: Call) -> Response:
    """POST .../messages/ack"""
    leases = (await call.json())["leases"]
    return _settled(leases, call.app.parts.pulls.ack(call.queue, leases))


@by_owner
async def nack(call: Call) -> Response:
    """POST .../messages/nack"""
    body = await call.json()
    requeue, delay = body.get("requeue", True), body.get("delay")
    if delay is not None and not requeue:
        raise bad("'delay' is for messages that are requeued", "leave one of 'delay' and 'requeue' out")
    delay_ms = None if delay is None else int(delay * 1000)
    results = call.app.parts.pulls.nack(call.queue, body["leases"], requeue=requeue, delay_ms=delay_ms)
    return _settled(body["leases"], results)


@by_owner
async def extend(call: Call) -> Response:
    """POST .../messages/extend"""
    body = await call.json()
    visibility_ms = int(body["visibility"] * 1000) if "visibility" in body else call.app.limits.pull_visibility_ms
    return _settled(body["leases"], call.app.parts.pulls.extend(call.queue, body["leases"], visibility_ms))


def _settled(leases: list[str], results: list[str]) -> Response:
    gone = [lease for lease, result in zip(leases, results, strict=True) if result == pulls.GONE]
    value: dict[str, Any] = {"ok": len(leases) - len(gone), "gone": gone}
    if gone:
        value["reason"] = "the lease was over, its message settled before, or it was given for another queue or run of the broker"
        value["fix"] = "handle messages within their visibility time, or extend it"
    return answer(value)
