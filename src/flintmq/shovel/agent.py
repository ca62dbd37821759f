"""The process's end of the channel to the broker: starts and stops links, asks for what they may reach, reports their states.

in: messages of the broker (docs/SHOVEL.md has the table). out: links as tasks; reports.

G1  When the broker is gone the process ends: a link without a broker has nobody who could stop it.
G2  A link that fails ends alone.
G3  Links wait for names of their own user, not for those of others (Names).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Mapping
from functools import partial
from typing import Any

from flintmq.config import Limits
from flintmq.moves.control import ControlError, Decoder, encode
from flintmq.shovel.dial import Grant
from flintmq.shovel.federation import ExchangeLink, QueueLink
from flintmq.shovel.names import Names
from flintmq.shovel.peer import LinkFailure
from flintmq.shovel.shovel import Shovel

log = logging.getLogger("flintmq.shovel")

KINDS: dict[str, type[Shovel]] = {"shovel": Shovel, "exchange": ExchangeLink, "queue": QueueLink}
_READ = 65_536
# descriptors that one message brings at most, and that wait for theirs
_DESCRIPTORS = 64


class Agent:
    """Args: channel: the socket to the broker, owned; limits."""

    def __init__(self, channel: socket.socket, limits: Limits) -> None:
        self._channel = channel
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._decoder = Decoder()
        self._descriptors: list[int] = []
        self._out = bytearray()
        self._links: dict[int, tuple[Shovel, asyncio.Task[None]]] = {}
        self._names = Names(limits.shovel_names_max, limits.shovel_names_user_max)
        self._asked: dict[int, tuple[str, asyncio.Future[Grant]]] = {}
        self._numbers = itertools.count(1)
        self._reported: dict[int, tuple[int, str]] = {}
        self.ended: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        """Until the broker is gone (G1)."""
        self._channel.setblocking(False)
        self._loop.add_reader(self._channel, self._readable)
        while not self.ended.done():
            await asyncio.wait([self.ended], timeout=self._limits.shovel_look_ms / 1000)
            self._count()
        # What the destinations have is settled, so that less comes twice.
        tasks = [task for _, task in self._links.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self._limits.shovel_close_ms / 1000)

    # --- the channel ------------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        try:
            data, descriptors, flags, _ = socket.recv_fds(self._channel, _READ, _DESCRIPTORS)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, descriptors, flags = b"", [], 0
        self._descriptors += descriptors
        if not data or flags & socket.MSG_CTRUNC or len(self._descriptors) > _DESCRIPTORS:
            self.end()
            return
        try:
            for message in self._decoder.feed(data):
                self._obey(message)
        except (ControlError, KeyError, TypeError, IndexError) as error:
            log.error("the broker's message can't be read: %s", error)
            self.end()

    def end(self) -> None:
        """Nothing more is read: `run` goes on to its end."""
        self._loop.remove_reader(self._channel)
        if not self.ended.done():
            self.ended.set_result(None)

    def _send(self, message: dict[str, Any]) -> None:
        if self.ended.done():
            return
        was_empty = not self._out
        self._out += encode(message)
        if was_empty:
            self._flush()

    def _flush(self) -> None:
        try:
            sent = self._channel.send(self._out)
            del self._out[:sent]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._out.clear()
            self.end()
        if self._out:
            self._loop.add_writer(self._channel, self._flush)
        else:
            self._loop.remove_writer(self._channel)

    def _obey(self, message: dict[str, Any]) -> None:
        verb = message["op"]
        if verb == "limits":
            self._limits = Limits(**message["limits"])
            self._names = Names(self._limits.shovel_names_max, self._limits.shovel_names_user_max)
        elif verb == "start":
            self._start(message["link"], message["name"], message["owner"], message["plan"])
        elif verb == "stop":
            link = self._links.get(message["link"])
            if link is not None:
                link[0].unwanted = bool(message.get("unwanted"))
                link[1].cancel()
        elif verb == "tell":
            link = self._links.get(message["link"])
            if link is not None:
                link[0].obey(message)
        elif verb in ("grant", "refuse"):
            self._answered(message)
        else:
            raise ControlError(f"unknown verb {verb!r}")

    def _answered(self, message: dict[str, Any]) -> None:
        owner, future = self._asked.pop(message["number"], ("", None))
        sock = socket.socket(fileno=self._descriptors.pop(0)) if message.get("fd") else None
        if future is None or future.done():
            if sock is not None:
                sock.close()
            return
        if message["op"] == "refuse":
            future.set_exception(LinkFailure(message["text"]))
            return
        if sock is not None:
            sock.set_inheritable(False)
            sock.setblocking(False)
        hosts = message.get("hosts")
        future.set_result(Grant(partial(self._names.addresses, owner), None if hosts is None else tuple(hosts), sock))

    # --- links ------------------------------------------------------------------------------------------------------------

    def _start(self, number: int, name: str, owner: str, plan: Mapping[str, Any]) -> None:
        async def ask(side: str, local: bool) -> Grant:
            return await self._ask(number, owner, side, local)

        def report(change: Mapping[str, Any]) -> None:
            self._send({"op": "state", "link": number, "moved": shovel.moved, **change})

        shovel = KINDS[plan.get("kind", "shovel")](name, plan, ask, report, self._limits)
        task = self._loop.create_task(self._run(number, shovel))
        self._links[number] = shovel, task

    async def _run(self, number: int, shovel: Shovel) -> None:
        """G2."""
        finished = False
        try:
            finished = await shovel.run()
        except asyncio.CancelledError:
            log.info("%s: stopped", shovel.name)
        except Exception:
            log.exception("%s: failed", shovel.name)
        self._reported.pop(number, None)
        self._links.pop(number, None)
        self._send({"op": "ended", "link": number, "finished": finished, "moved": shovel.moved})

    async def _ask(self, link: int, owner: str, side: str, local: bool) -> Grant:
        number = next(self._numbers)
        future: asyncio.Future[Grant] = self._loop.create_future()
        self._asked[number] = owner, future
        self._send({"op": "ask", "link": link, "number": number, "side": side, "local": local})
        try:
            return await asyncio.wait_for(future, self._limits.shovel_answer_ms / 1000)
        except TimeoutError:
            raise LinkFailure(f"{side}: the broker was busy") from None
        finally:
            self._asked.pop(number, None)

    def _count(self) -> None:
        """What changed since the last look: counters, and who is blocked."""
        for number, (shovel, _) in list(self._links.items()):
            figures = shovel.moved, shovel.blocked
            if self._reported.get(number) != figures:
                self._reported[number] = figures
                self._send({"op": "count", "link": number, "moved": figures[0], "blocked": figures[1]})
