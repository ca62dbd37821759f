"""The HTTP application: what all requests share, and the table of operations. docs/HTTP.md is its contract.

in: requests, from anybody. out: JSON (metrics: text). Loaded with the first connection (admin.server).

P1  Whatever is served is a row of `operations`; admin.router asks for the right, and says refusals.
P2  A request that a page of another site made somebody's browser send is refused before all else (admin.auth).
P3  Messages whose client is gone before the answer left go back to their queue, not flagged; once it left, the lease decides.
"""

from __future__ import annotations

import asyncio
import logging
from functools import cached_property, partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from flintmq.access.checks import source_of
from flintmq.access.users import is_loopback
from flintmq.admin import api, api_clients, api_node, figures, metrics, static, v1, v1_node
from flintmq.admin.answers import answer
from flintmq.admin.api_call import Call
from flintmq.admin.arguments import too_large
from flintmq.admin.auth import Authenticator, Caller, Guard
from flintmq.admin.diagnosis import Diagnosis
from flintmq.admin.events import Hub
from flintmq.admin.forwarding import Forwarded
from flintmq.admin.http_refusals import HttpError, busy
from flintmq.admin.links import LINK
from flintmq.admin.operations import Access, Operation, document
from flintmq.admin.parts import Parts
from flintmq.admin.pools import CALLER, POOLS, WHO, Pools, too_many, who_of
from flintmq.admin.pulls import Held
from flintmq.admin.router import NO_PATH, Router
from flintmq.admin.samples import Sampler
from flintmq.core.shares import Holding, Who

log = logging.getLogger("flintmq.http")


class Application:
    """What the handlers share. For one event loop."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.limits = parts.broker.limits
        self.node_name = parts.node_name
        self.guard = Guard(*parts.names)
        self.pools = parts.pools = Pools(self.limits, parts.broker.quotas.alone)
        self.authenticator = Authenticator(parts.broker, self.pools.logins)
        self.rates = api_node.Rates()
        self.totals = api_node.Totals()
        self.sampler = Sampler(parts)
        self.metrics = metrics.Metrics(parts, parts.node_name, self.sampler)
        self.diagnosis = Diagnosis(parts, self.sampler)
        self.hub = Hub(parts, partial(v1_node.overview_of, parts, self.sampler))
        # (virtual host, kind) -> version of the definitions, and its names in order
        self.orders: dict[tuple[Any, str], tuple[Any, list[Any]]] = {}
        self.operations = [*v1.operations(self.limits), *_node_rows(), *static.operations(), *api.operations()]
        self.begun = False

    def _begin(self) -> None:
        """With the first request: what needs a running loop."""
        self.sampler.start()
        events = self.parts.broker.events
        events.hub = self.hub
        self.hub.on_listened = events.look

    @cached_property
    def held(self) -> Held:
        """Pulls that wait; made on the running loop."""
        return Held(self.parts, self.limits, self.pools)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The OpenAPI document."""
        return document(self.operations)

    def show_consumer(self, consumer: Any) -> dict[str, Any]:
        return api_clients.show_consumer(self, consumer)

    def count(self, status: int) -> None:
        """A request was answered."""
        self.parts.requests[status] += 1
        if len(self.orders) > 1_000:
            self.orders.clear()

    # --- what a request has -----------------------------------------------------------------------------------------------

    async def caller(self, request: Request) -> Caller:
        peer = request.client.host if request.client is not None else "unknown"
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_leave() -> None:
            if not gone.done():
                gone.set_result(None)

        leaving = self.parts.leaving
        if request.client is not None:
            leaving[request.client] = on_leave
        try:
            caller = await self.authenticator.of_request(request, peer, gone)
            request.scope[WHO] = Who(caller.user, source_of(peer))
            request.scope[CALLER] = caller
            link = request.scope.get(LINK)
            if link is not None:
                link.logged_in(caller.user)
            return caller
        finally:
            leaving.pop(request.client, None)
            self.parts.logins_refused = self.authenticator.refused

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

    async def may_scrape(self, request: Request) -> None:
        """Without a login where metrics are public: on a listener that only this machine reaches, or with --metrics-public."""
        config, peer = self.parts.broker.config, request.client.host if request.client is not None else "unknown"
        here = config.host == "localhost" or is_loopback(config.host)
        public = config.metrics_public or (here and is_loopback(peer) and not config.http_proxy_from)
        if public and request.headers.get("authorization") is None:
            request.scope[WHO] = Who("", source_of(peer))
        else:
            (await self.caller(request)).require_tag()

    # --- what is refused before there is a route ----------------------------------------------------------------------------

    async def unknown(self, request: Request, error: Exception) -> Response:
        """What matches no route."""
        self.parts.requests[404] += 1
        return answer(NO_PATH.body, 404)

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
            self._begin()
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


async def health(call: Call) -> Response:
    """GET /health, /healthz, /readyz"""
    ok = figures.is_healthy(call.app.parts)
    return answer({"status": "ok" if ok else "failed"}, 200 if ok else 503)


def _node_rows() -> list[Operation]:
    handlers = metrics.aggregated, metrics.per_object, metrics.detailed
    return [
        *(Operation("GET", path, Access.SCRAPER, handler, query=None) for path, handler in zip(METRICS, handlers, strict=True)),
        *(Operation("GET", path, Access.ANYBODY, health, query=None) for path in HEALTH),
    ]


# what anybody may ask, by any name: that the broker lives, and that it takes clients; one that stops, or whose disk failed, does neither
HEALTH = ("/health", "/healthz", "/readyz")
METRICS = ("/metrics", "/metrics/per-object", "/metrics/detailed")


def application(parts: Parts) -> Any:
    """The ASGI application."""
    app = Application(parts)
    router = Router(app, app.operations)
    parts.forwarded = Forwarded(app, router.run).answer
    starlette = Starlette(routes=router.routes(), exception_handlers={HTTPException: app.unknown})
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
