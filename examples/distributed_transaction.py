"""One order in, an invoice and a shipment out: all of it or nothing, decided in two phases, over a kill of the broker.

Runs a durable broker of its own, in this process, on a scratch directory:

    .venv/bin/python examples/distributed_transaction.py
"""

from __future__ import annotations

import tempfile

import pika

from flintmq.config import Config
from flintmq.node import Node
from flintmq.transactions import Xid
from flintmq.transactions.bulk import BLOCK_ENTRY

QUEUES = ("orders", "invoices", "shipments")


def header(body: bytes) -> bytes:
    """The content header of a persistent message: class 60, the body's size, delivery-mode 2 (flag bit 12)."""
    return b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + b"\x10\x00" + b"\x02"


def block(text: str) -> bytes:
    """A block of one message: the first route, a persistent message (flag 1), no priority, no expiration, padded to 8 bytes."""
    head, body = header(text.encode()), text.encode()
    content = head + body
    return BLOCK_ENTRY.pack(len(content), 0, len(head), 1, 0, 0, -1) + content + bytes(-len(content) % 8)


def start(directory: str) -> Node:
    """A durable broker on a free port."""
    node = Node(Config(port=0, store_dir=directory, container_size=1 << 20))
    node.start()
    return node


def show(node: Node, when: str) -> None:
    """How many messages consumers could get from each queue."""
    queues = node.broker.vhosts["/"].queues
    print(f"{when:32}", ", ".join(f"{name} {queues[name].core.ready_count()}" for name in QUEUES))


def main() -> None:
    directory = tempfile.mkdtemp(prefix="flintmq-example-")
    node = start(directory)
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.amqp_port)) as connection:
        channel = connection.channel()
        for name in QUEUES:
            channel.queue_declare(name, durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "orders", b"order 1", pika.BasicProperties(delivery_mode=2))
    show(node, "an order has arrived")

    # Phase one. `session` is whoever works: any hashable value of yours. The xid comes from your transaction manager.
    session, xid = "order service", Xid(1, b"order 1", b"broker")
    queues = node.broker.vhosts["/"].queues
    orders, invoices, shipments = (queues[name] for name in QUEUES)
    transactions = node.broker.transactions
    assert transactions is not None
    transactions.select(session)
    transactions.start(session, xid)
    transactions.hold_run(session, xid, orders.queue_id, messages_max=1, bytes_max=1 << 20)
    for queue, text in ((invoices, "invoice 1"), (shipments, "shipment 1")):
        transactions.enqueue_block(session, xid, block(text), [(b"", queue.name.encode())], [[queue.queue_id]])
    transactions.end(session, xid)
    print("prepare:", transactions.prepare(xid).result().name)
    show(node, "prepared: the order is held")

    # The broker dies without a word: nothing is flushed, no clean stop is written.
    assert node.store is not None
    node.store.close(clean=False)

    node = start(directory)
    show(node, "after the restart, in doubt")
    transactions = node.broker.transactions
    assert transactions is not None
    for waiting in transactions.recover("/"):  # the manager asks, looks into its own log, and decides
        print("in doubt:", waiting)
        print("commit:", transactions.commit(waiting).result().name)
    show(node, "committed")
    node.stop()


if __name__ == "__main__":
    main()
