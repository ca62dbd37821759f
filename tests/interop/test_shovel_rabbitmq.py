"""Shovels of ours and of Debian's RabbitMQ, in all directions; and what RabbitMQ says to wrong values."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.interop.rabbit import Rabbit, rabbits
from tests.links.rig import Side, sides, until
from tests.moves.test_shovels import RABBITMQ, value


@pytest.fixture(scope="module")
def rabbit() -> Iterator[Rabbit]:
    yield from rabbits()


@pytest.fixture
def here() -> Iterator[Side]:
    with sides(1) as (side,):
        yield side


def test_from_rabbitmq_and_back(rabbit: Rabbit, here: Side) -> None:
    for number in range(300):
        rabbit_properties = pika.BasicProperties(headers={"n": number, "t": [15, {"x": "y"}]}, delivery_mode=2, content_type="t/x")
        rabbit.channel.queue_declare("a", durable=True)
        rabbit.channel.basic_publish("", "a", b"%d" % number, rabbit_properties)
    here.shovel(src_uri=rabbit.url, src_queue="a", dest_uri="amqp://", dest_queue="b")
    here.shovel("back", src_uri="amqp://", src_queue="b", dest_uri=rabbit.url, dest_queue="c", src_prefetch_count=11)
    until(lambda: here.status("back").get("moved") == 300)
    assert rabbit.depth("c") == 300 and rabbit.depth("a") == 0
    for number in range(300):
        _, properties, body = rabbit.channel.basic_get("c", auto_ack=True)
        assert body == b"%d" % number
        assert properties.headers == {"n": number, "t": [15, {"x": "y"}]} and properties.content_type == "t/x"


def test_a_shovel_of_rabbitmq(rabbit: Rabbit, here: Side) -> None:
    """RabbitMQ's own shovel takes from us, with confirms of its own, until the queue is empty."""
    here.fill("a", 200)
    spec = {"src-uri": here.url, "src-queue": "a", "dest-uri": here.url, "dest-queue": "b", "src-delete-after": "queue-length"}
    rabbit.api.put("parameters/shovel/%2F/r", {"value": spec})
    until(lambda: here.depth("b") == 200)
    assert here.take("b") == [b"%d" % number for number in range(200)]
    until(lambda: rabbit.api.get("parameters/shovel") == [])


def test_rabbitmq_that_refuses(rabbit: Rabbit, here: Side) -> None:
    rabbit.channel.queue_declare("full", durable=True, arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
    here.fill("a", 30)
    here.shovel(src_uri="amqp://", src_queue="a", dest_uri=rabbit.url, dest_queue="full", reconnect_delay=0.05, src_prefetch_count=1)
    got: list[bytes] = []

    def all_came() -> bool:
        while (found := rabbit.channel.basic_get("full", auto_ack=True))[0] is not None:
            got.append(found[2])
        return len(set(got)) == 30

    until(all_came)
    assert list(dict.fromkeys(got)) == [b"%d" % number for number in range(30)]


def in_our_words(line: str) -> str:
    """RabbitMQ's text without Erlang."""
    for kind, words in (("binary", "a text"), ("list", "a list"), ("boolean", "true or false")):
        line = line.replace(f"should be {kind},", f"should be {words},")
    line = re.sub(r"one of \[([^]]*)\]", lambda found: "one of " + ", ".join(re.findall(r'<<"([^"]*)">>', found[1])), line)
    line = re.sub(r'<<("[^"]*")>>', r"\1", line)
    return re.sub(r"\[(\{.*\})\]", lambda found: "{" + ", ".join(re.findall(r"\{([^}]*)\}", found[1])).replace('",', '": ') + "}", line)


@pytest.mark.parametrize(("changes", "lines"), RABBITMQ, ids=str)
def test_the_same_texts(rabbit: Rabbit, changes: dict[str, Any], lines: list[str]) -> None:
    answer = rabbit.api.ask("PUT", "parameters/shovel/%2F/n", {"value": value(changes)})
    if not lines:
        assert answer.status == 201
        rabbit.api.delete("parameters/shovel/%2F/n")
        return
    assert answer.status == 400
    assert [in_our_words(line) for line in html.unescape(json.loads(answer.raw)["reason"]).split("\n")[2:-1]] == lines
