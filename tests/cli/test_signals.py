"""Signals of `flintmq serve`: whatever instruction of the main thread's sleep a signal comes at, it is noted and ends the sleep."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from flintmq.cli.signals import Signals

# seconds: no sleep of these tests may last so long
LONG_S = 60.0


@pytest.fixture
def signals() -> Iterator[Signals]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    signals = Signals()
    signals.take()
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupted(step: int, number: signal.Signals, work: Callable[[], None]) -> bool:
    """Runs `work`, and the signal comes before its instruction `step` (from 1). False: it has fewer."""
    done = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal done
        frame.f_trace_opcodes = True
        if event == "opcode":
            done += 1
            if done == step:
                signal.raise_signal(number)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return done >= step


@pytest.mark.timeout(30)
def test_a_signal_at_any_instruction_of_the_sleep_is_noted(signals: Signals) -> None:
    """`Event.wait` and `Event.set` in its place hang here."""
    step = 1
    while interrupted(step, signal.SIGTERM, lambda: signals.wait(0.0)):
        assert signals.stop == signal.SIGTERM
        signals.stop = 0
        step += 1
    assert step > 10, "the sleep was not traced"


def test_a_signal_before_the_sleep_ends_it_and_once_only(signals: Signals) -> None:
    signal.raise_signal(signal.SIGHUP)
    begun = time.monotonic()
    signals.wait(LONG_S)
    assert signals.hang_up and not signals.stop
    signals.hang_up = False
    signals.wait(0.0)
    assert not signals.hang_up and time.monotonic() - begun < LONG_S


def test_many_signals_are_one_end_of_the_sleep(signals: Signals) -> None:
    for _ in range(70_000):
        signal.raise_signal(signal.SIGHUP)
    begun = time.monotonic()
    signals.wait(LONG_S)
    assert signals.hang_up and time.monotonic() - begun < LONG_S
    assert not signals._poll.poll(0), "the next sleep is a whole one"


def test_the_second_signal_ends_the_process_whatever_it_does() -> None:
    code = (
        "import signal, threading\n"
        "from flintmq.cli.signals import Signals\n"
        "signals = Signals()\n"
        "signals.take()\n"
        "signal.raise_signal(signal.SIGINT)\n"
        "assert signals.stop == signal.SIGINT\n"
        "held = threading.Lock()\n"
        "held.acquire()\n"
        "signal.raise_signal(signal.SIGTERM)\n"
        "held.acquire()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG_S, check=False)
    assert done.returncode == 0, done.stderr
