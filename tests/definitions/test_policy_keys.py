"""Every key that a policy can set, one by one: it is applied to a queue in use, meets arguments and operator policies by RabbitMQ's rules,
is shown, and leaves nothing behind when it goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flintmq.definitions.change_line import BROKER, Refused
from flintmq.testing.broker import Broker
from flintmq.vhost.arguments import FIXED_FIELDS, OPERATOR_KEYS, POLICY_KEYS
from tests.admin.conftest import Client
from tests.definitions.rig import Answer
from tests.support.broker import wait_until

# key -> two good values and a bad one. Of numbers the first one is the lower one
VALUES: dict[str, tuple[Any, Any, Any]] = {
    "expires": (3_000_000, 4_000_000, 0),
    "message-ttl": (30_000, 40_000, -1),
    "qpid-minimum-message-ttl": (10, 20, -1),
    "qpid-maximum-message-ttl": (30_000, 40_000, "x"),
    "dead-letter-exchange": ("amq.fanout", "amq.direct", 1),
    "dead-letter-routing-key": ("a", "b", 1),
    "dead-letter-strategy": ("at-least-once", "at-most-once", "always"),
    "max-length": (3, 4, -1),
    "max-length-bytes": (300, 400, "x"),
    "max-in-memory-length": (3, 4, None),
    "max-in-memory-bytes": (3, 4, None),
    "overflow": ("reject-publish", "ring", "drop-tail"),
    "queue-mode": ("lazy", "default", None),
    "queue-version": (1, 2, None),
    "delivery-limit": (3, 4, "x"),
    "consumer-timeout": (60_000, 70_000, 0),
    "consumer-disconnected-timeout": (60_000, 70_000, None),
    "delayed-retry-type": ("failed", "returned", "some"),
    "delayed-retry-min": (1_000, 2_000, -1),
    "delayed-retry-max": (1_000, 2_000, -1),
    "quorum-target-group-size": (1, 3, None),
    "initial-cluster-size": (1, 3, None),
    "queue-leader-locator": ("balanced", "client-local", None),
    "queue-master-locator": ("min-masters", "client-local", None),
    "max-age": ("1h", "2h", "7"),
    "stream-max-segment-size-bytes": (1_000_000, 2_000_000, None),
    "stream-filter-size-bytes": (16, 32, None),
}
# Where two of these meet, the lower one counts (RabbitMQ, or ours by the same rule); of the second kind the higher one.
LOWER = {
    *("expires", "message-ttl", "qpid-maximum-message-ttl", "max-length", "max-length-bytes", "delivery-limit", "max-age"),
    *("max-in-memory-length", "max-in-memory-bytes", "consumer-timeout", "delayed-retry-min", "delayed-retry-max"),
}
HIGHER = {"qpid-minimum-message-ttl"}
# what of a core follows the policy and can be read
CORE = ("ttl_ms", "ttl_least_ms", "max_length", "max_bytes", "dead_letters", "drops_lowest", "destination_flags", "consumer_timeout_ms")


def kind_of(key: str) -> str:
    return "stream" if key == "max-age" else "classic"


def arguments_of(key: str, value: Any) -> dict[str, Any]:
    """Arguments of a queue on which the key has its effect, with the key itself unless the value is None."""
    own: dict[str, Any] = {"x-queue-type": "stream"} if kind_of(key) == "stream" else {}
    if key in ("dead-letter-routing-key", "dead-letter-strategy"):
        own["x-dead-letter-exchange"] = "amq.topic"
    if key == "overflow":
        own["x-max-length"] = 5
    return own if value is None else {**own, f"x-{key}": value}


def met(key: str, argument: Any, policy: Any) -> Any:
    if key in LOWER:
        return min(argument, policy)
    return max(argument, policy) if key in HIGHER else argument


class Site:
    def __init__(self, broker: Broker) -> None:
        self.vhost = broker.node.broker.vhosts["/"]
        self.client = Client(broker)
        self._definitions = broker.node.definitions
        self._names = iter(range(10_000))

    def do(self, verb: str, *arguments: Any, **options: Any) -> None:
        answer = Answer()
        getattr(self._definitions, verb)(BROKER, *arguments, answer.done, **options)
        answer.wait()

    def put(self, definition: dict[str, Any], operator: bool = False) -> None:
        self.do("put_policy", "/", "p", {"pattern": "^keys", "definition": definition, "apply-to": "queues"}, operator=operator)

    def remove(self, operator: bool = False) -> None:
        self.do("delete_policy", "/", "p", operator=operator)

    def queue(self, arguments: dict[str, Any], begins: str = "keys") -> Any:
        return self.vhost.run(self.vhost.declare_queue(f"{begins}.{next(self._names)}", durable=True, arguments=arguments))

    def shown(self, queue: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/api/queues/%2F/{queue.name}").json
        return found

    def follows(self, queue: Any, arguments: dict[str, Any]) -> bool:
        """The queue does what one does that was declared with these arguments, which no policy is for."""
        other = self.queue(arguments, "other")
        if queue.policy.is_stream:
            same = True
        else:
            same = [getattr(queue.core, name) for name in CORE] == [getattr(other.core, name) for name in CORE]
        result = same and queue.policy == other.policy
        self.vhost.run(self.vhost.delete_queue(other.name))
        return result


@pytest.fixture(scope="module")
def quick() -> Iterator[Site]:
    with Broker(http_port=0) as broker:
        yield Site(broker)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Broker(http_port=0, store_dir=str(tmp_path_factory.mktemp("keys"))) as broker:
        yield Site(broker)


@pytest.fixture
def site(request: pytest.FixtureRequest, quick: Site) -> Site:
    """A broker without a disk, unless the key is a stream's."""
    node: Any = request.node
    key = getattr(node, "callspec", None) and node.callspec.params.get("key")
    return request.getfixturevalue("stored") if key and kind_of(key) == "stream" else quick  # type: ignore[no-any-return]


