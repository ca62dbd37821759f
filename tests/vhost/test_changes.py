"""Verbs whose change the database makes later: nobody waits under the lock, held names are consistent, and what is saved is carried out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flintmq.errors import PeerError, StoreError
from flintmq.store.definitions import MemoryDefinitions
from flintmq.store.sql.changes import Change
from flintmq.vhost import changes, spreading, virtual_host
from flintmq.vhost.changes import _apply

from .fakes import World


class Later(MemoryDefinitions):
    """Makes submitted changes when the test says so, in their order; `refuse`: not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[Sequence[Change], Callable[[Exception | None], None]]] = []

    def submit(self, changes: Sequence[Change], callback: Callable[[Exception | None], None]) -> None:
        self.waiting.append((changes, callback))

    def answer(self, refuse: bool = False) -> None:
        changes, callback = self.waiting.pop(0)
        if refuse:
            callback(StoreError("disk full"))
            return
        for change in changes:
            _apply(self, change)
        callback(None)


class Desk:
    """Somebody who asks for verbs, and runs what is called back when the test says so."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.calls: list[Callable[[], None]] = []
        self.alive = True

    def ask(self, verb: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
        """As a connection asks. The list gets the result, or the exception, once."""
        answers: list[Any] = []

        def finished(result: Any, error: Exception | None) -> None:
            answers.append(result if error is None else error)

        job = self.world.vhost.perform(verb(*arguments, **options), self.calls.append, finished, lambda: self.alive)
        assert job.over == bool(answers)
        return answers

    def run(self) -> None:
        while self.calls:
            self.calls.pop(0)()


class Office:
    def __init__(self) -> None:
        self.definitions = Later()
        self.world = World(self.definitions, sql_retry_ms=1000)
        self.vhost = self.world.vhost
        self.desks = [Desk(self.world), Desk(self.world)]
        self.calls: list[Callable[[], None]] = []
        self.vhost.home_call = self.calls.append
        self.slices: list[tuple[Callable[[], bool], Callable[[bool], object]]] = []  # long work: step, ended
        self.vhost.use_slices(lambda step, ended: self.slices.append((step, ended)))

    def slice(self, which: int = 0) -> None:
        """One slice of one of the long works."""
        step, ended = self.slices[which]
        if step():
            del self.slices[which]
            ended(True)

    def settle(self, refuse: bool = False) -> None:
        """Until nothing is under way."""
        while self.definitions.waiting or self.calls or self.slices or any(desk.calls for desk in self.desks):
            if self.definitions.waiting:
                self.definitions.answer(refuse)
            if self.slices:
                self.slice()
            while self.calls:
                self.calls.pop(0)()
            for desk in self.desks:
                desk.run()


@pytest.fixture
def office() -> Office:
    return Office()


def test_a_declared_queue_is_there_when_the_database_has_it(office: Office) -> None:
    a, b = office.desks
    first = a.ask(office.vhost.declare_queue, "q", durable=True)
    second = b.ask(office.vhost.declare_queue, "q", durable=True)
    other = b.ask(office.vhost.declare_queue, "q", durable=True, auto_delete=True)
    assert not office.vhost.queues and first == second == []
    assert b.ask(office.vhost.declare_queue, "t")[0].name == "t"  # what is not durable waits for nobody
    office.settle()
    assert first == second == [office.vhost.queues["q"]]
    assert isinstance(other[0], PeerError) and other[0].code == 406
    assert len(office.definitions.load_queues("/")) == 1


def test_a_caller_that_may_wait_runs_a_verb_to_its_end(office: Office) -> None:
    """`run` of a verb is over, and durable, when it returns; what another verb has it can't have."""
    a, _ = office.desks
    vhost = office.vhost
    assert vhost.run(vhost.declare_queue("q", durable=True)) is vhost.queues["q"]
    assert not office.definitions.waiting and len(office.definitions.load_queues("/")) == 1
    a.ask(vhost.delete_queue, "q")
    with pytest.raises(RuntimeError, match="is being changed"):
        vhost.run(vhost.declare_queue("q", passive=True))
    office.settle()
    assert not vhost.queues


