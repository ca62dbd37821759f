"""Pulls over HTTP: the wait for the answer, the client that leaves, the answer as JSON.

in: pull requests that are authorized. out: responses.

L1  A pull whose client left is cancelled; what it brings all the same goes back to the queue at once, not flagged.
L2  One thread, the event loop's, takes answers: Answers.fileno is watched by it.
L3  Rights are asked for again when messages are handed over: what a user may no longer do gives the messages back, not flagged. A pull
    that is held ends when they are taken away, its user is deleted, or has another password.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flintmq.admin.answers import answer
from flintmq.admin.http_refusals import HttpError, busy, closing
from flintmq.admin.json_out import Body, Members, Rows
from flintmq.admin.messages import properties_of
from flintmq.admin.parts import Parts
from flintmq.admin.pools import Pools, take
from flintmq.config import Limits
from flintmq.core.shares import Who
from flintmq.errors import PeerError
from flintmq.pulls.requests import BUSY, CLOSED, EMPTY, EXPIRED, FILTERED_EMPTY, MESSAGES, Answers, Pull
from flintmq.vhost.stream_arguments import StreamStart

# bytes of messages from which on an answer has a holding: below, it may leave in one piece
_LARGE = 16 * 1024


class Held:
    """All pulls of the service. For one running event loop."""

    def __init__(self, parts: Parts, limits: Limits, pools: Pools) -> None:
        self._parts = parts
        self._limits = limits
        self._pools = pools
        self._held: dict[asyncio.Future[Exception], Callable[[], None]] = {}  # how each is told, and what asks for its rights
        self._asked = False
        self._answers = Answers()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._answers.fileno(), self._take)
        parts.broker.on_rights_changed.append(self.look)

    def look(self) -> None:
        """Rights changed: those that may hold no longer end. Any thread."""
        if not self._asked:
            self._asked = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._asked = False
        for ended, allowed in list(self._held.items()):
            try:
                allowed()
            except (HttpError, PeerError) as error:
                if not ended.done():
                    ended.set_result(error)

    def _take(self) -> None:
        for pull in self._answers.take():
            waiting: asyncio.Future[Pull] = pull.context
            if waiting.done():  # nobody waits any more
                pull.give_back(False)
            else:
                waiting.set_result(pull)

    async def pull(self, who: Who, request: Request, queue: Any, group: str, encoding: str, **asked: Any) -> Response:
        """One pull of a user, from the question to its response. Args: asked: as `_pull`. Raises: PullRefused, HttpError."""
        with take(self._pools.held, who, "pulls are held"):
            return await self._pull(request, queue, group, encoding, who=who, **asked)

    async def _pull(
        self,
        request: Request,
        queue: Any,
        group: str,
        encoding: str,
        *,
        most: int,
        bytes_max: int,
        visibility_ms: int,
        hold_ms: int,
        allowed: Callable[[], None],
        start: StreamStart | None = None,
        who: Who,
    ) -> Response:
        await self._opened(queue, group, start)
        waiting: asyncio.Future[Pull] = self._loop.create_future()
        pull = self._parts.pulls.pull(
            queue,
            group,
            self._answers,
            waiting,
            most=most,
            bytes_max=bytes_max,
            visibility_ms=visibility_ms,
            hold_ms=hold_ms,
            start=start,
            user=who.user,
        )
        gone = self._loop.create_task(_gone(request))
        self._parts.held += 1
        handed_over = False
        ended: asyncio.Future[Exception] = self._loop.create_future()
        self._held[ended] = allowed
        try:
            await asyncio.wait((waiting, gone, ended), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise HttpError(400, "gone", "the client is gone")
            if ended.done():
                raise ended.result()
            if pull.count:
                allowed()
            response = self._answer(pull, queue, group, encoding, who)
            handed_over = True
            return response
        finally:
            self._parts.held -= 1
            del self._held[ended]
            gone.cancel()
            if not waiting.done():
                waiting.cancel()
                pull.cancel()
            elif not handed_over and not waiting.cancelled():
                pull.give_back(False)

    async def _opened(self, queue: Any, group: str, start: StreamStart | None) -> None:
        """Returns when a pull of the group finds a place: at once, but for the first one of a stream's group, which is noted on disk
        first; the loop goes on meanwhile. Raises: PullRefused; BUSY when the disk takes too long."""
        if self._parts.pulls.is_open(queue, group):
            return
        opened = asyncio.Event()

        def ready() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(opened.set)

        if await asyncio.to_thread(self._parts.pulls.declare_group, queue, group, start, ready):
            return
        try:
            await asyncio.wait_for(opened.wait(), self._limits.pull_place_ms / 1000)
        except TimeoutError:
            raise busy(f"the place of group '{group}' is not on disk yet", "try again") from None

    def _answer(self, pull: Pull, queue: Any, group: str, encoding: str, who: Who) -> Response:
        outcome = pull.outcome
        if outcome in (MESSAGES, EMPTY, FILTERED_EMPTY):
            value: dict[str, Any] = {"vhost": queue.vhost, "queue": queue.name, "group": group}
            value["messages"] = Rows(range(pull.count), partial(self._show, pull, encoding))
            holding = take(self._pools.answers, who, "large answers are on their way", pull.bytes) if pull.bytes > _LARGE else None
            return answer(value, holding=holding, on_gone=partial(pull.give_back, True))
        if outcome == BUSY:
            if pull.loading:
                raise busy("the queue's messages are still being read from disk", "try again")
            raise busy("too many pulls wait, or the group holds too many messages that are not settled", "settle messages, and try again")
        if outcome == EXPIRED:
            raise busy("the pull waited too long for its turn")
        if outcome == CLOSED:
            if self._parts.pulls.stopping:
                raise closing()
            raise HttpError(404, "not_found", f"no queue '{queue.name}' in vhost '{queue.vhost}'", "it was deleted: declare it first")
        raise HttpError(500, "internal", "the pull failed", "see the broker's log")

    def _show(self, pull: Pull, encoding: str, index: int) -> Members:
        return Members(self._members(pull, encoding, index))

    def _members(self, pull: Pull, encoding: str, index: int) -> Iterator[tuple[str, Any]]:
        limits = self._limits
        lease, position, deliveries, redelivered = pull.facts(index)
        message = pull.view(index)
        yield "lease", self._parts.pulls.lease_id(pull, lease)
        yield "position", position
        yield "redelivered", redelivered
        yield "delivery_count", deliveries
        yield "exchange", message.exchange
        yield "routing_key", message.routing_key
        yield "properties", properties_of(message.header, limits.table_depth_max, limits.table_fields_max)
        body = Body(message, encoding)
        yield from body.look()
        yield "body", body
        yield "encoding", body.kind


async def _gone(request: Request) -> None:
    """Returns when the client is gone."""
    with contextlib.suppress(asyncio.CancelledError):
        while (await request.receive())["type"] != "http.disconnect":
            pass
