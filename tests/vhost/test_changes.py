"""Verbs whose change the database makes later: nobody waits under the lock, held names are consistent, and what is saved is carried out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flintmq.errors import PeerError, StoreError
from flintmq.store.definitions import MemoryDefinitions
from flintmq.store.sql.changes import Change
from flintmq.vhost import changes
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
        """As a connection asks: the verb is attempted, and performed when it can't be over at once. The list gets the result, or the
        exception, once."""
        try:
            return [self.world.vhost.attempt(partial(verb, *arguments, **options))]
        except changes.Later:
            return self.perform(verb, *arguments, **options)
        except PeerError as error:
            return [error]

    def perform(self, verb: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
        answers: list[Any] = []

        def finished(result: Any, error: Exception | None) -> None:
            answers.append(result if error is None else error)

        self.world.vhost.perform(partial(verb, *arguments, **options), self.calls.append, finished, lambda: self.alive)
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

    def settle(self, refuse: bool = False) -> None:
        """Until nothing is under way."""
        while self.definitions.waiting or self.calls or any(desk.calls for desk in self.desks):
            if self.definitions.waiting:
                self.definitions.answer(refuse)
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


def test_an_attempt_that_would_have_to_save_changes_nothing(office: Office) -> None:
    a, _ = office.desks
    vhost = office.vhost
    with pytest.raises(changes.Later):
        vhost.attempt(partial(vhost.declare_queue, "q", durable=True))
    assert not vhost.queues and not office.definitions.waiting
    a.ask(vhost.declare_queue, "q", durable=True)
    office.settle()
    core = vhost.queues["q"].core
    with pytest.raises(changes.Later):
        vhost.attempt(partial(vhost.delete_queue, "q", if_empty=True))
    assert "q" in vhost.queues and not core.held and not office.definitions.waiting  # arrivals, which it held for its look, come again
    a.perform(vhost.delete_queue, "q")
    with pytest.raises(changes.Held):
        vhost.attempt(partial(vhost.declare_queue, "q", passive=True))
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
    office.vhost.declare_queue("q", exclusive=True, connection_id=1)
    a.ask(office.vhost.bind_queue, "q", "x", b"")
    assert office.vhost.connection_closed(1) == 1  # at once: it is not durable
    assert not office.vhost.queues
    office.settle()
    assert not {"x", "y", "z"} & office.vhost.exchanges.keys()
    assert not office.definitions.load_exchanges("/")


class Storm(RuleBasedStateMachine):
    """Two desks ask for anything; the database answers or refuses at any time. At rest, memory and database say the same."""

    def __init__(self) -> None:
        super().__init__()
        self.office = Office()
        self.asked: list[list[Any]] = []

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

    @rule(desk=st.integers(0, 1), queue=st.sampled_from("ab"), exchange=st.sampled_from("xy"), bind=st.booleans())
    def bind(self, desk: int, queue: str, exchange: str, bind: bool) -> None:
        verb = self.office.vhost.bind_queue if bind else self.office.vhost.unbind_queue
        self.ask(desk, verb, queue, exchange, b"")

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

    @rule(who=st.integers(0, 2))
    def call(self, who: int) -> None:
        calls = self.office.calls if who == 2 else self.office.desks[who].calls
        if calls:
            calls.pop(0)()

    @invariant()
    def ends_exist(self) -> None:
        vhost = self.office.vhost
        for exchange in vhost.exchanges.values():
            for binding in exchange.bindings.values():
                ends: Any = vhost.queues if binding.destination.destination_kind == "queue" else vhost.exchanges
                assert ends.get(binding.destination.name) is binding.destination

    def teardown(self) -> None:
        self.office.settle()
        vhost, definitions = self.office.vhost, self.office.definitions
        assert all(len(answers) == 1 for answers in self.asked)
        assert {queue.queue_id for queue in vhost.queues.values() if queue.durable} == {
            one.queue_id for one in definitions.load_queues("/")
        }
        predeclared = {name for name in vhost.exchanges if name == "" or name.startswith("amq.")}
        durable = {one.name for one in vhost.exchanges.values() if one.durable} - predeclared
        assert durable == {one.name for one in definitions.load_exchanges("/")}
        bound = [binding for exchange in vhost.exchanges.values() for binding in exchange.bindings.values() if binding.durable]
        assert {(one.source.name, one.destination.name) for one in bound} == {
            (one.source, one.destination) for one in definitions.load_bindings("/")
        }
        assert not vhost._changes._held and not vhost._changes._waiting


Storm.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestStorm = Storm.TestCase
