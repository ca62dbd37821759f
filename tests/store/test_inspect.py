"""`flintmq log`'s view of a store and the repair: they read what docs/FORMAT.md says, and no damage passes for a good store.

Whatever is looked at is read by the independent reader (tests/oracle), too, and the two agree.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flintmq.errors import OperatorError
from flintmq.store.log import record_fields, repair
from flintmq.store.log.inspect import Damage, Log, StoreView, open_store
from flintmq.store.log.inspect_state import read_state
from tests.drivers.recovered import entries_of
from tests.oracle import log as oracle
from tests.oracle import records
from tests.oracle.compare import differences, told_fields
from tests.oracle.records import Record, fields_of, padded, read_record
from tests.support import logbytes as lb
from tests.support.logstore import ROUTE, StoreBytes, sample

scan = pytest.importorskip("flintmq.store.log.scan", reason="the compiled scanner is not built")
OsFiles = pytest.importorskip("flintmq.store.log.file_port").OsFiles
Recovery = pytest.importorskip("flintmq.store.recovery").Recovery


def findings(path: Path) -> tuple[StoreView, list[Damage]]:
    view = open_store(path)
    compared(view)
    state = read_state(view)
    return view, [found for log in view.logs.values() for found in log.damage] + state.damage


def compared(view: StoreView) -> None:
    """Both readers found the same blocks, records and damage, and the same ends."""
    others = oracle.open_store(view.path, *view.logs)
    for name, log in view.logs.items():
        assert differences(log, others[name]) == []
        for item in others[name].records():
            assert not isinstance(item, Record) or told_fields(record_fields, item, log.number) == told_fields(records, item, log.number)


def all_records(log: Log) -> list[tuple[int, int, bytes]]:
    return [(item.lsn, item.type, item.data) for item in log.records() if not isinstance(item, Damage)]


def container(path: Path, sequence: int, log: str = "messages") -> Path:
    return path / log / f"{sequence:020d}.flog"


def flip(file: Path, offset: int, mask: int = 1) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= mask
    file.write_bytes(data)


def scans(path: Path) -> list:
    return [scan.LogScan(OsFiles(), str(path / name), number) for name, number in (("messages", 1), ("transactions", 2))]


def recovered(path: Path, queues: set[int]) -> set[tuple[int, int, int]]:
    """(queue, position, message) as the broker's recovery puts them back."""
    recovery = Recovery()
    recovery.run(*scans(path), queues, max(queues), True)
    return {(queue, position, number) for queue in queues for position, number, *_ in entries_of(recovery, queue)}


def standing(view: StoreView) -> set[tuple[int, int, int]]:
    """(queue, position, message) as the independent reader sees them."""
    state = read_state(view)
    return {(s.queue, s.position, m.id) for m in state.messages.values() for s in state.spots(m) if state.visible(s)}


@pytest.fixture
def store(tmp_path: Path) -> tuple[StoreBytes, Path]:
    made = sample()
    return made, made.write(tmp_path / "store")


# --- reading ------------------------------------------------------------------------------------------------------------


def test_a_good_store_has_no_findings_and_all_its_messages(store: tuple[StoreBytes, Path]) -> None:
    """A store written by the book reads without a finding, and its live messages are those of the model."""
    made, path = store
    view, found = findings(path)
    assert found == []
    assert standing(view) == {(queue, position, number) for queue, entries in made.live.items() for position, number in entries.items()}
    assert not view.live and view.uuid == lb.UUID
    assert [log.torn_at for log in view.logs.values()] == [0, 0]


