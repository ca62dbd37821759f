"""Requests from node to node over a link: each is answered once, or refused, or given up in time, and costs nobody else anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flintmq.cluster.engine_thread import EngineThread
from flintmq.cluster.links import Links
from flintmq.cluster.node_answers import Answer, Answering, NodeRefused
from flintmq.cluster.node_requests import NodeRequests
from flintmq.config import Limits
from flintmq.engines.engine import Unavailable
from flintmq.shared.layout import Owner as OwnerRow
from tests.support.node_login import log_in
from tests.support.rawamqp import RawConnection
from tests.support.two_nodes import OTHER, OWNER, SECRET, WAIT_S, Other, Owner

ROW = OwnerRow(1, OWNER.name, OWNER.life)


class Pair:
    """`ask` asks the owner. Attributes: gate: "wait" waits for it."""

    def __init__(self, owner: Owner, other: Other, **limits: int) -> None:
        self.owner, self.other = owner, other
        self.limits = Limits().replace(cluster_request_ms_max=20_000, **limits)
        self.thread = EngineThread("memory:", self.limits)
        self.thread.start()
        self.gate = asyncio.Event()
        self.begun = 0
        answers = {"echo": self._echo, "large": self._large, "refuse": self._refuse, "fail": self._fail, "wait": self._wait}
        owner.vhost.answering = Answering(self.thread, answers, self.limits)
        self.links, self.requests = other.on_loop(self._made)

    def _made(self) -> tuple[Links, NodeRequests]:
        links = Links(OTHER, SECRET, self.limits)
        address = self.owner.address()
        return links, NodeRequests(links, self.limits, lambda owner: address if owner.node == OWNER.name else None)

    async def _echo(self, head: dict[str, Any], payload: bytes) -> Answer:
        return {"head": head}, payload[::-1]

    async def _large(self, head: dict[str, Any], payload: bytes) -> Answer:
        return {}, bytes(range(256)) * int(head["count"])

    async def _refuse(self, head: dict[str, Any], payload: bytes) -> Answer:
        raise NodeRefused("NO", "for a reason")

    async def _fail(self, head: dict[str, Any], payload: bytes) -> Answer:
        raise RuntimeError("a bug")

    async def _wait(self, head: dict[str, Any], payload: bytes) -> Answer:
        self.begun += 1
        await self.gate.wait()
        return {}, b""

    def run(self, *works: Callable[[], Any]) -> list[Any]:
        """The results, or errors, of coroutines on the other node's loop, all at once."""

        def begin(done: Callable[[Any, Exception | None], object]) -> None:
            async def all_of_them() -> list[Any]:
                return list(await asyncio.gather(*(work() for work in works), return_exceptions=True))

            self.other.thread.run(all_of_them, done)

        result, error = self.other.answer(begin)
        assert error is None, error
        return list(result)

    def ask(self, name: str, head: dict[str, Any] | None = None, payload: bytes = b"", row: OwnerRow = ROW) -> Any:
        (result,) = self.run(lambda: self.requests.ask(row, name, head or {}, payload))
        if isinstance(result, Exception):
            raise result
        return result

    def open_gate(self) -> None:
        self.thread.call(self.gate.set)

    def stop(self) -> None:
        async def end() -> None:
            pass

        self.open_gate()
        self.run(self.links.stop)
        self.thread.stop(end, WAIT_S)


@pytest.fixture
def paired(owner: Owner, other: Other) -> Iterator[Callable[..., Pair]]:
    pairs: list[Pair] = []

    def make(**limits: int) -> Pair:
        pairs.append(Pair(owner, other, **limits))
        return pairs[-1]

    yield make
    for pair in pairs:
        pair.stop()


def test_a_request_is_answered_with_its_head_and_bytes(paired: Callable[..., Pair]) -> None:
    pair = paired()
    for payload in (b"", b"abc", bytes(200_000)):
        assert pair.ask("echo", {"a": [1, "ä"]}, payload) == ({"head": {"a": [1, "ä"]}}, payload[::-1])


def test_an_answer_of_many_pieces_comes_whole_beside_others(paired: Callable[..., Pair]) -> None:
    pair = paired(cluster_piece_bytes=1_000)
    large = [lambda: pair.requests.ask(ROW, "large", {"count": 500}) for _ in range(3)]
    small = [lambda: pair.requests.ask(ROW, "echo", {}, b"x") for _ in range(20)]
    results = pair.run(*large, *small)
    assert results == [({}, bytes(range(256)) * 500)] * 3 + [({"head": {}}, b"x")] * 20


