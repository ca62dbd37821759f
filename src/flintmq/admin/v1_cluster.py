"""/api/v1, the nodes of the cluster: which there are, where clients go that lose theirs, drain one, let it serve again, forget one; the
owners of queues, and another owner for one.

in: calls that were authorized: monitoring users see nodes, administrators drain and remove them, every user of management sees addresses.
out: JSON.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from flintmq.admin.answers import answer
from flintmq.admin.api_call import Call, waited
from flintmq.admin.http_refusals import HttpError
from flintmq.errors import PeerError, ReplyCode

_STATUS = {ReplyCode.NOT_FOUND: (404, "not_found"), ReplyCode.PRECONDITION_FAILED: (409, "conflict")}


def cluster_of(call: Call) -> Any:
    """cluster.view.ClusterView; None: this node is in none."""
    return call.broker.cluster


def _some_cluster(call: Call) -> Any:
    cluster = cluster_of(call)
    if cluster is None:
        raise HttpError(409, "no_cluster", "this node is in no cluster", "start it with --cluster etcd://HOST:PORT,...")
    return cluster


async def look(call: Call) -> Response:
    """GET cluster"""
    cluster = cluster_of(call)
    if cluster is None:
        return answer({"cluster": False, "node": call.app.node_name, "nodes": []})
    facts = call.broker.shared.facts()
    value = {
        "cluster": True,
        "node": cluster.name,
        "engine": {"kind": facts["engine"], "answers": facts["answers"], **cluster.engine()},
        "age_s": None if cluster.age_s is None else round(cluster.age_s, 3),
        "member": not cluster.why_not,
        "reason": cluster.why_not,
        "unreadable": cluster.refused,
        "nodes": cluster.members(),
    }
    return answer(value)


async def addresses(call: Call) -> Response:
    """GET cluster/addresses"""
    cluster = cluster_of(call)
    return answer({service: [] if cluster is None else cluster.addresses(service) for service in ("amqp", "amqps")})


async def drain(call: Call) -> Response:
    """POST cluster/nodes/{node}/drain"""
    cluster = _some_cluster(call)
    name = call.name("node")
    await _asked(lambda done: cluster.order(name, done))
    call.broker.audit.changed(call.caller.user, f"drain of node {name}")
    return answer({"node": name, "state": "draining"}, 202)


async def remove(call: Call) -> Response:
    """DELETE cluster/nodes/{node}"""
    cluster = _some_cluster(call)
    name = call.name("node")
    await _asked(lambda done: cluster.remove(name, done))
    call.broker.audit.changed(call.caller.user, f"node {name} is forgotten")
    return answer({"node": name, "removed": True})


async def undrain(call: Call) -> Response:
    """POST cluster/nodes/{node}/undrain"""
    cluster = _some_cluster(call)
    name = call.name("node")
    await _asked(lambda done: cluster.call_off(name, done))
    call.broker.audit.changed(call.caller.user, f"node {name} serves again")
    return answer({"node": name, "state": "up"}, 202)


async def queues(call: Call) -> Response:
    """GET cluster/queues"""
    cluster = _some_cluster(call)
    return answer({"queues": await _asked(cluster.queues)})


async def move(call: Call) -> Response:
    """POST cluster/queues/{vhost}/{queue}/move"""
    cluster = _some_cluster(call)
    vhost, name, to = call.name("vhost"), call.name("queue"), (await call.json())["node"]
    await _asked(lambda done: cluster.move(vhost, name, to, done))
    call.broker.audit.changed(call.caller.user, f"shared queue {name} of vhost {vhost} moves to node {to}")
    return answer({"vhost": vhost, "queue": name, "node": to}, 202)


async def _asked(begin: Any) -> Any:
    try:
        return await waited(begin)
    except PeerError as error:
        status, word = _STATUS.get(error.code, (503, "unavailable"))
        fix = "GET /api/v1/cluster shows the nodes" if status != 503 else "try again when the engine answers"
        raise HttpError(status, word, error.text, fix) from None