def works(key: str) -> bool:
    """Whether anything follows from the key."""
    row = POLICY_KEYS[key]
    return bool(row.field) and row.field not in FIXED_FIELDS


def test_each_key_has_its_values() -> None:
    assert set(VALUES) == set(POLICY_KEYS)
    operator = {"expires", "message-ttl", "max-length", "max-length-bytes", "max-in-memory-length", "max-in-memory-bytes"}
    assert operator | {"overflow", "queue-version", "delivery-limit"} == OPERATOR_KEYS  # as in RabbitMQ's rabbit_policies


@pytest.mark.parametrize("key", sorted(VALUES))
@pytest.mark.parametrize("operator", [False, True], ids=["policy", "operator policy"])
def test_a_key_is_applied_shown_and_undone(site: Site, key: str, operator: bool) -> None:
    low, high, bad = VALUES[key]
    if operator and key not in OPERATOR_KEYS:
        with pytest.raises(Refused, match="not recognised operator policy settings"):
            site.put({key: low}, operator=True)
        return
    if bad is not None:
        with pytest.raises(Refused, match=f"invalid value for '{key}'"):
            site.put({key: bad}, operator)
    queue = site.queue(arguments_of(key, None))
    assert site.follows(queue, arguments_of(key, None))
    for value in (high, low):
        site.put({key: value}, operator)
        assert site.follows(queue, arguments_of(key, value if works(key) else None))
        shown = site.shown(queue)
        assert shown["effective_policy_definition"] == {key: value}
        assert (shown["policy"], shown["operator_policy"]) == ((None, "p") if operator else ("p", None))
    born_under_it = site.queue(arguments_of(key, None))
    assert born_under_it.policy == queue.policy
    site.remove(operator)
    for one in (queue, born_under_it):
        assert site.follows(one, arguments_of(key, None))
    shown = site.shown(queue)
    assert (shown["effective_policy_definition"], shown["policy"], shown["operator_policy"]) == ({}, None, None)


@pytest.mark.parametrize("key", sorted(VALUES))
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["the argument is first", "the policy is first"])
def test_an_argument_meets_a_policy(site: Site, key: str, order: tuple[int, int]) -> None:
    own, other = (VALUES[key][place] for place in order)
    arguments = arguments_of(key, own)
    queue = site.queue(arguments)
    before = site.shown(queue)
    for operator in (False, True):
        if operator and key not in OPERATOR_KEYS:
            continue
        site.put({key: other}, operator)
        wanted = met(key, own, other) if works(key) else own
        assert site.follows(queue, arguments_of(key, wanted))
        shown = site.shown(queue)
        # an argument in whose place a policy counts has no effect now, and is shown so
        assert f"x-{key}" in shown["ignored_arguments" if wanted != own or not works(key) else "effective_arguments"]
        assert sorted(shown["effective_arguments"] + shown["ignored_arguments"]) == sorted(arguments) == sorted(shown["arguments"])
        site.remove(operator)
        assert site.follows(queue, arguments) and site.shown(queue)["effective_arguments"] == before["effective_arguments"]


