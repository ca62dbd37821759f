"""Containers of a log as record batches, against the independent reader (tests/oracle)."""

from __future__ import annotations

import fcntl
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from flintmq.arrow import schema
from flintmq.arrow.containers import Containers
from flintmq.arrow.log import ContainerFacts, StoreBusy, block_epochs, first_epoch, list_log, log_ends, offline_lock, transactions
from flintmq.arrow.messages import Moved, rows_to_batches
from flintmq.arrow.scan import ContainerGone, LogDamaged, scan_container
from tests.arrow.stores import found_in, row
from tests.oracle.log import Damage, open_store
from tests.oracle.records import Kind, content_parts, fields_of, in_full
from tests.support import logbytes as lb
from tests.support.logstore import StoreBytes, sample

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "store-v1"


def us(value: Any) -> int | None:
    return None if value is None else round(value.timestamp() * 1_000_000)


def plain(store: Path, name: str) -> list[dict[str, Any]]:
    """Rows of the stream `records` without content columns, as the plain reader sees them."""
    log = open_store(store)[name]
    rows: list[dict[str, Any]] = []
    for record in in_full(log.records(), log.container_size) if name == "messages" else log.records():
        if isinstance(record, Damage):
            continue
        values = fields_of(record, log.number)
        line: dict[str, Any] = dict.fromkeys(column for column, _, _ in schema.RECORDS)
        line |= {"lsn": record.lsn, "log": name, "kind": record.name, "time": record.time_us, "length": record.length}
        line["container"] = record.lsn // log.container_size
        if name == "messages":
            line["msg_lsn"] = record.lsn if record.type == Kind.MESSAGE_START else (record.undo_prev or None) if record.type < 7 else None
            line["tx_lsn"] = record.tx or None
            line["expires_time"] = record.expires_ms * 1000 or None
        elif record.type != Kind.NOTE:
            line["tx_lsn"] = record.undo_prev or record.lsn
        if record.type == Kind.MESSAGE_SHAPE:
            rows.append(line)
            continue
        line["queue_id"] = values.get("queue")
        if "position" in values:
            line["position"] = values["position"] or None
            line["waiting"] = values.get("number")
        if record.type == Kind.MESSAGE_DEQUEUE:
            line |= {"reason": values["reason"], "consumer_id": values["consumer"] or None, "delivery_count": values["deliveries"]}
            line["delivered_time"] = values["delivered_us"] or None
        if record.type == Kind.TX_COPY:
            line["reason"] = values["state"]
        if record.type in (Kind.MESSAGE_START, Kind.MESSAGE_COPY):
            line |= {"body_length": values["body"], "exchange": values["exchange"].decode(), "routing_key": values["routing_key"].decode()}
            line["published_time"] = record.time_us if record.type == Kind.MESSAGE_START else values.get("published_us")
        if record.type == Kind.NAME and values["kind"] == 1:
            line["consumer_id"] = values["id"]
        if record.type == Kind.MESSAGE_COPY:
            for place in values["places"]:
                more = {"queue_id": place.queue, "position": place.position or None, "waiting": place.number}
                more["expires_time"] = place.expires_ms * 1000 or None
                rows.append(line | more | {"tx_lsn": place.enqueued_by or place.dequeued_by or None})
        else:
            rows.append(line)
    return rows


def scanned(store: Path, name: str, **more: Any) -> list[dict[str, Any]]:
    rows = []
    for facts in list_log(store / name):
        for batch in scan_container(facts.path, log=name, **more):
            batch.validate(full=True)
            rows += batch.to_pylist()
    return rows


def without_content(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: us(value) if name.endswith("time") else value for name, value in line.items() if name not in ("message_id", "body")}
        for line in rows
    ]


def stores(tmp_path: Path) -> dict[str, Path]:
    return {
        "sample": sample().write(tmp_path / "sample"),
        "large": sample(1 << 16).write(tmp_path / "large"),
        "clean": FIXTURE / "clean",
        "unclean": FIXTURE / "unclean",
    }


