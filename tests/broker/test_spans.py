"""Spans of messages: whose they are, what they say, how the message goes on, and what happens without room. Over the wire with pika."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from flintmq.broker.spans import INTERNAL, SERVER, Span, Spans, read_context, traced_bits
from flintmq.channel.traceparent import TRACED_FIREHOSE, TRACED_MOST, TRACED_SHIFT, is_wanted
from flintmq.config import Limits
from flintmq.protocol.v0_9_1.codec import encode_properties
from flintmq.protocol.v0_9_1.splice import longstr_field, split_properties, split_table
from flintmq.testing.broker import Broker
from tests.otel.collector import Collector
from tests.support.broker import wait_until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"
ALL = TRACED_MOST << TRACED_SHIFT
FAST = {"spans_pause_ms": 5}


def header_of(headers: dict[str, Any], size: int = 1) -> bytes:
    return encode_properties(size, {"headers": headers})


def table_of(headers: dict[str, Any]) -> bytes:
    return split_properties(header_of(headers))[1]["headers"]


# --- which messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({"traceparent": SAMPLED}, True),
        ({"a": 1, "traceparent": SAMPLED, "z": {"b": [1]}}, True),
        ({"traceparent": f"00-{TRACE}-{PARENT}-03"}, True),
        ({"traceparent": UNSAMPLED}, False),
        ({"traceparent": f"01-{TRACE}-{PARENT}-01"}, False),
        ({"traceparent": SAMPLED[:-1]}, False),
        ({"traceparent": SAMPLED + "-x"}, False),
        ({"traceparent": SAMPLED.replace("4736", "473g")}, False),
        ({"traceparent": SAMPLED.upper()}, True),  # not its hexadecimal part: it has capitals in front of the last six digits only
        ({"Traceparent": SAMPLED}, False),
        ({"traceparent": 7}, False),
        ({}, False),
    ],
)
def test_who_is_looked_at(headers: dict[str, Any], wanted: bool) -> None:
    """The compiled look may be wrong in one direction alone: reading the table decides."""
    table = table_of(headers) if headers else b""
    assert is_wanted(table, 0) is is_wanted(table, TRACED_FIREHOSE) is False
    assert is_wanted(table, ALL) in ((True, False) if wanted else (False,))
    context = read_context(split_table(table))
    readable = wanted and headers["traceparent"] != SAMPLED.upper()
    assert (is_wanted(table, ALL) and context is not None) is readable


def test_a_table_that_ends_within_its_traceparent_is_not_read_further() -> None:
    table = table_of({"traceparent": SAMPLED})
    for size in range(len(table)):
        assert not is_wanted(table[:size], ALL)
    assert is_wanted(table, ALL)


def test_the_share_goes_by_the_end_of_the_trace() -> None:
    def wanted(share: float, last: int) -> bool:
        bits = Spans(Limits(), share).bits
        return is_wanted(table_of({"traceparent": f"00-{TRACE[:26]}{last:06x}-{PARENT}-01"}), bits)

    for share in (0.000001, 0.25, 0.5, 1.0):
        edge = round(share * 2**24)
        assert wanted(share, 0) and wanted(share, max(edge - 1, 1))
        assert edge == 2**24 or not wanted(share, max(edge, 2))
    assert traced_bits(True, None) == TRACED_FIREHOSE and traced_bits(False, None) == 0
    assert traced_bits(True, Spans(Limits())) == TRACED_FIREHOSE | ALL


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        SAMPLED.replace("-", "_"),
        SAMPLED.replace("a", " "),
        "é" * 27 + "x",
    ],
)
def test_a_context_that_is_none(parent: str) -> None:
    assert read_context([(b"traceparent", longstr_field(parent.encode()))]) is None


# --- what becomes of the message --------------------------------------------------------------------------------------------


def test_the_message_goes_on_with_the_span_as_its_parent() -> None:
    spans = Spans(Limits(), now_us=lambda: 0xABCDE)
    before = header_of({"first": 1, "traceparent": SAMPLED, "tracestate": "a=1, flintmq=12 ,b=2", "last": [1]}, 7)
    span, after = spans.received("x", b"k", before)
    assert span is not None and (span.trace, span.parent, span.start_us, span.kind) == (TRACE, PARENT, 0xABCDE, SERVER)
    assert span.attributes["messaging.message.body.size"] == 7 and span.state == "a=1,b=2"
    size, parts = split_properties(after)
    fields = split_table(parts["headers"])
    assert size == 7 and [name for name, _ in fields] == [b"first", b"traceparent", b"last", b"tracestate"]
    assert dict(fields)[b"traceparent"] == longstr_field(f"00-{TRACE}-{span.span}-01".encode())
    assert dict(fields)[b"tracestate"] == longstr_field(b"flintmq=abcde,a=1,b=2")
    old = dict(split_table(split_properties(before)[1]["headers"]))
    assert [old[name] == dict(fields)[name] for name in (b"first", b"last")] == [True, True]


def test_a_state_stays_within_its_limit_and_a_long_header_as_it_is() -> None:
    spans = Spans(Limits())
    members = ",".join(f"k{number}={'v' * 40}" for number in range(12))
    _, after = spans.received("x", b"k", header_of({"traceparent": SAMPLED, "tracestate": members}))
    state = dict(split_table(split_properties(after)[1]["headers"]))[b"tracestate"][5:]
    assert state.startswith(b"flintmq=") and b"k0=" in state and len(state) <= 512
    long = header_of({"traceparent": SAMPLED, "long": "x" * 4_000})
    span, same = spans.received("x", b"k", long)
    assert span is not None and same is long
    plain = header_of({"traceparent": UNSAMPLED})
    assert spans.received("x", b"k", plain) == (None, plain)


# --- the buffer -------------------------------------------------------------------------------------------------------------


def a_span(name: str) -> Span:
    return Span(TRACE, PARENT, PARENT, "", name, INTERNAL, 1, 2, {})


def test_a_virtual_host_that_floods_leaves_the_others_room() -> None:
    spans = Spans(Limits().replace(spans_max=90))
    for _ in range(1_000):
        spans._add("eve", a_span("e"))
    assert spans.waiting() == 45
    for _ in range(20):
        spans._add("ann", a_span("a"))
    assert spans.waiting() == 65 and spans.dropped == 1_000 - 45
    assert spans.made == 1_020
    assert [one.name for one in spans.take(50)] == ["e"] * 45 + ["a"] * 5
    assert len(spans.take(50)) == 15 and spans.take(50) == [] and not spans._held


# --- over the wire ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


def publish(channel: Any, exchange: str, key: str, headers: dict[str, Any] | None, body: bytes = b"geheim", **more: Any) -> None:
    channel.basic_publish(exchange, key, body, pika.BasicProperties(headers=headers, **more))


def test_a_message_from_publish_to_delivery(collector: Collector) -> None:
    with Broker(limits=FAST, otel_endpoint=collector.url) as broker, pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.queue_bind("q", "amq.topic", "a.#")
        for number in range(3):  # the route is cached by then
            publish(channel, "amq.topic", "a.b", None, b"%d" % number)
        publish(channel, "amq.topic", "a.b", {"traceparent": UNSAMPLED})
        publish(channel, "amq.topic", "a.b", {"traceparent": SAMPLED, "own": "x"})
        publish(channel, "amq.topic", "nowhere", {"traceparent": SAMPLED})
        got = [channel.basic_get("q", auto_ack=True) for _ in range(5)]
        publish_, lost, delivered = collector.wait_spans(3)
        carried = got[4][1].headers
        assert carried["own"] == "x" and carried["traceparent"] == f"00-{TRACE}-{publish_['spanId']}-01"
        assert got[3][1].headers == {"traceparent": UNSAMPLED}
        assert (publish_["name"], publish_["kind"], publish_["parentSpanId"]) == ("publish amq.topic", SERVER, PARENT)
        facts = publish_["attributes"]
        assert facts["messaging.rabbitmq.destination.routing_key"] == "a.b" and facts["flintmq.queue.count"] == "1"
        assert facts["flintmq.queues"] == {"values": [{"stringValue": "q"}]} and facts["flintmq.vhost"] == "/"
        assert lost["attributes"]["flintmq.queue.count"] == "0"
        assert (delivered["name"], delivered["kind"], delivered["parentSpanId"]) == ("deliver q", INTERNAL, publish_["spanId"])
        assert {one["traceId"] for one in (publish_, lost, delivered)} == {TRACE}
        # The time in the queue: from the publish to the delivery.
        assert delivered["startTimeUnixNano"] == publish_["startTimeUnixNano"]
        assert int(delivered["endTimeUnixNano"]) >= int(publish_["endTimeUnixNano"])
        assert "geheim" not in repr(collector.requests) and "guest" not in repr(collector.requests)


def test_consumers_transactions_and_redeliveries(collector: Collector) -> None:
    with Broker(limits=FAST, otel_endpoint=collector.url) as broker, pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.tx_select()
        publish(channel, "", "q", {"traceparent": SAMPLED})
        channel.tx_commit()
        other = connection.channel()
        for method, _, _ in other.consume("q"):
            other.basic_nack(method.delivery_tag)
            if method.redelivered:
                break
        other.cancel()
        names = [(one["name"], one["attributes"].get("flintmq.redelivered")) for one in collector.wait_spans(3)[:3]]
        assert names == [("publish amq.default", None), ("deliver q", False), ("deliver q", True)]


def test_the_time_in_the_queue_outlives_a_restart(collector: Collector, tmp_path: Path) -> None:
    options: dict[str, Any] = {"limits": FAST, "otel_endpoint": collector.url, "data_dir": str(tmp_path)}
    with Broker(**options) as broker, pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        publish(channel, "", "q", {"traceparent": SAMPLED}, delivery_mode=2)
        (sent,) = collector.wait_spans(1)
    with Broker(**options) as broker, pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        assert connection.channel().basic_get("q", auto_ack=True)[2] == b"geheim"
        delivered = collector.wait_spans(2)[1]
    assert delivered["startTimeUnixNano"] == sent["startTimeUnixNano"] and delivered["parentSpanId"] == sent["spanId"]


def test_scheduled_messages_and_dead_letters_keep_their_trace(collector: Collector) -> None:
    with Broker(limits=FAST, otel_endpoint=collector.url) as broker, pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("dead")
        channel.queue_declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        publish(channel, "", "q", {"traceparent": SAMPLED, "x-delay": 1})
        wait_until(lambda: (got := channel.basic_get("q"))[0] is not None and got, 60, 0.005, "the message is due")
        channel.basic_nack(0, multiple=True, requeue=False)
        wait_until(lambda: channel.basic_get("dead", auto_ack=True)[0] is not None, 60, 0.005, "the dead letter")
        first, second, third = collector.wait_spans(3)
        assert [first["name"], second["name"], third["name"]] == ["publish amq.default", "deliver q", "deliver dead"]
        assert int(first["attributes"]["flintmq.due_ms"]) > 0
        assert third["parentSpanId"] == second["parentSpanId"] == first["spanId"]


def test_a_forged_time_moves_the_start_nowhere(collector: Collector) -> None:
    """What did not come by AMQP, or was restored, has the client's tracestate."""
    header = header_of({"traceparent": SAMPLED, "tracestate": "flintmq=ffffffffffffffff"})
    with Broker(limits=FAST, otel_endpoint=collector.url) as broker, pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        connection.channel().queue_declare("q")
        node = broker.node.broker
        (handler,) = node.connections.values()
        (queue_id,) = node.queues
        assert node.spans is not None
        for broken in (header, header_of({"traceparent": SAMPLED, "tracestate": "flintmq=1"})):
            node.spans.delivered(handler, node.queues[queue_id], False, broken)
        for one in collector.wait_spans(2):
            assert one["startTimeUnixNano"] == one["endTimeUnixNano"]


