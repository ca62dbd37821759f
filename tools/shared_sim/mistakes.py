"""Planted mistakes: each breaks one rule of ADR 15, and the walks must find it.

in: nothing. out: `MISTAKES`, name -> rules with that mistake.
"""

from __future__ import annotations

from collections.abc import Collection

from tools.shared_sim.rules import Rules


class BatchesUnfenced(Rules):
    def compares_owner(self, kind: str) -> bool:
        return kind != "batch"


class LineUnfenced(Rules):
    def compares_owner(self, kind: str) -> bool:
        return kind != "line"


class SettleUnfenced(Rules):
    def compares_owner(self, kind: str) -> bool:
        return kind != "settle"


class ConfirmsAlone(Rules):
    def is_settled(self, is_in: bool, before: bool) -> bool:
        return is_in


class UnknownFailed(Rules):
    def on_unknown(self) -> str:
        return "fail"


class UnknownHappened(Rules):
    def on_unknown(self) -> str:
        return "success"


class UnknownRepeated(Rules):
    """The late first commit brings a segment back that was deleted."""

    def on_unknown(self) -> str:
        return "repeat"


class TwoInLine(Rules):
    def line_width(self) -> int:
        return 2


class NoMark(Rules):
    def writes_mark(self) -> bool:
        return False


class UnsettledEnds(Rules):
    def may_touch(self, batch: int, settled: int) -> bool:
        return True


class DeletesUnmarked(Rules):
    def may_delete_unmarked(self, batch: int, marked: int) -> bool:
        return True


class FullDeletesNothing(Rules):
    """As the ADR was: without a mark nothing goes."""

    def may_delete_unmarked(self, batch: int, marked: int) -> bool:
        return False


class EndsStay(Rules):
    def deletes_ends(self) -> bool:
        return False


class RewriteDropsHeld(Rules):
    def rewrite_keeps_held(self) -> bool:
        return False


class RewriteForgetsEnds(Rules):
    def rewrite_sees_late_ends(self) -> bool:
        return False


class GoesOn(Rules):
    def drops_on_failure(self) -> bool:
        return False


class LeavesOwnRow(Rules):
    def serves_own_row(self) -> bool:
        return False


class ReadsFirst(Rules):
    def reads_after_raise(self) -> bool:
        return False


class NoGap(Rules):
    def last_kept(self, settled: int, present: Collection[int]) -> int:
        return max(present, default=settled)


class GapFromOne(Rules):
    def last_kept(self, settled: int, present: Collection[int]) -> int:
        return super().last_kept(0, present)


class TrustsMark(Rules):
    """Batches that were confirmed since the mark was written go."""

    def last_kept(self, settled: int, present: Collection[int]) -> int:
        return settled


class LeavesOthers(Rules):
    def deletes_others(self) -> bool:
        return False


class EarlyBatches(Rules):
    def waits_for_settle(self) -> bool:
        return False


class TailOfMark(Rules):
    def tail(self, marked: int, rows: int) -> int:
        return marked


class TailOfRows(Rules):
    def tail(self, marked: int, rows: int) -> int:
        return rows


class NotOpened(Rules):
    def opens_first(self) -> bool:
        return False


class ClosingIsOpen(Rules):
    def closing_is_closed(self) -> bool:
        return False


class ForgetsOpen(Rules):
    def flags_after_open(self) -> bool:
        return False


class MoveSaysNothing(Rules):
    def move_says_delivered(self) -> bool:
        return False


class DeliversStale(Rules):
    def may_deliver(self, is_fresh: bool) -> bool:
        return True


class TrustsNewBeat(Rules):
    """A node that was stopped for a lease beats again, and goes on as owner."""

    def reads_after_lease(self) -> bool:
        return False


class OldBeat(Rules):
    """The beat was read, and has moved on when the raise arrives."""

    def compares_beat(self) -> bool:
        return False


class CountsOutage(Rules):
    def counts_lease(self, own_beats: bool) -> bool:
        return True


