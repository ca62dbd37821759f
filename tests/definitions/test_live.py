"""What an operator changes holds for clients that work: at their next command, for their queues, or by the end of their connections."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker, ProbableAccessDeniedError

from flintmq.access.hashes import rabbitmq_hash
from flintmq.access.tags import NotAuthorised
from flintmq.config import Limits
from flintmq.definitions.change_line import BROKER, Actor, Refused
from flintmq.errors import PeerError
from flintmq.patterns import Pattern, undecided
from flintmq.session import handshake
from flintmq.testing.broker import Broker
from flintmq.vhost.policies import Policies, made
from tests.definitions.rig import Answer, Rig
from tests.support.broker import wait_until
from tests.support.rawamqp import RawConnection, method_frame

HASH = "rabbit_password_hashing_sha256"


class Operator:
    """A broker, and verbs of its definitions service that are waited for."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.node = broker.node

    def do(self, verb: str, *arguments: Any, actor: Actor = BROKER, **options: Any) -> Any:
        answer = Answer()
        getattr(self.node.definitions, verb)(actor, *arguments, answer.done, **options)
        return answer.wait()

    def user(self, name: str, vhost: str = "/", write: str = ".*", tags: str = "") -> None:
        """A user with a password of its own name, in RabbitMQ's hash."""
        self.do("put_user", name, tags, password_hash=rabbitmq_hash(name, b"salt"), algorithm=HASH)
        self.do("put_permission", vhost, name, {"configure": ".*", "write": write, "read": ".*"})

    def connect(self, user: str = "guest", vhost: str = "/") -> Any:
        login = pika.PlainCredentials(user, user)
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.broker.port, vhost, login))


@pytest.fixture(scope="module")
def operator() -> Iterator[Operator]:
    with Broker(limits={"housekeeping_ms": 20}) as broker:
        yield Operator(broker)


@pytest.fixture
def connect(operator: Operator) -> Iterator[Callable[..., Any]]:
    opened: list[Any] = []

    def make(*arguments: str) -> Any:
        opened.append(operator.connect(*arguments))
        return opened[-1]

    yield make
    for connection in opened:
        with contextlib.suppress(AMQPError):  # the broker may have closed it
            connection.close()


def confirmed(connection: Any) -> Any:
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def test_a_revoked_permission_holds_for_the_next_command(operator: Operator, connect: Callable[..., Any]) -> None:
    """A channel that has published, whose exchange and route are known to it, asks again."""
    operator.user("writer")
    channel = confirmed(connect("writer"))
    channel.queue_declare("revoked")
    for _ in range(3):
        channel.basic_publish("", "revoked", b"x")
    operator.do("put_permission", "/", "writer", {"configure": ".*", "write": "^other$", "read": ".*"})
    with pytest.raises(ChannelClosedByBroker, match=r"write access to exchange 'amq\.default' in vhost '/' refused for user 'writer'"):
        channel.basic_publish("", "revoked", b"x")
    assert operator.node.broker.vhosts["/"].queues["revoked"].core.ready_count() == 3


def test_a_deleted_users_connections_are_closed(operator: Operator, connect: Callable[..., Any]) -> None:
    operator.user("leaver")
    connection, other = connect("leaver"), connect()
    connection.channel()
    operator.do("delete_users", ["leaver"])
    with pytest.raises(ConnectionClosedByBroker) as closed:
        while True:  # asking for nothing: a command that is faster than the end of its connection is refused for the lack of permissions
            connection.process_data_events(60)
    assert (closed.value.reply_code, closed.value.reply_text) == (320, "CONNECTION_FORCED - user 'leaver' is deleted")
    other.channel()
    assert operator.node.permissions.record("leaver", "/") is None


