"""Messages that stay behind hold little more memory than they have, at any time (broker/thin_chunks.py, core/content.py I6)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from flintmq.broker.thin_chunks import ThinChunks
from flintmq.config import Limits
from flintmq.core.content import bytes_mapped, thin_bytes
from flintmq.ports import DequeueReason
from flintmq.queue.control import QueueHandle
from flintmq.queue.sweep import Sweeper
from tests.support.broker import wait_until
from tests.support.rawamqp import publish_bytes

KIB = 1024
MIB = 1024 * KIB
HEADER = bytes(14)


def looker(*queues: QueueHandle, **limits: Any) -> ThinChunks:
    known = {number: SimpleNamespace(queue_id=number, core=queue) for number, queue in enumerate(queues, 1)}
    broker: Any = SimpleNamespace(limits=Limits(**limits), queues=known, streams=None)
    return ThinChunks(broker, [], Sweeper(), lambda: False)


def end(queue: QueueHandle, position: int) -> None:
    assert queue.hold(position)
    queue.settle_held(position, DequeueReason.ACK, False)


def park(queue: QueueHandle, traffic: QueueHandle, number: int, size: int) -> None:
    """One message stays behind in each chunk."""
    queue.publish(b"", b"key", HEADER, number.to_bytes(4, "big") * (size // 4), 0, 0)
    for _ in range(6):
        traffic.publish(b"", b"key", HEADER, bytes(50 * KIB), 0, 0)
    traffic.purge()


def test_chunks_are_thin_while_less_than_five_eighths_of_them_live() -> None:
    before = thin_bytes()
    queue = QueueHandle(7)
    for _ in range(4 * 64):  # four chunks, and some
        queue.publish(b"", b"key", HEADER, bytes(4 * KIB), 0, 0)
    assert thin_bytes() - before <= 256 * KIB, "all of it lives, but for what stood in the first chunk before"
    for position in range(1, 257):
        if position % 2:
            end(queue, position)
    assert thin_bytes() - before >= 3 * 256 * KIB
    queue.purge()
    assert thin_bytes() <= before, "chunks that end are thin no more"


@pytest.mark.parametrize("sizes", [(4, 400), (2 * KIB, 40 * KIB), (4, 60 * KIB)])
def test_resident_memory_is_bounded_by_what_lives(sizes: tuple[int, int]) -> None:
    """2 x live + 32 MiB, with looks between any two steps, and what was moved is what was sent."""
    rng = random.Random(sizes[0])
    queues = [QueueHandle(7), QueueHandle(8), QueueHandle(9)]
    traffic = QueueHandle(10)
    look = looker(*queues)
    before, live = bytes_mapped(), 0
    parked: list[tuple[QueueHandle, int, bytes]] = []
    places = {id(queue): 0 for queue in queues}
    for number in range(600):
        queue, size = rng.choice(queues), rng.randrange(*sizes) & ~3
        park(queue, traffic, number, size)
        places[id(queue)] += 1
        parked.append((queue, places[id(queue)], number.to_bytes(4, "big") * (size // 4)))
        live += size
        while len(parked) > 300:  # and some of them go later, from anywhere
            gone, position, body = parked.pop(rng.randrange(len(parked)))
            end(gone, position)
            live -= len(body)
        look.look()
        assert bytes_mapped() - before <= 2 * live + 32 * MIB
    assert look.looks > 3
    for queue, position, body in parked:
        assert queue.peek(position)[-1] == body


def test_a_look_goes_on_where_the_last_one_ended() -> None:
    """Entries that were moved are not looked at again while there is enough behind them."""
    queue, traffic = QueueHandle(7), QueueHandle(8)
    look = looker(queue, memory_thin_bytes=MIB, memory_thin_share=0.0)
    for number in range(400):
        park(queue, traffic, number, 400)
        look.look()
    moved = look._sweeper.copied
    assert 300 <= moved <= 500, "each once, but for those of the copies' own chunk"


def test_what_can_not_be_moved_is_not_looked_for_all_the_time() -> None:
    queue, traffic = QueueHandle(7), QueueHandle(8)
    look = looker(memory_thin_bytes=MIB, memory_thin_share=0.0)  # it knows no queue
    for number in range(20):
        park(queue, traffic, number, 400)
    for _ in range(10):
        look.look()
    assert look.looks == 1 and look.left >= 4 * MIB
    for number in range(10):
        park(queue, traffic, number, 400)
    look.look()
    assert look.looks == 2, "there is more of it"


def test_parked_messages_of_a_running_broker_hold_no_chunks(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start()
    before = bytes_mapped()
    connection = connect(broker)
    channel = connection.channel()
    channel.queue("parked")
    channel.queue("traffic", arguments={"x-max-length": 5})
    most = [0]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.002):
            most[0] = max(most[0], bytes_mapped() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for number in range(1000):  # 250 MiB of chunks, 0.1 MiB of messages
        connection.send(publish_bytes(1, b"%04d" % number * 25, routing_key="parked"))
        connection.send(publish_bytes(1, bytes(4 * KIB), routing_key="traffic") * 64)
        if number % 20 == 0:
            channel.ready("parked")
    wait_until(lambda: bytes_mapped() - before < 16 * MIB)
    over.set()
    watcher.join()
    assert most[0] < 128 * MIB, "half of what they would hold; the interpreter is the test's for the most part"
    channel.consume("parked", no_ack=True)
    assert [message.body for message in channel.deliveries(1000)] == [b"%04d" % number * 25 for number in range(1000)]
