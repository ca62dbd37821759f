"""The scan of a log hands out exactly the durable records, tells a torn tail from damage, and takes no other bytes for records."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.errors import StoreError
from flintmq.store.log.containers import container_name, sequence_of
from flintmq.store.log.file_port import OsFiles
from flintmq.store.log.scan import LogScan
from tests.support import logbytes as lb


def scan_of(directory: Path | str, **more: object) -> tuple[LogScan, list]:
    scan = LogScan(OsFiles(), str(directory), lb.MESSAGES, **more)  # type: ignore[arg-type]
    return scan, scan.collect()


def sample(blocks: int = 40, per_block: int = 3) -> tuple[lb.LogBytes, list[list[int]]]:
    """A log of small blocks over several containers, and the LSNs of the records of each block."""
    log, lsns = lb.LogBytes(), []
    for block in range(blocks):
        lsns.append([log.add(lb.ENQUEUE, lb.enqueue(7, block * per_block + n + 1), undo_prev=block + 1) for n in range(per_block)])
        log.sync()
    return log, lsns


def flat(lsns: list[list[int]]) -> list[int]:
    return [lsn for block in lsns for lsn in block]


@given(
    st.lists(st.tuples(st.binary(max_size=300), st.booleans(), st.integers(0, 2**40), st.integers(0, 2**40), st.booleans()), max_size=80),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_every_record_comes_back(tmp_path_factory: pytest.TempPathFactory, items: list, clean: bool) -> None:
    """Whatever records stand in whatever blocks: all come back, in order, with every field; tail, epoch and clean as written."""
    directory = tmp_path_factory.mktemp("log")
    log, want = lb.LogBytes(), []
    log.epoch = 9
    for number, (body, ends_block, tx, expires, last) in enumerate(items):
        lsn = log.add(lb.DEQUEUE, body, undo_prev=number, tx=tx, expires=expires, last=last, time=number)
        flags = (2 if tx else 0) | (4 if expires else 0) | (8 if last else 0)
        want.append((lsn, lb.DEQUEUE, flags, number, tx, expires, 1_000_000 + number, body))
        if ends_block:
            log.sync()
    log.sync(flags=1 if clean else 0)
    log.write(str(directory))
    scan, got = scan_of(directory)
    assert got == want
    assert (scan.tail, scan.last_block, scan.torn_at, scan.damage) == (log.end, log.previous, 0, [])
    assert scan.clean == clean
    assert scan.epoch == (9 if log.previous else 0)
    assert scan.store_uuid == lb.UUID and scan.container_size == 4096 and scan.records == len(want)


def test_an_empty_directory_is_an_empty_log(tmp_path: Path) -> None:
    """No container, or no directory: nothing is found and nothing is wrong; names that are no containers don't count."""
    scan, got = scan_of(tmp_path / "none")
    assert (got, scan.container_size, scan.tail, scan.last_block, scan.containers) == ([], 0, 0, 0, [])
    (tmp_path / "00000000000000000001.tmp").write_bytes(b"x")
    (tmp_path / "note.flog").write_bytes(b"x")
    scan, got = scan_of(tmp_path)
    assert (got, scan.containers, scan.unusable) == ([], [], [])


def test_container_names() -> None:
    """A name of 20 decimal digits and the suffix is a container's, nothing else is."""
    assert sequence_of(container_name(123456)) == 123456
    for name in ("1.flog", "0000000000000000001.flog", "0000000000000000000x.flog", "00000000000000000001.tmp", "٠" * 20 + ".flog"):
        assert sequence_of(name) is None


def test_containers_without_blocks_are_a_new_log(tmp_path: Path) -> None:
    """Two fresh containers: the tail is the first place of the first one."""
    lb.LogBytes().write(str(tmp_path))
    lb.LogBytes(sequence=2).write(str(tmp_path))
    scan, got = scan_of(tmp_path)
    assert (got, scan.tail, scan.base, scan.containers, scan.damage) == ([], 4096 + 512, 4096 + 512, [1, 2], [])


