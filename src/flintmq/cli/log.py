"""`flintmq log dump|verify|stats|repair`: reads a store directory with the independent reader (store/log/inspect.py).

Exit codes: 0 good (a torn tail is: it was never confirmed); 64 usage, no store; 65 damage; 69 the store is in use; 74 it can't be read.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flintmq.cli.param_type import ParamType
from flintmq.cli.store import store_locked

if TYPE_CHECKING:
    from flintmq.store.log.inspect import Damage, Log, StoreView
    from flintmq.store.log.inspect_state import State
    from flintmq.store.log.record_fields import Record

EX_OK, EX_DATA = 0, 65
# Findings on the terminal; --json tells all that were kept.
SHOWN_MAX = 50
IDS_SHOWN_MAX = 10
# A running broker may move the store on between two reads: findings are read again this often before they are believed.
LIVE_TRIES = 3


class LogName(ParamType[str]):
    """messages, transactions, or streams/QUEUE_ID."""

    name = "LOG"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        kind, _, queue_id = str(value).partition("/")
        if value not in ("messages", "transactions") and not (kind == "streams" and queue_id.isascii() and queue_id.isdigit()):
            self.fail(f"{value!r} is none of 'messages', 'transactions' and 'streams/QUEUE_ID'", param, ctx)
        return str(value)


class Lsn(ParamType[int]):
    """A log sequence number: decimal, or hexadecimal with 0x."""

    name = "LSN"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            number = int(value, 0)
        except ValueError:
            self.fail(f"{value!r} is not an LSN", param, ctx)
        if not 0 <= number < 1 << 64:
            self.fail(f"{value} is not between 0 and 2^64 - 1", param, ctx)
        return number


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def log() -> None:
    """Looks into a store directory, and repairs one that is damaged."""


directory = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
as_json = click.option("--json", "as_json", is_flag=True, help="JSON on stdout instead of text.")


# --- dump ---------------------------------------------------------------------------------------------------------------


def _shown(value: Any) -> str:
    """A field for people: bytes as quoted ASCII."""
    if isinstance(value, bytes):
        return "'" + value.decode("latin-1").encode("unicode_escape").decode("ascii").replace("'", "\\x27") + "'"
    if isinstance(value, list):
        return "[" + " ".join(_shown(item) for item in value) + "]"
    if isinstance(value, tuple):
        return ":".join(map(str, value))
    return str(value)


def _plain(value: Any) -> Any:
    """A field for JSON. Names are text (bytes that are no UTF-8 escaped), content is base64 (see _fields)."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "enqueued_by"):
        return {name: getattr(value, name) for name in type(value).__slots__}
    return value


def _fields(record: Record, number: int, bodies: bool, for_json: bool) -> dict[str, Any]:
    from flintmq.store.log.record_fields import Malformed, content_parts, fields_of

    try:
        values = fields_of(record, number)
    except Malformed as error:
        return {"malformed": str(error)}
    content = values.pop("content", None)
    if bodies and content is not None:
        whole = content_parts({**values, "content": content}) if "route" in values else None
        parts = whole or {"body" if "distance" in values else "piece": content}
        for name, data in parts.items():
            values[f"{name}_bytes"] = base64.b64encode(data).decode("ascii") if for_json else data
    if not for_json and "places" in values:
        values["places"] = [f"{p.queue}:{p.position}:{p.expires_ms}:{p.enqueued_by}:{p.dequeued_by}" for p in values["places"]]
    if "xid" in values:
        values["xid"] = values["xid"].hex()
    return values


