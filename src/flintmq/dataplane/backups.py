"""Backups of a running broker: the ends of all logs at one moment, and pins that keep their containers until it is done.

in: an administrator's request. out: facts of the logs; nothing is copied here (store/backup.py does, in a process of its own).

B1  The ends of the message log and of the transaction log are those of one moment, so a copy up to them is what a crash in that moment
    would have left: recovery knows what to do with it.
B2  The ends of streams are read afterwards: a record of a stream that is there too early is one whose transaction was not decided.
B3  Containers from the base on exist until the backup is ended, or until it was not extended for `ttl_s` seconds.
"""

from __future__ import annotations

from typing import Any

from flintmq.dataplane.shared import Caller, Plane
from flintmq.dataplane.snapshots import LOGS, Pins
from flintmq.dataplane.wire import Refused

KIND = "backup"
_TRIES = 1_000


class Backups:
    """Args: plane; pins: of the node. Any thread but I/O loops: `begin` waits for the disk. Raises (all): Refused."""

    def __init__(self, plane: Plane, pins: Pins) -> None:
        self._plane = plane
        self._pins = pins

    def begin(self, user: str, ttl_s: int) -> dict[str, Any]:
        """Pins what is there; the facts of a backup."""
        plane, store = self._plane, self._plane.store
        plane.settle()
        pin = self._pins.take(Caller(user, "/"), KIND, ttl_s, LOGS)
        try:
            # The bases first: they only grow, so a copy from them on has all that recovery reads.
            bases = {name: managed.base_durable // managed.container_size for name, managed in self._pins.managed.items()}
            ends = self._ends()
            streams = {}
            for queue in list(plane.broker.queues.values()):
                stream = store.streams.get(queue.queue_id) if queue.policy.is_stream else None
                if stream is not None and not stream.broken:
                    managed = stream.managed
                    streams[str(queue.queue_id)] = {"end": managed.durable_lsn, "container_size": managed.container_size}
            self._pins.settle(pin, bases)
            return {
                "id": pin.identity,
                "ttl_s": ttl_s,
                "directory": str(store.directory),
                "uuid": bytes(store.messages.store_uuid).hex(),
                "time_ms": plane.now_ms(),
                "logs": {
                    name: {"first": bases[name], "end": ends[name], "container_size": managed.container_size}
                    for name, managed in self._pins.managed.items()
                },
                "streams": streams,
            }
        except BaseException:
            self._pins.release(pin.identity)
            raise

    def _ends(self) -> dict[str, int]:
        """B1: two looks that agree, since ends only grow."""
        known: dict[str, int] = {}
        for _ in range(_TRIES):
            seen = {name: managed.durable_lsn for name, managed in self._pins.managed.items()}
            if seen == known:
                return seen
            known = seen
        raise Refused("BUSY", "the logs grow too fast to be looked at together: try again")

    def extend(self, user: str, identity: str) -> None:
        """Its time begins anew."""
        pin = self._pins.find(Caller(user, "/"), identity, KIND)
        self._pins.extend(pin, pin.ttl_s)

    def end(self, user: str, identity: str) -> None:
        self._pins.release(self._pins.find(Caller(user, "/"), identity, KIND).identity)
