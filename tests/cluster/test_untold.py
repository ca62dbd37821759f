"""Changes that the engine has yet to hear of: the last state is told, in order, and each wait ends once."""

from __future__ import annotations

from flintmq.cluster.untold import Untold
from flintmq.errors import PeerError, ReplyCode
from flintmq.ports import BindingRecord, ExchangeRecord, ParameterRecord, VhostRecord
from flintmq.shared.definition_rows import Record, key_of
from flintmq.shared.queue_rows import queue_key

VHOST, EXCHANGE = VhostRecord("v"), ExchangeRecord("v", "x", "direct")
BINDING = BindingRecord("v", "x", "queue", "q", b"")
Answers = list[Exception | None]


def note(untold: Untold, record: Record, gone: bool = False) -> bytes:
    key = key_of(record)
    untold.note(key, record, gone)
    return key


def test_the_last_state_of_each_is_told_the_oldest_change_first() -> None:
    untold = Untold()
    key = note(untold, VHOST)
    note(untold, EXCHANGE)
    note(untold, VhostRecord("v", "text"))
    states = untold.some(10, ends_alone=False)
    assert [state.record for state in states] == [VhostRecord("v", "text"), EXCHANGE] and states[0].key == key
    assert [len(untold.some(1, ends_alone=False)), len(untold.some(9, ends_alone=True))] == [1, 0]


def test_a_wait_ends_with_the_state_it_is_for_or_a_later_one_and_once() -> None:
    untold, answers = Untold(), Answers()
    key = note(untold, VHOST)
    first = untold.some(1, ends_alone=False)[0]
    assert not untold.wait([key], answers.append)
    note(untold, VhostRecord("v", "text"))
    assert not untold.wait([key, key], answers.append)
    untold.over(first.change, first.version)
    assert answers == [None] and key in untold
    second = untold.some(1, ends_alone=False)[0]
    untold.over(second.change, second.version)
    assert answers == [None, None] and len(untold) == 0
    assert untold.wait([key], answers.append) and answers == [None, None]


def test_one_that_was_gone_in_between_is_told_as_another_one() -> None:
    untold = Untold()
    note(untold, EXCHANGE)
    state = untold.some(1, ends_alone=False)[0]
    assert not state.anew
    note(untold, EXCHANGE, gone=True)
    note(untold, EXCHANGE)
    untold.over(state.change, state.version)
    state = untold.some(1, ends_alone=False)[0]
    assert state.anew and not state.gone
    note(untold, EXCHANGE)
    untold.over(state.change, state.version)
    assert not untold.some(1, ends_alone=False)[0].anew


def test_the_end_of_a_thing_takes_along_what_hangs_on_it_and_those_who_wait_wait_for_the_end() -> None:
    untold, answers = Untold(), Answers()
    key = note(untold, BINDING)
    policy = note(untold, ParameterRecord("policy", "w", "p", {}))
    assert not untold.wait([key, policy], answers.append)
    note(untold, EXCHANGE, gone=True)
    assert key not in untold and policy in untold
    note(untold, VHOST, gone=True)
    for state in untold.some(10, ends_alone=False):
        assert not answers
        untold.over(state.change, state.version)
    assert answers == [None]


def test_bindings_of_a_queue_whose_end_others_tell_are_forgotten_and_answered() -> None:
    untold, answers = Untold(), Answers()
    key = note(untold, BINDING)
    untold.wait([key], answers.append)
    untold.forget_under(queue_key("v", "q"))
    assert answers == [None] and len(untold) == 0


def test_an_error_ends_the_waits_and_other_changes_stay() -> None:
    untold, answers = Untold(), Answers()
    keys = [note(untold, VHOST), note(untold, EXCHANGE)]
    untold.wait(keys, answers.append)
    state = untold.some(1, ends_alone=False)[0]
    error = PeerError(ReplyCode.PRECONDITION_FAILED, "no")
    untold.over(state.change, state.version, error)
    assert answers == [error] and list(map(untold.__contains__, keys)) == [False, True]


def test_those_who_wait_too_long_and_those_who_come_after_the_end_are_told_so_once() -> None:
    untold, answers = Untold(), Answers()
    key = note(untold, VHOST)
    untold.wait([key], answers.append)
    assert untold.refuse_late(1000.0) and not answers
    assert not untold.refuse_late(0.0)
    (error,) = answers
    assert isinstance(error, PeerError) and error.code == ReplyCode.INTERNAL_ERROR
    state = untold.some(1, ends_alone=False)[0]
    assert not state.change.waits
    untold.end()
    untold.wait([key], answers.append)
    assert len(answers) == 2 and answers[1] is not None
    untold.over(state.change, state.version)
    assert len(answers) == 2
