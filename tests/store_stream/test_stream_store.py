"""The streams of a store: opened, deleted, kept; groups' places; crashes between SQL and files; damage; full disks."""

from __future__ import annotations

import time
from typing import Any

import pytest

from flintmq.clock import ManualClock
from flintmq.config import Limits
from flintmq.errors import StoreError
from tests.drivers.store_driver import DrivenStore
from tests.drivers.stream_reader import StreamReader
from tests.store_stream.rig import DAMAGED, EMPTY, GONE, MESSAGES, STORE, UUID, Rig, header
from tests.twins.sim_disk import SimDisk

BODY = b"x" * 200


class Node:
    """A LogStore on a simulated disk. `known`: the queues that SQL knows."""

    def __init__(self, known: set[int], disk: Any = None, high_water: int = 100, size: int = 16384) -> None:
        self.disk = disk or SimDisk()
        self.known = known
        self.high_water = high_water
        self.size = size
        self.clock = ManualClock(wall_ms=time.time_ns() // 1_000_000)
        self.disk.make_dir(STORE)
        self.open()

    def open(self) -> None:
        self.store: Any = DrivenStore.open(
            self.disk,
            STORE,
            container_size=self.size,
            store_uuid=UUID,
            known_queues=self.known,
            queue_high_water=self.high_water,
            threads=False,
            clock=self.clock,
            spill=False,
        )
        self.store.restored()
        self.streams = self.store.streams

    def append(self, stream: Any, body: bytes = BODY) -> int:
        offset, _ = stream.append(b"ex", b"key", header(body), body)
        return int(offset)

    def pump(self) -> None:
        for _ in range(60):
            if self.store.flush() != 1 and not self.streams.maintain() and not self.streams.prepare():
                break

    def restart(self, clean: bool = True, disk: Any = None) -> None:
        self.store.close(clean)
        if disk is not None:
            self.disk = disk
        self.open()


def read_all(stream: Any) -> dict[int, bytes]:
    found, at, reader = {}, stream.first, StreamReader(stream)
    while True:
        outcome, following, items = reader.read(at, 1000, 1 << 30)
        found.update({one[0]: one[4] for one in items})
        if outcome in (EMPTY, GONE):
            return found
        at = following


def test_streams_of_a_store() -> None:
    """Streams live beside each other and the queues, over clean and unclean restarts."""
    node = Node({3, 4, 9})
    wanted: dict[int, dict[int, bytes]] = {3: {}, 4: {}}
    for round_ in range(4):
        for queue_id in (3, 4):
            stream = node.streams.open(queue_id)
            for number in range(30):
                body = b"%d %d %d" % (queue_id, round_, number)
                wanted[queue_id][node.append(stream, body)] = body
        node.pump()
        assert {queue_id: read_all(node.streams.open(queue_id)) for queue_id in (3, 4)} == wanted
        node.restart(clean=round_ % 2 == 0)
        assert {queue_id: read_all(node.streams.open(queue_id)) for queue_id in (3, 4)} == wanted
    assert node.streams.figures()["streams"] == 2
    node.store.close()


def test_hot_windows_go_when_memory_is_short() -> None:
    """Also of what is not on the disk yet: it is read from there once it is visible."""
    node = Node({3})
    stream = node.streams.open(3)
    wanted = {}
    for number in range(60):
        wanted[node.append(stream, b"%d" % number)] = b"%d" % number
        if number == 29:
            node.pump()
            assert stream.hot_bytes > 0
            node.streams.forget_hot()
            assert stream.hot_bytes == 0
    node.streams.forget_hot()
    assert stream.hot_bytes == 0
    node.pump()
    assert read_all(stream) == wanted
    node.store.close()


def test_tickets() -> None:
    """A ticket is durable when its message is, and not before; also while another stream waits for a container."""
    node = Node({3, 4})
    one, two = node.streams.open(3), node.streams.open(4)
    _, first = one.append(b"ex", b"key", header(BODY), BODY)
    _, second = two.append(b"ex", b"key", header(BODY), BODY)
    assert second == first + 1
    assert node.streams.durable_ticket == 0
    node.store.flush()
    assert node.streams.durable_ticket == 0  # no container yet
    one.prepare()
    node.store.flush()
    assert one.visible == 1 and two.visible == 0
    assert node.streams.durable_ticket < first  # the other one still waits
    two.prepare()
    node.pump()
    assert two.visible == 1
    assert node.streams.durable_ticket >= second
    node.store.close()


def test_limit_of_streams() -> None:
    """One stream more than the limit is refused, and deleting one makes room."""
    node = Node(set(range(1, 9)))
    node.streams._limits = Limits(streams_max=3)
    for queue_id in (1, 2, 3):
        node.streams.open(queue_id)
    with pytest.raises(StoreError):
        node.streams.open(4)
    node.streams.delete(2)
    assert node.streams.open(4).visible == 0
    node.store.close()


def test_segment_size() -> None:
    """The segment size is rounded and bounded, and kept by a stream that exists."""
    node = Node({1, 2, 3})
    assert node.streams.open(1, segment_bytes=600_000).managed.container_size == 602_112
    assert node.streams.open(2, segment_bytes=1 << 40).managed.container_size == Limits().stream_container_bytes_max
    stream = node.streams.open(3, segment_bytes=700_000)
    size = stream.managed.container_size
    node.append(stream)
    node.pump()
    node.restart()
    assert node.streams.open(3, segment_bytes=5_000_000).managed.container_size == size
    node.store.close()


def test_groups() -> None:
    """Places of groups survive restarts, are replaced and removed, and go with their stream."""
    node = Node({3, 4})
    node.streams.open(3)
    node.streams.open(4)
    node.streams.save_group(3, b"billing", b"one")
    node.streams.save_group(3, b"billing", b"two")
    node.streams.save_group(3, b"audit", b"x" * 3000)
    node.streams.save_group(4, b"billing", b"other")
    node.pump()
    node.restart(clean=False)
    assert node.streams.groups(3) == {b"billing": b"two", b"audit": b"x" * 3000}
    node.streams.open(3)
    node.streams.open(4)
    node.streams.save_group(3, b"audit", b"")
    assert node.streams.groups(3) == {b"billing": b"two"}
    with pytest.raises(StoreError):
        node.streams.save_group(3, b"large", b"x" * 100_000)
    node.streams.delete(3)
    assert node.streams.groups(3) == {}
    assert node.streams.save_group(3, b"late", b"state") == 0
    node.pump()
    node.known.remove(3)
    node.restart()
    assert node.streams.groups(3) == {} and node.streams.groups(4) == {b"billing": b"other"}
    node.store.close()


def test_places_of_unknown_queues_go() -> None:
    """A crash between the SQL delete and the notes leaves no place behind for anybody."""
    node = Node({3})
    node.streams.open(3)
    node.streams.save_group(3, b"billing", b"state")
    node.pump()
    node.known.remove(3)
    node.restart(clean=False)
    assert node.streams.groups(3) == {}
    node.store.close()


def test_retention_by_maintenance() -> None:
    """The store's maintenance keeps a stream within its bounds, and changed bounds count."""
    node = Node({3})
    stream = node.streams.open(3, max_bytes=3_000_000, segment_bytes=1)
    size = stream.managed.container_size
    for _ in range(60):
        node.append(stream, b"x" * 100_000)
        node.pump()
        node.store.maintain()
    for _ in range(3):
        node.clock.advance(ms=1_100)
        node.pump()
        node.store.maintain()
    assert stream.bytes <= 3_000_000 + size
    assert stream.first > 10
    assert sorted(read_all(stream)) == list(range(stream.first, 60))
    node.store.close()


def crash_images(disk: Any, start: int, limit: int = 6) -> Any:
    for position in range(start, disk.position + 1):
        yield from disk.images(position, limit, position)


def test_crash_while_a_stream_is_made() -> None:
    """Power loss between the declare's SQL commit and the stream's files leaves an empty stream, or none if SQL does not know it."""
    node = Node({3})
    start = node.disk.position
    stream = node.streams.open(5)  # SQL knows it from here on
    node.append(stream, b"first")
    node.pump()
    count = 0
    for image in crash_images(node.disk, start):
        for knows in (True, False):
            after = Node({3, 5} if knows else {3}, SimDisk.from_image(image))
            if knows:
                found = after.streams.open(5)
                assert read_all(found) in ({}, {0: b"first"})
                assert after.append(found) == found.visible
            else:
                names = after.disk.list_dir(f"{STORE}/streams/5")
                assert names == []
            after.store.close()
            count += 1
    assert count > 40


def test_crash_while_a_stream_is_deleted() -> None:
    """Power loss at any point of a delete: SQL no longer knows the queue, and the next start leaves no file and no place of a group."""
    node = Node({3, 5})
    stream = node.streams.open(5)
    for _ in range(300):
        node.append(stream)
        node.pump()
    node.streams.save_group(5, b"billing", b"state")
    node.pump()
    start = node.disk.position
    node.streams.delete(5)
    node.pump()
    assert node.disk.list_dir(f"{STORE}/streams/5") == []
    count = 0
    for image in crash_images(node.disk, start):
        after = Node({3}, SimDisk.from_image(image))
        assert after.disk.list_dir(f"{STORE}/streams/5") == []
        assert after.streams.groups(5) == {}
        after.store.close()
        count += 1
    assert count > 3


def test_files_of_an_unknown_stream_above_the_high_water_are_refused() -> None:
    """Files of a queue id that SQL never gave out mean that logs and definitions do not belong together: the store says so."""
    node = Node({3, 50})
    node.append(node.streams.open(50))
    node.pump()
    node.store.close()
    with pytest.raises(StoreError, match="queue id 50"):
        Node({3}, node.disk, high_water=40)


def filled(count: int = 400) -> Rig:
    rig = Rig(8192)
    for number in range(count):
        rig.append(b"%06d" % number * 20)
        if number % 5 == 0:
            rig.pump()
            rig.stream.maintain()
    rig.settle()
    return rig


def damage(rig: Rig, sequence: int, offset: int, data: bytes = b"\xff\xee\xdd") -> None:
    path = f"/store/streams/7/{sequence:020d}.flog"
    fd = rig.disk.open(path)
    rig.disk.write(fd, data, offset)
    rig.disk.sync(fd)
    rig.disk.close(fd)


@pytest.mark.parametrize("what", ["body", "block header", "record header", "container header", "all", "missing"])
@pytest.mark.parametrize("reopen", [False, True])
def test_damaged_container(what: str, reopen: bool, caplog: Any) -> None:
    """A damaged container is named, what can be read before and behind the damage is served, and readers are told what they miss."""
    rig = filled()
    assert rig.stream.container_count > 6
    if reopen:
        rig.close()
    path = "/store/streams/7/00000000000000000003.flog"
    if what == "missing":
        rig.disk.unlink(path)
    else:
        places = {"body": 2000, "block header": 512, "record header": 512 + 64 + 3, "container header": 8, "all": 0}
        damage(rig, 3, places[what], bytes(8192) if what == "all" else b"\xff\xee\xdd")
    if reopen:
        rig.open()
    assert rig.stream.visible == 400
    reader, at, found, gaps = StreamReader(rig.stream), 0, {}, []
    while at < 400:
        outcome, following, items = reader.read(at, 7)
        assert following > at
        if outcome == DAMAGED:
            assert items == []
            gaps.append((at, following))
        else:
            assert outcome == MESSAGES
            assert [one[0] for one in items] == list(range(at, following))
            found.update({one[0]: one[4] for one in items})
        at = following
    lost = [offset for start, end in gaps for offset in range(start, end)]
    assert sorted([*found, *lost]) == list(range(400))
    for offset, body in found.items():
        assert rig.sent[offset] == body
    if what == "container header":
        assert lost == []  # what it holds checks by itself
    elif what == "body":
        assert len(lost) == 1
    else:
        assert 0 < len(lost) < 60
    if lost:
        assert len(gaps) == 1
        assert any("00000000000000000003.flog" in text for text in rig.stream.damage)
        assert "00000000000000000003.flog" in caplog.text
        assert StreamReader(rig.stream).read(lost[0])[:2] == (DAMAGED, lost[-1] + 1)
        assert StreamReader(rig.stream).read(lost[-1] + 1)[0] == MESSAGES
    assert rig.append(b"on") == 400
    rig.pump()
    assert StreamReader(rig.stream).read(400)[0] == MESSAGES
    rig.close()


def test_damage_at_the_end_gives_no_offset_twice() -> None:
    """Where durable messages at the end can't be read any more, the next message gets an offset above all of them."""
    rig = filled(40)
    base = rig.stream.managed.base // 8192
    rig.close()
    for sequence in range(base, base + 3):
        name = f"{sequence:020d}.flog"
        if name in rig.disk.list_dir("/store/streams/7"):
            damage(rig, sequence, 512, b"\xff" * 3000)
    rig.open()
    if rig.stream.broken:
        assert StreamReader(rig.stream).read(0)[0] == GONE
    else:
        assert rig.stream.damage
        assert rig.stream.next >= 40
        at = rig.append(b"on")
        assert at >= 40
        rig.pump()
        assert StreamReader(rig.stream).read(at)[2][0][4] == b"on"
    rig.close(clean=False)


def test_one_broken_stream_hinders_no_other() -> None:
    """A stream whose log can't be read at all is named and left as it is; the store opens and the others work."""
    node = Node({3, 4})
    for queue_id in (3, 4):
        node.append(node.streams.open(queue_id))
    node.pump()
    node.store.close()
    for name in node.disk.list_dir(f"{STORE}/streams/3"):
        fd = node.disk.open(f"{STORE}/streams/3/{name}")
        node.disk.write(fd, bytes(4096), 0)
        node.disk.sync(fd)
        node.disk.close(fd)
    before = node.disk.list_dir(f"{STORE}/streams/3")
    node.open()
    broken, whole = node.streams.open(3), node.streams.open(4)
    assert broken.broken and broken.damage
    with pytest.raises(StoreError):
        node.append(broken)
    assert read_all(whole) == {0: BODY}
    assert node.append(whole) == 1
    node.pump()
    assert whole.visible == 2
    assert node.disk.list_dir(f"{STORE}/streams/3") == before
    node.store.close()


def test_disk_full() -> None:
    """On a full disk nothing is confirmed that is not there, publishers are told, and when room is made the stream goes on."""
    rig = Rig(8192)
    rig.append(b"first" * 100)
    rig.pump()
    rig.disk.budget = 20_000
    seen = 0
    for _ in range(80):
        rig.append(b"x" * 500)
        rig.pump()
        seen = rig.stream.visible
    assert rig.stream.starved and rig.stream.managed.low
    assert 5 < seen < 81
    assert sorted(rig.read_all()) == list(range(seen))
    rig.disk.budget = None
    rig.pump()
    assert rig.stream.visible == 81 and not rig.stream.starved
    assert rig.read_all() == rig.sent
    rig.close()


def test_store_says_when_a_stream_has_no_room() -> None:
    """A stream without room on the disk blocks publishers (disk_low), and lets them go when there is room again."""
    node = Node({3})
    stream = node.streams.open(3, segment_bytes=524288)
    node.append(stream)
    node.pump()
    node.disk.budget = 0
    for _ in range(8):
        node.append(stream, b"x" * 100_000)
    node.store.flush()
    node.store.maintain()
    assert node.store.disk_low
    node.disk.budget = None
    node.store.maintain()
    node.pump()
    node.store.maintain()
    assert not node.store.disk_low
    assert stream.visible == 9
    node.store.close()


def test_failed_write_names_the_container() -> None:
    """A failed sync of a stream's container latches the store, and the log names the file."""
    node = Node({3})
    told: list[Any] = []
    node.store.on_failure = told.append
    stream = node.streams.open(3)
    node.append(stream)
    node.pump()
    node.append(stream)
    node.disk.fail("sync", path="streams/3")
    node.store.flush()
    assert stream.visible == 1
    assert "streams/3/00000000000000000001.flog" in str(told[0])
    with pytest.raises(StoreError):
        node.append(stream)
    node.store.close()


def test_the_writer_uses_what_is_ready() -> None:
    """Containers that could be made are written to, although what was appended reaches far beyond them."""
    rig = Rig(8192)
    for _ in range(40):
        rig.append(b"x" * 1000)
    rig.disk.fail("create", nth=3, error=28, forever=True)
    rig.pump()
    assert rig.stream.visible >= 10
    assert rig.stream.starved
    rig.disk.heal()
    rig.pump()
    assert rig.stream.visible == 40
    rig.close()
