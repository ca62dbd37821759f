"""A node: beats, what it sees of others, and a take-over (R5, R7).

in: ticks, the engine's rows. out: beats; an `Owner`, when a take-over came through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.shared_sim.engine import DONE, FAILED, MARK, OWNER, QUIET, UNKNOWN, Closed, Commit, Flight, Key, Mark, OwnerRow, Quiet, Segment
from tools.shared_sim.owner import Entry, Owner, State, Stored

if TYPE_CHECKING:
    from tools.shared_sim.world import World

# ticks; rows of a page
LEASE, PAGE = 5, 3


class TakeOver:
    """R5: raise the epoch, read, settle, serve.

    Args: judged: the owner row that is replaced; beat: of the gone node; None: nobody is gone.
    """

    def __init__(self, node: Node, judged: OwnerRow, beat: tuple[Key, object] | None) -> None:
        self.node, self.world = node, node.world
        self.judged, self.beat = judged, beat
        self.row = OwnerRow(judged.epoch + 1, node.number, node.life)
        self.flight: Flight | None = None
        self.raised = False
        self.after: Key = ()
        self.read: dict[Key, object] = {}
        self.is_read = False
        self.state: State | None = None
        self.closed = False

    def step(self) -> None:
        if not self.world.rules.reads_after_raise() and not self.is_read:
            self._read_page()
        elif not self.raised:
            self._raise()
        elif not self.is_read:
            self._read_page()
        else:
            self._settle()

    def _raise(self) -> None:
        if self.flight is None:
            conditions: tuple[tuple[Key, object], ...] = ((OWNER, self.judged),)
            if self.beat is not None and self.world.rules.compares_beat():
                conditions += (self.beat,)
            commit = Commit(
                "raise",
                self.node.number,
                self.node.life,
                self.row.epoch,
                conditions,
                {OWNER: self.row},
                gone=self.beat is not None,
            )
            self.flight = self.world.submit(commit)
        elif self.flight.outcome == DONE:
            self.raised, self.flight = True, None
        elif self.flight.outcome is not None:
            self.node.drop()  # it looks at the owner row again

    def _read_page(self) -> None:
        if not self.world.reaches(self.node.number):
            return
        rows = self.world.engine.page(self.after, PAGE)
        self.read.update(rows)
        if len(rows) < PAGE:
            self.is_read = True
        else:
            self.after = rows[-1][0]

    def _settle(self) -> None:
        if self.flight is None:
            self.state, puts, deletes = self.restore()
            conditions = ((OWNER, self.row),) if self.world.rules.compares_owner("settle") else ()
            commit = Commit("settle", self.node.number, self.row.life, self.row.epoch, conditions, puts, frozenset(deletes))
            self.flight = self.world.submit(commit)
        if self.flight.outcome == DONE or not self.world.rules.waits_for_settle():
            assert self.state is not None
            self.node.role = Owner(self.node, self.row, self.state)
        elif self.flight.outcome == FAILED:
            self.node.drop()
        elif self.flight.outcome == UNKNOWN:
            self.node.take_over(self.row)
        elif self.flight.outcome is not None:
            self.flight = None

    def restore(self) -> tuple[State, dict[Key, object], set[Key]]:
        rules, rows = self.world.rules, self.read
        mark, quiet = rows[MARK], rows.get(QUIET)
        assert isinstance(mark, Mark)
        segments = {key: row for key, row in rows.items() if isinstance(row, Segment)}
        batches = {key: row for key, row in rows.items() if isinstance(row, Segment | Closed)}
        counted = batches if rules.counts_transaction_rows() else segments
        last = rules.last_kept(mark.settled, {row.batch for row in counted.values() if row.epoch == mark.epoch})
        others = {key for key, row in batches.items() if row.epoch > mark.epoch or (row.epoch == mark.epoch and row.batch > last)}
        closed = {key[1] for key in batches.keys() - others if key[0] == "transaction"}
        if rules.drops_open_transactions():
            others |= {key for key, row in segments.items() if row.transaction and row.transaction not in closed}
        gone = set(others)
        if rules.deletes_ends_of_halves():
            gone |= {("ends", *key[1:]) for key in others if key[0] == "seg"}
        state = State(list(mark.tails), transactions=dict.fromkeys(sorted(closed), 0))
        below = quiet.below if isinstance(quiet, Quiet) else mark.tails
        for level in range(len(mark.tails)):
            last_row = max((row.items[-1][0] + 1 for key, row in segments.items() if key[1] == level and key not in others), default=0)
            state.tails[level] = rules.tail(mark.tails[level], last_row)
        for key in sorted(segments.keys() - others):
            self._restore_segment(state, key, segments[key], quiet if isinstance(quiet, Quiet) else None)
        puts: dict[Key, object] = {MARK: Mark(self.row.epoch, 0, tuple(state.tails))}
        if quiet is None:
            below = tuple(state.tails) if rules.flags_after_open() else (0,) * len(below)
            puts[QUIET] = Quiet(below)
        return state, puts, gone if rules.deletes_others() else set()

    def _restore_segment(self, state: State, key: Key, row: Segment, quiet: Quiet | None) -> None:
        level, written = key[1], self.read.get(("ends", *key[1:]), frozenset())
        assert isinstance(written, frozenset)
        state.stored[key] = Stored(level, row, 0, written)
        for index, copy in row.items:
            position = (level, index)
            flagged = quiet is None or index < quiet.below[level] or position in quiet.exact
            entry = Entry(position, copy, flagged, index in written)
            if position in state.entries:
                self.world.fail(f"P4: position {position} is {copy} and {state.entries[position].copy}")
            state.entries[position] = entry


class Node:
    def __init__(self, number: int, world: World) -> None:
        self.number, self.world = number, world
        self.life = 1
        self.up, self.stopped, self.parted = True, False, False
        self.beat = 0
        self.accepted = -LEASE  # tick of the last accepted beat
        self.accepted_since = 0  # first tick of the accepted beats without a hole
        self.troubled = 0  # tick of its own last trouble, for the world's checks
        self.seen: dict[int, tuple[object, int]] = {}
        self.role: Owner | TakeOver | None = None

    def runs(self) -> bool:
        return self.up and not self.stopped

    def is_fresh(self) -> bool:
        return self.world.now - self.accepted < LEASE

    # --- life -------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        self.drop()
        self.up = self.stopped = False

    def start(self) -> None:
        self.up = True
        self.life += 1
        self.beat = 0
        self.accepted = -LEASE
        self.seen = {}

    def drop(self) -> None:
        if self.role is not None:
            self.role.closed = True
        self.role = None

    def take_over(self, judged: OwnerRow, beat: tuple[Key, object] | None = None) -> None:
        self.drop()
        self.role = TakeOver(self, judged, beat)

    # --- beats ------------------------------------------------------------------------------------------------------

    def tick(self, lost: bool) -> None:
        """Writes a beat. lost: this one does not come through."""
        world = self.world
        is_reachable = world.reaches(self.number)
        if not self.runs() or self.parted or (lost and is_reachable):
            self.troubled = world.now
        if not self.runs() or not is_reachable or lost:
            return
        if world.now - self.accepted >= LEASE and isinstance(self.role, Owner) and world.rules.reads_after_lease():
            self.role.is_sure = False
        if world.engine.full:  # nobody can take over, since that is a put, too
            self.accepted, self.accepted_since = world.now, world.now + 1
            return
        if world.now - self.accepted > 1:
            self.accepted_since = world.now
        self.accepted = world.now
        self.beat += 1
        world.engine.rows["node", self.number] = (self.life, self.beat)

    def look(self, missed: bool) -> None:
        """The watch tells of beats; missed: it does not."""
        if not self.runs() or not self.world.reaches(self.number) or missed:
            return
        for number in self.world.nodes:
            row = self.world.engine.rows.get(("node", number))
            if number not in self.seen or self.seen[number][0] != row:
                self.seen[number] = (row, self.world.now)

    def observe(self) -> None:
        """Looks at the owner row: is it this node's, or that of a gone one?"""
        world = self.world
        if not self.runs() or self.role is not None or not world.reaches(self.number) or not self.is_fresh():
            return
        owner = world.engine.rows[OWNER]
        if owner.node == self.number:
            serves = world.rules.serves_own_row() if owner.life == self.life else world.rules.compares_life()
            if serves:
                self.take_over(owner)
            return
        row, since = self.seen.get(owner.node, (None, world.now))
        if row is None:
            return
        other_life = isinstance(row, tuple) and row[0] > owner.life and world.rules.compares_life()
        own_beats = world.now - self.accepted_since >= LEASE and world.now - self.accepted <= 1
        if other_life or (world.now - since >= LEASE and world.rules.counts_lease(own_beats)):
            self.take_over(owner, None if other_life else (("node", owner.node), row))