operations = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 3), st.binary(max_size=900)),
        st.tuples(st.just("ack"), st.integers(1, 3), st.integers(0, 5)),
        st.tuples(st.just("commit"), st.integers(1, 3), st.lists(st.binary(max_size=200), min_size=1, max_size=4)),
        st.tuples(st.just("rollback"), st.integers(1, 3), st.lists(st.binary(max_size=200), min_size=1, max_size=2)),
        st.tuples(st.just("chunked"), st.integers(1, 3), st.binary(min_size=1500, max_size=6000)),
        st.tuples(st.just("sync"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


def play(script: list) -> StoreBytes:
    made = StoreBytes()
    for kind, queue, value in script:
        if kind == "publish":
            made.publish(queue, value)
        elif kind == "ack" and made.live.get(queue):
            positions = sorted(made.live[queue])
            made.ack(queue, positions[value % len(positions)])
        elif kind == "commit":
            made.commit(queue, value)
        elif kind == "rollback":
            made.commit(queue, value, lb.ROLLBACK)
        elif kind == "chunked":
            made.chunked(queue, value)
        elif kind == "sync":
            made.sync()
    made.sync()
    return made


@settings(max_examples=60, deadline=None)
@given(operations)
def test_random_stores_read_as_the_model_and_as_the_broker_reads_them(tmp_path_factory: pytest.TempPathFactory, script: list) -> None:
    """Two readers written apart agree on every record of any history, on base and tail, and on every entry."""
    made = play(script)
    path = made.write(tmp_path_factory.mktemp("store"))
    view, found = findings(path)
    assert found == []
    entries = {(queue, position, number) for queue, entries in made.live.items() for position, number in entries.items()}
    assert standing(view) == entries == recovered(path, {1, 2, 3})
    for log in view.logs.values():
        other = scan.LogScan(OsFiles(), str(log.directory), log.number)
        assert [(lsn, kind, data) for lsn, kind, *_, data in other.collect()] == all_records(log)
        assert (other.tail, other.clean) == (log.tail, log.clean)
    shutil.rmtree(path)


def test_empty_logs_and_empty_containers_are_good(tmp_path: Path) -> None:
    """A store that was just made, and one without any container, have no findings."""
    StoreBytes().write(tmp_path / "new")
    assert findings(tmp_path / "new")[1] == []
    (tmp_path / "bare" / "messages").mkdir(parents=True)
    (tmp_path / "bare" / "transactions").mkdir()
    assert findings(tmp_path / "bare")[1] == []


def test_a_clean_stop_is_seen(tmp_path: Path) -> None:
    """The flag of the last block, and only of the last, tells a clean stop."""
    made = sample()
    made.messages.sync(flags=1)
    assert open_store(made.write(tmp_path / "a")).logs["messages"].clean
    made.publish(1, b"after")
    made.sync()
    assert not open_store(made.write(tmp_path / "b")).logs["messages"].clean


def test_old_blocks_of_a_recycled_file_are_not_read(tmp_path: Path) -> None:
    """Bytes of the container's earlier life stay behind the header and are neither records nor damage."""
    old, made = sample(), StoreBytes()
    made.messages._open(2)
    made.messages.files[2][512:] = old.messages.files[3][512:]
    made.publish(1, b"x")
    made.sync()
    view, found = findings(made.write(tmp_path))
    assert found == [] and len(all_records(view.logs["messages"])) == 2


# --- torn tails ---------------------------------------------------------------------------------------------------------


def test_a_last_block_torn_at_any_byte_is_a_torn_tail_and_no_damage(store: tuple[StoreBytes, Path], tmp_path: Path) -> None:
    """Whatever part of the last block reached the disk: exit 0, all earlier records are there, none of the torn block is."""
    made, path = store
    start, length = made.messages.blocks[-1]
    sequence, offset = divmod(start, 4096)
    whole = container(path, sequence).read_bytes()
    before = [record for record in all_records(open_store(path).logs["messages"]) if record[0] < start]
    for cut in range(len(whole[offset : offset + length].rstrip(b"\0"))):
        container(path, sequence).write_bytes(whole[: offset + cut].ljust(4096, b"\0"))
        view, found = findings(path)
        assert found == []
        assert all_records(view.logs["messages"]) == before
        assert (view.logs["messages"].torn_at == start) == (cut >= 4)


def test_blocks_that_were_never_known_durable_may_miss_in_the_middle(tmp_path: Path) -> None:
    """Several blocks were on their way when the power went: a hole among them is a torn tail."""
    made = StoreBytes()
    for i in range(3):
        made.publish(1, bytes([i]))
        made.messages.sync()
    hint = made.messages.durable
    for i in range(3):
        made.publish(1, bytes([i]))
        made.messages.sync(hint=hint)
    path = made.write(tmp_path)
    torn = made.messages.blocks[3][0]
    flip(container(path, 1), torn - 4096 + 70)
    view, found = findings(path)
    assert found == [] and view.logs["messages"].torn_at == torn
    assert len(all_records(view.logs["messages"])) == 6


# --- damage -------------------------------------------------------------------------------------------------------------


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_no_flipped_bit_passes_for_a_good_store(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any one bit, anywhere in either log: a finding, or a torn tail where nothing durable is missing, or it changed nothing."""
    made = sample()
    path = made.write(tmp_path_factory.mktemp("store"))
    whole = {name: all_records(log) for name, log in open_store(path).logs.items()}
    name = data.draw(st.sampled_from(["messages", "transactions"]))
    log = made.messages if name == "messages" else made.transactions
    sequence = data.draw(st.sampled_from(sorted(log.files)))
    flip(container(path, sequence, name), data.draw(st.integers(0, 4095)), 1 << data.draw(st.integers(0, 7)))
    view, found = findings(path)
    records = {name: all_records(log) for name, log in view.logs.items()}
    if not found:
        for key, all_of_it in whole.items():
            assert records[key] == all_of_it[: len(records[key])]
            if len(records[key]) < len(all_of_it):
                writer = made.messages if key == "messages" else made.transactions
                assert all_of_it[len(records[key])][0] >= writer.blocks[-1][0]
    for key, all_of_it in whole.items():
        assert set(records[key]) <= set(all_of_it)
    shutil.rmtree(path)


def test_a_durable_block_that_is_gone_is_damage_with_its_place(store: tuple[StoreBytes, Path]) -> None:
    """File, offset and LSN of a destroyed block are named; records on both sides are still read."""
    made, path = store
    lsn, length = made.messages.blocks[2]
    sequence, offset = divmod(lsn, 4096)
    flip(container(path, sequence), offset + 3, 0xFF)
    view, found = findings(path)
    first = next(item for item in found if item.kind == "block")
    assert (first.file, first.offset, first.lsn) == (f"messages/{sequence:020d}.flog", offset, lsn)
    assert first.end == made.messages.blocks[3][0]
    lost = [record for record in all_records(view.logs["messages"]) if lsn <= record[0] < lsn + length]
    assert lost == [] and len(all_records(view.logs["messages"])) > 40


def test_one_bad_record_leaves_its_neighbours(store: tuple[StoreBytes, Path]) -> None:
    """A damaged record inside a durable block costs that record alone."""
    _, path = store
    records = all_records(open_store(path).logs["messages"])
    victim = records[6]
    flip(container(path, victim[0] // 4096), victim[0] % 4096 + 25)
    view, found = findings(path)
    assert [(item.kind, item.lsn) for item in found if item.kind == "record"] == [("record", victim[0])]
    assert all_records(view.logs["messages"]) == [record for record in records if record != victim]


@pytest.mark.parametrize("sequence", [1, 2, 3])
def test_a_missing_container_is_damage(store: tuple[StoreBytes, Path], sequence: int) -> None:
    """A container between base and tail that is not there is named, the first one too."""
    _, path = store
    container(path, sequence).unlink()
    view, found = findings(path)
    assert [item.file for item in found if item.kind == "missing"] == [f"messages/{sequence:020d}.flog"]
    assert len(all_records(view.logs["messages"])) > 10


def test_a_log_that_is_gone_altogether_is_damage(store: tuple[StoreBytes, Path]) -> None:
    """One log without the other is no new store."""
    _, path = store
    shutil.rmtree(path / "transactions")
    assert [(item.log, item.kind) for item in findings(path)[1]] == [("transactions", "missing")]


def test_containers_below_the_base_may_be_gone(tmp_path: Path) -> None:
    """What the base has passed is not needed; a record there that a later one names is not reported."""
    made = sample()
    position = sorted(made.live[1])[0]
    start = made.messages.files.keys()
    made.messages.sync(base=made.messages.tail)
    made.messages.add(lb.DEQUEUE, lb.dequeue(1, position), undo_prev=made.live[1][position], last=True)
    made.messages.sync()
    path = made.write(tmp_path)
    assert len(start) > 3
    for sequence in (1, 2):
        container(path, sequence).unlink()
    view, found = findings(path)
    assert found == [] and read_state(view).messages == {}


def test_a_record_of_a_message_that_is_not_in_the_log_is_reported(tmp_path: Path) -> None:
    """References above the base must lead somewhere."""
    made = StoreBytes()
    made.publish(1, b"x")
    made.messages.add(lb.ENQUEUE, lb.enqueue(1, 9), undo_prev=made.live[1][1] + 8)
    made.messages.add(lb.ENQUEUE, lb.enqueue(2, 1), undo_prev=made.live[1][1], tx=made.transactions.base + 64)
    made.transactions.add(lb.DTX_START, lb.xid(b"long enough that nothing else begins there"))
    made.transactions.add(lb.ROLLBACK, undo_prev=made.transactions.base + 72)
    made.sync()
    path = made.write(tmp_path)
    assert [(item.log, item.kind) for item in findings(path)[1]] == [("transactions", "reference"), ("messages", "reference")]


def test_a_message_without_all_of_its_chunks_is_reported(tmp_path: Path) -> None:
    """A live message whose content is not whole can't pass as good."""
    made = StoreBytes()
    number = made.messages.add(lb.START, lb.content(ROUTE, b"", b"abcdef", first=9))
    made.messages.add(lb.ENQUEUE, lb.enqueue(1, 1), undo_prev=number)
    made.sync()
    assert [item.kind for item in findings(made.write(tmp_path))[1]] == ["lost"]


@pytest.mark.parametrize("state", ["prepared", "committed", "ended"])
def test_sets_hold_and_take_what_stands_at_their_positions(tmp_path: Path, state: str) -> None:
    """Entries of a prepared set wait for it; those of a committed one without End are taken; a copy of the transaction says the same."""
    made = StoreBytes()
    for body in (b"a", b"b", b"c"):
        made.publish(1, body)
    tx = made.transactions.add(lb.DTX_START, lb.xid(b"x"))
    made.transactions.add(lb.ACQUIRE_SET, lb.acquire_set([(1, 2, 5)], 9), undo_prev=tx)
    made.transactions.add(lb.PREPARE, undo_prev=tx)
    made.transactions.add(lb.TX_COPY, lb.tx_copy(2, 0, 0, b"x", [], [(1, 2, 5)], 9), undo_prev=tx)
    if state != "prepared":
        made.transactions.add(lb.COMMIT, lb.rows([]), undo_prev=tx)
    if state == "ended":
        made.transactions.add(lb.END, undo_prev=tx)
    made.sync()
    view, found = findings(made.write(tmp_path))
    spots = [(spot.position, spot.dequeued_by) for message in read_state(view).messages.values() for spot in message.spots]
    assert found == []
    assert (
        spots
        == {
            "prepared": [(1, 0), (2, tx), (3, tx)],
            "committed": [(1, 0)],
            "ended": [(1, 0), (2, 0), (3, 0)],
        }[state]
    )


def test_copies_replace_what_was_known(tmp_path: Path) -> None:
    """After a Message-Copy the message is where the copy says, and its first record may go."""
    made = StoreBytes()
    made.publish(1, b"kept")
    number = made.live[1][1]
    made.publish(1, b"gone")
    made.ack(1, 2)
    made.messages.sync()
    copy = lb.copy([(1, 1, 0, 0, 0), (7, 5, 0, 0, 0)], lb.content(ROUTE, b"", b"kept"))
    at = made.messages.add(lb.COPY, copy, undo_prev=number)
    made.messages.sync(base=made.messages.tail)
    made.messages.add(lb.DEQUEUE, lb.dequeue(1, 1), undo_prev=number)
    made.messages.sync()
    view, found = findings(made.write(tmp_path))
    state = read_state(view)
    assert found == []
    assert [(m.id, m.lsn, [(s.queue, s.position) for s in m.spots]) for m in state.messages.values()] == [(number, at, [(7, 5)])]


def test_a_commit_may_give_several_ranges_to_a_queue(tmp_path: Path) -> None:
    """Entries without a position take the ranges of the Commit in order."""
    made = StoreBytes()
    tx = made.transactions.add(lb.TX_START)
    numbers = []
    for i in range(3):
        numbers.append(made.messages.add(lb.START, lb.content(ROUTE, b"", bytes([i]))))
        made.messages.add(lb.ENQUEUE, lb.enqueue(1, lb.waiting(i)), undo_prev=numbers[-1], tx=tx)
    made.transactions.add(lb.COMMIT, lb.rows([(1, 10, 1), (1, 50, 2)]), undo_prev=tx)
    made.sync()
    state = read_state(open_store(made.write(tmp_path)))
    assert [(m.id, s.position) for m in state.messages.values() for s in m.spots] == list(zip(numbers, (10, 50, 51)))


def test_the_state_of_transactions(tmp_path: Path) -> None:
    """Start, prepare, outcomes, copies and notes read as docs/FORMAT.md says; undecided enqueues are not visible."""
    made = StoreBytes()
    add = made.transactions.add
    committed, rolled_back = made.commit(1, [b"a", b"b"]), made.commit(1, [b"c"], lb.ROLLBACK)
    prepared = made.commit(2, [b"d"], lb.PREPARE)
    dtx = add(lb.DTX_START, lb.xid(b"xid"))
    add(lb.HEURISTIC, b"\x02", undo_prev=dtx)
    copied = add(lb.TX_COPY, lb.tx_copy(2, 0, 0, b"other", []), undo_prev=made.transactions.base)
    add(lb.NOTE, lb.note(1, b"k", b"v"))
    add(lb.NOTE, lb.note(1, b"gone", b"v"))
    add(lb.NOTE, lb.note(1, b"gone", b""))
    add(lb.END, undo_prev=committed)
    made.sync()
    view, found = findings(made.write(tmp_path))
    state = read_state(view)
    assert found == [] and copied
    assert {number: t.state for number, t in state.transactions.items()} == {
        committed: "committed",
        rolled_back: "rolled back",
        prepared: "prepared",
        dtx: "open",
        made.transactions.base: "prepared",
    }
    assert (state.transactions[dtx].xid, state.transactions[dtx].heuristic) == (b"xid", "rolled back")
    assert state.notes == {(1, b"k"): b"v"}
    seen = [(s.queue, s.position) for m in state.messages.values() for s in state.spots(m) if state.visible(s)]
    assert seen == [(1, 1), (1, 2)]


# --- headers ------------------------------------------------------------------------------------------------------------


def test_every_flipped_byte_of_a_header_is_found(store: tuple[StoreBytes, Path]) -> None:
    """The header's CRC covers all of it; the blocks behind a bad header are still read."""
    _, path = store
    file = container(path, 2)
    whole = file.read_bytes()
    records = all_records(open_store(path).logs["messages"])
    for offset in (*range(64), 300, 507, 508, 511):
        file.write_bytes(whole)
        flip(file, offset, 0x10)
        view, found = findings(path)
        assert [item.kind for item in found] == ["header"]
        assert all_records(view.logs["messages"]) == records


@pytest.mark.parametrize(
    ("header", "kind", "text"),
    [
        (lb.container_header(2, 4096, version=4), "format", "format version 4; this program knows versions up to 3"),
        (lb.container_header(2, 4096, uuid=bytes(16)), "store", "another store"),
        (lb.container_header(2, 4096, log_id=2), "store", "another log"),
        (lb.container_header(7, 4096), "name", "container 7"),
        (lb.container_header(2, 8192), "size", "8192 bytes"),
        (lb.container_header(2, 1000), "header", "container size 1000"),
    ],
)
def test_containers_that_do_not_belong_here_are_named(store: tuple[StoreBytes, Path], header: bytes, kind: str, text: str) -> None:
    """Another version, store, log, place or size: each is found and said; their records are not taken."""
    _, path = store
    file = container(path, 2)
    file.write_bytes(header + file.read_bytes()[512:])
    found = findings(path)[1]
    assert any(item.kind == kind and text in item.text for item in found)


def test_a_block_of_the_other_log_is_no_block_here(store: tuple[StoreBytes, Path]) -> None:
    """Both logs have the same LSNs: a block that a disk wrote to its place in the wrong one checks, and is damage; its records are not
    taken. One that names this log, or (of an older version) none, is good."""
    _, path = store
    view = open_store(path)
    records = all_records(view.logs["messages"])
    for block in view.logs["messages"].blocks[:3]:
        file = container(path, block.lsn // 4096)
        for log_id in (lb.MESSAGES, 0, lb.TRANSACTIONS):
            lb.say_log(file, block.lsn % 4096, log_id)
            view, found = findings(path)
            log = view.logs["messages"]
            if log_id != lb.TRANSACTIONS:
                assert (found, all_records(log)) == ([], records)
                continue
            assert any(item.kind == "block" and item.lsn == block.lsn for item in log.damage)
            assert all_records(log) == [one for one in records if not block.lsn < one[0] < block.end]
        lb.say_log(file, block.lsn % 4096, 0)


@pytest.mark.parametrize("size", [0, 100, 512, 1500, 4095, 5000])
def test_a_container_of_another_length_is_found(store: tuple[StoreBytes, Path], size: int) -> None:
    """A file that was cut, or grew, is damage whatever remains of it."""
    _, path = store
    file = container(path, 1)
    file.write_bytes(file.read_bytes()[:size].ljust(min(size, 5000), b"\0"))
    assert findings(path)[1]


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=9000), st.integers(0, 8000))
def test_garbage_never_crashes_the_reader(tmp_path_factory: pytest.TempPathFactory, junk: bytes, offset: int) -> None:
    """Any bytes in any place give findings, not exceptions."""
    path = sample().write(tmp_path_factory.mktemp("store"))
    file = container(path, 1)
    whole = file.read_bytes()
    file.write_bytes((whole[:offset] + junk).ljust(4096, b"\0"))
    container(path, 2, "transactions").write_bytes(junk)
    assert findings(path)[1]
    shutil.rmtree(path)


# --- repair -------------------------------------------------------------------------------------------------------------


def mended(path: Path) -> tuple[StoreView, list[Damage]]:
    """Repairs, and checks what any repair must give: no structural damage left, for either reader."""
    view = open_store(path)
    repair.apply(view, repair.plan(view))
    after, found = findings(path)
    assert [item for item in found if item.kind not in ("reference", "lost") and item.file != "transactions/"] == []
    for log in after.logs.values():
        other = scan.LogScan(OsFiles(), str(log.directory), log.number)
        kept = [(lsn, kind, data) for lsn, kind, *_, data in other.collect()]
        assert other.damage == []
        assert kept == [record for record in all_records(log) if record[0] >= log.base]
    if after.logs["transactions"].containers:
        whole = {m.id for m in read_state(after).messages.values() if m.here == m.size}
        assert recovered(path, {1, 2, 3}) == {entry for entry in standing(after) if entry[2] in whole and entry[1]}
    return after, found


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 1 << 32))
def test_repair_opens_the_log_and_keeps_every_good_record(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Random damage to durable parts: afterwards both readers find nothing wrong, and every record that was good is still there."""
    draw = random.Random(seed)
    made = sample()
    path = made.write(tmp_path_factory.mktemp("store"))
    for _ in range(draw.choice((1, 1, 2, 4))):
        name = draw.choice(("messages", "messages", "transactions"))
        log = made.messages if name == "messages" else made.transactions
        sequence = draw.choice(sorted(log.files)[:-1] or [1])
        file = container(path, sequence, name)
        how = draw.randrange(5)
        if how == 0:
            file.unlink(missing_ok=True)
        elif file.exists():
            data = bytearray(file.read_bytes())
            at = draw.randrange(4096)
            if how == 1:
                data[at : at + 600] = draw.randbytes(len(data[at : at + 600]))
            elif how == 2:
                data = data[:at]
            else:
                data[min(at, len(data) - 1) if data else 0 : at + 1] = b"\xa5"
            file.write_bytes(data)
    view = open_store(path)
    compared(view)
    before = {name: set(all_records(log)) for name, log in view.logs.items()}
    after, _ = mended(path)
    for name, log in after.logs.items():
        now = set(all_records(log))
        assert before[name] <= now
        filler = list(now - before[name])
        assert all(kind in (lb.CHUNK, lb.MESSAGE_DELETE, lb.NOTE, lb.TX_DELETE) for _, kind, _ in filler)
    shutil.rmtree(path)


def test_repair_of_one_record_keeps_the_others_and_says_what_went(store: tuple[StoreBytes, Path]) -> None:
    """A lost Message-Start: its enqueue names it, all other messages stay, and the damaged file is in quarantine."""
    made, path = store
    position, number = sorted(made.live[1].items())[1]
    file = container(path, number // 4096)
    flip(file, number % 4096 + 30)
    damaged = file.read_bytes()
    view = open_store(path)
    changes = repair.plan(view)
    read_state(view)
    assert [item.lsn for item in changes.lost] == [number]
    assert repair.apply(view, changes) == [f"quarantine/messages-{file.name}"]
    assert (path / "quarantine" / f"messages-{file.name}").read_bytes() == damaged
    view, found = findings(path)
    assert [item.kind for item in found] == ["reference"]
    state = read_state(view)
    assert state.missing_messages == {number}
    spots = {(s.queue, s.position) for m in state.messages.values() for s in state.spots(m) if state.visible(s)}
    assert spots == {(q, p) for q, entries in made.live.items() for p in entries} - {(1, position)}
    assert {entry[:2] for entry in recovered(path, {1, 2, 3})} == spots


def test_repairing_twice_changes_nothing_more(store: tuple[StoreBytes, Path]) -> None:
    """A repaired log needs no repair."""
    _, path = store
    container(path, 2).unlink()
    flip(container(path, 1), 700)
    mended(path)
    bytes_now = {file: file.read_bytes() for file in path.rglob("*.flog")}
    assert repair.plan(open_store(path)).images == {}
    assert {file: file.read_bytes() for file in path.rglob("*.flog")} == bytes_now


def test_a_repair_interrupted_between_two_files_can_be_run_again(store: tuple[StoreBytes, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every prefix of the repair's renames leaves a store that the next repair mends; the first copies stay."""
    made, path = store
    originals = {}
    for sequence in (1, 2, 3):
        flip(container(path, sequence), made.messages.blocks[3][0] % 4096 + 5 if sequence == 1 else 520, 0xFF)
        originals[sequence] = container(path, sequence).read_bytes()
    real, left = repair.os.rename, 3

    def failing(source: object, target: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(repair.os, "rename", failing)
    view = open_store(path)
    with pytest.raises(OperatorError, match="run the repair again") as error:
        repair.apply(view, repair.plan(view))
    assert error.value.exit_code == 74
    monkeypatch.setattr(repair.os, "rename", real)
    mended(path)
    for sequence, data in originals.items():
        assert (path / "quarantine" / f"messages-{sequence:020d}.flog").read_bytes() == data


def test_a_repair_keeps_an_unknown_format_as_it_is(store: tuple[StoreBytes, Path]) -> None:
    """A container of a later version is never rewritten."""
    _, path = store
    file = container(path, 2)
    file.write_bytes(lb.container_header(2, 4096, version=4) + file.read_bytes()[512:])
    with pytest.raises(OperatorError, match="format version 4") as error:
        repair.plan(open_store(path))
    assert error.value.exit_code == 65


@pytest.mark.parametrize("log", [lb.MESSAGES, lb.TRANSACTIONS])
@pytest.mark.parametrize("size", [24, 32, 40, 4096, 65_560, 65_568, 65_584, 65_592, 200_000])
def test_filler_fills_exactly(log: int, size: int) -> None:
    """Filler records of any size end where they should, and read as records of the log."""
    data = b"".join(raw.ljust(padded(len(raw), 8), b"\0") for raw in repair.filler(log, 4096, size))
    assert len(data) == size
    at = 0
    while at < size:
        record = read_record(data, at, size, 4096 + at, 0)
        assert isinstance(record, Record)
        fields_of(record, log)
        at += padded(record.length, 8)
