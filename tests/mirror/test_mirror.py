"""The mirror of a shared queue: what the engine is told of a queue, and the queue that comes back from it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.mirror.mirror import Mirror, MirrorPort
from flintmq.queue.control import QueueHandle

ALL = 2**64 - 1
HEADER = b"\0" * 14
PERSISTENT = 1
ACK = 1
PRIORITY_LIST = 1


class Owned:
    """A queue that has a mirror, and what the engine would have of it."""

    def __init__(self, hot_bytes: int = ALL, levels: int = 1) -> None:
        self.port = MirrorPort(hot_bytes, 1 << 20, 1 << 21)
        self.handle = QueueHandle(7, PRIORITY_LIST if levels > 1 else 0, levels)
        self.mirror = Mirror(self.handle, self.port, "/")
        self.rows: dict[int, bytes] = {}
        self.ends: dict[int, bytes] = {}
        self.batch = 0

    def publish(self, *bodies: bytes, priority: int = 0, expires_at_ms: int = 0) -> list[int]:
        return [self.handle.publish(b"", b"q", HEADER, body, PERSISTENT | 16, priority, expires_at_ms) for body in bodies]

    def send(self, messages: int = 400, size: int = 1 << 18) -> int:
        """One batch, which the engine takes at once. Returns its segments."""
        self.batch += 1
        segments = self.mirror.take(1, self.batch, messages, size, 100)
        self.rows.update({position: row for position, row in segments if row})
        self.mirror.settle([position for position, _ in segments])
        return len(segments)

    def send_all(self) -> None:
        while self.send():
            pass

    def write_ends(self) -> None:
        for position, gone, ends, thin in self.mirror.take_ends(10_000):
            if gone:
                del self.rows[position]
                self.ends.pop(position, None)
                self.mirror.drop(position)
                continue
            self.mirror.note_ends(position)
            self.ends[position] = ends
            if thin:
                self.rows[position], size = self.mirror.thin(position, self.rows[position])
                self.mirror.thinned(position, size)

    def successor(self, redelivered: bool = False, hot_bytes: int = ALL, levels: int = 1) -> Owned:
        """The queue of a new owner."""
        other = Owned(hot_bytes, levels)
        for position in sorted(self.rows):
            other.mirror.restore(self.rows[position], self.ends.get(position, b""), redelivered)
        other.rows, other.ends = dict(self.rows), dict(self.ends)
        other.mirror.restored([self.handle.tail(level) for level in range(levels)])
        return other

    def take(self) -> bytes | None:
        message = self.handle.take_head(ACK)
        return None if message is None else message[3]

    def all(self) -> list[bytes]:
        bodies = []
        while (body := self.take()) is not None:
            bodies.append(body)
        return bodies


def test_a_row_is_read_without_its_queue() -> None:
    owned = Owned(levels=256)
    positions = owned.publish(b"a", b"b", b"c" * 70_000, priority=3)
    owned.send_all()
    assert owned.take() == b"a"
    views = owned.mirror.views(owned.rows[positions[0]])
    assert [(position, view.routing_key, view.body()) for position, view in views] == [
        (position, b"q", body) for position, body in zip(positions, (b"a", b"b", b"c" * 70_000), strict=True)
    ]
    for damaged in (b"", owned.rows[positions[0]][:-1], bytes(100)):
        with pytest.raises(ValueError):
            owned.mirror.views(damaged)
    assert owned.all() == [b"b", b"c" * 70_000]


def test_a_new_owner_has_what_the_engine_has_at_the_same_positions() -> None:
    owned = Owned()
    positions = owned.publish(b"a", b"", b"c" * 70_000)
    owned.send_all()
    other = owned.successor()
    assert [other.handle.next_available(position) for position in positions] == positions
    assert other.handle.entry_facts(positions[0]) == (True, 0, 0)
    assert other.all() == [b"a", b"", b"c" * 70_000]


def test_a_message_that_ended_before_its_batch_is_in_no_row_and_needs_none() -> None:
    owned = Owned()
    first, second = owned.publish(b"a", b"b")
    assert owned.take() == b"a"
    owned.send_all()
    assert b"a" not in owned.rows[first][40 + 28 :][:100].replace(b"q", b"")
    assert owned.mirror.is_settled(first) and owned.mirror.is_settled(second)
    assert owned.successor().all() == [b"b"]


def test_a_batch_of_messages_that_have_all_ended_has_no_row() -> None:
    owned = Owned()
    owned.publish(b"a", b"b")
    owned.all()
    owned.send_all()
    assert owned.rows == {}
    owned.publish(b"c")
    owned.send_all()
    assert owned.successor().all() == [b"c"]


def test_a_message_waits_until_its_batch_is_settled() -> None:
    owned = Owned()
    (position,) = owned.publish(b"a" * 1000)
    assert owned.mirror.waiting_bytes >= 1000
    segments = owned.mirror.take(1, 1, 400, 1 << 18, 100)
    assert not owned.mirror.is_settled(position)
    owned.mirror.settle([one for one, _ in segments])
    assert owned.mirror.is_settled(position)
    assert owned.mirror.waiting_bytes == 0


def test_a_batch_keeps_to_its_messages_and_bytes_and_takes_one_message_of_any_size() -> None:
    owned = Owned()
    owned.publish(*[b"x" * 100] * 50)
    assert len(owned.mirror.take(1, 1, 20, 1 << 18, 100)[0][1]) < 20 * 150 + 40
    assert owned.mirror.sent_to() == [20]
    assert len(owned.mirror.take(1, 2, 400, 1_000, 100)[0][1]) <= 1_000
    owned.publish(b"y" * 5_000)
    while owned.mirror.unsent:
        ((_, row),) = owned.mirror.take(1, 3, 400, 1_000, 100)
    assert len(row) > 5_000


def test_ends_before_a_batch_is_settled_are_told_afterwards() -> None:
    owned = Owned()
    owned.publish(b"a", b"b")
    segments = owned.mirror.take(1, 1, 400, 1 << 18, 100)
    assert owned.take() == b"a"
    assert owned.mirror.take_ends(10) == []
    owned.rows.update(segments)
    owned.mirror.settle([one for one, _ in segments])
    owned.write_ends()
    assert owned.successor().all() == [b"b"]


def test_a_segment_whose_messages_have_ended_is_deleted() -> None:
    owned = Owned()
    owned.publish(b"a", b"b")
    owned.send_all()
    owned.publish(b"c")
    owned.send_all()
    owned.take()
    owned.write_ends()
    assert len(owned.rows) == 2 and len(owned.ends) == 1
    owned.take()
    owned.write_ends()
    assert len(owned.rows) == 1 and owned.ends == {}
    assert owned.successor().all() == [b"c"]


def test_a_row_that_is_mostly_of_ended_messages_is_written_without_them() -> None:
    owned = Owned()
    owned.publish(*[bytes([65 + number]) * 1_000 for number in range(20)])
    owned.send_all()
    (before,) = owned.rows.values()
    for _ in range(15):
        owned.take()
    owned.write_ends()
    (after,) = owned.rows.values()
    assert len(after) * 2 < len(before)
    assert [body[:1] for body in owned.successor().all()] == [b"P", b"Q", b"R", b"S", b"T"]


def test_positions_are_never_used_twice_whoever_owns_the_queue() -> None:
    owned = Owned()
    last = owned.publish(b"a", b"b")[-1]
    owned.send_all()
    owned.all()
    owned.write_ends()
    assert owned.rows == {}
    assert owned.successor().publish(b"c") == [last + 1]


def test_how_often_a_message_came_back_outlives_its_owner() -> None:
    owned = Owned()
    owned.handle.set_returns(True, -1, False)
    (position,) = owned.publish(b"a")
    owned.send_all()
    assert owned.handle.hold(position)
    assert owned.handle.release_held(position, delivered=True)
    owned.mirror.soil(position)
    owned.write_ends()
    other = owned.successor()
    assert other.handle.entry_facts(position) == (True, 1, 0)
    entry = other.handle.peek()
    assert entry is not None and entry[1]


def test_messages_of_a_new_owner_are_flagged_when_they_may_have_been_delivered() -> None:
    owned = Owned()
    owned.publish(b"a")
    owned.send_all()
    for flagged in (False, True):
        entry = owned.successor(flagged).handle.peek()
        assert entry is not None and entry[1] is flagged


def test_priorities_and_expiry_come_back() -> None:
    owned = Owned(levels=3)
    owned.publish(b"low", priority=0)
    owned.publish(b"high", priority=2, expires_at_ms=12_345)
    owned.send_all()
    assert len(owned.rows) == 2
    other = owned.successor(levels=3)
    first = other.handle.next_available()
    assert other.handle.entry_facts(first) == (True, 0, 12_345)
    assert other.all() == [b"high", b"low"]


def test_contents_beyond_the_window_leave_memory_when_they_are_settled_and_come_back_from_their_row() -> None:
    owned = Owned(hot_bytes=10_000)
    bodies = [bytes([number]) * 1_000 for number in range(40)]
    owned.publish(*bodies)
    assert owned.handle.cold_count == 0
    owned.send(messages=20)
    assert owned.handle.cold_count > 0
    owned.send_all()
    assert owned.handle.resident_bytes <= 11_000
    for position in sorted(owned.rows):
        owned.mirror.load(owned.rows[position])
    assert owned.handle.cold_count == 0
    assert owned.all() == bodies


def test_a_new_owner_keeps_its_window_in_memory_and_reads_the_rest_when_it_is_wanted() -> None:
    owned = Owned()
    owned.publish(*[bytes([number]) * 1_000 for number in range(40)])
    owned.send_all()
    other = owned.successor(hot_bytes=10_000)
    assert 9_000 <= other.handle.resident_bytes <= 10_000
    assert other.handle.ready_count() == 40 and other.handle.ready_bytes() == 40_000


def test_the_port_tells_of_a_queue_once_until_it_is_asked() -> None:
    owned = Owned()
    owned.publish(b"a", b"b")
    assert owned.port.take_told() == [7]
    assert owned.port.take_told() == []
    owned.publish(b"c")
    assert owned.port.take_told() == [7]


def test_a_damaged_row_is_refused() -> None:
    owned = Owned()
    owned.publish(b"a" * 100, b"b" * 100)
    owned.send_all()
    (row,) = owned.rows.values()
    for damaged in (b"", row[:-1], row + b"x", b"\x09" + row[1:], row[:42] + b"\xff" + row[43:]):
        with pytest.raises(ValueError, match="damaged"):
            Owned().mirror.restore(damaged, b"", False)


def test_what_waits_is_counted_to_the_byte_whatever_becomes_of_it() -> None:
    owned = Owned()
    owned.publish(b"1" * 100, b"2" * 200)
    assert owned.mirror.waiting_bytes == 300 + 2 * 64 == owned.port.waiting_bytes()
    owned.take()  # in no batch
    assert owned.mirror.waiting_bytes == 200 + 64
    owned.publish(b"3" * 300)
    segments = owned.mirror.take(1, 1, 400, 1 << 18, 100)
    owned.publish(b"4" * 400)
    owned.take()  # in a batch under way
    assert owned.mirror.waiting_bytes == 200 + 300 + 400 + 3 * 64
    owned.handle.purge()
    assert owned.mirror.waiting_bytes == 200 + 300 + 2 * 64
    owned.mirror.settle([position for position, _ in segments])
    owned.send_all()
    assert owned.mirror.waiting_bytes == 0 == owned.port.waiting_bytes()


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_whoever_takes_over_has_what_did_not_end(data: st.DataObject) -> None:
    """Against a model: what was sent and did not end, in its order; what was not sent is nobody's."""
    owned = Owned()
    number = 0
    live: list[bytes] = []
    for _ in range(data.draw(st.integers(1, 30))):
        step = data.draw(st.sampled_from(["publish", "take", "send", "ends", "purge", "move"]))
        if step == "publish":
            bodies = [b"%d-" % (number + one) + b"x" * data.draw(st.integers(0, 900)) for one in range(data.draw(st.integers(1, 9)))]
            number += len(bodies)
            owned.publish(*bodies)
            live += bodies
        elif step == "take" and live:
            assert owned.take() == live.pop(0)
        elif step == "purge":
            owned.handle.purge()
            live = []
        elif step == "send":
            owned.send(data.draw(st.integers(1, 7)), data.draw(st.integers(200, 3000)))
        elif step == "ends":
            owned.write_ends()
        else:
            owned.send_all()
            owned.write_ends()
            owned = owned.successor()
    owned.send_all()
    assert owned.mirror.waiting_bytes == 0
    owned.write_ends()
    assert owned.successor().all() == live


def test_while_the_engine_has_no_room_no_queue_takes_a_message_a_new_one_included() -> None:
    owned = Owned()
    owned.port.rest(True)
    late = Mirror(QueueHandle(8, 0, 1), owned.port, "other")
    assert not owned.mirror.admits(1) and not late.admits(1)
    owned.port.rest(False)
    assert owned.mirror.admits(1) and late.admits(1)
