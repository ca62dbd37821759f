"""One shared queue on one node, against the engine in memory: publishes are answered once, leases are settled or go back.

Properties: S1 to S6 of shared/station.py. Time is the test's own.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.config import Limits
from flintmq.kv.engine import EngineError, EngineLimits, Unavailable, UnknownOutcome
from flintmq.shared.codec import unpack_message
from flintmq.shared.keys import META_FORMAT, QueueKeys, after
from flintmq.shared.owners import Owners
from flintmq.shared.queue import Fenced, Message, SharedQueue, Taken, clear_doomed, declare_queue, delete_queue
from flintmq.shared.station import Station, Waiting
from tests.twins.memory_engine import Fault, MemoryEngine

# no pauses, and no patience: one unknown outcome that stays unknown reaches the station
LIMITS = Limits().replace(shared_retry_ms=0, shared_patience_ms=0, shared_inline_bytes=64, shared_batch=4)
ENGINE = EngineLimits(2048, 1 << 20, 8 << 20, 20_000, 5_000, False)


class Window:
    """The broker's half: entries by position, those that a consumer has, and how many more consumers want."""

    def __init__(self) -> None:
        self.credit = 0
        self.there: dict[int, bytes] = {}
        self.out: dict[int, bytes] = {}
        self.seen: set[int] = set()
        self.flags: dict[int, bool] = {}
        self.counts: dict[int, int] = {}
        self.last = 0
        self.broken: set[bytes] = set()

    def wanted(self) -> int:
        return max(0, self.credit - len(self.there)) if self.credit else -len(self.there)

    def add(self, taken: Taken, content: bytes) -> int:
        if content in self.broken:
            raise ValueError("a later version's")
        self.last += 1
        self.there[self.last] = content
        self.flags[self.last] = taken.meta.redelivered
        self.counts[self.last] = taken.meta.deliveries
        return self.last

    def take_back(self, positions: list[int]) -> list[tuple[int, bool, int]]:
        chosen = [position for position in positions if position in self.there]
        for position in chosen:
            del self.there[position]
        return [(position, position in self.seen, self.counts.get(position, 0)) for position in chosen]

    def empty(self) -> None:
        self.there.clear()

    def deliver(self) -> list[tuple[int, bytes]]:
        given = list(self.there.items())
        self.out.update(given)
        self.seen.update(self.there)
        self.there.clear()
        return given


class Node:
    """A station with its host and clock, on an engine that others use, too."""

    def __init__(self, engine: MemoryEngine, name: str = "q") -> None:
        self.engine, self.name, self.now, self.wall = engine, name, 0.0, 1_000
        self.owners = Owners(engine, LIMITS, lambda: self.now)
        self.owners.register()
        self.window = Window()
        self.answers: list[tuple[bytes, bool]] = []
        self.wakes = self.remembered = self.ended = self.unread = self.over = 0
        self.most: tuple[int | None, int | None, bool] = (None, None, False)
        self.level_count, self.one_active, self.consumer_count = 1, False, 0
        self.refused_over: list[bytes] = []
        self.letters, self.full = False, False
        self.buried: list[tuple[bytes, bool]] = []
        self.is_gone = False
        self.figures = (0, 0)
        self.station = Station(self, self.window, LIMITS, lambda: self.now, lambda: self.wall)

    def open(self) -> tuple[Any, Owners, QueueKeys, str]:
        return self.engine, self.owners, declare_queue(self.engine, "/", self.name), "strict"

    def wake(self) -> None:
        self.wakes += 1

    def gone(self) -> None:
        self.is_gone = True

    def answer(self, waiting: list[Waiting], taken: bool) -> None:
        self.answers += [(one.message.content, taken) for one in waiting]

    def ready(self, messages: int, size: int) -> None:
        self.figures = (messages, size)

    def held(self, change: int) -> None:
        self.remembered += change

    def limit(self) -> tuple[int | None, int | None, bool]:
        return self.most

    def levels(self) -> int:
        return self.level_count

    def single(self) -> bool:
        return self.one_active

    def consumers(self) -> int:
        return self.consumer_count

    def overflowed(self, waiting: list[Waiting]) -> None:
        self.refused_over += [one.message.content for one in waiting]

    def is_full(self) -> bool:
        return self.full

    def buries(self) -> bool:
        return self.letters

    def bury(self, position: int, expired: bool) -> None:
        self.window.out[position] = self.window.there.pop(position)
        self.buried.append((self.window.out[position], expired))

    def dropped(self, messages: int) -> None:
        self.over += messages

    def expired(self, messages: int) -> None:
        self.ended += messages

    def unreadable(self, error: Exception) -> None:
        self.unread += 1

    def publish(self, *contents: bytes, expires_at_ms: int = 0, level: int = 0) -> None:
        for content in contents:
            assert self.station.publish(Waiting(Message(content, expires_at_ms, level), None, len(content)))

    def work(self) -> None:
        """Steps until nothing is to be done."""
        for _ in range(1_000):
            if not self.station.step():
                return
        raise AssertionError("it never ends")

    def settle(self, count: int) -> list[bytes]:
        chosen = list(self.window.out.items())[:count]
        for position, _ in chosen:
            del self.window.out[position]
            self.station.end(position)
        return [content for _, content in chosen]


