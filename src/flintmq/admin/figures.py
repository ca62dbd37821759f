"""Figures of a node for people and for Prometheus.

in: the node's parts. out: plain values; families of metrics, which admin.metrics writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from flintmq import __version__, guard, patterns
from flintmq.admin.counts import is_hidden, queue_count, scheduled_count
from flintmq.admin.node_facts import blocked_count, resident_bytes
from flintmq.admin.parts import Parts
from flintmq.broker.counters import DEATHS, REASONS
from flintmq.core.content import bytes_mapped
from flintmq.guard import guarded

_ACTORS = "Of the actor system: docs/SCHEDULER.md, Figures."


def of_queue(queue: Any, parts: Parts) -> dict[str, Any]:
    """Figures of one queue; of a stream with its groups."""
    core = queue.core
    value: dict[str, Any] = {
        "vhost": queue.vhost,
        "name": queue.name,
        "type": queue.policy.queue_type,
        "durable": queue.durable,
        "messages_ready": core.ready_count(),
        "messages_unacked": core.unacked_count(),
        "bytes_ready": core.ready_bytes(),
        "consumers": core.consumer_count(),
        "messages_enqueued": core.enqueued_total(),
        "messages_delivered": core.delivered_total(),
        "messages_on_disk_only": core.cold_count,
        "messages_unreadable": core.failed_count,
        "pull_groups": parts.pulls.groups(queue),
    }
    streams = parts.broker.streams
    stream = streams.get(queue.queue_id) if queue.policy.is_stream and streams is not None else None
    if stream is not None:
        value["stream"] = {
            "first_offset": stream.first_offset,
            "next_offset": stream.next_offset,
            "bytes": stream.bytes,
            "groups": {name.decode("utf-8", "surrogateescape"): dict(one) for name, one in stream.groups().items()},
        }
    return value


def is_healthy(parts: Parts) -> bool:
    """The broker works: not stopping, and its disk has not failed."""
    return not parts.pulls.stopping and (parts.store is None or parts.store.failure is None)


def shown_name(name: str) -> str:
    """A name that AMQP let in with bytes that are no UTF-8, as UTF-8 can have it."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def label_text(labels: Mapping[str, str]) -> str:
    """Labels as they stand behind a metric's name."""
    return "{" + ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items()) + "}" if labels else ""


# one metric: name behind the prefix, kind, help, lines behind the name
Family = tuple[str, str, str, list[str]]


def _line(value: float, labels: Mapping[str, str]) -> str:
    number = repr(float(value)) if isinstance(value, float) else str(int(value))
    return f"{label_text(labels)} {number}\n"


class Families:
    """Metrics in the order in which they are added; admin.metrics writes them."""

    def __init__(self) -> None:
        self.found: list[Family] = []

    def add(self, name: str, kind: str, text: str, values: Iterable[tuple[Mapping[str, str], float]]) -> None:
        """One metric. kind: counter or gauge; a counter's name ends in _total."""
        self.found.append((name, kind, text, [_line(value, labels) for labels, value in values]))

    def one(self, name: str, kind: str, text: str, value: float) -> None:
        self.add(name, kind, text, (({}, value),))


