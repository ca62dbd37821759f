"""A shovel: messages of a queue, or of an exchange, of one broker to another, until it is stopped or has moved what it should.

in: a plan (moves.shovels.plan), connections by `dial`. out: moved messages, reports of its state.

S1  on-confirm: a message is acked when the destination confirmed it, so none is lost; what was not acked when a connection ends
    comes again.
S2  Messages are published in the order in which they came, on one channel.
S3  A destination that refuses a message (nack, return), or can't take it, ends the connections: the messages go back to their places, and
    the shovel tries again after its pause. It does not go round in a loop.
S4  `delete-after`: exactly so many messages are published; what came beyond goes back. The count outlives reconnections.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from flintmq.config import Limits
from flintmq.moves.uri import UriError, parse, shown
from flintmq.protocol.v0_9_1 import spec
from flintmq.shovel.dial import Grant, connect
from flintmq.shovel.headers import Change, shovelled
from flintmq.shovel.mover import SETTLE_CONFIRMED, SETTLE_NEVER, SETTLE_PUBLISHED, Mover
from flintmq.shovel.peer import ChannelClosed, LinkFailure, Peer

log = logging.getLogger("flintmq.shovel")

STARTING, RUNNING, TERMINATED = "starting", "running", "terminated"
MODES = {"no-ack": SETTLE_NEVER, "on-publish": SETTLE_PUBLISHED, "on-confirm": SETTLE_CONFIRMED}

# (side, whether it is this node) -> what the broker allows
Ask = Callable[[str, bool], Awaitable[Grant]]
Report = Callable[[Mapping[str, Any]], object]


class Shovel:
    """One life of a shovel. Args: name: of its connections; plan; ask; report: of each change of state; limits."""

    def __init__(self, name: str, plan: Mapping[str, Any], ask: Ask, report: Report, limits: Limits) -> None:
        self.name = name
        self.plan = plan
        self.limits = limits
        self._ask = ask
        self._report = report
        self._left: int | None = None
        self._moved = 0
        self._mover: Mover | None = None
        self._dest: Peer | None = None
        # the virtual host, and the URI without secrets, of the source that is connected
        self.source_vhost = "/"
        self.source_uri = ""
        # it is stopped because nobody wants it any more, and not because the broker stops
        self.unwanted = False

    def obey(self, message: Mapping[str, Any]) -> None:
        """What the broker tells a running link: nothing, to a shovel."""

    @property
    def moved(self) -> int:
        """Messages that were moved since the shovel began."""
        return self._moved + (0 if self._mover is None else self._mover.moved)

    @property
    def blocked(self) -> str:
        """Why the destination takes nothing now."""
        return "" if self._dest is None else self._dest.blocked

    async def run(self) -> bool:
        """True: it has moved what it should. False: it may not try again (reconnect-delay 0)."""
        pause_s = self.plan["reconnect-s"]
        while True:
            self._report({"state": STARTING})
            before = self.moved
            try:
                await self._life()
                return True
            except LinkFailure as error:
                reason = str(error)
            except Exception as error:
                log.exception("%s: failed", self.name)
                reason = f"internal error: {type(error).__name__}"
            log.warning("%s: %s", self.name, reason)
            self._report({"state": TERMINATED, "reason": reason})
            if not self.plan["reconnect-s"]:
                return False
            if self.moved > before:
                pause_s = self.plan["reconnect-s"]
            await asyncio.sleep(pause_s)
            pause_s = max(self.plan["reconnect-s"], min(2 * pause_s, self.limits.shovel_pause_s_max))

    # --- one pair of connections ------------------------------------------------------------------------------------------

    async def _life(self) -> None:
        """Ends when all is moved. Raises: LinkFailure."""
        async with contextlib.AsyncExitStack() as stack:
            dest, dest_uri = await self._connect("destination", self.plan["dest-uris"], self.limits.shovel_frame_max)
            stack.push_async_callback(dest.close)
            source, source_uri = await self._connect("source", self.plan["src-uris"], self.limits.shovel_frame_max)
            stack.push_async_callback(source.close)
            stack.push_async_callback(self._leave, source)
            self.source_uri = source_uri
            await self._prepare_destination(dest)
            queue = await self._prepare_source(source)
            mover = self._new_mover(source, dest, source_uri, dest_uri)
            self._mover, self._dest = mover, dest
            try:
                if self._left != 0:
                    await self._move(source, dest, mover, queue, {"src_uri": source_uri, "dest_uri": dest_uri})
            finally:
                # What the destination has is settled, whatever ended the link; the rest goes back to its place.
                if not source.lost.done():
                    source.send(mover.acks(True))
                self._moved += mover.moved
                if self._left is not None and self._left > 0:
                    self._left = max(0, self._left - mover.moved)
                self._mover = self._dest = None

    async def _connect(self, side: str, uris: list[str], frame_max: int) -> tuple[Peer, str]:
        """The first broker of the list that can be had, and its URI without secrets."""
        why = "no URI"
        for text in uris:
            try:
                uri = parse(text, self.plan.get("vhost", "/"))
                if side == "source":
                    self.source_vhost = uri.vhost
                grant = await self._ask(side, uri.host is None)
                return await connect(side, self.name, uri, grant, self.limits, frame_max), shown(text)
            except UriError as error:
                why = f"{side}: not a valid URI: {error}"
            except LinkFailure as error:
                why = str(error)
        raise LinkFailure(why)

    async def _prepare_destination(self, dest: Peer) -> None:
        plan = self.plan
        if plan["dest-queue"] is not None:
            await ensure_queue(dest, plan["dest-queue"], plan["dest-queue-args"], plan["dest-predeclared"])
        if plan["ack-mode"] == "on-confirm":
            await dest.call(spec.ConfirmSelect(), spec.ConfirmSelectOk)

    async def _prepare_source(self, source: Peer) -> str:
        """The queue's name, declared."""
        plan = self.plan
        count: int | None = None
        if plan["src-queue"] is not None:
            queue = plan["src-queue"]
            count = await ensure_queue(source, queue, plan["src-queue-args"], plan["src-predeclared"])
        else:
            declared = await source.call(spec.QueueDeclare("", exclusive=True), spec.QueueDeclareOk)
            queue = declared.queue
            await source.call(spec.QueueBind(queue, plan["src-exchange"], plan["src-exchange-key"]), spec.QueueBindOk)
        after = plan["delete-after"]
        if self._left is None and after != "never":
            self._left = (count or 0) if after == "queue-length" else int(after)
        if plan["ack-mode"] != "no-ack":
            await source.call(spec.BasicQos(0, self._prefetch(), False), spec.BasicQosOk)
        return str(queue)

    def _prefetch(self) -> int:
        """0, any number, is the most that AMQP can say: what is under way needs a limit."""
        return int(self.plan["prefetch"]) or 65_535

    def _new_mover(self, source: Peer, dest: Peer, source_uri: str, dest_uri: str) -> Mover:
        plan = self.plan
        exchange, key, mandatory = plan["dest-exchange"], plan["dest-exchange-key"], False
        if plan["dest-queue"] is not None:
            exchange, key, mandatory = "", plan["dest-queue"], True
        return Mover(
            MODES[plan["ack-mode"]],
            None if exchange is None else exchange.encode(),
            None if key is None else key.encode(),
            mandatory=mandatory,
            messages_left=-1 if self._left is None else self._left,
            window=self._prefetch() if plan["ack-mode"] == "on-confirm" else 1,
            change=self._change(source_uri, dest_uri),
            source_frame_max=source.frame_max,
            frame_max=dest.frame_max,
        )

    def _change(self, source_uri: str, dest_uri: str) -> Change | None:
        forward = self.plan["forward-headers"]
        if forward is not None:
            names = ("shovelled-by", "shovel-type", "shovel-name", "shovel-vhost")
            own = {name: forward[name] for name in names}
            rest = {name: value for name, value in forward.items() if name not in names}
            forward = own | {"src-uri": source_uri, "dest-uri": dest_uri} | rest
        return shovelled(forward, self.plan["timestamp-header"], self.plan["properties"])

    async def _move(self, source: Peer, dest: Peer, mover: Mover, queue: str, uris: Mapping[str, str]) -> None:
        """Until all is moved. Raises: LinkFailure."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def came() -> None:
            dest.send(mover.take())
            self._settle(source, mover)
            if mover.finished and not done.done():
                done.set_result(None)

        def confirmed() -> None:
            self._settle(source, mover)
            if mover.refused:
                dest.fail("the broker refused a message (basic.nack): a queue of its route is full, or could not take it")
            elif mover.finished and not done.done():
                done.set_result(None)
            elif source_is_held[0] and not mover.full:
                source_is_held[0] = False
                source.pause("full", False)
                source.read_on()

        source_is_held = [False]

        def is_full() -> bool:
            source_is_held[0] = mover.full
            return mover.full

        source.intake, source.is_full, source.after = mover.deliveries, is_full, came
        dest.intake, dest.after = mover.confirms, confirmed
        dest.on_flow = lambda held: source.pause("destination", held)
        await self._consume(source, queue)
        self._report({"state": RUNNING, **uris})
        await asyncio.wait([done, source.lost, dest.lost], return_when=asyncio.FIRST_COMPLETED)
        for peer in (dest, source):
            if peer.lost.done() and not done.done():
                peer.lost.result()

    async def _consume(self, source: Peer, queue: str) -> None:
        consume = spec.BasicConsume(queue, no_ack=self.plan["ack-mode"] == "no-ack", arguments=self.plan.get("src-consumer-args", {}))
        await source.call(consume, spec.BasicConsumeOk)

    def _settle(self, source: Peer, mover: Mover) -> None:
        """Acks what is done."""
        source.send(mover.acks())

    async def _leave(self, source: Peer) -> None:
        """Before the source's connection closes."""


async def ensure_queue(
    peer: Peer, name: str, arguments: Mapping[str, Any], predeclared: bool, *, durable: bool = True, auto_delete: bool = False
) -> int:
    """A queue, made when it is not there (unless it must be). Returns the messages in it. Raises: LinkFailure."""
    try:
        return int((await peer.call(spec.QueueDeclare(name, passive=True), spec.QueueDeclareOk)).message_count)
    except ChannelClosed as error:
        if error.code != 404 or predeclared:
            raise LinkFailure(f"{peer.side}: {error}") from None
    declare = spec.QueueDeclare(name, durable=durable, auto_delete=auto_delete, arguments=dict(arguments))
    try:
        return int((await peer.call(declare, spec.QueueDeclareOk)).message_count)
    except ChannelClosed as error:
        raise LinkFailure(f"{peer.side}: {error}") from None
