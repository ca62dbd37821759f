"""The lint of waits under locks finds what it is for, and is quiet about what is right."""

from __future__ import annotations

import textwrap

import pytest

from tools.waits import findings

WRONG = {
    "itself": """
        def f(self):
            with self._lock:
                self._done.wait(5)
        """,
    "a future": """
        async def f(self, future):
            with scope.lock, other:
                return future.result()
        """,
    "two calls away": """
        class Service:
            def pull(self):
                with self._lock:
                    self._pull_group()
            def _pull_group(self):
                return self._seat()
            def _seat(self):
                self.noted.wait(5)
        """,
    "in a loop's condition": """
        def f(lock, done):
            with lock:
                while not done.wait(1):
                    pass
        """,
}
RIGHT = {
    "before": """
        def f(self):
            self._done.wait(5)
            with self._lock:
                pass
        """,
    "the lock is a condition": """
        def f(self):
            with self.lock:
                self.lock.wait(5)
        """,
    "later": """
        def f(self):
            with self._lock:
                self.callbacks.append(lambda: self._done.wait(5))
                def g():
                    self._done.wait(5)
                self.callbacks.append(g)
        """,
    "no lock": """
        def f(self):
            with self._changed:
                self._done.wait(5)
        """,
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wait_under_a_lock_is_found(name: str) -> None:
    (line,) = findings("m.py", textwrap.dedent(WRONG[name]))
    assert line.startswith("m.py:") and "wait" in line


@pytest.mark.parametrize("name", RIGHT)
def test_other_waits_are_not(name: str) -> None:
    assert list(findings("m.py", textwrap.dedent(RIGHT[name]))) == []
