"""`flintmq log`: what it prints, and its exit codes. The reading itself is tested in tests/store/test_inspect.py."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flintmq.cli.log import log
from flintmq.cli.main import cli
from flintmq.errors import OperatorError
from flintmq.store.log.record_fields import TYPE_NAMES
from tests.support import logbytes as lb
from tests.support.logstore import StoreBytes, sample

NOBODY = 65534


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return sample().write(tmp_path / "store")


def run(*words: Any) -> Result:
    result = CliRunner().invoke(log, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def refused(*words: Any) -> OperatorError:
    """The error that the command ends with: one line, an exit code of the contract."""
    result = CliRunner().invoke(log, [str(word) for word in words])
    assert isinstance(result.exception, OperatorError), (result.output, result.exception)
    assert "\n" not in str(result.exception)
    return result.exception


def damage(store: Path, lsn: int, log_name: str = "messages") -> Path:
    file = store / log_name / f"{lsn // 4096:020d}.flog"
    data = bytearray(file.read_bytes())
    data[lsn % 4096 + 26] ^= 1
    file.write_bytes(data)
    return file


# --- dump ---------------------------------------------------------------------------------------------------------------


def test_dump_prints_one_line_per_record_in_order(store: Path) -> None:
    """Each record of both logs is one line that begins with its LSN; sizes stand for bodies."""
    result = run("dump", store)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    messages = [int(line.split()[0]) for line in lines if " messages/" in line]
    assert messages == sorted(messages) and len(messages) > 60
    assert lines[0].split()[:3] == ["4672", "messages/1+576", "Message-Start"]
    assert "body=37 " in lines[0] and "exchange='ex' routing_key='key'" in lines[0]
    assert all(line.count("\n") == 0 for line in lines) and "the last one" not in result.stdout


def test_dump_can_show_bodies_and_one_range_of_one_log(store: Path) -> None:
    """--bodies gives the content, --log, --from and --to choose, --json is one object per line."""
    every = [json.loads(line) for line in run("dump", store, "--json", "--bodies").stdout.splitlines()]
    last = next(item for item in reversed(every) if item["type"] == "Message-Start")
    assert base64.b64decode(last["fields"]["body_bytes"]) == b"the last one"
    assert (last["fields"]["exchange"], last["fields"]["routing_key"], last["fields"]["body"]) == ("ex", "key", 12)
    some = [json.loads(line) for line in run("dump", store, "--json", "--from", hex(last["lsn"]), "--log", "messages").stdout.splitlines()]
    assert [item["type"] for item in some] == ["Message-Start", "Message-Enqueue"]
    one = run("dump", store, "--from", last["lsn"], "--to", last["lsn"], "--bodies", "--log", "messages").stdout.splitlines()
    assert len(one) == 1 and "body_bytes='the last one'" in one[0]
    assert {item["log"] for item in map(json.loads, run("dump", store, "--json", "--log", "transactions").stdout.splitlines())} == {
        "transactions"
    }


def test_dump_of_a_stream_that_is_not_there(store: Path) -> None:
    """Not an empty answer: an error that names the streams that are there."""
    assert "it has no streams" in str(refused("dump", store, "--log", "streams/7"))
    for queue_id in (3, 21):
        (store / "streams" / str(queue_id)).mkdir(parents=True)
    error = refused("dump", store, "--log", "streams/7")
    assert error.exit_code == 64 and "no log streams/7: there are those of the queues 3, 21" in str(error)
    assert run("dump", store, "--log", "streams/3").exit_code == 0


def test_dump_shows_every_type_with_its_fields(tmp_path: Path) -> None:
    """Every record type of the two logs has a name and decodes; hostile names stay on their line."""
    made = StoreBytes()
    made.publish(1, b"x")
    number = made.live[1][1]
    add = made.messages.add
    add(lb.COPY, lb.copy([(1, 1, 9, 0, 0)], lb.content(b"\x01\n\x01'", b"", b"x")), undo_prev=number, expires=99)
    add(lb.CHUNK, lb.chunk(0, b""), undo_prev=number)
    add(lb.DEQUEUE, lb.dequeue(1, 1, 3), undo_prev=number, last=True)
    add(lb.MESSAGE_DELETE, undo_prev=number)
    add(lb.QUEUE_MARK, lb.mark(1, [1, 2]))
    add(lb.DELIVERED, lb.mark(1, [1, 2]))
    add(lb.REDELIVERED, lb.ranges(1, [(1, 2), (4, 4)]))
    add(lb.NAME, b"\1\0\0\0\0\0\0\0" + bytes(8) + b"\2\0ab\1\0c")
    add(lb.QUEUE_END, bytes(8))
    add(lb.QUEUE_PURGE, lb.ranges(1, [(5, 6), (8, 8)]))
    shape = add(lb.SHAPE, lb.shape(1, 9, b"\x01\n\x01'", b"header"))
    add(lb.MESSAGE, lb.message(1, b"body"), undo_prev=shape)
    add = made.transactions.add
    tx = add(lb.DTX_START, lb.xid(b"\1\2"))
    add(lb.TX_START)
    for kind in (lb.PREPARE, lb.ROLLBACK, lb.TX_DELETE, lb.END):
        add(kind, undo_prev=tx)
    add(lb.COMMIT, lb.rows([(1, 2, 3)]), undo_prev=tx)
    add(lb.TX_COPY, lb.tx_copy(2, 1, 0, b"abc", [(4, 5, 6)]), undo_prev=tx)
    add(lb.HEURISTIC, b"\1", undo_prev=tx)
    add(lb.NOTE, lb.note(2, b"k", b"v"))
    add(lb.ACQUIRE_SET, lb.acquire_set([(1, 5, 7)]), undo_prev=tx)
    made.sync()
    made.write(tmp_path)
    result = run("dump", tmp_path)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0 and len(lines) == 14 + 1 + 11 - 1
    assert {line.split()[2] for line in lines} == {
        name for name in TYPE_NAMES.values() if name != "Page-Content" and not name.startswith("Stream-")
    }
    assert "malformed" not in result.stdout
    text = result.stdout
    for part in ("exchange='\\n' routing_key='\\x27'", "reason=expire", "levels=[1 2]", "ranges=[1:2 4:4]", "ranges=[5:6 8:8]", "xid=0102"):
        assert part in text, part
    for part in ("rows=[1:2:3]", "heuristic=committed", "outcome=committed", "key='k' value='v'", "places=[1:1:9:0:0]", "expires_ms=99"):
        assert part in text, part
    for part in ("tag='ab' group='c'", "last=True"):
        assert part in text, part
    for line in run("dump", tmp_path, "--json").stdout.splitlines():
        json.loads(line)


def test_dump_tells_of_damage_on_stderr_and_goes_on(store: Path) -> None:
    """Records on both sides of damage are printed; the exit code is 65."""
    lsn = int(run("dump", store).stdout.splitlines()[6].split()[0])
    before = len(run("dump", store).stdout.splitlines())
    damage(store, lsn)
    result = run("dump", store)
    assert result.exit_code == 65 and f"LSN {lsn}" in result.stderr
    assert len(result.stdout.splitlines()) == before - 1


def test_dump_into_a_closed_pipe_ends_quietly(store: Path) -> None:
    """`flintmq log dump DIR | head -1` prints no traceback."""
    command = f"{sys.executable} -m flintmq.cli.main log dump {store} --bodies | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert result.stdout.startswith("4672 ") and result.stderr == ""


# --- verify -------------------------------------------------------------------------------------------------------------


def test_verify_of_a_good_store(store: Path) -> None:
    """Exit 0 and `ok`; JSON has the figures of both logs."""
    result = run("verify", store)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "ok")
    told = json.loads(run("verify", store, "--json").stdout)
    assert told["ok"] and told["damage"] == [] and not told["in_use"] and told["uuid"] == lb.UUID.hex()
    assert told["logs"]["messages"]["containers"] > 3 and told["logs"]["messages"]["base"] == 4608


def test_verify_reports_a_torn_tail_as_a_note(tmp_path: Path) -> None:
    """A write that did not finish is no error: exit 0, with its place."""
    made = sample()
    path = made.write(tmp_path)
    start = made.messages.blocks[-1][0]
    damage(path, start + 64)
    result = run("verify", path)
    assert result.exit_code == 0
    assert f"note: torn tail at messages/{start // 4096:020d}.flog offset {start % 4096} (LSN {start})" in result.stdout
    assert json.loads(run("verify", path, "--json").stdout)["logs"]["messages"]["torn_at"] == start


def test_verify_names_file_offset_lsn_and_meaning(store: Path) -> None:
    """Damage is exit 65; the line says where it is and what it means, for each log in its way."""
    lsn = int(run("dump", store).stdout.splitlines()[6].split()[0])
    file = damage(store, lsn)
    result = run("verify", store)
    assert result.exit_code == 65
    assert f"damage: messages/{file.name} offset {lsn % 4096} (LSN {lsn} to " in result.stdout
    assert "quarantines" in result.stdout and "DAMAGED" in result.stderr
    damage(store, 4608 + 64, "transactions")
    told = json.loads(run("verify", store, "--json").stdout)
    assert not told["ok"] and any(item["log"] == "transactions" and "refuses to start" in item["meaning"] for item in told["damage"])


def test_verify_says_that_a_broker_is_running(store: Path) -> None:
    """A store that is open is read all the same, with a note."""
    fd = os.open(store / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        result = run("verify", store)
        assert result.exit_code == 0 and "a broker has the store open" in result.stdout
        assert json.loads(run("verify", store, "--json").stdout)["in_use"]
    finally:
        os.close(fd)
    assert "a broker has the store open" not in run("verify", store).stdout


def test_reading_changes_nothing(store: Path) -> None:
    """dump, verify, stats and a repair without --accept-loss leave every file as it is."""
    damage(store, 4672)
    before = {path: path.read_bytes() for path in store.rglob("*.flog")}
    for command in ("dump", "verify", "stats", "repair"):
        run(command, store)
    run("repair", store, "--accept-loss", "--dry-run")
    assert {path: path.read_bytes() for path in store.rglob("*.flog")} == before
    assert not (store / "quarantine").exists()


# --- stats --------------------------------------------------------------------------------------------------------------


def test_stats_count_what_is_there(tmp_path: Path) -> None:
    """Live, dead, per queue, per type, oldest, transactions: all equal to what was written."""
    made = sample()
    result = run("stats", made.write(tmp_path), "--json")
    told = json.loads(result.stdout)
    live = sum(made.counts().values())
    assert result.exit_code == 0
    assert told["queues"] == {str(queue): count for queue, count in made.counts().items()}
    assert told["messages"]["live"] == live
    assert told["messages"]["dead"] == told["logs"]["messages"]["records_by_type"]["Message-Start"] - live
    assert told["messages"]["oldest"]["id"] == min(number for entries in made.live.values() for number in entries.values())
    assert told["transactions"] == {"committed": 1, "rolled back": 1}
    figures = told["logs"]["messages"]
    assert figures["tail"] == made.messages.end and figures["bytes"] == 4096 * len(made.messages.files)
    used = sum(length for _, length in made.messages.blocks)
    assert 0 < figures["record_bytes"] <= used
    assert 0 < figures["padding_share"] < 0.5
    text = run("stats", tmp_path).stdout
    assert f"messages: {live:,} live" in text and "transactions: 1 committed, 1 rolled back" in text


def test_stats_name_queues_when_the_definitions_are_there(store: Path) -> None:
    """definitions.db gives the names; one that can't be read is no error."""
    import sqlite3

    database = sqlite3.connect(store / "definitions.db")
    database.execute("CREATE TABLE queues (queue_id INTEGER, vhost TEXT, name TEXT)")
    database.execute("INSERT INTO queues VALUES (1, '/', 'orders')")
    database.commit()
    database.close()
    assert json.loads(run("stats", store, "--json").stdout)["queue_names"] == {"1": "/ orders"}
    assert "'/ orders'" in run("stats", store).stdout
    (store / "definitions.db").write_bytes(b"no database")
    assert json.loads(run("stats", store, "--json").stdout)["queue_names"] == {}