def faulty(faults: list[Fault]) -> Callable[[], Fault]:
    return lambda: faults.pop(0) if faults else Fault.NONE


def test_what_is_published_is_answered_and_comes_out_in_order() -> None:
    node = Node(MemoryEngine())
    bodies = [b"%d" % number for number in range(11)] + [bytes(500)]
    node.publish(*bodies)
    node.window.credit = 100
    node.work()
    assert node.answers == [(body, True) for body in bodies]
    assert [body for _, body in node.window.deliver()] == bodies
    assert node.remembered == len(bodies)
    assert node.settle(100) == bodies
    node.work()
    assert node.remembered == 0
    assert node.figures == (0, 0)
    assert not [key for key in node.engine.state if key.startswith(QueueKeys(node.station.life or b"").ready)]


def test_an_engine_that_is_away_keeps_everything_for_the_next_step() -> None:
    faults = [Fault.UNAVAILABLE]
    engine = MemoryEngine()
    node = Node(engine)
    node.window.credit = 1
    node.publish(b"a", b"b")
    node.work()
    node.window.deliver()
    node.publish(b"c")
    node.settle(1)
    engine.faults = faulty(faults)
    with pytest.raises(Unavailable):
        node.station.step()
    assert node.answers[2:] == []
    node.work()
    assert node.answers[2:] == [(b"c", True)]
    node.window.credit = 3
    node.work()
    assert [body for _, body in node.window.deliver()] == [b"b", b"c"]


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER])
def test_a_publish_with_an_unknown_outcome_is_made_once(fault: Fault) -> None:
    """Its number tells: it is answered "taken" when it happened, and made again when it did not."""
    engine = MemoryEngine()
    node = Node(engine)
    node.work()
    engine.faults = faulty([fault])
    node.publish(b"a")
    try:
        node.work()
    except EngineError:  # no patience for a second try
        node.work()
    engine.faults = lambda: Fault.NONE
    node.window.credit = 10
    node.work()
    ((_, taken),) = node.answers
    there = [body for _, body in node.window.deliver()]
    assert there == [b"a"] if taken else len(there) <= 1


def test_what_waits_too_long_is_refused_though_no_step_runs() -> None:
    node = Node(MemoryEngine())
    node.publish(b"early")
    asked: list[object] = []
    node.station.fetch(asked.append)
    node.station.purge(lambda count, error: asked.append(error))
    node.now = LIMITS.shared_waiting_ms_max / 1000 - 1
    node.station.refuse_late()
    assert node.answers == [] and asked == []
    node.publish(b"late")
    node.now += 1
    node.station.refuse_late()
    assert node.answers == [(b"early", False)]
    assert [type(one) for one in asked] == [EngineError, EngineError]
    node.work()
    assert node.answers == [(b"early", False), (b"late", True)]


