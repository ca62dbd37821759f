"""A message that asks for a time is routed then, not before, once, in the order of times; and a restart keeps it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker import schedules
from flintmq.channel.scheduling import due_of
from flintmq.config import Limits
from flintmq.protocol.v0_9_1.codec import encode_properties
from flintmq.testing.broker import Broker
from flintmq.vhost.names import SCHEDULE
from tests.channel.test_quotas import two_users
from tests.support.broker import wait_until
from tests.support.clocks import HeldClock, held
from tests.support.rawamqp import RawChannel

DELAY_MS_MAX = Limits().schedule_delay_ms_max
Start = Callable[..., Any]
Connect = Callable[..., Any]
TIMES = ("x-deliver-at", "x-opt-delivery-time", "x-qpid-not-valid-before")
PERSISTENT = {"delivery_mode": 2}
DELAYED = {"type": "x-delayed-message", "arguments": {"x-delayed-type": "direct"}}


def now_ms() -> int:
    return int(time.time() * 1000)


def bodies(channel: RawChannel, count: int) -> list[bytes]:
    return [one.body for one in channel.deliveries(count)]


def scheduled(broker: Any) -> int:
    schedule = broker.node.broker.vhosts["/"].schedule
    return 0 if schedule is None else int(schedule.core.ready_count())


def late(channel: RawChannel, body: bytes, key: str = "q", ms: int = 60, exchange: str = "", **rest: Any) -> None:
    channel.publish(body, routing_key=key, exchange=exchange, headers={"x-delay": ms}, **rest)


# what is the same with a store and without one
memory_only = pytest.mark.parametrize("broker", ["memory"], indirect=True)


@pytest.fixture(params=["memory", "durable"])
def broker(request: pytest.FixtureRequest, start: Start, tmp_path: Path) -> Any:
    return start(clock=HeldClock()) if request.param == "memory" else start(store_dir=str(tmp_path / "store"), clock=HeldClock())


@pytest.fixture
def channel(broker: Any, connect: Connect) -> RawChannel:
    channel: RawChannel = connect(broker).channel()
    channel.queue("q", durable=True)
    return channel


def due_times(broker: Any) -> dict[bytes, int]:
    """Body -> when it is due, in the order of their times: the broker counts from when it read the header, whenever it got to run."""
    core = broker.node.broker.vhosts["/"].schedule.core
    found, position = {}, core.next_available(0)
    while position:
        found[core.message_at(position)[3]] = core.entry_facts(position)[2]
        position = core.next_available(position + 1)
    return dict(sorted(found.items(), key=lambda item: item[1]))


# --- when -------------------------------------------------------------------------------------------------------------------


def test_due_messages_keep_the_order_of_their_times_and_are_never_early(broker: Any, channel: RawChannel) -> None:
    channel.call("confirm.select")
    least = {}
    with held(broker):
        for number, ms in enumerate([180, 60, 120, 60]):
            least[b"%d" % number] = time.time() * 1000 + ms
            late(channel, b"%d" % number, ms=ms, **PERSISTENT)
            channel.expect("basic.ack")
        due = due_times(broker)
    assert all(due[body] >= at_ms for body, at_ms in least.items())
    channel.consume("q", no_ack=True)
    got = []
    for one in channel.deliveries(4):
        got.append(one.body)
        assert time.time() * 1000 >= due[one.body], "never early"
        assert not one.redelivered
    assert got == list(due) and len(got) == 4
    assert broker.node.broker.schedules.routed == 4


@memory_only
@pytest.mark.parametrize(
    "headers",
    [
        {"x-delay": 80},
        {"x-delay": "80"},
        {"x-delay": 80.9},
        {"x-opt-delivery-delay": 80},
        {"x-deliver-at": 80},
        {"x-opt-delivery-time": 80},
        {"x-qpid-not-valid-before": 80},
        {"x-delay": 10, "x-opt-delivery-delay": 80, "other": {"x-delay": 60_000}},
    ],
    ids=str,
)
def test_every_field_that_names_a_time(channel: RawChannel, broker: Any, headers: dict[str, Any]) -> None:
    channel.consume("q", no_ack=True)
    at = {
        name: now_ms() + value if name in ("x-deliver-at", "x-opt-delivery-time", "x-qpid-not-valid-before") else value
        for name, value in headers.items()
    }
    began = time.time()
    channel.publish(b"x", routing_key="q", headers=at)
    (one,) = channel.deliveries(1)
    assert time.time() - began >= 0.079
    shown = one.properties["headers"]
    for name, value in at.items():
        expected = -int(value) if name in ("x-delay", "x-opt-delivery-delay") and isinstance(value, int | float) else value
        assert shown[name] == (-80 if value == "80" else expected)


@memory_only
@pytest.mark.parametrize(
    "headers",
    [
        {"x-delay": 0},
        {"x-delay": -5},
        {"x-delay": DELAY_MS_MAX + 1},
        {"x-delay": "soon"},
        {"x-delay": True},
        {"x-deliver-at": 5},
        {"x-delay": {}},
    ],
    ids=str,
)
def test_what_asks_for_no_time_is_routed_at_once_unchanged(channel: RawChannel, broker: Any, headers: dict[str, Any]) -> None:
    channel.consume("q", no_ack=True)
    channel.publish(b"x", routing_key="q", headers=headers)
    (one,) = channel.deliveries(1)
    assert one.properties["headers"] == headers and scheduled(broker) == 0
    assert broker.node.broker.vhosts["/"].schedule is None, "nothing is made for it"


@memory_only
def test_a_time_too_far_ahead_is_refused_but_in_x_delay(channel: RawChannel) -> None:
    channel.publish(b"x", routing_key="q", headers={"x-deliver-at": now_ms() + 2 * DELAY_MS_MAX})
    channel.expect_close(406, "invalid header 'x-deliver-at': {value_too_large,")


def test_every_integer_type_is_read_as_the_compiled_half_reads_it() -> None:
    """What due_of says of a header is what the message path does with it: the same delay, the same bytes afterwards."""
    for value in (1, 100, 70_000, 2**33):
        header = encode_properties(0, {"headers": {"x-delay": value, "y": 1}})
        due, changed = due_of(header, 1_000)
        assert due == (0 if value > DELAY_MS_MAX else 1_000 + value)
        assert len(changed) == len(header) and (changed == header) == (due == 0)
        assert due_of(changed, 1_000) == (0, changed), "a second time it asks for nothing"


# --- where to -----------------------------------------------------------------------------------------------------------------


def test_a_delayed_exchange_routes_as_its_type_by_the_bindings_of_then(channel: RawChannel, broker: Any) -> None:
    channel.call("exchange.declare", exchange="x", type="x-delayed-message", durable=True, arguments={"x-delayed-type": "topic"})
    channel.call("exchange.declare", exchange="x", type="x-delayed-message", durable=True, arguments={"x-delayed-type": "topic"})
    with held(broker):
        late(channel, b"1", "a.b", exchange="x")
        channel.publish(b"at once", exchange="x", routing_key="a.b")
        channel.call("queue.bind", queue="q", exchange="x", routing_key="a.*")
        channel.publish(b"0", exchange="x", routing_key="a.b")
        channel.wait_ready("q", 1)
    channel.consume("q", no_ack=True)
    assert bodies(channel, 2) == [b"0", b"1"]
    assert broker.node.broker.vhosts["/"].exchanges["x"].kind == "x-delayed-message"


@memory_only
@pytest.mark.parametrize(
    "arguments", [{}, {"x-delayed-type": 5}, {"x-delayed-type": "nope"}, {"x-delayed-type": "x-delayed-message"}], ids=str
)
def test_a_delayed_exchange_needs_a_type(channel: RawChannel, arguments: dict[str, Any]) -> None:
    text = "Invalid argument, 'x-delayed-type' must be an existing exchange type"
    channel.refuse(406, text, "exchange.declare", exchange="x", type="x-delayed-message", arguments=arguments)


@memory_only
def test_a_delayed_exchange_declared_with_another_type_is_another_one(channel: RawChannel) -> None:
    channel.call("exchange.declare", exchange="x", **DELAYED)
    text = "inequivalent arg 'x-delayed-type' for exchange 'x' in vhost '/': received 'fanout' but current is 'direct'"
    channel.refuse(406, text, "exchange.declare", exchange="x", type="x-delayed-message", arguments={"x-delayed-type": "fanout"})


def test_headers_exchanges_and_further_keys_are_asked_when_it_is_due(channel: RawChannel) -> None:
    for name in ("cc", "bcc", "by-header"):
        channel.queue(name)
    channel.call("queue.bind", queue="by-header", exchange="amq.headers", arguments={"x-match": "all", "kind": "a"})
    channel.publish(b"h", exchange="amq.headers", headers={"x-delay": 40, "kind": "a"})
    channel.publish(b"c", routing_key="q", headers={"x-delay": 40, "CC": ["cc"], "BCC": ["bcc"]})
    for name in ("q", "cc", "bcc", "by-header"):
        channel.wait_ready(name, 1)
    for name in ("q", "cc", "bcc"):
        got = channel.call("basic.get", queue=name, no_ack=True)
        assert got.body == b"c" and got.properties["headers"] == {"x-delay": -40, "CC": ["cc"]}


def test_what_leads_nowhere_when_it_is_due_is_counted_and_holds_up_nobody(channel: RawChannel, broker: Any) -> None:
    channel.call("exchange.declare", exchange="gone", type="fanout")
    late(channel, b"exchange", exchange="gone", mandatory=True)
    late(channel, b"queue", "nobody", mandatory=True)
    late(channel, b"here")
    channel.call("exchange.delete", exchange="gone")
    channel.consume("q", no_ack=True)
    assert bodies(channel, 1) == [b"here"]
    wait_until(lambda: broker.node.broker.counters.drops["unroutable"] == 2)
    channel.nothing(0.05)


def test_limits_of_the_queue_count_when_it_comes(channel: RawChannel, broker: Any) -> None:
    channel.queue("dead")
    channel.queue("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue("letters", arguments={"x-max-length": 1, "x-overflow": "reject-publish-dlx", **letters})
    channel.queue("ring", arguments={"x-max-length": 1})
    channel.queue("short", arguments={"x-message-ttl": 30, **letters})
    for name in ("full", "letters", "ring"):
        for body in (b"1", b"2"):
            late(channel, body, name, ms=50)
            late(channel, body, name, ms=51)
    late(channel, b"brief", "short", ms=30)
    channel.wait_ready("dead", 1 + 3)
    for name in ("full", "letters", "ring"):
        channel.wait_ready(name, 1)
    assert channel.call("basic.get", queue="full", no_ack=True).body == b"1"
    wait_until(lambda: broker.node.broker.counters.drops["refused"] == 3)
    assert broker.node.broker.counters.dead_lettered["maxlen"] == 3


def test_reply_addresses_and_expirations_are_of_then(channel: RawChannel) -> None:
    channel.consume("amq.rabbitmq.reply-to", no_ack=True)
    late(channel, b"ask", reply_to="amq.rabbitmq.reply-to", expiration="60000", priority=3)
    channel.wait_ready("q", 1)
    got = channel.call("basic.get", queue="q", no_ack=True)
    assert got.properties["expiration"] == "60000" and got.properties["priority"] == 3
    late(channel, b"answer", got.properties["reply_to"], ms=30)
    assert bodies(channel, 1) == [b"answer"]


# --- confirms, transactions, limits -------------------------------------------------------------------------------------------


def test_a_full_schedule_refuses(start: Start, connect: Connect) -> None:
    broker = start({"schedule_messages_max": 2})
    channel = connect(broker).channel()
    channel.queue("q")
    channel.call("confirm.select")
    for _ in range(3):
        late(channel, b"x", ms=60_000)
    assert answered(channel, 3) == ["ack", "ack", "nack"]
    assert scheduled(broker) == 2 and broker.node.broker.vhosts["/"].schedule.core.refuses(1)


def answered(channel: RawChannel, count: int) -> list[str]:
    """What the first messages of a channel in confirm mode got, in their order."""
    answers: dict[int, str] = {}
    while len(answers) < count:
        answer = channel.connection.recv(channel.number)
        answers.update(dict.fromkeys(range(max(answers, default=0) + 1, answer.delivery_tag + 1), answer.name.removeprefix("basic.")))
    return [answers[tag] for tag in sorted(answers)]


def test_one_user_leaves_others_their_share_of_the_schedule(start: Start, connect: Connect) -> None:
    """By messages and by bytes, on all connections together, in transactions too, until they are due."""
    limits = {"schedule_messages_max": 8, "schedule_bytes_max": 1_000, "schedule_user_share": 0.5, "housekeeping_ms": 5}
    broker = start(limits, clock=HeldClock())
    two_users(broker)
    connections = {name: [connect(broker, user=name, password="secret") for _ in range(2)] for name in ("alice", "bob")}
    first, second = (one.channel() for one in connections["alice"])
    first.queue("q")
    for channel in (first, second):
        channel.call("confirm.select")
    for _ in range(3):
        late(first, b"x", ms=60_000)
    assert answered(first, 3) == ["ack"] * 3
    for _ in range(2):
        late(second, b"x", ms=60_000)
    assert answered(second, 2) == ["ack", "nack"]
    transaction = connections["alice"][0].channel(2)
    transaction.call("tx.select")
    late(transaction, b"x", ms=60_000)
    transaction.send("tx.commit")
    transaction.expect_close(406, "PRECONDITION_FAILED - partial tx completion")
    bob = connections["bob"][0].channel()
    bob.call("confirm.select")
    late(bob, b"." * 501, ms=60_000)
    for _ in range(4):
        late(bob, b"x", ms=60_000)
    assert answered(bob, 5) == ["nack", "ack", "ack", "ack", "ack"]
    assert scheduled(broker) == 8
    broker.node.broker.schedules.purged("/")
    broker.node.broker.vhosts["/"].schedule.core.purge()
    late(second, b"x", ms=60_000)
    assert second.connection.recv(second.number).name == "basic.ack"


def test_the_only_user_has_all_of_the_schedule_and_who_is_gone_none(start: Start, connect: Connect) -> None:
    broker = start({"schedule_messages_max": 4, "housekeeping_ms": 5})
    connection = connect(broker)
    channel = connection.channel()
    channel.queue("q")
    channel.call("confirm.select")
    for _ in range(5):
        late(channel, b"x", ms=60_000)
    assert answered(channel, 5) == ["ack"] * 4 + ["nack"]
    schedules = broker.node.broker.schedules
    share = schedules.share("/", "guest")
    assert share.figures() == (4, 4) and share.known()
    connection.drop()
    wait_until(lambda: not share.known(), what="its connection lets it go")
    assert schedules.share("/", "guest") is share
    schedules.purged("/")
    wait_until(lambda: not schedules._shares, what="a share that counts nothing is forgotten")


@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_a_transaction_schedules_when_it_commits(channel: RawChannel, broker: Any, delivery_mode: int, connect: Connect) -> None:
    channel.call("tx.select")
    late(channel, b"no", ms=30, delivery_mode=delivery_mode)
    channel.call("tx.rollback")
    late(channel, b"yes", ms=50, delivery_mode=delivery_mode)
    channel.publish(b"now", routing_key="q", delivery_mode=delivery_mode)
    until = time.monotonic() + 0.1
    wait_until(lambda: time.monotonic() > until)
    assert scheduled(broker) == 0
    channel.call("tx.commit")
    other = connect(broker).channel()
    other.consume("q", no_ack=True)
    assert bodies(other, 2) == [b"now", b"yes"]


def test_no_client_can_name_the_schedule(channel: RawChannel, connect: Connect, broker: Any) -> None:
    late(channel, b"x", ms=60_000)
    wait_until(lambda: scheduled(broker) == 1)
    for name, arguments in (
        ("queue.declare", {"queue": SCHEDULE, "passive": True}),
        ("basic.get", {"queue": SCHEDULE}),
        ("basic.consume", {"queue": SCHEDULE}),
        ("queue.purge", {"queue": SCHEDULE}),
        ("queue.bind", {"queue": SCHEDULE, "exchange": "amq.fanout"}),
    ):
        connect(broker).channel().refuse(404, f"no queue '{SCHEDULE}' in vhost '/'", name, **arguments)
    connect(broker).channel().refuse(403, f"queue name '{SCHEDULE}' contains reserved prefix", "queue.declare", queue=SCHEDULE)
    connect(broker).channel().call("queue.delete", queue=SCHEDULE)
    channel.publish(b"x", routing_key=SCHEDULE)
    assert channel.ready("q") == 0 and scheduled(broker) == 1


# --- over a restart -----------------------------------------------------------------------------------------------------------


def test_a_restart_keeps_what_is_persistent(heap_of_others: None, connect: Connect, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    with Broker(store_dir=store) as broker:
        channel = connect(broker).channel()
        channel.call("exchange.declare", exchange="x", durable=True, **DELAYED)
        channel.queue("q", durable=True)
        channel.call("queue.bind", queue="q", exchange="x", routing_key="k")
        channel.call("confirm.select")
        for body, ms, mode in ((b"later", 60_000, 2), (b"second", 1_500, 2), (b"first", 50, 2), (b"passing", 1_000, 1)):
            late(channel, body, "k", ms=ms, exchange="x", delivery_mode=mode)
            channel.expect("basic.ack")
    with Broker(store_dir=store) as broker:
        channel = connect(broker).channel()
        channel.consume("q", no_ack=True)
        assert bodies(channel, 2) == [b"first", b"second"]
        channel.nothing(0.05)
        assert scheduled(broker) == 1
        assert [one.name for one in broker.node.broker.vhosts["/"].queues.values()] == ["q"]


def test_a_stop_does_not_wait_for_a_batch_on_a_full_disk(connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that does not get to the disk while it is full: the stop ends without it, and the next start routes it."""
    store = str(tmp_path / "store")
    decided = threading.Event()

    class Stuck(schedules.Firing):
        def decide(self, durable: object) -> bool:
            logs = broker.node.store.logs
            logs.maintenance.stop()  # it would find the space of this disk
            logs.logs.set_disk_low(True)
            decided.set()
            return True

        def is_durable(self) -> bool:
            return False

    soon = {"close_ms_max": 100}
    with monkeypatch.context() as patch, Broker(store_dir=store, limits=soon) as broker:
        patch.setattr(schedules, "Firing", Stuck)
        channel = connect(broker).channel()
        channel.queue("q", durable=True)
        late(channel, b"x", ms=1, **PERSISTENT)
        assert decided.wait(30)
    with Broker(store_dir=store, limits=soon) as broker:
        assert not broker.node.store.logs.was_clean
        channel = connect(broker).channel()
        channel.consume("q", no_ack=True)
        assert bodies(channel, 1) == [b"x"]


