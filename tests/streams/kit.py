"""What the tests of this folder share: a stream over the twin in memory, and real threads that must come to an end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from flintmq.queue.control import QueueHandle
from flintmq.streams.control import StreamQueue
from tests.drivers.stream_driver import StreamConsumer
from tests.twins.memory_stream import MemoryStream

GROUP = b"workers"


def stream_of(log: MemoryStream, **rules: Any) -> StreamQueue:
    return StreamQueue(QueueHandle(1), log, manual_clock=True, **rules)


def filled(count: int, **rules: Any) -> tuple[MemoryStream, StreamQueue]:
    """A stream of the messages m0, m1, ..."""
    log = MemoryStream(hot=rules.pop("hot", 1_000_000))
    stream = stream_of(log, **rules)
    for number in range(count):
        log.append(b"m%d" % number)
    return log, stream


def member(stream: StreamQueue, prefetch: int = 0, group: bytes | None = GROUP, start: str = "first", **seat: Any) -> StreamConsumer:
    return StreamConsumer(stream, stream.open_seat(start, group=group, **seat), prefetch)


def drain(consumer: StreamConsumer) -> list[int]:
    """Offsets it gets now, reads that wait included."""
    offsets = []
    while True:
        got = consumer.deliver()
        if got is not None:
            offsets.append(got[0])
        elif not consumer.stream.step_reads() and not consumer.told():
            return offsets


def run_all(*calls: Callable[[], object], seconds: float = 150, stop: Callable[[], None] | None = None) -> None:
    """Each call in a thread of its own; fails when one does not end, or raises."""
    errors: list[BaseException] = []

    def guarded(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    stuck = any(thread.is_alive() for thread in threads)
    if stuck and stop is not None:
        stop()
        for thread in threads:
            thread.join(60)
    assert not errors, errors
    assert not stuck, "a thread waits for ever: a wake was lost"