def record_line(source: Log, record: Record, bodies: bool, for_json: bool) -> str:
    """One record as one line."""
    from flintmq.store.log.record_fields import LAST, time_text

    container, offset = divmod(record.lsn, source.container_size)
    own = _fields(record, source.number, bodies, for_json)
    common: dict[str, Any] = {"undo_prev": record.undo_prev}
    if record.undo_next:
        common["undo_next"] = record.undo_next
    if record.tx:
        common["tx"] = record.tx
    if record.expires_ms:
        common["expires_ms"] = record.expires_ms
    if record.stream:
        common["stream"] = record.stream
    if record.flags & LAST:
        common["last"] = True
    if for_json:
        head: dict[str, Any] = {"log": source.name, "lsn": record.lsn, "container": container, "offset": offset, "type": record.name}
        line = head | {"time_us": record.time_us, "length": record.length} | common
        return json.dumps(line | {"fields": {name: _plain(value) for name, value in own.items()}})
    fields = " ".join(f"{name}={_shown(value)}" for name, value in {**common, **own}.items())
    return f"{record.lsn} {source.name}/{container}+{offset} {record.name} {time_text(record.time_us)} {fields}"


def _damage_json(damage: Damage) -> dict[str, Any]:
    return {name: getattr(damage, name) for name in type(damage).__slots__}


@log.command()
@directory
@click.option(
    "--log", "which", type=LogName(), help="Only this log: messages, transactions, or streams/QUEUE_ID.  [default: the first two]"
)
@click.option("--from", "first", type=Lsn(), default=0, help="First LSN.")
@click.option("--to", "last", type=Lsn(), default=(1 << 64) - 1, help="Last LSN.")
@click.option("--bodies", is_flag=True, help="Content too, not only its size.")
@as_json
@click.pass_context
def dump(context: click.Context, /, directory: Path, which: str | None, first: int, last: int, bodies: bool, as_json: bool) -> None:
    """Prints one line per record, dead ones that are still there too."""
    from flintmq.store.log.inspect import LOGS, Damage, open_store

    if which and which not in LOGS:
        _there(directory, which)
    view = open_store(directory, (which,) if which else tuple(LOGS))
    damaged = False
    try:
        for source in view.logs.values():
            for damage in source.damage:
                damaged = True
                click.echo(describe(damage), err=True)
            for block in source.blocks:
                if block.end <= first or block.lsn > last:
                    continue
                for item in source.records_of(block):
                    if isinstance(item, Damage):
                        damaged = True
                        click.echo(describe(item), err=True)
                    elif first <= item.lsn <= last:
                        sys.stdout.write(record_line(source, item, bodies, as_json) + "\n")
            if source.torn_at:
                click.echo(torn_text(source), err=True)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    context.exit(EX_DATA if damaged else EX_OK)


def _there(directory: Path, name: str) -> None:
    """Raises: OperatorError (64) when the store has no log of this stream."""
    from flintmq.errors import OperatorError
    from flintmq.store.log.inspect import check_store

    check_store(directory)
    if not (directory / name).is_dir():
        streams = directory / "streams"
        ids = sorted(int(one.name) for one in streams.iterdir() if one.name.isdigit()) if streams.is_dir() else []
        there = f"there are those of the queues {', '.join(map(str, ids))}" if ids else "it has no streams"
        raise OperatorError(f"{directory}: no log {name}: {there}", 64)


# --- verify -------------------------------------------------------------------------------------------------------------

_MEANS = {
    "header": "the container's header is damaged; its blocks may be good",
    "format": "another version of FlintMQ wrote this",
    "store": "this file does not belong here",
    "name": "this file does not belong under this name",
    "size": "the file was cut or grew",
    "read": "the disk does not give the bytes back",
    "malformed": "a broken writer: the checksum is right, the fields are not",
    "reference": "the record it needs is gone",
    "lost": "the message can't be delivered whole",
}


def meaning(damage: Damage) -> str:
    """What a finding means for who runs the broker."""
    if damage.kind in _MEANS:
        return _MEANS[damage.kind]
    if damage.log.startswith("streams/"):
        return "messages of the stream can't be read any more: consumers are told which, the rest is served"
    if damage.log == "transactions":
        return "records that were durable are gone, maybe outcomes of transactions: the broker refuses to start until `flintmq log repair`"
    return "records that were durable are gone: messages may be lost, or come back that were settled; the broker quarantines the file"


