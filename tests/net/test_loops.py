"""Several loops: order, confirms, cancel notices and clean ends hold when producer, consumer and control run on different threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.broker import wait_until
from tests.support.rawamqp import ConnectionLost, RawChannel, method_frame

LOOPS = pytest.mark.parametrize("threads", [1, 2, 3])


class Workers:
    """Threads of one test; an exception in one of them fails the test."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def add(self, function: Callable[..., None], *arguments: Any) -> None:
        def run() -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self.errors.append(error)

        self.threads.append(threading.Thread(target=run, daemon=True))

    def run(self, timeout: float = 150) -> None:
        for thread in self.threads:
            thread.start()
        deadline = time.monotonic() + timeout
        for thread in self.threads:
            thread.join(max(0, deadline - time.monotonic()))
        if self.errors:
            raise self.errors[0]
        assert not any(thread.is_alive() for thread in self.threads), "a worker hangs"


@LOOPS
def test_order_and_confirms_across_loops(start: Callable[..., Any], connect: Callable[..., Any], threads: int) -> None:
    broker = start(io_threads=threads)
    count, queues = 4000, 4
    workers = Workers()

    def publish(channel: RawChannel, queue: str) -> None:
        channel.call("confirm.select")
        for number in range(count):
            channel.publish(number.to_bytes(4, "big"), routing_key=queue, delivery_mode=2)
        confirmed = 0
        while confirmed < count:
            method = channel.expect("basic.ack", 60)
            assert method.delivery_tag > confirmed
            assert method.multiple or method.delivery_tag == confirmed + 1
            confirmed = method.delivery_tag

    def consume(channel: RawChannel, queue: str) -> None:
        channel.call("basic.qos", prefetch_count=50)
        channel.consume(queue)
        for number in range(count):
            message = channel.expect("basic.deliver", 60)
            assert int.from_bytes(message.body, "big") == number
            if number % 20 == 19:
                channel.send("basic.ack", delivery_tag=message.delivery_tag, multiple=True)

    for number in range(queues):
        name = f"q{number}"
        # One after another, connections go to the loops in turn: an odd one out makes each pair sit on different loops.
        consumer = connect(broker).channel()
        consumer.queue(name, durable=True)
        workers.add(publish, connect(broker).channel(), name)
        workers.add(consume, consumer, name)
        if number % 2:
            connect(broker)
    workers.run()


@LOOPS
def test_competing_consumers_lose_and_double_nothing(start: Callable[..., Any], connect: Callable[..., Any], threads: int) -> None:
    broker = start(io_threads=threads)
    count = 6000
    setup = connect(broker).channel()
    setup.queue("q")
    seen: list[list[int]] = [[] for _ in range(5)]
    workers = Workers()
    done = threading.Event()

    def consume(channel: RawChannel, mine: list[int]) -> None:
        channel.call("basic.qos", prefetch_count=10)
        channel.consume("q")
        while not done.is_set():
            try:
                message = channel.expect("basic.deliver", 0.3)
            except TimeoutError:
                continue
            mine.append(int.from_bytes(message.body, "big"))
            channel.send("basic.ack", delivery_tag=message.delivery_tag)
            if sum(len(one) for one in seen) >= count:
                done.set()

    def publish(channel: RawChannel) -> None:
        for number in range(count):
            channel.publish(number.to_bytes(4, "big"), routing_key="q")

    for mine in seen:
        workers.add(consume, connect(broker).channel(), mine)
    workers.add(publish, connect(broker).channel())
    workers.run()
    for mine in seen:
        assert mine == sorted(mine)
    assert sorted(number for mine in seen for number in mine) == list(range(count))
    wait_until(lambda: setup.ready("q") == 0)


@LOOPS
def test_deleted_queue_cancels_consumers_of_all_loops(start: Callable[..., Any], connect: Callable[..., Any], threads: int) -> None:
    broker = start(io_threads=threads)
    channels = [connect(broker).channel() for _ in range(6)]
    channels[0].queue("q")
    for number, channel in enumerate(channels):
        channel.consume("q", f"c{number}")
    channels[0].publish(b"held", routing_key="q")
    assert channels[0].expect("basic.deliver").body == b"held"
    channels[5].send("queue.delete", queue="q")
    for number, channel in enumerate(channels):
        names = [channel.connection.recv(1) for _ in range(2 if number == 5 else 1)]
        assert "basic.cancel" in {method.name for method in names}
        assert [method.consumer_tag for method in names if method.name == "basic.cancel"] == [f"c{number}"]
    channels[0].send("basic.ack", delivery_tag=1)  # what was in hand can still be settled
    for channel in channels:
        channel.queue("again")
        channel.call("basic.cancel", consumer_tag="c0")
    assert not broker.node.broker.consumers


