"""AMQP over a Unix domain socket: with the permissions asked for, and the peer's user shown."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest

from flintmq.access.checks import source_of
from flintmq.access.users import is_loopback
from flintmq.errors import OperatorError
from flintmq.net import unix_socket
from tests.support.relay import Relay


def connect(path: str) -> pika.BlockingConnection:
    relay = Relay(path, lambda data: data, lambda data: data)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", relay.port, connection_attempts=1))


def test_a_client_over_a_unix_socket(start: Callable[..., Any], tmp_path: Path) -> None:
    path = str(tmp_path / "amqp.sock")
    broker = start(unix_socket=path)
    connection = connect(path)  # guest is let in: who is here is on this machine
    (handler,) = broker.node.broker.connections.values()
    assert (handler.peer_host, handler.peer_port) == (f"unix-uid-{os.getuid()}", os.getpid())
    assert handler.name.startswith(f"unix-uid-{os.getuid()}:{os.getpid()} -> ")
    channel: Any = connection.channel()
    channel.queue_declare("q")
    body = bytes(1_000_000)
    channel.basic_publish("", "q", body)
    assert channel.basic_get("q", auto_ack=True)[2] == body
    connection.close()
    pika.BlockingConnection(pika.URLParameters(broker.url)).close()
    broker.node.stop()
    assert not os.path.lexists(path)


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_permissions(start: Callable[..., Any], tmp_path: Path, mode: int) -> None:
    path = tmp_path / "amqp.sock"
    start(unix_socket=str(path), unix_socket_mode=mode)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_nobody_slips_in_before_the_permissions_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    chmod = os.chmod

    def looked(path: str, mode: int) -> None:
        seen.append(stat.S_IMODE(os.stat(path).st_mode))
        chmod(path, mode)

    monkeypatch.setattr(os, "chmod", looked)
    before = os.umask(0)
    try:
        unix_socket.listen(str(tmp_path / "s"), 0o666).close()
    finally:
        os.umask(before)
    assert seen == [0o600]


def test_what_is_in_the_way(start: Callable[..., Any], tmp_path: Path) -> None:
    """A socket that nobody listens at makes room; a live one and other files stay."""
    stale = tmp_path / "stale"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(stale))
    broker = start(unix_socket=str(stale))
    connect(str(stale)).close()
    with pytest.raises(OperatorError, match="another process listens there"):
        unix_socket.listen(str(stale), 0o600)
    connect(str(stale)).close()
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("file", "link"):
        with pytest.raises(OperatorError, match="no socket"):
            unix_socket.listen(str(tmp_path / name), 0o600)
    assert (tmp_path / "file").read_text() == "precious"
    for bad in (str(tmp_path / "no" / "directory"), "/" + "x" * 200):
        with pytest.raises(OperatorError):
            unix_socket.listen(bad, 0o600)
    stale.unlink()
    stale.write_text("another's")
    broker.node.stop()
    assert stale.read_text() == "another's"


def test_users_of_the_machine_are_sources_of_their_own() -> None:
    assert is_loopback("unix-uid-1000") and not is_loopback("unix")
    assert source_of("unix-uid-1000") != source_of("unix-uid-1001")


def test_a_proxy_does_not_speak_there(start: Callable[..., Any], tmp_path: Path) -> None:
    path = str(tmp_path / "amqp.sock")
    start(unix_socket=path, proxy_from=("127.0.0.0/8", "::/0", "0.0.0.0/0"))
    connect(path).close()
