"""Copies a store, that of a running broker too, checks the copy, and makes a store of it again.

in: the facts of the logs (dataplane/backups.py) or a store that nobody has open; a directory. out: a directory with the files of a store
and `backup.json`, which names each with its size and CRC.

K1  `backup.json` is written when everything else is on disk, and the directory gets its name after that: a directory of that name is a
    whole backup, and one that was interrupted is called DIR.partial and has no `backup.json`.
K2  A log is copied up to its end of one moment. Behind it the copy is zeros, as in a container that was never written to.
K3  The definitions are copied after the logs: a log that names a queue finds it there, or finds that it was deleted.
K4  A restored store gets its name when all of it is on disk and checked.
K5  Only what this module made is removed, and only when no other process works in it: DIR.partial of somebody else stays, and so does that
    of a backup that still runs.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flintmq.core.checksum import crc32c_of
from flintmq.errors import OperatorError
from flintmq.store.log.containers import container_name

MANIFEST = "backup.json"
# what a directory of this module has in it
LOGS = ("messages", "transactions")
FORMAT = 1
_PIECE = 1 << 20
DATABASE = "definitions.db"

# called with the bytes that were copied or read since the last call
Tell = Callable[[int], object]


def _no_tell(count: int) -> None:
    """Nobody wants to know."""


def facts_of_closed(store: Path, containers: Mapping[str, list[tuple[int, int]]], uuid: str) -> dict[str, Any]:
    """The facts of a store that nobody has open. Args: containers: log -> (sequence, container size), ascending."""
    logs, streams = {}, {}
    for name, facts in containers.items():
        if not facts:
            continue
        size = facts[0][1]
        fact = {"first": facts[0][0], "end": (facts[-1][0] + 1) * size, "container_size": size}
        if name.startswith("streams/"):
            streams[name.removeprefix("streams/")] = fact
        else:
            logs[name] = fact
    return {"directory": str(store), "uuid": uuid, "time_ms": int(time.time() * 1000), "logs": logs, "streams": streams}


def size_of(facts: Mapping[str, Any]) -> int:
    """Bytes of all containers, about."""
    total = 0
    for one in facts["logs"].values():
        total += one["end"] - one["first"] * one["container_size"]
    for name in facts["streams"]:
        folder = Path(facts["directory"], "streams", name)
        total += sum(file.stat().st_size for file in folder.glob("*.flog")) if folder.is_dir() else 0
    return total


def take(facts: Mapping[str, Any], target: Path, keep: Callable[[], object], tell: Tell = _no_tell) -> Path:
    """Copies the store that `facts` are of to `target`, which must not be there; DIR.partial of an earlier attempt is removed.

    Args: facts: with the version of FlintMQ (`version`); keep: called about once for each piece, so that the broker keeps the containers.
    Returns: the directory, called DIR.partial until `finish`. Raises: OperatorError.
    """
    _check_facts(facts)
    partial = _fresh(target)
    source = Path(facts["directory"])
    files: dict[str, dict[str, int]] = {}
    try:
        for name, fact in facts["logs"].items():
            _copy_log(source / name, partial / name, fact, files, keep, tell, gone_is_error=True)
        for name, fact in facts["streams"].items():
            if (source / "streams" / name).is_dir():
                _copy_log(source / "streams" / name, partial / "streams" / name, fact, files, keep, tell, gone_is_error=False)
        keep()
        files[DATABASE] = _copy_database(source / DATABASE, partial / DATABASE, keep)
    except OSError as error:
        raise OperatorError(
            f"{error.filename or target}: {error.strerror}: no backup was made ({partial} is what there is of it)", 74
        ) from error
    value = {
        "format": FORMAT,
        "flintmq": facts["version"],
        "uuid": facts["uuid"],
        "time_ms": facts["time_ms"],
        "files": files,
    }
    (partial / "backup.tmp").write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    return partial


def finish(partial: Path, target: Path) -> None:
    """The copy was checked: it becomes a backup (K1)."""
    _sync_tree(partial)
    os.rename(partial / "backup.tmp", partial / MANIFEST)
    _sync_directory(partial)
    _name(partial, target)


def _check_facts(facts: Mapping[str, Any]) -> None:
    """What a broker says, in whose name files are written here. Raises: OperatorError (65)."""
    streams, logs = facts["streams"], facts["logs"]
    wrong = [name for name in logs if name not in LOGS] + [name for name in streams if not (name.isascii() and name.isdigit())]
    if wrong:
        raise OperatorError(f"the broker names a log {wrong[0]!r}, which is none of a store: is --uri the right broker?", 65)
    for fact in (*logs.values(), *streams.values()):
        if not all(isinstance(one, int) and one >= 0 for one in fact.values()) or not fact["container_size"]:
            raise OperatorError("the broker's facts of a log are no facts: is --uri the right broker?", 65)


# directories that this process works in -> a descriptor that holds their lock (K5); the lock goes with the process
_locks: dict[Path, int] = {}


def _fresh(target: Path) -> Path:
    """A new directory DIR.partial that nobody else works in. Raises: OperatorError."""
    if target.exists():
        raise OperatorError(f"{target} is there already: choose another name, or move it away", 64)
    partial = target.with_name(f"{target.name}.partial")
    try:
        if os.path.lexists(partial):
            _lock(partial)
            _remove(partial)
        partial.mkdir(parents=True, mode=0o700)
        _lock(partial)
    except OSError as error:
        raise OperatorError(f"cannot make {partial}: {error.strerror}", 74) from error
    return partial


def _lock(partial: Path) -> None:
    """K5. Raises: OperatorError: another process works in it; OSError: it is no directory, or a link."""
    _unlock(partial)
    fd = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise OperatorError(f"{partial}: another backup or restore works in it", 75) from None
    _locks[partial] = fd


def _unlock(partial: Path) -> None:
    fd = _locks.pop(partial, None)
    if fd is not None:
        os.close(fd)


def _remove(partial: Path) -> None:
    """What an interrupted backup or restore left. Raises: OperatorError: it has something else in it."""
    ours = {*LOGS, "streams", DATABASE, f"{DATABASE}-journal", f"{DATABASE}-wal", f"{DATABASE}-shm", "backup.tmp", MANIFEST}
    strange = next((one.name for one in partial.iterdir() if one.name not in ours), None)
    if strange is not None:
        _unlock(partial)
        raise OperatorError(f"{partial} has {strange!r} in it, so it is no interrupted backup: move it away, or choose another name", 64)
    shutil.rmtree(partial)


def _copy_log(
    source: Path,
    target: Path,
    fact: Mapping[str, int],
    files: dict[str, dict[str, int]],
    keep: Callable[[], object],
    tell: Tell,
    *,
    gone_is_error: bool,
) -> None:
    """Containers from the first on, up to the end. A stream's oldest may go meanwhile: what is behind it is whole."""
    target.mkdir(parents=True)
    size, end = fact["container_size"], fact["end"]
    first = fact.get("first")
    if first is None:
        first = min((int(file.stem) for file in source.glob("*.flog")), default=0)
    for sequence in range(first, -(-end // size)):
        name = container_name(sequence)
        try:
            opened = (source / name).open("rb", buffering=0)
        except FileNotFoundError:
            if gone_is_error or any(target.iterdir()):
                raise OperatorError(f"{source / name} went while it was to be copied: was the backup's time over?", 75) from None
            continue
        with opened as file:
            until = min(size, end - sequence * size)
            files[f"{target.parent.name + '/' if target.parent.name == 'streams' else ''}{target.name}/{name}"] = _copy(
                file, target / name, until, size, keep, tell
            )


def _copy(file: Any, target: Path, until: int, size: int, keep: Callable[[], object], tell: Tell) -> dict[str, int]:
    """`until` bytes of a file, then zeros up to `size`."""
    crc = offset = 0
    with target.open("xb", buffering=0) as out:
        while offset < size:
            wanted = min(_PIECE, size - offset)
            piece = file.read(min(wanted, until - offset)) if offset < until else b""
            if offset < until and not piece:
                raise OperatorError(f"{target.name}: the container ends at {offset} of {size} bytes", 65)
            piece = piece if offset + len(piece) < until else piece + bytes(wanted - len(piece))
            view = memoryview(piece)
            while view:
                view = view[out.write(view) :]
            crc = crc32c_of(piece, crc)
            offset += len(piece)
            keep()
            tell(len(piece))
        os.fsync(out.fileno())
    return {"size": offset, "crc32c": crc}


def _copy_database(source: Path, target: Path, keep: Callable[[], object]) -> dict[str, int]:
    """SQLite's own way to copy a database that others write to: one moment of it, checked afterwards."""
    try:
        with sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=30) as reader, sqlite3.connect(target) as writer:
            reader.backup(writer, pages=256, progress=lambda *_: keep())
            problems = [row[0] for row in writer.execute("PRAGMA integrity_check(1)")]
        reader.close()
        writer.close()
    except sqlite3.Error as error:
        raise OperatorError(f"the definitions ({source}) can't be copied: {error}", 74) from error
    if problems != ["ok"]:
        raise OperatorError(f"the copy of the definitions is damaged: {problems[0]}", 65)
    os.chmod(target, 0o600)
    with target.open("rb") as file:
        os.fsync(file.fileno())
    return _weigh(target, _no_tell)


# --- checking and restoring -------------------------------------------------------------------------------------------------


def _weigh(path: Path, tell: Tell) -> dict[str, int]:
    crc = size = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            crc = crc32c_of(piece, crc)
            size += len(piece)
            tell(len(piece))
    return {"size": size, "crc32c": crc}


def manifest(backup: Path) -> dict[str, Any]:
    """What a backup says of itself. Raises: OperatorError: it is none, or was interrupted."""
    try:
        value = json.loads((backup / MANIFEST).read_text())
    except FileNotFoundError:
        why = "it was interrupted" if backup.name.endswith(".partial") else "it is no backup, or not a whole one"
        raise OperatorError(f"{backup} has no {MANIFEST}: {why}", 65) from None
    except (OSError, ValueError, RecursionError) as error:
        raise OperatorError(f"{backup / MANIFEST} can't be read: {error}", 65) from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise OperatorError(f"{backup / MANIFEST} is of a format that this version does not know (it knows {FORMAT})", 65)
    files = value.get("files")
    if not isinstance(value.get("uuid"), str) or not isinstance(files, dict) or not all(map(_is_fact, files.values())):
        raise OperatorError(f"{backup / MANIFEST} does not say which files the backup has, and with which sizes: it is damaged", 65)
    return value


def _is_fact(fact: Any) -> bool:
    return isinstance(fact, dict) and fact.keys() == {"size", "crc32c"} and all(type(one) is int and one >= 0 for one in fact.values())


def _inside(value: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, int]]]:
    """Files of a backup. Raises: OperatorError for a name that leads out of it."""
    for name, fact in value["files"].items():
        parts = Path(name).parts
        if not parts or Path(name).is_absolute() or ".." in parts or "\0" in name:
            raise OperatorError(f"{MANIFEST} names the file {name!r}, which is not in the backup", 65)
        yield name, fact


