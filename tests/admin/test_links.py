"""Which HTTP connection makes room for a newcomer, and how connections are accepted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import logging
import random
import resource
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.admin.accepting import AT_ONCE, Acceptor
from flintmq.admin.links import Link, Links
from tests.admin.conftest import Client, basic
from tests.support.broker import wait_until


def asking(links: Links, source: str) -> Link:
    """A connection that logged in, and waits for its answer."""
    link = idle(links, source)
    link.begins()
    return link


def idle(links: Links, source: str) -> Link:
    link = admitted(links, source)
    link.begins()
    link.logged_in("u")
    link.answered()
    return link


def admitted(links: Links, source: str) -> Link:
    link = links.admit(source)
    assert link is not None and not link.spare
    return link


def test_idle_sockets_of_a_stranger_make_room_for_anybody() -> None:
    """Of one address, of the newcomer's own, or of as many addresses as there are connections: the oldest goes."""
    for sources in (["stranger"] * 6, ["newcomer"] * 6, [f"s{number}" for number in range(6)]):
        links = Links(6)
        made = [admitted(links, source) for source in sources]
        assert not admitted(links, "newcomer").cut
        assert [one.cut for one in made] == [True, *[False] * 5] and len(links) == 6


def test_who_logged_in_goes_after_strangers_and_who_waits_last() -> None:
    links = Links(4)
    waits, rests, stranger, other = asking(links, "a"), idle(links, "a"), admitted(links, "b"), admitted(links, "c")
    for loser in (stranger, other):
        asking(links, "d")
        assert loser.cut
    asking(links, "d")
    assert rests.cut and not waits.cut
    assert links.admit("d") is None and links.refused == 1


def test_an_address_with_many_makes_room_first() -> None:
    links = Links(5)
    small = admitted(links, "small")
    large = [admitted(links, "large") for _ in range(4)]
    admitted(links, "small")
    assert large[0].cut and not small.cut
    links = Links(4)
    held = [asking(links, "large") for _ in range(4)]
    asking(links, "small")
    assert held[0].cut, "held polls of one address keep nobody out"
    asking(links, "small")
    assert held[1].cut is False or len([one for one in held if one.cut]) <= 2
    assert links.admit("large") is None


def test_a_spare_place_is_for_health_checks() -> None:
    links = Links(16)
    for _ in range(16):
        asking(links, "a")
    first = links.admit("a")
    assert first is not None and first.spare and links.spare_max == 2
    second, third = links.admit("a"), links.admit("a")
    assert second is not None and third is not None and first.cut and not second.cut
    third.end()
    assert len(links) == 17
    third.end()
    assert len(links) == 17


def test_a_proxy_tells_whose_connection_it_is() -> None:
    links = Links(3)
    one = admitted(links, "proxy")
    for _ in range(2):
        admitted(links, "proxy")
    one.move("client")
    admitted(links, "other")
    assert not one.cut, "it is no longer of the address with most"


def test_counts_hold_through_any_order() -> None:
    """A random walk beside a plain count of what is there."""
    random_ = random.Random(34)
    links, alive = Links(40), []
    for _ in range(5_000):
        link = links.admit(f"s{random_.randrange(6)}")
        alive = [one for one in [*alive, *([] if link is None else [link])] if not one.cut]
        one = random_.choice(alive)
        action = random_.choice(("begins", "answered", "logged_in", "move", "end", "none"))
        if action in ("begins", "answered"):
            getattr(one, action)()
        elif action == "logged_in":
            one.logged_in("u")
        elif action == "move":
            one.move(f"s{random_.randrange(6)}")
        elif action == "end":
            one.end()
            alive.remove(one)
        counts = Counter(one.source for one in alive if not one.spare)
        assert len(links) == len(alive) and {name: len(source) for name, source in links._sources.items()} == dict(counts)
        assert links._largest == max(counts.values(), default=0)


# --- the acceptor -----------------------------------------------------------------------------------------------------------------


class Listener:
    """Gives connections until `failure`."""

    def __init__(self, waiting: int, failure: OSError) -> None:
        self.waiting, self.failure = waiting, failure
        self.accepted = 0

    def setblocking(self, flag: bool) -> None:
        pass

    def accept(self) -> tuple[Any, tuple[str, int]]:
        if not self.waiting:
            raise self.failure
        self.waiting -= 1
        self.accepted += 1
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours, ("192.0.2.1", 1)


