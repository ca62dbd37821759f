"""Dead letters of the compiled path are those of Python, to the byte, and the second one needs no Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flintmq.definitions.change_line import BROKER
from tests.definitions.rig import Answer
from tests.support.broker import wait_until
from tests.support.rawamqp import Method, RawChannel

TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
# what the publisher of a message may have written
PROPERTIES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "persistent": {"delivery_mode": 2},
    "all": {
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "headers": {"zebra": 1, "Array": [1, "two", {"three": 3}], "x-death": "forged"},
        "delivery_mode": 1,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "message_id": "m",
        "timestamp": 5,
        "type": "t",
        "user_id": "guest",
        "app_id": "a",
    },
    "dead before": {"headers": {"x-death": [{"queue": "other", "reason": "expired", "count": 3}, {"queue": "q", "reason": "rejected"}]}},
}


@pytest.fixture
def broker(start: Callable[..., Any]) -> Any:
    return start()


@pytest.fixture
def ch(broker: Any, connect: Callable[..., Any]) -> RawChannel:
    return connect(broker).channel()


def in_python(broker: Any) -> int:
    """Dead letters that Python published so far."""
    return broker.node.broker.counters.in_python["dead_letter"]


def get(ch: RawChannel, queue: str) -> Method:
    ch.wait_ready(queue, 1)
    return ch.call("basic.get", queue=queue, no_ack=True)


def die(ch: RawChannel, how: str, body: bytes, properties: dict[str, Any]) -> None:
    """One message dies in q."""
    ch.publish(body, routing_key="q", **({**properties, "expiration": "1"} if how == "expired" else properties))
    if how == "maxlen":
        ch.publish(b"next", routing_key="q")
    if how in ("rejected", "nacked"):
        tag = ch.call("basic.get", queue="q").delivery_tag
        if how == "rejected":
            ch.send("basic.reject", delivery_tag=tag, requeue=False)
        else:
            ch.send("basic.nack", delivery_tag=tag, multiple=True, requeue=False)


@pytest.mark.parametrize("properties", PROPERTIES.values(), ids=PROPERTIES)
@pytest.mark.parametrize(
    ("how", "keeps"),
    [("maxlen", False), *((how, keeps) for how in ("expired", "rejected", "nacked") for keeps in (False, True))],
    ids=lambda value: {True: "at-least-once", False: "at-most-once"}.get(value, value),
)
def test_the_second_letter_is_as_the_first_without_python(
    ch: RawChannel, broker: Any, how: str, properties: dict[str, Any], keeps: bool
) -> None:
    ch.queue("dead", durable=True)
    arguments: dict[str, Any] = dict(TO_DEAD)
    if how == "maxlen":
        arguments["x-max-length"] = 1
    if keeps:
        arguments.update({"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-queue-type": "quorum"})
    ch.queue("q", durable=True, arguments=arguments)
    letters = []
    for number in range(3):
        before = in_python(broker)
        die(ch, how, b"body", properties)
        letters.append(get(ch, "dead"))
        assert in_python(broker) - before == (1 if number == 0 else 0)
        if how == "maxlen":
            ch.call("queue.purge", queue="q")
    headers = [letter.properties["headers"] for letter in letters]
    for one in headers:
        one["x-death"][0].pop("time", None)
    first = letters[0]
    for letter in letters[1:]:
        assert (letter.body, letter.properties, letter.exchange, letter.routing_key) == (
            first.body,
            first.properties,
            first.exchange,
            first.routing_key,
        )
    reason = {"nacked": "rejected"}.get(how, how)
    counters = broker.node.broker.counters
    wait_until(lambda: counters.dead_lettered[reason] == 3)
    assert headers[0]["x-death"][0]["reason"] == reason
    assert "expiration" not in first.properties


def test_letters_of_messages_that_differ_in_one_thing_are_their_own(ch: RawChannel, broker: Any) -> None:
    """The header of the last letter is remembered (channel/letter_memo): nothing of it is given to another message."""
    ch.queue("dead")
    for queue in ("q", "p"):
        ch.queue(queue, arguments=TO_DEAD)
        ch.call("exchange.declare", exchange=f"to {queue}", type="fanout")
        ch.call("queue.bind", queue=queue, exchange=f"to {queue}")
    sent = [
        (queue, exchange, how, properties)
        for properties in ({"message_id": "1"}, {"message_id": "2"}, {"message_id": "2", "headers": {"long": "h" * 2000}}, {"priority": 1})
        for queue in ("q", "p", "q", "q")
        for how in ("rejected", "expired", "rejected")
        for exchange in ("", f"to {queue}")
    ]
    for queue, exchange, how, properties in sent:
        key = queue if exchange == "" else "key"
        ch.publish(b"", exchange=exchange, routing_key=key, **({**properties, "expiration": "1"} if how == "expired" else properties))
        if how == "rejected":
            ch.send("basic.reject", delivery_tag=ch.call("basic.get", queue=queue).delivery_tag, requeue=False)
        letter = get(ch, "dead")
        died = letter.properties["headers"].pop("x-death")
        assert len(died) == 1 and died[0]["count"] == 1 and died[0]["reason"] == how
        assert died[0]["exchange"] == exchange and died[0]["routing-keys"] == [key]
        assert died[0]["queue"] == queue
        assert letter.properties["headers"].pop("x-first-death-reason") == how
        given = {name: value for name, value in letter.properties.items() if name != "headers"}
        assert given == {name: value for name, value in properties.items() if name != "headers"}
        assert letter.properties["headers"].get("long") == properties.get("headers", {}).get("long")


def test_a_letter_goes_to_every_queue_of_its_route_but_round_in_a_circle(ch: RawChannel, broker: Any) -> None:
    ch.call("exchange.declare", exchange="dlx", type="topic")
    for name in ("a", "b", "q"):
        ch.queue(name, arguments={"x-message-ttl": 1, "x-dead-letter-exchange": "dlx"} if name == "q" else {})
        ch.call("queue.bind", queue=name, exchange="dlx", routing_key="#")
    for number in range(4):
        ch.publish(b"%d" % number, routing_key="q")
        ch.wait_ready("a", number + 1)
    ch.wait_ready("b", 4)
    counters = broker.node.broker.counters
    wait_until(lambda: counters.drops["dead_letter_cycle"] == 4)
    assert (ch.ready("q"), counters.in_python["dead_letter"], counters.drops["expired"]) == (0, 1, 0)


def test_retries_count_and_cost_no_python(ch: RawChannel, broker: Any) -> None:
    """Work, rejected, wait, expired, work: as users build retries. Its fiftieth death costs what its third does."""
    ch.queue("work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"})
    ch.queue("wait", arguments={"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"})
    ch.publish(b"job", routing_key="work", headers={"mine": 1})
    for number in range(50):
        ch.wait_ready("work", 1)
        got = ch.call("basic.get", queue="work")
        deaths = got.properties["headers"].get("x-death", [])
        assert [(death["queue"], death["reason"], death["count"]) for death in deaths] == (
            [("wait", "expired", number), ("work", "rejected", number)] if number else []
        )
        ch.send("basic.reject", delivery_tag=got.delivery_tag, requeue=False)
    assert in_python(broker) == 2


def test_a_row_of_full_queues_passes_its_heads_on(ch: RawChannel, broker: Any) -> None:
    for number in range(5):
        ch.queue(f"q{number}", arguments={"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"q{number + 1}"})
    ch.queue("q5")
    for number in range(20):
        ch.publish(b"%d" % number, routing_key="q0")
    wait_until(lambda: ch.ready("q5") == 15)
    assert [get(ch, f"q{number}").body for number in range(5)] == [b"19", b"18", b"17", b"16", b"15"]
    assert [ch.call("basic.get", queue="q5", no_ack=True).body for _ in range(15)] == [b"%d" % number for number in range(15)]
    assert in_python(broker) == 5


def test_a_change_of_policy_is_followed(ch: RawChannel, broker: Any) -> None:
    """The address of letters is found out anew: no letter goes where the queue's arguments of before said."""
    vhost = broker.node.broker.vhosts["/"]
    for name in ("one", "two"):
        ch.queue(name)
    ch.queue("q", arguments={"x-message-ttl": 1})
    for count, key in ((1, "one"), (1, "two"), (2, "one")):
        answer = Answer()
        definition = {"dead-letter-exchange": "", "dead-letter-routing-key": key}
        broker.node.definitions.put_policy(BROKER, "/", "letters", {"pattern": "^q$", "definition": definition}, answer.done)
        answer.wait()
        for _ in range(3):
            before = ch.ready(key)
            ch.publish(b"x", routing_key="q")
            ch.wait_ready(key, before + 1)
        assert ch.ready(key) == 3 * count
    assert vhost.queues["q"].core.ready_count() == 0


