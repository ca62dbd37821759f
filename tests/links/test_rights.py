"""What a shovel may do: it acts for whoever set it, and reaches what that user may reach. Each test is an attack."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest

from tests.admin.api import Api
from tests.links.rig import Side, sides, until

NOTHING = {"configure": "^$", "write": "^$", "read": "^$"}
OWN = {"configure": "^own", "write": "^(own.*|amq\\.default)$", "read": "^own"}


@pytest.fixture
def here() -> Iterator[Side]:
    with sides(1) as (side,):
        yield side


def test_a_local_uri_acts_as_the_user_who_set_it(here: Side) -> None:
    """On RabbitMQ such a shovel may do everything in the virtual host: a policymaker reads all its queues."""
    here.fill("secret", 3)
    maker = here.user("maker", "policymaker", OWN)
    here.shovel(api=maker, src_uri="amqp://", src_queue="secret", dest_uri="amqp://", dest_queue="own", reconnect_delay=0)
    assert "403 ACCESS_REFUSED - access to queue 'secret'" in here.state("terminated")["reason"]
    assert here.depth("secret") == 3
    here.fill("own-a", 3)
    here.shovel("t", api=maker, src_uri="amqp://", src_queue="own-a", dest_uri="amqp://", dest_queue="own-b")
    until(lambda: here.depth("own-b") == 3)
    assert here.status("t")["owner"] == "maker"
    users = {one.user for one in here.broker.node.broker.connections.values() if one.trusted}
    assert users == {"maker"}


def test_who_sets_it_again_owns_it(here: Side) -> None:
    """A policymaker who changes an administrator's shovel does not get the administrator's rights."""
    here.fill("secret", 3)
    maker = here.user("maker", "policymaker", OWN)
    here.shovel(src_uri="amqp://", src_queue="none", dest_uri="amqp://", dest_queue="own-x")
    here.state("running")
    here.shovel(status=204, api=maker, src_uri="amqp://", src_queue="secret", dest_uri="amqp://", dest_queue="own-x", reconnect_delay=0)
    assert here.state("terminated")["owner"] == "maker" and here.depth("secret") == 3


def test_another_virtual_host_needs_its_permission(here: Side) -> None:
    maker = here.user("maker", "policymaker", OWN)
    here.api.put("vhosts/other", {})
    answer = here.shovel(status=400, api=maker, src_uri="amqp:///other", src_queue="q", dest_uri="amqp://", dest_queue="own")
    assert answer.json["reason"] == 'Validation failed\n\nuser "maker" may not connect to vhost "other"\n'
    here.shovel(status=400, api=maker, src_uri="amqp:///none", src_queue="q", dest_uri="amqp://", dest_queue="own")


def test_only_who_may_set_parameters(here: Side) -> None:
    for tags in ("", "management", "monitoring"):
        user = here.user("u", tags)
        here.shovel(status=401, api=user, src_uri="amqp://", src_queue="q", dest_uri="amqp://", dest_queue="own")
    here.shovel(src_uri="amqp://", src_queue="q", dest_uri="amqp://", dest_queue="own")
    user = here.user("u", "monitoring")
    user.delete("shovels/vhost/%2F/s", 401)
    user.delete("shovels/vhost/%2F/s/restart", 401)
    assert user.get("shovels")
    Api(here.api.client, "u")
    here.user("v", "policymaker").get("shovels", 401)


def test_other_hosts_are_for_administrators(here: Side) -> None:
    """A policymaker does not make the broker connect anywhere: not to its own loopback, where guest may log in, nor to a neighbour."""
    maker = here.user("maker", "policymaker", OWN)
    for uri in (here.url, "amqp://guest:guest@localhost", "amqp://169.254.169.254", "amqp://[::1]"):
        answer = here.shovel(status=400, api=maker, src_uri="amqp://", src_queue="own", dest_uri=["amqp://", uri], dest_queue="own")
        assert "may not reach other hosts" in answer.json["reason"] and "guest:" not in answer.json["reason"]
    answer = here.shovel(
        status=400, api=maker, src_uri="amqp://", src_queue="own", dest_uri="amqp://h?cacertfile=/etc/shadow", dest_queue="own"
    )
    assert "are for administrators" in answer.json["reason"]
    # guest of this node is for loopback, and a connection of a link is none
    here.shovel(api=maker, src_uri="amqp://guest:guest@/", src_queue="own", dest_uri="amqp://", dest_queue="own", reconnect_delay=0)
    assert "403" in here.state("terminated")["reason"]


def test_an_operator_says_which_hosts() -> None:
    with sides(1, shovel_hosts=("127.0.0.1", "localhost")) as (here,):
        maker = here.user("maker", "policymaker")
        here.shovel(api=maker, src_uri="amqp://", src_queue="own", dest_uri=here.uri("maker"), dest_queue="own2")
        here.state("running")
        # the list is for administrators, too
        here.shovel("far", src_uri="amqp://", src_queue="own", dest_uri="amqp://127.0.0.2:1", dest_queue="own2", reconnect_delay=0)
        assert "may not reach this host" in here.state("terminated", "far")["reason"]


def test_it_ends_with_the_rights_of_its_owner(here: Side) -> None:
    maker = here.user("maker", "policymaker")
    here.shovel(api=maker, src_uri="amqp://", src_queue="a", dest_uri="amqp://", dest_queue="b")
    here.state("running")
    here.api.put("users/maker", {"password": "maker", "tags": "management"}, 204)
    assert "may not set parameters" in here.state("terminated")["reason"]
    here.fill("a", 1)
    here.api.put("users/maker", {"password": "maker", "tags": "policymaker"}, 204)
    until(lambda: here.depth("b") == 1)
    until(lambda: here.depth("a") == 0)  # the ack follows: without it the message comes again
    here.api.delete("users/maker")
    until(lambda: "nobody owns it" in here.status().get("reason", ""))
    here.user("maker", "policymaker")  # another user of the name
    here.fill("a", 1)
    here.api.delete("shovels/vhost/%2F/s/restart")
    until(lambda: "nobody owns it" in here.status().get("reason", ""))
    assert here.depth("a") == 1
    here.shovel(status=204, src_uri="amqp://", src_queue="a", dest_uri="amqp://", dest_queue="b")
    until(lambda: here.depth("b") == 2)


def test_a_password_that_is_not_shown_is_not_taken_for_one(here: Side) -> None:
    here.shovel(src_uri="amqp://", src_queue="a", dest_uri="amqp://u:secret@127.0.0.1:1", dest_queue="b")
    (shown,) = here.api.get("parameters/shovel")
    answer = here.api.ask("PUT", "parameters/shovel/%2F/s", {"value": shown["value"]})
    assert answer.status == 400 and "give the password" in answer.json["reason"]


def test_there_are_so_many_and_no_more() -> None:
    with sides(1, limits={"links_vhost_max": 3, "links_user_max": 2}) as (here,):
        maker = here.user("maker", "policymaker")
        value = {"src_uri": "amqp://", "src_queue": "a", "dest_uri": "amqp://", "dest_queue": "b"}
        here.shovel("1", api=maker, **value)
        here.shovel("2", api=maker, **value)
        assert "user 'maker' has set 2" in here.shovel("3", 400, api=maker, **value).json["reason"]
        here.shovel("3", **value)
        assert "vhost '/' has 3 shovels" in here.shovel("4", 400, **value).json["reason"]
        here.shovel("1", 204, api=maker, **value)


def test_shovels_of_one_user_are_one_source_of_guesses() -> None:
    """A shovel's name was the source whose guesses are counted: each new shovel had all guesses of a password anew."""
    with sides(1, limits={"login_user_failures": 2, "login_user_failure_s": 3_600}) as (here,):
        here.user("victim", "administrator")
        maker = here.user("maker", "policymaker", OWN)
        right, wrong = "amqp://victim:victim@/%2F", "amqp://victim:wrong@/%2F"
        for number in range(2):
            value = {"src_uri": wrong, "src_queue": "q", "dest_uri": wrong, "dest_queue": "own", "reconnect_delay": 0}
            here.shovel(f"guess{number}", api=maker, **value)
            assert "login was refused" in here.state("terminated", f"guess{number}")["reason"].lower()
        here.shovel("third", api=maker, src_uri=right, src_queue="q", dest_uri=right, dest_queue="own", reconnect_delay=0)
        assert "too many logins" in here.state("terminated", "third")["reason"]
        pika.BlockingConnection(pika.URLParameters(here.uri("victim"))).close()  # from elsewhere nobody is slowed


def test_any_host_is_no_way_back_to_this_machine() -> None:
    """With --shovel-host '*' a tenant's shovel logged in as guest, who may come from this machine alone, and was an administrator."""
    with sides(1, shovel_hosts=("*",)) as (here,):
        maker = here.user("maker", "policymaker", OWN)
        for number, host in enumerate(("127.0.0.1", "localhost", "0.0.0.0", "[::1]")):
            name, uri = f"s{number}", here.url.replace("127.0.0.1", host)
            here.shovel(name, api=maker, src_uri=uri, src_queue="secret", dest_uri="amqp://", dest_queue="own", reconnect_delay=0)
            reason = here.state("terminated", name)["reason"]
            assert "links may not reach this host" in reason or "can't be resolved" in reason, (host, reason)
        here.fill("q", 2)
        here.shovel("own", src_uri=here.url, src_queue="q", dest_uri=here.url, dest_queue="r")  # an administrator's reaches any
        until(lambda: here.depth("r") == 2)