# --- repair -------------------------------------------------------------------------------------------------------------


def test_repair_only_reports_until_the_loss_is_accepted(store: Path) -> None:
    """Exit 65 and what would be lost; with --accept-loss the store is good but for what is gone, and the old file is kept."""
    lines = run("dump", store).stdout.splitlines()
    lsn = int(lines[6].split()[0])
    assert "Message-Enqueue" in lines[6] or "Message-Start" in lines[6]
    file = damage(store, lsn)
    damaged = file.read_bytes()
    report = run("repair", store)
    assert report.exit_code == 65 and "give --accept-loss" in report.stdout
    assert f"lost: messages LSN {lsn} to " in report.stdout and f"would be rewritten: messages/{file.name}" in report.stdout
    done = run("repair", store, "--accept-loss")
    assert done.exit_code == 0 and "repaired: the log opens" in done.stdout
    assert (store / "quarantine" / f"messages-{file.name}").read_bytes() == damaged
    assert not [line for line in run("verify", store).stdout.splitlines() if "refuses" in line or "quarantines" in line]


def test_repair_of_the_transaction_log_makes_it_whole(store: Path) -> None:
    """A lost outcome is told: the transaction counts as not decided."""
    commit = next(int(line.split()[0]) for line in run("dump", store, "--log", "transactions").stdout.splitlines() if " Commit " in line)
    damage(store, commit, "transactions")
    report = run("repair", store)
    assert "transactions whose outcome lay there" in report.stdout and f"LSN {commit}" in report.stdout
    assert run("repair", store, "--accept-loss").exit_code == 0
    assert run("verify", store).exit_code == 0
    assert json.loads(run("stats", store, "--json").stdout)["transactions"] == {"open": 1, "rolled back": 1}


