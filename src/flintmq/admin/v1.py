"""/api/v1: the table of everything that is under it, how its management calls are authorized, and its OpenAPI document.

in: the handlers of admin.app (pulls, publish, leases) and of v1_queues, v1_node. out: operations, from which routes and document are made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from flintmq.access.tags import NotAuthorised
from flintmq.admin import v1_cluster, v1_node, v1_queues, v1_schedules
from flintmq.admin.answers import answer
from flintmq.admin.api_call import ApiError, Call
from flintmq.admin.auth import HEADER
from flintmq.admin.doctor import Doctor
from flintmq.admin.errors import HttpError
from flintmq.admin.events import TOPICS, Hub
from flintmq.admin.filters import CONDITIONS_MAX, OPERATIONS, PLACES
from flintmq.admin.messages import ENCODINGS
from flintmq.admin.operations import FLAG, OBJECT, TEXT, Operation, Schema, document, listing, number, one_of, record, whole
from flintmq.admin.samples import NODE_TIERS, QUEUE_TIERS, Sampler

if TYPE_CHECKING:
    from flintmq.admin.api import Api
    from flintmq.admin.app import Application

Verb = Callable[[Call], Awaitable[Response]]

_QUEUE = "/queues/{vhost}/{queue}"
_POSITION: Schema = {"oneOf": [{"type": "string", "pattern": "^[0-9]{1,20}$"}, {"type": "integer", "minimum": 0}]}
_VALUE: Schema = {"type": ["string", "number", "boolean", "null"]}
_CONDITION = record(
    ("in",),
    {
        "in": one_of(*PLACES),
        "name": {"type": "string", "maxLength": 255},
        "path": TEXT,
        "op": one_of(*OPERATIONS),
        "value": _VALUE,
    },
)
_FILTER = listing(_CONDITION, 0, CONDITIONS_MAX)
_MESSAGES = record(("messages",), {"messages": listing(OBJECT), "next": {"type": ["string", "null"]}}, closed=False)


class V1:
    """Args: app: admin.app.Application; api: shared state of management calls. For one event loop."""

    def __init__(self, app: Application, api: Api) -> None:
        self._app, self._api = app, api
        self.sampler = Sampler(app.parts)
        self.doctor = Doctor(app.parts, self.sampler)
        self.hub = Hub(app.parts, partial(v1_node.overview_of, app.parts, self.sampler))
        self.json_body = app.json_body
        self.operations = self._table()
        self._document: dict[str, Any] | None = None

    def begin(self) -> None:
        """With the first request: what needs a running loop."""
        self.sampler.start()
        events = self._app.parts.broker.events
        events.hub = self.hub
        self.hub.on_listened = events.look

    def _for(self, verb: str, handler: Verb) -> Any:
        """A management call: who asks, whether the user's tags let it, then the handler."""

        async def run(request: Request) -> Response:
            caller = await self._app.caller(request)
            call = Call(self._api, request, caller)
            try:
                vhost = call.name("vhost") if "vhost" in request.path_params else None
                call.service.allow(call.actor, verb, vhost)
                return await handler(call)
            except NotAuthorised as error:
                fix = "give the user the tag, or permissions in the virtual host (docs/HTTP.md)"
                raise HttpError(403, "forbidden", str(error), fix) from None
            except UnicodeEncodeError:  # JSON can say half a character
                raise HttpError(400, "bad_request", "a text of the request is no text that UTF-8 can say", "send UTF-8") from None
            except ApiError as error:
                word = "not_found" if error.status == 404 else error.error
                raise HttpError(error.status, word, error.reason, "see docs/HTTP.md", error.headers) from None

        return run

    async def openapi(self, call: Call) -> Response:
        """GET openapi.json"""
        if self._document is None:
            self._document = document(self.operations)
        return answer(self._document)

    def _table(self) -> list[Operation]:
        return [*self._messages(), *self._management(), *self._node(), *self._cluster()]

    def _messages(self) -> list[Operation]:
        """What programs use: AMQP's permissions decide."""
        app, limits = self._app, self._app.limits
        messages = f"{_QUEUE}/messages"
        pull: dict[str, Schema] = {
            "group": {"type": "string", "maxLength": 255},
            "hold": number(0, limits.pull_hold_ms_max / 1000, 0),
            "count": whole(1, limits.pull_messages_max, 1),
            "bytes": whole(1, limits.pull_bytes_max, limits.pull_bytes_max),
            "visibility": number(
                limits.pull_visibility_ms_min / 1000, limits.pull_visibility_ms_max / 1000, limits.pull_visibility_ms / 1000
            ),
            "encoding": one_of(*ENCODINGS),
            "offset": TEXT,
        }
        leases = listing({"type": "string", "minLength": 1, "maxLength": limits.http_lease_max}, 1, limits.http_leases_max)
        seconds = number(limits.pull_visibility_ms_min / 1000, limits.pull_visibility_ms_max / 1000)
        settled = record(("ok", "gone"), {"ok": {"type": "integer"}, "gone": listing(TEXT)}, closed=False)
        publish = record(("body",), {"body": TEXT, "encoding": one_of("text", "base64"), "persistent": FLAG, "properties": OBJECT})
        nack = record(("leases",), {"leases": leases, "requeue": FLAG, "delay": number(0, limits.pull_visibility_ms_max / 1000)})
        extend = record(("leases",), {"leases": leases, "visibility": seconds})
        return [
            Operation("GET", _QUEUE, None, app.queue, "Figures of a queue"),
            Operation("GET", messages, None, app.pull, "Takes messages", pull, answer=_MESSAGES, header=HEADER),
            Operation("POST", messages, None, app.publish, "Publishes to a queue", {"persistent": FLAG}, publish, octets=True, status=201),
            Operation("POST", f"{messages}/pull", None, app.pull, "Takes messages", pull, record(), needs_body=False, answer=_MESSAGES),
            Operation(
                "POST", f"{messages}/ack", None, app.ack, "Done with messages", {}, record(("leases",), {"leases": leases}), answer=settled
            ),
            Operation("POST", f"{messages}/nack", None, app.nack, "Gives messages back", {}, nack, answer=settled),
            Operation("POST", f"{messages}/extend", None, app.extend, "Prolongs leases", {}, extend, answer=settled),
        ]

    def _management(self) -> list[Operation]:
        """Messages of queues for people, each for a verb of access.tags and with AMQP's permissions besides."""
        limits, use = self._app.limits, partial(self._for, "vhost.use")
        count, body = whole(1, limits.peek_messages_max), whole(0, limits.peek_bytes_max, limits.peek_body_bytes)
        positions = listing(_POSITION, 1, limits.move_messages_max)
        goal: dict[str, Schema] = {"exchange": {"type": "string", "maxLength": 255}, "routing_key": {"type": "string", "maxLength": 255}}
        look: dict[str, Schema] = {"position": TEXT, "count": count, "body_bytes": body, "encoding": one_of(*ENCODINGS)}
        search = record((), {"filter": _FILTER, "position": _POSITION, "count": count, "body_bytes": body})
        moving: dict[str, Schema] = {"positions": positions, "filter": _FILTER, "position": _POSITION}
        move = record((), {**goal, **moving, "count": whole(1, limits.move_messages_max)})
        edited: dict[str, Schema] = {"properties": OBJECT, "body": TEXT, "encoding": one_of("text", "base64"), "remove": FLAG}
        anew = record(("position",), {**goal, "position": _POSITION, **edited})
        route = record((), {**goal, "headers": OBJECT})
        moved = record(("moved",), {"moved": {"type": "integer"}, "stopped": {"type": ["string", "null"]}}, closed=False)
        removed = record(("removed",), {"removed": {"type": "integer"}}, closed=False)
        routed = record(
            ("routed", "steps"), {"routed": FLAG, "queues": listing(TEXT), "steps": listing(OBJECT), "advice": TEXT}, closed=False
        )
        part, one, text = v1_queues, "vhost.use", f"{_QUEUE}/"
        return [
            Operation("GET", f"{text}peek", one, use(part.peek), "Shows messages without taking them", look, answer=_MESSAGES),
            Operation("POST", f"{text}search", one, use(part.search), "Finds messages without taking them", {}, search, answer=_MESSAGES),
            Operation("POST", f"{text}move", one, use(part.move), "Moves messages", {}, move, answer=moved),
            Operation("POST", f"{text}republish", one, use(part.republish), "Sends a message anew, edited", {}, anew),
            Operation(
                "POST",
                f"{text}remove",
                one,
                use(part.remove),
                "Removes messages",
                {},
                record(("positions",), {"positions": positions}),
                answer=removed,
            ),
            Operation("GET", f"{text}consumers", one, use(part.consumers), "Consumers, their shares, and who hoards"),
            Operation("GET", f"{text}samples", one, use(v1_node.queue_samples), "Samples of a queue's counters", _seconds(QUEUE_TIERS)),
            Operation("POST", "/vhosts/{vhost}/route", one, use(part.why), "Where a message goes, and why", {}, route, answer=routed),
        ]

    def _node(self) -> list[Operation]:
        """The node for people."""
        look, node = partial(self._for, "look"), partial(self._for, "node.look")
        topics: dict[str, Schema] = {"topics": {"type": "string", "default": "events", "description": f"of {', '.join(TOPICS)}"}}
        around: dict[str, Schema] = {"around": TEXT, "count": whole(2, self._app.limits.topology_nodes_max, 100)}
        part, stream = v1_node, v1_node.STREAM_TYPE
        use, change = partial(self._for, "vhost.use"), partial(self._for, "vhost.change")
        cancelled = record(("cancelled",), {"cancelled": {"type": "integer"}}, closed=False)
        waiting: dict[str, Schema] = {"position": TEXT, "count": whole(1, self._app.limits.peek_messages_max)}
        return [
            Operation("GET", "/openapi.json", "look", look(self.openapi), "This document"),
            Operation("GET", "/overview", "look", look(part.overview), "The node in a few numbers, and who asks"),
            Operation("GET", "/samples", "node.look", node(part.node_samples), "Samples of the node's counters", _seconds(NODE_TIERS)),
            Operation("GET", "/diagnosis", "look", look(part.diagnosis), "What to look at first"),
            Operation("GET", "/transactions", "look", look(part.transactions), "Distributed transactions, those in doubt among them"),
            Operation("GET", "/pipelines", "look", look(part.pipelines), "Spark's subscriptions and writers"),
            Operation(
                "GET", "/vhosts/{vhost}/topology", "vhost.use", use(part.topology), "Exchanges, queues and bindings as a graph", around
            ),
            Operation("GET", "/vhosts/{vhost}/groups", "vhost.use", use(part.groups), "Streams and their consumer groups"),
            Operation("GET", "/events", "look", look(part.events), "Events as they happen", topics, answer=TEXT, media=stream),
            Operation("GET", "/logs", "node.look", node(part.logs), "Lines of the log as they are written", answer=TEXT, media=stream),
            Operation("GET", "/schedules/{vhost}", "node.look", node(v1_schedules.look), "Messages that wait for their time", waiting),
            Operation(
                "DELETE", "/schedules/{vhost}", "vhost.change", change(v1_schedules.cancel_all), "Cancels all of them", answer=cancelled
            ),
            Operation(
                "DELETE",
                "/schedules/{vhost}/{position}",
                "vhost.change",
                change(v1_schedules.cancel),
                "Cancels one of them",
                answer=cancelled,
            ),
            Operation("GET", "/actors", None, self._app.actors, "Gauges of the actor system (tag monitoring or administrator)"),
        ]

    def _cluster(self) -> list[Operation]:
        """The nodes that share an engine."""
        look, nodes, change = partial(self._for, "look"), partial(self._for, "node.look"), partial(self._for, "node.change")
        part, node = v1_cluster, "/cluster/nodes/{node}"
        found = record(("cluster", "node", "nodes"), {"cluster": FLAG, "node": TEXT, "nodes": listing(OBJECT)}, closed=False)
        hosts = record(("amqp", "amqps"), {"amqp": listing(TEXT), "amqps": listing(TEXT)})
        return [
            Operation("GET", "/cluster", "node.look", nodes(part.look), "Nodes of the cluster, and their states", answer=found),
            Operation("GET", "/cluster/addresses", "look", look(part.addresses), "Where clients go that lose their node", answer=hosts),
            Operation("POST", f"{node}/drain", "node.change", change(part.drain), "Drains a node", status=202),
            Operation("DELETE", node, "node.change", change(part.remove), "Forgets a node that is down"),
        ]


def _seconds(tiers: tuple[tuple[int, int], ...]) -> dict[str, Schema]:
    return {"seconds": whole(2, tiers[-1][0] * tiers[-1][1])}
