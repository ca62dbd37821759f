"""Dead letters: a message that died in a queue is published to the queue's dead-letter exchange.

in: a message, its queue, the reason. out: letters on the queues of their routes.

Most letters are made by compiled code (channel/letters.py). This is for the first one after a change, and for what that leaves out: CC
without a dead-letter routing key, exchanges whose routes depend on headers, streams, shared queues, bodies that are large or on disk.

D1  A letter that nothing can be made of (its properties can't be read, its route leads nowhere) is counted and dropped: that is its
    publisher's doing, and the consumer or the housekeeping that runs into it must not pay for it.
D2  What the node itself lacks (disk, memory) is raised: the original stays.
D3  Letters fill queues, whose heads die in turn: `on_placed` looks after each queue that got one (queue_limits).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.broker.state import Message, NodeState
from flintmq.channel.letters import LetterWork, has_address, set_address
from flintmq.core.content import CONTENT_HEADERS, CONTENT_PERSISTENT, CONTENT_PRIORITY
from flintmq.errors import PeerError, StoreError
from flintmq.guard import caught
from flintmq.ports import DequeueReason
from flintmq.protocol.v0_9_1.codec import decode_properties
from flintmq.protocol.v0_9_1.death import letter_header
from flintmq.routing.message import Content, MessageHeaders
from flintmq.slotted import slotted
from flintmq.vhost.arguments import DROPPING
from flintmq.vhost.dead_letter import Deaths, without_cycles

if TYPE_CHECKING:
    from flintmq.channel.transaction import Transaction

log = logging.getLogger("flintmq.publishing")

SHORTSTR_MAX = 255
# key of Counters.in_python
LETTER = "dead_letter"
# reason of a drop: a letter that a full queue refused (channel/connection.DROP_NAMES)
LETTER_REFUSED = "dead_letter_refused"
# delivery mode
PERSISTENT = 2
# Bounds of decoding a dead letter's headers for a headers exchange: they were within the limits of a publish before they grew.
LETTER_DEPTH_MAX = 256
LETTER_FIELDS_MAX = 2**20
# a held entry that ends with its letter: core, position, its holder (a consumer id, 0 the broker), DequeueReason, wall clock of its
# delivery in microseconds (0 unknown)
Original = tuple[Any, int, int, int, int]
# the answer of publish_to_all for a letter without a target: no queue has this id
NO_ROUTE = 0
# the answer of `take` for a message that can't be read
UNREADABLE = object()


class Attempt:
    """An attempt to give a letter to all its targets. done: ids of those that have it."""

    __slots__ = ("done",)

    def __init__(self, done: set[int] | None = None) -> None:
        self.done: set[int] = set() if done is None else done

    def waits(self, target: int) -> bool:
        """Whether the letter has to stay behind others that wait for that target."""
        return False

    def taken(self, target: int) -> None:
        """A shared queue has the letter for good. Any thread."""


@slotted(frozen=True)
class Letter:
    """A dead letter, ready to be put on queues. exchange, routing_keys[0]: as it is published."""

    exchange: bytes
    routing_keys: tuple[bytes, ...]
    deaths: Deaths
    header: bytes
    body: bytes
    flags: int
    priority: int

    @property
    def message(self) -> Message:
        return self.exchange, self.routing_keys[0], self.header, self.body, self.flags, self.priority


def _letter_headers(letter: Letter) -> MessageHeaders:
    """Raises: PeerError when they can't be read."""

    properties = decode_properties(letter.header, LETTER_DEPTH_MAX, LETTER_FIELDS_MAX)[1]

    def content() -> tuple[bytes, bytes, bytes, bytes]:
        return letter.exchange, letter.routing_keys[0], letter.header, letter.body

    table = properties["headers"]
    assert isinstance(table, dict)  # x-death is in it
    return MessageHeaders(table, lambda: properties, content)


def is_full(queue: Any, letter: Letter) -> bool:
    """Whether a queue (not a shared one) refuses a letter because of its limit."""
    return queue.policy.overflow not in DROPPING and bool(queue.core.refuses(len(letter.body)))


