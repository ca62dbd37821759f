"""A link to another node, against a node that says what the test writes: login, channels, answers, and each way of its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from flintmq.cluster.link import Link, LinkLost
from flintmq.cluster.link_wire import ack_frame, requeue_frame
from flintmq.errors import PeerError, ReplyCode
from flintmq.protocol.v0_9_1 import spec
from tests.support.fake_node import FakeNode, User, with_node


def test_a_channel_can_be_used_at_once_and_says_what_it_is_aimed_at() -> None:
    async def work(node: FakeNode, link: Link, ends: list[str]) -> None:
        await link.open()
        assert link.frame_max == 4_096
        user = User()
        number = link.open_channel(user, b"id")
        link.send(number, spec.ConfirmSelect())
        await node.until(lambda: node.names(number) == ["channel.open", "confirm.select"])
        node.send(number, spec.ChannelOpenOk())
        node.writer.write(ack_frame(number, 2, True) + requeue_frame(number, 3) + ack_frame(number, 4, False))
        await node.until(lambda: "read" in user.heard)
        assert user.heard == [(2, True, True), (3, False, False), (4, False, True), "read"]
        assert ends == []

    with_node(work)


def test_a_number_is_used_again_when_its_channel_is_closed_on_both_sides() -> None:
    async def work(node: FakeNode, link: Link, ends: list[str]) -> None:
        await link.open()
        users = [User() for _ in range(3)]
        assert [link.open_channel(user) for user in users] == [1, 2, 3]
        with pytest.raises(PeerError, match="3 consumers"):
            link.open_channel(User())
        link.close_channel(2)
        with pytest.raises(PeerError):
            link.open_channel(User())
        await node.until(lambda: "channel.close" in node.names(2))
        node.writer.write(ack_frame(2, 1, False))
        node.send(2, spec.ChannelCloseOk())
        node.send(3, spec.ChannelClose(404, "NOT_FOUND - not owned here: q", 0, 0))
        await node.until(lambda: users[2].heard != [])
        assert users[2].heard == [(404, "not owned here: q")] and users[1].heard == []
        assert {link.open_channel(User()), link.open_channel(User())} == {2, 3}
        await node.until(lambda: "channel.close-ok" in node.names(3))
        link.close_channel(7)

    with_node(work)


def _lost(reason: str, user: User, ends: list[str]) -> bool:
    return len(ends) == 1 and reason in ends[0] and user.heard == [("lost", ends[0])]


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (lambda node: node.writer.close(), "connection was lost"),
        (lambda node: node.writer.transport.abort(), "connection was lost"),
        (lambda node: node.send(0, spec.ConnectionClose(320, "node is drained", 0, 0)), "320 node is drained"),
        (lambda node: node.writer.write(b"HTTP/1.1 200 OK\r\n\r\n"), "no AMQP"),
        (lambda node: node.writer.write(ack_frame(1, 1, False)[:-1] + b"\0"), "end octet"),
        (lambda node: node.send(0, spec.BasicQosOk()), "unexpected basic.qos-ok"),
    ],
)
def test_each_way_of_an_end_is_told_once(says: Callable[[FakeNode], object], reason: str) -> None:
    async def work(node: FakeNode, link: Link, ends: list[str]) -> None:
        await link.open()
        user = User()
        link.open_channel(user)
        says(node)
        await node.until(partial(_lost, reason, user, ends))
        assert link.is_over
        with pytest.raises(LinkLost):
            link.open_channel(User())
        link.write(b"nobody reads this")

    with_node(work)


def test_a_node_that_gives_no_sign_of_life_is_lost() -> None:
    async def work(node: FakeNode, link: Link, ends: list[str]) -> None:
        await link.open()
        user = User()
        link.open_channel(user)
        await node.until(partial(_lost, "no sign of life", user, ends))

    with_node(work, cluster_heartbeat_ms=50)


def test_signs_of_life_keep_a_link_open() -> None:
    async def work(node: FakeNode, link: Link, ends: list[str]) -> None:
        await link.open()
        for _ in range(20):
            await asyncio.sleep(0.02)
            node.writer.write(b"\x08\0\0\0\0\0\0\xce")
        assert ends == []

    with_node(work, cluster_heartbeat_ms=100)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (partial(FakeNode, mechanisms="PLAIN AMQPLAIN"), "offers no login for nodes"),
        (partial(FakeNode, secret=b"t" * 32), "does not answer there"),
    ],
)
def test_whoever_is_no_node_of_the_cluster_is_not_told_the_proof(made: Callable[[], FakeNode], reason: str) -> None:
    async def work(node: FakeNode, link: Link, ends: list[str]) -> None:
        with pytest.raises(LinkLost, match=reason):
            await link.open()
        assert "connection.secure-ok" not in node.names(0) and ends == []

    with_node(work, made)


def test_a_node_that_is_not_there_or_says_nothing_is_not_reached() -> None:
    async def silent(node: FakeNode, link: Link, ends: list[str]) -> None:
        node.speaks = False
        with pytest.raises(LinkLost, match="does not answer"):
            await link.open()

    async def gone(node: FakeNode, link: Link, ends: list[str]) -> None:
        node.server.close()
        await node.server.wait_closed()
        with pytest.raises(LinkLost, match="not reached"):
            await link.open()

    with_node(silent, cluster_connect_ms_max=50)
    with_node(gone)


def test_a_close_of_ours_is_polite_and_told_as_any_end() -> None:
    async def work(node: FakeNode, link: Link, ends: list[str]) -> None:
        await link.open()
        user = User()
        link.open_channel(user)
        assert not link.is_idle
        link.close()
        link.close()
        await node.until(lambda: "connection.close" in node.names(0))
        assert user.heard == [("lost", "closed")] and ends == ["closed"]

    with_node(work)


def test_a_code_that_is_not_known_is_an_internal_error() -> None:
    async def work(node: FakeNode, link: Link, ends: list[str]) -> None:
        await link.open()
        user = User()
        link.open_channel(user)
        node.send(1, spec.ChannelClose(999, "what\x00ever", 0, 0))
        await node.until(lambda: user.heard != [])
        assert user.heard == [(ReplyCode.INTERNAL_ERROR, "what?ever")]

    with_node(work)