def test_a_transaction_under_way_is_answered_by_its_worker_alone() -> None:
    """refuse_late and close while the engine has the messages: none of them is answered twice, none is forgotten."""
    engine = MemoryEngine()
    node = Node(engine)
    node.work()
    node.publish(b"a", b"b")

    def meanwhile() -> Fault:
        engine.faults = lambda: Fault.NONE
        node.now = 10_000.0
        node.station.refuse_late()
        node.publish(b"c")
        node.station.close()
        return Fault.NONE

    engine.faults = meanwhile
    node.station.step()
    node.station.step()
    assert sorted(node.answers) == [(b"a", True), (b"b", True), (b"c", False)]


def test_what_nobody_here_wants_goes_back_without_a_mark_and_another_node_gets_it() -> None:
    engine = MemoryEngine()
    one, other = Node(engine), Node(engine)
    one.publish(b"a", b"b")
    one.window.credit = 2
    one.work()
    one.window.credit = 0  # its consumer left, and had seen nothing
    one.work()
    assert len(one.window.there) == 2, "who asked may come again at once"
    one.station.look_again()
    one.work()
    assert one.remembered == 0
    other.window.credit = 5
    other.work()
    assert list(other.window.flags.values()) == [False, False]
    assert [body for _, body in other.window.deliver()] == [b"a", b"b"]


def test_what_goes_back_is_not_overtaken_by_what_a_consumer_had() -> None:
    """The consumer's messages come back after the others went: whoever asks next gets the first of all."""
    node = Node(MemoryEngine())
    node.publish(*(b"%d" % number for number in range(6)))
    node.window.credit = 6
    node.work()
    kept = dict(list(node.window.there.items())[3:])
    for position in kept:
        node.window.out[position] = node.window.there.pop(position)
        node.window.seen.add(position)
    node.window.credit = 0
    node.station.look_again()
    node.work()
    assert len(node.window.there) == 3, "the consumer's are waited for"
    node.now += LIMITS.shared_unwanted_ms / 1000
    node.station.look_again()
    node.work()
    assert (node.window.there, node.station.mixed) == ({}, True)
    node.window.out.clear()
    node.window.there.update(kept)
    asked: list[object] = []
    for number in range(6):
        node.station.fetch(asked.append)
        node.work()
        assert asked == [None] * (number + 1)
        (position, body), *others = node.window.deliver()
        assert (body, others) == (b"%d" % number, [])
        assert node.window.flags[position] == (number >= 3)
        del node.window.out[position]
        node.station.end(position)
        node.work()
    assert not node.station.mixed


def test_a_node_that_was_declared_gone_has_nothing_any_more() -> None:
    engine = MemoryEngine()
    one, other = Node(engine), Node(engine)
    one.publish(b"a", b"b")
    one.window.credit = 2
    one.work()
    (first, _), _ = one.window.deliver()
    lost = one.owners.owner
    other.owners.look()
    other.now = LIMITS.shared_lease_ms / 1000
    assert other.owners.look() == 2
    one.station.end(first)
    with pytest.raises(Fenced):
        one.station.step()
    assert one.remembered == 0
    one.owners.register()
    assert one.owners.owner != lost
    one.window.credit = 0
    one.station.end(first)  # late: of a life that is over
    one.work()
    other.window.credit = 5
    other.work()
    assert list(other.window.flags.values()) == [True, True]
    assert sorted(body for _, body in other.window.deliver()) == [b"a", b"b"]


def test_a_message_that_cannot_be_read_is_put_aside_and_others_go_on() -> None:
    engine = MemoryEngine()
    node = Node(engine)
    node.window.broken.add(b"bad")
    node.publish(b"a", b"bad", bytes(200), b"z")
    node.work()
    # the chunks of the large one are gone
    life = QueueKeys(node.station.life or b"")
    engine.state = {key: value for key, value in engine.state.items() if not key.startswith(life.chunks)}
    node.window.credit = 10
    node.work()
    assert [body for _, body in node.window.deliver()] == [b"a", b"z"]
    assert node.unread == 2
    assert node.remembered == 4, "they stay leased"


