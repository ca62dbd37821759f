"""Each message that a queue got is there, or left in one way that is counted once: histories with transactions, automatic acks, purges."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from flintmq.testing.broker import Broker
from tests.support.broker import wait_until
from tests.support.rawamqp import RawChannel, RawConnection

STEPS = 60


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(limits={"housekeeping_ms": 20}) as started:
        yield started


class History:
    """Steps that a client takes, and in `fates` what must have come of its messages. Args: dead: queue of dead letters, or ""."""

    def __init__(self, broker: Broker, connection: RawConnection, seed: int, dead: str) -> None:
        self.random = random.Random(seed)
        self.broker, self.dead, self.name = broker.node.broker, dead, f"conserved-{seed}-{bool(dead)}"
        self.ch, self.tx = connection.channel(), connection.channel(2)
        self.ch.call("confirm.select")
        self.tx.call("tx.select")
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead} if dead else {}
        self.ch.queue(self.name, arguments=arguments)
        self.core = self.broker.vhosts["/"].queues[self.name].core
        self.fates: Counter[str] = Counter()
        self.before = self.of_node()

    def of_node(self) -> Counter[str]:
        counters = self.broker.counters
        return Counter({"dropped": counters.drops["rejected"], "letters": counters.dead_lettered["rejected"]})

    def publish(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            self.ch.publish(b"m", routing_key=self.name)
            self.ch.expect("basic.ack")
            self.fates["arrived"] += 1

    def transaction(self) -> None:
        """Publishes and acks, which count when they are committed."""
        count = self.random.randint(1, 3)
        got = self.taken(self.tx)
        verb, outcome = self.random.choice(["basic.ack", "basic.reject"]), self.random.choice(["tx.commit", "tx.rollback", "tx.commit"])
        for _ in range(count):
            self.tx.publish(b"t", routing_key=self.name)
        if got:
            self.settle(self.tx, verb, got)
        self.tx.call(outcome)
        if outcome == "tx.commit":
            self.fates["arrived"] += count
        elif got:  # it is unacked still
            self.settle(self.tx, verb, got)
            self.tx.call("tx.commit")
        if got:
            self.fates["acked" if verb == "basic.ack" else "rejected"] += 1

    @staticmethod
    def settle(channel: RawChannel, verb: str, tag: int) -> None:
        channel.send(verb, delivery_tag=tag, **({} if verb == "basic.ack" else {"requeue": False}))

    def taken(self, channel: RawChannel) -> int:
        """Delivery tag, 0 of none."""
        method = channel.call("basic.get", queue=self.name)
        return method.delivery_tag if method.name == "basic.get-ok" else 0

    def get(self) -> None:
        tag = self.taken(self.ch)
        if tag:
            fate = self.random.choice(["acked", "rejected", "", ""])
            if fate:
                self.settle(self.ch, "basic.ack" if fate == "acked" else "basic.reject", tag)
                self.fates[fate] += 1
            else:
                self.ch.send("basic.nack", delivery_tag=tag, requeue=True)

    def get_without_ack(self) -> None:
        if self.ch.call("basic.get", queue=self.name, no_ack=True).name == "basic.get-ok":
            self.fates["taken"] += 1

    def consume_without_ack(self) -> None:
        wait_until(lambda: self.core.unacked_count() == 0, step=0.001)
        count = self.ch.ready(self.name)
        self.ch.call("basic.consume", queue=self.name, consumer_tag="c", no_ack=True)
        self.ch.deliveries(count)
        self.ch.call("basic.cancel", consumer_tag="c")
        self.fates["taken"] += count

    def purge(self) -> None:
        wait_until(lambda: self.core.unacked_count() == 0, step=0.001)
        self.fates["purged"] += self.ch.call("queue.purge", queue=self.name).message_count

    def seen(self) -> Counter[str]:
        flows, node = self.core.flows(), self.of_node()
        node.subtract(self.before)
        counts = {"arrived": self.core.enqueued_total(), "acked": flows["ack"], "rejected": flows["reject"], "purged": flows["purge"]}
        counts |= {"taken": flows["get_no_ack"] + flows["deliver_no_ack"], "elsewhere": flows["expire"] + flows["drop"] + flows["delete"]}
        return +Counter(counts | dict(node) | {"ready": self.core.ready_count(), "unacked": self.core.unacked_count()})

    def wanted(self) -> Counter[str]:
        left = self.fates["arrived"] - sum(count for name, count in self.fates.items() if name != "arrived")
        return +(self.fates + Counter({"ready": left, "letters" if self.dead else "dropped": self.fates["rejected"]}))


@pytest.mark.parametrize("dead", ["dead", ""])
@pytest.mark.parametrize("seed", range(20))
def test_each_message_is_there_or_left_in_one_way(broker: Broker, seed: int, dead: str) -> None:
    with RawConnection("127.0.0.1", broker.port).open() as connection:
        if dead:
            connection.channel(3).queue(dead)
        history = History(broker, connection, seed, dead)
        steps = [history.publish, history.publish, history.transaction, history.get, history.get, history.get_without_ack]
        for _ in range(STEPS):
            history.random.choice([*steps * 3, history.consume_without_ack, history.purge])()
        history.publish()
        try:
            wait_until(lambda: history.seen() == history.wanted(), timeout=5, step=0.005)
        except AssertionError:
            raise AssertionError(f"counted is {history.seen()}, and should be {history.wanted()}") from None
        assert history.fates["acked"] and history.fates["rejected"] and history.fates["taken"], "a history that did nothing"
        dropped = sum(broker.node.broker.counters.drops.values())
        history.ch.call("queue.delete", queue=history.name)
        assert sum(broker.node.broker.counters.drops.values()) == dropped, "a queue that is deleted with its messages drops none"
