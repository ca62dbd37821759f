"""Metrics as RabbitMQ's tools want them: names, labels, endpoints, families; the queries of Grafana's board 10991."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from starlette.requests import Request

from flintmq.admin import figures
from flintmq.admin import metrics as endpoints
from flintmq.admin.api_call import Call
from flintmq.admin.app import Application
from flintmq.admin.http_refusals import HttpError
from flintmq.admin.metrics import Metrics
from flintmq.admin.pools import WHO
from flintmq.admin.samples import Sampler
from flintmq.core.shares import Pool, Who
from flintmq.testing.broker import Broker
from tests.admin.api import Api
from tests.admin.board_10991 import BOARD
from tests.admin.conftest import Client, basic
from tests.admin.promql import Query, Samples, parse, scraped
from tests.support.broker import wait_until

TARGET = {"instance": "a:15672", "job": "flintmq", "namespace": "ns"}


def scrape(client: Client, path: str = "/metrics") -> Samples:
    answer = client.get(path)
    assert answer.status == 200, answer
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return parse(answer.raw.decode())


def value(samples: Samples, name: str, **labels: str) -> float:
    found = [number for each, number in samples[name].items() if frozenset(labels.items()) <= each]
    assert len(found) == 1, (name, labels, samples.get(name))
    return found[0]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    directory: Path = tmp_path_factory.mktemp("metrics")
    with Broker(limits={"housekeeping_ms": 20}, http_port=0, data_dir=str(directory)) as broker:
        yield Client(broker)


def connect(client: Client, vhost: str = "/") -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", client.node.amqp_port, vhost))


def traffic(client: Client) -> list[pika.BlockingConnection]:
    """A bit of everything; what goes on when this returns has a connection of its own."""
    short, held = connect(client), connect(client)
    channel: Any = short.channel()
    channel.queue_declare("m", durable=True)
    channel.queue_declare("m", durable=True)
    channel.confirm_delivery()
    for _ in range(5):
        channel.basic_publish("", "m", b"x" * 50)
    channel.basic_publish("", "m", b"x" * 500)
    channel.basic_publish("", "nowhere", b"dropped")
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "nowhere", b"returned", mandatory=True)
    assert channel.basic_get("m", auto_ack=True)[0] is not None
    channel.basic_nack(channel.basic_get("m")[0].delivery_tag, requeue=True)
    method = channel.basic_get("m")[0]
    assert method.redelivered
    channel.basic_ack(method.delivery_tag)
    channel.queue_declare("empty", exclusive=True)
    assert channel.basic_get("empty")[0] is None
    manual: Any = held.channel()
    manual.basic_qos(prefetch_count=1)
    manual.basic_consume("m", lambda *_: None)
    core = client.node.broker.vhosts["/"].queues["m"].core
    wait_until(lambda: core.unacked_count() == 1, what="one message is with the first consumer")
    other: Any = short.channel()
    left = ["1", "2", "3"]
    other.basic_consume("m", lambda *_: left.pop(), auto_ack=True, consumer_tag="auto")
    while left:
        short.process_data_events(0.1)
    short.close()
    return [held]


def test_board_10991_is_full(client: Client) -> None:
    """Each query has an answer, with the numbers of what clients did in between."""
    before = scraped(scrape(client), TARGET)
    open_ones = traffic(client)
    wait_until(lambda: client.node.broker.counters.connections_closed > 0 and len(client.node.broker.vhosts["/"].queues) == 1)
    after = scraped(scrape(client), TARGET)
    found: dict[str, float] = {}
    cluster = client.node.broker.cluster_name
    for panel, query in BOARD.items():
        text = query.replace("$rabbitmq_cluster", cluster).replace("$namespace", "ns")
        vector = Query(text, before, after, 1.0).value()
        assert len(vector) == 1, (panel, vector)
        ((labels, found[panel]),) = vector.items()
        if "by(rabbitmq_node)" in query:
            assert dict(labels) == {"rabbitmq_node": client.node.http._parts.node_name}, panel
    assert found["Messages published / s"] == found["Incoming messages / s"] == 8
    assert found["Messages routed to queues / s"] == 6
    assert found["Messages confirmed to publishers / s"] == 8
    assert found["Messages unconfirmed to publishers / s"] == 0
    assert found["Unroutable messages dropped / s"] == found["Unroutable messages returned / s"] == 1
    assert found["Polling operations with auto ack / s"] == found["Polling operations that yield no result / s"] == 1
    assert found["Polling operations with manual ack / s"] == 2
    assert found["Messages acknowledged / s"] == 1
    assert found["Messages redelivered / s"] == 1
    assert found["Messages delivered with manual ack / s"] == 1
    assert found["Messages delivered auto ack / s"] == 3
    assert found["Messages delivered / s"] == 4
    assert (found["Ready messages"], found["Unacknowledged messages"], found["Total queues"]) == (0, 1, 1)
    assert (found["Queues declared / s"], found["Queues created / s"], found["Queues deleted / s"]) == (3, 2, 1)
    assert (found["Connections"], found["Channels"], found["Consumers"], found["Publishers"]) == (1, 1, 1, 0)
    assert (found["Connections opened / s"], found["Connections closed / s"]) == (2, 1)
    assert (found["Channels opened / s"], found["Channels closed / s"]) == (3, 2)
    assert found["Message Size Distribution: 0-100B"] == 7 / 8
    assert found["Message Size Distribution: 100B-1KB"] == 1 / 8
    assert found["Avg Size"] == (5 * 50 + 500 + 7 + 8) / 8
    assert found["Disk space available before publishers blocked"] > 0
    for one in open_ones:
        one.close()


def test_transactions_are_counted_when_they_are_committed(client: Client) -> None:
    connection = connect(client)
    channel: Any = connection.channel()
    channel.queue_declare("tx", durable=True)
    before = scrape(client)
    channel.tx_select()
    for key in ("tx", "tx", "nowhere"):
        channel.basic_publish("", key, b"x", pika.BasicProperties(delivery_mode=2))
    channel.tx_commit()
    after = scrape(client)
    assert [
        value(after, f"rabbitmq_global_messages_{name}_total") - value(before, f"rabbitmq_global_messages_{name}_total")
        for name in ("received", "routed", "unroutable_dropped", "received_confirm")
    ] == [3, 2, 1, 0]
    assert value(after, "rabbitmq_global_publishers") == value(before, "rabbitmq_global_publishers") + 1
    connection.close()
    wait_until(lambda: value(scrape(client), "rabbitmq_global_publishers") == value(before, "rabbitmq_global_publishers"))


def test_per_object(client: Client) -> None:
    connection = connect(client)
    channel: Any = connection.channel()
    name = 'odd "name"\\ \u00e9'
    channel.queue_declare(name)
    channel.basic_publish("", name, b"abc")
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume(name, lambda *_: None)
    assert value(scrape(client, "/metrics/per-object"), "rabbitmq_identity_info", rabbitmq_endpoint="per-object") == 1
    wait_until(lambda: client.node.broker.vhosts["/"].queues[name].core.unacked_count() == 1)
    samples = scrape(client, "/metrics/per-object")
    labels = {"vhost": "/", "queue": 'odd \\"name\\"\\\\ \u00e9'}
    assert value(samples, "rabbitmq_queue_messages_unacked", **labels) == value(samples, "rabbitmq_queue_consumers", **labels) == 1
    assert value(samples, "rabbitmq_queue_messages_published_total", **labels) == 1
    ((connection_name, channels),) = samples["rabbitmq_connection_channels"].items()
    assert channels == 1
    on = {"channel": f"{dict(connection_name)['connection']} (1)"}
    assert value(samples, "rabbitmq_channel_messages_unacked", **on) == value(samples, "rabbitmq_channel_consumers", **on) == 1
    assert value(samples, "rabbitmq_consumer_prefetch", **on) == 7
    connection.close()


def test_detailed_has_the_families_and_virtual_hosts_of_the_query(client: Client) -> None:
    api = Api(client)
    api.put("vhosts/other")
    api.put("permissions/other/guest", {"configure": ".*", "write": ".*", "read": ".*"}, 204)
    for vhost in ("%2F", "other"):
        api.put(f"queues/{vhost}/d", {"durable": False})
    assert set(scrape(client, "/metrics/detailed")) == {"rabbitmq_identity_info", "rabbitmq_build_info"}
    coarse = scrape(client, "/metrics/detailed?family=queue_coarse_metrics&vhost=other")
    assert {name for name in coarse if "_detailed_" in name} == {
        "rabbitmq_detailed_queue_messages",
        "rabbitmq_detailed_queue_messages_ready",
        "rabbitmq_detailed_queue_messages_unacked",
    }
    assert list(coarse["rabbitmq_detailed_queue_messages"]) == [frozenset({("vhost", "other"), ("queue", "d")})]
    both = scrape(client, "/metrics/detailed?family=queue_consumer_count&family=queue_metrics&family=vhost_status&vhost=other&vhost=/")
    assert len([1 for one in both["rabbitmq_detailed_queue_consumers"] if ("queue", "d") in one]) == 2
    assert len(both["rabbitmq_cluster_vhost_status"]) == 2
    exchanges = scrape(client, "/metrics/detailed?family=exchange_names&family=exchange_bindings&vhost=other")
    assert value(exchanges, "rabbitmq_cluster_exchange_name", vhost="other", exchange="amq.topic", type="topic") == 1
    assert value(exchanges, "rabbitmq_cluster_exchange_bindings", vhost="other", exchange="amq.topic", type="topic") == 0
    assert scrape(client, "/metrics/detailed?family=ra_metrics").keys() == {"rabbitmq_identity_info", "rabbitmq_build_info"}
    refused = client.get("/metrics/detailed?family=queue_coarse")
    assert refused.status == 400 and "queue_coarse_metrics" in refused.json["fix"]


@pytest.mark.parametrize("path", ["/metrics", "/metrics/per-object", "/metrics/detailed?family=queue_coarse_metrics"])
def test_who_may_not_see_everything_gets_no_metrics(client: Client, path: str) -> None:
    Api(client).ask("PUT", "users/tenant", {"password": "tenant", "tags": "management"})
    assert client.get(path, Api(client, "tenant").headers).status == 403


def test_dead_letters_are_counted_by_reason(client: Client) -> None:
    connection = connect(client)
    channel: Any = connection.channel()
    channel.queue_declare("letters", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "none"})
    channel.queue_declare("plain")
    before = scrape(client)
    for queue in ("letters", "plain"):
        channel.basic_publish("", queue, b"x")
        channel.basic_reject(channel.basic_get(queue)[0].delivery_tag, requeue=False)
    channel.queue_declare("letters", passive=True)  # what came before is done
    name = "rabbitmq_global_messages_dead_lettered_rejected_total"

    def grown(strategy: str) -> float:
        return value(scrape(client), name, dead_letter_strategy=strategy) - value(before, name, dead_letter_strategy=strategy)

    wait_until(lambda: (grown("at_most_once"), grown("disabled")) == (1, 1))
    connection.close()


def test_ten_thousand_queues(start: Callable[..., Client]) -> None:
    """Each has its lines. The time is printed, not asserted: it is the machine's."""
    client = start()
    for index in range(10_000):
        client.queue(f"q{index}")
    begun = time.perf_counter()
    answer = client.get("/metrics/per-object")
    print(f"{time.perf_counter() - begun:.3f} s, {len(answer.raw)} bytes")
    samples = parse(answer.raw.decode())
    assert len(samples["rabbitmq_queue_messages_ready"]) == 10_000


