"""From the table of operations to routes: who asks, whether they may, what was sent, and how a refusal is said. Nothing is served past it.

in: operations (admin.operations). out: Starlette's routes.

P1  Every request but those of Access.ANYBODY, and metrics where they are public, is authenticated; what the row asks for is checked before
    its handler runs.
P2  Whatever a peer sends ends in an answer that names cause and fix; a trace goes to the log, never to the peer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flintmq.admin.answers import answer
from flintmq.admin.api_call import Call
from flintmq.admin.auth import require_header
from flintmq.admin.http_refusals import HttpError, not_found, rabbit_refusal, refusal
from flintmq.admin.operations import PREFIX, RABBIT, Access, Operation
from flintmq.admin.pools import CALLER
from flintmq.errors import StoreError

log = logging.getLogger("flintmq.http")

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")
NO_PATH = HttpError(404, "not_found", "there is no such path", "see docs/HTTP.md; names in the path are percent-encoded")
_RABBIT_NO_PATH = not_found("there is no such resource: docs/HTTP.md lists those that are there")
Rows = Mapping[str, Operation]


@dataclass(frozen=True, slots=True)
class Words:
    """How one API speaks. login_first: who does not log in hears neither of paths nor of methods, a HEAD is a GET, and OPTIONS tells the
    methods."""

    refusal: Callable[[BaseException], HttpError | None]
    body: Callable[[HttpError], Mapping[str, Any]]
    login_first: bool = False

    def methods(self, rows: Rows) -> str:
        """What a path allows."""
        implied = {"OPTIONS", *(["HEAD"] if "GET" in rows else [])} if self.login_first else set()
        return ", ".join(sorted({*rows, *implied}))

    def no_method(self, rows: Rows, method: str) -> HttpError:
        """405, or 404 for a path of no row."""
        if not rows:
            return _RABBIT_NO_PATH if self.login_first else NO_PATH
        allowed = self.methods(rows)
        reason = f"{method[:20]} is not for this resource: use {allowed}" if self.login_first else f"{method[:20]} is not for this path"
        return HttpError(405, "method_not_allowed", reason, f"use {allowed}", {"allow": allowed})


OWN = Words(refusal, lambda refused: refused.body)
RABBITS = Words(rabbit_refusal, lambda refused: refused.rabbit_body, login_first=True)


def words_of(path: str) -> Words:
    """The API that a path belongs to."""
    return RABBITS if path.startswith(f"{RABBIT}/") and not path.startswith(f"{PREFIX}/") else OWN


@dataclass(slots=True)
class Node:
    """A place in the tree of paths. words: the next segment -> node; named: the node behind any segment, and the name it gives it; rest:
    rows of a path whose last name takes all that follows, and that name."""

    rows: dict[str, Operation] = field(default_factory=dict)
    words: dict[str, Node] = field(default_factory=dict)
    named: tuple[str, Node] | None = None
    rest: tuple[str, dict[str, Operation]] | None = None

    def add(self, operation: Operation) -> None:
        """A row. Raises: ValueError: paths give the same place two names."""
        node = self
        for segment in operation.path[1:].split("/"):
            name = segment[1:-1] if segment.startswith("{") else ""
            if name.endswith(":path"):
                node.rest = node.rest or (name.removesuffix(":path"), {})
                node.rest[1][operation.method] = operation
                return
            if not name:
                node = node.words.setdefault(segment, Node())
                continue
            node.named = node.named or (name, Node())
            if node.named[0] != name:
                raise ValueError(f"{operation.path}: {{{name}}} is {{{node.named[0]}}} in another path")
            node = node.named[1]
        node.rows[operation.method] = operation

    def find(self, segments: Sequence[str], names: dict[str, str]) -> Rows | None:
        """The rows of a path; None: there is none. A word comes before a name in the same place. Args: names: gets the path's names."""
        if not segments:
            return self.rows or None
        first, others = segments[0], segments[1:]
        node = self.words.get(first)
        row = None if node is None else node.find(others, names)
        if row is None and self.named is not None and first:
            name, node = self.named
            row = node.find(others, names)
            if row is not None:
                names[name] = first
        if row is None and self.rest is not None:
            name, row = self.rest
            names[name] = "/".join(segments)
        return row


class Router:
    """Args: app: admin.app.Application; operations: the table. For one event loop."""

    def __init__(self, app: Any, operations: Sequence[Operation]) -> None:
        self._app = app
        self._root = Node()
        for one in operations:
            self._root.add(one)

    def routes(self) -> list[Route]:
        """One, for all paths: Starlette tries its routes one after the other, and the table has many."""
        return [Route("/{path:path}", self.run, methods=[*METHODS])]

    def find(self, path: str) -> tuple[Rows, dict[str, str]]:
        """Rows and names of a path as it was sent, percent-encoded: a virtual host may be called `/`. No rows: it is in no row."""
        names: dict[str, str] = {}
        return self._root.find(path[1:].split("/"), names) or {}, names

    async def run(self, request: Request) -> Response:
        """The answer to a request."""
        path = request.scope["path"]
        rows, request.scope["path_params"] = self.find(path)
        response = await self._answer(words_of(path), rows, request)
        self._app.count(response.status_code)
        return response

    async def _answer(self, words: Words, rows: Rows, request: Request) -> Response:
        """P2."""
        try:
            return await self._serve(words, rows, request)
        except BaseException as error:
            refused = words.refusal(error)
            if refused is None:
                if not isinstance(error, Exception):
                    raise
                log.exception("internal error in %s %s", request.method, request.scope["path"][:200])
                refused = HttpError(500, "internal", f"the broker failed{': see its log' * words.login_first}", "see the broker's log")
            elif isinstance(error, StoreError):
                log.error("an HTTP request failed: %s", error)
        return answer(words.body(refused), refused.status, refused.headers)

    async def _serve(self, words: Words, rows: Rows, request: Request) -> Response:
        caller = request.scope.get(CALLER)  # of a call that another node was asked for
        if caller is None and words.login_first:
            caller = await self._app.caller(request)
        if words.login_first and rows and request.method == "OPTIONS":
            return Response(b"", 200, {"allow": words.methods(rows)})
        # Elsewhere than in RabbitMQ's API a HEAD is refused: of a pull it would take messages and drop them.
        row = rows.get("GET" if words.login_first and request.method == "HEAD" else request.method)
        if row is None:
            raise words.no_method(rows, request.method)
        call = Call(self._app, request, row, caller)
        await self._admit(call)
        if row.query is not None:
            call.params  # noqa: B018  # what is wrong is refused before the handler
        return await row.handler(call)

    async def _admit(self, call: Call) -> None:
        """P1. Raises: HttpError, NotAuthorised, PeerError."""
        row, request = call.operation, call.request
        if row.access is Access.ANYBODY:
            return
        if row.access is Access.SCRAPER:
            await self._app.may_scrape(request)
            return
        if row.header:
            require_header(request.headers)
        if call.caller is None:
            call.caller = await self._app.caller(request)
        if row.access is Access.MONITORING:
            call.caller.require_tag()
        elif row.access is Access.SERVICE:
            # A user without any tag gets no further, not even to the faults of its body.
            call.service.allow(call.actor, "look", None)
        elif row.access not in (Access.PERMISSIONS, Access.LOGGED_IN):
            call.service.allow(call.actor, row.access, call.name("vhost") if "vhost" in request.path_params else None)
        if row.needs:
            call.find_queue()
