"""Lookups of hosts' names: one user's slow names delay that user's links alone."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from flintmq.shovel.names import Names


class Server:
    """Names answer when they are told to. `asked` has the lookups that began, in their order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._answers: dict[str, threading.Event] = {}
        self._changed = threading.Condition()

    def look_up(self, host: str, port: int, **options: Any) -> list[Any]:
        with self._changed:
            self.asked.append(host)
            event = self._answers.setdefault(host, threading.Event())
            self._changed.notify_all()
        assert event.wait(60)
        if host.startswith("bad"):
            raise socket.gaierror(-2, "Name or service not known")
        return [(host, port)]

    def answer(self, host: str) -> None:
        with self._changed:
            self._answers.setdefault(host, threading.Event()).set()

    async def began(self, *hosts: str) -> None:
        """Waits until these lookups, and no others, began."""

        def wait() -> bool:
            with self._changed:
                return self._changed.wait_for(lambda: len(self.asked) >= len(hosts), 60)

        assert await asyncio.to_thread(wait)
        assert sorted(self.asked) == sorted(hosts)


def run(scene: Callable[[Server], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(Server()), 60))


def test_a_users_slow_names_leave_others_their_turns() -> None:
    async def scene(server: Server) -> None:
        names = Names(8, 2, server.look_up)
        slow = [asyncio.ensure_future(names.addresses("eve", f"slow{number}", 1)) for number in range(30)]
        await server.began("slow0", "slow1")
        server.answer("fast")
        assert await names.addresses("ann", "fast", 5672) == [("fast", 5672)]
        assert sorted(server.asked) == ["fast", "slow0", "slow1"]
        for number in range(30):
            server.answer(f"slow{number}")
        assert await asyncio.gather(*slow) == [[(f"slow{number}", 1)] for number in range(30)]

    run(scene)


def test_turns_go_round_the_users() -> None:
    """With one thread in all, a user with many names waits for a name of each other user."""

    async def scene(server: Server) -> None:
        names = Names(1, 2, server.look_up)
        tasks = [asyncio.ensure_future(names.addresses("eve", f"eve{number}", 1)) for number in range(3)]
        tasks += [asyncio.ensure_future(names.addresses(user, user, 1)) for user in ("ann", "bob")]
        await server.began("eve0")
        for host in ("eve0", "eve1", "eve2", "ann", "bob"):
            server.answer(host)
        await asyncio.gather(*tasks)
        assert server.asked == ["eve0", "eve1", "ann", "bob", "eve2"]

    run(scene)


def test_who_gave_up_leaves_the_line_and_a_lookup_keeps_its_place() -> None:
    async def scene(server: Server) -> None:
        names = Names(8, 1, server.look_up)
        first = asyncio.ensure_future(names.addresses("eve", "first", 1))
        second = asyncio.ensure_future(names.addresses("eve", "second", 1))
        await server.began("first")
        for task in (first, second):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        third = asyncio.ensure_future(names.addresses("eve", "third", 1))
        await asyncio.sleep(0)
        assert server.asked == ["first"]  # it has the thread still
        server.answer("third")
        server.answer("first")
        assert await third == [("third", 1)]
        assert server.asked == ["first", "third"]

    run(scene)


def test_a_name_that_is_none_frees_its_place() -> None:
    async def scene(server: Server) -> None:
        names = Names(1, 1, server.look_up)
        server.answer("bad")
        server.answer("good")
        for _ in range(3):
            with pytest.raises(socket.gaierror):
                await names.addresses("ann", "bad", 1)
        assert await names.addresses("ann", "good", 1) == [("good", 1)]

    run(scene)


def test_an_address_waits_for_nobody() -> None:
    async def scene(server: Server) -> None:
        names = Names(1, 1)
        names._running["eve"] = 1
        assert [row[4] for row in await names.addresses("eve", "127.0.0.1", 5672)] == [("127.0.0.1", 5672)]
        assert (await names.addresses("eve", "::1", 5672))[0][4][:2] == ("::1", 5672)

    run(scene)


def test_no_thread_is_a_name_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scene(server: Server) -> None:
        names = Names(1, 1, server.look_up)
        with monkeypatch.context() as context:
            context.setattr(threading.Thread, "start", refuse)
            with pytest.raises(OSError, match="new thread"):
                await names.addresses("ann", "name", 1)
        server.answer("name")
        assert await names.addresses("ann", "name", 1) == [("name", 1)]

    run(scene)
