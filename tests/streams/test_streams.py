"""One consumer or group at a time: where it starts, what it gets, what comes again, what is dead, what was lost."""

from __future__ import annotations

import struct

import pytest

from flintmq.queue.control import QueueHandle
from flintmq.streams.control import REASON_LIMIT, FilterDiffers, StreamQueue
from tests.drivers.stream_driver import StreamConsumer
from tests.streams.kit import GROUP, drain, filled, member, stream_of
from tests.twins.memory_stream import MemoryStream

REASON_REJECT = 2


@pytest.mark.parametrize("hot", [0, 3, 100])
@pytest.mark.parametrize(
    ("start", "value", "expected"),
    [
        ("first", 0, [2, 3, 4, 5]),
        ("last", 0, [5]),
        ("next", 0, []),
        ("offset", 4, [4, 5]),
        ("offset", 0, [2, 3, 4, 5]),
        ("offset", 6, []),
        ("time", 3, [3, 4, 5]),
        ("time", 77, []),
    ],
)
def test_start(hot: int, start: str, value: int, expected: list[int]) -> None:
    """A consumer begins where its start says, within what is kept; what arrives later comes after that."""
    log, stream = filled(6, hot=hot)
    log.truncate(2)
    consumer = StreamConsumer(stream, stream.open_seat(start, value))
    assert drain(consumer) == expected
    log.append(b"late")
    assert drain(consumer) == [6]


def test_start_is_checked() -> None:
    """A start nobody knows, or a negative offset, is refused."""
    _, stream = filled(1)
    for start, value in [("middle", 0), ("offset", -1)]:
        with pytest.raises(ValueError):
            stream.open_seat(start, value)


def test_empty_stream() -> None:
    """Every start of an empty stream is offset 0."""
    for start in ("first", "last", "next", "offset", "time"):
        log, stream = filled(0)
        consumer = StreamConsumer(stream, stream.open_seat(start, 0))
        log.append(b"x")
        assert drain(consumer) == [0]


@pytest.mark.parametrize("hot", [0, 2, 100])
@pytest.mark.parametrize("group", [None, GROUP])
def test_filter(hot: int, group: bytes | None) -> None:
    """Exactly the messages with one of the values come, and those without one when asked for, from memory and from the disk."""
    for unfiltered in (False, True):
        log = MemoryStream(hot=hot)
        stream = stream_of(log)
        for body in (b"a|0", b"b|1", b"2", b"c|3", b"a|4", b"|5"):
            log.append(body)
        consumer = member(stream, group=group, filters=[b"a", b"c"], match_unfiltered=unfiltered)
        assert drain(consumer) == ([0, 2, 3, 4] if unfiltered else [0, 3, 4])
        if group is not None:
            assert stream.groups()[GROUP]["lag"] == 0


def test_members_share_one_filter() -> None:
    """A member with another filter is refused while others are there, and changes the group's filter from there on when it is alone."""
    log = MemoryStream()
    stream = stream_of(log)
    for body in (b"a|0", b"b|1", b"a|2", b"b|3"):
        log.append(body)
    first = member(stream, filters=[b"a", b"x", b"a"])
    second = member(stream, filters=[b"x", b"a"])
    for other in ([b"b"], None):
        with pytest.raises(FilterDiffers):
            member(stream, filters=other)
    assert first.deliver() == (0, b"a|0", False, 0)
    assert first.ack(0)
    del first, second
    assert drain(member(stream, filters=[b"b"])) == [3], "what a filter let pass is done"


@pytest.mark.parametrize("size", [0, 1, 256])
def test_group_name(size: int) -> None:
    """A group's name has 1 to 255 bytes."""
    _, stream = filled(1)
    if size == 1:
        stream.open_seat(group=b"x")
    else:
        with pytest.raises(ValueError):
            stream.open_seat(group=b"x" * size)


def test_alone_nack_is_ack() -> None:
    """Without a group a nack changes nothing, as in RabbitMQ; an unsent message comes next again."""
    log, stream = filled(3)
    consumer = StreamConsumer(stream, stream.open_seat("first"), 2)
    assert [consumer.deliver()[0], consumer.deliver()[0], consumer.deliver()] == [0, 1, None]  # type: ignore[index]
    assert consumer.list == "NOT_INTERESTED"
    assert consumer.nack(0)
    assert consumer.told() and consumer.deliver() == (2, b"m2", False, 0)
    assert consumer.nack(2, delivered=False)
    assert consumer.deliver() == (2, b"m2", False, 0)
    log.append(b"m3")
    consumer.ack(1)
    assert drain(consumer) == [3]


