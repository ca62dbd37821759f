"""Messages that name a shape: few bytes in the log, and the same messages after a restart, a copy, damage."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flintmq.store.log.inspect import open_store as inspected
from flintmq.store.log.inspect_state import read_state
from tests.oracle.log import Log, open_store
from tests.oracle.records import MESSAGES, Kind, fields_of, in_full
from tests.store.rig import STORE, Rig
from tests.support.stored import StoredContent

MIB = 1 << 20


def on_disk(rig: Rig, path: Path) -> Log:
    """The message log of a stopped or flushed store, as the independent reader sees it."""
    for log in ("messages", "transactions"):
        (path / log).mkdir(parents=True)
        for name in rig.files(log):
            fd = rig.disk.open(f"{STORE}/{log}/{name}")
            (path / log / name).write_bytes(rig.disk.read(fd, rig.size, 0))
            rig.disk.close(fd)
    return open_store(path)["messages"]


def kinds(log: Log) -> Counter[str]:
    return Counter(record.name for record in log.records())


def publish(rig: Rig, queue: int, body: bytes, header: bytes = b"header", key: bytes = b"key", expires: int = 0) -> int:
    """As Rig.publish, with a header and a key of its own."""
    position = rig.next[queue]
    rig.next[queue] += 1
    message, _ = rig.driver.publish([(queue, position, expires)], b"", key, header, body)
    rig.model[queue][position] = message
    rig.bodies[message] = body
    return int(message)


def places(log: Log) -> dict[tuple[int, int], tuple[bytes, bytes, int]]:
    """(queue, position) -> content header, body, expiry of what the log's records put there."""
    contents: dict[int, tuple[bytes, bytes]] = {}
    result = {}
    for record in in_full(log.records(), log.container_size):
        values = fields_of(record, MESSAGES)
        if record.type == Kind.MESSAGE_START:
            run = values["content"][values["route"] :]
            contents[record.lsn] = (run[: values["header"]], run[values["header"] :])
        elif record.type == Kind.MESSAGE_ENQUEUE:
            result[values["queue"], values["position"]] = (*contents[record.undo_prev], record.expires_ms)
    return result


# --- bytes


def test_a_message_of_100_bytes_takes_at_most_152_bytes_of_the_log() -> None:
    """1,450 MiB for 10 million, block headers and the ends of containers among them; a group of 500 is written at once."""
    rig = Rig(size=4 * MIB, initial_containers=3)
    before = rig.messages.tail
    for number in range(60_000):
        publish(rig, 1, b"%0100d" % number, bytes(14), b"queue")
        if number % 500 == 0:
            rig.flush()
            rig.store.maintain()
    rig.flush()
    assert (rig.messages.tail - before) / 60_000 <= 132
    assert rig.recovered() != rig.model
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model


def test_headers_that_no_other_message_has_make_no_shape(tmp_path: Path) -> None:
    """As with a message-id in each: 1,000 messages are 1,000 Message-Starts."""
    rig = Rig(size=MIB)
    for number in range(1000):
        publish(rig, 1, b"body", b"header %d" % number)
    rig.flush()
    counts = kinds(on_disk(rig, tmp_path))
    assert counts["Message-Start"] == counts["Message-Enqueue"] == 1000 and counts["Message-Shape"] == counts["Message"] == 0


