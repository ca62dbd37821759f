"""Answers to requests of other nodes: a name, a JSON head and bytes, answered the same way, as messages on one channel of a link.

in: requests that other nodes publish. out: answers, as deliveries.

    request: a publish to EXCHANGE with the routing key "ID NAME", its body in one piece
    answer:  deliveries with the routing key "ID" to the channel's consumer of answers; a body is the kind, 1 octet, and a piece
    request, or the pieces of an answer together: bytes of the head (4 octets, big endian), head (JSON object), payload

R1  Nothing is kept of a request but that it is under way; a node has cluster_requests_max of them on one connection.

`Answering.came` is called on loops of connections; the rest is of the engine's event loop.
"""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.engines.engine import EngineError
from flintmq.errors import PeerError, ReplyCode
from flintmq.guard import caught
from flintmq.routing.route_cache import RouteCache

if TYPE_CHECKING:
    from flintmq.cluster.engine_thread import EngineThread
    from flintmq.config import Limits
    from flintmq.queue.control import QueueHandle

EXCHANGE = b"flintmq.requests"
Answer = tuple[dict[str, Any], bytes]
Answerer = Callable[[dict[str, Any], bytes], Awaitable[Answer]]
# kinds of a piece: further ones follow; the last one of an answer, or of a refusal, whose head has `code` and `text`
FOLLOWED, LAST, REFUSED = 0, 1, 2
# characters of a refusal's text
TEXT_MAX = 500
_HEAD = struct.Struct(">I")
# class of basic, weight, bytes of the body, no properties
_CONTENT = struct.Struct(">HHQH")
_BASIC = 60


class NodeRefused(EngineError):
    """The other node refused a request. Attributes: code: why, for programs."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def pack(head: Mapping[str, Any], payload: bytes) -> bytes:
    """Of a request, or an answer. O(bytes)."""
    text = json.dumps(head, separators=(",", ":")).encode()
    return _HEAD.pack(len(text)) + text + payload


def unpack(body: bytes) -> Answer:
    """Raises: ValueError. O(bytes)."""
    if len(body) < _HEAD.size:
        raise ValueError("it is cut")
    end = _HEAD.size + int(_HEAD.unpack_from(body)[0])
    head = json.loads(body[_HEAD.size : end])
    if not isinstance(head, dict) or end > len(body):
        raise ValueError("its head is none")
    return head, body[end:]


def header(size: int) -> bytes:
    """The payload of a content header of a body of `size` bytes."""
    return _CONTENT.pack(_BASIC, 0, size, 0)


class Answering:
    """Requests of other nodes. Args: answers: by the names of requests; called on the engine's thread."""

    def __init__(self, thread: EngineThread, answers: Mapping[str, Answerer], limits: Limits) -> None:
        self.cache = RouteCache(EXCHANGE, 1)  # of no route: each request is looked at
        self._thread = thread
        self._answers = answers
        self._limits = limits
        self._lock = threading.Lock()
        self._running: Counter[int] = Counter()  # by connection

    def came(self, connection_id: int, reply: QueueHandle | None, key: bytes, body: bytes) -> None:
        """A message to EXCHANGE. Args: reply: of the channel's consumer of answers. Raises: PeerError 406: it is no request, 506: too many
        are under way. On the connection's loop; waits for nothing."""
        number, _, name = key.decode("utf-8", "replace").partition(" ")
        answerer = self._answers.get(name)
        if reply is None or not number.isdigit():
            raise PeerError(ReplyCode.PRECONDITION_FAILED, "a request of a node needs a number, and a consumer of answers")
        if len(body) > self._limits.cluster_request_bytes_max:
            raise PeerError(ReplyCode.PRECONDITION_FAILED, "a request of a node is too large")
        with self._lock:
            if self._running[connection_id] >= self._limits.cluster_requests_max:
                raise PeerError(ReplyCode.RESOURCE_ERROR, "too many requests of a node are under way")
            self._running[connection_id] += 1
        work = partial(self._answer, answerer, name, body, reply, number.encode())
        self._thread.run(work, partial(self._ended, connection_id), self._limits.cluster_request_ms_max / 1000)

    def _ended(self, connection_id: int, result: Any, error: Exception | None) -> None:
        """One that was not done in time is not answered: its node has given it up."""
        with self._lock:
            self._running[connection_id] -= 1
            if not self._running[connection_id]:
                del self._running[connection_id]

    async def _answer(self, answerer: Answerer | None, name: str, body: bytes, reply: QueueHandle, key: bytes) -> None:
        kind = REFUSED
        try:
            if answerer is None:
                raise NodeRefused("UNKNOWN", f"this node knows no request {name[:80]!r}")
            answer = pack(*await answerer(*unpack(body)))
            kind = LAST
        except NodeRefused as refused:
            answer = _refusal(refused.code, str(refused))
        except EngineError as error:
            answer = _refusal("UNAVAILABLE", str(error))
        except Exception as error:
            caught("requests of nodes", name, error)
            answer = _refusal("INTERNAL", "the node failed; its log says more")
        step = self._limits.cluster_piece_bytes
        for offset in range(0, len(answer), step):
            piece = bytes([kind if offset + step >= len(answer) else FOLLOWED]) + answer[offset : offset + step]
            if not reply.publish(b"", key, header(len(piece)), piece, 0, 0):
                return  # the channel has ended
            await asyncio.sleep(0)  # others have their turn


def _refusal(code: str, text: str) -> bytes:
    return pack({"code": code, "text": text[:TEXT_MAX]}, b"")