def test_delivery_limit() -> None:
    """What came back more often than the limit is dead, with its count; without a dead-letter exchange it is dropped and counted."""
    for dead_letters in (True, False):
        _, stream = filled(2, delivery_limit=2, dead_letters=dead_letters)
        consumer = member(stream)
        for count in range(3):
            assert consumer.deliver() == (0, b"m0", count > 0, count)
            assert consumer.nack(0)
        assert consumer.deliver() == (1, b"m1", False, 0)
        assert stream.take_dead() == ([(GROUP, 0, REASON_LIMIT, 3)] if dead_letters else [])
        assert stream.groups()[GROUP]["dropped"] == (0 if dead_letters else 1)
        assert stream.dead_done(GROUP, 0) == dead_letters
        assert not stream.dead_done(GROUP, 0) and not stream.dead_done(GROUP, 1)
        assert stream.groups()[GROUP]["base"] == 1


def test_reject() -> None:
    """A refused message is dead; its content can be read wherever it is; the group goes on."""
    log, stream = filled(3, dead_letters=True)
    consumer = member(stream)
    assert consumer.deliver() is not None and consumer.reject(0)
    assert stream.take_dead() == stream.take_dead() == [(GROUP, 0, REASON_REJECT, 1)]
    assert stream.message(0)[3] == b"m0"
    log.set_hot(0)
    assert stream.message(0)[3] == b"m0"
    log.truncate(1)
    with pytest.raises(KeyError):
        stream.message(0)
    assert stream.dead_done(GROUP, 0)
    assert drain(consumer) == [1, 2]
    assert stream.groups()[GROUP]["dead"] == 1


def test_visibility() -> None:
    """A message that is not settled in time goes to another member, flagged; the late settlement of the first is without effect."""
    _, stream = filled(1, visibility_ms=1_000)
    stream.set_clock(5_000)
    slow, other = member(stream), member(stream)
    assert slow.deliver() == (0, b"m0", False, 0)
    other.deliver()
    other.told()
    stream.set_clock(5_999)
    stream.tick()
    assert other.deliver() is None
    stream.set_clock(6_000)
    stream.tick()
    assert slow.told() or other.told()
    assert other.deliver() == (0, b"m0", True, 1)
    assert not slow.ack(0)
    assert stream.groups()[GROUP]["expired"] == 1
    stream.set_clock(6_999)
    stream.tick()
    assert slow.deliver() is None
    stream.set_clock(7_000)
    assert slow.deliver() == (0, b"m0", True, 2), "a pull looks at the time itself"
    assert slow.ack(0)


def test_own_time() -> None:
    """A holder that keeps its own time is not bound by the group's visibility time."""
    _, stream = filled(1, visibility_ms=10)
    leases = member(stream, visibility_ms=0)
    assert leases.deliver() is not None
    stream.set_clock(1_000_000)
    stream.tick()
    assert leases.deliver() is None and leases.ack(0)


def test_delay() -> None:
    """A nacked message comes again after the delay, its own or the group's; one whose consumer left comes at once."""
    _, stream = filled(3, delay_ms=500)
    stream.set_clock(1_000)
    consumer, other = member(stream), member(stream)
    assert [consumer.deliver()[0] for _ in range(3)] == [0, 1, 2]  # type: ignore[index]
    assert consumer.nack(0) and consumer.nack(1, delay_ms=50)
    consumer.detach()
    assert consumer.nack(2)
    assert other.deliver() == (2, b"m2", True, 1)
    assert other.deliver() is None
    stream.set_clock(1_050)
    assert other.deliver() == (1, b"m1", True, 1)
    assert other.deliver() is None and other.told() == 1
    stream.set_clock(1_500)
    stream.tick()
    assert other.told() == 1
    assert other.deliver() == (0, b"m0", True, 1)


def test_full_group_waits_for_its_oldest() -> None:
    """At the limit of open offsets nothing new is taken, what came back is; one ack makes room and wakes a member."""
    _, stream = filled(10, open_max=3)
    consumer = member(stream)
    assert drain(consumer) == [0, 1, 2]
    assert stream.groups()[GROUP]["full_waits"] == 1
    assert consumer.nack(1)
    assert consumer.told() and drain(consumer) == [1]
    assert consumer.told() == 0
    assert consumer.ack(2)
    assert consumer.told() == 1 and drain(consumer) == [3]
    assert stream.groups()[GROUP]["base"] == 0
    assert stream.groups()[GROUP]["unfinished"] == 6 + 3


