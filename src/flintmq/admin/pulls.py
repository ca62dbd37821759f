"""Pulls over HTTP: the wait for the answer, the client that leaves, the answer as JSON.

in: pull requests that are authorized. out: responses.

L1  A pull whose client left is cancelled; what it brings all the same goes back to the queue at once, not flagged.
L2  One thread, the event loop's, takes answers: Answers.fileno is watched by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flintmq.admin.errors import HttpError, busy, closing
from flintmq.admin.messages import body_of, plain, properties_of
from flintmq.admin.parts import Parts
from flintmq.config import Limits
from flintmq.pulls.requests import BUSY, CLOSED, EMPTY, EXPIRED, FILTERED_EMPTY, MESSAGES, Answers, Pull
from flintmq.vhost.stream_arguments import StreamStart

# bytes of bodies from which on an answer is put together by a thread: the loop has other clients
_LARGE = 128 * 1024


class PullResponse(Response):
    """The answer with messages; when the client is gone before it leaves, they go back."""

    def __init__(self, pull: Pull, content: bytes) -> None:
        super().__init__(content, 200, None, "application/json")
        self._pull = pull

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        except BaseException:
            self._pull.give_back(True)
            raise


class Held:
    """All pulls of the service. For one running event loop."""

    def __init__(self, parts: Parts, limits: Limits) -> None:
        self._parts = parts
        self._limits = limits
        self._of_users: Counter[str] = Counter()  # pulls that are held
        self._answers = Answers()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._answers.fileno(), self._take)

    def _take(self) -> None:
        for pull in self._answers.take():
            waiting: asyncio.Future[Pull] = pull.context
            if waiting.done():  # nobody waits any more
                pull.give_back(False)
            else:
                waiting.set_result(pull)

    async def pull(self, user: str, request: Request, queue: Any, group: str, encoding: str, **asked: Any) -> Response:
        """One pull of a user, from the question to its response. Args: asked: as `_pull`. Raises: PullRefused, HttpError."""
        limits = self._limits
        most = self._parts.broker.quotas.share_of(limits.http_connections_max, limits.http_held_user_share)
        if self._of_users[user] >= most:
            raise busy(f"user '{user}' holds {most} pulls, which is the limit of a user", "wait for one of them")
        self._of_users[user] += 1
        try:
            return await self._pull(request, queue, group, encoding, user=user, **asked)
        finally:
            self._of_users[user] -= 1
            if not self._of_users[user]:
                del self._of_users[user]

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
        start: StreamStart | None = None,
        user: str,
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
            user=user,
        )
        gone = self._loop.create_task(_gone(request))
        self._parts.held += 1
        handed_over = False
        try:
            await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise HttpError(400, "gone", "the client is gone")
            content = await self._content(pull, queue, group, encoding)
            if gone.done():
                raise HttpError(400, "gone", "the client is gone")
            handed_over = True
            return PullResponse(pull, content)
        finally:
            self._parts.held -= 1
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

        if await asyncio.to_thread(self._parts.pulls.open, queue, group, start, ready):
            return
        try:
            await asyncio.wait_for(opened.wait(), self._limits.pull_place_ms / 1000)
        except TimeoutError:
            raise busy(f"the place of group '{group}' is not on disk yet", "try again") from None

    async def _content(self, pull: Pull, queue: Any, group: str, encoding: str) -> bytes:
        outcome = pull.outcome
        if outcome == MESSAGES:
            if pull.bytes > _LARGE:
                return await asyncio.to_thread(self._encode, pull, queue, group, encoding)
            return self._encode(pull, queue, group, encoding)
        if outcome in (EMPTY, FILTERED_EMPTY):
            return self._encode(pull, queue, group, encoding)
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

    def _encode(self, pull: Pull, queue: Any, group: str, encoding: str) -> bytes:
        limits = self._limits
        messages = []
        for lease, position, deliveries, redelivered, exchange, key, header, raw in pull.messages():
            text, kind = body_of(raw, encoding)
            messages.append(
                {
                    "lease": self._parts.pulls.lease_id(pull, lease),
                    "position": position,
                    "redelivered": redelivered,
                    "delivery_count": deliveries,
                    "exchange": plain(exchange),
                    "routing_key": plain(key),
                    "properties": properties_of(header, limits.table_depth_max, limits.table_fields_max),
                    "body": text,
                    "encoding": kind,
                }
            )
        value = {"vhost": queue.vhost, "queue": queue.name, "group": group, "messages": messages}
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"


async def _gone(request: Request) -> None:
    """Returns when the client is gone."""
    with contextlib.suppress(asyncio.CancelledError):
        while (await request.receive())["type"] != "http.disconnect":
            pass
