"""TLS on the same loop: large messages both ways, slow readers, garbage and silence; wrong files are said in one line."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import self_signed_certificate, wait_until
from tests.support.rawamqp import RawConnection, method_frame
from tests.twins.memory_log import MemoryLog

# A machine that is too busy for a TLS handshake within the first limit gets a longer one.
HANDSHAKE_MS = (100, 1_500, 6_000)


@pytest.fixture(scope="module")
def certificate() -> Iterator[tuple[str, str]]:
    with self_signed_certificate() as paths:
        yield paths


@pytest.fixture
def secure(start: Callable[..., Any], certificate: tuple[str, str]) -> Callable[..., Any]:
    def make(**limits: Any) -> Any:
        return start(limits, tls_cert=certificate[0], tls_key=certificate[1], tls_port=0)

    return make


def connect_tls(broker: Any, certificate: tuple[str, str]) -> RawConnection:
    context = ssl.create_default_context(cafile=certificate[0])
    return RawConnection("127.0.0.1", broker.node.amqps_port, tls=context)


def test_large_messages_both_ways(secure: Callable[..., Any], certificate: tuple[str, str]) -> None:
    broker = secure()
    with connect_tls(broker, certificate).open() as connection:
        channel = connection.channel()
        channel.queue("q")
        channel.consume("q", no_ack=True)
        for size in (0, 1, 16_383, 16_385, 131_064, 131_065, 3_000_000):
            body = bytes([size % 251]) * size
            channel.publish(body, routing_key="q")
            assert channel.expect("basic.deliver").body == body
        connection.close()


def test_a_message_larger_than_the_limit_of_output_is_delivered(secure: Callable[..., Any], certificate: tuple[str, str]) -> None:
    broker = secure(output_bytes_max=256 * 1024)
    body = bytes(range(256)) * (16 << 12)
    with connect_tls(broker, certificate).open() as connection:
        channel = connection.channel()
        channel.queue("q")
        channel.publish(body, routing_key="q")
        assert channel.ready("q") == 1
        channel.consume("q", no_ack=True)
        assert channel.expect("basic.deliver").body == body


def test_plain_and_tls_share_queues(secure: Callable[..., Any], connect: Callable[..., Any], certificate: tuple[str, str]) -> None:
    broker = secure()
    plain = connect(broker).channel()
    plain.queue("q")
    with connect_tls(broker, certificate).open() as connection:
        channel = connection.channel()
        for number in range(2000):
            channel.publish(b"%d" % number, routing_key="q")
        plain.consume("q", no_ack=True)
        assert [int(message.body) for message in plain.deliveries(2000)] == list(range(2000))


def test_slow_reader_is_held_back_not_cut(secure: Callable[..., Any], connect: Callable[..., Any], certificate: tuple[str, str]) -> None:
    broker = secure(output_bytes_high=64 * 1024, output_bytes_low=16 * 1024, output_bytes_max=4 << 20)
    publisher = connect(broker).channel()
    publisher.queue("q")
    with connect_tls(broker, certificate).open() as connection:
        channel = connection.channel()
        channel.consume("q", no_ack=True)
        for number in range(3000):  # in trickles: each one alone is far below the high mark
            publisher.publish(number.to_bytes(4, "big") * 1000, routing_key="q")
            if number % 20 == 0:
                publisher.ready("q")
        assert publisher.ready("q") > 1000, "everything went to the peer that does not read"
        got = [int.from_bytes(message.body[:4], "big") for message in channel.deliveries(3000)]
        assert got == list(range(3000))


def test_garbage_costs_only_its_connection(secure: Callable[..., Any], certificate: tuple[str, str]) -> None:
    broker = secure()
    for garbage in (b"AMQP\x00\x00\x09\x01", b"\x16\x03\x01" + b"\xff" * 500, b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 5000):
        with socket.create_connection(("127.0.0.1", broker.node.amqps_port), timeout=30) as sock:
            sock.sendall(garbage)
            received = b"."
            while received:
                try:
                    received = sock.recv(4096)
                except ConnectionResetError:
                    break
    wait_until(lambda: not broker.node.broker.pending, what="all of them are forgotten")
    with connect_tls(broker, certificate).open() as connection:
        connection.channel()


def test_tls_handshake_has_a_deadline_of_its_own(secure: Callable[..., Any]) -> None:
    broker = secure(tls_handshake_ms_max=100, handshake_ms_max=60_000)
    with socket.create_connection(("127.0.0.1", broker.node.amqps_port), timeout=30) as sock:
        assert sock.recv(1) == b""
    wait_until(lambda: not broker.node.broker.pending, what="the connection is forgotten")


def test_amqp_handshake_over_tls_has_the_usual_deadline(secure: Callable[..., Any], certificate: tuple[str, str]) -> None:
    for limit_ms in HANDSHAKE_MS:
        broker = secure(tls_handshake_ms_max=60_000, handshake_ms_max=limit_ms)
        try:
            connection = connect_tls(broker, certificate)
        except OSError:
            continue  # cut in the middle of the TLS handshake, which counts for the whole one
        with connection:
            connection.recv_until_closed()
        return
    raise AssertionError(f"no TLS handshake was over within {HANDSHAKE_MS[-1]} ms")


def test_wrong_password_over_tls_is_told(secure: Callable[..., Any], certificate: tuple[str, str]) -> None:
    with connect_tls(secure(), certificate) as connection:
        connection.start()
        connection.start_ok(password="wrong")
        assert connection.expect(0, "connection.close").reply_code == 403


def test_many_connections_at_once(secure: Callable[..., Any], certificate: tuple[str, str]) -> None:
    broker = secure()
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with connect_tls(broker, certificate).open() as connection:
                channel = connection.channel()
                queue = channel.queue()
                channel.publish(b"%d" % number * 1000, routing_key=queue)
                assert channel.call("basic.get", queue=queue).body == b"%d" % number * 1000
                connection.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors


@pytest.mark.parametrize("case", ["no such file", "not a certificate", "another key"])
def test_wrong_files_end_with_one_clear_line(tmp_path: Path, certificate: tuple[str, str], case: str) -> None:
    cert, key = certificate
    if case == "no such file":
        cert = str(tmp_path / "absent.pem")
    elif case == "not a certificate":
        (tmp_path / "bad.pem").write_text("hello")
        cert = str(tmp_path / "bad.pem")
    else:
        with self_signed_certificate() as other:
            (tmp_path / "key.pem").write_bytes(Path(other[1]).read_bytes())
        key = str(tmp_path / "key.pem")
    command = [sys.executable, "-m", "flintmq.cli.main", "serve", "--memory", "--port", "0", "--http-port", "off", "--tls-port", "0"]
    done = subprocess.run([*command, "--tls-cert", cert, "--tls-key", key], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 78, done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and "--tls-cert" in lines[0] and (cert in lines[0] or key in lines[0]), done.stderr


def test_confirms_and_commits_that_wait_for_the_log(start: Callable[..., Any], certificate: tuple[str, str]) -> None:
    """Over TLS too the wake of the log brings confirms and commit-ok, and what waits behind an answer is served, in order."""
    log = MemoryLog()
    broker = start({"housekeeping_ms": 3_600_000}, log=log, tls_cert=certificate[0], tls_key=certificate[1], tls_port=0)
    with connect_tls(broker, certificate).open() as connection:
        channel, tx = connection.channel(1), connection.channel(2)
        channel.queue("kept", durable=True)
        channel.call("confirm.select")
        tx.call("tx.select")
        for number in range(1, 20):
            log.hold()
            channel.publish(b"m", routing_key="kept", delivery_mode=2)
            tx.publish(b"t" * 5000, routing_key="kept", delivery_mode=2)
            tx.send("tx.commit")
            tx.send("queue.declare", queue="kept", passive=True)
            tx.publish(b"later", routing_key="nowhere", mandatory=True)
            tx.send("tx.commit")
            wait_until(lambda wanted=number: log.enqueues == wanted and len(log.states) == wanted, step=0.001)
            log.release()
            assert channel.expect("basic.ack").delivery_tag == number
            tx.expect("tx.commit-ok")
            assert tx.expect("queue.declare-ok").message_count == 2 * number
            assert tx.expect("basic.return").body == b"later"
            tx.expect("tx.commit-ok")
        connection.close()


def test_a_client_that_ends_its_stream_gets_our_end_of_it(secure: Callable[..., Any], certificate: tuple[str, str]) -> None:
    """asyncio waits for it: without it the close of an aio-pika connection would last until the broker's patience ends."""
    broker = secure(close_ms_max=3_600_000)
    connection = connect_tls(broker, certificate).open()
    connection.send(method_frame(0, "connection.close", reply_code=200))
    assert connection.recv_any().name == "connection.close-ok"
    assert isinstance(connection.sock, ssl.SSLSocket)
    connection.sock.settimeout(30)
    connection.sock.unwrap().close()
    wait_until(lambda: not broker.node.broker.connections, what="the connection is forgotten")
