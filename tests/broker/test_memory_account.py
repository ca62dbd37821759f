"""Memory that clients make the broker hold is counted as it comes, and is bounded by what others need (docs/SECURITY.md, Memory)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from flintmq.broker.memory_keeper import MemoryKeeper
from flintmq.core.memory_account import bytes_by_kind, bytes_held
from flintmq.routing.route_cache import bury
from tests.broker.test_memory_alarm import alarmed
from tests.support.broker import wait_until
from tests.support.rawamqp import header_frame, method_frame, publish_bytes
from tests.twins.memory_log import MemoryLog

MIB = 1 << 20


def publishes(broker: Any, connect: Callable[..., Any]) -> None:
    """Another client's publishes are taken."""
    other = connect(broker).channel()
    other.queue("others")
    other.publish(b"note", routing_key="others")
    assert other.call("queue.purge", queue="others").message_count == 1
    assert not alarmed(broker)


def test_a_length_that_is_only_announced_takes_no_memory(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start(memory_limit=bytes_held() + 16 * MIB)
    liar = connect(broker)
    before = bytes_held()
    for number in range(1, 200):
        channel = liar.channel(number)
        channel.send("basic.publish", exchange="", routing_key="nowhere")
        liar.send(header_frame(number, 128 * MIB))
    liar.channel(200).call("basic.qos")  # the broker has seen them all
    assert bytes_held() - before < 4 * MIB
    publishes(broker, connect)


def test_a_large_message_is_held_once_for_all_who_do_not_read(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start(memory_limit=bytes_held() + 64 * MIB)
    publisher = connect(broker).channel()
    body = bytes(range(256)) * (12 * MIB // 256)
    readers = []
    for number in range(10):
        connection = connect(broker)
        channel = connection.channel()
        channel.queue(f"q{number}")
        channel.call("queue.bind", queue=f"q{number}", exchange="amq.fanout", routing_key="")
        channel.consume(f"q{number}", no_ack=True)
        readers.append(channel)
    before = bytes_held()
    publisher.publish(body, exchange="amq.fanout")
    publisher.call("basic.qos")
    handlers = broker.node.broker.connections.values()
    wait_until(lambda: sum(one.connection.output_size > 4 * MIB for one in handlers) == 10, what="ten readers hold it")
    assert bytes_held() - before < 14 * MIB
    publishes(broker, connect)
    for reader in readers[:3]:
        assert reader.expect("basic.deliver").body == body


def test_requests_of_a_client_that_reads_no_answer_are_not_read(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start()
    owner = connect(broker).channel()
    before = bytes_held()
    asking = []
    for number in range(4):
        owner.queue(f"q{number}")
        owner.publish(bytes(60_000), routing_key=f"q{number}")
        connection = connect(broker)
        connection.channel()
        asking.append(connection)
        # Ten bytes ask for 60,000; the message goes back each time. 60 MB: what the kernel's buffers take is not the broker's.
        request = method_frame(1, "basic.get", queue=f"q{number}", no_ack=False) + method_frame(1, "basic.recover", requeue=True)
        connection.send(request * 1000)
    handlers = {one.peer_port: one for one in broker.node.broker.connections.values()}
    mine = [handlers[connection.sock.getsockname()[1]] for connection in asking]
    wait_until(lambda: all(one.socket.asks_held for one in mine), what="nothing more is read from them")
    assert max(one.connection.output_size for one in mine) < 2 * MIB
    assert bytes_held() - before < 16 * MIB
    publishes(broker, connect)
    # One reads after all: every request is answered.
    for _ in range(1000):
        assert len(asking[0].recv_any().body) == 60_000
        assert asking[0].recv_any().name == "basic.recover-ok"
    wait_until(lambda: not mine[0].socket.asks_held, what="it is read again")


def test_what_connections_make_the_broker_hold_is_counted_and_given_back(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start()
    before = bytes_by_kind()
    client = connect(broker)
    channel = client.channel()
    channel.queue("q")
    for _ in range(3000):
        channel.publish(b"x", routing_key="q")
    channel.consume("q", no_ack=False)
    channel.deliveries(3000)
    held = bytes_by_kind()
    assert held["unacked"] - before["unacked"] > 3000 * 40
    assert held["entries"] - before["entries"] > 3000 * 24
    tx = client.channel(2)
    tx.call("tx.select")
    for _ in range(1000):
        tx.publish(b"x", routing_key="q")
    tx.call("basic.qos")
    assert bytes_by_kind()["transactions"] - before["transactions"] >= 1000 * 16
    client.close()
    wait_until(
        lambda: all(bytes_by_kind()[kind] <= before[kind] for kind in ("unacked", "transactions", "channels")), what="it is given back"
    )


def test_a_channel_with_a_high_number_costs_as_much_as_another(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start()
    client = connect(broker)
    client.channel(1).queue("q")
    before = bytes_by_kind()["channels"]
    high = client.channel(65_535)
    assert bytes_by_kind()["channels"] - before < 32 * 1024
    high.publish(b"far", routing_key="q")
    high.consume("q", no_ack=True)
    assert high.expect("basic.deliver").body == b"far"
    high.call("channel.close", reply_code=200)
    client.send(publish_bytes(65_535, b"late", routing_key="q"))
    assert client.recv_any().name == "connection.close"


def test_confirms_that_wait_are_counted(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    gc.collect()  # what other tests left does not go in the midst of it
    log = MemoryLog()
    client = connect(start(log=log))
    channel = client.channel()
    channel.queue("kept", durable=True)
    channel.call("confirm.select")
    before = bytes_by_kind()["channels"]
    log.hold()
    for _ in range(5000):
        channel.publish(b"x", routing_key="kept", delivery_mode=2)
    channel.call("basic.qos")
    assert bytes_by_kind()["channels"] - before >= 5000 * 24
    log.release()
    client.drop()
    wait_until(lambda: bytes_by_kind()["channels"] < before, what="it is given back")


def test_remembered_routes_are_counted_and_forgotten_when_memory_is_short(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    gc.collect()
    broker = start()
    inner = broker.node.broker
    channel = connect(broker).channel()
    for number in range(20):
        channel.queue(f"q{number}", arguments={"x-max-length": 1})
        channel.call("queue.bind", queue=f"q{number}", exchange="amq.fanout", routing_key="")
    before = bytes_by_kind()["routes"]
    for number in range(1000):
        channel.publish(b"", exchange="amq.fanout", routing_key=f"{number:050}")
    channel.call("basic.qos")
    assert bytes_by_kind()["routes"] - before >= 1000 * (20 * 24 + 50)
    keeper = MemoryKeeper(inner, [], bytes_held() * 100)
    keeper._forget_routes()
    assert inner.routes.caches["/", "amq.fanout"].route_count == 1000, "they are not what is much"
    keeper.memory_limit = bytes_by_kind()["routes"]
    keeper._forget_routes()
    assert inner.routes.caches["/", "amq.fanout"].route_count == 0
    while not bury():  # as the housekeeping does, in slices
        pass
    assert bytes_by_kind()["routes"] - before < 100 * 1000, "the table of them, and the one that the channel used last"
    channel.publish(b"again", exchange="amq.fanout", routing_key="k")
    assert channel.ready("q0") == 1
