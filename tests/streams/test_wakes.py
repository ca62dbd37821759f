"""Who is told of what: one wake for each group and lone consumer, and somebody else when the one that was told does not do the work."""

from __future__ import annotations

from tests.drivers.stream_driver import StreamConsumer
from tests.streams.kit import GROUP, drain, filled, member


def told(*consumers: StreamConsumer) -> list[int]:
    return [consumer.told() for consumer in consumers]


def idle(*consumers: StreamConsumer) -> None:
    """They looked and found nothing."""
    for consumer in consumers:
        while consumer.deliver() is not None:
            pass
    told(*consumers)


def test_one_wake_per_pass() -> None:
    """However many messages one pass of the writer makes visible: each group and each lone consumer is told once."""
    log, stream = filled(0)
    lone, other = member(stream, group=None), member(stream, group=None)
    a, b, c = member(stream), member(stream), member(stream, group=b"second")
    idle(lone, other, a, b, c)
    for _ in range(5):
        log.append(b"x", publish=False)
    log.publish()
    assert told(lone, other, c) == [1, 1, 1] and sum(told(a, b)) == 1
    log.publish()
    assert told(lone, other, a, b, c) == [0, 0, 0, 0, 0], "who was told is not told again"


def test_members_in_turn() -> None:
    """Idle members of a group are woken in turn."""
    log, stream = filled(0)
    members = [member(stream) for _ in range(3)]
    idle(*members)
    order = []
    for offset in range(6):
        log.append(b"x")
        woken = [number for number, count in enumerate(told(*members)) if count]
        assert len(woken) == 1
        order.append(woken[0])
        assert members[woken[0]].deliver() is not None and members[woken[0]].ack(offset)
        idle(members[woken[0]])
    assert order[:3] == order[3:] and sorted(order[:3]) == [0, 1, 2]


def test_next_member_while_more_is_there() -> None:
    """A member that took one message and left more has the next idle one woken, and ends its turn."""
    log, stream = filled(0)
    a, b = member(stream), member(stream)
    idle(a, b)
    for _ in range(3):
        log.append(b"x", publish=False)
    log.publish()
    first, second = (a, b) if a.told() else (b, a)
    got = first.deliver_full()
    assert got is not None and got[4], "the turn ends: others want to work"
    assert second.told() == 1
    got = first.deliver_full()
    assert got is not None and not got[4]


def test_told_member_that_leaves_passes_it_on() -> None:
    """Told, then detached, suspended or without credit: another member is told."""
    for how in ("detach", "suspend", "credit"):
        log, stream = filled(0)
        a, b = member(stream, 1), member(stream, 1)
        idle(a, b)
        log.append(b"0")
        first, second = (a, b) if a.told() else (b, a)
        if how == "detach":
            first.detach()
            assert second.told() == 1
        elif how == "suspend":
            first.suspend(True)
            assert second.told() == 1
        else:
            assert first.deliver() is not None
            log.append(b"1")
            assert first.deliver() is None and first.list == "NOT_INTERESTED"
            assert second.told() == 1
        assert second.deliver() is not None


def test_suspended_consumer_is_told_when_it_comes_back() -> None:
    """What arrived while a consumer was suspended is its work when it is not suspended any more; so with credit."""
    for group in (None, GROUP):
        log, stream = filled(0)
        consumer = member(stream, 1, group=group)
        idle(consumer)
        consumer.suspend(True)
        log.append(b"0")
        assert consumer.told() == 0 and consumer.deliver() is None
        consumer.suspend(False)
        assert consumer.told() == 1 and consumer.deliver() is not None
        log.append(b"1")
        idle(consumer)
        assert consumer.ack(0)
        assert consumer.told() == 1 and drain(consumer) == [1]


def test_returned_message_wakes_another() -> None:
    """A message that comes back wakes an idle member, also when its holder can take nothing."""
    _, stream = filled(1)
    a, b = member(stream, 1), member(stream, 1)
    assert a.deliver() is not None
    idle(b)
    a.suspend(True)
    told(a, b)
    assert a.nack(0)
    assert told(a, b) == [0, 1] and b.deliver() == (0, b"m0", True, 1)


def test_read_wakes() -> None:
    """A batch that came from the disk wakes who waited for it, also when that one left meanwhile: then another."""
    _, stream = filled(3, hot=0, manual_reads=True)
    lone, a, b = member(stream, group=None), member(stream), member(stream)
    assert lone.deliver() is None and a.deliver() is None and b.deliver() is None
    told(lone, a, b)
    a.detach()
    assert b.told() == 1 and b.deliver() is None
    assert stream.step_reads() == 2
    assert told(lone, b) == [1, 1]
    assert drain(lone) == drain(b) == [0, 1, 2]


def test_detached_reader_keeps_its_read() -> None:
    """A lone consumer that goes while its read is under way: the read ends, then everything goes."""
    log, stream = filled(3, hot=0, manual_reads=True)
    lone = member(stream, group=None)
    assert lone.deliver() is None and stream.reads_waiting
    lone.detach()
    del lone
    assert stream.step_reads() == 1
    assert log.places == 0


def test_late_member_is_told() -> None:
    """A consumer that comes to a stream with messages is told at once."""
    _, stream = filled(1)
    assert told(member(stream, group=None), member(stream)) == [1, 1]
    assert told(member(stream, group=None, start="next"), member(stream, group=b"new", start="next")) == [0, 0]


def test_members_that_wait_for_credit_cost_a_wake_nothing() -> None:
    """Each was passed over once: a wake under the manager lock must not look at thousands of members for each message."""
    log, stream = filled(0)
    members = [member(stream, 1) for _ in range(200)]
    idle(*members)
    for _ in members:
        log.append(b"x")
    holds = {}
    while len(holds) < len(members):
        for number, count in enumerate(told(*members)):
            while count and (got := members[number].deliver_full()) is not None:
                holds[number] = got[0]
    idle(*members)
    before = stream.groups()[GROUP]["members_looked_at"]
    for _ in range(100):
        log.append(b"y")
    for number in range(100):
        assert members[number].ack(holds[number])
        assert members[number].told() == 1 and len(drain(members[number])) == 1
    looked = stream.groups()[GROUP]["members_looked_at"] - before
    assert looked <= len(members) + 4 * 100
