"""Takes messages of a queue for RabbitMQ's `get`.

in: an authorized queue, how many, what becomes of them. out: an answer with the messages.

M1  A get holds messages for the broker, reads them, from disk where they are cold, and settles them in threads, some at a time: no I/O loop
    waits, no consumer appears at the queue, and between two slices other requests have the threads. A message to be requeued is back in its
    place, flagged redelivered, before the answer, whatever ends the get. A crash after it finds that they were shown.
M2  An answer has Limits.http_get_messages_max messages and Limits.pull_bytes_max bytes of them (bodies, headers, routes), or one message;
    when it ends before its count while there are more, the header X-FlintMQ-Cut says why. What it keeps is held from Pools.answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.responses import Response

from flintmq.admin.answers import answer
from flintmq.admin.api_call import waited
from flintmq.admin.browse import Source
from flintmq.admin.http_refusals import busy
from flintmq.admin.json_out import Rows
from flintmq.admin.messages import Part, kept_of
from flintmq.admin.pools import take
from flintmq.core.content_view import ContentView
from flintmq.core.shares import Holding
from flintmq.guard import guarded
from flintmq.ports import DequeueReason
from flintmq.vhost.dead_letter import REJECTED

# of an answer whose count is not reached
CUT = "x-flintmq-cut"
# messages of one slice, and bytes after which one ends
_SLICE, _SLICE_BYTES = 500, 1024 * 1024
# bytes that are held before it is known how many are needed; bytes of a message's objects
_FIRST, _EACH = 64 * 1024, 500

# a message, whether it was delivered before, messages that are ready behind it
Row = tuple[Part | ContentView, bool, int]


async def _whole(work: Callable[..., None], *arguments: Any) -> None:
    """Runs work in a thread; who is cancelled meanwhile ends when the work has."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise


class Getting:
    """One get. Args: broker; queue; count: messages that are asked for; requeue: they go back; most: bytes of a body that are shown, None:
    all; reject: with dead letters, when they do not go back; few: bytes of messages, which no first one passes, None: see M2."""

    def __init__(self, broker: Any, queue: Any, count: int, requeue: bool, reject: bool, most: int | None, few: int | None = None) -> None:
        self._broker, self._queue, self._core = broker, queue, queue.core
        self._source = Source(broker, queue)
        self._count, self._requeue, self._reject, self._most = count, requeue, reject, most
        self._few = few
        self._found: list[tuple[Part | ContentView, bool]] = []
        self._held: list[int] = []
        self._position = 0
        self._size = 0
        self._copied = 0
        self._cut = ""
        self._ended = False
        self._marked = 0

    async def answer(self, call: Any, show: Callable[[Row], Any]) -> Response:
        """Raises: HttpError 503."""
        holding = take(call.pools.answers, call.who, "large answers are on their way", _FIRST)
        try:
            try:
                while not self._ended:
                    await _whole(self._slice, holding)
            finally:  # also when the request is cancelled
                while self._held:
                    await _whole(self._settle_some)
            if self._cut and not self._found:
                raise busy(self._cut)
            log = self._broker.log
            if self._marked and log is not None:
                await waited(lambda done: log.when_durable(self._marked, partial(done, None, None)))
            headers = {CUT: self._cut} if self._cut else None
            return answer(Rows(self._rows(), show), 200, headers, holding=holding, kept=self._copied)
        except BaseException:
            holding.release()
            raise

    def _slice(self, holding: Holding) -> None:
        """A message that can't be read stays where it is, and is passed over."""
        core, taken, until = self._core, 0, self._size + _SLICE_BYTES
        while taken < _SLICE and self._size < until and not self._ended:
            self._position = core.next_available(self._position)
            if not self._position or len(self._found) >= self._count:
                self._ended = True
                return
            if core.hold(self._position):
                taken += 1
                self._held.append(self._position)
                self._marked = max(self._marked, core.show(self._position))
                self._one(self._position, holding)
            self._position += 1

    def _one(self, position: int, holding: Holding) -> None:
        facts = self._core.entry_facts(position)
        message = self._source.message(position)
        if message is None:
            self._core.release_held(self._held.pop())
            self._broker.counters.drop("unreadable_content")
            return
        self._cut = self._too_much(message.size, holding)
        if self._cut:
            self._core.release_held(self._held.pop())
            self._ended = True
            return
        self._size += message.size
        kept = kept_of(message, self._most)
        if kept is not message:
            self._copied += message.size
        self._found.append((kept, bool(facts and facts[1])))

    def _too_much(self, extra: int, holding: Holding) -> str:
        """M2. Why a message is one too many for the answer; "": it is not. Its bytes are the holding's then."""
        limits, count, size = self._broker.limits, len(self._found), self._size + extra
        if count >= limits.http_get_messages_max:
            return f"{limits.http_get_messages_max} messages are the most of one answer: get the rest with the next"
        if self._few is not None and size > self._few:
            return f"{self._few} bytes of messages are the most that a node gets of another one: ask the queue's owner for a larger one"
        if count and size > limits.pull_bytes_max:
            return f"{limits.pull_bytes_max} bytes of messages are the most of one answer: get the rest with the next"
        needed = size + _EACH * (count + 1)
        if needed > holding.amount and not holding.grow(needed - holding.amount):
            return "too many large answers are on their way: read them, and try again"
        return ""

    def _settle_some(self) -> None:
        for position in self._held[:_SLICE]:
            guarded("messages that were got", f"queue {self._queue.name!r}", self._settle, position)
        del self._held[:_SLICE]

    def _settle(self, position: int) -> None:
        core, queue, broker = self._core, self._queue, self._broker
        if self._requeue:
            core.release_held(position, True)
            return
        if self._reject and queue.policy.keeps_letters:
            broker.letters.bury(queue, position, REJECTED)
            return
        if self._reject and queue.policy.dead_letter_exchange is not None:
            broker.dead_letters.publish_at(queue, position, REJECTED)
        core.settle_held(position, DequeueReason.REJECT if self._reject else DequeueReason.ACK, False)

    def _rows(self) -> list[Row]:
        ready, messages = self._core.ready_count(), self._found
        first = ready - 1 if self._requeue else ready + len(messages) - 1
        return [(message, redelivered, first - number) for number, (message, redelivered) in enumerate(messages)]