@pytest.mark.parametrize(
    ("verb", "what", "text"), [("delete_users", ["new"], "refused for user"), ("delete_vhost", "new", "vhost new not found")]
)
def test_a_connection_that_opens_while_its_user_or_virtual_host_goes_is_refused(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, verb: str, what: Any, text: str
) -> None:
    """The deletion looks for connections just before this one is there to be found."""
    operator.do("put_vhost", "new", {})
    operator.user("new", "new")
    broker = operator.node.broker
    check, answer, looks = handshake._check_user, Answer(), []

    def delete_after(handler: Any, vhost: str) -> None:
        looks.append(vhost)
        check(handler, vhost)
        if looks == ["new"]:
            getattr(operator.node.definitions, verb)(BROKER, what, answer.done)

    monkeypatch.setattr(handshake, "_check_user", delete_after)
    with RawConnection("127.0.0.1", operator.broker.port) as late:
        with pytest.raises(AssertionError, match=f"530.*{text}"):
            late.open("new", "new", vhost="new")
        answer.wait()
        wait_until(lambda: not any(one.user == "new" for one in broker.connections.values()), what="it is gone")
    assert broker.quotas.count("max-connections", "user", "new") == 0 and broker.quotas.count("max-connections", "vhost", "new") == 0
    if verb == "delete_users":
        operator.do("delete_vhost", "new")
    else:
        operator.do("delete_users", ["new"])


def test_who_logged_in_as_a_user_that_is_gone_is_not_the_next_one_of_that_name(operator: Operator) -> None:
    operator.user("heir")
    with RawConnection("127.0.0.1", operator.broker.port) as old:
        old.start()
        old.start_ok("heir", "heir")
        tune = old.expect(0, "connection.tune")
        operator.do("put_user", "heir", "management")  # a change is no end
        assert operator.node.users.born("heir")
        operator.do("delete_users", ["heir"])
        operator.user("heir")
        old.send(method_frame(0, "connection.tune-ok", channel_max=tune.channel_max, frame_max=tune.frame_max, heartbeat=0))
        old.send(method_frame(0, "connection.open", virtual_host="/"))
        old.expect_close(530, "user 'heir' is deleted")
    operator.do("delete_users", ["heir"])


def test_a_password_hash_of_rabbitmq(operator: Operator, connect: Callable[..., Any]) -> None:
    """The user logs in as before, not with another password, and no more once its password changed."""
    operator.user("hashed")
    assert connect("hashed").is_open
    users = operator.node.users
    assert users.check("hashed", "hashed") and not users.check("hashed", "guest") and not users.check("hashed", "")
    operator.do("put_user", "hashed", "")
    assert not users.check("hashed", "hashed") and users.check_cached("hashed", "hashed") is None
    with pytest.raises(Refused, match="unknown password hashing algorithm 'foo'"):
        operator.do("put_user", "hashed", "", password_hash="YWJj", algorithm="foo")


def test_a_virtual_host_comes_and_goes(operator: Operator, connect: Callable[..., Any]) -> None:
    """Its queues and connections go with it; one that is made by the same name afterwards is empty."""
    assert operator.do("put_vhost", "tenant", {"description": "d"}, actor=Actor("guest", "here")) is True
    assert operator.do("put_vhost", "tenant", {"description": "e"}) is False
    connection = connect("guest", "tenant")
    channel = confirmed(connection)
    for number in range(100):
        channel.queue_declare(f"q{number}", durable=True)
    channel.queue_bind("q1", "amq.topic", "k")
    channel.exchange_declare("own", "fanout", durable=True)
    channel.exchange_bind("own", "amq.topic", "k")
    channel.basic_publish("amq.topic", "k", b"x")
    broker = operator.node.broker
    holding = broker.vhosts["tenant"].holding
    assert holding.bytes > 0
    ids = [queue.queue_id for queue in broker.vhosts["tenant"].queues.values()]
    operator.do("put_policy", "tenant", "p", {"pattern": "", "definition": {"max-length": 3}})
    operator.do("delete_vhost", "tenant")
    assert "tenant" not in broker.vhosts and not any(one in broker.queues for one in ids)
    assert holding.bytes == 0 and not any(vhost == "tenant" for vhost, _ in broker.routes.caches)
    with pytest.raises(ConnectionClosedByBroker) as closed:
        while True:
            channel.basic_publish("amq.topic", "k", b"x")
    assert (closed.value.reply_code, closed.value.reply_text) == (320, "CONNECTION_FORCED - vhost 'tenant' is deleted")
    with pytest.raises(ProbableAccessDeniedError, match="vhost tenant not found"):
        connect("guest", "tenant")
    operator.do("put_vhost", "tenant", {}, actor=Actor("guest", "here"))
    channel = connect("guest", "tenant").channel()
    assert not broker.vhosts["tenant"].queues and not operator.node.definitions.of("policy", "tenant")
    with pytest.raises(ChannelClosedByBroker, match="no queue 'q1' in vhost 'tenant'"):
        channel.queue_declare("q1", passive=True)
    operator.do("delete_vhost", "tenant")