def test_a_good_store_needs_no_repair(store: Path) -> None:
    """Nothing to do is exit 0, with or without --accept-loss."""
    before = {path: path.read_bytes() for path in store.rglob("*.flog")}
    for words in ((), ("--accept-loss",)):
        result = run("repair", store, *words)
        assert (result.exit_code, result.stdout.strip()) == (0, "nothing to repair")
    assert {path: path.read_bytes() for path in store.rglob("*.flog")} == before


def test_repair_refuses_a_store_that_is_in_use(store: Path) -> None:
    """The broker's lock is respected: exit 69, one line."""
    fd = os.open(store / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        error = refused("repair", store, "--accept-loss")
    finally:
        os.close(fd)
    assert error.exit_code == 69 and "stop the broker first" in str(error)


# --- errors -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["dump", "verify", "stats", "repair"])
def test_what_is_no_store_is_refused_in_one_line(tmp_path: Path, command: str) -> None:
    """No such directory, a file, a directory without logs: exit 64 each."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name, text in (("nowhere", "no such directory"), ("file", "not a directory"), ("empty", "not a store")):
        error = refused(command, tmp_path / name)
        assert error.exit_code == 64 and text in str(error)
    assert not (tmp_path / "empty" / "lock").exists()


def test_a_file_in_place_of_a_log_is_refused(tmp_path: Path) -> None:
    """messages is a file: one line, exit 64."""
    (tmp_path / "messages").write_text("")
    error = refused("verify", tmp_path)
    assert error.exit_code == 64 and "not a directory" in str(error)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read everything: root becomes somebody else for a while. Others stay who they are."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_no_permission_is_one_line() -> None:
    """A store of somebody else: exit 74, naming the path."""
    with tempfile.TemporaryDirectory() as place:  # its parents may be searched by everybody, unlike those of tmp_path
        os.chmod(place, 0o755)
        store = sample().write(Path(place) / "store")
        run("verify", store)
        (store / "messages").chmod(0)
        try:
            with as_nobody():
                error = refused("verify", store)
        finally:
            (store / "messages").chmod(0o700)
    assert error.exit_code == 74 and "messages" in str(error)


def test_an_unreadable_store_is_one_line(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system refuses is told with path and cause, exit 74."""
    real = os.listdir

    def listdir(path: Any) -> list[str]:
        if str(path).endswith("messages"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    error = refused("verify", store)
    assert error.exit_code == 74 and str(error) == f"{store / 'messages'}: Permission denied"


def test_the_command_is_reached_and_gives_its_exit_codes(store: Path, tmp_path: Path) -> None:
    """Through the real entry point: 0, 64 for usage, 64 for no store, with one line on stderr."""
    assert "log" in cli.list_commands(None)  # type: ignore[arg-type]

    def call(*words: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "flintmq.cli.main", "log", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert call("verify", store).returncode == 0
    assert call("dump", store, "--from", "x").returncode == 64
    nowhere = call("verify", tmp_path / "nowhere")
    assert nowhere.returncode == 64 and nowhere.stderr == f"flintmq: {tmp_path / 'nowhere'}: no such directory\n"