@LOOPS
def test_queue_is_deleted_while_it_is_declared_consumed_and_published_to(
    start: Callable[..., Any], connect: Callable[..., Any], threads: int
) -> None:
    broker = start(io_threads=threads)
    rounds = 150
    workers = Workers()

    def churn(channel: RawChannel, tag: str) -> None:
        for number in range(rounds):
            channel.queue("q")
            channel.publish(b"x", routing_key="q")
            channel.send("basic.consume", queue="q", consumer_tag=f"{tag}{number}", no_ack=True)
            while True:
                method = channel.connection.recv(channel.number)
                if method.name == "basic.consume-ok":
                    break
                if method.name == "channel.close":
                    assert method.reply_code == 404, method.reply_text
                    channel.send("channel.close-ok")
                    channel.connection.channel(channel.number)
                    break
                assert method.name in ("basic.deliver", "basic.cancel"), method.name
            channel.call("queue.delete", queue="q")

    for number in range(4):
        workers.add(churn, connect(broker).channel(), f"w{number}-")
    workers.run()
    last = connect(broker).channel()
    last.call("queue.delete", queue="q")
    wait_until(lambda: not broker.node.broker.consumers, what="no consumer of a deleted queue is remembered")
    assert not broker.node.broker.vhosts["/"].queues


@LOOPS
def test_bindings_change_under_publishers(start: Callable[..., Any], connect: Callable[..., Any], threads: int) -> None:
    """After unbind-ok nothing more arrives, after bind-ok everything does: no stale route survives."""
    broker = start(io_threads=threads)
    control = connect(broker).channel()
    control.call("exchange.declare", exchange="x", type="topic")
    for name in ("a", "b"):
        control.queue(name)
    stop = threading.Event()
    workers = Workers()

    def noise(channel: RawChannel, key: str) -> None:
        number = 0
        while not stop.is_set():
            channel.publish(b"noise", exchange="x", routing_key=f"{key}.{number % 50}")
            number += 1
            if number % 100 == 0:
                channel.ready("a")

    def change() -> None:
        probe = connect(broker).channel()
        try:
            for number in range(120):
                control.call("queue.bind", queue="b", exchange="x", routing_key="k.#")
                probe.publish(b"in", exchange="x", routing_key=f"k.{number % 50}", mandatory=True)
                probe.ready("b")
                control.call("queue.unbind", queue="b", exchange="x", routing_key="k.#")
                control.call("queue.purge", queue="b")
                probe.publish(b"out", exchange="x", routing_key=f"k.{number % 50}", mandatory=True)
                assert probe.expect("basic.return").body == b"out", "a stale route took the message"
        finally:
            stop.set()

    for _ in range(3):
        workers.add(noise, connect(broker).channel(), "other")
    workers.add(noise, connect(broker).channel(), "k")
    workers.add(change)
    workers.run()


@LOOPS
def test_a_thousand_consumes_and_cancels(start: Callable[..., Any], connect: Callable[..., Any], threads: int) -> None:
    broker = start(io_threads=threads)
    publisher = connect(broker).channel()
    publisher.queue("q")
    stop = threading.Event()
    workers = Workers()
    got: list[int] = []

    def publish() -> None:
        number = 0
        while not stop.is_set():
            publisher.publish(number.to_bytes(4, "big"), routing_key="q")
            number += 1
            if number % 5 == 0:
                publisher.ready("q")
            # A consumer gets all that waits before its cancel is answered: a publisher as quick as it is would make each turn longer.
            while number - len(got) > 100 and not stop.wait(0.001):
                pass

    def cycle(channel: RawChannel) -> None:
        try:
            for number in range(1000):
                tag = f"t{number}"
                channel.send("basic.consume", queue="q", consumer_tag=tag)
                channel.send("basic.cancel", consumer_tag=tag)
                while True:
                    method = channel.connection.recv(1, 60)
                    if method.name == "basic.deliver":
                        got.append(int.from_bytes(method.body, "big"))
                        channel.send("basic.ack", delivery_tag=method.delivery_tag)
                    elif method.name == "basic.cancel-ok":
                        break
        finally:
            stop.set()

    workers.add(cycle, connect(broker).channel())
    workers.add(publish)
    workers.run()
    assert got == sorted(set(got)), "twice, or out of order"
    wait_until(lambda: not broker.node.broker.consumers)
    checker = connect(broker).channel()
    left = checker.ready("q")
    checker.consume("q", no_ack=True)
    rest = [int.from_bytes(message.body, "big") for message in checker.deliveries(left)]
    assert rest == list(range(len(got), len(got) + left)), "an entry was lost"