def test_a_limit_of_length_comes_and_goes(operator: Operator, connect: Callable[..., Any]) -> None:
    """What is above it goes at once; a publisher whose route is known keeps to it; the operator's lower number counts."""
    channel = confirmed(connect())
    channel.queue_declare("long.1")
    core = operator.node.broker.vhosts["/"].queues["long.1"].core
    for _ in range(8):
        channel.basic_publish("", "long.1", b"x")
    operator.do("put_policy", "/", "len", {"pattern": "^long", "definition": {"max-length": 5}, "apply-to": "queues"})
    wait_until(lambda: core.ready_count() == 5)
    operator.do("put_policy", "/", "oplen", {"pattern": "^long", "definition": {"max-length": 3}}, operator=True)
    for _ in range(4):
        channel.basic_publish("", "long.1", b"x")
    wait_until(lambda: core.ready_count() == 3)
    # By way of two exchanges, whose routes are known: from no limit to one.
    operator.do("delete_policy", "/", "oplen", operator=True)
    operator.do("delete_policy", "/", "len")
    channel.exchange_bind("amq.fanout", "amq.direct", "far")
    channel.queue_bind("long.1", "amq.fanout")
    for _ in range(4):
        channel.basic_publish("amq.direct", "far", b"x")
    assert core.ready_count() == 7
    operator.do("put_policy", "/", "len", {"pattern": "^long", "definition": {"max-length": 5}, "apply-to": "queues"})
    operator.do("put_policy", "/", "oplen", {"pattern": "^long", "definition": {"max-length": 3}}, operator=True)
    for _ in range(4):
        channel.basic_publish("amq.direct", "far", b"x")
    wait_until(lambda: core.ready_count() == 3)
    channel.queue_unbind("long.1", "amq.fanout")
    channel.queue_declare("long.2")
    assert operator.node.broker.vhosts["/"].queues["long.2"].policy.max_length == 3
    operator.do("delete_policy", "/", "oplen", operator=True)
    operator.do("delete_policy", "/", "len")
    for _ in range(9):
        channel.basic_publish("", "long.1", b"x")
    assert core.ready_count() == 12


def test_a_queue_that_refuses(operator: Operator, connect: Callable[..., Any]) -> None:
    channel = confirmed(connect())
    channel.queue_declare("full")
    channel.basic_publish("", "full", b"x")
    value = {"pattern": "^full$", "definition": {"max-length": 1, "overflow": "reject-publish"}}
    operator.do("put_policy", "/", "refuse", value)
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", "full", b"x")
    operator.do("delete_policy", "/", "refuse")
    channel.basic_publish("", "full", b"x")