def test_bodies_that_left_memory_are_read_back(start: Start, connect: Connect, tmp_path: Path) -> None:
    broker = start(store_dir=str(tmp_path / "store"), limits={"queue_hot_bytes": 20_000}, clock=HeldClock())
    channel = connect(broker).channel()
    channel.queue("q", durable=True)
    expected = []
    with held(broker):
        for number in range(40):
            body = b"%03d" % number + b"x" * 2_000
            late(channel, body, ms=30 + number, delivery_mode=1 + number % 2)
            expected.append(body)
        wait_until(lambda: scheduled(broker) == 40)
        expected = [body for body in due_times(broker) if body in expected]
        wait_until(lambda: broker.node.broker.vhosts["/"].schedule.core.cold_count > 20)
    channel.consume("q", no_ack=True)
    assert bodies(channel, 40) == expected


def test_a_deleted_virtual_host_takes_its_schedule_along(start: Start, connect: Connect) -> None:
    broker = start()
    node = broker.node
    channel = connect(broker).channel()
    late(channel, b"x", ms=60_000)
    wait_until(lambda: scheduled(broker) == 1)
    queue_id = node.broker.vhosts["/"].schedule.queue_id
    vhost = node.broker.vhosts["/"]
    while not vhost.end_some(32):
        pass
    assert queue_id not in node.broker.queues and vhost.schedule is None


