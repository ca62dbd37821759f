"""The table of calls: both ends know the same calls, and the client has a method for each with arguments that the table has."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from flintmq.dataplane.calls import CALLS, ENVELOPE, Answers
from flintmq.flight import streams
from flintmq.flight.client import DataPlane
from tests.dataplane.rig import Rig

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


@pytest.mark.parametrize("name", OPEN)
def test_the_client_has_a_method_for_each_call(name: str) -> None:
    method = getattr(DataPlane, name.replace(".", "_"))
    source = inspect.getsource(method)
    assert f'self.action("{name}"' in source
    sent = set(re.findall(r"(\w+)=", re.search(r"self\.action\((.*)", source, re.DOTALL)[1]))  # type: ignore[index]
    assert sent - {"_wait_s"} <= CALLS[name].arguments, name