def test_a_queue_that_is_being_deleted_is_neither_bound_nor_declared_before_it_is_gone(office: Office) -> None:
    a, b = office.desks
    a.ask(office.vhost.declare_queue, "q", durable=True)
    office.settle()
    old = office.vhost.queues["q"]
    deleted = a.ask(office.vhost.delete_queue, "q")
    bound = b.ask(office.vhost.bind_queue, "q", "amq.direct", b"k")
    looked = b.ask(office.vhost.declare_queue, "q", passive=True)
    assert office.vhost.queues["q"] is old and not old.deleted
    office.settle()
    assert deleted == [0] and old.deleted
    assert [one[0].code for one in (bound, looked)] == [404, 404]
    assert not office.definitions.load_bindings("/")


def test_bindings_of_several_clients_do_not_wait_for_each_other_and_a_delete_waits_for_them(office: Office) -> None:
    a, b = office.desks
    a.ask(office.vhost.declare_queue, "q", durable=True)
    office.settle()
    answers = [desk.ask(office.vhost.bind_queue, "q", "amq.direct", b"%d" % number) for number, desk in enumerate((a, b, a))]
    deleted = b.ask(office.vhost.delete_queue, "q")
    late = a.ask(office.vhost.bind_queue, "q", "amq.direct", b"late")
    assert len(office.definitions.waiting) == 3
    office.settle()
    assert answers == [[True]] * 3 and deleted == [0]
    assert late[0] is True or late[0].code == 404
    assert not office.definitions.load_bindings("/") and office.vhost.binding_count == 0


def test_what_was_given_to_the_database_is_carried_out_for_a_client_that_is_gone(office: Office) -> None:
    a, b = office.desks
    a.ask(office.vhost.declare_queue, "q", durable=True)
    waiting = a.ask(office.vhost.declare_queue, "q", exclusive=True, connection_id=1)
    a.alive = False
    office.settle()
    assert office.vhost.queues["q"].exclusive_owner is None
    assert waiting == []  # it had not begun, and there is nobody any more that an exclusive queue could belong to
    b.ask(office.vhost.delete_queue, "q")
    office.settle()
    b.ask(office.vhost.declare_queue, "x", durable=True)
    exclusive = a.ask(office.vhost.declare_queue, "x", exclusive=True, connection_id=1)
    office.settle()
    assert exclusive == [] and not office.vhost.queues["x"].exclusive


def test_a_refused_change_changes_nothing_and_frees_the_name(office: Office) -> None:
    a, b = office.desks
    refused = a.ask(office.vhost.declare_queue, "q", durable=True)
    second = b.ask(office.vhost.declare_queue, "q", durable=True)
    office.definitions.answer(refuse=True)
    a.run()
    assert isinstance(refused[0], StoreError) and not office.vhost.queues
    office.settle()
    assert second == [office.vhost.queues["q"]]
    deleted = a.ask(office.vhost.delete_queue, "q", if_empty=True)
    core: Any = office.vhost.queues["q"].core
    assert core.held  # nothing comes in between the look and the end
    office.settle(refuse=True)
    assert isinstance(deleted[0], StoreError) and not core.held and not office.vhost.queues["q"].deleted


def test_a_queue_that_goes_by_itself_goes_once_and_others_wait_for_it(office: Office) -> None:
    a = office.desks[0]
    a.ask(office.vhost.declare_queue, "q", durable=True, auto_delete=True)
    office.settle()
    queue = office.vhost.queues["q"]
    office.vhost.consumer_added(queue)
    office.vhost.consumer_removed(queue)
    office.vhost.consumer_removed(queue)
    office.vhost.expire_queues()
    assert len(office.definitions.waiting) == 1 and office.vhost.is_held("q")
    again = a.ask(office.vhost.declare_queue, "q", durable=True)
    office.settle()
    assert queue.deleted and again == [office.vhost.queues["q"]] and not again[0].deleted


