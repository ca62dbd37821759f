"""Property: unmodified aio-pika, plain and robust, works: confirms, returns, transactions, iterators, RPC pattern, reconnection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
import aiormq.exceptions
import pytest
from aio_pika.patterns import RPC

from tests.support.broker import Broker, unique

Body = Callable[[aio_pika.abc.AbstractChannel, str], Awaitable[None]]


def run(broker: Broker, body: Body, **options: Any) -> None:
    """Runs `body(channel, queue name)` on a fresh connection, within 20 seconds."""

    async def main() -> None:
        connection = await aio_pika.connect(broker.url)
        async with connection:
            channel = await connection.channel(**options)
            await body(channel, unique("aio"))

    asyncio.run(asyncio.wait_for(main(), 120))


def test_publish_and_iterate(broker: Broker) -> None:
    """Messages with all properties come in order through the queue iterator; process() acknowledges."""

    async def body(channel: aio_pika.abc.AbstractChannel, name: str) -> None:
        await channel.set_qos(prefetch_count=5)
        queue = await channel.declare_queue(name, exclusive=True)
        for i in range(30):
            message = aio_pika.Message(
                b"%d" % i, headers={"n": i, "deep": {"x": [1, None]}}, delivery_mode=2, priority=3, correlation_id="c", message_id=str(i)
            )
            await channel.default_exchange.publish(message, routing_key=name)
        seen = []
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process():
                    assert message.headers["n"] == int(message.body)
                    seen.append(int(message.body))
                if len(seen) == 30:
                    break
        assert seen == list(range(30))
        assert (await channel.declare_queue(name, exclusive=True, passive=True)).declaration_result.message_count == 0

    run(broker, body)


def test_reject_and_requeue(broker: Broker) -> None:
    """An exception in process(requeue=True) brings the message back, flagged."""

    async def body(channel: aio_pika.abc.AbstractChannel, name: str) -> None:
        queue = await channel.declare_queue(name, exclusive=True)
        await channel.default_exchange.publish(aio_pika.Message(b"x"), routing_key=name)
        message = await queue.get(timeout=60)
        with pytest.raises(ZeroDivisionError):
            async with message.process(requeue=True):
                raise ZeroDivisionError
        again = await queue.get(timeout=60)
        assert again.redelivered
        await again.nack(requeue=False)
        assert await queue.get(fail=False) is None

    run(broker, body)


def test_returned_message_raises(broker: Broker) -> None:
    """With confirms and on_return_raises an unroutable message raises."""

    async def body(channel: aio_pika.abc.AbstractChannel, name: str) -> None:
        with pytest.raises(aio_pika.exceptions.DeliveryError):
            await channel.default_exchange.publish(aio_pika.Message(b"x"), routing_key=name, mandatory=True)

    run(broker, body, on_return_raises=True)


def test_transaction(broker: Broker) -> None:
    """A transaction that leaves with an exception publishes nothing."""

    async def body(channel: aio_pika.abc.AbstractChannel, name: str) -> None:
        queue = await channel.declare_queue(name, exclusive=True)
        with pytest.raises(ZeroDivisionError):
            async with channel.transaction():
                await channel.default_exchange.publish(aio_pika.Message(b"lost"), routing_key=name)
                raise ZeroDivisionError
        async with channel.transaction():
            await channel.default_exchange.publish(aio_pika.Message(b"kept"), routing_key=name)
        assert (await queue.get(timeout=60, no_ack=True)).body == b"kept"
        assert await queue.get(fail=False) is None

    run(broker, body, publisher_confirms=False)


def test_errors(broker: Broker) -> None:
    """404 and 406 arrive as their own exception types."""

    async def body(channel: aio_pika.abc.AbstractChannel, name: str) -> None:
        with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity, match="no queue"):
            await channel.declare_queue(name, passive=True)

    run(broker, body)

    async def inequivalent(channel: aio_pika.abc.AbstractChannel, name: str) -> None:
        await channel.declare_queue(name, auto_delete=True)
        with pytest.raises(aiormq.exceptions.ChannelPreconditionFailed, match="inequivalent arg"):
            await channel.declare_queue(name, durable=True)

    run(broker, inequivalent)


def test_bad_password(broker: Broker) -> None:
    """A wrong password is an authentication error."""

    async def main() -> None:
        with pytest.raises(aiormq.exceptions.ProbableAuthenticationError):
            await aio_pika.connect(f"amqp://guest:wrong@{broker.host}:{broker.port}/")

    asyncio.run(asyncio.wait_for(main(), 120))


def test_rpc_pattern(broker: Broker) -> None:
    """aio-pika's RPC pattern (result queue, dead-letter headers exchange) answers concurrent calls."""

    async def body(channel: aio_pika.abc.AbstractChannel, name: str) -> None:
        rpc = await RPC.create(channel)

        async def multiply(*, x: int, y: int) -> int:
            return x * y

        await rpc.register(name, multiply, auto_delete=True)
        answers = await asyncio.gather(*[rpc.call(name, kwargs={"x": i, "y": 3}) for i in range(20)])
        assert answers == [i * 3 for i in range(20)]
        await rpc.close()

    run(broker, body)


