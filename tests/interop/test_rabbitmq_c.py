"""Property: the command-line tools of rabbitmq-c (Debian package amqp-tools) declare, publish, get, consume and delete."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pika
import pytest

from tests.support.broker import Broker, unique, wait_until
from tests.support.servers import ensure_debian_packages


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    """Installs the package when it is missing and that is possible; skips with the reason otherwise."""
    if shutil.which("amqp-publish") is None:
        reason = ensure_debian_packages(["amqp-tools"])
        if reason or shutil.which("amqp-publish") is None:
            pytest.skip(f"amqp-tools is not there: {reason}")


def tool(broker: Broker, name: str, *arguments: str, data: bytes | None = None, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Runs one of the tools against the broker."""
    url = broker.url.removesuffix("/%2F")
    done = subprocess.run([f"amqp-{name}", f"--url={url}", *arguments], input=data, capture_output=True, timeout=120)
    if check:
        assert done.returncode == 0, done.stderr
    return done


def test_declare_publish_get_delete(broker: Broker) -> None:
    """The life of a queue; amqp-get of an empty queue ends with 2."""
    name = unique("c")
    assert tool(broker, "declare-queue", "-q", name).stdout.strip() == name.encode()
    tool(broker, "publish", "-r", name, "-b", "hello", "-p", "-C", "text/plain", "-H", "k: v")
    assert wait_until(lambda: tool(broker, "get", "-q", name, check=False).stdout) == b"hello"
    assert tool(broker, "get", "-q", name, check=False).returncode == 2
    tool(broker, "publish", "-r", name, data=b"y" * 300_000)
    assert b"1" in wait_until(lambda: tool(broker, "delete-queue", "-q", name).stdout)


def test_consume(broker: Broker, tmp_path: Path) -> None:
    """amqp-consume runs a command per message, acknowledges on success and stops after --count."""
    name = unique("c")
    tool(broker, "declare-queue", "-q", name)
    for i in range(5):
        tool(broker, "publish", "-r", name, "-b", f"message {i}\n")
    out = tool(broker, "consume", "-q", name, "-c", "4", "-p", "1", "cat")
    assert out.stdout == b"".join(b"message %d\n" % i for i in range(4))
    assert wait_until(lambda: tool(broker, "get", "-q", name, check=False).stdout) == b"message 4\n"
    tool(broker, "delete-queue", "-q", name)


def test_consume_on_a_new_binding(broker: Broker) -> None:
    """amqp-consume with an exchange and a key declares its own queue and binds it."""
    url = broker.url.removesuffix("/%2F")
    command = ["amqp-consume", f"--url={url}", "-e", "amq.topic", "-r", "c.#", "-A", "-c", "2", "cat"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()

        def published() -> bool:
            try:
                channel.basic_publish("amq.topic", "c.one", b"1", mandatory=True)
            except pika.exceptions.UnroutableError:
                return False
            return True

        wait_until(published, step=0.05)
        channel.basic_publish("amq.topic", "c.two", b"2", mandatory=True)
    assert process.communicate(timeout=120)[0] == b"12"
    assert process.returncode == 0


def test_errors(broker: Broker) -> None:
    """The server's text reaches the user."""
    done = tool(broker, "get", "-q", unique("none"), check=False)
    assert done.returncode == 1
    assert b"NOT_FOUND - no queue" in done.stderr
    command = ["amqp-get", "-s", f"{broker.host}:{broker.port}", "--username=guest", "--password=wrong", "-q", "x"]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert done.returncode == 1
    assert b"ACCESS_REFUSED" in done.stderr or b"403" in done.stderr or b"login" in done.stderr.lower()