@pytest.mark.parametrize("hot", [0, 100])
@pytest.mark.parametrize("group", [None, GROUP])
def test_lost_to_retention(hot: int, group: bytes | None) -> None:
    """A cursor that retention overtakes goes on at the first kept offset; the message there says how many were lost, and Python is told."""
    log, stream = filled(4, hot=hot, batch_messages=1)
    consumer = member(stream, group=group)
    for _ in range(5):
        log.append(b"more")
    log.truncate(7)
    full = consumer.deliver_full() or consumer.deliver_full()
    assert full is not None
    header = full[5]
    assert full[0] == 7
    assert header[12:14] == b"\x20\x00"
    assert header[14:] == struct.pack(">I", 23) + b"\x0dx-stream-lostl" + struct.pack(">q", 7)
    assert stream.take_lost() == [(group, 7, 7)]
    following = consumer.deliver_full() or consumer.deliver_full()
    assert following is not None and following[0] == 8 and following[5] == bytes(14)
    assert stream.take_lost() == []


def test_lost_header_joins_others() -> None:
    """x-stream-lost goes into the headers table beside the message's own properties and headers."""
    log = MemoryStream()
    stream = stream_of(log)
    consumer = member(stream)
    table = b"\x01ab\x07"
    head = (
        struct.pack(">HHQH", 60, 0, 1, 0x8000 | 0x4000 | 0x2000 | 0x1000) + b"\x01t\x02ee" + struct.pack(">I", len(table)) + table + b"\x02"
    )
    stream.handle.publish(b"", b"k", b"", b"", 0, 0)
    stream.handle.publish(b"ex", b"key", head, b"x", 0, 0)
    log.publish()
    log.truncate(1)
    full = consumer.deliver_full()
    assert full is not None and full[:2] == (1, b"x")
    told = b"\x0dx-stream-lostl" + struct.pack(">q", 1)
    assert full[5] == head[:19] + struct.pack(">I", len(table) + 23) + table + told + b"\x02"


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("hot", [0, 1, 100])
def test_lost_while_it_waits(hot: int, damaged: bool) -> None:
    """What came back and is kept no more, or can't be read any more, is counted as lost; the group goes on behind it."""
    log, stream = filled(3)
    consumer = member(stream)
    assert drain(consumer) == [0, 1, 2]
    log.set_hot(hot)
    if damaged and hot < 3:
        log.damage(0, 2)
    else:
        log.truncate(2)
    assert consumer.nack(0) and consumer.nack(2) and consumer.ack(1)
    assert drain(consumer) == [2]
    assert stream.take_lost() == [(GROUP, 1, 1)]
    assert stream.groups()[GROUP]["base"] == 2


def test_damage_is_lost() -> None:
    """Offsets that can't be read are skipped and counted; a disk that fails is asked again later, and nothing is skipped."""
    log, stream = filled(8, hot=0)
    log.damage(2, 5)
    consumer = member(stream)
    log.fail(True)
    assert drain(consumer) == [] and stream.groups()[GROUP]["failed_reads"] == 1
    log.fail(False)
    assert drain(consumer) == []
    stream.set_clock(2_000)
    consumer.told()
    stream.tick()
    assert consumer.told() == 1
    assert drain(consumer) == [0, 1, 5, 6, 7]
    assert stream.take_lost() == [(GROUP, 3, 5)]


def test_failed_read_of_a_lone_consumer() -> None:
    """A lone consumer whose read failed is told again when its pause is over."""
    log, stream = filled(2, hot=0)
    log.fail(True)
    consumer = member(stream, group=None)
    assert drain(consumer) == []
    log.fail(False)
    consumer.told()
    stream.set_clock(2_000)
    stream.tick()
    assert consumer.told() == 1 and drain(consumer) == [0, 1]


def test_read_ahead() -> None:
    """While the second half of a batch from the disk is handed out the next one is read."""
    log, stream = filled(20, hot=0, batch_messages=4, manual_reads=True)
    consumer = member(stream)
    assert consumer.deliver() is None and stream.step_reads() == 1
    assert consumer.deliver() is not None and not stream.reads_waiting
    assert consumer.deliver() is not None and stream.reads_waiting
    assert stream.step_reads() == 1
    assert [consumer.deliver()[0] for _ in range(5)] == [2, 3, 4, 5, 6]  # type: ignore[index]
    assert log.reads == 2 and stream.reads_waiting


