"""The world around nodes, clients and the engine: time in ticks, faults, and the promises.

in: events. out: `Violation`, when something that ADR 15 promises does not hold.

P1  A confirmed message is acked by a consumer before the queue is empty: none is lost.
P2  An entry whose end is durable is not delivered again.
P3  A copy that was delivered before comes with the redelivered flag.
P4  A position is one copy; that of a confirmed copy is never another one's.
P5  When everything is well again, an owner serves within a lease and some ticks, and everything is confirmed and drained.
P6  A node that ran and reached the engine for a lease does not lose a queue as a gone one.
P7  A node delivers nothing after another one took the queue.
P8  First deliveries follow the numbers of a publisher in each level. A message that was refused may come behind later ones.
P9  An owner's commit happens while the owner row is its own.
P10 At rest the engine has each end, at most twice the live messages and four segments, and no ends without a segment. A full engine
    gets room by acks.
P11 After a take-over a transaction has all of its messages that have not ended, or none.
"""

from __future__ import annotations

import random

from tools.shared_sim.clients import Consumer, Publisher
from tools.shared_sim.engine import MARK, OWNER, QUIET, Commit, Copy, Engine, Flight, Mark, OwnerRow, Position, Quiet, Segment
from tools.shared_sim.node import LEASE, PAGE, Node
from tools.shared_sim.owner import BATCH, UNMARKED, Entry, Owner
from tools.shared_sim.rules import Rules

NODES, CONSUMERS, PUBLISHERS = 3, 2, 2
# ticks behind a lease until an owner serves, and one more for each page that is written or read; until everything is confirmed, or drained
SERVES, DRAINS = 12, 150


class Violation(Exception):
    """A promise that does not hold; the text says which."""


