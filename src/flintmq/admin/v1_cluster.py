"""/api/v1, the nodes of the cluster: which there are, where clients go that lose theirs, drain one, forget one.

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
    """broker.cluster.Cluster; None: this node is in none."""
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
        "engine": {"kind": facts["engine"], "answers": facts["answers"]},
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


async def _asked(begin: Any) -> None:
    try:
        await waited(begin)
    except PeerError as error:
        status, word = _STATUS.get(error.code, (503, "unavailable"))
        fix = "GET /api/v1/cluster shows the nodes" if status != 503 else "try again when the engine answers"
        raise HttpError(status, word, error.text, fix) from None
