"""/api/v1, messages of a queue for people: peek, search, move, send anew, remove; consumers with their figures; why a message goes nowhere.

in: calls that were admitted, with the queue of the path (Operation.needs). out: JSON.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.responses import Response

from flintmq.admin.answers import answer
from flintmq.admin.api_call import Call, check_table, waited
from flintmq.admin.api_clients import on_loops
from flintmq.admin.api_names import authorize_topic, settled, shown
from flintmq.admin.browse import Look, Source, shower
from flintmq.admin.filters import Filter, parse_conditions
from flintmq.admin.forwarding import by_owner
from flintmq.admin.http_refusals import HttpError, bad
from flintmq.admin.messages import message_of
from flintmq.admin.moving import Goal, Message, Move, position_of, remove_some, send_anew
from flintmq.admin.why import Why
from flintmq.ports import Verb

log = logging.getLogger("flintmq.audit")


def _start(given: Any) -> int:
    """A position from which to go on; 0: the beginning."""
    return 0 if given in (None, "", "0", 0) else position_of(given)


# --- looks ------------------------------------------------------------------------------------------------------------------


@by_owner
async def peek(call: Call) -> Response:
    """GET queues/{vhost}/{queue}/peek"""
    queue, limits, values = call.queue, call.app.limits, call.params
    source = Source(call.broker, queue)
    body_bytes = values["body_bytes"]
    look = Look(
        source,
        limits,
        shower(source, limits, values["encoding"], body_bytes),
        _start(values.get("position")),
        most=values.get("count", 10),
        bytes_max=limits.search_bytes_max,
        looks_max=limits.search_messages_max,
        until=time.monotonic() + limits.search_ms / 1000,
        body_bytes=body_bytes,
    )
    with call.turn():
        looked = await look.run()
        return answer({"vhost": shown(queue.vhost), "queue": shown(queue.name), **looked}, kept=look.answer_bytes)


@by_owner
async def search(call: Call) -> Response:
    """POST queues/{vhost}/{queue}/search"""
    queue, limits = call.queue, call.app.limits
    given = await call.json()
    wanted = Filter(parse_conditions(given.get("filter", [])), limits)
    source = Source(call.broker, queue)
    body_bytes = given.get("body_bytes", limits.peek_body_bytes)
    look = Look(
        source,
        limits,
        shower(source, limits, "auto", body_bytes),
        _start(given.get("position")),
        most=given.get("count", 50),
        bytes_max=limits.search_bytes_max,
        looks_max=limits.search_messages_max,
        until=time.monotonic() + limits.search_ms / 1000,
        body_bytes=body_bytes,
        wanted=wanted,
    )
    with call.turn():
        looked = await look.run()
        return answer(
            {"vhost": shown(queue.vhost), "queue": shown(queue.name), **looked, "too_long_for_json": wanted.long}, kept=look.answer_bytes
        )


# --- changes ----------------------------------------------------------------------------------------------------------------


def _goal(call: Call, vhost: Any, given: Mapping[str, Any]) -> Goal:
    exchange, key = given.get("exchange", ""), given.get("routing_key")
    if key is None and not exchange:
        raise bad("'routing_key' is missing: the default exchange takes it for the name of the queue")
    raw = None if key is None else key.encode("utf-8", "surrogatepass")
    if len(exchange.encode("utf-8", "surrogatepass")) > 255 or (raw is not None and len(raw) > 255):
        raise bad("'exchange' and 'routing_key' have at most 255 bytes")
    call.authorize(vhost, "basic.publish", exchange=exchange)
    vhost.check_publish(exchange)
    return Goal(call.app.parts, vhost, exchange, raw, partial(authorize_topic, call, vhost, Verb.WRITE, exchange))


def _positions(given: Mapping[str, Any]) -> list[int] | None:
    return [position_of(one) for one in given["positions"]] if "positions" in given else None


def _ordinary(queue: Any) -> None:
    if queue.policy.is_stream:
        raise HttpError(409, "stream", f"'{queue.name}' is a stream: its messages stay", 'send a copy anew, with "remove": false')


def _note(call: Call, text: str, *values: Any) -> None:
    """A line of the log for a change."""
    log.info("user %r at %s: " + text, call.caller.user, call.actor.peer, *values)


@by_owner
async def move(call: Call) -> Response:
    """POST queues/{vhost}/{queue}/move"""
    vhost, queue = call.place
    _ordinary(queue)
    given = await call.json()
    limits = call.app.limits
    goal, positions = _goal(call, vhost, given), _positions(given)
    conditions = parse_conditions(given.get("filter", []))
    if positions is not None and (conditions or "position" in given):
        raise bad("'positions' says which messages, and so does 'filter' or 'position'", "leave one of them out")
    moving = Move(
        call.app.parts,
        goal,
        queue,
        positions,
        _start(given.get("position")),
        most=given.get("count", limits.move_messages_max),
        looks_max=limits.move_messages_max,
        wanted=Filter(conditions, limits) if conditions else None,
    )
    with call.turn():
        result = await moving.run()
    _note(call, "%d messages of queue %r in %r moved to exchange %r", result["moved"], queue.name, queue.vhost, goal.exchange)
    return answer(result)


async def reset_group(call: Call) -> Response:
    """PUT queues/{vhost}/{queue}/groups/{group}/offset"""
    _, queue = call.place
    streams, start = call.broker.streams, (await call.json())["offset"]
    if not queue.policy.is_stream or streams is None:
        raise HttpError(409, "precondition_failed", f"queue '{queue.name}' is no stream, and has no groups", "name a stream")
    group = call.name("group").encode("utf-8", "surrogateescape")
    kind = start if isinstance(start, str) else "offset"

    def begin(done: Any) -> None:
        moved.append(streams.reset(queue.queue_id, group, (kind, 0 if isinstance(start, str) else start), lambda: done(None, None)))

    moved: list[int] = []
    with call.turn():
        await waited(begin)
    _note(call, "group %r of stream %r in %r moved to offset %d", call.name("group"), queue.name, queue.vhost, moved[0])
    return answer({"group": call.name("group"), "offset": moved[0]})


@by_owner
async def republish(call: Call) -> Response:
    """POST queues/{vhost}/{queue}/republish"""
    vhost, queue = call.place
    given = await call.json()
    position, goal = position_of(given.get("position")), _goal(call, vhost, given)
    remove = given.get("remove", True)
    if remove:
        _ordinary(queue)
    change = _change(call, given)
    with call.turn():
        await send_anew(call.app.parts, goal, queue, position, change, remove)
    _note(call, "message %d of queue %r in %r sent anew to exchange %r", position, queue.name, queue.vhost, goal.exchange)
    return answer({"sent": True, "removed": remove})


def _change(call: Call, given: Mapping[str, Any]) -> Any:
    """What becomes of a message: its new body and properties, where they are given. Raises: HttpError 400."""
    text, encoding, properties = given.get("body"), given.get("encoding", "text"), given.get("properties")
    try:
        body = None if text is None else base64.b64decode(text, validate=True) if encoding == "base64" else text.encode("utf-8")
    except (binascii.Error, ValueError):
        raise bad("'body' is no base64, or no text that UTF-8 can say") from None
    if properties is None and body is None:
        return lambda message: message
    limits = call.app.limits
    if properties is not None:
        message_of(body or b"", properties, limits)  # what is wrong is said before the message is held

    def change(message: Message) -> Message:
        exchange, key, header, old = message
        content = old if body is None else body
        if properties is None:
            return exchange, key, header[:4] + len(content).to_bytes(8, "big") + header[12:], content
        return exchange, key, message_of(content, properties, limits).header, content

    return change


@by_owner
async def remove(call: Call) -> Response:
    """POST queues/{vhost}/{queue}/remove"""
    queue = call.queue
    _ordinary(queue)
    positions = [position_of(one) for one in (await call.json())["positions"]]
    with call.turn():
        count = await asyncio.to_thread(remove_some, queue, positions)
        await settled(call)
    _note(call, "%d messages of queue %r in %r removed", count, queue.name, queue.vhost)
    return answer({"removed": count, "missing": len(positions) - count})


# --- why --------------------------------------------------------------------------------------------------------------------


async def why(call: Call) -> Response:
    """POST vhosts/{vhost}/route"""
    vhost = call.vhost()
    given = await call.json()
    exchange, key = given.get("exchange", ""), given.get("routing_key", "")
    raw = key.encode("utf-8", "surrogatepass")
    if len(raw) > 255:
        raise bad("'routing_key' has more than 255 bytes")
    limits = call.app.limits
    headers = check_table(given.get("headers") or {}, limits.table_depth_max, limits.table_fields_max)
    with call.turn():
        return answer(await asyncio.to_thread(Why(vhost, limits).explain, exchange, raw, headers))


# --- consumers --------------------------------------------------------------------------------------------------------------


@by_owner
async def consumers(call: Call) -> Response:
    """GET queues/{vhost}/{queue}/consumers"""
    queue = call.queue
    with call.broker.lock:
        known = list(call.broker.consumers.get(queue.queue_id, ()))
    some = known[: call.app.limits.consumers_shown_max]
    items: list[tuple[Any, Any]] = [(consumer.client, consumer) for consumer in some]
    figures = await on_loops(items, _figures)
    rows = []
    for consumer, (taken, in_flight, credit) in zip(some, figures, strict=True):
        handler = consumer.client
        rate = call.app.rates.rate((handler.connection_id, consumer.channel, consumer.tag), taken)
        rows.append(
            {
                "consumer_tag": shown(consumer.tag),
                "connection": handler.name,
                "channel": consumer.channel,
                "user": shown(handler.user),
                "ack_required": not consumer.no_ack,
                "exclusive": consumer.exclusive,
                "priority": consumer.priority,
                "prefetch": credit,
                "in_flight": in_flight,
                "taken": taken,
                "rate": rate,
            }
        )
    return answer({"consumers": rows, "count": len(known), **_fairness(rows, queue.core.ready_count())})


def _figures(item: tuple[Any, Any]) -> tuple[int, int, int]:
    """On the connection's loop: (messages taken, in flight, prefetch); zeros when it is gone."""
    handler, consumer = item
    if handler.ended or consumer.channel not in handler.channels:
        return 0, 0, 0
    return handler.connection.consumer_figures(consumer.channel, consumer.tag.encode("utf-8", "surrogateescape"))  # type: ignore[no-any-return]


def _fairness(rows: list[dict[str, Any]], ready: int) -> dict[str, Any]:
    """Jain's index over what consumers took (1: all the same, 1/n: one took everything), by rate while they work; who hoards."""
    shares = [row["rate"] for row in rows]
    by = "rate"
    if not any(shares):
        shares, by = [row["taken"] for row in rows], "total"
    total, squares = sum(shares), sum(one * one for one in shares)
    for row, share in zip(rows, shares, strict=True):
        row["share"] = round(share / total, 4) if total else 0.0
    held = sum(row["in_flight"] for row in rows)
    most = max(rows, key=lambda row: row["in_flight"], default=None)
    hint = ""
    idle = sum(not row["in_flight"] for row in rows)
    if most is not None and len(rows) > 1 and idle and not ready and most["in_flight"] > max(10, 1.5 * held / len(rows)):
        limit = f"a prefetch of {most['prefetch']}" if most["prefetch"] else "no prefetch limit"
        hint = f"consumer '{most['consumer_tag']}' holds {most['in_flight']} of {held} messages with {limit} while {idle} wait for work"
    index = round(total * total / (len(rows) * squares), 4) if squares else None
    return {"fairness": index, "fairness_of": by, "in_flight": held, "hoarding": hint or None}