def test_hot_group_never_reads() -> None:
    """A group at the head is served from memory while another waits for the disk."""
    log, stream = filled(100, hot=2, manual_reads=True)
    cold, head = member(stream, group=b"cold"), member(stream, group=b"hot", start="next")
    assert cold.deliver() is None
    log.append(b"new")
    assert head.deliver() == (100, b"new", False, 0)
    assert log.reads == 0
    figures = stream.groups()
    assert figures[b"hot"]["lag"] == 0 and figures[b"cold"]["lag"] == 101


def test_unpublished_is_invisible() -> None:
    """Nobody sees a message before it is durable."""
    log, stream = filled(1)
    consumer = member(stream)
    log.append(b"x", publish=False)
    assert drain(consumer) == [0] and consumer.told() == 0
    log.publish()
    assert consumer.told() == 1 and drain(consumer) == [1]


def test_queue_face() -> None:
    """A stream refuses what an entry list would do: purge, takes, gets; its figures are the stream's."""
    log, stream = filled(3)
    handle = stream.handle
    assert handle.ready_count() == 3 and handle.ready_bytes() == 6
    assert handle.purge() == 0 and handle.take_head(5) is None and handle.take_expired(1 << 50, 3) is None
    assert handle.peek() is None
    consumer = member(stream)
    assert drain(consumer) == [0, 1, 2]
    assert handle.unacked_count() == 3 and handle.ready_count() == 3 and handle.consumer_count() == 1
    assert handle.publish(b"", b"q", b"", b"y", 0, 0) == 4
    assert handle.enqueued_total() == 1 and handle.delivered_total() == 3
    log.refuse(True)
    assert handle.publish(b"", b"q", b"", b"z", 0, 0) == 0
    log.refuse(False)
    handle.mark_deleted()
    assert handle.publish(b"", b"q", b"", b"z", 0, 0) == 0
    log.publish()
    assert consumer.deliver() is None


def test_second_stream_on_a_queue_is_refused() -> None:
    """A queue becomes a stream once."""
    _, stream = filled(0)
    with pytest.raises(ValueError):
        StreamQueue(stream.handle, MemoryStream())
    for limit in ("open_max", "batch_messages", "batch_bytes"):
        with pytest.raises(ValueError):
            StreamQueue(QueueHandle(2), MemoryStream(), **{limit: 0})


def test_seat_is_used_once() -> None:
    """A seat belongs to one consumer of its own stream."""
    _, stream = filled(1)
    _, other = filled(1)
    seat = stream.open_seat("first")
    with pytest.raises(ValueError):
        StreamConsumer(other, seat)
    StreamConsumer(stream, seat)
    with pytest.raises(ValueError):
        StreamConsumer(stream, seat)


def test_state() -> None:
    """A restored group has finished what it had finished; the rest comes again, flagged, with its count; a later start is ignored."""
    log, stream = filled(6, dead_letters=True)
    consumer = member(stream)
    assert drain(consumer) == [0, 1, 2, 3, 4, 5]
    assert consumer.ack(0) and consumer.ack(3) and consumer.reject(4) and consumer.nack(2)
    assert consumer.deliver() == (2, b"m2", True, 1)
    state = dict(stream.changed())[GROUP]
    assert stream.changed() == []
    stream.not_saved(GROUP)
    assert [name for name, _ in stream.changed()] == [GROUP]
    fresh = stream_of(log.copy(), dead_letters=True)
    fresh.restore(GROUP, state)
    with pytest.raises(ValueError):
        fresh.restore(GROUP, state)
    again = member(fresh, start="next")
    assert [again.deliver() for _ in range(3)] == [(1, b"m1", True, 1), (2, b"m2", True, 2), (5, b"m5", True, 1)]
    assert again.deliver() is None
    assert fresh.take_dead() == [(GROUP, 4, REASON_REJECT, 1)]