@pytest.mark.parametrize("row", [b"", b"\x01", bytes([META_FORMAT + 1]) + bytes(40)])
def test_a_row_that_can_not_be_read_is_put_aside_and_others_go_on(row: bytes) -> None:
    engine = MemoryEngine()
    node = Node(engine)
    node.window.broken.add(row)  # as shared/codec.py says of it
    node.publish(b"a", b"b")
    node.work()
    keys = QueueKeys(node.station.life or b"")
    first = min(key for key in engine.state if key.startswith(keys.ready))
    engine.state = {**engine.state, first: (row, engine.version)}
    node.window.credit = 10
    node.station.look_again()
    node.work()
    assert [body for _, body in node.window.deliver()] == [b"b"]
    assert (node.unread, node.remembered) == (1, 2)
    with pytest.raises(ValueError):
        unpack_message(row)


def test_what_expired_never_reaches_the_window() -> None:
    node = Node(MemoryEngine())
    node.publish(b"old", expires_at_ms=1_500)
    node.publish(b"older", expires_at_ms=1_200)
    node.publish(b"new")
    node.work()
    node.wall = 1_300
    node.station.look_again()  # the head expires at its time, not behind it
    node.work()
    assert node.ended == 0 and node.figures[0] == 3
    node.wall = 1_600
    node.station.look_again()
    node.work()
    assert node.ended == 2 and node.figures[0] == 1
    node.publish(b"again", expires_at_ms=1_650)
    node.work()
    node.wall = 1_700
    node.window.credit = 10
    node.work()
    assert [body for _, body in node.window.deliver()] == [b"new"]
    assert node.ended == 3
    assert node.remembered == 1


def test_a_purge_ends_what_was_ready_in_parts_and_is_answered_once() -> None:
    node = Node(MemoryEngine())
    node.publish(*(b"%d" % number for number in range(11)))
    node.window.credit = 3
    node.work()
    node.window.deliver()
    node.window.credit = 0
    told: list[tuple[int, object]] = []
    node.station.purge(lambda count, error: told.append((count, error)))
    assert node.station.step(), "a part of it"
    assert told == []
    node.publish(b"late")
    node.work()
    assert told == [(8, None)]
    node.window.credit = 10
    node.work()
    assert b"late" in [body for _, body in node.window.deliver()] or node.figures[0] == 0


def test_a_queue_deleted_elsewhere_refuses_what_waits_and_says_so() -> None:
    engine = MemoryEngine()
    node = Node(engine)
    node.publish(b"a", b"b")
    node.window.credit = 1
    node.work()
    life = node.station.life
    assert delete_queue(engine, "/", "q")
    node.publish(b"c")
    asked: list[object] = []
    node.station.fetch(asked.append)
    node.work()
    assert node.is_gone
    assert node.answers[-1] == (b"c", False)
    assert asked == [None]
    assert node.window.there == {} and node.remembered == 0
    while clear_doomed(engine):
        pass
    prefix = QueueKeys(life or b"").prefix
    assert not [key for key in engine.state if prefix <= key < after(prefix)]
    node.station.close()
    assert not node.station.publish(Waiting(Message(b"d"), None, 1))


def test_leave_gives_back_what_nobody_had() -> None:
    engine = MemoryEngine()
    node, other = Node(engine), Node(engine)
    node.publish(b"a", b"b", b"c")
    node.window.credit = 3
    node.work()
    position = min(node.window.there)
    node.window.out[position] = node.window.there.pop(position)
    node.settle(1)
    node.publish(b"d")
    node.station.leave()
    node.owners.leave()
    other.window.credit = 10
    other.work()
    assert [body for _, body in other.window.deliver()] == [b"b", b"c", b"d"]
    assert set(other.window.flags.values()) == {False}


def test_what_expires_is_buried_where_there_is_an_exchange_for_it() -> None:
    node = Node(MemoryEngine())
    node.letters = True
    node.publish(b"a", b"b", expires_at_ms=1_500)
    node.publish(b"stays")
    node.work()
    node.wall = 1_600
    node.station.look_again()
    node.work()
    assert node.buried == [(b"a", True), (b"b", True)], "nobody consumes"
    assert (node.ended, node.figures[0]) == (0, 1)
    assert node.remembered == 2, "leased until their letters are there"
    node.settle(2)
    node.work()
    assert node.remembered == 0


