"""Turns of a loop: nobody's slow requests hold the others, long work is done in slices. A manual clock; steps are counted, not timed."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flintmq.channel.connection import Connection
from flintmq.config import Config
from flintmq.net.loop import Loop
from flintmq.queue.control import QueueHandle
from flintmq.routing.route_cache import RouteCache
from tests.drivers.job_driver import JobDriver
from tests.support.connections import close_all
from tests.support.rawamqp import method_frame, publish_bytes

US = 1_000
# what one slow request takes of the manual clock: four of them are a turn of Limits.turn_us
SLOW_US = 300
DECLARE = method_frame(1, "queue.declare", queue="q", passive=True)


class Rig:
    """A loop on the test's thread, with connections whose handlers only write down who was served, and advance the clock."""

    def __init__(self, **limits: Any) -> None:
        # Housekeeping never comes: a loop that slept while something waits would not come back.
        self.config = Config().with_limits(housekeeping_ms=3_600_000, **limits)
        self.loop = Loop(self.config, 1 << 30)
        self.loop.on_timer = lambda now_ms: None
        self.loop.on_alarm = lambda low: None
        self.loop.manual_ns = 0
        self.served: list[str] = []
        self.closed: list[str] = []
        self.handlers: dict[str, Handler] = {}
        self.on_slow: Callable[[str], None] = lambda name: None
        self.on_closed: Callable[[str], None] = lambda name: None
        self.clients: list[socket.socket] = []

    def connect(self, name: str, cost_us: int = SLOW_US, layer: Any = None) -> socket.socket:
        """A connection with an open channel 1. Returns the client's end."""
        client, server = socket.socketpair()
        server.setblocking(False)
        connection = Connection(name, self.config.limits)
        handler = connection.handler = self.handlers[name] = Handler(self, connection, name, cost_us)
        connection.opened()
        connection.open_channel(1)
        handler.socket = self.loop.add(server.detach(), connection, layer)
        self.clients.append(client)
        return client

    def stop(self) -> None:
        self.loop.stopping = True

    def close(self) -> None:
        for entry in self.loop.entries():
            close_all(entry.connection)
            self.loop.remove(entry)
        for client in self.clients:
            client.close()


class Handler:
    """Serves nothing: every request is written down and takes its time."""

    def __init__(self, rig: Rig, connection: Connection, name: str, cost_us: int) -> None:
        self.rig = rig
        self.connection = connection
        self.name = name
        self.cost_us = cost_us
        self.is_blocked = False
        self.broker = None
        self.socket: Any = None
        self.on_payload: Callable[[bytes], object] = len

    def slow(self, kind: int, channel: int, payload: bytes | None, method_id: int, tag: int, size: int) -> None:
        self.method(channel, payload or b"", method_id)

    def method(self, channel: int, payload: bytes, method_id: int) -> None:
        self.rig.served.append(self.name)
        self.on_payload(payload)
        self.rig.loop.manual_ns += self.cost_us * US
        self.rig.on_slow(self.name)

    def closed(self, reason: str) -> None:
        self.rig.closed.append(self.name)
        self.rig.on_closed(self.name)

    def failed(self) -> None:
        raise AssertionError("a handler failed")


class SlowLayer:
    """In the place of TLS: changes nothing, writes down whose output is sent, and takes its time of the clock."""

    established, over, eof = True, False, False

    def __init__(self, rig: Rig, name: str) -> None:
        self.rig = rig
        self.name = name

    def send(self, clear: bytes) -> bytes:
        self.rig.served.append(self.name)
        self.rig.loop.manual_ns += SLOW_US * US
        return clear


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def longest_wait(served: list[str], name: str) -> int:
    """The most requests of others that were served between two of `name`."""
    waits, waited = [], 0
    for one in served:
        if one == name:
            waits.append(waited)
            waited = 0
        else:
            waited += 1
    return max(waits)


def ask_again(rig: Rig, name: str, client: socket.socket, times: int) -> None:
    """`name` asks, and asks again whenever it was answered; the loop stops after its last."""
    left = times

    def on_slow(served: str) -> None:
        nonlocal left
        if served != name:
            return
        left -= 1
        if left:
            client.sendall(DECLARE)
        else:
            rig.stop()

    rig.on_slow = on_slow
    client.sendall(DECLARE)


def test_a_flood_of_slow_requests_lets_others_have_their_turn(rig: Rig) -> None:
    rig.connect("flood").sendall(DECLARE * 1000)
    ask_again(rig, "other", rig.connect("other"), 50)
    rig.loop.run()
    assert rig.served.count("flood") < 1000
    assert longest_wait(rig.served, "other") <= 4