@pytest.mark.parametrize("fill", ["zeros", "garbage"])
def test_torn_tail_at_every_byte(tmp_path: Path, fill: str) -> None:
    """The last block reached the disk only up to some byte: it is cut off as a whole, the blocks before it stay, nothing is damage."""
    log, lsns = sample(6)
    whole = {sequence: bytes(data) for sequence, data in log.files.items()}
    lsn, length = log.blocks[-1]
    sequence, start = lsn // log.size, lsn % log.size
    noise = random.Random(1).randbytes(length) if fill == "garbage" else bytes(length)
    for cut in range(length):
        data = bytearray(whole[sequence])
        data[start + cut : start + length] = noise[cut:]
        if data == whole[sequence]:
            continue
        log.files[sequence] = data
        log.write(str(tmp_path))
        scan, got = scan_of(tmp_path)
        assert [record[0] for record in got] == flat(lsns[:-1]), cut
        assert scan.damage == [] and scan.last_block == log.blocks[-2][0] and not scan.clean
        assert scan.tail == lsn
        assert scan.torn_at == (lsn if cut >= 16 else scan.torn_at), cut


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """One bit flipped anywhere: what is handed out is a subset of what was written, byte for byte; what is missing and was durable is
    named in `damage`, what was not yet known durable is torn."""
    log, _ = sample(24)
    log.sync(flags=1)
    log.write(str(tmp_path))
    _, want = scan_of(tmp_path)
    rng = random.Random(3)
    places = [(sequence, rng.randrange(4096 * 8)) for sequence in log.files for _ in range(150)]
    for sequence, bit in places:
        path = tmp_path / container_name(sequence)
        good = path.read_bytes()
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        scan, got = scan_of(tmp_path)
        assert set(got) <= set(want)
        assert got == sorted(got)
        missing = [record[0] for record in want if record not in got]
        for lsn in missing:
            named = any(damage.lsn <= lsn and (lsn < damage.next_lsn or not damage.next_lsn) for damage in scan.damage)
            assert named or (scan.torn_at and lsn >= scan.torn_at) or lsn >= scan.tail, (lsn, scan.damage)
        path.write_bytes(good)


