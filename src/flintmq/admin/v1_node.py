"""/api/v1, the node for people: overview, samples, topology, transactions, pipelines, diagnosis, events and log lines; sessions.

in: calls whose user has the tag that the operation names. out: JSON, event streams. An answer shows virtual hosts that the user sees.
"""

from __future__ import annotations

import asyncio
import os
from itertools import islice
from typing import Any

from starlette.responses import Response, StreamingResponse

from flintmq import __version__
from flintmq.access.tags import sees_everything
from flintmq.admin import figures
from flintmq.admin import sessions as sessions_of
from flintmq.admin.answers import answer
from flintmq.admin.api_call import Call
from flintmq.admin.api_names import shown
from flintmq.admin.counts import scheduled_count
from flintmq.admin.events import TOPICS
from flintmq.admin.http_refusals import HttpError, bad
from flintmq.admin.node_facts import alarms_of, blocked_count
from flintmq.admin.samples import QUEUE_TIERS
from flintmq.core.content import bytes_mapped

STREAM_TYPE = "text/event-stream"


def overview_of(parts: Any, sampler: Any) -> dict[str, Any]:
    """The node in a few numbers: what the console's tiles show. O(connections)."""
    broker, row = parts.broker, dict(zip(sampler.node.names, sampler.node_row(), strict=True))
    low = [name for name, on in zip(("memory", "disk"), alarms_of(parts), strict=True) if on]
    return {
        "at_ms": broker.clock.wall_ms(),
        **row,
        "drops": dict(broker.counters.drops),
        "scheduled": scheduled_count(broker),
        "blocked": blocked_count(parts),
        "alarms": low,
        "memory_limit": parts.memory_limit,
        "content_bytes": bytes_mapped(),
        "healthy": figures.is_healthy(parts),
        "opened": broker.counters.connections_opened,
        "closed": broker.counters.connections_closed,
        "checkpoints": None if parts.store is None else parts.store.checkpoints.figures,
    }


async def overview(call: Call) -> Response:
    """GET overview"""
    parts, tags = call.app.parts, call.tags
    value: dict[str, Any] = {
        "product": "FlintMQ",
        "version": __version__,
        "node": call.app.node_name,
        "cluster": call.broker.cluster_name,
        "user": call.caller.user,
        "tags": list(tags),
        "vhosts": [one.name for one in call.vhosts()],
        "listeners": [{"protocol": protocol, "address": host, "port": port} for protocol, host, port in parts.listeners()],
        "processors": os.cpu_count() or 1,
        "everything": sees_everything(tags),
    }
    if sees_everything(tags):
        value["now"] = overview_of(parts, call.app.sampler)
    else:
        sums = await call.app.totals.of(call.broker, call.vhosts())
        own = [one for one in list(call.broker.connections.values()) if one.user == call.caller.user]
        value["now"] = {
            "at_ms": call.broker.clock.wall_ms(),
            "messages_ready": sums["ready"],
            "messages_unacked": sums["unacked"],
            "enqueued": sums["enqueued"],
            "delivered": sums["delivered"],
            "consumers": sums["consumers"],
            "queues": sums["queues"],
            "connections": len(own),
            "channels": sum(len(one.channels) for one in own),
        }
    return answer(value)


# --- the console's session ---------------------------------------------------------------------------------------------------


async def open_session(call: Call) -> Response:
    """POST session"""
    scope, sessions = call.request.scope, call.app.authenticator.sessions
    if sessions_of.HEADER not in call.request.headers:
        raise HttpError(
            403, "cross_site", "a session is for the console, which sends X-FlintMQ-Console", "a program sends its credentials each time"
        )
    token, life_ms = sessions.open(call.caller, sessions_of.token_of(scope))
    headers = {"set-cookie": sessions_of.cookie(scope, token, life_ms), "cache-control": "no-store"}
    return answer({"user": call.caller.user, "life_ms": life_ms, "idle_ms": call.app.limits.http_session_idle_ms}, 200, headers)