def test_direct_reply_to(broker: Broker) -> None:
    """Request and answer through amq.rabbitmq.reply-to."""

    async def body(channel: aio_pika.abc.AbstractChannel, name: str) -> None:
        queue = await channel.declare_queue(name, exclusive=True)

        async def serve(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            assert message.reply_to
            await channel.default_exchange.publish(aio_pika.Message(message.body.upper()), routing_key=message.reply_to)

        await queue.consume(serve, no_ack=True)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        replies = await channel.get_queue("amq.rabbitmq.reply-to", ensure=False)
        await replies.consume(lambda m: answer.set_result(m.body), no_ack=True)
        await channel.default_exchange.publish(aio_pika.Message(b"ask", reply_to="amq.rabbitmq.reply-to"), routing_key=name)
        assert await answer == b"ASK"

    run(broker, body)


def test_large_message_and_bindings(broker: Broker) -> None:
    """3 MiB through two bound exchanges."""

    async def body(channel: aio_pika.abc.AbstractChannel, name: str) -> None:
        outer = await channel.declare_exchange(name + "-o", aio_pika.ExchangeType.TOPIC, auto_delete=True)
        inner = await channel.declare_exchange(name + "-i", aio_pika.ExchangeType.HEADERS, auto_delete=True)
        await inner.bind(outer, "big.*")
        queue = await channel.declare_queue(name, exclusive=True)
        await queue.bind(inner, arguments={"x-match": "all", "size": "big"})
        data = bytes(range(256)) * 12_288
        await outer.publish(aio_pika.Message(data, headers={"size": "big"}), routing_key="big.one")
        assert (await queue.get(timeout=60)).body == data

    run(broker, body)


class Relay:
    """A TCP relay to the broker whose connections can be cut."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.writers: list[asyncio.StreamWriter] = []

    async def start(self) -> int:
        """Listens; returns the port."""
        server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        return int(server.sockets[0].getsockname()[1])

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Couples one client with the broker."""
        up_reader, up_writer = await asyncio.open_connection(self.broker.host, self.broker.port)
        self.writers += [writer, up_writer]
        await asyncio.gather(self.pump(reader, up_writer), self.pump(up_reader, writer), return_exceptions=True)

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction."""
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    def cut(self) -> None:
        """Resets all connections."""
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()


def test_robust_connection_survives_a_lost_socket(broker: Broker) -> None:
    """connect_robust reconnects after its socket is cut, declares its queue again and goes on consuming."""

    async def main() -> None:
        name = unique("robust")
        relay = Relay(broker)
        url = f"amqp://{broker.user}:{broker.password}@127.0.0.1:{await relay.start()}/"
        connection = await aio_pika.connect_robust(url, reconnect_interval=0.1)
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(name, auto_delete=True)
            seen: asyncio.Queue[bytes] = asyncio.Queue()

            async def note(message: aio_pika.abc.AbstractIncomingMessage) -> None:
                await message.ack()
                await seen.put(message.body)

            await queue.consume(note)
            await channel.default_exchange.publish(aio_pika.Message(b"1"), routing_key=name)
            assert await seen.get() == b"1"
            reconnected = asyncio.Event()
            connection.reconnect_callbacks.add(lambda *_: reconnected.set())
            relay.cut()
            await reconnected.wait()
            async with await aio_pika.connect(broker.url) as other:
                sender = await other.channel()
                while True:  # until the queue is declared again; the deadline is that of the whole test
                    try:
                        await sender.default_exchange.publish(aio_pika.Message(b"2"), routing_key=name, mandatory=True)
                        break
                    except aio_pika.exceptions.DeliveryError:
                        await asyncio.sleep(0.05)
            assert await seen.get() == b"2"

    asyncio.run(asyncio.wait_for(main(), 120))
