"""RabbitMQ's API: the node as a whole: overview, nodes, health, names, and what other brokers have and this one says plainly.

in: calls. out: totals that are summed up in pieces and kept for a second, facts of the process.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Callable, Iterable
from typing import Any

from starlette.responses import Response

from flintmq import __version__
from flintmq.access.mechanisms import EXTERNAL
from flintmq.access.tags import sees_everything
from flintmq.admin import figures
from flintmq.admin.answers import answer
from flintmq.admin.api_access import plain_list
from flintmq.admin.api_call import Call, fixed, nothing
from flintmq.admin.api_definitions import COMPATIBLE
from flintmq.admin.api_lists import one
from flintmq.admin.api_schemas import BODY_NAME, BODY_PASSWORD
from flintmq.admin.counts import CHURN, LOOP_STATS, MESSAGES, STATS, add_samples, counted, is_hidden, sums_of
from flintmq.admin.http_refusals import HttpError, bad, missing
from flintmq.admin.metrics import counters
from flintmq.admin.node_facts import alarms_of, descriptors, disk_free, resident_bytes
from flintmq.admin.operations import Access, Operation, rabbit
from flintmq.admin.v1_cluster import cluster_of
from flintmq.broker.counters import totals_of
from flintmq.core.content import bytes_mapped
from flintmq.core.memory_account import bytes_held

# queues that are summed up in one piece, and seconds that a sum is kept
_PIECE = 1_000
_KEEP_S = 1.0
# scopes whose counts are kept for rates: some 700 bytes each, so 17 MB at most. A queue has two; those that find no room have no rates
RATES_MAX = 25_000
# seconds without a look after which counts make room for others
_FORGOTTEN_S = 60.0
# counts of virtual hosts that are gone
GONE = ""
_SUMS = ("ready", "unacked", "enqueued", "delivered", "consumers", "queues", "exchanges")
_EXCHANGE_TYPES = ("direct", "fanout", "headers", "topic")
_SINGLE = {"status": "ok", "reason": "single node cluster"}
_UNITS = {"days": 86_400, "weeks": 604_800, "months": 2_592_000, "years": 31_536_000}


class Totals:
    """Sums over the queues of each virtual host, kept for a second."""

    def __init__(self) -> None:
        self._at_s = float("-inf")
        self._kept: dict[str, dict[str, int]] = {}

    async def by_vhost(self, broker: Any) -> dict[str, dict[str, int]]:
        """Messages, counters and objects of each virtual host. In pieces."""
        if time.monotonic() - self._at_s < _KEEP_S:
            return self._kept
        queues, gone = broker.counters.with_gone(broker.queues)
        counts = {
            vhost.name: dict.fromkeys(_SUMS, 0) | {"exchanges": len(vhost.exchanges)} | gone.get(vhost.name, {})
            for vhost in list(broker.vhosts.values())
        }
        counts[GONE] = dict.fromkeys(_SUMS, 0)
        for vhost_name in gone.keys() - (counts.keys() - {GONE}):
            for name, count in gone[vhost_name].items():
                counts[GONE][name] += count
        for start in range(0, len(queues), _PIECE):
            for queue in queues[start : start + _PIECE]:
                if is_hidden(queue):
                    continue
                core, sums = queue.core, counts.get(queue.vhost)
                if sums is None:  # its virtual host is being deleted
                    for name, count in totals_of(core).items():
                        counts[GONE][name] += count
                    continue
                sums["queues"] += 1
                sums["ready"] += core.ready_count()
                sums["unacked"] += core.unacked_count()
                sums["enqueued"] += core.enqueued_total()
                sums["delivered"] += core.delivered_total()
                sums["consumers"] += core.consumer_count()
            await asyncio.sleep(0)
        self._at_s, self._kept = time.monotonic(), counts
        return counts

    async def of(self, broker: Any, vhosts: Iterable[Any], every: bool = False) -> dict[str, int]:
        """Of these virtual hosts together. Args: every: and of those that are gone."""
        known = await self.by_vhost(broker)
        some = [known[vhost.name] for vhost in vhosts if vhost.name in known] + ([known[GONE]] if every else [])
        return {name: sum(one[name] for one in some) for name in _SUMS}


class Rates:
    """How fast counters grow, from the looks that clients take: between the last two that are a second apart at least.

    Args: most: scopes whose counts are kept; clock: seconds.
    """

    def __init__(self, most: int = RATES_MAX, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        # scope -> time, counts, rates; the one whose counts were kept longest ago first
        self._looks: dict[Any, tuple[float, tuple[int, ...], tuple[float, ...] | None]] = {}

    def of(self, scope: Any, counts: tuple[int, ...]) -> tuple[float, ...] | None:
        """The rates of counters that are looked at together, a second; None until a second look, a second later at least, is known, and
        while others fill the room. Args: scope: whose counters they are, always as many. O(counters)."""
        now = self._clock()
        known = self._looks.get(scope)
        if known is None:
            if len(self._looks) < self._most or self._make_room(now):
                self._looks[scope] = now, counts, None
            return None
        at_s, before, rates = known
        seconds = now - at_s
        if seconds >= 1.0:
            rates = tuple([round((count - old) / seconds, 2) for count, old in zip(counts, before, strict=True)])
            del self._looks[scope]
            self._looks[scope] = now, counts, rates
        return rates

    def _make_room(self, now: float) -> bool:
        """In place of counts that nobody looks at any more. Those of one round through more objects than there is room for stay: would each
        put out another, none had a rate."""
        oldest = next(iter(self._looks))
        if now - self._looks[oldest][0] < _FORGOTTEN_S:
            return False
        del self._looks[oldest]
        return True

    def rate(self, scope: Any, count: int) -> float | None:
        """As `of`, for one counter."""
        rates = self.of(scope, (count,))
        return None if rates is None else rates[0]


async def overview(call: Call) -> Response:
    parts, broker, rates = call.app.parts, call.broker, call.app.rates
    vhosts = call.vhosts()
    every = sees_everything(call.tags)
    sums = await call.app.totals.of(broker, vhosts, every)
    handlers = [one for one in list(broker.connections.values()) if every or one.user == call.caller.user]
    scope = ("node",) if every else ("user", call.caller.user)
    totals, stats = counted(rates, ("lengths", scope), sums_of(MESSAGES, sums)), counted(rates, ("stats", scope), sums_of(STATS, sums))
    if every:
        loops = counters(parts)
        stats |= counted(rates, ("loops",), {name: loops[of] for name, of in LOOP_STATS.items()})
    add_samples(call.query, call.app.sampler.node if every else None, totals, stats)
    churn = counted(rates, ("churn",), {name: getattr(broker.counters, of) for name, of in CHURN.items()})
    value = {
        "management_version": COMPATIBLE,
        "rates_mode": "basic",
        "sample_retention_policies": {"global": [], "basic": [], "detailed": []},
        "exchange_types": [{"name": name, "description": f"AMQP {name} exchange", "enabled": True} for name in _EXCHANGE_TYPES],
        "product_name": "FlintMQ",
        "product_version": __version__,
        "rabbitmq_version": COMPATIBLE,
        "cluster_name": broker.cluster_name,
        "erlang_version": "",
        "erlang_full_version": f"Python {platform.python_version()}",
        "disable_stats": False,
        "enable_queue_totals": False,
        "message_stats": stats,
        "churn_rates": churn,
        "queue_totals": totals,
        "object_totals": {
            "channels": sum(len(one.channels) for one in handlers),
            "connections": len(handlers),
            "consumers": sums["consumers"],
            "exchanges": sums["exchanges"],
            "queues": sums["queues"],
        },
        "statistics_db_event_queue": 0,
        "node": call.app.node_name,
        "listeners": _listeners(call),
        "contexts": [{"node": call.app.node_name, "description": "FlintMQ HTTP", "path": "/api", "port": str(parts.http_port())}],
    }
    return one(value, call.query)


def _listeners(call: Call) -> list[dict[str, Any]]:
    return [
        {"node": call.app.node_name, "protocol": protocol, "ip_address": host, "port": port}
        for protocol, host, port in call.app.parts.listeners()
    ]


def _node(call: Call) -> dict[str, Any]:
    """Facts of the process. Asks the operating system: in a thread."""
    parts = call.app.parts
    opened, most = descriptors()
    directory = "" if parts.store is None or parts.directory is None else str(parts.directory)
    memory, disk = alarms_of(parts)
    return {
        "name": call.app.node_name,
        "type": "disc",
        "running": True,
        "uptime": int((time.monotonic() - parts.started_s) * 1000),
        "os_pid": str(os.getpid()),
        "processors": os.cpu_count() or 1,
        "run_queue": 0,
        "fd_used": opened,
        "fd_total": most,
        "sockets_used": len(call.broker.connections),
        "sockets_total": call.broker.limits.connections_max,
        "proc_used": 0,
        "proc_total": 0,
        "mem_used": bytes_held(),
        "resident_memory": resident_bytes(),
        "mem_limit": parts.memory_limit,
        "mem_alarm": memory,
        "message_memory": bytes_mapped(),
        "disk_free": disk_free(parts) or 0,
        "disk_free_limit": parts.disk_reserve,
        "disk_free_alarm": disk,
        "rates_mode": "basic",
        "being_drained": call.broker.draining,
        "enabled_plugins": [],
        "partitions": [],
        "log_files": ["<stderr>"],
        "db_dir": directory,
        "config_files": [],
        "exchange_types": [{"name": name, "description": "", "enabled": True} for name in _EXCHANGE_TYPES],
        "auth_mechanisms": [{"name": name, "description": "", "enabled": True} for name in _mechanisms(call)],
        "contexts": [],
    }


def _mechanisms(call: Call) -> list[str]:
    """What clients may log in with, of those that have a certificate, too."""
    return [*call.broker.config.auth_mechanisms, *([EXTERNAL] if call.broker.config.tls_ca else [])]


def _other_nodes(call: Call) -> list[dict[str, Any]]:
    """The other nodes of the cluster, with what this one knows of them."""
    cluster = cluster_of(call)
    return [
        {
            "name": other["name"],
            "type": "disc",
            "running": other["state"] != "down",
            "being_drained": other["state"] in ("draining", "drained"),
            "applications": [{"name": "flintmq", "description": "FlintMQ", "version": other["version"]}],
            "addresses": other["addresses"],
        }
        for other in (() if cluster is None else cluster.members())
        if cluster is not None and other["name"] != cluster.name
    ]


async def nodes(call: Call) -> Response:
    return await plain_list(call, [await asyncio.to_thread(_node, call), *_other_nodes(call)])


async def node(call: Call) -> Response:
    other = next((other_node for other_node in _other_nodes(call) if other_node["name"] == call.name("node")), None)
    if other is not None:
        return one(other, call.query)
    _own_node(call)
    return one(await asyncio.to_thread(_node, call), call.query)


def _own_node(call: Call) -> None:
    if call.name("node") != call.app.node_name:
        raise missing("node", call.name("node"))


async def node_memory(call: Call) -> Response:
    _own_node(call)
    value = await asyncio.to_thread(_node, call)
    held = {} if call.broker.memory is None else dict(call.broker.memory.figures()["held"])
    return answer({"memory": {**held, "total": {"rss": value["resident_memory"], "allocated": value["mem_used"]}, "strategy": "rss"}})


async def whoami(call: Call) -> Response:
    return answer({"name": call.caller.user, "tags": list(call.tags)})


async def cluster_name(call: Call) -> Response:
    return answer({"name": call.broker.cluster_name})


async def put_cluster_name(call: Call) -> Response:
    name = (await call.json()).get("name")
    if name is None:
        raise bad("'name' is missing")
    await call.change("put_global", "cluster_name", name)
    return nothing()


async def hash_password(call: Call) -> Response:
    """What `rabbitmqctl hash_password` prints; the password is in the body, not in the path, which logs keep."""
    from flintmq.access.hashes import rabbitmq_hash

    password = (await call.json()).get("password")
    if not password:
        raise bad("'password' is missing")
    return answer({"ok": rabbitmq_hash(password, os.urandom(4))})


# --- health -----------------------------------------------------------------------------------------------------------------


def _failed(reason: str, **facts: Any) -> HttpError:
    return HttpError(503, "", reason, value={"status": "failed", "reason": reason, **facts})


async def alarms(call: Call) -> Response:
    memory, disk = alarms_of(call.app.parts)
    if memory or disk:
        raise _failed("Alarms are in effect in the cluster", alarms=[name for name, on in (("memory", memory), ("disk", disk)) if on])
    return answer({"status": "ok"})


async def healthy(call: Call) -> Response:
    if not figures.is_healthy(call.app.parts):
        raise _failed("the broker stops, or its disk failed")
    return answer({"status": "ok"})


async def in_service(call: Call) -> Response:
    """Whether load balancers are to send clients here."""
    if call.broker.draining:
        raise _failed("the node is drained", being_drained=True)
    return await healthy(call)


async def below_limit(call: Call) -> Response:
    current, limit = len(call.broker.connections), call.broker.limits.connections_max
    if current >= limit:
        raise _failed("node has reached its connection limit", current=current, limit=limit)
    return answer({"status": "ok", "current": current, "limit": limit})


async def port_listener(call: Call) -> Response:
    text = call.name("port")
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise bad("Invalid port")
    ports = [port for _, _, port in call.app.parts.listeners()]
    if int(text) not in ports:
        raise _failed("No active listener", missing=int(text), ports=ports)
    return answer({"status": "ok", "port": int(text)})


async def protocol_listener(call: Call) -> Response:
    wanted = call.name("protocol")
    names = {"amqp091": "amqp", "amqp0.9.1": "amqp", "amqp0-9-1": "amqp", "amqps": "amqp/ssl"}
    protocols = [protocol for protocol, _, _ in call.app.parts.listeners()]
    if names.get(wanted, wanted) not in protocols:
        raise _failed("No active listener", missing=wanted, protocols=protocols)
    return answer({"status": "ok", "protocol": wanted})


async def certificates(call: Call) -> Response:
    """The end of the listener's certificate is read from its file."""
    within, unit = call.name("within"), call.name("unit")
    if unit.rstrip("s") + "s" not in _UNITS:
        raise bad("Time unit not recognised. Supported units: days, weeks, months, years.")
    if not (within.isascii() and within.isdigit() and len(within) <= 6):
        raise bad("Invalid expiration period")
    path = call.broker.config.tls_cert
    if path is not None:
        import ssl

        decode: Any = getattr(ssl._ssl, "_test_decode_cert")  # type: ignore[attr-defined]  # noqa: B009
        end = ssl.cert_time_to_seconds((await asyncio.to_thread(decode, str(path)))["notAfter"])
        if end < time.time() + int(within) * _UNITS[unit.rstrip("s") + "s"]:
            raise _failed("Certificates expiring", expired=[{"cert_expires_on": int(end)}])
    return answer({"status": "ok"})