def own_families(parts: Parts) -> list[Family]:
    """The metrics that RabbitMQ does not have, behind `flintmq_`. O(queues); any thread."""
    broker = parts.broker
    text = Families()
    text.add("build_info", "gauge", "Version.", (({"version": __version__}, 1),))
    queues = list(broker.queues.values())
    ready = unacked = ready_bytes = consumers = enqueued = delivered = 0
    for queue in queues:
        if is_hidden(queue):
            continue
        core = queue.core
        ready += core.ready_count()
        unacked += core.unacked_count()
        ready_bytes += core.ready_bytes()
        consumers += core.consumer_count()
        enqueued += core.enqueued_total()
        delivered += core.delivered_total()
    text.one("connections", "gauge", "AMQP connections.", len(broker.connections))
    text.one("connections_opened_total", "counter", "AMQP connections opened.", broker.counters.connections_opened)
    text.one("connections_closed_total", "counter", "AMQP connections closed.", broker.counters.connections_closed)
    text.one("channels_opened_total", "counter", "AMQP channels opened.", broker.counters.channels_opened)
    text.one("queues", "gauge", "Declared queues.", queue_count(broker))
    text.one(
        "messages_scheduled",
        "gauge",
        "Messages that wait for their time (x-deliver-at, x-delay); in no queue yet.",
        scheduled_count(broker),
    )
    text.one("queues_paused", "gauge", "Queues whose deliveries rest.", len(broker.paused))
    text.one("consumers", "gauge", "Consumers of all queues, groups of pulls among them.", consumers)
    text.one("messages_ready", "gauge", "Messages that wait in declared queues.", ready)
    text.one("messages_ready_bytes", "gauge", "Bytes of bodies that wait in declared queues.", ready_bytes)
    text.one("messages_unacked", "gauge", "Messages in consumers' hands.", unacked)
    text.one("messages_enqueued", "gauge", "Messages put on the queues that are declared now.", enqueued)
    text.one("messages_delivered", "gauge", "Deliveries of the queues that are declared now.", delivered)
    letters = sorted((dict.fromkeys(DEATHS, 0) | dict(broker.counters.dead_lettered)).items())
    text.add("messages_dead_lettered_total", "counter", "Messages that became dead letters.", [({"reason": why}, n) for why, n in letters])
    text.one("process_resident_memory_bytes", "gauge", "Size of the process in memory, which no alarm looks at.", resident_bytes())
    text.one("connections_blocked", "gauge", "Publishers' connections that an alarm blocks.", blocked_count(parts))
    text.one("message_memory_bytes", "gauge", "Memory that message contents take.", bytes_mapped())
    if broker.memory is not None:
        _memory(text, parts, broker.memory.figures())
    text.one(
        *("consumer_timeouts_total", "counter", "Deliveries that went back since their consumer took too long.", broker.timeouts.ended)
    )
    text.one("publishers_waiting", "gauge", "Publishers that wait for room in a queue (x-overflow block).", len(broker.flow))
    text.one("messages_waiting_for_retry", "gauge", "Messages that wait before they are delivered again.", len(broker.retries))
    drops = sorted((dict.fromkeys(REASONS, 0) | dict(broker.counters.drops)).items())
    help_text = "Messages that left without a consumer, dead-lettered ones not among them."
    text.add("messages_dropped_total", "counter", help_text, [({"reason": why}, n) for why, n in drops])
    slow = sorted(dict(broker.counters.in_python).items())
    text.add("messages_in_python_total", "counter", "Messages that Python handled, by reason.", [({"kind": kind}, n) for kind, n in slow])
    if broker.spans is not None:
        spans = [({"outcome": "made"}, broker.spans.made), ({"outcome": "dropped"}, broker.spans.dropped)]
        text.add("spans_total", "counter", "Spans of messages for OpenTelemetry; dropped: no room, or not taken by the collector.", spans)
    caught = sorted(guard.counts().items())
    help_text = "Failures of one object that a loop over all went past, by place."
    text.add("guarded_errors_total", "counter", help_text, [({"place": place}, count) for place, count in caught])
    searches = sorted(patterns.undecided().items())
    help_text = "Searches that a user's pattern did not decide within its budget, by use: refused for permissions, no match else."
    text.add("patterns_undecided_total", "counter", help_text, [({"use": use}, count) for use, count in searches])
    guarded("metrics", "store", _store, text, parts)
    guarded("metrics", "pulls", _pulls, text, parts)
    guarded("metrics", "streams", _streams, text, parts)
    guarded("metrics", "shared queues", _shared, text, parts)
    guarded("metrics", "actors", lambda: _actors(text, parts.actors()))
    guarded("metrics", "pipeline", _pipeline, text, parts)
    guarded("metrics", "HTTP", _http, text, parts)
    return text.found


def _memory(text: Families, parts: Parts, figures: Mapping[str, Any]) -> None:
    """What the memory alarm looks at, and what was done against it (docs/SECURITY.md, Memory)."""
    held = [({"kind": kind}, size) for kind, size in figures["held"].items()]
    text.add("memory_held_bytes", "gauge", "Memory that clients make the broker hold.", held)
    text.one("memory_limit_bytes", "gauge", "Sum of held bytes above which publishers are blocked.", parts.memory_limit)
    for name, help_text in (
        ("evicted", "Bodies in consumers' hands, or that came back, that left memory: they are in the log."),
        ("evicted_bytes", "Bytes of those."),
        ("copied", "Bodies copied out of chunks that were kept for little else."),
        ("copied_bytes", "Bytes of those."),
    ):
        text.one(f"memory_{name}_total", "counter", help_text, figures[name])
    text.one(
        "memory_connections_closed_total", "counter", "Connections closed because they held most while memory was low.", figures["closed"]
    )