@pytest.mark.parametrize("name", ["messages", "transactions"])
@pytest.mark.parametrize("which", ["sample", "large", "clean", "unclean"])
def test_records_are_those_of_the_plain_reader(tmp_path: Path, which: str, name: str) -> None:
    """Row for row and field for field, with the end of the log known, in batches of any size."""
    store = stores(tmp_path)[which]
    want = [{key: value for key, value in line.items() if key not in ("message_id", "body")} for line in plain(store, name)]
    end = log_ends(store / name).tail
    for rows_max in (3, 4096):
        assert without_content(scanned(store, name, end=end, rows_max=rows_max)) == want
    assert want


def test_a_block_of_the_other_log_is_damage(tmp_path: Path) -> None:
    """A block that names another log is none here: what it holds is left out and reported, as the plain reader does."""
    store = sample().write(tmp_path / "store")
    end = log_ends(store / "messages").tail
    block = open_store(store)["messages"].blocks[1]
    before = len(plain(store, "messages"))
    lb.say_log(store / f"messages/{block.lsn // 4096:020d}.flog", block.lsn % 4096, lb.TRANSACTIONS)
    want = [{key: value for key, value in line.items() if key not in ("message_id", "body")} for line in plain(store, "messages")]
    assert without_content(scanned(store, "messages", end=end, mode="PERMISSIVE")) == want
    assert len(want) < before
    with pytest.raises(LogDamaged, match=f"LSN {block.lsn} to"):
        scanned(store, "messages", end=end)


@pytest.mark.parametrize("which", ["sample", "large", "clean", "unclean"])
@pytest.mark.parametrize("body", [None, "none", "prefix:5"])
def test_contents_are_those_of_the_plain_reader(tmp_path: Path, which: str, body: str | None) -> None:
    """Bodies and routes come whole, chunks over several containers included, in both streams."""
    store = stores(tmp_path)[which]
    end = log_ends(store / "messages").tail
    limit = schema.body_limit(body)
    want = {one.where: one for one in found_in(store)}
    cut = {where: one.body if limit < 0 else one.body[:limit] for where, one in want.items()}
    records = {line["lsn"]: line["body"] for line in scanned(store, "messages", end=end, body=body) if line["lsn"] in want}
    assert records == (dict.fromkeys(want) if limit == 0 else cut)
    wheres = iter(sorted(want))
    for line in scanned(store, "messages", stream="messages", end=end, body=body):
        one = want[next(wheres)]
        assert (line["lsn"], line["copy"], line["body"]) == (one.id, one.copy, cut[one.where])
        assert (line["exchange"].encode(), line["routing_key"].encode()) == (one.exchange, one.routing_key)
        assert (us(line["published_time"]) or 0) == one.published_us and line["queue"] is None and line["position"] is None
    assert next(wheres, None) is None


@pytest.mark.parametrize("name", ["messages", "transactions"])
@pytest.mark.parametrize("which", ["sample", "large", "clean", "unclean"])
def test_ends_are_those_of_the_plain_reader(tmp_path: Path, which: str, name: str) -> None:
    """Base, tail and whether it was stopped cleanly agree with the reader behind `flintmq log`."""
    store = stores(tmp_path)[which]
    log = open_store(store)[name]
    ends = log_ends(store / name)
    assert (ends.base, ends.tail % log.container_size, ends.clean) == (log.base, log.blocks[-1].end % log.container_size, log.clean)
    facts = list_log(store / name)
    assert [one.sequence for one in facts] == sorted(log.containers) and all(one.good for one in facts)
    assert {one.first_lsn for one in facts} == {sequence * log.container_size for sequence in log.containers}