def test_dead_letters_of_a_consumer_that_was_there_before(operator: Operator, connect: Callable[..., Any]) -> None:
    """The policy's exchange and key, the argument's where there is one; time to live by the policy."""
    channel = confirmed(connect())
    channel.queue_declare("letters")
    channel.queue_declare("work")
    channel.queue_declare("work.args", arguments={"x-dead-letter-exchange": "amq.fanout"})
    got: list[int] = []
    channel.basic_consume("work", lambda _, method, *rest: got.append(method.delivery_tag))
    definition = {"dead-letter-exchange": "", "dead-letter-routing-key": "letters"}
    operator.do("put_policy", "/", "dlx", {"pattern": "^work", "definition": definition})
    queues = operator.node.broker.vhosts["/"].queues
    assert queues["work"].policy.dead_letter_exchange == ""
    assert queues["work.args"].policy.dead_letter_exchange == "amq.fanout"
    channel.basic_publish("", "work", b"x")
    wait_until(lambda: channel.connection.process_data_events(0) or got)
    channel.basic_reject(got[0], requeue=False)
    wait_until(lambda: queues["letters"].core.ready_count() == 1)
    channel.cancel()
    operator.do("put_policy", "/", "dlx", {"pattern": "^work", "definition": {**definition, "message-ttl": 1}})
    channel = confirmed(connect())
    channel.basic_publish("", "work.args", b"x")
    wait_until(lambda: queues["work.args"].core.ready_count() == 0)
    operator.do("delete_policy", "/", "dlx")


def test_a_queue_expires_by_policy(operator: Operator, connect: Callable[..., Any]) -> None:
    channel = connect().channel()
    channel.queue_declare("unused.1")
    channel.queue_declare("unused.2", arguments={"x-expires": 3_600_000})
    queues = operator.node.broker.vhosts["/"].queues
    operator.do("put_policy", "/", "exp", {"pattern": "^unused", "definition": {"expires": 1_000_000}})
    operator.do("put_policy", "/", "exp", {"pattern": "^unused.2", "definition": {"expires": 1}})
    wait_until(lambda: "unused.2" not in queues)
    assert "unused.1" in queues and queues["unused.1"].policy.expires_ms is None
    operator.do("put_policy", "/", "exp", {"pattern": "^unused", "definition": {"expires": 1}})
    wait_until(lambda: "unused.1" not in queues)


def test_an_alternate_exchange_by_policy(operator: Operator, connect: Callable[..., Any]) -> None:
    channel = confirmed(connect())
    channel.exchange_declare("front", "direct")
    channel.queue_declare("rest")
    channel.queue_bind("rest", "amq.fanout")
    channel.basic_publish("front", "nobody", b"x")
    core = operator.node.broker.vhosts["/"].queues["rest"].core
    assert core.ready_count() == 0
    operator.do(
        "put_policy", "/", "ae", {"pattern": "^front$", "definition": {"alternate-exchange": "amq.fanout"}, "apply-to": "exchanges"}
    )
    channel.basic_publish("front", "nobody", b"x")
    assert core.ready_count() == 1
    operator.do("delete_policy", "/", "ae")
    channel.basic_publish("front", "nobody", b"x")
    assert core.ready_count() == 1


def test_topic_permissions(operator: Operator, connect: Callable[..., Any]) -> None:
    """Of the routing key, for publishes whose route is known too, and for bindings; of that exchange alone."""
    operator.user("topical")
    channel = confirmed(connect("topical"))
    channel.queue_declare("t")
    channel.queue_bind("t", "amq.topic", "#")
    channel.basic_publish("amq.topic", "b.1", b"x")
    operator.do("put_topic", "/", "topical", "amq.topic", {"write": "^{username}\\.", "read": "^a"})
    channel.basic_publish("amq.topic", "topical.1", b"x")
    channel.basic_publish("amq.direct", "b.1", b"x")
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.basic_publish("amq.topic", "b.1", b"x")
    text = "ACCESS_REFUSED - write access to topic 'b.1' in exchange 'amq.topic' in vhost '/' refused for user 'topical'"
    assert refused.value.reply_text == text
    channel = confirmed(connect("topical"))
    with pytest.raises(ChannelClosedByBroker, match="read access to topic 'b'"):
        channel.queue_bind("t", "amq.topic", "b")
    confirmed(connect()).basic_publish("amq.topic", "b.1", b"x")
    operator.do("clear_topics", "/", "topical", None)
    channel = confirmed(connect("topical"))
    channel.basic_publish("amq.topic", "b.1", b"x")
    assert operator.node.broker.vhosts["/"].queues["t"].core.ready_count() == 4


