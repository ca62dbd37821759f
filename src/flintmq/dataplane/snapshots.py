"""Snapshots of the logs, and what keeps containers from being recycled while somebody reads them.

in: the log.* calls, browses, time. out: facts of both logs at one moment, pins of their maintenance.

N1  While a pin on a container stands, neither it nor a later one is recycled or removed, whatever retention says.
N2  A pin is there before the containers are listed: what an answer names exists until its time is over.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field
from typing import Any

from flintmq.dataplane.arguments import Arguments
from flintmq.dataplane.quotas import Quota
from flintmq.dataplane.shared import Caller, Plane
from flintmq.dataplane.times import LogTimes
from flintmq.dataplane.wire import Refused

LOGS = ("messages", "transactions")
_NOTHING = 2**64 - 1


@dataclass(slots=True, eq=False)
class Pin:
    """Containers that somebody reads. `lowest`: log -> first sequence; `until_ns`: monotonic."""

    identity: str
    owner: str
    vhost: str
    kind: str
    ttl_s: int
    until_ns: int
    lowest: dict[str, int] = field(default_factory=dict)
    browse: Any = None


class Pins:
    """All pins of a node. Threading: any thread; the logs' maintenance asks `lowest`, which takes no lock."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._lock = threading.Lock()
        self._pins: dict[str, Pin] = {}
        limits = plane.limits
        self._quota = Quota(
            "snapshots and browses",
            "release or close some",
            node=limits.snapshots_max,
            vhost=limits.snapshots_vhost_max,
            user=limits.snapshots_user_max,
        )
        self._lowest = dict.fromkeys(LOGS, _NOTHING)
        self.managed = {"messages": plane.store.messages, "transactions": plane.store.transaction_records}
        self.times = {name: LogTimes(managed) for name, managed in self.managed.items()}
        for name, managed in self.managed.items():
            managed.set_pins(lambda name=name: self.lowest(name))

    def lowest(self, log: str) -> int | None:
        """For ManagedLog.set_pins."""
        lowest_lsn = self._lowest[log]
        return None if lowest_lsn == _NOTHING else lowest_lsn

    def take(self, caller: Caller, kind: str, ttl_s: int, logs: tuple[str, ...]) -> Pin:
        """A new pin on all that the logs have. Raises: Refused (LIMIT)."""
        identity = uuid.uuid4().hex
        until_ns = self._plane.clock.monotonic_ns() + ttl_s * 1_000_000_000
        pin = Pin(identity, caller.name, caller.vhost, kind, ttl_s, until_ns, dict.fromkeys(logs, 0))
        with self._lock:
            full = self._quota.full(caller.user, caller.vhost)
            if full and not self._drop_read(full, caller):
                raise self._quota.refused(full, caller.user, caller.vhost)
            self._pins[identity] = pin
            self._quota.enter(identity, caller.name, caller.vhost)
            self._count()
        return pin

    def _drop_read(self, full: str, caller: Caller) -> bool:
        """Gives up the oldest browse that was read to its end, if there is one among those whose places are taken (`full`: the user's, the
        vhost's, the node's): clients need not close theirs."""
        for identity, pin in self._pins.items():
            if (full == "user" and pin.owner != caller.user) or (full == "vhost" and pin.vhost != caller.vhost):
                continue
            if pin.browse is not None and all(one.was_read for one in pin.browse):
                del self._pins[identity]
                self._quota.leave(identity)
                return True
        return False

    def settle(self, pin: Pin, lowest: dict[str, int]) -> None:
        """Keeps only containers from these sequences on."""
        with self._lock:
            pin.lowest = lowest
            self._count()

    def find(self, caller: Caller, identity: str, kind: str) -> Pin:
        """Raises: Refused (NOT_FOUND) for one that is over, somebody else's, or of another vhost: names are those of its own."""
        with self._lock:
            pin = self._pins.get(identity)
        mine = pin is not None and pin.kind == kind and pin.owner == caller.user and pin.vhost == caller.vhost
        if pin is None or not mine or pin.until_ns <= self._plane.clock.monotonic_ns():
            raise Refused("NOT_FOUND", f"there is no {kind} {identity}: its time is over, or it was released")
        return pin

    def extend(self, pin: Pin, ttl_s: int) -> None:
        """Its time begins anew."""
        pin.ttl_s = ttl_s
        pin.until_ns = self._plane.clock.monotonic_ns() + ttl_s * 1_000_000_000

    def release(self, identity: str) -> bool:
        """False when it is not there."""
        with self._lock:
            pin = self._pins.pop(identity, None)
            self._quota.leave(identity)
            self._count()
        return pin is not None

    def tick(self) -> None:
        """Releases what nobody asked about in time."""
        now = self._plane.clock.monotonic_ns()
        with self._lock:
            late = [identity for identity, pin in self._pins.items() if pin.until_ns <= now]
            for identity in late:
                del self._pins[identity]
                self._quota.leave(identity)
            if late:
                self._count()

    def counts(self) -> dict[str, int]:
        """For `status`."""
        with self._lock:
            kinds = [pin.kind for pin in self._pins.values()]
        return {"snapshots": kinds.count("snapshot"), "browses": kinds.count("browse")}

    def _count(self) -> None:
        for log in LOGS:
            self._lowest[log] = min((pin.lowest[log] for pin in self._pins.values() if log in pin.lowest), default=_NOTHING)


