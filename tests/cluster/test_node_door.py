"""The login of nodes: who knows the engine's secret comes in, with rights and numbers of a node; nobody else does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flintmq.cluster.node_door import MECHANISM, Caller, NodeDoor, NodeUser
from flintmq.shared.node_secret import NodeId
from flintmq.testing.broker import Broker
from tests.support.node_login import challenge, log_in, prove
from tests.support.rawamqp import RawConnection
from tests.support.two_nodes import OTHER, OWNER, SECRET, Owner

Connect = Callable[..., RawConnection]


def raw_of(connect: Connect, owner: Owner) -> RawConnection:
    return connect(owner.broker, handshake=False)


def test_a_node_comes_in_as_a_user_of_its_own_with_many_channels(owner: Owner, connect: Connect) -> None:
    raw = log_in(raw_of(connect, owner))
    assert raw.tune is not None and raw.tune.channel_max == 65_535
    (client,) = owner.inner.connections.values()
    assert (str(client.user), client.mechanism, client.vhost) == ("node:b", MECHANISM, owner.vhost)
    assert owner.inner.users.get(client.user).tags == () and not owner.inner.users.is_user("node:b")
    raw.close()


def test_a_node_has_more_channels_than_a_users_quota(start: Callable[..., Broker], connect: Connect) -> None:
    owner = Owner(start(limits={"user_channels_max": 2, "channels_max": 2}))
    owner.inner.quotas.expect_others()
    raw = log_in(raw_of(connect, owner))
    for number in range(1, 6):
        raw.channel(number)
    client = connect(owner.broker)
    assert client.tune is not None and client.tune.channel_max == 2


def test_a_drained_node_still_serves_other_nodes(owner: Owner, connect: Connect) -> None:
    owner.inner.draining = True
    log_in(raw_of(connect, owner))


@pytest.mark.parametrize("answer", [b"", b"x" * 32, b"x" * 4_000])
def test_a_wrong_proof_is_refused_counted_and_in_the_audit(owner: Owner, connect: Connect, answer: bytes) -> None:
    raw = raw_of(connect, owner)
    challenge(raw, Caller(OTHER, OWNER, SECRET))
    prove(raw, answer)
    raw.expect_close(403, "Login was refused")
    assert owner.inner.audit.refused_total == 1
    assert not owner.inner.connections


def test_another_secret_opens_nothing(owner: Owner, connect: Connect) -> None:
    raw, secret = raw_of(connect, owner), b"t" * 32
    caller = Caller(OTHER, OWNER, secret)
    asked = challenge(raw, caller)
    with pytest.raises(ValueError, match="does not answer there"):
        caller.answer(asked)  # an honest node ends here: whoever listens there does not know its secret


def test_a_proof_that_was_heard_is_of_no_use_on_another_connection(owner: Owner, connect: Connect) -> None:
    caller = Caller(OTHER, OWNER, SECRET)
    first = raw_of(connect, owner)
    heard = caller.answer(challenge(first, caller))
    prove(first, heard)
    first.expect(0, "connection.tune")
    again = raw_of(connect, owner)
    challenge(again, caller)
    prove(again, heard)
    again.expect_close(403)


def test_the_called_sides_proof_is_none_of_the_caller(owner: Owner, connect: Connect) -> None:
    raw = raw_of(connect, owner)
    prove(raw, challenge(raw, Caller(OTHER, OWNER, SECRET))[32:])
    raw.expect_close(403)


def test_who_guesses_is_slowed(start: Callable[..., Broker], connect: Connect) -> None:
    owner = Owner(start(limits={"login_user_failures": 2}))
    for _ in range(2):
        raw = raw_of(connect, owner)
        challenge(raw, Caller(OTHER, OWNER, SECRET))
        prove(raw, b"x" * 32)
        raw.expect_close(403)
    raw = raw_of(connect, owner)
    raw.start()
    raw.start_ok(mechanism=MECHANISM, response=Caller(OTHER, OWNER, SECRET).first)
    raw.expect_close(506, "too many logins")


@pytest.mark.parametrize("first", [b"", b"n" * 32, b"n" * 32 + b"nolife", b"n" * 32 + b"\xff\0l", b"n" * 5_000])
def test_a_first_message_that_is_none_is_refused(owner: Owner, connect: Connect, first: bytes) -> None:
    raw = raw_of(connect, owner)
    raw.start()
    raw.start_ok(mechanism=MECHANISM, response=first)
    raw.expect_close(403)


def test_a_node_without_a_cluster_neither_offers_nor_takes_it(start: Callable[..., Broker], connect: Connect) -> None:
    raw = connect(start(), handshake=False)
    raw.start()
    assert MECHANISM not in raw.mechanisms
    raw.start_ok(mechanism=MECHANISM, response=Caller(OTHER, OWNER, SECRET).first)
    raw.expect_close(503)


def test_a_node_sees_that_it_reached_another_node_than_it_meant(owner: Owner) -> None:
    caller = Caller(OTHER, NodeId("c", "life-c"), SECRET)
    greeting = NodeDoor(OWNER, SECRET, owner.vhost, 1).greet(caller.first)
    with pytest.raises(ValueError, match="node 'c' does not answer there"):
        caller.answer(greeting.challenge)
    earlier = Caller(OTHER, NodeId("a", "its life before"), SECRET)
    with pytest.raises(ValueError):
        earlier.answer(NodeDoor(OWNER, SECRET, owner.vhost, 1).greet(earlier.first).challenge)


def test_a_users_name_is_nodes_alone_only_with_the_type() -> None:
    user = NodeUser("b")
    rights = user.rights("any")
    assert rights.everything and rights.allows("read", "queue", "q") and rights.grants("write")
    assert user.may_topic("/", "write", "x", "k") and user.may_every_key("/", "write", "x")
    assert type(str(user)) is str
