"""A stream with a group, told as a journal: what clients may see of a right broker over kills and stops, or of one that breaks one rule.

in: a random generator, a defect's name (or none). out: events for tools.faults.stream_checker, and how often the defect struck.
Streams: `k` keeps everything, has a delivery limit and a dead-letter queue; `s` is kept short. One group `g` on each. No sockets, no time:
stamps are made up, states of groups are saved now and then, and a kill goes back to the saved one.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any

from tools.faults import journal as j

# defect -> verdicts that may name it
DEFECTS: dict[str, set[str]] = {
    "loses-confirmed": {"lost", "moved", "twice", "reorder"},
    "gives-an-offset-again": {"moved", "lost"},
    "appends-twice": {"twice"},
    "swaps-two": {"reorder"},
    "invents": {"phantom"},
    "keeps-rolled-back": {"phantom"},
    "corrupts": {"corrupt"},
    "skips-alone": {"gap"},
    "starts-elsewhere": {"gap"},
    "skips-for-the-group": {"skipped"},
    "retains-in-silence": {"skipped", "gap"},
    "tells-a-loss-that-was-none": {"skipped"},
    "forgets-a-return": {"dropped"},
    "forgets-a-letter": {"unburied", "dropped"},
    "buries-what-nobody-refused": {"undead"},
    "forgets-an-ack": {"resurrected"},
    "goes-far-back": {"resurrected"},
    "goes-back-after-a-stop": {"resurrected"},
    "drops-the-flag": {"unflagged"},
    "recovers-unflagged": {"unflagged"},
    "gives-to-two": {"duplicate", "resurrected"},
    "ignores-the-limit": {"overlimit"},
    "gives-nothing": {"undrained"},
}
LIMIT = 2
ARGUMENTS: dict[str, dict[str, Any]] = {"k": {"x-delivery-limit": LIMIT, "x-dead-letter-exchange": ""}, "s": {"x-max-age": "1s"}}
MS = 1_000_000


@dataclass
class Item:
    """An open offset."""

    state: str = "ready"
    owner: str = ""
    count: int = 0


@dataclass
class Group:
    next: int = 0
    open: dict[int, Item] = field(default_factory=dict)
    flagged: int = 0
    lost: int = 0
    lost_all: int = 0


class Model:
    """One run: `steps` random steps, then the end. `events` is the journal, `struck` how often the defect did its wrong."""

    def __init__(self, rng: random.Random, defect: str = "", steps: int = 400) -> None:
        assert not defect or defect in DEFECTS
        self.rng, self.defect, self.struck = rng, defect, 0
        self.now, self.life, self.names = 0, 0, 0
        self.events: list[j.Event] = []
        self.log: dict[str, list[j.Ref]] = {"k": [], "s": []}  # durable
        self.pending: dict[str, list[j.Ref]] = {"k": [], "s": []}
        self.first = {"k": 0, "s": 0}
        self.groups = {name: Group() for name in ARGUMENTS}
        self.saved = copy.deepcopy(self.groups)
        self.older: list[dict[str, Group]] = []
        self.letters: list[tuple[str, j.Ref]] = []
        self.members: list[str] = []
        self.dead: set[str] = set()
        self.sequence = 0
        self.begin(clean=True)
        for name, arguments in ARGUMENTS.items():
            self.add(j.STREAM, self.life, name, arguments)
            self.add(j.SEAT, self.members[0], name, "g", 0)
        for _ in range(steps):
            self.step()
        self.finish()

    def add(self, kind: str, *fields: Any) -> None:
        self.now += self.rng.randint(1, 20) * MS
        self.events.append([self.now, kind, *fields])

    def strikes(self, name: str, share: float = 0.3) -> bool:
        struck = self.defect == name and self.rng.random() < share
        self.struck += struck
        return struck

    def open(self, role: str) -> str:
        self.names += 1
        name = f"{role}{self.names}"
        self.add(j.OPEN, name, self.life, role, [])
        return name

    # --- lives ------------------------------------------------------------------------------------------------------
    def begin(self, clean: bool) -> None:
        self.life += 1
        self.sequence = 0
        self.add(j.LIFE, self.life, "ready")
        self.producer = self.open("p")
        self.members = [self.open("m"), self.open("m")]
        for name, group in self.groups.items():
            if not clean and not self.strikes("recovers-unflagged", 1.0):
                group.flagged = len(self.log[name])
            for item in group.open.values():
                item.state, item.owner = "ready", ""

    def save(self) -> None:
        self.older.append(self.saved)
        self.saved = copy.deepcopy(self.groups)

    def kill(self) -> None:
        self.add(j.LIFE, self.life, "killed")
        for name in self.log:
            kept = self.rng.randint(0, len(self.pending[name]))  # written, perhaps, and never confirmed
            self.log[name] += self.pending[name][:kept]
            self.pending[name] = []
            if self.log[name] and self.strikes("loses-confirmed", 0.5):
                self.log[name].pop()
        self.groups = copy.deepcopy(self.saved)
        if self.older and self.strikes("goes-far-back", 0.5):
            self.groups = copy.deepcopy(self.older[0])
        for name, group in self.groups.items():  # the stream may have lost its end
            group.next = min(group.next, len(self.log[name]))
            group.open = {offset: item for offset, item in group.open.items() if offset < group.next}
        self.begin(clean=False)

    def stop(self) -> None:
        for name in self.log:
            self.sync(name)
        for member in self.members:
            self.drop(member, graceful=True)
        older = self.older[-1] if self.older else self.saved
        self.save()
        if self.strikes("goes-back-after-a-stop", 1.0):
            self.groups = copy.deepcopy(older)
            for name, group in self.groups.items():
                group.flagged = len(self.log[name])
        for group in self.groups.values():
            group.flagged = max(group.flagged, group.next)
        self.saved = copy.deepcopy(self.groups)
        self.add(j.LIFE, self.life, "stopped")
        self.begin(clean=True)

    # --- publishing -------------------------------------------------------------------------------------------------
    def publish(self, name: str) -> None:
        self.sequence += 1
        ref = (self.producer, self.sequence)
        tx = f"t{self.now}" if self.rng.random() < 0.2 else ""
        self.add(j.PUBLISH, *ref, [name], 10, 99, tx)
        if tx and self.rng.random() < 0.5:
            self.add(j.OUTCOME, tx, "rolled")
            if not self.strikes("keeps-rolled-back"):
                return
        elif tx:
            self.sync(name)
            self.add(j.COMMIT, tx, self.producer)
            self.log[name].append(ref)
            self.add(j.OUTCOME, tx, "ok")
            return
        self.pending[name].append(ref)
        if self.strikes("appends-twice"):
            self.pending[name].append(ref)
        if self.strikes("invents"):
            self.pending[name].append((self.producer, self.sequence + 1_000_000))

    def sync(self, name: str) -> None:
        pending, self.pending[name] = self.pending[name], []
        if len(pending) > 1 and self.strikes("swaps-two"):
            pending[:2] = reversed(pending[:2])
        if self.log[name] and pending and self.strikes("gives-an-offset-again"):
            self.log[name].pop()
        self.log[name] += pending
        sure = sorted({ref[1] for ref in pending if ref[0] == self.producer and ref[1] < 1_000_000})
        if sure and self.rng.random() < 0.9:
            self.add(j.CONFIRM, self.producer, sure, 1)

    def read(self, session: str, name: str, group: str, offset: int, ref: j.Ref, flag: bool, lost: int, death: list[str]) -> None:
        crc = 98 if self.strikes("corrupts", 0.02) else 99
        self.add(j.READ, session, name, group, offset, *ref, 10, crc, int(flag), 1, lost, death)

    # --- the group --------------------------------------------------------------------------------------------------
    def take(self, name: str, member: str) -> bool:
        group = self.groups[name]
        ready = sorted(offset for offset, item in group.open.items() if item.state == "ready")
        for offset in ready:
            if offset >= self.first[name]:
                self.hand_out(name, member, offset, group.open[offset])
                return True
            del group.open[offset]
            group.lost += 1
            group.lost_all += 1
        if group.next < self.first[name]:
            if not self.strikes("retains-in-silence", 1.0):
                group.lost += self.first[name] - group.next
                group.lost_all += self.first[name] - group.next
            group.next = self.first[name]
        if group.next < len(self.log[name]) - 1 and self.strikes("skips-for-the-group", 0.1):
            group.next += 1
        if group.next >= len(self.log[name]):
            return False
        group.next += 1
        group.open[group.next - 1] = Item()
        self.hand_out(name, member, group.next - 1, group.open[group.next - 1])
        return True

    def hand_out(self, name: str, member: str, offset: int, item: Item) -> None:
        group = self.groups[name]
        flag = item.count > 0 or offset < group.flagged
        if flag and self.strikes("drops-the-flag", 0.1):
            flag = False
        if name == "k" and self.strikes("tells-a-loss-that-was-none", 0.05):
            group.lost += 1
        item.state, item.owner = "held", member
        item.count += 1
        lost, group.lost = group.lost, 0
        self.read(member, name, "g", offset, self.log[name][offset], flag, lost, [])
        if self.strikes("gives-to-two", 0.05):
            self.read(next(m for m in self.members if m != member), name, "g", offset, self.log[name][offset], True, 0, [])

    def held(self, name: str) -> list[tuple[int, Item]]:
        return [(offset, item) for offset, item in self.groups[name].open.items() if item.state == "held"]

    def settle(self, name: str, offset: int, item: Item, how: str) -> None:
        member = item.owner
        self.add(j.SETTLE, member, name, "g", [offset], how, "")
        if how == "ack" and self.strikes("forgets-an-ack", 0.1):
            self.add(j.KNOWN, member)
            item.state = "ready"
        elif how == "requeue":
            self.back(name, offset, item)
        else:
            del self.groups[name].open[offset]
            if how == "reject" and name == "k":
                self.bury("rejected", offset)
            if how == "ack" and name == "k" and self.strikes("buries-what-nobody-refused", 0.2):
                self.bury("rejected", offset)
        if self.rng.random() < 0.3:
            self.add(j.KNOWN, member)

    def bury(self, reason: str, offset: int) -> None:
        if not self.strikes("forgets-a-letter"):
            self.letters.append((reason, self.log["k"][offset]))

    def back(self, name: str, offset: int, item: Item) -> None:
        item.state, item.owner = "ready", ""
        if name == "k" and item.count > LIMIT and not self.strikes("ignores-the-limit", 1.0):
            del self.groups[name].open[offset]
            self.bury("delivery_limit", offset)
        elif self.strikes("forgets-a-return"):
            del self.groups[name].open[offset]

    def drop(self, member: str, graceful: bool) -> None:
        for name in self.groups:
            for offset, item in self.held(name):
                if item.owner == member:
                    self.back(name, offset, item)
        self.add(j.CLOSE, member, graceful)

    # --- others -----------------------------------------------------------------------------------------------------
    def lone(self, name: str, most: int) -> None:
        session = self.open("l")
        start: Any = self.rng.choice(["first", self.rng.randint(0, len(self.log[name]))])
        at = max(self.first[name], 0 if start == "first" else start)
        self.add(j.SEAT, session, name, "", start)
        if name == "k" and at + 1 < len(self.log[name]) and self.strikes("starts-elsewhere"):
            at += 1
        self.read_on(session, name, at, most)

    def read_on(self, session: str, name: str, at: int, most: int) -> None:
        lost = 0
        while most and at < len(self.log[name]):
            if lost == 0 and at + 2 < len(self.log[name]) and self.rng.random() < 0.1 and name == "s":
                self.first[name] = max(self.first[name], at + 1)
                lost = 0 if self.strikes("retains-in-silence", 1.0) else 1
                at += 1
            if at and at + 2 < len(self.log[name]) and self.strikes("skips-alone", 0.05):
                at += 2
            self.read(session, name, "", at, self.log[name][at], False, lost, [])
            lost = 0
            at += 1
            most -= 1

    def step(self) -> None:
        rng = self.rng
        name = rng.choice("ks")
        what = rng.choices(
            ["publish", "sync", "take", "settle", "save", "wait", "drop", "lone", "retain", "kill", "stop"],
            [20, 12, 30, 25, 8, 2, 2, 4, 3, 1, 1],
        )[0]
        if what == "publish":
            self.publish(name)
        elif what == "sync":
            self.sync(name)
        elif what == "take":
            self.take(name, rng.choice(self.members))
        elif what == "settle" and (held := self.held(name)):
            self.settle(name, *rng.choice(held), rng.choices(["ack", "requeue", "reject"], [6, 3, 1])[0])
        elif what == "save":
            self.save()
        elif what == "wait":
            self.save()
            for member in self.members:
                self.add(j.KNOWN, member)
            self.now += 5_000 * MS
        elif what == "drop":
            member = rng.choice(self.members)
            self.drop(member, graceful=rng.random() < 0.5)
            self.members[self.members.index(member)] = self.open("m")
        elif what == "lone":
            self.lone(name, rng.randint(1, 30))
        elif what == "retain" and self.log["s"]:
            self.first["s"] = rng.randint(self.first["s"], max(self.first["s"], len(self.log["s"]) - 1))
        elif what == "kill":
            self.kill()
        elif what == "stop":
            self.stop()

    def finish(self) -> None:
        """The drain in a life of its own."""
        self.kill() if self.rng.random() < 0.5 else self.stop()
        for name in self.log:
            self.publish_last(name)
            reader = self.open("d")
            self.add(j.SEAT, reader, name, "", "first")
            self.read_on(reader, name, self.first[name], 1 << 30)
            self.add(j.END, reader, name, "", len(self.log[name]) - 1)
        for name in self.log:
            if self.strikes("gives-nothing", 1.0):
                continue
            while self.take(name, self.members[0]):
                for offset, item in self.held(name):
                    self.add(j.SETTLE, item.owner, name, "g", [offset], "ack", "")
                    del self.groups[name].open[offset]
            self.add(j.END, self.members[0], name, "g", len(self.log[name]) - 1)
        reader = self.open("d")
        for reason, ref in self.letters:
            self.read(reader, "dead", "", -1, ref, False, 0, [reason, "k"])
        for name, group in self.groups.items():
            lost = {} if self.defect == "retains-in-silence" else {"g": group.lost_all}
            self.add(j.FIGURES, name, self.first[name], lost)

    def publish_last(self, name: str) -> None:
        self.sequence += 1
        self.add(j.PUBLISH, self.producer, self.sequence, [name], 10, 99, "")
        self.log[name].append((self.producer, self.sequence))
        self.add(j.CONFIRM, self.producer, [self.sequence], 1)
