"""Stores on disk for tests of `flintmq log`: a message and a transaction log written by tests/support/logbytes.py, and what they hold."""

from __future__ import annotations

from pathlib import Path

from tests.support import logbytes as lb

ROUTE = b"\x02ex\x03key"
PROPERTIES = b"\0\x3c\0\0" + bytes(10)


class StoreBytes:
    """Both logs of a store, and a model of what lives in them: queue -> {position: message id}."""

    def __init__(self, size: int = 4096) -> None:
        self.messages = lb.LogBytes(size, lb.MESSAGES)
        self.transactions = lb.LogBytes(size, lb.TRANSACTIONS)
        self.live: dict[int, dict[int, int]] = {}
        self.next = 1

    def publish(self, queue: int, body: bytes) -> int:
        """A message on one queue, outside a transaction; returns its position."""
        number = self.messages.add(lb.START, lb.content(ROUTE, PROPERTIES, body))
        self.messages.add(lb.ENQUEUE, lb.enqueue(queue, self.next), undo_prev=number)
        self.live.setdefault(queue, {})[self.next] = number
        self.next += 1
        return self.next - 1

    def chunked(self, queue: int, body: bytes, piece: int = 1000) -> int:
        """A message in several records."""
        content = ROUTE + PROPERTIES + body
        number = self.messages.add(lb.START, lb.content(ROUTE, PROPERTIES, body, first=piece))
        for at in range(piece, len(content), piece):
            self.messages.add(lb.CHUNK, lb.chunk(at, content[at : at + piece]), undo_prev=number)
        self.messages.add(lb.ENQUEUE, lb.enqueue(queue, self.next), undo_prev=number)
        self.live.setdefault(queue, {})[self.next] = number
        self.next += 1
        return number

    def ack(self, queue: int, position: int, **more: int) -> None:
        """The consumer settled it; it was the message's only place."""
        number = self.live[queue].pop(position)
        self.messages.add(lb.DEQUEUE, lb.dequeue(queue, position), undo_prev=number, last=True, **more)

    def commit(self, queue: int, bodies: list[bytes], outcome: int = lb.COMMIT) -> int:
        """A local transaction that publishes; outcome: COMMIT, ROLLBACK or 0 for none."""
        tx = self.transactions.add(lb.TX_START)
        for order, body in enumerate(bodies):
            number = self.messages.add(lb.START, lb.content(ROUTE, PROPERTIES, body))
            self.messages.add(lb.ENQUEUE, lb.enqueue(queue, lb.waiting(order)), undo_prev=number, tx=tx)
            if outcome == lb.COMMIT:
                self.live.setdefault(queue, {})[self.next] = number
                self.next += 1
        self.messages.sync()
        if outcome == lb.COMMIT:
            self.transactions.add(lb.COMMIT, lb.rows([(queue, self.next - len(bodies), len(bodies))]), undo_prev=tx)
        elif outcome:
            self.transactions.add(outcome, undo_prev=tx)
        self.transactions.sync()
        return tx

    def sync(self, **more: int) -> None:
        self.messages.sync(**more)
        self.transactions.sync(**more)

    def write(self, directory: Path) -> Path:
        """Writes the store; a directory that is there is written over."""
        self.messages.write(str(directory / "messages"))
        self.transactions.write(str(directory / "transactions"))
        return directory

    def counts(self) -> dict[int, int]:
        return {queue: len(entries) for queue, entries in self.live.items() if entries}


def sample(size: int = 4096) -> StoreBytes:
    """Four containers of messages in many blocks, with dead and live ones, chunks and transactions."""
    store = StoreBytes(size)
    for i in range(24):
        position = store.publish(1 + i % 2, bytes([i]) * (37 + 20 * i))
        if i % 3 == 0:
            store.ack(1 + i % 2, position)
        if i % 4 == 3:
            store.sync()
    store.chunked(3, bytes(range(256)) * 10)
    store.commit(2, [b"one", b"two"])
    store.commit(2, [b"never"], lb.ROLLBACK)
    for i in range(8):
        store.publish(1, bytes([i]) * 100)
        store.sync()
    store.publish(1, b"the last one")
    store.sync()
    return store
