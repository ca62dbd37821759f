"""This node among the living ones of its engine, and what it may not do while it does not know that it lives (docs/adr/0015, R7, R11).

in: the engine's answers to signs of life. out: word of nodes that came or went; of a lease that is in doubt, and sure again.

M1  Signs are given four times in a lease, and each is followed by a look at the others. One more comes when one of them has been silent
    for a lease: its queues wait for an owner. After four fifths of one without an accepted sign the lease is in doubt.
M2  A node whose name another process has taken is no member any more.
M3  An engine that is full takes no sign, and no take-over either: a lease in doubt is sure again once the owners were read, so that
    consumers make room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from flintmq.config import Limits
from flintmq.engines.engine import EngineError, Full
from flintmq.shared.nodes import NameTaken, Nodes, Replaced

log = logging.getLogger("flintmq.cluster")

# share of a lease between two signs, at least: several nodes may fall silent one after the other
_PAUSE_MIN = 0.02


class Membership:
    """On the engine's loop. Args: changed: the living nodes are others; doubted: see M1; sure: the engine has taken a sign again."""

    def __init__(
        self,
        nodes: Nodes,
        limits: Limits,
        changed: Callable[[], object],
        doubted: Callable[[], object],
        sure: Callable[[], Coroutine[Any, Any, object]],
    ) -> None:
        self.nodes = nodes
        self.joined = asyncio.Event()
        self.why_not = "the engine was not heard of yet"  # the reason why this node is no member; "": it is
        self._lease_s = limits.shared_node_lease_ms / 1000
        self._pause_s = limits.shared_pause_ms_max / 1000
        self._changed = changed
        self._doubted = doubted
        self._sure = sure
        self.in_doubt = False
        self.on_beat: Callable[[], object] = lambda: None  # before each sign of life: facts are brought up to date
        self.on_look: Callable[[], object] = lambda: None  # the rows of nodes were read
        self.beat_s: float | None = None  # seconds that the last sign took: a commit with one row
        self._soon = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Until it is cancelled, or M2."""
        await self._join()
        self.joined.set()
        self.why_not = ""
        living: dict[str, str] = {}
        while True:
            try:
                async with asyncio.timeout(self._lease_s / 2):
                    self.on_beat()
                    began_s = asyncio.get_running_loop().time()
                    await self.nodes.beat()
                    self.beat_s = asyncio.get_running_loop().time() - began_s
                    await self._accepted()
                    await self.nodes.look()
            except Replaced as error:
                log.error("this node is no member of the cluster any more: %s", error)
                self.why_not = str(error)
                self._doubt()
                return
            except Full as error:
                log.debug("no sign of life: %s", error)
                await self._full()
            except (EngineError, TimeoutError) as error:
                log.debug("no sign of life: %s", error)
            else:
                now = {name: node.life for name, node in self.nodes.living.items()}
                if now != living:
                    self._say(living, now)
                    living = now
                    self._changed()
                self.on_look()
            await self._rest()

    def _say(self, before: dict[str, str], now: dict[str, str]) -> None:
        for name in sorted(before.keys() | now.keys()):
            if name == self.nodes.name or before.get(name) == now.get(name):
                continue
            if name in now:
                log.info("node %r is there%s", name, ", started anew" if name in before else "")
            elif name in self.nodes.known:
                log.warning("node %r gives no sign of life: other nodes take its queues over", name)
            else:
                log.info("node %r has left the cluster", name)

    async def _rest(self) -> None:
        pause_s = max(_PAUSE_MIN * self._lease_s, min(self._lease_s / 4, self.nodes.until_gone_s()))
        try:
            async with asyncio.timeout(pause_s):
                await self._soon.wait()
            self._soon.clear()
        except TimeoutError:
            return

    def hurry(self) -> None:
        """The others are to hear of new facts at once: the next sign is given now."""
        self._soon.set()

    async def _join(self) -> None:
        while True:
            try:
                await self.nodes.join()
                return
            except NameTaken as error:
                if self.why_not != str(error):
                    self.why_not = str(error)
                    log.warning("%s", self.why_not)
                await asyncio.sleep(self._lease_s / 4)
            except EngineError as error:
                log.debug("this node is no member of the cluster yet: %s", error)
                await asyncio.sleep(self._pause_s)

    async def _accepted(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(0.8 * self._lease_s, self._doubt)
        if self.in_doubt:
            await self._sure()
            self.in_doubt = False

    async def _full(self) -> None:
        """M3."""
        if self.in_doubt:
            try:
                async with asyncio.timeout(self._lease_s / 2):
                    await self._accepted()
            except (EngineError, TimeoutError) as error:
                log.debug("the owners of queues can't be read: %s", error)

    def _doubt(self) -> None:
        self.in_doubt = True
        self._doubted()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