def test_a_stream_gets_what_is_due(start: Start, connect: Connect, tmp_path: Path) -> None:
    broker = start(store_dir=str(tmp_path / "store"), clock=HeldClock())
    channel = connect(broker).channel()
    channel.queue("s", durable=True, arguments={"x-queue-type": "stream"})
    with held(broker):
        late(channel, b"1", "s", ms=80, **PERSISTENT)
        late(channel, b"0", "s", ms=40, **PERSISTENT)
        wait_until(lambda: scheduled(broker) == 2)
        due = due_times(broker)
    channel.call("basic.qos", prefetch_count=10)
    channel.consume("s")
    assert bodies(channel, 2) == list(due)


def test_messages_of_one_batch_and_route_keep_their_own_facts(start: Start, connect: Connect) -> None:
    """One plan serves many messages of a batch: not those of another expiration, of further keys, or of a full queue."""
    broker = start(clock=HeldClock())
    channel = connect(broker).channel()
    channel.queue("q", arguments={"x-max-length": 4, "x-overflow": "reject-publish"})
    channel.queue("open")
    channel.queue("more")
    with held(broker):
        for body in (b"0", b"1"):
            late(channel, body, "open", expiration="60000")
        late(channel, b"2", "open")
        channel.publish(b"3", routing_key="open", headers={"x-delay": 60, "CC": ["more"]})
        for _ in range(6):
            late(channel, b"x", "q")
        for _ in range(3):
            late(channel, b"nobody", "nowhere")
        wait_until(lambda: scheduled(broker) == 13)
        due_times(broker)
    for name, count in (("open", 4), ("more", 1), ("q", 4)):
        channel.wait_ready(name, count)
    got = [channel.call("basic.get", queue="open", no_ack=True) for _ in range(4)]
    assert [(one.body, one.properties.get("expiration")) for one in got] == [(b"0", "60000"), (b"1", "60000"), (b"2", None), (b"3", None)]
    wait_until(lambda: broker.node.broker.counters.drops["refused"] == 2 and broker.node.broker.counters.drops["unroutable"] == 3)


