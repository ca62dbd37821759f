"""Kinds of queues from outside the package: a last value queue, and one in the order of a header, behind the same face as every other."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from flintmq.protocol.v0_9_1.codec import decode_properties
from flintmq.queue import kinds
from flintmq.queue.outside import Entries, new_outside
from flintmq.testing.broker import Broker
from tests.support.inprocess import connect, heap_of_others, start
from tests.support.rawamqp import RawChannel

__all__ = ["connect", "heap_of_others", "start"]

ROOT = str(Path(__file__).resolve().parents[2])
HEADER = struct.pack(">HHQH", 60, 0, 0, 0)


def header_of(message: kinds.Message, name: str) -> Any:
    headers = decode_properties(message[2], 32, 1000)[1].get("headers")
    return headers.get(name) if isinstance(headers, dict) else None


class LastValue:
    """Of the entries with the same value of header `x-key` the last one stays (Qpid's conflation queue); those without one all stay."""

    name = "last-value"

    def check(self, arguments: Mapping[str, Any]) -> str | None:
        return None if isinstance(arguments.get("x-key"), str) else "x-key has to name a header"

    def levels(self, arguments: Mapping[str, Any]) -> int:
        return 1

    def open(self, entries: Entries, arguments: Mapping[str, Any]) -> LastValueList:
        return LastValueList(entries, arguments["x-key"])


class LastValueList:
    def __init__(self, entries: Entries, header: str) -> None:
        self.entries, self.header = entries, header
        self.lock = threading.Lock()
        self.last: dict[Any, int] | None = None

    def level(self, message: kinds.Message | None) -> int:
        return 0

    def arrived(self, position: int, message: kinds.Message | None) -> None:
        with self.lock:
            if self.last is None:
                self.last = self._restored(position)
            self._note(position, message or self.entries.message_at(position))

    def returned(self, position: int) -> None:
        with self.lock:
            if self.last is not None:
                self._note(position, self.entries.message_at(position))

    def _restored(self, before: int) -> dict[Any, int]:
        """What was there before the first arrival: after a restart of the broker."""
        found, position = {}, self.entries.next_available()
        while position and position < before:
            found[header_of(self.entries.message_at(position), self.header)] = position
            position = self.entries.next_available(position + 1)
        found.pop(None, None)
        return found

    def _note(self, position: int, message: kinds.Message) -> None:
        assert self.last is not None
        key = header_of(message, self.header)
        if key is None:
            return
        older = self.last.get(key, 0)
        self.last[key] = max(older, position)
        if older != position and older:
            self.entries.end(min(older, position))


class ByHeader:
    """256 levels by header `rank`, 0 first."""

    name = "by-rank"

    def check(self, arguments: Mapping[str, Any]) -> str | None:
        return None

    def levels(self, arguments: Mapping[str, Any]) -> int:
        return 256

    def open(self, entries: Entries, arguments: Mapping[str, Any]) -> ByHeader:
        return self

    def level(self, message: kinds.Message | None) -> int:
        return 255 if message is None else header_of(message, "rank")  # wrong types and ranges are the broker's to survive

    def arrived(self, position: int, message: kinds.Message | None) -> None: ...

    def returned(self, position: int) -> None: ...


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for kind in (LastValue(), ByHeader()):
        kinds.register(kind)
    yield
    for name in ("last-value", "by-rank"):
        kinds.forget(name)


@pytest.fixture
def ch(start: Callable[..., Any], connect: Callable[..., Any]) -> RawChannel:
    return connect(start()).channel()


def last_value(channel: RawChannel, **rest: Any) -> None:
    channel.queue("q", arguments={"x-queue-type": "last-value", "x-key": "k", **rest.pop("arguments", {})}, **rest)


def put(channel: RawChannel, *pairs: tuple[str, bytes], **rest: Any) -> None:
    for key, body in pairs:
        channel.publish(body, routing_key="q", headers={"k": key}, **rest)


def drain(channel: RawChannel) -> list[bytes]:
    got = []
    while (message := channel.call("basic.get", queue="q", no_ack=True)).name != "basic.get-empty":
        got.append(message.body)
    return got


def test_names_are_taken_once() -> None:
    for name in ("", "classic", "stream", "last-value"):
        kind = LastValue()
        kind.name = name
        with pytest.raises(ValueError, match="can't be named"):
            kinds.register(kind)


def test_installed_kinds_are_found_and_a_broken_one_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        def __init__(self, name: str, value: Any) -> None:
            self.name, self.value = name, value

        def load(self) -> Any:
            return self.value

    class Installed(LastValue):
        name = "installed"

    points = [Point("broken", None), Point("installed", Installed)]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == kinds.ENTRY_POINTS else [])
    monkeypatch.setattr(kinds, "_some_installed", lambda places: True)
    kinds.load_installed()
    found = kinds.find("installed")
    kinds.forget("installed")
    assert isinstance(found, Installed) and kinds.find("broken") is None


def test_a_kind_of_an_installed_package(tmp_path: Path) -> None:
    """A process of its own finds it by the package's files; without such a package it does not even load what would look closely."""
    (tmp_path / "outside_kind.py").write_text(
        "from tests.queue.test_kinds import LastValue\n\nclass Kind(LastValue):\n    name = 'outside'\n"
    )
    package = tmp_path / "outside-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[flintmq.queue_kinds]\noutside = outside_kind:Kind\n")
    code = "import sys; from flintmq.queue import kinds; kinds.load_installed(); print(kinds.find('outside') is not None)"
    for places, answer in (((), "False"), ((str(tmp_path), ROOT), "True")):
        ran = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": ":".join(places)}, capture_output=True, check=True
        )
        assert ran.stdout.decode().strip() == answer, ran.stderr