@pytest.mark.parametrize("path", ["/health", "/healthz", "/readyz"])
def test_health_needs_no_login_and_no_name(client: Client, path: str) -> None:
    answer = client.request("GET", path, None, {"Host": "rebound.example"})
    assert (answer.status, answer.json) == (200, {"status": "ok"})


def test_health_checks_of_rabbitmq(client: Client) -> None:
    api = Api(client)
    port = client.node.amqp_port
    for check in (
        "alarms",
        "local-alarms",
        f"port-listener/{port}",
        "protocol-listener/amqp091",
        "virtual-hosts",
        "certificate-expiration/1/months",
        "node-is-quorum-critical",
        "node-is-mirror-sync-critical",
        "is-in-service",
        "ready-to-serve-clients",
        "below-node-connection-limit",
        "metadata-store/initialized",
    ):
        assert api.get(f"health/checks/{check}")["status"] == "ok", check
    missing = api.get("health/checks/port-listener/1", 503)
    assert (missing["status"], missing["missing"]) == ("failed", 1)


def test_who_does_not_read_its_answer_holds_up_nobody(client: Client) -> None:
    """The turn of /metrics/per-object was given back when the answer was read: one client that did not read stopped all others."""

    async def run() -> None:
        metrics = Metrics(client.node.http._parts, "n", Sampler(client.node.http._parts))  # type: ignore[union-attr]
        for text in (metrics.per_object, lambda: metrics.detailed(["queue_metrics"], []), metrics.aggregated):
            slow = text()
            await anext(slow)  # and no further
            assert [piece async for piece in text()]

    asyncio.run(run())


