"""Streams for the data plane: where their containers are, what of them is durable, and what must stay while somebody reads.

in: the call `stream` of the Flight service, on behalf of a user. out: facts; nothing of a stream changes, and nothing is kept on disk.

K1  The one permission that is asked for is to read the queue, with every call, as for a browse.
K2  A pin keeps the containers from one on, until it is released or nobody asked about it for `stream_pin_s`. It is a help and no
    promise: when there are too many, the oldest goes, and a reader that comes too late is told what it missed.
K3  A stream's identity is the store's UUID and the queue id, which is never given out twice: one that is declared again is another one.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass
from typing import Any

from flintmq.dataplane.arguments import Arguments
from flintmq.dataplane.quotas import Quota
from flintmq.dataplane.shared import Caller, Plane
from flintmq.dataplane.wire import Refused
from flintmq.errors import PeerError
from flintmq.ports import Verb

_SEQUENCE_MAX = 2**63


@dataclass(slots=True, eq=False)
class _Pin:
    queue_id: int
    owner: str
    vhost: str
    sequence: int
    until_ns: int


class Streams:
    """See module. Threading: `facts` from any thread but I/O loops; maintenance asks `_lowest`, which takes a lock for a moment."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._lock = threading.Lock()
        self._pins: dict[str, _Pin] = {}
        limits = plane.limits
        self._quota = Quota("pins", "", node=limits.stream_pins_max, vhost=limits.stream_pins_vhost_max, user=limits.stream_pins_user_max)

    def facts(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """stream: {queue, stream (None: whichever it is), pin, sequence, release} -> see docs/DATAPLANE.md.

        Raises: Refused NOT_FOUND, FORBIDDEN, NOT_A_STREAM, STREAM_REPLACED, UNAVAILABLE.
        """
        plane, limits = self._plane, self._plane.limits
        name = arguments.text("queue", limits.name_bytes_max)
        expected = arguments.text("stream", 255, None)
        pin = arguments.text("pin", 64, None)
        sequence = arguments.integer("sequence", 0, _SEQUENCE_MAX, None)
        release = arguments.text("release", 64, None)
        arguments.done()
        plane.authorize(caller, Verb.READ, "queue", [name])
        queue = self._queue(caller.vhost, name)
        identity = f"{bytes(plane.store.messages.store_uuid).hex()}-{queue.queue_id}"
        if expected is not None and expected != identity:
            raise Refused("STREAM_REPLACED", f"stream '{name}' is {identity}, not {expected}: it was deleted and declared again, or moved")
        stream = plane.store.streams.get(queue.queue_id)
        if stream is None or stream.broken:
            raise Refused("UNAVAILABLE", f"stream '{name}' can't be opened: the broker's log says why")
        if release is not None:
            self._release(caller, release)
        if sequence is not None:
            pin = self._keep(caller, queue.queue_id, stream, pin, sequence)
        # In this order: everything visible is below the end.
        visible = stream.visible
        managed = stream.managed
        return {
            "queue": name,
            "stream": identity,
            "uuid": bytes(plane.store.messages.store_uuid).hex(),
            "directory": f"streams/{queue.queue_id}",
            "container_size": managed.container_size,
            "first": stream.first,
            "next": visible,
            "end": managed.durable_lsn,
            "bytes": stream.bytes,
            "now_us": plane.now_ms() * 1000,
            "pin": pin,
        }

    def _queue(self, vhost: str, name: str) -> Any:
        virtual_host = self._plane.broker.vhosts.get(vhost)
        if virtual_host is None:
            raise Refused("NOT_FOUND", f"there is no vhost '{vhost}'")
        try:
            queue = virtual_host.queue(name)
        except PeerError as error:
            raise Refused("NOT_FOUND", error.text) from None
        if not queue.policy.is_stream:
            raise Refused("NOT_A_STREAM", f"queue '{name}' in vhost '{vhost}' is no stream: it is read with a subscription, or browsed")
        return queue

    # --- pins -----------------------------------------------------------------------------------------------------------

    def _keep(self, caller: Caller, queue_id: int, stream: Any, identity: str | None, sequence: int) -> str:
        limits = self._plane.limits
        until_ns = self._plane.clock.monotonic_ns() + limits.stream_pin_s * 1_000_000_000
        with self._lock:
            if identity is None:
                identity = uuid.uuid4().hex
            known = self._pins.get(identity)
            if known is not None and known.owner == caller.user and known.queue_id == queue_id:
                known.sequence, known.until_ns = min(known.sequence, sequence), until_ns
            elif known is None:
                if full := self._quota.full(caller.user, caller.vhost):
                    self._drop_oldest(full, caller)
                self._pins[identity] = _Pin(queue_id, caller.name, caller.vhost, sequence, until_ns)
                self._quota.enter(identity, caller.name, caller.vhost)
        stream.managed.set_pins(lambda: self._lowest(queue_id))
        return identity

    def _drop_oldest(self, full: str, caller: Caller) -> None:
        """Gives up the pin that nobody asked about for longest, of those whose places are taken (`full`). Under the lock."""
        oldest = min(
            (
                (pin.until_ns, identity)
                for identity, pin in self._pins.items()
                if (full != "user" or pin.owner == caller.user) and (full != "vhost" or pin.vhost == caller.vhost)
            ),
            default=None,
        )
        if oldest is not None:
            self._drop(oldest[1])

    def _drop(self, identity: str) -> None:
        del self._pins[identity]
        self._quota.leave(identity)

    def _release(self, caller: Caller, identity: str) -> None:
        with self._lock:
            pin = self._pins.get(identity)
            if pin is not None and pin.owner == caller.user:
                self._drop(identity)

    def _lowest(self, queue_id: int) -> int | None:
        """For ManagedLog.set_pins: the lowest container of the stream that somebody reads."""
        with self._lock:
            return min((pin.sequence for pin in self._pins.values() if pin.queue_id == queue_id), default=None)

    def tick(self) -> None:
        """Releases what nobody asked about in time."""
        now = self._plane.clock.monotonic_ns()
        with self._lock:
            for identity in [identity for identity, pin in self._pins.items() if pin.until_ns <= now]:
                self._drop(identity)

    def counts(self) -> dict[str, int]:
        """For `status`."""
        with self._lock:
            return {"stream_pins": len(self._pins)}
