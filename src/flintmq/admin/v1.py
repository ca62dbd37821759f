"""/api/v1: the rows of the table of operations that are FlintMQ's own.

in: handlers of v1_messages, v1_queues, v1_node, v1_schedules, v1_cluster. out: operations.
"""

from __future__ import annotations

from flintmq.admin import v1_cluster, v1_messages, v1_node, v1_operator, v1_passes, v1_queues, v1_schedules
from flintmq.admin.auth import HEADER
from flintmq.admin.events import TOPICS
from flintmq.admin.filters import CONDITIONS_MAX, OPERATIONS, PLACES
from flintmq.admin.messages import ENCODINGS
from flintmq.admin.operations import FLAG, OBJECT, PREFIX, TEXT, Access, Operation, Schema, listing, number, one_of, record, whole
from flintmq.admin.samples import NODE_TIERS, QUEUE_TIERS
from flintmq.admin.sessions import PATH as SESSION
from flintmq.config import Limits

# offsets of a request are whole numbers of JSON that every language reads
GROUP_OFFSET_MAX = 2**53 - 1
_QUEUE = f"{PREFIX}/queues/{{vhost}}/{{queue}}"
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


def operations(limits: Limits) -> list[Operation]:
    """The rows of /api/v1."""
    return [*_messages(limits), *_management(limits), *_of_node(limits), *v1_operator.operations(), *_cluster()]


def _messages(limits: Limits) -> list[Operation]:
    """What programs use: AMQP's permissions decide."""
    messages = f"{_QUEUE}/messages"
    pull: dict[str, Schema] = {
        "group": {"type": "string", "maxLength": 255},
        "hold": number(0, limits.pull_hold_ms_max / 1000, 0),
        "count": whole(1, limits.pull_messages_max, 1),
        "bytes": whole(1, limits.pull_bytes_max, limits.pull_bytes_max),
        "visibility": number(limits.pull_visibility_ms_min / 1000, limits.pull_visibility_ms_max / 1000, limits.pull_visibility_ms / 1000),
        "encoding": one_of(*ENCODINGS),
        "offset": TEXT,
    }
    leases = listing({"type": "string", "minLength": 1, "maxLength": limits.http_lease_max}, 1, limits.http_leases_max)
    seconds = number(limits.pull_visibility_ms_min / 1000, limits.pull_visibility_ms_max / 1000)
    settled = record(("ok", "gone"), {"ok": {"type": "integer"}, "gone": listing(TEXT)}, closed=False)
    publish = record(("body",), {"body": TEXT, "encoding": one_of("text", "base64"), "persistent": FLAG, "properties": OBJECT})
    nack = record(("leases",), {"leases": leases, "requeue": FLAG, "delay": number(0, limits.pull_visibility_ms_max / 1000)})
    extend = record(("leases",), {"leases": leases, "visibility": seconds})
    part, may, get = v1_messages, Access.PERMISSIONS, "basic.get"
    return [
        Operation("GET", _QUEUE, may, part.queue, "Figures of a queue", needs="queue.declare-passive"),
        Operation("GET", messages, may, part.pull, "Takes messages", pull, answer=_MESSAGES, header=HEADER, needs=get),
        Operation(
            "POST",
            messages,
            may,
            part.publish,
            "Publishes to a queue",
            {"persistent": FLAG},
            publish,
            octets=True,
            status=201,
            needs="basic.publish",
        ),
        Operation(
            "POST", f"{messages}/pull", may, part.pull, "Takes messages", pull, record(), needs_body=False, answer=_MESSAGES, needs=get
        ),
        Operation(
            "POST",
            f"{messages}/ack",
            may,
            part.ack,
            "Done with messages",
            {},
            record(("leases",), {"leases": leases}),
            answer=settled,
            needs=get,
        ),
        Operation("POST", f"{messages}/nack", may, part.nack, "Gives messages back", {}, nack, answer=settled, needs=get),
        Operation("POST", f"{messages}/extend", may, part.extend, "Prolongs leases", {}, extend, answer=settled, needs=get),
    ]


def _management(limits: Limits) -> list[Operation]:
    """Messages of queues for people, each for a verb of access.tags and with AMQP's permissions besides."""
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
    routed = record(("routed", "steps"), {"routed": FLAG, "queues": listing(TEXT), "steps": listing(OBJECT), "advice": TEXT}, closed=False)
    part, one, text, get = v1_queues, "vhost.use", f"{_QUEUE}/", "basic.get"
    return [
        Operation("GET", f"{text}peek", one, part.peek, "Shows messages without taking them", look, answer=_MESSAGES, needs=get),
        Operation("POST", f"{text}search", one, part.search, "Finds messages without taking them", {}, search, answer=_MESSAGES, needs=get),
        Operation("POST", f"{text}move", one, part.move, "Moves messages", {}, move, answer=moved, needs=get),
        Operation("POST", f"{text}republish", one, part.republish, "Sends a message anew, edited", {}, anew, needs=get),
        Operation(
            "POST",
            f"{text}remove",
            one,
            part.remove,
            "Removes messages",
            {},
            record(("positions",), {"positions": positions}),
            answer=removed,
            needs="queue.purge",
        ),
        Operation(
            "PUT",
            f"{text}groups/{{group}}/offset",
            one,
            part.reset_group,
            "Moves a group of a stream that has no members",
            {},
            record(("offset",), {"offset": {"oneOf": [whole(0, GROUP_OFFSET_MAX), one_of("first", "last", "next")]}}),
            needs=get,
        ),
        Operation("GET", f"{text}consumers", one, part.consumers, "Consumers, their shares, and who hoards", needs="queue.declare-passive"),
        Operation("GET", f"{text}samples", one, v1_node.queue_samples, "Samples of a queue's counters", _seconds(QUEUE_TIERS)),
        Operation("POST", f"{PREFIX}/vhosts/{{vhost}}/route", one, part.why, "Where a message goes, and why", {}, route, answer=routed),
    ]