def test_answers_on_their_way_are_bounded_by_user() -> None:
    with Broker(http_port=0) as broker:
        application = Application(Client(broker).node.http._parts)  # type: ignore[union-attr]
        application.pools.scrapes = Pool(2, 0.5, 0.75)  # that of a broker with more than one user

        async def run() -> None:
            async def text() -> AsyncIterator[bytes]:
                yield b"x"

            def of(user: str) -> Any:
                return endpoints.scrape(
                    Call(application, Request({"type": "http", WHO: Who(user, f"of {user}")}), application.operations[0]), text()
                )

            async def no_request() -> Any:
                await asyncio.Event().wait()

            began, read = asyncio.Event(), asyncio.Event()

            async def send(message: Any) -> None:
                began.set()
                await read.wait()

            answer = of("a")
            unread = asyncio.ensure_future(answer({"type": "http"}, no_request, send))
            await began.wait()
            with pytest.raises(HttpError) as refused:
                of("a")
            assert refused.value.status == 503
            other = of("b")
            with pytest.raises(HttpError):
                of("c")
            read.set()
            await unread
            await other({"type": "http"}, no_request, send)
            assert of("a")

        asyncio.run(run())


def test_groups_of_one_virtual_host_do_not_fill_the_answer() -> None:
    with Broker(limits={"metrics_groups_max": 3}, http_port=0, data_dir=None) as broker:
        client = Client(broker)
        families = figures.Families()

        class Streams:
            def get(self, queue_id: int) -> Any:
                return self

            def groups(self) -> dict[bytes, dict[str, int]]:
                return {b"g%d" % number: {"lag": number, "lost": 0} for number in range(5)}

        class Queue:
            vhost, name, queue_id = "v", "s", 1

            class policy:
                is_stream = True

        class Known:
            limits = client.node.broker.limits
            streams = Streams()
            queues = {1: Queue(), 2: Queue()}

        class Parts:
            broker = Known()

        figures._streams(families, Parts())  # type: ignore[arg-type]
        lines = {name: lines for name, _, _, lines in families.found}
        assert len(lines["stream_group_lag"]) == 3 and lines["stream_groups_left_out"] == [" 7\n"]


