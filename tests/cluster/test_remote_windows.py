"""Windows of consumers at other nodes, with a link of the test's own: what the client does with a delivery is what the owner is told."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.cluster.remote_windows import RemoteConsumer, RemoteGet, Window, Wish
from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode
from flintmq.ports import DequeueReason
from flintmq.protocol.v0_9_1 import spec
from flintmq.queue.control import QueueHandle
from flintmq.queue.handoff import SharedPort
from tests.support.rawcodec import parse_method

ACK, REJECT = DequeueReason.ACK, DequeueReason.REJECT


class FakeLink:
    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.closed: list[int] = []

    def open_channel(self, user: Any, aim: bytes = b"") -> int:
        return 5

    def close_channel(self, number: int) -> None:
        self.closed.append(number)

    def send(self, number: int, method: Any) -> None:
        self.sent.append(method.NAME)

    def write(self, frames: bytes) -> None:
        while frames:
            size = int.from_bytes(frames[3:7], "big")
            method = parse_method(5, frames[7 : 7 + size])
            frames = frames[8 + size :]
            flag = method.multiple if method.name == "basic.ack" else method.requeue
            self.sent.append((method.name, method.delivery_tag, flag))

    def take(self) -> list[Any]:
        sent, self.sent = self.sent, []
        return sent


class Scene:
    """A window and its host. `entry` makes deliveries, by tag."""

    def __init__(self) -> None:
        self.limits = Limits()
        self.port = SharedPort(None, 1_000, 1_000)
        self.link = FakeLink()
        self.windows: list[Window] = []
        self.lost: list[str] = []
        self.heard: list[Any] = []
        self.positions: dict[int, int] = {}

    def new_core(self) -> QueueHandle:
        return QueueHandle(9)

    def came(self, window: Window) -> None:
        self.windows.append(window)

    def gone(self, window: Window) -> None:
        self.windows.remove(window)

    def owner_lost(self, queue: bytes, link: Any, reason: str) -> None:
        self.lost.append(reason)

    def consumer(self) -> RemoteConsumer:
        made = RemoteConsumer(self, b"id", Wish("/", 10), self.heard.append, self.heard.append)
        made.begin(self.link)  # type: ignore[arg-type]
        made.on_method(spec.BasicConsumeOk("c"))
        assert self.heard == [None] and self.link.take() == ["basic.qos", "basic.consume"]
        return made

    def deliver(self, window: Window, *tags: int) -> None:
        for tag in tags:
            before = set(self.positions.values())
            window.on_message(tag, False, (b"", b"", b"\0" * 14, b"%d" % tag, 0, 0))
            position = window.core.next_available(max(before, default=0) + 1)
            assert window.core.message_at(position)[3] == b"%d" % tag
            self.positions[tag] = position

    def hold(self, window: Window, *tags: int) -> None:
        for tag in tags:
            assert window.core.hold(self.positions[tag])

    def settle(self, window: Window, *tags: int, reason: int = ACK) -> None:
        for tag in tags:
            assert window.core.settle_held(self.positions[tag], reason, False)
        self.hand_on(window)

    def hand_on(self, window: Window) -> None:
        for _, _, _, position, _, _, _, reason in self.port.take(100):
            window.ended(position, reason)
        window.flush()


@pytest.fixture
def scene() -> Any:
    made = Scene()
    yield made


def test_acks_before_the_first_open_message_go_as_one_and_others_by_themselves(scene: Scene) -> None:
    window = scene.consumer()
    scene.deliver(window, 1, 2, 3, 4, 5, 6)
    scene.hold(window, 1, 2, 3, 4, 5, 6)
    scene.settle(window, 2, 1, 4)
    assert scene.link.take() == [("basic.ack", 2, True), ("basic.ack", 4, False)]
    scene.settle(window, 3, 5, 6)
    assert scene.link.take() == [("basic.ack", 6, True)]
    assert scene.link.closed == []


def test_a_refusal_is_a_refusal_there(scene: Scene) -> None:
    window = scene.consumer()
    scene.deliver(window, 1, 2)
    scene.hold(window, 1, 2)
    scene.settle(window, 1, reason=REJECT)
    scene.settle(window, 2)
    assert scene.link.take() == [("basic.reject", 1, False), ("basic.ack", 2, True)]


def test_a_window_that_is_purged_gives_its_messages_back(scene: Scene) -> None:
    window = scene.consumer()
    scene.deliver(window, 1)
    window.core.purge()
    scene.hand_on(window)
    assert scene.link.take() == [("basic.nack", 1, True)]


def test_a_cancel_gives_back_what_nobody_holds_and_the_last_settlement_closes_the_channel(scene: Scene) -> None:
    window = scene.consumer()
    scene.deliver(window, 1, 2, 3)
    scene.hold(window, 1)
    window.cancel()
    window.cancel()
    assert scene.link.take() == ["basic.cancel"]
    scene.deliver(window, 4)
    window.on_method(spec.BasicCancelOk("c"))
    assert scene.link.take() == [("basic.nack", 2, True), ("basic.nack", 3, True), ("basic.nack", 4, True)]
    assert scene.link.closed == [] and scene.windows == [window]
    scene.settle(window, 1)
    assert scene.link.take() == [("basic.ack", 1, True)]
    window.flush()
    assert scene.link.closed == [5] and scene.windows == [] and window.core.is_deleted()
    assert scene.heard == [None]


def test_after_the_end_of_the_link_nobody_is_given_anything_and_settlements_are_forgotten(scene: Scene) -> None:
    window = scene.consumer()
    scene.deliver(window, 1, 2)
    scene.hold(window, 1)
    window.on_lost("gone")
    assert scene.lost == ["gone"] and str(scene.heard[1]) == "gone"
    assert window.core.next_available() == 0
    scene.settle(window, 1)
    assert scene.link.take() == []
    assert scene.windows == [window]
    window.cancel()
    assert scene.windows == []


def test_a_cancel_by_the_owner_is_told_and_what_the_client_holds_can_be_settled(scene: Scene) -> None:
    window = scene.consumer()
    scene.deliver(window, 1)
    scene.hold(window, 1)
    window.on_method(spec.BasicCancel("c", True))
    assert isinstance(scene.heard[1], PeerError) and scene.heard[1].code == ReplyCode.NOT_FOUND
    scene.settle(window, 1)
    assert scene.link.take() == [("basic.ack", 1, True)]
    window.cancel()
    assert scene.link.closed == [5] and scene.windows == []


def test_a_consumer_that_is_cancelled_before_it_began_takes_nothing(scene: Scene) -> None:
    window = RemoteConsumer(scene, b"id", Wish("/", 10), scene.heard.append, scene.heard.append)
    window.cancel()
    window.begin(scene.link)  # type: ignore[arg-type]
    assert scene.link.take() == [] and scene.windows == [] and scene.heard == []
    early = RemoteConsumer(scene, b"id", Wish("/", 10), scene.heard.append, scene.heard.append)
    early.begin(scene.link)  # type: ignore[arg-type]
    early.cancel()
    assert scene.link.closed == [5] and scene.windows == []


def test_a_refused_consumer_hears_why_once_and_leaves_nothing(scene: Scene) -> None:
    window = RemoteConsumer(scene, b"id", Wish("/", 10), scene.heard.append, scene.heard.append)
    window.begin(scene.link)  # type: ignore[arg-type]
    refusal = PeerError(ReplyCode.ACCESS_REFUSED, "in exclusive use")
    window.on_closed(refusal)
    window.on_lost("gone")
    assert scene.heard == [refusal] and scene.windows == [] and scene.lost == []


def test_a_consumer_that_the_owner_does_not_answer_in_time_is_given_up_and_no_other(scene: Scene) -> None:
    late = TimeoutError("late")
    window = RemoteConsumer(scene, b"id", Wish("/", 10), scene.heard.append, scene.heard.append)
    window.begin(scene.link)  # type: ignore[arg-type]
    window.expire(late)
    assert scene.heard == [late] and scene.link.closed == [5] and scene.windows == []
    scene.heard.clear()
    scene.link.take()
    answered = scene.consumer()
    answered.expire(late)
    assert scene.heard == [None] and scene.windows == [answered]


def test_a_get_whose_message_nobody_took_gives_it_back(scene: Scene) -> None:
    got = RemoteGet(scene, b"id", "/", lambda window, error: scene.heard.append((window, error)))
    got.begin(scene.link)  # type: ignore[arg-type]
    got.on_message(1, False, (b"", b"", b"\0" * 14, b"m", 0, 0))
    assert scene.heard == [(got, None)] and scene.link.take() == ["basic.get"]
    got.over()
    got.over()
    assert scene.link.take() == [("basic.nack", 1, True)]
    assert scene.link.closed == [5] and scene.windows == []


def test_a_get_whose_time_was_over_gives_back_what_comes_late(scene: Scene) -> None:
    got = RemoteGet(scene, b"id", "/", lambda window, error: scene.heard.append((window, str(error))))
    got.begin(scene.link)  # type: ignore[arg-type]
    got.fail(TimeoutError("late"))
    assert scene.heard == [(None, "late")] and scene.windows == [] and scene.link.closed == [5]
    got.fail(TimeoutError("later"))
    assert len(scene.heard) == 1
