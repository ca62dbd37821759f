"""A few scenarios of tools/differential: the probe works, and these few are answered as by RabbitMQ. All of them: `make interop`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flintmq.testing.broker import Broker
from tests.support import servers
from tools.differential.probe import compare, justified, report, transcript
from tools.differential.scenarios import all_scenarios

SMOKE = ("argument x-max-length = *", "topic *", "property *", "CC = string", "queue again: argument other", "queue.declare passive *")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with Broker() as broker:
        yield broker.port


def test_scenarios_run_and_repeat(port: int) -> None:
    """Each has its own names: run twice on one broker it says the same, whatever else ran before."""
    found = all_scenarios()
    assert len(found) > 900
    for name in ("all properties", "direct reply-to", "transactions", "topic '#.b'", "frame: bad end", "redelivered, in order"):
        first, second = transcript(port, found[name], "run1."), transcript(port, found[name], "run2.")
        assert [line.replace("run1.", "?.") for line in first] == [line.replace("run2.", "?.") for line in second]
        assert first and not any("script failed" in line for line in first)


def test_every_difference_has_a_reason_and_a_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    names, patterns = all_scenarios(), justified()
    results = ((name, ["ours"], ["theirs"]) for name in names)
    count, meant, different, met = report(results, patterns)
    assert (count, meant + different) == (len(names), len(names)) and met == set(patterns)
    assert "=== transactions\n" in capsys.readouterr().out


def test_a_few_are_answered_as_by_rabbitmq(port: int) -> None:
    import fnmatch

    chosen = {name: run for name, run in all_scenarios().items() if any(fnmatch.fnmatchcase(name, one) for one in SMOKE)}
    if reason := servers.rabbitmq_missing():  # asked now, not when tests are collected: it may install it
        pytest.skip(reason)
    with servers.rabbitmq() as peer:
        for name, ours, theirs in compare(port, peer.port, chosen):
            assert ours == theirs, name
