"""Names of hosts to addresses, without one user's slow names making another user's links wait.

in: a user, a host, a port. out: what getaddrinfo says.

L1  A user has a few lookups under way at once at most, and so has the process; who waits gets a thread in turn, one user after the other.
L2  A thread that asks a slow server can't be stopped: it keeps its user's place until it has its answer, whoever still waits for it.
L3  An address is no name: it waits for nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Address = tuple[Any, ...]
LookUp = Callable[..., list[Any]]


@dataclass(slots=True, eq=False)
class _Question:
    user: str
    host: str
    port: int
    answer: asyncio.Future[list[Address]]


class Names:
    """For one event loop. Args: at_once: lookups under way in all; of_a_user: of one user; look_up: getaddrinfo (tests)."""

    def __init__(self, at_once: int, of_a_user: int, look_up: LookUp = socket.getaddrinfo) -> None:
        self._at_once = at_once
        self._of_a_user = of_a_user
        self._look_up = look_up
        self._running: dict[str, int] = {}
        # in the order of their turns
        self._waiting: dict[str, deque[_Question]] = {}

    async def addresses(self, user: str, host: str, port: int) -> list[Address]:
        """Rows of getaddrinfo for TCP. Waits as long as it takes: the caller has a time limit. Raises: OSError, UnicodeError."""
        if _is_address(host):
            return self._look_up(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        question = _Question(user, host, port, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(user, deque()).append(question)
        self._serve()
        try:
            return await question.answer
        finally:
            line = self._waiting.get(user)
            if line is not None and question in line:  # the caller gave up
                line.remove(question)
                if not line:
                    del self._waiting[user]

    def _serve(self) -> None:
        """L1."""
        while sum(self._running.values()) < self._at_once:
            user = next((one for one in self._waiting if self._running.get(one, 0) < self._of_a_user), None)
            if user is None:
                return
            line = self._waiting.pop(user)
            question = line.popleft()
            if line:
                self._waiting[user] = line  # behind the others
            self._running[user] = self._running.get(user, 0) + 1
            thread = threading.Thread(target=self._ask, args=(question, asyncio.get_running_loop()), name="flintmq-name", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the process may have no more threads
                self._end(question, OSError(str(error)))

    def _ask(self, question: _Question, loop: asyncio.AbstractEventLoop) -> None:
        answer: list[Address] | Exception
        try:
            answer = self._look_up(question.host, question.port, type=socket.SOCK_STREAM)
        except Exception as error:
            answer = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(self._answered, question, answer)

    def _answered(self, question: _Question, answer: list[Address] | Exception) -> None:
        self._end(question, answer)
        self._serve()

    def _end(self, question: _Question, answer: list[Address] | Exception) -> None:
        count = self._running.pop(question.user) - 1
        if count:
            self._running[question.user] = count
        if not question.answer.done():
            if isinstance(answer, Exception):
                question.answer.set_exception(answer)
            else:
                question.answer.set_result(answer)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