class DeadLetters:
    """Any thread. Attributes: on_placed: called with each queue that got a letter outside of a transaction."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self.on_placed: Callable[[Any], object] = lambda queue: None
        self._work = LetterWork(state.counters, self._filled)

    def _filled(self, queue_id: int) -> None:
        queue = self._state.queues.get(queue_id)
        if queue is not None:
            self.on_placed(queue)

    def expire(self, queue: Any, now_ms: int, most: int) -> tuple[int, int]:
        """Dead-letters messages whose time is over (now_ms: wall clock), `most` at most. Returns (how many; the position of the next one,
        which is held and which `bury` or `publish_and_end` ends, 0: there is none)."""
        return self._work.expire(queue.core, now_ms, most)

    def make_room(self, queue: Any, most: int) -> tuple[int, int]:
        """Dead-letters what a queue is over its limit for, as `expire`."""
        return self._work.make_room(queue.core, most)

    def publish_and_end(self, queue: Any, position: int, reason: str, end: DequeueReason) -> bool:
        """The letter of an entry that the broker holds, and the entry's end. False: it can't be read, and stays, out of the way. Raises:
        StoreError, MemoryError: it is back in its place."""
        letter = partial(self.publish, queue, reason=reason, original=(queue.core, position, 0, end, 0))
        return self.take(queue, queue.core.end_held, position, end, letter) is not UNREADABLE

    def publish_at(self, queue: Any, position: int, reason: str) -> None:
        """`publish` of an entry that the broker holds, and rejects. Raises: KeyError, StoreError: it can't be read."""
        end = DequeueReason.REJECT
        if not self._work.send(queue.core, position, reason, end):
            self.publish(queue, queue.core.message_at(position), reason, original=(queue.core, position, 0, end, 0))

    def sent_surely(self, queue: Any, position: int, reason: str, end: DequeueReason) -> bool:
        """Whether all targets of an entry that the broker holds have its letter: none of them had to be asked."""
        return queue.policy.keeps_letters and self._work.send(queue.core, position, reason, end)

    def _learn(self, queue: Any, key: bytes) -> None:
        """The next letters of the queue need no Python, if all goes well. Args: key: routing key of the present one."""
        policy = queue.policy
        own_key = policy.dead_letter_routing_key
        if policy.is_elsewhere or queue.deleted or (own_key is not None and len(own_key) > SHORTSTR_MAX):
            return
        vhost = self._state.vhosts.get(queue.vhost)
        if vhost is None:
            return
        try:
            cache = self._state.routes.learn(vhost, policy.dead_letter_exchange, key)
        except PeerError:
            return  # the exchange went just now, or its bindings are too many to look at
        if has_address(queue.core, cache):
            return
        set_address(queue.core, cache, queue.name.encode("utf-8", "surrogateescape"), own_key, policy.keeps_letters)
        if queue.policy is not policy:  # it changed meanwhile, and what this one says was put behind that
            queue.core.forget_letters()

    def publish(
        self, queue: Any, message: Content, reason: str, transaction: Transaction | None = None, original: Original | None = None
    ) -> int:
        """Publishes a message that died in `queue` to its dead-letter exchange. The caller dequeues the original afterwards.

        Args: reason: rejected, expired, maxlen, delivery_limit; transaction: publish as a part of it: the letter is seen when the
        transaction takes effect; original: the entry, whose end the log gets with the letter's last place.
        What becomes of it is counted here, as a letter or a drop (broker.counters.C1).
        Returns: queues it was put on; 0 when the queue has no dead-letter exchange, the exchange is gone, the message went in a circle, or
        nothing can be made of it (D1).
        Raises: StoreError, MemoryError (D2).
        """
        counters = self._state.counters
        if queue.policy.dead_letter_exchange is None:
            counters.drop(reason)
            return 0
        counters.in_python[LETTER] += 1
        if not self.has_exchange(queue):
            counters.drop_homeless(reason)
            return 0
        letter, targets, cyclic = self.addressed(queue, message, reason)
        if letter is None:
            return 0
        if cyclic:
            counters.drop("dead_letter_cycle", cyclic)
        counters.dead_letter(reason)
        self._learn(queue, letter.routing_keys[0])
        last = len(targets) - 1
        return sum(self._place(target, letter, transaction, original if number == last else None) for number, target in enumerate(targets))

    def publish_to_all(
        self,
        queue: Any,
        message: Content,
        reason: str,
        attempt: Attempt,
        transaction: Transaction | None = None,
        original: Original | None = None,
    ) -> int | None:
        """x-dead-letter-strategy at-least-once: publishes a message that died to those targets that do not have it yet
        (`attempt.done`, which grows).

        Returns: None when the original may end: all its targets have the letter, or nothing can be made of it. Else what it waits for:
        NO_ROUTE: the exchange is not there, it leads nowhere or only round in a circle; or the id of the first target that refuses it.
        Raises: StoreError, MemoryError (D2).
        """
        self._state.counters.in_python[LETTER] += 1
        if not self.has_exchange(queue):
            return NO_ROUTE
        letter, targets, cyclic = self.addressed(queue, message, reason)
        if letter is None:
            return None
        if not targets:
            return NO_ROUTE
        self._learn(queue, letter.routing_keys[0])
        refuses = None
        for target in targets:
            number = target.queue_id
            if target.policy.is_shared:
                placed = self._place_surely(target, letter.message, self.expires_on(target.core), attempt)
            else:
                ends = original if target is targets[-1] and refuses is None else None
                placed = number in attempt.done or (
                    not attempt.waits(number) and not is_full(target, letter) and self._place(target, letter, transaction, ends) > 0
                )
                if placed:
                    attempt.done.add(number)
            if not placed and refuses is None:
                refuses = number
        if refuses is None:
            self._state.counters.dead_letter(reason)
            if cyclic:
                self._state.counters.drop("dead_letter_cycle", cyclic)
        return refuses

    def has_exchange(self, queue: Any) -> bool:
        """Whether the dead-letter exchange of a queue exists."""
        vhost = self._state.vhosts.get(queue.vhost)
        return vhost is not None and queue.policy.dead_letter_exchange in vhost.exchanges

    def addressed(self, queue: Any, message: Content, reason: str) -> tuple[Letter | None, list[Any], int]:
        """A letter, the queues that it goes to, and how many more would close a circle. No letter: nothing can be made of the message,
        which is counted (D1). Raises: StoreError, MemoryError (D2)."""
        target = queue.policy.dead_letter_exchange
        letter = None
        try:
            vhost = self._state.vhosts[queue.vhost]
            letter = self._letter(queue, message, reason)
            headers = None if self._state.routes.cache(vhost, target).cacheable else _letter_headers(letter)
            queues, cyclic = without_cycles(vhost.route_keys(target, letter.routing_keys, headers), letter.deaths, reason)
        except (StoreError, MemoryError):
            raise
        except Exception as error:
            unreadable = letter is None and isinstance(error, PeerError)
            self._state.counters.drop("unreadable_properties" if unreadable else "dead_letter_failed")
            caught("dead letters", f"a message of queue {queue.name!r}", error)
            return None, [], 0
        return letter, queues, len(cyclic)

    def _letter(self, queue: Any, message: Content, reason: str) -> Letter:
        """Raises: PeerError when the properties can't be read, ValueError when the result fits no message."""
        exchange, key, header, body = message
        name = queue.name.encode("utf-8", "surrogateescape")
        time_s = self._state.clock.wall_ms() // 1000
        own_key = queue.policy.dead_letter_routing_key
        made, keys, deaths, cut, mode, priority = letter_header(header, name, reason.encode(), exchange, key, time_s, own_key)
        if len(keys[0]) > SHORTSTR_MAX:
            raise ValueError(f"a dead-letter routing key of {len(keys[0])} bytes, at most {SHORTSTR_MAX}")
        flags = CONTENT_HEADERS | (CONTENT_PERSISTENT if mode == PERSISTENT else 0)
        if priority is not None:
            flags |= CONTENT_PRIORITY
        return Letter(
            exchange=queue.policy.dead_letter_exchange.encode("utf-8", "surrogateescape"),
            routing_keys=tuple(keys),
            deaths=Deaths(deaths, cut),
            header=made,
            body=body,
            flags=flags,
            priority=priority or 0,
        )

    def _place(self, queue: Any, letter: Letter, transaction: Transaction | None, original: Original | None) -> int:
        """Puts a letter on one queue. Returns 1, or 0 when it was refused there. Raises: StoreError, MemoryError."""
        state, core = self._state, queue.core
        expires_at = self.expires_on(core)
        if queue.policy.is_shared:
            return 1 if self.place_shared(queue, letter.message, expires_at) else 0
        if is_full(queue, letter):
            state.counters.drop(LETTER_REFUSED)
            return 0
        if transaction is None:
            placed = core.publish(*letter.message, expires_at, original)
        else:
            placed = transaction.hold(core, *letter.message, expires_at)
        if placed and state.streams is not None and transaction is None:
            state.streams.letter(queue.queue_id)  # before the caller ends the original
        if transaction is None:
            self.on_placed(queue)
        elif queue in state.limited_queues:
            transaction.limited.append(queue.queue_id)
        return 1 if placed else 0

    def expires_on(self, core: Any) -> int:
        """When a letter expires on a queue, wall clock, milliseconds; 0: never."""
        return 0 if core.ttl_ms < 0 else self._state.clock.wall_ms() + core.ttl_ms

    def place_shared(self, queue: Any, message: Message, expires_at_ms: int) -> bool:
        """Gives a message of the broker's own to a shared queue. False: too much waits. The message is lost, and counted as refused, if the
        engine does not take it in time or the broker dies first: where that matters, publish_to_all is asked again."""
        shared = self._state.shared
        return shared is not None and shared.publish(queue.core, message, expires_at_ms, lambda taken: None)

    def _place_surely(self, queue: Any, message: Message, expires_at_ms: int, attempt: Attempt) -> bool:
        """Whether the engine of a shared queue has the message, for a caller who asks again until it has. `attempt.done` holds minus the id
        while the message is on its way."""
        number, done, shared = queue.queue_id, attempt.done, self._state.shared
        if number in done:
            return True
        if -number in done or shared is None:
            return False
        done.add(-number)

        def on_outcome(taken: bool) -> None:
            if taken:
                done.add(number)
            done.discard(-number)
            if taken:
                attempt.taken(number)

        if not shared.publish(queue.core, message, expires_at_ms, on_outcome):
            done.discard(-number)
        return number in done

    def take(self, queue: Any, take: Callable[..., Any], *arguments: Any) -> Any:
        """The message that a take of the queue's core brings, None when there is none. UNREADABLE when its content can't be read: then it
        stays in the queue, out of the way, and is counted. Raises: StoreError, KeyError when it stays where it is."""
        unreadable = queue.core.failed_count
        try:
            return take(*arguments)
        except (StoreError, KeyError) as error:
            if queue.core.failed_count == unreadable:
                raise
            self._state.counters.drop("unreadable_content")
            log.error("a message of queue %r can't be read: %s", queue.name, error)
            return UNREADABLE