def test_a_refusal_has_its_code_and_a_failure_says_nothing_of_itself(paired: Callable[..., Pair]) -> None:
    pair = paired()
    for name, code, text in (("refuse", "NO", "for a reason"), ("fail", "INTERNAL", "log"), ("none", "UNKNOWN", "none")):
        with pytest.raises(NodeRefused, match=text) as refused:
            pair.ask(name)
        assert refused.value.code == code and "bug" not in str(refused.value)
    assert pair.ask("echo", {}, b"ab")[1] == b"ba"


def test_a_request_without_an_answer_is_given_up_in_time_and_the_next_one_is_answered(paired: Callable[..., Pair]) -> None:
    pair = paired()
    pair.requests._limits = pair.limits.replace(cluster_request_ms_max=30)
    with pytest.raises(Unavailable, match="does not answer"):
        pair.ask("wait")
    pair.requests._limits = pair.limits
    pair.open_gate()
    assert pair.ask("echo", {}, b"ab")[1] == b"ba"
    (channel,) = pair.requests._channels.values()
    assert not channel.waiting and not channel._coming


def test_a_node_that_is_gone_is_told_and_asked_again_when_it_is_back(paired: Callable[..., Pair]) -> None:
    pair = paired()
    assert pair.ask("echo", {}, b"x")[1] == b"x"

    async def cut() -> Any:
        asked = asyncio.ensure_future(pair.requests.ask(ROW, "wait", {}))
        while not pair.begun:
            await asyncio.sleep(0.001)
        pair.links.close()
        return await asked

    (error,) = pair.run(cut)
    assert isinstance(error, Unavailable)
    assert pair.ask("echo", {}, b"x")[1] == b"x"
    with pytest.raises(Unavailable, match="not among the living"):
        pair.ask("echo", row=OwnerRow(1, "unknown", "life"))


def test_requests_have_places_and_bounds(paired: Callable[..., Pair]) -> None:
    pair = paired(cluster_requests_max=4, cluster_request_bytes_max=1_000, cluster_answer_bytes_max=20_000)

    async def crowd() -> Any:
        asked = [asyncio.ensure_future(pair.requests.ask(ROW, "wait", {})) for _ in range(6)]
        while sum(one.done() for one in asked) < 2:
            await asyncio.sleep(0.001)
        pair.open_gate()
        return await asyncio.gather(*asked, return_exceptions=True)

    (results,) = pair.run(crowd)
    assert sum(isinstance(one, Unavailable) for one in results) == 2
    with pytest.raises(ValueError, match="1000"):
        pair.ask("echo", {}, bytes(1_000))
    with pytest.raises(Unavailable, match="too large"):
        pair.ask("large", {"count": 100})
    assert pair.ask("echo", {}, b"ab")[1] == b"ba"


def test_a_channel_without_use_is_closed_and_made_again(paired: Callable[..., Pair]) -> None:
    pair = paired(cluster_idle_ms=0)
    assert pair.ask("echo", {}, b"ab")[1] == b"ba"

    async def idle() -> None:
        while pair.requests._channels:
            await asyncio.sleep(0.001)
            pair.requests.close_idle()
        pair.links.close_idle()

    pair.run(idle)
    assert pair.ask("echo", {}, b"ab")[1] == b"ba"


def test_a_message_that_is_no_request_ends_its_channel_alone(owner: Owner, connect: Callable[..., RawConnection]) -> None:
    async def end() -> None:
        pass

    thread = EngineThread("memory:", Limits())
    thread.start()
    raw = log_in(connect(owner.broker, handshake=False))
    refused = raw.channel()
    refused.publish(b"x", exchange="flintmq.requests", routing_key="1 echo")
    refused.expect_close(403, "aimed")
    owner.vhost.answering = Answering(thread, {}, Limits().replace(cluster_request_bytes_max=10))
    for key, body, consumes in (("1 echo", b"x", False), ("echo", b"x", True), ("1 echo", bytes(11), True)):
        channel = raw.channel()
        if consumes:
            channel.call("basic.consume", queue="amq.rabbitmq.reply-to", consumer_tag="answers", no_ack=True)
        channel.publish(body, exchange="flintmq.requests", routing_key=key)
        channel.expect_close(406)
    channel = raw.channel()
    channel.call("basic.consume", queue="amq.rabbitmq.reply-to", consumer_tag="answers", no_ack=True)
    channel.publish(b"x", exchange="flintmq.requests", routing_key="7 echo")
    answer = channel.expect("basic.deliver")
    assert (answer.routing_key, answer.body[:1]) == ("7", b"\2")
    raw.close()
    thread.stop(end, WAIT_S)
