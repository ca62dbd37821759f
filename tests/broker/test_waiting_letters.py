"""Dead letters that can't be placed wait for what would help them: they cost nothing till then, and nobody waits behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flintmq.broker.letters import NO_ROUTE, PROBES
from flintmq.ports import PermissionRecord
from flintmq.vhost.policies import made
from tests.broker.test_letters import KEEPS, TO_DEAD, die, waiting
from tests.support.broker import wait_until
from tests.support.rawamqp import RawChannel

Connect = Callable[..., Any]
# only events help: nothing is tried because of the time
EVENTS = {"housekeeping_ms": 20, "dead_letter_retry_ms": 3_600_000}
QUICK = {"housekeeping_ms": 5, "dead_letter_retry_ms": 5, "dead_letter_retry_max_ms": 5}
BY_KEY = {**KEEPS, "x-dead-letter-exchange": "dlx"}


@pytest.fixture
def broker(start: Callable[..., Any]) -> Any:
    return start(EVENTS)


@pytest.fixture
def ch(broker: Any, connect: Connect) -> RawChannel:
    return connect(broker).channel()


def letters(broker: Any) -> Any:
    return broker.node.broker.letters


def refuse_all(ch: RawChannel, queue: str, exchange: str, keys: list[str]) -> None:
    """Messages of these keys go through `queue` and die there."""
    for key in keys:
        ch.publish(key.encode(), exchange=exchange, routing_key=key)
    ch.wait_ready(queue, len(keys))
    for _ in keys:
        last = ch.call("basic.get", queue=queue)
    ch.send("basic.nack", delivery_tag=last.delivery_tag, multiple=True, requeue=False)


def is_quiet(core: Any) -> bool:
    """Whether nothing has its turn, nor waits for one: the line that has it is not in `_busy`."""
    return not core._busy and not core._trying


def keyed(ch: RawChannel, name: str = "q") -> str:
    """A queue whose letters keep their keys; returns the exchange that leads into it."""
    ch.call("exchange.declare", exchange="dlx", type="direct")
    ch.call("exchange.declare", exchange=f"to-{name}", type="fanout")
    ch.queue(name, arguments=BY_KEY)
    ch.call("queue.bind", queue=name, exchange=f"to-{name}")
    return f"to-{name}"


def test_what_has_a_target_goes_past_what_has_none(ch: RawChannel, broker: Any) -> None:
    into = keyed(ch)
    ch.queue("dead")
    ch.call("queue.bind", queue="dead", exchange="dlx", routing_key="good")
    refuse_all(ch, "q", into, [*[f"bad-{number}" for number in range(200)], "good"])
    ch.wait_ready("dead", 1)
    wait_until(lambda: waiting(broker) == 200, what="the others wait")


def test_of_many_each_is_looked_at_once_when_a_route_comes(ch: RawChannel, broker: Any) -> None:
    into = keyed(ch)
    refuse_all(ch, "q", into, [*[f"bad-{number}" for number in range(500)], "good"])
    wait_until(lambda: waiting(broker) == 501, what="all wait")
    ch.queue("dead")
    wait_until(lambda: is_quiet(letters(broker)), what="all were looked at")
    before = letters(broker).looks
    ch.call("queue.bind", queue="dead", exchange="dlx", routing_key="good")
    ch.wait_ready("dead", 1)
    wait_until(lambda: waiting(broker) == 500 and is_quiet(letters(broker)), what="one has gone")
    assert letters(broker).looks - before == 501


def test_without_an_exchange_none_is_read(ch: RawChannel, broker: Any) -> None:
    ch.queue("q", arguments=BY_KEY)
    for _ in range(40):
        die(ch, "rejected")
    wait_until(lambda: waiting(broker) == 40, what="they wait")
    before = letters(broker).looks
    for number in range(20):  # routes of the virtual host change
        ch.queue(f"other-{number}")
    assert waiting(broker) == 40 and letters(broker).looks == before
    ch.call("exchange.declare", exchange="dlx", type="fanout")
    ch.queue("dead")
    ch.call("queue.bind", queue="dead", exchange="dlx")
    ch.wait_ready("dead", 40)
    wait_until(lambda: waiting(broker) == 0, what="all have gone")


def test_nothing_happens_and_few_are_tried(start: Callable[..., Any], connect: Connect) -> None:
    """However short the interval is: PROBES of all lines in it."""
    broker = start(QUICK)
    ch = connect(broker).channel()
    for number in range(50):
        ch.queue(f"q-{number}", arguments={**TO_DEAD, "x-dead-letter-routing-key": f"absent-{number}"})
        ch.publish(b"x", routing_key=f"q-{number}")
        ch.send("basic.reject", delivery_tag=ch.call("basic.get", queue=f"q-{number}").delivery_tag, requeue=False)
    wait_until(lambda: sum(waiting(broker, f"q-{number}") for number in range(50)) == 50, what="all wait")
    core = letters(broker)
    wait_until(lambda: is_quiet(core) and len(core._heap) >= 50, what="it is quiet")
    with core._lock:
        core._probes, core._probes_ns = PROBES, broker.node.broker.clock.monotonic_ns() + 10**12
        core._probe(broker.node.broker.clock.monotonic_ns() + 10**9)
        assert sum(len(vhost.ready) for vhost in core._vhosts.values()) == PROBES


def test_a_circle_of_queues_stands(start: Callable[..., Any], connect: Connect) -> None:
    broker = start({"housekeeping_ms": 20, "dead_letter_retry_ms": 3_600_000})
    ch = connect(broker).channel()
    for number in range(3):
        arguments = {**KEEPS, "x-dead-letter-routing-key": f"ring-{(number + 1) % 3}", "x-message-ttl": 1}
        ch.queue(f"ring-{number}", arguments=arguments)
    for _ in range(20):
        ch.publish(b"x", routing_key="ring-0")
    held = [0, 0, 20]  # the third one would close the circle
    wait_until(lambda: [waiting(broker, f"ring-{number}") for number in range(3)] == held, what="they wait at its end")
    wait_until(lambda: is_quiet(letters(broker)), what="nobody tries")
    before = letters(broker).looks
    ch.nothing(0.1)
    assert letters(broker).looks == before
    ch.call("queue.delete", queue="ring-0")
    ch.queue("ring-0")
    ch.nothing(0.1)
    assert [waiting(broker, f"ring-{number}") for number in range(3)] == held


def test_another_virtual_host_has_its_turn(broker: Any, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Letters of a virtual host, however many, stand before those of no other one."""
    broker.node.broker.add_vhost("b")
    broker.node.permissions.set_permissions(PermissionRecord("guest", "b", ".*", ".*", ".*"))
    order: list[str] = []
    dead_letters = broker.node.broker.dead_letters
    whole = dead_letters.publish_to_all

    def tried(queue: Any, *rest: Any, **options: Any) -> Any:
        order.append(queue.vhost)
        return whole(queue, *rest, **options)

    both = [connect(broker).channel(), connect(broker, vhost="b").channel()]
    for ch in both:
        refuse_all(ch, "q", keyed(ch), [f"bad-{number}" for number in range(300)])
    core = letters(broker)
    wait_until(lambda: sum(len(kept.lines[NO_ROUTE].entries) for kept in core._kept.values()) == 600, what="they wait")
    wait_until(lambda: is_quiet(core), what="it is quiet")
    monkeypatch.setattr(dead_letters, "publish_to_all", tried)
    with core._lock:
        core._trying = True  # the slices are done here
    for name in ("/", "b"):
        core._vhosts[name].rest_ns = 0
        core.routes_changed(name)
    while not core._some():
        pass
    assert len(order) == 600
    assert 50 < order[:300].count("b") < 250


