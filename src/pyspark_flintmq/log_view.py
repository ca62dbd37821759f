"""What the log source reads: the containers of a store's logs, where they begin and end, the names of queues.

In: options: a stopped broker's directory, an archive, or a running broker (log.snapshot). Out: `LogView`, plain data that can be sent to
executors; `open_view` keeps a running broker's containers while it is open.

V1  A view does not change: reads of two streams with one view see the same moment.
V2  Of a running broker nothing at or above the snapshot's end is read; of a stopped one, nothing behind the last good block.
V3  From `horizon` on each record that was ever written is in the view's containers; below it some may be missing.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import quote

from flintmq.arrow.log import ContainerFacts, StoreBusy, list_log, log_ends, offline_lock
from flintmq.store.sql.values import decode_name
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.log_options import LOGS, LogOptions


@dataclass(frozen=True)
class LogFacts:
    """One log. base: recovery starts there; end: nothing from there on is read; horizon: see V3 (0: all there ever was); torn_at: LSN of a
    torn tail, 0 none; containers: (sequence, path), ascending; size: bytes of a container, which each log has its own of."""

    base: int
    end: int
    horizon: int
    torn_at: int
    containers: tuple[tuple[int, str], ...]
    size: int


@dataclass(frozen=True)
class LogView:
    """A store at one moment. uuid: hex; directory: of the store, empty: an archive only; snapshot: its id, empty: the broker is off."""

    uuid: str
    directory: str
    logs: dict[str, LogFacts]
    queues: dict[int, tuple[str, str]] = field(default_factory=dict)
    snapshot: str = ""
    # somebody extends the snapshot: tasks need not
    kept: bool = False

    def text(self) -> str:
        """For option `snapshot`."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> LogView:
        """The way back. Raises: SourceError OPTION_VALUE."""
        try:
            raw = json.loads(text)
            logs = {
                name: LogFacts(
                    one["base"],
                    one["end"],
                    one["horizon"],
                    one["torn_at"],
                    tuple((int(number), str(path)) for number, path in one["containers"]),
                    one["size"],
                )
                for name, one in raw.pop("logs").items()
            }
            queues = {int(number): (names[0], names[1]) for number, names in raw.pop("queues").items()}
            return cls(logs=logs, queues=queues, **raw)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise SourceError("OPTION_VALUE", "option 'snapshot' is not what LogView.text() gave") from None

    def queue_ids(self, options: LogOptions) -> frozenset[int]:
        """Ids of the queues that the options name. Raises: SourceError QUEUE_MISSING."""
        vhost = options.connection.vhost
        ids = set(options.queue_ids)
        for name in options.queues:
            numbers = [number for number, names in self.queues.items() if names == (vhost, name)]
            if not numbers:
                raise SourceError(
                    "QUEUE_MISSING",
                    f"no definition of queue '{name}' in vhost '{vhost}'; a deleted one can be named by its id: option 'queueIds'",
                )
            ids.update(numbers)
        return frozenset(ids)


def take_view(options: LogOptions) -> LogView:
    """The view that the options ask for. Of a running broker it is kept for `ttl_s` seconds.

    Raises: SourceError LOG_NOT_VISIBLE, STORE_BUSY, NO_STORE, OPTION_MISSING; ConnectionLost.
    """
    if options.view:
        return LogView.of(options.view)
    try:
        if options.store_dir or options.archive_only:
            return _offline(options)
        return _online(options)
    except OSError as e:
        raise SourceError("NO_STORE", f"{e.filename}: {e.strerror}") from e


@contextmanager
def open_view(raw: Mapping[str, str]) -> Iterator[LogView]:
    """A view that stays as long as the block: a running broker keeps its containers. Args: raw: options of the source."""
    options = LogOptions.parse(raw)
    view = take_view(options)
    if not view.snapshot:
        yield view
        return
    plane = options.connection.open()
    done = threading.Event()

    def keep() -> None:
        while not done.wait(options.ttl_s / 4):
            with suppress(Exception):  # a broker that restarts has forgotten it: tasks check what they read
                plane.log_extend(view.snapshot, options.ttl_s)

    keeper = threading.Thread(target=keep, name="flintmq-snapshot", daemon=True)
    keeper.start()
    try:
        yield replace(view, kept=True)
    finally:
        done.set()
        keeper.join()
        with suppress(Exception):
            plane.log_release(view.snapshot)
        plane.close()


# --- a running broker -------------------------------------------------------------------------------------------------------


def _online(options: LogOptions) -> LogView:
    connection = options.connection
    with connection.errors():
        plane = connection.open()
        try:
            snapshot = plane.log_snapshot(ttl_s=options.ttl_s)
            try:
                return _of_snapshot(options, snapshot)
            except BaseException:
                plane.log_release(snapshot.id)
                raise
        finally:
            plane.close()


