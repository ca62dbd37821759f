"""x-dead-letter-strategy at-least-once: who died stays until every target has its letter, whatever happens to targets, queue and broker."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.ports import NOTE_LETTERS
from flintmq.testing.broker import Broker
from flintmq.vhost.policies import made
from tests.admin.api import Api
from tests.admin.conftest import Client
from tests.support import servers
from tests.support.broker import wait_until
from tests.support.rawamqp import RawChannel
from tests.support.rawcodec import publish_bytes

Connect = Callable[..., Any]
QUICK = {"housekeeping_ms": 20, "dead_letter_retry_ms": 20}
KEEPS = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-dead-letter-exchange": ""}
TO_DEAD = {**KEEPS, "x-dead-letter-routing-key": "dead"}
KINDS = [{}, {"x-queue-type": "quorum"}, {"x-max-priority": 3}]


@pytest.fixture
def broker(start: Callable[..., Any]) -> Any:
    return start(QUICK)


@pytest.fixture
def ch(broker: Any, connect: Connect) -> RawChannel:
    return connect(broker).channel()


def waiting(broker: Any, name: str = "q") -> int:
    core = broker.node.broker
    return int(core.letters.waiting(core.vhosts["/"].queues[name])[0])


def die(ch: RawChannel, reason: str) -> None:
    """Lets one message of `q` die."""
    if reason == "expired":
        ch.publish(b"x", routing_key="q", expiration="1", delivery_mode=2)
        return
    ch.publish(b"x", routing_key="q", delivery_mode=2)
    tag = ch.call("basic.get", queue="q").delivery_tag
    ch.send("basic.reject", delivery_tag=tag, requeue=reason == "delivery_limit")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reason", ["rejected", "expired", "delivery_limit"])
def test_it_waits_for_a_target_that_is_not_there(ch: RawChannel, broker: Any, reason: str, kind: dict[str, Any]) -> None:
    limit = {"x-delivery-limit": 0} if reason == "delivery_limit" else {}
    ch.queue("q", durable=True, arguments={**kind, **TO_DEAD, **limit})
    die(ch, reason)
    wait_until(lambda: waiting(broker) == 1, what="it waits")
    assert ch.call("basic.get", queue="q").name == "basic.get-empty"  # nobody is given it
    ch.queue("dead")
    ch.wait_ready("dead", 1)
    death = ch.call("basic.get", queue="dead", no_ack=True).properties["headers"]["x-death"][0]
    assert (death["reason"], death["queue"], death["count"]) == (reason, "q", 1)
    handle = broker.node.broker.vhosts["/"].queues["q"].core
    wait_until(lambda: waiting(broker) == 0 and handle.unacked_count() == 0, what="the original has ended")


def test_an_exchange_that_is_not_there_and_one_that_leads_nowhere(ch: RawChannel, broker: Any) -> None:
    ch.queue("q", arguments={**KEEPS, "x-dead-letter-exchange": "dlx"})
    die(ch, "rejected")
    wait_until(lambda: waiting(broker) == 1, what="it waits")
    ch.call("exchange.declare", exchange="dlx", type="fanout")
    ch.nothing(0.06)
    assert waiting(broker) == 1
    ch.queue("dead")
    ch.call("queue.bind", queue="dead", exchange="dlx")
    ch.wait_ready("dead", 1)
    wait_until(lambda: waiting(broker) == 0, what="it has gone")


def test_a_full_target_gets_it_when_it_has_room_and_the_other_gets_it_once(ch: RawChannel, broker: Any) -> None:
    ch.call("exchange.declare", exchange="dlx", type="fanout")
    ch.queue("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    ch.queue("free")
    for name in ("full", "free"):
        ch.call("queue.bind", queue=name, exchange="dlx")
    ch.queue("q", arguments={**KEEPS, "x-dead-letter-exchange": "dlx"})
    for _ in range(3):
        die(ch, "rejected")
    wait_until(lambda: waiting(broker) == 2, what="two wait")
    for left in (1, 0, 0):
        assert ch.call("basic.get", queue="full", no_ack=True).body == b"x"
        wait_until(lambda left=left: waiting(broker) <= left, what="one more has gone")
    ch.wait_ready("free", 3)


def test_they_go_out_in_the_order_in_which_they_died(ch: RawChannel, broker: Any) -> None:
    ch.queue("q", arguments=TO_DEAD)
    for number in range(100):
        ch.publish(b"%d" % number, routing_key="q")
    for _ in range(100):
        last = ch.call("basic.get", queue="q")
    ch.send("basic.nack", delivery_tag=last.delivery_tag, multiple=True, requeue=False)
    wait_until(lambda: waiting(broker) == 100, what="all wait")
    ch.nothing(0.1)  # attempts
    ch.queue("dead")
    ch.wait_ready("dead", 100)
    bodies = [ch.call("basic.get", queue="dead", no_ack=True).body for _ in range(100)]
    assert sorted(bodies, key=int) == [b"%d" % number for number in range(100)]


def test_what_waits_counts_for_the_limit(ch: RawChannel, broker: Any) -> None:
    ch.queue("q", arguments={**TO_DEAD, "x-max-length": 2})
    die(ch, "rejected")
    wait_until(lambda: waiting(broker) == 1, what="it waits")
    ch.call("confirm.select")
    ch.publish(b"second", routing_key="q")
    assert ch.expect("basic.ack").delivery_tag == 1
    ch.publish(b"third", routing_key="q")
    assert ch.expect("basic.nack").delivery_tag == 2
    ch.queue("dead")
    ch.wait_ready("dead", 1)
    wait_until(lambda: waiting(broker) == 0, what="it has gone")
    ch.publish(b"fourth", routing_key="q")
    assert ch.expect("basic.ack").delivery_tag == 3


def test_with_drop_head_it_is_at_most_once_as_on_rabbitmq(ch: RawChannel, broker: Any) -> None:
    ch.queue("q", arguments={**TO_DEAD, "x-overflow": "drop-head"})
    die(ch, "rejected")
    assert ch.ready("q") == 0 and waiting(broker) == 0
    assert broker.node.broker.vhosts["/"].queues["q"].core.unacked_count() == 0


def test_a_policy_that_gives_up_frees_what_waits(ch: RawChannel, broker: Any) -> None:
    vhost = broker.node.broker.vhosts["/"]
    definition = {"dead-letter-strategy": "at-least-once", "overflow": "reject-publish", "dead-letter-exchange": "none"}
    vhost.policies.put(made("p", {"pattern": "^q$", "definition": definition}), False)
    ch.queue("q")
    die(ch, "rejected")
    wait_until(lambda: waiting(broker) == 1, what="it waits")
    vhost.policies.remove("p", False)
    vhost.follow_policies("queue", ["q"])
    handle = vhost.queues["q"].core
    wait_until(lambda: waiting(broker) == 0 and handle.unacked_count() == 0, what="it was dropped")


def test_a_deleted_queue_takes_what_waits_with_it(ch: RawChannel, broker: Any) -> None:
    ch.queue("q", durable=True, arguments=TO_DEAD)
    for _ in range(5):
        die(ch, "rejected")
    wait_until(lambda: waiting(broker) == 5, what="they wait")
    handle = broker.node.broker.vhosts["/"].queues["q"].core
    ch.call("queue.delete", queue="q")
    wait_until(lambda: handle.unacked_count() == 0, what="nothing is left of it")
    assert not broker.node.broker.letters._kept


def test_a_channel_with_prefetch_goes_on(ch: RawChannel, broker: Any) -> None:
    """The credit of what was rejected comes back at once."""
    ch.queue("q", arguments=TO_DEAD)
    ch.call("basic.qos", prefetch_count=1)
    ch.consume("q")
    for number in range(3):
        ch.publish(b"%d" % number, routing_key="q")
    for number in range(3):
        got = ch.expect("basic.deliver")
        assert got.body == b"%d" % number
        ch.send("basic.nack", delivery_tag=got.delivery_tag, requeue=False)
    wait_until(lambda: waiting(broker) == 3, what="all wait")


def test_a_commit_that_cannot_keep_the_promise_is_refused(start: Callable[..., Any], connect: Connect, tmp_path: Path) -> None:
    broker = start(QUICK, data_dir=str(tmp_path))
    ch = connect(broker).channel()
    ch.queue("q", durable=True, arguments=TO_DEAD)
    ch.publish(b"x", routing_key="q", delivery_mode=2)
    ch.call("tx.select")
    ch.send("basic.reject", delivery_tag=ch.call("basic.get", queue="q").delivery_tag, requeue=False)
    ch.refuse(406, "partial tx completion", "tx.commit")
    other = connect(broker).channel()
    other.wait_ready("q", 1)


def test_after_kill_9_what_waited_waits(connect: Connect, tmp_path: Path, start: Callable[..., Any]) -> None:
    """The broker dies while a rejected and an expired message wait; the next one delivers neither, and sends both when the target comes."""
    arguments = {**TO_DEAD, "x-queue-type": "quorum"}
    with servers.flintmq("--http-port", "off", "--flight-port", "off", "--data-dir", str(tmp_path)) as server:
        ch = connect(server).channel()
        ch.queue("q", durable=True, arguments=arguments)
        ch.queue("sync", durable=True)
        for reason in ("rejected", "expired"):
            die(ch, reason)
        ch.wait_ready("q", 0)
        ch.call("confirm.select")
        for number in range(1, 4):  # a confirm comes after what was logged before it
            ch.publish(b"sync", routing_key="sync", delivery_mode=2)
            assert ch.expect("basic.ack").delivery_tag == number
        os.kill(server.pid, signal.SIGKILL)
    again = start(QUICK, data_dir=str(tmp_path))
    ch = connect(again).channel()
    wait_until(lambda: waiting(again) == 2, what="both wait again")
    assert ch.call("basic.get", queue="q").name == "basic.get-empty"
    ch.queue("dead", durable=True)
    ch.wait_ready("dead", 2)
    reasons = {ch.call("basic.get", queue="dead", no_ack=True).properties["headers"]["x-death"][0]["reason"] for _ in range(2)}
    assert reasons == {"rejected", "expired"}
    wait_until(lambda: not again.node.store.logs.notes(NOTE_LETTERS), what="the notes are gone")


def test_after_kill_9_all_of_many_wait(connect: Connect, tmp_path: Path, start: Callable[..., Any]) -> None:
    """However many they are: none of them is delivered again, and all go out when the target comes."""
    count = 12_000
    with servers.flintmq("--http-port", "off", "--flight-port", "off", "--data-dir", str(tmp_path)) as server:
        ch = connect(server).channel()
        ch.queue("q", durable=True, arguments=TO_DEAD)
        ch.queue("sync", durable=True)
        frames = publish_bytes(ch.number, b"x", routing_key="q", delivery_mode=2)
        ch.connection.send(frames * count)
        ch.consume("q")
        last = ch.deliveries(count)[-1]
        ch.send("basic.nack", delivery_tag=last.delivery_tag, multiple=True, requeue=False)
        ch.call("confirm.select")  # after the nack, which is carried out in slices
        ch.publish(b"sync", routing_key="sync", delivery_mode=2)
        assert ch.expect("basic.ack").delivery_tag == 1
        os.kill(server.pid, signal.SIGKILL)
    again = start(QUICK, data_dir=str(tmp_path))
    ch = connect(again).channel()
    assert waiting(again) == count and ch.ready("q") == 0
    ch.queue("dead", durable=True)
    ch.wait_ready("dead", count)
    wait_until(lambda: waiting(again) == 0 and not again.node.store.logs.notes(NOTE_LETTERS), what="nothing is left of them")


def test_an_http_reject_keeps_it_too(connect: Connect) -> None:
    with Broker(limits=QUICK, http_port=0) as broker:
        ch = connect(broker).channel()
        ch.queue("q", arguments=TO_DEAD)
        ch.publish(b"x", routing_key="q")
        ch.wait_ready("q", 1)
        api = Api(Client(broker))
        value = {"count": 1, "ackmode": "reject_requeue_false", "encoding": "auto"}
        assert len(api.post("queues/%2F/q/get", value)) == 1
        wait_until(lambda: waiting(broker) == 1, what="it waits")
        assert api.get("queues/%2F/q")["messages_dlx"] == 1
        ch.queue("dead")
        ch.wait_ready("dead", 1)