def test_a_start_loads_no_client_of_other_services() -> None:
    """What the imports of an idle broker cost, each message's memory costs too: readers of packages, mail and HTTP are not among them."""
    code = "import sys, flintmq.cli.serve, flintmq.node; from flintmq.queue import kinds; kinds.load_installed(); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": ""}, capture_output=True, check=True)
    loaded = set(ran.stdout.decode().split())
    assert "flintmq.node" in loaded
    assert not loaded & {
        "importlib.metadata",
        "email.message",
        "http.client",
        "uvicorn",
        "starlette",
        "pyarrow",
        "jwt",
        "flintmq.access.ldap",
    }


def test_the_last_value_of_a_key_stays_in_its_order(ch: RawChannel) -> None:
    last_value(ch)
    put(ch, ("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", b"4"), ("b", b"5"))
    ch.publish(b"without a key", routing_key="q")
    assert ch.ready("q") == 4
    assert drain(ch) == [b"3", b"4", b"5", b"without a key"]


def test_what_a_consumer_holds_is_not_replaced_but_ends_when_it_comes_back(ch: RawChannel) -> None:
    last_value(ch)
    put(ch, ("a", b"1"), ("b", b"2"))
    held = [ch.call("basic.get", queue="q") for _ in range(2)]
    put(ch, ("a", b"3"))
    ch.send("basic.nack", delivery_tag=held[1].delivery_tag, multiple=True, requeue=True)
    ch.wait_ready("q", 2)
    assert drain(ch) == [b"2", b"3"]  # b is back at its place, a was replaced meanwhile


def test_consumers_limits_and_transactions_are_as_of_any_queue(ch: RawChannel) -> None:
    last_value(ch, arguments={"x-max-length": 2})
    put(ch, ("a", b"1"), ("a", b"2"), ("b", b"3"), ("c", b"4"))
    assert ch.ready("q") == 2
    ch.call("tx.select")
    put(ch, ("b", b"5"))
    assert ch.ready("q") == 2
    ch.call("tx.commit")
    assert ch.ready("q") == 2
    ch.consume("q", "t")
    assert [message.body for message in ch.deliveries(2)] == [b"4", b"5"]


@pytest.mark.parametrize("number", [1, 2])
def test_entries_and_their_kind_survive_restarts(
    start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path, number: int
) -> None:
    for _ in range(number):
        with Broker(data_dir=str(tmp_path)) as broker:
            channel = connect(broker).channel()
            last_value(channel, durable=True)
            put(channel, ("a", b"1"), ("b", b"2"), delivery_mode=2)
            channel.wait_ready("q", 2)
    channel = connect(start(data_dir=str(tmp_path))).channel()
    last_value(channel, durable=True)
    channel.wait_ready("q", 2)
    put(channel, ("a", b"3"))
    assert channel.ready("q") == 2
    assert drain(channel) == [b"2", b"3"]


def test_a_kind_that_is_gone_keeps_its_entries(start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        channel = connect(broker).channel()
        channel.queue("q", arguments={"x-queue-type": "by-rank"}, durable=True)
        for rank in (200, 3, 100):
            channel.publish(b"%d" % rank, routing_key="q", headers={"rank": rank}, delivery_mode=2)
        channel.wait_ready("q", 3)
    kinds.forget("by-rank")
    channel = connect(start(data_dir=str(tmp_path))).channel()
    channel.wait_ready("q", 3)
    assert drain(channel) == [b"3", b"100", b"200"]


def test_levels_of_a_kind_order_messages_and_nonsense_hurts_nobody(ch: RawChannel) -> None:
    ch.queue("q", arguments={"x-queue-type": "by-rank"})
    for rank in (7, 300, -4, "nonsense", 5):
        ch.publish(str(rank).encode(), routing_key="q", headers={"rank": rank})
    assert drain(ch) == [b"-4", b"nonsense", b"5", b"7", b"300"]


def test_arguments_are_checked_by_the_kind(ch: RawChannel) -> None:
    for arguments, text in (
        ({"x-queue-type": "last-value"}, "x-key has to name a header"),
        ({"x-queue-type": "last-value", "x-key": "k", "x-max-priority": 3}, "x-max-priority goes not together"),
        ({"x-queue-type": "nobody's"}, "unsupported queue type"),
    ):
        ch.refuse(406, text, "queue.declare", queue="q", arguments=arguments)


def test_a_kind_that_fails_costs_nobody_else_anything() -> None:
    class Broken:
        def level(self, message: kinds.Message | None) -> int:
            raise RuntimeError("level")

        def arrived(self, position: int, message: kinds.Message | None) -> None:
            raise RuntimeError("arrived")

        def returned(self, position: int) -> None:
            raise RuntimeError("returned")

    faces: list[Entries] = []

    def open_broken(entries: Entries) -> Broken:
        faces.append(entries)
        return Broken()

    queue = new_outside(1, 3, None, open_broken)
    assert queue.publish(b"", b"q", HEADER, b"one", 0, 0) and queue.ready_count() == 1
    assert faces[0].levels == 3
    position = faces[0].next_available()
    assert faces[0].message_at(position)[3] == b"one"
    assert faces[0].end(position) and not faces[0].end(position)
    with pytest.raises(KeyError):
        faces[0].message_at(position)
    assert queue.ready_count() == 0 and queue.unacked_count() == 0
    del queue
    assert (faces[0].levels, faces[0].next_available(), faces[0].end(position)) == (0, 0, False)