def test_what_is_above_the_limit_goes_from_the_head() -> None:
    node = Node(MemoryEngine())
    node.most = 3, None, False
    node.publish(*(b"%d" % number for number in range(9)))
    node.work()
    assert all(taken for _, taken in node.answers)
    assert (node.figures[0], node.over) == (3, 6)
    node.letters = True
    node.publish(b"9", b"10")
    node.work()
    assert node.buried == [(b"6", False), (b"7", False)]
    node.window.credit = 10
    node.work()
    assert [body for _, body in node.window.deliver()] == [b"8", b"9", b"10"]


def test_consumers_here_have_their_turn_before_what_is_above_the_limit_goes() -> None:
    node = Node(MemoryEngine())
    node.most = 0, None, False
    node.window.credit = 2
    node.work()
    node.publish(b"a", b"b", b"c")
    node.work()
    assert [body for _, body in node.window.deliver()] == [b"a", b"b"]
    assert (node.figures[0], node.over) == (0, 1)


def test_another_node_made_room_and_nothing_is_dropped() -> None:
    engine = MemoryEngine()
    node, other = Node(engine), Node(engine)
    node.most = 3, None, False
    node.publish(b"a", b"b", b"c")
    node.work()
    other.window.credit = 2
    other.work()
    node.publish(b"d", b"e")
    node.work()
    assert node.over == 0, "the count of this node was old"


def test_a_full_queue_refuses_what_does_not_fit_and_keeps_no_chunks_of_it() -> None:
    engine = MemoryEngine(limits=ENGINE)
    node, other = Node(engine), Node(engine)
    node.most = other.most = 3, None, True
    node.publish(b"a", b"b")
    node.work()
    other.publish(b"c", bytes(LIMITS.shared_batch_bytes + 1), b"e")
    other.publish(bytes(100))
    other.work()
    assert [taken for _, taken in node.answers + other.answers] == [True, True, True, False, False, False]
    assert other.station.refused == 3
    keys = QueueKeys(node.station.life or b"")
    assert not [key for key in engine.state if key.startswith((keys.chunks, keys.prefix + b"u"))]


def test_a_node_whose_letters_wait_takes_nothing_and_says_so_to_who_asks() -> None:
    node = Node(MemoryEngine())
    node.full = node.letters = True
    node.publish(b"a", expires_at_ms=1_500)
    node.publish(b"b")
    asked: list[object] = []
    node.station.fetch(asked.append)
    node.wall = 2_000
    node.station.look_again()
    node.work()
    assert (asked, node.window.there, node.buried) == ([None], {}, [])
    node.full = False
    node.station.look_again()
    node.window.credit = 1
    node.work()
    assert (node.buried, list(node.window.there.values())) == ([(b"a", True)], [b"b"])


def test_a_count_of_returns_is_there_for_the_node_that_has_the_message_next() -> None:
    engine = MemoryEngine()
    node, other = Node(engine), Node(engine)
    node.publish(b"came back", b"never seen")
    node.window.credit = 2
    node.work()
    first, second = sorted(node.window.there)
    for count in (1, 2):
        node.station.note_count(first, count)
    node.station.note_count(second + 9, 7)
    node.work()
    other.owners.look()
    other.now = LIMITS.shared_lease_ms / 1000
    assert other.owners.look() == 2
    other.window.credit = 2
    other.work()
    assert [(other.window.counts[at], other.window.flags[at]) for at in sorted(other.window.there)] == [(2, True), (0, True)]


