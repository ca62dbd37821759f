"""The world around the members: a network that loses, doubles and reorders, a coordinator with a lease, clocks that differ, kills.

in: events. out: `Violation`, when something that ADR 13 promises does not hold.

P1  What was confirmed is never confirmed as something else, and the log of each leader that becomes active has all of it.
P2  One leader at most confirms in an epoch.
P3  What members know to be confirmed agrees: the same blocks in the same places.
P4  When everything is well again, somebody leads and has all that was confirmed.
"""

from __future__ import annotations

import random

from tools.replication_sim.member import COORDINATOR, Letter, Member, Phase
from tools.replication_sim.rules import Block, Config, Rules

# units of time of a lease; rounds after which P4 must hold
LEASE, ROUNDS = 10.0, 60
LETTERS_MAX = 25
MEMBERS_MAX = 5


class Violation(Exception):
    """A promise that does not hold; the text says which."""


class Coordinator:
    """What etcd does here: one epoch at a time, a lease, the active configuration. Each call is one transaction."""

    def __init__(self, rules: Rules, config: Config) -> None:
        self.rules = rules
        self.now = 0.0
        self.epoch = 0
        self.active: Config = config
        self.active_epoch = 0
        self.holder = 0
        self.until = 0.0

    def answer(self, letter: Letter) -> Letter | None:
        sender = letter.sender
        if letter.kind == "campaign":
            asked, config = letter.body
            held = self.now < self.until and self.holder != sender
            if held or sender not in self.active or (config is not None and self.holder != sender):
                return Letter("denied", COORDINATOR, sender, self.epoch, (asked,))
            if self.rules.raises_epoch() or self.holder == sender or self.epoch == 0:
                self.epoch += 1
            self.holder, self.until = sender, self.now + LEASE
            return Letter("elected", COORDINATOR, sender, self.epoch, (asked, self.active, config or self.active))
        if letter.kind == "activate":
            done = self.rules.may_activate(letter.epoch, self.epoch)
            if done:
                self.active, self.active_epoch = letter.body[0], letter.epoch
            return Letter("activated", COORDINATOR, sender, letter.epoch, (done,))
        if letter.kind == "renew" and self.holder == sender and letter.epoch == self.epoch:
            self.until = self.now + LEASE
        return None


