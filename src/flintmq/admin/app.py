"""The HTTP application: routes, and what each does. docs/HTTP.md is its contract.

in: requests, from anybody. out: JSON (metrics: text). Loaded with the first connection (admin.server).

P1  Every request but /health (/healthz, /readyz), and /metrics where it is public, is authenticated; every verb asks for its permissions
    once, before it does anything.
P2  Whatever a peer sends ends in an answer that names cause and fix; a trace goes to the log, never to the peer.
P3  A request that a page of another site made somebody's browser send is refused before all else (admin.auth).
P4  Messages whose client is gone before the answer left go back to their queue, not flagged; once it left, the lease decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from flintmq.access.checks import source_of
from flintmq.access.users import is_loopback
from flintmq.admin import figures
from flintmq.admin.answers import answer
from flintmq.admin.api import Api
from flintmq.admin.arguments import (
    checked_object,
    member_bool,
    member_ms,
    member_texts,
    number,
    path_name,
    query,
    seconds_ms,
    too_large,
    word,
)
from flintmq.admin.auth import JSON, OCTETS, Authenticator, Caller, Guard, content_type, require_header
from flintmq.admin.errors import HttpError, bad, busy, closing, of_peer_error
from flintmq.admin.links import LINK
from flintmq.admin.messages import ENCODINGS, PUBLISH_PARAMETERS, parse_publish, parse_raw_publish
from flintmq.admin.metrics import Metrics, check_families
from flintmq.admin.operations import PREFIX
from flintmq.admin.parts import Parts
from flintmq.admin.pools import CALLER, POOLS, WHO, Pools, take, too_many, who_of
from flintmq.admin.publish import publish
from flintmq.admin.pulls import Held
from flintmq.admin.schema import BODY
from flintmq.admin.static import Console
from flintmq.admin.v1 import V1
from flintmq.core.shares import Holding, Who
from flintmq.errors import PeerError, StoreError
from flintmq.pulls import service as pulls
from flintmq.pulls.service import PullRefused
from flintmq.vhost.stream_arguments import StreamStart, parse_stream_start

log = logging.getLogger("flintmq.http")

Handler = Callable[[Request], Awaitable[Response]]
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_REFUSALS = {pulls.EXCLUSIVE: (423, "locked"), pulls.NO_QUEUE: (404, "not_found"), pulls.INVALID: (400, "bad_request")}


def of_refusal(error: PullRefused) -> HttpError:
    """A refused pull in HTTP's words."""
    if error.kind == pulls.BUSY:
        return busy(error.text)
    if error.kind == pulls.STOPPING:
        return closing()
    status, name = _REFUSALS[error.kind]
    return HttpError(status, name, error.text, "see docs/HTTP.md")


class Counted(StreamingResponse):
    """Args: turn: of the answer, given back when it has left or its client has; content."""

    def __init__(self, turn: Holding, content: AsyncIterator[bytes]) -> None:
        super().__init__(content, 200, None, PROMETHEUS)
        self._turn = turn

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._turn:
            await super().__call__(scope, receive, send)


def _with_schema(handler: Handler, schema: Any) -> Handler:
    """The body that the handler asks for is checked against the schema of its operation (admin.schema)."""

    async def run(request: Request) -> Response:
        request.scope[BODY] = schema
        return await handler(request)

    return run


