"""The table of calls: both ends know the same calls, and the client has a method for each with arguments that the table has."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from flintmq.dataplane.calls import CALLS, ENVELOPE, Answers
from flintmq.flight import streams
from flintmq.flight.calls import Calls
from flintmq.flight.client import DataPlane
from tests.dataplane.rig import Rig

# arguments that are lists
LISTS = {"queues", "stage_ids", "logs"}
OPEN = sorted(name for name, call in CALLS.items() if call.answers is not Answers.INSIDE)


def test_the_broker_answers_what_the_table_says(tmp_path: Path) -> None:
    apart = {"auth", "token", "rows", "block"}  # without a caller, or with a payload
    with Rig(tmp_path / "store") as rig:
        answered = rig.service._calls.keys()
    assert answered | apart == {name for name, call in CALLS.items() if call.answers is not Answers.SERVICE}
    for name, call in CALLS.items():
        assert not call.arguments & ENVELOPE, name
        assert call.administrators == name.startswith("log."), name


def test_the_service_answers_what_the_table_says() -> None:
    source = inspect.getsource(streams.Streams.action)
    told = set(re.findall(r'name == "([a-z.]+)"', source))
    assert told | {"stream.release"} == {name for name, call in CALLS.items() if call.answers is Answers.SERVICE}


def test_the_client_has_the_calls_of_the_table() -> None:
    methods = {name for name, member in vars(Calls).items() if inspect.isfunction(member) and not name.startswith("_")}
    assert methods == {name.replace(".", "_") for name in OPEN}


@pytest.mark.parametrize("name", OPEN)
def test_a_call_of_the_client_has_the_arguments_of_the_table(name: str) -> None:
    """Each argument is in the table, and each one of the table is sent: by its name, in the call of that name."""
    sent: list[tuple[str, dict[str, Any], float]] = []
    call = getattr(Calls(lambda *asked: sent.append(asked)), name.replace(".", "_"))
    parameters = inspect.signature(call).parameters
    assert parameters.keys() == CALLS[name].arguments
    assert {parameter.kind for parameter in parameters.values()} <= {inspect.Parameter.KEYWORD_ONLY}
    values = {argument: [number] if argument in LISTS else number for number, argument in enumerate(sorted(parameters), 1)}
    call(**values)
    assert sent == [(name, values, values["max_wait_ms"] / 1000 if name == "sub.acquire" else 0.0)]


@pytest.mark.parametrize("name", OPEN)
def test_an_argument_that_is_not_given_is_not_sent(name: str) -> None:
    sent: list[dict[str, Any]] = []
    call = getattr(Calls(lambda name, arguments, wait_s: sent.append(arguments)), name.replace(".", "_"))
    required = {
        parameter.name: [] for parameter in inspect.signature(call).parameters.values() if parameter.default is inspect.Parameter.empty
    }
    call(**required)
    assert sent == [required]


@pytest.mark.parametrize("name", OPEN)
def test_the_client_has_a_method_with_a_typed_answer_for_each_call(name: str) -> None:
    method = name.replace(".", "_")
    source = inspect.getsource(getattr(DataPlane, method))
    assert f"self.calls.{method}(" in source
    assert "**options" not in source, "a misspelt argument is an error of the type checker"


def test_the_table_has_the_arguments_that_the_broker_takes_of_stages() -> None:
    assert CALLS["stage.abort"].arguments == {"scope", "batch", "epoch", "stage_id", "shared"}