def test_a_bad_record_of_a_durable_block_costs_only_itself(tmp_path: Path) -> None:
    """A flipped bit in a record that was durable: that record is missing and named, its neighbours in the block come back."""
    log, lsns = sample(20)
    victim = lsns[4][1]
    log.files[victim // 4096][victim % 4096 + 20] ^= 4
    log.write(str(tmp_path))
    scan, got = scan_of(tmp_path)
    assert [record[0] for record in got] == [lsn for lsn in flat(lsns) if lsn != victim]
    (damage,) = scan.damage
    assert (damage.lsn, damage.next_lsn, damage.offset) == (victim, lsns[4][2], victim % 4096)
    assert damage.file == str(tmp_path / container_name(victim // 4096))
    assert scan.torn_at == 0 and scan.tail == log.end


def test_a_destroyed_block_header_costs_its_block(tmp_path: Path) -> None:
    """Zeros over the header of a durable block: the scan goes on at the next block and names the stretch."""
    log, lsns = sample(20)
    lsn, _ = log.blocks[5]
    log.files[lsn // 4096][lsn % 4096 : lsn % 4096 + 64] = bytes(64)
    log.write(str(tmp_path))
    scan, got = scan_of(tmp_path)
    assert [record[0] for record in got] == flat(lsns[:5] + lsns[6:])
    (damage,) = scan.damage
    assert (damage.lsn, damage.next_lsn) == (lsn, log.blocks[6][0])


def test_a_missing_container_is_damage(tmp_path: Path) -> None:
    """A container between base and tail is gone: named, the rest is handed out."""
    log, lsns = sample(60)
    log.write(str(tmp_path))
    (tmp_path / container_name(3)).unlink()
    scan, got = scan_of(tmp_path)
    assert [record[0] for record in got] == [lsn for lsn in flat(lsns) if lsn // 4096 != 3]
    (damage,) = scan.damage
    assert damage.next_lsn == 4 * 4096 + 512 and container_name(3) in str(damage)
    assert scan.tail == log.end


def test_a_missing_first_container_is_damage(tmp_path: Path) -> None:
    """The container of the base itself is gone: named, the rest is handed out."""
    log, lsns = sample(60)
    log.write(str(tmp_path))
    (tmp_path / container_name(1)).unlink()
    scan, got = scan_of(tmp_path)
    assert [record[0] for record in got] == [lsn for lsn in flat(lsns) if lsn // 4096 != 1]
    (damage,) = scan.damage
    assert damage.reason == "the container is missing" and damage.next_lsn == 2 * 4096 + 512


def test_a_bad_container_header_loses_no_record(tmp_path: Path) -> None:
    """Blocks name their own LSN: when only the container's header is destroyed, its records come back and the header is named."""
    log, lsns = sample(60)
    log.files[2][0:512] = bytes(512)
    log.write(str(tmp_path))
    scan, got = scan_of(tmp_path)
    assert [record[0] for record in got] == flat(lsns)
    assert scan.unusable == [2] and 2 not in scan.containers
    (damage,) = scan.damage
    assert (damage.lsn, damage.offset) == (2 * 4096, 0)


def test_a_whole_container_of_noise_is_damage(tmp_path: Path) -> None:
    """Every byte of a sealed container is garbage: one stretch of damage, the other containers come back."""
    log, lsns = sample(60)
    log.files[2][:] = random.Random(5).randbytes(4096)
    log.write(str(tmp_path))
    scan, got = scan_of(tmp_path)
    assert [record[0] for record in got] == [lsn for lsn in flat(lsns) if lsn // 4096 != 2]
    assert {damage.lsn // 4096 for damage in scan.damage} <= {1, 2} and scan.damage
    assert not scan.torn_at and scan.tail == log.end


def test_a_short_file_is_not_read_past(tmp_path: Path) -> None:
    """A container cut short on the disk: what is left comes back, what is not is damage."""
    log, lsns = sample(60)
    log.write(str(tmp_path))
    path = tmp_path / container_name(2)
    path.write_bytes(path.read_bytes()[:2000])
    scan, got = scan_of(tmp_path)
    assert [record[0] for record in got] == [lsn for lsn in flat(lsns) if lsn < 2 * 4096 + 2000 - 40 or lsn >= 3 * 4096]
    assert scan.damage


def test_unsynced_blocks_that_arrived_out_of_order_are_cut_off(tmp_path: Path) -> None:
    """Three blocks were on their way at once and only the last reached the disk: it is cut off with the others, though it checks."""
    log, lsns = sample(10)
    durable = log.durable
    first = len(log.blocks)
    for _ in range(3):
        log.add(lb.ENQUEUE, lb.enqueue(7, 99))
        log.sync(hint=durable)
    for lsn, length in log.blocks[first : first + 2]:
        log.files[lsn // 4096][lsn % 4096 : lsn % 4096 + length] = bytes(length)
    log.write(str(tmp_path))
    scan, got = scan_of(tmp_path)
    assert [record[0] for record in got] == flat(lsns)
    assert (scan.damage, scan.torn_at, scan.tail) == ([], log.blocks[first][0], log.blocks[first][0])


def test_the_base_of_a_cut_block_does_not_count(tmp_path: Path) -> None:
    """A torn block told a newer base than the last good one: reading starts at the good one's base (I4)."""
    log, lsns = sample(30)
    durable = log.durable
    for _ in range(3):
        log.add(lb.ENQUEUE, lb.enqueue(7, 99))
        log.sync(hint=durable)
    log.add(lb.ENQUEUE, lb.enqueue(7, 100))
    log.sync(hint=durable, base=log.tail)
    lsn, length = log.blocks[-4]
    log.files[lsn // 4096][lsn % 4096 : lsn % 4096 + length] = bytes(length)
    log.write(str(tmp_path))
    scan, got = scan_of(tmp_path)
    assert [record[0] for record in got] == flat(lsns)
    assert scan.base == lsns[0][0] - 64


@pytest.mark.parametrize("kept", [True, False])
def test_nothing_below_the_base_is_handed_out(tmp_path: Path, kept: bool) -> None:
    """Records below the base are neither handed out nor needed: their containers may be there (retained) or gone, or be noise."""
    log, lsns = sample(30)
    base = lsns[20][1]
    log.add(lb.ENQUEUE, lb.enqueue(7, 1000))
    log.sync(base=base)
    for sequence in range(1, base // 4096):
        if kept:
            log.files[sequence][512:] = bytes(4096 - 512)
        else:
            del log.files[sequence]
    log.write(str(tmp_path))
    scan, got = scan_of(tmp_path)
    assert [record[0] for record in got][:-1] == [lsn for lsn in flat(lsns) if lsn >= base]
    assert scan.base == base and scan.damage == []


def test_a_base_behind_everything(tmp_path: Path) -> None:
    """Everything is dead: the base is the tail; the log goes on behind its last block."""
    log, _ = sample(30)
    log.sync(base=log.end + 512)
    log.write(str(tmp_path))
    scan, got = scan_of(tmp_path)
    assert got == [] and scan.tail == log.end and scan.last_block == log.previous and scan.damage == []


def test_old_bytes_of_a_recycled_file_are_not_taken(tmp_path: Path) -> None:
    """A recycled container still holds the blocks of its former life: their LSNs give them away."""
    log, lsns = sample(14)
    sequence = max(log.files) + 1
    log.files[sequence] = bytearray(lb.container_header(sequence, 4096)) + log.files[1][512:]
    log.write(str(tmp_path))
    scan, got = scan_of(tmp_path)
    assert [record[0] for record in got] == flat(lsns)
    assert (scan.torn_at, scan.damage, scan.tail) == (0, [], log.end)


def test_blocks_of_a_fallen_epoch_are_not_taken(tmp_path: Path) -> None:
    """An earlier epoch's cut tail was not overwritten everywhere: its blocks behind the new tail stay out."""
    log, lsns = sample(5)
    log.add(lb.ENQUEUE, lb.enqueue(7, 50))
    log.sync(hint=log.blocks[-1][0])
    kept = {sequence: bytes(data) for sequence, data in log.files.items()}
    log.add(lb.ENQUEUE, lb.enqueue(7, 51))
    log.sync(hint=log.blocks[-2][0])
    stale_lsn, stale_length = log.blocks[-1]
    stale = bytes(log.files[stale_lsn // 4096][stale_lsn % 4096 : stale_lsn % 4096 + stale_length])
    again = lb.LogBytes()
    again.files = {sequence: bytearray(data) for sequence, data in kept.items()}
    again.previous, again.tail, again.durable, again.epoch = log.blocks[4][0], log.blocks[5][0], log.blocks[5][0], 2
    want = [again.add(lb.ENQUEUE, lb.enqueue(7, 60))]
    again.sync()
    again.files[stale_lsn // 4096][stale_lsn % 4096 : stale_lsn % 4096 + stale_length] = stale
    again.write(str(tmp_path))
    scan, got = scan_of(tmp_path)
    assert [record[0] for record in got] == flat(lsns) + want
    assert scan.epoch == 2 and scan.tail == again.end and scan.damage == []


def test_a_clean_mark_counts_only_at_the_end(tmp_path: Path) -> None:
    """The last block of a clean stop, then a later run's block: not clean; a torn block behind it: not clean either."""
    log, _ = sample(3)
    log.sync(flags=1)
    log.write(str(tmp_path))
    assert scan_of(tmp_path)[0].clean
    log.epoch = 2
    log.add(lb.ENQUEUE, lb.enqueue(7, 1))
    log.sync()
    log.write(str(tmp_path))
    assert not scan_of(tmp_path)[0].clean
    lsn, length = log.blocks[-1]
    log.files[lsn // 4096][lsn % 4096 + length - 1] ^= 1
    log.write(str(tmp_path))
    scan, _ = scan_of(tmp_path)
    assert not scan.clean and scan.torn_at == lsn


def refused(tmp_path: Path, header: bytes, **more: object) -> str:
    log, _ = sample(3)
    log.files[1][:512] = header
    log.write(str(tmp_path))
    with pytest.raises(StoreError) as caught:
        scan_of(tmp_path, **more)
    assert container_name(1) in str(caught.value)
    return str(caught.value)


def test_unknown_format_is_refused_by_name(tmp_path: Path) -> None:
    """A newer format version: the error names the file, the version found and the one known; nothing is read."""
    text = refused(tmp_path, lb.container_header(1, 4096, version=4))
    assert "version 4" in text and "versions up to 3" in text
    patched = bytearray(lb.container_header(1, 4096))
    patched[8] = 7  # also when its header checks by another rule than ours
    assert "version 7" in refused(tmp_path, bytes(patched))


def test_another_store_is_refused(tmp_path: Path) -> None:
    """A container of another store, of another log, or with impossible sizes: an error that names the file."""
    assert "belongs to the store" in refused(tmp_path, lb.container_header(1, 4096), store_uuid=bytes(16))
    assert "log 2" in refused(tmp_path, lb.container_header(1, 4096, log_id=lb.TRANSACTIONS))
    for size in (0, 4095, 1 << 62, 2048):
        assert "container size" in refused(tmp_path, lb.container_header(1, size))


def test_a_log_without_its_first_blocks_is_refused(tmp_path: Path) -> None:
    """Containers from 5 on and no block in them: something is lost that can't be told; the store must not open."""
    lb.LogBytes(sequence=5).write(str(tmp_path))
    with pytest.raises(StoreError, match="no readable block"):
        scan_of(tmp_path)


@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_noise_never_breaks_the_scan(tmp_path_factory: pytest.TempPathFactory, seed: int, pokes: int, width: int) -> None:
    """Any bytes overwritten anywhere behind the container headers: the scan ends, and hands out only what was written."""
    directory = tmp_path_factory.mktemp("log")
    log, _ = sample(20)
    log.write(str(directory))
    want = set(scan_of(directory)[1])
    rng = random.Random(seed)
    for _ in range(pokes):
        data = log.files[rng.choice(list(log.files))]
        at = rng.randrange(512, len(data) - 64)
        data[at : at + 4 * width] = rng.choice([struct.pack("<I", rng.randrange(1 << 32)) * width, b"\xff" * 4 * width, bytes(4 * width)])
    log.write(str(directory))
    _, got = scan_of(directory)
    assert set(got) <= want and len(set(got)) == len(got)


def test_reading_twice_gives_the_same(tmp_path: Path) -> None:
    """A scan changes nothing: the same object and a new one find the same again."""
    log, _ = sample(20)
    log.write(str(tmp_path))
    scan, first = scan_of(tmp_path)
    assert scan.collect() == first == scan_of(tmp_path)[1]
