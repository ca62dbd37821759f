"""The pool of channels: one request at a time on each, bounded waiting, and no channel is used after it failed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.dataplane.wire import Channel, Refused
from flintmq.flight.link import Caller, Link
from flintmq.flight.plane_error import PlaneError
from tests.flight.fake import FakeBroker
from tests.support.broker import wait_until


def make(broker: FakeBroker, **limits: Any) -> Link:
    changed = Limits(**limits)
    return Link([Channel(sock, changed) for sock in broker.children], changed)


def code(call: Any) -> str:
    with pytest.raises(PlaneError) as caught:
        call()
    return caught.value.code


def test_busy_after_the_time() -> None:
    """All channels taken: a caller waits flight_wait_ms at most, or as long as it says; then all goes on."""
    broker = FakeBroker(channels=1)
    link = make(broker, flight_wait_ms=50)
    release = threading.Event()
    broker.answers["slow"] = lambda head, _: release.wait(30)
    broker.answers["fast"] = lambda head, _: 1
    first = threading.Thread(target=lambda: link.call("slow", None, {}))
    first.start()
    wait_until(lambda: broker.calls("slow"), what="the channel is taken")
    assert code(lambda: link.call("fast", None, {})) == "BUSY"
    answers: list[Any] = []
    patient = threading.Thread(target=lambda: answers.append(link.call("fast", None, {}, b"", 60_000)))
    patient.start()
    assert code(lambda: link.call("fast", None, {})) == "BUSY"
    release.set()
    first.join(60)
    patient.join(60)
    assert answers == [(1, b"")]
    assert link.call("fast", None, {}) == (1, b"")
    link.close()
    broker.close()


def test_answers_find_their_callers() -> None:
    """Many threads on few channels: each gets the answer to its own request."""
    broker = FakeBroker(channels=3)
    link = make(broker)
    broker.answers["echo"] = lambda head, payload: (head["n"], payload)
    wrong: list[Any] = []

    def work(base: int) -> None:
        for n in range(base, base + 50):
            answer = link.call("echo", Caller("u", "v"), {"n": n}, b"%d" % n)
            if answer != (n, b"%d" % n):
                wrong.append(answer)

    threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert len(broker.calls("echo")) == 400
    link.close()
    broker.close()


def test_a_request_that_fits_no_frame_costs_nothing() -> None:
    """It is BAD_ARGUMENT, and the channel goes on."""
    broker = FakeBroker(channels=1)
    link = make(broker, dataplane_payload_max=10)
    broker.answers["x"] = lambda head, _: 1
    assert code(lambda: link.call("x", None, {}, b"y" * 11)) == "BAD_ARGUMENT"
    assert code(lambda: link.call("x", None, {"v": float("nan")})) == "BAD_ARGUMENT"
    assert link.call("x", None, {}) == (1, b"")
    link.close()
    broker.close()


def test_refusals_keep_the_channel_and_lost_ones_are_gone() -> None:
    """A refusal is an answer. A broker that goes is UNAVAILABLE at once, for all, and told once."""
    broker = FakeBroker(channels=2)
    lost = threading.Event()
    limits = Limits()
    link = Link([Channel(sock, limits) for sock in broker.children], limits, lost.set)

    def no(head: dict[str, Any], _: bytes) -> Any:
        raise Refused("FENCED", "x")

    broker.answers["no"] = no
    for _ in range(5):
        assert code(lambda: link.call("no", None, {})) == "FENCED"
    assert not lost.is_set()
    broker.close()
    for _ in range(5):
        assert code(lambda: link.call("no", None, {})) == "UNAVAILABLE"
    assert lost.is_set()
