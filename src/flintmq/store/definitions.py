"""MemoryDefinitions: the Definitions port in dicts, for `--memory`, tests, and as the model of the SQL one.

in: records of ports.py. out: the same records. Nothing survives the object; ids are still never reused within it.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence

from flintmq.ports import BindingRecord, ExchangeRecord, PermissionRecord, QueueRecord, UserRecord, VhostRecord
from flintmq.routing.binding import freeze


def binding_record_key(record: BindingRecord) -> tuple[Hashable, ...]:
    """Identity of a binding: everything but the vhost, with the arguments in a hashable form."""
    return (record.source, record.destination_kind, record.destination, record.routing_key, freeze(record.arguments))


class MemoryDefinitions:
    """See ports.Definitions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_queue_id = 0
        self._vhosts: dict[str, VhostRecord] = {"/": VhostRecord("/", "Default virtual host")}
        self._users: dict[str, UserRecord] = {}
        self._permissions: dict[tuple[str, str], PermissionRecord] = {}
        self._exchanges: dict[str, dict[str, ExchangeRecord]] = {}
        self._queues: dict[str, dict[str, QueueRecord]] = {}
        self._bindings: dict[str, dict[tuple[Hashable, ...], BindingRecord]] = {}

    def new_queue_id(self) -> int:
        with self._lock:
            self._last_queue_id += 1
            return self._last_queue_id

    @property
    def queue_id_high_water(self) -> int:
        return self._last_queue_id

    def save_vhost(self, record: VhostRecord) -> None:
        with self._lock:
            self._vhosts[record.name] = record

    def delete_vhost(self, name: str) -> None:
        with self._lock:
            self._vhosts.pop(name, None)
            for table in (self._exchanges, self._queues, self._bindings):
                table.pop(name, None)  # type: ignore[attr-defined]
            for key in [key for key in self._permissions if key[1] == name]:
                del self._permissions[key]

    def load_vhosts(self) -> Sequence[VhostRecord]:
        with self._lock:
            return [self._vhosts[name] for name in sorted(self._vhosts)]

    def save_user(self, record: UserRecord) -> None:
        with self._lock:
            self._users[record.name] = record

    def delete_user(self, name: str) -> None:
        with self._lock:
            self._users.pop(name, None)
            for key in [key for key in self._permissions if key[0] == name]:
                del self._permissions[key]

    def load_users(self) -> Sequence[UserRecord]:
        with self._lock:
            return [self._users[name] for name in sorted(self._users)]

    def save_permission(self, record: PermissionRecord) -> None:
        with self._lock:
            self._permissions[record.user, record.vhost] = record

    def delete_permission(self, user: str, vhost: str) -> None:
        with self._lock:
            self._permissions.pop((user, vhost), None)

    def load_permissions(self) -> Sequence[PermissionRecord]:
        with self._lock:
            return [self._permissions[key] for key in sorted(self._permissions)]

    def save_exchange(self, record: ExchangeRecord) -> None:
        with self._lock:
            self._exchanges.setdefault(record.vhost, {})[record.name] = record

    def delete_exchange(self, vhost: str, name: str) -> None:
        with self._lock:
            self._exchanges.get(vhost, {}).pop(name, None)
            bindings = self._bindings.get(vhost, {})
            gone = [
                key
                for key, record in bindings.items()
                if record.source == name or (record.destination_kind == "exchange" and record.destination == name)
            ]
            for key in gone:
                del bindings[key]

    def load_exchanges(self, vhost: str) -> Sequence[ExchangeRecord]:
        with self._lock:
            return list(self._exchanges.get(vhost, {}).values())

    def save_queue(self, record: QueueRecord) -> None:
        with self._lock:
            if not 0 < record.queue_id <= self._last_queue_id:
                raise ValueError(f"queue id {record.queue_id} was not given out")
            queues = self._queues.setdefault(record.vhost, {})
            for known in self._queues.values():
                for other in known.values():
                    if other.queue_id == record.queue_id and (other.vhost, other.name) != (record.vhost, record.name):
                        raise ValueError(f"queue id {record.queue_id} belongs to {other.name!r}")
            queues[record.name] = record

    def delete_queue(self, vhost: str, name: str) -> None:
        with self._lock:
            self._queues.get(vhost, {}).pop(name, None)
            bindings = self._bindings.get(vhost, {})
            for key in [key for key, record in bindings.items() if record.destination_kind == "queue" and record.destination == name]:
                del bindings[key]

    def load_queues(self, vhost: str) -> Sequence[QueueRecord]:
        with self._lock:
            return list(self._queues.get(vhost, {}).values())

    def save_binding(self, record: BindingRecord) -> None:
        with self._lock:
            self._bindings.setdefault(record.vhost, {})[binding_record_key(record)] = record

    def delete_binding(self, record: BindingRecord) -> None:
        with self._lock:
            self._bindings.get(record.vhost, {}).pop(binding_record_key(record), None)

    def load_bindings(self, vhost: str) -> Sequence[BindingRecord]:
        with self._lock:
            return list(self._bindings.get(vhost, {}).values())