def describe(damage: Damage) -> str:
    """A finding in one line: file, offset, LSN, what, and what it means."""
    upto = f" to {damage.end}" if damage.end > damage.lsn else ""
    return f"damage: {damage.file} offset {damage.offset} (LSN {damage.lsn}{upto}): {damage.text}: {meaning(damage)}"


def torn_text(source: Log) -> str:
    """The note about a torn tail."""
    where = f"{source.file_of(source.torn_at // source.container_size)} offset {source.torn_at % source.container_size}"
    why = "the running broker is writing there" if source.live else "a write that did not finish, never confirmed; recovery cuts it off"
    return f"note: torn tail at {where} (LSN {source.torn_at}): {why}"


def inspect(directory: Path) -> tuple[StoreView, State, list[Damage]]:
    """Reads the whole store: view, meaning, and all findings by log and LSN."""
    from flintmq.store.log.inspect import open_store
    from flintmq.store.log.inspect_state import read_state

    tries = 0
    while True:
        tries += 1
        view = open_store(directory)
        state = read_state(view)
        findings = [damage for source in view.logs.values() for damage in source.damage] + state.damage
        if not (findings and view.live and tries < LIVE_TRIES):
            return view, state, sorted(findings, key=lambda damage: (damage.log, damage.lsn))


def notes_of(view: StoreView, state: State) -> list[str]:
    """What a reader should know though it is no damage."""
    notes = []
    if view.live:
        notes.append("note: a broker has the store open; its newest blocks may be incomplete here")
    for source in view.logs.values():
        notes.extend(f"note: {text}" for text in source.notes)
        if not source.containers:
            notes.append(f"note: {source.name}: no containers")
        if source.torn_at:
            notes.append(torn_text(source))
        elif source.blocks and not source.clean and not view.live:
            notes.append(f"note: {source.name}: the last stop was not a clean one")
    for text, count in sorted(state.remarks.items()):
        if " " in text:  # the one-word ones count findings that are listed as damage
            notes.append(f"note: {count} records {text}")
    if view.pages:
        notes.append(f"note: {view.pages} containers of transient messages in pages/ (not read; dropped at the next start)")
    return notes


def log_figures(source: Log, state: State) -> dict[str, Any]:
    """The figures of one log that verify and stats have in common."""
    return {
        "containers": len(source.containers),
        "container_size": source.container_size,
        "bytes": sum(container.file_size for container in source.containers.values()),
        "base": source.base,
        "tail": source.tail,
        "blocks": len(source.blocks),
        "records": sum(state.by_type.get(source.name, {}).values()),
        "epoch": source.blocks[-1].epoch if source.blocks else 0,
        "clean": source.clean,
        "torn_at": source.torn_at or None,
    }


@log.command()
@directory
@as_json
@click.pass_context
def verify(context: click.Context, /, directory: Path, as_json: bool) -> None:
    """Checks every byte of all logs that a checksum covers, that records find what they refer to, and that a start from the newest
    checkpoint finds what the whole log says."""
    from flintmq.store.log.inspect import check_stream, open_streams

    view, state, findings = inspect(directory)
    notes = notes_of(view, state)
    figures = {source.name: log_figures(source, state) for source in view.logs.values()}
    for source in open_streams(directory, view.live).logs.values():
        state.by_type[source.name], found_there = check_stream(source)
        findings += found_there
        figures[source.name] = log_figures(source, state)
        if source.torn_at:
            notes.append(torn_text(source))
    begin, differences = (None, []) if findings or view.live else _prove(view.path)
    if begin is not None and not differences:
        notes.append(f"note: a start reads the message log from LSN {begin} on, and finds what the whole log says")
    if as_json:
        result: dict[str, Any] = {
            "ok": not (findings or differences),
            "store": str(view.path),
            "uuid": view.uuid.hex(),
            "in_use": view.live,
        }
        result["logs"] = figures
        result["damage"] = [_damage_json(damage) | {"meaning": meaning(damage)} for damage in findings]
        result["checkpoint"] = {"begin": begin, "differences": differences}
        result["notes"] = [note.removeprefix("note: ") for note in notes]
        click.echo(json.dumps(result))
    else:
        for name, figure in figures.items():
            summary = "{containers} containers of {container_size:,} bytes, {blocks:,} blocks, {records:,} records, LSN {base} to {tail}"
            click.echo(f"{name + ':':<14}{summary.format(**figure)}")
        for line in (*notes, *map(describe, findings[:SHOWN_MAX]), *(f"checkpoint: {text}" for text in differences)):
            click.echo(line)
        if len(findings) > SHOWN_MAX:
            click.echo(f"... and {len(findings) - SHOWN_MAX} more")
        bad = f"DAMAGED: {len(findings)} findings" if findings else f"WRONG: the checkpoint differs, remove {view.path}/index"
        click.echo(bad if findings or differences else "ok", err=bool(findings or differences))
    context.exit(EX_DATA if findings or differences else EX_OK)