class World:
    """Args: rules: those of the ADR, or with a mistake; chance: everything that is drawn; faults: share of commits that go wrong."""

    def __init__(self, rules: Rules, chance: random.Random, faults: float = 0.1, levels: int = 1) -> None:
        self.rules, self.chance, self.levels = rules, chance, levels
        self.now = LEASE
        self.engine = Engine(chance, faults, self.committed)
        self.nodes = {number: Node(number, self) for number in range(1, NODES + 1)}
        self.engine.rows |= {OWNER: OwnerRow(0, 1, 0), MARK: Mark(0, 0, (0,) * levels), QUIET: Quiet((0,) * levels)}
        self.publishers = [Publisher(number, self) for number in range(1, PUBLISHERS + 1)]
        self.consumers = [Consumer(self) for _ in range(CONSUMERS)]
        self.acked: set[tuple[int, int]] = set()
        self.places: dict[Position, Copy] = {}  # of confirmed copies
        self.ended: dict[Copy, int] = {}  # durable ends -> epoch
        self.delivered_copies: set[Copy] = set()
        self.delivered_numbers: set[tuple[int, int]] = set()
        self.newest: dict[tuple[int, int], int] = {}  # publisher, level -> the highest number delivered
        self.transactions: dict[int, set[Copy]] = {}
        self.over: set[Copy] = set()  # ended, durable or not
        self.take_overs = self.confirms = self.rewrites = self.letters = 0
        self.patience = 0  # each so-manyth message of a publisher is acked by nobody until the walk's end; 0: none is
        self.engine.faults = 0.0
        for _ in range(LEASE):
            self._quiet_tick(False)
        self.engine.faults = faults

    # --- what nodes and clients ask ---------------------------------------------------------------------------------

    def fail(self, text: str) -> None:
        raise Violation(text)

    def reaches(self, number: int) -> bool:
        return not self.nodes[number].parted and not self.engine.out

    def submit(self, commit: Commit) -> Flight:
        return self.engine.submit(commit, self.reaches(commit.node))

    def level(self, number: int) -> int:
        return number % self.levels

    def some_owner(self) -> Owner | None:
        owners = [node.role for node in self.nodes.values() if node.runs() and isinstance(node.role, Owner)]
        return self.chance.choice(owners) if owners else None

    # --- promises ---------------------------------------------------------------------------------------------------

    def committed(self, commit: Commit) -> None:
        """A commit is about to happen."""
        row = self.engine.rows[OWNER]
        if commit.kind == "raise":
            self.take_overs += 1
            old = self.nodes[row.node]
            is_well = old.life == row.life and old.runs() and not old.parted and self.now - old.troubled > LEASE
            if commit.gone and is_well:
                self.fail(f"P6: node {old.number} is well and loses the queue to node {commit.node}")
        elif row != OwnerRow(commit.epoch, commit.node, commit.life):
            self.fail(f"P9: a {commit.kind} of epoch {commit.epoch}, node {commit.node}, while {row} owns")
        if commit.kind == "settle":
            self._check_transactions(commit)
        self.rewrites += commit.rewrites
        for copy in commit.ends:
            self.ended.setdefault(copy, commit.epoch)
        for key, value in commit.puts.items():
            for index, copy in value.items if isinstance(value, Segment) else ():
                if self.places.get((key[1], index), copy) != copy:
                    self.fail(f"P4: position {(key[1], index)} was {self.places[key[1], index]}, and is {copy}")

    def _check_transactions(self, commit: Commit) -> None:
        rows = [row for key, row in self.engine.rows.items() if isinstance(row, Segment) and key not in commit.deletes]
        alive = {copy for row in rows for _, copy in row.items}
        for copies in self.transactions.values():
            rest = copies - self.over
            if rest & alive and not rest <= alive:
                self.fail(f"P11: {rest & alive} are there, and {rest - alive} of the same transaction are gone")

    def confirmed(self, position: Position, copy: Copy, is_stored: bool) -> None:
        self.confirms += 1
        if is_stored:
            self.places[position] = copy

    def delivered(self, owner: Owner, entry: Entry) -> None:
        publisher, number, _ = copy = entry.copy
        row = self.engine.rows[OWNER]
        if row.epoch > owner.row.epoch and row.node != owner.node.number:
            self.fail(f"P7: node {owner.node.number} delivers {copy}, and {row} owns the queue")
        if self.ended.get(copy, owner.row.epoch + 1) <= owner.row.epoch:
            self.fail(f"P2: {copy} comes again, and its end was durable")
        if copy in self.delivered_copies and not entry.flagged:
            self.fail(f"P3: {copy} was delivered before, and says nothing of it")
        level = self.level(number)
        newest = self.newest.get((publisher, level), 0)
        if (publisher, number) not in self.delivered_numbers and number < newest and number not in self.publishers[publisher - 1].refused:
            self.fail(f"P8: {copy} comes first behind {newest} of its publisher")
        self.newest[publisher, level] = max(newest, number)
        self.delivered_copies.add(copy)
        self.delivered_numbers.add((publisher, number))

    # --- events -----------------------------------------------------------------------------------------------------

    def tick(self, losses: float) -> None:
        self.now += 1
        for node in self.nodes.values():
            node.tick(self.chance.random() < losses)
        for node in self.nodes.values():
            node.look(self.chance.random() < 3 * losses)

    def step(self, number: int) -> None:
        node = self.nodes[number]
        if node.runs() and node.role is not None:
            node.role.step()

    def break_down(self, event: str, number: int) -> None:
        """kill, stop or cut off a node; an outage of the engine, or it is full."""
        node = self.nodes[number]
        if event == "kill" and node.up:
            node.kill()
        elif event == "stop":
            node.stopped = node.up
        elif event == "part":
            node.parted = True
        elif event == "out":
            self.engine.out = True
        elif event == "full":
            self.engine.full = True

    def mend(self, number: int, engine: bool) -> None:
        """The trouble of a node, or of the engine, is over."""
        node = self.nodes[number]
        if engine:
            self.engine.out = self.engine.full = False
            return
        node.stopped = node.parted = False
        if not node.up:
            node.start()

    def move(self, number: int) -> None:
        owner = self.some_owner()
        row = self.engine.rows.get(("node", number))
        if owner is not None and row is not None and owner.node.number != number and owner.moving is None:
            owner.move(OwnerRow(0, number, row[0]))

    # --- the end ----------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Faults stop: everything must be confirmed, drained and tidy (P1, P5, P10)."""
        self.engine.out = self.engine.full = False
        self.engine.faults, self.patience = 0.0, 0
        for number in self.nodes:
            self.mend(number, engine=False)
        for consumer in self.consumers:
            consumer.leave()
        backlog = sum(len(node.role.unsent) for node in self.nodes.values() if isinstance(node.role, Owner))
        for tick in range(LEASE + SERVES + (len(self.engine.rows) + backlog) // PAGE):
            if tick > LEASE and self._owner() is not None:
                break
            self._quiet_tick(False)
        if self._owner() is None:
            self.fail(f"P5: nobody serves; the owner row is {self.engine.rows[OWNER]}")
        self._until(lambda: not any(one.unconfirmed for one in self.publishers), False, "P5: a message is not confirmed")
        self._until(self._has_room, False, "P10: the engine has more than twice what lives, or not each end")
        if self.chance.random() < 0.3:
            self.engine.full = True
            self._until(lambda: self._stored() <= UNMARKED * BATCH, True, "P10: acks give a full engine no room")
            self.engine.full = False
        self._until(
            lambda: not any(key[0] in ("seg", "ends", "transaction") for key in self.engine.rows), True, "P10: rows of an empty queue stay"
        )
        for publisher in self.publishers:
            for number in range(1, publisher.newest + 1):
                if (publisher.number, number) not in self.acked:
                    self.fail(f"P1: message {number} of publisher {publisher.number} was confirmed, and is gone")

    def _owner(self) -> Owner | None:
        role = self.nodes[self.engine.rows[OWNER].node].role
        return role if isinstance(role, Owner) and role.row == self.engine.rows[OWNER] else None

    def _stored(self) -> int:
        return sum(len(row.items) for row in self.engine.rows.values() if isinstance(row, Segment))

    def _has_room(self) -> bool:
        owner = self._owner()
        if owner is None:
            return False
        live = sum(not entry.ended for entry in owner.state.entries.values())
        orphans = [key for key in self.engine.rows if key[0] == "ends" and ("seg", *key[1:]) not in self.engine.rows]
        if any(owner.ended(one) != self.engine.rows.get(("ends", *key[1:]), frozenset()) for key, one in owner.state.stored.items()):
            return False
        return not orphans and self._stored() <= 2 * live + 4 * BATCH

    def _until(self, is_done: object, consumes: bool, text: str) -> None:
        assert callable(is_done)
        for _ in range(DRAINS):
            if is_done():
                return
            self._quiet_tick(consumes)
        self.fail(text)

    def _quiet_tick(self, consumes: bool) -> None:
        self.tick(0.0)
        for number, node in self.nodes.items():
            node.observe()
            for _ in range(3):
                self.step(number)
                for _ in range(8):
                    self.engine.turn(0, self.reaches)
        for publisher in self.publishers:
            for _ in range(8):
                publisher.publish(False)
        for consumer in self.consumers if consumes else ():
            consumer.attach()
            for _ in range(4):
                consumer.take()
                consumer.ack(0)


# how often an event comes, in a walk that has no kind of its own
WEIGHTS = {
    "step": 250,
    "engine": 300,
    "publish": 110,
    "transaction": 5,
    "take": 80,
    "ack": 60,
    "attach": 25,
    "tick": 110,
    "observe": 60,
    "back": 8,
    "reject": 8,
    "die": 6,
    "lose": 5,
    "kill": 5,
    "stop": 5,
    "part": 5,
    "out": 1,
    "full": 2,
    "move": 2,
    "mend": 30,
}
# and of walks of a kind, the events that differ
KINDS: tuple[dict[str, int], ...] = (
    {},
    {"kill": 12, "observe": 100},
    {"part": 15, "stop": 15},
    {"move": 10, "die": 15},
    {"tick": 200, "out": 6, "full": 0},
    {"full": 8, "out": 0, "ack": 120},
    {"publish": 200, "take": 150, "ack": 150, "kill": 3, "part": 1, "stop": 1},
    {"publish": 300, "take": 300, "ack": 300, "tick": 40, "observe": 30, "die": 2, "kill": 2, "part": 1, "stop": 1},
    {"transaction": 50, "publish": 5, "take": 350, "ack": 350, "step": 150, "engine": 250, "kill": 12},
    {"engine": 150, "publish": 200, "take": 300, "ack": 300, "kill": 2, "part": 1, "stop": 1},
    {"ack": 25, "take": 120, "attach": 60, "die": 20},
)


def draw_event(world: World, weights: dict[str, int], losses: float) -> None:
    """One event of the random walk."""
    chance = world.chance
    number, place = chance.randint(1, NODES), chance.randrange(1 << 16)
    event = chance.choices(list(weights), list(weights.values()))[0]
    consumer = chance.choice(world.consumers)
    if event == "step":
        busy = [node.number for node in world.nodes.values() if node.role is not None]
        world.step(chance.choice(busy) if busy and place % 8 else number)
    elif event == "engine":
        world.engine.turn(place, world.reaches)
    elif event == "publish":
        chance.choice(world.publishers).publish(True)
    elif event == "transaction":
        chance.choice(world.publishers).publish_transaction(2 + place % 11)
    elif event in ("take", "attach"):
        getattr(consumer, event)()
    elif event == "ack":
        consumer.ack(0 if place % 3 == 0 else place)
    elif event == "back":
        consumer.give_back(place)
    elif event == "reject":
        consumer.reject(place)
    elif event == "die":
        consumer.leave()
    elif event == "lose":
        chance.choice(world.publishers).leave()
    elif event == "tick":
        world.tick(losses)
    elif event == "observe":
        world.nodes[number].observe()
    elif event == "mend":
        world.mend(number, place % 4 == 0)
    elif event == "move":
        world.move(number)
    else:
        world.break_down(event, number)


def walk(rules: Rules, seed: int, steps: int) -> World:
    """A random walk to its end, when everything is well again. Raises: Violation."""
    chance = random.Random(seed)
    world = World(rules, chance, chance.choice((0.02, 0.1, 0.25)), chance.choice((1, 1, 2)))
    world.patience = chance.choice((0, 3, 4))
    weights = WEIGHTS | chance.choice(KINDS)
    losses = chance.choice((0.0, 0.05, 0.15))
    for _ in range(steps):
        draw_event(world, weights, losses)
    world.heal()
    return world