def test_the_firehose_goes_on_beside_it_and_off_it_costs_nothing(collector: Collector) -> None:
    with Broker(limits=FAST, otel_endpoint=collector.url) as broker, pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.queue_declare("t")
        channel.queue_bind("t", "amq.rabbitmq.trace", "#")
        broker.node.broker.tracer.turn("/", True)
        publish(channel, "", "q", {"traceparent": SAMPLED})
        assert channel.basic_get("q", auto_ack=True)[2] == b"geheim"
        assert [one["name"] for one in collector.wait_spans(2)] == ["publish amq.default", "deliver q"]
        wait_until(lambda: channel.queue_declare("t", passive=True).method.message_count == 2, 60, 0.005, "the firehose's copies")
        broker.node.broker.tracer.turn("/", False)
        publish(channel, "", "q", {"traceparent": SAMPLED})
        assert channel.basic_get("q", auto_ack=True)[2] == b"geheim"
        assert len(collector.wait_spans(4)) == 4
    with Broker() as broker, pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        publish(channel, "", "q", {"traceparent": SAMPLED})
        assert channel.basic_get("q", auto_ack=True)[1].headers == {"traceparent": SAMPLED}
        assert broker.node.broker.spans is None


def test_tables_of_a_client_that_hide_a_traceparent() -> None:
    """Bytes that look like one within another value: the table decides, and no span is made."""
    spans = Spans(Limits())
    inner = table_of({"traceparent": SAMPLED})
    for value in ({"x": inner}, {"x": {"traceparent": SAMPLED}}, {"x": [{"traceparent": SAMPLED}]}):
        header = header_of(value)
        assert is_wanted(split_properties(header)[1]["headers"], ALL)
        assert spans.received("x", b"k", header) == (None, header)
    assert spans.waiting() == 0