@pytest.mark.parametrize("tx", [False, True])
@pytest.mark.parametrize("headers", [{"CC": ["topical.2", "b.1"]}, {"BCC": ["b.1"]}, {"CC": ["b.1"], "x-delay": 3_600_000}])
def test_topic_permissions_are_asked_for_each_key_of_a_message(
    operator: Operator, connect: Callable[..., Any], headers: dict[str, Any], tx: bool
) -> None:
    """Those of CC and BCC, and of a message that is scheduled: nothing of it reaches a queue."""
    operator.user("topical")
    operator.do("put_topic", "/", "topical", "amq.topic", {"write": "^{username}\\.", "read": ""})
    queue = operator.node.broker.vhosts["/"].run(operator.node.broker.vhosts["/"].declare_queue("keys"))
    operator.node.broker.vhosts["/"].run(operator.node.broker.vhosts["/"].bind_queue("keys", "amq.topic", b"#"))
    channel = connect("topical").channel()
    if tx:
        channel.tx_select()
    else:
        channel.confirm_delivery()
    for key in ("topical.1", "topical.2"):
        good = {name: ["topical.3"] if name != "x-delay" else 0 for name in headers}
        channel.basic_publish("amq.topic", key, b"x", pika.BasicProperties(headers=good))
    if tx:
        channel.tx_commit()
    before = queue.core.ready_count()
    assert before == 2
    with pytest.raises(ChannelClosedByBroker, match=r"write access to topic 'b\.1' in exchange 'amq\.topic'"):
        channel.basic_publish("amq.topic", "topical.1", b"x", pika.BasicProperties(headers=headers))
        if tx:
            channel.tx_commit()
    assert queue.core.ready_count() == before
    schedule = operator.node.broker.vhosts["/"].schedule
    assert schedule is None or schedule.core.ready_count() == 0
    operator.node.broker.vhosts["/"].run(operator.node.broker.vhosts["/"].delete_queue("keys"))


def test_limits_of_users_and_virtual_hosts(operator: Operator, connect: Callable[..., Any]) -> None:
    operator.user("limited")
    operator.do("put_limit", "user", "limited", "max-connections", 1)
    connect("limited")
    with pytest.raises(ProbableAccessDeniedError, match=r"user connection limit \(1\) is reached"):
        connect("limited")
    operator.do("put_limit", "user", "limited", "max-connections", None)
    connect("limited")
    operator.do("put_limit", "vhost", "/", "max-queues", 1)
    with pytest.raises(ChannelClosedByBroker, match="queue limit in vhost '/'"):
        connect().channel().queue_declare("one-too-many")
    operator.do("put_limit", "vhost", "/", "max-queues", None)
    connect().channel().queue_declare("one-too-many")


def test_a_policymakers_pattern_is_bounded(operator: Operator) -> None:
    """Its patterns are searched on the I/O loops: any pattern is taken, its search has a budget, and so has what is compiled."""
    operator.user("maker", tags="policymaker")
    maker = Actor("maker", "here")
    for pattern in ("x" * 600, "[", "(?:a{1,1000}){1,1000}", "\ud800"):
        with pytest.raises(Refused, match="pattern should be"):
            operator.do("put_policy", "/", "slow", {"pattern": pattern, "definition": {"max-length": 1}}, actor=maker)
    for pattern in ("(a+)+[bc]", r"^(?!amq\.)(never)\1", r"^(amq\.|celery.*|.*\.reply\..*)$", "", "a?" * 60, "(?i:never)"):
        assert operator.do("put_policy", "/", f"good {pattern}", {"pattern": pattern, "definition": {"max-length": 9999}}, actor=maker)
        operator.do("delete_policy", "/", f"good {pattern}", actor=maker)
    with pytest.raises(NotAuthorised):
        operator.do("put_policy", "/", "op", {"pattern": "", "definition": {"max-length": 1}}, actor=maker, operator=True)