class World:
    """Args: rules: those of the ADR, or with a mistake; chance: everything that is drawn."""

    def __init__(self, rules: Rules, chance: random.Random, count: int = 3) -> None:
        self.rules = rules
        self.chance = chance
        first = frozenset(range(1, count + 1))
        self.coordinator = Coordinator(rules, first)
        self.members: dict[int, Member] = {}
        self.up: set[int] = set()
        self.letters: list[Letter] = []
        self.apart: set[frozenset[int]] = set()
        self.confirmed: list[Block] = []  # by index
        self.confirmers: dict[int, int] = {}  # epoch -> who confirmed in it
        self.known_active = 0
        self._contents = 0
        self._newest = count
        for number in first:
            self.add_member(number)

    def add_member(self, number: int) -> None:
        self.members[number] = Member(number, self.rules, self.post, self.told)
        self.up.add(number)

    # --- events -----------------------------------------------------------------------------------------------------

    def post(self, letter: Letter) -> None:
        if len(self.letters) >= LETTERS_MAX:
            self.letters.pop(self.chance.randrange(LETTERS_MAX))
        self.letters.append(letter)

    def deliver(self, place: int, twice: bool = False) -> None:
        """One of the letters that are on their way arrives, in any order."""
        if not self.letters:
            return
        place %= len(self.letters)
        letter = self.letters[place] if twice else self.letters.pop(place)
        if frozenset((letter.sender, letter.receiver)) in self.apart:
            return
        if letter.receiver == COORDINATOR:
            answer = self.coordinator.answer(letter)
            if answer is not None:
                self.post(answer)
        elif letter.receiver in self.up:
            self.members[letter.receiver].receive(letter)
        self.look()

    def lose(self, place: int) -> None:
        if self.letters:
            self.letters.pop(place % len(self.letters))

    def sync(self, number: int) -> None:
        if number in self.up:
            self.members[number].sync()
            self.look()

    def kill(self, number: int) -> None:
        """The power of a machine goes: what it had not synced may be gone."""
        if number in self.up:
            self.up.discard(number)
            self.members[number].disk.lose_power(self.chance)

    def start(self, number: int) -> None:
        if number not in self.up and number in self.members:
            self.members[number].restart()
            self.up.add(number)

    def new_disk(self, number: int) -> None:
        """A machine that is down gets an empty disk. Under R12 it never comes back as this member."""
        if number in self.up or number not in self.members:
            return
        if self.rules.new_disk_is_new_member():
            del self.members[number]
        else:
            self.add_member(number)

    def part(self, one: int, other: int) -> None:
        if one != other:
            self.apart ^= {frozenset((one, other))}

    def pass_time(self, amount: float) -> None:
        """On the coordinator's clock. Members have none that counts: each may campaign, or go on to lead, at any moment (skew)."""
        self.coordinator.now += amount

    def campaign(self, number: int) -> None:
        """A member believes that nobody leads: rightly, or since its clock is wrong."""
        if number in self.up and self.members[number].phase in (Phase.FOLLOWS, Phase.CAMPAIGNS):
            self.members[number].campaign()

    def step_down(self, number: int) -> None:
        """A leader, or candidate, believes that its lease is over."""
        if number in self.up:
            self.members[number].step_down()

    def renew(self, number: int) -> None:
        member = self.members.get(number)
        if member is not None and number in self.up and member.phase is not Phase.FOLLOWS:
            self.post(Letter("renew", number, COORDINATOR, member.lead.epoch))

    def again(self, number: int) -> None:
        if number in self.up:
            self.members[number].again()

    def submit(self, number: int) -> None:
        if number in self.up:
            self._contents += 1
            self.members[number].submit(self._contents)
            self.look()

    def change_members(self, number: int, kept: int, added: int) -> None:
        """The leader `number` asks for other members: itself, `kept` of those that are, and `added` new machines. Any change is allowed."""
        member = self.members.get(number)
        if member is None or number not in self.up or member.phase is not Phase.LEADS:
            return
        others = sorted(member.lead.config - {number})
        config = {number, *self.chance.sample(others, min(kept, len(others)))}
        for _ in range(min(added, MEMBERS_MAX - len(config))):
            self._newest += 1
            self.add_member(self._newest)
            config.add(self._newest)
        member.campaign(frozenset(config))

    # --- promises ---------------------------------------------------------------------------------------------------

    def told(self, number: int, epoch: int, index: int, block: Block) -> None:
        """A leader confirms a block (P1, P2)."""
        if self.confirmers.setdefault(epoch, number) != number:
            raise Violation(f"P2: members {self.confirmers[epoch]} and {number} both confirm in epoch {epoch}")
        if index <= len(self.confirmed):
            if self.confirmed[index - 1] != block:
                raise Violation(f"P1: block {index} was confirmed as {self.confirmed[index - 1]}, and now is {block}")
            return
        self.confirmed.append(block)

    def look(self) -> None:
        """P1 of who became active, P3 of everybody."""
        for number in sorted(self.up):
            member = self.members[number]
            log = member.disk.log
            if member.phase is Phase.LEADS and member.lead.epoch > self.known_active:
                self.known_active = member.lead.epoch
                if log[: len(self.confirmed)] != self.confirmed:
                    raise Violation(f"P1: member {number} leads epoch {member.lead.epoch} without all that was confirmed")
            if log[: member.confirmed] != self.confirmed[: member.confirmed]:
                raise Violation(f"P3: member {number} has other blocks than those that were confirmed")

    def heal(self) -> None:
        """Machines run, the network delivers: somebody must lead, and have everything (P4)."""
        self.apart.clear()
        for number in list(self.members):
            self.start(number)
        for number in range(ROUNDS):
            self._quiet_round(gives_up=number % 6 == 5)
            leaders = [m for m in self.members.values() if m.phase is Phase.LEADS and m.lead.epoch == self.coordinator.active_epoch]
            if leaders and leaders[0].confirmed == len(leaders[0].disk.log):
                if leaders[0].disk.log[: len(self.confirmed)] != self.confirmed:
                    raise Violation("P4: something that was confirmed is gone")
                return
        alive = [number for number in self.coordinator.active if number in self.members]
        if 2 * len(alive) > len(self.coordinator.active):
            raise Violation("P4: nobody leads although a majority runs and can talk")

    def _quiet_round(self, gives_up: bool) -> None:
        """gives_up: the time of a candidate is over; it may wait for a machine that is no more."""
        for member in self.members.values():
            if gives_up and member.phase is not Phase.LEADS:
                member.step_down()
        if all(member.phase is Phase.FOLLOWS for member in self.members.values()):
            self.pass_time(LEASE + 1)
            self.campaign(self.chance.choice(sorted(self.coordinator.active)))
        for number in sorted(self.members):
            self.again(number)
        for _ in range(3 * LETTERS_MAX):
            if not self.letters:
                break
            self.deliver(0)
            for number in sorted(self.members):
                self.sync(number)


# how often what happens, of a walk that has no kind of its own
WEIGHTS = {
    "deliver": 700,
    "sync": 180,
    "submit": 120,
    "again": 30,
    "campaign": 20,
    "pass_time": 20,
    "lose": 30,
    "kill": 15,
    "start": 30,
    "part": 7,
    "renew": 8,
    "step_down": 4,
    "change": 8,
    "new_disk": 1,
}
# and of walks of a kind: what differs
KINDS: tuple[dict[str, int], ...] = (
    {},
    {"kill": 60, "start": 90, "sync": 120},
    {"change": 40, "campaign": 40, "pass_time": 40},
    {"part": 40, "campaign": 60, "pass_time": 60},
    {"change": 50, "kill": 30, "start": 60, "part": 20, "campaign": 50, "pass_time": 50, "submit": 200},
    {"sync": 60, "kill": 40, "start": 80, "campaign": 60, "pass_time": 60},
)


def draw_event(world: World, weights: dict[str, int]) -> None:
    """One event of the random walk."""
    chance = world.chance
    numbers = sorted(world.members)
    one, other, place = chance.choice(numbers), chance.choice([COORDINATOR, *numbers]), chance.randrange(1 << 16)
    leader = chance.choice([number for number in numbers if world.members[number].phase is Phase.LEADS] or numbers)
    event = chance.choices(list(weights), list(weights.values()))[0]
    if event == "deliver":
        world.deliver(place, twice=chance.random() < 0.1)
    elif event == "submit":
        world.submit(leader)
    elif event == "pass_time":
        world.pass_time(chance.uniform(0, LEASE))
    elif event == "lose":
        world.lose(place)
    elif event == "part":
        world.part(one, other)
    elif event == "change":
        world.change_members(leader, chance.randint(0, 2), chance.randint(0, 2))
    else:
        getattr(world, event)(one)


def walk(rules: Rules, seed: int, steps: int) -> World:
    """A random walk, and what is left of it when everything is well again. Raises: Violation."""
    chance = random.Random(seed)
    world = World(rules, chance, chance.choice((3, 3, 5)))
    weights = WEIGHTS | chance.choice(KINDS)
    for _ in range(steps):
        if world.members:
            draw_event(world, weights)
    world.heal()
    return world
