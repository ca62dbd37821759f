"""Every option is checked, an unknown one is an error with a suggestion, and no secret shows."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from pyspark_flintmq.amqp.options import MAX_MESSAGES_LIMIT, Options
from pyspark_flintmq.errors import ConnectionLost, SourceError


def code(**raw: str) -> str:
    with pytest.raises(SourceError) as error:
        Options.parse({"queue": "q", **raw})
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"FLINTMQ_{error.value.code}: ")
    return error.value.code


def test_names_are_case_insensitive_and_values_typed() -> None:
    options = Options.parse({"QUEUE": "q", "port": "5673", "maxmessagespertrigger": "7", "EXCLUSIVE": "False"})
    assert (options.queue, options.port, options.maxMessagesPerTrigger, options.exclusive) == ("q", 5673, 7, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "0"),
        ("port", "65536"),
        ("port", "five"),
        ("maxMessagesPerTrigger", "0"),
        ("maxMessagesPerTrigger", str(MAX_MESSAGES_LIMIT + 1)),
        ("maxBytesPerTrigger", "0"),
        ("minPartitions", "0"),
        ("timeout", "0"),
        ("heartbeat", "-1"),
        ("exclusive", "yes"),
        ("onLostCheckpoint", "ignore"),
        ("queue", "x" * 256),
    ],
)
def test_a_value_out_of_range_is_refused(name: str, value: str) -> None:
    assert code(**{name: value}) == "OPTION_VALUE"


def test_the_largest_batch_fits_the_prefetch() -> None:
    assert Options.parse({"queue": "q", "maxMessagesPerTrigger": str(MAX_MESSAGES_LIMIT)}).prefetch == MAX_MESSAGES_LIMIT
    assert Options.parse({"queue": "q", "maxMessagesPerTrigger": "10"}).prefetch == 20


@pytest.mark.parametrize(("typed", "meant"), [("quee", "queue"), ("maxMessagePerTrigger", "maxMessagesPerTrigger"), ("spool", "spoolDir")])
def test_a_mistyped_option_gets_a_suggestion(typed: str, meant: str) -> None:
    with pytest.raises(SourceError, match=f"OPTION_UNKNOWN.*did you mean '{meant}'"):
        Options.parse({"queue": "q", typed: "1"})


def test_a_later_option_says_so() -> None:
    with pytest.raises(SourceError, match=r"OPTION_UNKNOWN.*data plane"):
        Options.parse({"queues": "a,b"})


def test_the_queue_is_needed() -> None:
    with pytest.raises(SourceError, match="OPTION_MISSING"):
        Options.parse({})


def test_the_password_does_not_show() -> None:
    options = Options.parse({"queue": "q", "password": "s3cret"})
    assert "s3cret" not in repr(options) + options.where


def test_the_spool_is_absolute_and_of_one_queue_only() -> None:
    a, b = Options.parse({"queue": "a/b"}), Options.parse({"queue": "a_b"})
    assert a.spool_path().is_absolute()
    assert a.spool_path() != b.spool_path()
    assert a.spool_path().parent == b.spool_path().parent
    assert Options.parse({"queue": "q", "spoolDir": "here"}).spool_path() == Path("here").absolute()


@pytest.mark.parametrize("error", [SourceError("CODE", "text"), ConnectionLost("text", "UNREACHABLE")])
def test_errors_survive_the_way_between_processes(error: SourceError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), back.code, back.text, str(back)) == (type(error), error.code, error.text, str(error))