def test_a_shape_is_written_with_its_second_message_in_a_container(tmp_path: Path) -> None:
    """Of n containers each has one Message-Start, one Message-Shape, and Messages."""
    rig = Rig(size=16384, initial_containers=8)
    for _ in range(800):
        publish(rig, 1, bytes(100))
        rig.flush()
        rig.store.maintain()
    log = on_disk(rig, tmp_path)
    by_container: dict[int, list[str]] = {}
    for record in log.records():
        if record.type in (Kind.MESSAGE_START, Kind.MESSAGE_ENQUEUE, Kind.MESSAGE_SHAPE, Kind.MESSAGE):
            by_container.setdefault(record.lsn // rig.size, []).append(record.name)
    assert len(by_container) > 5
    for names in list(by_container.values())[:-1]:
        assert names[:3] == ["Message-Start", "Message-Enqueue", "Message-Shape"] and set(names[3:]) == {"Message"}


def test_1000_queues_that_take_turns_have_a_shape_each(tmp_path: Path) -> None:
    """And all but few of their messages after the first name it."""
    queues = tuple(range(1, 1001))
    rig = Rig(size=4 * MIB, queues=queues)
    for turn in range(6):
        for queue in queues:
            publish(rig, queue, b"%d.%d" % (queue, turn), b"header", b"queue-%d" % queue)
    rig.flush()
    log = on_disk(rig, tmp_path)
    counts = kinds(log)
    assert 900 <= counts["Message-Shape"] <= 1000
    assert counts["Message"] >= 0.9 * 5 * 1000
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model
    rig.check_contents()


def test_more_shapes_than_the_log_remembers_lose_nothing(tmp_path: Path) -> None:
    """10,000 shapes in one container, of which 4,096 are remembered: the rest is written in full."""
    rig = Rig(size=8 * MIB)
    for turn in range(3):
        for number in range(10_000):
            publish(rig, 1 + number % 3, b"%d.%d" % (number, turn), b"header %d" % number)
    rig.flush()
    counts = kinds(on_disk(rig, tmp_path))
    assert 1000 < counts["Message-Shape"] <= 4096 and counts["Message"] + counts["Message-Start"] == 30_000
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model


def test_bytes_of_shapes_have_a_bound() -> None:
    """Headers of 4,000 bytes: some 260 of them fit into 1 MiB, and the account of routes never has more than that and the table."""
    account = pytest.importorskip("flintmq.core.memory_account")
    before = account.bytes_by_kind()["routes"]
    rig = Rig(size=16 * MIB)
    for turn in range(3):
        for number in range(600):
            publish(rig, 1, b"%d" % turn, b"%04d" % number * 1000)
    assert 900_000 < account.bytes_by_kind()["routes"] - before < (1 << 20) + 4096 * 72
    rig.flush()
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model


# --- the same messages


@pytest.mark.parametrize("seed", range(12))
def test_what_comes_back_is_what_comes_back_of_full_records(seed: int, tmp_path: Path) -> None:
    """One script on two stores, one of which writes each message in full: queues, positions, expiries, bytes."""
    draw = random.Random(seed)
    brief, full = (Rig(size=draw.choice((8192, 16384, 65536)), initial_containers=3) for _ in range(2))
    ids: dict[tuple[int, int], int] = {}
    for _ in range(700):
        queue = draw.choice((1, 1, 2, 3))
        if draw.random() < 0.3 and full.model[queue]:
            position = draw.choice(list(full.model[queue]))
            full.ack(queue, position)
            brief.ack(queue, position)
            continue
        header = draw.choice((b"common", b"common", b"seldom %d" % draw.randrange(20), b"", b"unique %d" % draw.randrange(1 << 60)))
        body, expires = draw.randbytes(draw.choice((0, 1, 100, 900))), draw.choice((0, 0, 0, 4_000_000_000_000))
        position = full.next[queue]
        publish(brief, queue, body, header, expires=expires)
        message = full.store.append_content(StoredContent(b"", b"key", header, body))
        full.store.enqueue(queue, position, message, expires_at_ms=expires)
        full.next[queue] += 1
        full.model[queue][position] = ids[queue, position] = message
        if draw.random() < 0.2:
            for rig in (brief, full):
                rig.flush()
                rig.store.maintain()
        if draw.random() < 0.01:
            clean = draw.random() < 0.5
            for rig in (brief, full):
                rig.flush()
                rig.reopen(clean)
                assert rig.recovered() == rig.model
    for rig in (brief, full):
        rig.settle()
        rig.reopen(clean=False)
    shown = []
    for rig in (brief, full):
        shown.append(
            {
                (queue, one.position): (one.expires_at_ms, rig.store.content(one.message_id))
                for queue in (1, 2, 3)
                for one in rig.store.entries(queue)
            }
        )
    assert shown[0] == shown[1] and set(shown[0]) == {(q, p) for q, entries in full.model.items() for p in entries}


def test_positions_far_apart_and_of_another_level_have_a_shape_of_their_own(tmp_path: Path) -> None:
    """The distance has 32 bits: 2^32 - 1 positions fit, 2^32 do not, nor does the level above; and back again."""
    rig = Rig(size=65536)
    wanted = [1, 2, (1 << 32) + 1, (1 << 32) + 2, 1 << 40, (7 << 56) + 1, (7 << 56) + 2, (1 << 40) + 1]
    for position in wanted:
        rig.next[1] = position
        publish(rig, 1, b"at %d" % position)
    rig.flush()
    log = on_disk(rig, tmp_path)
    assert [position for _, position in sorted(places(log))] == sorted(wanted)
    assert all(body == b"at %d" % position for (_, position), (_, body, _) in places(log).items())
    assert kinds(log)["Message-Shape"] == 5
    rig.reopen(clean=False)
    assert rig.recovered()[1] == rig.model[1]
    rig.check_contents()


def test_flags_priority_and_queue_are_of_the_shape() -> None:
    """The same route and header on two queues are two shapes."""
    rig = Rig(size=65536)
    for number in range(40):
        publish(rig, 1 + number % 2, b"%d" % number)
    rig.flush()
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model
    rig.check_contents()


@pytest.mark.parametrize("buffered", [True, False])
def test_a_message_is_read_from_the_buffers_and_from_the_disk(buffered: bool) -> None:
    """Also when its shape is outside of the window that is read."""
    rig = Rig(size=4 * MIB)
    for number in range(2000):
        publish(rig, 1, b"%d" % number * 200, b"header" * 100)
    if not buffered:
        rig.flush()
        rig.reopen(clean=False)
        rig.model = {queue: dict(entries) for queue, entries in rig.recovered().items()}
    for message in reversed(list(rig.model[1].values())):
        content = rig.store.content(message)
        assert content.body == rig.bodies[message] and content.header == b"header" * 100 and content.routing_key == b"key"


def test_a_backlog_of_1000_queues_reads_each_shape_once() -> None:
    """Messages of 1,000 queues that take turns, read in the order of the log: windows, and a read for few of the shapes."""
    queues = tuple(range(1, 1001))
    rig = Rig(size=4 * MIB, queues=queues)
    for turn in range(6):
        for queue in queues:
            publish(rig, queue, b"%d.%d" % (queue, turn), b"header", b"queue-%d" % queue)
    rig.flush()
    rig.reopen(clean=False)
    in_order = sorted(message for entries in rig.model.values() for message in entries.values())
    before = rig.disk.calls["read"]
    for message in in_order:
        assert rig.store.content(message).body == rig.bodies[message]
    windows = (in_order[-1] - in_order[0]) // (256 * 1024) + 2
    assert rig.disk.calls["read"] - before <= 2 * windows + 6, "six windows are smaller: they grow"
    before = rig.disk.calls["read"]
    for message in in_order[1000:2000]:
        rig.store.content(message)
    assert rig.disk.calls["read"] - before <= 2 * windows + 6


# --- copies


def test_messages_of_a_shape_are_copied_forward_whole(tmp_path: Path) -> None:
    """Few and many of a container: id, place, expiry and bytes stay, and a copy needs no shape."""
    rig = Rig(size=8192, initial_containers=3)
    kept = [publish(rig, 1, b"kept %d" % number, expires=number % 2 * 4_000_000_000_000) for number in range(30)]
    kept += [publish(rig, 2, b"one in many") for _ in range(2)]
    for _ in range(600):
        publish(rig, 3, bytes(100))
        rig.ack(3, rig.next[3] - 1)
    rig.settle()
    assert rig.store.maintenance.copied_messages >= len(kept)
    log = on_disk(rig, tmp_path)
    assert kinds(log)["Message-Copy"] >= len(kept)
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model
    rig.check_contents()
    assert [one.expires_at_ms for one in rig.store.entries(1)] == [number % 2 * 4_000_000_000_000 for number in range(30)]


# --- damage


def damaged(rig: Rig, path: Path, lsn: int) -> None:
    """One bit of the record's fields is another one."""
    name = f"{STORE}/messages/{lsn // rig.size:020d}.flog"
    fd = rig.disk.open(name)
    byte = rig.disk.read(fd, 1, lsn % rig.size + 30)[0] ^ 4
    rig.disk.write(fd, bytes([byte]), lsn % rig.size + 30)
    rig.disk.sync(fd)
    rig.disk.close(fd)


def test_a_damaged_shape_loses_the_messages_that_name_it_and_no_other(tmp_path: Path) -> None:
    """They are named in the report; what was acknowledged or copied, and the messages of other shapes, are not."""
    rig = Rig(size=65536)
    for number in range(30):
        publish(rig, 1 + number % 2, b"%d" % number)
    rig.flush()
    publish(rig, 3, b"makes the others durable by its block")
    rig.ack(1, 5)
    rig.flush()
    log = on_disk(rig, tmp_path / "before")
    shape = next(record for record in log.records() if record.type == Kind.MESSAGE_SHAPE and fields_of(record, MESSAGES)["queue"] == 1)
    naming = {record.lsn for record in log.records() if record.type == Kind.MESSAGE and record.undo_prev == shape.lsn}
    assert len(naming) == 14
    damaged(rig, tmp_path, shape.lsn)
    ended = {message for message in naming if message not in rig.model[1].values()}
    assert len(ended) == 1
    rig.disk = rig.disk.restart()
    rig.open()
    report: Any = rig.store.report
    assert {one.message_id for one in report.lost} == naming - ended
    assert all("Message-Shape" in one.reason for one in report.lost) and report.lost_count == 13
    rig.model[1] = {position: message for position, message in rig.model[1].items() if message not in naming}
    assert rig.recovered() == rig.model
    rig.check_contents()
    on_disk(rig, tmp_path / "after")
    state = read_state(inspected(tmp_path / "after"))
    assert naming - ended <= state.missing_messages


def test_a_message_that_names_a_shape_of_another_container_is_lost(tmp_path: Path) -> None:
    """The independent reader, recovery and `flintmq log` refuse it alike: that container may be gone."""
    from tests.support import logbytes as lb
    from tests.support.logstore import StoreBytes

    store = StoreBytes(4096)
    first = store.messages.add(lb.SHAPE, lb.shape(1, 1, b"\0\1k", b"header"))
    store.messages.add(lb.MESSAGE, lb.message(0, b"near"), undo_prev=first)
    store.sync()
    while store.messages.tail // 4096 == first // 4096:
        store.publish(2, bytes(300))
        store.sync()
    far = store.messages.add(lb.MESSAGE, lb.message(1, b"far"), undo_prev=first)
    store.sync()
    path = store.write(tmp_path)
    state = read_state(inspected(path))
    assert state.missing_messages == {far}
    assert sum(spot.queue == 1 for message in state.messages.values() for spot in message.spots) == 1
