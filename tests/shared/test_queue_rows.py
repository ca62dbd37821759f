"""Rows of definitions of shared queues: one life per name; a deletion leaves nothing and fences the owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from flintmq.engines.engine import Commit
from flintmq.shared.layout import mark_key, owner_key, rows_of, segment_key
from flintmq.shared.queue_rows import NotThere, QueueRow, declare, names_of, queue_key, queues_of, read, remove
from tests.shared.owners_of_one_queue import Store

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def test_the_first_declaration_decides_and_a_later_one_learns_of_it() -> None:
    async def run() -> None:
        engine = Store(1).engine()
        row, made = await declare(engine, "/", "q", {"x-max-length": 5, "x-queue-type": "shared"})
        again, second = await declare(engine, "/", "q", {"x-max-length": 6})
        assert (made, second, again) == (True, False, row)
        assert await read(engine, "/", "q") == row and row.arguments["x-max-length"] == 5
        assert await read(engine, "/", "p") is None

    asyncio.run(run())


def test_a_deletion_takes_all_rows_of_the_queue_and_of_no_other_and_happens_once() -> None:
    async def run() -> None:
        engine = Store(1).engine()
        row, _ = await declare(engine, "/", "q", {})
        other, _ = await declare(engine, "/", "p", {})
        for one in (row.id, other.id):
            await engine.commit(Commit((), {owner_key(one): b"o", mark_key(one): b"m", segment_key(one, 1): b"s"}))
        await remove(engine, "/", "q", row)
        assert await read(engine, "/", "q") is None
        assert await engine.get([owner_key(row.id)]) == [None] and not await engine.scan(*rows_of(row.id), 10, 1000)
        assert await engine.get([owner_key(other.id)]) == [b"o"] and len(await engine.scan(*rows_of(other.id), 10, 1000)) == 2
        with pytest.raises(NotThere):
            await remove(engine, "/", "q", row)
        after, made = await declare(engine, "/", "q", {})
        assert made and after.id != row.id
        with pytest.raises(NotThere):
            await remove(engine, "/", "q", row)  # a late one of the life before

    asyncio.run(run())


@pytest.mark.parametrize(("vhost", "name"), [("/", "q"), ("a/b", "\0x"), ("ä", "\udc80"), ("", "x" * 255)])
def test_a_key_says_its_names_and_stands_among_those_of_its_virtual_host_alone(vhost: str, name: str) -> None:
    key = queue_key(vhost, name)
    begin, end = queues_of(vhost)
    assert names_of(key) == (vhost, name) and begin <= key < end
    begin, end = queues_of(vhost + "x")
    assert not begin <= key < end


@pytest.mark.parametrize("value", [b"", b"[]", b'{"id":1}', b'{"id":"a","arguments":"!","user":"u"}'])
def test_a_row_that_cannot_be_read_is_said_to_be_so(value: bytes) -> None:
    with pytest.raises(ValueError, match="can't be read"):
        QueueRow.unpack(value)