def _store(text: Families, parts: Parts) -> None:
    """What a start after a crash would have to read, and the checkpoints that keep it short (docs/adr/0017)."""
    if parts.store is None:
        return
    values = parts.store.checkpoints.figures
    outcomes = [({"outcome": outcome}, values[outcome]) for outcome in ("written", "given_up")]
    text.add("checkpoints_total", "counter", "Checkpoints of the message log; given up: no room, or the store stopped.", outcomes)
    text.one("checkpoint_bytes_total", "counter", "Bytes of the checkpoints that were written.", values["bytes"])
    text.one("recovery_log_bytes", "gauge", "Bytes of the message log that a start after a crash reads.", values["log_bytes"])


def _pulls(text: Families, parts: Parts) -> None:
    values = parts.pulls.figures()
    text.one("pull_groups", "gauge", "Groups of pulls.", values["groups"])
    text.one("pulls_waiting", "gauge", "Pulls asked for and not answered.", values["waiting"])
    text.one("pull_leases", "gauge", "Messages handed out by pulls and not settled.", values["leased"])
    for name, help_text in (
        ("pulls", "Pulls accepted."),
        ("delivered", "Messages handed out by pulls."),
        ("acked", "Leases acknowledged."),
        ("nacked", "Leases refused."),
        ("expired", "Leases whose time was over."),
        ("given_back", "Messages that went back because their client was gone."),
    ):
        text.one(f"{'pulls' if name == 'pulls' else f'pull_messages_{name}'}_total", "counter", help_text, values[name])
    refused = (({"reason": "busy"}, values["refused_busy"]), ({"reason": "invalid"}, values["refused_invalid"]))
    text.add("pulls_refused_total", "counter", "Pulls that were not accepted.", refused)


def _actors(text: Families, gauges: Mapping[str, Any]) -> None:
    """Every number of the actor system's gauges; nested ones with a label."""
    for name, value in gauges.items():
        if isinstance(value, bool | str) or value is None:
            continue
        kind = "counter" if name.endswith("_total") else "gauge"
        if isinstance(value, int | float):
            text.one(f"actors_{name}", kind, _ACTORS, value)
        elif isinstance(value, Mapping):
            numbers = [({"of": str(key)}, one) for key, one in value.items() if isinstance(one, int | float) and not isinstance(one, bool)]
            if numbers:
                text.add(f"actors_{name}", kind, _ACTORS, numbers)


def _streams(text: Families, parts: Parts) -> None:
    """Lag and losses of every consumer group of every stream."""
    streams = parts.broker.streams
    lag: list[tuple[Mapping[str, str], float]] = []
    lost: list[tuple[Mapping[str, str], float]] = []
    # A tenant makes groups as it likes: their lines must not be what fills the answer.
    shown: Counter[str] = Counter()
    most, left_out = parts.broker.limits.metrics_groups_max, 0
    for queue in list(parts.broker.queues.values()) if streams is not None else ():
        stream = streams.get(queue.queue_id) if queue.policy.is_stream else None
        if stream is None:
            continue
        for name, group in stream.groups().items():
            if shown[queue.vhost] >= most:
                left_out += 1
                continue
            shown[queue.vhost] += 1
            labels = {"vhost": shown_name(queue.vhost), "queue": shown_name(queue.name), "group": name.decode("utf-8", "replace")}
            lag.append((labels, group["lag"]))
            lost.append((labels, group["lost"]))
    text.add("stream_group_lag", "gauge", "Messages of a stream that a group has not been given.", lag)
    text.one("stream_groups_left_out", "gauge", "Groups without lines of their own: their virtual host has too many.", left_out)
    text.add("stream_group_lost_total", "counter", "Messages of a stream that retention took before a group had them.", lost)


