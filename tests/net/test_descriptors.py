"""Descriptors and places: peers never take the last one, and a flood of idle connections costs its own address."""

from __future__ import annotations

import builtins
import errno
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from flintmq.admin.server import HttpServer
from flintmq.broker.pending import Pending
from flintmq.config import Config, Limits
from flintmq.net.descriptors import shares
from flintmq.session.handlers import ConnectionHandler
from tests.support.broker import wait_until


def test_peers_never_get_the_reserve() -> None:
    limits = Limits()
    for descriptors in (64, 256, 1024, 2048, 4096, 20_000, 1 << 20):
        share = shares(limits, descriptors)
        assert share.amqp > 0 and share.http > 0
        assert share.amqp + share.http <= max(descriptors - limits.descriptors_reserve, descriptors // 2)
        assert share.http <= limits.http_connections_max
    assert shares(limits, 1 << 20) == (limits.connections_max + limits.unauthenticated_connections_max, limits.http_connections_max)
    assert shares(limits).amqp > 0, "the process's own limit"


class Peer:
    """As much of a handler as Pending asks for."""

    def __init__(self, host: str) -> None:
        self.peer_host = host


def test_the_oldest_of_the_largest_source_makes_room() -> None:
    pending: Any = Pending()
    flood = [Peer("10.0.0.9") for _ in range(5)]
    early, late = Peer("10.0.0.1"), Peer("10.0.0.2")
    for peer in (early, *flood, late):
        pending.add(peer)
    assert [pending.evict() for _ in range(4)] == flood[:4]
    # Equally many: the source that has been there longest.
    assert pending.evict() is early
    assert len(pending) == 2 and late in pending and early not in pending
    pending.discard(late)
    pending.discard(late)
    assert pending.evict() is flood[4]
    assert pending.evict() is None and len(pending) == 0


def test_addresses_of_one_ipv6_network_are_one_source() -> None:
    pending: Any = Pending()
    alone = Peer("::ffff:10.0.0.1")
    flood = [Peer(f"2001:db8::{number:x}") for number in range(1, 4)]
    for peer in (alone, *flood):
        pending.add(peer)
    assert pending.evict() is flood[0]


def test_idle_connections_do_not_keep_others_out(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start({"unauthenticated_connections_max": 4})
    silent = [connect(broker, handshake=False) for _ in range(4)]
    wait_until(lambda: len(broker.node.broker.pending) == 4)
    connect(broker).channel().queue("q")
    assert silent[0].recv_until_closed() == b"", "the oldest made room"
    assert (broker.node.evicted, broker.node.refused) == (1, 0)
    silent[3].open()


def test_without_descriptors_new_connections_wait(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """accept says EMFILE: the listener is left alone until a descriptor is free, and those inside are served."""
    broker = start({"housekeeping_ms": 3_600_000})
    node, loop = broker.node, broker.node.loops[0]
    inside, other = connect(broker), connect(broker)
    failed = threading.Event()

    def fail() -> None:
        node._accept_failed(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        failed.set()

    loop.call(fail)
    assert failed.wait(60)
    waiting = connect(broker, handshake=False)
    inside.channel().queue("q")
    inside.channel(2).queue("q2")  # more passes, in which the listener would have been served
    assert loop.accept_paused and len(node.broker.pending) == 0
    other.drop()
    waiting.open().channel().queue("q")
    assert not loop.accept_paused


def test_the_tick_tries_again(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start()
    node, loop = broker.node, broker.node.loops[0]
    told = threading.Event()
    loop.call(lambda: (node._accept_failed(OSError(errno.ENFILE, "no file")), told.set()))
    assert told.wait(60)
    connect(broker).channel().queue("q")


def test_housekeeping_looks_at_every_connection_in_slices(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start({"housekeeping_ms": 3_600_000})
    connections = [connect(broker) for _ in range(5)]
    node, loop = broker.node, broker.node.loops[0]
    seen: list[list[int]] = []
    steps: list[int] = []
    done = threading.Event()

    class Sliced:
        """The loop's face, which writes down the slices and ends a connection between them."""

        entries = staticmethod(loop.entries)

        @staticmethod
        def job(step: Callable[[], bool], ended: Callable[[bool], object]) -> None:
            loop.remove(next(entry for entry in reversed(loop.entries()) if entry.connection is not None))
            while not step():
                steps.append(len(seen))
            ended(True)

    def look() -> None:
        def tick(handler: ConnectionHandler, now_ms: int) -> None:
            seen.append([handler.connection_id, now_ms])

        with mock.patch("flintmq.node.ROUND_STEP", 2), mock.patch.object(ConnectionHandler, "tick", tick):
            node._look_at_connections(Sliced(), 77)
        done.set()

    loop.call(look)
    assert done.wait(60)
    assert sorted(seen) == [[number, 77] for number in sorted(one[0] for one in seen)] and len(seen) == len(connections) - 1
    assert steps, "in several slices"


def test_sockets_beyond_the_share_are_refused(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start()
    kept = connect(broker)
    broker.node.descriptors = broker.node.descriptors._replace(amqp=broker.node.loops[0].socket_count)
    assert connect(broker, handshake=False).recv_until_closed() == b""
    assert broker.node.refused == 1
    kept.channel().queue("q")


def test_http_waits_for_descriptors_to_import_with(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: Any = SimpleNamespace(pulls=SimpleNamespace(stop=lambda: None))
    server = HttpServer(Config(http_port=0), parts)
    failures: list[Exception] = [
        OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
        ImportError("libx.so: cannot open shared object file: Too many open files"),
        ImportError("no such module"),
    ]
    real = builtins.__import__

    def imports(name: str, *arguments: Any) -> Any:
        if name == "uvicorn":
            raise failures[0]
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", imports)
    assert not server._imported()
    failures.pop(0)
    assert not server._imported()
    failures.pop(0)
    with pytest.raises(ImportError, match="no such module"):
        server._imported()
    monkeypatch.undo()
    assert server._imported()
    server.stop()