def _of_snapshot(options: LogOptions, snapshot: Any) -> LogView:
    directory, uuid = str(snapshot.store["directory"]), str(snapshot.store["uuid"])
    where = options.connection.where
    if not os.path.isdir(directory):
        raise SourceError(
            "LOG_NOT_VISIBLE",
            f"the store of the broker at {where} is {directory}, which is not on this machine: run Spark there, or mount it there",
        )
    logs = {}
    for name in LOGS:
        facts = snapshot.logs[name]
        there = {one.sequence: one for one in list_log(os.path.join(directory, name))}
        wanted = [there[number] for number in facts["containers"] if number in there]
        if len(wanted) < len(facts["containers"]) or any(one.good and one.store_uuid.hex() != uuid for one in wanted):
            raise SourceError("LOG_NOT_VISIBLE", f"{directory} on this machine is not the store of the broker at {where} (UUID {uuid})")
        size = int(facts["container_size"])
        logs[name] = _facts(_with_archive(options, name, wanted, bytes.fromhex(uuid)), size, int(facts["base"]), int(facts["end"]), 0)
    queues = {int(number): (names[0], names[1]) for number, names in snapshot.queues.items()}
    return LogView(uuid, directory, logs, queues, snapshot.id)


# --- a stopped broker, an archive -------------------------------------------------------------------------------------------


def _offline(options: LogOptions) -> LogView:
    directory = options.store_dir or options.archive_dir
    if not any(os.path.isdir(os.path.join(directory, name)) for name in LOGS):
        raise SourceError("NO_STORE", f"{directory} is no store: it has neither a directory 'messages' nor 'transactions'")
    with offline(options.store_dir):
        by_log = {name: _containers(os.path.join(directory, name)) for name in LOGS}
        headers = [one for containers in by_log.values() for one in containers if one.good]
        uuid = headers[0].store_uuid if headers else b""
        logs = {}
        for name, containers in by_log.items():
            ends = log_ends(os.path.join(directory, name), LOGS.index(name) + 1) if containers else None
            if ends is None:
                logs[name] = LogFacts(0, 0, 0, 0, (), 0)
                continue
            if options.store_dir:
                containers = _with_archive(options, name, containers, uuid)
            size = next((one.size for one in containers if one.good), containers[0].size)
            logs[name] = _facts(containers, size, ends.base, ends.tail, ends.torn_at)
        return LogView(uuid.hex(), options.store_dir, logs, _queue_names(options.store_dir) if options.store_dir else {})


@contextmanager
def offline(store_dir: str) -> Iterator[None]:
    """Keeps brokers away from the store; an empty name: there is none. Raises: SourceError STORE_BUSY."""
    if not store_dir:
        yield
        return
    try:
        with offline_lock(store_dir):
            yield
    except StoreBusy as e:
        raise SourceError("STORE_BUSY", f"{e}: read through it (options host, flightPort), or stop it first") from e


def _containers(directory: str) -> list[ContainerFacts]:
    return list_log(directory) if os.path.isdir(directory) else []


def _with_archive(options: LogOptions, name: str, containers: list[ContainerFacts], uuid: bytes) -> list[ContainerFacts]:
    if not options.archive_dir:
        return containers
    archived = [one for one in _containers(os.path.join(options.archive_dir, name)) if one.good]
    strange = next((one for one in archived if one.store_uuid != uuid), None)
    if strange is not None:
        raise SourceError("OPTION_VALUE", f"option 'archiveDir': {strange.path} belongs to another store")
    return sorted({one.sequence: one for one in (*archived, *containers)}.values(), key=lambda one: one.sequence)


def _facts(containers: list[ContainerFacts], size: int, base: int, end: int, torn_at: int) -> LogFacts:
    used = [one for one in containers if one.sequence * size < end]
    sequences = {one.sequence for one in used}
    lowest = max(sequences, default=0)
    while lowest - 1 in sequences:
        lowest -= 1
    # Container 1 is the first of a log: with it nothing is missing. Above the base nothing is missing anyway.
    horizon = 0 if lowest <= 1 else min(base, lowest * size) if base else lowest * size
    return LogFacts(base, end, horizon, torn_at, tuple((one.sequence, one.path) for one in used), size)


def _queue_names(store_dir: str) -> dict[int, tuple[str, str]]:
    """From definitions.db; empty when the definitions are in another database."""
    path = os.path.join(store_dir, "definitions.db")
    if not os.path.isfile(path):
        return {}
    try:
        database = sqlite3.connect(f"file:{quote(os.path.abspath(path))}?mode=ro", uri=True)
        try:
            rows = database.execute("SELECT queue_id, vhost, name FROM queues").fetchall()
        finally:
            database.close()
    except sqlite3.Error as e:
        raise SourceError("NO_STORE", f"{path}: {e}") from e
    return {int(number): (decode_name(vhost), decode_name(name)) for number, vhost, name in rows}
