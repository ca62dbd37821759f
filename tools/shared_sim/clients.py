"""Publishers with confirms, which publish again in order what was not confirmed, and consumers that take, ack, give back and die.

in: events of the walk. out: calls of an owner; the world notes what each of them saw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.shared_sim.owner import Entry, Owner
    from tools.shared_sim.world import World

# messages that a consumer holds
HELD_MAX = 20


class Publisher:
    def __init__(self, number: int, world: World) -> None:
        self.number, self.world = number, world
        self.owner: Owner | None = None
        self.newest = 0
        self.unconfirmed: dict[int, int] = {}  # number -> attempt
        self.pending: list[int] = []  # to be published again, in their order
        self.refused: set[int] = set()

    def publish(self, is_new: bool) -> None:
        """Publishes one message. Through which node does not matter: the owner gets it."""
        if self.owner is None or self.owner.closed:
            self.owner = self.world.some_owner()
            self.pending = sorted(self.unconfirmed)
        if self.owner is None or not self.owner.node.runs() or not (is_new or self.pending):
            return
        number = self.pending[0] if self.pending else self.newest + 1
        attempt = self.unconfirmed.get(number, 0) + 1
        copy = (self.number, number, attempt)
        self.newest = max(self.newest, number)
        self.unconfirmed[number] = attempt
        if not self.owner.publish(self, copy, self.world.level(number)):
            self.owner = None
        elif self.pending:
            self.pending.pop(0)

    def publish_transaction(self, count: int) -> None:
        """R10: `count` new messages that count together, or not at all. After a failure it publishes them again one by one."""
        owner = self.owner
        if owner is None or owner.closed or owner.full or owner.moving is not None or self.pending or not owner.node.runs():
            return
        transaction = len(self.world.transactions) + 1
        self.world.transactions[transaction] = {(self.number, self.newest + number, 1) for number in range(1, count + 1)}
        for _ in range(count):
            self.newest += 1
            self.unconfirmed[self.newest] = 1
            owner.publish(self, (self.number, self.newest, 1), self.world.level(self.newest), transaction)
        owner.close_transaction(transaction)

    def confirm(self, number: int) -> None:
        self.unconfirmed.pop(number, None)
        self.pending = [one for one in self.pending if one != number]

    def refuse(self, number: int) -> None:
        """A nack: it connects once more. Other messages that were on their way may come before this one."""
        self.refused.add(number)
        self.owner = None

    def leave(self) -> None:
        self.owner = None


class Consumer:
    def __init__(self, world: World) -> None:
        self.world = world
        self.owner: Owner | None = None
        self.held: list[Entry] = []

    def _is_there(self) -> bool:
        if self.owner is not None and self.owner.closed:
            self.owner = None
            self.held = []
        return self.owner is not None and self.owner.node.runs()

    def attach(self) -> None:
        if not self._is_there() and self.owner is None:
            self.owner = self.world.some_owner()
            if self.owner is not None:
                self.owner.attach(self)

    def take(self) -> None:
        if self._is_there() and len(self.held) < HELD_MAX and self.owner is not None:
            self.owner.deliver(self)

    def ack(self, place: int) -> None:
        patience = self.world.patience
        ready = [entry for entry in self.held if not patience or entry.copy[1] % patience]
        if self._is_there() and ready and self.owner is not None:
            entry = ready[place % len(ready)]
            self.held.remove(entry)
            self.world.acked.add(entry.copy[:2])
            self.owner.end(entry)

    def give_back(self, place: int) -> None:
        if self._is_there() and self.held:
            self.held.pop(place % len(self.held)).holder = None

    def reject(self, place: int) -> None:
        """A nack without requeue: the message becomes a letter."""
        if self._is_there() and self.held and self.owner is not None:
            entry = self.held.pop(place % len(self.held))
            entry.holder = None
            self.owner.letter(entry)

    def leave(self) -> None:
        """It goes, or dies: what it holds comes back."""
        if self._is_there() and self.owner is not None:
            self.owner.detach(self)
            self.owner = None