# --- who may read them ----------------------------------------------------------------------------------------------------------

PATHS = ["/metrics", "/metrics/per-object", "/metrics/detailed?family=queue_coarse_metrics"]


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({}, 200),
        ({"host": "0.0.0.0"}, 401),
        ({"host": "0.0.0.0", "metrics_public": True}, 200),
        ({"http_proxy_from": ("192.0.2.0/24",)}, 401),
        ({"http_proxy_from": ("192.0.2.0/24",), "metrics_public": True}, 200),
    ],
)
def test_metrics_without_a_login(options: dict[str, Any], status: int) -> None:
    """As RabbitMQ's, where nobody but this machine can ask, or the operator says so. Who sends a login has a right one."""
    with Broker(http_port=0, **options) as broker:
        client = Client(broker)
        for path in PATHS:
            assert client.get(path, {}).status == status, path
            assert client.get(path, basic("guest", "wrong")).status == 401
            assert client.get(path).status == 200
        assert client.get("/api/overview", {}).status == 401


def test_metrics_have_a_port_of_their_own() -> None:
    with Broker(http_port=0, metrics_port=0) as broker:
        client = Client(broker)
        assert ("http/prometheus", broker.node.metrics_port) in [(one[0], one[2]) for one in broker.node.listening()]
        client.port = broker.node.metrics_port
        for path in (*PATHS, "/health"):
            assert client.get(path, {}).status == 200
        for path in ("/api/overview", "/", "/console/", "/api/v1/queues/%2F/q"):
            assert client.get(path).status == 404


