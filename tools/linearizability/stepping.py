"""Threads that run one at a time, in an order that a seed decides, and an engine whose every call is a place where another one may go on.

in: functions, a seed. out: the same interleaving for the same seed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

# transactions of one engine's window: some 1,500 are usual, and a mutant may go round for ever
BEGUN_MAX = 20_000


class Baton:
    """Whoever has it runs. `pass_on` is called by the threads of `run`; by others it does nothing."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._waits: dict[int, threading.Semaphore] = {}  # number of a thread that is not done -> what it waits for
        self._mine = threading.local()
        self.passed = 0

    def run(self, functions: Sequence[Callable[[], None]]) -> None:
        """Runs them to their ends. Raises: what the first of them raised."""
        errors: list[BaseException] = []

        def body(number: int, function: Callable[[], None]) -> None:
            self._mine.number = number
            self._waits[number].acquire()
            try:
                function()
            except BaseException as error:
                errors.append(error)
            finally:
                del self._waits[number]
                self._give()

        self._waits = {number: threading.Semaphore(0) for number in range(len(functions))}
        threads = [threading.Thread(target=body, args=pair, daemon=True) for pair in enumerate(functions)]
        for thread in threads:
            thread.start()
        self._give()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def _give(self) -> None:
        if self._waits:
            self._waits[self._random.choice(sorted(self._waits))].release()

    def pass_on(self) -> None:
        number = getattr(self._mine, "number", None)
        if number is None or number not in self._waits:
            return
        after = self._random.choice(sorted(self._waits))
        if after != number:
            self.passed += 1
            self._waits[after].release()
            self._waits[number].acquire()


class SteppedEngine:
    """An engine of which each read and each commit is a step. `before_begin`: may raise, as an engine that is away."""

    def __init__(self, engine: Any, baton: Baton, before_begin: Callable[[], None] = lambda: None) -> None:
        self._engine = engine
        self._baton = baton
        self._before_begin = before_begin
        self._begun = 0
        self.limits = engine.limits
        self.name = engine.name

    def begin(self) -> SteppedTransaction:
        self._begun += 1
        if self._begun > BEGUN_MAX:
            raise RuntimeError("the window does not end")
        self._baton.pass_on()
        self._before_begin()
        return SteppedTransaction(self._engine.begin(), self._baton)

    def close(self) -> None:
        self._engine.close()


class SteppedTransaction:
    def __init__(self, transaction: Any, baton: Baton) -> None:
        self._transaction = transaction
        self._baton = baton

    def get(self, *arguments: Any, **named: Any) -> Any:
        self._baton.pass_on()
        return self._transaction.get(*arguments, **named)

    def range(self, *arguments: Any, **named: Any) -> Any:
        self._baton.pass_on()
        return self._transaction.range(*arguments, **named)

    def commit(self) -> Any:
        self._baton.pass_on()
        try:
            return self._transaction.commit()
        finally:
            self._baton.pass_on()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)