@pytest.mark.parametrize("which", ["sample", "large", "clean", "unclean"])
def test_epochs_are_those_of_the_plain_reader(tmp_path: Path, which: str) -> None:
    """Each block's epoch and end, and the epoch of a container's first block; -1 where there is none."""
    store = stores(tmp_path)[which]
    log = open_store(store)["messages"]
    for sequence in log.containers:
        path = str(store / f"messages/{sequence:020d}.flog")
        blocks = [one for one in log.blocks if one.lsn // log.container_size == sequence]
        assert block_epochs(path, sequence, log.container_size) == [(one.epoch, one.lsn + one.length) for one in blocks]
        assert first_epoch(path, sequence, log.container_size) == (blocks[0].epoch if blocks else -1)


def test_columns_base_and_end_choose_rows_and_cells(tmp_path: Path) -> None:
    """Only LSNs in [base, end) are given, only columns that were named."""
    store = sample().write(tmp_path)
    every = [line["lsn"] for line in scanned(store, "messages")]
    base, end = every[10], log_ends(store / "messages").tail
    got = scanned(store, "messages", base=base, end=end, columns=["kind", "lsn"])
    assert [line["lsn"] for line in got] == [lsn for lsn in every if lsn >= base] and set(got[0]) == {"kind", "lsn"}


def test_bytes_of_one_container(tmp_path: Path) -> None:
    """A container may be given as bytes; what goes on in the next one is incomplete then, and counted."""
    store = sample().write(tmp_path)
    first, *_ = list_log(store / "messages")
    from_path = [batch.to_pylist() for batch in scan_container(first.path)]
    assert [batch.to_pylist() for batch in scan_container(Path(first.path).read_bytes())] == from_path
    log = lb.LogBytes()
    number = log.add(lb.START, lb.content(b"\0\1q", bytes.fromhex("003c0000") + bytes(10), b"x" * 3000, first=100))
    log.sync()
    scan = scan_container(bytes(log.files[1]), stream="messages")
    assert list(scan) == [] and scan.incomplete == 1 and str(number) in scan.warnings[0]


def test_times_names_copies_and_sets() -> None:
    """Records that the fixtures have none of: Message-Copy with its published time, Acquire-Set, Name, waiting numbers."""
    log = lb.LogBytes()
    start = lb.content(b"\0\1q", bytes.fromhex("003c0000") + bytes(10), b"body")
    places = b"".join(struct.pack("<QQQQQ", queue, lb.waiting(5) if queue == 2 else 9, 7000, 0, 33) for queue in (1, 2))
    log.add(lb.COPY, struct.pack("<II", 2, 1) + places + struct.pack("<Q", 77) + start, undo_prev=4242)
    log.add(9, struct.pack("<IIQHH", 1, 0, 12, 0, 0))
    log.sync()
    rows = [line for batch in scan_container(bytes(log.files[1])) for line in batch.to_pylist()]
    assert [(line["queue_id"], line["position"], line["waiting"], line["tx_lsn"]) for line in rows[:2]] == [
        (1, 9, None, 33),
        (2, None, 5, 33),
    ]
    assert {us(line["published_time"]) for line in rows[:2]} == {77} and rows[0]["msg_lsn"] == 4242 and rows[1]["body"] == b"body"
    assert us(rows[0]["expires_time"]) == 7_000_000 and rows[2]["consumer_id"] == 12 and rows[2]["kind"] == "Name"
    (message,) = [line for batch in scan_container(bytes(log.files[1]), stream="messages") for line in batch.to_pylist()]
    assert message["copy"] and us(message["published_time"]) == 77 == us(message["enqueued_time"])
    tx = lb.LogBytes(log_id=lb.TRANSACTIONS)
    number = tx.add(lb.DTX_START, lb.xid(b"x"))
    tx.add(43, struct.pack("<II", 3, 8) + b"".join(struct.pack("<QQQ", 1, first, 5) for first in (10, 20, 30)), undo_prev=number)
    tx.sync()
    for rows_max in (1, 2, 100):
        scan = scan_container(bytes(tx.files[1]), log="transactions", rows_max=rows_max)
        rows = [line for batch in scan for line in batch.to_pylist()][1:]
        assert [(line["position"], line["count"], line["consumer_id"], line["tx_lsn"]) for line in rows] == [
            (first, 5, 8, number) for first in (10, 20, 30)
        ]
        assert scan.records == 2


# --- torn, damaged, gone


def test_a_torn_tail_is_counted_and_left_out(tmp_path: Path) -> None:
    """A last block that was never durable and does not check ends the container with one warning; nothing of it is given."""
    log = lb.LogBytes()
    good = log.add(lb.START, lb.content(b"\0\1q", bytes.fromhex("003c0000") + bytes(10), b"a"))
    log.sync()
    log.add(lb.START, lb.content(b"\0\1q", bytes.fromhex("003c0000") + bytes(10), b"b"))
    torn = log.add(lb.START, lb.content(b"\0\1q", bytes.fromhex("003c0000") + bytes(10), b"c" * 40))
    log.sync()
    log.files[1][torn % log.size + 70] ^= 1
    log.write(str(tmp_path / "messages"))
    scan = scan_container(tmp_path / "messages" / f"{1:020d}.flog")
    assert [line["lsn"] for batch in scan for line in batch.to_pylist()] == [good]
    assert scan.torn == 1 and len(scan.warnings) == 1 and not scan.damage
    ends = log_ends(tmp_path / "messages")
    assert ends.torn_at and ends.tail == ends.torn_at and not ends.clean
    assert next(scan_container(tmp_path / "messages" / f"{1:020d}.flog", end=ends.tail)).num_rows == 1


def test_damage_raises_or_is_counted(tmp_path: Path) -> None:
    """Below `end` a record that does not check is damage: FAILFAST raises naming it, PERMISSIVE gives all others and counts."""
    store = sample().write(tmp_path)
    end = log_ends(store / "messages").tail
    every = [line["lsn"] for line in scanned(store, "messages", end=end)]
    path = Path(list_log(store / "messages")[0].path)
    data = bytearray(path.read_bytes())
    data[every[3] % len(data) + 20] ^= 4
    path.write_bytes(bytes(data))
    with pytest.raises(LogDamaged, match=str(every[3])) as caught:
        scanned(store, "messages", end=end)
    assert caught.value.lsn == every[3]
    scan = scan_container(path, end=end, mode="PERMISSIVE")
    got = [line["lsn"] for batch in scan for line in batch.to_pylist()]
    assert got == [lsn for lsn in every if lsn // len(data) == 1 and lsn != every[3]] and len(scan.damage) == 1
    data[100] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(LogDamaged, match="header"):
        scan_container(path)
    assert list(scan_container(path, mode="PERMISSIVE")) == []


def test_a_container_that_is_cut_short_is_damage(tmp_path: Path) -> None:
    """Blocks that the next container's first block says were there are missed, also when the end is not known."""
    store = sample().write(tmp_path)
    first, *_ = list_log(store / "messages")
    path = Path(first.path)
    path.write_bytes(path.read_bytes()[:1500])
    for end in (None, log_ends(store / "messages").tail):
        with pytest.raises(LogDamaged):
            list(scan_container(path, end=end))


def test_a_recycled_container_gives_no_row(tmp_path: Path) -> None:
    """A file that is gone, has another number by now, or is recycled between its bytes and the check of its header raises."""
    store = sample().write(tmp_path)
    first, second, *_ = list_log(store / "messages")
    with pytest.raises(ContainerGone):
        scan_container(store / "messages" / f"{99:020d}.flog")
    scan = scan_container(first.path)
    Path(first.path).write_bytes(Path(second.path).read_bytes())
    with pytest.raises(ContainerGone):
        next(scan)
    with pytest.raises(ContainerGone):
        scan_container(first.path)
    Path(first.path).unlink()
    with pytest.raises(ContainerGone):
        scan_container(first.path)
    with pytest.raises(ContainerGone):
        scan_container(second.path, store_uuid=b"\1" * 16)


def corrupt(data: bytes, dice: random.Random) -> bytes:
    """One random fault: bits flipped, bytes overwritten, a stretch moved, zeros, or the end cut off."""
    broken = bytearray(data)
    kind = dice.randrange(6)
    at = dice.randrange(len(broken))
    if kind == 0:
        broken[at] ^= 1 << dice.randrange(8)
    elif kind == 1:
        for _ in range(dice.randrange(1, 6)):
            broken[dice.randrange(len(broken))] = dice.randrange(256)
    elif kind == 2:
        size = dice.randrange(1, 600)
        broken[at : at + size] = bytes(len(broken[at : at + size]))
    elif kind == 3:
        del broken[at:]
    elif kind == 4:  # a length or count field becomes huge or tiny
        at -= at % 8
        broken[at : at + 4] = struct.pack("<I", dice.choice([0, 1, 23, 24, 25, 0xFFFFFFFF, 0x7FFFFFFF, 4096, dice.randrange(1 << 32)]))
    else:
        other = dice.randrange(len(broken))
        size = dice.randrange(8, 700)
        broken[at : at + size] = broken[other : other + len(broken[at : at + size])][: len(broken[at : at + size])].ljust(
            len(broken[at : at + size]), b"\0"
        )
    return bytes(broken)


def run_corruptions(tmp_path: Path, seed: int, count: int) -> int:
    """`count` random faults in the containers of a store: no crash, no wrong row, nothing missing unsaid. Returns how many were told."""
    dice = random.Random(seed)
    store = sample().write(tmp_path)
    end = log_ends(store / "messages").tail
    records = {(line["lsn"], line["position"]): line for line in scanned(store, "messages", end=end)}
    contents = {(line["lsn"], line["copy"]): line for line in scanned(store, "messages", stream="messages", end=end)}
    found = found_in(store)
    rows = b"".join(row(one, i + 1) for i, one in enumerate(found))
    files = [Path(one.path) for one in list_log(store / "messages")]
    told = 0
    for _ in range(count):
        path = dice.choice(files)
        good = path.read_bytes()
        number = int(path.stem)
        path.write_bytes(corrupt(good, dice))
        known = dice.random() < 0.7
        for stream, truth in (("records", records), ("messages", contents)):
            try:
                scan = scan_container(path, stream=stream, end=end if known else None, mode="PERMISSIVE")
                got = [line for batch in scan for line in batch.to_pylist()]
            except (ContainerGone, ValueError):  # the header is another container's, or another log's
                told += 1
                continue
            key = "position" if stream == "records" else "copy"
            for line in got:
                want = truth[line["lsn"], line[key]]
                if stream == "messages":
                    assert {**line, "enqueued_time": None} == {**want, "enqueued_time": None}
                else:
                    text = ("exchange", "routing_key", "message_id", "body")
                    partial = scan.incomplete and line["body"] is None
                    assert line == (want | dict.fromkeys(text) if partial else want)
            here = {place for place in truth if place[0] // len(good) == number}
            if known and here - {(line["lsn"], line[key]) for line in got}:
                assert scan.damage or scan.warnings
                told += 1
                with pytest.raises(LogDamaged):
                    list(scan_container(path, stream=stream, end=end))
        try:
            (batch,) = rows_to_batches(Containers(str(store / "messages")), rows, [["q", len(found)]])
            assert batch.column("body").to_pylist() == [one.body for one in found]
        except Moved as moved:
            told += 1
            alive = [i for i in range(len(found)) if i not in moved.rows]
            some = b"".join(rows[32 * i : 32 * i + 32] for i in alive)
            for batch in rows_to_batches(Containers(str(store / "messages")), some, [["q", len(alive)]]):
                assert batch.column("body").to_pylist() == [found[i].body for i in alive]
        log_ends(store / "messages")
        path.write_bytes(good)
    return told


def test_damaged_containers_never_crash_and_never_lie(tmp_path: Path) -> None:
    """Random faults give an error, a count, or the right rows. (tests/arrow/corruptions.py runs many more.)"""
    assert run_corruptions(tmp_path, 1, 250) > 50


# --- transactions and the lock


def test_table_of_transactions(tmp_path: Path) -> None:
    """State, times, rows and sets of every transaction, over several containers."""
    log = lb.LogBytes(log_id=lb.TRANSACTIONS)
    committed = log.add(lb.DTX_START, lb.xid(b"one"), time=1)
    log.add(lb.PREPARE, undo_prev=committed, time=2)
    held = log.add(lb.DTX_START, lb.xid(b"two"), time=3)
    log.add(43, struct.pack("<II", 2, 8) + struct.pack("<QQQQQQ", 1, 10, 5, 1, 20, 7), undo_prev=held)
    log.add(lb.PREPARE, undo_prev=held, time=4)
    rolled = log.add(lb.TX_START, time=5)
    log.add(lb.ROLLBACK, undo_prev=rolled, time=6)
    for i in range(300):
        log.add(lb.NOTE, lb.note(1, b"k%d" % i, b"v" * 30))
        if i % 20 == 0:
            log.sync()
    log.add(lb.COMMIT, lb.rows([(1, 4, 2)]), undo_prev=committed, time=7)
    log.add(lb.END, undo_prev=committed, time=8)
    copied = struct.pack("<BBBBH", 2, 0, 0, 1, 3) + b"two" + bytes(3) + struct.pack("<II", 0, 0)
    log.add(lb.TX_COPY, copied + struct.pack("<IIQQQ", 1, 8, 1, 10, 5), undo_prev=held)
    log.sync()
    log.write(str(tmp_path / "transactions"))
    assert len(log.files) > 2
    rows = transactions(tmp_path / "transactions", end=log.tail).to_pylist()
    assert [(line["tx_lsn"], line["state"], line["xid"], line["ended"]) for line in rows] == [
        (committed, "committed", b"one", True),
        (held, "prepared", b"two", False),
        (rolled, "rolled back", None, False),
    ]
    assert rows[0]["rows"] == [{"queue_id": 1, "first": 4, "count": 2}] and rows[1]["sets"] == [{"queue_id": 1, "first": 10, "count": 5}]
    assert us(rows[0]["started"]) == 1_000_001 and us(rows[1]["decided"]) is None and rows[2]["decided"] is not None
    assert transactions(tmp_path / "transactions", columns=["state"]).schema.names == ["state"]


@pytest.mark.parametrize("which", ["clean", "unclean"])
def test_transactions_of_the_fixture(which: str) -> None:
    """Every start record of the plain reader is a transaction of the table."""
    log = open_store(FIXTURE / which)["transactions"]
    starts = {r.lsn for r in log.records() if not isinstance(r, Damage) and r.type in (Kind.DTX_START, Kind.TX_START)}
    assert starts <= {line["tx_lsn"] for line in transactions(FIXTURE / which / "transactions").to_pylist()}


def test_malformed_transactions_are_damage(tmp_path: Path) -> None:
    """Fields that do not fit their record raise, or are counted with PERMISSIVE."""
    log = lb.LogBytes(log_id=lb.TRANSACTIONS)
    log.add(lb.COMMIT, struct.pack("<II", 5, 0), undo_prev=4000)
    log.sync()
    log.write(str(tmp_path / "transactions"))
    with pytest.raises(LogDamaged, match="5 items"):
        transactions(tmp_path / "transactions")
    warnings: list[str] = []
    transactions(tmp_path / "transactions", mode="PERMISSIVE", warnings=warnings)
    assert len(warnings) == 1


def test_a_store_that_a_broker_has_is_refused(tmp_path: Path) -> None:
    """The lock is taken shared: readers may be several, a broker none."""
    with offline_lock(tmp_path):
        pass  # a copy without a lock file
    lock = (tmp_path / "lock").open("w")
    with offline_lock(tmp_path), offline_lock(tmp_path), pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(StoreBusy, match="a broker has"), offline_lock(tmp_path):
        pass
    lock.close()


def test_empty_and_foreign_directories(tmp_path: Path) -> None:
    """A log without containers is empty; other files are not containers."""
    (tmp_path / "messages").mkdir()
    (tmp_path / "messages" / "x.flog").write_bytes(b"")
    (tmp_path / "messages" / f"{2:020d}.tmp").write_bytes(b"")
    assert list_log(tmp_path / "messages") == [] and log_ends(tmp_path / "messages").tail == 0
    (tmp_path / "messages" / f"{1:020d}.flog").write_bytes(b"short")
    (facts,) = list_log(tmp_path / "messages")
    assert isinstance(facts, ContainerFacts) and not facts.good
    with pytest.raises(LogDamaged):
        scan_container(facts.path)
    with pytest.raises(ValueError, match="stream"):
        scan_container(facts.path, stream="other")


def test_contents_of_the_plain_reader_have_parts() -> None:
    """The tests' own reader finds something to compare."""
    assert found_in(FIXTURE / "clean") and content_parts({"content": b"rhb", "route": 1, "header": 1}) == (b"h", b"b")
    assert StoreBytes
