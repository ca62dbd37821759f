"""The links of a node: one dial for all that want it at once, none that nobody uses, and an answer for everybody at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from flintmq.cluster.link import Link, LinkLost, NodeAddress
from flintmq.cluster.links import CONSUMERS, PUBLISHES, Links
from flintmq.config import Limits
from tests.support.fake_node import FakeNode, User
from tests.support.two_nodes import OTHER, OWNER, SECRET

Answers = list[tuple[Link | None, LinkLost | None]]


def with_links(work: Callable[[FakeNode, Links, NodeAddress], Awaitable[Any]], **limits: Any) -> None:
    async def run() -> None:
        node = FakeNode()
        links = Links(OTHER, SECRET, Limits().replace(**limits))
        try:
            await work(node, links, await node.listen())
        finally:
            await links.stop()
            await node.close()

    asyncio.run(run())


def test_all_that_want_a_link_at_once_get_the_same_and_later_ones_at_once() -> None:
    async def work(node: FakeNode, links: Links, to: NodeAddress) -> None:
        answers: Answers = []
        for _ in range(3):
            links.want(to, CONSUMERS, lambda link, error: answers.append((link, error)))
        assert answers == []
        await node.until(lambda: len(answers) == 3)
        assert len({id(link) for link, _ in answers}) == 1 and answers[0][1] is None
        links.want(to, CONSUMERS, lambda link, error: answers.append((link, error)))
        assert answers[3] == answers[0]
        links.want(to, PUBLISHES, lambda link, error: answers.append((link, error)))
        await node.until(lambda: len(answers) == 5)
        assert answers[4][0] is not answers[0][0], "settlements do not wait behind publishes"

    with_links(work)


def test_a_link_that_nobody_uses_is_closed_and_the_next_one_is_made_anew() -> None:
    async def work(node: FakeNode, links: Links, to: NodeAddress) -> None:
        answers: Answers = []
        links.want(to, CONSUMERS, lambda link, error: answers.append((link, error)))
        await node.until(lambda: len(answers) == 1)
        link = answers[0][0]
        assert link is not None
        number = link.open_channel(User())
        links.close_idle()
        assert not link.is_over
        link.close_channel(number)
        await asyncio.sleep(0)
        links.close_idle()
        assert link.is_over
        links.want(to, CONSUMERS, lambda link, error: answers.append((link, error)))
        await node.until(lambda: len(answers) == 2)
        assert answers[1][0] is not link

    with_links(work, cluster_idle_ms=0)


def test_a_node_that_is_not_reached_is_said_to_all_and_tried_again_when_it_is_wanted_again() -> None:
    async def work(node: FakeNode, links: Links, to: NodeAddress) -> None:
        answers: Answers = []
        nobody = NodeAddress(OWNER, to.host, 1)
        for _ in range(2):
            links.want(nobody, CONSUMERS, lambda link, error: answers.append((link, error)))
        await node.until(lambda: len(answers) == 2)
        assert all(link is None and isinstance(error, LinkLost) for link, error in answers)
        links.want(nobody, CONSUMERS, lambda link, error: answers.append((link, error)))
        await node.until(lambda: len(answers) == 3)

    with_links(work)


def test_a_stop_answers_whoever_waits_and_whoever_comes_later() -> None:
    async def work(node: FakeNode, links: Links, to: NodeAddress) -> None:
        answers: Answers = []
        node.speaks = False
        links.want(to, CONSUMERS, lambda link, error: answers.append((link, error)))
        await asyncio.sleep(0.01)
        await links.stop()
        links.want(to, CONSUMERS, lambda link, error: answers.append((link, error)))
        assert [(link, str(error)) for link, error in answers] == [(None, "this node stops")] * 2

    with_links(work)
