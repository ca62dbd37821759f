"""What one operation on a queue costs, with little and with much beside it: `python -m bench.costs [--factor 100]`.

Each row is one operation of the queue core, driven from Python in one thread (some 0.3 us of each figure are the calls themselves), at
a size and at `factor` times that size. The figures of a row should be the same: tests/queue/test_costs.py counts the steps behind them.
"""

from __future__ import annotations

import argparse
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flintmq.channel.connection import Connection
from flintmq.config import Config
from flintmq.net.loop import Loop
from flintmq.queue.control import QueueHandle
from tests.drivers.queue_driver import Consumer, Queue, new_owner
from tests.support.connections import close_all

ROUNDS = 300
# content header payload of an empty message without properties
HEADER = struct.pack(">HHQH", 60, 0, 1, 0)
# loops and sockets of connections that are measured
KEPT: list[tuple[object, ...]] = []


class Timer:
    def __init__(self) -> None:
        self.ns = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        begun = time.perf_counter_ns()
        yield
        self.ns += time.perf_counter_ns() - begun


def requeue_beside_held(size: int, timer: Timer) -> None:
    """An entry comes back, with `size` held behind it, and is taken again."""
    queue = Queue()
    queue.fill(size)
    consumer = Consumer(queue)
    first = consumer.pull()[0]
    while consumer.pull() is not None:
        pass
    for _ in range(ROUNDS):
        with timer.running():
            consumer.release(first)
            consumer.pull()
            consumer.pull()


def requeue_beside_consumers(size: int, timer: Timer) -> None:
    queue = Queue()
    queue.fill(1)
    others = [Consumer(queue, suspended=True) for _ in range(size)]
    consumer = Consumer(queue)
    position = consumer.pull()[0]
    for _ in range(ROUNDS):
        with timer.running():
            consumer.release(position)
            consumer.pull()
    del others


def get_beside_consumers(size: int, timer: Timer) -> None:
    """basic.get and the count that it answers."""
    queue = Queue()
    others = [Consumer(queue, suspended=True) for _ in range(size)]
    owner = new_owner()
    queue.fill(ROUNDS)
    for _ in range(ROUNDS):
        with timer.running():
            position = queue.pull(owner)[0]
            assert queue.ready >= 0
            queue.dequeue(position, owner)
    del others


def drop_head_beside_consumers(size: int, timer: Timer) -> None:
    queue = Queue()
    others = [Consumer(queue, suspended=True) for _ in range(size)]
    queue.fill(1)
    for _ in range(ROUNDS):
        with timer.running():
            queue.fill(1)
            if queue.ready > 1:
                queue.dequeue(queue.take_head()[0])
    del others


def urgent_beside_consumers(size: int, timer: Timer) -> None:
    """A message of high priority arrives and is taken."""
    queue = Queue(levels=10)
    others = [Consumer(queue, suspended=True) for _ in range(size)]
    consumer = Consumer(queue)
    for _ in range(ROUNDS):
        with timer.running():
            queue.enqueue(b"x", priority=9)
            consumer.ack(consumer.pull()[0])
    del others


def look_for_expired_beside_held(size: int, timer: Timer) -> None:
    """The look before a turn, with `size` expired messages in a consumer's hands."""
    queue = Queue()
    for _ in range(size):
        queue.enqueue(b"x", expires_at=100)
    consumer = Consumer(queue)
    while consumer.pull() is not None:
        pass
    queue.take_expired(200)
    for now in range(ROUNDS):
        with timer.running():
            if 0 < queue.next_expiry <= 200 + now:
                queue.take_expired(200 + now)


def holding(consumers: int, unacked: int) -> Connection:
    """A connection of a loop that does not run, with consumers that all want to work and deliveries that are not settled."""
    loop = Loop(Config(), 1 << 30)
    sock, peer = socket.socketpair()
    connection = Connection(peer, Config().limits)
    connection.opened()
    connection.open_channel(1)
    entry = loop.add(sock, connection, None)
    queue = QueueHandle(1)
    for _ in range(unacked):
        queue.publish(b"", b"q", HEADER, b"x", 0, 0)
        connection.get(1, queue, False)
    for number in range(consumers):
        connection.consume(1, queue, b"%d" % number, False, False, 0)
        queue.publish(b"", b"q", HEADER, b"x", 0, 0)  # which notifies it
    KEPT.append((loop, entry, peer))
    return connection


def close_with_consumers(size: int, timer: Timer) -> None:
    """One consumer of a channel that ends goes, `size` others of it stand behind it."""
    connection = holding(size + ROUNDS, 0)
    connection.leave_channel(1, False)
    for _ in range(ROUNDS):
        with timer.running():
            connection.end_some(1)
    close_all(connection)


def ack_of_many(size: int, timer: Timer) -> None:
    """Sixteen deliveries of an ack that names `size` more."""
    connection = holding(0, size + 16 * ROUNDS)
    at = 1
    for _ in range(ROUNDS):
        with timer.running():
            at = connection.settle_some(1, 80, False, at, size + 16 * ROUNDS, 16)[0]
    close_all(connection)


# name, operation, size
ROWS: list[tuple[str, Callable[[int, Timer], None], int]] = [
    ("requeue and take, entries held behind it", requeue_beside_held, 10_000),
    ("requeue and take, other consumers", requeue_beside_consumers, 100),
    ("basic.get, consumers", get_beside_consumers, 100),
    ("drop-head, consumers", drop_head_beside_consumers, 100),
    ("urgent message, consumers", urgent_beside_consumers, 100),
    ("look for expired, expired messages held", look_for_expired_beside_held, 200),
    ("a consumer of a close, its others", close_with_consumers, 100),
    ("16 of an ack of many, the rest of them", ack_of_many, 10_000),
]


def measure(operation: Callable[[int, Timer], None], size: int) -> float:
    """Microseconds of one operation."""
    timer = Timer()
    operation(size, timer)
    return timer.ns / ROUNDS / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--factor", type=int, default=100, help="how much more there is the second time")
    factor = parser.parse_args().factor
    print(f"{'operation, beside':45s} {'size':>10s} {'us':>9s} {'x' + str(factor):>10s} {'us':>9s}")
    for name, operation, size in ROWS:
        print(f"{name:45s} {size:10,d} {measure(operation, size):9.2f} {size * factor:10,d} {measure(operation, size * factor):9.2f}")


if __name__ == "__main__":
    main()