FAULTS = st.lists(st.sampled_from([Fault.NONE, Fault.NONE, *Fault]), max_size=12)
ACTIONS = st.lists(st.tuples(st.sampled_from(["publish", "want", "deliver", "settle", "leave", "look", "step"]), FAULTS), max_size=25)


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_under_any_faults_nothing_taken_is_lost_and_nothing_settled_comes_again(actions: list[tuple[str, list[Fault]]]) -> None:
    engine = MemoryEngine(limits=ENGINE)
    node = Node(engine)
    node.work()
    pending: deque[Fault] = deque()
    engine.faults = lambda: pending.popleft() if pending else Fault.NONE
    settled: list[bytes] = []
    number = 0
    for action, faults in actions:
        if action == "publish":
            number += 1
            node.publish(b"%d" % number)
        elif action == "want":
            node.window.credit += 2
        elif action == "leave":
            node.window.credit = 0
        elif action == "deliver":
            node.window.deliver()
        elif action == "settle":
            settled += node.settle(1)
        elif action == "look":
            node.station.look_again()
        pending.extend(faults)
        with contextlib.suppress(Unavailable, UnknownOutcome):
            node.station.step()
        pending.clear()
    node.window.credit = 1_000
    node.work()
    node.work()
    node.window.deliver()
    out = list(node.window.out.values())
    assert len(node.answers) == number, "each publish has one answer"
    taken = {content for content, outcome in node.answers if outcome}
    assert taken <= {*settled, *out}
    assert not set(settled) & set(out), "what was settled is over"
    assert len(out) == len(set(out)), "nothing is here twice"
    settled += node.settle(1_000)
    node.work()
    assert node.figures[0] == 0
    assert node.remembered == 0
    queue = SharedQueue(engine, QueueKeys(node.station.life or b""), node.owners.owner, LIMITS)
    assert queue.held(10) == []


def test_the_bytes_that_may_be_ready_are_kept_and_the_oldest_go() -> None:
    node = Node(MemoryEngine())
    node.most = None, 10, False
    node.publish(b"1234", b"5678", b"90")
    node.work()
    assert (node.figures, node.over) == ((3, 10), 0)
    node.publish(b"x")
    node.work()
    assert (node.figures, node.over) == ((2 + 1, 7), 1)
    node.publish(bytes(11))
    node.work()
    assert (node.figures, node.over) == ((0, 0), 5), "nothing that is above the limit by itself stays"


def test_a_queue_that_is_full_of_bytes_refuses_and_says_which() -> None:
    node = Node(MemoryEngine())
    node.most = None, 10, True
    node.publish(b"1234", b"5678")
    node.work()
    node.publish(b"abc", b"d")
    node.work()
    assert node.refused_over == [b"abc", b"d"], "there is no room from the first one on that is too large"
    node.publish(b"de")
    node.work()
    assert (node.figures, node.refused_over) == ((3, 10), [b"abc", b"d"])
    assert [taken for _, taken in node.answers] == [True, True, False, False, True]


@pytest.mark.parametrize("order", ["strict", "relaxed"])
def test_higher_levels_come_first_and_each_is_in_order(order: str) -> None:
    engine = MemoryEngine()
    node, other = Node(engine), Node(engine)
    for one in (node, other):
        one.level_count = 4
        one.open = lambda one=one: (engine, one.owners, declare_queue(engine, "/", "q", order), order)  # type: ignore[method-assign]
    node.publish(b"low 0", b"low 1")
    other.work()
    node.publish(b"high 0", level=2)
    node.work()
    other.publish(b"high 1", level=2)
    other.publish(b"top 0", b"top 1", level=200)  # above the highest: as the highest
    other.publish(b"low 2", level=-1)
    other.work()
    node.window.credit = 10
    node.work()
    assert [body for _, body in node.window.deliver()] == [b"top 0", b"top 1", b"high 0", b"high 1", b"low 0", b"low 1", b"low 2"]


def test_what_comes_back_has_its_level() -> None:
    node = Node(MemoryEngine())
    node.level_count = 2
    node.publish(b"low")
    node.publish(b"high", level=1)
    node.window.credit = 2
    node.work()
    node.window.credit = 0
    node.station.look_again()
    node.work()
    node.publish(b"higher", level=1)
    node.window.credit = 3
    node.work()
    assert [body for _, body in node.window.deliver()] == [b"high", b"higher", b"low"]


class Single(Node):
    """A node of a queue with a single active consumer."""

    def __init__(self, engine: MemoryEngine) -> None:
        super().__init__(engine)
        self.one_active = True

    def consume(self, credit: int = 10) -> None:
        self.consumer_count, self.window.credit = 1, credit
        self.work()

    def leave_off(self) -> None:
        """Its consumer goes, and what it had comes back to the window."""
        self.window.there = {**self.window.out, **self.window.there}
        self.window.out = {}
        self.consumer_count = self.window.credit = 0
        self.station.look_again()
        self.work()

    def got(self) -> list[bytes]:
        return [body for _, body in self.window.deliver()]


