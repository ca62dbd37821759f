"""A kind of queue of one's own: of each value of a header the latest few messages stay, and urgent ones come first.

FlintMQ's entry-list extension point (docs/QUEUE_CORE.md, "Kinds of entry lists") lets a package add kinds, which clients name in
`x-queue-type`. A real package would list this one in its pyproject.toml, and brokers that have the package installed would know it:

    [project.entry-points."flintmq.queue_kinds"]
    latest = "my_package.queue_kind:Latest"

Here the example registers it by itself, starts a broker in its own process, and shows what a client sees.
"""

from __future__ import annotations

import bisect
import collections
import threading
from collections.abc import Mapping
from typing import Any

import pika

from flintmq.protocol.v0_9_1.codec import decode_properties
from flintmq.queue import kinds
from flintmq.queue.outside import Entries
from flintmq.testing.broker import Broker

KEY, LENGTH = "x-latest-key", "x-latest-length"
LENGTH_MAX = 1_000
# values that one queue remembers; the count of the one that got nothing for longest begins anew
VALUES_MAX = 100_000


class Latest:
    """`x-queue-type: latest`, with `x-latest-key` (the name of a header) and `x-latest-length` (messages of one value that stay)."""

    name = "latest"

    def check(self, arguments: Mapping[str, Any]) -> str | None:
        if not isinstance(arguments.get(KEY), str) or not arguments[KEY]:
            return f"{KEY} has to name a header"
        length = arguments.get(LENGTH)
        if type(length) is not int or not 0 < length <= LENGTH_MAX:
            return f"{LENGTH} has to be an integer, 1 to {LENGTH_MAX}"
        return None

    def levels(self, arguments: Mapping[str, Any]) -> int:
        return 2  # urgent ones, the others

    def open(self, entries: Entries, arguments: Mapping[str, Any]) -> LatestList:
        return LatestList(entries, arguments[KEY], arguments[LENGTH])


class LatestList:
    """One queue. Its hooks run on any thread, several at once, and on the broker's loops: they are short, and have a lock of their own."""

    def __init__(self, entries: Entries, header: str, length: int) -> None:
        self.entries, self.header, self.length = entries, header, length
        self.lock = threading.Lock()
        # value -> positions of its messages that were available when they were looked at last, rising
        self.known: collections.OrderedDict[Any, list[int]] | None = None

    def level(self, message: kinds.Message | None) -> int:
        # What a distributed transaction places comes without its message: one constant level.
        return 0 if message is not None and headers_of(message).get("urgent") is True else 1

    def arrived(self, position: int, message: kinds.Message | None) -> None:
        with self.lock:
            if self.known is None:
                self._restore()  # after a restart the messages are back without a call
            self._note(position, message)

    def returned(self, position: int) -> None:
        with self.lock:
            if self.known is None:
                self._restore()
            self._note(position, None)

    def _restore(self) -> None:
        self.known = collections.OrderedDict()
        position = self.entries.next_available()
        while position:
            self._note(position, None)
            position = self.entries.next_available(position + 1)

    def _note(self, position: int, message: kinds.Message | None) -> None:
        try:
            value = headers_of(message or self.entries.message_at(position)).get(self.header)
        except KeyError:
            return  # somebody was quicker: it is gone
        if self.known is None or not isinstance(value, (str, int)):
            return  # without a value: it stays
        positions = self.known.setdefault(value, [])
        self.known.move_to_end(value)
        if position not in positions:
            bisect.insort(positions, position)
        if len(positions) > self.length:
            # Those that somebody has don't count; they are told of when they come back.
            positions[:] = [one for one in positions if self.entries.next_available(one) == one]
            for oldest in sorted(positions, key=arrival)[: max(0, len(positions) - self.length)]:
                self.entries.end(oldest)
                positions.remove(oldest)
        if len(self.known) > VALUES_MAX:
            self.known.popitem(last=False)


def arrival(position: int) -> int:
    """Which of two messages of one level came first: a position is 8 bits of level and 56 of number. Between levels it is a guess."""
    return position & (1 << 56) - 1


def headers_of(message: kinds.Message) -> Mapping[str, Any]:
    headers = decode_properties(message[2], 32, 1_000)[1].get("headers")
    return headers if isinstance(headers, dict) else {}


def main() -> None:
    kinds.register(Latest())
    with Broker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.queue_declare("prices", arguments={"x-queue-type": "latest", KEY: "symbol", LENGTH: 2})
        for number, symbol in enumerate(["oil", "tin", "oil", "oil", "tin", "zinc", "oil"]):
            channel.basic_publish(
                "", "prices", b"%d" % number, pika.BasicProperties(headers={"symbol": symbol, "urgent": symbol == "zinc"})
            )
        while True:
            method, properties, body = channel.basic_get("prices", auto_ack=True)
            if method is None:
                break
            print(properties.headers["symbol"], body.decode())
        connection.close()
    kinds.forget(Latest.name)


if __name__ == "__main__":
    main()