class Snapshots:
    """The log.* calls: administrators only, since a log has the messages of all."""

    def __init__(self, plane: Plane, pins: Pins) -> None:
        self._plane = plane
        self._pins = pins

    def snapshot(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """log.snapshot."""
        plane = self._plane
        ttl_s = arguments.integer("ttl_s", 1, plane.limits.snapshot_ttl_s_max, plane.limits.snapshot_ttl_s)
        logs = arguments.texts("logs", 16, len(LOGS), list(LOGS))
        for one in logs:
            if one not in LOGS:
                raise arguments.refuse("logs", f"a list of {' and '.join(LOGS)}", one)
        arguments.done()
        # Records that were appended before this call are part of the answer: its end is the durable LSN once they are.
        plane.settle()
        pin = self._pins.take(caller, "snapshot", ttl_s, tuple(logs))
        try:
            facts = {name: self._facts(name) for name in logs}
            queues = list(plane.broker.queues.values())
            self._pins.settle(pin, {name: one["containers"][0] if one["containers"] else 0 for name, one in facts.items()})
            return {
                "id": pin.identity,
                "ttl_s": ttl_s,
                "store": {
                    "directory": plane.store.directory,
                    "uuid": bytes(plane.store.messages.store_uuid).hex(),
                    "container_size": plane.store.messages.container_size,
                },
                "logs": facts,
                "queues": {str(queue.queue_id): [queue.vhost, queue.name] for queue in queues},
                "unreadable": sorted(queue.queue_id for queue in queues if queue.exclusive or queue.policy.is_elsewhere),
                "consumers": self._consumers(),
                "transactions": [
                    {"xid": str(view.xid), "state": view.state.value, "enqueues": view.enqueues, "dequeues": view.dequeues}
                    for view in plane.coordinator.list()
                ],
                "time_us": plane.now_ms() * 1000,
            }
        except BaseException:
            self._pins.release(pin.identity)
            raise

    def _facts(self, name: str) -> dict[str, Any]:
        managed = self._pins.managed[name]
        end = managed.durable_lsn
        size = managed.container_size
        sequences = [one for one in self._pins.times[name].sequences() if one * size < end]
        return {"base": managed.base_durable, "end": end, "container_size": size, "containers": sequences}

    def _consumers(self) -> list[dict[str, Any]]:
        """Consumers that are attached now: their ids and groups are in Name records of the message log, see docs/FORMAT.md."""
        broker = self._plane.broker
        with broker.lock:
            consumers = [one for known in broker.consumers.values() for one in known]
        return [{"queue_id": one.queue.queue_id, "tag": one.tag, "group": one.arguments.get("x-group") or ""} for one in consumers]

    def extend(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """log.extend."""
        identity = arguments.text("id", 64)
        ttl_s = arguments.integer("ttl_s", 1, self._plane.limits.snapshot_ttl_s_max, self._plane.limits.snapshot_ttl_s)
        arguments.done()
        self._pins.extend(self._pins.find(caller, identity, "snapshot"), ttl_s)
        return {"id": identity, "ttl_s": ttl_s}

    def release(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """log.release. Again is no error."""
        identity = arguments.text("id", 64)
        arguments.done()
        try:
            self._pins.find(caller, identity, "snapshot")
        except Refused:
            return {"id": identity, "released": False}
        return {"id": identity, "released": self._pins.release(identity)}