def test_many_floods_wait_for_each_other_and_nobody_else_for_them(rig: Rig) -> None:
    floods = [f"flood {number}" for number in range(20)]
    for name in floods:
        rig.connect(name).sendall(DECLARE * 1000)
    other = rig.connect("other")
    # Each of them has had the one turn that it gets before it counts as heavy.
    ask_again(rig, "other", other, 100)
    rig.loop.run()
    first = rig.served.index("other")
    assert longest_wait(rig.served[first:], "other") <= 4
    counts = [rig.served[first:].count(name) for name in floods]
    assert max(counts) - min(counts) <= 4, "heavy ones take turns, too"


def test_what_was_read_before_the_turn_ended_is_served_in_order_and_once(rig: Rig) -> None:
    client = rig.connect("flood")
    stream = b"".join(method_frame(1, "queue.declare", queue=f"q{number}", passive=True) for number in range(2000))
    client.sendall(stream[:-7])
    got: list[bytes] = []
    handler = rig.handlers["flood"]
    handler.on_payload = got.append

    def on_slow(name: str) -> None:
        if len(got) == 1500:
            client.sendall(stream[-7:])
        elif len(got) == 2000:
            rig.stop()

    rig.on_slow = on_slow
    rig.loop.run()
    assert [payload[7 : 7 + payload[6]] for payload in got] == [b"q%d" % number for number in range(2000)]


def test_one_request_longer_than_a_turn_makes_heavy_too(rig: Rig) -> None:
    flood = rig.connect("flood", cost_us=5_000)
    flood.sendall(DECLARE)
    other = rig.connect("other", cost_us=10)
    order: list[str] = []

    def on_slow(name: str) -> None:
        order.append(name)
        if name == "flood":
            # Both ask in the same moment, `flood` first: it was heavy, so `other` is served first.
            flood.sendall(DECLARE)
            other.sendall(DECLARE)
        if len(order) == 20:
            rig.stop()

    rig.on_slow = on_slow
    rig.loop.run()
    assert order[:5] == ["flood", "other", "flood", "other", "flood"]


def test_sends_to_many_take_one_turn_of_a_pass_and_those_that_wait_longest_come_first(rig: Rig) -> None:
    names = [f"reader {number}" for number in range(20)]
    clients = [rig.connect(name, layer=SlowLayer(rig, name)) for name in names]
    other = rig.connect("other", cost_us=10)

    def on_slow(served: str) -> None:
        if rig.served.count("other") == 1:
            for name in names:
                rig.handlers[name].connection.write(b"to be sent")
                rig.loop.touch(rig.handlers[name].socket)
        # The first of them has more to say whenever it was heard: the others have their turn all the same.
        rig.handlers[names[0]].connection.write(b"more")
        rig.loop.touch(rig.handlers[names[0]].socket)
        if all(name in rig.served for name in names):
            rig.stop()
        else:
            other.sendall(DECLARE)

    rig.on_slow = on_slow
    other.sendall(DECLARE)
    rig.loop.run()
    assert longest_wait(rig.served, "other") <= 4
    firsts = [rig.served.index(name) for name in names]
    assert firsts == sorted(firsts)
    for client in clients:
        assert client.recv(1024).startswith((b"to be sent", b"more"))


def test_a_heavy_connection_is_forgiven_after_its_time(rig: Rig) -> None:
    flood = rig.connect("flood")
    flood.sendall(DECLARE * 40)
    other = rig.connect("other")
    order: list[str] = []

    def on_slow(name: str) -> None:
        order.append(name)
        if len(order) == 40:
            rig.loop.manual_ns += rig.config.limits.heavy_ms * 1_000 * US
            flood.sendall(DECLARE)
            other.sendall(DECLARE)
        elif len(order) == 42:
            rig.stop()

    rig.on_slow = on_slow
    rig.loop.run()
    assert sorted(order[40:]) == ["flood", "other"]
    assert not rig.loop.turns_waiting


def test_a_connection_that_ends_leaves_the_lists_of_turns(rig: Rig) -> None:
    floods = {name: rig.connect(name) for name in ("a", "b", "c")}
    for client in floods.values():
        client.sendall(DECLARE * 500)

    def on_slow(name: str) -> None:
        if len(rig.served) == 60:
            for gone in ("a", "c"):
                rig.loop.remove(rig.handlers[gone].socket)
        elif len(rig.served) == 200:
            rig.stop()

    rig.on_slow = on_slow
    rig.loop.run()
    assert set(rig.served[64:]) == {"b"}


def test_a_peer_that_hangs_up_is_served_first_what_it_sent(rig: Rig) -> None:
    flood = rig.connect("flood")
    flood.sendall(DECLARE * 100)
    flood.close()
    rig.on_closed = lambda name: rig.stop()
    rig.loop.run()
    assert rig.served == ["flood"] * 100
    assert rig.closed == ["flood"]