@pytest.mark.parametrize("key", sorted(OPERATOR_KEYS))
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["the policy is lower", "the operator's is lower"])
def test_an_operator_policy_meets_a_policy(site: Site, key: str, order: tuple[int, int]) -> None:
    ordinary, operators = (VALUES[key][place] for place in order)
    wanted = min(ordinary, operators) if key in LOWER else operators
    queue = site.queue(arguments_of(key, None))
    site.put({key: ordinary})
    site.put({key: operators}, operator=True)
    assert site.follows(queue, arguments_of(key, wanted if works(key) else None))
    shown = site.shown(queue)
    assert (shown["effective_policy_definition"], shown["policy"], shown["operator_policy"]) == ({key: wanted}, "p", "p")
    site.remove()
    assert site.follows(queue, arguments_of(key, operators if works(key) else None))
    site.remove(operator=True)
    assert site.follows(queue, arguments_of(key, None))


def test_no_limit_lifts_no_limit(site: Site) -> None:
    """x-delivery-limit = -1 is "none" (RabbitMQ 4): a tenant does not get out of the operator's limit with it."""
    queue = site.queue({"x-delivery-limit": -1})
    site.put({"delivery-limit": 5}, operator=True)
    assert queue.policy.delivery_limit == 5
    site.put({"delivery-limit": -1})
    assert queue.policy.delivery_limit == 5 and site.shown(queue)["effective_policy_definition"] == {"delivery-limit": 5}
    site.remove(operator=True)
    assert queue.policy.delivery_limit == -1
    site.remove()


def test_on_a_quorum_queue_the_overflow_of_a_policy_counts(site: Site) -> None:
    queue = site.queue({"x-queue-type": "quorum", "x-max-length": 5, "x-overflow": "drop-head"})
    site.put({"overflow": "reject-publish"})
    assert queue.policy.overflow == "reject-publish" and "x-overflow" in site.shown(queue)["ignored_arguments"]
    site.remove()
    assert queue.policy.overflow == "drop-head"


def test_a_delivery_limit_and_a_back_off_reach_a_consumer_that_was_there(site: Site) -> None:
    """What no figure of the core shows: the limit ends a message that came back, and a back-off holds one."""
    queue = site.queue({})
    client = site.client
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(client.broker.url))
    channel = connection.channel()
    got: list[tuple[int, bytes, Any]] = []
    channel.basic_consume(queue.name, lambda _, method, properties, body: got.append((method.delivery_tag, body, properties.headers)))

    def next_one() -> tuple[int, bytes, Any]:
        wait_until(lambda: connection.process_data_events(0) or got)
        return got.pop()

    channel.basic_publish("", queue.name, b"free")
    for _ in range(3):  # nothing limits it yet
        tag, body, _headers = next_one()
        channel.basic_nack(tag)
    site.put({"delivery-limit": 1})
    tag, body, _headers = next_one()
    assert body == b"free"
    channel.basic_ack(tag)
    channel.basic_publish("", queue.name, b"limited")
    for count in (None, 1):
        tag, body, headers = next_one()
        assert (body, (headers or {}).get("x-delivery-count")) == (b"limited", count)
        channel.basic_nack(tag)
    wait_until(lambda: connection.process_data_events(0) or queue.core.ready_count() + queue.core.unacked_count() == 0)
    site.put({"delayed-retry-min": 600_000})
    channel.basic_publish("", queue.name, b"held")
    channel.basic_nack(next_one()[0])
    broker: Any = client.node.broker
    wait_until(lambda: connection.process_data_events(0) or broker.retries.waiting(queue.core) == 1)
    site.remove()
    channel.basic_publish("", queue.name, b"next")
    channel.basic_nack(next_one()[0])
    assert next_one()[1] == b"next"  # at once again
    connection.close()