def _prove(directory: Path) -> tuple[int | None, list[str]]:
    """See store.checkpoint_proof.prove."""
    from flintmq.store.checkpoint_proof import prove
    from flintmq.store.log.file_port import OsFiles

    files: Any = OsFiles  # compiled: its arguments are not seen by mypy
    begin, differences = prove(files(False), str(directory))
    return begin, differences


# --- stats --------------------------------------------------------------------------------------------------------------


def statistics(view: StoreView, state: State) -> dict[str, Any]:
    """All figures of `flintmq log stats`."""
    from flintmq.store.log.containers import SECTOR
    from flintmq.store.log.inspect import BLOCK_HEADER

    queues: dict[int, int] = {}
    live = pending = original = 0
    first = min((block.lsn for block in view.logs["messages"].blocks), default=0)
    oldest = None
    for message in state.messages.values():
        spots = state.spots(message)
        seen = [spot for spot in spots if state.visible(spot)]
        for spot in seen:
            queues[spot.queue] = queues.get(spot.queue, 0) + 1
        if seen:
            live += 1
        elif spots:
            pending += 1
        original += bool(spots) and message.id >= first  # the others are only there as copies
        if spots and (oldest is None or message.id < oldest.id):
            oldest = message
    states: dict[str, int] = {}
    for transaction in state.transactions.values():
        if not transaction.deleted:
            name = transaction.state if not transaction.ended else f"{transaction.state}, ended"
            states[name] = states.get(name, 0) + 1
    begun = state.by_type.get("messages", Counter())
    logs = {}
    for source in view.logs.values():
        whole = sum(container.file_size for container in source.containers.values())
        used = sum(block.length for block in source.blocks) + SECTOR * len(source.containers)
        sealed = {block.lsn // source.container_size for block in source.blocks}
        written = source.container_size * max(len(sealed) - 1, 0) + (source.tail - 1) % source.container_size + 1 if sealed else 0
        data = sum(state.bytes_by_type.get(source.name, {}).values())
        headers = sum(BLOCK_HEADER for _ in source.blocks)
        logs[source.name] = log_figures(source, state) | {
            "record_bytes": data,
            "block_header_bytes": headers,
            "padding_share": round(max(0.0, 1 - (data + headers + SECTOR * len(sealed)) / written), 4) if written else 0.0,
            "used_share": round(used / whole, 4) if whole else 0.0,
            "records_by_type": dict(state.by_type.get(source.name, {})),
            "bytes_by_type": dict(state.bytes_by_type.get(source.name, {})),
        }
    return {
        "store": str(view.path),
        "uuid": view.uuid.hex(),
        "in_use": view.live,
        "logs": logs,
        "messages": {
            "live": live,
            "pending": pending,
            "dead": max(0, begun["Message-Start"] + begun["Message"] - original),
            "live_body_bytes": sum(message.body for message in state.messages.values() if state.spots(message)),
            "oldest": None if oldest is None else {"id": oldest.id, "lsn": oldest.lsn, "time_us": oldest.time_us},
        },
        "queues": {str(queue): count for queue, count in sorted(queues.items())},
        "transactions": states,
        "notes": len(state.notes),
        "damage": sum(len(source.damage) for source in view.logs.values()) + len(state.damage),
    }


def queue_names(view: StoreView) -> dict[str, str]:
    """Queue id -> "vhost name" as definitions.db in the store directory tells; empty when the definitions are elsewhere.

    Read without touching the file: of a stopped store what is not yet moved out of its write-ahead log is not seen.
    """
    import sqlite3
    from urllib.parse import quote

    path = view.path / "definitions.db"
    if not path.is_file():
        return {}
    try:
        database = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro{'' if view.live else '&immutable=1'}", uri=True)
        try:
            return {str(number): f"{vhost} {name}" for number, vhost, name in database.execute("SELECT queue_id, vhost, name FROM queues")}
        finally:
            database.close()
    except sqlite3.Error:
        return {}


def _stats_lines(figures: dict[str, Any], names: dict[str, str]) -> Iterator[str]:
    from flintmq.store.log.record_fields import time_text

    for name, part in figures["logs"].items():
        yield f"{name}: {part['containers']} containers, {part['bytes']:,} bytes on disk, base LSN {part['base']}, tail LSN {part['tail']}"
        yield (
            f"  {part['records']:,} records of {part['record_bytes']:,} bytes in {part['blocks']:,} blocks, "
            f"padding {part['padding_share']:.1%}, epoch {part['epoch']}{', clean stop' if part['clean'] else ''}"
        )
        for kind, count in sorted(part["records_by_type"].items()):
            yield f"  {kind:<20}{count:>14,}{part['bytes_by_type'][kind]:>18,} bytes"
    messages = figures["messages"]
    yield (
        f"messages: {messages['live']:,} live, {messages['dead']:,} dead, {messages['pending']:,} in undecided transactions, "
        f"{messages['live_body_bytes']:,} bytes of live bodies"
    )
    if oldest := messages["oldest"]:
        yield f"  oldest live: {oldest['id']} of {time_text(oldest['time_us'])}, now at LSN {oldest['lsn']}"
    for queue, count in figures["queues"].items():
        yield f"  queue {queue:<14}{count:>14,}  {_shown(names[queue].encode()) if queue in names else ''}".rstrip()
    states = ", ".join(f"{count:,} {name}" for name, count in sorted(figures["transactions"].items()))
    yield f"transactions: {states or 'none'}"
    if figures["damage"]:
        yield f"damage: {figures['damage']} findings, see `flintmq log verify`; the figures leave out what can't be read"


@log.command()
@directory
@as_json
@click.pass_context
def stats(context: click.Context, /, directory: Path, as_json: bool) -> None:
    """What the store holds: messages, queues, transactions, and what the bytes are used for."""
    view, state, _ = inspect(directory)
    figures = statistics(view, state)
    names = queue_names(view)
    if as_json:
        click.echo(json.dumps(figures | {"queue_names": {queue: names[queue] for queue in figures["queues"] if queue in names}}))
    else:
        for line in (*_stats_lines(figures, names), *notes_of(view, state)):
            click.echo(line)
    context.exit(EX_DATA if figures["damage"] else EX_OK)


# --- repair -------------------------------------------------------------------------------------------------------------


def _ids(ids: Iterable[int]) -> str:
    numbers = sorted(ids)
    suffix = f", ... {len(numbers) - IDS_SHOWN_MAX} more" if len(numbers) > IDS_SHOWN_MAX else ""
    return ", ".join(map(str, numbers[:IDS_SHOWN_MAX])) + suffix


def losses(view: StoreView, state: State, lost: list[Damage]) -> Iterator[str]:
    """Exactly what is lost, as far as the rest of the log tells."""
    for damage in lost:
        size = view.logs[damage.log].container_size
        first, last = damage.lsn // size, (damage.end - 1) // size
        where = damage.file if first == last else f"{damage.file} and up to container {last}"
        yield f"lost: {damage.log} LSN {damage.lsn} to {damage.end} ({damage.end - damage.lsn:,} bytes, {where})"
    cut = [message.id for message in state.messages.values() if message.here < message.size and state.spots(message)]
    if state.missing_messages:
        yield f"lost: {len(state.missing_messages)} messages that later records name: {_ids(state.missing_messages)}"
    if cut:
        yield f"lost: part of the content of {len(cut)} messages: {_ids(cut)}"
    if state.missing_transactions:
        yield f"lost: {len(state.missing_transactions)} transactions that records name: {_ids(state.missing_transactions)}"
    if any(damage.log == "messages" for damage in lost):
        yield "lost: messages that lay in these stretches whole, and that nothing later names; how many they were, nothing tells"
        yield "also: messages whose end lay there come back to their queues"
    if any(damage.log == "transactions" for damage in lost):
        undecided = [t.id for t in state.transactions.values() if t.state in ("open", "prepared") and not t.deleted]
        suffix = f": {_ids(undecided)}" if undecided else ""
        yield f"also: transactions whose outcome lay there count as not decided ({len(undecided)} now{suffix})"
        spots = [spot for message in state.messages.values() for spot in state.spots(message)]
        dropped = sum(state.tx_state(spot.enqueued_by) == "open" for spot in spots if spot.enqueued_by)
        back = sum(state.tx_state(spot.dequeued_by) == "open" for spot in spots if spot.dequeued_by)
        yield f"also: open ones are rolled back at the next start: {dropped} of their publishes are dropped, {back} of their acks undone"


@log.command()
@directory
@click.option("--accept-loss", is_flag=True, help="Write. Without it, only tells what would be done.")
@click.option("--dry-run", is_flag=True, help="Tell what would be done, whatever else is given.")
@click.pass_context
def repair(context: click.Context, /, directory: Path, accept_loss: bool, dry_run: bool) -> None:
    """Makes a damaged store open again, without what can't be read. The broker must be stopped.

    Damaged containers are copied to DIR/quarantine first. Losses are told before anything is written.
    """
    from flintmq.store.log.inspect import check_store

    check_store(directory)
    with store_locked(directory):
        context.exit(_repaired(directory, accept_loss and not dry_run, dry_run))


def _repaired(directory: Path, write: bool, dry_run: bool) -> int:
    """Tells what a repair does, and does it when it may write; the exit code. The store is locked."""
    from flintmq.store.log import repair as repairs
    from flintmq.store.log.inspect import open_store
    from flintmq.store.log.inspect_state import read_state

    view = open_store(directory, live=False)
    state = read_state(view)
    findings = [damage for source in view.logs.values() for damage in source.damage] + state.damage
    changes = repairs.plan(view)
    for damage in findings[:SHOWN_MAX]:
        click.echo(describe(damage))
    if not changes.images:
        click.echo("nothing to repair" if not findings else "nothing that a repair of the log would mend")
        return EX_DATA if findings else EX_OK
    for line in losses(view, state, changes.lost):
        click.echo(line)
    for name, sequence in sorted(changes.images):
        how = "rewritten" if sequence in view.logs[name].containers else "made anew"
        click.echo(f"{'' if write else 'would be '}{how}: {view.logs[name].file_of(sequence)}")
    if not write:
        click.echo("nothing was changed" + ("" if dry_run else "; give --accept-loss to repair"))
        return EX_DATA
    for copy in repairs.apply(view, changes):
        click.echo(f"copied to {copy}")
    after = open_store(directory, live=False)
    state = read_state(after)
    remaining = [damage for source in after.logs.values() for damage in source.damage]
    for damage in remaining + state.damage[:SHOWN_MAX]:
        click.echo(f"remains: {describe(damage)}")
    click.echo("repaired: the log opens" if not remaining else "NOT repaired", err=bool(remaining))
    return EX_DATA if remaining else EX_OK
