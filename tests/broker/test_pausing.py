"""Queues whose deliveries rest: what stops, what goes on, what a restart and a new queue of the name find."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from click.testing import CliRunner

from flintmq.cli.main import cli
from flintmq.testing.broker import Broker
from tests.admin.api import Api
from tests.admin.conftest import Client, basic, start  # noqa: F401
from tests.admin.test_events import Stream
from tests.support.broker import Broker as Killed
from tests.support.broker import wait_until

PAUSE, RESUME = "queues/%2F/{}/pause", "queues/%2F/{}/resume"


class Rig:
    """A broker, its API, a channel, and what its consumers got."""

    def __init__(self, client: Client) -> None:
        self.client, self.api, self.broker = client, Api(client), client.broker
        self.connection = pika.BlockingConnection(pika.URLParameters(client.broker.url))
        self.channel: Any = self.connection.channel()
        self.got: list[bytes] = []

    def state(self, name: str = "q") -> str:
        return str(self.api.get(f"queues/%2F/{name}")["state"])

    def pause(self, name: str = "q") -> None:
        self.api.ask("PUT", PAUSE.format(name))
        assert self.state(name) == "paused"

    def resume(self, name: str = "q") -> None:
        self.api.ask("PUT", RESUME.format(name))
        assert self.state(name) == "running"

    def consume(self, name: str = "q", **arguments: Any) -> str:
        def take(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            self.got.append(body)
            channel.basic_ack(method.delivery_tag)

        return str(self.channel.basic_consume(name, take, arguments=arguments))

    def publish(self, *bodies: bytes, name: str = "q") -> None:
        for body in bodies:
            self.channel.basic_publish("", name, body, pika.BasicProperties(delivery_mode=2))

    def until(self, *bodies: bytes) -> None:
        wait_until(lambda: (self.connection.process_data_events(0.01), self.got == list(bodies))[1])

    def ready(self, count: int, name: str = "q") -> None:
        core = self.broker.node.broker.vhosts["/"].queues[name].core
        wait_until(lambda: core.ready_count() == count)

    def nothing_comes(self) -> None:
        """What was sent before this call is here: the broker answers in order."""
        before = list(self.got)
        self.channel.queue_declare("other")
        self.connection.process_data_events(0)
        assert self.got == before


@pytest.fixture
def rig(start: Callable[..., Client]) -> Iterator[Rig]:  # noqa: F811
    made = Rig(start())
    yield made
    made.connection.close()


def test_deliveries_rest_and_publishes_go_on(rig: Rig) -> None:
    rig.channel.queue_declare("q")
    rig.consume()
    rig.publish(b"1")
    rig.until(b"1")
    rig.pause()
    rig.publish(b"2", b"3")
    rig.ready(2)
    rig.nothing_comes()
    assert rig.channel.basic_get("q")[0] is None
    rig.channel.queue_declare("free")  # others go on
    rig.publish(b"x", name="free")
    rig.ready(1, "free")
    assert rig.channel.basic_get("free", auto_ack=True)[2] == b"x"
    rig.resume()
    rig.until(b"1", b"2", b"3")


def test_who_comes_while_it_rests_waits(rig: Rig) -> None:
    rig.channel.queue_declare("q")
    rig.publish(b"1")
    rig.ready(1)
    rig.pause()
    tag = rig.consume()
    rig.nothing_comes()
    rig.channel.basic_cancel(tag)
    rig.consume(**{"x-priority": 5})
    rig.nothing_comes()
    rig.resume()
    rig.until(b"1")


def test_what_is_in_hand_stays_and_what_comes_back_waits(rig: Rig) -> None:
    rig.channel.queue_declare("q")
    rig.publish(b"1", b"2")
    rig.ready(2)
    (first, _, _), (second, _, _) = rig.channel.basic_get("q"), rig.channel.basic_get("q")
    rig.pause()
    rig.channel.basic_ack(first.delivery_tag)
    rig.channel.basic_nack(second.delivery_tag)
    rig.ready(1)
    rig.consume()
    rig.nothing_comes()
    rig.resume()
    rig.until(b"2")


def test_the_active_one_of_a_single_active_queue_goes_on_alone(rig: Rig) -> None:
    rig.channel.queue_declare("q", arguments={"x-single-active-consumer": True})
    first, second = rig.consume(), rig.consume()
    rig.pause()
    rig.channel.basic_cancel(first)  # the next one becomes active, and waits all the same
    rig.publish(b"1")
    rig.ready(1)
    rig.nothing_comes()
    third = rig.consume()
    rig.resume()
    rig.until(b"1")
    assert rig.api.get("queues/%2F/q")["single_active_consumer_tag"] == second != third


@pytest.mark.parametrize("shared", [0, 1])
def test_message_groups_rest_and_stay_in_order(rig: Rig, shared: int) -> None:
    """Groups that are held when the pause begins, that are given back while it lasts, and that come meanwhile; two consumers."""
    rig.channel.queue_declare("q", arguments={"qpid.group_header_key": "g", "qpid.shared_msg_group": shared})

    def put(*bodies: bytes) -> None:
        for body in bodies:
            rig.channel.basic_publish("", "q", body, pika.BasicProperties(headers={"g": body[:1].decode()}))

    put(b"a1", b"b1", b"a2")
    rig.ready(3)
    held = [rig.channel.basic_get("q") for _ in range(2)]
    assert [body for _, _, body in held] == [b"a1", b"b1"]
    rig.pause()
    first, second = rig.consume(), rig.consume()
    put(b"b2", b"c1", b"a3")
    rig.ready(4)
    rig.channel.basic_nack(held[0][0].delivery_tag)  # to its place, in front of its group
    rig.channel.basic_ack(held[1][0].delivery_tag)  # its group is free: nobody gets it yet
    rig.ready(5)
    rig.nothing_comes()
    rig.channel.basic_cancel(first)
    rig.nothing_comes()
    rig.resume()
    wait_until(lambda: (rig.connection.process_data_events(0.01), len(rig.got) == 5)[1])
    for group in (b"a", b"b", b"c"):
        mine = [body for body in rig.got if body[:1] == group]
        assert mine == sorted(mine) and mine
    rig.pause()
    put(b"a4")
    rig.ready(1)
    rig.nothing_comes()
    rig.resume()
    wait_until(lambda: (rig.connection.process_data_events(0.01), rig.got[-1] == b"a4")[1])
    rig.channel.basic_cancel(second)


def test_a_stream_rests_too(tmp_path: Path, start: Callable[..., Client]) -> None:  # noqa: F811
    rig = Rig(start(data_dir=str(tmp_path)))
    rig.channel.queue_declare("q", durable=True, arguments={"x-queue-type": "stream"})
    rig.channel.basic_qos(prefetch_count=10)
    rig.consume(**{"x-stream-offset": "first"})
    rig.publish(b"1")
    rig.until(b"1")
    rig.pause()
    rig.channel.confirm_delivery()
    rig.publish(b"2")
    rig.nothing_comes()
    rig.resume()
    rig.until(b"1", b"2")
    rig.connection.close()


def test_pulls_find_nothing_until_it_is_resumed(rig: Rig) -> None:
    rig.channel.queue_declare("q")
    rig.publish(b"1", b"2")
    rig.ready(2)
    client = rig.client
    assert len(client.pull("?visibility=60")) == 1
    rig.pause()
    assert client.pull() == [] and client.pull("?group=new") == []
    held = client.connection(60)
    held.request("GET", client.path() + "?hold=30", headers=basic())
    wait_until(lambda: client.node.http._parts.held == 1)
    rig.resume()
    answer = json.loads(held.getresponse().read())
    assert [one["body"] for one in answer["messages"]] == ["2"]
    held.close()


def test_it_rests_over_a_restart_and_a_new_queue_of_the_name_does_not(tmp_path: Path) -> None:
    def opened() -> Broker:
        return Broker(http_port=0, data_dir=str(tmp_path))

    with opened() as broker:
        rig = Rig(Client(broker))
        for name in ("q", "gone"):
            rig.channel.queue_declare(name, durable=True)
            rig.pause(name)
        rig.channel.confirm_delivery()
        rig.publish(b"1")
        rig.channel.queue_delete("gone")
        rig.channel.queue_declare("gone", durable=True)
        assert rig.state("gone") == "running"
        rig.connection.close()
    with opened() as broker:
        rig = Rig(Client(broker))
        assert (rig.state(), rig.state("gone")) == ("paused", "running")
        rig.consume()
        rig.nothing_comes()
        rig.resume()
        rig.until(b"1")
        rig.connection.close()
    with opened() as broker:
        rig = Rig(Client(broker))
        assert rig.state() == "running"
        rig.connection.close()


def test_it_rests_after_kill_9(tmp_path: Path) -> None:
    def ctl(broker: Killed, *words: str) -> str:
        result = CliRunner().invoke(cli, ["ctl", "-s", "--uri", f"http://127.0.0.1:{broker.ready['http_port']}", *words])
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    for state in ("running", "paused", "running"):
        with Killed("--data-dir", str(tmp_path), "--http-port", "0") as broker:
            if broker.external:
                pytest.skip("kills the broker")
            connection = pika.BlockingConnection(pika.URLParameters(broker.url))
            connection.channel().queue_declare("q", durable=True)
            connection.close()
            assert ctl(broker, "list_queues", "name", "state") == f"q\t{state}\n"
            ctl(broker, "resume_queue" if state == "paused" else "pause_queue", "q")
            broker.kill()


def test_who_may_and_what_is_told(rig: Rig) -> None:
    rig.channel.queue_declare("q")
    rig.api.user("user", "", "%2F")
    rig.api.user("reader", "management")
    rig.api.put("permissions/%2F/reader", {"configure": "^$", "write": ".*", "read": ".*"})
    for name in ("user", "reader"):
        assert Api(rig.client, name).ask("PUT", PAUSE.format("q")).status == 401
    assert rig.state() == "running"
    assert rig.api.ask("PUT", PAUSE.format("none")).status == 404
    stream = Stream(rig.client)
    rig.pause()
    rig.pause()  # again: no event
    told = stream.until("event")
    assert (told["kind"], told["queue"], told["vhost"]) == ("queue.paused", "q", "/")
    assert b"\nflintmq_queues_paused 1\n" in rig.client.get("/metrics").raw
    rig.resume()
    assert stream.until("event")["kind"] == "queue.resumed"
    assert b"\nflintmq_queues_paused 0\n" in rig.client.get("/metrics").raw
    stream.close()
    # no parameter of users: neither shown nor set by them
    rig.pause()
    assert not [one for one in rig.api.get("parameters") if one["component"] == "queue-pause"]
    assert rig.api.ask("PUT", "parameters/queue-pause/%2F/q", {"value": 1}).status == 400