def test_connections_that_hang_up_together_end_in_several_passes(rig: Rig) -> None:
    """One turn of each pass for all of them, and then the others are read."""
    for number in range(150):
        rig.connect(f"gone-{number}").close()

    def on_closed(name: str) -> None:
        rig.loop.manual_ns += SLOW_US * US
        rig.served.append(name)

    rig.on_closed = on_closed
    ask_again(rig, "other", rig.connect("other"), 20)
    rig.loop.run()
    assert longest_wait(rig.served, "other") <= 4
    assert 20 <= len(rig.closed) < 150
    rig.loop.stopping = False
    rig.on_closed = lambda name: rig.stop() if len(rig.closed) == 150 else None
    rig.loop.run()
    assert sorted(rig.closed) == sorted(f"gone-{number}" for number in range(150))


def test_functions_of_other_threads_get_their_turn_and_give_one(rig: Rig) -> None:
    rig.connect("flood").sendall(DECLARE * 1000)

    def call() -> None:
        rig.served.append("call")
        rig.loop.manual_ns += SLOW_US * US
        rig.loop.call(rig.stop if rig.served.count("call") == 100 else call)

    for _ in range(5):
        rig.loop.call(call)
    rig.loop.run()
    assert longest_wait(rig.served[rig.served.index("call") :], "call") <= 4
    assert longest_wait(rig.served[rig.served.index("flood") :], "flood") <= 5


def test_a_loop_that_did_not_look_for_long_says_so(rig: Rig) -> None:
    client = rig.connect("one", cost_us=0)
    seen: list[int] = []

    def on_slow(name: str) -> None:
        seen.append(rig.loop.awake_ms)
        if len(seen) == 2:
            rig.loop.manual_ns += 60_000_000 * US  # a stall in the middle of a pass
        if len(seen) == 4:
            rig.stop()
        else:
            client.sendall(DECLARE)

    rig.on_slow = on_slow
    client.sendall(DECLARE)
    rig.loop.run()
    assert seen[0] == seen[1], "no stall yet"
    assert seen[1] < seen[3] <= rig.loop.now_ms, "it is awake since then"


def test_who_settles_or_asks_is_read_before_publishers(rig: Rig) -> None:
    """Publishers wait on a list of their own: the acks of consumers, which came after all they sent, are seen before it."""
    cache, queue = RouteCache(b"", 16), QueueHandle(1)
    publishers = {f"p{number}": rig.connect(f"p{number}", cost_us=0) for number in range(20)}
    other = rig.connect("other", cost_us=0)
    message = publish_bytes(1, b"x", routing_key="q")
    counts: list[int] = []

    def all_send() -> None:
        for client in publishers.values():
            client.sendall(message)
        other.sendall(DECLARE)

    def on_slow(name: str) -> None:
        if name != "other":  # its first publish: the route is not known yet
            rig.handlers[name].connection.set_route(1, cache, b"\x00\x01q", [queue], True)
            return
        counts.append(queue.ready_count())
        # In a later pass, when everything that was sent has been read.
        rig.loop.call(rig.stop if len(counts) == 10 else all_send)

    rig.on_slow = on_slow
    all_send()
    rig.loop.run()
    # At its first request the broker does not know yet who publishes.
    assert counts[1:] == [20 * number for number in range(1, 10)]
    queue.purge()


def test_publishes_to_very_many_queues_end_a_turn(rig: Rig) -> None:
    """Routes are cached, so no request reaches Python: the queues that were written to are counted instead."""
    cache, queues = RouteCache(b"", 16), [QueueHandle(number) for number in range(1, 101)]
    flood, other = rig.connect("flood", cost_us=0), rig.connect("other", cost_us=0)
    counts: list[int] = []

    def on_slow(name: str) -> None:
        if name == "flood":
            rig.handlers["flood"].connection.set_route(1, cache, b"\x00\x01q", queues, True)
            return
        counts.append(queues[0].ready_count())
        if counts[-1] == 500:
            rig.stop()
        else:
            other.sendall(DECLARE)

    rig.on_slow = on_slow
    flood.sendall(publish_bytes(1, b"x", routing_key="q") * 500)
    other.sendall(DECLARE)
    rig.loop.run()
    # Both sent in the same moment, the flood first: 2,048 queues are 21 of its messages, then the other is served.
    assert counts[0] <= 21
    assert all(queue.ready_count() == 500 for queue in queues)
    for queue in queues:
        queue.purge()