def operations() -> list[Operation]:
    """The rows of this module."""
    checks: list[Operation] = [
        rabbit("GET", "health/checks/alarms", "look", alarms),
        rabbit("GET", "health/checks/local-alarms", "look", alarms),
        rabbit("GET", "health/checks/port-listener/{port}", "look", port_listener),
        rabbit("GET", "health/checks/protocol-listener/{protocol}", "look", protocol_listener),
        rabbit("GET", "health/checks/virtual-hosts", "look", healthy),
        rabbit("GET", "health/checks/certificate-expiration/{within}/{unit}", "look", certificates),
        rabbit("GET", "health/checks/node-is-quorum-critical", "look", fixed(_SINGLE)),
        rabbit("GET", "health/checks/node-is-mirror-sync-critical", "look", fixed(_SINGLE)),
        rabbit("GET", "health/checks/is-in-service", "look", in_service),
        rabbit("GET", "health/checks/below-node-connection-limit", "look", below_limit),
        rabbit("GET", "health/checks/metadata-store/initialized", "look", healthy),
        rabbit("GET", "health/checks/metadata-store/initialized/with-data", "look", healthy),
        rabbit("GET", "health/checks/ready-to-serve-clients", "look", in_service),
        rabbit("GET", "healthchecks/node", "look", healthy),
        rabbit("GET", "healthchecks/node/{node}", "look", healthy),
    ]
    return [
        rabbit("GET", "overview", "look", overview),
        rabbit("GET", "nodes", "node.look", nodes),
        rabbit("GET", "nodes/{node}", "node.look", node),
        rabbit("GET", "nodes/{node}/memory", "node.look", node_memory),
        rabbit("GET", "whoami", "look", whoami),
        rabbit("GET", "cluster-name", "look", cluster_name),
        rabbit("PUT", "cluster-name", Access.SERVICE, put_cluster_name, BODY_NAME),
        rabbit("GET", "extensions", "look", fixed([])),
        rabbit("GET", "auth", "look", fixed({"enable_uaa": False, "oauth_enabled": False, "uaa_client_id": "", "uaa_location": ""})),
        rabbit("POST", "auth/hash_password", "look", hash_password, BODY_PASSWORD),
        rabbit("PUT", "auth/hash_password", "look", hash_password, BODY_PASSWORD),
        rabbit("GET", "feature-flags", "user.look", fixed([])),
        rabbit("GET", "deprecated-features", "user.look", fixed([])),
        rabbit("GET", "deprecated-features/used", "user.look", fixed([])),
        rabbit("POST", "rebalance/queues", "node.change", rebalance),
        *checks,
    ]


async def rebalance(call: Call) -> Response:
    """One node: nothing moves."""
    return nothing()