def test_a_policy_that_is_not_decided_does_not_match(operator: Operator, caplog: pytest.LogCaptureFixture) -> None:
    slow = "a" * 80
    before = undecided().get("policy", 0)
    operator.do("put_policy", "/", "slow", {"pattern": "(a+)+[bc]|^x", "definition": {"max-length": 1}, "priority": 5})
    operator.do("put_policy", "/", "all", {"pattern": "", "definition": {"max-length": 2}})
    vhost = operator.node.broker.vhosts["/"]
    for name, length in ((slow, 2), ("x1", 1)):
        vhost.run(vhost.declare_queue(name))
        assert vhost.queues[name].policy.max_length == length
    assert undecided()["policy"] > before
    operator.do("put_policy", "/", "slow", {"pattern": "^a", "definition": {"max-length": 3}, "priority": 5})
    assert vhost.queues[slow].policy.max_length == 3 and vhost.queues["x1"].policy.max_length == 2
    for name in ("slow", "all"):
        operator.do("delete_policy", "/", name)
    assert vhost.queues[slow].policy.max_length is None


def test_a_name_is_searched_once_for_each_change_of_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    decide = Pattern.decide
    monkeypatch.setattr(Pattern, "decide", lambda self, name, share=1: searched.append(name) or decide(self, name, share))
    policies = Policies()
    value = {"pattern": "^q", "definition": {"max-length": 1}}
    policies.put(made("p", value), False)
    for _ in range(3):
        assert policies.definition("queue", "q1") == {"max-length": 1} and policies.of("queue", "x") == (None, None)
    assert searched == ["q1", "x"]
    policies.put(made("p", {**value, "definition": {"max-length": 2}}), False)
    assert policies.definition("queue", "q1") == {"max-length": 2}
    policies.remove("p", False)
    assert policies.definition("queue", "q1") == {}
    policies.put(made("p", value), True)
    for number in range(20_001):
        policies.of("queue", str(number))
    assert len(policies._known) <= 10_000


def test_a_policymaker_leaves_room_for_an_administrators_policies() -> None:
    rig = Rig(limits=Limits(policies_policymaker_max=2, policies_vhost_max=3))
    try:
        rig.do("put_vhost", "a", {})
        rig.do("put_user", "maker", "policymaker")
        rig.do("put_permission", "a", "maker", {"configure": "", "write": "", "read": ""})
        value = {"pattern": "", "definition": {"max-length": 1}}
        for number in range(2):
            rig.do("put_policy", "a", str(number), value, actor=Actor("maker", "here"))
        with pytest.raises(Refused, match="has 2 policies, which is the limit of a policymaker"):
            rig.do("put_policy", "a", "2", value, actor=Actor("maker", "here"))
        rig.do("put_policy", "a", "2", value)
        with pytest.raises(Refused, match="has 3 policies, which is the limit"):
            rig.do("put_policy", "a", "3", value)
    finally:
        rig.close()


def test_a_policy_is_applied_to_one_queue_at_a_time(operator: Operator) -> None:
    """The lock of the virtual host is free while patterns are searched, and between two queues; a slice is a piece of time."""
    vhost = operator.node.broker.vhosts["/"]
    for number in range(300):
        vhost.run(vhost.declare_queue(f"many-{number}"))
    held: list[bool] = []
    asked = vhost.policies.queue_policy

    def free() -> None:
        """Another thread gets the lock."""
        held.append(not vhost._lock.acquire(timeout=0.5))
        if not held[-1]:
            vhost._lock.release()

    def look(*arguments: Any) -> Any:
        if len(held) < 5:
            thread = threading.Thread(target=free)
            thread.start()
            thread.join()
        return asked(*arguments)

    vhost.policies.queue_policy = look
    try:
        operator.do("put_policy", "/", "many", {"pattern": "^many-", "definition": {"max-length": 7}})
    finally:
        del vhost.policies.queue_policy
    assert held == [False] * 5
    assert all(vhost.queues[f"many-{number}"].policy.max_length == 7 for number in range(300))
    operator.do("delete_policy", "/", "many")
    assert all(vhost.queues[f"many-{number}"].policy.max_length is None for number in range(300))