class IgnoresLife(Rules):
    def compares_life(self) -> bool:
        return False


class EmptyBatch(Rules):
    def numbers_what_is_sent(self) -> bool:
        return False


class CountsPositions(Rules):
    def keeps_positions(self) -> bool:
        return False


class EndsBeforeLetter(Rules):
    def ends_after_letter(self) -> bool:
        return False


class ClosesFirst(Rules):
    def closes_last(self) -> bool:
        return False


class KeepsHalves(Rules):
    def drops_open_transactions(self) -> bool:
        return False


class EndsOfHalvesStay(Rules):
    def deletes_ends_of_halves(self) -> bool:
        return False


class LoneRowIsGap(Rules):
    def counts_transaction_rows(self) -> bool:
        return False


class ForgetsTransactions(Rules):
    def keeps_named_transactions(self) -> bool:
        return False


class MergesOpenTransactions(Rules):
    def rewrites_what_counts(self) -> bool:
        return False


MISTAKES: dict[str, type[Rules]] = {
    "R1 batches compare no owner row": BatchesUnfenced,
    "R1 the line compares no owner row": LineUnfenced,
    "R1 the commit that settles compares no owner row": SettleUnfenced,
    "R2 a batch is confirmed before those in front of it are in": ConfirmsAlone,
    "R3 two commits of the line are under way": TwoInLine,
    "R3 the mark is not written": NoMark,
    "R3 ends of unsettled batches are written": UnsettledEnds,
    "R3 a full engine's segments go although the mark does not count them": DeletesUnmarked,
    "R3 a full engine's segments stay since no mark can be written": FullDeletesNothing,
    "R3 the row of ends stays behind its segment": EndsStay,
    "R3 a rewritten segment leaves out an entry that is under way": RewriteDropsHeld,
    "R3 what ends while a segment is rewritten is forgotten": RewriteForgetsEnds,
    "R4 an owner goes on after a failed condition": GoesOn,
    "R4 a node that is named as owner does not serve": LeavesOwnRow,
    "R4 an unknown outcome is a failure": UnknownFailed,
    "R4 an unknown outcome is a success": UnknownHappened,
    "R4 an unknown commit is repeated in the same epoch": UnknownRepeated,
    "R5 rows are read before the epoch is raised": ReadsFirst,
    "R5 batches behind a gap are kept": NoGap,
    "R5 the gap is counted from batch 1": GapFromOne,
    "R5 batches above the mark go": TrustsMark,
    "R5 batches behind the gap are not deleted": LeavesOthers,
    "R5 batches are written before the settle commit": EarlyBatches,
    "R5 new positions begin behind the mark's tail": TailOfMark,
    "R5 new positions begin behind the rows": TailOfRows,
    "R6 a consumer comes before the queue is open": NotOpened,
    "R6 a queue whose closing is under way counts as open": ClosingIsOpen,
    "R6 a take-over forgets that the queue was open": ForgetsOpen,
    "R6 a planned move does not say what was delivered": MoveSaysNothing,
    "R7 the raise does not compare the beat": OldBeat,
    "R7 a lease counts although the observer's beats were not accepted": CountsOutage,
    "R7 the life is not compared": IgnoresLife,
    "R8 a batch without messages has a number": EmptyBatch,
    "R8 positions are counted over holes": CountsPositions,
    "R9 an end is written before the letter is stored": EndsBeforeLetter,
    "R10 the row of a transaction is written in front of its messages": ClosesFirst,
    "R10 halves of transactions are kept": KeepsHalves,
    "R10 rows of ends of deleted halves stay": EndsOfHalvesStay,
    "R10 a batch that has only the row of a transaction looks like a gap": LoneRowIsGap,
    "R10 the row of a transaction goes while segments name it": ForgetsTransactions,
    "R10 segments of a transaction are merged before it counts": MergesOpenTransactions,
    "R11 an owner delivers after its lease": DeliversStale,
    "R11 after its lease an owner does not read its row": TrustsNewBeat,
}
