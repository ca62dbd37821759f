"""Two brokers on etcd: clients of either one use a shared queue that one of them owns, and go on when that one is gone.

Properties: what clients of the other node publish, get, settle and give back is as at the owner; a node that stops hands its queues over;
one that dies is followed within its lease.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.pausing import LEASE
from flintmq.testing.broker import Broker
from tests.admin.conftest import Client
from tests.cluster.own_engine import SHARED
from tests.support.broker import self_signed_certificate, wait_until
from tests.support.etcd import EtcdCluster
from tests.support.inprocess import connect, heap_of_others, start

__all__ = ["connect", "heap_of_others", "start"]
LEASE_MS = 1_000
PROBE = b"probe"
LIMITS = {"shared_node_lease_ms": LEASE_MS, "shared_poll_ms": 50, "shared_pause_ms": 10, "shared_pause_ms_max": 100}


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(1)
    yield cluster
    cluster.close()


Begin = Callable[..., Broker]


@pytest.fixture
def begin(start: Callable[..., Broker], tmp_path: Path, etcd: EtcdCluster, request: Any) -> Begin:
    """Nodes of an engine whose rows are this test's alone."""
    url = "etcd://" + ",".join(endpoint.partition("//")[2] for endpoint in etcd.endpoints)

    def make(name: str, **options: Any) -> Broker:
        given = {"node_name": f"{name}-{request.node.name}"[:100].translate({ord("["): "-", ord("]"): None}), **options}
        return start(limits=LIMITS, store_dir=str(tmp_path / name), cluster=url, **given)

    return make


@pytest.fixture
def queue(request: Any) -> str:
    return f"q-{request.node.name}"


def declared(connect: Any, broker: Broker, queue: str, **arguments: Any) -> Any:
    channel = connect(broker).channel()
    channel.queue(queue, durable=True, arguments={**SHARED, **arguments})
    channel.call("confirm.select")
    return channel


def pair(begin: Begin, connect: Any, queue: str, **arguments: Any) -> tuple[Any, Any]:
    """Channels at the owner and at the other node."""
    owner = declared(connect, begin("a"), queue, **arguments)
    return owner, declared(connect, begin("b"), queue, **arguments)


def publish(channel: Any, queue: str, *bodies: bytes, **properties: Any) -> None:
    for body in bodies:
        channel.publish(body, routing_key=queue, **properties)
        channel.expect("basic.ack")


def get(channel: Any, queue: str, no_ack: bool = True) -> Any:
    channel.send("basic.get", queue=queue, no_ack=no_ack)
    return channel.connection.recv(channel.number)


def test_both_publish_and_get_in_one_order(begin: Begin, connect: Any, queue: str) -> None:
    owner, other = pair(begin, connect, queue)
    for number in range(4):
        publish((owner, other)[number % 2], queue, b"%d" % number)
    assert other.call("queue.declare", queue=queue, passive=True).message_count == 4
    assert [get((other, owner)[number % 2], queue).body for number in range(4)] == [b"0", b"1", b"2", b"3"]
    assert get(other, queue).name == "basic.get-empty"


def test_what_the_other_nodes_client_gives_back_goes_to_anyone_flagged_in_its_place(begin: Begin, connect: Any, queue: str) -> None:
    owner, other = pair(begin, connect, queue)
    publish(owner, queue, b"1", b"2")
    got = get(other, queue, no_ack=False)
    assert (got.body, got.redelivered) == (b"1", False)
    other.send("basic.reject", delivery_tag=got.delivery_tag, requeue=True)
    wait_until(lambda: owner.call("queue.declare", queue=queue, passive=True).message_count == 2)
    got = get(owner, queue, no_ack=False)
    assert (got.body, got.redelivered) == (b"1", True)
    other.connection.close()
    assert get(owner, queue).body == b"2"