def test_a_group_whose_stream_lost_its_end_goes_on_in_order() -> None:
    """What was open at or above the new end is gone with it: new messages get these offsets, and each can be acked."""
    _, stream = filled(10)
    consumer = member(stream)
    assert [consumer.deliver()[0] for _ in range(8)] == list(range(8))  # type: ignore[index]
    assert consumer.ack(0)
    state = stream.state_of(GROUP)
    shorter = MemoryStream(hot=1_000_000)
    for number in range(5):
        shorter.append(b"m%d" % number)
    fresh = stream_of(shorter)
    fresh.restore(GROUP, state, unclean=True)
    for number in range(5, 9):
        shorter.append(b"n%d" % number)
    again = member(fresh)
    got = [again.deliver() for _ in range(8)]
    assert [(one[0], one[1]) for one in got if one] == [*((n, b"m%d" % n) for n in range(1, 5)), *((n, b"n%d" % n) for n in range(5, 9))]
    assert all(again.ack(offset) for offset in range(1, 9))


def test_unsaved_deliveries_are_flagged() -> None:
    """After a crash the messages delivered and acked behind the last save come again, flagged redelivered; new ones are not flagged."""
    log, stream = filled(50)
    consumer = member(stream, prefetch=0)
    assert [consumer.deliver()[0] for _ in range(10)] == list(range(10))  # type: ignore[index]
    state = stream.state_of(GROUP)
    for offset in range(10, 40):
        assert consumer.deliver() is not None and consumer.ack(offset)
    fresh_log = log.copy()
    fresh = stream_of(fresh_log)
    fresh.restore(GROUP, state)
    again = member(fresh)
    seen = {}
    while (got := again.deliver()) is not None:
        seen[got[0]] = got[2]
    assert sorted(seen) == list(range(50)) and all(seen[offset] for offset in range(40))
    fresh_log.append(b"new")
    assert again.deliver() == (50, b"new", False, 0)


def test_clean_stop_flags_nothing_new() -> None:
    """After a clean stop only what was delivered and not finished is flagged."""
    log, stream = filled(4)
    consumer = member(stream)
    assert consumer.deliver() and consumer.deliver() and consumer.ack(0)
    fresh = stream_of(log.copy())
    fresh.restore(GROUP, dict(stream.changed(clean=True))[GROUP])
    again = member(fresh)
    assert [(got[0], got[2]) for got in iter(again.deliver, None)] == [(1, True), (2, False), (3, False)]


def test_a_state_of_before_an_unclean_end_flags_all() -> None:
    """A clean stop's state that the next run had no time to replace before it was killed: what that run may have delivered is flagged."""
    log, stream = filled(4)
    assert member(stream).deliver() is not None
    state = dict(stream.changed(clean=True))[GROUP]
    fresh_log = log.copy()
    fresh = stream_of(fresh_log)
    fresh.restore(GROUP, state, unclean=True)
    fresh_log.append(b"new")
    again = member(fresh)
    assert [(got[0], got[2]) for got in iter(again.deliver, None)] == [(0, True), (1, True), (2, True), (3, True), (4, False)]


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\x02",
        b"\x01\x05",
        b"\x01\x05\x05\x00\x00\x01\x09\x01\x02",  # an open offset behind the next one
        b"\x01\x05\x05\x00\x00\x01\x01\x05\x02",  # a run that ends there
        b"\x01\x05\x05\x00\x00\x01\x01\x00\x02",  # an empty run
        b"\x01\x05\x05\x00\x00\x02\x01\x01\x02",  # a run is missing
        b"\x01\x05\x05\x00\x00\x01\x01\x01\x03",  # a reason is missing
        b"\x01" + b"\xff" * 8 + b"\x01" + b"\x05\x00\x00\x01\x00" + b"\xff" * 8 + b"\x00\x02",  # more than a group can have
        b"\x01" + b"\xff" * 20,
    ],
)
def test_damaged_state_is_refused(damage: bytes) -> None:
    """A state that can't be right is refused, and the group has no place."""
    _, stream = filled(3)
    with pytest.raises(ValueError):
        stream.restore(GROUP, damage)
    assert drain(member(stream)) == [0, 1, 2]


def test_state_of_many() -> None:
    """What is held without gaps takes a few bytes, however many messages they are."""
    log, stream = filled(5_000)
    consumer = member(stream)
    assert len(drain(consumer)) == 5_000
    assert consumer.ack(0) and consumer.ack(1_000) and consumer.ack(4_999)
    state = stream.state_of(GROUP, clean=True)
    assert len(state) < 40
    fresh = stream_of(log.copy())
    fresh.restore(GROUP, state)
    assert drain(member(fresh)) == [offset for offset in range(5_000) if offset not in (0, 1_000, 4_999)]


