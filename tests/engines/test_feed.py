"""One watch's events."""

from __future__ import annotations

import asyncio

from flintmq.engines.feed import Feed, Feeds


def test_keys_of_the_range_wait_together_and_none_takes_their_place() -> None:
    async def story() -> None:
        feed = Feed(b"b", b"d", 3)
        feed.tell([b"a", b"b", b"d"])
        feed.tell([b"c", b"b"])
        assert await feed.next() == {b"b", b"c"}
        feed.tell([b"b"])
        feed.lose()
        feed.tell([b"c"])
        assert await feed.next() is None
        feed.tell([b"c"])
        assert await feed.next() == {b"c"}

    asyncio.run(asyncio.wait_for(story(), 10))


def test_a_reader_that_is_late_is_told_none_instead_of_more_keys_than_the_limit() -> None:
    async def story() -> None:
        feed = Feed(b"", b"\xff", 3)
        feed.tell([b"%d" % number for number in range(3)])
        assert len(await feed.next() or ()) == 3
        feed.tell([b"%d" % number for number in range(4)])
        assert await feed.next() is None

    asyncio.run(asyncio.wait_for(story(), 10))


def test_a_closed_watch_is_fed_no_more() -> None:
    async def story() -> None:
        feeds = Feeds(3)
        events = feeds.watch(b"", b"\xff")
        assert await anext(events) is None
        await events.aclose()  # type: ignore[attr-defined]
        assert feeds._feeds == []

    asyncio.run(asyncio.wait_for(story(), 10))