def test_an_exchange_that_goes_and_comes_back(ch: RawChannel, broker: Any) -> None:
    ch.queue("dead")
    ch.queue("q", arguments={"x-message-ttl": 1, "x-dead-letter-exchange": "dlx"})
    counters = broker.node.broker.counters
    for number in range(1, 4):
        ch.call("exchange.declare", exchange="dlx", type="fanout")
        ch.call("queue.bind", queue="dead", exchange="dlx")
        for one in range(2):
            ch.publish(b"x", routing_key="q")
            ch.wait_ready("dead", 2 * number - 1 + one)
        ch.call("exchange.delete", exchange="dlx")
        ch.publish(b"lost", routing_key="q")
        wait_until(lambda count=number: counters.drops["no_dead_letter_exchange"] == count)
    assert ch.ready("dead") == 6


@pytest.mark.parametrize("size", [1, 1 << 20, (1 << 20) + 1])
def test_bodies_of_any_size(ch: RawChannel, broker: Any, size: int) -> None:
    """Those above LETTER_COPY_MAX are left to Python."""
    ch.queue("dead")
    ch.queue("q", arguments=TO_DEAD)
    for number in range(2):
        die(ch, "rejected", bytes([65 + number]) * size, {})
        assert get(ch, "dead").body == bytes([65 + number]) * size
    assert in_python(broker) == (2 if size > 1 << 20 else 1)
