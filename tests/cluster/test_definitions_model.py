"""Definitions on several nodes under faults: all nodes become equal, and no acknowledged change is lost but to a later one."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flintmq.engines.engine import Commit
from flintmq.engines.memory import MemoryStore
from flintmq.errors import PeerError, ReplyCode
from flintmq.ports import BindingRecord, ExchangeRecord, ParameterRecord, PermissionRecord, UserRecord, VhostRecord
from flintmq.shared.definition_rows import Record, SharedQueue, key_of, new_token
from flintmq.shared.queue_rows import QueueRow, queue_key
from tests.cluster.several_nodes import Answer, NodeOfMany, Nodes, shown
from tests.twins.faulty_engine import RandomPlan

NEVER = 10**9


class Register:
    """The changes of one definition: (begin, end, value); a value of None: it is gone. One that was not acknowledged may happen at any
    time."""

    def __init__(self, first: str | None) -> None:
        self.changes: list[tuple[int, int, str | None]] = [(0, 0, first)]

    def may_be(self, value: str | None) -> bool:
        return any(
            one == value and not any(end < begin for begin, later, _ in self.changes if later < NEVER) for _, end, one in self.changes
        )


class History:
    """What was asked of the nodes, and when."""

    def __init__(self) -> None:
        self.now = 1
        self.changes: list[list[Any]] = []  # record, begin, answer, end, gone

    def note(self, answer: Answer, record: Record, gone: bool) -> None:
        self.changes.append([record, self.now, answer, NEVER, gone])

    def look(self) -> None:
        """A moment passes."""
        self.now += 1
        for change in self.changes:
            if change[3] == NEVER and change[2].is_good:
                change[3] = self.now
        self.now += 1

    def registers(self, first: dict[bytes, Any]) -> dict[bytes, Register]:
        registers = {key: Register(value) for key, value in first.items()}
        happened = [one for one in self.changes if one[2].is_good or may_still(one[2])]
        for record, *_ in happened:
            registers.setdefault(key_of(record), Register(None))
        for record, begin, _, end, gone in happened:
            registers[key_of(record)].changes.append((begin, end, None if gone else shown(record)))
            for other, *_ in happened if gone else ():
                if hangs(other, record):
                    registers[key_of(other)].changes.append((begin, end, None))
        return registers


def may_still(answer: Answer) -> bool:
    """Whether a change that was not acknowledged may happen: its asker was told that the engine does not answer."""
    error = answer.error
    return not answer.is_over or (isinstance(error, PeerError) and error.code == ReplyCode.INTERNAL_ERROR)


def hangs(one: Record, on: Record) -> bool:
    if isinstance(on, UserRecord):
        return getattr(one, "user", None) == on.name
    if isinstance(on, VhostRecord):
        return getattr(one, "vhost", None) == on.name
    if isinstance(on, SharedQueue):
        return isinstance(one, BindingRecord) and one.destination_kind == "queue"
    if isinstance(on, ExchangeRecord) and isinstance(one, BindingRecord) and one.vhost == on.vhost and one.destination_kind == "exchange":
        return on.name in (one.source, one.destination)
    return False


class Client:
    """Asks nodes for changes by chance."""

    def __init__(self, chance: random.Random, history: History, store: MemoryStore) -> None:
        self.chance = chance
        self.history = history
        self.store = store

    def ask(self, node: NodeOfMany) -> None:
        kinds = (self._user, self._permission, self._policy, self._global, self._vhost, *2 * (self._exchange, self._binding))
        kinds = (*kinds, self._queue, self._queue_binding)
        self.chance.choice(kinds)(node)

    def _ends(self) -> bool:
        return self.chance.random() < 0.35

    def _user(self, node: NodeOfMany) -> None:
        record = UserRecord(self.chance.choice("uv"), "", (self.chance.choice(["administrator", "management"]),))
        if self._ends():
            self.history.note(node.ask("delete_users", [record.name]), record, True)
        else:
            self.history.note(node.ask("put_user", record.name, list(record.tags)), record, False)

    def _vhosts(self) -> str:
        return self.chance.choice(["/", "a"])

    def _permission(self, node: NodeOfMany) -> None:
        record = PermissionRecord(self.chance.choice("uv"), self._vhosts(), self.chance.choice(["x", "y"]), "", "")
        if self._ends():
            self.history.note(node.ask("clear_permission", record.vhost, record.user), record, True)
        else:
            patterns = {"configure": record.configure, "write": "", "read": ""}
            self.history.note(node.ask("put_permission", record.vhost, record.user, patterns), record, False)

    def _policy(self, node: NodeOfMany) -> None:
        value = {"pattern": "", "apply-to": "all", "priority": self.chance.randrange(3), "definition": {"max-length": 5}}
        record = ParameterRecord("policy", self._vhosts(), "p", value)
        if self._ends():
            self.history.note(node.ask("delete_policy", record.vhost, "p"), record, True)
        else:
            self.history.note(node.ask("put_policy", record.vhost, "p", value), record, False)

    def _global(self, node: NodeOfMany) -> None:
        record = ParameterRecord("global", "", "g", self.chance.randrange(3))
        if self._ends():
            self.history.note(node.ask("delete_global", "g"), record, True)
        else:
            self.history.note(node.ask("put_global", "g", record.value), record, False)

    def _vhost(self, node: NodeOfMany) -> None:
        record = VhostRecord("a", self.chance.choice(["one", "two"]))
        if self._ends():
            self.history.note(node.ask("delete_vhost", "a"), record, True)
        else:
            self.history.note(node.ask("put_vhost", "a", {"description": record.description}), record, False)

    def _exchange(self, node: NodeOfMany) -> None:
        record = ExchangeRecord(self._vhosts(), self.chance.choice("xyz"), self.chance.choice(["direct", "fanout"]))
        host = node.broker.vhosts.get(record.vhost)
        if host is None:
            return
        known = record.name in host.exchanges
        if known and self._ends():
            self.history.note(node.ask_vhost(record.vhost, "delete_exchange", record.name), record, True)
        elif not known:
            self.history.note(node.exchange(record.name, record.kind, record.vhost), record, False)

    def _binding(self, node: NodeOfMany) -> None:
        vhost, source, destination = self._vhosts(), self.chance.choice(["x", "amq.topic"]), self.chance.choice("yz")
        record = BindingRecord(vhost, source, "exchange", destination, b"k")
        host = node.broker.vhosts.get(vhost)
        if host is None:
            return
        known = node.local.twin(record) is not None
        if known and self._ends():
            self.history.note(node.ask_vhost(vhost, "unbind_exchange", destination, source, b"k"), record, True)
        elif not known:
            self.history.note(node.ask_vhost(vhost, "bind_exchange", destination, source, b"k"), record, False)

    def _queue(self, node: NodeOfMany) -> None:
        """The rows of shared queues are written by who declares and deletes them, before their node knows."""
        key = queue_key("/", "s")
        row = QueueRow(new_token().encode(), {"x-queue-type": "shared"})
        answer = Answer()
        if key not in self.store.rows:
            answer.done(self.store.apply(Commit((), {key: row.pack()})), None)
            self.history.note(answer, SharedQueue("/", "s", row), False)
        elif self._ends():
            answer.done(self.store.apply(Commit((), {}, [key])), None)
            self.history.note(answer, SharedQueue("/", "s", row), True)

    def _queue_binding(self, node: NodeOfMany) -> None:
        record = BindingRecord("/", "amq.topic", "queue", "s", b"k")
        if "s" not in node.broker.vhosts["/"].queues:
            return
        known = node.local.twin(record) is not None
        if known and self._ends():
            self.history.note(node.ask_vhost("/", "unbind_queue", "s", "amq.topic", b"k"), record, True)
        elif not known:
            self.history.note(node.ask_vhost("/", "bind_queue", "s", "amq.topic", b"k"), record, False)


async def play(seed: int, share: float, steps: int) -> None:
    chance = random.Random(seed)
    plan = RandomPlan(seed, 0.0)
    nodes = Nodes(plan)
    try:
        await nodes.start()
        await nodes.start()
        await nodes.settle()
        first = nodes.nodes[0].world()
        history = History()
        client = Client(chance, history, nodes.store)
        plan.share = share
        for _ in range(steps):
            client.ask(chance.choice(nodes.nodes))
            for _ in range(chance.choice([0, 0, 1, 5, 40])):
                await asyncio.sleep(0)
            history.look()
            await move(nodes, plan, chance)
        plan.share = 0.0
        while plan.late:
            await plan.let_happen()
        await nodes.settle()
        history.look()
        check(history, first, nodes)
    finally:
        plan.share = 0.0
        await nodes.close()


async def move(nodes: Nodes, plan: RandomPlan, chance: random.Random) -> None:
    """A watch is lost, a late commit happens, a node goes and comes again."""
    event = chance.random()
    if event < 0.05:
        chance.choice(nodes.engines[-len(nodes.nodes) :]).lose_watches()
    elif event < 0.1 and plan.late:
        await plan.let_happen(chance.randrange(len(plan.late)))
    elif event < 0.13:
        stored = await nodes.stop(chance.choice(nodes.nodes))
        await nodes.start(stored, wait=False)
    elif event < 0.15 and len(nodes.nodes) < 3:
        await nodes.start(wait=False)


def check(history: History, first: dict[bytes, Any], nodes: Nodes) -> None:
    world = nodes.nodes[0].world()
    for key, register in history.registers(first).items():
        assert register.may_be(world.get(key)), (key, world.get(key), register.changes)
    assert not [why for node in nodes.nodes for why in node.cluster.refusals.values()]


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.1, 0.4]))
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_nodes_become_equal_and_no_acknowledged_change_is_lost_but_to_a_later_one(seed: int, share: float) -> None:
    asyncio.run(play(seed, share, 40))
