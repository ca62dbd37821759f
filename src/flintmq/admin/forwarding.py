"""Calls about a shared queue that another node owns: the owner serves them, and this node answers (docs/adr/0015).

in: calls that were admitted here; requests of other nodes. out: answers of owners; answers for other nodes.

F1  A call is admitted where it came in, and again at the owner, as the same user: rights follow the engine. A user that is in no
    definitions (of a token, or a directory) is unknown there, and is told where to ask.
F2  A call that was forwarded is not forwarded again: its queue is on its way to another node.
F3  An answer is collected, up to cluster_forward_bytes_max; whatever messages a longer one has go back to their queue.
    What `get` takes is gone before: it takes no more than such an answer has room for.
F4  A pull that waits is asked for again and again, since a node waits for another one cluster_request_ms_max only. An answer that does not
    arrive leaves its messages to their leases.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, MutableMapping
from functools import partial, wraps
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import Response

from flintmq.access.checks import source_of
from flintmq.admin.answers import answer
from flintmq.admin.api_call import Call, waited
from flintmq.admin.auth import Caller
from flintmq.admin.http_refusals import HttpError, busy
from flintmq.admin.operations import Handler
from flintmq.admin.pools import CALLER, POOLS, WHO
from flintmq.core.shares import Holding, Who

# of a request's scope: it came from another node
FORWARDED = "flintmq.forwarded"
# of a request's scope: the messages of its answer are gone from their queue, and are few
TAKEN = "flintmq.taken"
# name of the request between nodes (cluster.node_answers)
REQUEST = "http.call"
# headers of a call that its answer depends on; of an answer that its client needs
_HEADERS = ("content-type", "x-flintmq-request")
_ANSWER_HEADERS = ("content-type", "retry-after", "x-flintmq-cut")
# bytes of a request's head between nodes, besides the call's body
_HEAD_BYTES = 16 * 1024
# bytes of an answer to a pull that may have no messages
_EMPTY_BYTES_MAX = 2048


class TooLong(Exception):
    """An answer has more bytes than a node collects."""


def by_owner(handler: Handler) -> Handler:
    """A handler whose row needs a right to the path's queue: the queue's owner runs it."""

    @wraps(handler)
    async def run(call: Call) -> Response:
        elsewhere = await at_owner(call, call.queue)
        return await handler(call) if elsewhere is None else elsewhere

    return run


async def at_owner(call: Call, queue: Any) -> Response | None:
    """The owner's answer; None: this node is to answer. The caller has authorized it. Raises: HttpError 409, 413, 503."""
    if not call.broker.is_window(queue):
        return None
    owner = call.broker.shared.owner_text(queue.queue_id)
    if FORWARDED in call.request.scope:
        raise busy(f"queue '{queue.name}' is on its way to another node", "try again")
    if type(call.caller.user) is not str:
        raise HttpError(409, "other_node", f"{owner} owns queue '{queue.name}', and knows users of tokens by their tokens only", "ask it")
    limits = call.app.limits
    body = await call.app.body(call.request, limits.cluster_request_bytes_max - _HEAD_BYTES)
    headers = [(name, call.request.headers[name]) for name in _HEADERS if name in call.request.headers]
    path, query = call.request.scope["path"], call.request.scope["query_string"].decode("latin-1")
    head = {"method": call.request.method, "path": path, "headers": headers, "user": call.caller.user, "peer": call.actor.peer}
    if len(path) + 2 * len(query) > _HEAD_BYTES // 2:
        raise HttpError(413, "too_large", "path and query are too long to be sent to the queue's owner", f"ask {owner}")
    if "hold" in call.params if call.operation.query else False:
        return await _held(call, queue, head, query, body)
    return _response(*await _ask(call, queue, {**head, "query": query}, body))


async def _held(call: Call, queue: Any, head: dict[str, Any], query: str, body: bytes) -> Response:
    """F4."""
    until = time.monotonic() + call.params["hold"] / 1000
    given = [pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0] != "hold"]
    while True:
        rest_s = max(0.0, until - time.monotonic())
        hold_s = min(rest_s, call.app.limits.cluster_forward_hold_ms / 1000)
        facts, payload = await _ask(call, queue, {**head, "query": urlencode([*given, ("hold", f"{hold_s:.3f}")])}, body)
        if not rest_s or not _is_empty(facts, payload) or await call.request.is_disconnected():
            return _response(facts, payload)