class Application:
    """The handlers. For one event loop."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.limits = parts.broker.limits
        self.guard = Guard(*parts.names)
        self.held: Held | None = None
        self._metrics = Metrics(parts, parts.node_name)
        self.pools = parts.pools = Pools(self.limits, parts.broker.quotas.alone)
        self.authenticator = Authenticator(parts.broker, self.pools.logins)
        self.api = Api(self)
        self.v1 = self.api.v1 = V1(self, self.api)
        self.begun = False

    # --- around every request -------------------------------------------------------------------------------------------

    def guarded(self, handler: Handler) -> Handler:
        """P2 and the count of answers."""

        async def run(request: Request) -> Response:
            response = await self._run(handler, request)
            self.parts.requests[response.status_code] += 1
            return response

        return run

    async def _run(self, handler: Handler, request: Request) -> Response:
        try:
            return await handler(request)
        except HttpError as error:
            refused = error
        except PeerError as error:
            refused = of_peer_error(error)
        except PullRefused as error:
            refused = of_refusal(error)
        except StoreError as error:
            log.error("an HTTP request failed: %s", error)
            refused = HttpError(503, "store", "the broker's disk failed", "nothing is confirmed any more: see the broker's log")
        except ClientDisconnect:
            refused = bad("the client is gone")
        except asyncio.CancelledError:
            # The grace of a stop is over (nothing else cancels requests), as with a body of which the rest never came.
            refused = closing()
        except Exception:
            log.exception("internal error in %s %s", request.method, request.scope["path"][:200])
            refused = HttpError(500, "internal", "the broker failed", "see the broker's log")
        return answer(refused.body, refused.status, refused.headers)

    async def caller(self, request: Request) -> Caller:
        peer = request.client.host if request.client is not None else "unknown"
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def left() -> None:
            if not gone.done():
                gone.set_result(None)

        leaving = self.parts.leaving
        if request.client is not None:
            leaving[request.client] = left
        try:
            caller = await self.authenticator.caller(request.headers.get("authorization"), peer, gone)
            request.scope[WHO] = Who(caller.user, source_of(peer))
            request.scope[CALLER] = caller
            link = request.scope.get(LINK)
            if link is not None:
                link.logged_in(caller.user)
            return caller
        finally:
            leaving.pop(request.client, None)
            self.parts.logins_refused = self.authenticator.refused

    async def json_body(self, request: Request) -> dict[str, Any]:
        """The body, a JSON object that meets the schema of its operation; {}: there is none. Raises: HttpError 400, 415, and as `body`."""
        kind = content_type(request.headers.get("content-type", "").encode("latin-1"))
        if kind not in (JSON, ""):  # none: there is no body (auth.W3)
            raise HttpError(415, "content_type", f"this needs the content type {JSON}, not {kind[:80]}", "see docs/HTTP.md")
        raw = await self.body(request, self.limits.http_json_bytes_max, f"send less at a time; a message goes as {OCTETS}, too")
        return checked_object(raw, request.scope)

    async def body(self, request: Request, most: int, fix: str = "send less at a time") -> bytes:
        """The request's body. Raises: HttpError 408, 413, 503."""
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > most:
            raise too_large(most, fix)
        pieces, size = [], 0
        holding = Holding(self.pools.arriving, who_of(request.scope), 0)
        try:
            async with asyncio.timeout(self.limits.http_body_ms / 1000):
                async for piece in request.stream():
                    size += len(piece)
                    if size > most:
                        raise too_large(most, fix)
                    if piece and not holding.grow(len(piece)):
                        raise busy(too_many(self.pools.arriving, holding.who, "bytes of bodies are on their way"))
                    pieces.append(piece)
        except TimeoutError:
            raise HttpError(408, "timeout", "the body did not arrive in time", "send it at once") from None
        finally:
            holding.release()
        return b"".join(pieces)

    def _queue(self, caller: Caller, request: Request, method: str) -> Any:
        """The queue of the path, after the one question for permission."""
        vhost_name = path_name(request.path_params["vhost"], "virtual host")
        name = path_name(request.path_params["queue"], "queue")
        vhost = caller.authorize(vhost_name, method, queue=name)
        # No connection has this id: another connection's exclusive queue is refused as AMQP refuses it.
        return vhost.queue(name, 0)

    # --- messages -------------------------------------------------------------------------------------------------------

    async def pull(self, request: Request) -> Response:
        """POST .../messages/pull, and GET .../messages with the header of auth.W3"""
        if request.method == "GET":
            require_header(request.headers)
        caller = await self.caller(request)
        queue = self._queue(caller, request, "basic.get")
        if request.method != "GET":
            await self.json_body(request)
        limits = self.limits
        values = query(request.scope["query_string"], ("group", "hold", "count", "bytes", "visibility", "encoding", "offset"))
        hold_ms = seconds_ms(values, "hold", 0, 0, limits.pull_hold_ms_max)
        visibility_ms = seconds_ms(
            values, "visibility", limits.pull_visibility_ms, limits.pull_visibility_ms_min, limits.pull_visibility_ms_max
        )
        most = number(values, "count", 1, 1, limits.pull_messages_max)
        bytes_max = number(values, "bytes", limits.pull_bytes_max, 1, limits.pull_bytes_max)
        encoding = word(values, "encoding", ENCODINGS)
        if self.held is None:
            self.held = Held(self.parts, limits, self.pools)
        return await self.held.pull(
            who_of(request.scope),
            request,
            queue,
            values.get("group", ""),
            encoding,
            most=most,
            bytes_max=bytes_max,
            visibility_ms=visibility_ms,
            hold_ms=hold_ms,
            allowed=partial(self._may_pull, caller, request),
            start=self._start(queue, values.get("offset")),
        )

    def _may_pull(self, caller: Caller, request: Request) -> None:
        """Asked again when messages are handed over, and when rights change meanwhile. Raises: HttpError, PeerError."""
        if not caller.is_current:
            raise HttpError(401, "unauthenticated", "the user was deleted, or has another password, since it asked", "log in again")
        self._queue(caller, request, "basic.get")

    def _start(self, queue: Any, offset: str | None) -> StreamStart | None:
        """Where a new group of a stream begins: as x-stream-offset of basic.consume."""
        if offset is None:
            return None
        if not queue.policy.is_stream:
            raise bad("'offset' is for streams", "leave it out")
        number = offset.isascii() and offset.isdigit() and len(offset) <= 19
        try:
            return parse_stream_start({"x-stream-offset": int(offset) if number else offset}, "", self.parts.broker.clock.wall_ms())
        except PeerError:
            raise bad(f"offset={offset[:40]!r} is none of: first, last, next, an offset, an interval like 2h or 7D") from None

    async def publish(self, request: Request) -> Response:
        """POST .../messages"""
        caller = await self.caller(request)
        vhost_name = path_name(request.path_params["vhost"], "virtual host")
        name = path_name(request.path_params["queue"], "queue")
        vhost = caller.authorize(vhost_name, "basic.publish", exchange="")
        queue = vhost.queue(name, 0)
        if content_type(request.headers.get("content-type", "").encode("latin-1")) == OCTETS:
            values = query(request.scope["query_string"], PUBLISH_PARAMETERS)
            properties = request.headers.getlist("x-flintmq-properties")
            message = parse_raw_publish(values, properties, await self.body(request, self.limits.http_publish_bytes_max), self.limits)
        else:
            query(request.scope["query_string"], ())
            message = parse_publish(await self.json_body(request), self.limits)
        return answer(await publish(self.parts, caller.user, queue, message), 201)

    async def ack(self, request: Request) -> Response:
        """POST .../messages/ack"""
        queue, body = await self._settlement(request)
        leases = self._leases(body)
        return self._settled(leases, self.parts.pulls.ack(queue, leases))

    async def nack(self, request: Request) -> Response:
        """POST .../messages/nack"""
        queue, body = await self._settlement(request)
        leases = self._leases(body)
        requeue = member_bool(body, "requeue", True)
        delay_ms = member_ms(body, "delay", -1, 0, self.limits.pull_visibility_ms_max)
        if delay_ms >= 0 and not requeue:
            raise bad("'delay' is for messages that are requeued", "leave one of 'delay' and 'requeue' out")
        results = self.parts.pulls.nack(queue, leases, requeue=requeue, delay_ms=None if delay_ms < 0 else delay_ms)
        return self._settled(leases, results)

    async def extend(self, request: Request) -> Response:
        """POST .../messages/extend"""
        queue, body = await self._settlement(request)
        leases = self._leases(body)
        limits = self.limits
        visibility_ms = member_ms(
            body, "visibility", limits.pull_visibility_ms, limits.pull_visibility_ms_min, limits.pull_visibility_ms_max
        )
        return self._settled(leases, self.parts.pulls.extend(queue, leases, visibility_ms))

    async def _settlement(self, request: Request) -> tuple[Any, dict[str, Any]]:
        caller = await self.caller(request)
        queue = self._queue(caller, request, "basic.get")
        query(request.scope["query_string"], ())
        return queue, await self.json_body(request)

    def _leases(self, body: dict[str, Any]) -> list[str]:
        return member_texts(body, "leases", self.limits.http_leases_max, self.limits.http_lease_max)

    @staticmethod
    def _settled(leases: list[str], results: list[str]) -> Response:
        gone = [lease for lease, result in zip(leases, results, strict=True) if result == pulls.GONE]
        value: dict[str, Any] = {"ok": len(leases) - len(gone), "gone": gone}
        if gone:
            value["reason"] = "the lease was over, its message settled before, or it was given for another queue or run of the broker"
            value["fix"] = "handle messages within their visibility time, or extend it"
        return answer(value)

    # --- figures --------------------------------------------------------------------------------------------------------

    async def queue(self, request: Request) -> Response:
        """GET /api/v1/queues/{vhost}/{queue}"""
        caller = await self.caller(request)
        queue = self._queue(caller, request, "queue.declare-passive")
        query(request.scope["query_string"], ())
        return answer(figures.of_queue(queue, self.parts))

    async def actors(self, request: Request) -> Response:
        """GET /api/v1/actors"""
        (await self.caller(request)).require_tag()
        return answer({"actors": self.parts.actors(), "pulls": self.parts.pulls.figures()})

    async def metrics(self, request: Request) -> Response:
        """GET /metrics"""
        await self._may_scrape(request)
        return self._scrape(request, self._metrics.aggregated())

    async def metrics_per_object(self, request: Request) -> Response:
        """GET /metrics/per-object"""
        await self._may_scrape(request)
        return self._scrape(request, self._metrics.per_object())

    async def metrics_detailed(self, request: Request) -> Response:
        """GET /metrics/detailed?family=...&vhost=..."""
        await self._may_scrape(request)
        families, vhosts = request.query_params.getlist("family"), request.query_params.getlist("vhost")
        check_families(families)
        return self._scrape(request, self._metrics.detailed(families, vhosts))

    async def _may_scrape(self, request: Request) -> None:
        """P1. Without a login where metrics are public: on a listener that only this machine reaches, or with --metrics-public."""
        config, peer = self.parts.broker.config, request.client.host if request.client is not None else "unknown"
        here = config.host == "localhost" or is_loopback(config.host)
        public = config.metrics_public or (here and is_loopback(peer) and not config.http_proxy_from)
        if public and request.headers.get("authorization") is None:
            request.scope[WHO] = Who("", source_of(peer))
        else:
            (await self.caller(request)).require_tag()

    def _scrape(self, request: Request, text: AsyncIterator[bytes]) -> Response:
        """An answer that counts until its last byte is on its way: a whole one is held in memory. Raises: HttpError 503."""
        return Counted(take(self.pools.scrapes, who_of(request.scope), "answers of metrics"), text)

    async def health(self, request: Request) -> Response:
        """GET /health, /healthz, /readyz"""
        ok = figures.is_healthy(self.parts)
        return answer({"status": "ok" if ok else "failed"}, 200 if ok else 503)

    # --- routes ---------------------------------------------------------------------------------------------------------

    def routes(self) -> list[Route]:
        """Paths are matched as sent, percent-encoded: a virtual host may be called `/`."""
        metrics = self.metrics, self.metrics_per_object, self.metrics_detailed
        table = [(one.method, PREFIX + one.path, _with_schema(one.handler, one.body)) for one in self.v1.operations]
        table += [
            *(("GET", path, handler) for path, handler in zip(METRICS, metrics, strict=True)),
            *(("GET", path, self.health) for path in HEALTH),
        ]
        by_path: dict[str, dict[str, Handler]] = {}
        for method, path, handler in table:
            by_path.setdefault(path, {})[method] = self.guarded(handler)
        own = [Route(path, self._by_method(handlers), methods=[*ALL_METHODS]) for path, handlers in by_path.items()]
        unknown = Route("/api/v1/{rest:path}", self.guarded(self.no_path), methods=[*ALL_METHODS])
        return [*own, unknown, *self.api.routes(), *Console().routes(self.guarded)]

    async def no_path(self, request: Request) -> Response:
        """A path under /api/v1 that there is not: RabbitMQ's API is not asked."""
        raise HttpError(404, "not_found", "there is no such path", "see docs/HTTP.md; names in the path are percent-encoded")

    def _by_method(self, handlers: dict[str, Handler]) -> Handler:
        allowed = ", ".join(sorted(handlers))

        async def refuse(request: Request) -> Response:
            raise HttpError(405, "method_not_allowed", f"{request.method[:20]} is not for this path", f"use {allowed}", {"allow": allowed})

        refused = self.guarded(refuse)

        async def run(request: Request) -> Response:
            # A HEAD is a GET whose body the server leaves out; of a pull it would take messages and drop them.
            return await handlers.get(request.method, refused)(request)

        return run

    async def unknown(self, request: Request, error: Exception) -> Response:
        """What matches no route."""
        self.parts.requests[404] += 1
        refused = HttpError(404, "not_found", "there is no such path", "see docs/HTTP.md; names in the path are percent-encoded")
        return answer(refused.body, 404)

    def refused_head(self, scope: Any) -> Response | None:
        """The answer to a request that is refused for its head alone; /health tells anybody that the broker lives, and nothing else."""
        if scope["path"] in HEALTH and scope["method"] in ("GET", "HEAD"):
            return None
        if scope[LINK].for_metrics and scope["path"] not in METRICS:
            self.parts.requests[404] += 1
            unknown = HttpError(404, "not_found", "this port is for /metrics and /health", "ask the HTTP port (--http-port)")
            return answer(unknown.body, 404, {"connection": "close"})
        if scope[LINK].spare:
            self.parts.requests[503] += 1
            refused = busy("all HTTP connections are in use: this one is kept for health checks", "try again")
            return answer(refused.body, 503, {**refused.headers, "connection": "close"})
        if not self.begun:
            self.begun = True
            self.v1.begin()
        try:
            self.guard.check(scope)
        except HttpError as error:
            self.parts.requests[error.status] += 1
            return answer(error.body, error.status, {"connection": "close"})
        return None

    def head_too_large(self) -> Response:
        """What a request with a head above Limits.http_head_bytes_max gets."""
        self.parts.requests[431] += 1
        refused = HttpError(
            431, "too_large", f"the request's head is larger than {self.limits.http_head_bytes_max} bytes", "send shorter headers"
        )
        return answer(refused.body, 431, {"connection": "close"})


