"""`flintmq backup` of a broker that works, and `flintmq restore`: what was confirmed is there, in order, transactions whole; a backup
that was interrupted or damaged is none."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from flintmq.errors import OperatorError
from flintmq.store import backup as copies
from tests.support.broker import Broker

PERSISTENT = pika.BasicProperties(delivery_mode=2)
OPTIONS = ("--http-port", "0", "--container-size", "524288", "--log-retain-bytes", "0", "--log-retain-age", "0")


def command(*words: object, status: int = 0) -> str:
    done = subprocess.run([sys.executable, "-m", "flintmq.cli.main", *map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done
    return done.stdout + done.stderr


def uri(broker: Any) -> str:
    return f"http://127.0.0.1:{broker.ready['http_port']}"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(*OPTIONS) as started:
        if started.external:
            pytest.skip("reads the files of the broker")
        yield started


class Load:
    """Threads that publish and consume until `stop`; what was confirmed."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.confirmed = self.committed = 0
        self.stopping = threading.Event()
        channel: Any = self._channel()
        for queue in ("plain", "a", "b"):
            channel.queue_declare(queue, durable=True)
        channel.queue_declare("stream", durable=True, arguments={"x-queue-type": "stream"})
        self.threads = [threading.Thread(target=one) for one in (self._publish, self._consume, self._transact)]
        for thread in self.threads:
            thread.start()

    def _channel(self) -> Any:
        return pika.BlockingConnection(pika.URLParameters(self.broker.url)).channel()

    def _publish(self) -> None:
        channel = self._channel()
        channel.confirm_delivery()
        number = 0
        while not self.stopping.is_set():
            body = str(number).encode().ljust(2_000)
            for queue in ("plain", "stream"):
                channel.basic_publish("", queue, body, PERSISTENT)
            self.confirmed = number = number + 1

    def _consume(self) -> None:
        channel = self._channel()
        consumed = 0
        while not self.stopping.is_set():
            if self.confirmed - consumed > 50:
                channel.basic_ack(channel.basic_get("plain")[0].delivery_tag)
                consumed += 1
            else:
                time.sleep(0.01)

    def _transact(self) -> None:
        channel = self._channel()
        channel.tx_select()
        while not self.stopping.is_set():
            for queue in ("a", "b"):
                channel.basic_publish("", queue, str(self.committed).encode(), PERSISTENT)
            channel.tx_commit()
            self.committed += 1

    def stop(self) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join()


def bodies(channel: Any, queue: str) -> list[int]:
    found = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append(int(body))


def of_stream(channel: Any, count: int) -> list[int]:
    found: list[int] = []
    channel.basic_qos(prefetch_count=100)
    for method, _, body in channel.consume("stream", arguments={"x-stream-offset": "first"}, inactivity_timeout=60):
        if method is None:
            break
        found.append(int(body))
        channel.basic_ack(method.delivery_tag)
        if len(found) >= count:
            break
    channel.cancel()
    return found


def test_a_backup_under_load_is_a_moment_of_the_broker(broker: Broker, tmp_path: Path) -> None:
    load = Load(broker)
    known: list[tuple[Path, int, int]] = []
    try:
        for number in range(2):
            before = load.confirmed
            while load.confirmed < before + 150:
                time.sleep(0.01)
            target = tmp_path / f"backup{number}"
            known.append((target, load.confirmed, load.committed))
            command("backup", target, "--uri", uri(broker), "-q")
    finally:
        load.stop()
    for number, (target, confirmed, committed) in enumerate(known):
        command("restore", target, "--store-dir", tmp_path / f"store{number}", "-q")
        with Broker("--data-dir", str(tmp_path / f"store{number}")) as restored:
            channel: Any = pika.BlockingConnection(pika.URLParameters(restored.url)).channel()
            plain = bodies(channel, "plain")
            assert plain == list(range(plain[0], plain[-1] + 1)) and plain[-1] >= confirmed - 1
            a, b = bodies(channel, "a"), bodies(channel, "b")
            assert a == b == list(range(len(a))) and len(a) >= committed
            stream = of_stream(channel, confirmed)
            assert stream == list(range(confirmed))
            channel.queue_declare("new", durable=True)  # ids go on
            channel.confirm_delivery()
            channel.basic_publish("", "new", b"x", PERSISTENT)
            channel.connection.close()


def test_kill_9_in_the_middle_leaves_no_backup(broker: Broker, tmp_path: Path) -> None:
    channel: Any = pika.BlockingConnection(pika.URLParameters(broker.url)).channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    for _ in range(40):
        channel.basic_publish("", "q", os.urandom(1 << 20), PERSISTENT)
    target = tmp_path / "backup"
    partial = target.with_name("backup.partial")
    words = [sys.executable, "-m", "flintmq.cli.main", "backup", str(target), "--uri", uri(broker), "-q"]
    for files in (1, 20):
        for _ in range(20):
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
            while len(list(partial.glob("messages/*"))) < files and process.poll() is None:
                time.sleep(0.001)
            process.kill()
            if process.wait() == -9 and not target.exists():
                break
            shutil.rmtree(target)  # it was over before it could be killed
        assert partial.is_dir() and not target.exists()
        assert "it was interrupted" in command("restore", partial, "--store-dir", tmp_path / "no", "-q", status=65)
        assert not (tmp_path / "no").exists()
    assert "checked" in command(*words[3:])
    assert target.is_dir() and not partial.exists()
    assert "is there already" in command("backup", target, "--uri", uri(broker), status=64)
    # The containers are let go, also of those that were killed: a second look finds them pinned by nobody once their time is over.
    assert "40" in command("ctl", "--uri", uri(broker), "list_queues", "messages")


