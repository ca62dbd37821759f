"""SqlDefinitions: the Definitions port on a SQL database (SQLite file or PostgreSQL).

in: records of ports.py. out: the same records, after any number of restarts and crashes.

I1  A method that changes something returns when that is durable; when it raises, nothing has changed, unless the error is latched
    (`failed`): then nobody knows, and the node ends.
I2  Queue ids come from blocks that are reserved durably before the first id of a block is given out: none is ever used twice.
I3  One connection, one user of it at a time. On a server it holds the lock that keeps a second broker out; losing it is latched.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from flintmq.clock import Clock, SystemClock
from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode, StoreError
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
)
from flintmq.store.sql import changes
from flintmq.store.sql.changes import Change, Save
from flintmq.store.sql.driver import SCHEMA_VERSION, STORE_FORMAT, Driver, Location, Operation, State, check_state
from flintmq.store.sql.failures import ConstraintFailure, NotSaved
from flintmq.store.sql.group import GroupCommit
from flintmq.store.sql.location import locate, open_driver
from flintmq.store.sql.migrate import create, migrate
from flintmq.store.sql.values import EMPTY_TABLE, Timestamp, decode_name, decode_table, encode_name

log = logging.getLogger("flintmq.store.sql")

# the arguments of very many rows
_NOTHING: Table = {}


class SqlDefinitions:
    """See ports.Definitions.

    Args: url: of the database, or a Location; catalog: database name on PostgreSQL (made when it is missing and that is allowed);
    clock: for the time of creation; first: records that a new database is made with, in its first transaction; timestamp: makes a
    timestamp value of a stored number (give the codec's type).
    Raises: OperatorError when the database can't be reached or used, is someone else's, newer, or in use by another broker;
    StoreError when it is damaged. A new database gets its tables, an older one is migrated.
    """

    def __init__(
        self,
        url: str | Location,
        catalog: str | None = None,
        clock: Clock | None = None,
        limits: Limits | None = None,
        *,
        timestamp: Callable[[int], Any] = Timestamp,
        first: Sequence[Any] = (),
    ) -> None:
        location = url if isinstance(url, Location) else locate(url, catalog)
        limits = limits or Limits()
        self._timestamp = timestamp
        self._id_block = limits.queue_id_block
        self._id_lock = threading.Lock()
        self._driver: Driver = open_driver(location, limits)
        self._group = GroupCommit(self._driver, limits.sql_group_max)
        try:
            self.created = self._prepare(clock or SystemClock(), first)
            ((store_uuid, store_format, high_water),) = self._driver.rows("load_store", {})
        except BaseException:
            self._driver.close()
            raise
        self.store_uuid = bytes(store_uuid)
        """16 random bytes that the log beside this database carries too."""
        self.store_format: int = store_format
        """Format of the log that this store was made with (docs/FORMAT.md)."""
        self._reserved_id: int = high_water
        self._last_id: int = high_water
        self._reserving = True  # until reserve_ids: the next block is reserved when it is needed

    @classmethod
    def open(
        cls,
        store_dir: Path,
        connect: str | None = None,
        catalog: str | None = None,
        clock: Clock | None = None,
        limits: Limits | None = None,
        *,
        timestamp: Callable[[int], Any] = Timestamp,
        first: Sequence[Any] = (),
    ) -> SqlDefinitions:
        """The definitions that `serve --store-dir --connect --catalog` names; without `connect` a SQLite file in `store_dir`."""
        return cls(locate(connect, catalog, store_dir), None, clock, limits, timestamp=timestamp, first=first)

    def _prepare(self, clock: Clock, first: Sequence[Any]) -> bool:
        """Makes or migrates the tables. True when they were made."""
        state, version = check_state(self._driver)
        if state is State.OLDER:
            log.warning("%s has schema version %s: migrating it to %s", self._driver.where, version, SCHEMA_VERSION)
            migrate(self._driver, version)
        elif state is State.NEW:
            identity = {
                "id": 1,
                "uuid": uuid.uuid4().bytes,
                "format": STORE_FORMAT,
                "queue_id_high_water": 0,
                "created_ms": clock.wall_ms(),
            }
            default = changes.save_vhost(VhostRecord("/", "Default virtual host"))
            made_with = changes.operations_of(Save(record) for record in first)
            create(self._driver, [("create_store", identity), *default, *made_with])
            return True
        return False

    @property
    def where(self) -> str:
        """The database in texts: a path, or a URL without password."""
        return self._driver.where

    @property
    def failed(self) -> StoreError | None:
        """The error that ended saving; None while all is well."""
        return self._group.failed

    def on_failure(self, listener: Callable[[StoreError], None]) -> None:
        """`listener(error)` runs once when saving ends (any thread, before the caller hears of it); now, when it has ended already."""
        self._group.on_failure = listener
        if self._group.failed is not None:
            listener(self._group.failed)

    @property
    def transactions(self) -> int:
        """SQL transactions that were committed (a group counts once)."""
        return self._group.transactions

    def close(self) -> None:
        """Commits what was submitted and closes the database. Idempotent; not from a callback."""
        self._group.close()
        with self._group.connection_lock:
            self._driver.close()

    # --- changing -------------------------------------------------------------------------------------------------------

    def submit(self, changes_: Sequence[Change], callback: Callable[[Exception | None], None]) -> None:
        """Saves and deletes several records, all or nothing, together with whatever else was submitted meanwhile.

        Returns at once. `callback` is called once, from another thread: with None when it is durable, else with the error that the
        save_ or delete_ method would have raised. Callbacks run in the order of submission. Order with other methods: as called.
        Raises: ValueError (a queue id that was not given out), TypeError (arguments no table can hold); StoreError after `close`.
        """
        for change in changes_:
            if isinstance(change, Save) and isinstance(change.record, QueueRecord):
                self._check_id(change.record.queue_id)
        operations = changes.operations_of(changes_)
        self._group.submit(operations, lambda error: callback(_contract_error(error, operations)))

    def _run(self, operations: Sequence[Operation]) -> None:
        try:
            self._group.run(operations)
        except ConstraintFailure as error:
            raise _contract_error(error, operations) or error from error

    def _rows(self, name: str, **parameters: str) -> list[tuple[Any, ...]]:
        with self._group.connection_lock:
            return self._driver.rows(name, parameters)

    # --- queue ids ------------------------------------------------------------------------------------------------------

    def new_queue_id(self) -> int:
        with self._id_lock:
            self._reserve_now()
            self._last_id += 1
            if not self._reserving and self._reserved_id - self._last_id < self._id_block // 2:
                self._reserve_early()
            return self._last_id

    def _reserve_early(self) -> None:
        """The next block, before this one is used up: whoever asks for an id is on an I/O loop and should not wait for the database."""
        high_water = self._reserved_id + self._id_block
        self._reserving = True

        def reserved(error: Exception | None) -> None:
            with self._id_lock:
                self._reserving = False
                if error is None and self._reserved_id < high_water:
                    self._reserved_id = high_water

        self._group.submit([("reserve_queue_ids", {"high_water": high_water})], reserved)

    def reserve_ids(self) -> None:
        """Reserves the first block of this run, so that no loop waits for it later, and from now on each before it is needed. When the
        disk is full it is reserved with the first id."""
        with self._id_lock, contextlib.suppress(NotSaved):
            self._reserving = False
            self._reserve_now()

    def _reserve_now(self) -> None:
        if self._last_id >= self._reserved_id:
            high_water = self._reserved_id + self._id_block
            self._group.run([("reserve_queue_ids", {"high_water": high_water})])
            self._reserved_id = high_water

    @property
    def queue_id_high_water(self) -> int:
        return self._reserved_id

    def _check_id(self, queue_id: int) -> None:
        if not 0 < queue_id <= self._last_id:
            raise ValueError(f"queue id {queue_id} was not given out")

    # --- records --------------------------------------------------------------------------------------------------------

    def save_vhost(self, record: VhostRecord) -> None:
        self._run(changes.save_vhost(record))

    def delete_vhost(self, name: str) -> None:
        self._run(changes.delete_vhost(name))

    def load_vhosts(self) -> Sequence[VhostRecord]:
        records = [VhostRecord(decode_name(name), decode_name(description)) for name, description in self._rows("load_vhosts")]
        return sorted(records, key=lambda record: record.name)

    def save_user(self, record: UserRecord) -> None:
        self._run(changes.save_user(record))

    def delete_user(self, name: str) -> None:
        self._run(changes.delete_user(name))

    def load_users(self) -> Sequence[UserRecord]:
        records = [UserRecord(decode_name(name), hashed, tuple(json.loads(tags))) for name, hashed, tags in self._rows("load_users")]
        return sorted(records, key=lambda record: record.name)

    def save_permission(self, record: PermissionRecord) -> None:
        self._run(changes.save_permission(record))

    def delete_permission(self, user: str, vhost: str) -> None:
        self._run(changes.delete_permission(user, vhost))

    def load_permissions(self) -> Sequence[PermissionRecord]:
        records = [PermissionRecord(*map(decode_name, row)) for row in self._rows("load_permissions")]
        return sorted(records, key=lambda record: (record.user, record.vhost))

    def save_limits(self, record: LimitsRecord) -> None:
        self._run(changes.save_limits(record))

    def load_limits(self) -> Sequence[LimitsRecord]:
        records = []
        for kind, component in changes.LIMIT_COMPONENTS.items():
            for vhost, name, value in self._rows("load_parameters", component=component):
                records.append(LimitsRecord(kind, decode_name(vhost if kind == "vhost" else name), json.loads(value)))
        return sorted(records, key=lambda record: (record.kind, record.name))

    def save_parameter(self, record: ParameterRecord) -> None:
        self._run(changes.save_parameter(record))

    def delete_parameter(self, record: ParameterRecord) -> None:
        self._run(changes.delete_parameter(record))

    def load_parameters(self, component: str) -> Sequence[ParameterRecord]:
        records = [
            ParameterRecord(component, decode_name(vhost), decode_name(name), json.loads(value))
            for vhost, name, value in self._rows("load_parameters", component=component)
        ]
        return sorted(records, key=lambda record: (record.vhost, record.name))

    def save_exchange(self, record: ExchangeRecord) -> None:
        self._run(changes.save_exchange(record))

    def delete_exchange(self, vhost: str, name: str) -> None:
        self._run(changes.delete_exchange(vhost, name))

    def load_exchanges(self, vhost: str) -> Sequence[ExchangeRecord]:
        return [
            ExchangeRecord(vhost, decode_name(name), decode_name(kind), bool(auto_delete), bool(internal), self._table(arguments))
            for name, kind, auto_delete, internal, arguments in self._rows("load_exchanges", vhost=encode_name(vhost))
        ]

    def save_queue(self, record: QueueRecord) -> None:
        self._check_id(record.queue_id)
        self._run(changes.save_queue(record))

    def delete_queue(self, vhost: str, name: str) -> None:
        self._run(changes.delete_queue(vhost, name))

    def load_queues(self, vhost: str) -> Sequence[QueueRecord]:
        rows = self.queue_rows(vhost)
        return [QueueRecord(vhost, name, queue_id, auto_delete, dict(table)) for name, queue_id, auto_delete, table in rows]

    def queue_rows(self, vhost: str) -> Iterator[tuple[str, int, bool, Table]]:
        for piece in self._pieces_of("queues", vhost):
            for name, queue_id, auto_delete, arguments in piece:
                yield decode_name(name), queue_id, bool(auto_delete), _NOTHING if arguments == EMPTY_TABLE else self._table(arguments)

    def queue_ids(self) -> set[int]:
        """Those of all queues of all virtual hosts."""
        return {queue_id for piece in self._pieces("load_queue_ids") for (queue_id,) in piece}

    def save_binding(self, record: BindingRecord) -> None:
        self._run(changes.save_binding(record))

    def delete_binding(self, record: BindingRecord) -> None:
        self._run(changes.delete_binding(record))

    def load_bindings(self, vhost: str) -> Sequence[BindingRecord]:
        return [BindingRecord(vhost, *row[:4], dict(row[4])) for row in self.binding_rows(vhost)]

    def binding_rows(self, vhost: str) -> Iterator[tuple[str, str, str, bytes, Table]]:
        for piece in self._pieces_of("bindings", vhost):
            for source, kind, destination, key, arguments in piece:
                table = _NOTHING if arguments == EMPTY_TABLE else self._table(arguments)
                yield decode_name(source), kind, decode_name(destination), bytes(key), table

    def _pieces_of(self, things: str, vhost: str) -> Iterator[list[tuple[Any, ...]]]:
        """Those of a virtual host, which may be the only one."""
        stored = encode_name(vhost)
        if [name for name, _ in self._rows("load_vhosts")] == [stored]:
            return self._pieces(f"load_all_{things}")
        return self._pieces(f"load_{things}", vhost=stored)

    def _pieces(self, name: str, **parameters: str) -> Iterator[list[tuple[Any, ...]]]:
        """`_rows` in pieces. Nobody changes what is read meanwhile: the rows of a start."""
        pieces = self._driver.pieces(name, parameters)
        while True:
            with self._group.connection_lock:
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def _table(self, text: str) -> dict[str, Any]:
        try:
            return decode_table(text, self._timestamp)
        except (ValueError, ArithmeticError, TypeError) as error:
            raise StoreError(f"{self._driver.where}: stored arguments can't be read: {error}") from error


def _contract_error(error: Exception | None, operations: Sequence[Operation]) -> Exception | None:
    """What the port promises instead of a constraint's error."""
    if not isinstance(error, ConstraintFailure):
        return error
    if error.unknown_vhost:
        vhost = next((parameters["vhost"] for _, parameters in operations if "vhost" in parameters), "")
        return PeerError(ReplyCode.NOT_ALLOWED, f"vhost {decode_name(vhost)} not found")
    ids = [parameters["queue_id"] for name, parameters in operations if name == "save_queue"]
    if not ids:
        return error
    return ValueError(f"queue id {', '.join(map(str, ids))} belongs to another queue")
