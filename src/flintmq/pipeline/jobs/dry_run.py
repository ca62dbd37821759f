"""The dry run of a job: broker, versions, permissions, containers or queues, about how much. Nothing is changed, no Spark is started.

in: a job and its parameters. out: a Summary; OperatorError with the line and code that the job itself would end with.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from pathlib import Path
from typing import Any

from flintmq import __version__
from flintmq.errors import OperatorError
from flintmq.pipeline.jobs import delta
from flintmq.pipeline.jobs.archive import Archive, ArchiveParameters, _check_place
from flintmq.pipeline.jobs.failures import explained
from flintmq.pipeline.jobs.job import LogParameters, Summary
from flintmq.pipeline.jobs.log_messages import Range, names_of
from flintmq.pipeline.jobs.replay import Replay, ReplayParameters, done_before

CONFLICT = 75


def plan(job: Any, params: Any) -> Summary:
    """See module. Raises: OperatorError."""
    plan_ = _Plan(job.name, job.about)
    try:
        if hasattr(params, "checked"):
            params.checked()
        plan_.versions()
        if isinstance(job, Archive):
            _archive(plan_, params)
        elif isinstance(job, Replay):
            _replay(plan_, params)
        elif isinstance(params, LogParameters):
            Range.of(params)
            _log(plan_, params)
    except Exception as error:
        raise explained(error, f"{job.name} --dry-run") from error
    plan_.line("changed", "nothing: leave out --dry-run to run it")
    return Summary(job.name, plan_.lines, {"dry_run": True, **plan_.figures})


class _Plan:
    def __init__(self, job: str, about: str) -> None:
        self.lines: list[str] = []
        self.figures: dict[str, Any] = {"job": job}
        self.line("job", f"{job}: {about}")

    def line(self, label: str, text: str) -> None:
        self.lines.append(f"{label:<13}{text}")

    def versions(self) -> None:
        versions = {"flintmq": __version__}
        for package in ("pyspark", "pyarrow"):
            versions[package] = importlib.metadata.version(package)
        java = os.environ.get("JAVA_HOME") or shutil.which("java") or ""
        self.figures["versions"] = versions
        self.line("versions", ", ".join(f"{name} {version}" for name, version in versions.items()) + f", Java of {java or '(none found)'}")

    def broker(self, plane: Any, where: str) -> None:
        status = plane.status()
        self.figures["broker"] = {"version": status.get("version"), "store_uuid": status.get("store", {}).get("uuid")}
        self.line("broker", f"{where}: FlintMQ {status.get('version')}, store {status.get('store', {}).get('uuid')}")


def _connection(options: dict[str, str]) -> Any:
    from pyspark_flintmq.connection import Connection

    connection, _ = Connection.take(options)
    return connection


def _archive(outline: _Plan, params: ArchiveParameters) -> None:
    _check_place(params)
    if params.format == "delta":
        delta.check_installed()
    if params.from_log:
        _log(outline, params)
    elif params.are_streams():
        _streams(outline, params)
    else:
        _queues(outline, params)
    there = params.directory.exists()
    outline.line("writes", f"{params.directory} ({params.format} by date and queue; {'goes on' if there else 'new'})")
    outline.figures["out"] = str(params.directory)


def _queues(outline: _Plan, params: ArchiveParameters) -> None:
    from pyspark_flintmq.claim import matching_queues
    from pyspark_flintmq.queue_options import QueueOptions

    options = QueueOptions.stream(params.stream_options())
    connection = options.connection
    with connection.errors():
        plane = connection.open()
        try:
            outline.broker(plane, connection.where)
            queues = list(options.queues) or matching_queues(plane, options)
            browse = plane.browse_open(queues)
            try:
                size = _sampled_bytes(plane, browse)
            finally:
                plane.browse_close(browse.id)
            _subscription(outline, plane, options.subscription, queues)
        finally:
            plane.close()
    counts = {one["queue"]: one["count"] for one in browse.queues}
    prefix = "at least " if browse.more.get("more") else ""
    for name, count in counts.items():
        outline.line("queue", f"{name}: {count:,} messages ready")
    outline.line("reads", f"{prefix}{browse.count:,} messages, about {size:,} bytes of bodies; batches of {options.max_messages:,} at most")
    outline.figures |= {"queues": counts, "rows": browse.count, "bytes": size, "partitions": options.partitions}


def _streams(outline: _Plan, params: ArchiveParameters) -> None:
    """All that the streams hold is counted: where a checkpoint stands is for Spark to read."""
    connection = _connection({name: text for name, text in params.source_options().items() if name in _OF_CONNECTION})
    counts: dict[str, int] = {}
    size = 0
    with connection.errors():
        plane = connection.open()
        try:
            outline.broker(plane, connection.where)
            for name in names_of(params.queue):
                opened = plane.stream_open(name)
                counts[name] = int(opened["next"]) - int(opened["first"])
                size += int(opened["bytes"])
                outline.line("stream", f"{name}: {counts[name]:,} messages, offsets {opened['first']:,} to {opened['next']:,}")
        finally:
            plane.close()
    rows = sum(counts.values())
    goes_on = "; what the checkpoint has is not read again" if params.checkpoint_directory.exists() else ""
    outline.line("reads", f"at most {rows:,} messages, {size:,} bytes of the log; batches of {params.max_messages:,} at most{goes_on}")
    outline.figures |= {"queues": counts, "rows": rows, "bytes": size}


def _sampled_bytes(plane: Any, browse: Any) -> int:
    """Of all bodies, from those of the first record batch."""
    import pyarrow.compute as pc

    if not browse.count:
        return 0
    batches = plane.read(browse.tickets[0], columns=["body"])
    try:
        first = next(batches, None)
    finally:
        batches.close()
    if first is None or not first.num_rows:
        return 0
    return int(pc.sum(pc.binary_length(first.column("body"))).as_py() * browse.count / first.num_rows)


def _subscription(outline: _Plan, plane: Any, name: str, queues: list[str]) -> None:
    try:
        status = plane.sub_status(name)
    except Exception as error:
        if getattr(error, "code", "") != "NOT_FOUND":
            raise
        outline.line("subscription", f"{name}: new")
        return
    if sorted(status["queues"]) != sorted(queues):
        outline.line("queues", f"{', '.join(status['queues'])} until now, {', '.join(queues)} from the next batch on")
    held = f", batch {status['prepared']} of {status['prepared_messages']:,} messages is under way" if status.get("prepared") else ""
    outline.line("subscription", f"{name}: {status['committed']:,} batches committed{held}")
    outline.figures["subscription"] = {key: status.get(key) for key in ("name", "epoch", "committed", "prepared", "prepared_messages")}


def _tell_broker(outline: _Plan, connection: Any) -> None:
    """Which broker answers, and who it says the user is."""
    with connection.errors():
        plane = connection.open()
        try:
            outline.broker(plane, connection.where)
        finally:
            plane.close()


def _log(outline: _Plan, params: LogParameters) -> None:
    from pyspark_flintmq.log_view import open_view

    options = params.source_options()
    if not params.store_dir:
        connection = _connection({name: text for name, text in options.items() if name in _OF_CONNECTION})
        _tell_broker(outline, connection)
    with open_view(options) as view:
        wanted = names_of(params.queue)
        names = {name for vhost, name in view.queues.values() if vhost == params.vhost}
        if missing := sorted(set(wanted) - names):
            raise OperatorError(f"FLINTMQ_QUEUE_MISSING: the store has no queue {', '.join(missing)} in vhost {params.vhost}", 69)
        outline.line("store", f"{view.directory or params.archive_dir} ({view.uuid}), {len(names):,} queues in vhost {params.vhost}")
        sizes, rows = {}, {}
        for name, facts in view.logs.items():
            size = len(facts.containers) * facts.size
            rows[name] = _estimated_records(name, facts, view.uuid)
            sizes[name] = size
            text = (
                f"{len(facts.containers):,} containers, {size:,} bytes, about {rows[name]:,} records, LSN {facts.base:,} to {facts.end:,}"
            )
            outline.line("log", f"{name}: {text}" + (f"; torn tail at {facts.torn_at:,}" if facts.torn_at else ""))
        outline.figures |= {
            "containers": {name: len(facts.containers) for name, facts in view.logs.items()},
            "bytes": sum(sizes.values()),
            "rows": sum(rows.values()),
            "queues": sorted(wanted or names),
        }
    if params.since or params.until:
        outline.line("range", f"{params.since or 'the beginning'} to {params.until or 'now'}")


_OF_CONNECTION = ("host", "flightPort", "url", "user", "password", "vhost", "tlsCa", "timeout")


def _estimated_records(name: str, facts: Any, uuid: str) -> int:
    """Records in all containers, from one in the middle."""
    from flintmq.arrow.scan import scan_container

    if not facts.containers:
        return 0
    _, path = facts.containers[len(facts.containers) // 2]
    scan = scan_container(path, log=name, columns=["lsn"], base=facts.base, end=facts.end, mode="PERMISSIVE")
    for _ in scan:
        pass
    return int(scan.records) * len(facts.containers)


def _replay(outline: _Plan, params: ReplayParameters) -> None:
    connection = _connection(params.connection_options())
    _tell_broker(outline, connection)
    before = done_before(params)
    if params.archive:
        files, rows, size = _archived(params)
        outline.line("archive", f"{params.archive_path}: {files:,} files, at most {rows:,} messages, {size:,} bytes")
        outline.figures |= {"files": files, "rows": rows, "bytes": size}
    else:
        _log(outline, params)
    where = f"queue {params.to_queue}" if params.to_queue else f"exchange {params.to_exchange}" if params.to_exchange else "where they were"
    outline.line("writes", f"to {where}, all or none, as {params.name}")
    if before:
        outline.line("done", "a replay of this name was published before: this one would publish nothing")
    outline.figures |= {"txn_id": params.name, "done_before": before}


def _archived(params: ReplayParameters) -> tuple[int, int, int]:
    """(files, rows, bytes) of an archive, without days and queues that are not asked for."""
    from urllib.parse import unquote

    from pyarrow import parquet

    path = params.archive_path
    if not path.is_dir():
        raise OperatorError(f"--archive {path}: there is no such directory", 69)
    if delta.is_table(path):
        delta.check_installed()
        names = [Path(unquote(name.removeprefix("file://"))) for name in delta.files(path)[0]]
    else:
        names = sorted(path.glob("date=*/queue=*/*.parquet"))
        if not names and any(path.glob("date=*/queue_id=*")):
            raise OperatorError(f"FLINTMQ_SCHEMA_MISMATCH: --archive {path} holds records of the log, not messages", 65)
        if not names and not (path / "_SUCCESS").exists() and not (path / "_spark_metadata").is_dir():
            raise OperatorError(f"--archive {path} is no archive: it has no date=.../queue=.../ with Parquet files", 69)
    wanted = names_of(params.queue)
    if wanted:
        names = [one for one in names if unquote(one.parent.name).removeprefix("queue=") in wanted]
    rows = sum(parquet.read_metadata(one).num_rows for one in names)
    return len(names), rows, sum(one.stat().st_size for one in names)
