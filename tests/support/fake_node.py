"""A node that says what a test writes: one connection at a time, frames as they are, and a link to it on a loop of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from flintmq.cluster.link import Link, NodeAddress
from flintmq.cluster.link_wire import Reader
from flintmq.cluster.node_door import MECHANISM, NodeDoor
from flintmq.config import Limits
from flintmq.protocol.v0_9_1 import spec
from flintmq.protocol.v0_9_1.codec import method_frame
from tests.support.two_nodes import OTHER, OWNER, SECRET

WAIT_S = 10.0


class User:
    """A channel's user that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_answer(self, tag: int, multiple: bool, taken: bool) -> None:
        self.heard.append((tag, multiple, taken))

    def on_message(self, tag: int, redelivered: bool, message: Any) -> None:
        self.heard.append((tag, redelivered, message[3]))

    def on_method(self, method: Any) -> None:
        self.heard.append(method.NAME)

    def on_read(self) -> None:
        self.heard.append("read")

    def on_closed(self, error: Any) -> None:
        self.heard.append((int(error.code), error.text))

    def on_lost(self, reason: str) -> None:
        self.heard.append(("lost", reason))


class FakeNode:
    """The called side. `methods`: what came, by channel number and name."""

    def __init__(self, secret: bytes = SECRET, mechanisms: str = f"PLAIN {MECHANISM}") -> None:
        self.door = NodeDoor(OWNER, secret, None, 100)  # type: ignore[arg-type]
        self.mechanisms = mechanisms
        self.methods: list[tuple[int, Any]] = []
        self.came = asyncio.Event()
        self.writer: asyncio.StreamWriter  # of the last connection
        self.writers: list[asyncio.StreamWriter] = []
        self.server: asyncio.Server
        self.speaks = True

    async def listen(self) -> NodeAddress:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return NodeAddress(OWNER, "127.0.0.1", self.server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.writers.append(writer)
        await reader.readexactly(8)
        if self.speaks:
            self.send(0, spec.ConnectionStart(0, 9, {}, self.mechanisms.encode(), b"en_US"))
        frames = Reader(self, 200_000)
        while data := await reader.read(65_536):
            frames.feed(data)

    def send(self, number: int, method: spec.Method) -> None:
        self.writer.write(method_frame(number, method))

    def on_method(self, number: int, method: Any) -> None:
        if isinstance(method, spec.ConnectionStartOk):
            self.greeting = self.door.greet(method.response)
            self.send(0, spec.ConnectionSecure(self.greeting.challenge))
        elif isinstance(method, spec.ConnectionSecureOk):
            assert self.greeting.is_proved(method.response)
            self.send(0, spec.ConnectionTune(3, 4_096, 60))
        elif isinstance(method, spec.ConnectionOpen):
            self.send(0, spec.ConnectionOpenOk())
        self.methods.append((number, method))
        self.came.set()

    def on_answer(self, number: int, tag: int, multiple: bool, taken: bool) -> None:
        """Acks of the link's consumers are not looked at here."""

    def on_message(self, number: int, tag: int, redelivered: bool, message: Any) -> None:
        """Publishes come as methods, and their contents are passed over."""

    def names(self, number: int) -> list[str]:
        return [method.NAME for at, method in self.methods if at == number]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self.came.clear()
                await asyncio.sleep(0.002)

    async def close(self) -> None:
        self.server.close()
        for writer in self.writers:
            writer.close()
        await asyncio.sleep(0.01)  # the loop closes them in its next turns


def with_node(work: Callable[[FakeNode, Link, list[str]], Awaitable[Any]], node: Callable[[], FakeNode] = FakeNode, **limits: Any) -> Any:
    """Runs `work(node, link, ends)` with a link to a node, not open yet; `ends`: reasons of its end."""

    async def run() -> Any:
        fake, ends = node(), list[str]()
        link = Link(OTHER, await fake.listen(), SECRET, "test", Limits().replace(**limits), ends.append)
        try:
            return await work(fake, link, ends)
        finally:
            link.close()
            await asyncio.sleep(0.01)
            await fake.close()

    return asyncio.run(run())