def test_damage_and_strange_files_are_refused(broker: Broker, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    command("backup", target, "--uri", uri(broker))
    assert "whole" in command("restore", target, "--check")
    (file,) = (target / "messages").glob("*.flog")
    data = bytearray(file.read_bytes())
    data[700] ^= 1
    file.write_bytes(data)
    assert "is not as it was written" in command("restore", target, "--check", status=65)
    assert "is not as it was written" in command("restore", target, "--store-dir", tmp_path / "new", status=65)
    assert not (tmp_path / "new").exists()
    data[700] ^= 1
    file.write_bytes(data)
    value = json.loads((target / "backup.json").read_text())
    for name in ("../evil", "/etc/evil", "messages/../../evil"):
        (target / "backup.json").write_text(json.dumps(value | {"files": {**value["files"], name: {"size": 0, "crc32c": 0}}}))
        assert "not in the backup" in command("restore", target, "--store-dir", tmp_path / "new", status=65)
    (target / "backup.json").write_text(json.dumps(value))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    assert "is there already" in command("restore", target, "--store-dir", tmp_path / "full", status=64)
    assert "Start it with" in command("restore", target, "--store-dir", tmp_path / "new")


def test_only_an_administrator_may(broker: Broker, tmp_path: Path) -> None:
    base = ("ctl", "--uri", uri(broker))
    command(*base, "add_user", "mon", "mon")
    command(*base, "set_user_tags", "mon", "monitoring")
    text = command("backup", tmp_path / "b", "--uri", uri(broker), "-u", "mon", "--password", "mon", status=77)
    assert "Not administrator user" in text and not list(tmp_path.iterdir())


def test_a_store_that_nobody_has_open(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with Broker("--data-dir", str(store)) as broker:
        channel: Any = pika.BlockingConnection(pika.URLParameters(broker.url)).channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"7", PERSISTENT)
        channel.connection.close()
        assert "a broker has it open" in command("backup", tmp_path / "b", "--store-dir", store, status=69)
    command("backup", tmp_path / "b", "--store-dir", store)
    command("restore", tmp_path / "b", "--store-dir", tmp_path / "new")
    with Broker("--data-dir", str(tmp_path / "new")) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        assert bodies(connection.channel(), "q") == [7]
        connection.close()


@pytest.mark.parametrize("what", ["backup", "restore"])
def test_what_somebody_else_left_under_the_name_stays(tmp_path: Path, what: str) -> None:
    """DIR.partial was removed whatever it was."""
    source, target = tmp_path / "source", tmp_path / "new"
    with Broker("--data-dir", str(tmp_path / "store")):
        pass
    command("backup", source, "--store-dir", tmp_path / "store")
    words = ("restore", source, "--store-dir", target) if what == "restore" else ("backup", target, "--store-dir", tmp_path / "store")
    partial = tmp_path / "new.partial"
    (partial / "messages").mkdir(parents=True)
    (partial / "precious").write_text("x")
    assert "'precious' in it" in command(*words, status=64)
    assert (partial / "precious").read_text() == "x" and not target.exists()
    (partial / "precious").unlink()
    fd = os.open(partial, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)  # as a backup or restore that still runs
    (partial / "messages" / "half").write_text("x")
    assert "another backup or restore works in it" in command(*words, status=75)
    assert (partial / "messages" / "half").exists()
    os.close(fd)
    partial.rename(tmp_path / "elsewhere")
    partial.symlink_to(tmp_path / "elsewhere")
    command(*words, status=74)
    assert (tmp_path / "elsewhere" / "messages" / "half").exists() and partial.is_symlink()
    partial.unlink()
    command(*words)
    assert target.is_dir() and not partial.exists()


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[]",
        '{"format": 1}',
        '{"format": 1, "uuid": "x", "files": []}',
        '{"format": 1, "uuid": "x", "files": {"messages/a": 7}}',
        '{"format": 1, "uuid": "x", "files": {"messages/a": {"size": "9", "crc32c": 0}}}',
        '{"format": 1, "uuid": "x", "files": {"messages/a": {"size": -1, "crc32c": 0}}}',
        '{"format": 1, "uuid": "x", "files": {"a\\u0000b": {"size": 0, "crc32c": 0}}}',
    ],
)
def test_a_manifest_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "backup.json").write_text(text)
    said = command("restore", tmp_path, "--store-dir", tmp_path / "new", status=65)
    assert "Traceback" not in said and not (tmp_path / "new").exists()


@pytest.mark.parametrize("facts", [{"logs": {"../up": {}}, "streams": {}}, {"logs": {}, "streams": {"../up": {}}}])
def test_a_broker_that_names_files_of_its_own(tmp_path: Path, facts: dict[str, Any]) -> None:
    """Whoever answers at --uri says what is copied from where: only logs of a store, and only below the new directory."""
    with pytest.raises(OperatorError, match="none of a store"):
        copies.take(facts | {"directory": str(tmp_path), "version": "1", "uuid": "", "time_ms": 0}, tmp_path / "new", lambda: None)
    assert not list(tmp_path.iterdir())