def test_a_consumer_at_the_other_node_has_its_prefetch_and_its_channels_end_gives_back(begin: Begin, connect: Any, queue: str) -> None:
    owner, other = pair(begin, connect, queue)
    other.call("basic.qos", prefetch_count=2)
    other.consume(queue, "c")
    publish(owner, queue, *(b"%d" % number for number in range(4)))
    assert [one.body for one in other.deliveries(2)] == [b"0", b"1"]
    other.nothing()
    other.send("basic.ack", delivery_tag=1)
    assert other.expect("basic.deliver").body == b"2"
    other.call("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)
    wait_until(lambda: owner.call("queue.declare", queue=queue, passive=True).message_count == 3)
    assert [(one.body, one.redelivered) for one in (get(owner, queue) for _ in range(3))] == [(b"1", True), (b"2", True), (b"3", False)]


def test_of_consumers_on_all_nodes_one_is_active_and_the_next_one_follows(begin: Begin, connect: Any, queue: str) -> None:
    owner, other = pair(begin, connect, queue, **{"x-single-active-consumer": True})
    other.consume(queue, "first", no_ack=True)
    owner.consume(queue, "second", no_ack=True)
    publisher = connect_again(connect, owner)
    publish(publisher, queue, b"1")
    assert other.expect("basic.deliver").body == b"1"
    owner.nothing()
    other.call("basic.cancel", consumer_tag="first")
    publish(publisher, queue, b"2")
    assert owner.expect("basic.deliver").body == b"2"


def connect_again(connect: Any, channel: Any) -> Any:
    class At:
        port = channel.connection.sock.getpeername()[1]

    again = connect(At).channel()
    again.call("confirm.select")
    return again


def test_a_dead_letter_of_the_other_nodes_client_and_a_limit_are_the_owners(begin: Begin, connect: Any, queue: str) -> None:
    dead = f"{queue}-dead"
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    owner, other = pair(begin, connect, queue, **letters, **{"x-max-length": 2, "x-overflow": "reject-publish"})
    owner.queue(dead, durable=True, arguments=SHARED)
    publish(other, queue, b"1", b"2")
    other.publish(b"3", routing_key=queue)
    other.expect("basic.nack")
    got = get(other, queue, no_ack=False)
    other.send("basic.reject", delivery_tag=got.delivery_tag, requeue=False)
    wait_until(lambda: owner.call("queue.declare", queue=dead, passive=True).message_count == 1)
    letter = get(owner, dead)
    assert (letter.body, letter.properties["headers"]["x-death"][0]["reason"]) == (b"1", "rejected")


def test_purge_and_deletion_if_empty_ask_the_owner(begin: Begin, connect: Any, queue: str) -> None:
    owner, other = pair(begin, connect, queue)
    publish(owner, queue, b"1", b"2")
    refused = connect_again(connect, other)
    refused.send("queue.delete", queue=queue, if_empty=True)
    refused.expect_close(406, "not empty")
    assert other.call("queue.purge", queue=queue).message_count == 2
    assert get(owner, queue).name == "basic.get-empty"
    other.call("queue.delete", queue=queue, if_empty=True)


def test_groups_are_shared_out_among_consumers_of_all_nodes(begin: Begin, connect: Any, queue: str) -> None:
    owner, other = pair(begin, connect, queue, **{"qpid.group_header_key": "g"})
    for channel in (other, owner):
        channel.call("basic.qos", prefetch_count=1)
        channel.consume(queue, "c")
    publisher = connect_again(connect, owner)
    for body in (b"a1", b"b1", b"a2"):
        publish(publisher, queue, body, headers={"g": body[:1].decode()})
    got = {channel: channel.expect("basic.deliver") for channel in (other, owner)}
    assert {message.body for message in got.values()} == {b"a1", b"b1"}
    holder, idle = (other, owner) if got[other].body == b"a1" else (owner, other)
    idle.send("basic.ack", delivery_tag=got[idle].delivery_tag)
    idle.nothing()
    holder.send("basic.ack", delivery_tag=got[holder].delivery_tag)
    assert holder.expect("basic.deliver").body == b"a2"


def test_a_selector_of_the_other_nodes_client_counts_and_a_browser_is_told_the_owner(begin: Begin, connect: Any, queue: str) -> None:
    owner, other = pair(begin, connect, queue)
    other.consume(queue, "c", arguments={"x-filter-jms-selector": "k = 2"})
    for key in (1, 2):
        publish(owner, queue, b"%d" % key, headers={"k": key})
    assert other.expect("basic.deliver").body == b"2"
    browser = connect_again(connect, other)
    browser.refuse(406, "connects to its owner, node 'a-", "basic.consume", queue=queue, no_ack=True, arguments={"x-browse": True})


def test_a_queue_in_use_by_the_other_nodes_clients_does_not_expire_and_then_ends_everywhere(begin: Begin, connect: Any, queue: str) -> None:
    first, second = begin("a"), begin("b")
    declared(connect, first, queue, **{"x-expires": 60_000})
    other = declared(connect, second, queue, **{"x-expires": 60_000})
    other.consume(queue, "c")
    vhosts = [broker.node.broker.vhosts["/"] for broker in (first, second)]
    later = [vhost.queues[queue].used_ns + 120_000_000_000 for vhost in vhosts]
    for vhost, now in zip(vhosts, later, strict=True):
        vhost.expire_queues(now)
    assert other.call("queue.declare", queue=queue, passive=True).consumer_count == 1
    other.call("basic.cancel", consumer_tag="c")
    wait_until(lambda: vhosts[0].queues[queue].core.consumer_count() == 0)
    vhosts[1].expire_queues(later[1] + 120_000_000_000)
    assert get(other, queue).name == "basic.get-empty"
    vhosts[0].expire_queues(later[0] + 240_000_000_000)
    wait_until(lambda: not any(queue in vhost.queues for vhost in vhosts))


@pytest.mark.parametrize("name", ["qpid.queue_sort_key", "x-qpid-priorities"])
def test_a_queue_that_moves_keeps_its_order(begin: Begin, connect: Any, queue: str, name: str) -> None:
    first = begin("a")
    arguments = {name: "k" if name.endswith("key") else 10}
    owner = declared(connect, first, queue, **arguments)
    other = declared(connect, begin("b"), queue, **arguments)
    for key in (7, 3, 5):
        publish(owner, queue, b"%d" % key, headers={"k": key}, priority=9 - key)
    first.node.stop()
    served(other, queue)
    again = connect_again(connect, other)
    publish(again, queue, b"4", headers={"k": 4}, priority=5)
    assert [body for body, _ in taken(again, queue)] == [b"3", b"4", b"5", b"7"]


def test_a_node_that_stops_hands_its_queues_over_with_their_order_and_flags(begin: Begin, connect: Any, queue: str) -> None:
    first = begin("a")
    owner = declared(connect, first, queue)
    other = declared(connect, begin("b"), queue)
    publish(owner, queue, b"1", b"2", b"3")
    assert get(other, queue, no_ack=False).body == b"1"
    began = time.monotonic()
    first.node.stop()
    served(other, queue)
    assert time.monotonic() - began < LEASE_MS / 1000 + 5
    publish(other, queue, b"4")
    assert taken(connect_again(connect, other), queue) == [(b"1", True), (b"2", False), (b"3", False), (b"4", False)]


def taken(channel: Any, queue: str) -> list[tuple[bytes, bool]]:
    """All that is there, but probes."""
    got: list[tuple[bytes, bool]] = []
    while (one := get(channel, queue)).name == "basic.get-ok":
        got.append((one.body, one.redelivered))
    return [one for one in got if one[0] != PROBE]


def served(channel: Any, queue: str) -> None:
    """Until the channel's node reaches an owner: a publish is taken."""

    def is_taken() -> bool:
        channel.publish(PROBE, routing_key=queue)
        return bool(channel.connection.recv(channel.number).name == "basic.ack")

    wait_until(is_taken, what="the queue has no owner")


def test_a_node_that_dies_is_followed_after_its_lease_and_nothing_confirmed_is_lost(begin: Begin, connect: Any, queue: str) -> None:
    first = begin("a")
    owner = declared(connect, first, queue)
    other = declared(connect, begin("b"), queue)
    publish(owner, queue, b"1", b"2")
    publish(other, queue, b"3")
    assert get(owner, queue, no_ack=False).body == b"1"
    shared = first.node.broker.shared
    first.node._leave = bool  # nobody is told
    shared.thread.call(die, shared)
    served(other, queue)
    got = taken(other, queue)
    assert [body for body, _ in got] == [b"1", b"2", b"3"] and got[0][1]
    with contextlib.suppress(OSError):
        owner.connection.close()


def die(shared: Any) -> None:
    """The engine's thread does nothing any more, and the listeners' connections of other nodes end: as seen from outside, it is dead."""
    while True:
        time.sleep(0.05)
        if shared.thread._ended:
            return


def test_an_owner_that_gives_no_sign_of_life_delivers_nothing_until_the_engine_says_that_it_owns_still(
    begin: Begin, connect: Any, queue: str, etcd: EtcdCluster
) -> None:
    broker = begin("a")
    channel = declared(connect, broker, queue)
    channel.consume(queue, "c", no_ack=True)
    channel.publish(b"1", routing_key=queue)
    assert both(channel) == {"basic.ack", "basic.deliver"}
    server = etcd.processes[0]
    assert server is not None
    queue_id = broker.node.broker.vhosts["/"].queues[queue].queue_id
    server.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: broker.node.broker.resting.get(queue_id, 0) & LEASE, what="the lease is not in doubt")
        channel.publish(b"2", routing_key=queue)
        channel.nothing()
    finally:
        server.send_signal(signal.SIGCONT)
    assert both(channel) == {"basic.ack", "basic.deliver"}


