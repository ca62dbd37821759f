"""The algorithm against a model, with conflicts, unknown outcomes, an engine that is away, and nodes that die.

Properties: no message is lost, none is settled by two nodes, none comes twice without the flag, order "strict" is the order of the commits.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flintmq.config import Limits
from flintmq.kv.engine import EngineLimits, Unavailable, UnknownOutcome
from flintmq.shared.keys import QueueKeys
from flintmq.shared.owners import Owners
from flintmq.shared.queue import RELAXED, STRICT, Fenced, Message, SharedQueue, Taken, declare_queue
from flintmq.shared.staged import StagedQueue
from tests.twins.memory_engine import Fault, MemoryEngine

LIMITS = Limits().replace(shared_inline_bytes=8, shared_chunk_bytes=4, shared_batch=4, shared_batch_bytes=64, shared_retry_ms=0)
ENGINE = EngineLimits(2048, 256, 4096, 200, 5_000, False)
TROUBLE = st.lists(st.sampled_from([fault for fault in Fault if fault is not Fault.UNAVAILABLE]), max_size=4)


class Node:
    """One broker's half: its owner, its queue, and what it holds."""

    def __init__(self, engine: MemoryEngine, keys: QueueKeys, order: str, time: Any) -> None:
        self.owners = Owners(engine, LIMITS, time)
        owner = self.owners.register()
        self.owners.uses(keys.life)
        self.queue = StagedQueue(engine, keys, owner, LIMITS, order)
        self.held: dict[bytes, Taken] = {}


