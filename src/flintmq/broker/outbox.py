"""Messages that the broker itself publishes to one of its exchanges: the firehose and the event exchange. Nobody waits for them.

in: messages, from any thread, under any lock. out: entries on the queues that are bound, put there by a job of a loop.

O1  At most `bytes_max` bytes wait: what comes then is dropped and counted, and whoever told it never notices.
O2  A message is put on queues as a dead letter is: by their limits; what one refuses is counted.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flintmq.core.memory_account import MemoryShare
from flintmq.errors import PeerError
from flintmq.guard import guarded
from flintmq.protocol.v0_9_1.codec import encode_properties

if TYPE_CHECKING:
    from flintmq.broker.state import NodeState

# queues that get a message in one slice, some 10 us each
SENT_AT_ONCE = 8
# bytes that one takes beside its octets
_MESSAGE_BYTES = 512

_OVER = object()
# QueueLimits.put
Put = Callable[[Any, tuple[bytes, bytes, bytes, bytes], int, int, Any], object]
Waiting = tuple[str, bytes, bytes, bytes, int, Mapping[str, Any]]


class Outbox:
    """Args: put: QueueLimits.put; exchange: its name, in each virtual host; reason: under which what is dropped is counted; flags: of its
    contents."""

    def __init__(self, state: NodeState, put: Put, exchange: str, bytes_max: int, reason: str, flags: int) -> None:
        self._state = state
        self._put = put
        self._exchange = exchange
        self._bytes_max = bytes_max
        self._reason = reason
        self._flags = flags
        self._lock = threading.Lock()
        self._waiting: collections.deque[Waiting] = collections.deque()
        self._busy = False
        self._going: Iterator[None] = iter(())  # what is being put on its queues
        self._share = MemoryShare("output")

    def add(self, vhost: str, key: str, properties: dict[str, Any], body: bytes = b"") -> None:
        """Any thread. Never waits, never raises for what is in a message."""
        guarded("what the broker publishes", f"key {key!r}", self._add, vhost, key, properties, body)

    def _add(self, vhost: str, key: str, properties: dict[str, Any], body: bytes) -> None:
        octets = key.encode("utf-8", "surrogateescape")[:255]
        header = encode_properties(len(body), properties)
        size = _MESSAGE_BYTES + len(octets) + 3 * len(header) + len(body)  # three times: its headers stand beside, decoded
        with self._lock:
            full = self._share.held + size > self._bytes_max
            if not full:
                self._waiting.append((vhost, octets, header, body, size, properties.get("headers") or {}))
                self._share.add(size)
            begins = not full and not self._busy
            if begins:
                self._busy = True
        if full:
            self._state.counters.drop(self._reason)
        if begins:
            self._state.loops.in_slices(self._step, self._ended)

    def _step(self) -> bool:
        for _ in range(SENT_AT_ONCE):
            if next(self._going, _OVER) is not _OVER:
                continue  # one more queue has it
            with self._lock:
                if not self._waiting:
                    self._busy = False
                    return True
                one = self._waiting.popleft()
                self._share.add(-one[4])
            self._going = self._send(*one)
        return False

    def _ended(self, whole: bool) -> None:
        if not whole:
            with self._lock:
                self._busy = False

    def _send(self, name: str, key: bytes, header: bytes, body: bytes, _: int, headers: Mapping[str, Any]) -> Iterator[None]:
        """Puts a message on its queues, one each time it is asked. Raises nothing."""
        vhost = self._state.vhosts.get(name)
        if vhost is None:
            return
        try:
            queues = vhost.route(self._exchange, key, headers)
        except PeerError:  # the exchange is gone, or has more patterns than may be looked at
            self._state.counters.drop(self._reason)
            return
        content = (self._exchange.encode(), key, header, body)
        for queue in queues:
            guarded("what the broker publishes", f"queue {queue.name!r}", self._put, queue, content, self._flags, 0, -1)
            yield
