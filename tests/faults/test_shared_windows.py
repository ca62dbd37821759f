"""Windows of operations beside the campaign: what a history may not have is told in one line, and what it may have is not."""

from __future__ import annotations

from typing import Any

import pytest

from tools.faults.shared_windows import Recorder, get, judged
from tools.linearizability.checker import UNKNOWN, Operation


def history(*kinds: tuple[str, tuple[Any, ...], Any]) -> list[Operation]:
    """One operation after the other."""
    return [Operation(0, kind, arguments, outcome, 2 * number, 2 * number + 1) for number, (kind, arguments, outcome) in enumerate(kinds)]


def given(message: int, flagged: bool = False) -> tuple[str, tuple[Any, ...], Any]:
    return "take", (), ((message, flagged),)


SENT = [("enqueue", (message,), None) for message in (1, 2)]
EMPTIED = ("emptied", (), None)


def test_a_right_window_has_no_violation() -> None:
    assert judged("w", history(*SENT, given(1), ("take", (), ()), given(1, True), given(2), EMPTIED)) == (True, "")


def test_losses_doubles_and_swaps_are_told_in_one_line() -> None:
    for wrong in ([given(1), EMPTIED], [given(1), given(1), given(2)], [given(2), given(1)], [given(3)]):
        is_decided, violation = judged("w", history(*SENT, *wrong))
        assert is_decided and violation.startswith("w: not linearizable") and "\n" not in violation


class _Channel:
    """Answers gets."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def basic_get(self, queue: str, auto_ack: bool) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_get_whose_connection_is_lost_has_no_answer() -> None:
    recorder = Recorder()
    channel = _Channel((None, None, None), ConnectionError())
    assert not get(channel, "q", recorder, 0)
    with pytest.raises(ConnectionError):
        get(channel, "q", recorder, 0)
    assert [one.outcome for one in recorder.operations] == [(), UNKNOWN]