def test_consumers_of_one_node_get_messages_until_it_has_none() -> None:
    engine = MemoryEngine()
    one, other = Single(engine), Single(engine)
    one.publish(*(b"%d" % number for number in range(4)))
    one.consume(2)
    other.consume()
    assert one.got() == [b"0", b"1"]
    assert other.got() == []
    wakes = other.wakes
    one.settle(1)
    one.leave_off()
    assert other.wakes > wakes, "it is told"
    other.work()
    assert other.got() == [b"1", b"2", b"3"]
    one.publish(b"4")
    one.consume()
    assert one.got() == []
    other.work()
    assert other.got() == [b"4"]


def test_a_node_that_dies_is_followed_within_its_lease_and_takes_nothing_more() -> None:
    engine = MemoryEngine()
    one, other = Single(engine), Single(engine)
    one.publish(b"0", b"1", b"2")
    one.consume(1)
    other.consume()
    assert (one.got(), other.got()) == ([b"0"], [])
    other.owners.look()
    other.now = LIMITS.shared_lease_ms / 1000
    other.owners.look()
    other.station.look_again()
    other.work()
    assert other.got() == [b"0", b"1", b"2"]
    one.window.credit = 5
    with pytest.raises(Fenced):
        one.station.step()
    one.owners.register()
    one.consume()
    other.publish(b"3")
    other.work()
    assert (one.got(), other.got()) == ([], [b"3"])


def test_each_holder_has_a_higher_epoch() -> None:
    engine = MemoryEngine()
    nodes = [Single(engine) for _ in range(3)]
    epochs: list[int] = []
    for node in [*nodes, *nodes]:
        node.consume()
        row = engine.state[QueueKeys(node.station.life or b"").active][0]
        assert row[:8] == node.owners.owner
        epochs.append(int.from_bytes(row[8:], "big"))
        node.leave_off()
    assert epochs == sorted(set(epochs))


def test_who_asks_for_one_message_has_it_though_another_node_is_active() -> None:
    """basic.get, as on other queues with a single active consumer."""
    engine = MemoryEngine()
    one, other = Single(engine), Single(engine)
    one.publish(b"0", b"1")
    one.consume(1)
    asked: list[object] = []
    other.station.fetch(asked.append)
    other.work()
    assert (asked, other.got()) == ([None], [b"1"])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_never_two_nodes_whose_consumers_get_messages(data: st.DataObject) -> None:
    """Whatever nodes do, die included: the nodes with messages that came for consumers are one at a time, and no message is lost."""
    engine = MemoryEngine()
    nodes = [Single(engine) for _ in range(3)]
    published = 0
    gone: set[bytes] = set()
    for _ in range(data.draw(st.integers(1, 25))):
        node = data.draw(st.sampled_from(nodes))
        act = data.draw(st.sampled_from(["publish", "consume", "leave", "settle", "die", "work"]))
        if act == "publish":
            node.publish(b"%d" % published)
            published += 1
        elif act == "leave":
            node.leave_off()
        elif act == "settle":
            gone.update(node.settle(2))
        elif act == "die":
            other = next(one for one in nodes if one is not node)
            other.owners.fence(node.owners.owner, engine_beat(engine, node))
            other.owners.look()
            node.window.out.clear()
            with contextlib.suppress(Fenced):
                node.station.step()
            node.owners.register()
        else:
            node.consumer_count = node.window.credit = max(node.consumer_count, int(act == "consume")) and 3
        node.work()
        node.window.deliver()
        active = [one for one in nodes if one.station.active]
        assert len(active) <= 1
    for node in nodes:
        node.work()
        node.leave_off()
    last = nodes[0]
    last.consume(100)
    assert {*(int(body) for body in last.got()), *(int(body) for body in gone)} == set(range(published))


def engine_beat(engine: MemoryEngine, node: Node) -> bytes:
    return node.owners.nodes()[node.owners.owner][1]