def both(channel: Any) -> set[str]:
    """The next two methods, in whatever order."""
    return {channel.connection.recv(channel.number).name for _ in range(2)}


def test_the_api_of_each_node_shows_what_the_owner_has(begin: Begin, connect: Any, queue: str) -> None:
    owner = declared(connect, begin("a"), queue)
    there = begin("b", http_port=0)
    declared(connect, there, queue)
    publish(owner, queue, b"1", b"2")
    owner.consume(queue, "c")
    owner.deliveries(2)
    path = f"/api/queues/%2F/{queue}"
    wait_until(lambda: Client(there).get(path).json["consumers"] == 1, what="the owner was not asked")
    owner.call("basic.cancel", consumer_tag="c")
    owner.send("basic.nack", delivery_tag=2, multiple=True, requeue=True)
    wait_until(lambda: Client(there).get(path).json["messages_ready"] == 2, what="the owner was not asked again")
    assert Client(there).get(path).json["node"].startswith("a-")


def test_nodes_reach_each_other_by_tls_alone_when_they_are_told_an_authority(begin: Begin, connect: Any, queue: str) -> None:
    with self_signed_certificate() as (certificate, key), self_signed_certificate() as (stranger, strangers_key):
        tls = {"tls_port": 0, "tls_cert": certificate, "tls_key": key, "cluster_ca": certificate, "host": "127.0.0.1"}
        one, other = begin("a", **tls), begin("b", **tls)
        owner, there = declared(connect, one, queue), declared(connect, other, queue)
        publish(there, queue, b"1")
        assert get(owner, queue).body == b"1"
        reached = {to for to, _ in other.node.broker.shared.others.links._open}
        assert {(to.port, to.secure is not None) for to in reached} == {(one.node.amqps_port, True)}
        false = begin("c", **{**tls, "tls_cert": stranger, "tls_key": strangers_key, "cluster_ca": stranger})
        lost = declared(connect, false, queue)
        lost.publish(b"2", routing_key=queue)
        lost.nothing(0.5)
        assert get(owner, queue).name == "basic.get-empty", "whoever has a certificate of another authority is not reached"