@pytest.mark.parametrize(
    "definition",
    [
        {"max-length": 2**64},
        {"max-length-bytes": 2**70},
        {"delivery-limit": 2**63},
        {"consumer-timeout": 10**400},
        {"dead-letter-exchange": "\ud800"},
        {"dead-letter-exchange": "x" * 256},
        {"dead-letter-exchange": "x", "dead-letter-routing-key": "\ud800"},
        {"alternate-exchange": "\ud800"},
        {"alternate-exchange": "x" * 256},
        {"ha-params": 2**63},
        {"ha-params": [[[[[[[[[[]]]]]]]]]]},
    ],
)
def test_a_policy_says_what_an_argument_could_say(operator: Operator, definition: dict[str, Any]) -> None:
    """A number of more than 64 bits, or half a character, failed in every declaration afterwards, and at the next start."""
    with pytest.raises(Refused, match="invalid value"):
        operator.do("put_policy", "/", "odd", {"pattern": "", "definition": definition})
    with pytest.raises(ValueError, match="invalid value"):  # one that an earlier version kept is left out at the start
        made("odd", {"pattern": "", "definition": definition})


@pytest.mark.parametrize("key", ["dead-letter-exchange", "alternate-exchange"])
def test_a_policymaker_leads_messages_where_it_may_write(operator: Operator, key: str) -> None:
    operator.user("maker", tags="policymaker", write="^(own.*|amq\\.default)$")
    maker = Actor("maker", "here")
    policy = {"pattern": "^nothing", "definition": {key: "secret", "max-length": 1}}
    if key == "alternate-exchange":
        del policy["definition"]["max-length"]  # type: ignore[attr-defined]
    with pytest.raises(PeerError, match="write access to exchange 'secret' in vhost '/' refused for user 'maker'"):
        operator.do("put_policy", "/", "leads", policy, actor=maker)
    assert operator.node.definitions.value("policy", "/", "leads") is None
    for target in ("own", ""):  # the default exchange goes by its name of permissions
        operator.do("put_policy", "/", "leads", {**policy, "definition": {key: target}}, actor=maker)
    operator.do("put_policy", "/", "leads", policy, actor=Actor("guest", "here"))
    operator.do("delete_policy", "/", "leads", actor=maker)


SETS = "federation-upstream-set"


def test_a_policymaker_leaves_others_their_parameters() -> None:
    rig = Rig(limits=Limits(parameters_vhost_max=3))
    try:
        for vhost in ("a", "b"):
            rig.do("put_vhost", vhost, {})
        rig.do("put_user", "maker", "policymaker")
        rig.do("put_permission", "a", "maker", {"configure": "", "write": "", "read": ""})
        maker = Actor("maker", "here")
        for number in range(3):
            rig.do("put_parameter", SETS, "a", str(number), [], actor=maker)
            rig.do("put_global", f"g{number}", 1, actor=maker)
        with pytest.raises(Refused, match="vhost 'a' has 3 federation-upstream-set parameters, which is the limit"):
            rig.do("put_parameter", SETS, "a", "more", [], actor=maker)
        with pytest.raises(Refused, match="the node has 3 global parameters"):
            rig.do("put_global", "more", 1, actor=maker)
        assert rig.do("put_parameter", SETS, "a", "0", [{"upstream": "u"}], actor=maker) is False  # a change is no more
        assert rig.do("put_parameter", SETS, "b", "1", []) is True
        rig.do("delete_global", "g1", actor=maker)
        rig.do("put_global", "cluster_name", "ours")
        for verb, arguments in (("put_global", ("cluster_name", "mine")), ("delete_global", ("cluster_name",))):
            with pytest.raises(NotAuthorised):
                rig.do(verb, *arguments, actor=maker)
    finally:
        rig.close()