def test_a_publisher_waits_for_a_helping_while_its_consumers_could_take_more(rig: Rig) -> None:
    """... and for no longer than queue_lag_ms; consumers that can take nothing hold nobody."""
    limits = rig.config.limits
    cache, queue = RouteCache(b"", 16), QueueHandle(1)
    elsewhere = Rig()  # its loop does not run: the consumer there has credit, and takes nothing
    elsewhere.connect("reader")
    reader = elsewhere.handlers["reader"].connection
    assert reader.consume(1, queue, b"c", True, False, 0)
    flood, other = rig.connect("flood", cost_us=0), rig.connect("other", cost_us=0)
    flood.setblocking(False)
    message = publish_bytes(1, b"x", routing_key="q")
    chunk, unsent = message * 5_000, b""
    counts: list[int] = []

    def on_slow(name: str) -> None:
        nonlocal unsent
        if name == "flood":
            rig.handlers["flood"].connection.set_route(1, cache, b"\x00\x01q", [queue], True)
            return
        with contextlib.suppress(BlockingIOError):
            while True:
                unsent = unsent or chunk
                unsent = unsent[flood.send(unsent) :]
        counts.append(queue.ready_count())
        if len(counts) == 100:
            rig.loop.manual_ns += limits.queue_lag_ms * 1_000 * US
        elif len(counts) == 120:
            reader.set_flow(1, False)
        elif len(counts) == 300:
            rig.stop()
            return
        other.sendall(DECLARE)

    rig.on_slow = on_slow
    flood.sendall(message)
    other.sendall(DECLARE)
    rig.loop.run()
    helping, read = 16_384 // len(message), 262_144 // len(message)
    assert limits.queue_lag_messages < counts[60] <= limits.queue_lag_messages + read + 1
    assert counts[99] == counts[60]
    assert counts[99] < counts[119] <= counts[99] + helping + 1
    assert counts[-1] > 4 * limits.queue_lag_messages
    elsewhere.close()
    queue.purge()


# --- long work ------------------------------------------------------------------------------------------------------------


def test_jobs_share_what_a_pass_gives_them(rig: Rig) -> None:
    ask_again(rig, "other", rig.connect("other"), 30)
    done: list[bool] = []

    def step(name: str) -> Callable[[], bool]:
        def one() -> bool:
            rig.served.append(name)
            rig.loop.manual_ns += 100 * US
            return rig.served.count(name) == 200

        return one

    rig.loop.job(step("x"), done.append)
    rig.loop.job(step("y"), done.append)
    rig.loop.run()
    assert longest_wait(rig.served, "other") <= 10, "all jobs together get 1 ms of a pass"
    steps = [name for name in rig.served if name != "other"]
    assert steps == ["x", "y"] * (len(steps) // 2)
    # 30 passes of 10 steps are not 400: the loop ended first, and both were told.
    assert done == [False, False]


def test_a_job_runs_to_its_end_while_nothing_else_happens(rig: Rig) -> None:
    left = 5000

    def step() -> bool:
        nonlocal left
        left -= 1
        rig.loop.manual_ns += 100 * US
        assert rig.loop.working
        return left == 0

    done: list[bool] = []

    def ended(complete: bool) -> None:
        done.append(complete)
        rig.stop()

    rig.loop.job(step, ended)
    rig.loop.run()
    assert (left, done) == (0, [True])
    assert not rig.loop.working


def test_a_job_that_raises_ends_alone(rig: Rig) -> None:
    told: list[tuple[str, bool]] = []

    def broken() -> bool:
        raise ValueError("a bug")

    def broken_end(done: bool) -> None:
        told.append(("broken", done))
        raise ValueError("another")

    def good_end(done: bool) -> None:
        told.append(("good", done))
        rig.stop()

    rig.loop.job(broken, broken_end)
    rig.loop.job(lambda: True, good_end)
    rig.loop.run()
    assert told == [("broken", False), ("good", True)]
    rig.loop.job(lambda: True, lambda done: told.append(("late", done)))
    assert told[2:] == [("late", False)], "the loop has ended: nothing runs any more"


def test_compiled_jobs_take_turns_within_their_share() -> None:
    driver = JobDriver()
    driver.add(3, 100)
    driver.add(100, 100)
    driver.add(2, 100, told=False)
    driver.run(1_000)
    assert driver.steps == [0, 1, 2, 0, 1, 2, 0, 1, 1, 1]
    assert driver.ends == [(0, True)]
    driver.end()
    driver.run(1_000)
    assert len(driver.steps) == 10
    assert driver.ends == [(0, True), (1, False)]
    # Nobody would ever run what comes now: it has its end at once.
    driver.add(5, 100)
    assert driver.ends == [(0, True), (1, False), (3, False)]