def test_state_behind_a_shorter_stream() -> None:
    """A group saved behind the end of its stream begins at that end: nothing new is skipped."""
    log, stream = filled(9)
    consumer = member(stream)
    assert len(drain(consumer)) == 9
    assert all(consumer.ack(offset) for offset in range(9))
    shorter, fresh = filled(4)
    fresh.restore(GROUP, stream.state_of(GROUP))
    shorter.append(b"new")
    assert drain(member(fresh)) == [4]
    del log


def test_places_are_given_back() -> None:
    """Readers of the disk go with the consumers and groups that had them."""
    log, stream = filled(5, hot=0)
    lone, shared = member(stream, group=None), member(stream)
    assert drain(lone) == drain(shared) == [0, 1, 2, 3, 4]
    assert log.places == 2
    del lone
    assert log.places == 1
    del shared, stream
    assert log.places == 0


def test_rules_can_change() -> None:
    """New rules hold for what happens from then on."""
    _, stream = filled(2)
    consumer = member(stream)
    assert drain(consumer) == [0, 1]
    assert consumer.nack(0) and drain(consumer) == [0]
    stream.set_rules(True, 0, 0, 100)
    assert consumer.nack(0)
    assert stream.take_dead() == [(GROUP, 0, REASON_LIMIT, 2)]
    assert consumer.nack(1)
    assert len(stream.take_dead(1)) == 1 and len(stream.take_dead()) == 2
    assert [one[1] for one in stream.take_dead(9, (GROUP, 0))] == [1] and stream.take_dead(9, (GROUP, 1)) == []
    assert len(stream.take_dead(9, (b"gone", 5))) == 2


def test_a_lone_consumer_waits_for_an_offset_that_is_not_there_yet() -> None:
    """As on RabbitMQ; a group, whose place is noted and shown, begins at the end."""
    log, stream = filled(3)
    lone = member(stream, 10, group=None, start="offset", value=5)
    group = member(stream, 10, start="offset", value=5)
    assert drain(lone) == drain(group) == []
    for _ in range(4):
        log.append(b"x")
    assert drain(lone) == [5, 6]
    assert drain(group) == [3, 4, 5, 6]
    never = member(stream, 10, group=None, start="offset", value=1 << 63)
    assert drain(never) == []


@pytest.mark.parametrize("hot", [0, 100])
def test_a_group_without_members_is_reset(hot: int) -> None:
    """What was open is done, the group reads from its new place, first-time offsets alone are not flagged, and the place is saved."""
    log, stream = filled(10, hot=hot, open_max=3, batch_messages=2)
    consumer = member(stream)
    assert drain(consumer) == [0, 1, 2] and consumer.ack(1)
    with pytest.raises(ValueError, match="in use"):
        stream.reset(GROUP, 0)
    consumer.detach()
    assert consumer.nack(0) and consumer.nack(2)
    del consumer  # its seat goes with it
    with pytest.raises(KeyError):
        stream.reset(b"nobody", 0)
    assert stream.reset(GROUP, 100) == 10 and stream.groups()[GROUP]["lag"] == 0
    assert stream.reset(GROUP, 1) == 1
    assert (stream.groups()[GROUP]["unfinished"], stream.groups()[GROUP]["in_flight"]) == (9, 0)
    state = dict(stream.changed())[GROUP]
    other = member(stream)
    taken = []
    while len(taken) < 9:
        got = other.deliver()
        if got is None:
            assert stream.step_reads() or other.told(), taken
            continue
        taken.append((got[0], got[2]))
        assert other.ack(got[0])
    assert [offset for offset, _ in taken] == list(range(1, 10))
    assert all(flag for offset, flag in taken if offset < 3)
    other.detach()
    del other
    log.truncate(5)
    assert stream.reset(GROUP, 0) == 5
    fresh = stream_of(log.copy())
    fresh.restore(GROUP, state)
    assert fresh.groups()[GROUP]["base"] == 1


def test_a_dead_letter_that_waits_keeps_its_group_from_a_reset() -> None:
    _, stream = filled(3, dead_letters=True)
    consumer = member(stream)
    assert consumer.deliver() and consumer.reject(0)
    consumer.detach()
    del consumer  # its seat goes with it
    with pytest.raises(ValueError, match="in use"):
        stream.reset(GROUP, 2)
    assert [one[1] for one in stream.take_dead()] == [0] and stream.dead_done(GROUP, 0)
    assert stream.reset(GROUP, 2) == 2
