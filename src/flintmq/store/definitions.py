"""MemoryDefinitions: the Definitions port in dicts, for `--memory`, tests, and as the model of the SQL one.

in: records of ports.py. out: the same records. Nothing survives the object; ids are still never reused within it.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Sequence

from flintmq.ports import (
    BindingRecord,
    ExchangeRecord,
    LimitsRecord,
    ParameterRecord,
    PermissionRecord,
    QueueRecord,
    Table,
    UserRecord,
    VhostRecord,
    freeze,
)


def binding_record_key(record: BindingRecord) -> tuple[Hashable, ...]:
    """Identity of a binding: everything but the vhost, with the arguments in a hashable form."""
    return (record.source, record.destination_kind, record.destination, record.routing_key, freeze(record.arguments))


def _ends(record: BindingRecord) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
    return (record.vhost, "exchange", record.source), (record.vhost, record.destination_kind, record.destination)


class MemoryDefinitions:
    """See ports.Definitions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_queue_id = 0
        self._vhosts: dict[str, VhostRecord] = {"/": VhostRecord("/", "Default virtual host")}
        self._users: dict[str, UserRecord] = {}
        self._permissions: dict[tuple[str, str], PermissionRecord] = {}
        self._limits: dict[tuple[str, str], LimitsRecord] = {}
        self._parameters: dict[tuple[str, str, str], ParameterRecord] = {}  # vhost, component, name
        self._exchanges: dict[str, dict[str, ExchangeRecord]] = {}
        self._queues: dict[str, dict[str, QueueRecord]] = {}
        self._queue_of_id: dict[int, tuple[str, str]] = {}
        self._bindings: dict[str, dict[tuple[Hashable, ...], BindingRecord]] = {}
        # (vhost, kind, name) of either end -> bindings: a delete must not look at all of them
        self._bindings_at: dict[tuple[str, str, str], dict[tuple[Hashable, ...], None]] = {}

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
            self._limits.pop(("vhost", name), None)
            for parameter in [key for key in self._parameters if key[0] == name]:
                del self._parameters[parameter]
            self._exchanges.pop(name, None)
            for queue in self._queues.pop(name, {}).values():
                del self._queue_of_id[queue.queue_id]
            self._bindings.pop(name, None)
            for end in [end for end in self._bindings_at if end[0] == name]:
                del self._bindings_at[end]
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
            self._limits.pop(("user", name), None)
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

    def save_limits(self, record: LimitsRecord) -> None:
        with self._lock:
            if record.limits:
                self._limits[record.kind, record.name] = record
            else:
                self._limits.pop((record.kind, record.name), None)

    def load_limits(self) -> Sequence[LimitsRecord]:
        with self._lock:
            return [self._limits[key] for key in sorted(self._limits)]

    def save_parameter(self, record: ParameterRecord) -> None:
        with self._lock:
            self._parameters[record.vhost, record.component, record.name] = record

    def delete_parameter(self, record: ParameterRecord) -> None:
        with self._lock:
            self._parameters.pop((record.vhost, record.component, record.name), None)

    def load_parameters(self, component: str) -> Sequence[ParameterRecord]:
        with self._lock:
            return [record for (_, known, _), record in sorted(self._parameters.items()) if known == component]

    def save_exchange(self, record: ExchangeRecord) -> None:
        with self._lock:
            self._exchanges.setdefault(record.vhost, {})[record.name] = record

    def delete_exchange(self, vhost: str, name: str) -> None:
        with self._lock:
            self._exchanges.get(vhost, {}).pop(name, None)
            self._drop_bindings_at(vhost, "exchange", name)

    def load_exchanges(self, vhost: str) -> Sequence[ExchangeRecord]:
        with self._lock:
            return list(self._exchanges.get(vhost, {}).values())

    def save_queue(self, record: QueueRecord) -> None:
        with self._lock:
            if not 0 < record.queue_id <= self._last_queue_id:
                raise ValueError(f"queue id {record.queue_id} was not given out")
            owner = self._queue_of_id.get(record.queue_id)
            if owner is not None and owner != (record.vhost, record.name):
                raise ValueError(f"queue id {record.queue_id} belongs to {owner[1]!r}")
            queues = self._queues.setdefault(record.vhost, {})
            known = queues.get(record.name)
            if known is not None:
                del self._queue_of_id[known.queue_id]
            queues[record.name] = record
            self._queue_of_id[record.queue_id] = (record.vhost, record.name)

    def delete_queue(self, vhost: str, name: str) -> None:
        with self._lock:
            known = self._queues.get(vhost, {}).pop(name, None)
            if known is not None:
                del self._queue_of_id[known.queue_id]
            self._drop_bindings_at(vhost, "queue", name)

    def load_queues(self, vhost: str) -> Sequence[QueueRecord]:
        with self._lock:
            return list(self._queues.get(vhost, {}).values())

    def queue_rows(self, vhost: str) -> Iterator[tuple[str, int, bool, Table]]:
        for one in self.load_queues(vhost):
            yield one.name, one.queue_id, one.auto_delete, one.arguments

    def save_binding(self, record: BindingRecord) -> None:
        key = binding_record_key(record)
        with self._lock:
            self._bindings.setdefault(record.vhost, {})[key] = record
            for end in _ends(record):
                self._bindings_at.setdefault(end, {})[key] = None

    def delete_binding(self, record: BindingRecord) -> None:
        with self._lock:
            self._drop_binding(record.vhost, binding_record_key(record))

    def _drop_bindings_at(self, vhost: str, kind: str, name: str) -> None:
        for key in list(self._bindings_at.get((vhost, kind, name), ())):
            self._drop_binding(vhost, key)

    def _drop_binding(self, vhost: str, key: tuple[Hashable, ...]) -> None:
        record = self._bindings.get(vhost, {}).pop(key, None)
        if record is None:
            return
        for end in set(_ends(record)):
            keys = self._bindings_at[end]
            del keys[key]
            if not keys:
                del self._bindings_at[end]

    def load_bindings(self, vhost: str) -> Sequence[BindingRecord]:
        with self._lock:
            return list(self._bindings.get(vhost, {}).values())

    def binding_rows(self, vhost: str) -> Iterator[tuple[str, str, str, bytes, Table]]:
        for one in self.load_bindings(vhost):
            yield one.source, one.destination_kind, one.destination, one.routing_key, one.arguments
