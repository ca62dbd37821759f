"""Publishes to another node, with a link of the test's own: order, the bound of what is under way, and one answer for each message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.cluster.link import LinkLost
from flintmq.cluster.link_wire import WireError
from flintmq.cluster.remote_publishes import Publishes
from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode
from tests.support.rawcodec import parse_method

SIZE = 1_000
LIMITS = Limits().replace(cluster_flight_bytes_max=2 * SIZE)


class Port:
    """The answering half of a SharedPort. Lanes are not numbers of memory here."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bool]] = []
        self.left: list[tuple[int, int]] = []

    def leave(self, lane: int, size: int) -> None:
        self.left.append((lane, size))

    def answer(self, receipts: list[int], taken: bool) -> None:
        self.answers += [(receipt, taken) for receipt in receipts]


class FakeLink:
    frame_max = 131_072

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.closed: list[int] = []
        self.aims: list[bytes] = []
        self.fails: Exception | None = None

    def open_channel(self, user: Any, aim: bytes) -> int:
        if self.fails is not None:
            raise self.fails
        self.aims.append(aim)
        return len(self.aims)

    def close_channel(self, number: int) -> None:
        self.closed.append(number)

    def send(self, number: int, method: Any) -> None:
        self.sent.append(method.NAME)

    def write(self, frames: bytes) -> None:
        size = int.from_bytes(frames[3:7], "big")
        self.sent.append(parse_method(1, frames[7 : 7 + size]).routing_key)


class Scene:
    def __init__(self) -> None:
        self.port = Port()
        self.link = FakeLink()
        self.wanted = 0
        self.lost: list[str] = []
        self.publishes = Publishes(b"id", self.port, LIMITS, self._want, self.lost.append)  # type: ignore[arg-type]

    def _want(self) -> None:
        self.wanted += 1

    def add(self, *numbers: int) -> None:
        for number in numbers:
            self.publishes.add((b"", b"%d" % number, b"\0" * 14, b"", 0, 0), (number, 7, SIZE))
        self.publishes.pump()

    def attach(self) -> None:
        self.publishes.attach(self.link)  # type: ignore[arg-type]
        self.publishes.on_method(None)

    def answer(self, tag: int, multiple: bool = False, taken: bool = True) -> None:
        self.publishes.on_answer(tag, multiple, taken)
        self.publishes.on_read()


def scene(work: Callable[[Scene], None]) -> None:
    async def run() -> None:
        made = Scene()
        work(made)
        assert len(made.port.left) == len(made.port.answers), "what is answered has left its lane"

    asyncio.run(run())


def test_messages_wait_for_a_link_and_go_in_order_as_far_as_their_bytes_allow() -> None:
    def work(one: Scene) -> None:
        one.add(1, 2, 3, 4)
        assert one.wanted == 1 and one.link.sent == []
        one.attach()
        assert one.link.aims == [b"id"] and one.link.sent == ["confirm.select", "1", "2"]
        one.answer(1)
        assert one.link.sent[3:] == ["3"]
        one.answer(3, multiple=True)
        assert one.link.sent[3:] == ["3", "4"]
        one.answer(4, taken=False)
        assert one.port.answers == [(1, True), (2, True), (3, True), (4, False)]

    scene(work)


@pytest.mark.parametrize(("tag", "multiple"), [(0, True), (2, False), (3, True), (1 << 40, True)])
def test_an_answer_that_is_not_due_ends_the_link(tag: int, multiple: bool) -> None:
    def work(one: Scene) -> None:
        one.attach()
        one.add(1, 2)
        with pytest.raises(WireError, match="not due"):
            one.publishes.on_answer(tag, multiple, True)
        one.publishes.on_lost("it said what is not due")
        assert one.port.answers == [(1, False), (2, False)]

    scene(work)


@pytest.mark.parametrize("by_close", [True, False])
def test_what_was_sent_and_not_answered_is_refused_at_the_end_of_channel_or_link_and_what_waits_goes_by_the_next(by_close: bool) -> None:
    def work(one: Scene) -> None:
        one.attach()
        one.add(1, 2, 3)
        one.publishes.on_answer(1, False, True)
        if by_close:
            one.publishes.on_closed(PeerError(ReplyCode.NOT_FOUND, "not owned here"))
        else:
            one.publishes.on_lost("gone")
        assert sorted(one.port.answers) == [(1, True), (2, False)]
        assert one.lost == ["not owned here" if by_close else "gone"]
        assert one.publishes.link is None
        one.add(4)
        assert one.wanted == 1
        one.attach()
        one.answer(2, multiple=True)
        assert one.port.answers[2:] == [(3, True), (4, True)], "tags begin anew"

    scene(work)


def test_a_channel_that_is_given_up_is_closed_and_what_waits_for_an_owner_ends_with_its_time() -> None:
    def work(one: Scene) -> None:
        one.attach()
        one.publishes.rest(asyncio.get_running_loop().time() - 1)
        assert one.link.closed == [], "it was used a moment ago"
        one.publishes.rest(asyncio.get_running_loop().time() + 1)
        assert one.link.closed == [1]
        one.add(1)
        one.publishes.refuse_late(asyncio.get_running_loop().time() - 1)
        assert one.port.answers == []
        one.publishes.refuse_late(asyncio.get_running_loop().time() + 1)
        assert one.port.answers == [(1, False)]

    scene(work)


def test_nothing_is_sent_before_the_channel_is_answered_and_a_refusal_of_it_refuses_no_message() -> None:
    def work(one: Scene) -> None:
        one.add(1, 2, 3)
        one.publishes.attach(one.link)  # type: ignore[arg-type]
        assert one.link.sent == ["confirm.select"]
        one.publishes.on_closed(PeerError(ReplyCode.NOT_FOUND, "not owned here"))
        assert one.port.answers == [] and one.lost == ["not owned here"]
        one.publishes.refuse_all()
        assert one.port.answers == [(1, False), (2, False), (3, False)]

    scene(work)


def test_a_link_without_a_channel_to_give_leaves_messages_where_they_are() -> None:
    def work(one: Scene) -> None:
        one.add(1)
        one.link.fails = LinkLost("over")
        with pytest.raises(LinkLost):
            one.publishes.attach(one.link)  # type: ignore[arg-type]
        assert one.publishes.link is None and one.port.answers == []

    scene(work)