def test_cached_routes_and_those_that_python_plans_keep_the_order(channel: RawChannel, broker: Any) -> None:
    """And the cache is no older than the bindings: the second batch finds another one."""
    channel.queue("other", durable=True)
    channel.call("exchange.declare", exchange="x", type="direct")
    counts = broker.node.broker.counters.in_python
    for queue in ("q", "other"):
        channel.call("queue.bind", queue=queue, exchange="x", routing_key="k")
        with held(broker):
            for number in range(12):
                copies: dict[str, Any] = {"CC": []} if number % 4 == 3 else {}
                exchange, key = ("x", "k") if number % 2 else ("", queue)
                headers = {"x-delay": 60, **copies}
                channel.publish(b"%d" % number, exchange=exchange, routing_key=key, headers=headers, **PERSISTENT)
            wait_until(lambda: scheduled(broker) == 12)
            due = due_times(broker)
        channel.wait_ready(queue, 12)
        got = [channel.call("basic.get", queue=queue, no_ack=True).body for _ in range(12)]
        assert got == list(due)
        channel.call("queue.unbind", queue=queue, exchange="x", routing_key="k")
        # 3 with CC, and the first one of each of two routes
        assert 0 < counts["schedule"] <= 5
        counts["schedule"] = 0


def test_a_route_that_is_not_learned_is_planned_each_time(channel: RawChannel, broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise RuntimeError("a fault of ours")

    schedules = broker.node.broker.schedules
    monkeypatch.setattr(schedules._state.routes, "learn", failing)
    with held(broker):
        for number in range(3):
            late(channel, b"%d" % number, ms=60)
        wait_until(lambda: scheduled(broker) == 3)
        schedules._state.routes.forget_all()
        due = due_times(broker)
    channel.consume("q", no_ack=True)
    assert bodies(channel, 3) == list(due)
    wait_until(lambda: schedules.routed == 3)
    assert broker.node.broker.counters.in_python["schedule"] == 3


def test_a_message_whose_plan_fails_holds_up_no_other(channel: RawChannel, broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    schedules = broker.node.broker.schedules
    plan = schedules._plan

    def failing(batch: Any, facts: Any) -> Any:
        if batch.firing.message(facts[0])[3] == b"bad":
            raise RuntimeError("a fault of ours")
        return plan(batch, facts)

    monkeypatch.setattr(schedules, "_plan", failing)
    for body in (b"bad", b"good"):  # planned in Python, for their CC
        channel.publish(body, routing_key="q", headers={"x-delay": 30, "CC": []})
    channel.consume("q", no_ack=True)
    assert bodies(channel, 1) == [b"good"]
    wait_until(lambda: broker.node.broker.counters.drops["schedule_failed"] == 1)