class Loop:
    """Readers as the acceptor sees them."""

    def __init__(self) -> None:
        self.readers: list[Any] = []
        self.later: list[Callable[[], None]] = []
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def add_reader(self, listener: Any, *call: Any) -> None:
        self.readers.append(listener)

    def remove_reader(self, listener: Any) -> None:
        if listener in self.readers:
            self.readers.remove(listener)

    def call_later(self, _seconds: float, call: Callable[[], None]) -> Any:
        self.later.append(call)
        return type("Handle", (), {"cancel": lambda handle: None})()

    def call_soon(self, call: Callable[[], None]) -> Any:
        return self.call_later(0, call)

    def create_task(self, coroutine: Any) -> Any:
        coroutine.cr_frame.f_locals["sock"].close()
        coroutine.close()
        return self

    def add_done_callback(self, _callback: Any) -> None:
        pass


def test_without_a_descriptor_the_listener_rests_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    listener: Any = Listener(0, OSError(errno.EMFILE, "Too many open files"))
    links = Links(100)
    acceptor = Acceptor({listener: False}, links, lambda link: asyncio.Protocol(), 10.0)
    loop = acceptor._loop = Loop()
    loop.readers.append(listener)
    for _ in range(50):
        acceptor._ready(listener)
        assert loop.readers == []
        loop.now += 0.1
        acceptor._go_on()
        assert loop.readers == [listener]
    assert len([one for one in caplog.records if one.levelno == logging.WARNING]) == 1
    assert "ulimit -n" in caplog.text


def test_a_few_are_accepted_at_a_time() -> None:
    listener: Any = Listener(1_000, BlockingIOError(errno.EAGAIN, "again"))
    acceptor = Acceptor({listener: False}, Links(100), lambda link: asyncio.Protocol(), 10.0)
    acceptor._loop = Loop()
    acceptor._ready(listener)
    assert listener.accepted == AT_ONCE


# --- a broker ---------------------------------------------------------------------------------------------------------------------


def test_idle_sockets_shut_nobody_out(start: Callable[..., Client]) -> None:
    """Those of a stranger from this very machine, five times as many as may be; health checks, logins and held polls go on."""
    client = start({"http_connections_max": 40})
    client.queue()
    poll = client.connection()
    poll.request("GET", client.path() + "?hold=60", headers=basic())
    wait_until(lambda: client.node.http._parts.held == 1)  # type: ignore[union-attr]
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", client.port), timeout=30))
        assert client.get("/health", {}).status == 200
        assert client.get("/api/whoami").json["name"] == "guest"
        assert client.node.http._parts.connections() <= 40  # type: ignore[union-attr]
        client.publish("x")
        assert poll.getresponse().status == 200
    poll.close()


def test_health_is_answered_while_all_connections_wait_for_answers(start: Callable[..., Client]) -> None:
    client = start({"http_connections_max": 16, "http_source_share": 1.0})
    client.queue()
    polls: list[http.client.HTTPConnection] = []
    for _ in range(14):
        polls.append(client.connection())
        polls[-1].request("GET", client.path() + "?hold=60", headers=basic())
    wait_until(lambda: client.node.http._parts.held == 14)  # type: ignore[union-attr]
    assert client.get("/health", {}).status == 200
    refused = client.get("/api/whoami")
    assert refused.status == 503 and "health checks" in refused.json["reason"]
    for poll in polls:
        poll.close()


BURST = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
from flintmq.testing.broker import Broker
with Broker(http_port=0) as broker:
    print(broker.node.http_port, broker.port, flush=True)
    sys.stdin.read()
"""


def test_a_burst_takes_not_all_descriptors_and_no_log() -> None:
    """Of a broker with 200 descriptors, 300 connections at once: AMQP and HTTP go on, and the log has some lines."""
    command = [sys.executable, "-c", BURST]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        http_port, amqp_port = map(int, process.stdout.readline().split())
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.ExitStack() as stack:
            socks = []
            for _ in range(300):
                sock = stack.enter_context(socket.socket())
                sock.setblocking(False)
                sock.connect_ex(("127.0.0.1", http_port))
                socks.append(sock)
            for _ in range(3):
                connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=30)
                connection.request("GET", "/health")
                assert connection.getresponse().status == 200
                connection.close()
                with socket.create_connection(("127.0.0.1", amqp_port), timeout=30) as amqp:
                    amqp.sendall(b"AMQP\x00\x00\x09\x01")
                    assert amqp.recv(1) == b"\x01"
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
        _, log = process.communicate("", timeout=60)
    assert process.returncode == 0 and len(log) < 20_000, log[-2_000:]