def test_an_auto_delete_exchange_goes_after_its_last_queue(office: Office) -> None:
    a = office.desks[0]
    for name, source in (("x", None), ("y", "x"), ("z", "y")):
        a.ask(office.vhost.declare_exchange, name, "fanout", durable=True, auto_delete=True)
        office.settle()
        if source:
            a.ask(office.vhost.bind_exchange, source, name)
            office.settle()
    office.vhost.run(office.vhost.declare_queue("q", exclusive=True, connection_id=1))
    a.ask(office.vhost.bind_queue, "q", "x", b"")
    assert office.vhost.connection_closed(1)  # at once: it is not durable
    assert not office.vhost.queues
    office.settle()
    assert not {"x", "y", "z"} & office.vhost.exchanges.keys()
    assert not office.definitions.load_exchanges("/")


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> int:
    """Bindings of one slice."""
    monkeypatch.setattr(virtual_host, "PIECE", 2)
    monkeypatch.setattr(changes, "FOLLOW_AT_ONCE", 1)
    return 2


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("kind", ["direct", "headers", "x-consistent-hash", "topic"])
def test_what_has_many_bindings_goes_in_slices(office: Office, pieces: int, durable: bool, kind: str) -> None:
    """In between routes and lists say the same, whoever names it waits, and others go on."""
    a, b = office.desks
    vhost = office.vhost
    a.ask(vhost.declare_exchange, "x", kind, durable=durable)
    for name in "qr":
        a.ask(vhost.declare_queue, name, durable=durable)
    office.settle()
    for number in range(5):
        for name in "qr":
            a.ask(vhost.bind_queue, name, "x", b"%d" % (number + 1))
    office.settle()
    gone = a.ask(vhost.delete_queue, "q")
    if durable:
        office.definitions.answer()
        a.run()
    seen = []
    while office.slices:
        seen.append(len(vhost.queues["q"].bindings or ()))
        assert {binding.routing_key for binding in (vhost.queues["q"].bindings or {}).values()} == {
            binding.routing_key for binding in vhost.exchanges["x"].bindings.values() if binding.destination.name == "q"
        }
        late = b.ask(vhost.bind_queue, "q", "x", b"9")
        other = b.ask(vhost.declare_queue, "o")
        assert late == [] and other[0].name == "o"
        office.slice()
        assert seen[-1] - len(vhost.queues["q"].bindings or ()) <= pieces
    assert len(seen) >= 2 and not gone
    office.settle()
    assert gone == [0] and "q" not in vhost.queues
    assert vhost.binding_count == 5
    gone = a.ask(vhost.delete_exchange, "x")
    office.settle()
    assert gone == [True] and "x" not in vhost.exchanges and vhost.queues["r"].bindings is None and vhost.binding_count == 0
    assert not vhost._changes._held and not vhost._changes._waiting


def test_an_exchange_that_many_lead_to_goes_in_slices(office: Office, pieces: int) -> None:
    a, _ = office.desks
    vhost = office.vhost
    for name in ("x", "s", "t"):
        a.ask(vhost.declare_exchange, name, "topic", auto_delete=name == "t")
    for source in "stx":
        for number in range(4):
            a.ask(vhost.bind_exchange, "x", source, b"%d" % number)
    a.ask(vhost.declare_queue, "q")
    a.ask(vhost.bind_queue, "q", "x", b"0")
    office.world.forget()
    gone = a.ask(vhost.delete_exchange, "x")
    assert office.slices and gone == [] and "x" in vhost.exchanges
    office.settle()
    assert gone == [True] and not {"x", "t"} & vhost.exchanges.keys() and not vhost.exchanges["s"].downstream
    assert vhost.binding_count == 0 and {"s", "x"} <= office.world.routes_changed


def test_a_chain_of_auto_delete_exchanges_ends_in_slices(office: Office, pieces: int) -> None:
    a, _ = office.desks
    vhost = office.vhost
    names = [f"x{number}" for number in range(2_000)]
    for name in names:
        a.ask(vhost.declare_exchange, name, "fanout", auto_delete=True)
    for source, end in itertools.pairwise(names):
        a.ask(vhost.bind_exchange, end, source)
    a.ask(vhost.declare_queue, "q")
    a.ask(vhost.bind_queue, "q", names[-1])
    office.settle()
    gone = a.ask(vhost.delete_queue, "q")
    assert len(set(names) & vhost.exchanges.keys()) > 1_990
    office.settle()
    assert gone == [0]
    assert not set(names) & vhost.exchanges.keys()


