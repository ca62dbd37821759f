"""Numbers of one user and one virtual host are limited, and others never pay for it (channel/quotas.py)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from flintmq.access.users import hash_password
from flintmq.broker.memory_keeper import MemoryKeeper
from flintmq.channel.quotas import CHANNELS, CONNECTIONS, CONSUMERS, Quotas
from flintmq.config import Limits
from flintmq.core.memory_account import bytes_by_kind, bytes_held
from flintmq.errors import PeerError, ReplyCode
from flintmq.ports import LimitsRecord, PermissionRecord, UserRecord
from tests.support.broker import wait_until
from tests.support.rawamqp import BODY, RawConnection, frame, header_frame, method_frame

MIB = 1 << 20
HASH = hash_password("secret")


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(PeerError) as caught:
        call()
    assert caught.value.code == ReplyCode.NOT_ALLOWED and caught.value.hard
    return caught.value.text


# --- counts ------------------------------------------------------------------------------------------------------------------


def test_a_user_leaves_the_others_their_share() -> None:
    quotas = Quotas(Limits(connections_max=10, user_connections_share=0.5, user_channels_max=2, user_consumers_max=2), (), lambda: 2)
    for _ in range(5):
        quotas.open_connection("alice", "/")
    text = "connection refused for user 'alice': user connection limit (5) is reached"
    assert refused(lambda: quotas.open_connection("alice", "other")) == text
    quotas.open_connection("bob", "/")
    quotas.close_connection("alice", "/")
    quotas.open_connection("alice", "/")
    for take, what in ((quotas.open_channel, "channels opened for"), (quotas.add_consumer, "consumers of")):
        take("alice")
        take("alice")
        text = f"number of {what} user 'alice' has reached the maximum allowed user limit of (2)"
        assert refused(lambda take=take: take("alice")) == text  # type: ignore[misc]
        take("bob")
    quotas.close_channels("alice", 1)
    quotas.remove_consumer("alice")
    assert (quotas.count(CHANNELS, "user", "alice"), quotas.count(CONSUMERS, "user", "alice")) == (1, 1)


def test_the_only_user_may_have_it_all() -> None:
    users = 1
    quotas = Quotas(Limits(connections_max=4, user_connections_share=0.5, user_channels_max=1), (), lambda: users)
    for _ in range(4):
        quotas.open_connection("alice", "/")
        quotas.open_channel("alice")
    users = 2
    refused(lambda: quotas.open_connection("alice", "/"))
    refused(lambda: quotas.open_channel("alice"))


def test_what_an_operator_sets_counts_for_everybody() -> None:
    records = [
        LimitsRecord("vhost", "v", {CONNECTIONS: 1}),
        LimitsRecord("vhost", "closed", {CONNECTIONS: 0}),
        LimitsRecord("user", "alice", {CHANNELS: 1, CONNECTIONS: 2}),
        LimitsRecord("user", "free", {CHANNELS: -1}),
    ]
    quotas = Quotas(Limits(user_channels_max=1), records, lambda: 1)
    quotas.open_connection("alice", "v")
    text = "access to vhost 'v' refused for user 'bob': connection limit (1) is reached"
    assert refused(lambda: quotas.open_connection("bob", "v")) == text
    refused(lambda: quotas.open_connection("bob", "closed"))
    quotas.open_connection("alice", "w")
    refused(lambda: quotas.open_connection("alice", "w"))
    quotas.open_channel("alice")
    refused(lambda: quotas.open_channel("alice"))
    for _ in range(5):
        quotas.open_channel("free")
    quotas.close_connection("alice", "v")
    quotas.open_connection("bob", "v")


# --- on a broker -------------------------------------------------------------------------------------------------------------


def two_users(broker: Any) -> Any:
    node = broker.node
    for name in ("alice", "bob"):
        node.users.put(UserRecord(name, HASH))
        node.permissions.set_permissions(PermissionRecord(name, "/", ".*", ".*", ".*"))
    return node.broker


def as_user(connect: Callable[..., Any], broker: Any, name: str) -> RawConnection:
    connection: RawConnection = connect(broker, user=name, password="secret")
    return connection


def open_refused(broker: Any, name: str, text: str) -> None:
    connection = RawConnection("127.0.0.1", broker.port)
    connection.start()
    connection.start_ok(name, "secret")
    connection.expect(0, "connection.tune")
    connection.send(method_frame(0, "connection.tune-ok", channel_max=0, frame_max=131072, heartbeat=0))
    connection.send(method_frame(0, "connection.open", virtual_host="/"))
    method = connection.recv_any()
    assert (method.name, method.reply_code, method.reply_text) == ("connection.close", 530, f"NOT_ALLOWED - {text}")
    connection.drop()


def test_connections_of_one_user_keep_nobody_out(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start({"connections_max": 10, "user_connections_share": 0.3})
    inner = two_users(broker)
    held = [as_user(connect, broker, "alice") for _ in range(3)]
    open_refused(broker, "alice", "connection refused for user 'alice': user connection limit (3) is reached")
    as_user(connect, broker, "bob").channel().queue("q")
    held[0].close()
    held[1].drop()
    wait_until(lambda: inner.quotas.count(CONNECTIONS, "user", "alice") == 1, what="who left is not counted")
    as_user(connect, broker, "alice")


def test_channels_and_consumers_of_one_user(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start({"user_channels_max": 3, "user_consumers_max": 3})
    inner = two_users(broker)
    first, second, third = (as_user(connect, broker, name) for name in ("alice", "alice", "bob"))
    channel = first.channel(1)
    first.channel(2)
    second.channel(1)
    second.send(method_frame(2, "channel.open"))
    text = "number of channels opened for user 'alice' has reached the maximum allowed user limit of (3)"
    second.expect_close(530, text)
    wait_until(lambda: inner.quotas.count(CHANNELS, "user", "alice") == 2, what="its channels are not counted any more")
    bobs = [third.channel(number) for number in (1, 2, 3)]
    # Consumers end in four ways: cancelled, with their queue, with their channel, with their connection.
    channel.queue("a")
    channel.queue("b")
    for tag, queue in (("1", "a"), ("2", "a"), ("3", "b")):
        channel.call("basic.consume", queue=queue, consumer_tag=tag)
    channel.call("basic.cancel", consumer_tag="1")
    channel.call("queue.delete", queue="b")
    assert inner.quotas.count(CONSUMERS, "user", "alice") == 1
    channel.call("basic.consume", queue="a", consumer_tag="4", exclusive=False)
    channel.send("basic.consume", queue="nowhere", consumer_tag="5")
    channel.expect_close(404)
    assert inner.quotas.count(CONSUMERS, "user", "alice") == 0
    again = first.channel(5)
    for tag in "123":
        again.call("basic.consume", queue="a", consumer_tag=tag)
    again.send("basic.consume", queue="a", consumer_tag="4")
    first.expect_close(530, "number of consumers of user 'alice' has reached the maximum allowed user limit of (3)")
    wait_until(lambda: inner.quotas.count(CONSUMERS, "user", "alice") == 0, what="its consumers are not counted any more")
    wait_until(lambda: inner.quotas.count(CHANNELS, "user", "alice") == 0, what="its channels are not counted any more")
    for tag, one in enumerate(bobs):
        one.call("basic.consume", queue="a", consumer_tag=str(tag))


def test_what_connections_and_consumers_take_is_given_back(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    gc.collect()  # what other tests left does not go in the midst of it
    broker = start()
    before = bytes_by_kind()["connections"]
    client = connect(broker)
    alone = bytes_by_kind()["connections"] - before
    assert 4096 <= alone <= 16_384
    channel = client.channel()
    channel.queue("q")
    for number in range(100):
        channel.call("basic.consume", queue="q", consumer_tag=f"{number}", arguments={"x": "y" * 1000})
    assert bytes_by_kind()["connections"] - before >= alone + 100 * 2000
    for number in range(50):
        channel.call("basic.cancel", consumer_tag=f"{number}")
    assert bytes_by_kind()["connections"] - before <= alone + 50 * 6000
    client.close()
    wait_until(lambda: bytes_by_kind()["connections"] <= before, what="it is given back")


def test_who_holds_more_than_a_share_loses_its_largest_connection(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """Memory is not short; the other user notices nothing."""
    limit = bytes_held() + 1024 * MIB
    share = (bytes_held() + 24 * MIB) / limit
    broker = start({"memory_sweep_ms": 20, "memory_sweep_least": 1, "user_memory_share": share}, memory_limit=limit)
    two_users(broker)
    bob = as_user(connect, broker, "bob").channel()
    bob.queue("q")
    alice = as_user(connect, broker, "alice")
    channel = alice.channel()
    channel.send("basic.publish", exchange="", routing_key="q")
    size = bytes_held() + 40 * MIB
    alice.send(header_frame(1, min(size, 128 * MIB)))
    try:
        for _ in range(size // 100_000):
            alice.send(frame(BODY, 1, bytes(100_000)))
    except OSError:
        pass  # it is closed while it sends
    wait_until(lambda: broker.node.memory.closed == 1, what="alice loses the connection")
    bob.publish(b"x", routing_key="q")
    assert bob.ready("q") == 1
    assert "alice" not in [handler.user for handler in broker.node.broker.connections.values()]


def test_the_only_user_and_strangers_lose_nothing() -> None:
    told: list[object] = []
    broker: Any = SimpleNamespace(limits=Limits(user_memory_share=0.5))
    keeper = MemoryKeeper(broker, [], bytes_held() + 1024 * MIB)
    loop = SimpleNamespace(call=told.append)
    alice, bob, stranger = (SimpleNamespace(user=name, loop=loop) for name in ("alice", "bob", ""))
    most = keeper.memory_limit
    keeper._close_heaviest([(most, alice), (0, stranger)])  # type: ignore[list-item]
    keeper._close_heaviest([(most // 2 - 1, alice), (0, bob)])  # type: ignore[list-item]
    assert not told
    keeper._close_heaviest([(most // 2, alice), (1, alice), (0, bob)])  # type: ignore[list-item]
    assert len(told) == 1
