"""The one answer of JSON: made as it is sent, at the pace at which its client reads it.

in: a value (admin.json_out). out: an ASGI response.

N1  An answer of one piece has its length and leaves at once. A longer one is sent in pieces (chunked), the next one made when the client
    has read: a slow client holds one piece, and the messages of the answer (Limits.http_answers_bytes_max, shared by user and source); all
    of it is in the account of memory. Where there is no room for it, the answer is 503.
N2  When the client is gone nothing more is made, and `on_gone` is told. When the rest can't be made the connection is cut: what arrived is
    no JSON then, and nobody takes it for a whole one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.responses import Response

from flintmq.admin.http_refusals import HttpError, busy
from flintmq.admin.json_out import PIECE, Members, Rows, dumps, steps
from flintmq.admin.pools import CALLER, POOLS, too_many, who_of
from flintmq.core.memory_account import MemoryShare
from flintmq.core.shares import Holding

log = logging.getLogger("flintmq.http")

JSON = "application/json"
# bytes that an answer on its way holds, its buffers included, and those of one item of a list that is not written yet
_PACE = 4 * PIECE
_ITEM = 64


class Answer(Response):
    """See module. Args: value; status; headers; holding: of Pools.answers, for what the value keeps in memory until it is written; given
    back with the answer; kept: bytes of those that are copies, in no account yet; on_gone: called when not all of it leaves."""

    def __init__(
        self,
        value: Any,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        *,
        holding: Holding | None = None,
        kept: int = 0,
        on_gone: Callable[[], object] | None = None,
    ) -> None:
        self.status_code = status
        self.media_type = JSON
        self.background = None
        self._value = value
        self._holding = holding
        self._kept = kept
        self._on_gone = on_gone
        self.init_headers(headers)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self._send(scope, receive, send)
        except asyncio.CancelledError:  # the grace of a stop is over; nothing else cancels an answer
            self._lost()
        except BaseException:
            self._lost()
            raise
        finally:
            if self._holding is not None:
                self._holding.release()

    def _lost(self) -> None:
        if self._on_gone is not None:
            self._on_gone()

    async def _send(self, scope: Any, receive: Any, send: Any) -> None:
        pieces = made(self._value)
        try:
            first = await anext(pieces)
            second = await anext(pieces, None)
        except Exception:
            log.exception("the answer to %s %s can't be made", scope["method"], scope["path"][:200])
            failed = HttpError(500, "internal", "the broker failed", "see the broker's log")
            await self._instead(failed, scope, receive, send)
            return
        if second is None:
            self.headers["content-length"] = str(len(first))
            await self._begin(send)
            await send({"type": "http.response.body", "body": first, "more_body": False})
            return
        if scope["method"] == "HEAD":
            await self._begin(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        pool, who = scope[POOLS].answers, who_of(scope)
        amount = _PACE + _kept(self._value)
        if self._holding is None:
            self._holding = pool.take(who, amount)
        elif not self._holding.grow(_PACE):
            self._holding.release()
            self._holding = None
        if self._holding is None:
            await self._instead(busy(too_many(pool, who, "large answers")), scope, receive, send)
            return
        share = MemoryShare("output")
        amount += self._kept
        share.add(amount)
        gone = asyncio.get_running_loop().create_task(_left(receive))
        try:
            await self._begin(send)
            for piece in (first, second):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await self._rest(pieces, gone, send, scope)
        finally:
            gone.cancel()
            share.add(-amount)

    async def _rest(self, pieces: AsyncIterator[bytes], gone: asyncio.Task[None], send: Any, scope: Any) -> None:
        try:
            caller = scope.get(CALLER)
            async for piece in pieces:
                if gone.done():
                    break
                if caller is not None and not caller.is_current:  # who reads slowly reads no longer than it may
                    log.warning("an answer to user %r is cut: the user is gone, or has another password", caller.user)
                    self._lost()
                    return
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                await asyncio.sleep(0)
        except Exception:  # N2: uvicorn cuts a connection whose answer is not complete
            log.exception("the rest of the answer to %s can't be made", scope["path"][:200])
            return
        if gone.done():
            self._lost()
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

    async def _instead(self, refused: HttpError, scope: Any, receive: Any, send: Any) -> None:
        """Nothing has left."""
        self._lost()
        await answer(refused.body, refused.status, refused.headers)(scope, receive, send)


async def _left(receive: Any) -> None:
    """Returns when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _kept(value: Any) -> int:
    """Bytes of the references that the lists of a value keep until they are written."""
    if isinstance(value, Rows | Members):
        return _ITEM * len(getattr(value, "items", ()))
    return sum(_ITEM * len(one.items) for one in value.values() if isinstance(one, Rows)) if isinstance(value, dict) else 0


async def made(value: Any) -> AsyncIterator[bytes]:
    """The pieces of the JSON of a value; others have their turns while one is made, and are to have one behind each."""
    writing = steps(value)
    sent: Any = None
    while True:
        try:
            step = writing.send(sent)
        except StopIteration:
            return
        sent = None
        if isinstance(step, str):
            if step:
                yield step.encode("ascii")
            else:
                await asyncio.sleep(0)
        else:
            sent = await step


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None, **facts: Any) -> Response:
    """A response of JSON. Args: facts: of Answer."""
    return Answer(value, status, headers, **facts)


def small(value: Any) -> bytes:
    """The JSON of a value that is small by its kind: for events, and for refusals before there is a request."""
    return dumps(value).encode("ascii")
