"""Property: unmodified pika (SelectConnection, callbacks) publishes with confirms, consumes, nacks and sees returns and cancellations."""

from __future__ import annotations

from typing import Any

import pika
from pika.channel import Channel

from tests.support.broker import Broker, unique


class Script:
    """Runs the ioloop until `done()` or a deadline of ten seconds."""

    def __init__(self, broker: Broker) -> None:
        self.queue = unique("select")
        self.acked: set[int] = set()
        self.returned: list[bytes] = []
        self.received: list[tuple[bytes, bool]] = []
        self.cancelled = False
        self.finished = False
        self.errors: list[BaseException] = []
        self.connection = pika.SelectConnection(
            pika.URLParameters(broker.url),
            on_open_callback=lambda c: c.channel(on_open_callback=self.on_channel),
            on_open_error_callback=lambda _c, e: self.fail(e),
            on_close_callback=lambda c, _e: c.ioloop.stop(),
        )

    def run(self) -> None:
        """Until the connection has closed."""
        self.connection.ioloop.call_later(20, lambda: self.fail(TimeoutError("the script did not end")))
        self.connection.ioloop.start()
        assert not self.errors, self.errors
        assert self.finished

    def fail(self, error: BaseException) -> None:
        """Ends the loop with an error."""
        self.errors.append(error)
        self.connection.ioloop.stop()

    def on_channel(self, channel: Channel) -> None:
        """Declares, then consumes with prefetch, then publishes."""
        self.channel = channel
        channel.add_on_return_callback(lambda _c, _m, _p, body: self.returned.append(body))
        channel.add_on_cancel_callback(self.on_cancelled)
        channel.confirm_delivery(self.on_confirm, callback=lambda _f: channel.queue_declare(self.queue, callback=self.on_declared))

    def on_declared(self, _frame: Any) -> None:
        """Starts the consumer."""
        self.channel.basic_qos(prefetch_count=10, callback=self.on_qos)

    def on_qos(self, _frame: Any) -> None:
        """Consumes."""
        self.channel.basic_consume(self.queue, self.on_message, callback=self.on_started)

    def on_started(self, _frame: Any) -> None:
        """Publishes fifty, every tenth of them unroutable."""
        for i in range(50):
            self.channel.basic_publish("", self.queue if i % 10 else unique(), b"%d" % i, mandatory=True)

    def on_confirm(self, frame: Any) -> None:
        """Notes the confirms."""
        assert isinstance(frame.method, pika.spec.Basic.Ack)
        tag = frame.method.delivery_tag
        self.acked |= set(range(1, tag + 1)) if frame.method.multiple else {tag}
        self.check()

    def on_message(self, channel: Channel, method: Any, _properties: Any, body: bytes) -> None:
        """Refuses every message once, acknowledges it the second time."""
        self.received.append((body, method.redelivered))
        if method.redelivered:
            channel.basic_ack(method.delivery_tag)
        else:
            channel.basic_nack(method.delivery_tag, requeue=True)
        self.check()

    def check(self) -> None:
        """Deletes the queue once all has come: this must cancel the consumer."""
        if len(self.received) == 90 and len(self.acked) == 50 and len(self.returned) == 5:
            self.channel.queue_delete(self.queue)

    def on_cancelled(self, _frame: Any) -> None:
        """The end."""
        self.cancelled = self.finished = True
        self.connection.close()


def test_script(broker: Broker) -> None:
    """Every routable message came twice (refused once), every unroutable one came back, all were confirmed."""
    script = Script(broker)
    script.run()
    routable = {b"%d" % i for i in range(50) if i % 10}
    assert {b for b, again in script.received if not again} == routable
    assert {b for b, again in script.received if again} == routable
    assert script.returned == [b"%d" % i for i in range(0, 50, 10)]
    assert script.acked == set(range(1, 51))


def test_many_channels(broker: Broker) -> None:
    """A connection opens 200 channels and closes them again."""
    opened: list[Channel] = []
    closed: list[Channel] = []

    def on_close(connection: pika.SelectConnection, _error: BaseException) -> None:
        connection.ioloop.stop()

    def on_channel_closed(channel: Channel, _error: BaseException) -> None:
        closed.append(channel)
        if len(closed) == 200:
            connection.close()

    def on_channel(channel: Channel) -> None:
        channel.add_on_close_callback(on_channel_closed)
        opened.append(channel)
        if len(opened) == 200:
            for each in opened:
                each.close()

    def on_open(connection: pika.SelectConnection) -> None:
        for _ in range(200):
            connection.channel(on_open_callback=on_channel)

    connection = pika.SelectConnection(pika.URLParameters(broker.url), on_open_callback=on_open, on_close_callback=on_close)
    connection.ioloop.call_later(20, connection.ioloop.stop)
    connection.ioloop.start()
    assert len(closed) == 200
