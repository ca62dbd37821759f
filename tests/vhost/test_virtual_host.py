"""Every verb of a virtual host does what RabbitMQ does, refuses with its codes and texts, and leaves nothing half done."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.errors import PeerError, ReplyCode
from flintmq.vhost.names import generate_queue_name
from flintmq.vhost.virtual_host import VirtualHost

from .fakes import World

LOCKED = (
    "cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be originally declared on another connection or the"
    " exclusive property value does not match that of the original declaration."
)


def refused(code: ReplyCode, text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(PeerError) as caught:
        call()
    assert (caught.value.code, caught.value.text) == (code, text)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def vhost(world: World) -> VirtualHost:
    return world.vhost


# --- exchanges ----------------------------------------------------------------------------------------------------------


def test_predeclared_exchanges_are_there_and_stay(vhost: VirtualHost) -> None:
    kinds = {name: exchange.kind for name, exchange in vhost.exchanges.items()}
    assert kinds == {
        "": "direct",
        "amq.direct": "direct",
        "amq.fanout": "fanout",
        "amq.topic": "topic",
        "amq.headers": "headers",
        "amq.match": "headers",
        "amq.rabbitmq.trace": "topic",
    }
    text = "deletion of system exchange 'amq.direct' in vhost '/' not allowed"
    refused(ReplyCode.ACCESS_REFUSED, text, lambda: vhost.run(vhost.delete_exchange("amq.direct")))
    assert vhost.run(vhost.declare_exchange("amq.topic", "topic", durable=True)) is vhost.exchanges["amq.topic"]


def test_the_default_exchange_is_untouchable(vhost: VirtualHost) -> None:
    vhost.run(vhost.declare_queue("q"))
    vhost.run(vhost.declare_exchange("x"))
    text = "operation not permitted on the default exchange"
    calls: list[Callable[[], Any]] = [
        lambda: vhost.run(vhost.declare_exchange("", "direct")),
        lambda: vhost.run(vhost.declare_exchange("", "direct", passive=True)),
        lambda: vhost.run(vhost.delete_exchange("")),
        lambda: vhost.run(vhost.bind_queue("q", "", b"k")),
        lambda: vhost.run(vhost.unbind_queue("q", "", b"q")),
        lambda: vhost.run(vhost.bind_exchange("", "x")),
        lambda: vhost.run(vhost.bind_exchange("x", "")),
        lambda: vhost.run(vhost.unbind_exchange("x", "")),
    ]
    for call in calls:
        refused(ReplyCode.ACCESS_REFUSED, text, call)


def test_declaring_an_exchange_refuses(vhost: VirtualHost) -> None:
    refused(
        ReplyCode.ACCESS_REFUSED,
        "exchange name 'amq.mine' contains reserved prefix 'amq.*'",
        lambda: vhost.run(vhost.declare_exchange("amq.mine", "direct")),
    )
    refused(ReplyCode.NOT_FOUND, "no exchange 'x' in vhost '/'", lambda: vhost.run(vhost.declare_exchange("x", passive=True)))
    refused(ReplyCode.COMMAND_INVALID, "unknown exchange type 'odd'", lambda: vhost.run(vhost.declare_exchange("x", "odd")))
    refused(
        ReplyCode.PRECONDITION_FAILED,
        "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'",
        lambda: vhost.run(vhost.declare_exchange("x", arguments={"alternate-exchange": 5})),
    )
    assert "x" not in vhost.exchanges


@pytest.mark.parametrize(
    ("again", "difference"),
    [
        ({"kind": "topic"}, "'type' for exchange 'x' in vhost '/': received 'topic' but current is 'direct'"),
        ({"durable": True}, "'durable' for exchange 'x' in vhost '/': received 'true' but current is 'false'"),
        ({"auto_delete": True}, "'auto_delete' for exchange 'x' in vhost '/': received 'true' but current is 'false'"),
        ({"internal": True}, "'internal' for exchange 'x' in vhost '/': received 'true' but current is 'false'"),
        (
            {"arguments": {"alternate-exchange": "ae"}},
            "'alternate-exchange' for exchange 'x' in vhost '/': received the value 'ae' of type 'longstr' but current is none",
        ),
    ],
)
def test_exchange_equivalence(vhost: VirtualHost, again: dict[str, Any], difference: str) -> None:
    first = vhost.run(vhost.declare_exchange("x", "direct", arguments={"unknown": 1}))
    assert vhost.run(vhost.declare_exchange("x", "direct", arguments={"unknown": 2})) is first
    refused(ReplyCode.PRECONDITION_FAILED, f"inequivalent arg {difference}", lambda: vhost.run(vhost.declare_exchange("x", **again)))


def test_deleting_an_exchange(world: World, vhost: VirtualHost) -> None:
    vhost.run(vhost.declare_queue("q"))
    vhost.run(vhost.declare_exchange("x", durable=True))
    vhost.run(vhost.bind_queue("q", "x", b"k"))
    refused(
        ReplyCode.PRECONDITION_FAILED, "exchange 'x' in vhost '/' in use", lambda: vhost.run(vhost.delete_exchange("x", if_unused=True))
    )
    assert vhost.run(vhost.delete_exchange("x"))
    assert not vhost.run(vhost.delete_exchange("x"))
    refused(ReplyCode.NOT_FOUND, "no exchange 'x' in vhost '/'", lambda: vhost.route("x", b"k"))
    assert vhost.queues["q"].binding_count == 0
    assert vhost.binding_count == 0
    assert not world.definitions.load_exchanges("/")


def test_publishing_to_an_internal_exchange_is_refused(vhost: VirtualHost) -> None:
    vhost.run(vhost.declare_exchange("x", internal=True))
    refused(ReplyCode.ACCESS_REFUSED, "cannot publish to internal exchange 'x' in vhost '/'", lambda: vhost.check_publish("x"))
    refused(ReplyCode.NOT_FOUND, "no exchange 'y' in vhost '/'", lambda: vhost.check_publish("y"))
    assert vhost.check_publish("").name == ""


# --- queues -------------------------------------------------------------------------------------------------------------


def test_server_named_queues(vhost: VirtualHost) -> None:
    names = {vhost.run(vhost.declare_queue("")).name for _ in range(20)}
    assert len(names) == 20
    assert all(re.fullmatch(r"amq\.gen-[A-Za-z0-9_-]{22}", name) for name in names)
    name = names.pop()
    assert vhost.run(vhost.declare_queue(name, passive=True)).name == name
    text = f"queue name '{name}' contains reserved prefix 'amq.*'"
    refused(ReplyCode.ACCESS_REFUSED, text, lambda: vhost.run(vhost.declare_queue(name)))


def test_queue_not_found(vhost: VirtualHost) -> None:
    text = "no queue 'q' in vhost '/'"
    refused(ReplyCode.NOT_FOUND, text, lambda: vhost.run(vhost.declare_queue("q", passive=True)))
    refused(ReplyCode.NOT_FOUND, text, lambda: vhost.queue_to_purge("q"))
    refused(ReplyCode.NOT_FOUND, text, lambda: vhost.run(vhost.bind_queue("q", "amq.direct")))
    assert vhost.run(vhost.delete_queue("q")) == 0


@pytest.mark.parametrize(
    ("again", "difference"),
    [
        ({"durable": True}, "'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'"),
        ({"auto_delete": True}, "'auto_delete' for queue 'q' in vhost '/': received 'true' but current is 'false'"),
        ({"arguments": {"x-max-length": 6}}, "'x-max-length' for queue 'q' in vhost '/': received '6' but current is '5'"),
        (
            {"arguments": {}},
            "'x-max-length' for queue 'q' in vhost '/': received none but current is the value '5' of type 'signedint'",
        ),
        (
            {"arguments": {"x-max-length": 5, "x-overflow": "reject-publish"}},
            "'x-overflow' for queue 'q' in vhost '/': received the value 'reject-publish' of type 'longstr' but current is none",
        ),
        (
            {"arguments": {"x-max-length": 5, "x-queue-type": "quorum"}},
            "'x-queue-type' for queue 'q' in vhost '/': received the value 'quorum' of type 'longstr' but current is none",
        ),
    ],
)
def test_queue_equivalence(vhost: VirtualHost, again: dict[str, Any], difference: str) -> None:
    arguments = {"x-max-length": 5, "unknown": "kept"}
    first = vhost.run(vhost.declare_queue("q", arguments=arguments))
    assert first.arguments == arguments
    assert first.policy.max_length == 5
    assert vhost.run(vhost.declare_queue("q", arguments={"x-max-length": 5, "x-queue-type": "classic"})) is first
    options = {"arguments": arguments, **again}
    refused(ReplyCode.PRECONDITION_FAILED, f"inequivalent arg {difference}", lambda: vhost.run(vhost.declare_queue("q", **options)))


def test_exclusive_queues_belong_to_their_connection(world: World, vhost: VirtualHost) -> None:
    queue = vhost.run(vhost.declare_queue("q", durable=True, exclusive=True, connection_id=1))
    assert not queue.durable
    assert vhost.run(vhost.declare_queue("q", exclusive=True, durable=True, connection_id=1)) is queue
    calls: list[Callable[[], Any]] = [
        lambda: vhost.run(vhost.declare_queue("q", exclusive=True, connection_id=2)),
        lambda: vhost.run(vhost.declare_queue("q", connection_id=2)),
        lambda: vhost.run(vhost.declare_queue("q", connection_id=1)),
        lambda: vhost.run(vhost.declare_queue("q", passive=True, connection_id=2)),
        lambda: vhost.run(vhost.bind_queue("q", "amq.fanout", connection_id=2)),
        lambda: vhost.run(vhost.unbind_queue("q", "amq.fanout", connection_id=2)),
        lambda: vhost.queue_to_purge("q", connection_id=2),
        lambda: vhost.run(vhost.delete_queue("q", connection_id=2)),
        lambda: vhost.queue("q", 2),
    ]
    for call in calls:
        refused(ReplyCode.RESOURCE_LOCKED, LOCKED, call)
    assert world.names("", b"q") == ["q"]  # anyone may publish to it
    assert vhost.connection_closed(2)
    assert vhost.connection_closed(1)
    assert "q" not in vhost.queues
    assert queue.core.deletions == 1
    assert vhost.connection_closed(1)  # there is none any more


def test_an_existing_shared_queue_cannot_become_exclusive(vhost: VirtualHost) -> None:
    vhost.run(vhost.declare_queue("q", connection_id=1))
    refused(ReplyCode.RESOURCE_LOCKED, LOCKED, lambda: vhost.run(vhost.declare_queue("q", exclusive=True, connection_id=1)))


def test_delete_conditions(vhost: VirtualHost) -> None:
    queue = vhost.run(vhost.declare_queue("q"))
    queue.core.ready, queue.core.consumers = 3, 1
    refused(ReplyCode.PRECONDITION_FAILED, "queue 'q' in vhost '/' not empty", lambda: vhost.run(vhost.delete_queue("q", if_empty=True)))
    refused(ReplyCode.PRECONDITION_FAILED, "queue 'q' in vhost '/' in use", lambda: vhost.run(vhost.delete_queue("q", if_unused=True)))
    assert vhost.run(vhost.delete_queue("q")) == 3
    assert queue.deleted
    assert queue.core.deletions == 1


def test_purge_returns_the_count(vhost: VirtualHost) -> None:
    vhost.run(vhost.declare_queue("q")).core.ready = 7
    assert vhost.queue_to_purge("q").core.purge() == 7
    assert vhost.queue_to_purge("q").core.purge() == 0


def test_auto_delete_waits_for_the_first_consumer_and_goes_with_the_last(vhost: VirtualHost) -> None:
    queue = vhost.run(vhost.declare_queue("q", auto_delete=True))
    assert not vhost.consumer_removed(queue)
    vhost.consumer_added(queue)
    queue.core.consumers = 1
    assert not vhost.consumer_removed(queue)
    queue.core.consumers = 0
    assert vhost.consumer_removed(queue)
    assert "q" not in vhost.queues
    assert not vhost.consumer_removed(queue)


def test_a_queue_that_is_not_auto_delete_stays(vhost: VirtualHost) -> None:
    queue = vhost.run(vhost.declare_queue("q"))
    vhost.consumer_added(queue)
    assert not vhost.consumer_removed(queue)
    assert "q" in vhost.queues


def test_x_expires_deletes_an_unused_queue_only(world: World, vhost: VirtualHost) -> None:
    queue = vhost.run(vhost.declare_queue("q", arguments={"x-expires": 1000}))
    vhost.run(vhost.declare_queue("other"))
    world.clock.advance(ms=999)
    assert vhost.expire_queues() == 0
    vhost.touch(queue)
    world.clock.advance(ms=999)
    queue.core.consumers = 1
    assert vhost.expire_queues() == 0
    world.clock.advance(ms=5000)
    assert vhost.expire_queues() == 0
    queue.core.consumers = 0
    world.clock.advance(ms=1000)
    assert vhost.expire_queues() == 1
    assert list(vhost.queues) == ["other"]


def test_names_are_used_as_they_are_given(vhost: VirtualHost) -> None:
    """Whoever takes a name from a client cleans it and asks for permission; a change here would use another name than was allowed."""
    assert vhost.run(vhost.declare_queue("a\r\nb")).name == "a\r\nb"
    assert vhost.run(vhost.declare_exchange("x\n")).name == "x\n"
    assert vhost.run(vhost.bind_queue("a\r\nb", "x\n", b"k"))
    for refused in (lambda: vhost.queue("ab"), lambda: vhost.exchange("x"), lambda: vhost.queue_to_purge("ab")):
        with pytest.raises(PeerError, match="no "):
            refused()
    assert vhost.run(vhost.delete_queue("ab")) == 0 and not vhost.run(vhost.delete_exchange("x"))


# --- routing ------------------------------------------------------------------------------------------------------------


def test_the_default_exchange_routes_by_queue_name(world: World, vhost: VirtualHost) -> None:
    vhost.run(vhost.declare_queue("grün"))
    assert world.names("", "grün".encode()) == ["grün"]
    assert world.names("", b"\xff") == []
    vhost.run(vhost.delete_queue("grün"))
    assert world.names("", "grün".encode()) == []


def test_a_name_that_is_not_utf8_works_as_surrogate_escapes(world: World, vhost: VirtualHost) -> None:
    name = b"\xffq".decode("utf-8", "surrogateescape")
    vhost.run(vhost.declare_queue(name, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name}))
    assert world.names("", b"\xffq") == [name]
    assert vhost.queues[name].policy.dead_letter_routing_key == b"\xffq"
    assert vhost.run(vhost.declare_queue(b"\xff".decode("utf-8", "surrogateescape") * 255))
    text = "queue name is longer than 255 bytes"
    refused(ReplyCode.PRECONDITION_FAILED, text, lambda: vhost.run(vhost.declare_queue("q" * 256)))


def test_a_server_name_can_be_chosen_beforehand_for_the_permission_check(vhost: VirtualHost) -> None:
    name = generate_queue_name()
    assert vhost.run(vhost.declare_queue("", server_name=name)).name == name
    assert vhost.run(vhost.declare_queue("mine", server_name=name)).name == "mine"


def test_binding_twice_is_one_binding(world: World, vhost: VirtualHost) -> None:
    queue = vhost.run(vhost.declare_queue("q"))
    assert vhost.run(vhost.bind_queue("q", "amq.topic", b"a.#"))
    assert not vhost.run(vhost.bind_queue("q", "amq.topic", b"a.#"))
    assert vhost.run(vhost.bind_queue("q", "amq.topic", b"a.*"))
    assert queue.binding_count == vhost.binding_count == 2
    assert world.names("amq.topic", b"a.b") == ["q"]
    assert vhost.run(vhost.unbind_queue("q", "amq.topic", b"a.#"))
    assert not vhost.run(vhost.unbind_queue("q", "amq.topic", b"a.#"))
    assert not vhost.run(vhost.unbind_queue("none", "amq.topic", b"a.#"))
    assert not vhost.run(vhost.unbind_queue("q", "none", b"a.#"))
    assert world.names("amq.topic", b"a.b") == ["q"]
    assert world.names("amq.topic", b"a.b.c") == []


def test_exchange_to_exchange_with_a_cycle(world: World, vhost: VirtualHost) -> None:
    for name in ("x1", "x2", "x3"):
        vhost.run(vhost.declare_exchange(name, "fanout"))
        vhost.run(vhost.declare_queue(f"q{name}"))
        vhost.run(vhost.bind_queue(f"q{name}", name))
    vhost.run(vhost.bind_exchange("x2", "x1"))
    vhost.run(vhost.bind_exchange("x3", "x2"))
    vhost.run(vhost.bind_exchange("x1", "x3"))
    vhost.run(vhost.bind_queue("qx1", "x3"))
    for name in ("x1", "x2", "x3"):
        assert world.names(name) == ["qx1", "qx2", "qx3"]
    vhost.run(vhost.unbind_exchange("x3", "x2"))
    assert world.names("x1") == ["qx1", "qx2"]
    assert world.names("x3") == ["qx1", "qx2", "qx3"]


@pytest.mark.timeout(60)
def test_a_cycle_away_from_the_start_ends_too(world: World, vhost: VirtualHost) -> None:
    for name in ("start", "x1", "x2"):
        vhost.run(vhost.declare_exchange(name, "fanout"))
    vhost.run(vhost.declare_queue("q"))
    vhost.run(vhost.bind_queue("q", "x2"))
    vhost.run(vhost.bind_exchange("x1", "start"))
    vhost.run(vhost.bind_exchange("x2", "x1"))
    vhost.run(vhost.bind_exchange("x1", "x2"))
    vhost.run(vhost.bind_exchange("x1", "x1"))
    assert world.names("start") == ["q"]
    assert vhost.route_is_cacheable("start")
    vhost.run(vhost.delete_exchange("x1"))
    assert world.names("start") == []
    assert world.names("x2") == ["q"]


def test_the_routing_key_goes_along_over_exchanges(world: World, vhost: VirtualHost) -> None:
    vhost.run(vhost.declare_queue("q"))
    vhost.run(vhost.declare_exchange("second", "direct"))
    vhost.run(vhost.bind_queue("q", "second", b"a.b"))
    vhost.run(vhost.bind_exchange("second", "amq.topic", b"a.*"))
    assert world.names("amq.topic", b"a.b") == ["q"]
    assert world.names("amq.topic", b"a.c") == []


def test_alternate_exchange_takes_what_matched_nothing(world: World, vhost: VirtualHost) -> None:
    vhost.run(vhost.declare_exchange("x", "direct", arguments={"alternate-exchange": "ae"}))
    vhost.run(vhost.declare_queue("q"))
    vhost.run(vhost.declare_queue("rest"))
    vhost.run(vhost.bind_queue("q", "x", b"k"))
    assert world.names("x", b"other") == []  # the alternate does not exist yet
    world.forget()
    vhost.run(vhost.declare_exchange("ae", "fanout", internal=True))
    assert world.routes_changed == {"x", "ae"}
    world.forget()
    vhost.run(vhost.bind_queue("rest", "ae"))
    assert world.routes_changed == {"x", "ae"}
    assert world.names("x", b"other") == ["rest"]
    assert world.names("x", b"k") == ["q"]


def test_alternates_are_asked_inside_the_walk_and_may_form_a_ring(world: World, vhost: VirtualHost) -> None:
    vhost.run(vhost.declare_exchange("a", "direct", arguments={"alternate-exchange": "b"}))
    vhost.run(vhost.declare_exchange("b", "direct", arguments={"alternate-exchange": "a"}))
    vhost.run(vhost.declare_exchange("outer", "fanout"))
    vhost.run(vhost.bind_exchange("a", "outer"))
    vhost.run(vhost.declare_queue("q"))
    assert world.names("outer", b"k") == []
    vhost.run(vhost.bind_queue("q", "b", b"k"))
    assert world.names("outer", b"k") == ["q"]


def test_a_queue_reached_on_several_ways_is_listed_once(world: World, vhost: VirtualHost) -> None:
    vhost.run(vhost.declare_queue("q"))
    for name in ("one", "two"):
        vhost.run(vhost.declare_exchange(name, "fanout"))
        vhost.run(vhost.bind_exchange(name, "amq.fanout"))
        vhost.run(vhost.bind_queue("q", name))
    vhost.run(vhost.bind_queue("q", "amq.fanout"))
    assert world.names("amq.fanout") == ["q"]


def test_several_keys_share_one_decision_about_the_alternate(vhost: VirtualHost) -> None:
    vhost.run(vhost.declare_exchange("ae", "fanout"))
    vhost.run(vhost.declare_exchange("x", "direct", arguments={"alternate-exchange": "ae"}))
    for name in ("q1", "q2", "rest"):
        vhost.run(vhost.declare_queue(name))
    vhost.run(vhost.bind_queue("q1", "x", b"1"))
    vhost.run(vhost.bind_queue("q2", "x", b"2"))
    vhost.run(vhost.bind_queue("rest", "ae"))

    def names(*keys: bytes) -> list[str]:
        return sorted(queue.name for queue in vhost.route_keys("x", keys))

    assert names(b"1", b"2", b"1") == ["q1", "q2"]
    assert names(b"1", b"none") == ["q1"]
    assert names(b"none") == ["rest"]


def test_cacheable_unless_a_headers_exchange_can_be_reached(vhost: VirtualHost) -> None:
    assert vhost.route_is_cacheable("amq.topic")
    assert not vhost.route_is_cacheable("amq.headers")
    vhost.run(vhost.declare_exchange("middle", "fanout"))
    vhost.run(vhost.bind_exchange("middle", "amq.topic"))
    assert vhost.route_is_cacheable("amq.topic")
    vhost.run(vhost.bind_exchange("amq.match", "middle", b"", {"a": 1}))
    assert not vhost.route_is_cacheable("amq.topic")
    vhost.run(vhost.unbind_exchange("amq.match", "middle", b"", {"a": 1}))
    assert vhost.route_is_cacheable("amq.topic")
    vhost.run(vhost.declare_exchange("x", "direct", arguments={"alternate-exchange": "h"}))
    assert vhost.route_is_cacheable("x")
    vhost.run(vhost.declare_exchange("h", "headers"))
    assert not vhost.route_is_cacheable("x")


# --- hooks --------------------------------------------------------------------------------------------------------------


def test_every_exchange_that_leads_to_a_change_is_told(world: World, vhost: VirtualHost) -> None:
    vhost.run(vhost.declare_exchange("leaf", "direct"))
    vhost.run(vhost.declare_exchange("middle", "fanout"))
    vhost.run(vhost.declare_exchange("top", "direct", arguments={"alternate-exchange": "middle"}))
    vhost.run(vhost.declare_exchange("apart", "fanout"))
    vhost.run(vhost.bind_exchange("leaf", "middle"))
    vhost.run(vhost.declare_queue("q"))
    world.forget()
    vhost.run(vhost.bind_queue("q", "leaf", b"k"))
    assert world.routes_changed == {"leaf", "middle", "top"}
    world.forget()
    vhost.run(vhost.unbind_queue("q", "leaf", b"k"))
    assert world.routes_changed == {"leaf", "middle", "top"}
    vhost.run(vhost.bind_queue("q", "leaf", b"k"))
    world.forget()
    vhost.run(vhost.delete_queue("q"))
    assert world.routes_changed == {"leaf", "middle", "top"}
    assert world.defaults_changed == ["q"]
    world.forget()
    vhost.run(vhost.delete_exchange("leaf"))
    assert world.routes_changed == {"leaf", "middle", "top"}


def test_queues_change_the_default_route_and_those_that_fall_back_to_it(world: World, vhost: VirtualHost) -> None:
    vhost.run(vhost.declare_exchange("x", "direct", arguments={"alternate-exchange": ""}))
    vhost.run(vhost.declare_exchange("over", "fanout"))
    vhost.run(vhost.bind_exchange("x", "over"))
    world.forget()
    vhost.run(vhost.declare_queue("q"))
    assert world.defaults_changed == ["q"]
    assert world.routes_changed == {"x", "over"}
    assert world.names("x", b"q") == ["q"]


# --- auto-delete of exchanges -------------------------------------------------------------------------------------------


def test_an_auto_delete_exchange_goes_with_its_last_binding_only(vhost: VirtualHost) -> None:
    vhost.run(vhost.declare_exchange("x", "fanout", auto_delete=True))
    vhost.run(vhost.declare_queue("q1"))
    vhost.run(vhost.declare_queue("q2"))
    vhost.run(vhost.bind_queue("q1", "x"))
    vhost.run(vhost.bind_queue("q2", "x"))
    vhost.run(vhost.unbind_queue("q1", "x"))
    assert "x" in vhost.exchanges
    vhost.run(vhost.delete_queue("q2"))
    assert "x" not in vhost.exchanges


def test_auto_delete_goes_up_a_chain(vhost: VirtualHost) -> None:
    for name in ("x1", "x2", "x3"):
        vhost.run(vhost.declare_exchange(name, "fanout", auto_delete=True))
    vhost.run(vhost.declare_exchange("kept", "fanout"))
    vhost.run(vhost.bind_exchange("x1", "kept"))
    vhost.run(vhost.bind_exchange("x2", "x1"))
    vhost.run(vhost.bind_exchange("x3", "x2"))
    vhost.run(vhost.declare_queue("q"))
    vhost.run(vhost.bind_queue("q", "x3"))
    vhost.run(vhost.unbind_queue("q", "x3"))
    assert not {"x1", "x2", "x3"} & set(vhost.exchanges)
    assert vhost.exchanges["kept"].bindings == {}
    assert vhost.binding_count == 0


# --- limits, durability -------------------------------------------------------------------------------------------------


def test_limits_refuse_with_406() -> None:
    vhost = World(queues_max=1, exchanges_max=2, bindings_max=1).vhost
    vhost.run(vhost.declare_queue("q"))
    text = "cannot declare queue 'r': queue limit in vhost '/' (1) is reached"
    refused(ReplyCode.PRECONDITION_FAILED, text, lambda: vhost.run(vhost.declare_queue("r")))
    vhost.run(vhost.declare_exchange("x"))
    vhost.run(vhost.declare_exchange("y"))
    text = "cannot declare exchange 'z': exchange limit in vhost '/' (2) is reached"
    refused(ReplyCode.PRECONDITION_FAILED, text, lambda: vhost.run(vhost.declare_exchange("z")))
    vhost.run(vhost.bind_queue("q", "x", b"1"))
    assert not vhost.run(vhost.bind_queue("q", "x", b"1"))
    text = "cannot bind queue 'q' in vhost '/': binding limit (1) is reached"
    refused(ReplyCode.PRECONDITION_FAILED, text, lambda: vhost.run(vhost.bind_queue("q", "x", b"2")))
    text = "queue name is longer than 255 bytes"
    refused(ReplyCode.PRECONDITION_FAILED, text, lambda: vhost.run(vhost.declare_queue("é" * 128)))


def test_what_is_durable_comes_back_and_nothing_else(world: World, vhost: VirtualHost) -> None:
    vhost.run(vhost.declare_exchange("dx", "topic", durable=True, auto_delete=True, arguments={"alternate-exchange": "amq.fanout"}))
    vhost.run(vhost.declare_exchange("tx", "topic"))
    durable = vhost.run(vhost.declare_queue("dq", durable=True, arguments={"x-max-length": 5}))
    vhost.run(vhost.declare_queue("tq"))
    for exchange in ("dx", "tx", "amq.topic"):
        for queue in ("dq", "tq"):
            vhost.run(vhost.bind_queue(queue, exchange, b"k", {"n": 1}))
    vhost.run(vhost.bind_exchange("dx", "amq.topic", b"e"))
    vhost.run(vhost.bind_queue("dq", "dx", b"gone"))
    vhost.run(vhost.unbind_queue("dq", "dx", b"gone"))

    again = World(world.definitions)
    again.vhost.restore()
    assert set(again.vhost.queues) == {"dq"}
    restored = again.vhost.queues["dq"]
    assert (restored.queue_id, restored.durable, restored.policy.max_length) == (durable.queue_id, True, 5)
    assert {"dx", "tx"} & set(again.vhost.exchanges) == {"dx"}
    assert again.vhost.exchanges["dx"].alternate == "amq.fanout"
    assert again.vhost.exchanges["dx"].auto_delete
    assert again.names("dx", b"k") == ["dq"]
    assert again.names("amq.topic", b"e") == []
    assert again.names("amq.topic", b"k") == ["dq"]
    assert again.vhost.binding_count == 3
    assert again.vhost.run(again.vhost.declare_queue("new")).queue_id > durable.queue_id


@pytest.mark.parametrize("error", [OverflowError, MemoryError, KeyboardInterrupt])
def test_a_queue_that_can_t_be_made_leaves_no_record(
    world: World, vhost: VirtualHost, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Whatever fails: the next start must not meet a definition from which no queue can be made, and the name is free."""

    def fail(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(vhost, "_queue_factory", fail)
        with pytest.raises(error):
            vhost.run(vhost.declare_queue("q", durable=True))
    assert world.definitions.load_queues("/") == [] and "q" not in vhost.queues
    assert vhost.run(vhost.declare_queue("q", durable=True)).durable


def test_deleting_durable_things_leaves_no_record(world: World, vhost: VirtualHost) -> None:
    vhost.run(vhost.declare_exchange("x", "topic", durable=True))
    vhost.run(vhost.declare_queue("q", durable=True))
    vhost.run(vhost.bind_queue("q", "x", b"k"))
    vhost.run(vhost.bind_queue("q", "amq.topic", b"k"))
    vhost.run(vhost.delete_queue("q"))
    assert not world.definitions.load_queues("/")
    assert not world.definitions.load_bindings("/")
    vhost.run(vhost.bind_exchange("x", "amq.topic", b"k"))
    vhost.run(vhost.delete_exchange("x"))
    assert not world.definitions.load_exchanges("/")
    assert not world.definitions.load_bindings("/")


# --- the type of queues whose declaration names none --------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_a_declaration_without_a_type_takes_that_of_the_virtual_host(vhost: VirtualHost, kind: str) -> None:
    """Where the type can be: not what is transient, exclusive or auto-delete, as on RabbitMQ. What names a type has that."""
    vhost.run(vhost.declare_queue("before", durable=True))
    vhost.default_queue_type = kind
    assert vhost.run(vhost.declare_queue("q", durable=True)).policy.queue_type == kind
    assert vhost.queues["q"].arguments == {"x-queue-type": kind}
    for name, options in (
        ("t", {}),
        ("e", {"durable": True, "exclusive": True, "connection_id": 1}),
        ("a", {"durable": True, "auto_delete": True}),
    ):
        assert vhost.run(vhost.declare_queue(name, **options)).policy.queue_type == "classic"
    assert vhost.run(vhost.declare_queue("c", durable=True, arguments={"x-queue-type": "classic"})).policy.queue_type == "classic"
    # again: each is what it was
    for name, options in (("q", {}), ("before", {}), ("c", {}), ("q", {"arguments": {"x-queue-type": kind}})):
        vhost.run(vhost.declare_queue(name, durable=True, **options))
    vhost.default_queue_type = None
    vhost.run(vhost.declare_queue("before", durable=True))


def test_what_its_type_can_not_have_is_refused(vhost: VirtualHost) -> None:
    vhost.default_queue_type = "quorum"
    text = "Cannot declare a server-named queue for type rabbit_quorum_queue"
    refused(ReplyCode.PRECONDITION_FAILED, text, lambda: vhost.run(vhost.declare_queue("", durable=True)))
    text = "invalid arg 'x-max-priority' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue"
    refused(ReplyCode.PRECONDITION_FAILED, text, lambda: vhost.run(vhost.declare_queue("q", durable=True, arguments={"x-max-priority": 3})))
    assert vhost.run(vhost.declare_queue("", server_name=generate_queue_name())).policy.queue_type == "classic"