@LOOPS
def test_clients_that_die_at_any_moment_lose_nothing(start: Callable[..., Any], connect: Callable[..., Any], threads: int) -> None:
    broker = start(io_threads=threads)
    feeder = connect(broker).channel()
    feeder.queue("q")
    for number in range(400):
        feeder.publish(b"%d" % number, routing_key="q")
    workers = Workers()

    def die(seed: int) -> None:
        for number in range(25):
            victim = connect(broker)
            channel = victim.channel()
            channel.send("basic.consume", queue="q", consumer_tag="c")
            for _ in range((seed * 7 + number) % 40):
                channel.connection.recv(1)
            victim.drop()

    for seed in range(3):
        workers.add(die, seed)
    workers.run()
    # The ends first: all entries are back for a moment, too, between the end of one that held them and the next pull of another
    # whose end was not seen yet.
    wait_until(lambda: len(broker.node.broker.connections) == 1)
    wait_until(lambda: feeder.ready("q") == 400, what="every entry is back")
    feeder.consume("q", no_ack=True)
    assert [int(message.body) for message in feeder.deliveries(400)] == list(range(400))
    wait_until(lambda: len(broker.node.broker.consumers) == 1)


@LOOPS
def test_exclusive_queue_dies_with_its_connection_and_frees_its_name(
    start: Callable[..., Any], connect: Callable[..., Any], threads: int
) -> None:
    broker = start(io_threads=threads)
    for number in range(30):
        owner = connect(broker)
        owner.channel().queue("mine", exclusive=True)
        other = connect(broker).channel()
        other.refuse(405, "cannot obtain exclusive access to locked queue 'mine' in vhost '/'", "queue.declare", queue="mine", passive=True)
        if number % 2:
            owner.drop()
        else:
            owner.close()
        wait_until(lambda: "mine" not in broker.node.broker.vhosts["/"].queues)
        other.connection.drop()


@LOOPS
def test_reply_to_across_loops(start: Callable[..., Any], connect: Callable[..., Any], threads: int) -> None:
    broker = start(io_threads=threads)
    workers = Workers()
    server = connect(broker).channel()
    server.queue("rpc")
    server.consume("rpc", no_ack=True)
    asked = 300

    def serve() -> None:
        for _ in range(asked * 3):
            message = server.expect("basic.deliver", 60)
            server.publish(message.body[::-1], routing_key=message.properties["reply_to"])

    def ask(channel: RawChannel, mark: bytes) -> None:
        channel.consume("amq.rabbitmq.reply-to", "answers", no_ack=True)
        for number in range(asked):
            channel.publish(mark + b"%d" % number, routing_key="rpc", reply_to="amq.rabbitmq.reply-to")
            assert channel.expect("basic.deliver", 60).body == (mark + b"%d" % number)[::-1]

    workers.add(serve)
    for mark in (b"a", b"b", b"c"):
        workers.add(ask, connect(broker).channel(), mark)
    workers.run()


def test_stop_with_clients_at_work_on_all_loops(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start(io_threads=3)
    connections = [connect(broker) for _ in range(6)]
    connections[0].channel().queue("q")
    for connection in connections[1:]:
        connection.channel().consume("q", no_ack=True)
    stopper = threading.Thread(target=broker.node.stop)
    frames = method_frame(1, "queue.declare", queue="q", passive=True) * 50
    connections[0].send(frames)
    stopper.start()
    for connection in connections:
        try:
            while connection.recv_any().name != "connection.close":
                pass
            connection.send(method_frame(0, "connection.close-ok"))
        except (ConnectionLost, ConnectionError):
            pass  # a broker that did not get our answer in time hangs up
    stopper.join(60)
    assert not stopper.is_alive()


@LOOPS
@pytest.mark.parametrize("dead_letters", [False, True])
def test_length_limit_is_exact_with_producers_on_all_loops(
    start: Callable[..., Any], connect: Callable[..., Any], threads: int, dead_letters: bool
) -> None:
    """Two loops never drop twice for the same excess: once full, the queue stays full."""
    broker = start(io_threads=threads)
    setup = connect(broker).channel()
    setup.queue("dead")
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"} if dead_letters else {}
    setup.queue("q", arguments={"x-max-length": 10, **to_dead})
    workers = Workers()
    each = 300 if dead_letters else 5000

    def publish(channel: RawChannel) -> None:
        for _ in range(each):
            channel.publish(b"x", routing_key="q")
        channel.ready("q")

    for _ in range(4):
        workers.add(publish, connect(broker).channel())
    workers.run()
    assert setup.ready("q") == 10
    if dead_letters:
        assert setup.ready("dead") == 4 * each - 10