async def close_session(call: Call) -> Response:
    """DELETE session"""
    scope = call.request.scope
    if call.caller.session is not None:
        call.app.authenticator.sessions.close(sessions_of.token_of(scope))
    return answer({"closed": call.caller.session is not None}, 200, {"set-cookie": sessions_of.cookie(scope, "", 0)})


# --- samples ----------------------------------------------------------------------------------------------------------------


async def node_samples(call: Call) -> Response:
    """GET samples"""
    seconds = call.params.get("seconds", 300)
    return answer(call.app.sampler.node.of(seconds))


async def queue_samples(call: Call) -> Response:
    """GET queues/{vhost}/{queue}/samples"""
    seconds = call.params.get("seconds", 600)
    vhost, name = call.vhost(), call.name("queue")
    call.authorize(vhost, "queue.declare-passive", queue=name)
    queue = vhost.queue(name)
    series = call.app.sampler.queues.get(queue.queue_id)
    return answer({"every_s": QUEUE_TIERS[0][0], "end_s": 0, "samples": {}} if series is None else series.of(seconds))


# --- what is there ------------------------------------------------------------------------------------------------------------


async def topology(call: Call) -> Response:
    """GET vhosts/{vhost}/topology"""
    vhost, around, most = call.vhost(), call.params.get("around", ""), call.params["count"]
    with call.turn():
        return answer(await asyncio.to_thread(_graph, vhost, around, most))


def _graph(vhost: Any, around: str, most: int) -> dict[str, Any]:
    """Exchanges with bindings, and what they lead to, as far as `most` goes; `around`: only what touches this name."""
    nodes: dict[tuple[str, str], dict[str, Any]] = {}
    edges: list[dict[str, Any]] = []
    left_out = 0

    def node(kind: str, thing: Any) -> bool:
        key = kind, thing.name
        if key in nodes:
            return True
        if len(nodes) >= most:
            return False
        nodes[key] = {"kind": kind, "name": shown(thing.name)} | (
            {"type": thing.kind}
            if kind == "exchange"
            else {"type": thing.policy.queue_type, "ready": thing.core.ready_count(), "consumers": thing.core.consumer_count()}
        )
        return True

    looks = 0
    for exchange in list(vhost.exchanges.values()):
        if exchange.alternate is not None and around in ("", exchange.name, exchange.alternate):
            other = vhost.exchanges.get(exchange.alternate)
            if other is not None and node("exchange", exchange) and node("exchange", other):
                edges.append({"from": shown(exchange.name), "to": shown(other.name), "kind": "exchange", "key": "", "alternate": True})
        for binding in islice(list(exchange.bindings.values()), 20_000):
            looks += 1
            end = binding.destination
            if around and around not in (exchange.name, end.name):
                continue
            if len(edges) >= 4 * most or not node("exchange", exchange) or not node(end.destination_kind, end):
                left_out += 1
                continue
            key = binding.routing_key.decode("utf-8", "replace")
            edge = {"from": shown(exchange.name), "to": shown(end.name), "kind": end.destination_kind, "key": key, "alternate": False}
            edges.append(edge | ({"arguments": binding.arguments} if binding.arguments else {}))
        if looks > 50_000:
            break
    return {"vhost": vhost.name, "nodes": list(nodes.values()), "edges": edges, "left_out": left_out}


async def transactions(call: Call) -> Response:
    """GET transactions"""
    coordinator = call.broker.transactions
    views = [] if coordinator is None else coordinator.list()
    seen = [one for one in views if call.sees(one.xid.vhost)]
    names = {queue_id: queue.name for queue_id, queue in list(call.broker.queues.items())} if seen else {}
    rows = [
        {
            "xid": str(one.xid),
            "vhost": one.xid.vhost,
            "state": one.state.value,
            "durable": one.durable,
            "age_s": round(one.age_s, 1),
            "timeout_s": one.timeout_s,
            "enqueues": one.enqueues,
            "dequeues": one.dequeues,
            "sessions": one.sessions_active + one.sessions_suspended,
            "queues": [
                {"queue": shown(names.get(queue_id, "")), "enqueues": entering, "dequeues": held}
                for queue_id, (entering, held) in islice(one.queues.items(), 100)
            ],
        }
        for one in islice(seen, 1000)
    ]
    return answer({"transactions": rows, "count": len(seen)})


