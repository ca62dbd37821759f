"""The guards of ADR 15, one function each. A planted mistake (mistakes.py) is a class that overrides one of them.

in: what an owner or an observer knows. out: whether, or how, it goes on.
"""

from __future__ import annotations

from collections.abc import Collection


class Rules:
    """R1 to R11 of the ADR."""

    def compares_owner(self, kind: str) -> bool:
        """R1: every commit of an owner compares its owner row. kind: batch, line, settle, move."""
        return True

    # --- batches ----------------------------------------------------------------------------------------------------

    def is_settled(self, is_in: bool, before: bool) -> bool:
        """R2: a batch is settled when it and all before it are in; before: those are."""
        return is_in and before

    def on_unknown(self) -> str:
        """R4: after an unknown outcome the owner takes over from itself. Mistakes say fail, success or repeat."""
        return "self"

    def line_width(self) -> int:
        """R3: of the line's commits one is under way."""
        return 1

    def writes_mark(self) -> bool:
        """R3: each commit of the line writes the mark."""
        return True

    def may_touch(self, batch: int, settled: int) -> bool:
        """R3: ends are written of settled batches alone."""
        return batch <= settled

    def may_delete_unmarked(self, batch: int, marked: int) -> bool:
        """R3, full engine: without the mark (a put) a segment goes only when the mark as it was written last counts its batch."""
        return batch <= marked

    def deletes_ends(self) -> bool:
        """R3: the row of ends goes with its segment."""
        return True

    def rewrite_keeps_held(self) -> bool:
        """R3: an entry that a consumer holds is alive, too."""
        return True

    def rewrite_sees_late_ends(self) -> bool:
        """R3: what ended while a rewritten segment was under way is written later."""
        return True

    # --- owners -----------------------------------------------------------------------------------------------------

    def drops_on_failure(self) -> bool:
        """R4: a condition that failed: the node is no owner any more."""
        return True

    def serves_own_row(self) -> bool:
        """R4: a node that reads its own name and life in the owner row, and does not serve, takes over from itself."""
        return True

    def reads_after_raise(self) -> bool:
        """R5: rows are read behind the new epoch."""
        return True

    def last_kept(self, settled: int, present: Collection[int]) -> int:
        """R5: the last batch before the first gap behind the settled ones."""
        while settled + 1 in present:
            settled += 1
        return settled

    def deletes_others(self) -> bool:
        """R5: what stands behind the gap goes with the commit that writes the mark."""
        return True

    def waits_for_settle(self) -> bool:
        """R5: before that commit no batch is written."""
        return True

    def tail(self, marked: int, rows: int) -> int:
        """R5: new positions begin behind those of the mark and those of the rows."""
        return max(marked, rows)

    # --- deliveries -------------------------------------------------------------------------------------------------

    def opens_first(self) -> bool:
        """R6: a first consumer waits until no row says that the queue is quiet."""
        return True

    def closing_is_closed(self) -> bool:
        """R6: a queue whose closing is under way is not open."""
        return True

    def flags_after_open(self) -> bool:
        """R6: what was there when a queue was taken over open may have been delivered; the next owner is told, too."""
        return True

    def move_says_delivered(self) -> bool:
        """R6: a planned move says what was delivered."""
        return True

    def may_deliver(self, is_fresh: bool) -> bool:
        """R11: an owner delivers while its last accepted beat was sent less than a lease ago, on its own clock."""
        return is_fresh

    def reads_after_lease(self) -> bool:
        """R11: after a lease without an accepted beat it reads its owner row first."""
        return True

    # --- observers --------------------------------------------------------------------------------------------------

    def compares_beat(self) -> bool:
        """R7: the commit that takes a queue from a gone node compares the beat that was judged."""
        return True

    def counts_lease(self, own_beats: bool) -> bool:
        """R7: a lease counts while the observer's own beats were accepted, without a hole."""
        return own_beats

    def compares_life(self) -> bool:
        """R7: an owner of another life than the node's row is gone."""
        return True

    # --- R8 to R10 ---------------------------------------------------------------------------------------------------------

    def numbers_what_is_sent(self) -> bool:
        """R8: a batch without messages has no number."""
        return True

    def keeps_positions(self) -> bool:
        """R8: a row names the position of each message; there are holes."""
        return True

    def ends_after_letter(self) -> bool:
        """R9: an end that gave its message to another place is written after that place has it for good."""
        return True

    def closes_last(self) -> bool:
        """R10: the row of a transaction is written with or behind its last message."""
        return True

    def drops_open_transactions(self) -> bool:
        """R10: a take-over deletes the rows of a transaction whose own row is not there, or behind the gap."""
        return True

    def counts_transaction_rows(self) -> bool:
        """R10: a batch that has only such a row is no gap."""
        return True

    def keeps_named_transactions(self) -> bool:
        """R10: the row of a transaction stays while a segment names it."""
        return True

    def rewrites_what_counts(self) -> bool:
        """R10: a segment of a transaction is not merged with others before the transaction counts."""
        return True

    def deletes_ends_of_halves(self) -> bool:
        """R10: the rows of ends go with them: their batches may have been settled."""
        return True
