"""The fuzzer of sessions: what it says can be sent, is decided by its seed, and reaches every kind of queue; a dead client is told."""

from __future__ import annotations

import random
import threading

from flintmq.protocol.v0_9_1 import spec
from tools import fuzz_sessions
from tools.fuzz_steps import STREAMS, Steps, shapes_of


def said(seed: int, count: int) -> bytes:
    rng = random.Random(seed)
    steps = Steps(rng, shapes_of(rng, streams=True))
    steps.replies = ["amq.rabbitmq.reply-to.x"]
    made = [steps.opening(number) for number in (1, 2, 3)]
    for _ in range(count):
        steps.tags[1] = [1, 2, 3]
        made.append(steps.step())
    assert steps.made == count
    return b"".join(made)


def test_all_that_it_says_can_be_sent_and_comes_again_with_its_seed() -> None:
    assert said(1, 1000) == said(1, 1000) != said(2, 1000)


def test_it_says_all_methods_of_a_client() -> None:
    stream = said(3, 10_000)
    methods = {stream[at + 7 : at + 11] for at in frames(stream) if stream[at] == spec.FRAME_METHOD}
    wanted = (
        spec.BasicPublish, spec.BasicAck, spec.BasicNack, spec.BasicReject, spec.BasicRecover, spec.BasicRecoverAsync, spec.BasicConsume,
        spec.BasicCancel, spec.BasicGet, spec.BasicQos, spec.QueueDeclare, spec.QueueDelete, spec.QueuePurge, spec.QueueBind,
        spec.QueueUnbind, spec.ExchangeDeclare,
        spec.ExchangeDelete, spec.ExchangeBind, spec.ExchangeUnbind, spec.TxSelect, spec.TxCommit, spec.TxRollback,
        spec.ConfirmSelect, spec.ChannelOpen, spec.ChannelClose, spec.ChannelFlow, spec.ConnectionClose, spec.ConnectionUpdateSecret,
    )  # fmt: skip
    assert not [method.NAME for method in wanted if method.ID.to_bytes(4, "big") not in methods]


def frames(stream: bytes) -> list[int]:
    """Where they begin. All are whole."""
    found, at = [], 0
    while at < len(stream):
        found.append(at)
        at += 8 + int.from_bytes(stream[at + 3 : at + 7], "big")
        assert stream[at - 1] == spec.FRAME_END
    return found


def test_queues_of_all_kinds() -> None:
    shapes = [shape for seed in range(50) for both in shapes_of(random.Random(seed), streams=True).values() for shape in both]
    arguments = {name for shape in shapes for name in shape["arguments"]}
    assert arguments >= {"x-max-length", "x-dead-letter-exchange", "x-message-ttl", "x-expires", "x-max-priority", "x-delivery-limit"}
    assert {shape["arguments"].get("x-queue-type") for shape in shapes} == {None, "classic", "quorum", "stream"}
    assert any(shape.get("exclusive") for shape in shapes) and any(shape.get("auto_delete") for shape in shapes)
    assert not set(STREAMS) & set(shapes_of(random.Random(0), streams=False))


def test_a_client_that_fails_is_told() -> None:
    class Broken:
        def run(self, over: threading.Event) -> None:
            raise TypeError("no such argument")

    errors = fuzz_sessions.Errors()
    fuzz_sessions.watched(Broken(), threading.Event(), errors)  # type: ignore[arg-type]
    assert "no such argument" in errors.found[0]
