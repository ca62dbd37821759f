"""RabbitMQ's HTTP API under `/api`: its routes, who may use them, and how refusals are answered. docs/HTTP.md lists what is there.

in: requests that passed the guard (admin.auth). out: JSON with RabbitMQ 3.10's fields and status codes.

Each request is authenticated as all are (admin.auth), and the verb of its route is asked for once (access.tags): here, or by the
definitions service when it is the service that changes something.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from flintmq.admin import api_access, api_backup, api_clients, api_definitions, api_links, api_messages, api_names, api_node
from flintmq.admin.answers import answer
from flintmq.admin.api_call import ApiError, Call, Entry, Handler, of_error
from flintmq.admin.api_schemas import BODIES
from flintmq.admin.errors import bad, closing
from flintmq.admin.schema import BODY

log = logging.getLogger("flintmq.http")

PREFIX = "/api"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")


class Api:
    """The handlers' shared state. Args: app: admin.app.Application, of the same event loop."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.parts = app.parts
        self.limits = app.limits
        self.body = app.body
        self.pools = app.pools
        self.node_name = app.parts.node_name
        self.rates = api_node.Rates()
        self.totals = api_node.Totals()
        self.v1: Any = None  # admin.v1.V1, which stands on this
        # (virtual host, kind) -> version of the definitions, and its names in order
        self.orders: dict[tuple[Any, str], tuple[Any, list[Any]]] = {}

    def show_consumer(self, consumer: Any) -> dict[str, Any]:
        return api_clients.show_consumer(self, consumer)

    def routes(self) -> list[Route]:
        """Paths are matched as sent, percent-encoded."""
        modules = (api_node, api_access, api_names, api_messages, api_clients, api_definitions, api_links, api_backup)
        table: list[Entry] = [entry for module in modules for entry in module.entries()]
        by_path: dict[str, dict[str, tuple[str | None, Handler, Any]]] = {}
        for method, path, verb, handler in table:
            by_path.setdefault(path, {})[method] = verb, handler, BODIES.get((method, path))
        # A path of words comes before one that has a name in the same place.
        paths = sorted(by_path, key=lambda path: [part.startswith("{") for part in path.split("/")])
        routes = [Route(f"{PREFIX}/{path}", self._run(by_path[path]), methods=[*METHODS]) for path in paths]
        return [*routes, Route(f"{PREFIX}/{{rest:path}}", self._run({}), methods=[*METHODS])]

    def _run(self, handlers: Mapping[str, tuple[str | None, Handler, Any]]) -> Any:
        async def run(request: Request) -> Response:
            response = await self._answer(handlers, request)
            self.parts.requests[response.status_code] += 1
            if len(self.orders) > 1_000:
                self.orders.clear()
            return response

        return run

    async def _answer(self, handlers: Mapping[str, tuple[str | None, Handler, Any]], request: Request) -> Response:
        refused: Exception
        try:
            return await self._serve(handlers, request)
        except ClientDisconnect:
            refused = bad("the client is gone")
        except asyncio.CancelledError:
            refused = closing()
        except Exception as error:
            refused = error
        found = of_error(refused)
        if found is None:
            log.error("internal error in %s %s", request.method, request.scope["path"][:200], exc_info=refused)
            found = ApiError(500, "internal", "the broker failed: see its log")
        value = {"status": "failed", **{name: one for name, one in found.body.items() if name != "error"}} if found.failed else found.body
        return answer(value, found.status, found.headers)

    async def _serve(self, handlers: Mapping[str, tuple[str | None, Handler, Any]], request: Request) -> Response:
        caller = await self._app.caller(request)
        if not handlers:
            raise ApiError(404, "Object Not Found", "there is no such resource: docs/HTTP.md lists those that are there")
        allowed = ", ".join(sorted({*handlers, "OPTIONS", *(["HEAD"] if "GET" in handlers else [])}))
        if request.method == "OPTIONS":
            return Response(b"", 200, {"allow": allowed})
        found = handlers.get("GET" if request.method == "HEAD" else request.method)
        if found is None:
            raise ApiError(405, "method_not_allowed", f"{request.method[:20]} is not for this resource: use {allowed}", {"allow": allowed})
        verb, handler, request.scope[BODY] = found
        call = Call(self, request, caller)
        # Where the service asks (None), who has no tag at all gets no further, not even to what its body lacks.
        vhost = call.name("vhost") if verb is not None and "vhost" in request.path_params else None
        call.service.allow(call.actor, verb or "look", vhost)
        return await handler(call)