def test_long_work_that_fails_ends_with_its_error_and_frees_the_name(office: Office, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run again, the verb would meet the same for ever."""
    a, b = office.desks
    a.ask(office.vhost.declare_queue, "q")
    for number in range(5):
        a.ask(office.vhost.bind_queue, "q", "amq.direct", b"%d" % number)
    failing = RuntimeError("ours")

    def fail(*_: Any) -> bool:
        raise failing

    monkeypatch.setattr(office.vhost, "_end_some_bindings", fail)
    gone = a.ask(office.vhost.delete_queue, "q")
    office.settle()
    assert gone == [failing] and "q" in office.vhost.queues and not office.vhost.is_held("q")
    assert b.ask(office.vhost.declare_queue, "q", passive=True)[0].name == "q"


def test_the_exclusive_queues_of_a_connection_go_in_slices(office: Office) -> None:
    for number in range(5 * virtual_host.PIECE):
        office.vhost.run(office.vhost.declare_queue(f"q{number}", exclusive=True, connection_id=1))
    count = 0
    while not office.vhost.connection_closed(1):
        count += 1
        assert len(office.vhost.queues) == (5 - count) * virtual_host.PIECE
    assert not office.vhost.queues and not office.vhost.owns_queues(1)


def test_a_binding_that_changes_very_many_routes_is_answered_when_all_are_told(office: Office) -> None:
    """A chain and a crowd of exchanges lead to it; changes that come meanwhile are told whole, too."""
    a, b = office.desks
    vhost, count = office.vhost, 5 * spreading.AT_ONCE
    names = [f"c{number}" for number in range(count)]
    for name in ("x", *names, *(f"s{number}" for number in range(count))):
        a.ask(vhost.declare_exchange, name, "fanout")
    for end, source in itertools.pairwise(["x", *names]):
        a.ask(vhost.bind_exchange, end, source)
    for number in range(count):
        a.ask(vhost.bind_exchange, "x", f"s{number}")
    a.ask(vhost.declare_queue, "q")
    office.settle()
    office.world.forget()
    bound = a.ask(vhost.bind_queue, "q", "x")
    assert office.slices and bound == [] and len(office.world.routes_changed) <= spreading.AT_ONCE
    other = b.ask(vhost.declare_queue, "o")
    assert other[0].name == "o", "who changed no route waits for none"
    office.world.forget()
    again = b.ask(vhost.bind_queue, "o", "x")
    assert again == []
    office.settle()
    assert bound == again == [True]
    assert office.world.routes_changed == {"x", *names, *(f"s{number}" for number in range(count))}, "all of them after the second change"
    office.world.forget()
    gone = a.ask(vhost.delete_exchange, "x")
    office.settle()
    assert gone == [True] and {"x", *names} <= office.world.routes_changed | {"x"}
    assert not vhost.exchanges["s0"].downstream


def test_what_follows_a_change_takes_nothing_from_its_wait(office: Office) -> None:
    """The last binding of an auto-delete exchange goes, which is a change of its own behind that of very many routes."""
    a, _ = office.desks
    vhost, count = office.vhost, 3 * spreading.AT_ONCE
    a.ask(vhost.declare_exchange, "x", "fanout")
    a.ask(vhost.declare_exchange, "y", "fanout", auto_delete=True)
    a.ask(vhost.bind_exchange, "x", "y")
    for number in range(count):
        a.ask(vhost.declare_exchange, f"s{number}", "fanout")
        a.ask(vhost.bind_exchange, "y", f"s{number}")
    office.settle()
    office.world.forget()
    unbound = a.ask(vhost.unbind_exchange, "x", "y")
    assert unbound == [] and len(office.world.routes_changed) < count
    office.settle()
    assert unbound == [True] and "y" not in vhost.exchanges
    assert {f"s{number}" for number in range(count)} <= office.world.routes_changed


class Storm(RuleBasedStateMachine):
    """Two desks ask for anything; the database answers or refuses at any time. At rest, memory and database say the same."""

    def __init__(self) -> None:
        super().__init__()
        self.office = Office()
        self.asked: list[list[Any]] = []
        self.remembered: dict[str, set[str]] = {}
        self.dropped: set[str] = set()
        self.office.vhost.on_routes_changed = lambda exchange: self.dropped.add(exchange.name)
        self.constants = virtual_host.PIECE, changes.FOLLOW_AT_ONCE, spreading.AT_ONCE
        virtual_host.PIECE = changes.FOLLOW_AT_ONCE = spreading.AT_ONCE = 1

    def ask(self, desk: int, verb: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        self.asked.append(self.office.desks[desk].ask(verb, *arguments, **options))

    @rule(desk=st.integers(0, 1), name=st.sampled_from("ab"), auto_delete=st.booleans(), durable=st.booleans())
    def declare(self, desk: int, name: str, auto_delete: bool, durable: bool) -> None:
        self.ask(desk, self.office.vhost.declare_queue, name, durable=durable, auto_delete=auto_delete)

    @rule(desk=st.integers(0, 1), name=st.sampled_from("ab"), if_empty=st.booleans())
    def delete(self, desk: int, name: str, if_empty: bool) -> None:
        self.ask(desk, self.office.vhost.delete_queue, name, if_empty=if_empty)

    @rule(desk=st.integers(0, 1), name=st.sampled_from("xy"), auto_delete=st.booleans(), durable=st.booleans())
    def exchange(self, desk: int, name: str, auto_delete: bool, durable: bool) -> None:
        self.ask(desk, self.office.vhost.declare_exchange, name, "fanout", durable=durable, auto_delete=auto_delete)

    @rule(desk=st.integers(0, 1), name=st.sampled_from("xy"))
    def delete_exchange(self, desk: int, name: str) -> None:
        self.ask(desk, self.office.vhost.delete_exchange, name)

    @rule(
        desk=st.integers(0, 1),
        queue=st.sampled_from("ab"),
        exchange=st.sampled_from("xy"),
        bind=st.booleans(),
        keys=st.sets(st.sampled_from([b"", b"1", b"2"]), min_size=1),
    )
    def bind(self, desk: int, queue: str, exchange: str, bind: bool, keys: set[bytes]) -> None:
        verb = self.office.vhost.bind_queue if bind else self.office.vhost.unbind_queue
        for key in sorted(keys):
            self.ask(desk, verb, queue, exchange, key)

    @rule(desk=st.integers(0, 1), to=st.sampled_from("xy"), source=st.sampled_from("xy"))
    def bind_exchange(self, desk: int, to: str, source: str) -> None:
        self.ask(desk, self.office.vhost.bind_exchange, to, source, b"")

    @rule(name=st.sampled_from("ab"))
    def consumer(self, name: str) -> None:
        queue = self.office.vhost.queues.get(name)
        if queue is not None:
            self.office.vhost.consumer_added(queue)
            self.office.vhost.consumer_removed(queue)

    @rule(refuse=st.booleans())
    def database(self, refuse: bool) -> None:
        if self.office.definitions.waiting:
            self.office.definitions.answer(refuse)

    @rule(which=st.integers(0, 2))
    def slice(self, which: int) -> None:
        if which < len(self.office.slices):
            self.office.slice(which)

    @rule(who=st.integers(0, 2))
    def call(self, who: int) -> None:
        calls = self.office.calls if who == 2 else self.office.desks[who].calls
        if calls:
            calls.pop(0)()

    @invariant()
    def whoever_is_answered_finds_new_routes(self) -> None:
        """What a cache remembered before the last change that was answered is dropped (S3)."""
        office = self.office
        if office.slices or office.definitions.waiting or office.calls or any(desk.calls for desk in office.desks):
            return
        vhost = office.vhost
        for name, known in list(self.remembered.items()):
            exchange = vhost.exchanges.get(name)
            if exchange is None:
                del self.remembered[name]
            elif name not in self.dropped:
                assert known == {queue.name for queue in vhost.route(name, b"")}, name
        self.dropped.clear()
        self.remembered = {name: {queue.name for queue in vhost.route(name, b"")} for name in "xy" if name in vhost.exchanges}

    @invariant()
    def ends_exist(self) -> None:
        vhost = self.office.vhost
        for exchange in vhost.exchanges.values():
            for binding in exchange.bindings.values():
                ends: Any = vhost.queues if binding.destination.destination_kind == "queue" else vhost.exchanges
                assert ends.get(binding.destination.name) is binding.destination
                end: Any = binding.destination
                incoming = (end.bindings if end.destination_kind == "queue" else end.incoming).values()
                assert any(one is binding for one in incoming)

    def teardown(self) -> None:
        self.office.settle()
        virtual_host.PIECE, changes.FOLLOW_AT_ONCE, spreading.AT_ONCE = self.constants
        vhost, definitions = self.office.vhost, self.office.definitions
        assert all(len(answers) == 1 for answers in self.asked)
        assert {queue.queue_id for queue in vhost.queues.values() if queue.durable} == {
            one.queue_id for one in definitions.load_queues("/")
        }
        predeclared = {name for name in vhost.exchanges if name == "" or name.startswith("amq.")}
        durable = {one.name for one in vhost.exchanges.values() if one.durable} - predeclared
        assert durable == {one.name for one in definitions.load_exchanges("/")}
        bound = [binding for exchange in vhost.exchanges.values() for binding in exchange.bindings.values() if binding.durable]
        assert {(one.source.name, one.destination.name, one.routing_key) for one in bound} == {
            (one.source, one.destination, one.routing_key) for one in definitions.load_bindings("/")
        }
        assert not vhost._changes._held and not vhost._changes._waiting


Storm.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestStorm = Storm.TestCase