def _of_node(limits: Limits) -> list[Operation]:
    """The node for people."""
    topics: dict[str, Schema] = {"topics": {"type": "string", "default": "events", "description": f"of {', '.join(TOPICS)}"}}
    around: dict[str, Schema] = {"around": TEXT, "count": whole(2, limits.topology_nodes_max, 100)}
    part, stream = v1_node, v1_node.STREAM_TYPE
    cancelled = record(("cancelled",), {"cancelled": {"type": "integer"}}, closed=False)
    closed = record(("closed",), {"closed": FLAG}, closed=False)
    waiting: dict[str, Schema] = {"position": TEXT, "count": whole(1, limits.peek_messages_max)}
    return [
        Operation("GET", f"{PREFIX}/openapi.json", "look", v1_node.openapi, "This document"),
        Operation("GET", f"{PREFIX}/overview", "look", part.overview, "The node in a few numbers, and who asks"),
        Operation("POST", SESSION, "look", part.open_session, "Logs the console in: a cookie that goes with X-FlintMQ-Console alone"),
        Operation("DELETE", SESSION, Access.LOGGED_IN, part.close_session, "Logs the console out", answer=closed),
        Operation("GET", f"{PREFIX}/samples", "node.look", part.node_samples, "Samples of the node's counters", _seconds(NODE_TIERS)),
        Operation("GET", f"{PREFIX}/diagnosis", "look", part.diagnosis, "What to look at first"),
        Operation("GET", f"{PREFIX}/transactions", "look", part.transactions, "Distributed transactions, those in doubt among them"),
        Operation("GET", f"{PREFIX}/pipelines", "look", part.pipelines, "Spark's subscriptions and writers"),
        Operation(
            "GET", f"{PREFIX}/vhosts/{{vhost}}/topology", "vhost.use", part.topology, "Exchanges, queues and bindings as a graph", around
        ),
        Operation("GET", f"{PREFIX}/vhosts/{{vhost}}/groups", "vhost.use", part.groups, "Streams and their consumer groups"),
        Operation("GET", f"{PREFIX}/events", "look", part.events, "Events as they happen", topics, answer=TEXT, media=stream),
        Operation("GET", f"{PREFIX}/logs", "node.look", part.logs, "Lines of the log as they are written", answer=TEXT, media=stream),
        Operation("GET", f"{PREFIX}/schedules/{{vhost}}", "node.look", v1_schedules.look, "Messages that wait for their time", waiting),
        Operation(
            "DELETE", f"{PREFIX}/schedules/{{vhost}}", "vhost.change", v1_schedules.cancel_all, "Cancels all of them", answer=cancelled
        ),
        Operation(
            "DELETE",
            f"{PREFIX}/schedules/{{vhost}}/{{position}}",
            "vhost.change",
            v1_schedules.cancel,
            "Cancels one of them",
            answer=cancelled,
        ),
        Operation(
            "GET",
            f"{PREFIX}/passes",
            "node.change",
            v1_passes.passes,
            "Where the time of the I/O loops and of the log's writer goes: traces them for some seconds",
            {"seconds": whole(1, v1_passes.SECONDS_MAX, 5)},
            answer=record(("threads",), {"threads": listing(OBJECT)}),
        ),
        Operation(
            "GET", f"{PREFIX}/actors", Access.MONITORING, v1_node.actors, "Gauges of the actor system (tag monitoring or administrator)"
        ),
    ]


def _cluster() -> list[Operation]:
    """The nodes that share an engine."""
    part, node = v1_cluster, f"{PREFIX}/cluster/nodes/{{node}}"
    schema = record(("cluster", "node", "nodes"), {"cluster": FLAG, "node": TEXT, "nodes": listing(OBJECT)}, closed=False)
    queue = f"{PREFIX}/cluster/queues/{{vhost}}/{{queue}}/move"
    owned, target = record(("queues",), {"queues": listing(OBJECT)}), record(("node",), {"node": TEXT})
    hosts = record(("amqp", "amqps"), {"amqp": listing(TEXT), "amqps": listing(TEXT)})
    return [
        Operation("GET", f"{PREFIX}/cluster", "node.look", part.look, "Nodes of the cluster, and their states", answer=schema),
        Operation("GET", f"{PREFIX}/cluster/addresses", "look", part.addresses, "Where clients go that lose their node", answer=hosts),
        Operation("POST", f"{node}/drain", "node.change", part.drain, "Drains a node", status=202),
        Operation("POST", f"{node}/undrain", "node.change", part.undrain, "Lets a node that was drained serve again", status=202),
        Operation("DELETE", node, "node.change", part.remove, "Forgets a node that is down"),
        Operation("GET", f"{PREFIX}/cluster/queues", "node.look", part.queues, "Shared queues, and the nodes that own them", answer=owned),
        Operation("POST", queue, "node.change", part.move, "Gives a shared queue to another node", body=target, status=202),
    ]


def _seconds(tiers: tuple[tuple[int, int], ...]) -> dict[str, Schema]:
    return {"seconds": whole(2, tiers[-1][0] * tiers[-1][1])}
