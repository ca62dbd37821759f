"""Federation over the wire: exchanges and queues of one broker fed by another, in chains and circles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.links.rig import Side, sides, until


@pytest.fixture
def trio() -> Iterator[list[Side]]:
    with sides(3) as all_of_them:
        for number, side in enumerate(all_of_them):
            side.api.put("global-parameters/cluster_name", {"value": f"c{number}"})
        yield all_of_them


def federate(here: Side, there: Side, pattern: str = "^fed", name: str = "up", **more: Any) -> None:
    """`here` gets from `there`."""
    value = {"uri": there.url, "reconnect-delay": 0.1, **more}
    here.api.ask("PUT", f"parameters/federation-upstream/%2F/{name}", {"value": value})
    here.api.ask("PUT", "policies/%2F/fed", {"pattern": pattern, "definition": {"federation-upstream-set": "all"}})


def running(side: Side, count: int = 1) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = until(
        lambda: len(links := side.api.get("federation-links")) == count and all(one["status"] == "running" for one in links) and links
    )
    return found


def bound(side: Side, exchange: str) -> list[tuple[str, Any]]:
    """What links of others have bound to an exchange."""
    found = list(side.broker.node.broker.vhosts["/"].exchanges[exchange].bindings.values())
    links = [(one.routing_key.decode(), one.arguments["x-bound-from"]) for one in found if "x-bound-from" in one.arguments]
    return sorted(links, key=lambda one: one[0])


def test_an_exchange_gets_what_is_bound_here(trio: list[Side]) -> None:
    there, here, _ = trio
    for side in (here, there):
        side.channel.exchange_declare("fed", "topic")
    here.channel.queue_declare("q")
    here.channel.queue_bind("q", "fed", "eu.#")
    federate(here, there)
    (link,) = running(here)
    assert (link["type"], link["exchange"], link["upstream_exchange"], link["upstream"]) == ("exchange", "fed", "fed", "up")
    assert "guest" not in link["uri"] and len(link["id"]) == 8
    (one,) = until(lambda: bound(there, "fed"))
    assert one[0] == "eu.#" and one[1][0]["cluster-name"] == "c1" and one[1][0]["hops"] == 1
    queues = there.broker.node.broker.vhosts["/"].queues
    assert queues["federation: fed -> c1"].durable
    there.channel.basic_publish("fed", "eu.x", b"1", pika.BasicProperties(headers={"mine": 1}, user_id="guest"))
    there.channel.basic_publish("fed", "us.x", b"2")
    until(lambda: here.depth("q") == 1)
    method, properties, body = here.channel.basic_get("q", auto_ack=True)
    assert (method.exchange, method.routing_key, body, properties.user_id) == ("fed", "eu.x", b"1", None)
    assert properties.headers == {
        "mine": 1,
        "x-received-from": [
            {"uri": link["uri"], "exchange": "fed", "redelivered": False, "cluster-name": "c0", "vhost": "/"},
        ],
    }
    # bindings come and go
    here.channel.queue_bind("q", "fed", "us.#")
    until(lambda: [key for key, _ in bound(there, "fed")] == ["eu.#", "us.#"])
    here.channel.queue_unbind("q", "fed", "eu.#")
    until(lambda: [key for key, _ in bound(there, "fed")] == ["us.#"])
    there.channel.basic_publish("fed", "us.x", b"3")
    until(lambda: here.depth("q") == 1)
    # and all of it goes when nobody wants it any more
    here.api.delete("policies/%2F/fed")
    until(lambda: not bound(there, "fed") and "federation: fed -> c1" not in queues)
    assert here.api.get("federation-links") == []


def test_messages_wait_upstream_while_the_link_is_down(trio: list[Side]) -> None:
    there, here, _ = trio
    for side in (here, there):
        side.channel.exchange_declare("fed", "fanout", durable=True)
    here.channel.queue_declare("q")
    here.channel.queue_bind("q", "fed")
    federate(here, there)
    (link,) = running(here)
    until(lambda: bound(there, "fed"))
    for number in range(200):
        there.channel.basic_publish("fed", "", b"%d" % number)
        if number == 100:
            here.kill_process()
    got: list[bytes] = []
    until(lambda: got.extend(here.take("q")) or len(set(got)) >= 200)
    assert list(dict.fromkeys(got)) == [b"%d" % number for number in range(200)]
    running(here)
    assert here.api.ask("DELETE", f"federation-links/vhost/%2F/{link['id']}/restart").status == 204
    running(here)


@pytest.mark.parametrize(("hops", "reaches"), [(1, False), (2, True)])
def test_a_chain_is_as_long_as_its_hops(trio: list[Side], hops: int, reaches: bool) -> None:
    """c0 -> c1 -> c2: bindings of c2 reach c0 with two hops, and so do messages of c0 reach c2."""
    first, second, third = trio
    for side in trio:
        side.channel.exchange_declare("fed", "direct")
    third.channel.queue_declare("q")
    third.channel.queue_bind("q", "fed", "k")
    federate(second, first, **{"max-hops": hops})
    federate(third, second, **{"max-hops": hops})
    running(second)
    running(third)
    until(lambda: bound(second, "fed"))
    if reaches:
        until(lambda: bound(first, "fed"))
        first.channel.basic_publish("fed", "k", b"far")
    second.channel.basic_publish("fed", "k", b"near")
    until(lambda: third.depth("q") == 1 + reaches)
    assert set(third.take("q")) == {b"near", *([b"far"] if reaches else [])}
    assert bool(bound(first, "fed")) is reaches


def test_a_circle_ends(trio: list[Side]) -> None:
    """Each gets from both others, with many hops: a message is at each place once."""
    for side in trio:
        side.channel.exchange_declare("fed", "fanout")
        side.channel.queue_declare("q")
        side.channel.queue_bind("q", "fed")
    for side in trio:
        for number, other in enumerate(trio):
            if other is not side:
                federate(side, other, name=f"up{number}", **{"max-hops": 5})
    for side in trio:
        running(side, 2)
        until(lambda side=side: len(bound(side, "fed")) >= 2)
    trio[0].channel.basic_publish("fed", "", b"once")
    for side in trio:
        until(lambda side=side: side.depth("q") >= 1)
    # what goes round comes back by now: a message behind the first one has been everywhere
    trio[0].channel.basic_publish("fed", "", b"behind")
    came: list[list[bytes]] = [[] for _ in trio]

    def all_came() -> bool:
        for one, side in zip(came, trio, strict=True):
            one += side.take("q")
        return all({b"once", b"behind"} <= set(one) for one in came)

    until(all_came)
    assert came[0] == [b"once", b"behind"]
    assert all(set(one) == {b"once", b"behind"} and len(one) <= 4 for one in came[1:])


def test_a_queue_moves_what_consumers_here_can_take(trio: list[Side]) -> None:
    """Nothing without a consumer; with one, what it has room for; a consumer upstream comes first."""
    there, here, _ = trio
    there.fill("fedq", 100)
    here.channel.queue_declare("fedq", durable=True)
    federate(here, there, **{"prefetch-count": 5})
    (link,) = running(here)
    assert (link["type"], link["queue"], link["upstream_queue"], link["consumer_tag"]) == ("queue", "fedq", "fedq", "federation-link-up")
    assert there.depth("fedq") == 100
    consuming = here.connection.channel()
    consuming.basic_qos(prefetch_count=3)
    got: list[Any] = []
    consuming.basic_consume("fedq", lambda channel, method, properties, body: got.append((method, properties, body)))

    def work() -> bool:
        here.connection.process_data_events(0.01)
        return True

    until(lambda: work() and len(got) == 3)
    # its prefetch is used up: no more than what was under way is here
    until(lambda: work() and here.broker.node.links._links["queue", "/", "fedq", "up"].said == {"wants": False})
    before = there.depth("fedq")
    assert before >= 100 - 3 - 2 * 5
    for method, _, _ in list(got):
        consuming.basic_ack(method.delivery_tag)
    until(lambda: work() and len(got) > 3)
    headers = got[0][1].headers
    assert headers["x-original-exchange"] == "" and headers["x-original-routing-key"] == "fedq"
    (entry,) = headers["x-received-from"]
    assert (entry["queue"], entry["visit-count"], entry["redelivered"]) == ("fedq", 1, False)
    done = {id(one) for one in got[:3]}

    def settle() -> bool:
        work()
        for one in got:
            if id(one) not in done:
                done.add(id(one))
                consuming.basic_ack(one[0].delivery_tag)
        return len(got) == 100

    until(settle)
    assert [body for _, _, body in got] == [b"%d" % number for number in range(100)]


def test_it_acts_as_its_owner(trio: list[Side]) -> None:
    """A policymaker who may not write to an exchange does not get messages into it by federation, nor reach other hosts."""
    there, here, _ = trio
    here.channel.exchange_declare("fed", "fanout")
    maker = here.user("maker", "policymaker", {"configure": "^$", "write": "^none$", "read": "^$"})
    answer = maker.ask("PUT", "parameters/federation-upstream/%2F/up", {"value": {"uri": there.url}})
    assert answer.status == 400 and "may not reach other hosts" in answer.json["reason"]
    maker.put("parameters/federation-upstream/%2F/up", {"value": {"uri": "amqp://", "exchange": "secret"}})
    maker.put("policies/%2F/fed", {"pattern": "^fed", "definition": {"federation-upstream": "up"}})
    (link,) = until(lambda: [one for one in here.api.get("federation-links") if one["status"] == "error"])
    assert "403 ACCESS_REFUSED" in link["error"] and link["owner"] == "maker"


@pytest.mark.parametrize(
    ("component", "value", "text"),
    [
        ("federation-upstream", {}, 'Key "uri" not found in n'),
        ("federation-upstream", {"uri": 5}, "uri should be a list, actually was 5"),
        ("federation-upstream", {"uri": "amqp://", "foo": 2}, 'Unrecognised terms {"foo": 2} in n'),
        ("federation-upstream", {"uri": "amqp://", "expires": "x"}, 'expires should be a number, actually was "x"'),
        ("federation-upstream-set", [{}], 'Key "upstream" not found in n'),
        ("federation-upstream-set", [{"upstream": "u", "exchange": 5}], "exchange should be a text, actually was 5"),
    ],
)
def test_rabbitmqs_texts(component: str, value: Any, text: str) -> None:
    from flintmq.moves.upstreams import check

    assert check(component, "n", value) == [text]


def test_policies_of_federation(trio: list[Side]) -> None:
    (here, *_) = trio
    for definition, text in (
        ({"federation-upstream-set": "a", "federation-upstream": "b"}, "together"),
        ({"federation-upstream-set": 5}, "5 is not a valid federation upstream set name"),
        ({"federation-upstream-pattern": "("}, "could not compile pattern"),
    ):
        answer = here.api.ask("PUT", "policies/%2F/p", {"pattern": "x", "definition": definition})
        assert answer.status == 400 and text in answer.json["reason"]


def test_a_set_does_not_say_where_to(trio: list[Side]) -> None:
    """A member of a set with a URI of its own, kept from before sets were checked, is not where an administrator's upstream goes."""
    from flintmq.moves.upstreams import check, settings

    assert settings("up", {"uri": "amqp://good"}, {"upstream": "up", "uri": "amqp://evil", "max-hops": 3})["uri"] == "amqp://good"
    assert check("federation-upstream-set", "s", [{"upstream": "up", "uri": "amqp://evil"}])


def test_a_virtual_host_has_so_many_links() -> None:
    with sides(1, limits={"links_vhost_max": 3, "federation_bindings_max": 2}) as (here,):
        for number in range(6):
            here.channel.exchange_declare(f"fed{number}", "direct")
        here.api.put("parameters/federation-upstream/%2F/up", {"value": {"uri": "amqp://", "exchange": "x"}})
        here.api.put("policies/%2F/fed", {"pattern": "^fed", "definition": {"federation-upstream": "up"}})
        links = running(here, 3)
        here.channel.queue_declare("q")
        for key in "abc":
            here.channel.queue_bind("q", links[0]["exchange"], key)
        until(lambda: "more than 2 bindings" in here.api.get("federation-links")[0].get("error", ""))