class Model(RuleBasedStateMachine):
    """`ready` and `held`: what the model knows of each message, by its content."""

    order = STRICT

    @initialize()
    def begin(self) -> None:
        self.trouble: list[Fault] = []
        self.engine = MemoryEngine(lambda: self.trouble.pop() if self.trouble else Fault.NONE, ENGINE)
        self.now = 0.0
        self.keys = declare_queue(self.engine, "/", "q", self.order)
        self.nodes = [self.node(), self.node()]
        self.number = 0
        self.sent: list[bytes] = []  # in the order of their commits
        self.settled: set[bytes] = set()
        self.seen: set[bytes] = set()  # given to a consumer, and its node died or gave it back as delivered

    def node(self) -> Node:
        return Node(self.engine, self.keys, self.order, lambda: self.now)

    @rule(at=st.integers(0, 1), sizes=st.lists(st.integers(4, 100), min_size=1, max_size=4), trouble=TROUBLE)
    def enqueue(self, at: int, sizes: list[int], trouble: list[Fault]) -> None:
        messages = []
        for size in sizes:
            self.number += 1
            messages.append(Message(self.number.to_bytes(4, "big") + bytes(size - 4)))
        node = self.nodes[at]
        while messages:
            count = node.queue.cut(messages)
            assert count >= 1
            self.trouble = list(trouble)
            node.queue.enqueue(messages[:count])
            self.sent.extend(message.content for message in messages[:count])
            del messages[:count]
        self.trouble = []

    def note(self, node: Node, taken: list[Taken]) -> list[bytes]:
        contents = []
        for one in taken:
            content = node.queue.load(one)
            assert content in self.sent
            assert content not in self.settled, "a settled message comes again"
            assert not any(content in other.held for other in self.nodes), "a message is held twice"
            assert one.meta.redelivered == (content in self.seen)
            node.held[content] = one
            contents.append(content)
        return contents

    @rule(at=st.integers(0, 1), count=st.integers(1, 6), trouble=TROUBLE)
    def take(self, at: int, count: int, trouble: list[Fault]) -> None:
        node = self.nodes[at]
        held = {content for other in self.nodes for content in other.held}
        expected = [content for content in self.sent if content not in self.settled and content not in held]
        self.trouble = list(trouble)
        taken, _ = node.queue.take(count, 10_000)
        self.trouble = []
        contents = self.note(node, taken)
        assert len(contents) >= min(1, len(expected))
        if self.order == STRICT:
            assert contents == expected[: len(contents)], "the order of the commits"

    @rule(at=st.integers(0, 1), count=st.integers(1, 6), trouble=TROUBLE)
    def take_staged(self, at: int, count: int, trouble: list[Fault]) -> None:
        node = self.nodes[at]
        held = {content for other in self.nodes for content in other.held}
        left = [content for content in self.sent if content not in self.settled and content not in held]
        self.trouble = list(trouble)
        taken = node.queue.take_staged(count)
        self.trouble = []
        contents = self.note(node, taken)
        assert len(contents) >= min(1, len(left))

    @precondition(lambda self: any(node.held for node in self.nodes))
    @rule(at=st.integers(0, 1), data=st.data(), trouble=TROUBLE)
    def settle(self, at: int, data: Any, trouble: list[Fault]) -> None:
        node = self.nodes[at]
        if not node.held:
            return
        chosen = data.draw(st.lists(st.sampled_from(sorted(node.held)), min_size=1, unique=True))
        self.trouble = list(trouble)
        node.queue.settle([node.held[content] for content in chosen])
        self.trouble = []
        for content in chosen:
            del node.held[content]
            self.settled.add(content)

    @precondition(lambda self: any(node.held for node in self.nodes))
    @rule(at=st.integers(0, 1), data=st.data(), delivered=st.booleans(), trouble=TROUBLE)
    def give_back(self, at: int, data: Any, delivered: bool, trouble: list[Fault]) -> None:
        node = self.nodes[at]
        if not node.held:
            return
        chosen = data.draw(st.lists(st.sampled_from(sorted(node.held)), min_size=1, unique=True))
        self.trouble = list(trouble)
        node.queue.give_back([(node.held[content], delivered) for content in chosen])
        self.trouble = []
        for content in chosen:
            del node.held[content]
            if delivered:
                self.seen.add(content)

    @rule(at=st.integers(0, 1), trouble=TROUBLE)
    def die(self, at: int, trouble: list[Fault]) -> None:
        """A node stops; the other one finds out after a lease; what the dead one says later does not count."""
        dead, other = self.nodes[at], self.nodes[1 - at]
        other.owners.look()
        self.now += LIMITS.shared_lease_ms / 1000
        other.owners.beat()
        self.trouble = list(trouble)
        other.owners.look()
        self.trouble = []
        self.seen.update(dead.held)
        if dead.held:
            try:
                dead.queue.settle(list(dead.held.values()))
                raise AssertionError("a fenced node settled")
            except Fenced:
                pass
        self.nodes[at] = self.node()

    @rule(at=st.integers(0, 1))
    def come_back(self, at: int) -> None:
        """A beat in time: nobody is declared gone."""
        other = self.nodes[1 - at]
        other.owners.look()
        self.nodes[at].owners.beat()
        self.now += LIMITS.shared_lease_ms / 1000
        other.owners.look()
        self.nodes[at].owners.beat()

    @rule(at=st.integers(0, 1), unknown=st.booleans())
    def away(self, at: int, unknown: bool) -> None:
        """The engine does not answer: what is told to have failed has not happened."""
        self.trouble = [Fault.UNAVAILABLE]
        self.number += 1
        try:
            self.nodes[at].queue.enqueue([Message(self.number.to_bytes(4, "big"))])
            raise AssertionError("an engine that is away took a message")
        except (Unavailable, UnknownOutcome):
            self.trouble = []

    @rule(at=st.integers(0, 1), trouble=TROUBLE)
    def purge(self, at: int, trouble: list[Fault]) -> None:
        held = {content for other in self.nodes for content in other.held}
        left = [content for content in self.sent if content not in self.settled and content not in held]
        self.trouble = list(trouble)
        removed = 0
        while count := self.nodes[at].queue.purge_some(3):
            removed += count
        self.trouble = []
        assert removed == len(left)
        self.settled.update(left)

    @invariant()
    def counts_are_right(self) -> None:
        if not hasattr(self, "nodes"):
            return
        held = sum(len(node.held) for node in self.nodes)
        counts = self.nodes[0].queue.read_counts()
        assert counts.ready == len(self.sent) - len(self.settled) - held
        assert counts.leased == held

    def teardown(self) -> None:
        """Every node dies: what was not settled comes once, and then nothing is left but the queue itself."""
        if not hasattr(self, "nodes"):
            return
        for node in self.nodes:
            self.seen.update(node.held)
        last = Owners(self.engine, LIMITS, lambda: self.now)
        owner = last.register()
        last.uses(self.keys.life)
        last.look(others_are_gone=True)
        queue = SharedQueue(self.engine, self.keys, owner, LIMITS, self.order)
        left: list[bytes] = []
        while True:
            taken, _ = queue.take(10, 10_000)
            if not taken:
                break
            for one in taken:
                content = queue.load(one)
                assert one.meta.redelivered == (content in self.seen)
                left.append(content)
            queue.settle(taken)
        expected = [content for content in self.sent if content not in self.settled]
        assert sorted(left) == sorted(expected)
        if self.order == STRICT:
            assert left == expected
        last.leave()
        rows = [key for key in self.engine.state if key.startswith(self.keys.prefix)]
        known = {self.keys.alive, self.keys.signal, self.keys.counts(bytes(8)), self.keys.highest(bytes(8))}
        assert [key for key in rows if key not in known] == []


class Relaxed(Model):
    order = RELAXED


TestStrict = Model.TestCase
TestStrict.settings = settings(max_examples=60, stateful_step_count=30)
TestRelaxed = Relaxed.TestCase
TestRelaxed.settings = settings(max_examples=30, stateful_step_count=30)