def test_room_in_a_full_target_lets_as_many_go(ch: RawChannel, broker: Any) -> None:
    ch.queue("dead", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    for name in ("q", "r", "s"):
        ch.queue(name, arguments=TO_DEAD)
        for number in range(4):
            ch.publish(b"%s-%d" % (name.encode(), number), routing_key=name)
            ch.send("basic.reject", delivery_tag=ch.call("basic.get", queue=name).delivery_tag, requeue=False)
    wait_until(lambda: sum(waiting(broker, name) for name in "qrs") == 10, what="ten wait")
    before = letters(broker).looks
    got: list[bytes] = []
    while len(got) < 12:
        message = ch.call("basic.get", queue="dead", no_ack=True)
        if message.name != "basic.get-empty":
            got.append(message.body)
    # In the order in which they died, of each queue; and of one at most what is given at once, then of the next one.
    for name in (b"q", b"r", b"s"):
        assert [body for body in got if body.startswith(name)] == [b"%s-%d" % (name, number) for number in range(4)]
    wait_until(lambda: sum(waiting(broker, name) for name in "qrs") == 0, what="none waits")
    assert letters(broker).looks - before <= 30


def test_who_waits_for_a_full_target_holds_up_nobody_else(ch: RawChannel, broker: Any) -> None:
    into = keyed(ch)
    ch.queue("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    ch.queue("dead")
    ch.call("queue.bind", queue="full", exchange="dlx", routing_key="full")
    ch.call("queue.bind", queue="dead", exchange="dlx", routing_key="good")
    refuse_all(ch, "q", into, [*["full"] * 50, "good", "none", "good"])
    ch.wait_ready("dead", 2)
    wait_until(lambda: waiting(broker) == 51, what="the others wait")
    # One was tried for each of them; the rest stands behind it unread when there is room again.
    before = letters(broker).looks
    for _ in range(5):
        letters(broker).room(broker.node.broker.vhosts["/"].queues["full"].queue_id)
        wait_until(lambda: is_quiet(letters(broker)), what="it was tried")
    assert letters(broker).looks - before == 5


def test_a_changed_policy_wakes_them(ch: RawChannel, broker: Any) -> None:
    vhost = broker.node.broker.vhosts["/"]
    definition = {"dead-letter-strategy": "at-least-once", "overflow": "reject-publish", "dead-letter-exchange": "none"}
    vhost.policies.put(made("p", {"pattern": "^q$", "definition": definition}), False)
    ch.queue("q")
    ch.queue("dead")
    for _ in range(3):
        die(ch, "rejected")
    wait_until(lambda: waiting(broker) == 3, what="they wait")
    definition = {**definition, "dead-letter-exchange": "", "dead-letter-routing-key": "dead"}
    vhost.policies.put(made("p", {"pattern": "^q$", "definition": definition}), False)
    vhost.follow_policies("queue", ["q"])
    ch.wait_ready("dead", 3)
    wait_until(lambda: waiting(broker) == 0, what="they have gone")


def test_a_larger_limit_of_the_target_wakes_them(ch: RawChannel, broker: Any) -> None:
    vhost = broker.node.broker.vhosts["/"]
    vhost.policies.put(made("p", {"pattern": "^dead$", "definition": {"max-length": 1, "overflow": "reject-publish"}}), False)
    ch.queue("dead")
    ch.queue("q", arguments=TO_DEAD)
    for _ in range(3):
        die(ch, "rejected")
    wait_until(lambda: waiting(broker) == 2, what="two wait")
    vhost.policies.put(made("p", {"pattern": "^dead$", "definition": {"max-length": 9, "overflow": "reject-publish"}}), False)
    vhost.follow_policies("queue", ["dead"])
    ch.wait_ready("dead", 3)


def test_a_deleted_target_is_waited_for_as_one_that_is_absent(ch: RawChannel, broker: Any) -> None:
    ch.queue("dead", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    ch.queue("q", arguments=TO_DEAD)
    die(ch, "rejected")
    wait_until(lambda: waiting(broker) == 1, what="it waits")
    ch.call("queue.delete", queue="dead")
    kept = letters(broker)._kept[broker.node.broker.vhosts["/"].queues["q"]]
    wait_until(lambda: list(kept.lines) == [NO_ROUTE], what="it waits for a route")
    ch.queue("dead")
    ch.wait_ready("dead", 1)
    wait_until(lambda: not letters(broker)._targets and waiting(broker) == 0, what="nothing is left")


def test_the_figure_stands_while_they_are_tried(ch: RawChannel, broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    into = keyed(ch)
    refuse_all(ch, "q", into, [f"bad-{number}" for number in range(50)])
    wait_until(lambda: waiting(broker) == 50, what="they wait")
    seen: list[int] = []
    dead_letters = broker.node.broker.dead_letters
    whole = dead_letters.publish_to_all

    def tried(*arguments: Any, **options: Any) -> Any:
        seen.append(waiting(broker))
        return whole(*arguments, **options)

    monkeypatch.setattr(dead_letters, "publish_to_all", tried)
    ch.queue("dead")
    ch.call("queue.bind", queue="dead", exchange="dlx", routing_key="another")
    wait_until(lambda: len(seen) >= 50, what="all were tried")
    assert set(seen) == {50}


def _rests(broker: Any) -> bool:
    """Whether two passes of the housekeeping had no queue to see to."""
    seen: list[int] = []
    expiry = broker.node.broker.expiry
    broker.node.broker.on_housekeeping.append(lambda now_ms: seen.append(expiry.visits))
    wait_until(lambda: len(seen) >= 3, what="the housekeeping comes round")
    broker.node.broker.on_housekeeping.pop()
    return seen[0] == seen[2]


@pytest.mark.parametrize("how", ["get", "purge", "expiry", "ack", "reject", "held", "delivered"])
def test_room_is_seen_however_it_comes(ch: RawChannel, broker: Any, how: str) -> None:
    ch.queue("dead", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    ch.queue("q", arguments=TO_DEAD)
    ch.publish(b"full", routing_key="dead", **({"expiration": "300"} if how == "expiry" else {}))
    die(ch, "rejected")
    wait_until(lambda: waiting(broker) == 1, what="it waits")
    wait_until(lambda: _rests(broker), what="nothing of it is left for the housekeeping")
    if how == "delivered":
        ch.consume("dead")
        assert ch.expect("basic.deliver").body == b"full"
    elif how == "purge":
        ch.call("queue.purge", queue="dead")
    elif how != "expiry":
        got = ch.call("basic.get", queue="dead", no_ack=how == "get")
        assert got.body == b"full"
        if how == "ack":
            ch.send("basic.ack", delivery_tag=got.delivery_tag)
        elif how == "reject":
            ch.send("basic.reject", delivery_tag=got.delivery_tag, requeue=False)
    wait_until(lambda: waiting(broker) == 0, what="it has gone")
    if how == "delivered":
        assert ch.expect("basic.deliver").body == b"x"
    else:
        ch.wait_ready("dead", 1)