def check(backup: Path, value: Mapping[str, Any], tell: Tell = _no_tell) -> None:
    """Reads every byte. Raises: OperatorError (65) that names the first file that is not as it was written."""
    for name, fact in _inside(value):
        try:
            problems = _weigh(backup / name, tell)
        except OSError as error:
            raise OperatorError(f"{backup / name}: {error.strerror}: the backup is not whole", 65) from error
        if problems != fact:
            raise OperatorError(f"{backup / name} is not as it was written ({problems} instead of {dict(fact)})", 65)


def restore(backup: Path, store: Path, tell: Tell = _no_tell) -> None:
    """Makes a store of a backup that was checked. Raises: OperatorError; then there is no store (K4)."""
    value = manifest(backup)
    if store.is_dir() and not any(store.iterdir()):
        store.rmdir()
    partial = _fresh(store)
    try:
        for name, fact in _inside(value):
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            with (backup / name).open("rb", buffering=0) as file:
                copied = _copy(file, partial / name, fact["size"], fact["size"], lambda: None, tell)
            if copied != fact:
                raise OperatorError(f"{backup / name} is not as it was written: nothing was restored", 65)
        os.chmod(partial / DATABASE, 0o600)
        _sync_tree(partial)
        _name(partial, store)
    except OSError as error:
        raise OperatorError(f"{error.filename or store}: {error.strerror}: nothing was restored", 74) from error


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_tree(path: Path) -> None:
    for file in path.glob("*.tmp"):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    for folder, _, _ in os.walk(path, topdown=False):
        _sync_directory(Path(folder))


def _name(partial: Path, target: Path) -> None:
    os.rename(partial, target)
    _sync_directory(target.absolute().parent)
    _unlock(partial)