# what anybody may ask, by any name: that the broker lives, and that it takes clients; one that stops, or whose disk failed, does neither
HEALTH = ("/health", "/healthz", "/readyz")
METRICS = ("/metrics", "/metrics/per-object", "/metrics/detailed")
ALL_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")


def application(parts: Parts) -> Any:
    """The ASGI application."""
    app = Application(parts)
    starlette = Starlette(routes=app.routes(), exception_handlers={HTTPException: app.unknown})
    starlette.router.redirect_slashes = False

    async def encoded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            # Route on the path as it was sent: decoded, the name `/` of the default virtual host would be two path segments.
            scope["path"] = scope["raw_path"].decode("ascii", "replace")
            scope[POOLS] = app.pools
            if scope["path"].endswith("/") and scope["path"].startswith("/api/") and not scope["path"].endswith("//"):
                scope["path"] = scope["path"][:-1]  # as RabbitMQ does; amqpstorm writes healthchecks/node/
            # h11 bounds heads that it waits for the rest of; one that came in one piece can be longer.
            head = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(name) + len(value) + 4 for name, value in scope["headers"])
            if head > app.limits.http_head_bytes_max:
                await app.head_too_large()(scope, receive, send)
                return
            refused = app.refused_head(scope)
            if refused is not None:
                await refused(scope, receive, send)
                return
        await starlette(scope, receive, send)

    return encoded