def _is_empty(facts: dict[str, Any], payload: bytes) -> bool:
    return facts.get("status") == 200 and len(payload) < _EMPTY_BYTES_MAX and json.loads(payload).get("messages") == []


async def _ask(call: Call, queue: Any, head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    """Raises: HttpError 503: no answer came, which does not say that nothing was done."""
    shared = call.broker.shared
    try:
        reply: tuple[dict[str, Any], bytes] = await waited(partial(shared.ask_owner, queue.queue_id, REQUEST, head, body))
    except Exception as error:
        owner = shared.owner_text(queue.queue_id)
        reason = f"{owner} owns queue '{queue.name}', and gave no answer: {error}"
        raise busy(reason, "it may have been done: look, and try again, or ask that node") from None
    return reply


def _response(facts: dict[str, Any], payload: bytes) -> Response:
    return Response(payload, int(facts["status"]), dict(facts["headers"]))


# --- at the owner -----------------------------------------------------------------------------------------------------------


class Forwarded:
    """Calls that other nodes were asked for. Args: app: admin.app.Application; run: answers a request (Router.run). For one event loop."""

    def __init__(self, app: Any, run: Callable[[Request], Any]) -> None:
        self._app = app
        self._run = run

    async def answer(self, head: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        """The answer to a call: its status and headers, and its bytes. Raises: KeyError, TypeError, ValueError: the head is none."""
        user, peer, path = str(head["user"]), str(head["peer"]), str(head["path"])
        who = Who(user, source_of(peer))
        scope: dict[str, Any] = {
            "type": "http",
            "method": str(head["method"]),
            "scheme": "http",
            "path": path,
            "raw_path": path.encode("latin-1"),
            "query_string": str(head["query"]).encode("latin-1"),
            "headers": [(str(name).encode("latin-1"), str(value).encode("latin-1")) for name, value in head["headers"]],
            "client": (peer, 0),
            WHO: who,
            CALLER: Caller.of(user, self._app.parts.broker),
            POOLS: self._app.pools,
            FORWARDED: True,
        }
        response = await self._run(Request(scope, _Body(payload)))
        holding = Holding(self._app.pools.answers, who, 0)
        try:
            pieces = _Pieces(self._app.limits.cluster_forward_bytes_max, None if TAKEN in scope else holding)
            try:
                await response(scope, _Body(b""), pieces)
            except TooLong:
                reason = f"the answer has more than {self._app.limits.cluster_forward_bytes_max} bytes, or there are too many of that size"
                refused = busy(reason, "ask for less at a time, or ask the queue's owner")
                response, pieces = answer(refused.body, refused.status, refused.headers), _Pieces(_HEAD_BYTES, None)
                await response(scope, _Body(b""), pieces)
            return {"status": response.status_code, "headers": _kept(response)}, b"".join(pieces.pieces)
        finally:
            holding.release()


def _kept(response: Response) -> list[tuple[str, str]]:
    return [(name, response.headers[name]) for name in _ANSWER_HEADERS if name in response.headers]


class _Body:
    """ASGI's receive: a body, and then nothing for ever."""

    def __init__(self, payload: bytes) -> None:
        self._payload: bytes | None = payload

    async def __call__(self) -> dict[str, Any]:
        payload, self._payload = self._payload, None
        if payload is None:
            await asyncio.get_running_loop().create_future()
        return {"type": "http.request", "body": payload, "more_body": False}


class _Pieces:
    """ASGI's send: F3."""

    def __init__(self, most: int, holding: Holding | None) -> None:
        self.pieces: list[bytes] = []
        self._most = most
        self._size = 0
        self._holding = holding

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        piece = message.get("body", b"")
        self._size += len(piece)
        if self._size > self._most or (piece and self._holding is not None and not self._holding.grow(len(piece))):
            raise TooLong
        if piece:
            self.pieces.append(piece)