async def pipelines(call: Call) -> Response:
    """GET pipelines"""
    source = call.app.parts.pipeline
    if source is None:
        return answer({"available": False, "subscriptions": [], "writers": {}})
    figures = source()
    every = sees_everything(call.tags)
    value: dict[str, Any] = {
        "available": True,
        "subscriptions": [one for one in figures["subscriptions"] if every or call.sees(one["vhost"])][:1000],
        "writers": {},
    }
    if every:
        stages: dict[str, int] = {}
        for (_, _, state), count in figures["stages"].items():
            stages[state] = stages.get(state, 0) + count
        value["writers"] = {"scopes": figures["scopes"], "forgotten": figures["forgotten"], "stages": stages}
        value["writers"]["oldest_prepared_ms"] = figures["oldest_prepared_ms"]
        value["calls"], value["refused"] = figures["calls"], figures["refused"]
    return answer(value)


async def groups(call: Call) -> Response:
    """GET vhosts/{vhost}/groups"""
    vhost = call.vhost()
    return answer({"vhost": vhost.name, "streams": await asyncio.to_thread(_streams, vhost, call.broker.streams)})


def _streams(vhost: Any, streams: Any) -> list[dict[str, Any]]:
    """Any thread: a virtual host may have very many queues, a stream very many groups."""
    rows: list[dict[str, Any]] = []
    for queue in list(vhost.queues.values()):
        stream = streams.get(queue.queue_id) if queue.policy.is_stream and streams is not None else None
        if stream is None or len(rows) >= 1000:
            continue
        named = stream.groups()
        acked = [one["acked"] for one in named.values()]
        squares = sum(one * one for one in acked)
        rows.append(
            {
                "queue": shown(queue.name),
                "first_offset": stream.first_offset,
                "next_offset": stream.next_offset,
                "bytes": stream.bytes,
                "consumers": queue.core.consumer_count(),
                "groups": [{"group": name.decode("utf-8", "replace"), **one} for name, one in islice(named.items(), 200)],
                "fairness": round(sum(acked) ** 2 / (len(acked) * squares), 4) if squares else None,
            }
        )
    return rows


async def diagnosis(call: Call) -> Response:
    """GET diagnosis"""
    return answer(await call.app.diagnosis.cards(call))


async def actors(call: Call) -> Response:
    """GET actors"""
    return answer({"actors": call.app.parts.actors(), "pulls": call.app.parts.pulls.figures()})


async def openapi(call: Call) -> Response:
    """GET openapi.json"""
    return answer(call.app.document)


# --- event streams ------------------------------------------------------------------------------------------------------------


async def events(call: Call) -> Response:
    """GET events"""
    topics = [one for one in call.params["topics"].split(",") if one]
    wrong = next((one for one in topics if one not in TOPICS), None)
    if wrong is not None or not topics:
        raise bad(f"unknown topic '{(wrong or '')[:40]}'", f"known are: {', '.join(TOPICS)}, separated by commas")
    if "logs" in topics:
        call.service.allow(call.actor, "node.look")
    last = call.request.headers.get("last-event-id", "0")
    number_of_last = int(last) if last.isascii() and last.isdigit() and len(last) <= 18 else 0
    return stream(call, topics, number_of_last)


async def logs(call: Call) -> Response:
    """GET logs"""
    return stream(call, ["logs"], 0)


def stream(call: Call, topics: list[str], last: int) -> Response:
    if call.request.method == "HEAD":
        raise HttpError(405, "method_not_allowed", "HEAD is not for streams", "use GET")
    return StreamingResponse(call.app.hub.listen(call, topics, last), 200, None, STREAM_TYPE)