def test_a_value_that_could_not_be_shown_is_refused(operator: Operator) -> None:
    """One value nested as deep as JSON can be read ended the list of all parameters, and the export."""
    value: Any = [1, 2]
    for depth in range(31):
        value = {"a": value} if depth % 2 else [value, depth]
    operator.do("put_global", "deep", value)
    for verb, arguments in (("put_parameter", ("shovel", "/", "deeper")), ("put_global", ("deeper",))):
        with pytest.raises(Refused, match="nested deeper than 32"):
            operator.do(verb, *arguments, [value])
    operator.do("delete_global", "deep")


def test_every_change_is_in_the_log_and_no_secret(operator: Operator, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flintmq.definitions")
    secret = rabbitmq_hash("topsecret", b"salt")
    operator.do("put_user", "audited", "management", password_hash=secret, algorithm=HASH, actor=Actor("guest", "10.1.2.3"))
    with pytest.raises(NotAuthorised):
        operator.do("delete_users", ["guest"], actor=Actor("audited", "10.1.2.4"))
    value = {"uri": "amqp://u:topsecret@h"}
    operator.do("put_parameter", "federation-upstream", "/", "up", value, actor=Actor("guest", "10.1.2.3"))
    lines = [record.getMessage() for record in caplog.records]
    assert "user 'guest' at 10.1.2.3: user 'audited' with tags 'management' is set" in lines
    assert any("user 'audited' at 10.1.2.4: refused: users ['guest'] are deleted" in line for line in lines)
    assert not any("topsecret" in line or secret in line for line in lines)
    with pytest.raises(NotAuthorised):
        operator.do("put_policy", "/", "long", {"pattern": "x" * 100_000, "definition": {}}, actor=Actor("audited", "10.1.2.4"))
    assert "refused: policy 'long'" in caplog.records[-1].getMessage() and len(caplog.records[-1].getMessage()) < 3_000


def test_it_is_all_there_after_a_restart(tmp_path: Any) -> None:
    with Broker(data_dir=tmp_path) as broker:
        operator = Operator(broker)
        operator.do("put_vhost", "kept", {"description": "d", "tags": "a,b"})
        operator.user("stays", "kept", tags="monitoring")
        operator.do("put_topic", "kept", "stays", "amq.topic", {"write": "^a", "read": ""})
        operator.do("put_policy", "kept", "p", {"pattern": "^q", "definition": {"max-length": 2}})
        operator.do("put_policy", "kept", "o", {"pattern": "^q", "definition": {"message-ttl": 7}}, operator=True)
        operator.do("put_policy", "kept", "a", {"pattern": "^amq.fanout$", "definition": {"alternate-exchange": "x"}})
        operator.do("put_global", "cluster_name", "named")
        operator.do("put_vhost", "gone", {})
        with operator.connect("stays", "kept") as connection:
            connection.channel().queue_declare("q1", durable=True)
        operator.do("put_permission", "gone", "stays", {"configure": ".*", "write": ".*", "read": ".*"})
        with contextlib.suppress(AMQPError), operator.connect("stays", "gone") as connection:  # the broker closes it
            channel = confirmed(connection)
            channel.queue_declare("q1", durable=True)
            channel.basic_publish("", "q1", b"x", pika.BasicProperties(delivery_mode=2))
            operator.do("delete_vhost", "gone")
        assert "gone" not in broker.node.broker.vhosts
    with Broker(data_dir=tmp_path) as broker:
        operator = Operator(broker)
        vhost = broker.node.broker.vhosts["kept"]
        policy = vhost.queues["q1"].policy
        assert (policy.max_length, policy.message_ttl_ms, vhost.exchanges["amq.fanout"].alternate) == (2, 7, "x")
        assert "gone" not in broker.node.broker.vhosts and broker.node.broker.cluster_name == "named"
        assert operator.node.definitions.value("vhost-metadata", "kept", "metadata") == {"tags": ["a", "b"]}
        with pytest.raises(ChannelClosedByBroker, match="write access to topic 'b'"), operator.connect("stays", "kept") as connection:
            confirmed(connection).basic_publish("amq.topic", "b", b"x")
