"""Requests to other nodes (node_answers.py), each on the one channel of a link to its node.

in: names of requests, with head and bytes. out: their answers.

R1  A request is answered once: by the node's answer or refusal, or Unavailable, which comes in time. It may be done all the same.
R2  Nothing is kept of a request that was given up; cluster_requests_max of them are under way to one node.

All of it is of one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from flintmq.broker.routes import REPLY_TO
from flintmq.cluster.link import LinkLost
from flintmq.cluster.link_wire import Message, WireError, publish_frames
from flintmq.cluster.node_answers import EXCHANGE, FOLLOWED, REFUSED, TEXT_MAX, Answer, NodeRefused, header, pack, unpack
from flintmq.engines.engine import Unavailable
from flintmq.errors import PeerError
from flintmq.protocol.v0_9_1 import spec

if TYPE_CHECKING:
    from flintmq.cluster.link import Link, NodeAddress
    from flintmq.cluster.links import Links
    from flintmq.config import Limits
    from flintmq.shared.layout import Owner

# a link of its own: one that publishes is not read while its node is low on memory, and settlements have to come through all the same
PURPOSE = "requests"


class _Asking:
    """The channel of a link for requests, as its user. Args: over: told once that it has ended."""

    def __init__(self, link: Link, limits: Limits, over: Callable[[], object]) -> None:
        self.is_over = False
        self.used_s = 0.0
        self.waiting: dict[int, asyncio.Future[Answer]] = {}
        self._coming: dict[int, list[bytes]] = {}
        self._link = link
        self._limits = limits
        self._over = over
        self._next = 0
        self._number = link.open_channel(self)
        link.send(self._number, spec.BasicConsume(REPLY_TO, "answers", no_ack=True))

    async def ask(self, name: str, body: bytes) -> Answer:
        """Raises: NodeRefused; Unavailable."""
        if len(self.waiting) >= self._limits.cluster_requests_max:
            raise Unavailable("too many requests to another node are under way")
        self._next += 1
        number = self._next
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.waiting[number] = answer
        try:
            message = (EXCHANGE, f"{number} {name}".encode(), header(len(body)), body, 0, 0)
            self._link.write(publish_frames(self._number, message, self._link.frame_max))
            return await answer
        finally:
            self.waiting.pop(number, None)
            self._coming.pop(number, None)
            self.used_s = asyncio.get_running_loop().time()

    def close(self) -> None:
        self._link.close_channel(self._number)
        self._end("this node closed the channel")

    def _end(self, reason: str) -> None:
        if self.is_over:
            return
        self.is_over = True
        for answer in self.waiting.values():
            if not answer.done():
                answer.set_exception(Unavailable(f"node {self._link.to.id.name!r} does not answer: {reason}"))
        self._over()

    # --- the channel ----------------------------------------------------------------------------------------------------

    def on_message(self, tag: int, redelivered: bool, message: Message) -> None:
        key, body = message[1], message[3]
        if not key.isdigit() or not body or body[0] > REFUSED:
            raise WireError("an answer that is none")
        number = int(key)
        answer = self.waiting.get(number)
        if answer is None or answer.done():
            return  # it was given up
        pieces = self._coming.setdefault(number, [])
        pieces.append(body[1:])
        if sum(map(len, pieces)) > self._limits.cluster_answer_bytes_max:
            answer.set_exception(Unavailable("an answer of another node is too large"))
        elif body[0] != FOLLOWED:
            self._answered(answer, b"".join(pieces), body[0] == REFUSED)

    @staticmethod
    def _answered(answer: asyncio.Future[Answer], body: bytes, is_refused: bool) -> None:
        try:
            head, payload = unpack(body)
        except ValueError as error:
            raise WireError(f"an answer that is none: {error}") from None
        if is_refused:
            answer.set_exception(NodeRefused(str(head.get("code")), str(head.get("text"))[:TEXT_MAX]))
        else:
            answer.set_result((head, payload))

    def on_answer(self, tag: int, multiple: bool, taken: bool) -> None:
        """No confirms are asked for."""

    def on_read(self) -> None:
        """The same."""

    def on_method(self, method: Any) -> None:
        """basic.consume-ok."""

    def on_closed(self, error: PeerError) -> None:
        self._end(error.text)

    def on_lost(self, reason: str) -> None:
        self._end(reason)


class NodeRequests:
    """Requests of this node. Args: address_of: where the node is that owns a queue; None: nobody knows."""

    def __init__(self, links: Links, limits: Limits, address_of: Callable[[Owner], NodeAddress | None]) -> None:
        self._links = links
        self._limits = limits
        self._address_of = address_of
        self._channels: dict[NodeAddress, _Asking] = {}

    async def ask(self, owner: Owner, name: str, head: Mapping[str, Any], payload: bytes = b"") -> Answer:
        """The answer of a node. Args: head: a JSON object; payload: with the head, cluster_request_bytes_max at most (ValueError).

        Raises: NodeRefused; Unavailable: it is not known, not reached, or does not answer within cluster_request_ms_max (R1).
        """
        body = pack(head, payload)
        if len(body) > self._limits.cluster_request_bytes_max:
            raise ValueError(f"a request of {len(body)} bytes to another node; {self._limits.cluster_request_bytes_max} are allowed")
        address = self._address_of(owner)
        if address is None:
            raise Unavailable(f"node {owner.node!r} is not among the living ones")
        try:
            async with asyncio.timeout(self._limits.cluster_request_ms_max / 1000):
                return await (await self._channel(address)).ask(name, body)
        except TimeoutError:
            raise Unavailable(f"node {owner.node!r} does not answer") from None
        except (LinkLost, PeerError) as error:
            raise Unavailable(f"node {owner.node!r} is not reached: {error}") from None

    async def _channel(self, address: NodeAddress) -> _Asking:
        known = self._channels.get(address)
        if known is not None:
            return known
        made: asyncio.Future[Link] = asyncio.get_running_loop().create_future()

        def then(link: Link | None, error: LinkLost | None) -> None:
            if made.done():
                return  # the caller has given up
            if link is not None:
                made.set_result(link)
            else:
                made.set_exception(error or LinkLost("it is not reached"))

        self._links.want(address, PURPOSE, then)
        link = await made
        known = self._channels.get(address)  # another request was faster
        if known is None:
            known = self._channels[address] = _Asking(link, self._limits, lambda: self._channels.pop(address, None))
        return known

    def close_idle(self) -> None:
        """Closes channels that nobody has used for cluster_idle_ms, so that their links end (`Links.close_idle`). O(nodes)."""
        before_s = asyncio.get_running_loop().time() - self._limits.cluster_idle_ms / 1000
        for channel in list(self._channels.values()):
            if not channel.waiting and channel.used_s < before_s:
                channel.close()
