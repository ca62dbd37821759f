"""Property: unmodified aio-pika, plain and robust, reads streams: iterators, offsets, filters, groups, a place kept over reconnection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
import pytest

from tests.support.broker import Broker, unique

Body = Callable[[aio_pika.abc.AbstractChannel, aio_pika.abc.AbstractQueue], Awaitable[None]]


def run(broker: Broker, body: Body, connect: Any = aio_pika.connect) -> None:
    """Runs `body(channel, stream of 30 messages)` on a fresh connection, within 20 seconds."""

    async def main() -> None:
        async with await connect(broker.url) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=10)
            stream = await channel.declare_queue(unique("aio-stream"), durable=True, arguments={"x-queue-type": "stream"})
            for number in range(30):
                message = aio_pika.Message(b"%d" % number, headers={"x-stream-filter-value": "even" if number % 2 == 0 else "odd"})
                await channel.default_exchange.publish(message, routing_key=stream.name)
            await body(channel, stream)

    asyncio.run(asyncio.wait_for(main(), 120))


async def take(stream: aio_pika.abc.AbstractQueue, count: int, **arguments: Any) -> list[int]:
    """Offsets of the first `count` messages, acknowledged."""
    got: list[int] = []
    async with stream.iterator(arguments=arguments) as messages:
        async for message in messages:
            async with message.process():
                got.append(int(message.headers["x-stream-offset"]))  # type: ignore[arg-type]
                assert message.body == b"%d" % got[-1]
            if len(got) == count:
                break
    return got


@pytest.mark.parametrize("connect", [aio_pika.connect, aio_pika.connect_robust])
def test_iterating(broker: Broker, connect: Any) -> None:
    """The queue iterator with x-stream-offset; the same consumer form twice reads the same twice."""

    async def body(channel: aio_pika.abc.AbstractChannel, stream: aio_pika.abc.AbstractQueue) -> None:
        assert await take(stream, 30, **{"x-stream-offset": "first"}) == list(range(30))
        assert await take(stream, 10, **{"x-stream-offset": 20}) == list(range(20, 30))
        assert await take(stream, 15, **{"x-stream-offset": "first", "x-stream-filter": "odd"}) == list(range(1, 30, 2))

    run(broker, body, connect)


def test_a_group_goes_on(broker: Broker) -> None:
    """x-group keeps the place between iterators; requeued messages come back."""
    if broker.external:
        pytest.skip("groups are FlintMQ's")

    async def body(channel: aio_pika.abc.AbstractChannel, stream: aio_pika.abc.AbstractQueue) -> None:
        group = {"x-group": "g", "x-stream-offset": "first"}
        first = await take(stream, 12, **group)
        assert first == list(range(12))
        again: list[int] = []
        async with stream.iterator(arguments=group) as messages:
            async for message in messages:
                again.append(int(message.headers["x-stream-offset"]))  # type: ignore[arg-type]
                if len(again) == 1:
                    await message.nack(requeue=True)
                else:
                    await message.ack()
                if len(again) == 19:
                    break
        assert sorted(set(again)) == list(range(12, 30)) and again.count(12) == 2

    run(broker, body)
