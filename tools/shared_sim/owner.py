"""An owner: it serves the queue from memory, and writes batches and a line of ends to the engine (R1 to R4, R6, R8, R11).

in: messages, consumers, answers of the engine. out: commits, confirms, deliveries; `world` checks each of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tools.shared_sim.engine import (
    DONE,
    FAILED,
    FULL,
    MARK,
    OWNER,
    QUIET,
    UNKNOWN,
    Closed,
    Commit,
    Copy,
    Flight,
    Key,
    Mark,
    OwnerRow,
    Position,
    Quiet,
    Segment,
)

if TYPE_CHECKING:
    from tools.shared_sim.clients import Consumer, Publisher
    from tools.shared_sim.node import Node

# messages of a batch; batches under way; segments that one commit of the line touches
BATCH, WINDOW, LINE_SEGMENTS = 4, 3, 3
# batches that the mark may lag behind: so many stay in a full engine
UNMARKED = 3 * WINDOW
# numbers of attempts from here on are letters
LETTERS = 1_000_000


@dataclass(slots=True, eq=False)
class Entry:
    position: Position
    copy: Copy
    flagged: bool = False
    ended: bool = False
    transaction: int = 0
    holder: Consumer | Letter | None = None
    publisher: Publisher | Letter | None = None


class Letter:
    """Holds an entry whose message is on its way to another place, and is the publisher there."""

    def __init__(self, owner: Owner, entry: Entry) -> None:
        self.owner, self.entry = owner, entry
        self.held: list[Entry] = [entry]

    def confirm(self, number: int) -> None:
        if not self.entry.ended:
            self.owner.end(self.entry)

    def refuse(self, number: int) -> None:
        self.entry.holder = None


@dataclass(slots=True, eq=False)
class Stored:
    """A segment in the engine. written: the indices whose end is durable; batch: 0 when another owner settled it."""

    level: int
    row: Segment
    batch: int
    written: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class Closing:
    """The end of a transaction, behind its entries."""

    transaction: int


@dataclass(slots=True, eq=False)
class Batch:
    number: int
    rows: dict[Key, Segment | Closed]
    entries: list[Entry]
    flight: Flight | None = None
    is_in: bool = False


@dataclass(slots=True, eq=False)
class State:
    """What a take-over hands to a new owner."""

    tails: list[int]
    entries: dict[Position, Entry] = field(default_factory=dict)
    stored: dict[Key, Stored] = field(default_factory=dict)
    transactions: dict[int, int] = field(default_factory=dict)  # those that count -> batch of their row, 0: another owner settled it


class Owner:
    def __init__(self, node: Node, row: OwnerRow, state: State) -> None:
        self.node, self.world, self.rules = node, node.world, node.world.rules
        self.row = row
        self.state = state
        self.closed = False
        self.is_sure = True  # False: its lease ran out since it read the owner row
        self.full = False
        self.marked = 0  # settled batches, as the mark says that was written last
        self.settled = 0
        self.numbered = 0
        self.batches: dict[int, Batch] = {}
        self.unsent: list[Entry | Closing] = []
        self.unconfirmed: dict[int, list[tuple[Entry, bool]]] = {}  # of transactions
        self.line: list[Flight] = []
        self.is_open = False
        self.consumers: list[Consumer] = []
        self.waiting: list[Consumer] = []
        self.moving: OwnerRow | None = None

    # --- clients ----------------------------------------------------------------------------------------------------

    def publish(self, publisher: Publisher | Letter, copy: Copy, level: int, transaction: int = 0) -> bool:
        """False: not now."""
        if self.moving is not None:
            return False
        if self.full:
            publisher.refuse(copy[1])
            return True
        position = (level, self.state.tails[level])
        self.state.tails[level] += 1
        self.state.entries[position] = entry = Entry(position, copy, transaction=transaction, publisher=publisher)
        self.unsent.append(entry)
        return True

    def close_transaction(self, transaction: int) -> None:
        """R10: its row goes behind its messages."""
        first = next((place for place, one in enumerate(self.unsent) if one.transaction == transaction), len(self.unsent))
        self.unsent.insert(len(self.unsent) if self.rules.closes_last() else first, Closing(transaction))

    def best(self) -> Entry | None:
        ready = [one for one in self.state.entries.values() if not one.ended and one.holder is None]
        return min(ready, key=lambda one: (-one.position[0], one.position[1]), default=None)

    def deliver(self, consumer: Consumer) -> None:
        entry = self.best()
        if entry is None or consumer not in self.consumers or not self.rules.may_deliver(self.is_sure and self.node.is_fresh()):
            return
        self.world.delivered(self, entry)
        entry.holder, entry.flagged = consumer, True
        consumer.held.append(entry)

    def end(self, entry: Entry) -> None:
        entry.ended, entry.holder = True, None
        self.world.over.add(entry.copy)
        if entry in self.unsent and self.rules.numbers_what_is_sent():  # R8
            self.unsent.remove(entry)
            del self.state.entries[entry.position]
            self._confirm_later(entry, is_stored=False)

    def letter(self, entry: Entry) -> None:
        """R9: the message goes to another place, here the queue's own end, and ends when it is there for good."""
        if self.full or self.moving is not None:
            return
        entry.holder = letter = Letter(self, entry)
        self.world.letters += 1
        publisher, number, _ = entry.copy
        self.publish(letter, (publisher, number, LETTERS + self.world.letters), entry.position[0])
        if not self.rules.ends_after_letter():
            letter.confirm(number)

    def attach(self, consumer: Consumer) -> None:
        if self.moving is None:
            self.waiting.append(consumer)
            self._admit()

    def detach(self, consumer: Consumer) -> None:
        for entry in consumer.held:
            entry.holder = None
        consumer.held.clear()
        self.consumers = [one for one in self.consumers if one is not consumer]
        self.waiting = [one for one in self.waiting if one is not consumer]

    def close(self) -> None:
        self.closed = True

    def _admit(self) -> None:
        if self.is_open or not self.rules.opens_first():
            self.consumers += self.waiting
            self.waiting.clear()

    def _confirm(self, entry: Entry, is_stored: bool = True) -> None:
        if entry.publisher is not None and entry.publisher.owner is self:
            entry.publisher.confirm(entry.copy[1])
            self.world.confirmed(entry.position, entry.copy, is_stored)
        entry.publisher = None

    def _confirm_later(self, entry: Entry, is_stored: bool = True) -> None:
        """A transaction is confirmed as a whole."""
        if entry.transaction and entry.transaction not in self.state.transactions:
            self.unconfirmed.setdefault(entry.transaction, []).append((entry, is_stored))
        else:
            self._confirm(entry, is_stored)

    # --- steps ------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Takes answers, then sends what may be sent."""
        if not self.is_sure:
            self._read_own_row()
        if not self.closed:
            self._collect_batches()
        if not self.closed:
            self._collect_line()
        if self.closed:
            return
        self._settle()
        self._admit()
        self._send_batch()
        if len(self.line) < self.rules.line_width():
            self._send_line()

    def _read_own_row(self) -> None:
        if self.world.reaches(self.node.number):
            self.is_sure = self.world.engine.rows[OWNER] == self.row
            if not self.is_sure:
                self.node.drop()

    def _lost(self, outcome: str) -> bool:
        """R4. True: this owner is at its end."""
        if outcome == FAILED and self.rules.drops_on_failure():
            self.node.drop()
        elif outcome == UNKNOWN and self.rules.on_unknown() == "self":
            self.node.take_over(self.row)
        return self.closed

    def _submit(
        self, kind: str, puts: dict[Key, object], deletes: set[Key], ends: frozenset[Copy] = frozenset(), rewrites: bool = False
    ) -> Flight:
        conditions = ((OWNER, self.row),) if self.rules.compares_owner(kind) else ()
        commit = Commit(
            kind, self.node.number, self.row.life, self.row.epoch, conditions, puts, frozenset(deletes), ends, rewrites=rewrites
        )
        return self.world.submit(commit)

    # --- batches ----------------------------------------------------------------------------------------------------

    def _send_batch(self) -> None:
        for batch in self.batches.values():
            if batch.flight is None and not batch.is_in:
                batch.flight = self._submit("batch", dict(batch.rows), set())
                return
        if not self.unsent or len(self.batches) >= WINDOW or self.numbered - self.marked >= UNMARKED:
            return
        count = self.world.chance.choice((1, 2, BATCH, BATCH))
        taken, self.unsent = self.unsent[:count], self.unsent[count:]
        entries = [one for one in taken if isinstance(one, Entry)]
        self.numbered += 1
        batch = self.batches[self.numbered] = Batch(self.numbered, self._rows([one for one in entries if not one.ended]), entries)
        for one in taken:
            if isinstance(one, Closing):
                batch.rows["transaction", one.transaction] = Closed(self.row.epoch, self.numbered)
        if batch.rows:
            batch.flight = self._submit("batch", dict(batch.rows), set())
        else:
            batch.is_in = True  # a mistake: it has a number, and nobody sees it

    def _rows(self, entries: list[Entry]) -> dict[Key, Segment | Closed]:
        groups: dict[tuple[int, int], list[Entry]] = {}
        for entry in entries:
            groups.setdefault((entry.position[0], entry.transaction), []).append(entry)
        rows: dict[Key, Segment | Closed] = {}
        for (level, transaction), members in groups.items():
            first = members[0].position[1]
            exact = self.rules.keeps_positions()
            items = tuple((one.position[1] if exact else first + number, one.copy) for number, one in enumerate(members))
            rows["seg", level, first] = Segment(self.row.epoch, self.numbered, items, transaction)
        return rows

    def _collect_batches(self) -> None:
        for batch in list(self.batches.values()):
            outcome = batch.flight.outcome if batch.flight is not None else None
            if outcome is None or self._lost(outcome):
                continue
            batch.flight = None
            how = self.rules.on_unknown() if outcome == UNKNOWN else ""
            if outcome == DONE:
                self.full = False
                batch.is_in = True
            elif outcome == FULL:
                self.full = True
            elif how == "success":
                batch.is_in = True
            elif how == "fail":
                self._refuse(batch)

    def _refuse(self, batch: Batch) -> None:
        """A mistake: an unknown batch is one that did not happen, and the next ones go on."""
        batch.is_in = True
        for entry in batch.entries:
            if entry.publisher is not None:
                entry.publisher.refuse(entry.copy[1])
            if entry.holder is not None:
                entry.holder.held.remove(entry)
            self.state.entries.pop(entry.position, None)
        batch.entries, batch.rows = [], {}

    def _settle(self) -> None:
        before = True
        for number in sorted(self.batches):
            batch = self.batches[number]
            if self.rules.is_settled(batch.is_in, before):
                self.settled = max(self.settled, number)
                for entry in batch.entries:
                    self._confirm_later(entry)
                    if entry.ended and not batch.rows:
                        self.state.entries.pop(entry.position, None)
                for key, row in batch.rows.items():
                    self._now_stored(key, row, number)
                del self.batches[number]
            else:
                before = False
                if batch.is_in and self.rules.may_touch(number, self.settled):  # a mistake alone says so
                    for key, row in batch.rows.items():
                        if isinstance(row, Segment):
                            self.state.stored.setdefault(key, Stored(key[1], row, number))

    def _now_stored(self, key: Key, row: Segment | Closed, batch: int) -> None:
        if isinstance(row, Segment):
            self.state.stored[key] = Stored(key[1], row, batch)
            return
        self.state.transactions[key[1]] = batch
        for entry, is_stored in self.unconfirmed.pop(key[1], []):
            self._confirm(entry, is_stored)

    # --- the line ---------------------------------------------------------------------------------------------------

    def ended(self, one: Stored) -> frozenset[int]:
        return frozenset(index for index, _ in one.row.items if self.state.entries[one.level, index].ended)

    def _send_line(self) -> None:
        puts: dict[Key, object] = {}
        deletes: set[Key] = set()
        data: dict[str, object] = {}
        ends: set[Copy] = set()
        self._write_ends(puts, deletes, ends, data)
        self._forget_transactions(deletes, data)
        if not puts and not deletes and not self.full:
            self._rewrite(puts, deletes, ends, data)
        self._write_open(puts, deletes, data)
        if not puts and not deletes and (self.settled - self.marked <= WINDOW or self.full):
            if self.moving is not None and not self.full:
                self._send_move()
                return
            if not self.full or self.world.chance.random() < 0.7:
                return
        if not self.full or (not puts and not deletes):
            data["marked"] = self.settled
            if self.rules.writes_mark():
                puts[MARK] = Mark(self.row.epoch, self.settled, tuple(self.state.tails))
        if not puts and not deletes:
            return
        flight = self._submit("line", puts, deletes, frozenset(ends), "merged" in data)
        flight.data.update(data)
        self.line.append(flight)

    def _write_ends(self, puts: dict[Key, object], deletes: set[Key], ends: set[Copy], data: dict[str, object]) -> None:
        written: dict[Key, frozenset[int]] = {}
        removed: list[Key] = []
        for key, one in self.state.stored.items():
            ended = self.ended(one)
            if len(written) + len(removed) >= LINE_SEGMENTS:
                break
            if (ended == one.written and len(ended) < len(one.row.items)) or not self.rules.may_touch(one.batch, self.settled):
                continue
            if len(ended) == len(one.row.items):
                if self.full and not self.rules.may_delete_unmarked(one.batch, self.marked):
                    continue
                deletes.add(key)
                if self.rules.deletes_ends():
                    deletes.add(("ends", *key[1:]))
                removed.append(key)
            elif not self.full:
                puts["ends", *key[1:]] = ended
                written[key] = ended
            else:
                continue
            ends |= {copy for index, copy in one.row.items if index in ended}
        data["written"], data["removed"] = written, removed

    def _forget_transactions(self, deletes: set[Key], data: dict[str, object]) -> None:
        """R10: the row of a transaction goes when no segment names it."""
        named = {one.row.transaction for one in self.state.stored.values()}
        over = []
        for transaction, batch in self.state.transactions.items():
            is_named = transaction in named and self.rules.keeps_named_transactions()
            if not is_named and (not self.full or self.rules.may_delete_unmarked(batch, self.marked)):
                over.append(transaction)
        deletes |= {("transaction", one) for one in over}
        data["over"] = over

    def _rewrite(self, puts: dict[Key, object], deletes: set[Key], ends: set[Copy], data: dict[str, object]) -> None:
        """Merges thin segments of one level. One alone is written again when the engine has more than twice what lives."""
        stored = self.state.stored
        live = sum(not one.ended for one in self.state.entries.values())
        is_over = sum(len(one.row.items) for one in stored.values()) > 2 * live
        sources: list[Key] = []
        items: list[tuple[int, Copy]] = []
        for key, one in sorted(stored.items(), key=lambda pair: len(pair[1].row.items) - len(self.ended(pair[1]))):
            alive = [item for item in one.row.items if self._is_kept(one.level, item[0])]
            fits = not sources or (key[1] == sources[0][1] and len(items) + len(alive) <= BATCH)
            counts = not one.row.transaction or one.row.transaction in self.state.transactions or not self.rules.rewrites_what_counts()
            if fits and counts and 2 * len(alive) <= len(one.row.items) and one.batch <= self.settled:
                sources.append(key)
                items += alive
        if not sources or (len(sources) == 1 and not is_over):
            return
        items.sort()
        keys = set(sources)
        ends |= {copy for key in keys for index, copy in stored[key].row.items if (index, copy) not in items}
        deletes |= keys | {("ends", *key[1:]) for key in keys}
        data["removed"] = sources
        if items:
            newest = max((stored[key] for key in keys), key=lambda one: (one.row.epoch, one.row.batch))
            merged: Key = ("seg", sources[0][1], items[0][0])
            puts[merged] = row = Segment(newest.row.epoch, newest.row.batch, tuple(items))
            data["merged"] = (merged, Stored(sources[0][1], row, newest.batch))
            deletes.discard(merged)

    def _is_kept(self, level: int, index: int) -> bool:
        entry = self.state.entries[level, index]
        return not entry.ended and (entry.holder is None or self.rules.rewrite_keeps_held())

    def _write_open(self, puts: dict[Key, object], deletes: set[Key], data: dict[str, object]) -> None:
        if self.waiting and not self.is_open:
            deletes.add(QUIET)
            data["open"] = True
        elif self.is_open and not self.consumers and not self.waiting and not self.full:
            puts[QUIET] = Quiet(tuple(self.state.tails))
            self.is_open = not self.rules.closing_is_closed()

    def _collect_line(self) -> None:
        for flight in list(self.line):
            outcome = flight.outcome
            if outcome is None:
                continue
            if self._lost(outcome):
                return
            self.line.remove(flight)
            if outcome == FULL:
                self.full = True
            elif outcome == DONE or (outcome == UNKNOWN and self.rules.on_unknown() == "success"):
                if flight.commit.kind == "move":
                    self.node.drop()
                    return
                self._line_done(flight)

    def _line_done(self, flight: Flight) -> None:
        data = flight.data
        if MARK in flight.commit.puts:
            self.full = False
        self.marked = max(self.marked, data.get("marked", 0))
        if data.get("open"):
            self.is_open = True
        for key, ended in data.get("written", {}).items():
            if key in self.state.stored:
                self.state.stored[key].written = ended
        for transaction in data.get("over", ()):
            self.state.transactions.pop(transaction, None)
        merged = data.get("merged")
        kept = {(merged[1].level, index) for index, _ in merged[1].row.items} if merged else set()
        for key in data.get("removed", ()):
            gone: Stored | None = self.state.stored.pop(key, None)
            for index, _ in gone.row.items if gone is not None else ():
                if (key[1], index) not in kept:
                    self.state.entries.pop((key[1], index), None)
        if merged:
            self.state.stored[merged[0]] = merged[1]
            if not self.rules.rewrite_sees_late_ends():
                merged[1].written = self.ended(merged[1])

    # --- a planned move ---------------------------------------------------------------------------------------------

    def move(self, row: OwnerRow) -> None:
        """Begins to give the queue to the node of `row`: consumers go, publishers wait."""
        self.moving = OwnerRow(self.row.epoch + 1, row.node, row.life)
        for consumer in [*self.consumers, *self.waiting]:
            consumer.leave()

    def _send_move(self) -> None:
        """When nothing is under way and all ends are written: the new owner row, and exactly what was delivered."""
        if self.moving is None or self.batches or self.unsent or self.line:
            return
        flagged = frozenset(one.position for one in self.state.entries.values() if one.flagged and not one.ended)
        quiet = Quiet((0,) * len(self.state.tails), flagged if self.rules.move_says_delivered() else frozenset())
        mark = Mark(self.row.epoch, self.settled, tuple(self.state.tails))
        self.line.append(self._submit("move", {OWNER: self.moving, MARK: mark, QUIET: quiet}, set()))
