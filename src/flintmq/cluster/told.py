"""Definitions whose changes other nodes are told of: the Definitions port around another one.

in: changes, from any verb and any thread. out: the same changes in the database, then in the ear of the cluster (`definitions`).

T1  This is the one place where a change becomes durable, so no verb, of AMQP, HTTP or the broker itself, can change a definition unheard.
T2  The cluster hears of a change when it is durable, before whoever asked for it goes on, in the database's order. Nothing waits for that.
T3  What another node has decided goes to `untold`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from flintmq.ports import (
    BindingRecord,
    Definitions,
    ExchangeRecord,
    LimitsRecord,
    ParameterRecord,
    PermissionRecord,
    QueueRecord,
    UserRecord,
    VhostRecord,
)
from flintmq.store.sql.changes import Change, Delete, Record, Save

Told = Callable[[Exception | None], object]


class Ear(Protocol):
    """Whoever is told (definitions.ClusterDefinitions)."""

    def note(self, changes: Sequence[Change]) -> None: ...
    def when_told(self, changes: Sequence[Change], done: Told) -> bool: ...
    def when_named(self, vhost: str, names: Sequence[Hashable], done: Told) -> bool: ...


class ToldDefinitions:
    """Args: untold: the definitions themselves. `ear` is set once, before the first verb."""

    def __init__(self, untold: Definitions) -> None:
        self.untold = untold
        self.ear: Ear | None = None
        if hasattr(untold, "submit"):
            self.submit = self._submit

    def __getattr__(self, name: str) -> Any:
        """What reads, opens and closes."""
        return getattr(self.untold, name)

    def _note(self, changes: Sequence[Change]) -> None:
        if self.ear is not None:
            self.ear.note(changes)

    def when_told(self, changes: Sequence[Change], done: Told) -> bool:
        """True: the other nodes can see these changes, and `done` is not called. Else it is called once, on any thread."""
        return self.ear is None or self.ear.when_told(changes, done)

    def when_named(self, vhost: str, names: Sequence[Hashable], done: Told) -> bool:
        """As `when_told`, of the exchanges and bindings of a virtual host with these names (vhost/changes.py)."""
        return self.ear is None or self.ear.when_named(vhost, names, done)

    def _submit(self, changes: Sequence[Change], callback: Callable[[Exception | None], None]) -> None:
        def durable(error: Exception | None) -> None:
            if error is None:
                self._note(changes)
            callback(error)

        untold: Any = self.untold
        untold.submit(changes, durable)

    def _saved(self, record: Record) -> None:
        self._note([Save(record)])

    def _deleted(self, record: Record) -> None:
        self._note([Delete(record)])

    def save_vhost(self, record: VhostRecord) -> None:
        self.untold.save_vhost(record)
        self._saved(record)

    def delete_vhost(self, name: str) -> None:
        self.untold.delete_vhost(name)
        self._deleted(VhostRecord(name))

    def save_user(self, record: UserRecord) -> None:
        self.untold.save_user(record)
        self._saved(record)

    def delete_user(self, name: str) -> None:
        self.untold.delete_user(name)
        self._deleted(UserRecord(name))

    def save_permission(self, record: PermissionRecord) -> None:
        self.untold.save_permission(record)
        self._saved(record)

    def delete_permission(self, user: str, vhost: str) -> None:
        self.untold.delete_permission(user, vhost)
        self._deleted(PermissionRecord(user, vhost))

    def save_limits(self, record: LimitsRecord) -> None:
        self.untold.save_limits(record)
        self._saved(record)

    def save_parameter(self, record: ParameterRecord) -> None:
        self.untold.save_parameter(record)
        self._saved(record)

    def delete_parameter(self, record: ParameterRecord) -> None:
        self.untold.delete_parameter(record)
        self._deleted(record)

    def save_exchange(self, record: ExchangeRecord) -> None:
        self.untold.save_exchange(record)
        self._saved(record)

    def delete_exchange(self, vhost: str, name: str) -> None:
        self.untold.delete_exchange(vhost, name)
        self._deleted(ExchangeRecord(vhost, name, ""))

    def delete_queue(self, vhost: str, name: str) -> None:
        self.untold.delete_queue(vhost, name)
        self._deleted(QueueRecord(vhost, name, 0))

    def save_binding(self, record: BindingRecord) -> None:
        self.untold.save_binding(record)
        self._saved(record)

    def delete_binding(self, record: BindingRecord) -> None:
        self.untold.delete_binding(record)
        self._deleted(record)