# of RabbitMQ 3.10's metrics.md, without the Erlang VM's own
NAMES_OF_RABBITMQ = """
global_messages_acknowledged_total global_messages_confirmed_total global_messages_delivered_consume_auto_ack_total
global_messages_delivered_consume_manual_ack_total global_messages_delivered_get_auto_ack_total
global_messages_delivered_get_manual_ack_total
global_messages_delivered_total global_messages_get_empty_total global_messages_received_confirm_total global_messages_received_total
global_messages_redelivered_total global_messages_routed_total global_messages_unroutable_dropped_total
global_messages_unroutable_returned_total global_publishers global_consumers global_messages_dead_lettered_confirmed_total
global_messages_dead_lettered_delivery_limit_total global_messages_dead_lettered_expired_total global_messages_dead_lettered_maxlen_total
global_messages_dead_lettered_rejected_total build_info consumer_prefetch consumers disk_space_available_bytes
disk_space_available_limit_bytes identity_info process_max_fds process_open_fds process_resident_memory_bytes resident_memory_limit_bytes
connection_channels connection_incoming_bytes_total connection_incoming_packets_total connection_outgoing_bytes_total
connection_outgoing_packets_total connection_pending_packets connection_process_reductions_total connections connections_closed_total
connections_opened_total channel_acks_uncommitted channel_consumers channel_get_ack_total channel_get_empty_total channel_get_total
channel_messages_acked_total channel_messages_confirmed_total channel_messages_delivered_ack_total channel_messages_delivered_total
channel_messages_published_total channel_messages_redelivered_total channel_messages_unacked channel_messages_uncommitted
channel_messages_unconfirmed channel_messages_unroutable_dropped_total channel_messages_unroutable_returned_total channel_prefetch
channel_process_reductions_total channels channels_closed_total channels_opened_total queue_consumer_utilisation queue_consumers
queue_disk_reads_total queue_disk_writes_total queue_messages queue_messages_bytes queue_messages_paged_out queue_messages_paged_out_bytes
queue_messages_persistent queue_messages_persistent_bytes queue_messages_published_total queue_messages_ram queue_messages_ram_bytes
queue_messages_ready queue_messages_ready_bytes queue_messages_ready_ram queue_messages_unacked queue_messages_unacked_bytes
queue_messages_unacked_ram queue_process_memory_bytes queue_process_reductions_total queues queues_created_total queues_declared_total
queues_deleted_total erlang_gc_reclaimed_bytes_total erlang_gc_runs_total erlang_net_ticktime_seconds erlang_processes_limit
erlang_processes_used erlang_scheduler_context_switches_total erlang_scheduler_run_queue erlang_uptime_seconds io_read_bytes_total
io_read_ops_total io_read_time_seconds_total io_reopen_ops_total io_seek_ops_total io_seek_time_seconds_total io_sync_ops_total
io_sync_time_seconds_total io_write_bytes_total io_write_ops_total io_write_time_seconds_total msg_store_read_total msg_store_write_total
queue_index_read_ops_total queue_index_write_ops_total schema_db_disk_tx_total schema_db_ram_tx_total raft_entry_commit_latency_seconds
raft_log_commit_index raft_log_last_applied_index raft_log_last_written_index raft_log_snapshot_index raft_term_total federation_links
"""


def test_each_name_of_rabbitmq_is_there_or_has_a_reason(client: Client) -> None:
    connection = connect(client)
    connection.channel()
    text = client.get("/metrics").raw.decode() + client.get("/metrics/per-object").raw.decode()
    there = set(re.findall(r"^# TYPE rabbitmq_(\S+)", text, re.MULTILINE))
    page = (Path(__file__).parents[2] / "docs/HTTP.md").read_text()
    absent = set(re.findall(r"`(\w+)`", page[page.index("Names of RabbitMQ 3.10 that are not here") : page.index("Families: `")]))
    names = set(NAMES_OF_RABBITMQ.split())
    assert names - there - absent == set() and there & absent == set()
    connection.close()


def test_checkpoints_of_the_log_and_what_a_start_would_read(tmp_path: Path) -> None:
    """In /metrics and in the overview; a broker without a store has none."""
    with Broker(limits={"checkpoint_bytes": 65536}, http_port=0, data_dir=str(tmp_path)) as broker:
        client = Client(broker)
        samples = scrape(client)
        assert value(samples, "flintmq_checkpoints_total", outcome="written") == 0
        assert value(samples, "flintmq_checkpoints_total", outcome="given_up") == 0
        assert value(samples, "flintmq_checkpoint_bytes_total") == 0
        with connect(client) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            properties = pika.BasicProperties(delivery_mode=2)
            for _ in range(40):
                channel.basic_publish("", "q", bytes(4096), properties)
            assert value(scrape(client), "flintmq_recovery_log_bytes") > 0
            wait_until(lambda: value(scrape(client), "flintmq_checkpoints_total", outcome="written") > 0)
        samples = scrape(client)
        assert value(samples, "flintmq_checkpoint_bytes_total") > 100
        assert value(samples, "flintmq_recovery_log_bytes") < 40 * 4096
        shown = Api(client).get("v1/overview")["now"]["checkpoints"]
        assert shown["written"] > 0 and shown["bytes"] > 100 and shown["begin"] > 0 and shown["log_bytes"] < 40 * 4096
    with Broker(http_port=0) as broker:
        client = Client(broker)
        assert "flintmq_checkpoints_total" not in scrape(client)
        assert Api(client).get("v1/overview")["now"]["checkpoints"] is None