def _shared(text: Families, parts: Parts) -> None:
    """The engine of shared queues, and what this node does there; nothing before the first shared queue."""
    shared, cluster = parts.broker.shared, parts.broker.cluster
    facts = None if shared is None else shared.facts()
    if facts is None or not (facts["queues"] or facts["node"]):
        return
    labels = {"engine": facts["engine"]}
    text.add("shared_engine_answers", "gauge", "1 while the engine of shared queues answers.", [(labels, facts["answers"])])
    for name, kind, help_text in (
        ("queues", "gauge", "Shared queues of this node."),
        ("waiting_bytes", "gauge", "Bytes of messages that wait for the engine."),
        ("engine_commits_total", "counter", "Commits that the engine decided."),
        ("engine_commit_seconds_total", "counter", "Seconds that those took together."),
        ("engine_conflicts_total", "counter", "Commits of which a condition did not hold: another node was faster."),
        ("engine_failures_total", "counter", "Calls that the engine did not answer."),
        ("definitions_refused", "gauge", "Definitions of other nodes that this node does not follow; its log says why."),
    ):
        text.one(f"shared_{name}", kind, help_text, facts[name.removesuffix("_total")])
    if cluster is not None:
        states = Counter(str(node["state"]) for node in cluster.members())
        rows = [({"state": state}, states[state]) for state in ("up", "draining", "drained", "down")]
        room = cluster.engine()
        text.one("shared_engine_bytes", "gauge", "Bytes that the engine's files hold.", room["bytes"] or 0)
        text.one("shared_engine_bytes_max", "gauge", "Quota of the engine in bytes; 0: it names none.", room["bytes_max"] or 0)
        text.one("shared_engine_low", "gauge", "1 while publishes are refused, as the engine has too little room.", room["full"])
        text.add("cluster_nodes", "gauge", "Nodes of the cluster by state, as this node sees them.", rows)
        text.one("cluster_unreadable", "gauge", "Rows of nodes that this node can't read.", cluster.refused)


def _pipeline(text: Families, parts: Parts) -> None:
    """Readers and writers of the data plane: what `flintmq pipeline status` shows."""
    if parts.pipeline is None:
        return
    values = parts.pipeline()
    subscriptions = [({"vhost": shown_name(one["vhost"]), "subscription": shown_name(one["name"])}, one) for one in values["subscriptions"]]
    text.one("pipeline_subscriptions", "gauge", "Subscriptions of Spark queries.", len(subscriptions))
    for key, name, factor, help_text in (
        ("committed", "committed_batches", 1, "Batches that a subscription has committed."),
        ("behind", "messages_behind", 1, "Messages ready in a subscription's queues."),
        ("prepared", "prepared_messages", 1, "Messages of the batch that is prepared and not committed."),
        ("prepared_age_ms", "prepared_age_seconds", 0.001, "Seconds since that batch was prepared; 0: there is none."),
        ("active", "reader_active", 1, "1 while the reader of a subscription works."),
    ):
        text.add(f"pipeline_{name}", "gauge", help_text, [(labels, one[key] * factor) for labels, one in subscriptions])
    scopes = [({"kind": kind}, count) for kind, count in values["scopes"].items()]
    text.add("pipeline_scopes", "gauge", "What sinks committed by: queries, named writes, writes once.", scopes)
    text.one("pipeline_scopes_forgotten_total", "counter", "Scopes that made room for others.", values["forgotten"])
    stages = [
        ({"vhost": shown_name(vhost), "user": shown_name(user), "state": state}, n)
        for (vhost, user, state), n in sorted(values["stages"].items())
    ]
    text.add("pipeline_stages", "gauge", "Stages of sinks that are not committed, open or prepared.", stages)
    oldest = values["oldest_prepared_ms"] / 1000
    text.one(
        "pipeline_stage_prepared_age_seconds", "gauge", "Seconds since the oldest prepared stage was prepared; 0: there is none.", oldest
    )
    if service := values["flight"]:
        text.one("pipeline_service_up", "gauge", "1 while the process that serves Arrow Flight runs.", int(service["state"] == "up"))
        text.one("pipeline_service_failed_starts", "gauge", "Starts of it that failed since it ran last.", service["failed_starts"])
    text.one("pipeline_calls_total", "counter", "Calls of the data plane.", values["calls"])
    text.one("pipeline_calls_refused_total", "counter", "Calls of the data plane that were refused.", values["refused"])


def _http(text: Families, parts: Parts) -> None:
    statuses = [({"status": str(status)}, n) for status, n in sorted(dict(parts.requests).items())]
    text.add("http_requests_total", "counter", "HTTP requests answered.", statuses)
    text.one("http_polls_held", "gauge", "Pulls over HTTP that wait.", parts.held)
    text.one("http_connections", "gauge", "HTTP connections.", parts.connections())
    links = parts.links_of_http
    text.one("http_connections_refused_total", "counter", "HTTP connections closed at once.", links.refused if links else 0)
    text.one("http_connections_evicted_total", "counter", "HTTP connections that made room for others.", links.evicted if links else 0)
    text.one("http_logins_refused_total", "counter", "Requests with wrong credentials.", parts.logins_refused)
    checks = parts.broker.users.checks
    text.one("password_checks_waiting", "gauge", "Logins over AMQP, HTTP and Flight that stand in line for their check.", checks.waiting)
    text.one("password_checks_refused_total", "counter", "Logins that were not checked because too many waited.", checks.refused)
